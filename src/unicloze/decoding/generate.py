"""Generates a text for each source."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from unicloze.decoding.inputs import check_texts, generation_format_of, place_of, positions_of
from unicloze.decoding.search import NEVER, Hypothesis, Search, Settled, Stepper, TokenConstraints, search
from unicloze.decoding.steppers import Branches, CarriedStates, Ids, Sources, prepared
from unicloze.devices import widest_float
from unicloze.errors import UsageError
from unicloze.files import Plain
from unicloze.model.inference_model import IncrementalModel
from unicloze.model.model import UnifiedModel
from unicloze.objectives.generation_format import GenerationFormat
from unicloze.progress import Progress
from unicloze.settings import DecodingSettings, TrainingSettings
from unicloze.text.tokenizers import Tokenizer
from unicloze.training.loading import LoadedModel
from unicloze.training.precision import choose_precision
from unicloze.visibility_masks import filling_mask

Keep = Literal["beginning", "end"]
"""Which end of a source that is too long is kept."""

BATCHES_OF_A_CHUNK = 64
"""Sources are sorted by length within groups of this many batches, which pads about as little as sorting all of them."""
STEEPEST = 10
"""Largest exponent of a length penalty; much larger ones overflow."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A generated text."""

    text: str  # the text
    tokens: list[int]  # its token ids, without [EOS]
    log_probability: float  # see `Hypothesis`
    score: float  # see `Hypothesis`
    ended: bool  # whether it ended with [EOS]; otherwise it was cut off at the maximum length


@dataclass(frozen=True, kw_only=True)
class Generation(Plain):
    """The texts generated for a source."""

    source: str  # the source as given
    candidates: list[Candidate]  # best first; sampled ones in the order they were drawn

    @property
    def text(self) -> str:
        """The best text, or the first one drawn."""
        return self.candidates[0].text

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, kw_only=True)
class Part:
    """Output of one generation step for several sources."""

    settled: Settled = dataclasses.field(default_factory=list)  # source number and tokens that no later step changes
    ended: int = 0  # number of sources this step finishes
    # hypotheses of the next sources, in source order; empty except after each group of batches
    results: Sequence[list[Hypothesis]] = ()


def check_settings(settings: DecodingSettings, layout: GenerationFormat) -> None:
    """Reject settings that contradict each other or the way the model generates."""
    least = dict.fromkeys(("beams", "max_length", "num_results", "batch_size", "top_k", "parallel"), 1)
    for name, lowest in {**least, "min_length": 0, "no_repeat_ngram": 0}.items():
        if (value := getattr(settings, name)) is not None and value < lowest:
            raise UsageError(f"{name} is {value}: give {lowest} or more.")
    wrong = {
        f"temperature is {settings.temperature}: give more than 0, or set sample to false":
            settings.sample and not 0 < settings.temperature < math.inf,
        f"seed is {settings.seed}: give a number from 0 to 2^63 - 1": not 0 <= settings.seed < 2**63,
        f"length_penalty is {settings.length_penalty}: give a number from -{STEEPEST} to {STEEPEST}":
            not abs(settings.length_penalty) <= STEEPEST,
        f"top_p is {settings.top_p}: give more than 0 and at most 1":
            settings.top_p is not None and not 0 < settings.top_p <= 1,
        **{message: True for message, _ in contradictions(settings)},
        "parallel needs a model that predicts with pseudo masks after a source, such as unilmv2 with the target par: "
        "leave it out":
            settings.parallel is not None and (layout.predicts != "pseudo" or layout.decoder_only),
    }  # fmt: skip
    for message, holds in wrong.items():
        if holds:
            raise UsageError(f"{message}.")


def contradictions(own: DecodingSettings) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each contradiction between settings, and the value with which each of its settings would give way."""
    plain = DecodingSettings()

    def changed(*names: str) -> list[str]:
        return [name for name in names if getattr(own, name) != getattr(plain, name)]

    if own.sample and own.beams > 1:
        message = f"sample draws texts, but beams is {own.beams}, a beam search: set only one of them"
        yield message, {"sample": False, "beams": 1}
    for name in changed("sample", "beams", "no_repeat_ngram") if own.parallel is not None else ():
        message = "parallel fills positions in any order: leave out sample, beams and no_repeat_ngram"
        yield message, {name: getattr(plain, name), "parallel": None}
    for name in changed("temperature", "top_k", "top_p", "seed") if not own.sample else ():
        cure = f"set sample to true (--decoding.sample true) or leave out {name}"
        yield f"{name} is {getattr(own, name)}, but nothing is sampled: {cure}", {name: getattr(plain, name)}
    if own.beams == 1 and changed("early_stop"):
        message = f"early_stop is {own.early_stop}, but beams is 1: give 2 or more beams, or leave out early_stop"
        yield message, {"early_stop": plain.early_stop}
    if own.may_repeat and not own.no_repeat_ngram:
        message = f"may_repeat is {own.may_repeat}, but no_repeat_ngram is 0: set it, or leave out may_repeat"
        yield message, {"may_repeat": plain.may_repeat}
    if not own.sample and own.num_results > own.beams:
        message = f"num_results is {own.num_results}, but beams is {own.beams}: give as many beams, or sample"
        yield message, {"num_results": own.beams, **({"beams": own.num_results} if own.beams > 1 else {})}
    if own.min_length > own.max_length:
        message = f"min_length is {own.min_length}, above max_length, {own.max_length}: give less"
        yield message, {"min_length": own.max_length, "max_length": max(own.min_length, plain.max_length)}


def generate_parts(
    model: UnifiedModel,
    sources: Sequence[Ids],
    settings: DecodingSettings,
    layout: GenerationFormat,
    *,
    first: int = 0,
    progress: bool = False,
    draws: Sequence[int] | None = None,
) -> Iterator[Part]:
    """Generate a target for each source, independent of the other sources and of the batch size."""
    check_settings(settings, layout)
    keys, size = range(len(sources)) if draws is None else draws, settings.batch_size
    chosen = choose_precision(TrainingSettings(precision=settings.precision), next(model.parameters()).device)
    able = prepared(model, torch.bfloat16 if chosen == "bf16" else torch.float32)
    rules = TokenConstraints(settings, layout)

    def steps_of(numbers: Sequence[int]) -> Search:
        rows = [sources[number] for number in numbers]
        if settings.parallel is not None:
            assert isinstance(able, IncrementalModel)  # no other model predicts with pseudo masks
            return fill_in_parallel(able, rows, rules)
        count = settings.num_results if settings.sample else settings.beams
        if isinstance(able, IncrementalModel):
            following: Stepper = Branches(able, layout, rows, count=count, max_length=settings.max_length)
        else:
            following = CarriedStates(able, layout, rows, count=count)
        return search(following, rules, [keys[number] for number in numbers])

    def parts() -> Iterator[Part]:
        chunk = size * BATCHES_OF_A_CHUNK
        with Progress("generate", len(sources), "texts", initial=first, show=progress) as bar:
            for begin in (first, *range(first - first % chunk + chunk, len(sources), chunk)):
                numbers = range(begin, min(begin - begin % chunk + chunk, len(sources)))
                order = sorted(numbers, key=lambda number: -len(sources[number]))
                results: dict[int, list[Hypothesis]] = {}
                for batch in (order[place : place + size] for place in range(0, len(order), size)):
                    steps = steps_of(batch)
                    while not results.keys() >= set(batch):
                        try:
                            settled = next(steps)
                        except StopIteration as end:
                            results |= zip(batch, end.value, strict=True)
                        else:
                            yield Part(settled=[(batch[row], tokens) for row, tokens in settled])
                    bar.update(len(batch))
                    yield Part(ended=len(batch))
                yield Part(results=[results[number] for number in numbers])

    return parts()


def generate(
    model: LoadedModel,
    sources: Sequence[str],
    settings: DecodingSettings | None = None,
    *,
    keep: Keep | None = None,
    progress: bool = False,
) -> list[Generation]:
    """Generate a text for each source.

    Sources too long for the model are truncated, with one warning.

    Args:
        model: The model.
        sources: The sources; names of special tokens in them are plain text.
        settings: Decoding settings; default: greedy search.
        keep: Which end of a source that is too long is kept; default: the beginning, or the end if the model only
            continues a text.
        progress: Show progress on stderr.

    Raises:
        UsageError: The model's objective cannot generate, the settings contradict each other, or a source is blank.
    """
    settings = settings or DecodingSettings()
    layout, tokens, _ = ready(model, sources, settings, keep)
    parts = generate_parts(model.model, tokens, settings, layout, progress=progress)
    found = [hypotheses for part in parts for hypotheses in part.results]
    return [
        Generation(source=source, candidates=[candidate_of(one, model.tokenizer) for one in hypotheses])
        for source, hypotheses in zip(sources, found, strict=True)
    ]


class Spelling(Protocol):
    """Spells generated tokens: a `Tokenizer`, or a `Continuation`."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens."""

    def settled(self, ids: Sequence[int]) -> str:
        """The beginning of their text that cannot change when tokens follow."""


class Continuation:
    """Spells what follows a prompt so that it can be appended to it: with the space between them, unless a word goes on.

    Args:
        tokenizer: The model's tokenizer.
        prompt: The prompt.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: str) -> None:
        self._tokenizer, self._ids = tokenizer, tokenizer.encode_batch([prompt])[0].tolist()
        self._before = tokenizer.decode(self._ids)
        self._is_spaced = prompt[-1:].isspace()

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens after the prompt."""
        return self._after(self._tokenizer.decode([*self._ids, *ids]))

    def settled(self, ids: Sequence[int]) -> str:
        """The beginning of their text that cannot change when tokens follow."""
        return self._after(self._tokenizer.settled([*self._ids, *ids]))

    def _after(self, text: str) -> str:
        if self._tokenizer.spaced:
            return text[len(self._before) :]
        # A word that follows may change the spaces of the prompt, but nothing else.
        ends = [place for place, character in enumerate(text, start=1) if not character.isspace()]
        written = len("".join(self._before.split()))
        rest = text[ends[written - 1] :] if 0 < written <= len(ends) else text if not written else ""
        return rest.lstrip() if self._is_spaced else rest


def stream_text(parts: Iterable[Part], spelling: Spelling) -> Iterator[str]:
    """Yield the text for a single source in pieces, each as soon as it is settled; empty ones while nothing is.

    In beam search a token is settled once all hypotheses agree on it; with `parallel` the whole text comes at the end.
    """
    ids: list[int] = []
    said = ""
    for part in parts:
        ids += [token for _, tokens in part.settled for token in tokens]
        sure = spelling.decode(part.results[0][0].tokens) if part.results else spelling.settled(ids)
        yield sure[len(said) :]
        said = max(said, sure, key=len)


def ready(
    model: LoadedModel, sources: Sequence[str], settings: DecodingSettings, keep: Keep | None = None
) -> tuple[GenerationFormat, list[Ids], Collection[int]]:
    """The model's generation layout, the token ids of each source, and which sources are truncated; see `generate`."""
    layout = generation_format_of(model.recipe, model.tokenizer.vocabulary, place_of(model))
    check_settings(settings, layout)
    check_texts(sources, "source")
    layout = with_token_ids(layout, settings, model.tokenizer)
    positions = positions_of(model.model)
    room = layout.room(positions, settings.max_length)
    if room < 1:
        raise UsageError(
            f"max_length is {settings.max_length}, but the model has {positions} positions for source and target: give a "
            f"max_length of at most {most_written(model)}"
        )
    tokens: list[Ids] = list(model.tokenizer.encode_batch(sources))
    long = {number for number, ids in enumerate(tokens) if len(ids) > room}
    keep = keep or ("end" if layout.decoder_only else "beginning")
    if long:
        warnings.warn(
            f"sources longer than the {room} tokens the model can read before {settings.max_length} of target "
            f"({len(long)} of {len(tokens)}) are truncated, keeping the {keep}",
            stacklevel=3,
        )
    return layout, [ids[-room:] if keep == "end" else ids[:room] for ids in tokens], long


def most_written(model: LoadedModel) -> int:
    """Most tokens of a target that leave room for a source."""
    layout, positions = generation_format_of(model.recipe, model.tokenizer.vocabulary), positions_of(model.model)
    return positions - len(layout.opening) if layout.restarts else layout.room(positions, 1)


def with_token_ids(layout: GenerationFormat, settings: DecodingSettings, tokenizer: Tokenizer) -> GenerationFormat:
    """The layout with the ids of the tokens named in `settings.may_repeat`."""
    ids = list(layout.may_repeat)
    for name in settings.may_repeat:
        if (token := tokenizer.token_id(name)) is None:
            raise UsageError(
                f"may_repeat names {name!r}, which is not in the vocabulary: give tokens as it spells them"
            )
        ids.append(token)
    return dataclasses.replace(layout, may_repeat=tuple(ids))


def candidate_of(hypothesis: Hypothesis, spelling: Spelling) -> Candidate:
    """A hypothesis with its text."""
    return Candidate(text=spelling.decode(hypothesis.tokens), **vars(hypothesis))


# A model trained with partially autoregressive steps predicts a position from the source and any set of known
# positions (UniLMv2, equation 6). So every step puts a pseudo mask at each open position, which reads the source, the
# known tokens and itself, and keeps the tokens the model is most certain of. The slots of these tokens read the
# source, the known tokens and each other, like the tokens of one factorization step, and join the cache.
#
# The target has `max_length` positions. Once an [EOS] is known, no position after it is filled any more, and tokens
# already filled there are dropped at the end; so the model determines the length of the text.


def surest(logs: Tensor, open_positions: Tensor, count: int) -> Tensor:
    """The open positions whose likeliest token is most certain, best first in each row.

    Args:
        logs: log p of the likeliest token of each position. *Shape:* (rows, positions)
        open_positions: *Shape:* (rows, positions)
        count: Number of positions to choose per row.

    Returns:
        *Shape:* (rows, count)
    """
    return torch.where(open_positions, logs, NEVER).sort(dim=1, descending=True, stable=True).indices[:, :count]


@torch.inference_mode()
def fill_in_parallel(model: IncrementalModel, sources: Sequence[Ids], rules: TokenConstraints) -> Search:
    """Generate a target for each source, filling `parallel` positions per step."""
    settings, layout = rules.settings, rules.layout
    longest, at_once = settings.max_length, min(settings.parallel or 1, settings.max_length)
    given = Sources(model, layout, sources, max_length=longest, room=2 * longest + at_once)
    given.encode()
    rows, device, cache = len(given), model.device, given.cache
    place = torch.arange(longest, device=device)
    tokens = torch.zeros(rows, longest, dtype=torch.long, device=device)
    logs = torch.zeros(rows, longest, dtype=widest_float(device), device=device)
    is_open = torch.ones(rows, longest, dtype=torch.bool, device=device)
    stops_at = torch.full((rows, 1), longest, device=device)
    new = torch.zeros(rows, 0, dtype=torch.long, device=device)
    known = torch.zeros(rows, 0, dtype=torch.bool, device=device)  # which slots after the sources hold a token
    while bool(is_open.any()):
        widest = int(is_open.sum(dim=1).max())
        asked = is_open.logical_not().to(torch.uint8).argsort(dim=1, stable=True)[:, :widest]
        logits = _predict(given, tokens, new, asked, known)
        cache.filled += new.shape[1]
        allowed = torch.log_softmax(logits, dim=2)
        allowed.index_fill_(2, torch.tensor(layout.never, dtype=torch.long, device=device), NEVER)
        allowed[:, :, layout.stop].masked_fill_(asked < settings.min_length, NEVER)
        best = allowed.max(dim=2)
        asked_open = is_open.gather(1, asked)
        chosen = surest(best.values, asked_open, at_once)
        is_new = asked_open.gather(1, chosen)
        new = asked.gather(1, chosen)
        tokens.scatter_(1, new, torch.where(is_new, best.indices.gather(1, chosen), tokens.gather(1, new)))
        logs.scatter_(1, new, torch.where(is_new, best.values.gather(1, chosen).to(logs.dtype), logs.gather(1, new)))
        is_open.scatter_(1, new, False)
        ends = torch.where(~is_open & (tokens == layout.stop), place, longest).amin(dim=1, keepdim=True)
        stops_at = torch.minimum(stops_at, ends)
        is_open &= place < stops_at
        known = torch.cat([known, is_new], dim=1)
        yield []
    found = zip(tokens.tolist(), logs.tolist(), stops_at[:, 0].tolist(), strict=True)
    return [[Hypothesis.of(ids[:end], sum(terms[: end + 1]), end < longest, settings)] for ids, terms, end in found]


def _predict(given: Sources, tokens: Tensor, new: Tensor, asked: Tensor, known: Tensor) -> Tensor:
    """Logits at a pseudo mask on each requested position; writes the newest known tokens to the cache first."""
    layout, fresh, count = given.layout, new.shape[1], asked.shape[1]
    assert layout.pseudo is not None
    ids = torch.cat([tokens.gather(1, new), torch.full_like(asked, layout.pseudo)], dim=1)
    positions = given.first_positions[:, None] + torch.cat([new, asked], dim=1)
    reads = filling_mask(torch.cat([given.readable, known], dim=1), fresh, count)
    return given.model.extend(
        given.cache, ids[:, :, None], positions, layout.target_segment, reads, select=slice(fresh, None)
    )
