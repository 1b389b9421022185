"""Comparisons: equal text, budgets and measures; finished runs are not repeated."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import toys
from report_toys import Page, event, make_run, start, whole
from test_counts import source as token_source
from test_counts import trigram_nats
from unicloze import verbs
from unicloze.comparison import compare, runs
from unicloze.comparison.compare import Job, clock_of, compare_recipes, do_all
from unicloze.comparison.contestants import contestants, contestants_at_budget, network
from unicloze.comparison.runs import counted, held_out
from unicloze.comparison.table import Column, Comparison, ContestantResult, as_markdown, as_text, page, ranked
from unicloze.decoding.inputs import ReadWindow
from unicloze.decoding.likelihood import log_probabilities, score
from unicloze.errors import UniclozeError, UsageError
from unicloze.files import hold
from unicloze.finetuning.seeds import OverSeeds
from unicloze.mixtures import phases
from unicloze.model.flops import Amounts, backbone_flops
from unicloze.objectives import settings_of
from unicloze.objectives.unilmv2 import unilmv2
from unicloze.pretraining.budget import Budget, Cost, measure_slots, with_steps
from unicloze.pretraining.data import build_sampler
from unicloze.pretraining.run import RunResult, pretrain_run
from unicloze.recipes import load_recipe, recipes_of, save_recipe
from unicloze.recipes.schema import parse_options
from unicloze.report.history import History
from unicloze.settings import DataSettings, ModelSettings, Recipe, TokenizerSettings
from unicloze.text.counts import Counts
from unicloze.text.prepare import Prepared, open_or_prepare
from unicloze.text.sampler import WindowSampler
from unicloze.training.ledger import Figure
from unicloze.training.loading import LoadedModel, build_model, load_model
from unicloze.training.loop import Compute
from unicloze.training.verdict import not_beaten

TOKENIZER = TokenizerSettings(vocab_size=512)
NAMES = "unilmv2-ablation-ae", "unilmv2-ablation-ae-par", "unilmv2-ablation-ar"


def overrides(corpus: Path, **more: Any) -> dict[str, Any]:
    toy = {**toys.toy_settings(), "data.corpus": [str(corpus)], "training.evaluate_windows": 8}
    del toy["training.steps"]
    return toy | {"training.precision": "fp32", "data.heldout_share": 0.2} | more


def run(corpus: Path, out: Path, budget: str, names: Any = NAMES[:2], **options: Any) -> Comparison:
    more = options.pop("overrides", {})
    return compare_recipes(
        names, out, budget=Budget.parse(budget), seeds=options.pop("seeds", 1), progress=False,
        overrides=overrides(corpus, **more), **options,
    )  # fmt: skip


@pytest.mark.whole
def test_a_comparison_from_end_to_end(corpus: Path, tmp_path: Path) -> None:
    said: list[str] = []
    comparison = run(corpus, tmp_path / "c", "tokens=900", names=NAMES, seeds=2, say=said.append)
    ae, both, ar = comparison.rows
    assert [row.name for row in comparison.rows] == list(NAMES)
    assert all(row.text_tokens == pytest.approx(900, rel=0.2) and row.steps > 1 for row in comparison.rows)
    assert both.flops > ae.flops
    assert ae.scores["par"] is None and ae.scores["causal"] is None and ae.scores["bits_per_byte"] is None
    assert ar.scores["ae"] is None
    for spread in (ae.scores["ae"], both.scores["par"], both.scores["causal"], ar.scores["causal"]):
        assert spread is not None and spread.deviation is not None
        assert 1 < spread.mean < 1000
    text = as_text(comparison)
    assert "unilmv2-ablation-ar" in text and "the objective does not define it" in text
    assert as_markdown(comparison).count("\n| ") == 4
    html = page(comparison)
    assert html.count("<svg") >= 2 and "http" not in html.replace("http://www.w3.org", "")
    stored = json.loads((tmp_path / "c" / "comparison.json").read_text())
    assert stored["schema"] == 2 and stored["seeds"] == 2
    assert stored["results"][0]["scores"]["ae"]["mean"] == ae.scores["ae"].mean
    assert said[-1] == "unilmv2-ablation-ar, seed 1 (6 of 6)"


@pytest.mark.whole
def test_what_is_done_is_not_done_again(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[tuple[str, int]] = []

    def noted(recipe: Recipe, out: Path, **named: Any) -> Any:
        trained.append((recipe.name, recipe.training.seed))
        if trained.count((NAMES[1], 0)) == 1 and trained[-1] == (NAMES[1], 0):
            raise KeyboardInterrupt
        return pretrain_run(recipe, out, **named)

    monkeypatch.setattr(runs, "pretrain_run", noted)
    with pytest.raises(KeyboardInterrupt):
        run(corpus, tmp_path / "c", "steps=3")
    first = run(corpus, tmp_path / "c", "steps=3")
    assert trained == [(NAMES[0], 0), (NAMES[1], 0), (NAMES[1], 0)]
    again = run(corpus, tmp_path / "c", "steps=3")
    assert len(trained) == 3 and again == first
    more = run(corpus, tmp_path / "c", "steps=3", seeds=2)
    assert [entry for entry in trained[3:]] == [(NAMES[0], 1), (NAMES[1], 1)]
    assert more.seeds == 2
    unbroken = run(corpus, tmp_path / "whole", "steps=3")
    assert [row.scores for row in unbroken.rows] == [row.scores for row in first.rows]


def test_another_comparison_is_not_resumed(corpus: Path, tmp_path: Path) -> None:
    run(corpus, tmp_path / "c", "steps=2", names=NAMES[:1])
    for options in ({"budget": "steps=3"}, {"overrides": {"model.num_layers": 1}}, {"names": NAMES[1:2]}):
        with pytest.raises(UsageError, match="belongs to another comparison"):
            run(corpus, tmp_path / "c", **({"budget": "steps=2", "names": NAMES[:1]} | options))  # type: ignore[arg-type]
    stored = tmp_path / "c" / "comparison.json"
    for content, message in (
        (stored.read_text().replace('"schema": 2', '"schema": 1'), "written by another version of unicloze"),
        ("{", "comparison.json is damaged"),
    ):
        stored.write_text(content)
        with pytest.raises(UniclozeError, match=message):
            run(corpus, tmp_path / "c", "steps=2", names=NAMES[:1])


@pytest.mark.slow
def test_a_time_budget_is_kept_roughly(corpus: Path, tmp_path: Path) -> None:
    assert run(corpus, tmp_path / "c", "time=1", names=NAMES[:1]).rows[0].steps > 5


def test_slots_and_pairs_are_counted() -> None:
    examples = unilmv2(toys.random_windows(5, 24, short=True), toys.vocabulary(), settings_of())
    amounts = measure_slots(examples)
    assert amounts.slots == examples.lengths.sum()
    pairs = sum(examples.visible(row).sum() for row in range(5))
    assert amounts.keys == pytest.approx(pairs / amounts.slots)
    assert amounts.predictions == {name: int(target.weights.sum()) for name, target in examples.targets.items()}


def test_the_rows_of_table_6_differ_in_what_the_paper_names() -> None:
    """UniLMv2, Table 6: relative position bias in row [1] alone, the objective in the others, with and without `like`."""
    changes = {
        (0, 1): {"model.relative_bias": (True, False)},
        (1, 2): {"objective.factorization": ("block", "token")},
        (1, 3): {"objective.targets": (["ae", "par"], ["ae"])},
        (1, 4): {"objective.targets": (["ae", "par"], ["par"])},
        (4, 5): {"objective.factorization": ("block", "token")},
    }
    quick = load_recipe("quickstart")
    for like in (None, "quickstart"):
        rows = contestants(recipes_of(["table-6"]), like=like, overrides={})
        values = [flat({name: part for name, part in row.to_dict().items() if name not in NAMING}) for row in rows]
        for (first, second), expected in changes.items():
            of, to = values[first], values[second]
            assert {key: (of.get(key), to.get(key)) for key in of | to if of.get(key) != to.get(key)} == expected
        assert [("relative bias" in network(row)) for row in rows] == [True, *[False] * 5]
        if like is not None:
            sizes = {(row.model.hidden_size, row.training.batch_size, row.data.window) for row in rows}
            assert sizes == {(quick.model.hidden_size, quick.training.batch_size, quick.data.window)}


NAMING = ("name", "provenance", "base")


def flat(value: Any, key: str = "") -> dict[str, Any]:
    """The leaves of nested settings by dotted name."""
    if not isinstance(value, dict):
        return {key: value}
    return {
        name: leaf for part, inner in value.items() for name, leaf in flat(inner, f"{key}.{part}".strip(".")).items()
    }


@pytest.mark.parametrize(("name", "kept", "expected"), [
    ("elmo", "kind directions projection residual embeddings", "2 x 128, LSTM, both, from characters"),
    ("awd-lstm", "kind weight_dropout temporal_penalty", "2 x 128, LSTM, forward"),
    ("cove", "kind directions", "2 + 2 x 128, LSTM, both, embeddings of 64"),
    ("t5-base", "norm_kind scale_scores initializer biases", "2 + 2 x 128, relative bias, pre-norm, RMS norm"),
    ("xlnet-base", "positions num_segments", "2 x 128, transformer-xl positions, memory 48"),
    ("albert-base", "share_layers activation", "2 x 128, embeddings of 22, shares all of the layers"),
    ("electra-base", "generator_size relative_bias", "2 x 128, generator of 0.3333"),
    ("gpt-3-small", "layer_visibility scaled_init norm", "2 x 128, local layers, pre-norm"),
    ("transformer-base", "positions scale_embeddings", "2 + 2 x 128, sinusoidal positions"),
])  # fmt: skip
def test_like_takes_sizes_and_leaves_the_network(name: str, kept: str, expected: str) -> None:
    (recipe,) = contestants([name], like="quickstart", overrides={})
    own, quick = load_recipe(name), load_recipe("quickstart")
    assert network(recipe) == f"{expected}, from counts of the text"
    assert network(recipe.changed("training", initialize_from="run")) == expected
    assert all(getattr(recipe.model, setting) == getattr(own.model, setting) for setting in kept.split())
    assert recipe.objective.name == own.objective.name and recipe.training.batch_size == quick.training.batch_size
    assert recipe.data.window == quick.data.window and recipe.tokenizer.vocab_size == quick.tokenizer.vocab_size


def test_sizes_follow_from_those_that_are_given() -> None:
    """A second stack, a memory, LSTMs and factorised embeddings are in proportion to the overridden sizes too."""
    given = {"model.num_layers": 6, "model.hidden_size": 256, "data.window": 128}
    names = ["t5-base", "albert-base", "xlnet-base"]
    t5, albert, xlnet = contestants(names, like="quickstart", overrides=given)
    assert (t5.model.num_layers, t5.model.decoder_layers) == (6, 6)
    assert albert.model.embedding_size == 42 and xlnet.model.memory == 96


def test_a_budget_of_steps_keeps_the_share_of_the_decay(corpus: Path, tmp_path: Path) -> None:
    own = {"training.steps": 100, "training.schedule": "wsd", "training.decay_steps": 40, "training.warmup_steps": 10}
    recipe = load_recipe(NAMES[0], overrides(corpus, **own))
    training = with_steps(recipe, Budget.parse("steps=50"), Cost(flops=1.0, tokens=1.0, seconds=1.0)).training
    assert (training.steps, training.warmup_steps, training.decay_steps) == (50, 5, 20)
    warmed_up = with_steps(recipe, Budget.parse("steps=1"), Cost(flops=1.0, tokens=1.0)).training
    assert (warmed_up.warmup_steps, warmed_up.decay_steps) == (1, None)  # no step is left to decay in
    with pytest.raises(UsageError, match=r"more than the budget steps=3 allows if each of its 2 phases .*; raise it.$"):
        with_steps(load_recipe("bert-base"), Budget.parse("steps=3"), Cost(flops=1.0, tokens=1.0))


def test_a_given_warm_up_is_kept_or_refused() -> None:
    recipe, cost = load_recipe(NAMES[0], {"training.warmup_steps": 30}), Cost(flops=1.0, tokens=1.0)
    kept = with_steps(recipe, Budget.parse("steps=50"), cost, {"training.warmup_steps"}).training
    assert (kept.steps, kept.warmup_steps) == (50, 30)
    with pytest.raises(UsageError, match=r"warmup_steps is 30, but the budget steps=20 allows recipe .* only 20 steps"):
        with_steps(recipe, Budget.parse("steps=20"), cost, {"training.warmup_steps"})


def test_like_keeps_every_phase_of_an_objective_that_changes() -> None:
    """A phase without changes of its own is the recipe's objective."""
    stages, two = contestants(["ernie-base", "quickstart"], like="bert-base", overrides={})
    assert [phase.recipe.objective.mask_unit for phase in phases(stages)] == ["word", "phrase", "entity"]  # type: ignore[attr-defined]
    assert [phase.recipe.objective.name for phase in phases(two)] == [
        "causal",
        load_recipe("quickstart").objective.name,
    ]
    assert stages.training.steps == two.training.steps == load_recipe("bert-base").training.steps


@pytest.mark.parametrize("like", ["gpt", "quickstart", "xlnet-base"])
def test_a_memory_keeps_its_streams_in_a_comparison(like: str) -> None:
    (found,), own = contestants(["xlnet-base"], like=like, overrides={}), load_recipe("xlnet-base").data
    assert found.objective.windows.pairs == "next_sentence"
    assert (found.data.order, found.data.documents, found.data.overlap) == (own.order, own.documents, own.overlap)
    (alone,) = contestants(["ernie-base"], like="xlnet-base", overrides={"training.log_every": 3})
    assert (alone.data.segments, alone.data.overlap) == (1, 0.0)


def test_measures_are_those_of_a_separate_pass(corpus: Path, tmp_path: Path) -> None:
    pretrain_run(load_recipe(NAMES[1], overrides(corpus, **{"training.steps": 2})), tmp_path / "run", progress=False)
    loaded = load_model(tmp_path / "run")
    prepared = Prepared.load(tmp_path / "run" / "data")
    recipe = load_recipe(NAMES[1], overrides(corpus, **{"data.segments": 1}))
    windows = build_sampler(recipe, prepared, heldout=True).sequential(4)
    nats = held_out(loaded, windows, Compute(device=torch.device("cpu"), precision="fp32"), 2)
    text = loaded.tokenizer.decode(windows.token_ids[0, 1 : windows.lengths[0] - 1].tolist())
    alone = held_out(loaded, windows[:1], Compute(device=torch.device("cpu"), precision="fp32"), 1)
    (scored,) = score(loaded, [text])
    assert scored.chain_perplexity is not None and alone["causal"] is not None
    assert alone["causal"].perplexity == pytest.approx(scored.chain_perplexity, rel=1e-4)
    assert nats["ae"] is not None and nats["ae"].error > 0


@pytest.mark.parametrize("memory", [5, 20])
def test_a_memory_reads_the_text_before_each_window(corpus: Path, tmp_path: Path, memory: int) -> None:
    """As `score` does for a text of these windows; windows of 14 tokens of text, so 20 are of two windows."""
    more = {"model.memory": memory, "model.initializer_range": 0.3, "data.window": 16}
    recipe = load_recipe("xlnet-base", overrides(corpus, **more, **{"training.steps": 2}))
    prepared = open_or_prepare(recipe.data, recipe.tokenizer, tmp_path / "data", progress=False)
    network = build_model(recipe, prepared.tokenizer.vocabulary.size).for_use().eval()
    loaded = LoadedModel(network, prepared.tokenizer, recipe, tmp_path, 0)
    sampler = WindowSampler(prepared.heldout, window=16, segments=1, vocabulary=prepared.tokenizer.vocabulary, seed=0)
    windows = sampler.sequential(12)
    asked = []

    def before(count: int) -> Any:
        asked.append(count)
        return sampler.texts_before(windows, count)

    cpu = Compute(device=torch.device("cpu"), precision="fp32")
    nats, alone = held_out(loaded, windows, cpu, 4, before), held_out(loaded, windows, cpu, 4)
    assert set(asked) == {1 if memory == 5 else 2}
    total, count, several = 0.0, 0, 0
    for row, past in enumerate(before(asked[0])):
        document = sampler.name(int(windows.source[row]), int(windows.index[row]))
        assert len(past) == min(asked[0], document.first_token // 14) and all(len(each) == 14 for each in past)
        own = windows.token_ids[row, 1 : windows.lengths[row] - 1]
        pieces = [ReadWindow(text=0, first=0, tokens=each) for each in (*past, own)]
        logs = log_probabilities(loaded, pieces, "chain", batch_size=1)[-1]
        total, count, several = total - np.nansum(logs), count + np.isfinite(logs).sum(), several + len(past)
    assert several > 3
    means = [{name: figure and figure.mean for name, figure in each.items()} for each in (nats, alone)]
    assert means[0]["causal"] == pytest.approx(total / count, rel=1e-5)
    assert all(means[0][name] != means[1][name] for name in ("par", "causal"))
    for name in ("par", "causal"):
        figure = nats[name]
        assert figure is not None and figure.token_mean == pytest.approx(figure.mean) and figure.error > 0
        assert not_beaten({name: figure}, {name: {"unigram": 2.0, "trigram": 1.5}}) == "counting words"


def test_with_a_memory_the_trigram_sees_the_end_of_the_window_before(tmp_path: Path) -> None:
    """Every token then has the probability that it has in the whole text; the table shows both, to each row its own."""
    vocabulary = toys.vocabulary()
    text = np.random.default_rng(0).choice(vocabulary.ordinary, 300).astype(np.int64)
    source = token_source(tmp_path / "text.ds", [text.tolist()])
    counts = Counts.of([source], vocabulary)
    sampler = WindowSampler([source], window=12, segments=1, vocabulary=vocabulary, seed=0)
    windows = sampler.sequential(30)
    alone, longer = counted(counts, windows), counted(counts, windows, sampler.texts_before(windows, 1))
    whole = math.exp(trigram_nats(counts, text).mean())
    assert len(windows) == 30 and longer["causal"]["trigram"] == pytest.approx(whole)
    assert alone["causal"]["trigram"] > whole * 1.01
    assert longer["causal"]["unigram"] == alone["causal"]["unigram"]
    assert all(longer[name]["trigram"] != alone[name]["trigram"] for name in ("ae", "par"))
    figure = Figure(target="lm", counted_nats=100 * math.log(whole * 1.01), counted_weight=100, counted_squares=0.0)
    rows = [result(name, scores={"causal": None}, figures={"causal": figure}) for name in ("gpt", "xlnet")]
    rows[1] = dataclasses.replace(rows[1], counts={"causal": longer["causal"]})
    table = as_markdown(table_of(*rows, counts={"causal": alone["causal"]}))
    assert f"With the end of the window before, which xlnet sees too: causal perplexity {whole:,.1f}." in table
    assert "No better than a Kneser-Ney trigram: xlnet." in table


def test_the_clock_of_a_run_goes_on_where_the_run_does(tmp_path: Path) -> None:
    job = Job(SimpleNamespace(recipe=load_recipe("quickstart")), 0, make_run(tmp_path / "run", whole()), "")  # type: ignore[arg-type]
    fresh = clock_of(job, Budget.parse("time=600"))
    (job.run / "checkpoints" / "step-00000025").mkdir(parents=True)
    resumed = clock_of(job, Budget.parse("time=600"))
    assert fresh.began - resumed.began == pytest.approx(130, abs=1) and resumed.planned and resumed.budget == 600
    again = dataclasses.replace(job, run=make_run(tmp_path / "again", [*whole(), *whole()]))
    (again.run / "checkpoints" / "step-00000025").mkdir(parents=True)
    assert clock_of(again, Budget.parse("time=600")).began == pytest.approx(resumed.began, abs=1)


@pytest.mark.whole
def test_a_moving_mask_rate_is_costed_over_its_whole_way(corpus: Path, tmp_path: Path) -> None:
    prepared = open_or_prepare(DataSettings(corpus=[str(corpus)]), TOKENIZER, tmp_path, progress=False)
    costs = {}
    for rates in ((0.1, 0.9), (0.9, 0.1), (0.5, None)):
        more = {"objective.mask_rate": rates[0], "objective.final_mask_rate": rates[1], "training.steps": 200}
        recipe = load_recipe("unilmv2-ablation-ae", overrides(corpus) | more)
        costs[rates] = contestants_at_budget(recipe, prepared, Budget("steps", 200), tmp_path).flops_per_step
    assert costs[0.1, 0.9] == pytest.approx(costs[0.9, 0.1], rel=0.02) == pytest.approx(costs[0.5, None], rel=0.03)


def test_memory_and_position_terms_are_counted() -> None:
    shape = ModelSettings(hidden_size=8, num_layers=2, num_heads=2, intermediate_size=16)
    asked = Amounts(rows=2, slots=20, keys=10.0, predictions={"lm": 4}, predicting_slots={"lm": 4})
    plain = backbone_flops(shape, asked)
    remembering = backbone_flops(dataclasses.replace(shape, memory=5), asked)
    assert remembering - plain == 2 * 4 * 10 * 8 * 8 + 20 * 5 * 4 * 8 + 4 * 5 * 4 * 8
    relative = backbone_flops(dataclasses.replace(shape, positions="transformer_xl"), asked)
    assert relative - plain == 20 * 10 * 2 * 8 + 4 * 10 * 2 * 8


def test_like_brings_no_phases_and_keeps_the_objective_s_own(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    phased = "training:\n  phases: [{share: 3, objective.mask_rate: 0.3}, {data.window: 64}]\n"
    own.write_text(f"base: unilmv2-ablation-ae\n{phased}")
    like = tmp_path / "like.yaml"
    phased = "training:\n  phases: [{objective.mask_rate: 0.5, data.window: 32}, {share: 2}]\n"
    like.write_text(f"base: quickstart\n{phased}")
    recipe, other = contestants([str(own), "gpt"], like=str(like), overrides={})
    assert recipe.training.phases == [{"share": 3, "objective": {"mask_rate": 0.3}}, {"share": 1}]
    assert other.training.phases == [] and other.objective.name == "causal"


def test_what_cannot_be_trained_is_reported_before_training(corpus: Path, tmp_path: Path) -> None:
    odd, one = tmp_path / "odd.yaml", tmp_path / "one.txt"
    odd.write_text("base: quickstart\nmodel: {hidden_size: 129, num_heads: 3}\n")
    with pytest.raises(UsageError, match=r"recipe transformer-base with the sizes of --like .*odd.yaml: "):
        contestants(["transformer-base"], like=str(odd), overrides={})
    one.write_text("no end in sight " * 300 + "\n\n" + "and on it goes " * 300)
    with pytest.raises(UsageError, match=r"recipe albert-base: .*sentence"):
        run(one, tmp_path / "c", "steps=2", names=[NAMES[0], "albert-base"], like="quickstart")
    assert not (tmp_path / "c" / NAMES[0]).exists()
    for sets, limit, message in ((tmp_path / "nowhere", None, "nowhere"), (corpus, 0, "blimp.limit is 0")):
        given = {"out": tmp_path / "d", "blimp": sets, "blimp_limit": limit, "overrides": overrides(corpus)}
        with pytest.raises(UniclozeError, match=message):
            verbs.compare(NAMES[:1], "steps=1", **given)
    assert not (tmp_path / "d").exists()


@pytest.mark.whole
def test_scores_that_are_damaged_or_of_another_run_are_measured_again(corpus: Path, tmp_path: Path) -> None:
    run(corpus, tmp_path / "c", "steps=2", names=NAMES[:1])
    scores = tmp_path / "c" / NAMES[0] / "seed-0" / "scores.json"
    known = json.loads(scores.read_text())
    wrong = {**known, "nats": dict.fromkeys(known["nats"], 0.0)}
    for damage in ("{bad", "[1]", *(json.dumps({**wrong, key: "other"}) for key in ("recipe", "text"))):
        scores.write_text(damage)
        with pytest.warns(UserWarning, match="trained to step 2"):
            run(corpus, tmp_path / "c", "steps=2", names=NAMES[:1])
        assert json.loads(scores.read_text()) == known


def test_a_signal_ends_the_comparison_with_its_number(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = RunResult(out=tmp_path, step=1, stopped_by=15, perplexity={}, part="held-out")
    monkeypatch.setattr(runs, "pretrain_run", lambda *_, **__: stopped)
    with pytest.raises(UniclozeError, match="stopped by SIGTERM") as error:
        run(corpus, tmp_path / "c", "steps=2", names=NAMES[:1])
    assert error.value.exit_code == 143


def test_recipes_share_one_text(corpus: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(f"base: {NAMES[1]}\nname: other\ndata: {{deduplicate: false}}\n")
    with pytest.raises(UsageError, match=f"{NAMES[0]} and other differ in data.deduplicate"):
        run(corpus, tmp_path / "c", "steps=2", names=(NAMES[0], str(other)))
    own = [load_recipe(NAMES[0], {"name": name, "tokenizer.vocab_size": 400 + len(name)}) for name in ("a", "of_b")]
    own[1] = own[1].changed("data", deduplicate=False, window=16)
    message = (
        r"differ in tokenizer.vocab_size and data.deduplicate, .* --tokenizer.vocab_size and --data.deduplicate for"
    )
    with pytest.raises(UsageError, match=f"^a and of_b {message} all"):
        compare._check_one_text(own)
    own = [one.changed("tokenizer", path="vocab.txt").changed("data", deduplicate=True) for one in own]
    compare._check_one_text(own)  # a vocabulary that is loaded has its own size
    with pytest.raises(UsageError, match=r"differ in tokenizer.path, .* or --tokenizer.path for all\.$"):
        compare._check_one_text([own[0], own[1].changed("tokenizer", path=None)])


def test_a_given_corpus_replaces_the_prepared_text_of_a_recipe(corpus: Path, tmp_path: Path) -> None:
    prepared = open_or_prepare(DataSettings(corpus=[str(corpus)]), TOKENIZER, tmp_path / "p", progress=False)
    mine = tmp_path / "mine.yaml"
    mine.write_text(f"base: {NAMES[1]}\nname: mine\ndata: {{prepared: {prepared.folder}}}\n")
    for given in ({"data.corpus": ["other.txt"]}, parse_options(["--data.prepared", "null"])):
        found = contestants([str(mine), NAMES[0]], like=None, overrides=given)
        assert [recipe.data.prepared for recipe in found] == [None, None]
    with pytest.raises(UsageError, match=r"option --tokenizer\.vocab_size: .* was made with 512"):
        contestants([str(mine)], like=None, overrides={"tokenizer.vocab_size": 300})


def test_runs_are_named_by_their_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("mine", "x/seed-0", "y/seed-0", "runs/data", "runs/gpt", ".hidden"):
        Path(folder).mkdir(parents=True)
        save_recipe(load_recipe("quickstart", {"name": "auto"}), Path(folder, "recipe.yaml"))
    Path("own").mkdir()
    Path("own/recipe.yaml").write_text("base: quickstart\nname: auto\n")

    def named(*words: str, noted: tuple[str, ...] = (), like: str | None = None) -> list[str]:
        found = contestants(recipes_of(words), like=like, overrides={}, noted=noted)
        return [recipe.name for recipe in found]

    assert named("mine", "x/seed-0", "y/seed-0", ".hidden") == ["mine", "x-seed-0", "y-seed-0", "hidden"]
    assert named("gpt", "runs/*", "own", like="mine") == ["gpt", "runs-data", "runs-gpt", "auto"]
    for folder in ("p/a/b", "q/b", "p/a-b"):
        Path(folder).mkdir(parents=True)
        save_recipe(load_recipe("quickstart", {"name": "auto"}), Path(folder, "recipe.yaml"))
    assert named("p/a/b", "q/b", "p/a-b") == ["a-b", "q-b", "p-a-b"]
    assert named("mine", "y/seed-0", noted=("auto", "seed-0")) == ["auto", "seed-0"], "resumed as it began"
    for words, noted, message in (
        (("mine", str(tmp_path / "mine")), (), f"mine and {tmp_path / 'mine'} are both named"),
        (("own", "mine"), ("auto", "auto"), "own/recipe.yaml and mine are both named auto: leave one out"),
        (("runs",), (), r"'runs' is no run, since it has no recipe.yaml: .* `unicloze pretrain` writes runs\.$"),
        (("runs/gpd",), (), r"no recipe or run is named 'runs/gpd': .* writes runs; did you mean 'runs/gpt'\?$"),
        (("gtp",), (), r"no recipe or run is named 'gtp': .* did you mean 'gpt'\?$"),
        (("classification",), (), "recipe classification is of a task, but `compare` trains .* --probe TASK TRAIN DEV"),
    ):
        with pytest.raises(UsageError, match=message):
            named(*words, noted=noted)
    save_recipe(load_recipe("classification"), Path("mine/recipe.yaml"))
    for like in (None, "mine"):
        with pytest.raises(UsageError, match=r"^mine is a fine-tuning run, but `compare` trains recipes for pre-"):
            named("gpt", *["mine"] * (like is None), like=like)


def test_a_budget_is_a_unit_and_a_number_above_zero() -> None:
    for text, shown in (("flops=2e14", "flops=2e+14"), ("steps=500", "steps=500"), ("steps=1234567", "steps=1234567")):
        assert str(Budget.parse(text)) == shown
    for text in ("steps=2.5", "steps", "steps=0", "steps=-1", "epochs=3", "flops=much", "=3", "time=inf"):
        with pytest.raises(UsageError, match="or one of flops, steps, time, tokens and a number above 0"):
            Budget.parse(text)


def test_a_loss_that_overflows_is_an_infinite_perplexity() -> None:
    known = {"nats": {"ae": 720.0, "par": None}, "bits_per_byte": None, "scores": {}, "probes": {}}
    found = runs.scores_of(known, History(run=Path(), start={}), [], [])
    assert (found["ae"], found["par"]) == (math.inf, None)


@pytest.mark.parametrize(("names", "budget", "more", "message"), [
    ((NAMES[0], NAMES[0]), "steps=2", {}, "are both named"),
    (NAMES[:1], "steps=2", {"data.heldout_share": 0.0}, "no text is held out to measure on"),
    (NAMES[:1], "tokens=3", {}, r"a step costs .* tokens, more than the budget tokens=3 allows"),
    (NAMES, "steps=2", {"name": "x"}, "--name: each recipe keeps its own"),
    *((NAMES, "steps=2", {key: 3}, f"--{key}: the comparison sets this") for key in
      ("training.steps", "training.seed", "data.prepared")),
])  # fmt: skip
def test_what_cannot_be_compared_is_refused(
    names: Any, budget: str, more: dict[str, Any], message: str, corpus: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        run(corpus, tmp_path / "c", budget, names=names, overrides=more)


# Several processes work on one comparison: each does some runs, and that of a killed one is done again.


def three(folder: Path) -> list[Job]:
    return [Job(None, 0, folder / f"run-{number}", f"run {number}") for number in range(3)]  # type: ignore[arg-type]


def test_a_run_of_another_process_is_waited_for_and_results_stay_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run-1").mkdir()
    done: list[str] = []
    said: list[str] = []

    def do(job: Job) -> str:
        done.append(job.run.name)
        with pytest.raises(UniclozeError, match="is in use by process"):
            hold(job.run / "job.lock", job.run, "no").__enter__()
        return job.run.name.upper()

    other = hold(tmp_path / "run-1" / "job.lock", tmp_path / "run-1", "", keep=True)
    other.__enter__()
    monkeypatch.setattr(compare.time, "sleep", lambda _: other.__exit__(None, None, None))
    assert do_all(three(tmp_path), do, said.append) == ["RUN-0", "RUN-1", "RUN-2"]
    assert done == ["run-0", "run-2", "run-1"]
    assert said[:2] == ["run 0", "run 2"] and said[-1] == "run 1"
    assert said[2].startswith(f"{tmp_path / 'run-1'} is in use by process {os.getpid()} on ")
    assert said[2].endswith(": waiting for it")


def test_an_error_in_a_run_is_raised_and_frees_it(tmp_path: Path) -> None:
    def fail(_: Job) -> None:
        with hold(tmp_path / "lock", tmp_path, "stop it"), hold(tmp_path / "lock", tmp_path, "stop it"):
            pass

    with pytest.raises(UniclozeError, match="stop it"):
        do_all(three(tmp_path), fail, lambda _: None)
    with hold(tmp_path / "run-0" / "job.lock", tmp_path, ""):
        pass


def wait_until(happened: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(2400):
        if happened():
            return
        pause.wait(0.05)
    raise AssertionError("the other process did nothing within two minutes")


@pytest.mark.whole
@pytest.mark.parametrize("killed", [False, True])
def test_a_second_command_does_runs_and_one_that_is_killed_is_replaced(
    corpus: Path, tmp_path: Path, killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, settings = (NAMES[0], NAMES[2]), overrides(corpus, **{"training.threads": 1, "training.save_every": 1})
    given: Any = {"recipes": names, "budget": "steps=6", "seeds": 1, "quiet": True, "overrides": settings}
    alone = verbs.compare(**given, out=tmp_path / "alone")
    sent = json.dumps({**given, "out": str(tmp_path / "c")})
    called = "import json, sys; from unicloze import verbs; verbs.compare(**json.loads(sys.argv[1]))"
    other = subprocess.Popen([sys.executable, "-c", called, sent], stdout=subprocess.DEVNULL)

    def watched(todo: list[Job], *others: Any) -> Any:
        begun, file = (todo[:1], "checkpoints") if killed else (todo, "scores.json")
        wait_until(lambda: all((job.run / file).exists() for job in begun))
        if killed:
            other.kill()
            other.wait()
        return do_all(todo, *others)

    monkeypatch.setattr(compare, "do_all", watched)
    try:
        wait_until((tmp_path / "c" / "comparison.json").is_file)
        both = verbs.compare(**given, out=tmp_path / "c")
        scores = [[(row.name, row.scores, row.text_tokens) for row in each.rows] for each in (both, alone)]
        assert scores[0] == scores[1]
    finally:
        other.kill()
        other.wait()
    ledgers = [(tmp_path / "c" / name / "seed-0" / "ledger.jsonl").read_text() for name in names]
    starts = [ledger.count('"event": "start"') for ledger in ledgers]
    assert starts[1] == 1 and starts[0] in ((1, 2) if killed else (1,))


# The table and the page


def result(name: str, **more: Any) -> ContestantResult:
    """A row of one step of one token, without scores."""
    usual = {"objective": "b", "network": "n", "parameters": 1, "steps": 1, "text_tokens": 1, "flops": 1, "seconds": 1}
    return ContestantResult(**{"name": name, "scores": {}, **usual, **more})


def table_of(*rows: ContestantResult, out: Path = Path(), **more: Any) -> Comparison:
    return Comparison(out=out, budget="steps=1", seeds=1, windows=1, window=2, rows=rows, **more)


def test_the_spread_is_the_sample_standard_deviation() -> None:
    assert OverSeeds.of([1.0, 3.0]) == OverSeeds(mean=2.0, deviation=pytest.approx(math.sqrt(2)))
    assert OverSeeds.of([5.0]).deviation is None
    assert OverSeeds.of([5.0, math.inf]).deviation is None, "a perplexity may overflow"
    none = {"ae": None, "par": None, "words_both": None}
    rows = (
        result("a", scores={**none, "words_both": OverSeeds.of([20.0])}),
        result("c", scores={**none, "ae": OverSeeds.of([9.0])}),
    )
    counted = {"counts": {"ae": {"unigram": 3.0, "trigram": 2.0}}, "counted_words": {"words_both": 25.0}}
    table = as_markdown(table_of(*rows, **counted))
    assert "| a | b | n | - | 20.0 | 1 | 1 | 1 | 1.00e+00 | 1 |" in table  # no recipe defines PAR
    assert "| c | b | n | 9.0 | - | 1 | 1 | 1 | 1.00e+00 | 1 |" in table
    assert "on the same predictions: AE perplexity 2.0 and 25.0 % of the content words in the top 5." in table


def test_a_table_names_who_does_not_beat_counting() -> None:
    def row(name: str, **perplexities: float) -> ContestantResult:
        scores = {key: OverSeeds.of([perplexities[key]]) if key in perplexities else None for key in runs.MEASURES}
        figures = {
            key: Figure(
                target="ae", counted_nats=100 * math.log(value), counted_weight=100,
                counted_squares=100 * (math.log(value) ** 2 + 0.25),
            )
            for key, value in perplexities.items()
        }  # fmt: skip
        return result(name, scores=scores, figures=figures)

    rows = (
        row("level", ae=101.0),
        row("bad", ae=440.0),
        row("fair", ae=500.0, par=200.0),
        row("good", causal=90.0),
        row("other"),
    )
    counts = {key: {"unigram": 390.0, "trigram": 100.0} for key in runs.MEASURES}
    table = as_markdown(table_of(*rows, counts=counts))
    assert "AE perplexity 100.0, PAR perplexity 100.0 and causal perplexity 100.0." in table
    assert "No better than counting words: bad. No better than a Kneser-Ney trigram: fair." in table
    assert "better than a Kneser-Ney trigram: fair, good" not in table and "other." not in table


def test_the_page_has_one_panel_of_curves_for_each_target(tmp_path: Path) -> None:
    losses = {
        "first": [{"ae": 6.0, "par": 5.5}, {"ae": 4.0, "par": 4.5}],
        "second": [{"bidirectional.ae": 5.0, "left-to-right.ae": 6.0}],
    }
    for name, measured in losses.items():
        events = [event("evaluate", step, loss=loss) for step, loss in enumerate(measured, 1)]
        make_run(tmp_path / name / "seed-0", [start(), *events])
    rows = [result(name, steps=2, scores={"ae": None}) for name in losses]
    shown = Page(page(table_of(*rows, out=tmp_path)))
    panels = [text for text in shown.texts if text.startswith("Held-out loss")]
    assert panels == ["Held-out loss, ae, nats per prediction", "Held-out loss, par, nats per prediction"]
    ae = " ".join(" ".join(shown.texts[shown.texts.index(panels[0]) : shown.texts.index(panels[1])]).split())
    for expected in ("first second, bidirectional second, left-to-right", "second, left-to-right, FLOPs 0.5: 6"):
        assert expected in ae
    assert ae.endswith(" 6 5 4"), "each with its last value"


def test_the_page_marks_the_best_and_those_within_its_spread(tmp_path: Path) -> None:
    figures = {"a": (10.0, 1.0), "b": (11.5, 0.6), "c": (13.0, 0.5)}
    means = {"d": None, **{name: OverSeeds(mean=mean, deviation=spread) for name, (mean, spread) in figures.items()}}
    rows = [
        result(name, scores={"words_both": OverSeeds.of([-3.0 if name == "a" else 0.0]), "ae": spread})
        for name, spread in means.items()
    ]
    comparison = table_of(*rows, out=tmp_path)
    for row in rows:
        make_run(tmp_path / row.name / "seed-0", [start()])
    column = Column(key="ae", title="AE", decimals=1, higher_is_better=False)
    assert ranked(comparison, column) == {1: "best", 2: "near"}
    assert ranked(comparison, dataclasses.replace(column, higher_is_better=True)) == {3: "best"}
    words = Page(page(comparison)).words
    assert "a b n -3.0 \u2605 10.0 \u00b1 1.0 1 1" in words and "b b n \u2605 0.0 \u2248 11.5 \u00b1 0.6 1 1" in words
    assert page(comparison).count("width:0.0%") == 4, "scores below zero have no bar"
