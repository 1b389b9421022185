"""Groups of settings that several objectives inherit, with their rules."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Self

from unicloze.rules import POSITIVE, SHARE, UP_TO_ONE, Needs, Problem, ReadBy, needs, setting
from unicloze.settings import ObjectiveSettings, Pairing, Reading, Recipe, WindowNeeds

PAIRS_OF_TARGETS = {"nsp": "next_sentence", "sop": "sentence_order"}
"""Segment pairing that each pair target needs."""

_spans = needs("objective.masking", "blockwise", "geometric", "ngram")
_several = Needs("objective.max_span above 1", lambda recipe: recipe.objective.max_span > 1)
_steps = Needs(
    "steps of several tokens (objective.masking, objective.max_span or objective.mask_unit)",
    lambda recipe: recipe.objective.mask_unit != "token" or (_spans.holds(recipe) and _several.holds(recipe)),
)
_by_steps = Needs(
    "a setting that uses steps: the target 'par', or objective.corruption_unit span",
    lambda recipe: (
        "par" in recipe.objective.targets
        or (isinstance(recipe.objective, Corruption) and recipe.objective.corruption_unit == "span")
    ),
)


@dataclass(frozen=True, kw_only=True)
class MaskRate(ObjectiveSettings):
    """How much of a text is masked.

    Args:
        mask_rate: Share of the text tokens to mask; special tokens are neither masked nor counted. For a `prefix` language
            model, the mean share that is predicted: 0.5 splits uniformly.
        final_mask_rate: Mask rate at the last step, reached linearly; default: `mask_rate`.
    """

    mask_rate: float = setting(0.15, UP_TO_ONE)
    final_mask_rate: float | None = setting(None, UP_TO_ONE, ReadBy())

    @property
    def rates(self) -> tuple[float, float]:
        """Mask rates of the first and the last step."""
        return self.mask_rate, self.mask_rate if self.final_mask_rate is None else self.final_mask_rate


@dataclass(frozen=True, kw_only=True)
class Masking(MaskRate):
    """Which tokens are masked, and in which steps they are predicted.

    Args:
        masking: `blockwise` is Algorithm 1; `token` draws single units without replacement (BERT); `geometric` draws spans
            of 1 to `max_span` units with probability proportional to (1 - `geometric_p`)^length (SpanBERT); `ngram` draws
            spans of 1 to `max_span` units with probability proportional to 1/length (ALBERT).
        mask_unit: What is masked as a whole: a `token`, a `word`, a `phrase` or an `entity` (ERNIE's three stages are word,
            phrase and entity). Phrases and entities are those that a document marks in `data.spans_field`; its other
            words are masked singly.
        unmarked_unit: `mask_unit` in a document without spans of that kind: a `phrase` found by collocation or listed in
            `data.phrases`, or a `word`.
        block_probability: Probability that a draw of Algorithm 1 is a block of several tokens.
        max_span: Maximum length of a block or span in units; 1 draws single units only.
        geometric_p: Parameter of the geometric span lengths.
        factorization: `block` predicts a block in one step (PAR); `token` predicts all masked tokens one at a time in random
            order (AR). The paper does not specify this for its AR rows.
    """

    masking: Literal["blockwise", "token", "geometric", "ngram"] = "blockwise"
    mask_unit: Literal["token", "word", "phrase", "entity"] = "token"
    unmarked_unit: Literal["phrase", "word"] = setting(
        "phrase", needs("objective.mask_unit", "phrase", "entity"), needs("data.spans_field")
    )
    block_probability: float = setting(0.4, SHARE, needs("objective.masking", "blockwise"), _several)
    max_span: int = setting(6, POSITIVE, _spans)
    geometric_p: float = setting(0.2, SHARE, needs("objective.masking", "geometric"), _several)
    factorization: Literal["block", "token"] = setting("block", _steps, _by_steps)

    @property
    def single_tokens(self) -> bool:
        """Whether every step has one token, so that `par` is what UniLMv2's Table 6 calls AR."""
        return self.factorization == "token" or self.masking == "token" or self.max_span == 1

    @property
    def windows(self) -> WindowNeeds:
        """What the objective requires of its windows: marked phrases and spans, if it masks whole ones."""
        whole = self.mask_unit in ("phrase", "entity")
        return super().windows._replace(phrases=whole and self.unmarked_unit == "phrase", spans=whole)

    def problems(self, recipe: Recipe) -> Iterator[Problem]:
        """Reject blocks that cannot always be drawn, and entities that no document can give."""
        yield from super().problems(recipe)
        if self.mask_unit == "entity" and recipe.data.spans_field is None:
            yield "objective.mask_unit", "entities are those that documents mark: set data.spans_field to their field"
        if self.block_probability == 1 and self.max_span > 1:
            yield (
                "objective.block_probability",
                "it must be below 1: text without two adjacent unmasked tokens needs single tokens",
            )


@dataclass(frozen=True, kw_only=True)
class Shown(ObjectiveSettings):
    """What masked positions show.

    Args:
        mask_share: Share of the masked positions that show a mask.
        random_share: Share that shows a random token; the rest shows the token itself.
    """

    mask_share: float = setting(0.8, SHARE)
    random_share: float = setting(0.1, SHARE)

    def without_noise(self) -> Self:
        """The settings with a mask at every masked position."""
        return dataclasses.replace(self, mask_share=1.0, random_share=0.0)

    def problems(self, recipe: Recipe) -> Iterator[Problem]:
        """Reject shares that sum to more than 1."""
        yield from super().problems(recipe)
        if self.mask_share + self.random_share > 1 + 1e-9:
            yield "objective.random_share", f"its sum with objective.mask_share {self.mask_share} exceeds 1"


@dataclass(frozen=True, kw_only=True)
class Corruption(Shown):
    """What masked positions show, drawn per token or per span.

    Args:
        corruption_unit: Draw mask, random token or the token itself for each `token` or for a whole `span`.
    """

    corruption_unit: Literal["token", "span"] = setting("token", _steps)


@dataclass(frozen=True, kw_only=True)
class PseudoToken(ObjectiveSettings):
    """The id of pseudo masks.

    Args:
        pseudo_token: `own` gives [P] its own id, as in the paper's figures; `mask` shares [M]'s id, as in released models.
    """

    pseudo_token: Literal["own", "mask"] = setting(
        "own", Needs("the target 'par' in objective.targets", lambda recipe: "par" in recipe.objective.targets)
    )


@dataclass(frozen=True, kw_only=True)
class Pairs(ObjectiveSettings):
    """How two segments relate.

    Args:
        pairs: The second segment follows the first (`contiguous`), comes from another document half the time
            (`next_sentence`, BERT; with `data.overlap` from anywhere, XLNet), or is swapped with the first half the time
            (`sentence_order`, ALBERT).
    """

    pairs: Pairing = "contiguous"

    @property
    def windows(self) -> WindowNeeds:
        """What the objective requires of its windows: the pairing."""
        return super().windows._replace(pairs=self.pairs)

    def problems(self, recipe: Recipe) -> Iterator[Problem]:
        """Reject segments that cannot be paired this way, and targets that need another pairing."""
        yield from super().problems(recipe)
        if self.pairs != "contiguous" and recipe.data.segments == 1:
            yield "objective.pairs", "there is only one segment: set data.segments to 2"
        overlapping = self.pairs == "next_sentence" and recipe.data.order == "streams" and recipe.data.overlap > 0
        if self.pairs != "contiguous" and recipe.data.documents == "joined" and not overlapping:
            yield "objective.pairs", "it needs windows within documents: set data.documents to separate"
        for target, pairs in PAIRS_OF_TARGETS.items():
            if target in self.targets and self.pairs != pairs:
                yield "objective.pairs", f"the target '{target}' needs {pairs}"


@dataclass(frozen=True, kw_only=True)
class Segments(ObjectiveSettings):
    """Ids of the segments.

    Args:
        segment_ids: Ids of the first and the second segment, or of source and target; default: 0 and 1. UniLM v1 uses them
            to distinguish its four language models.
    """

    segment_ids: list[int] | None = None

    @property
    def reading(self) -> Reading:
        """How the rows read a text, including their segment ids."""
        return super().reading._replace(segment_ids=self.segment_ids)

    def problems(self, recipe: Recipe) -> Iterator[Problem]:
        """Reject ids without a row in the segment table."""
        yield from super().problems(recipe)
        rows = recipe.model.num_segments
        if self.segment_ids is not None and not 1 <= len(self.segment_ids) <= 2:
            yield "objective.segment_ids", "give one id for both segments, or one for each"
        if not all(0 <= number < max(1, rows) for number in self.segment_ids or []):
            yield "objective.segment_ids", f"model.num_segments is {rows}: each id must be below it"


@dataclass(frozen=True, kw_only=True)
class Directed(Segments):
    """Which slots see which.

    Args:
        visibility: Which slots each slot attends to in `masked` and `causal` rows (UniLM v1's four kinds, GPT's one).
    """

    visibility: Literal["bidirectional", "left_to_right", "right_to_left", "prefix"] = "bidirectional"

    @property
    def reading(self) -> Reading:
        """How the rows read a text, including the visibility."""
        return super().reading._replace(visibility=self.visibility)

    @property
    def forgets(self) -> str | None:
        """Why rows cannot use the memory of earlier rows; None if they can."""
        if self.visibility == "right_to_left":
            return "from right to left, only the first slot of a row would see it"
        return super().forgets
