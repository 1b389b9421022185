"""Files for the code host, for citing and for containers, as far as they can be checked without the tools that read them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import unicloze
from conftest import REPOSITORY

WORKFLOWS = sorted((REPOSITORY / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((REPOSITORY / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def read(file: Path) -> dict[Any, Any]:
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content


def steps(workflow: Path) -> list[dict[str, Any]]:
    return [step for job in read(workflow)["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda file: file.name)
def test_actions_are_pinned(workflow: Path) -> None:
    used = re.findall(r"^\s*(?:- )?uses:(.*)$", workflow.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(used) == sum("uses" in step for step in steps(workflow)) > 0
    for action in used:
        assert re.fullmatch(r" [\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action


def test_an_action_has_one_version_everywhere() -> None:
    used = {step["uses"] for workflow in WORKFLOWS for step in steps(workflow) if "uses" in step}
    assert len(used) == len({action.partition("@")[0] for action in used})


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda file: file.name)
def test_workflows_have_few_rights(workflow: Path) -> None:
    content = read(workflow)
    assert content["permissions"] == {"contents": "read"}
    assert "pull_request_target" not in content[True], "the key `on` is true in YAML 1.1"
    for name, job in content["jobs"].items():
        assert job.get("permissions", {}) == ({"id-token": "write"} if name == "publish" else {})
        assert 0 < job["timeout-minutes"] <= 180 and "latest" not in job["runs-on"]
    for step in steps(workflow):
        assert "${{" not in step.get("run", ""), "a value from outside would be run as a command"
        if "actions/checkout@" in step.get("uses", ""):
            assert step["with"]["persist-credentials"] is False


def test_workflows_call_targets_of_the_makefile() -> None:
    targets = re.findall(r"^([a-z]+):", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    called = [
        target
        for workflow in WORKFLOWS
        for step in steps(workflow)
        for target in re.findall(r"\bmake (?:[A-Z]+=\S+ )*([a-z]+)", step.get("run", ""))
    ]
    assert {"check", "test", "docs", "browser"} <= {*called} <= {*targets}


def test_three_versions_of_python_are_tested() -> None:
    tested = read(REPOSITORY / ".github" / "workflows" / "tests.yml")["jobs"]["quick"]["strategy"]["matrix"]["python"]
    assert len(set(tested)) == 3 and all(isinstance(version, str) for version in tested)
    project = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    assert f'requires-python = ">={min(tested, key=lambda version: int(version[2:]))}"' in project


@pytest.mark.parametrize("form", [form for form in FORMS if form.name != "config.yml"], ids=lambda file: file.name)
def test_issue_forms_are_complete(form: Path) -> None:
    content = read(form)
    assert content["name"] and content["description"]
    fields = [field for field in content["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields) > 0
    for field in fields:
        assert field["type"] in {"input", "textarea", "dropdown", "checkboxes"} and field["attributes"]["label"]
        assert field.keys() <= {"type", "id", "attributes", "validations"}
    for verb in re.findall(r"`unicloze ([a-z]+)", form.read_text(encoding="utf-8")):
        assert verb in unicloze.verbs.VERBS


def test_the_citation_is_of_this_version_and_of_the_paper() -> None:
    citation = read(REPOSITORY / "CITATION.cff")
    assert citation["version"] == unicloze.__version__ and citation["license"] == "Apache-2.0"
    (paper,) = citation["references"]
    assert paper["title"].startswith("UniLMv2: Pseudo-Masked Language Models") and paper["year"] == 2020
    assert [author["family-names"] for author in paper["authors"]][:2] == ["Bao", "Dong"]


def instructions(file: Path) -> list[tuple[str, str]]:
    """Instructions of a Dockerfile with their arguments, continued lines joined."""
    text = re.sub(r"^#.*\n", "", file.read_text(encoding="utf-8"), flags=re.MULTILINE).replace("\\\n", " ")
    parts = [line.partition(" ") for line in text.splitlines() if line.strip()]
    return [(name, " ".join(rest.split())) for name, _, rest in parts]


def test_the_image_runs_as_a_user_from_named_versions_and_present_files() -> None:
    found = instructions(REPOSITORY / "Dockerfile")
    last = max(number for number, (name, _) in enumerate(found) if name == "FROM")
    users = [rest for name, rest in found[last:] if name == "USER"]
    assert users and users[-1] not in ("root", "0") and f" {users[-1]}" in dict(found[last:])["RUN"]
    assert ("ENTRYPOINT", '["unicloze"]') in found
    bases = {rest.partition(" ")[0] for name, rest in found if name == "FROM"}
    assert len(bases) == 1 and re.fullmatch(r"python:3\.\d+-slim-\w+", *bases)
    allowed = (REPOSITORY / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in allowed
    for name, rest in found:
        assert "latest" not in rest
        if name == "COPY" and "--from=" not in rest:
            for source in rest.split()[:-1]:
                assert (REPOSITORY / source).exists() and f"!{source}" in allowed, source
    installed = " ".join(rest for name, rest in found if name == "RUN" and "pip install" in rest)
    project = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    for extra in re.findall(r"\.\[([\w,]+)\]", installed)[0].split(","):
        assert f"\n{extra} = [" in project
    assert "--constraint constraints.txt" in installed
