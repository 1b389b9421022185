"""Every benchmark runs at toy size and writes the results it promises; the figures mean nothing."""

from __future__ import annotations

import argparse
import gzip
import importlib
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from string import ascii_lowercase, digits
from typing import Any

import pytest

import interop_toys
from corpora import ADJECTIVES, NOUNS, VERBS, write_corpus
from qa_toys import small_model
from test_blimp import write_set
from unicloze.recipes import load_recipe, recipe_names, toy_overrides
from unicloze.verbs.pretraining import _of_whole

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
SMALL_TAGGER = "--hidden 8 --cells 8 --embedding 8 --vocabulary 200 --finetuning.epochs 1"

TOYS: dict[str, tuple[str, Sequence[str]]] = {
    "against": ("{repository} {repository} --toy --limit 100", ["help"]),
    "busy": ("--toy --loops 0 1 --what fill", ["seconds", "share", "alone"]),
    "cross_view": (f"--train {{tags}} --labelled 8 --seeds 1 {SMALL_TAGGER}", ["gain", "mean", "seeds"]),
    "decode": ("--toy --only SDPA BART re-projecting", ["results", "ratios"]),
    "elmo_tags": (
        "--text {books} --train {tags} --out {out} --steps 2 --batch-size 4 --vocabulary 200 --cells 8 --sentences 12 "
        "--test-sentences 4 --epochs 1 --seeds 1 --quiet",
        ["table", "pre-training", "cpu seconds of taggers"],
    ),
    "embed": ("--model {bert} --toy", ["short", "long", "precision"]),
    "finetune": (
        "--task glue-sst-2 --model {bert} --train {sst} --test {sst} --toy --task.max_length 16 --task.pooling first "
        "--finetuning.epochs 1 --training.learning_rate 1e-3",
        ["accuracy", "times faster"],
    ),
    "long_rows": ("--books {books} --toy", ["loss, last tenth", "peak memory, MB"]),
    "lstm_step": ("--toy", ["processor seconds", "threads"]),
    "objectives": ("--toy", ["results", "windows"]),
    "prefetch": ("--toy --corpus {corpus}", ["cpu", "device", "rows_ms"]),
    "prepare": ("--corpus {corpus} --rounds 1 --out {json}", ["encode", "prepare"]),
    "pretrain_step": ("--toy", ["windows", "size"]),
    "real_tasks": (
        "questions --model {run} --train {questions} --limit 4 --test-limit 2 --test {questions} --finetuning.epochs 1",
        ["results", "limit"],
    ),
    "scaling": ("--toy", ["wall_ms", "processor_ms", "restart_seconds"]),
    "serve": ("--model {run} --toy", ["throughput", "latency", "endurance"]),
    "sharded_save": ("--toy --corpus {corpus}", ["background", "waits"]),
    "step_costs": ("--toy", ["a", "b", "results"]),
    "trigram_blimp": ("{run}/data {blimp} --out {json}", ["tokens", "sets", "accuracy"]),
    "two_stacks": ("--toy", ["seconds", "threads"]),
}
"""Options of each benchmark that writes JSON, and keys of its results."""
RUNS: dict[str, str] = {
    "auto_choices": "--results {lines}",
    "continue_or_scratch": "--text {books} --init {run} --out {out} --budgets steps=2 --results {lines}",
    "encoder_to_both": (
        "--model {bert} --corpus {books} --out {out} --lines {lines} --toy --glue {glue} --questions {questions} {questions} "
        "--abstracts {abstracts} {abstracts}"
    ),
    "every_system": (
        "--corpus {books} --out {out} --lines {lines} --toy --data.window 32 "
        "--systems electra-base unilm-v1-base cove --tokenizer.vocab_size 400 --model.hidden_size 16"
    ),
    "few_weights": (
        "--model {run} --glue {glue} --tasks sst-2 --systems all lora --out {lines} --records 8 --test-records 4 --epochs 1 "
        "--seeds 1"
    ),
    "hidden_neighbours": "--prepared {run}/data --recipe {run}/recipe.yaml --windows 8 --blanks 40",
    "kept_vectors": "--model {run} --data {shared} --prepared {run}/data --out {out} --lines {lines} --toy",
    "few_labels": "--model {bert} --data {shared} --out {lines} --toy --device cpu",
    "starts": "--results {lines}",
    "loss_against_compute": "--prepared {run}/data --out {out} --flops 5e10 --results {lines}",
    "mixed_tasks": "--model {bert} --glue {glue} --out {lines} --records 8 --test-records 4 --epochs 1 --seeds 1",
    "regret": "--results {lines}",
    "size": "",
    "table_6": (
        "--equal-steps {out}/steps --equal-flops {out}/flops --corpus {books} --glue {glue} --squad {squad} --lines {lines} "
        "--questions {questions} {questions} --toy --tokenizer.vocab_size 200 --model.hidden_size 16 --model.num_layers 1"
    ),
    "ulmfit": (
        "--general {books} --sst {glue}/SST-2 --textbooks {books} --out {out} --lines {lines} --tasks sentiment --steps 2 "
        "--domain-steps 2 --records 8 --test-records 4 --epochs 1 --seeds 1 --cells 8 --batch-size 4 --vocabulary 200"
    ),
    "which_objective": "",
}
"""Options of those that print a table."""
TESTED_ELSEWHERE = {"generated_questions": "test_generated_questions", "supply_chain": "trust/test_locks"}
LIBRARIES = {"frame", "golden_text", "golden_values", "goldens", "json_lines", "short_runs"}
"""Modules of benchmarks, and the check that a change keeps results."""


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Toy models and files, by the name that stands in the options."""
    place = tmp_path_factory.mktemp("material")
    small_model(place)
    characters = ascii_lowercase + digits
    tokens = [*interop_toys.SPECIALS, *characters, *(f"##{character}" for character in characters), ".", ","]
    interop_toys.save("BertModel", place / "bert", vocab_size=len(tokens))
    interop_toys.write_vocabulary(place / "bert", tokens)
    sentences = [
        f"the {ADJECTIVES[i % 10]} {NOUNS[i % 16]} {VERBS[i % 9]} the {NOUNS[(i * 7) % 15]} again" for i in range(60)
    ]
    written = " .\n" + ". ".join(sentences)
    books = [{"text": " ".join(sentences[i:]) + written, "book": f"b{i % 6}", "title": f"t{i}"} for i in range(12)]
    numbered, header = list(enumerate(sentences)), "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
    glue = {
        "SST-2/train.tsv.gz": ["sentence\tlabel", *(f"{text} and so on\t{i % 2}" for i, text in numbered)],
        "STS-B/sts-train.csv.gz": [f"main\tx\ty\t{i}\t{i % 6}.0\t{text}\t{text[4:]}" for i, text in numbered],
        "MRPC/msr_paraphrase_train.tsv.gz": [
            header, *(f"{i % 2}\t{i}\t{i}\t{text}\t{text[4:]}" for i, text in numbered[:8])
        ],
    }  # fmt: skip
    glue["MRPC/msr_paraphrase_test.tsv.gz"] = glue["MRPC/msr_paraphrase_train.tsv.gz"]
    glue |= {"SST-2/test.tsv.gz": glue["SST-2/train.tsv.gz"], "STS-B/sts-dev.csv.gz": glue["STS-B/sts-train.csv.gz"]}
    for name, lines in glue.items():
        (place / "glue" / name).parent.mkdir(parents=True, exist_ok=True)
        (place / "glue" / name).write_bytes(gzip.compress(("\n".join(lines) + "\n").encode()))
    (place / "sst.tsv").write_text("\n".join(glue["SST-2/train.tsv.gz"][:17]) + "\n")
    (place / "books.jsonl.gz").write_bytes(gzip.compress("".join(json.dumps(book) + "\n" for book in books).encode()))
    tags = {word: tag for tag, words in (("NOUN", NOUNS), ("VERB", VERBS), ("ADJ", ADJECTIVES)) for word in words}
    blocks = [
        f"# newdoc id = d{number // 4}\n"
        + "\n".join(f"{at + 1}\t{word}\t_\t{tags.get(word, 'X')}" + "\t_" * 6 for at, word in enumerate(text.split()))
        for number, text in enumerate(sentences)
    ]
    (place / "tags.conllu").write_text("\n\n".join(blocks) + "\n\n")
    record = {"context": sentences[0], "answers": [NOUNS[0]], "question": f"who {VERBS[0]} it ?"}
    (place / "questions.jsonl").write_text((json.dumps(record) + "\n") * 4)
    abstract = {"source": [f"{text} ." for text in sentences[:4]], "target": [f"{sentences[0]} ."]}
    (place / "abstracts.jsonl").write_text((json.dumps(abstract) + "\n") * 4)
    (place / "shared" / "summarization").mkdir(parents=True)
    (place / "shared" / "summarization" / "scitldr-A_dev.jsonl.gz").write_bytes(
        gzip.compress((place / "abstracts.jsonl").read_bytes())
    )
    answers = [{"text": sentences[0], "answer_start": 0}]
    articles = []
    for n in range(5):
        asked = list(enumerate(sentences[: 24 if n < 2 else 3]))
        qas = [{"id": f"q{n}-{i}", "question": text, "answers": answers} for i, text in asked]
        paragraphs = [{"context": sentences[0], "qas": qas[at::3]} for at in range(3)]
        articles.append({"title": f"a{n}", "paragraphs": paragraphs})
    (place / "shared" / "qa").mkdir(parents=True)
    squad = place / "shared" / "qa" / "squad-dev-v1.1.from-explorer.json.gz"
    squad.write_bytes(gzip.compress(json.dumps({"data": articles}).encode()))
    (place / "blimp").mkdir()
    write_set(place / "blimp", [("the cat sees .", "the cat see ."), ("a dog opens .", "a dog open .")], "agreement")
    return {
        "shared": place / "shared", "squad": squad, "abstracts": place / "abstracts.jsonl",
        "run": place / "run", "bert": place / "bert", "glue": place / "glue", "sst": place / "sst.tsv",
        "books": place / "books.jsonl.gz", "tags": place / "tags.conllu", "questions": place / "questions.jsonl",
        "blimp": place / "blimp", "corpus": write_corpus(place / "text"), "repository": BENCHMARKS.parent,
    }  # fmt: skip


def run(name: str, options: str, material: dict[str, Path], place: Path) -> str:
    given = {**material, "out": place / "out", "lines": place / "lines.jsonl", "json": place / "results.json"}
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), *options.format(**given).split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=place)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def keys_of(value: Any) -> set[str]:
    """All keys, at any depth."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return set(value if isinstance(value, dict) else []).union(*map(keys_of, inside))


@pytest.mark.slow
@pytest.mark.parametrize("name", TOYS)
def test_a_toy_run_writes_its_results(name: str, material: dict[str, Path], tmp_path: Path) -> None:
    options, keys = TOYS[name]
    run(name, options if "{json}" in options else f"{options} --json {{json}}", material, tmp_path)
    results = json.loads((tmp_path / "results.json").read_text())
    assert set(keys) <= keys_of(results)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_toy_run_prints_its_table(name: str, material: dict[str, Path], tmp_path: Path) -> None:
    printed = run(name, RUNS[name], material, tmp_path)
    assert printed.strip() or RUNS[name] == "--results {lines}"
    if name == "few_weights":
        assert ["(" in line for line in printed.splitlines()[-2:]] == [False, True], (
            "a system has no difference from itself"
        )
    if "{out}" in RUNS[name] or "{glue}" in RUNS[name]:
        assert all(json.loads(line) for line in (tmp_path / "lines.jsonl").read_text().splitlines())


def test_the_settings_of_goldens_suit_every_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    goldens = importlib.import_module("goldens")
    for name in recipe_names():
        settings = {**goldens.COMMON, **goldens.OWN.get(name, {})}
        load_recipe(name, _of_whole(settings, toy_overrides()))
        assert load_recipe(name, {**toy_overrides(), **settings}).model.num_layers == 3


def test_tables_of_the_pages_are_those_of_the_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `--page` writes: the text that a benchmark makes of its results stands in the page."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    made = [
        (page, *found)
        for page in sorted((BENCHMARKS.parent / "docs").glob("**/*.md"))
        for found in re.findall(
            r"<!-- made by benchmarks/(\w+)\.py -->\n\n(.*?)\n<!-- end -->", page.read_text(), re.DOTALL
        )
    ]
    assert {script for _, script, _ in made} == {
        "continue_or_scratch", "encoder_to_both", "every_system", "few_labels", "kept_vectors", "table_6"
    }  # fmt: skip
    for page, script, text in made:
        assert text == importlib.import_module(script).tables(), f"run benchmarks/{script}.py --page {page}"


def test_every_system_of_a_paper_is_trained_with_its_own_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    module = importlib.import_module("every_system")
    recipes = {name: load_recipe(name) for name in recipe_names() if not name.startswith(module.VARIANTS)}
    assert {system.recipe for system in module.SYSTEMS.values()} == set(recipes)
    given, staged = argparse.Namespace(corpus=["text"], heldout=0.1, settings={}), {}
    for system in module.SYSTEMS.values():
        small, own = module.recipe_of(system, given), recipes[system.recipe]
        assert small.model.hidden_size == 128 and small.objective.targets == own.objective.targets
        kinds = ("kind", "directions", "share_layers", "positions", "norm", "relative_bias", "layer_visibility")
        assert [getattr(small.model, key) for key in kinds] == [getattr(own.model, key) for key in kinds]
        parts = ("memory", "decoder_layers", "generator_size", "embedding_size")
        assert [bool(getattr(small.model, key)) for key in parts] == [bool(getattr(own.model, key)) for key in parts]
        staged[system.recipe] = len(small.training.phases) - 2 * system.causal_first
    assert {name: count for name, count in staged.items() if count} == {"ernie-base": 2, "gpt-3-small": 3}


def test_every_benchmark_is_tried() -> None:
    there = {file.stem for file in BENCHMARKS.glob("*.py")}
    assert there == {*TOYS, *RUNS, *TESTED_ELSEWHERE, *LIBRARIES}
