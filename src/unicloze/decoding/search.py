"""Greedy search, sampling and beam search for a batch of sources.

A search is a generator: after every step it yields the newly settled tokens, and it returns the hypotheses of each source.
Finished sources leave the batch.

Beam search keeps `beams` unfinished hypotheses per source. Each step scores their continuations by the sum of log p and
takes the best 2 x `beams` (a hypothesis can end in only one way, so at least half of them continue): those among the best
`beams` that end become candidates for the result, compared by log p divided by `length_penalty`; the best `beams` that
continue are the next hypotheses. At `max_length` these become candidates too. The best `beams` candidates are kept.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from unicloze import keyed
from unicloze.devices import widest_float
from unicloze.objectives.generation_format import GenerationFormat
from unicloze.settings import DecodingSettings

NEVER = -torch.inf


@dataclass(frozen=True)
class TokenConstraints:
    """Excludes tokens by setting their log-probability to -inf; the rest is not renormalised."""

    settings: DecodingSettings  # settings of minimum length and repetition
    layout: GenerationFormat  # names the tokens that end a text, never occur, or may repeat

    def apply(self, logs: Tensor, tokens: Tensor) -> Tensor:
        """Exclude, in place, the tokens that may not follow each text. If that leaves none, the text may end.

        Args:
            logs: Log-probabilities of the next token. *Shape:* (rows, texts, vocabulary)
            tokens: The texts so far. *Shape:* (rows, texts, tokens)
        """
        stop, size = self.layout.stop, self.settings.no_repeat_ngram
        end = logs[:, :, stop].clone()
        if self.layout.never:
            logs.index_fill_(2, torch.tensor(self.layout.never, device=logs.device), NEVER)
        if tokens.shape[2] < self.settings.min_length:
            logs[:, :, stop] = NEVER
        if 0 < size <= tokens.shape[2]:
            flat = logs.view(-1, logs.shape[2])
            flat[repeats(tokens.flatten(0, 1), size, self.layout.may_repeat)] = NEVER
            stuck = logs.amax(dim=2) == NEVER
            logs[:, :, stop] = torch.where(stuck, end, logs[:, :, stop])
        return logs


def repeats(tokens: Tensor, size: int, may_repeat: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Tokens that would repeat an n-gram that already occurs in a text.

    Args:
        tokens: Texts. *Shape:* (texts, tokens)
        size: Length of the n-grams in tokens.
        may_repeat: N-grams that contain one of these tokens may repeat.
    """
    length = tokens.shape[1]
    grams = tokens.unfold(1, size, 1)
    tail = tokens[:, length - size + 1 :]
    same = (grams[:, :, :-1] == tail[:, None, :]).all(dim=2)
    if may_repeat:
        free = torch.isin(grams, torch.tensor(may_repeat, device=tokens.device))
        same &= ~free.any(dim=2)
    text, place = same.nonzero(as_tuple=True)
    return text, grams[text, place, -1]


def draw(logs: Tensor, settings: DecodingSettings, uniform: Tensor) -> Tensor:
    """Sample one token for each text.

    The temperature is applied first, then `top_k`, then `top_p` to the remaining tokens.

    Args:
        logs: Log-probabilities. *Shape:* (texts, vocabulary)
        settings: Temperature, `top_k` and `top_p`.
        uniform: A number in [0, 1) for each text, in double precision. *Shape:* (texts,)
    """
    logs = logs.to(widest_float(logs.device))
    logs = (
        logs - logs.amax(dim=1, keepdim=True)
    ) / settings.temperature  # the maximum is 0, which stays finite at any temperature
    order = None
    if settings.top_k is not None:
        logs, order = logs.topk(min(settings.top_k, logs.shape[1]), dim=1)
    elif settings.top_p is not None:
        logs, order = logs.sort(dim=1, descending=True, stable=True)
    shares = torch.softmax(logs, dim=1)
    if settings.top_p is not None:
        before = shares.cumsum(dim=1) - shares
        shares = torch.where(before < settings.top_p, shares, 0.0)
    heights = shares.cumsum(dim=1)
    chosen = torch.searchsorted(heights, uniform[:, None] * heights[:, -1:], right=True).clamp(max=logs.shape[1] - 1)
    return (chosen if order is None else order.gather(1, chosen)).squeeze(1)


LEAVE_AT = 0.25
"""Share of finished sources at which they leave the batch: moving the rest costs about as much as a step."""

Settled = list[tuple[int, list[int]]]


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """A generated text."""

    tokens: list[int]  # token ids without the final [EOS]
    # log p of the tokens, including [EOS] if it ended, under the unmodified model: temperature and excluded tokens have
    # no effect on it
    log_probability: float
    score: float  # log-probability after the length penalty
    ended: bool  # whether it ended with [EOS]; otherwise it was cut off

    @classmethod
    def of(cls, tokens: list[int], log: float, ended: bool, settings: DecodingSettings) -> Hypothesis:
        """A text scored by its log-probability and the length penalty."""
        score = log / length_penalty(len(tokens) + ended, settings.length_penalty)
        return cls(tokens=tokens, log_probability=log, score=score, ended=ended)


Search = Generator[Settled, None, list[list[Hypothesis]]]


class Stepper(Protocol):
    """Predicts the next tokens of several hypotheses per source; see `unicloze.decoding.steppers.Branches`."""

    count: int

    def __len__(self) -> int: ...

    def first(self) -> Tensor:
        """Logits of the first tokens. *Shape:* (rows, vocabulary)"""

    def step(self, tokens: Tensor, parents: Tensor | None) -> Tensor:
        """Logits of the next tokens, *Shape:* (rows, hypotheses, vocabulary), after tokens and parents of that shape."""

    def keep(self, rows: Tensor) -> None:
        """Keep only the given rows."""


def length_penalty(length: int, alpha: float) -> float:
    """((5 + length) / 6)^alpha, the divisor of log p (Wu et al. 2016, equation 14)."""
    return float(((5 + length) / 6) ** alpha)


def search(stepper: Stepper, rules: TokenConstraints, records: Sequence[int]) -> Search:
    """The search chosen by the settings."""
    if rules.settings.sample or rules.settings.beams == 1:
        return chains(stepper, rules, records)
    return beam_search(stepper, rules, records)


@torch.inference_mode()
def chains(stepper: Stepper, rules: TokenConstraints, records: Sequence[int]) -> Search:
    """Greedy search or sampling: each text is extended by its likeliest or a sampled token."""
    settings, stop = rules.settings, rules.layout.stop
    numbers = list(range(len(stepper)))
    logits = stepper.first()[:, None, :].expand(-1, stepper.count, -1)
    device = logits.device
    tokens = torch.zeros(len(stepper), stepper.count, 0, dtype=torch.long, device=device)
    logs = torch.zeros(len(stepper), stepper.count, dtype=widest_float(device), device=device)
    lengths = torch.full(logs.shape, -1, dtype=torch.long, device=device)  # with [EOS]; -1 until a text has ended
    results: list[list[Hypothesis]] = [[] for _ in records]
    for length in range(1, settings.max_length + 1):
        model_logs = torch.log_softmax(logits, dim=2)
        allowed = rules.apply(model_logs.clone(), tokens)
        if settings.sample:
            uniform = _uniform(settings.seed, [records[number] for number in numbers], stepper.count, length)
            chosen = draw(allowed.flatten(0, 1), settings, uniform.to(device, widest_float(device))).view(logs.shape)
        else:
            chosen = allowed.argmax(dim=2)
        going = lengths < 0
        logs += torch.where(going, model_logs.gather(2, chosen[:, :, None]).squeeze(2), 0.0)
        tokens = torch.cat([tokens, chosen[:, :, None]], dim=2)
        ends = going & (chosen == stop)
        lengths[ends] = length
        told = zip(numbers, chosen[:, 0].tolist(), (going & ~ends)[:, 0].tolist(), strict=True)
        yield [(number, [token]) for number, token, goes_on in told if goes_on]
        over = (lengths > 0).all(dim=1)
        if length == settings.max_length:
            over[:] = True
        done, left = _leaving(over)
        for row in done:
            found = zip(*(part[row].tolist() for part in (tokens, logs, lengths)), strict=True)
            results[numbers[row]] = [
                Hypothesis.of(ids[: size - 1] if size > 0 else ids, log, size > 0, settings) for ids, log, size in found
            ]
        if not len(left):
            break
        if len(left) < len(numbers):
            numbers = [numbers[row] for row in left.tolist()]
            tokens, logs, lengths, chosen = (part[left] for part in (tokens, logs, lengths, chosen))
            stepper.keep(left)
        logits = stepper.step(chosen, None)
    return results


def _leaving(over: Tensor) -> tuple[list[int], Tensor]:
    """The rows that leave the batch, none if few are over, and those that stay."""
    left = (~over).nonzero().squeeze(1)
    if len(left) and len(over) - len(left) < LEAVE_AT * len(over):
        return [], torch.arange(len(over), device=over.device)
    return over.nonzero().squeeze(1).tolist(), left


def _uniform(seed: int, records: Sequence[int], count: int, step: int) -> Tensor:
    """A number in [0, 1) for each text, determined by seed, source, text and step. *Shape:* (sources x texts,)"""
    keys = keyed.key(seed, np.array(records)[:, None], np.arange(count), step)
    return torch.from_numpy(keyed.uniform(keyed.bits(keys, keyed.Stream.ONLY, np.zeros(1, np.int64)))).flatten()


@dataclass
class _Candidates:
    """The best finished hypotheses of each source, best first; empty slots score -inf."""

    scores: Tensor  # *Shape:* (rows, beams)
    logs: Tensor  # Their log-probabilities. *Shape:* (rows, beams)
    lengths: Tensor  # Their numbers of tokens, including [EOS]. *Shape:* (rows, beams)
    ended: Tensor  # Whether they end with [EOS]. *Shape:* (rows, beams)
    tokens: Tensor  # *Shape:* (rows, beams, longest)

    @classmethod
    def none(cls, rows: int, beams: int, longest: int, device: torch.device) -> _Candidates:
        scores = torch.full((rows, beams), NEVER, dtype=widest_float(device), device=device)
        lengths = torch.zeros(rows, beams, dtype=torch.long, device=device)
        tokens = torch.zeros(rows, beams, longest, dtype=torch.long, device=device)
        return cls(scores, scores.clone(), lengths, lengths.bool(), tokens)

    def add(self, scores: Tensor, logs: Tensor, tokens: Tensor, *, ended: bool) -> None:
        """Merge new candidates and keep the best; ties go to the earlier. Shapes as above, any number per row."""
        length, beams = tokens.shape[2], self.scores.shape[1]
        best = torch.cat([self.scores, scores], dim=1).sort(dim=1, descending=True, stable=True).indices[:, :beams]
        padded = tokens.new_zeros(*tokens.shape[:2], self.tokens.shape[2])
        padded[:, :, :length] = tokens
        lengths = torch.full_like(scores, length, dtype=torch.long)
        every = {"scores": scores, "logs": logs, "lengths": lengths, "ended": torch.full_like(lengths, ended).bool()}
        for name, new in every.items():
            setattr(self, name, torch.cat([getattr(self, name), new], dim=1).gather(1, best))
        index = best[:, :, None].expand(-1, -1, padded.shape[2])
        self.tokens = torch.cat([self.tokens, padded], dim=1).gather(1, index)

    def of_rows(self, rows: Tensor) -> _Candidates:
        return _Candidates(*(part[rows] for part in vars(self).values()))

    def hypotheses(self, row: int, count: int) -> list[Hypothesis]:
        """Up to `count` best candidates of a row."""
        parts = self.tokens, self.logs, self.scores, self.lengths, self.ended
        return [
            Hypothesis(tokens=tokens[: length - ended], log_probability=log, score=score, ended=ended)
            for tokens, log, score, length, ended in zip(*(part[row, :count].tolist() for part in parts), strict=True)
            if score > NEVER
        ]


@torch.inference_mode()
def beam_search(stepper: Stepper, rules: TokenConstraints, records: Sequence[int]) -> Search:
    """Beam search as described in the module docstring."""
    settings, stop, beams = rules.settings, rules.layout.stop, stepper.count
    alpha, longest = settings.length_penalty, settings.max_length
    numbers = list(range(len(stepper)))
    logits = stepper.first()[:, None, :].expand(-1, beams, -1)
    device, vocabulary = logits.device, logits.shape[2]
    tokens = torch.zeros(len(stepper), beams, 0, dtype=torch.long, device=device)
    totals = torch.full((len(stepper), beams), NEVER, dtype=widest_float(device), device=device)
    totals[:, 0] = 0.0  # all hypotheses are empty and equal: only one of them is extended
    candidates = _Candidates.none(len(stepper), beams, longest, device)
    results: list[list[Hypothesis]] = [[] for _ in records]
    told = 0
    for length in range(1, longest + 1):
        logs = rules.apply(torch.log_softmax(logits, dim=2), tokens)
        best = (logs + totals[:, :, None].float()).flatten(1).topk(min(2 * beams, beams * vocabulary), dim=1).indices
        parents, chosen = best // vocabulary, best % vocabulary
        sums = totals.gather(1, parents) + logs.flatten(1).gather(1, best)
        ends = chosen == stop
        if bool(ends[:, :beams].any()):
            sums_of_ended = torch.where(ends, sums, NEVER)[:, :beams]
            whole = _continued(tokens, parents[:, :beams], chosen[:, :beams])
            candidates.add(sums_of_ended / length_penalty(length, alpha), sums_of_ended, whole, ended=True)
        going = ends.to(torch.uint8).argsort(dim=1, stable=True)[:, :beams]
        parents, chosen, totals = parents.gather(1, going), chosen.gather(1, going), sums.gather(1, going)
        totals = torch.where(chosen == stop, NEVER, totals)
        tokens = _continued(tokens, parents, chosen)
        over = _is_over(candidates, totals, length, settings)
        if length == longest:
            still = torch.where(over[:, None], NEVER, totals)
            candidates.add(still / length_penalty(length, alpha), still, tokens, ended=False)
            over[:] = True
        settled = _settled(tokens, totals, candidates, settings.num_results)
        yield [(numbers[0], settled[told:])] if settled[told:] else []
        told = max(told, len(settled))
        totals[over] = NEVER  # so that they add no further candidates if they stay
        done, left = _leaving(over)
        for row in done:
            results[numbers[row]] = candidates.hypotheses(row, settings.num_results)
        if not len(left):
            break
        if len(left) < len(numbers):
            numbers = [numbers[row] for row in left.tolist()]
            tokens, totals, parents, chosen = (part[left] for part in (tokens, totals, parents, chosen))
            candidates = candidates.of_rows(left)
            stepper.keep(left)
            # The stepper still holds the hypotheses before this step, which `parents` indexes.
        logits = stepper.step(chosen, parents)
    return results


def _continued(tokens: Tensor, parents: Tensor, chosen: Tensor) -> Tensor:
    """Hypotheses with one more token each. *Shape:* (rows, hypotheses, tokens)"""
    before = tokens.gather(1, parents[:, :, None].expand(-1, -1, tokens.shape[2]))
    return torch.cat([before, chosen[:, :, None]], dim=2)


def _is_over(candidates: _Candidates, totals: Tensor, length: int, settings: DecodingSettings) -> Tensor:
    """Which sources' searches are over after `length` tokens. *Shape:* (rows,)"""
    best = totals.amax(dim=1)
    if settings.early_stop == "first":
        return (candidates.scores[:, -1] > NEVER) | (best == NEVER)
    # log p never rises, so a hypothesis scores at most as if all its remaining tokens were certain.
    penalties = [length_penalty(n, settings.length_penalty) for n in (length + 1, settings.max_length)]
    reachable = best / max(penalties)
    return reachable <= candidates.scores[:, settings.num_results - 1]


def _settled(tokens: Tensor, totals: Tensor, candidates: _Candidates, results: int) -> list[int]:
    """The tokens that all open hypotheses of a single source and its best ended one begin with."""
    if len(tokens) > 1 or results > 1:
        return []
    texts = tokens[0][totals[0] > NEVER].tolist() + [one.tokens for one in candidates.hypotheses(0, 1)]
    alike = itertools.takewhile(lambda each: len(each) == 1, map(set, zip(*texts, strict=False)))
    return [token for (token,) in alike]
