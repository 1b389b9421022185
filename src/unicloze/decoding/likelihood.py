"""Scores texts: log-likelihood by the chain rule from left to right, and pseudo-log-likelihood with one token masked."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from unicloze.decoding.embed import rows_to_encode
from unicloze.decoding.inputs import (
    Logs,
    ReadWindow,
    by_length,
    check_predicts_tokens,
    cut,
    lacks,
    log_probability,
    logits_of,
    objective_of,
    one_segment,
    part_with,
)
from unicloze.errors import UsageError
from unicloze.example import Memory, collate, select_rows
from unicloze.mixtures import parts
from unicloze.model.model import perplexity
from unicloze.objectives import OBJECTIVES, Ability, defined
from unicloze.settings import ObjectiveSettings
from unicloze.training.loading import LoadedModel


def with_memories(
    model: LoadedModel, pieces: Sequence[ReadWindow], batch_size: int, *, fills: bool = False
) -> Iterator[tuple[list[int], Memory | None, Memory | None]]:
    """Yield groups of pieces of different texts, with the memory of the pieces before each.

    Every piece is yielded once, those of a text in order. Earlier pieces are read unmasked, by the caller or once more here.
    """
    of_text: dict[int, list[int]] = {}
    for number, piece in enumerate(pieces):
        of_text.setdefault(piece.text, []).append(number)
    texts = sorted(of_text.values(), key=lambda numbers: -len(numbers))
    for first in range(0, len(texts), batch_size):
        group = texts[first : first + batch_size]
        memory: Memory | None = None
        for place in range(len(group[0])):
            going = [numbers[place] for numbers in group if len(numbers) > place]
            memory = rows_of(memory, np.arange(len(going)))
            after = empty_memory(model, len(going)) if fills else None
            yield going, memory, after
            if after is not None:
                memory = after
            elif place + 1 < len(group[0]):
                memory = _remembered(model, [pieces[number] for number in going], memory, batch_size)


def empty_memory(model: LoadedModel, rows: int) -> Memory:
    """The memory of rows that no text precedes."""
    shape, device = model.model.settings.memory_shape(rows), model.compute.device
    return Memory(states=torch.zeros(shape, device=device), lengths=torch.zeros(rows, dtype=torch.long, device=device))


def rows_of(memory: Memory | None, rows: npt.NDArray[np.int64]) -> Memory | None:
    """The memory restricted to some rows."""
    if memory is None:
        return None
    chosen = torch.from_numpy(rows).to(memory.lengths.device)
    return Memory(states=memory.states[:, chosen], lengths=memory.lengths[chosen])


def put_rows(memory: Memory, rows: npt.NDArray[np.int64], of_rows: Memory) -> None:
    """Replace some rows of a memory."""
    chosen = torch.from_numpy(rows).to(memory.lengths.device)
    memory.states[:, chosen], memory.lengths[chosen] = of_rows.states, of_rows.lengths


@torch.inference_mode()
def _remembered(model: LoadedModel, pieces: Sequence[ReadWindow], before: Memory | None, batch_size: int) -> Memory:
    """The memory after reading each piece."""
    device, after = model.compute.device, empty_memory(model, len(pieces))
    former = before or after
    for block in by_length([len(piece) for piece in pieces], batch_size):
        windows = one_segment([pieces[i].tokens for i in block], model.tokenizer.vocabulary)
        examples = rows_to_encode(windows, model.recipe)
        memory = rows_of(former, block)
        assert memory is not None
        text = torch.from_numpy(examples.text_slots()).to(device=device, dtype=torch.long)
        batch = dataclasses.replace(collate(examples, device=device), memory=memory, text_slots=text)
        with model.compute.autocast():
            model.model.backbone(batch)
        put_rows(after, block, memory)
    return after


Measure = Literal["pseudo", "chain"]
Progress = Callable[[int], object]

_ASKS: dict[Measure, tuple[Ability, str]] = {
    "pseudo": ("cloze", "a pseudo-log-likelihood"),
    "chain": ("causal", "a log-likelihood by the chain rule"),
}


@dataclass(frozen=True, kw_only=True)
class TextScore:
    """Likelihood of a text. Logarithms are natural; scores that the model's objective does not define are None.

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

    def to_dict(self) -> dict[str, Any]:
        """The fields as a JSON-serialisable dictionary."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        lines = [self.text if len(self.text) <= 100 else f"{self.text[:99]}\u2026"]
        tokens = f"{len(self.tokens):,} tokens"
        if self.chain_log_likelihood is not None:
            bits = "" if self.bits_per_byte is None else f"{self.bits_per_byte:.3f} bits per byte, "
            if self.bits_per_character not in (None, self.bits_per_byte):
                bits += f"{self.bits_per_character:.3f} per character, "
            lines.append(
                f"  log-likelihood         {self.chain_log_likelihood:10.2f}  perplexity {self.chain_perplexity:,.1f}"
                f"{_per_word(self.chain_perplexity_per_word)}, "
                f"{bits}{tokens}"
            )
        if self.pseudo_log_likelihood is not None:
            lines.append(
                f"  pseudo-log-likelihood  {self.pseudo_log_likelihood:10.2f}  perplexity {self.pseudo_perplexity:,.1f}"
                f"{_per_word(self.pseudo_perplexity_per_word)}, {tokens}"
            )
        if self.chain_per_token is None and self.pseudo_per_token is None:
            lines.append("  no score: the model's objective defines none")
        elif self.chain_log_likelihood is None and self.pseudo_log_likelihood is None:
            lines.append("  nothing to score: none of its tokens is in the vocabulary")
        return "\n".join(lines)


def _per_word(value: float | None) -> str:
    return "" if value is None else f" ({value:,.1f} per word)"


class Scores(list[TextScore]):
    """Scores of texts; `str` lists each, then their total."""

    @property
    def notes(self) -> list[str]:
        """Distinct notes of the scores."""
        return list(dict.fromkeys(score.note for score in self if score.note))

    def to_dict(self) -> list[dict[str, Any]]:
        """The fields of each score as JSON-serialisable dictionaries."""
        return [score.to_dict() for score in self]

    def __str__(self) -> str:
        return "\n".join(map(str, [*self, together(self)] if len(self) > 1 else self))


def score(model: LoadedModel, texts: Sequence[str], *, batch_size: int = 32) -> list[TextScore]:
    """Score texts: the chain rule takes one batch row per window, masking each token alone takes one row per token.

    A text's score depends neither on the other texts nor on `batch_size`, up to rounding. Tokens the model never
    predicts ([UNK]) are read as context but not scored. Texts longer than the model reads at once are cut into consecutive
    windows; if the model has a memory (XLNet), each window reads the memory of those before it.

    Args:
        model: The model.
        texts: The texts; names of special tokens in them are plain text.
        batch_size: Maximum number of rows per forward pass.

    Raises:
        UsageError: A text is blank, or `batch_size` is below 1.
        UniclozeError: The model predicts nan.
    """
    if model.recipe.task.kind:
        check_predicts_tokens(model, "score texts")
    tokens, pieces = cut(model, texts)
    chain, pseudo = (
        _by_text(len(texts), pieces, log_probabilities(model, pieces, measure, batch_size=batch_size))
        if defines(objective_of(model.recipe), measure)
        else [None] * len(texts)
        for measure in ("chain", "pseudo")
    )
    windows = Counter(piece.text for piece in pieces)
    return [
        _text_score(model, text, ids, chain[i], pseudo[i], windows[i])
        for i, (text, ids) in enumerate(zip(texts, tokens, strict=True))
    ]


def defines(objective: ObjectiveSettings, measure: Measure) -> bool:
    """Whether the objective defines a measure."""
    return part_with(objective, _ASKS[measure][0]) is not None


def check_defines(objective: ObjectiveSettings, measure: Measure) -> None:
    """Reject a measure that the objective does not define."""
    if not defines(objective, measure):
        other = next(
            (f"ask for `{name}`" for name in _ASKS if defines(objective, name)), "use a model of another objective"
        )
        raise UsageError(f"{lacks(objective, *_ASKS[measure])}, which `{measure}` asks for: {other}")


def log_probabilities(
    model: LoadedModel,
    pieces: Sequence[ReadWindow],
    measure: Measure,
    *,
    batch_size: int,
    progress: Progress | None = None,
) -> list[Logs]:
    """log p of each token of each piece; nan for tokens that are not scored."""
    check_defines(objective_of(model.recipe), measure)
    check_predicts_tokens(model, "score texts")
    settings = part_with(objective_of(model.recipe), _ASKS[measure][0])
    assert settings is not None
    ask = _pseudo if measure == "pseudo" else _chain
    told = progress or (lambda _: None)
    if not model.model.settings.memory:
        return ask(model, settings, pieces, batch_size, told, None, None)
    result: list[Logs] = [np.empty(0)] * len(pieces)
    # An LSTM reads the same rows to score a text as to remember it.
    fills = measure == "chain" and model.model.settings.kind == "recurrent"
    for numbers, before, after in with_memories(model, pieces, batch_size, fills=fills):
        logs = ask(model, settings, [pieces[number] for number in numbers], batch_size, told, before, after)
        for number, of_piece in zip(numbers, logs, strict=True):
            result[number] = of_piece
    return result


def _chain(
    loaded: LoadedModel,
    settings: ObjectiveSettings,
    pieces: Sequence[ReadWindow],
    batch_size: int,
    progress: Progress,
    memory: Memory | None,
    after: Memory | None,
) -> list[Logs]:
    """Chain-rule scores: one row per piece; `memory` has one row per piece, and so has `after`, which is filled if given."""
    lay_out = defined(settings).causal
    assert lay_out is not None
    vocabulary = loaded.tokenizer.vocabulary
    result = [np.full(len(piece), np.nan) for piece in pieces]
    for block in by_length([len(piece) for piece in pieces], batch_size, slots_per_token=3):
        windows = one_segment([pieces[i].tokens for i in block], vocabulary)
        examples = lay_out(windows, vocabulary, settings)
        before = rows_of(memory or after, block)
        logs = log_probability(*logits_of(loaded, examples, before, updates=after is not None))
        if after is not None and before is not None:
            put_rows(after, block, before)
        for row, i in enumerate(block):
            scored = windows.maskable[row, 1 : len(pieces[i]) + 1]
            result[i][scored] = logs[row, : scored.sum()]
        progress(int(windows.maskable.sum()))
    return result


def _pseudo(
    loaded: LoadedModel,
    settings: ObjectiveSettings,
    pieces: Sequence[ReadWindow],
    batch_size: int,
    progress: Progress,
    memory: Memory | None,
    _after: Memory | None,
) -> list[Logs]:
    """Pseudo-log-likelihoods: one row per token; `memory` has one row per piece."""
    lay_out = defined(settings).cloze
    assert lay_out is not None
    vocabulary = loaded.tokenizer.vocabulary
    if not pieces:
        return []
    lengths = np.array([len(piece) for piece in pieces])
    scored = ~np.isin(np.concatenate([piece.tokens for piece in pieces]), vocabulary.special)
    piece_of = np.repeat(np.arange(len(pieces)), lengths)[scored]
    first = np.cumsum(lengths) - lengths
    place_of = np.flatnonzero(scored) - first[piece_of]
    asked = np.full(len(piece_of), np.nan)
    for block in by_length(lengths[piece_of], batch_size):
        together, row_of = np.unique(piece_of[block], return_inverse=True)
        windows = select_rows(one_segment([pieces[i].tokens for i in together], vocabulary), row_of)
        steps = np.full(windows.token_ids.shape, -1, dtype=np.int32)
        steps[np.arange(len(block)), place_of[block] + 1] = 0
        examples = lay_out(windows, steps, vocabulary, settings)
        asked[block] = log_probability(*logits_of(loaded, examples, rows_of(memory, piece_of[block])))[:, 0]
        progress(len(block))
    result = np.full(len(scored), np.nan)
    result[scored] = asked
    return np.split(result, first[1:])


def _by_text(count: int, pieces: Sequence[ReadWindow], logs: Sequence[Logs]) -> list[Logs | None]:
    result: list[Logs | None] = [None] * count
    for piece, part in zip(pieces, logs, strict=True):
        before = result[piece.text]
        result[piece.text] = part if before is None else np.concatenate([before, part])
    return result


def together(scores: Sequence[TextScore]) -> TextScore:
    """The score of several texts as if they were one; None for measures that any of them lacks."""
    chain, pseudo = (
        _joined([getattr(one, f"{measure}_per_token") for one in scores]) for measure in ("chain", "pseudo")
    )
    spelled = all(one.bits_per_byte is not None for one in scores)
    return _of_logs(
        f"{len(scores):,} texts together",
        [token for one in scores for token in one.tokens],
        chain,
        pseudo,
        spelled=[one.text for one in scores] if spelled else None,
        windows=sum(one.windows for one in scores),
        note=None,
    )


def _joined(terms: Sequence[list[float | None] | None]) -> Logs | None:
    if not terms or any(each is None for each in terms):
        return None
    return np.array([np.nan if term is None else term for each in terms for term in each or []])


def _text_score(
    loaded: LoadedModel, text: str, ids: npt.NDArray[np.int32], chain: Logs | None, pseudo: Logs | None, windows: int
) -> TextScore:
    unscored = int(np.isin(ids, loaded.tokenizer.vocabulary.special).sum())
    note = _note(objective_of(loaded.recipe), unscored, windows, loaded.model.settings.memory)
    tokens = loaded.tokenizer.tokens(ids)
    return _of_logs(text, tokens, chain, pseudo, spelled=None if unscored else [text], windows=windows, note=note)


def _of_logs(
    text: str,
    tokens: list[str],
    chain: Logs | None,
    pseudo: Logs | None,
    *,
    spelled: Sequence[str] | None,
    windows: int,
    note: str | None,
) -> TextScore:
    """The score with these per-token terms; per-byte and per-word values are over `spelled`, None without it."""
    chain_total, chain_terms, chain_perplexity = _summary(chain)
    pseudo_total, pseudo_terms, pseudo_perplexity = _summary(pseudo)
    whole, words = "".join(spelled or ()), sum(len(each.split()) for each in spelled or ())
    bits = None if chain_total is None or not whole else -chain_total / math.log(2)

    def per_word(total: float | None) -> float | None:
        return None if total is None or not words else perplexity(-total, words)

    return TextScore(
        text=text,
        tokens=tokens,
        chain_log_likelihood=chain_total,
        chain_per_token=chain_terms,
        chain_perplexity=chain_perplexity,
        chain_perplexity_per_word=per_word(chain_total),
        bits_per_byte=None if bits is None else bits / len(whole.encode("utf-8")),
        bits_per_character=None if bits is None else bits / len(whole),
        pseudo_log_likelihood=pseudo_total,
        pseudo_per_token=pseudo_terms,
        pseudo_perplexity=pseudo_perplexity,
        pseudo_perplexity_per_word=per_word(pseudo_total),
        windows=windows,
        note=note,
    )


def _summary(logs: Logs | None) -> tuple[float | None, list[float | None] | None, float | None]:
    """Sum, terms and perplexity; sum and perplexity are None if no token was scored."""
    if logs is None:
        return None, None, None
    terms = [None if math.isnan(term) else term for term in logs.tolist()]
    scored = int(np.isfinite(logs).sum())
    if not scored:
        return None, terms, None
    total = float(np.nansum(logs))
    return total, terms, perplexity(-total, scored)


def _note(objective: ObjectiveSettings, unscored: int, windows: int, memory: int) -> str | None:
    notes = [lacks(objective, *asks) for measure, asks in _ASKS.items() if not defines(objective, measure)]
    highest = _highest_mask_rate(objective)
    if highest is not None and highest < 0.8:
        notes.append(
            f"the chain rule masks the whole text, but the model was trained at mask rates of at most {highest:.0%} "
            "(a part of objective.mixture can have a higher one): the first tokens have far less context than in training"
        )
    if unscored:
        notes.append(f"{unscored} tokens not in the vocabulary are not scored")
    if windows > 1:
        read = f"each reads {memory:,} tokens of memory" if memory else "each scored by itself"
        notes.append(f"the text was cut into {windows} windows, {read}")
    return "; ".join(notes) or None


def _highest_mask_rate(objective: ObjectiveSettings) -> float | None:
    """The highest mask rate of the parts that define the chain rule by masking; None for next-token prediction."""
    able = [part.settings for part in parts(objective) if defined(part.settings).causal is not None]
    if not able or not OBJECTIVES[able[0].name].causal_masks:
        return None
    return max((max(settings.rates) for settings in able if settings.rates is not None), default=None)
