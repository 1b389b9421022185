"""The order of training: which windows a step reads for which objective, and that a resumed run reads and draws the same."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import toys
from objective_toys import GPT
from toys import random_windows, vocabulary
from unicloze.errors import UniclozeError, UsageError
from unicloze.example import Examples, Kind
from unicloze.mixtures import phases
from unicloze.objectives import make_examples, settings_of
from unicloze.pretraining.run import heldout_samples, varied
from unicloze.settings import DataSettings, ObjectiveSettings, Recipe, TrainingSettings
from unicloze.text.windows import Windows
from unicloze.training import batches
from unicloze.training.batches import MicroBatch, Prefetch, check_windows, heldout_examples, mask_rates, training_steps
from unicloze.training.loop import Compute

WINDOW = 24


class Sampler:
    """A source of windows by position that records what was read."""

    vocabulary = vocabulary()
    windows = random_windows(4000, WINDOW)

    def __init__(self) -> None:
        self.reads: list[dict[str, Any]] = []

    def read(self, start: int, count: int, **how: Any) -> Windows:
        self.reads.append({"start": start, "count": count, **how})
        block: Windows = self.windows[start : start + count]
        return dataclasses.replace(block, negative=np.zeros(count, dtype=bool))

    def rate_at(self, position: int, lanes: int) -> float:
        return 1.0 + position // lanes

    def sequential(self, count: int, **how: Any) -> Windows:
        self.reads.append({"count": count, **how})
        return dataclasses.replace(self.windows[:count], negative=np.zeros(count, dtype=bool))

    def name(self, source: int, index: int) -> str:
        return f"{source}, {index}"


def recipe(*, steps: int = 40, batch: int = 6, micro: int | None = None, phases: Any = (), **settings: Any) -> Recipe:
    training = TrainingSettings(steps=steps, batch_size=batch, micro_batch_size=micro, phases=list(phases))
    return Recipe(data=DataSettings(window=WINDOW), objective=settings_of(**settings), training=training)


def steps_of(made: Recipe, first: int = 0, sampler: Sampler | None = None) -> list[list[MicroBatch]]:
    return list(training_steps(made, lambda _: sampler or Sampler(), first))  # type: ignore[arg-type, return-value]


PHASES = [{"share": 3}, {"share": 2, "training": {"batch_size": 9}}]


def test_a_resumed_run_reads_the_blocks_of_one_that_never_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are made from their start, not from where the run stopped: examples made together may share more than draws."""
    monkeypatch.setattr(batches, "WINDOWS_AT_ONCE", 30)
    made = recipe(steps=40, phases=PHASES)
    whole = Sampler()
    steps = steps_of(made, 0, whole)
    assert len(steps) == 40 and len(whole.reads) > 8
    for first in range(40):
        sampler = Sampler()
        assert len(steps_of(made, first, sampler)) == 40 - first
        assert sampler.reads == whole.reads[len(whole.reads) - len(sampler.reads) :]
        position = first * 6 if first < 24 else 24 * 6 + (first - 24) * 9
        assert sampler.reads[0]["start"] <= position < sampler.reads[0]["start"] + sampler.reads[0]["count"]


def test_windows_are_read_as_the_objective_and_the_batch_require() -> None:
    sampler = Sampler()
    mixture = [{"label": "a", "targets": ["ae", "nsp"], "pairs": "next_sentence", "static_copies": 4}, {"label": "b"}]
    steps_of(recipe(mixture=mixture, steps=1), 0, sampler)
    asked = [{key: read[key] for key in ("pairs", "static_copies", "lanes")} for read in sampler.reads]
    assert asked == [
        {"pairs": "next_sentence", "static_copies": 4, "lanes": 6},
        {"pairs": "contiguous", "static_copies": None, "lanes": 6},
    ]


@pytest.mark.parametrize(("micro", "sizes"), [(None, [6]), (6, [6]), (3, [3, 3]), (2, [2, 2, 2])])
def test_a_step_is_cut_into_micro_batches(micro: int | None, sizes: list[int]) -> None:
    for step in steps_of(recipe(micro=micro, steps=3)):
        assert [len(batch.examples) for batch in step] == sizes
        for batch in step:
            assert batch.windows is not None
            assert np.array_equal(batch.examples.text_tokens, batch.windows.lengths)


def rate_of(objective: ObjectiveSettings, made: Recipe, number: int, step: int) -> float:
    return float(mask_rates(objective, phases(made)[number], np.array([step]))[0])


def test_the_mask_rate_moves_from_a_phase_s_first_step_to_its_last() -> None:
    made = recipe(steps=20, mask_rate=0.2, final_mask_rate=0.6, phases=[{}, {}])
    objective = made.objective
    for number, first in enumerate((0, 10)):
        found = [rate_of(objective, made, number, step) for step in range(first, first + 10)]
        assert found == pytest.approx(np.linspace(0.2, 0.6, 10))
    alone = recipe(steps=1, mask_rate=0.2, final_mask_rate=0.6)
    assert rate_of(objective, alone, 0, 0) == 0.2
    two = recipe(steps=2, mask_rate=0.2, final_mask_rate=0.6)
    assert [rate_of(objective, two, 0, step) for step in range(2)] == pytest.approx([0.2, 0.6])
    constant = dataclasses.replace(objective, final_mask_rate=None)
    assert {rate_of(constant, made, 1, step) for step in range(10, 20)} == {0.2}


def widths(examples: Examples) -> tuple[int, ...]:
    return examples.input_ids.shape[1], *(target.slots.shape[1] for target in examples.targets.values())


SEQUENCE_TO_SEQUENCE = "prefix", "span_corruption", "denoising", "masked_span"


@pytest.mark.parametrize("name", ["unilmv2", "masked", "permuted", "compensated", *SEQUENCE_TO_SEQUENCE])
@pytest.mark.parametrize("rates", [(0.1, 0.7), (0.7, 0.1)])
def test_rows_are_as_wide_at_every_mask_rate_of_a_run(
    name: str, rates: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All batches of a compiled run have one shape."""
    monkeypatch.setattr(batches, "WINDOWS_AT_ONCE", 30)
    monkeypatch.setattr(Sampler, "vocabulary", vocabulary(80, extra=25))
    targets = ["ae"] if name == "masked" else ["lm"] if name in SEQUENCE_TO_SEQUENCE else ["par"]
    made = recipe(steps=40, name=name, targets=targets, mask_rate=rates[0], final_mask_rate=rates[1])
    steps = steps_of(made)
    masked = [float(step[0].examples.targets[targets[0]].weights.sum()) for step in (steps[0], steps[-1])]
    assert masked[rates.index(0.7)] > 2 * masked[rates.index(0.1)] or name == "denoising", (
        "which predicts all of a text"
    )
    assert len({widths(batch.examples) for step in steps for batch in step}) == 1


def kinds(examples: Examples, kind: Kind) -> list[int]:
    """The tokens at slots of a kind."""
    return sorted({int(token) for token in examples.input_ids[examples.kinds == kind]})


def test_every_held_out_masked_slot_shows_a_mask_and_training_rows_do_not() -> None:
    """Kept and random tokens reveal something of the answer: held-out losses would be too low with them."""
    mixture = [{"label": "whole"}, {"label": "spans", "corruption_unit": "span"}, {"label": "left", "evaluate": False}]
    made = recipe(mixture=mixture, mask_rate=0.5)
    found = heldout_examples(Sampler(), made.objective, 60, lanes=1)
    assert list(found) == ["whole", "spans"]
    for block in found.values():
        examples = block.examples
        assert len(examples) == 60
        assert kinds(examples, Kind.MASK) == [toys.MASK] and kinds(examples, Kind.PSEUDO) == [toys.PSEUDO]
    for batch in steps_of(made)[0]:
        assert len(kinds(batch.examples, Kind.MASK)) > 1 and len(kinds(batch.examples, Kind.PSEUDO)) > 1

    ((_, whole),) = heldout_examples(Sampler(), GPT, 60, lanes=1).items()
    target = whole.examples.targets["lm"]
    assert target.counted is not None and np.isin(target.labels[target.counted], Sampler.vocabulary.ordinary).all()


def test_held_out_windows_are_paired_and_laid_in_lanes_as_in_training() -> None:
    sampler = Sampler()
    objective = settings_of(targets=["ae", "nsp"], pairs="next_sentence")
    heldout_examples(sampler, objective, 7, lanes=3)
    assert sampler.reads == [{"count": 7, "pairs": "next_sentence", "lanes": 3}]


def test_samples_are_filled_into_masks_only(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Examples] = []

    def noted(*arguments: Any) -> Examples:
        shown.append(make_examples(*arguments))
        return shown[-1]

    monkeypatch.setattr("unicloze.training.batches.make_examples", noted)
    tokenizer: Any = SimpleNamespace(
        tokens=lambda ids: [str(int(token)) for token in ids],
        decode=lambda ids: "".join("." if token % 2 else "a." for token in ids),
    )
    compute = Compute(device=torch.device("cpu"), precision="fp32")
    samples = heldout_samples(toys.model(), Sampler(), tokenizer, settings_of(mask_rate=0.5), compute)
    assert kinds(shown[0], Kind.MASK) == [toys.MASK] and kinds(shown[0], Kind.PSEUDO) == [toys.PSEUDO]
    for sample in samples:
        row = int(sample["document"].partition(", ")[2])
        for place in sample["masked"]:
            assert sample["tokens"][place["position"]] == str(toys.MASK)
            assert place["truth"] == str(Sampler.windows.token_ids[row, place["position"]])
            assert place["word"] is (int(place["truth"]) % 2 == 0)
            for target in ("ae", "par"):
                tokens, shares = zip(*place["top"][target], strict=True)
                assert tokens[0] == place[target] and len(set(tokens)) == 3
                assert 1 > shares[0] >= shares[1] >= shares[2] > 0


def test_samples_are_of_windows_that_are_not_one_token_repeated() -> None:
    windows = random_windows(12, WINDOW, seed=3)
    for row in (0, 2, 4, 5, 9):
        windows.token_ids[row, windows.maskable[row]] = 20
    assert varied(windows, 3).index.tolist() == [1, 6, 8]
    assert varied(windows, 9).index.tolist() == [1, 3, 6, 7, 8, 10, 11]
    windows.token_ids[windows.maskable] = 20
    assert varied(windows, 3).index.tolist() == [0, 4, 8]


def test_a_micro_batch_of_several_buckets_is_packed() -> None:
    windows = random_windows(6, WINDOW, short=True)
    examples = make_examples(windows, vocabulary(), settings_of())
    for buckets, rows in (((), 6), ((6,), 6), ((2, 4), 1)):
        batch = MicroBatch(examples, windows, buckets=buckets).batch(torch.device("cpu"))
        assert len(batch.input_ids) == rows and len(batch.buckets) == (2 if rows == 1 else 0)
    wide = MicroBatch(examples, windows).batch(torch.device("cpu"), fixed_shape=True)
    assert wide.input_ids.shape[1] >= examples.input_ids.shape[1] > batch.buckets[0].input_ids.shape[1]


def test_what_an_objective_cannot_use_is_refused_in_any_phase() -> None:
    """Windows have the phase's length: a longer one may contain what a shorter one does not."""
    permuting = {"name": "denoising", "targets": ["lm"], "noise": ["permute_sentences"]}
    phased: Any = [{}, {"data": {"window": 12}, "objective": permuting}]
    made = recipe(phases=phased)
    asked: list[int] = []

    def sampler_of(settings: Recipe) -> Sampler:
        asked.append(settings.data.window)
        return sampler

    sampler = Sampler()
    check_windows(made, sampler_of)
    assert asked == [12]
    sampler.vocabulary = dataclasses.replace(sampler.vocabulary, ends_sentence=np.zeros(50, dtype=bool))
    with pytest.raises(UsageError, match=r"includes permute_sentences, but none of 512 windows"):
        check_windows(made, sampler_of)


def test_text_that_cannot_be_paired_is_refused_in_any_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []
    monkeypatch.setattr(batches, "check_segment_pairs", lambda _, pairs: checked.append(pairs))
    nsp = {"targets": ["ae", "nsp"], "pairs": "next_sentence"}
    check_windows(recipe(phases=[{}, {"objective": {"mixture": [{}, nsp]}}]), lambda _: Sampler())
    assert checked == ["next_sentence"]


@pytest.mark.parametrize("number", range(3))
def test_a_process_makes_its_own_rows_and_they_are_those_of_one_that_makes_all(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a process owns no row of a part."""
    monkeypatch.setattr(batches, "WINDOWS_AT_ONCE", 24)
    mixed = recipe(
        steps=9, batch=12, micro=2, mixture=[{"share": 2}, {"share": 1, "mask_rate": 0.4}], final_mask_rate=0.6
    )

    def own(parts_of: Sequence[int]) -> list[int]:
        return [place for place in range(len(parts_of)) if place % 3 == number]

    sampler = Sampler()
    mine = list(training_steps(mixed, lambda _: sampler, 0, own))  # type: ignore[arg-type, return-value]
    for step, all_of_step in zip(mine, steps_of(mixed), strict=True):
        assert [batch.part for batch in step] == [batch.part for batch in all_of_step]
        for place, (one, other) in enumerate(zip(step, all_of_step, strict=True)):
            assert one.examples.targets.keys() == other.examples.targets.keys()
            if place % 3 != number:
                assert len(one.examples) == one.text_tokens == 0
                continue
            assert one.windows is not None and other.windows is not None
            assert one.windows.index.tolist() == other.windows.index.tolist()
            left, right = one.batch(torch.device("cpu")), other.batch(torch.device("cpu"))
            assert torch.equal(left.input_ids, right.input_ids) and torch.equal(left.intervals, right.intervals)
            assert all(torch.equal(left.targets[name].labels, right.targets[name].labels) for name in left.targets)


def test_a_process_that_owns_few_rows_reads_few_windows() -> None:
    sampler = Sampler()
    made = recipe(steps=2, batch=600, micro=100)
    next(training_steps(made, lambda _: sampler, 0, lambda _: [2, 3]))  # type: ignore[arg-type, return-value]
    assert [(read["start"], read["count"]) for read in sampler.reads] == [(200, 200)]


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "prefetch"]


@pytest.mark.parametrize("ahead", [1, 3, 20])
def test_items_come_in_order_and_then_end(ahead: int) -> None:
    with Prefetch(iter(range(10)), ahead) as items:
        assert [*items] == [*range(10)]
        assert next(items, None) is None
    assert not threads()


def test_an_error_comes_in_the_place_of_its_item() -> None:
    error = UniclozeError("shard.ds is damaged")

    def damaged() -> Iterator[int]:
        yield from range(3)
        raise error

    with pytest.raises(UniclozeError) as found, Prefetch(damaged(), 10) as items:
        assert [next(items) for _ in range(3)] == [0, 1, 2]
        next(items)
    assert found.value is error
    assert not threads()


def test_no_more_than_asked_is_made_ahead() -> None:
    made: list[int] = []
    third = threading.Event()

    def noted() -> Iterator[int]:
        for number in itertools.count():
            made.append(number)
            if number == 2:
                third.set()
            yield number

    with Prefetch(noted(), 2) as items:
        assert next(items) == 0
        assert third.wait(10)
        assert threads() == ["prefetch"]
    assert made == [0, 1, 2] and not threads()


def test_no_thread_survives_an_exception_or_a_restart() -> None:
    with pytest.raises(KeyboardInterrupt), Prefetch(itertools.count(), 2) as items:
        assert next(items) == 0
        items.restart(itertools.count(7))
        assert [next(items), next(items)] == [7, 8]
        assert len(threads()) == 1
        raise KeyboardInterrupt
    assert not threads()
