"""Where a module can be mutated, and how: mutmut's operators, and two more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import libcst as cst
import libcst.matchers as m
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation import mutators

LEFT_OUT = {
    mutators.operator_assignment,  # a value that becomes None crashes where it is used, which only shows that the line runs
    mutators.operator_lambda,
}
OPERATORS = [(kind, operator) for kind, operator in mutators.mutation_operators if operator not in LEFT_OUT]
_DOCUMENTATION = m.Expr(m.SimpleString() | m.ConcatenatedString()) | m.Assign([m.AssignTarget(m.Name("__all__"))])
_STRICT = m.Arg(keyword=m.Name("strict"))  # of zip: required by the linter; what it rejects cannot occur
_TYPES = m.Annotation() | m.Call(m.Name("cast"))
NOT_MUTATED = _TYPES | m.Decorator() | m.Import() | m.ImportFrom() | _DOCUMENTATION | _STRICT
STATEMENTS = (cst.SimpleStatementLine, cst.BaseCompoundStatement)


@dataclass(frozen=True, eq=False)
class Site:
    """One mutation. Tests of `lines` can kill it: the lines of its statement, or of the function if it changes a default."""

    line: int
    operator: str
    lines: range | None
    node: cst.CSTNode
    mutated: cst.CSTNode


def negated_condition(node: cst.If | cst.While | cst.CompIf) -> Iterator[cst.CSTNode]:
    """`if done:` to `if not (done):`; mutmut changes only comparisons and `not`."""
    if not m.matches(node.test, m.Comparison() | m.UnaryOperation(m.Not())):
        inner = node.test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        yield node.with_changes(test=cst.UnaryOperation(cst.Not(), inner))


def dropped_statement(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Removes a call, a raise, or an assignment to an attribute or an item."""
    attribute = m.Attribute() | m.Subscript()
    if m.matches(node, m.Expr(m.Call()) | m.Raise() | m.AugAssign() | m.Assign([m.AssignTarget(attribute)])):
        yield cst.Pass()


OWN_OPERATORS: list[tuple[Any, Any]] = [
    ((cst.If, cst.While, cst.CompIf), negated_condition),
    (cst.BaseSmallStatement, dropped_statement),
]


class _Finder(cst.CSTVisitor):
    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self) -> None:
        super().__init__()
        self.sites: list[Site] = []
        self.statements: list[Any] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        if m.matches(node, NOT_MUTATED) or (isinstance(node, cst.SimpleString) and self._inside(m.Raise())):
            return False
        if isinstance(node, (*STATEMENTS, cst.Raise)):
            self.statements.append(node)
        for kind, operator in (*OPERATORS, *OWN_OPERATORS):
            if isinstance(node, kind):
                name = operator.__name__.removeprefix("operator_")
                self.sites += [
                    Site(self._span(node).start.line, name, self._lines(node), node, mutated)
                    for mutated in operator(node)
                    if not _crashes(operator, node, mutated)
                ]
        return True

    def on_leave(self, node: cst.CSTNode) -> None:
        if self.statements and self.statements[-1] is node:
            self.statements.pop()

    def _inside(self, pattern: Any) -> bool:
        return any(m.matches(statement, pattern) for statement in self.statements)

    def _span(self, node: cst.CSTNode) -> Any:
        """Location of a node; for an operator, of its statement."""
        found = self.get_metadata(PositionProvider, node, None)
        return found or self.get_metadata(PositionProvider, self.statements[-1])

    def _lines(self, node: cst.CSTNode) -> range | None:
        """See `Site`; none for code that runs on import."""
        line = self._span(node).start.line
        functions = [statement for statement in self.statements if isinstance(statement, cst.FunctionDef)]
        if not functions:
            return None
        body = self._span(functions[-1].body)
        if len(functions) == 1 and line < body.start.line:
            return range(body.start.line, body.end.line + 1)
        statement = next(s for s in reversed(self.statements) if isinstance(s, STATEMENTS))
        span, inner = self._span(statement), getattr(statement, "body", None)
        end = self._span(inner).start.line - 1 if isinstance(inner, cst.IndentedBlock) else span.end.line
        return range(span.start.line, max(end, line) + 1)


def _crashes(operator: Any, node: Any, mutated: Any) -> bool:
    """Whether an argument becomes None, or a positional one is dropped: see `LEFT_OUT`."""
    if operator is not mutators.operator_arg_removal:
        return False
    lost = [argument for argument in node.args if argument not in mutated.args]
    return len(mutated.args) == len(node.args) or not (lost[0].keyword or lost[0].star) or m.matches(lost[0], _STRICT)


def sites(source: str) -> tuple[cst.Module, list[Site]]:
    """All mutations of a source, and its syntax tree."""
    wrapper = MetadataWrapper(cst.parse_module(source))
    finder = _Finder()
    wrapper.visit(finder)
    return wrapper.module, finder.sites


def mutated_source(module: cst.Module, site: Site) -> str:
    """The source after one mutation."""
    changed: Any = module.deep_replace(site.node, site.mutated)
    return str(changed.code)
