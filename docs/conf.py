"""Configuration of the documentation site: `make docs` builds the pages of this folder into build/docs."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from sphinx.application import Sphinx

import unicloze
from unicloze import docstrings

sys.path.insert(0, str(Path(__file__).parent))

import generated

project = "unicloze"
author = "unicloze contributors"
version = release = unicloze.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = f"unicloze {release}"
html_copy_source = False
html_show_copyright = False
myst_heading_anchors = 3
smartquotes = False
autodoc_class_signature = "separated"  # the fields of a class are described below it
default_role = "literal"  # docstrings mark code by single backticks

PAGES = Path(__file__).parent
OUTSIDE = re.compile(r"\[([^\]\n]+)\]\(((?:\.\./)+[^)#\s]+)[^)\s]*\)")


def fill_in(app: Sphinx, page: str, source: list[str]) -> None:
    """Replace the mark `<!-- generated: NAME -->` of a page by that text; links to files that are not pages become names."""

    def named(found: re.Match[str]) -> str:
        target = (app.env.doc2path(page).parent / found[2]).resolve()
        return found[0] if target.is_relative_to(PAGES) else f"`{target.relative_to(PAGES.parent).as_posix()}`"

    text = re.sub(r"<!-- generated: ([a-z-]+) -->", lambda found: generated.TEXTS[found[1]](), source[0])
    source[0] = OUTSIDE.sub(named, text)


def readable_signature(
    app: Sphinx, what: str, name: str, documented: Any, options: Any, signature: str | None, returned: str | None
) -> tuple[str, str] | None:
    """The signature without the marks that only the command line reads."""
    if what != "function":
        return None
    shown = inspect.signature(documented)
    module = vars(sys.modules[documented.__module__])
    parameters = [
        parameter.replace(annotation=_Plain(_readable(parameter.annotation, module)))
        for parameter in shown.parameters.values()
    ]
    text = str(shown.replace(parameters=parameters, return_annotation=inspect.Signature.empty))
    return text, _readable(shown.return_annotation, module)


class _Plain:
    """An annotation that prints as it is written."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


class _WithoutMarks(ast.NodeTransformer):
    """Replaces `Annotated[X, ...]` by X, and names of annotations by what they stand for."""

    def __init__(self, module: dict[str, Any]) -> None:
        self.module = module

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """Keep the type of an annotation with marks, and literal values as they are."""
        name = ast.unparse(node.value)
        if name == "Annotated" and isinstance(node.slice, ast.Tuple):
            return self.visit(node.slice.elts[0])
        return node if name == "Literal" else self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        """Read a quoted annotation."""
        return self.visit(ast.parse(node.value, mode="eval").body) if isinstance(node.value, str) else node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """Spell out a name that stands for marked types or for literal values."""
        meant = self.module.get(node.id)
        if get_origin(meant) is Annotated:
            inner = meant.__origin__
            text = getattr(inner, "__forward_arg__", None) or getattr(inner, "__name__", None) or "PathLike"
            return ast.parse(text, mode="eval").body
        if get_origin(meant) is Literal:
            return ast.parse(f"Literal{list(get_args(meant))}", mode="eval").body
        return node


def _readable(annotation: str, module: dict[str, Any]) -> str:
    return ast.unparse(_WithoutMarks(module).visit(ast.parse(annotation, mode="eval").body))


def readable_docstring(app: Sphinx, what: str, name: str, documented: Any, options: Any, lines: list[str]) -> None:
    """Commands as blocks of code, and descriptions that refer to another function spelled out."""
    module = vars(sys.modules.get(getattr(documented, "__module__", ""), unicloze))
    text = "\n".join(lines)

    def spelled_out(found: re.Match[str]) -> str:
        return f"{found[1]}{docstrings.arguments(module[found[3]])[found[2]]}" if found[3] in module else found[0]

    text = text.replace("*Shape:*", "Shape").replace("*", r"\*")
    text = re.sub(r"^( +(\w+): )As of `(\w+)`\.", spelled_out, text, flags=re.MULTILINE)

    def block(found: re.Match[str]) -> str:
        indented = re.sub(r"^(?=.)", "    ", found[1].replace("\\*", "*"), flags=re.MULTILINE)
        return f"Examples:\n    .. code-block:: sh\n\n{indented}\n"

    lines[:] = re.sub(r"^Examples:\n((?: .*\n?)+)", block, text, flags=re.MULTILINE).split("\n")


def setup(app: Sphinx) -> None:
    """Connect the functions above."""
    app.connect("source-read", fill_in)
    app.connect("autodoc-process-signature", readable_signature)
    app.connect("autodoc-process-docstring", readable_docstring, priority=400)  # before napoleon's
