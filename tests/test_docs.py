"""The documents match the code: the list of modules is generated from the modules, and everything they name exists.

`python tests/test_docs.py` regenerates the list of modules.
"""

from __future__ import annotations

import ast
import functools
import importlib
import re
import runpy
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import unicloze
from corpora import write_corpus
from test_imports import FLOORS
from unicloze import cli, files, verbs
from unicloze.recipes import load_recipe, recipe_names, task_names
from unicloze.recipes.schema import every_key

PACKAGE = Path(unicloze.__file__).parent
ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
PRESENT = [document for document in DOCUMENTS if document.name != "log.md"]
"""Documents that describe only the present state, not past ones."""
SITE = sorted(ROOT.glob("docs/**/*.md"))
NEED_A_SERVER = {"serve.md", "serve-it.md"}
"""Documents whose Python talks to a served model; tests/test_serve_clients.py runs it."""
PLACES = ROOT, PACKAGE, ROOT / "tests", ROOT / "benchmarks", ROOT / "benchmarks" / "results", ROOT / "docs"
LIST = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- modules: made by tests/test_docs.py -->\n", "<!-- end of the modules -->\n"
OF_OTHERS = {"AutoModel", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "BlockMask", "FlexAttention"}

SECTION = "|".join(sorted({key.partition(".")[0] for key in every_key() if "." in key}))
FENCED = re.compile(r"^( *)```([^\n`]*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def name_of(document: Path) -> str:
    return document.relative_to(ROOT).as_posix()


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
    yield from blocks_in(document)
    text = FENCED.sub("", text)
    yield from re.findall(r"^\n((?:    .*\n)+)", text, re.MULTILINE)
    yield from re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text)


def blocks_in(document: Path, language: str | None = None) -> Iterator[str]:
    """Fenced blocks of code, of one language or all; directives of the site are not code."""
    for _, written, code in FENCED.findall(document.read_text(encoding="utf-8")):
        if not written.startswith("{") and language in (None, written):
            yield textwrap.dedent(code)


def commands_in(document: Path) -> Iterator[str]:
    """Whole commands: lines of blocks of code, continued ones joined, without comments."""
    for code in code_in(document):
        for line in code.replace("\\\n", " ").splitlines():
            yield re.sub(r"\s+#\s.*", "", line).strip()


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
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
        | {f"{name}/" for name in vars(files).values() if isinstance(name, str)}
    )
    assert not [path for path in sorted(paths) if not any((place / path).exists() for place in PLACES)]


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_make_has_the_targets_that_documents_name(document: Path) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    named = {found for code in code_in(document) for found in re.findall(r"\bmake (?:[A-Z]+=\S+ )*([a-z-]+)", code)}
    assert named <= {*targets}


@pytest.mark.parametrize("document", PRESENT, ids=name_of)
def test_commands_of_documents_are_understood(document: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks that commands in the documents parse; running them takes a model and is left to the tests of each verb."""
    for function in verbs.VERBS.values():
        monkeypatch.setattr(verbs, function.__name__, lambda **_: "understood")
    for command in commands_in(document):
        command = re.sub(r"^torchrun .* -m unicloze ", "unicloze ", command)
        words = shlex.split(command) if command.startswith("unicloze ") else []
        if len(words) > 1 and words[1].isupper():
            continue  # `unicloze VERB --help`
        whole = len(words) > 2 and "..." not in words
        if whole and "--plugin" not in words and not any(word.isupper() and len(word) > 2 for word in words[1:3]):
            assert cli.main(words[1:]) == 0, command
        elif words:
            assert any(name in (words[1], " ".join(words[1:3])) for name in (*cli.VERBS, *cli.GROUPS)), command


@functools.cache
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


@functools.cache
def source() -> str:
    """The text of the whole package."""
    return "\n".join(file.read_text(encoding="utf-8") for file in PACKAGE.rglob("*.py"))


@functools.cache
def settings() -> frozenset[str]:
    """All dotted settings."""
    return frozenset(every_key())


@pytest.mark.parametrize("document", PRESENT, ids=name_of)
def test_names_of_code_and_settings_in_documents_exist(document: Path) -> None:
    classes = defined()
    for name in {code.partition("(")[0] for code in code_in(document)}:
        if re.fullmatch(rf"({SECTION})\.[a-z_]+", name):
            assert name in settings(), name
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
            assert re.search(rf"\b{name}\b", source()), name


RECIPES = [
    pytest.param(code, id=f"{name_of(document)}-{number}")
    for document in DOCUMENTS
    for number, code in enumerate(blocks_in(document, "yaml"))
    if code.startswith("base:") and "comb" not in code  # that one needs a plugin, whose tests try it
]


@pytest.mark.parametrize("code", RECIPES)
def test_recipes_in_documents_load(code: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(code, encoding="utf-8")
    assert load_recipe(tmp_path / "mine.yaml").name


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that snippets name."""
    place = tmp_path_factory.mktemp("snippets")
    overrides = {"data.corpus": [str(write_corpus(place / "my-texts"))], "tokenizer.vocab_size": 300}
    verbs.pretrain("quickstart", place / "runs" / "mine", toy=True, quiet=True, overrides=overrides)
    verbs.export(place / "runs" / "mine", "mpnet", place / "exports" / "mine")
    for file in ("train", "dev", "new"):
        (place / f"{file}.csv").write_text("text,label\nthe cat,yes\na dog,no\nthe old house,yes\n", encoding="utf-8")
    return place


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the text has .* tokens, but the model reads", "ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "document",
    [one for one in DOCUMENTS if one.name not in NEED_A_SERVER and any(blocks_in(one, "python"))],
    ids=name_of,
)
def test_python_in_documents_runs(document: Path, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "\n".join(blocks_in(document, "python"))
    for library in set(re.findall(r"^(?:from|import) (sentence_transformers|transformers)\b", code, re.MULTILINE)):
        pytest.importorskip(library)
    (tmp_path / "snippet.py").write_text(code, encoding="utf-8")
    monkeypatch.chdir(place)
    runpy.run_path(str(tmp_path / "snippet.py"), run_name="snippet")


# The site


@pytest.mark.slow
def test_the_site_is_complete_and_loads_nothing(tmp_path: Path) -> None:
    pytest.importorskip("furo")
    options = "-E", "-q", "-W", "--keep-going", "-d", str(tmp_path / "trees")
    words = [sys.executable, "-m", "sphinx", *options, str(ROOT / "docs"), str(tmp_path / "site")]
    built = subprocess.run(words, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    pages = {page.relative_to(tmp_path / "site").as_posix(): page.read_text() for page in tmp_path.rglob("*.html")}
    assert pages.keys() >= {page.relative_to(ROOT / "docs").with_suffix(".html").as_posix() for page in SITE}
    for name, page in pages.items():
        assert not re.findall(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"(?:https?:)?//", page), name
        assert not re.findall(r"<link\b[^>]*\bhref=\"(?:https?:)?//", page), name
    for sheet in tmp_path.rglob("*.css"):
        assert not re.findall(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//", sheet.read_text()), sheet
    reference = {kind: pages[f"reference/{kind}.html"] for kind in ("command-line", "settings", "recipes", "python")}
    assert all(f"<h2>{verb}<" in reference["command-line"] for verb in cli.VERBS)
    assert all(f">{name}<" in reference["recipes"] for name in (*recipe_names(), *task_names()))
    keys = [key.partition(".")[2] for key in settings() if "." in key and not key.startswith("provenance.")]
    assert all(f">{key}<" in reference["settings"] for key in keys)
    public = set(unicloze.__all__) - {"Recipe", "__version__"}
    assert all(f'id="unicloze.{name}"' in reference["python"] for name in public)
    assert all(
        f'id="unicloze.{name}"' in reference["python"] for name in ("decoding.infill.FillResult", "errors.UsageError")
    )
    assert "Annotated" not in reference["python"] and "As of" not in reference["python"]


if __name__ == "__main__":
    before, _, behind = LIST.read_text(encoding="utf-8").partition(BEGIN)
    LIST.write_text(before + BEGIN + list_of_modules() + END + behind.partition(END)[2], encoding="utf-8")
