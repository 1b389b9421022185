"""Measures the size of the package and how often a verb is declared, before and after a change of structure.

    python benchmarks/size.py [SRC] [AFTER]      # SRC is a folder `src/unicloze`, this repository's if not given

Code lines exclude comments, blank lines and docstrings; a string that is a separate statement counts as a docstring, since it
documents the constant above it. The shell (`verbs`, `cli`, `commands`, `terminal`, `__init__`) is searched for the
declarations of each verb: its function, its names in imports and `__all__`, its entry in a table of verbs, its block of
options, the call that copies its arguments by hand, and its text for the terminal. With two folders, both are printed.
"""

from __future__ import annotations

import argparse
import ast
import io
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src" / "unicloze"
FROM = "unicloze.verbs", "unicloze.commands"
"""Modules that hold the functions of verbs."""
SHELL = "verbs", "commands", "cli", "terminal", "__init__", "__main__"
"""Modules between the user and the rest."""
VERBS = {
    name: name.replace("import", "import_checkpoint").replace(" ", "_").replace("-", "_")
    for name in (
        "prepare", "pretrain", "inspect", "compare", "report", "fill", "score", "evaluate", "evaluate blimp",
        "evaluate lambada", "evaluate cbt", "evaluate prompt", "finetune", "predict", "generate", "measure", "measure-task",
        "metrics", "unanswerable", "import", "export", "recipes", "doctor", "embed", "stream",
    )
}  # fmt: skip
"""Verbs and their functions; the last two are functions only."""
SILENT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
COLUMNS = "function", "names", "entry", "options", "call", "text"

Trees = dict[Path, ast.Module]


def docstring_lines(tree: ast.Module) -> set[int]:
    """Line numbers of strings that are separate statements."""
    strings = [node for node in ast.walk(tree) if isinstance(node, ast.Expr) and text_of(node.value) is not None]
    return {line for node in strings for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}


def text_of(node: ast.expr) -> str | None:
    """The text of a plain string, otherwise None."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def measured(file: Path, tree: ast.Module) -> Counter[str]:
    """Number of lines of a file by kind."""
    text, documented = file.read_text(encoding="utf-8"), docstring_lines(tree)
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in SILENT:
            code |= set(range(token.start[0], token.end[0] + 1))
    return Counter(files=1, code=len(code - documented), docstrings=len(documented), lines=len(text.splitlines()))


def per_package(source: Path, trees: Trees) -> dict[str, Counter[str]]:
    """Sizes of each package; top-level modules are counted together."""
    found: dict[str, Counter[str]] = {}
    for file, tree in trees.items():
        package = file.relative_to(source).parts[0] if file.parent != source else "(modules)"
        found.setdefault(package, Counter()).update(measured(file, tree))
    return dict(sorted(found.items()))


def named(node: ast.expr) -> str:
    """The last part of a dotted name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def calls(node: ast.AST) -> Iterator[ast.Call]:
    """The calls inside a statement."""
    return (inner for inner in ast.walk(node) if isinstance(inner, ast.Call))


def declarations(shell: Trees, verb: str, function: str) -> tuple[Counter[str], Counter[str]]:
    """Declarations of a verb by column, and how many options and arguments are written there by hand."""
    times: Counter[str] = Counter()
    written: Counter[str] = Counter()
    for tree in shell.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                times["function"] += node.name == function
                if node.name == f"_{verb}_options":
                    times["options"] += 1
                    written["options"] += sum(
                        named(call.func).endswith(("add_argument", "_option")) for call in calls(node)
                    )
                if node.name == f"_{verb}":
                    times["text"] += any(
                        named(call.func).endswith("_text") or named(call.func) in ("print", "show")
                        for call in calls(node)
                    )
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(FROM):
                times["names"] += sum(alias.name == function for alias in node.names)
            elif isinstance(node, ast.List):
                times["names"] += list(map(text_of, node.elts)).count(function)
            elif isinstance(node, ast.Dict):
                times["entry"] += [text_of(key) for key in node.keys if key is not None].count(verb)
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == f"verbs.{function}":
                times["call"] += 1
                written["call"] += len(node.keywords) + len(node.args)
    return times, written


def parsed(source: Path) -> Trees:
    """The syntax trees of a package."""
    return {file: ast.parse(file.read_text(encoding="utf-8")) for file in sorted(source.rglob("*.py"))}


def table(title: str, columns: tuple[str, ...], sides: list[dict[str, list[int | str]]]) -> None:
    """Print rows, one line each."""
    names = list(dict.fromkeys(name for side in sides for name in side))
    rows = []
    for name in names:
        cells = [list(map(str, side.get(name, ["-"] * len(columns)))) for side in sides]
        rows.append([name, *(" -> ".join(dict.fromkeys(cell)) for cell in zip(*cells, strict=True))])
    widths = [max(map(len, column)) for column in zip([title, *columns], *rows, strict=True)]
    for row in [[title, *columns], *rows]:
        print(
            "  ".join(
                [
                    f"{row[0]:<{widths[0]}}",
                    *(f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True)),
                ]
            )
        )
    print()


def sizes(source: Path) -> dict[str, list[int | str]]:
    """Rows of the table of packages, with totals."""
    packages = per_package(source, parsed(source))
    packages["all"] = sum(packages.values(), Counter())
    return {
        name: [f"{found[key]:,}" for key in ("files", "code", "docstrings", "lines")]
        for name, found in packages.items()
    }


def verbs(source: Path) -> dict[str, list[int | str]]:
    """Rows of the table of verbs: declarations of each, and in brackets what is written by hand."""
    trees = parsed(source)
    shell = {file: trees[file] for file in trees if file.relative_to(source).with_suffix("").parts[0] in SHELL}
    rows: dict[str, list[int | str]] = {}
    total: Counter[str] = Counter()
    for verb, function in VERBS.items():
        times, written = declarations(shell, verb, function)
        total.update(times)
        rows[verb] = [f"{times[key]} ({written[key]})" if written[key] else times[key] for key in COLUMNS]
        rows[verb].append(sum(times.values()))
    return rows | {"all": [*(total[key] for key in COLUMNS), sum(total.values())]}


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", metavar="SRC", nargs="*", type=Path, default=[SOURCE], help="one or two packages")
    sources = parser.parse_args().sources
    tables: tuple[tuple[str, tuple[str, ...], Callable[[Path], dict[str, list[int | str]]]], ...] = (
        ("package", ("files", "code lines", "docstring lines", "all lines"), sizes),
        ("verb", (*COLUMNS, "declared"), verbs),
    )
    for title, columns, rows in tables:
        table(title, columns, [rows(source) for source in sources])


if __name__ == "__main__":
    main()
