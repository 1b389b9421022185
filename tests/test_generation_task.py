"""Fine-tuning a generator: visibility, draws, memorising, and decoding as it was trained."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import toys
from decoding_toys import generate_tokens
from nlu_toys import finetuned, write
from unicloze import keyed, verbs, visibility
from unicloze.decoding.inputs import generation_format_of
from unicloze.errors import UniclozeError, UsageError
from unicloze.example import Kind, collate
from unicloze.finetuning.data import encoded, evenly_chosen
from unicloze.finetuning.initial import task_recipe
from unicloze.finetuning.predict import target_loss
from unicloze.objectives import settings_of
from unicloze.recipes import load_recipe, task_names
from unicloze.records.record import Record
from unicloze.settings import (
    DecodingSettings,
    GenerationSettings,
    ModelSettings,
    Recipe,
    TokenizerSettings,
    UseSettings,
)
from unicloze.tasks import TASKS, generation, task_settings
from unicloze.tasks.generation import SourceTarget
from unicloze.text.tokenizers import Tokenizer
from unicloze.training.loading import LoadedModel, build_model

WORDS = ["alpha", "beta", "gamma", "delta", "eps", "zeta", "eta", "theta"]
WORDS += ["iota", "kappa", "mu", "nu", "xi", "pi", "rho", "chi"]
HEART = {
    "finetuning.epochs": 120, "finetuning.evaluations": 0.001, "training.batch_size": 16, "training.learning_rate": 1e-2,
    "training.precision": "fp32", "task.metrics": ["coco"], "decoding.beams": 1, "decoding.no_repeat_ngram": 0,
    "generation.target_noise": 0.0, "training.label_smoothing": 0.0, "model.max_positions": 48,
}  # fmt: skip

TASK = TASKS["generation"]


@pytest.fixture(scope="module")
def start() -> LoadedModel:
    return untrained()


def untrained() -> LoadedModel:
    """A small, newly initialised model."""
    tokenizer = Tokenizer.train([" ".join(WORDS)] * 5, TokenizerSettings(vocab_size=140))
    shape = {"data.window": 32, "model.hidden_size": 48, "model.intermediate_size": 96, "model.max_positions": 48}
    recipe = load_recipe("quickstart", shape)
    model = build_model(recipe, tokenizer.vocabulary.size).for_use().eval()
    return LoadedModel(model, tokenizer, recipe, Path("start"), 0)


def pairs(count: int = 16) -> list[dict[str, Any]]:
    targets = [" ".join(WORDS[(i * 5 + j * 3) % 16] for j in range(1 + i % 3)) for i in range(count)]
    return [{"source": f"{WORDS[i]} {WORDS[(i * 7 + 3) % 16]}", "target": target} for i, target in enumerate(targets)]


def recipe_for(start: LoadedModel, **overrides: Any) -> Recipe:
    settings = {**HEART, **{key.replace("__", "."): value for key, value in overrides.items()}}
    return task_recipe(load_recipe("generation", settings), start, list(settings))


def recipe_of(objective: str = "unilmv2", **settings: Any) -> Recipe:
    """A recipe for toy rows of toy tokens."""
    targets = {"unilmv2": ["ae", "par"], "causal": ["lm"], "prefix": ["lm"], "masked": ["ae"]}[objective]
    return Recipe(
        objective=settings_of(name=objective, targets=targets),
        task=task_settings(kind="generation", max_length=64, metrics=["coco"]),
        generation=GenerationSettings(**settings),
    )


def rows_of(*lengths: tuple[int, int]) -> list[SourceTarget]:
    rng = np.random.default_rng(0)

    def text(length: int) -> Any:
        return rng.integers(toys.FIRST_ORDINARY, 50, length).astype(np.int32)

    return [
        SourceTarget(record=number, source=text(source), target=text(target), slots=source + 3 + target)
        for number, (source, target) in enumerate(lengths)
    ]


def keys_of(count: int) -> keyed.Bits:
    return keyed.key(5, np.arange(count))


@pytest.mark.parametrize(("targets", "said"), [(["\u043c\u0438\u0440 a"], "75 %"), (["\u043c\u0438", *WORDS], None)])
def test_targets_that_the_model_cannot_write_are_refused(
    start: LoadedModel, tmp_path: Path, targets: list[str], said: str | None
) -> None:
    """[UNK] is no target: such a model would learn to write the rest of them. A few are only noted."""
    train = write(tmp_path / "train.jsonl", [{"source": "alpha", "target": one} for one in targets])
    recipe = recipe_for(start, finetuning__epochs=1)
    if said is None:
        with pytest.warns(UserWarning, match=r"^3 % of the text of the targets is \[UNK\]"):
            finetuned(recipe, start, train, None, tmp_path / "run")
        return
    with pytest.raises(UniclozeError, match=f"^{said} of the text of the targets is .*UNK"):
        finetuned(recipe, start, train, None, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("block_size", [1, 2, 3])
@pytest.mark.parametrize("any_order", [False, True])
def test_pseudo_rows_read_what_the_paper_says(block_size: int, any_order: bool) -> None:
    """Section 3.4, written out slot by slot; with blocks, a token and its mask read the steps before theirs."""
    recipe = recipe_of(block_size=block_size, any_order=any_order, target_noise=0.5)
    rows = rows_of((4, 5), (1, 1), (3, 0), (0, 2))
    examples = TASK.lay_out(rows, toys.vocabulary(), recipe, keys_of(len(rows)))
    for number, row in enumerate(rows):
        assert row.target is not None
        source, target = len(row.source) + 2, len(row.target) + 1
        place, own = examples.position_ids[number].tolist(), slice(source, source + target)
        step = dict(zip(place[own], examples.steps[number, own].tolist(), strict=True))
        assert sorted(step) == list(range(source, source + target))
        counts = np.bincount(list(step.values()))
        assert (counts[:-1] == block_size).all() and 0 < counts[-1] <= block_size
        if not any_order:
            assert [step[p] for p in sorted(step)] == sorted(step.values())
        seen = examples.visible(number)
        assert len(seen) == source + 2 * target
        assert examples.segment_ids[number, : len(seen)].tolist() == [0] * source + [1] * 2 * target
        assert examples.input_ids[number, :source].tolist() == [toys.SOS, *row.source, toys.EOS]
        for query, key in np.ndindex(seen.shape):
            if query < source or key < source:
                reads = key < source
            elif query < source + target:
                reads = key < source + target and step[place[key]] <= step[place[query]]
            elif key < source + target:
                reads = step[place[key]] < step[place[query]]
            else:
                reads = step[place[key]] == step[place[query]]
            assert seen[query, key] == reads, (number, query, key)
        predicted = examples.targets["target"]
        asked = predicted.slots[number, :target]
        assert (predicted.weights[number] > 0).sum() == target
        assert (examples.kinds[number, asked] == Kind.PSEUDO).all()
        in_order = np.argsort(examples.position_ids[number, asked])
        assert predicted.labels[number, in_order].tolist() == [*row.target.tolist(), toys.EOS]


def test_the_other_rows_read_the_source_and_their_past() -> None:
    rows = rows_of((4, 5), (1, 1), (3, 0), (0, 2))
    for learning in ("masked", "next"):
        examples = TASK.lay_out(rows, toys.vocabulary(), recipe_of(learning=learning), keys_of(4))
        for number, row in enumerate(rows):
            source = len(row.source) + 2
            seen = examples.visible(number)
            expected = [[key < max(source, query + 1) for key in range(len(seen))] for query in range(len(seen))]
            assert seen.tolist() == expected
            assert examples.segment_ids[number, : len(seen)].tolist() == [int(s >= source) for s in range(len(seen))]
    causal = dataclasses.replace(recipe_of("causal"), use=UseSettings(visibility="left_to_right"))
    banded = dataclasses.replace(causal, objective=dataclasses.replace(causal.objective, local_width=3))
    examples = TASK.lay_out(rows, toys.vocabulary(), banded, keys_of(4))
    assert examples.visible(0).tolist() == np.tri(12, dtype=bool).tolist()
    assert examples.local is not None
    near = visibility.bool_mask(examples.local[0, :12], 12)
    assert near.tolist() == [[query - 3 <= key <= query for key in range(12)] for query in range(12)]


@pytest.mark.parametrize("drawn", [True, False])
@pytest.mark.parametrize("learning", ["pseudo", "masked", "next"])
def test_unknown_words_of_a_target_are_read_and_not_learned(learning: str, drawn: bool) -> None:
    recipe, vocabulary = recipe_of(learning=learning), toys.vocabulary()
    word, keys = 20, keys_of(30) if drawn else None
    spelt = [
        dataclasses.replace(row, target=np.where(np.arange(6) % 3 == number % 3, word, row.target % 10 + 30))
        for number, row in enumerate(rows_of(*[(4, 6)] * 30))
    ]
    rows = [dataclasses.replace(row, target=np.where(row.target == word, toys.UNK, row.target)) for row in spelt]
    before, after = (TASK.lay_out(each, vocabulary, recipe, keys) for each in (spelt, rows))
    assert np.array_equal(before.intervals, after.intervals) and np.array_equal(before.kinds, after.kinds)
    own = (before.input_ids == word) & (after.input_ids != word)
    assert own.any() and (after.input_ids[own] == toys.UNK).all()
    old, new = before.targets["target"], after.targets["target"]
    for row in range(30):
        asked = (old.weights[row] > 0) & (old.labels[row] != word)
        count = int(asked.sum())
        assert new.weights[row].tolist() == [1.0] * count + [0.0] * (len(asked) - count)
        assert new.labels[row, :count].tolist() == old.labels[row, asked].tolist()
        assert new.slots[row, :count].tolist() == old.slots[row, asked].tolist()
    assert new.weights.sum() < old.weights.sum()


def test_no_pseudo_mask_sees_its_own_or_a_later_token() -> None:
    """Bit for bit: changing a token and those after it does not change the logits before it."""
    model, (row,) = toys.model(positions=32).eval(), rows_of((4, 6))
    assert row.target is not None
    for settings in ({}, {"block_size": 2}, {"learning": "next"}):
        recipe = recipe_of(mask_share=1.0, random_share=0.0, **settings)

        def logits(target: Any, recipe: Recipe = recipe) -> torch.Tensor:
            changed = dataclasses.replace(row, target=target)
            with torch.no_grad():
                return model.logits(collate(TASK.lay_out([changed], toys.vocabulary(), recipe, keys_of(1))))["target"]

        before, size = logits(row.target)[0], recipe.generation.block_size
        for place in range(6):
            other = row.target.copy()
            other[place:] = (other[place:] - 7 + 3) % 43 + 7
            after, same = logits(other)[0], (place // size + 1) * size
            assert torch.equal(before[:same], after[:same])
            assert same > 6 or not torch.equal(before[same], after[same])


def test_how_often_tokens_are_noised_and_masked() -> None:
    rows = rows_of(*[(3, 9)] * 4000)
    recipe = recipe_of(target_noise=0.6)
    examples = TASK.lay_out(rows, toys.vocabulary(), recipe, keys_of(len(rows)))
    labels = examples.targets["target"].labels
    pseudo = np.take_along_axis(examples.input_ids, examples.targets["target"].slots, axis=1)
    own = np.take_along_axis(examples.input_ids, examples.targets["target"].slots - 10, axis=1)
    ordinary = labels != toys.EOS
    chance = 1 / 43
    assert (pseudo == toys.PSEUDO).mean() == pytest.approx(0.8, abs=0.01)
    assert (pseudo == labels)[ordinary].mean() == pytest.approx(0.1 + 0.1 * chance, abs=0.01)
    assert (own == toys.MASK).mean() == pytest.approx(0.6 * 0.8, abs=0.01)
    assert (own == labels)[ordinary].mean() == pytest.approx(0.4 + 0.6 * (0.1 + 0.1 * chance), abs=0.01)
    both = (own == toys.MASK) & (pseudo == toys.PSEUDO)
    assert both.mean() == pytest.approx(0.48 * 0.8, abs=0.01), "the two are drawn independently"

    masked = TASK.lay_out(rows, toys.vocabulary(), recipe_of(learning="masked", mask_rate=0.7), keys_of(len(rows)))
    target = masked.targets["target"]
    assert (target.weights.sum(axis=1) == 7).all(), "70 % of nine tokens and [EOS]"
    real = target.weights > 0
    assert ((target.labels == toys.EOS) & real).sum(axis=1).mean() == pytest.approx(0.7, abs=0.025)
    shown = np.take_along_axis(masked.input_ids, target.slots, axis=1)[real]
    assert (shown == toys.MASK).mean() == pytest.approx(0.8, abs=0.01)


def test_a_row_depends_on_its_key_alone_and_changes_with_it() -> None:
    rows, keys = rows_of((3, 9), (5, 2), (2, 12)), keys_of(3)
    for settings in ({"target_noise": 0.5, "any_order": True}, {"learning": "masked"}):
        recipe = recipe_of(**settings)
        together = TASK.lay_out(rows, toys.vocabulary(), recipe, keys)
        for number, row in enumerate(rows):
            alone = TASK.lay_out([row], toys.vocabulary(), recipe, keys[number : number + 1])
            length = int(alone.lengths[0])
            assert together.lengths[number] == length
            assert together.input_ids[number, :length].tolist() == alone.input_ids[0, :length].tolist()
            assert together.intervals[number, :length].tolist() == alone.intervals[0, :length].tolist()
        other = TASK.lay_out(rows, toys.vocabulary(), recipe, keys_of(4)[1:])
        assert (other.input_ids != together.input_ids[:, : other.input_ids.shape[1]]).any()


@pytest.mark.slow
@pytest.mark.parametrize(("learning", "epochs"), [("pseudo", 100), ("masked", 150), ("next", 50)])
def test_it_memorises_sixteen_records(start: LoadedModel, tmp_path: Path, learning: str, epochs: int) -> None:
    train = write(tmp_path / "train.jsonl", pairs())
    more = {"generation__mask_share": 1.0, "generation__random_share": 0.0} if learning == "masked" else {}
    recipe = recipe_for(start, generation__learning=learning, **more, finetuning__epochs=epochs)
    result = finetuned(recipe, start, train, train, tmp_path / "run")
    said = verbs.generate(tmp_path / "run", file=train, out=tmp_path / "said.jsonl", quiet=True)
    assert [each["prediction"] for each in said] == [record["target"] for record in pairs()]
    assert [json.loads(line) for line in (tmp_path / "said.jsonl").read_text().splitlines()] == said
    assert result.scores["coco"].values["bleu_1"] > 99 and result.scores["loss"].values["perplexity"] < 2
    assert "".join(verbs.stream(tmp_path / "run", pairs()[2]["source"])) == pairs()[2]["target"]
    assert verbs.predict(tmp_path / "run", train, quiet=True) == said


LAYOUTS: dict[str, tuple[Recipe, dict[str, Any]]] = {
    "pseudo": (recipe_of(), {}),
    "masked": (recipe_of("masked", learning="masked"), {}),
    "next": (recipe_of("prefix"), {}),
    "v1": (recipe_of("masked", learning="masked"), {"num_segments": 6}),
    "causal": (recipe_of("causal"), {"norm": "pre", "relative_bias": False, "layer_visibility": ["full", "local"]}),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_loss_is_what_decoding_says(name: str) -> None:
    """The teacher-forced loss of a generated text is the negative sum of the decoder's log-probabilities."""
    recipe, shape = LAYOUTS[name]
    model = toys.model(positions=40, **shape).eval()
    recipe = dataclasses.replace(recipe, model=ModelSettings(**shape))
    if name == "causal":
        local = dataclasses.replace(recipe.objective, local_width=3)
        recipe = dataclasses.replace(recipe, objective=local, use=UseSettings(visibility="left_to_right"))
    vocabulary = dataclasses.replace(toys.vocabulary(), unk=toys.PAD)  # [UNK] is never predicted, but written here
    layout = generation_format_of(recipe, vocabulary)
    assert (layout.source_segment, layout.target_segment) == ((4, 5) if name == "v1" else (0, 1))
    rows = rows_of((5, 1), (0, 1), (9, 1))
    settings = DecodingSettings(sample=True, max_length=12, seed=3)
    found = generate_tokens(model, [row.source for row in rows], settings, dataclasses.replace(layout, never=()))
    with torch.no_grad():
        for row, (one,) in zip(rows, found, strict=True):
            told = dataclasses.replace(row, target=np.array(one.tokens, np.int32))
            examples = TASK.lay_out([told], vocabulary, recipe, None)
            if not one.ended:
                examples.targets["target"].weights[0, len(one.tokens)] = 0
            loss = model(collate(examples))["target"]
            assert float(loss.total) == pytest.approx(-one.log_probability, rel=1e-4)


def test_the_loss_of_the_right_targets_is_a_mean_over_tokens(start: LoadedModel) -> None:
    recipe = recipe_for(start, task__evaluate_records=5)
    records = [Record(str(i), fields, f"line {i}") for i, fields in enumerate(pairs())]
    data = encoded(records, recipe, start.tokenizer)
    few = evenly_chosen(data, 5)
    assert [record.id for record in few.records] == ["0", "3", "6", "9", "12"]
    assert [row.record for row in few.rows] == [0, 1, 2, 3, 4]
    batches = [collate(TASK.lay_out([row], start.tokenizer.vocabulary, recipe, None)) for row in data.rows]
    losses = [start.model(batch)["target"] for batch in batches]
    mean = sum(float(loss.total.detach()) for loss in losses) / sum(loss.weight for loss in losses)
    assert target_loss(dataclasses.replace(start, recipe=recipe), data).values["loss"] == pytest.approx(mean, rel=1e-5)


def test_scoring_part_of_the_development_file_gives_a_warning(start: LoadedModel, tmp_path: Path) -> None:
    file = write(tmp_path / "pairs.jsonl", pairs())
    recipe = recipe_for(start, finetuning__epochs=1, task__evaluate_records=5, decoding__max_length=2)
    with pytest.warns(UserWarning, match=r"evaluating on 5 of the 16 development records.*task\.evaluate_records"):
        result = finetuned(recipe, start, file, file, tmp_path / "run")
    assert result.scores["coco"].items == 5


@pytest.mark.parametrize(
    "settings", [{"learning": "pseudo"}, {"learning": "masked"}, {"learning": "next"}, {"segment_ids": [1, 0]}]
)
def test_transformers_writes_as_the_task_was_learned(start: LoadedModel, settings: dict[str, Any]) -> None:
    """Not by the pre-training objective, which may have used other masks, slots and segments."""
    hf = pytest.importorskip("unicloze.hf")
    changes = {f"generation__{name}": value for name, value in settings.items()}
    tuned = dataclasses.replace(start, recipe=recipe_for(start, **changes, decoding__max_length=6))
    vocabulary = start.tokenizer.vocabulary
    source = start.tokenizer.encode("alpha beta gamma")
    layout = generation_format_of(tuned.recipe, vocabulary)
    ((best,),) = generate_tokens(tuned.model, [source], tuned.recipe.decoding, layout)
    row = torch.tensor([[vocabulary.sos, *source.tolist(), vocabulary.eos]])
    written = hf.UniclozeForConditionalGeneration.of(tuned).generate(row, max_new_tokens=6, do_sample=False)
    beams = tuned.recipe.decoding.beams
    assert beams == 1 and written[0, row.shape[1] :].tolist()[: len(best.tokens)] == best.tokens


def test_a_files_fields_may_have_other_names(start: LoadedModel, tmp_path: Path) -> None:
    tuned = dataclasses.replace(start, recipe=recipe_for(start))
    file = write(tmp_path / "f.jsonl", [{"text": "alpha"}])
    with pytest.raises(UniclozeError, match=r"name it with --task.fields '{source: NAME}'"):
        verbs.generate(tuned, file=file, quiet=True)
    for out, message in (
        (tmp_path / "no" / "x.jsonl", "there is no folder"),
        (tmp_path, "is a folder: give --out a|is not a format of predictions"),
    ):
        for verb in (verbs.generate, verbs.predict):
            with pytest.raises(UsageError, match=message):  # before anything is computed
                verb("no model", file=file, out=out, quiet=True)  # type: ignore[operator]
    named = verbs.generate(tuned, file=file, quiet=True, overrides={"task.fields": "{source: text}"})
    assert named == verbs.generate(tuned, "alpha", quiet=True)


def test_generate_reports_what_is_wrong(start: LoadedModel, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"generation.segment_ids: the model has 2 segments: each id must be below it"):
        recipe_for(start, generation__segment_ids=[0, 2])
    tuned = dataclasses.replace(start, recipe=recipe_for(start, generation__source=["context", "answer"]))
    assert len(verbs.generate(tuned, ["alpha", "beta"])) == 1
    for arguments, message in (
        ({"text": "alpha"}, "context and answer: give 2 texts, not 1"),
        ({"text": ["alpha", " "]}, "the answer is empty"),
        ({}, "a text or a file"),
        ({"text": ["a", "b"], "overrides": {"task.kind": "generation"}}, "only decoding, task.fields, task.format can"),
        ({"text": ["a", "b"], "overrides": {"decoding.max_length": 60}}, "give no more"),
    ):
        with pytest.raises(UsageError, match=message):
            verbs.generate(tuned, **arguments)
    classifier = dataclasses.replace(start.recipe, task=task_settings(kind="classification", labels=["a", "b"]))
    with pytest.raises(UsageError, match="fine-tuned for classification cannot generate text"):
        verbs.generate(dataclasses.replace(start, recipe=classifier), "alpha")
    bert = dataclasses.replace(start.recipe, objective=settings_of(name="masked", targets=["ae"]))
    with pytest.raises(UsageError, match="cannot generate text"):
        verbs.generate(dataclasses.replace(start, recipe=bert), "alpha")
    records = write(tmp_path / "x.jsonl", [{"source": "alpha beta", "id": "7"}])
    (made,) = verbs.generate(start, file=records, into="made", quiet=True, overrides={"decoding.max_length": 4})
    assert made["source"] == "alpha beta" and made["id"] == "7" and isinstance(made["made"], str)
    several = {"decoding.beams": 3, "decoding.num_results": 2, "decoding.max_length": 4}
    (found,) = verbs.generate(tuned, ["alpha", "beta"], overrides=several)
    scores = [each["score"] for each in found["candidates"]]
    assert len(scores) == 2 and scores == sorted(scores, reverse=True)


def test_how_the_recipes_learn() -> None:
    for name in task_names():
        recipe = load_recipe(name)
        if recipe.task.kind == "generation":
            source, target = generation.room(recipe)
            assert source + target <= recipe.task.max_length and recipe.decoding.max_length <= target
            assert (recipe.generation.learning == "masked") == name.endswith("-v1")
    assert generation.learning_of(recipe_of("causal")) == "next"
    assert generation.learning_of(recipe_of("masked")) == "pseudo"


def test_labels_are_smoothed_in_training_only() -> None:
    model = toys.model(positions=32)
    batch = collate(TASK.lay_out(rows_of((4, 6)), toys.vocabulary(), recipe_of(), None))
    model.label_smoothing = 0.3
    smoothed = float(model.train()(batch)["target"].total.detach())
    plain = float(model.eval()(batch)["target"].total.detach())
    logits = model.logits(batch)["target"][0].detach()
    labels = batch.targets["target"].labels[0]
    for value, smoothing in ((plain, 0.0), (smoothed, 0.3)):
        expected = functional.cross_entropy(logits, labels, reduction="sum", label_smoothing=smoothing)
        assert value == pytest.approx(float(expected), rel=1e-5)
