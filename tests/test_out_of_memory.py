"""A device without memory left stops a run, which continues with fewer rows at a time."""

from __future__ import annotations

import dataclasses
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from corpora import toy_corpus
from recurrent_toys import recurrent_model
from test_finite_weights import Run
from unicloze.errors import UsageError
from unicloze.model.model import UnifiedModel
from unicloze.model.recurrent.model import RecurrentModel
from unicloze.pretraining.run import pretrain_run
from unicloze.recipes import load_recipe
from unicloze.training import loop
from unicloze.training.checkpoint import list_checkpoints
from unicloze.training.divergence import NonFiniteError
from unicloze.training.ledger import Ledger, errors_since_saved, read_ledger
from unicloze.training.lock import free_after
from unicloze.training.loop import Compute, OutOfMemoryError, is_out_of_memory, shared_settings


def with_room_for(rows: int, monkeypatch: pytest.MonkeyPatch, passes: int = 0) -> list[int]:
    """A device that holds so many rows after some forward passes; the rows of each pass in training."""
    forward, seen = UnifiedModel.forward, list[int]()

    def limited(self: UnifiedModel, batch: Any, *rest: Any) -> Any:
        if self.training:
            seen.append(len(batch.input_ids))
            if len(seen) > passes and seen[-1] > rows:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return forward(self, batch, *rest)

    monkeypatch.setattr(UnifiedModel, "forward", limited)
    return seen


@pytest.mark.parametrize(("rows", "checkpointed", "kind", "cure"), [
    (4, False, UnifiedModel, r"--training\.micro_batch_size 2 or with --training\.checkpoint_activations true"),
    (4, False, RecurrentModel, r"--training\.micro_batch_size 2"),
    (1, True, UnifiedModel, r"--training\.leaves 1 in another --out"),
])  # fmt: skip
@pytest.mark.parametrize("queues", [False, True])
def test_a_pass_that_does_not_fit_saves_the_weights_and_names_what_needs_less(
    rows: int, checkpointed: bool, kind: type, cure: str, queues: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Compute, "queues", queues)
    run, before = Run(5), int(kind is UnifiedModel)
    run.settings = dataclasses.replace(run.settings, batch_size=rows, checkpoint_activations=checkpointed)
    with_room_for(0, monkeypatch, passes=before)
    if kind is RecurrentModel:
        run.state.model = recurrent_model(targets=("ae", "par"), directions="both", embedding_size=8)
        monkeypatch.setattr(RecurrentModel, "forward", UnifiedModel.forward)
    said = rf"^step {before + 1} ran out of memory with {rows} rows at a time: run the same command with {cure}\. The weights"
    with pytest.raises(OutOfMemoryError, match=rf"{said} of step {before} were saved$"):
        run.train(rows)
    assert run.done[-1] == ("save", before)
    assert all(weight.grad is None for weight in run.state.model.parameters())


def test_what_a_pass_that_does_not_fit_has_computed_is_freed_before_the_weights_are_saved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held, alive = list[Any](), list[Any]()

    def full(*_: Any) -> Any:
        activations = torch.zeros(9)
        held.append(weakref.ref(activations))
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(UnifiedModel, "forward", full)
    monkeypatch.setattr(loop, "save_finite", lambda *_: alive.append(held[-1]()))
    with pytest.raises(OutOfMemoryError):
        Run(5).train()
    assert alive == [None]


def test_other_errors_are_not_taken_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"))
    run = Run(5)

    def broken(*_: Any) -> Any:
        raise RuntimeError("a shape is wrong")

    monkeypatch.setattr(UnifiedModel, "forward", broken)
    with pytest.raises(RuntimeError, match="a shape is wrong"):
        run.train()
    assert run.done == []


def test_an_error_counts_until_the_next_checkpoint(tmp_path: Path) -> None:
    """A process that resumes with fewer rows may be killed before it saves any of its steps."""
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.write("save", step=2)
    ledger.write("failed", step=2, kind="OutOfMemoryError")
    for event in ("start", "step", "evaluate"):
        ledger.write(event, step=3)
        assert errors_since_saved(tmp_path / "ledger.jsonl") == {"OutOfMemoryError"}
    ledger.write("failed", step=3, kind="KeyboardInterrupt")
    assert "training.micro_batch_size" in free_after(errors_since_saved(tmp_path / "ledger.jsonl"))
    ledger.write("save", step=4)
    assert errors_since_saved(tmp_path / "ledger.jsonl") == set()
    ledger.close()


def test_runs_that_share_their_settings_need_another_folder_for_the_cure() -> None:
    said = (
        r"^gpt fails: too much: lower it; all runs of a comparison share .* command, or one without gpt, another --out$"
    )
    for kind in (OutOfMemoryError, NonFiniteError):
        with pytest.raises(kind, match=said), shared_settings("gpt fails", "of a comparison", ", or one without gpt,"):
            raise kind("too much: lower it")


@pytest.mark.whole
def test_a_run_continues_with_the_rows_that_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy = toy_corpus(tmp_path, {
        "training.batch_size": 4, "training.steps": 3, "training.save_every": 1, "training.schedule": "constant",
        "training.phases": [],
    })  # fmt: skip

    def train(**settings: Any) -> None:
        pretrain_run(load_recipe("unilmv2-base", toy | settings), tmp_path / "run", progress=False)

    with monkeypatch.context() as patch:
        with_room_for(2, patch, passes=1)
        with pytest.raises(OutOfMemoryError, match=r"--training\.micro_batch_size 2 "):
            train()
    assert errors_since_saved(tmp_path / "run" / "ledger.jsonl") == {"OutOfMemoryError"}
    with monkeypatch.context() as patch:
        assert set(with_room_for(2, patch)) == set()
        train(**{"training.micro_batch_size": 2})
    assert list_checkpoints(tmp_path / "run" / "checkpoints")[-1].name == "step-00000003"
    starts = [event for event in read_ledger(tmp_path / "run" / "ledger.jsonl") if event["event"] == "start"]
    assert [each["recipe"]["training"]["micro_batch_size"] for each in starts] == [None, 2]
    with pytest.raises(UsageError, match=r"holds a run with training\.micro_batch_size 2"):
        train(**{"training.micro_batch_size": 1, "training.steps": 5})
