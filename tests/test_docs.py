"""The documents match the code: the list of modules is generated from the modules, and everything they name exists.

`python tests/test_docs.py` regenerates the list of modules.
"""

from __future__ import annotations

import ast
import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

import unicloze
from test_imports import FLOORS
from unicloze import cli, run_files, verbs
from unicloze.recipes.schema import every_key

PACKAGE = Path(unicloze.__file__).parent
ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md"))]
PRESENT = [document for document in DOCUMENTS if document.name != "log.md"]
"""Documents that describe only the present state, not past ones."""
PLACES = ROOT, PACKAGE, ROOT / "tests", ROOT / "benchmarks", ROOT / "benchmarks" / "results", ROOT / "docs"
LIST = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- modules: made by tests/test_docs.py -->\n", "<!-- end of the modules -->\n"
OF_OTHERS = {"AutoModel", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "BlockMask", "FlexAttention"}

SECTION = "|".join(sorted({key.partition(".")[0] for key in every_key() if "." in key}))


def docstring(module: str) -> str:
    """The first sentences of a module's docstring."""
    file = PACKAGE / f"{module}.py"
    file = file if file.is_file() else PACKAGE / module / "__init__.py"
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return " ".join(text.partition("\n\n")[0].split())


def list_of_modules() -> str:
    """Summary of each top-level module and package, from those that import nothing to the command line."""
    lines = ["| module | holds |", "|---|---|"]
    for floor in FLOORS:
        for module in sorted(floor - {"__init__", "__main__"}):
            name = f"{module}/" if (PACKAGE / module).is_dir() else f"{module}.py"
            lines.append(f"| `{name}` | {docstring(module)} |")
    return "\n".join(lines) + "\n"


def test_the_list_of_modules_is_that_of_the_source() -> None:
    _, _, behind = LIST.read_text(encoding="utf-8").partition(BEGIN)
    written, end, _ = behind.partition(END)
    assert end and written == list_of_modules(), "run python tests/test_docs.py"
    top = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert top == set().union(*FLOORS)


def code_in(document: Path) -> Iterator[str]:
    """Blocks of code, fenced or indented, and code within the lines."""
    text = document.read_text(encoding="utf-8")
    yield from re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    text = re.sub(r"^```\w*\n.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    yield from re.findall(r"^\n((?:    .*\n)+)", text, re.MULTILINE)
    yield from re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text)


def commands_in(document: Path) -> Iterator[str]:
    """Whole commands: lines of blocks of code, continued ones joined, without comments."""
    for code in code_in(document):
        for line in code.replace("\\\n", " ").splitlines():
            yield re.sub(r"\s+#\s.*", "", line).strip()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_files_exist_that_documents_name(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    links = {link.partition("#")[0] for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text)} - {""}
    assert not [link for link in links if not (document.parent / link).exists()]
    paths = set()
    for code in code_in(document):
        paths |= set(re.findall(r"(?<![\w/.*])(?:[\w-]+/)*[\w-]+\.(?:py|md|ipynb)\b", code))
        paths |= set(re.findall(r"(?<![\w/.-])(?:src|tests|benchmarks|docs|examples)/[\w./-]*\w", code))
        paths |= set(re.findall(r"^[\w./-]+/$", code))
    paths -= (
        {"README.md"}
        | set(re.findall(r"--plugin (\S+\.py)", text))
        | {f"{name}/" for name in vars(run_files).values() if isinstance(name, str)}
    )
    assert not [path for path in sorted(paths) if not any((place / path).exists() for place in PLACES)]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_make_has_the_targets_that_documents_name(document: Path) -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    named = {found for code in code_in(document) for found in re.findall(r"\bmake (?:[A-Z]+=\S+ )*([a-z]+)", code)}
    assert named <= {*targets}


@pytest.mark.parametrize("document", PRESENT, ids=lambda path: path.name)
def test_commands_of_documents_are_understood(document: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks that commands in the documents parse; running them takes a model and is left to the tests of each verb."""
    for function in verbs.VERBS.values():
        monkeypatch.setattr(verbs, function.__name__, lambda **_: "understood")
    for command in commands_in(document):
        words = shlex.split(command) if command.startswith("unicloze ") else []
        if len(words) == 2 and words[1].isupper():
            continue  # `unicloze VERB`
        whole = len(words) > 2 and "..." not in words
        if whole and "--plugin" not in words and not any(word.isupper() and len(word) > 2 for word in words[1:3]):
            assert cli.main(words[1:]) == 0, command
        elif words:
            assert any(name in (words[1], " ".join(words[1:3])) for name in (*cli.VERBS, *cli.GROUPS)), command


def defined() -> dict[str, set[str]]:
    """The classes of the package and their attributes."""
    classes: dict[str, set[str]] = {}
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                names = {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
                names |= {ast.unparse(one.target) for one in node.body if isinstance(one, ast.AnnAssign)}
                classes.setdefault(node.name, set()).update(names)
    return classes


@pytest.mark.parametrize("document", PRESENT, ids=lambda path: path.name)
def test_names_of_code_and_settings_in_documents_exist(document: Path) -> None:
    classes = defined()
    source = "\n".join(file.read_text(encoding="utf-8") for file in PACKAGE.rglob("*.py"))
    for name in {code.partition("(")[0] for code in code_in(document)}:
        if re.fullmatch(rf"({SECTION})\.[a-z_]+", name):
            assert name in every_key(), name
        elif re.fullmatch(r"unicloze(\.\w+)+", name):
            try:
                importlib.import_module(name)
            except ModuleNotFoundError:
                module, _, attribute = name.rpartition(".")
                assert hasattr(importlib.import_module(module), attribute), name
        elif re.fullmatch(r"[A-Z][a-z]+[A-Z]\w+(\.\w+)?", name) and name.partition(".")[0] not in OF_OTHERS:
            owner, _, attribute = name.partition(".")
            assert owner in classes or document != LIST, name
            assert owner not in classes or not attribute or attribute in set().union(*classes.values()), name
        elif re.fullmatch(r"[A-Z]+_[A-Z_]+", name) and name not in OF_OTHERS:
            assert re.search(rf"\b{name}\b", source), name


if __name__ == "__main__":
    before, _, behind = LIST.read_text(encoding="utf-8").partition(BEGIN)
    LIST.write_text(before + BEGIN + list_of_modules() + END + behind.partition(END)[2], encoding="utf-8")
