"""Cross-view training: views, soft labels from the model's own primary heads, alternating steps."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from nlu_toys import WORDS, events_of, finetuned, recipe_for, resumed_alike, start, write
from toys import gradients_of
from unicloze.errors import UniclozeError, UsageError
from unicloze.example import collate
from unicloze.finetuning.data import (
    OwnTeacher,
    TaskData,
    encoded,
    finetuning_steps,
    unlabelled_records,
    unlabelled_text,
    with_views,
)
from unicloze.finetuning.predict import outputs_of
from unicloze.finetuning.run import FinetuneResult, with_steps
from unicloze.model.dropout import DropoutKey
from unicloze.model.recurrent.model import RecurrentModel
from unicloze.records import read_records
from unicloze.records.record import Record
from unicloze.settings import Recipe, ViewName
from unicloze.tasks import TASKS, of_view
from unicloze.training.loading import LoadedModel, build_model, load_model
from unicloze.training.loop import Compute, TrainState, losses_and_norm

SMALL = {
    "model__hidden_size": 16, "model__intermediate_size": 12, "model__embedding_size": 8, "model__dropout": 0.0,
    "model__input_dropout": 0.0, "model__hidden_dropout": 0.0,
}  # fmt: skip
NAMES: list[ViewName] = ["full", "forward", "backward", "future", "past"]
CPU = Compute(device=torch.device("cpu"), precision="fp32")


@pytest.fixture(scope="module")
def tiny() -> LoadedModel:
    return start("cvt", **SMALL)


def text_at(folder: Path, count: int = 9, seed: int = 1) -> Path:
    """Unlabelled sentences, one per line."""
    rng = random.Random(seed)
    (folder / "text.txt").write_text("\n".join(" ".join(rng.choices(WORDS, k=rng.randint(2, 6))) for _ in range(count)))
    return folder / "text.txt"


def tagged(count: int = 10, seed: int = 0) -> list[dict[str, Any]]:
    """Sentences whose words are tagged by their first letter's half of the alphabet."""
    rng = random.Random(seed)
    sentences = [rng.choices(WORDS, k=rng.randint(2, 6)) for _ in range(count)]
    return [{"tokens": words, "tags": ["early" if word < "d" else "late" for word in words]} for words in sentences]


def recipe_of(model: LoadedModel, text: Path | None, **more: Any) -> Recipe:
    given = {
        "task__metrics": ["tag-accuracy"], "task__labels": ["early", "late"], "training__batch_size": 4,
        "finetuning__epochs": 2, "finetuning__evaluations": 1, "training__log_every": 1, "training__optimizer": "adamw",
        "training__schedule": "linear", **more,
    }  # fmt: skip
    if text is not None:
        given["finetuning__unlabelled"] = [str(text)]
    return recipe_for(model, "cvt-tagging", **given)


def ready(recipe: Recipe, model: LoadedModel) -> RecurrentModel:
    built = build_model(recipe, model.model.vocab_size)
    assert isinstance(built, RecurrentModel)
    with torch.no_grad():
        for parameter in built.task_heads.parameters():
            parameter.normal_(0.0, 0.5, generator=torch.Generator().manual_seed(parameter.numel()))
    return built


def data_of(records: list[dict[str, Any]], recipe: Recipe, model: LoadedModel) -> TaskData:
    """The records with the recipe's unlabelled text."""
    data = encoded([Record(str(n), one, f"line {n}") for n, one in enumerate(records)], recipe, model.tokenizer)
    return dataclasses.replace(data, unlabelled=unlabelled_text(recipe, model.tokenizer))


# Views


def test_each_view_sees_its_side_of_a_word_and_nothing_else(tiny: LoadedModel, tmp_path: Path) -> None:
    """Measured by another token in each slot in turn, and compared with the definitions of the paper."""
    recipe = recipe_of(tiny, text_at(tmp_path))
    model = ready(recipe, tiny).eval()
    words = ["anna", "zebra-0", "sees", "qqq", "berlin"]  # some of several tokens
    data = data_of([{"tokens": words, "tags": ["early"] * 5}], recipe, tiny)
    (row,) = with_views(data.rows, recipe)
    units, length = row.targets["tags"].units, row.slots
    assert max(end - first for first, end in units) > 1
    assert [units[0][0], *(end for _, end in units)] == [first for first, _ in units] + [length - 1]
    vocabulary = tiny.tokenizer.vocabulary

    def outputs(ids: np.ndarray) -> dict[str, Tensor]:
        changed = dataclasses.replace(row, input_ids=ids)
        examples = TASKS["tagging"].lay_out([changed], vocabulary, recipe, None)
        with torch.no_grad():
            return {name: each[0] for name, each in model.outputs(collate(examples)).items()}

    before = outputs(row.input_ids)
    depends: dict[str, list[set[int]]] = {name: [set() for _ in words] for name in before}
    for slot in range(length):
        ids = row.input_ids.copy()
        ids[slot] = vocabulary.mask
        for name, found in outputs(ids).items():
            for word in range(len(words)):
                if not torch.equal(found[word], before[name][word]):
                    depends[name][word].add(slot)
    for word, (first, end) in enumerate(units):
        expected = {
            "tags": set(range(length)),
            "tags:full": set(range(length)),
            "tags:forward": set(range(end)),
            "tags:backward": set(range(first, length)),
            "tags:future": set(range(first)),
            "tags:past": set(range(end, length)),
        }
        assert {name: of_words[word] for name, of_words in depends.items()} == expected


# Soft labels


def test_views_learn_what_the_primary_head_predicts_without_dropout(tiny: LoadedModel, tmp_path: Path) -> None:
    """Losses and gradients beside a separate pass for the soft labels and cross-entropy by hand."""
    rates = {"model__dropout": 0.3, "model__hidden_dropout": 0.4, "model__input_dropout": 0.2}
    recipe = recipe_of(tiny, text_at(tmp_path), finetuning__unlabelled_dropout=0.5, **rates)
    recipe = with_steps(recipe, 10)
    model, data = ready(recipe, tiny), data_of(tagged(), recipe, tiny)
    (micro_batch,) = next(finetuning_steps(data, recipe, tiny.tokenizer.vocabulary, "cpu", 1))
    state = TrainState(model=model, optimizers=[], step=1)
    compute = dataclasses.replace(CPU, soften=OwnTeacher(model, recipe))
    unclipped = dataclasses.replace(recipe.training, clip_norm=0.0)
    losses, _ = losses_and_norm(state, [micro_batch], unclipped, compute, lambda _: "")
    assert list(losses) == [of_view("tags", name) for name in NAMES]
    ours = gradients_of(model)

    batch = micro_batch.batch(torch.device("cpu"))
    real = batch.targets["tags"].weights > 0

    def by_hand(name: str, shown: Sequence[Tensor]) -> Tensor:
        """U ReLU(W h) + b with h of both layers or of one direction of the first layer (Section 3.2)."""
        head, (forward, backward) = model.task_head(name), shown[0].chunk(2, dim=-1)
        side = {"tags:forward": forward, "tags:future": forward, "tags:backward": backward, "tags:past": backward}
        states = side.get(name, torch.cat([*shown], dim=-1))
        seen = states[torch.arange(len(states))[:, None], batch.targets[name].slots]
        assert head.dense is not None
        return head.output(functional.relu(head.dense(seen)))

    with torch.no_grad():
        soft = by_hand("tags", model.eval().backbone.read(batch).shown).softmax(dim=-1)  # type: ignore[operator]
    model.train()
    reading = model.backbone.read(batch, DropoutKey(recipe.training.seed, 1, 0, factor=0.5))  # type: ignore[operator]
    total = torch.zeros(())
    for name in NAMES:
        own = by_hand(of_view("tags", name), reading.shown).log_softmax(dim=-1)
        cross_entropy = -(soft * own).sum(dim=-1)[real].mean()
        entropy = -(soft * soft.log()).sum(dim=-1)[real].mean()
        assert losses[of_view("tags", name)] == pytest.approx(float(cross_entropy.detach() - entropy), abs=1e-5)
        total = total + cross_entropy
    total.backward()
    assert not any(name.startswith("task_heads.tags.") for name in ours)  # the primary head only teaches
    assert "backbone.layers.0.cells.left_to_right.lstm.weight_hh_l0" in ours
    torch.testing.assert_close(ours, gradients_of(model))


def test_a_labelled_step_trains_the_primary_head_alone(tiny: LoadedModel, tmp_path: Path) -> None:
    """It is the step of a run without unlabelled text: losses and gradients."""
    recipe = with_steps(recipe_of(tiny, text_at(tmp_path)), 10)
    plain = with_steps(recipe_of(tiny, None), 10)
    assert (recipe.training.steps, recipe.training.evaluate_every) == (12, 6)
    assert (plain.training.steps, plain.training.evaluate_every) == (6, 3)
    found = []
    for each in (recipe, plain):
        model, data = ready(each, tiny), data_of(tagged(), each, tiny)
        step = next(finetuning_steps(data, each, tiny.tokenizer.vocabulary, "cpu", 0))
        compute = dataclasses.replace(CPU, soften=OwnTeacher(model, each))
        losses, _ = losses_and_norm(TrainState(model, []), step, each.training, compute, lambda _: "")
        found.append((losses, gradients_of(model)))
    assert list(found[0][0]) == ["tags"] and found[0][0] == pytest.approx(found[1][0])
    torch.testing.assert_close(found[0][1], found[1][1])


def test_a_factor_scales_every_dropout_rate() -> None:
    x = torch.ones(200)
    for factor, rate in ((0.5, 0.2), (1.0, 0.4), (0.0, 0.0)):
        assert torch.equal(DropoutKey(1, factor=factor)(x, 0.4), DropoutKey(1)(x, rate))


# Steps


def test_steps_alternate_and_depend_on_their_number_alone(tiny: LoadedModel, tmp_path: Path) -> None:
    recipe = recipe_of(tiny, text_at(tmp_path, count=9), finetuning__epochs=4, training__micro_batch_size=2)
    recipe = with_steps(recipe, 10)
    data, vocabulary = data_of(tagged(), recipe, tiny), tiny.tokenizer.vocabulary

    def places(first: int) -> list[list[tuple[str, tuple[str, ...], float]]]:
        steps = finetuning_steps(data, recipe, vocabulary, "cpu", first)
        return [[(each.place, tuple(each.examples.targets), each.dropout) for each in step] for step in steps]

    whole = places(0)
    assert len(whole) == 24
    for number, step in enumerate(whole):
        unlabelled = number % 2 == 1
        assert all(("text.txt" in place) == unlabelled for place, _, _ in step)
        names = ("tags", *(f"tags:{name}" for name in NAMES)) if unlabelled else ("tags",)
        assert all(targets == names for _, targets, _ in step)
        assert {factor for _, _, factor in step} == ({0.4} if unlabelled else {1.0})
    for first in (1, 4, 7, 23):
        assert places(first) == whole[first:]
    plain = with_steps(recipe_of(tiny, None, finetuning__epochs=4, training__micro_batch_size=2), 10)
    supervised = [[each.place for each in step] for step in finetuning_steps(data, plain, vocabulary, "cpu", 0)]
    assert [[place for place, _, _ in step] for step in whole[::2]] == supervised


def test_an_epoch_of_text_reads_every_line_once(tiny: LoadedModel, tmp_path: Path) -> None:
    recipe = with_steps(recipe_of(tiny, text_at(tmp_path, count=9), finetuning__epochs=4), 10)
    data = data_of(tagged(), recipe, tiny)
    text = data.unlabelled
    assert text is not None and text.fingerprint != data.fingerprint
    steps = list(finetuning_steps(data, recipe, tiny.tokenizer.vocabulary, "cpu", 0))[1::2]
    made = [step.examples for (step,) in steps]
    rows = [[tuple(ids[:n]) for ids, n in zip(one.input_ids, one.lengths, strict=True)] for one in made]
    first, second = (list(itertools.chain(*rows[start : start + 3])) for start in (0, 3))
    assert sorted(first) == sorted(tuple(row.input_ids) for row in text.rows) == sorted(second)
    assert first != second


# Runs


def run(model: LoadedModel, folder: Path, out: str, text: Path | None, **more: Any) -> FinetuneResult:
    file = folder / "train.jsonl"
    if not file.exists():
        write(file, tagged())
    return finetuned(recipe_of(model, text, **more), model, file, file, folder / out)


@pytest.mark.whole
def test_a_stopped_run_ends_with_the_same_bits(tiny: LoadedModel, tmp_path: Path) -> None:
    """Before an unlabelled step and, after an evaluation, before a labelled one."""
    text, rates = text_at(tmp_path), {"model__dropout": 0.3, "model__hidden_dropout": 0.3}
    whole = resumed_alike(
        lambda out: run(tiny, tmp_path, out, text, **rates, training__save_every=1), 3, 8, folder=tmp_path
    )
    assert whole.step == 12
    losses = [
        {event["step"]: event["loss"] for event in events_of(tmp_path / name) if event["event"] == "step"}
        for name in ("whole", "broken")
    ]
    assert losses[0] == losses[1]
    text.write_text("other text\n")
    with pytest.raises(UniclozeError, match="holds a run with another unlabelled text"):
        run(tiny, tmp_path, "whole", text, **rates, training__save_every=1)


@pytest.mark.whole
def test_the_ledger_has_the_losses_of_both_kinds_of_steps(tiny: LoadedModel, tmp_path: Path) -> None:
    run(tiny, tmp_path, "run", text_at(tmp_path), training__log_every=4)
    found = events_of(tmp_path / "run")
    losses = {event["step"]: list(event["loss"]) for event in found if event["event"] == "step"}
    views = [of_view("tags", name) for name in NAMES]
    assert losses == {3: ["tags"], 4: views, 7: ["tags"], 8: views, 11: ["tags"], 12: views}
    start_of_run = next(event for event in found if event["event"] == "start")
    assert start_of_run["records"] == {"train": 10, "dev": 10, "unlabelled": 9}
    assert "unlabelled text" in start_of_run["fingerprints"]


def chain(count: int, seed: int) -> list[dict[str, Any]]:
    """Sentences in which a word and its tag follow from the tag before: noun, verb, noun, verb, ..."""
    rng, nouns, verbs = random.Random(seed), WORDS[:6], WORDS[6:]
    found = []
    for _ in range(count):
        first, length = rng.randrange(2), rng.randint(3, 6)
        words = [rng.choice(verbs if (first + place) % 2 else nouns) for place in range(length)]
        found.append({"tokens": words, "tags": ["verb" if word in verbs else "noun" for word in words]})
    return found


@pytest.mark.slow
def test_a_tagger_learns_and_its_views_foresee_the_next_tag(tiny: LoadedModel, tmp_path: Path) -> None:
    """The future view has not seen the word whose tag it predicts; here the tag before decides it."""
    train = write(tmp_path / "train.jsonl", chain(12, 0))
    text = tmp_path / "text.txt"
    text.write_text("\n".join(" ".join(one["tokens"]) for one in chain(40, 1)))
    recipe = recipe_of(
        tiny, text, task__labels=["noun", "verb"], finetuning__epochs=30, finetuning__evaluations=0.1,
        training__learning_rate=0.02,
    )  # fmt: skip
    result = finetuned(recipe, tiny, train, train, tmp_path / "run")
    assert next(iter(result.scores["tag-accuracy"].values.values())) == 100
    loaded = load_model(tmp_path / "run" / "checkpoints")  # the newest: the best may be of an early step
    data = encoded(read_records(train, loaded.recipe.task), loaded.recipe, loaded.tokenizer)
    outputs = outputs_of(loaded, with_views(data.rows, loaded.recipe))
    for name in NAMES:
        right, known = [], []
        for row, output in zip(data.rows, outputs, strict=True):
            said = output[of_view("tags", name)].argmax(axis=-1)
            right += [*(said == np.array(row.targets["tags"].labels))]
            last = len(said) - 1
            unseen = {"future": 0, "past": last}.get(name)  # no text tells the tag there
            known += [at != unseen for at in range(last + 1)]
        assert np.mean(np.array(right)[np.array(known)]) == 1.0, name
        assert name in ("full", "forward", "backward") or not all(right), "no text before the first word tells its tag"


# What text may be


def test_text_is_read_as_lines_of_words_or_as_records(tiny: LoadedModel, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Anna sees Berlin.\n\n  \nEva leaves\n")
    (tmp_path / "b.jsonl").write_text('{"tokens": ["carl", "plays"], "tags": ["?", "?"]}\n{"tokens": ["x"]}\n')
    found = unlabelled_records(recipe_of(tiny, tmp_path))
    assert [one.fields["tokens"] for one in found] == [
        ["Anna", "sees", "Berlin", "."], ["Eva", "leaves"], ["carl", "plays"], ["x"],
    ]  # fmt: skip
    assert found[1].place.endswith("a.txt, line 4")
    text = unlabelled_text(recipe_of(tiny, tmp_path), tiny.tokenizer)
    assert text is not None and len(text.rows) == 4
    assert all(target.labels is None for row in text.rows for target in row.targets.values())
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "c.txt").write_text("\n \n")
    with pytest.raises(UniclozeError, match="there is no text: give"):
        unlabelled_records(recipe_of(tiny, empty))


@pytest.mark.parametrize(("name", "task", "settings", "message"), [
    ("cvt", "classification", {"task__pooling": "mean"},
     r"it is for tagging only .*translation are not done\), and task\.kind is classification"),
    ("bert-base", "tagging", {}, r"finetuning\.unlabelled needs bidirectional LSTMs"),
    ("cvt", "cvt-tagging", {"distillation__teacher": "it"}, r"the model teaches itself"),
    ("cvt", "cvt-tagging", {"finetuning__views": []}, r"finetuning\.views is \[\]; name at least one"),
    ("cvt", "cvt-tagging", {"finetuning__views": ["past", "past"]}, r"name at least one, and each once"),
    ("cvt", "cvt-tagging", {"finetuning__unlabelled_dropout": 12.0, "model__dropout": 0.1},
     r"makes model\.dropout 1 or more"),
    ("cvt", "cvt-tagging", {"finetuning__unlabelled_dropout": 2.0, "task__head_dropout": 0.5},
     r"makes task\.head_dropout 1 or more"),
    ("cvt", "cvt-tagging", {"finetuning__unlabelled_dropout": -1.0}, r"it must be at least 0 and finite"),
    ("cvt", "cvt-tagging", {"training__on_spike": "skip"}, r"on unlabelled text .* are much smaller at first"),
    ("cvt", "cvt-tagging", {"task__encoder_size": 4}, r"a biLSTM before a head reads the whole sentence"),
])  # fmt: skip
def test_what_has_no_views_is_refused(
    name: str, task: str, settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    small = {key: value for key, value in SMALL.items() if name == "cvt" or key == "model__dropout"}
    with pytest.raises(UsageError, match=message):
        recipe_for(start(name, **small), task, **settings, finetuning__unlabelled=[str(tmp_path)])


def test_a_mix_of_layers_and_layers_side_by_side_exclude_each_other() -> None:
    """The head would read the layers side by side, and the weights of the mix would never learn."""
    model = start("cvt", **SMALL | {"model__embedding_size": None})
    with pytest.raises(UsageError, match=r"task\.layers is 'all'; a head reads either all layers or their mix"):
        recipe_for(model, "cvt-tagging", model__layer_mix=True)
    with pytest.raises(UsageError, match=r"task\.layers is all, which only bidirectional LSTMs have"):
        recipe_for(start("bert-base"), "cvt-tagging")
