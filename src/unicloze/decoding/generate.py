"""Sources to texts."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from unicloze.decoding.branches import Branches
from unicloze.decoding.choices import Rules
from unicloze.decoding.layout import GenerationLayout, layout_of
from unicloze.decoding.parallel import fill_in_parallel
from unicloze.decoding.search import Hypothesis, Search, Settled, search
from unicloze.decoding.texts import check_text, open_model
from unicloze.decoding.uses import place_of
from unicloze.errors import UsageError
from unicloze.model.inference_model import IncrementalModel
from unicloze.model.model import UnifiedModel
from unicloze.progress import Progress
from unicloze.settings import DecodingSettings, TrainingSettings
from unicloze.text.tokenizers import Tokenizer
from unicloze.training.precision import choose_precision

if TYPE_CHECKING:
    from unicloze.decoding.texts import ModelLike
    from unicloze.training.models import LoadedModel

Ids = npt.NDArray[np.integer]
OnPart = Callable[[int, list[list[Hypothesis]]], None]

BATCHES_OF_A_PART = 64
"""Sources are sorted by length among so many batches, which pads about as little as among all of them."""
STEEPEST = 10
"""Largest exponent of a length penalty; that of far larger ones is no number any more."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A generated text.

    Args:
        text: The text.
        tokens: Its token ids, without [EOS].
        log_probability: See `Hypothesis`.
        score: See `Hypothesis`.
        ended: Whether it ended by itself; otherwise it was cut off at the maximum length.
    """

    text: str
    tokens: list[int]
    log_probability: float
    score: float
    ended: bool


@dataclass(frozen=True, kw_only=True)
class Generation:
    """What was generated for a source.

    Args:
        source: The source as given.
        candidates: The best first; drawn ones in the order they were drawn.
    """

    source: str
    candidates: list[Candidate]

    @property
    def text(self) -> str:
        """The best text, or the first one drawn."""
        return self.candidates[0].text

    def to_dict(self) -> dict[str, Any]:
        """Its fields as a JSON-serialisable dictionary."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        return self.text


def check_settings(settings: DecodingSettings, layout: GenerationLayout | None = None) -> None:
    """Refuse settings that contradict each other, or the way a model generates.

    Raises:
        UsageError: They do.
    """
    for name in ("beams", "max_length", "num_results", "batch_size", "top_k", "parallel"):
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise UsageError(f"{name} is {value}: give 1 or more")
    for name in ("min_length", "no_repeat_ngram"):
        if getattr(settings, name) < 0:
            raise UsageError(f"{name} is {getattr(settings, name)}: give 0 or more")
    if settings.min_length > settings.max_length:
        raise UsageError(f"min_length is {settings.min_length}, above max_length, {settings.max_length}: give less")
    if not 0 < settings.temperature < math.inf:
        raise UsageError(f"temperature is {settings.temperature}: give more than 0, or set sample to false")
    if not 0 <= settings.seed < 2**63:
        raise UsageError(f"seed is {settings.seed}: give a number from 0 to 2^63 - 1")
    if not abs(settings.length_penalty) <= STEEPEST:
        raise UsageError(f"length_penalty is {settings.length_penalty}: give a number from -{STEEPEST} to {STEEPEST}")
    if settings.top_p is not None and not 0 < settings.top_p <= 1:
        raise UsageError(f"top_p is {settings.top_p}: give more than 0 and at most 1")
    for name, silent in (("temperature", 1.0), ("top_k", None), ("top_p", None), ("seed", 0)):
        if not settings.sample and getattr(settings, name) != silent:
            raise UsageError(
                f"{name} is {getattr(settings, name)} and nothing is drawn: set sample to true (--decoding.sample true), or "
                f"leave {name} out"
            )
    if settings.early_stop != "exact" and settings.beams == 1:
        raise UsageError(
            f"early_stop is {settings.early_stop}, but beams is 1: give 2 beams or more, or leave early_stop out"
        )
    if settings.may_repeat and not settings.no_repeat_ngram:
        raise UsageError(
            f"may_repeat is {settings.may_repeat}, but no_repeat_ngram is 0: set it, or leave may_repeat out"
        )
    if settings.sample and settings.beams > 1:
        raise UsageError(f"sample draws texts and beams is {settings.beams}, a search: set one of them only")
    if not settings.sample and settings.num_results > settings.beams:
        raise UsageError(
            f"num_results is {settings.num_results} and beams {settings.beams}: give as many beams, or sample"
        )
    if settings.parallel is not None:
        if settings.sample or settings.beams > 1 or settings.no_repeat_ngram:
            raise UsageError("parallel fills positions in any order: leave sample, beams and no_repeat_ngram out")
        if layout is not None and (layout.predicts != "pseudo" or layout.decoder_only):
            raise UsageError(
                "parallel needs a model that predicts by pseudo masks behind a source, such as unilmv2 with the target par: "
                "leave it out"
            )


def generate_tokens(
    model: UnifiedModel,
    sources: Sequence[Ids],
    settings: DecodingSettings,
    layout: GenerationLayout,
    *,
    first: int = 0,
    on_part: OnPart | None = None,
    progress: bool = False,
) -> list[list[Hypothesis]]:
    """Generate a target for each source. What is generated for one depends neither on the others nor on the batch size.

    Args:
        model: A model that predicts tokens, where it is.
        sources: Token ids of each, without special tokens.
        settings: How.
        layout: Where source and target stand and what predicts.
        first: Number of the first source to generate for; those before it are done.
        on_part: Is told, after every few batches, the number of a source and the hypotheses of it and those behind it, in
            the order of the sources.
        progress: Show progress on stderr.

    Returns:
        `settings.num_results` hypotheses of each source from the first on, or fewer if there are no more; the best first.

    Raises:
        UsageError: The settings contradict each other or the model, or a source is too long for it.
    """
    check_settings(settings, layout)
    ready = IncrementalModel(model, _dtype(settings, model))
    results: list[list[Hypothesis]] = [[] for _ in sources]
    bar = Progress("generate", len(sources), "texts", initial=first, show=progress)
    part = settings.batch_size * BATCHES_OF_A_PART
    with bar:
        for begin in (first, *range(first - first % part + part, len(sources), part)):
            numbers = range(begin, min(begin - begin % part + part, len(sources)))
            order = sorted(numbers, key=lambda number: -len(sources[number]))
            for place in range(0, len(order), settings.batch_size):
                records = order[place : place + settings.batch_size]
                steps = _steps(ready, [sources[record] for record in records], settings, layout, records)
                found: list[list[Hypothesis]] = []
                for _ in _into(found, steps):
                    pass
                for record, hypotheses in zip(records, found, strict=True):
                    results[record] = hypotheses
                bar.update(len(records))
            if on_part is not None:
                on_part(begin, results[begin : numbers.stop])
    return results[first:]


def _into(found: list[list[Hypothesis]], steps: Search) -> Iterator[Settled]:
    """The steps of a search; at their end its results are in the list."""
    found.extend((yield from steps))


def _steps(
    model: IncrementalModel,
    sources: Sequence[Ids],
    settings: DecodingSettings,
    layout: GenerationLayout,
    records: Sequence[int],
) -> Search:
    """The steps of one batch."""
    if settings.parallel is not None:
        return fill_in_parallel(model, sources, Rules(settings, layout))
    count = settings.num_results if settings.sample else settings.beams
    branches = Branches(model, layout, sources, count=count, max_length=settings.max_length)
    return search(branches, Rules(settings, layout), records)


def generate(
    model: ModelLike,
    sources: Sequence[str],
    settings: DecodingSettings | None = None,
    *,
    layout: GenerationLayout | None = None,
    keep: Literal["beginning", "end"] | None = None,
    first: int = 0,
    on_part: Callable[[int, list[Generation]], None] | None = None,
    progress: bool = False,
) -> list[Generation]:
    """Generate a text for each source.

    Sources too long for the model are cut; a warning says so once.

    Args:
        model: A run directory, a checkpoint or a loaded model.
        sources: The sources; names of special tokens in them are plain text.
        settings: How; greedily if not given.
        layout: Where source and target stand and what predicts; as the model's recipe says if not given.
        keep: What stays of a source that is too long; if not given the beginning, or the end if the model only goes on
            with a text.
        first: See `generate_tokens`.
        on_part: See `generate_tokens`.
        progress: Show progress on stderr.

    Raises:
        UsageError: The model's objective cannot generate, the settings contradict each other, or a source is blank.
    """
    loaded, settings, layout, tokens = _ready(model, sources, settings, layout, keep)

    def generations(begin: int, found: list[list[Hypothesis]]) -> list[Generation]:
        return [
            Generation(
                source=source, candidates=[_candidate(hypothesis, loaded.tokenizer) for hypothesis in hypotheses]
            )
            for source, hypotheses in zip(sources[begin : begin + len(found)], found, strict=True)
        ]

    told = None if on_part is None else lambda begin, found: on_part(begin, generations(begin, found))
    all_found = generate_tokens(loaded.model, tokens, settings, layout, first=first, on_part=told, progress=progress)
    return generations(first, all_found)


def stream(
    model: ModelLike,
    source: str,
    settings: DecodingSettings | None = None,
    *,
    layout: GenerationLayout | None = None,
) -> Iterator[str]:
    """The text that `generate` gives for a source, piece by piece as soon as each is settled.

    In beam search a token is settled once all hypotheses agree on it; with `parallel` the whole text is at the end.

    Raises:
        UsageError: As `generate`, or the settings ask for several texts.
    """
    loaded, settings, layout, tokens = _ready(model, [source], settings, layout)
    yield from stream_tokens(loaded, tokens[0], settings, layout)


def stream_tokens(
    loaded: LoadedModel, source: Ids, settings: DecodingSettings, layout: GenerationLayout
) -> Iterator[str]:
    """As `stream`, for a source of given tokens, see `generate_tokens`."""
    check_settings(settings, layout)
    if settings.num_results > 1:
        raise UsageError(
            f"num_results is {settings.num_results}, but a stream is one text: set it to 1, or do not stream"
        )
    ready = IncrementalModel(loaded.model, _dtype(settings, loaded.model))
    steps = _steps(ready, [source], settings, layout, [0])
    ids: list[int] = []
    said = ""
    found: list[list[Hypothesis]] = []
    for settled in _into(found, steps):
        new = [token for _, tokens in settled for token in tokens]
        if not new:
            continue
        ids += new
        sure = loaded.tokenizer.settled(ids)
        if len(sure) > len(said):
            yield sure[len(said) :]
            said = sure
    text = loaded.tokenizer.decode(found[0][0].tokens)
    if len(text) > len(said):
        yield text[len(said) :]


def _ready(
    model: ModelLike,
    sources: Sequence[str],
    settings: DecodingSettings | None,
    layout: GenerationLayout | None,
    keep: Literal["beginning", "end"] | None = None,
) -> tuple[LoadedModel, DecodingSettings, GenerationLayout, list[Ids]]:
    """What generating needs, the sources as tokens cut to what the model can read."""
    if isinstance(sources, str):
        raise UsageError("sources is one string: give a list of texts")
    settings = settings or DecodingSettings()
    check_settings(settings)
    for i, source in enumerate(sources):
        check_text(source, f"source {i + 1} of {len(sources)}")
    loaded = open_model(model)
    layout = layout or layout_of(loaded.recipe, loaded.tokenizer.vocabulary, place_of(loaded))
    check_settings(settings, layout)
    layout = with_token_ids(layout, settings, loaded.tokenizer)
    room = loaded.model.max_positions - settings.max_length - layout.specials
    if room < 1:
        raise UsageError(
            f"max_length is {settings.max_length} and the model has {loaded.model.max_positions} positions for source and "
            f"target: give a max_length of at most {loaded.model.max_positions - layout.specials - 1}"
        )
    tokens: list[Ids] = list(loaded.tokenizer.encode_batch(sources))
    long = sum(len(ids) > room for ids in tokens)
    keep = keep or ("end" if layout.decoder_only else "beginning")
    if long:
        warnings.warn(
            f"sources longer than the {room} tokens the model can read before {settings.max_length} of target ({long} of "
            f"{len(tokens)}) are cut off, the {keep} stays",
            stacklevel=3,
        )
    return loaded, settings, layout, [ids[-room:] if keep == "end" else ids[:room] for ids in tokens]


def with_token_ids(layout: GenerationLayout, settings: DecodingSettings, tokenizer: Tokenizer) -> GenerationLayout:
    """The layout with the ids of the tokens that the settings name.

    Raises:
        UsageError: The vocabulary lacks one.
    """
    may_repeat = *layout.may_repeat, *(_token(name, tokenizer) for name in settings.may_repeat)
    return dataclasses.replace(layout, may_repeat=may_repeat)


def _token(name: str, tokenizer: Tokenizer) -> int:
    found = tokenizer.token_id(name)
    if found is None:
        raise UsageError(f"may_repeat names {name!r}, which the vocabulary lacks: give tokens as it spells them")
    return found


def _candidate(hypothesis: Hypothesis, tokenizer: Tokenizer) -> Candidate:
    return Candidate(
        text=tokenizer.decode(hypothesis.tokens),
        tokens=hypothesis.tokens,
        log_probability=hypothesis.log_probability,
        score=hypothesis.score,
        ended=hypothesis.ended,
    )


def _dtype(settings: DecodingSettings, model: UnifiedModel) -> torch.dtype:
    device = next(model.parameters()).device
    chosen = choose_precision(TrainingSettings(precision=settings.precision), device)
    return torch.bfloat16 if chosen == "bf16" else torch.float32
