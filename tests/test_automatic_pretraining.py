"""`--recipe auto`: what is chosen from the text and the budget, and that the user's settings and former choices are kept."""

from __future__ import annotations

import dataclasses
import gzip
import json
import math
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import torch

from conftest import REPOSITORY
from corpora import write_corpus
from interop_toys import save
from unicloze import verbs
from unicloze.errors import UniclozeError, UsageError
from unicloze.example import Batch
from unicloze.interop.read import open_model
from unicloze.pretraining import automatic
from unicloze.pretraining.automatic import (
    CONTINUED,
    MOST_PASSES,
    REACHED,
    SIZES,
    TOKENS_OF_A_WEIGHT,
    choose,
    expectation,
    inner_weights,
    vocabulary_size,
)
from unicloze.pretraining.budget import Budget, Cost, cost_of_a_step, with_steps
from unicloze.pretraining.data import build_sampler
from unicloze.pretraining.plan import plan_run
from unicloze.progress import short
from unicloze.recipes import load_recipe
from unicloze.report.history import History
from unicloze.settings import DataSettings, Recipe
from unicloze.text import sources
from unicloze.text.prepare import open_or_prepare
from unicloze.text.sources import Survey, survey
from unicloze.text.tokenizers import Tokenizer
from unicloze.training.distillation import Teacher
from unicloze.training.loading import build_model
from unicloze.training.loop import Compute
from unicloze.verbs.pretraining import pretrain

QUIET = {"training.threads": 1, "training.evaluate_windows": 4}
SMALL = {"model.hidden_size": 32, "model.num_heads": 2, "model.intermediate_size": 64}


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    return str(write_corpus(tmp_path / "texts", documents=400))


@pytest.mark.parametrize(
    ("characters", "size"), [(10, 2_048), (1_400_000, 3_072), (10_000_000, 8_192), (10**9, 16_384), (None, 16_384)]
)
def test_the_vocabulary_grows_with_the_text(characters: int | None, size: int) -> None:
    assert vocabulary_size(Survey(characters, spaced=True)) == size


@pytest.mark.parametrize(("text", "spaced"), [
    ("Kissa istuu ikkunalla ja katsoo ulos. ", True),
    ("Кошка сидит на окне и смотрит на улицу. ", True),
    ("고양이가 창가에 앉아 밖을 내다본다. ", True),
    ("The word 猫 (neko) means a cat, and 窓 (mado) means a window. ", True),
    ("猫は窓辺に座って外を見ている。", False),
    ("Calc の [Format] - [Cells] を選択\nWriter の Sheet1 A1 に OK をクリック\nLibreOffice Base SQL\n", False),
    ("猫坐在窗边 , 看着外面 。 ", False),
    ("แมวนั่งอยู่ที่หน้าต่าง และ มองออกไป ข้างนอก ", False),
    ("GATTACA" * 20, False),
    ("1 + 1 = 2, ", True),
])  # fmt: skip
def test_a_survey_counts_characters_and_finds_spaces(tmp_path: Path, text: str, spaced: bool) -> None:
    text *= 20
    (tmp_path / "a.txt").write_text(text)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(json.dumps({"text": text}).encode()))
    found = survey(DataSettings(corpus=[str(tmp_path)]))
    assert found == Survey(2 * len(text), spaced=spaced, characters=len({*text} - {*" \n"}))


@pytest.mark.parametrize(("first", "suffix", "escaped"), [
    ("a", ".parquet", False), ("\u0430", ".jsonl", True), ("あ", ".jsonl", False), ("あ", ".jsonl.gz", False),
    ("あ", ".jsonl.zst", False),
])  # fmt: skip
def test_a_survey_extrapolates_large_files(tmp_path: Path, first: str, suffix: str, escaped: bool) -> None:
    rng = np.random.default_rng(0)
    letters = [chr(ord(first) + letter) for letter in range(26)]
    texts = ["".join(rng.choice([*letters, " "], 1_000)) for _ in range(400)]
    file, lines = tmp_path / f"texts{suffix}", (json.dumps({"text": one}, ensure_ascii=escaped) for one in texts)
    if suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.table({"text": texts}), file)
    else:
        with pyarrow.output_stream(str(file)) as stream:
            stream.write("\n".join(lines).encode())
    assert survey(DataSettings(corpus=[str(file)])).size == pytest.approx(400_000, rel=0.02)


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".parquet"])
def test_a_survey_counts_the_text_alone(tmp_path: Path, suffix: str) -> None:
    rng = np.random.default_rng(0)
    records = [{"text": "".join(rng.choice(list("abcdefgh "), 20)), "other": "".join(rng.choice(list("abcd"), 70))}
               for _ in range(20_000)]  # fmt: skip
    file = tmp_path / f"records{suffix}"
    if suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), file)
    else:
        with pyarrow.output_stream(str(file)) as stream:
            stream.write("".join(json.dumps(one) + "\n" for one in records).encode())
    assert survey(DataSettings(corpus=[str(file)])).size == pytest.approx(400_000, rel=0.02)


def test_a_survey_reads_each_format_as_it_is_and_documents_apart(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": "Inhaltsverzeichnis"}) + "\n" for _ in range(150)))
    assert survey(DataSettings(corpus=[str(tmp_path)])) == Survey(150 * 18, spaced=True, characters=13)
    (tmp_path / "b.txt").write_text("\u0430\u0431 \u0432\u0433\u0434.\n" * 40_000)
    assert survey(DataSettings(corpus=[str(tmp_path)])).size == pytest.approx(323_150, rel=0.05)


def test_text_of_many_characters_has_no_word_pieces(tmp_path: Path) -> None:
    """As of Korean syllables, which would be most of a small vocabulary, or unknown."""
    draw = random.Random(0)
    words = ["".join(draw.choices([chr(0xAC00 + 7 * number) for number in range(700)], k=3)) for _ in range(8_000)]
    (tmp_path / "a.txt").write_text(" ".join(words), encoding="utf-8")
    chosen = automatic._tokenizer(load_recipe("auto", {"data.corpus": [str(tmp_path)]}), {}, Budget("steps", 1), [])
    assert (chosen["tokenizer.kind"], chosen["tokenizer.vocab_size"]) == ("bpe", 2048)


def test_a_survey_reads_datasets_and_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unspaced = "\u732b\u306f\u7a93\u8fba\u306b\u5ea7\u308b\u3002"
    with monkeypatch.context() as patch:
        patch.setattr(sources, "beginning", lambda *_: [unspaced])
        assert survey(DataSettings(corpus=["hf:nobody/nothing"])) == Survey(None, spaced=False, characters=8)
    for name, text in (("a", "Some words. " * 20_000), ("b", unspaced * 30_000), ("c", unspaced * 30_000)):
        (tmp_path / f"{name}.txt").write_text(text, encoding="utf-8")
    assert not survey(DataSettings(corpus=[str(tmp_path)])).spaced


def test_a_budget_is_a_duration_or_an_amount_and_a_cost_divides_it() -> None:
    for text, seconds in (("30min", 1800), ("1.5h", 5400), ("45s", 45)):
        assert Budget.parse(text) == Budget("time", seconds)
    cost, recipe = Cost(flops=10.0, tokens=4.0, seconds=0.5), load_recipe("quickstart")
    for text, steps in (("100s", 200), ("flops=1000", 100), ("tokens=400", 100), ("steps=7", 7)):
        assert with_steps(recipe, Budget.parse(text), cost).training.steps == steps


def test_the_size_is_the_largest_that_reads_enough_text(corpus: str, tmp_path: Path) -> None:
    """400 documents repeat within the budget, so the passes limit the steps, and dropout is on."""
    choice = choose({"data.corpus": corpus, **QUIET}, Budget.parse("tokens=1e9"), tmp_path / "run", progress=False)
    recipe = load_recipe("auto", {"data.corpus": corpus, **choice.settings})
    assert (recipe.model.num_layers, recipe.model.hidden_size) == (2, 128)
    assert recipe.model.dropout == 0.1 and recipe.training.steps < 1_000
    for said in (
        f"{MOST_PASSES} passes over the text are enough",
        "advice: this is little text",
        "times the text",
        "expect: ",
    ):
        assert any(said in line for line in choice.reasons), said
    assert not any("times the budget" in line for line in choice.reasons), "it would change nothing"


def test_a_step_that_does_not_fit_is_divided(corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Into fewer rows, then into one leaf too, whose gradients are held once; at least one row is left."""

    def chosen(memory: float) -> tuple[Any, Any]:
        monkeypatch.setattr("unicloze.pretraining.plan.memory_of", lambda _: memory)
        settings = choose({"data.corpus": corpus, **QUIET}, Budget("steps", 4), tmp_path, progress=False).settings
        return settings.get("training.micro_batch_size"), settings.get("training.leaves")

    assert [chosen(memory) for memory in (1e8, 9.6e7, 1e6)] == [(4, None), (4, 1), (1, 1)]


@pytest.mark.parametrize(("spent", "said"), [
    (100, "budget time=60 is spent before the first step, by preparing the text"),
    (30, "a step costs 50 seconds, more than the budget .* took the rest of 60 s; the text is prepared now"),
])  # fmt: skip
def test_a_budget_that_is_spent_is_refused(
    corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spent: float, said: str
) -> None:
    monkeypatch.setattr("unicloze.pretraining.automatic.cost_of_a_step", lambda *_, **__: Cost(1.0, 1.0, 50.0))
    with pytest.raises(UsageError, match=said):
        choose({"data.corpus": corpus, **QUIET}, Budget("time", 60), tmp_path, began=time.monotonic() - spent)


def test_given_steps_are_all_planned_for_whatever_the_passes(corpus: str, tmp_path: Path) -> None:
    given = {"data.corpus": corpus, "training.steps": 2_000, **QUIET}
    choice = choose(given, Budget("steps", 2_000), tmp_path / "run", progress=False)
    assert choice.settings["training.evaluate_every"] == 250 and choice.settings["training.warmup_steps"] == 100
    assert any(line.startswith("steps: 2,000 of 32 windows of 64 tokens within") for line in choice.reasons)


def test_nothing_is_expected_of_another_objective_or_start(corpus: str, tmp_path: Path) -> None:
    random = {"training.start": "random"}
    choice = choose({"data.corpus": corpus, **QUIET, **random}, Budget("steps", 3), tmp_path, progress=False)
    assert choice.reasons[-1].startswith("objective: left to right")
    assert any("embeddings: the smallest, though it reads only 0.0" in line for line in choice.reasons)
    other = {"objective.name": "masked", "objective.targets": ["ae"], "objective.mixture": [], "training.phases": []}
    choice = choose({"data.corpus": corpus, **QUIET, **other}, Budget("steps", 3), tmp_path, progress=False)
    assert not any(line.startswith("expect: ") for line in choice.reasons)


def test_passes_are_those_over_the_source_read_most(corpus: str, tmp_path: Path) -> None:
    """Weights of 20 and 0.05: the steps end once the first is read 16 times, which is counted window by window."""
    other = str(write_corpus(tmp_path / "other", documents=400, seed=1))
    sources = {"data.corpus": [corpus, other], "data.weights": [20, 0.05]}
    given = {**sources, "data.window": 32, "training.batch_size": 16, **QUIET}
    choice = choose(given, Budget.parse("tokens=1e9"), tmp_path / "run", progress=False)
    recipe = load_recipe("auto", {**choice.settings, **given})
    prepared = open_or_prepare(recipe.data, recipe.tokenizer, tmp_path / "run" / "data", progress=False)
    sampler = build_sampler(recipe, prepared)
    windows = sampler.read(0, recipe.training.steps * 16)
    passes = np.bincount(windows.source, minlength=2) / sampler.source_windows
    assert passes[0] == pytest.approx(MOST_PASSES, rel=0.03) and passes[1] < 1
    assert recipe.model.dropout == 0.1
    assert any(f"{passes[0]:.1f} passes over the source read most" in line for line in choice.reasons)


def test_a_teacher_costs_what_it_computes(corpus: str, tmp_path: Path) -> None:
    """A teacher as large as the student costs a third of it, by count; timed steps and `--plan` ask it for soft labels."""
    given = {
        "data.corpus": corpus, "tokenizer.vocab_size": 300, "data.window": 32, "training.batch_size": 16, **SMALL,
        "model.num_layers": 2, **QUIET, "training.threads": 3,
    }  # fmt: skip
    pretrain("auto", out=tmp_path / "teacher", quiet=True, overrides=given, budget="steps=3")
    alone = load_recipe(tmp_path / "teacher" / "recipe.yaml")
    distillation = dataclasses.replace(alone.distillation, teacher=str(tmp_path / "teacher"))
    taught = dataclasses.replace(alone, distillation=distillation)
    prepared = open_or_prepare(alone.data, alone.tokenizer, tmp_path / "teacher" / "data", progress=False)
    asked: list[str] = []
    threads: set[int] = set()
    call = Teacher.__call__

    def noted(self: Teacher, batch: Batch, compute: Compute) -> Batch:
        asked.extend(batch.targets)
        threads.add(torch.get_num_threads())
        return call(self, batch, compute)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Teacher, "__call__", noted)
        costs = [cost_of_a_step(recipe, prepared, tmp_path, timed=True) for recipe in (alone, taught)]
        assert asked
        asked.clear()
        plans = [plan_run(recipe, prepared.tokenizer.vocabulary.size) for recipe in (alone, taught)]
        assert asked
    assert threads == {3}, "steps are timed as they are trained"
    ratio = costs[1].flops / costs[0].flops
    assert 1.2 < ratio < 1 + 1 / 3 + 1e-9, "the teacher predicts in the steps of its own targets"
    assert plans[1].memory["buffers"] >= plans[0].memory["buffers"] + 4 * plans[0].parameters


@pytest.mark.slow
def test_more_budget_buys_a_larger_model(corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unicloze.pretraining.automatic.MOST_PASSES", 10**9)
    found = []
    for tokens in (10**6, 7 * 10**6, 2 * 10**7):
        given = {"data.corpus": corpus, **QUIET}
        choice = choose(given, Budget("tokens", tokens), tmp_path / "run", progress=False)
        recipe = load_recipe("auto", {**given, **choice.settings})
        found.append(recipe.model.hidden_size)
        assert f"; {short(tokens)} tokens, " in " ".join(choice.reasons)
    assert found == [size["model.hidden_size"] for size in SIZES[:3]]


def test_weights_count_without_the_embeddings(corpus: str, tmp_path: Path) -> None:
    recipe = load_recipe("quickstart", {"data.corpus": corpus, "tokenizer.vocab_size": 300})
    prepared = open_or_prepare(recipe.data, recipe.tokenizer, tmp_path / "data", progress=False)
    model = build_model(recipe, len(prepared.tokenizer))
    everything = sum(weight.numel() for weight in model.parameters())
    assert inner_weights(recipe, prepared) == everything - len(prepared.tokenizer) * 128
    assert TOKENS_OF_A_WEIGHT * inner_weights(recipe, prepared) < 10**7


@pytest.mark.whole
def test_own_settings_are_kept_and_the_same_command_resumes(
    corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"data.corpus": corpus, **SMALL, **QUIET}
    out = tmp_path / "run"
    first = pretrain("auto", out=out, quiet=True, overrides=given, budget="steps=4")
    recipe = load_recipe(out / "recipe.yaml")
    assert first.step == 4 and recipe.name == "auto"
    assert (recipe.model.hidden_size, recipe.tokenizer.lowercase, recipe.data.window) == (32, False, 64)
    with pytest.warns(UserWarning, match="already trained to step 4"):
        again = pretrain("auto", out=out, quiet=True, overrides=given, budget="2h")
    assert again.step == 4 and load_recipe(out / "recipe.yaml") == recipe
    assert f"{out} resumes with the settings chosen before; --budget no longer changes them" in capsys.readouterr().err


def test_a_start_keeps_its_size_and_tokenizer_and_half_its_rates(corpus: str, tmp_path: Path) -> None:
    """The run is pseudo-masked throughout, and its first loss is the model's, not that of new weights."""
    first, second = tmp_path / "first", tmp_path / "second"
    given = {"data.corpus": corpus, **QUIET}
    small = {**given, **SMALL, "training.learning_rate": 8e-3, "data.window": 32}
    pretrain("auto", out=first, quiet=True, overrides=small, budget="steps=12")
    with pytest.warns(UserWarning, match="positions 32 to 63 start as copies of the 32"):
        pretrain("auto", out=second, quiet=True, overrides=given, init=first, budget="tokens=8000")
    before, after = load_recipe(first / "recipe.yaml"), load_recipe(second / "recipe.yaml")
    assert (after.model.hidden_size, after.data.window, after.training.batch_size) == (32, 32, 64)
    assert Tokenizer.load(second).fingerprint == Tokenizer.load(first).fingerprint
    assert (after.training.learning_rate, after.training.muon_learning_rate) == (4e-3, 3e-3)
    assert (before.training.learning_rate, before.training.muon_learning_rate) == (8e-3, 6e-3)
    assert after.training.phases == [] and after.training.steps < 12
    start, end = (History.read(run).evaluations for run in (second, first))
    assert min(start.values(), key=lambda event: event["step"])["loss"]["par"] < 1.1 * end[12]["loss"]["par"]
    with pytest.warns(UserWarning, match="already trained to step 5"):
        pretrain("auto", out=second, quiet=True, overrides=given, init=first, budget="tokens=8000")
    assert load_recipe(second / "recipe.yaml") == after


def test_a_start_may_get_a_new_tokenizer_or_be_of_another_library(corpus: str, tmp_path: Path) -> None:
    def chosen(kind: str, *, new_tokenizer: bool = False, **more: Any) -> tuple[dict[str, Any], str, Recipe]:
        start = tmp_path / kind
        if not start.exists():
            save(kind, start)
        given = {"data.corpus": corpus, "training.initialize_from": str(start), **QUIET, **more}
        budget, out = Budget("steps", 3), tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
        choice = choose(given, budget, out, start=open_model(start), new_tokenizer=new_tokenizer, progress=False)
        return choice.settings, "\n".join(choice.reasons), load_recipe("auto", {**given, **choice.settings})

    _, reasons, recipe = chosen("BertForMaskedLM")
    assert f"started from {tmp_path / 'BertForMaskedLM'}" in reasons
    assert recipe.tokenizer.path and (recipe.training.optimizer, recipe.training.learning_rate) == ("adamw", 1e-4)
    assert recipe.training.batch_size * recipe.data.window <= 2_048 and recipe.training.head_learning_rate is None
    verbs.import_checkpoint(tmp_path / "BertForMaskedLM", tmp_path / "imported")
    _, _, recipe = chosen("imported")
    assert (recipe.training.optimizer, recipe.training.learning_rate) == ("adamw", 1e-4), "it was not trained here"
    _, reasons, recipe = chosen("BertModel")
    assert (recipe.training.learning_rate, recipe.training.head_learning_rate) == (2e-4, 5e-3)
    assert "rate: 0.0002 (adamw), 0.005 for the new head\n" in reasons
    settings, _, recipe = chosen("BertForMaskedLM", **{"training.optimizer": "muon", "data.window": 32})
    assert (settings["training.learning_rate"], settings["training.muon_learning_rate"]) == (1e-4, None)
    assert recipe.training.batch_size == 64
    settings, _, recipe = chosen("BertForMaskedLM", new_tokenizer=True)
    assert "tokenizer.path" not in settings and recipe.tokenizer.vocab_size >= 2_048


def test_an_encoder_decoder_is_no_start(corpus: str, tmp_path: Path) -> None:
    pretrain("t5-base", out=tmp_path / "t5", toy=True, quiet=True, overrides={"data.corpus": corpus})
    with pytest.raises(UsageError, match="is an encoder-decoder, and recipe auto trains a single stack"):
        pretrain("auto", out=tmp_path / "run", init=tmp_path / "t5", overrides={"data.corpus": corpus}, quiet=True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"recipe": "quickstart", "budget": "5min"}, "only --recipe auto chooses the steps by a budget"),
        ({"recipe": "auto", "budget": "5min", "toy": True}, "a toy run has two steps: leave out --budget or --toy"),
        ({"recipe": "auto", "init": "nowhere"}, "there is no model at nowhere"),
        ({"recipe": "auto", "new_tokenizer": True}, "--new-tokenizer has no effect without --init"),
        (
            {"recipe": "auto", "budget": "5min", "overrides": {"data.corpus": "x", "training.steps": 3}},
            "both set the steps",
        ),
        ({"recipe": "auto", "overrides": {}}, "--recipe auto needs your text: give --data.corpus"),
        ({"recipe": "auto", "overrides": {"data.corpus": "x", "training.start": "count"}}, "did you mean 'counts'"),
        ({"recipe": "auto", "budget": "soon"}, "budget is 'soon': give a time, as in 30min"),
    ],
)
def test_what_auto_cannot_do_is_refused(arguments: dict[str, object], said: str, corpus: str, tmp_path: Path) -> None:
    overrides = arguments.pop("overrides", {"data.corpus": corpus})
    with pytest.raises(UniclozeError, match=said):
        pretrain(out=tmp_path / "run", overrides=overrides, **arguments)  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


def test_auto_is_not_chosen_by_several_processes(corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="start the run without torchrun"):
        pretrain("auto", out=tmp_path / "run", overrides={"data.corpus": corpus})


def test_what_auto_expects_is_what_committed_runs_reached() -> None:
    """Above 3 M tokens, runs from random starts count too."""
    best: dict[tuple[str, str, int], tuple[float, float]] = {}
    continued = []
    for name in ("auto_choices", "loss_against_compute", "continue_or_scratch"):
        file = REPOSITORY / "benchmarks" / "results" / f"{name}.jsonl"
        for run in map(json.loads, file.read_text(encoding="utf-8").splitlines()):
            if run.get("start", "scratch") not in ("scratch", "counts", "random"):
                continued.append((run["text_tokens"], round(run["perplexity"]["par"] / run["trigram"]["par"], 2)))
            counted = run.get("start") in ("counts", "scratch") or ("start" not in run and run["text_tokens"] > 3e6)
            if counted and "trigram" in run and run.get("share", "a third") == "a third":
                ratio = round(run["perplexity"]["par"] / run["trigram"]["par"], 2)
                key = run["text"], str(run.get("flops", run.get("budget"))), run.get("threads", 1)
                best[key] = min(best.get(key, (0.0, math.inf)), (run["text_tokens"], ratio), key=lambda each: each[1])
                words = {"top_5": 0.0, **(run.get("content_words") or {})}
                level = 2.4  # a standard error of 400 words
                assert words["top_5"] < run["trigram"].get("top_5", words.get("counts_top_5")) + level, "auto says so"
    assert sorted(best.values()) == [*REACHED] and sorted(continued) == [*CONTINUED]
    assert expectation(2e6) == [
        "expect: 0.8 to 1.3 times the perplexity of a Kneser-Ney trigram of the text, and no more single words guessed, as 7 "
        "runs on record that read about as much",
        "advice: all runs on record that read 4.3M tokens or more came level with it: give 2.1 times the budget",
    ]
    assert expectation(2e5)[0].startswith("expect: 3.7 times the perplexity of a Kneser-Ney trigram")
    assert expectation(1e7)[0].startswith("expect: 0.6 to 1.0 times") and len(expectation(1e7)) == 1
    assert expectation(1e5, continued=True) == [
        "expect: 0.9 to 2.7 times the perplexity of a Kneser-Ney trigram of the text, as 4 runs on record from a trained "
        "model that read about as much",
        "advice: all runs on record that read 415k tokens or more came level with it: give 4 times the budget",
    ]
    for unknown in (1e3, 1e9):
        first, *advice = expectation(unknown)
        assert first == f"expect: unknown, no run on record read about {short(unknown)} tokens"
        assert bool(advice) == (unknown == 1e3)
    assert ": give more text, or start from" in expectation(1e3, "text")[1]


@pytest.mark.parametrize(
    ("budget", "said"),
    [("29min", "in less than half an hour"), ("30min", "after half an hour"), ("steps=3", "ten minutes of one core")],
)
def test_the_start_to_try_follows_the_budget(budget: str, said: str) -> None:
    assert said in automatic._start_to_try(load_recipe("auto", {"training.threads": 2}), Budget.parse(budget))
