"""Writes the model card of an export: description, training data, evaluation, and the recipe to reproduce it."""

from __future__ import annotations

import dataclasses
import functools
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, Template

from unicloze.evaluation.metrics.result import shown
from unicloze.example import predicts_tokens
from unicloze.files import BEST, CHECKPOINTS, LEDGER, read_bytes
from unicloze.interop.read import installed_card, packaged_model
from unicloze.interop.stock import layout_of, longest_source
from unicloze.settings import ObjectiveSettings, Recipe
from unicloze.text.sources import base_name
from unicloze.training.ledger import HELD_OUT, read_ledger
from unicloze.training.loading import LoadedModel
from unicloze.version import __version__

PLACES = (
    ("data", "corpus"),
    ("data", "prepared"),
    ("data", "phrases"),
    ("data", "decontaminate"),
    ("tokenizer", "path"),
    ("training", "initialize_from"),
    ("training", "word_vectors"),
    ("training", "copy_to"),
    ("finetuning", "unlabelled"),
    ("distillation", "teacher"),
)
"""Settings that name files and folders; exports show only their base names."""
CARD, VERDICT = "README.md", "Verdict: "
"""The file of a card, and the beginning of its line with the verdict on a pre-training run."""
IMPORTED = "imported from"
"""Prefix of `provenance.place` in the recipe of an imported model."""
_TAGS = {
    "ForMaskedLM": "fill-mask",
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForMultipleChoice": "multiple-choice",
    "ForConditionalGeneration": "text-generation",
    "LMHeadModel": "text-generation",
}
"""Hub pipeline tag of each kind of class."""


@dataclass(frozen=True, kw_only=True)
class Export:
    """How a model is exported."""

    to: str  # the format
    architecture: str  # the class of Transformers that loads it; empty for a format of unicloze alone
    write: Callable[[Path], None]  # writes all files but the model card
    check: Callable[[Path], Mapping[str, float]]  # loads a folder back and compares
    said: tuple[str, ...] = ()  # as in `ExportResult`
    imports: str = ""  # A module to import first, which registers the class in Transformers
    tag: str = ""  # its pipeline tag; default: that of the class
    use: str = ""  # how to use it, as Markdown; default: with Transformers
    name: str = ""  # name of the model; default: that of its recipe
    licence: str = ""  # identifier of the licence; default: a note to add one
    # further sections of the model card by title, as Markdown
    sections: Mapping[str, str] = field(default_factory=dict)


def model_card(loaded: LoadedModel, export: Export, differences: Mapping[str, float]) -> str:
    """The `README.md` of an export."""
    recipe, model, events, architecture = loaded.recipe, loaded.model, _events(loaded), export.architecture
    start: Mapping[str, Any] = next((event for event in reversed(events) if event.get("event") == "start"), {})
    kind = next((tag for name, tag in _TAGS.items() if architecture.endswith(name)), "")
    auto = f"AutoModel{architecture[architecture.find('For') :]}" if "For" in architecture else "AutoModel"
    auto = auto.replace("ForConditionalGeneration", "ForCausalLM" if export.imports else "ForSeq2SeqLM")
    front = {
        "library_name": "transformers" if architecture and not export.imports else "unicloze",
        "pipeline_tag": export.tag or kind or "feature-extraction",
        "tags": ["unicloze", recipe.task.kind or (recipe.objective.name if recipe.objective.trains else "embeddings")],
    }
    return template("card.md").render(
        loaded=loaded,
        export=export,
        recipe=recipe,
        model=model,
        version=__version__,
        front=yaml.safe_dump(front, sort_keys=False),
        note=", ".join(part for part in (recipe.provenance.paper, _place(recipe)) if part),
        kind=kind,
        auto=auto + "ForCausalLM" * architecture.endswith("LMHeadModel"),
        parts=[f'"{role.upper()}"' for role in recipe.generation.source] if recipe.task.kind else ['"TEXT"'],
        longest_source=longest_source,
        layout=layout_of(loaded),
        eos=loaded.tokenizer.tokens([loaded.tokenizer.vocabulary.eos])[0],
        has_pooler=hasattr(model, "pooler") or hasattr(model, "pair_head"),
        start=start,
        begun=start.get("model") or recipe.training.initialize_from,
        run=_run,
        base=base_name,
        imported=recipe.provenance.place.startswith(IMPORTED),
        command=_command(loaded, start),
        evaluation=_evaluation(loaded, start, events),
        checked=", ".join(f"{kind} {value:.1e}" for kind, value in differences.items()),
        own_recipe=_recipe(recipe),
    )


@functools.cache
def template(name: str) -> Template:
    """A template of this package."""
    loader = PackageLoader("unicloze.interop")
    made = Environment(loader=loader, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    return made.get_template(name)


def _run(place: object) -> str:
    """Name of a checkpoint's run, or of the folder itself."""
    path = Path(str(place))
    return path.parent.parent.name if path.parent.name in (CHECKPOINTS, BEST) else path.name


def _command(loaded: LoadedModel, start: Mapping[str, Any]) -> str:
    recipe = loaded.recipe
    if recipe.task.kind:
        files = start.get("files") or {"train": "TRAIN", "dev": "DEV"}
        named = {"model": _run(start.get("model", "MODEL"))} | {k: Path(v).name for k, v in files.items() if v}
        return "unicloze finetune --task recipe.yaml " + " ".join(f"--{k} {shlex.quote(v)}" for k, v in named.items())
    if not recipe.objective.trains or recipe.provenance.place.startswith(IMPORTED):
        return ""
    corpus = " ".join(shlex.quote(base_name(name)) for name in recipe.data.corpus)
    return f"unicloze pretrain --recipe recipe.yaml  # on {corpus}"


def _evaluation(loaded: LoadedModel, start: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> str:
    found = [event for event in events if event.get("event") == "evaluate" and event.get("step") == loaded.step]
    if not found:
        return "No evaluation of this checkpoint is on record."
    rows = [*_rows(found[-1]), *_rivals(start, found[-1])]
    width = max(len(name) for name, _ in rows) if rows else 0
    table = "\n".join(f"| {name:<{width}} | {value} |" for name, value in rows)
    is_best = loaded.path.parent.name == BEST  # the verdict on a fine-tuning is that on its best checkpoint
    ends = [event for event in events if event.get("event") == "end" and (is_best or event["step"] == loaded.step)]
    verdict = f"\n\n{VERDICT}{ends[-1]['verdict']}." if ends and ends[-1].get("verdict") else ""
    return f"| {'measure':<{width}} | value |\n|{'-' * (width + 2)}|---|\n{table}{verdict}"


def verdict_of(place: Path) -> str:
    """The verdict on a model, from the ledger of its run or the card of its export; empty if there is none.

    The card of a package lies beside the folder of its model, and is the package's description once it is installed.
    """
    if (place / LEDGER).is_file():
        ended: Mapping[str, Any] = {}
        for event in read_ledger(place / LEDGER):
            if event.get("event") == "end":
                ended = event
            elif event.get("event") == "save" and event.get("step") != ended.get("step"):
                ended = {}  # it was trained further
        return str(ended.get("verdict") or "")
    export = place.parent if packaged_model(place.parent) == place else place
    file = export / CARD
    card = read_bytes(file).decode(errors="replace") if file.is_file() else installed_card(place)
    return next((line.removeprefix(VERDICT) for line in card.splitlines() if line.startswith(VERDICT)), "")


def _scores(event: Mapping[str, Any], records: int, of: str = "") -> Iterator[tuple[str, str]]:
    """The values of a task's metrics, by the model or by one of its rivals."""
    for metric, result in (event.get("results") or {}).items():
        for name, value in result.get("values", {}).items():
            label, unit = name if name == metric else f"{metric}: {name}", result.get("units", {}).get(name, "%")
            yield f"{of}{label} on {records:,} records", shown(value, unit) + " %" * (unit == "%")


def _rows(event: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield from _scores(event, event.get("records", 0))
    part = event.get("part", HELD_OUT)
    for target, value in (event.get("loss") or {}).items():
        if not predicts_tokens(target) and value is not None and not event.get("results"):
            yield f"{part} loss in nats per prediction, {target}", f"{value:,.3f}"
    for key, name in (("perplexity", "perplexity"), ("bits_per_byte", "bits per byte")):
        for target, value in (event.get(key) or {}).items():
            if predicts_tokens(target) and (value is not None or key == "perplexity"):
                yield f"{part} {name}, {target}", "nothing to measure" if value is None else f"{value:,.3f}"


def _rivals(start: Mapping[str, Any], event: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What baselines without a model reach on the same records, or a Kneser-Ney trigram on the same predictions."""
    for rival in start.get("rivals") or ():
        yield from _scores(rival, event.get("records", 0), f"of {rival['name']}: ")
    for target, counts in ((start.get("baselines") or {}).get("perplexity") or {}).items():
        if target in (event.get("perplexity") or {}) and isinstance(counts, Mapping):
            yield f"of a Kneser-Ney trigram: held-out perplexity, {target}", f"{counts['trigram']:,.3f}"


def without_places(recipe: Recipe) -> Recipe:
    """A recipe whose files and folders are reduced to their base names."""
    for section, key in PLACES:
        if named := getattr(getattr(recipe, section), key):
            base = [base_name(each) for each in named] if isinstance(named, list) else base_name(named)
            recipe = recipe.changed(section, **{key: base})
    return recipe.changed("provenance", place=_place(recipe))


def _recipe(recipe: Recipe) -> str:
    """The recipe's differences from the defaults, without local folders."""
    if recipe.data.corpus:  # a reader has this text, not what was prepared of it
        recipe = recipe.changed("data", prepared=None)
    same = Recipe(objective=dataclasses.replace(type(recipe.objective)(), name=ObjectiveSettings().name))
    different = _difference(without_places(recipe).to_dict(), same.to_dict())
    return yaml.safe_dump(different, sort_keys=False, allow_unicode=True, width=120)


def _place(recipe: Recipe) -> str:
    """Origin of a recipe's values; for an imported model only the folder's name."""
    place = recipe.provenance.place
    return f"{IMPORTED} {Path(place.removeprefix(IMPORTED)).name}" if place.startswith(IMPORTED) else place


def _difference(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for key, value in values.items():
        default: Any = defaults.get(key)
        if value != default:
            inner = isinstance(value, dict) and isinstance(default, dict) and key != "coefficients"
            found[key] = _difference(value, default) if inner else value
    return found


def _events(loaded: LoadedModel) -> list[Mapping[str, Any]]:
    """The ledger of a checkpoint's run; empty without a run."""
    ledger = loaded.path.parent.parent / LEDGER
    return list(read_ledger(ledger)) if ledger.is_file() else []
