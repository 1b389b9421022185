"""Rules of the architecture: the order of imports, and no heavy imports where start-up must be fast."""

from __future__ import annotations

import ast
import functools
import graphlib
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

import unicloze

PACKAGE = Path(unicloze.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))

FLOORS = (
    {
        "characters", "cores", "docstrings", "errors", "files", "progress", "registry", "rules", "settings", "storage",
        "version", "yaml_loader",
    },
    {"arrays", "devices", "example", "keyed", "packing", "visibility", "visibility_masks"},
    {"text", "model"},
    {"objectives"},
    {"mixtures"},
    {"records"},
    {"tasks"},
    {"recipes"},
    {"training", "decoding"},
    {"evaluation", "interop"},
    {"pretraining", "finetuning", "hf", "report"},
    {"comparison", "serving"},
    {"verbs", "doctor", "plugins"},
    {"terminal"},
    {"cli", "__main__", "__init__"},
)  # fmt: skip
STRANGERS = {
    ("model", "objectives"), ("objectives", "model"), ("model", "text"), ("model", "tasks"), ("objectives", "tasks"),
}  # fmt: skip
HEAVY = {"torch", "pyarrow", "tokenizers", "numpy", "transformers", "jinja2"}


def module_name(file: Path) -> str:
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room(module: Path) -> str:
    return module.relative_to(PACKAGE).with_suffix("").parts[0]


@functools.cache
def nodes(file: Path) -> list[ast.AST]:
    """All nodes of a file's syntax tree that import or call something, or assign a value."""
    wanted = ast.Import, ast.ImportFrom, ast.Call, ast.Assign
    return [node for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, wanted)]


def imported(file: Path) -> Iterator[str]:
    """Dotted names imported anywhere in a file, including inside functions and under TYPE_CHECKING."""
    for node in nodes(file):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}, line {node.lineno}: imports are absolute here"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def rooms_imported(file: Path) -> set[str]:
    names = {name.split(".")[1] for name in imported(file) if name.startswith("unicloze.")}
    return {name for name in names if (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file()} - {room(file)}


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_imports_run_one_way(file: Path) -> None:
    floor = {name: number for number, names in enumerate(FLOORS) for name in names}
    here = room(file)
    assert here in floor, f"{here} is not in FLOORS; add it in this test"
    for other in rooms_imported(file):
        assert floor[other] <= floor[here], f"{here} must not import {other}, which is above it"
        assert (here, other) not in STRANGERS, f"{here} must not know {other}"
    if file not in [PACKAGE / "training" / f"{name}.py" for name in ("meeting", "parallel", "sharding")]:
        assert not [name for name in imported(file) if name.startswith("torch.distributed")]


def test_packages_do_not_import_each_other_in_a_cycle() -> None:
    graph: dict[str, set[str]] = {}
    for file in FILES:
        graph.setdefault(room(file), set()).update(rooms_imported(file))
    graph.pop("__init__")
    assert set(graph) == set(graphlib.TopologicalSorter(graph).static_order())


def modules_imported(file: Path, modules: Collection[str]) -> set[str]:
    """The modules that a file imports; a package counts only if a name from its `__init__` is used."""
    found = set()
    for node in nodes(file):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            found |= {name if name in modules else node.module for name in names}
    return found & set(modules) - {module_name(file)}


def test_modules_do_not_import_each_other_in_a_cycle() -> None:
    names = {module_name(file) for file in FILES}
    graph = {module_name(file): modules_imported(file, names) for file in FILES}
    assert graph["unicloze.text.sampler"] >= {"unicloze.keyed", "unicloze.text.windows"}
    assert set(graph) == set(graphlib.TopologicalSorter(graph).static_order())


FAST = [
    "unicloze", "unicloze.cli", "unicloze.verbs", "unicloze.tasks", "unicloze.recipes", "unicloze.records",
    "unicloze.evaluation.metrics.registry", "unicloze.evaluation.metrics.files",
]  # fmt: skip


@pytest.mark.parametrize("module", FAST)
def test_what_must_start_fast_imports_nothing_heavy(module: str) -> None:
    program = f"import sys, {module}; print(*sorted({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    "file", [file for file in FILES if file.parent == PACKAGE / "evaluation" / "metrics"], ids=lambda file: file.stem
)
def test_metrics_know_no_model(file: Path) -> None:
    assert not [name for name in imported(file) if name.partition(".")[0] in ("torch", "tokenizers", "transformers")]
    assert rooms_imported(file) <= {"characters", "errors", "files", "keyed", "records", "settings"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_no_module_changes_what_another_says(file: Path) -> None:
    """Warnings are silenced by class, and errors are re-raised or chained with a cause."""
    for node in nodes(file):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called != "warnings.filterwarnings" and not called.startswith("str(error).replace"), node.lineno
        assert not (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).endswith(".args")), node.lineno


def test_the_package_is_marked_as_typed() -> None:
    assert (PACKAGE / "py.typed").is_file()
