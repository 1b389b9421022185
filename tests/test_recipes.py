"""Recipes: their contents, how they are read, and errors about invalid ones."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from unicloze import cli
from unicloze.comparison.contestants import contestants
from unicloze.errors import UniclozeError, UsageError
from unicloze.evaluation.metrics.registry import metric
from unicloze.mixtures import parts, phases
from unicloze.objectives import OBJECTIVES, changed, field_names, settings_of
from unicloze.objectives.causal import CausalSettings
from unicloze.objectives.denoising import SpanCorruptionSettings
from unicloze.objectives.seq2seq import PrefixSettings
from unicloze.recipes import load_recipe, parse_options, recipe_names, recipes_of, save_recipe, task_names, validate
from unicloze.recipes.schema import SECTIONS, every_key, keys_of, parser_of
from unicloze.settings import ModelSettings, Recipe, TaskSettings
from unicloze.tasks import TASKS
from unicloze.tasks.extraction import ExtractionSettings


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
    assert type(recipe.objective) is OBJECTIVES["unilmv2"].settings
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
    again = [*line.split(), "--training.betas", "0.5", "0.6", "--training.betas", "0.7", "0.8"]
    assert parse_options(again)["training.betas"] == ["0.7", "0.8"]
    assert parse_options(["--data.corpus", "[a, b]"]) == {"data.corpus": "[a, b]"}


@pytest.mark.parametrize("name", recipe_names())
def test_saved_recipe_reads_back_the_same(name: str, tmp_path: Path) -> None:
    weighed = load_recipe(name).objective.targets[0]
    recipe = load_recipe(name, {"data.corpus": ["é [x]", "null", "1e-4"], "objective.coefficients": {weighed: 0.5}})
    save_recipe(recipe, tmp_path / "recipe.yaml")
    assert load_recipe(tmp_path / "recipe.yaml") == recipe
    values = yaml.safe_load((tmp_path / "recipe.yaml").read_text("utf-8"))
    assert set(values) == {"schema", *recipe.to_dict()} and values["schema"] == 2
    assert set(values["objective"]) == field_names(type(recipe.objective))


def test_saving_replaces_whole_and_leaves_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "recipe.yaml"
    target.write_text("old")
    save_recipe(load_recipe("quickstart"), target)
    assert load_recipe(target) == load_recipe("quickstart")
    assert list(tmp_path.iterdir()) == [target]
    with pytest.raises(UniclozeError, match=r"gone.*cannot write the recipe"):
        save_recipe(Recipe(), tmp_path / "gone" / "recipe.yaml")


def test_every_key_is_described_and_known_to_the_parser() -> None:
    kinds = [*SECTIONS.items(), *(("objective", OBJECTIVES[name].settings) for name in OBJECTIVES)]
    for section, kind in kinds:
        defaults = parser_of(kind).get_defaults()
        for key, known in keys_of(section, kind).items():
            assert known.description, key
            assert defaults[key.partition(".")[2]] == known.default


@pytest.mark.parametrize(("section", "key", "registry"), [("objective", "name", OBJECTIVES), ("task", "kind", TASKS)])
def test_a_setting_of_several_objectives_or_tasks_is_of_one_type(section: str, key: str, registry: Any) -> None:
    """The command line is read before the objective is known."""
    for name in registry:
        kind = registry[name].settings
        assert getattr(kind(), key) == name and (section == "task" or kind.known_targets)
        for setting, known in keys_of(section, kind).items():
            of_any = every_key()[setting]
            assert known.description and known.type == of_any.type
            assert known.default == of_any.default or setting in (f"{section}.{key}", "task.mixing_temperature")


# Errors: others are in `messages.txt`


@pytest.mark.parametrize(("text", "line", "names"), [
    ("lr: 1\n", 1, ("'lr'", "'training.learning_rate'")),
    ("trainig:\n  steps: 3\n", 1, ("'trainig'", "'training'")),
    ("qqq: 1\n", 1, ("'qqq'", "provenance, data, tokenizer", "decoding, finetuning.")),
    ("data:\n  corpus: {a: b}\n", 2, ("data.corpus is [{'a': 'b'}]", "a list, each item text")),
    ("training:\n  compile: maybe\n", 2, ("'maybe'", "true or false, or null")),
    ("objective:\n  targets: [ar]\n", 2, ("['ar']", "'ae', 'par', 'nsp', 'sop'")),
    ("objective:\n  name: permuted\n  targets: [par, ae]\n", 3, ("['par', 'ae']", "'par', 'nsp', 'sop'")),
    ("training:\n  seed: 1\ndata: {}\ntraining: {}\n", 4, ("training is given twice", "line 1")),
    ("objective:\n  mixture:\n  - {share: 1, label: b, share: 2}\n", 3, ("duplicate key share",)),
    ("task:\n  fields:\n    text: one\n    text: two\n", 4, ("duplicate key text",)),
    ("a: [1\n", 2, ("not valid YAML", "expected ',' or ']'")),
    ("base: quickstart\nname: 2020-13-45\n", 2, ("not a valid timestamp", "quote it")),
    ("training:\n  steps: !!int abc\n", 2, ("not a valid int",)),
    ("name: !!timestamp soon\n", 1, ("not a valid timestamp",)),
    ("a:\n\tb: 1\n", 2, ("not valid YAML", "'\\t'")),
    ("base: 3\n", 1, ("base is 3", "the name of a recipe")),
    ("name: x\nbase: unilm\n", 2, ("base: no recipe or run", "'unilm'", "'unilmv2-base'")),
    ("base: quickstart\nname: ../evil\n", 2, ("name is '../evil'", "a run's folder")),
    ("schema: 3\nname: later\n", 1, ("schema is 3", "reads 2")),
    ("objective:\n  name: causal\n  mask_rate: 0.3\n", 3, ("mask_rate is not a setting of causal; unilmv2, masked",)),
    ("objective:\n  noise: [mask]\n", 2, ("noise is not a setting of unilmv2; denoising has it.",)),
    ("base: classification\ntask:\n  stride: 8\n", 3, ("stride", "classification; extraction and conversation have")),
    ("name: mine\ntask: {kind: sorting, order: up}\n", 2, ("'sorting'; known tasks: classification, ",)),
])  # fmt: skip
def test_broken_file_names_its_line(write: Any, text: str, line: int, names: tuple[str, ...]) -> None:
    path = write(text)
    said = refusal(path)
    assert said.startswith(f"{path}, line {line}: ") and not [name for name in names if name not in said], said


@pytest.mark.parametrize("name", ["xlnet-base", "mpnet-base"])
def test_objectives_that_always_predict_stepwise_say_so(name: str) -> None:
    overrides = {"objective.pairs": "next_sentence", "data.segments": 2, "data.documents": "separate"}
    said = refusal(name, {**overrides, "data.order": "shuffled", "model.memory": 0, "objective.targets": ["nsp"]})
    assert "objective.targets is ['nsp']; objective" in said and "always predicts 'par'; include it" in said


def test_rows_that_cannot_continue_a_memory_are_refused() -> None:
    base = {"tokenizer.extra_tokens": 40, "data.overlap": 0.0}
    for name in ("prefix", "span_corruption", "denoising", "masked_span"):
        said = refusal("xlnet-base", {**base, "objective.name": name, "objective.targets": ["lm"]})
        assert f"model.memory is 384; a row of objective {name} is a source and a target" in said
    blocks = {"objective.name": "block_diffusion", "objective.targets": ["diffusion"]}
    assert "model.memory is 384; the first noised block of a row" in refusal("xlnet-base", base | blocks)
    chain = {"objective.name": "causal", "objective.targets": ["lm"]}
    load_recipe("xlnet-base", {**base, **chain, "objective.visibility": "left_to_right"})
    said = refusal("xlnet-base", {**base, **chain, "objective.visibility": "right_to_left"})
    assert "model.memory is 384; from right to left, only the first slot" in said


@pytest.mark.parametrize(("content", "problem"), [
    (b"hello\n", "this is not a recipe, which is a mapping with the sections provenance, data,"),
    (b"", "this is not a recipe, which is a mapping with the sections provenance, data,"),
    (b"name: \xff\n", "this is not UTF-8 text (byte 6); a recipe is a YAML file."),
    (b"name: \x00\n", "this is not valid YAML: special characters are not allowed."),
])  # fmt: skip
def test_what_is_not_a_mapping_or_not_text(tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / "mine.yaml").write_bytes(content)
    assert refusal(tmp_path / "mine.yaml").startswith(f"{tmp_path / 'mine.yaml'}: {problem}")


@pytest.mark.parametrize("name", ["../evil", "a/b", "a\\b", ".", "..", "", ".hidden", "a\x00b"])
def test_a_name_is_one_path_component(name: str) -> None:
    with pytest.raises(UsageError, match=r"name is .*; it names a run's folder"):
        validate(dataclasses.replace(Recipe(), name=name))
    validate(dataclasses.replace(Recipe(), name="my run 2.1"))
    with pytest.raises(UsageError, match=r"^recipe own: model.hidden_size is 768; it must be a multiple of"):
        validate(dataclasses.replace(Recipe(name="own"), model=ModelSettings(num_heads=5)))


def test_an_error_in_a_part_names_its_option() -> None:
    overrides = {"training.phases": [], "objective.mixture": [{"label": "a", "mask_rate": 3}]}
    said = "option --objective.mixture, part 'a' of objective.mixture: objective.mask_rate is 3.0"
    assert refusal("bert-base", overrides).startswith(said)


@pytest.mark.parametrize(("text", "place"), [
    ("training:\n  phases: [{objective: {mask_rate: 3}}]\n", ", phase 1 of training.phases"),
    ("training:\n  phases: [{objective: {mixture: [{label: a, mask_rate: 3}]}}]\n",
     ", phase 1 of training.phases, part 'a' of objective.mixture"),
    ("objective:\n  mask_rate: 3\n  mixture: [{label: a, max_span: 2}]\n", ""),  # the list does not set the value
])  # fmt: skip
def test_an_error_in_a_part_or_phase_names_the_place_of_the_list(write: Any, text: str, place: str) -> None:
    path = write(f"base: bert-base\n{text}")
    assert refusal(path).startswith(f"{path}, line 3{place}: objective.mask_rate is 3.0")


def test_a_single_value_stands_for_a_list_of_one(write: Any) -> None:
    path = write("data: {corpus: a.txt, weights: 2}\nobjective: {mixture: {label: a, targets: ae}}\n")
    recipe = load_recipe(path)
    assert (recipe.data.corpus, recipe.data.weights) == (["a.txt"], [2.0])
    assert recipe.objective.mixture == [{"label": "a", "targets": ["ae"]}]
    assert load_recipe(path, {"data.corpus": "texts/de"}).data.corpus == ["texts/de"]
    several = load_recipe(path, {"data": {"corpus": "[b.txt, c.txt]"}, "data.weights": "null"}).data
    assert (several.corpus, several.weights) == (["b.txt", "c.txt"], None)
    assert refusal(path, {"training.betas": 0.9}).endswith("expected a list of 2, each item a number.")
    arrays = {
        "training.learning_rate": np.float64(1e-3),
        "training.betas": np.array([0.8, 0.9]),
        "data.weights": None,
    }
    stored = load_recipe(path, {**arrays, "tokenizer.kind": np.str_("bpe"), "data.corpus": [Path("a"), np.str_("b")]})
    save_recipe(stored, path.parent / "stored.yaml")
    assert load_recipe(path.parent / "stored.yaml").to_dict() == stored.to_dict()
    assert (stored.training.betas, stored.data.corpus) == ((0.8, 0.9), ["a", "b"])
    merged = load_recipe(write("objective:\n  <<: {mask_rate: 0.3, max_span: 4}\n  mask_rate: 0.2\n")).objective
    assert (merged.mask_rate, merged.max_span) == (0.2, 4), "what is merged is not given twice"


def test_papers_measures_and_searches_are_those_of_their_recipes() -> None:
    """UniLMv2's Table 3 has Pearson's, UniLM v1's Table 11 Spearman's; only summaries block trigrams (v1, Section 3.1)."""
    tasks = {name: load_recipe(name) for name in task_names()}
    for name, chosen_by in (("glue-sts-b", "pearson"), ("glue-sts-b-v1", "spearman"), ("gpt-similarity", "pearson")):
        assert metric(tasks[name].task.metrics[0]).headline == chosen_by
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


# Settings of one objective or task


def test_what_a_base_sets_for_its_own_objective_is_dropped_with_it(write: Any) -> None:
    write("objective: {mask_rate: 0.3, max_span: 4, coefficients: {par: 0.5}}\n", "base.yaml")
    own = "{name: span_corruption, targets: [lm], mean_span: 2.0, coefficients: {}}"
    child = write(f"base: base.yaml\nobjective: {own}\ntokenizer: {{extra_tokens: 200}}\n")
    settings = load_recipe(child).objective
    assert isinstance(settings, SpanCorruptionSettings) and not hasattr(settings, "max_span")
    assert (settings.mask_rate, settings.mean_span) == (0.3, 2.0)
    child = write("base: base.yaml\nobjective: {max_span: 3, name: causal}\n")
    assert "max_span is not a setting of causal" in refusal(child)


def test_a_part_has_the_settings_of_its_objective_and_inherits_what_both_have() -> None:
    recipe = load_recipe("ul2-base")
    kinds = [type(part.settings) for part in parts(recipe.objective)]
    assert kinds.count(PrefixSettings) == 1 and kinds.count(SpanCorruptionSettings) == 6
    mixture = [{"share": 1}, {"name": "causal", "targets": ["lm"], "visibility": "left_to_right", "static_copies": 3}]
    made = load_recipe("unilmv2-base", {"objective.mixture": mixture, "objective.static_copies": 7})
    first, second = (part.settings for part in parts(made.objective))
    assert (first.static_copies, second.static_copies) == (7, 3) and isinstance(second, CausalSettings)
    mixture[1]["max_span"] = 3
    said = refusal("unilmv2-base", {"objective.mixture": mixture})
    assert "part 2 of objective.mixture: max_span is not a setting of causal; unilmv2, masked" in said


def test_a_phase_has_the_settings_of_its_objective() -> None:
    recipe = load_recipe("quickstart")
    assert [type(phase.recipe.objective).__name__ for phase in phases(recipe)] == ["CausalSettings", "UniLMv2Settings"]
    entries = [{"share": 1, "objective": {"name": "causal", "targets": ["lm"], "mean_span": 2.0}}]
    assert "phase 1 of training.phases: mean_span is not a setting of causal" in refusal(
        "unilmv2-base", {"training.phases": entries}
    )


def test_an_unknown_objective_is_refused_everywhere() -> None:
    known = "known objectives: unilmv2, masked, causal"
    for overrides in (
        {"objective.name": "os"},
        {"objective.name": ["os"]},
        {"objective.mixture": [{"name": "os"}]},
        {"training.phases": [{"share": 1, "objective": {"name": "os"}}]},
    ):
        said = refusal("unilmv2-base", overrides)
        assert "'os'" in said and f"; {known}" in said and "add --plugin FILE" in said


def test_another_objective_keeps_what_both_have() -> None:
    before = settings_of(mask_rate=0.4, max_span=3, pseudo_token="mask")
    after: Any = changed(before, {"name": "permuted", "targets": ["par"]})
    assert type(after) is OBJECTIVES["permuted"].settings
    assert (after.mask_rate, after.max_span, after.pseudo_token, after.targets) == (0.4, 3, "mask", ["par"])


def test_what_a_base_sets_for_its_own_task_is_dropped_with_it() -> None:
    recipe = load_recipe("glue-mnli", {"task.kind": "extraction", "task.stride": 9, "task.metrics": ["squad"]})
    assert isinstance(recipe.task, ExtractionSettings) and not hasattr(recipe.task, "labels")
    assert (recipe.task.stride, recipe.task.head) == (9, "plain")
    assert type(load_recipe("gpt").task) is TaskSettings


@pytest.mark.parametrize(("name", "overrides", "message"), [
    ("cvt", {"objective.targets": ["ae", "rtd"]}, "the target 'rtd' needs a generator, which a recurrent model does not"),
    ("cvt", {"objective.targets": ["ae", "sbo"], "model.embeddings": "characters", "model.tied_output": False},
     "the target 'sbo' needs a table of embeddings"),
    ("electra-small", {"objective.targets": ["ae", "rtd", "sbo"]}, "often those that 'sbo' predicts"),
    ("gpt", {"data.lengths": "random", "data.order": "streams"}, "which only LSTMs read"),
    ("awd-lstm", {"objective.name": "masked", "objective.targets": ["ae"], "objective.static_copies": 1},
     "no phrases, entities or repeated masks"),
    ("awd-lstm", {"data.lengths": "fixed", "data.segments": 2, "data.overlap": 0.5}, "that the next window predicts again"),
    ("gpt-3-small", {"training.phases": [], "model.positions": "transformer_xl", "data.order": "streams", "model.memory": 64},
     "do not read a memory"),
    ("awd-lstm", {"model.adapter_size": 8}, "only fine-tuning adds adapters"),
    ("t5-base", {"model.layer_mix": True}, "heads on an encoder-decoder see its last states only"),
    ("bert-base", {"objective.visibility": "left_to_right"}, "are predicted at the first slot, which does not see the"),
    ("albert-base", {"objective.visibility": "prefix"}, "are predicted at the first slot, which does not see the"),
])  # fmt: skip
def test_targets_that_a_model_cannot_learn_are_refused(name: str, overrides: dict[str, Any], message: str) -> None:
    assert message in refusal(name, overrides)


def test_an_override_is_given_to_the_recipes_that_have_it() -> None:
    made = contestants(["gpt", "unilmv2-base"], like=None, overrides={"objective.mask_rate": 0.3})
    assert isinstance(made[0].objective, CausalSettings) and made[1].objective.rates == (0.3, 0.3)
    with pytest.raises(UsageError, match=r"--objective.noise: noise is not a setting of causal or unilmv2; denois"):
        contestants(["gpt", "unilmv2-base"], like=None, overrides={"objective.noise": ["mask"]})
    with pytest.raises(UsageError, match=r"objective.geometric_p: .* without objective.masking geometric"):
        contestants(["gpt", "unilmv2-base"], like=None, overrides={"objective.geometric_p": 0.3})


def test_a_base_is_a_shipped_recipe_before_a_run_beside_the_file(tmp_path: Path) -> None:
    for name, steps in (("quickstart", 7777), ("mine", 8888)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "recipe.yaml").write_text(f"base: quickstart\ntraining:\n  steps: {steps}\n")
    for base, steps in (("quickstart", load_recipe("quickstart").training.steps), ("mine", 8888)):
        (tmp_path / "own.yaml").write_text(f"base: {base}\n")
        assert load_recipe(tmp_path / "own.yaml").training.steps == steps
