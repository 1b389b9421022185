"""Objectives and tasks have their own settings: those of others are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from unicloze.comparison.contestants import contestants
from unicloze.errors import UsageError
from unicloze.mixtures import parts, phases
from unicloze.objectives import OBJECTIVES, changed, field_names, settings_of
from unicloze.objectives.causal import CausalSettings
from unicloze.objectives.denoising import SpanCorruptionSettings
from unicloze.objectives.seq2seq import PrefixSettings
from unicloze.recipes import load_recipe, save_recipe
from unicloze.recipes.schema import every_key, keys_of
from unicloze.settings import ObjectiveSettings, TaskSettings
from unicloze.tasks import TASKS
from unicloze.tasks.classification import ClassificationSettings
from unicloze.tasks.extraction import ExtractionSettings


def written(place: Path, **sections: Any) -> Path:
    place.write_text(yaml.safe_dump(sections, sort_keys=False))
    return place


def refusal(source: Path | str, overrides: dict[str, Any] | None = None) -> str:
    with pytest.raises(UsageError) as caught:
        load_recipe(source, overrides)
    return str(caught.value)


# Whose setting it is


def test_a_setting_of_another_objective_is_refused_with_its_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("name: mine\nobjective:\n  name: causal\n  mask_rate: 0.3\n")
    said = refusal(file)
    assert said.startswith(f"{file}, line 4: mask_rate is not a setting of causal; unilmv2, masked, prefix")
    file.write_text("name: mine\nobjective:\n  noise: [mask]\n")
    assert refusal(file) == f"{file}, line 3: noise is not a setting of unilmv2; denoising has it."
    assert refusal("gpt", {"objective.noise": ["mask"]}).startswith(
        "option --objective.noise: noise is not a setting of causal"
    )


def test_what_a_base_sets_for_its_own_objective_is_dropped_with_it(tmp_path: Path) -> None:
    base = written(tmp_path / "base.yaml", objective={"mask_rate": 0.3, "max_span": 4, "coefficients": {"par": 0.5}})
    own = {"name": "span_corruption", "targets": ["lm"], "mean_span": 2.0, "coefficients": {}}
    child = written(tmp_path / "child.yaml", base=str(base), objective=own, tokenizer={"extra_tokens": 200})
    settings = load_recipe(child).objective
    assert isinstance(settings, SpanCorruptionSettings) and not hasattr(settings, "max_span")
    assert (settings.mask_rate, settings.mean_span) == (0.3, 2.0)
    child = written(tmp_path / "child.yaml", base=str(base), objective={"max_span": 3, "name": "causal"})
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


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_declares_how_it_is_read(name: str) -> None:
    settings: ObjectiveSettings = settings_of(name)
    assert settings.reading.segments == (0, 1) and settings.windows.pairs == "contiguous"
    assert settings.bounds(32).positions > 0 and (settings.rates is None) == (not hasattr(settings, "mask_rate"))
    plain: Any = settings.without_noise()
    assert getattr(plain, "random_share", 0.0) == 0.0


# Tasks


def test_a_setting_of_another_task_is_refused_with_its_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("base: classification\ntask:\n  stride: 8\n")
    assert (
        refusal(file)
        == f"{file}, line 3: stride is not a setting of classification; extraction and conversation have it."
    )
    assert "predicate is not a setting of generation; tagging has it" in refusal("cnndm", {"task.predicate": "repeat"})
    assert "stride is not a setting of a recipe without task.kind" in refusal("gpt", {"task.stride": 3})
    file.write_text("name: mine\ntask: {kind: sorting, order: up}\n")
    assert f"{file}, line 2: task.kind is 'sorting'; known tasks: classification, " in refusal(file)


def test_what_a_base_sets_for_its_own_task_is_dropped_with_it() -> None:
    recipe = load_recipe("glue-mnli", {"task.kind": "extraction", "task.stride": 9, "task.metrics": ["squad"]})
    assert isinstance(recipe.task, ExtractionSettings) and not hasattr(recipe.task, "labels")
    assert (recipe.task.stride, recipe.task.head) == (9, "plain")
    assert (
        type(load_recipe("glue-mnli").task) is ClassificationSettings and type(load_recipe("gpt").task) is TaskSettings
    )


OWN_DEFAULTS = "task.kind", "task.mixing_temperature"
"""Settings whose default each task's own paper decides."""


def test_a_setting_of_several_tasks_is_of_one_type() -> None:
    for name in TASKS:
        kind = TASKS[name].settings
        assert kind().kind == name
        for key, known in keys_of("task", kind).items():
            found = every_key()[key]
            assert known.description
            assert known.type == found.type
            assert known.default == found.default or key in OWN_DEFAULTS


def test_a_recipe_is_written_with_its_own_settings_and_its_schema(tmp_path: Path) -> None:
    save_recipe(load_recipe("gpt"), tmp_path / "recipe.yaml")
    values = yaml.safe_load((tmp_path / "recipe.yaml").read_text())
    assert values["schema"] == 2 and set(values["objective"]) == field_names(CausalSettings)
    (tmp_path / "recipe.yaml").write_text("schema: 3\nname: later\n")
    assert refusal(tmp_path / "recipe.yaml") == f"{tmp_path}/recipe.yaml, line 1: schema is 3; this version reads 2."


# Comparisons of several objectives


def test_an_override_is_given_to_the_recipes_that_have_it() -> None:
    made = contestants(["gpt", "unilmv2-base"], like=None, overrides={"objective.mask_rate": 0.3})
    assert isinstance(made[0].objective, CausalSettings) and made[1].objective.rates == (0.3, 0.3)
    with pytest.raises(
        UsageError, match=r"option --objective.noise: noise is not a setting of causal or unilmv2; denois"
    ):
        contestants(["gpt", "unilmv2-base"], like=None, overrides={"objective.noise": ["mask"]})
    with pytest.raises(
        UsageError, match=r"objective.geometric_p: it has no effect without objective.masking geometric"
    ):
        contestants(["gpt", "unilmv2-base"], like=None, overrides={"objective.geometric_p": 0.3})
