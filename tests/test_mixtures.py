"""Mixtures within a step and phases of a run: exact shares, one objective per micro-batch, independent of resuming."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from corpora import toy_corpus
from hf_toys import cut_after, same_ends
from toys import random_windows, vocabulary
from unicloze.errors import UniclozeError, UsageError
from unicloze.mixtures import phases
from unicloze.objectives import settings_of
from unicloze.pretraining.run import pretrain_run
from unicloze.recipes import load_recipe
from unicloze.settings import DataSettings, Recipe, TrainingSettings
from unicloze.text.windows import Windows
from unicloze.training import loading as models
from unicloze.training.batches import training_steps
from unicloze.training.ledger import read_ledger
from unicloze.training.loading import load_model

MIXTURE = [
    {"label": "ae", "share": 2, "targets": ["ae"]},
    {"label": "par", "share": 2, "targets": ["par"]},
    {"label": "high", "share": 1, "mask_rate": 1.0},
    {"label": "low", "share": 1, "mask_rate": 0.05, "coefficients": {"ae": 2.0}},
]


class Sampler:
    """Windows determined by their position alone."""

    vocabulary = vocabulary()
    windows = random_windows(6000, 24)

    def read(self, first: int, count: int, **_: Any) -> Windows:
        block: Windows = self.windows[first : first + count]
        return block

    def rate_at(self, position: int, lanes: int) -> float:
        return 1.0


def recipe(*, batch: int = 6, steps: int = 60, micro: int | None = None, **settings: Any) -> Recipe:
    return Recipe(
        data=DataSettings(window=24),
        objective=settings_of(**settings),
        training=TrainingSettings(steps=steps, batch_size=batch, micro_batch_size=micro),
    )


def steps_of(made: Recipe, first: int = 0) -> Any:
    return training_steps(made, lambda _: Sampler(), first)  # type: ignore[arg-type, return-value]


def kind(micro_batch: Any) -> str:
    targets = tuple(micro_batch.examples.targets)
    if targets != ("ae", "par"):
        return targets[0]
    masked = micro_batch.examples.targets["ae"].weights.sum() / micro_batch.windows.maskable.sum()
    return "high" if masked == 1 else "low"


@pytest.mark.parametrize("batch", [6, 7, 32])
def test_shares_hold_up_to_a_row_at_every_step_and_exactly_at_the_end(batch: int) -> None:
    rows: Counter[str] = Counter()
    seen = []
    for micro_batches in steps_of(recipe(mixture=MIXTURE, batch=batch)):
        in_step = Counter({kind(m): len(m.examples) for m in micro_batches})
        assert sum(in_step.values()) == batch
        for label, share in {"ae": 2, "par": 2, "high": 1, "low": 1}.items():
            assert abs(in_step[label] - share * batch / 6) < 2
            assert abs((rows + in_step)[label] - share * (sum(rows.values()) + batch) / 6) < 1
        rows += in_step
        seen += [index for m in micro_batches for index in m.windows.index.tolist()]
    assert rows == {label: share * 10 * batch for label, share in {"ae": 2, "par": 2, "high": 1, "low": 1}.items()}
    assert sorted(seen) == list(range(60 * batch))


def test_a_micro_batch_has_at_most_the_requested_size_and_its_coefficients() -> None:
    for micro_batches in steps_of(recipe(mixture=MIXTURE, batch=32, micro=8, steps=4)):
        assert max(len(m.examples) for m in micro_batches) == 8
        assert all(dict(m.coefficients) == ({"ae": 2.0} if kind(m) == "low" else {}) for m in micro_batches)


def test_what_a_step_holds_does_not_depend_on_where_the_run_was_resumed() -> None:
    made = recipe(mixture=MIXTURE, batch=7, micro=2, steps=200)
    made = dataclasses.replace(
        made,
        training=dataclasses.replace(
            made.training, phases=[{"share": 3}, {"objective": {"final_mask_rate": 0.6}, "training": {"batch_size": 9}}]
        ),
    )
    expected = list(steps_of(made))
    assert len(expected) == 200
    for first in (1, 75, 149, 150, 151, 199):
        resumed = next(steps_of(made, first))
        assert len(resumed) == len(expected[first])
        for one, other in zip(expected[first], resumed, strict=True):
            for name in ("input_ids", "intervals", "kinds"):
                assert np.array_equal(getattr(one.examples, name), getattr(other.examples, name))


def test_phases_share_the_steps_and_continue_reading_where_the_last_one_stopped() -> None:
    made = recipe(steps=10, batch=4)
    changes = [{"share": 9, "data": {"window": 12}}, {"share": 1, "training": {"batch_size": 8}}]
    made = dataclasses.replace(made, training=dataclasses.replace(made.training, phases=changes))
    first, second = phases(made)
    assert (first.first_step, first.last_step, second.last_step) == (0, 9, 10)
    assert (first.recipe.data.window, second.recipe.data.window, second.first_window) == (12, 24, 36)
    assert [len(m.examples) for batches in steps_of(made) for m in batches] == [4] * 9 + [8]
    read = [index for batches in steps_of(made) for m in batches for index in m.windows.index.tolist()]
    assert read == list(range(36 + 8)), "no window is read twice, and none is left out"


MIX, PHASES = "objective.mixture", "training.phases"


@pytest.mark.parametrize(("setting", "message"), [
    ({MIX: ["ae"]}, "objective.mixture is ['ae']; expected a list"),
    ({MIX: [{"mask_rate": "much"}]}, "objective.mask_rate is 'much'; expected a number"),
    ({MIX: [{"label": "x", "mask_rate": 2}]}, "part 'x' of objective.mixture: objective.mask_rate is 2"),
    ({MIX: [{"label": "x", "share": 9000}, {}]}, "less than one row"),
    ({MIX: [{"label": "a", "mixture": []}]}, "part 1 of objective.mixture: a part cannot be a mixture; list its parts"),
    ({MIX: [{"label": None}]}, "part 1 of objective.mixture: label is None; expected text."),
    ({MIX: [{"label": " "}]}, "label is ' '; expected text."),
    ({MIX: [{"label": [1]}]}, "label is [1]; expected text."),
    ({PHASES: [{}, {"objective": {"mixture": [{"evaluate": False}]}}]}, "no part to evaluate on held-out text"),
    ({"training.steps": 3, PHASES: [{"share": 9}, {"share": 1}]},
     "training.phases gives phase 2 none of the 3 training.steps; raise training.steps or its share, or set"),
    ({"training.steps": 0, PHASES: [{}, {}]}, "option --training.steps: training.steps is 0"),
    ({PHASES: [{"objective": {"mask_rate": None}}]}, "objective.mask_rate is None; expected a number"),
    ({PHASES: [{"data.window": 2}]}, "phase 1 of training.phases: data.window is 2"),
])  # fmt: skip
def test_impossible_values_are_reported_with_their_place(setting: dict[str, Any], message: str) -> None:
    """Those of other invalid parts and phases are in `messages.txt`."""
    with pytest.raises(UsageError, match=re.escape(message)):
        load_recipe("unilmv2-base", setting)


@pytest.mark.whole
def test_a_mixture_with_phases_trains_resumes_and_is_measured_by_part(tmp_path: Path) -> None:
    mixture = [{"label": "one", "targets": ["ae"]}, {"label": "two"}]
    overrides = toy_corpus(tmp_path, {
        MIX: mixture, PHASES: [{"data.window": 16}, {"objective.mask_rate": 0.3}], "training.steps": 6,
        "training.save_every": 1, "training.keep_checkpoints": 9, "training.evaluate_every": 2,
    })  # fmt: skip
    made, whole = load_recipe("unilmv2-ablation-ae-par", overrides), tmp_path / "whole"
    result = pretrain_run(made, whole, progress=False)
    assert set(result.perplexity) == {"one.ae", "two.ae", "two.par"}
    events = [event for event in read_ledger(whole / "ledger.jsonl") if event["event"] == "evaluate"]
    assert {event["window"] for event in events} == {32}, "that of the last phase"
    pretrain_run(made, cut := cut_after(whole, 2), progress=False)
    same_ends(whole, cut)
    assert load_model(whole).model.max_positions == 32


@pytest.mark.whole
def test_a_run_starts_from_the_weights_of_another(tmp_path: Path) -> None:
    overrides, first = toy_corpus(tmp_path), tmp_path / "first"
    pretrain_run(load_recipe("unilmv2-ablation-ae", overrides), first, progress=False)
    start = {**overrides, "training.initialize_from": str(first), "training.learning_rate": 1e-12}
    start["tokenizer.path"] = str(first / "tokenizer.json")
    with pytest.warns(UserWarning, match=r"has no backbone.relative.weight of the right shape"):
        pretrain_run(load_recipe("unilmv2-base", start), tmp_path / "second", progress=False)
    one, other = (load_model(tmp_path / name).model.state_dict() for name in ("first", "second"))
    name = "backbone.layers.0.attention.qkv.weight"
    torch.testing.assert_close(one[name], other[name])
    start |= {"tokenizer.path": None, "tokenizer.kind": "bpe"}
    with pytest.warns(UserWarning) as said:
        pretrain_run(load_recipe("unilmv2-base", start), tmp_path / "third", progress=False)
    assert any("tokens take their rows from" in str(warning.message) for warning in said)


def test_a_loss_that_is_not_finite_in_an_early_phase_names_its_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    phased = {PHASES: [{"data.window": 8}, {"data.window": 32}], "training.steps": 4}
    made, original = load_recipe("unilmv2-ablation-ae", toy_corpus(tmp_path, phased)), models.build_model

    def broken(recipe: Recipe, vocab_size: int) -> Any:
        model = original(recipe, vocab_size)
        torch.nn.init.constant_(next(model.parameters()), float("nan"))
        return model

    monkeypatch.setattr(models, "build_model", broken)
    with pytest.raises(UniclozeError, match=r"before the update of step 1: .*corpus\.txt, line \d+, token \d+"):
        pretrain_run(made, tmp_path / "run", progress=False)


def test_more_steps_move_the_phases_and_this_is_reported(tmp_path: Path) -> None:
    phased = {PHASES: [{}, {"objective.mask_rate": 0.3}], "training.schedule": "constant"}
    settings = toy_corpus(tmp_path, phased)
    pretrain_run(load_recipe("unilmv2-ablation-ae", settings), tmp_path / "run", progress=False)
    longer = load_recipe("unilmv2-ablation-ae", settings | {"training.steps": 4})
    with pytest.warns(UserWarning, match="changes from 2 to 4, which changes the boundaries of training.phases too"):
        pretrain_run(longer, tmp_path / "run", progress=False)
