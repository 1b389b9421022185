"""Locks a run directory for one process, protects files that no run wrote, and checks the settings of a resumed run."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from unicloze import files
from unicloze.errors import UniclozeError, UsageError
from unicloze.recipes.validation import DECIDED_IN_A_TASK
from unicloze.settings import Recipe
from unicloze.training.parallel import World

WRITTEN = (
    files.RECIPE, files.TOKENIZER, files.TOKENIZER_CONFIG, files.RESULTS, files.DEV_PREDICTIONS, files.DEV_SAMPLES,
    files.BASELINES, "scores.json", "phrases/phrases.txt",
)  # fmt: skip
"""Files that runs replace, with names that people also use for their own files."""


@contextmanager
def hold_run(folder: Path, world: World | None = None, *, writes: Collection[str] = ()) -> Iterator[None]:
    """Lock the directory of a run for this process; a new one is created. If nothing was written, nothing is left.

    Refuses a new run where files that it `writes`, besides those of all runs, are there already.
    """
    if world is not None and not world.first:
        yield
        return
    there = {file.name for file in folder.iterdir()} if folder.is_dir() else set()
    is_new = not files.is_run(folder) or there == {files.LOCK, files.HOLDER}  # of a run that was killed at its start
    if is_new:
        if (folder / files.LINEAGE).is_file():
            raise UniclozeError(
                f"{folder} holds a prepared corpus, not a run: give another --out (to train on it: "
                f"`unicloze pretrain --data.prepared {folder}`)"
            )
        foreign = next((name for name in (*WRITTEN, *writes) if (folder / name).exists()), None)
        if foreign is not None:
            raise UniclozeError(
                f"{folder / foreign} was not written by a run, but this run would replace it: give another --out, or move it"
            )
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with files.hold(folder / files.LOCK, folder, "wait for it, stop it, or give this run another --out", keep=True):
            yield
    finally:
        if is_new:
            _remove_unused(folder, there, made)


def _remove_unused(folder: Path, there: set[str], made: Sequence[Path]) -> None:
    """Remove the lock of a run that wrote nothing, and the directories made for it, unless another process holds it."""
    with suppress(OSError, files.InUse):
        if {file.name for file in folder.iterdir()} <= there | {files.LOCK, files.HOLDER}:
            with files.hold(folder / files.LOCK, folder, ""):  # removes both files
                pass
            for place in made:
                place.rmdir()


FREE_TO_CHANGE = {
    "name", "data.corpus", "data.prepared", "tokenizer.path", "distillation.teacher", "training.steps", "training.device",
    "training.threads", "training.checkpoint_activations", "training.compile", "training.parallel", "training.log_every",
    "training.save_every", "training.evaluate_every", "training.evaluate_windows", "training.keep_checkpoints",
    "training.copy_to", "training.initialize_from", "training.word_vectors",
}  # fmt: skip
"""Settings that may change when a run is resumed; any other change would make it a different run.

Corpus, tokenizer and teacher may have moved; the fingerprint decides whether they are the same.
"""
FREE_AFTER_DIVERGENCE = {
    "training.learning_rate", "training.head_learning_rate", "training.muon_learning_rate", "training.clip_norm",
    "training.on_spike", "training.spike_factor",
}  # fmt: skip
"""Settings that may also change when resuming a run stopped by a non-finite number. Each start records its settings."""
FREE_AFTER_OUT_OF_MEMORY = {"training.micro_batch_size"}
"""Settings that may also change when resuming a run that ran out of memory, for the rest of the run."""


def free_after(errors: Collection[str]) -> frozenset[str]:
    """Settings that may change because of the errors, by class, that stopped a run."""
    more = {"NonFiniteError": FREE_AFTER_DIVERGENCE, "OutOfMemoryError": FREE_AFTER_OUT_OF_MEMORY}
    return frozenset(FREE_TO_CHANGE.union(*(more.get(error, set()) for error in errors)))


def refuse_changes(
    former: Recipe, recipe: Recipe, out: Path, instead: str, *, free: Collection[str] = frozenset(FREE_TO_CHANGE)
) -> None:
    """Refuse to resume a run with other settings."""
    old, new = _flat(former.to_dict()), _flat(recipe.to_dict())
    keys = {**new, **old}  # keys of a mapping may have been removed or added
    changed = [key for key in keys if old.get(key) != new.get(key) and key not in free]
    changed = [key for key in changed if not key.startswith("provenance.")]
    if recipe.task.kind:
        changed = [key for key in changed if key not in DECIDED_IN_A_TASK] or changed  # these determine the others
    if former.task.kind != recipe.task.kind:
        theirs, own = (one.task.kind or "pre-training" for one in (former, recipe))
        raise UsageError(f"{out} holds a run of {theirs}, and this is one of {own}: give it another --out")
    if changed:
        first, more = changed[0], len(changed) - 1
        others = f", and {more} more setting{'s differ' if more > 1 else ' differs'}" if more else ""
        raise UsageError(
            f"{out} holds a run with {first} {old.get(first)}, but this one has {new.get(first)}{others}: give the new run "
            f"another --out, or {instead}"
        )


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and key != "coefficients":
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = list(value) if isinstance(value, tuple) else value
    return flat
