"""Recipes: their contents, how they are read, and errors about invalid ones."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from unicloze import cli
from unicloze.errors import UniclozeError, UsageError
from unicloze.evaluation.metrics.registry import metric
from unicloze.mixtures import phases
from unicloze.objectives import OBJECTIVES
from unicloze.recipes import (
    load_recipe,
    parse_options,
    recipe_names,
    save_recipe,
    task_names,
    validate,
)
from unicloze.recipes.schema import SECTIONS, every_key, keys_of, parser_of
from unicloze.recipes.several import recipes_of
from unicloze.settings import ModelSettings, Recipe


def refusal(source: str | Path, overrides: dict[str, Any] | None = None) -> str:
    with pytest.raises(UsageError) as caught:
        load_recipe(source, overrides)
    assert caught.value.exit_code == 2
    return str(caught.value)


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write_recipe(text: str, name: str = "mine.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write_recipe


# Reading


def test_what_a_file_leaves_out_keeps_its_default(write: Any) -> None:
    recipe = load_recipe(write("training:\n  learning_rate: 1e-4\n"))
    assert recipe.training == dataclasses.replace(Recipe().training, learning_rate=1e-4)
    assert isinstance(recipe.training.learning_rate, float)
    assert recipe.model == ModelSettings()
    assert recipe.name == "mine"


def test_base_is_overridden_value_by_value(write: Any) -> None:
    write("base: quickstart\ntraining:\n  seed: 3\n  steps: 400\n", "first.yaml")
    recipe = load_recipe(write("base: first.yaml\ntraining:\n  seed: 4\n"), {"training.batch_size": 32})
    quickstart = load_recipe("quickstart")
    assert recipe.training == dataclasses.replace(quickstart.training, seed=4, steps=400, batch_size=32)
    assert (recipe.model, recipe.provenance) == (quickstart.model, quickstart.provenance)
    assert recipe.name == "mine"


def test_overrides_may_be_dotted_nested_and_spelled_out() -> None:
    dotted = load_recipe("quickstart", {"training.steps": "400", "model.relative_bias": "false", "data.weights": "[2]"})
    deep = {"training": {"steps": 400}, "model": {"relative_bias": False}, "data": {"weights": [2.0]}}
    assert dotted == load_recipe("quickstart", deep)
    assert (dotted.training.steps, dotted.model.relative_bias, dotted.data.weights) == (400, False, [2.0])


def test_options_become_overrides() -> None:
    line = "--training.steps 400 --training.seed=7 --data.corpus a.txt 2020 --data.corpus b --training.compile"
    options = parse_options([*line.split(), "--training.betas", "0.5", "0.6", "--data.text-field", "body"])
    recipe = load_recipe("quickstart", options)
    assert (recipe.training.steps, recipe.training.seed, recipe.training.compile) == (400, 7, True)
    assert recipe.data.corpus == ["a.txt", "2020", "b"]
    assert recipe.training.betas == (0.5, 0.6)
    assert recipe.data.text_field == "body"
    assert parse_options(["--data.corpus", "[a, b]"]) == {"data.corpus": "[a, b]"}


@pytest.mark.parametrize("name", recipe_names())
def test_saved_recipe_reads_back_the_same(name: str, tmp_path: Path) -> None:
    weighed = load_recipe(name).objective.targets[0]
    recipe = load_recipe(name, {"data.corpus": ["é [x]", "null", "1e-4"], "objective.coefficients": {weighed: 0.5}})
    save_recipe(recipe, tmp_path / "recipe.yaml")
    assert load_recipe(tmp_path / "recipe.yaml") == recipe
    assert set(yaml.safe_load((tmp_path / "recipe.yaml").read_text("utf-8"))) == {"schema", *recipe.to_dict()}


def test_saving_replaces_whole_and_leaves_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "recipe.yaml"
    target.write_text("old")
    save_recipe(load_recipe("quickstart"), target)
    assert load_recipe(target) == load_recipe("quickstart")
    assert list(tmp_path.iterdir()) == [target]
    with pytest.raises(UniclozeError, match=r"gone.*cannot write the recipe"):
        save_recipe(Recipe(), tmp_path / "gone" / "recipe.yaml")


def test_every_key_is_described_and_known_to_the_parser() -> None:
    for name in OBJECTIVES:
        kinds = {**SECTIONS, "objective": OBJECTIVES[name].settings}
        for section, kind in kinds.items():
            defaults = parser_of(kind).get_defaults()
            for key, known in keys_of(section, kind).items():
                assert known.description, key
                assert defaults[key.partition(".")[2]] == known.default


def test_a_setting_of_several_objectives_is_of_one_type() -> None:
    """The command line is read before the objective is known."""
    for name in OBJECTIVES:
        kind = OBJECTIVES[name].settings
        assert kind().name == name and kind.known_targets
        for key, known in keys_of("objective", kind).items():
            found = every_key()[key]
            assert (known.type, known.default) == (found.type, found.default) or key == "objective.name"


# Errors


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("quikstart", "No recipe is named 'quikstart'; did you mean 'quickstart'? `unicloze recipes` lists all."),
        ("zzzz", "No recipe is named 'zzzz'. `unicloze recipes` lists all."),
        ("gone.yaml", "gone.yaml: there is no such file; `unicloze recipes` lists the built-in recipes."),
        ("runs/gone", "runs/gone: there is no such file; `unicloze recipes` lists the built-in recipes."),
    ],
)
def test_unknown_recipe(source: str, message: str) -> None:
    assert refusal(source) == message


def test_directory_is_not_a_recipe(tmp_path: Path) -> None:
    assert refusal(tmp_path).startswith(f"{tmp_path}: this is a directory; name the recipe file in it")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "training:\n  steps: 3\n  stepz: 4\n",
            "line 3: there is no setting 'training.stepz'; did you mean 'training.steps'?",
        ),
        ("lr: 1\n", "line 1: there is no setting 'lr'; did you mean 'training.learning_rate'?"),
        ("training:\n  lr: 1\n", "line 2: there is no setting 'training.lr'; did you mean 'training.learning_rate'?"),
        (
            "tokenizer:\n  kind: Wordpeice\n",
            "line 2: tokenizer.kind is 'Wordpeice'; expected 'wordpiece' or 'bpe'; did you mean 'wordpiece'?",
        ),
        ("trainig:\n  steps: 3\n", "line 1: there is no setting 'trainig'; did you mean 'training'?"),
        ("learning_rate: 1\n", "line 1: there is no setting 'learning_rate'; did you mean 'training.learning_rate'?"),
        ("model:\n  window: 8\n", "line 2: there is no setting 'model.window'; did you mean 'data.window'?"),
        (
            "qqq: 1\n",
            "line 1: there is no setting 'qqq'; "
            "a recipe has name, provenance, data, tokenizer, objective, model, training, distillation, use, task, "
            "generation, decoding, finetuning.",
        ),
        ("training: 3\n", "line 1: training is 3; expected settings such as training.steps."),
        ("data:\n  window: wide\n", "line 2: data.window is 'wide'; expected a whole number."),
        ("data:\n  window: 1.5\n", "line 2: data.window is 1.5; expected a whole number."),
        ("data:\n  window:\n", "line 2: data.window is None; expected a whole number."),
        ("data:\n  corpus: {a: b}\n", "line 2: data.corpus is [{'a': 'b'}]; expected a list, each item text."),
        ("data:\n  segments: 3\n", "line 2: data.segments is 3; expected 1 or 2."),
        ("data:\n  weights: x\n", "line 2: data.weights is ['x']; expected a list, each item a number, or null."),
        ("training:\n  betas: [1]\n", "line 2: training.betas is [1]; expected a list of 2, each item a number."),
        ("training:\n  compile: maybe\n", "line 2: training.compile is 'maybe'; expected true or false, or null."),
        (
            "objective:\n  coefficients: {ae: x}\n",
            "line 2: objective.coefficients is {'ae': 'x'}; expected a mapping, each value a number.",
        ),
        (
            "objective:\n  targets: [ar]\n",
            "line 2: objective.targets is ['ar']; name at least one of 'ae', 'par', 'nsp', 'sop'.",
        ),
        (
            "training:\n  seed: 1\ndata: {}\ntraining: {}\n",
            "line 4: training is given twice (first on line 1); keep one.",
        ),
        (
            "objective:\n  mixture:\n  - {share: 1, label: a}\n  - {share: 1, label: b, share: 2}\n",
            "line 4: this is not valid YAML: duplicate key share; keep one.",
        ),
        (
            "task:\n  fields:\n    text: one\n    text: two\n",
            "line 4: this is not valid YAML: duplicate key text; keep one.",
        ),
        ("a: [1\n", "line 2: this is not valid YAML: expected ',' or ']', but got '<stream end>'."),
        (
            "base: quickstart\nname: 2020-13-45\n",
            "line 2: this is not valid YAML: this is not a valid timestamp; quote it if it is text.",
        ),
        (
            "training:\n  steps: !!int abc\n",
            "line 2: this is not valid YAML: this is not a valid int; quote it if it is text.",
        ),
        (
            "name: !!timestamp soon\n",
            "line 1: this is not valid YAML: this is not a valid timestamp; quote it if it is text.",
        ),
        ("a:\n\tb: 1\n", "line 2: this is not valid YAML: found character '\\t' that cannot start any token."),
        ("base: 3\n", "line 1: base is 3; expected the name of a recipe."),
        (
            "name: x\nbase: unilm\n",
            "line 2: base: No recipe is named 'unilm'; did you mean 'unilmv2-base'? `unicloze recipes` lists all.",
        ),
    ],
)
def test_broken_file_names_its_line(write: Any, text: str, message: str) -> None:
    path = write(text)
    assert refusal(path) == f"{path}, {message}"


@pytest.mark.parametrize("text", ["", "- 1\n", "hello\n", "3\n"])
def test_file_that_is_not_a_mapping(write: Any, text: str) -> None:
    assert "this is not a recipe, which is a mapping with the sections provenance, data," in refusal(write(text))


def test_unreadable_bytes(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(b"name: \xff\n")
    assert refusal(path) == f"{path}: this is not UTF-8 text (byte 6); a recipe is a YAML file."
    path.write_bytes(b"name: \x00\n")
    assert refusal(path) == f"{path}: this is not valid YAML: special characters are not allowed."


def test_base_in_a_cycle(write: Any) -> None:
    write("base: mine.yaml\n", "other.yaml")
    assert "this recipe is its own base; remove one `base:` of" in refusal(write("base: other.yaml\n"))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"training.stepz": 1}, "there is no setting 'training.stepz'; did you mean 'training.steps'?"),
        ({"training": {"stepz": 1}}, "there is no setting 'training.stepz'; did you mean 'training.steps'?"),
        ({"training.steps": "ten"}, "training.steps is 'ten'; expected a whole number."),
        ({"training.steps": 0}, "training.steps is 0; it must be above 0 and finite."),
        ({"training.learning_rate": float("nan")}, "training.learning_rate is nan; it must be above 0 and finite."),
        ({"training.learning_rate": 0}, "training.learning_rate is 0.0; it must be above 0 and finite."),
        ({"training.weight_decay": -1}, "training.weight_decay is -1.0; it must be at least 0 and finite."),
        ({"objective.mask_rate": 1.1}, "objective.mask_rate is 1.1; it must lie between 0 and 1."),
        ({"objective.mask_rate": 0}, "objective.mask_rate is 0.0; nothing would be masked; it must be above 0."),
        ({"model.dropout": 1}, "model.dropout is 1.0; it must be at least 0 and below 1."),
        (
            {"model.num_heads": 3, "model.hidden_size": 64},
            "model.hidden_size is 64; it must be a multiple of model.num_heads, 3.",
        ),
        ({"data.window": 4}, "data.window is 4; 2 segment(s) and their special tokens need 5 or more."),
        ({"data.corpus": []}, "data.corpus is []; name at least one file, folder or glob, or 'python-docs'."),
        (
            {"data.weights": [1, 2]},
            "data.weights is [1.0, 2.0]; give one weight for each of the 1 sources of data.corpus.",
        ),
        (
            {"data.weights": [0]},
            "data.weights is [0.0]; every weight must be above 0; remove the source from data.corpus instead.",
        ),
        ({"data.text_field": ""}, "data.text_field is ''; name the field that holds the text."),
        ({"tokenizer.vocab_size": 7}, "tokenizer.vocab_size is 7; the special tokens and some text need 16 or more."),
        ({"objective.name": "bert"}, "objective.name is 'bert'; known objectives: unilmv2, masked"),
        ({"objective.targets": []}, "objective.targets is []; name at least one of 'ae', 'par', 'nsp', 'sop'."),
        (
            {"objective.targets": ["ae", "ae"]},
            "objective.targets is ['ae', 'ae']; name each target once; objective.coefficients weighs them.",
        ),
        (
            {"objective.random_share": 0.3},
            "objective.random_share is 0.3; its sum with objective.mask_share 0.8 exceeds 1.",
        ),
        (
            {"objective.coefficients": {"nsp": 1}},
            "objective.coefficients is {'nsp': 1.0}; 'nsp' is not one of objective.targets ['ae', 'par'].",
        ),
        ({"model.max_positions": 8}, "model.max_positions is 8; it must be at least data.window, "),
        ({"model.num_segments": 1}, "model.num_segments is 1; it must be at least data.segments, 2."),
        (
            {"model.relative_buckets": 5},
            "model.relative_buckets is 5; it must be even, half for either direction, and from 4 to",
        ),
        ({"objective.masks_in_context": False}, "objective.masks_in_context is False; the target 'ae' is predicted"),
        (
            {"objective.name": "masked", "objective.targets": ["ae"], "objective.segment_ids": [0, 1, 2]},
            "objective.segment_ids is [0, 1, 2]; give one id for both segments, or one",
        ),
        (
            {"objective.name": "masked", "objective.targets": ["ae"], "objective.segment_ids": [4, 5]},
            "objective.segment_ids is [4, 5]; model.num_segments is 2: each id must be below it.",
        ),
        (
            {"training.attention": "flex", "model.attention_dropout": 0.1},
            "training.attention is 'flex'; it needs model.attention_dropout 0",
        ),
        (
            {"training.attention": "flex"},
            "training.attention is 'flex'; with model.relative_bias it needs training.deterministic false",
        ),
        (
            {"training.parallel": "shard"},
            "training.parallel is 'shard'; training.optimizer muon needs whole matrices: set it to adamw or adamax",
        ),
        (
            {"model.positions": "transformer_xl"},
            "model.positions is 'transformer_xl'; it already encodes distances: set model.relative_bias to false.",
        ),
        ({"model.memory": 8}, "model.memory is 8; it needs model.positions transformer_xl and data.order streams."),
        ({"training.decay_steps": 99999}, "training.decay_steps is 99999; after "),
        ({"training.micro_batch_size": 7}, "training.micro_batch_size is 7; it must divide training.batch_size, "),
        (
            {"objective.targets": ["ae", "nsp"], "objective.pairs": "contiguous"},
            "objective.pairs is 'contiguous'; the target 'nsp' needs next_sentence.",
        ),
        (
            {"objective.targets": ["ae", "sop"], "objective.pairs": "next_sentence"},
            "objective.pairs is 'next_sentence'; the target 'sop' needs sentence_order.",
        ),
        (
            {"objective.pairs": "next_sentence", "data.segments": 1},
            "objective.pairs is 'next_sentence'; there is only one segment: set data.segments to 2.",
        ),
        (
            {"objective.pairs": "next_sentence", "data.documents": "joined"},
            "objective.pairs is 'next_sentence'; it needs windows within documents: set data.documents to separate.",
        ),
        ({"objective.static_copies": 0}, "objective.static_copies is 0; it must be at least 1; leave it out to draw"),
        (
            {"data.order": "streams", "objective.pairs": "next_sentence", "objective.mixture": []},
            "data.order is 'streams'; streams need consecutive text: set objective.pairs to",
        ),
        (
            {"data.order": "streams", "data.segments": 1},
            "data.order is 'streams', but a mixture reorders its rows at every step; set objective.mixture to",
        ),
        ({"training.betas": [0.9, 1]}, "training.betas is (0.9, 1.0); both must be at least 0 and below 1."),
        ({"tokenizer.extra_tokens": -3}, "tokenizer.extra_tokens is -3; it must be at least 0 and finite."),
        ({"objective.visibility": "prefix"}, "visibility is not a setting of unilmv2; masked and causal have it."),
        ({"objective.mean_span": 2.0}, "mean_span is not a setting of unilmv2; span_corruption and denoising have it."),
        ({"objective.block_size": 2}, "block_size is not a setting of unilmv2; block_diffusion has it."),
        (
            {
                "objective.name": "masked",
                "objective.targets": ["ae"],
                "objective.visibility": "prefix",
                "data.segments": 1,
            },
            "objective.visibility is 'prefix'; the first segment is the prefix; without a second, set data.segments to 2.",
        ),
        (
            {"training.device": "gpu"},
            "training.device is 'gpu'; known devices: auto, cpu, cuda, cuda:N, xpu, xpu:N, mps.",
        ),
    ],
    ids=str,
)
def test_impossible_override_names_its_option(overrides: dict[str, Any], message: str) -> None:
    said = refusal("quickstart", overrides)
    assert said.startswith("option --")
    assert message in said


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("x", "'x' follows no option; give settings as --section.name VALUE."),
        (
            "--training.stepz 1",
            "option --training.stepz: there is no setting 'training.stepz'; did you mean 'training.steps'?",
        ),
        ("--training.steps", "option --training.steps: it needs a value, a whole number."),
        ("--training.steps 1 2", "option --training.steps: it takes one value; what is '2'?"),
    ],
)
def test_broken_options(line: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_options(line.split())
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("name", "objective"),
    [
        ("mpnet-base", {"objective.visibility": "left_to_right"}),
        ("xlnet-base", {"objective.segment_ids": [0]}),
        ("mdlm-base", {"objective.visibility": "left_to_right"}),
        ("bd3lm-base", {"objective.segment_ids": [0]}),
        ("t5-base", {"objective.visibility": "prefix"}),
        ("t5-base", {"objective.local_width": 4}),
        ("bert-base", {"objective.local_width": 4}),
    ],
)
def test_settings_of_another_objective_are_refused(name: str, objective: dict[str, Any]) -> None:
    (key,) = objective
    assert re.search(rf"option --{key}: \w+ is not a setting of \w+; [\w ,]+ ha(s|ve) it\.", refusal(name, objective))


@pytest.mark.parametrize("name", ["xlnet-base", "mpnet-base"])
def test_objectives_that_always_predict_stepwise_say_so(name: str) -> None:
    overrides = {"objective.pairs": "next_sentence", "data.segments": 2, "data.documents": "separate"}
    said = refusal(name, {**overrides, "data.order": "shuffled", "model.memory": 0, "objective.targets": ["nsp"]})
    assert "objective.targets is ['nsp']; objective" in said and "always predicts 'par'; include it" in said


def test_rows_that_cannot_continue_a_memory_are_refused() -> None:
    base = {"tokenizer.extra_tokens": 40}
    for name in ("prefix", "span_corruption", "denoising", "masked_span"):
        said = refusal("xlnet-base", {**base, "objective.name": name, "objective.targets": ["lm"]})
        assert f"model.memory is 384; a row of objective {name} is a source and a target" in said
    blocks = {"objective.name": "block_diffusion", "objective.targets": ["diffusion"]}
    assert "model.memory is 384; the first noised block of a row" in refusal("xlnet-base", base | blocks)
    chain = {"objective.name": "causal", "objective.targets": ["lm"]}
    load_recipe("xlnet-base", {**base, **chain, "objective.visibility": "left_to_right"})
    said = refusal("xlnet-base", {**base, **chain, "objective.visibility": "right_to_left"})
    assert "model.memory is 384; from right to left, only the first slot" in said


@pytest.mark.parametrize("name", ["../evil", "a/b", "a\\b", ".", "..", "", ".hidden", "a\x00b"])
def test_a_name_is_one_path_component(name: str) -> None:
    with pytest.raises(UsageError, match=r"name is .*; it names a run's folder"):
        validate(dataclasses.replace(Recipe(), name=name))
    validate(dataclasses.replace(Recipe(), name="my run 2.1"))


def test_a_name_in_a_file_names_its_line(write: Any) -> None:
    path = write("base: quickstart\nname: ../evil\n")
    assert refusal(path).startswith(f"{path}, line 2: name is '../evil'; it names a run's folder")


def test_an_error_in_a_part_or_phase_names_the_place_of_the_list(write: Any) -> None:
    option = "option --objective.mixture, part 'a' of objective.mixture: objective.mask_rate is 3.0"
    parts_of_bert = [{"label": "a", "mask_rate": 3}]
    overrides = {"training.phases": [], "objective.mixture": parts_of_bert}
    assert refusal("bert-base", overrides).startswith(option)
    path = write("base: bert-base\ntraining:\n  phases: [{objective: {mask_rate: 3}}]\n")
    said = f"{path}, line 3, phase 1 of training.phases: objective.mask_rate is 3.0"
    assert refusal(path).startswith(said)
    path = write("base: bert-base\ntraining:\n  phases: [{objective: {mixture: [{label: a, mask_rate: 3}]}}]\n")
    said = f"{path}, line 3, phase 1 of training.phases, part 'a' of objective.mixture: objective.mask_rate is 3.0"
    assert refusal(path).startswith(said)
    # A value that the list does not set is attributed to the line that set it.
    path = write("base: bert-base\nobjective:\n  mask_rate: 3\n  mixture: [{label: a, max_span: 2}]\n")
    assert refusal(path).startswith(f"{path}, line 3: objective.mask_rate is 3.0")


def test_an_error_outside_the_parts_names_no_part() -> None:
    assert refusal("quickstart", {"training.steps": 0}).startswith("option --training.steps: training.steps is 0; it")


def test_a_single_value_stands_for_a_list_of_one(write: Any) -> None:
    path = write("data: {corpus: a.txt, weights: 2}\nobjective: {mixture: {label: a, targets: ae}}\n")
    recipe = load_recipe(path)
    assert (recipe.data.corpus, recipe.data.weights) == (["a.txt"], [2.0])
    assert recipe.objective.mixture == [{"label": "a", "targets": ["ae"]}]
    assert load_recipe(path, {"data.corpus": "texts/de"}).data.corpus == ["texts/de"]
    assert load_recipe(
        path, {"data": {"corpus": "[b.txt, c.txt]"}, "data.weights": "null"}
    ).data == dataclasses.replace(recipe.data, corpus=["b.txt", "c.txt"], weights=None)
    assert refusal(path, {"training.betas": 0.9}).endswith("expected a list of 2, each item a number.")


def test_validate_works_alone() -> None:
    recipe = dataclasses.replace(Recipe(name="own"), model=ModelSettings(num_heads=5))
    with pytest.raises(UsageError, match=r"^recipe own: model.hidden_size is 768; it must be a multiple of"):
        validate(recipe)
    validate(Recipe())


def test_what_is_merged_is_not_given_twice(tmp_path: Path) -> None:
    file = tmp_path / "merged.yaml"
    file.write_text("objective:\n  <<: {mask_rate: 0.3, max_span: 4}\n  mask_rate: 0.2\n", encoding="utf-8")
    objective = load_recipe(file).objective
    assert (objective.mask_rate, objective.max_span) == (0.2, 4)


def test_papers_measures_and_searches_are_those_of_their_recipes() -> None:
    """UniLMv2's Table 3 has Pearson's, UniLM v1's Table 11 Spearman's; only summaries block trigrams (v1, Section 3.1)."""
    tasks = {name: load_recipe(name) for name in task_names()}
    chosen_by = {
        name: metric(tasks[name].task.metrics[0]).headline for name in ("glue-sts-b", "glue-sts-b-v1", "gpt-similarity")
    }
    assert chosen_by == {"glue-sts-b": "pearson", "glue-sts-b-v1": "spearman", "gpt-similarity": "pearson"}
    blocking = {name for name, recipe in tasks.items() if recipe.decoding.no_repeat_ngram}
    summaries = ("cnndm", "xsum", "gigaword", "gigaword-10k", "docstring-summary")
    assert blocking == {f"{name}{version}" for name in summaries for version in ("", "-v1")}
    assert all(tasks[name].decoding.no_repeat_ngram == 3 for name in blocking)
    assert tasks["dstc7"].task.metrics == tasks["dstc7-v1"].task.metrics == ["nist", "bleu", "meteor", "diversity"]
    assert tasks["gpt-classification"].finetuning.auxiliary == tasks["story-cloze"].finetuning.auxiliary == {"lm": 0.5}
    assert tasks["squad-v2"].task.no_answer == "class" and tasks["squad-v2-unilm-v1"].task.no_answer == "span"
    assert tasks["coqa-generative"].generation.chunk_by == ["question"]
    assert tasks["gigaword-10k-v1"].task.train_records == 10_000 and tasks["gigaword-v1"].task.train_records is None


def test_gpt_3_grows_its_batch_over_four_billion_tokens_and_keeps_a_tenth_of_the_rate() -> None:
    recipe = load_recipe("gpt-3-small")
    training = recipe.training
    found = [(phase.recipe.training.batch_size, phase.last_step - phase.first_step) for phase in phases(recipe)]
    assert [size for size, _ in found] == list(range(16, 257, 16)), "from 32,768 tokens to 524,288"
    tokens = [size * steps * recipe.data.window for size, steps in found]
    assert sum(tokens[:-1]) == pytest.approx(4e9, rel=1e-3) and sum(tokens) == pytest.approx(300e9, rel=1e-4)
    assert all(each == pytest.approx(4e9 / 15, rel=2e-3) for each in tokens[:-1])
    ended = training.warmup_steps + (training.decay_steps or 0)
    seen = sum(
        size * recipe.data.window * max(0, min(phase.last_step, ended) - phase.first_step)
        for (size, _), phase in zip(found, phases(recipe), strict=True)
    )
    assert seen == pytest.approx(260e9, rel=1e-4) and training.final_rate == 0.1


def test_words_name_several_recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [load_recipe(name).provenance.place for name in recipes_of(["table-6"])]
    assert [re.search(r"Table 6, row \[(\d)\]", place)[1] for place in rows] == list("123456")  # type: ignore[index]
    assert recipes_of(["gpt*", "gpt"]) == ["gpt", "gpt-2", "gpt-3-small"]
    for run in ("runs/a", "runs/b"):
        Path(run).mkdir(parents=True)
        Path(run, "recipe.yaml").write_text("base: gpt\n")
    Path("runs/data").mkdir()
    assert recipes_of(["runs/*", "runs/a"]) == ["runs/a/recipe.yaml", "runs/b/recipe.yaml"]
    assert recipes_of(["gpt", "nothing.yaml"]) == ["gpt", "nothing.yaml"]
    with pytest.raises(UsageError, match=r"no recipe or run matches 'walks/\*'"):
        recipes_of(["walks/*"])


def test_an_option_named_as_a_section_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", "--model", "runs/mine", "--text", "a b"]) == 2
    assert "option --model: model is a section of settings: give model.NAME" in capsys.readouterr().err
