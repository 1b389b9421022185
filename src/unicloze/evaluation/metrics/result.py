"""Defines metrics and their results, checks their inputs, and processes texts as the papers did before scoring."""

from __future__ import annotations

import importlib
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from itertools import count
from types import ModuleType
from typing import Any, Literal

from unicloze.characters import IDEOGRAPH
from unicloze.errors import UniclozeError, UsageError
from unicloze.files import Plain

Compared = Literal["texts", "labels", "numbers", "tags", "squad", "coqa"]
"""Type of predictions and references; see `unicloze.evaluation.metrics.registry` for how each is passed."""


def shown(value: float, unit: str = "%", deviation: float | None = None) -> str:
    """A value of a metric, with its deviation if known, and its unit, which is omitted for percent."""
    digits = ".2f" if unit == "%" else ".4g"
    said = f"{value:{digits}}" + ("" if deviation is None else f" \u00b1 {deviation:{digits}}")
    return said if unit == "%" else f"{said} {unit}".rstrip()


@dataclass(frozen=True, kw_only=True)
class MetricResult(Plain):
    """Values of one metric.

    Args:
        metric: Name of the metric.
        values: The values by name, in percent unless `units` says otherwise.
        items: Number of predictions compared.
        units: Units of values that are not percentages; an empty unit marks a plain number.
        note: Caveats about the values: settings that change them, missing predictions.
        errors: Standard errors of the values, in their units, if estimated; see `spread`.
        undefined: Names of values that are undefined on these items, such as the precision of a class that is never
            predicted; `values` has 0 for them.
    """

    metric: str
    values: Mapping[str, float]
    items: int
    units: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    errors: Mapping[str, float] = field(default_factory=dict)
    undefined: Sequence[str] = field(default_factory=list)

    def shown(self, name: str, value: float | None = None) -> str:
        """One of the values, or a difference or error of it, with its unit."""
        return shown(self.values[name] if value is None else value, self.units.get(name, "%"))

    def __str__(self) -> str:
        width = max(map(len, self.values))
        lines = [f"{self.metric} of {self.items:,} item{'' if self.items == 1 else 's'}"]
        for name, value in self.values.items():
            unit = self.units.get(name, "%")
            digits = 2 if unit == "%" else 4
            error = f" (standard error {self.errors[name]:.{digits}f})" if name in self.errors else ""
            undefined = " (undefined, given as 0)" if name in self.undefined else ""
            lines.append(f"  {name:<{width}}  {value:>9.{digits}f}{f' {unit}' if unit else ''}{error}{undefined}")
        if self.note:
            lines.append(f"  {self.note}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Metric:
    """A metric that can be selected by name."""

    purpose: str  # what it measures, in one line
    compares: Compared  # type of predictions and references
    function: Callable[..., MetricResult]  # takes predictions, references, and options as keywords
    headline: str  # name of the value that ranks models
    higher_is_better: bool = True  # whether a higher headline value is better
    extra: str | None = None  # extra of the package with the libraries it needs; None if it needs none
    # its options and their allowed values; an empty list allows any text
    options: Mapping[str, Sequence[str]] = field(default_factory=dict)
    needs_references: bool = True  # whether it compares predictions with references or measures them alone
    # raises an error if a program that it needs is not installed; None if it needs none
    check_programs: Callable[[], object] | None = None

    def __call__(self, predictions: Any, references: Any, **options: Any) -> MetricResult:
        """Compare predictions with references."""
        self.check_options(options)
        return self.function(predictions, references, **options)

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Reject unknown options and values.

        Raises:
            UsageError: The metric has no such option, or the option does not allow the value.
        """
        for name, value in options.items():
            if name not in self.options:
                known = ", ".join(self.options) or "none"
                raise UsageError(f"This metric has no option {name}: it takes {known}.")
            allowed = self.options[name]
            if allowed and value not in allowed:
                raise UsageError(f"{name} is {value!r}: give one of {', '.join(allowed)}.")


def check_same_length(predictions: Sized, references: Sized) -> None:
    """Check that there are predictions, and as many references."""
    if len(predictions) != len(references):
        counts = f"{len(predictions):,} predictions and {len(references):,} references"
        raise UniclozeError(f"There are {counts}: give one for each.")
    if not len(predictions):
        raise UniclozeError("There is nothing to compare: give at least one prediction and its reference.")


def check_texts(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    """Check that each prediction has at least one reference."""
    check_same_length(predictions, references)
    for number, several in enumerate(references, start=1):
        if isinstance(several, str):
            raise UsageError("The references of a text must be a list: give [reference] if there is one.")
        if not several:
            raise UniclozeError(f"Prediction {number:,} has no reference: give it one, or leave it out.")


def library(module: str, extra: str) -> ModuleType:
    """A module of an optional package."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        missing = f"{module.partition('.')[0]} ({error})"
        raise UniclozeError(f'This metric needs {missing}: in the clone, pip install -e ".[{extra}]".') from error


_SENTENCE_ENDS: Sequence[tuple[re.Pattern[str], str]] = (
    (re.compile(r"(?<=\s[.!?])(?<!\s[^\W\d_]\s\.)\s+"), "\n"),
    (re.compile(r"((?<=[.!?])(?<!\b\w\.)[\"'\u201d\u2019)\]]*)\s+(?=[\"'\u201c\u2018(\[]*[A-Z0-9])"), r"\1\n"),
)
_LOWER_SENTENCE_END = re.compile(
    r"((?<=[.!?])(?<!\b\w\.)(?<!\b\w\s\.)[\"'\u201d\u2019)\]]*)\s+(?=[\"'\u201c\u2018(\[]*\w)"
)
_BRACKETS = {"(": "-LRB-", ")": "-RRB-", "[": "-LSB-", "]": "-RSB-", "{": "-LCB-", "}": "-RCB-"}
_LOWER_BRACKETS = {bracket: code.lower() for bracket, code in _BRACKETS.items()} | {
    "[UNK]": "UNK", "<unk>": "UNK", "&": "&amp;", "<": "&lt;", ">": "&gt;",
}  # fmt: skip
_ROUND = {"(": "-LRB-", ")": "-RRB-"}
_SQUARE = {"[": "-LSB-", "]": "-RSB-"}
_CONTRACTIONS: Sequence[tuple[re.Pattern[str], str]] = (
    (re.compile(r"n ' t(?!\S)"), " n't"),
    (re.compile(r"(?<!\S)' (s|d|ll)(?!\S)"), r"'\1"),
)
_JOINED: Sequence[tuple[re.Pattern[str], str]] = (
    (re.compile(r"(?<!\S)\. \. \.(?!\S)"), "..."),
    (re.compile(r"(?<!\S)([\d,]+) , (?=[\d,]+(?!\S))"), r"\1,"),
    (re.compile(r"(?<!\S)(\d+) \. (\d+)(?!\S)"), r"\1.\2"),
)
_INITIALS = re.compile(r"(?<!\S)[A-Z](?: \. [A-Z])+ \.(?!\S)")
_DASHES: Sequence[tuple[re.Pattern[str], str]] = (
    (re.compile(r"(?<!\S)- -(?!\S)"), "--"),
    (re.compile(r"(?:(?<=[^\W_])|(?<=[^\W_]\.)) - (?=[^\W_])"), "-"),
)
_MARKS = re.compile(r"(\[[a-z_]+\]|-[lr][rsc]b-|<unk>|<s_sep>)", re.IGNORECASE)
_LONE = re.compile(r"(?<!\S)[.,;:?!](?!\S)")


# UniLM's generators output word pieces joined into tokens, while its references are tokenised by Stanford's
# tokenizer; so its released scripts first convert predictions to that tokenizer's spelling. The rules below are the
# same, except that any number of initials is joined, where the scripts join two and leave a stray full stop.
# References stay unchanged, except for `uncased`, which reduces both sides to what a lower-casing tokenizer can
# produce.


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Processing of the texts of a data set before comparison. Each line of the result is a sentence."""

    prediction: Callable[[str], str]  # applied to each prediction
    reference: Callable[[str], str]  # applied to each reference


def sentences(text: str) -> str:
    """The text with one sentence per line.

    A text with line breaks is unchanged. Otherwise a sentence ends with a separate full stop, `!` or `?`, or with one at the
    end of a word if a capital or a digit follows (any letter if the text has no capitals); a full stop after an initial
    does not end a sentence.
    """
    text = text.strip()
    if "\n" in text:
        return text
    lower = () if text != text.lower() else [(_LOWER_SENTENCE_END, r"\1\n")]
    return _substituted(text, [*_SENTENCE_ENDS, *lower])


def retokenise(text: str, *, symbols: Mapping[str, str] | None = None, quotes: bool = True, dashes: bool = True) -> str:
    """Words and punctuation marks, as a WordPiece tokenizer splits them, in the spelling of the Penn Treebank.

    `do n ' t` becomes `do n't`, `John ' s` `John 's`, `3 , 000` `3,000`, `3 . 5` `3.5`, `U . N .` `U.N.`.
    """
    text = " ".join(symbols.get(word, word) if symbols else word for word in words(text))
    text = _substituted(text, _CONTRACTIONS)
    if quotes:
        text = _turned(_turned(text, '"', ("``", "''")), "'", ("`", "'"))
    text = _substituted(text, _JOINED)
    text = _INITIALS.sub(lambda found: found[0].replace(" ", ""), text)
    return " ".join((_substituted(text, _DASHES) if dashes else text).split())


def _substituted(text: str, rules: Sequence[tuple[re.Pattern[str], str]]) -> str:
    for pattern, replacement in rules:
        text = pattern.sub(replacement, text)
    return text


def _turned(text: str, quote: str, turned: tuple[str, str]) -> str:
    """The text with separate quotes replaced alternately by opening and closing ones."""
    turn = count()
    return " ".join(turned[next(turn) % 2] if token == quote else token for token in text.split(" "))


def _replaced(text: str, symbols: Mapping[str, str]) -> str:
    for symbol, code in symbols.items():
        text = text.replace(symbol, f" {code} ")
    return " ".join(text.split())


def summary(text: str, longest: int) -> str:
    """Process a CNN/DailyMail prediction: drop sentences of at most four tokens and repetitions, and truncate the rest.

    Sentences are separated by UniLM's token `[X_SEP]`, or found by `sentences` if there is none. A sentence is a repetition
    if more than 70 % of its words occur in earlier sentences.
    """
    kept: list[str] = []
    seen: set[str] = set()
    left = longest
    for sentence in text.split("[X_SEP]") if "[X_SEP]" in text else sentences(text).split("\n"):
        tokens = _replaced(retokenise(sentence, symbols=_BRACKETS), _ROUND | _SQUARE).split()
        if len(tokens) <= 4:
            continue
        words = {token.lower() for token in tokens}
        repeated = len(words & seen) / len(words) > 0.7
        seen |= words
        if not repeated and left > 0:
            kept.append(" ".join(tokens[:left]))
            left -= len(tokens)
    return "\n".join(kept)


def uncased(text: str) -> str:
    """The text as an uncased tokenizer splits it: lower case, no accents, spaces around punctuation and ideographs."""
    letters = unicodedata.normalize("NFD", text.lower())
    return " ".join(_parted("".join(letter for letter in letters if unicodedata.category(letter) != "Mn")))


def words(text: str) -> list[str]:
    """The words and punctuation marks of a text; a text with a separate punctuation mark is already tokenised."""
    return text.split() if _LONE.search(text) else _parted(text)


def _parted(text: str) -> list[str]:
    """Split off every punctuation mark and ideograph as a word; `[UNK]`, `-LRB-` and similar tokens stay whole."""
    parted: list[str] = []
    for part in _MARKS.split(text):
        apart = (f" {one} " if unicodedata.category(one)[0] in "PS" or IDEOGRAPH.match(one) else one for one in part)
        parted += [part] if _MARKS.fullmatch(part) else "".join(apart).split()
    return parted


def _cnndm(text: str) -> str:
    return text.strip().replace(" <S_SEP> ", "\n")


PROFILES: Mapping[str, Profile] = {
    "sentences": Profile(prediction=sentences, reference=sentences),
    "uncased": Profile(prediction=uncased, reference=uncased),
    "cnndm": Profile(prediction=lambda text: summary(text, 160), reference=_cnndm),
    "cnndm-v1": Profile(prediction=lambda text: summary(text, 70), reference=_cnndm),
    "xsum": Profile(
        prediction=lambda text: _replaced(retokenise(text, quotes=False, dashes=False), _ROUND), reference=str.strip
    ),
    "gigaword": Profile(
        prediction=lambda text: retokenise(text, symbols=_LOWER_BRACKETS).replace("1", "#"), reference=str.strip
    ),
    "squad-qg": Profile(prediction=lambda text: retokenise(text, symbols=_LOWER_BRACKETS).lower(), reference=str.strip),
}
"""Profiles by name. `sentences` only splits sentences; `uncased` compares what an uncased generator can write; `cnndm` keeps
160 tokens like UniLM's later release (s2s-ft), `cnndm-v1` 70 like its first; `gigaword` replaces 1 by `#`, which that data
has for digits; `squad-qg` is for questions with references in Stanford's spelling, as in Du and Cardie's files."""


def profiled(
    predictions: Sequence[str], references: Sequence[Sequence[str]], profile: str
) -> tuple[list[str], list[list[str]]]:
    """Predictions and references processed by a profile."""
    rules = PROFILES[profile]
    return [rules.prediction(text) for text in predictions], [
        [rules.reference(text) for text in several] for several in references
    ]
