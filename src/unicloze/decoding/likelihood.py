"""Scores texts, and answers in the blanks of texts.

A text has a log-likelihood by the chain rule from left to right, and a pseudo-log-likelihood with one token masked.

For zero- and few-shot prompting, a causal model predicts the answer and the text after it from the text before it. A model
that predicts step by step (PAR) predicts the answer from both sides, token by token from left to right, with a mask at each
token not yet known.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

import numpy as np
import numpy.typing as npt
import torch

from unicloze.arrays import Flags, Int32s
from unicloze.decoding import inputs
from unicloze.decoding.embed import rows_to_encode
from unicloze.errors import UniclozeError, UsageError
from unicloze.example import Memory
from unicloze.files import Plain, PlainList
from unicloze.mixtures import parts
from unicloze.model.model import perplexity
from unicloze.objectives import OBJECTIVES, Ability, defined
from unicloze.progress import Progress
from unicloze.settings import Mode, ObjectiveSettings, Recipe
from unicloze.training.loading import LoadedModel


def with_memories(
    model: LoadedModel, pieces: Sequence[inputs.ReadWindow], batch_size: int, *, fills: bool = False
) -> Iterator[tuple[list[int], Memory | None]]:
    """Yield groups of pieces of different texts, with the memory of the pieces before each.

    Every piece is yielded once, those of a text in order. Earlier pieces are read unmasked, by the caller, who then fills
    the memory, or once more here.
    """
    if batch_size < 1:
        raise UsageError(f"batch_size is {batch_size}: give 1 or more")
    of_text: dict[int, list[int]] = {}
    for number, piece in enumerate(pieces):
        of_text.setdefault(piece.text, []).append(number)
    texts = sorted(of_text.values(), key=lambda numbers: -len(numbers))
    for first in range(0, len(texts), batch_size):
        group = texts[first : first + batch_size]
        if len(group[0]) == 1 and not fills:
            yield [number for numbers in group for number in numbers], None
            continue
        shape, device = model.model.settings.memory_shape(len(group)), model.compute.device
        lengths = torch.zeros(len(group), dtype=torch.long, device=device)
        memory = Memory(states=torch.zeros(shape, device=device), lengths=lengths)
        for place in range(len(group[0])):
            going = [numbers[place] for numbers in group if len(numbers) > place]
            memory = rows_of(memory, np.arange(len(going)))
            yield going, memory if place or fills else None
            if not fills and place + 1 < len(group[0]):
                _remember(model, [pieces[number] for number in going], memory, batch_size)


def rows_of(memory: Memory, rows: npt.NDArray[np.int64]) -> Memory:
    """The memory restricted to some rows."""
    chosen = torch.from_numpy(rows).to(memory.lengths.device)
    return Memory(states=memory.states[:, chosen], lengths=memory.lengths[chosen])


def put_rows(memory: Memory, rows: npt.NDArray[np.int64], of_rows: Memory) -> None:
    """Replace some rows of a memory."""
    chosen = torch.from_numpy(rows).to(memory.lengths.device)
    memory.states[:, chosen], memory.lengths[chosen] = of_rows.states, of_rows.lengths


@torch.inference_mode()
def _remember(model: LoadedModel, pieces: Sequence[inputs.ReadWindow], memory: Memory, batch_size: int) -> None:
    """Read each piece, and update its row of the memory."""
    for block in inputs.by_length([len(piece) for piece in pieces], batch_size):
        windows = inputs.one_segment([pieces[i].tokens for i in block], model.tokenizer.vocabulary)
        of_block = rows_of(memory, block)
        with model.compute.autocast():
            model.model.backbone(inputs.batch_of(model, rows_to_encode(windows, model.recipe), of_block, updates=True))
        put_rows(memory, block, of_block)


Measure = Literal["pseudo", "chain"]
Report = Callable[[int], object]
Result = TypeVar("Result")

_ASKS: dict[Measure, tuple[Ability, str]] = {
    "pseudo": ("cloze", "a pseudo-log-likelihood"),
    "chain": ("causal", "a log-likelihood by the chain rule"),
}


@dataclass(frozen=True, kw_only=True)
class TextScore(Plain):
    """Likelihood of a text. Logarithms are natural; scores that the objective does not define or nobody asked for are None.

    Args:
        text: The text.
        tokens: Its tokens, as spelled in the vocabulary.
        chain_log_likelihood: Sum of log p(token | the tokens left of it). UniLMv2 predicts with a mask at every position
            of the context (equation 4 with steps of one token, left to right), so for it the likelihood is conditional on
            the number of tokens.
        chain_per_token: The terms of that sum; None for a token the model never predicts, such as [UNK].
        chain_perplexity: exp of minus their mean.
        chain_perplexity_per_word: exp of minus `chain_log_likelihood` per white-space-separated word: unlike perplexity per
            token, it can be compared between vocabularies. None if any token is not scored.
        bits_per_byte: -`chain_log_likelihood` in bits per UTF-8 byte of the text; None if any token is not scored, as its
            bytes would seem to cost nothing.
        bits_per_character: The same per character (Unicode code point).
        pseudo_log_likelihood: Sum of log p(token | all other tokens), each token masked alone (Salazar et al. 2020).
        pseudo_per_token: The terms of that sum; None for a token the model never predicts.
        pseudo_perplexity: exp of minus their mean.
        pseudo_perplexity_per_word: As for the chain rule.
        windows: Number of windows the text was cut into; their scores are summed.
        note: Caveats about these numbers, if any.
    """

    text: str
    tokens: list[str]
    chain_log_likelihood: float | None
    chain_per_token: list[float | None] | None
    chain_perplexity: float | None
    chain_perplexity_per_word: float | None
    bits_per_byte: float | None
    bits_per_character: float | None
    pseudo_log_likelihood: float | None
    pseudo_per_token: list[float | None] | None
    pseudo_perplexity: float | None
    pseudo_perplexity_per_word: float | None
    windows: int
    note: str | None

    def __str__(self) -> str:
        lines = [self.text if len(self.text) <= 100 else f"{self.text[:99]}\u2026"]
        tokens = f"{len(self.tokens):,} tokens"
        bits = "" if self.bits_per_byte is None else f"{self.bits_per_byte:.3f} bits per byte, "
        if self.bits_per_character not in (None, self.bits_per_byte):
            bits += f"{self.bits_per_character:.3f} per character, "
        for measure, name, more in (("chain", "log-likelihood", bits), ("pseudo", "pseudo-log-likelihood", "")):
            kinds = "log_likelihood", "perplexity", "perplexity_per_word"
            total, of_tokens, of_words = (getattr(self, f"{measure}_{kind}") for kind in kinds)
            if total is not None:
                per_word = "" if of_words is None else f" ({of_words:,.1f} per word)"
                lines.append(f"  {name:<21}  {total:10.2f}  perplexity {of_tokens:,.1f}{per_word}, {more}{tokens}")
        if self.chain_per_token is None and self.pseudo_per_token is None:
            lines.append("  no score: the model's objective defines none")
        elif self.chain_log_likelihood is None and self.pseudo_log_likelihood is None:
            lines.append("  nothing to score: none of its tokens is in the vocabulary")
        return "\n".join(lines)


class Scores(PlainList[TextScore]):
    """Scores of texts; `str` lists each, then their total."""

    @property
    def notes(self) -> list[str]:
        """Distinct notes of the scores."""
        return list(dict.fromkeys(score.note for score in self if score.note))

    def __str__(self) -> str:
        return "\n".join(map(str, [*self, together(self)] if len(self) > 1 else self))


def score(
    model: LoadedModel,
    texts: Sequence[str],
    *,
    mode: Mode | None = None,
    batch_size: int = 32,
    progress: bool = False,
) -> list[TextScore]:
    """Score texts: the chain rule takes one batch row per window, masking each token alone takes one row per token.

    A text's score depends neither on the other texts nor on `batch_size`, up to rounding. Tokens the model never
    predicts ([UNK]) are read as context but not scored. Texts longer than the model reads at once are cut into consecutive
    windows; if the model has a memory (XLNet), each window reads the memory of those before it.

    Args:
        model: The model.
        texts: The texts; names of special tokens in them are plain text.
        mode: What to compute; default: all that the objective defines.
        batch_size: Maximum number of rows per forward pass.
        progress: Show progress.

    Raises:
        UsageError: A text is blank, `batch_size` is below 1, or the model does not define what `mode` asks for.
        UniclozeError: The model predicts nan.
    """
    inputs.check_predicts_tokens(model, "score texts")
    steps = _scoring(model, texts, *inputs.cut(model, texts, remembers=True), mode, batch_size)
    with Progress("score", next(steps), "predictions", show=progress) as bar:
        return _drained(steps, bar.update)


def scoring(model: LoadedModel, texts: Sequence[str]) -> Generator[int, None, list[TextScore]]:
    """As `score`, a forward pass per step: yields the number of all predictions, then those of each pass."""
    inputs.check_predicts_tokens(model, "score texts")
    return _scoring(model, texts, *inputs.cut(model, texts, remembers=True))


def _scoring(
    model: LoadedModel,
    texts: Sequence[str],
    tokens: Sequence[Int32s],
    pieces: Sequence[inputs.ReadWindow],
    mode: Mode | None = None,
    batch_size: int = 32,
) -> Generator[int, None, list[TextScore]]:
    special, objective = model.tokenizer.vocabulary.special, inputs.objective_of(model.recipe)
    logs: dict[Measure, list[inputs.Logs] | None] = dict.fromkeys(_ASKS)
    measures, ends = measures_of(objective, mode), np.cumsum([len(ids) for ids in tokens])[:-1]
    yield len(measures) * sum(int((~np.isin(ids, special)).sum()) for ids in tokens)
    for measure in measures:
        found = yield from _asking(model, pieces, measure, batch_size)
        logs[measure] = np.split(np.concatenate([np.empty(0), *found]), ends)
    scores, windows, wanted = [], Counter(piece.text for piece in pieces), _ASKS if mode is None else measures
    for i, (text, ids) in enumerate(zip(texts, tokens, strict=True)):
        unscored = int(np.isin(ids, special).sum())
        mask = next((mask for mask in model.tokenizer.masks if mask in text), None)
        note = _note(objective, wanted, unscored, windows[i], model.model.settings.memory, mask)
        terms = {measure: None if every is None else every[i] for measure, every in logs.items()}
        spelled = None if unscored else [text]
        scores.append(
            _of_logs(text, model.tokenizer.tokens(ids), terms, spelled=spelled, windows=windows[i], note=note)
        )
    return scores


def defines(objective: ObjectiveSettings, measure: Measure) -> bool:
    """Whether the objective defines a measure."""
    return inputs.part_with(objective, _ASKS[measure][0]) is not None


def measures_of(objective: ObjectiveSettings, mode: Mode | None) -> list[Measure]:
    """The measures of a mode, all of which the objective must define; by default those that it defines."""
    if mode is None:
        return [name for name in _ASKS if defines(objective, name)]
    if mode not in get_args(Mode):
        raise UsageError(f"mode is {mode!r}: give one of {', '.join(get_args(Mode))}")
    measures: list[Measure] = [*_ASKS] if mode == "both" else [mode]
    for measure in measures:
        check_defines(objective, measure)
    return measures


def check_defines(objective: ObjectiveSettings, measure: Measure) -> None:
    """Reject a measure that the objective does not define."""
    if not defines(objective, measure):
        other = next(
            (f"ask for `{name}`" for name in _ASKS if defines(objective, name)), "use a model of another objective"
        )
        raise UsageError(f"{inputs.lacks(objective, *_ASKS[measure])}, which `{measure}` asks for: {other}")


def log_probabilities(
    model: LoadedModel,
    pieces: Sequence[inputs.ReadWindow],
    measure: Measure,
    *,
    batch_size: int,
    progress: Report = lambda _: None,
) -> list[inputs.Logs]:
    """log p of each token of each piece; nan for tokens that are not scored."""
    return _drained(_asking(model, pieces, measure, batch_size), progress)


def _drained(steps: Generator[int, None, Result], report: Report) -> Result:
    """The result of a generator, whose pieces are reported."""
    while True:
        try:
            report(next(steps))
        except StopIteration as end:
            found: Result = end.value
            return found


def _asking(
    model: LoadedModel, pieces: Sequence[inputs.ReadWindow], measure: Measure, batch_size: int
) -> Generator[int, None, list[inputs.Logs]]:
    """As `log_probabilities`; yields the number of predictions of each forward pass."""
    check_defines(inputs.objective_of(model.recipe), measure)
    inputs.check_predicts_tokens(model, "score texts")
    if not model.model.settings.memory:
        return (yield from _ask(model, pieces, measure, batch_size, None))
    result: list[inputs.Logs] = [np.empty(0)] * len(pieces)
    # An LSTM reads the same rows to score a text as to remember it.
    fills = measure == "chain" and model.model.settings.kind == "recurrent"
    for numbers, memory in with_memories(model, pieces, batch_size, fills=fills):
        logs = yield from _ask(model, [pieces[each] for each in numbers], measure, batch_size, memory, fills=fills)
        for number, of_piece in zip(numbers, logs, strict=True):
            result[number] = of_piece
    return result


def _ask(
    loaded: LoadedModel, pieces: Sequence[inputs.ReadWindow], measure: Measure, batch_size: int, memory: Memory | None,
    *, fills: bool = False,
) -> Generator[int, None, list[inputs.Logs]]:  # fmt: skip
    """One row per piece by the chain rule, one per token that is masked alone; `memory` has one per piece."""
    result, special = [np.full(len(piece), np.nan) for piece in pieces], loaded.tokenizer.vocabulary.special
    asked = [(i, np.flatnonzero(~np.isin(piece.tokens, special))) for i, piece in enumerate(pieces)]
    if measure == "pseudo":
        asked = [(i, places[j : j + 1]) for i, places in asked for j in range(len(places))]
    cost = 3 if measure == "chain" else 1
    for block in inputs.by_length([len(pieces[i]) for i, _ in asked], batch_size, slots_per_token=cost):
        rows, texts = np.array([asked[row][0] for row in block]), [pieces[asked[row][0]].tokens for row in block]
        places = [asked[row][1] for row in block]
        steps = [np.where(np.isin(np.arange(len(ids)), own), 0, -1) for ids, own in zip(texts, places, strict=True)]
        examples = inputs.rows_to_ask(loaded, _ASKS[measure][0], texts, steps if measure == "pseudo" else None)
        of_block = None if memory is None else rows_of(memory, rows)
        logs = inputs.log_probability(*inputs.logits_of(loaded, examples, of_block, updates=fills))
        if fills and memory is not None and of_block is not None:
            put_rows(memory, rows, of_block)
        for row, own, found in zip(rows, places, logs, strict=True):
            result[row][own] = found[: len(own)]
        yield sum(map(len, places))
    return result


def together(scores: Sequence[TextScore]) -> TextScore:
    """The score of several texts as if they were one; None for measures that any of them lacks."""
    logs: dict[Measure, inputs.Logs | None] = {}
    for measure in _ASKS:
        terms = [getattr(one, f"{measure}_per_token") for one in scores]
        whole = bool(terms) and all(of_text is not None for of_text in terms)
        logs[measure] = np.array([term for of_text in terms for term in of_text], dtype=float) if whole else None
    scored = all(
        any(terms is not None and None not in terms for terms in (one.chain_per_token, one.pseudo_per_token))
        for one in scores
    )
    spelled = [one.text for one in scores] if scored else None
    tokens, windows = [token for one in scores for token in one.tokens], sum(one.windows for one in scores)
    return _of_logs(f"{len(scores):,} texts together", tokens, logs, spelled=spelled, windows=windows)


def _of_logs(
    text: str,
    tokens: list[str],
    logs: Mapping[Measure, inputs.Logs | None],
    *,
    spelled: Sequence[str] | None,
    windows: int,
    note: str | None = None,
) -> TextScore:
    """The score with these per-token terms; per-byte and per-word values are over `spelled`, None without it."""
    whole, words = "".join(spelled or ()), sum(len(each.split()) for each in spelled or ())
    values: dict[str, Any] = {}
    for measure, terms in logs.items():
        scored = 0 if terms is None else int(np.isfinite(terms).sum())
        total = float(np.nansum(terms)) if terms is not None and scored else None
        values |= {
            f"{measure}_log_likelihood": total,
            f"{measure}_per_token": None if terms is None else [None if math.isnan(x) else x for x in terms.tolist()],
            f"{measure}_perplexity": None if total is None else perplexity(-total, scored),
            f"{measure}_perplexity_per_word": None if total is None or not words else perplexity(-total, words),
        }
    chain = values["chain_log_likelihood"]
    bits = None if chain is None or not whole else -chain / math.log(2)
    return TextScore(
        text=text,
        tokens=tokens,
        bits_per_byte=None if bits is None else bits / len(whole.encode("utf-8")),
        bits_per_character=None if bits is None else bits / len(whole),
        windows=windows,
        note=note,
        **values,
    )


def _note(
    objective: ObjectiveSettings,
    wanted: Collection[Measure],
    unscored: int,
    windows: int,
    memory: int,
    mask: str | None,
) -> str | None:
    able = [part.settings for part in parts(objective) if defined(part.settings).causal is not None]
    masks = bool(able) and OBJECTIVES[able[0].name].causal_masks
    highest = max((max(one.rates) for one in able if one.rates is not None), default=1.0) if masks else 1.0
    read = f"each reads {memory:,} tokens of memory" if memory else "each scored by itself"
    fills = inputs.fills_masks(objective)
    missing = "1 token not in the vocabulary is" if unscored == 1 else f"{unscored} tokens not in the vocabulary are"
    notes = {
        **{inputs.lacks(objective, *asks): not defines(objective, measure) for measure, asks in _ASKS.items()
           if measure in wanted},
        f"the chain rule masks the whole text, but the model was trained at mask rates of at most {highest:.0%} "
        "(a part of objective.mixture can have a higher one): the first tokens have far less context than in training":
            "chain" in wanted and highest < 0.8,
        f"{missing} not scored": unscored,
        f"the text was cut into {windows} windows, {read}": windows > 1,
        f"{mask} is scored as plain text" + ": `unicloze fill` predicts what it stands for" * fills: bool(mask),
    }  # fmt: skip
    return "; ".join(note for note, holds in notes.items() if holds) or None


By = Literal["par", "chain"]

TEXTS_AT_ONCE = 1000
"""Texts encoded together: the tokenizer's output takes far more memory than the part that is kept."""

ABILITIES: dict[By, Ability] = {"par": "stepwise", "chain": "causal"}
"""Ability needed for each way to fill a blank, preferred way first."""


@dataclass(frozen=True, kw_only=True)
class Blank:
    """A text with an answer in it."""

    before: str  # text before the answer, without trailing white space, which belongs to the answer
    answer: str  # the answer
    after: str = ""  # text after the answer
    place: str = "a text"  # its origin, for messages


@dataclass(frozen=True, kw_only=True)
class Filled:
    """Likelihood of an answer."""

    # log p of each scored token, in nats; nan for a token the model never predicts ([UNK]). A causal model scores the
    # answer and the text after it, except [UNK] there; other models score the answer. *Shape:* (tokens,)
    logs: npt.NDArray[np.float64]
    greedy: Flags  # Whether each is the likeliest of all ordinary tokens at its position. *Shape:* (tokens,)


def way_of(recipe: Recipe) -> By:
    """How a model fills blanks: `par` if its objective defines it, else `chain`."""
    objective = inputs.objective_of(recipe)
    found = next((by for by, ability in ABILITIES.items() if inputs.part_with(objective, ability) is not None), None)
    if found is None:
        raise UsageError(
            f"{inputs.lacks(objective, 'causal', 'the likelihood of an answer')}: use a model of another objective, such as "
            "causal or unilmv2 with the target par"
        )
    return found


def fill_blanks(
    model: LoadedModel,
    blanks: Sequence[Blank],
    *,
    batch_size: int = 64,
    never_first: Int32s | None = None,
    progress: Callable[[int], object] = lambda _: None,
) -> list[Filled]:
    """Score each answer; texts too long for the model lose their beginning, with one warning.

    A score depends neither on the other blanks nor on `batch_size`, up to rounding.
    """
    by = way_of(model.recipe)
    inputs.check_predicts_tokens(model, "say how likely an answer is")
    rows, vocabulary = _rows(model, blanks, by), model.tokenizer.vocabulary
    lengths = [len(flags) + 2 * int(flags.sum()) if by == "par" else 2 * len(flags) for _, flags in rows]
    special = torch.from_numpy(vocabulary.special).long()
    banned = torch.from_numpy(np.zeros(0, np.int32) if never_first is None else never_first).long()
    counts = [int(flags.sum()) for _, flags in rows]
    filled = [Filled(logs=np.full(count, np.nan), greedy=np.zeros(count, dtype=bool)) for count in counts]
    for block in inputs.by_length(lengths, batch_size):
        asked = [rows[number][1] & ~np.isin(rows[number][0], vocabulary.special) for number in block]
        steps = [np.where(flags, np.cumsum(flags) - 1, -1) for flags in asked] if by == "par" else None
        examples = inputs.rows_to_ask(model, ABILITIES[by], [rows[number][0] for number in block], steps, asked)
        with torch.inference_mode():
            logits, labels = inputs.logits_of(model, examples)
            logs = inputs.log_probability(logits, labels)
            logits[:, :, special.to(logits.device)] = -torch.inf
            logits[:, 0, banned.to(logits.device)] = -torch.inf
            greedy = (logits.argmax(dim=-1) == labels).cpu().numpy()
        for row, number in enumerate(block):
            known = asked[row][rows[number][1]]
            filled[number].logs[known] = logs[row, : known.sum()]
            filled[number].greedy[known] = greedy[row, : known.sum()]
        progress(len(block))
    return filled


def _rows(model: LoadedModel, blanks: Sequence[Blank], by: By) -> list[tuple[Int32s, Flags]]:
    """Tokens of each text, cut to what the model reads, and which of them are scored."""
    limit, cut, unknown = inputs.longest_text(model), 0, model.tokenizer.vocabulary.unk
    for blank in blanks:
        inputs.check_text(blank.answer, f"the answer of {blank.place}")
    rows = []
    parts = (blanks[first : first + TEXTS_AT_ONCE] for first in range(0, len(blanks), TEXTS_AT_ONCE))
    encode = model.tokenizer.encode_batch_with_offsets
    texts = (text for part in parts for text in encode([one.before + one.answer + one.after for one in part]))
    for blank, (tokens, offsets) in zip(blanks, texts, strict=True):
        first = len(blank.before)
        behind = offsets[:, 0] >= first + len(blank.answer)
        asked = (offsets[:, 1] > first) & ~(behind if by == "par" else behind & (tokens == unknown))
        over = len(tokens) - limit
        if not asked.any():
            raise UniclozeError(f"{blank.place}: the answer '{blank.answer}' has no tokens: give it a word")
        if over > int(asked.argmax()):
            raise UniclozeError(
                f"{blank.place}: the answer and what follows it have {len(tokens) - int(asked.argmax())} tokens, but the "
                f"model reads {limit} at once: shorten them"
            )
        cut += over > 0
        rows.append((tokens[max(0, over) :].copy(), asked[max(0, over) :].copy()))  # copied to free the cut part
    if cut:
        warnings.warn(
            f"{cut:,} of {len(blanks):,} texts are longer than the {limit} tokens the model reads at once and lose their "
            "beginning",
            stacklevel=3,
        )
    return rows
