"""Settings that several objectives share, in groups that their own settings inherit, with their rules."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from unicloze.rules import POSITIVE, SHARE, Needs, Problem
from unicloze.settings import ObjectiveSettings, Pairing, Reading, Recipe, WindowNeeds

PAIRS_OF_TARGETS = {"nsp": "next_sentence", "sop": "sentence_order"}
"""How segments must be paired for a target to have two answers."""

_spans = Needs("objective.masking blockwise, geometric or ngram", lambda recipe: recipe.objective.masking != "token")
_several = Needs("objective.max_span above 1", lambda recipe: recipe.objective.max_span > 1)
_steps = Needs(
    "steps of several tokens (objective.masking, objective.max_span or objective.mask_unit)",
    lambda recipe: recipe.objective.mask_unit != "token" or (_spans.holds(recipe) and _several.holds(recipe)),
)
_by_steps = Needs(
    "what is done by steps: the target 'par' or 'sbo', or objective.corruption_unit span",
    lambda recipe: (
        bool({"par", "sbo"} & {*recipe.objective.targets})
        or (isinstance(recipe.objective, Corruption) and recipe.objective.corruption_unit == "span")
    ),
)


@dataclass(frozen=True, kw_only=True)
class MaskRate(ObjectiveSettings):
    """How much of a text is masked.

    Args:
        mask_rate: Share of the text tokens to mask; special tokens are neither masked nor counted. Of a `prefix` language
            model the mean share that is predicted: 0.5 splits uniformly.
        final_mask_rate: Mask rate at the last step, reached linearly; `mask_rate` throughout if not given.
    """

    mask_rate: float = 0.15
    final_mask_rate: float | None = None

    ranges: ClassVar = {"mask_rate": SHARE, "final_mask_rate": SHARE}

    @property
    def rates(self) -> tuple[float, float]:
        """Mask rates of the first and the last step."""
        return self.mask_rate, self.mask_rate if self.final_mask_rate is None else self.final_mask_rate

    def problems(self, recipe: Recipe) -> Iterator[Problem]:
        """Rates at which nothing is masked."""
        yield from super().problems(recipe)
        for name in ("mask_rate", "final_mask_rate"):
            if getattr(self, name) == 0:
                yield f"objective.{name}", "nothing would be masked; it must be above 0"


@dataclass(frozen=True, kw_only=True)
class Masking(MaskRate):
    """Which tokens are masked, and in which steps they are predicted.

    Args:
        masking: `blockwise` is Algorithm 1; `token` draws single units without replacement (BERT); `geometric` draws spans
            of 1 to `max_span` units with probability proportional to (1 - `geometric_p`)^length (SpanBERT); `ngram` spans
            of 1 to `max_span` units with probability proportional to 1/length (ALBERT).
        mask_unit: What is masked as a whole: a `token`, a `word`, or a `phrase` found by collocation (ERNIE).
        block_probability: Chance that a draw of Algorithm 1 is a block of several tokens.
        max_span: Longest block or span; 1 draws single tokens only.
        geometric_p: Parameter of the geometric span lengths.
        factorization: `block` predicts a drawn block in one step (PAR); `token` splits the blocks and shuffles all masked
            tokens into an order of their own (AR). The paper leaves this open for its AR rows.
    """

    masking: Literal["blockwise", "token", "geometric", "ngram"] = "blockwise"
    mask_unit: Literal["token", "word", "phrase"] = "token"
    block_probability: float = 0.4
    max_span: int = 6
    geometric_p: float = 0.2
    factorization: Literal["block", "token"] = "block"

    ranges: ClassVar = {"block_probability": SHARE, "max_span": POSITIVE, "geometric_p": SHARE}
    needs: ClassVar = {
        "max_span": (_spans,),
        "block_probability": (
            Needs("objective.masking blockwise", lambda recipe: recipe.objective.masking == "blockwise"),
            _several,
        ),
        "geometric_p": (
            Needs("objective.masking geometric", lambda recipe: recipe.objective.masking == "geometric"),
            _several,
        ),
        "factorization": (_steps, _by_steps),
    }

    @property
    def single_tokens(self) -> bool:
        """Whether every step is of one token, so that `par` is what UniLMv2's Table 6 calls AR."""
        return self.factorization == "token" or self.masking == "token" or self.max_span == 1

    @property
    def windows(self) -> WindowNeeds:
        """What it asks of its windows: marked phrases, if these are masked as a whole."""
        return super().windows._replace(phrases=self.mask_unit == "phrase")

    def problems(self, recipe: Recipe) -> Iterator[Problem]:
        """Blocks that cannot be drawn."""
        yield from super().problems(recipe)
        if self.block_probability == 1 and self.max_span > 1:
            yield (
                "objective.block_probability",
                "it must be below 1: a text without two free neighbours needs single tokens",
            )


@dataclass(frozen=True, kw_only=True)
class Shown(ObjectiveSettings):
    """What masked positions show.

    Args:
        mask_share: Share of the masked positions that show a mask.
        random_share: Share that shows a random token; what is left shows the token itself.
    """

    mask_share: float = 0.8
    random_share: float = 0.1

    ranges: ClassVar = {"mask_share": SHARE, "random_share": SHARE}

    def without_noise(self) -> Self:
        """The settings with a mask at every masked position."""
        return dataclasses.replace(self, mask_share=1.0, random_share=0.0)

    def problems(self, recipe: Recipe) -> Iterator[Problem]:
        """Shares that exceed the whole."""
        yield from super().problems(recipe)
        if self.mask_share + self.random_share > 1 + 1e-9:
            yield "objective.random_share", f"with objective.mask_share {self.mask_share} it exceeds 1"


@dataclass(frozen=True, kw_only=True)
class Corruption(Shown):
    """What masked positions show, drawn for tokens or for whole spans.

    Args:
        corruption_unit: Whether mask, random token or token itself is drawn for each `token` or for a whole `span`.
    """

    corruption_unit: Literal["token", "span"] = "token"

    needs: ClassVar = {"corruption_unit": (_steps,)}


@dataclass(frozen=True, kw_only=True)
class PseudoToken(ObjectiveSettings):
    """Which id pseudo masks have.

    Args:
        pseudo_token: `own` gives [P] its own id as the paper draws it; `mask` shares [M]'s id as the released models do.
    """

    pseudo_token: Literal["own", "mask"] = "own"

    needs: ClassVar = {
        "pseudo_token": (
            Needs("the target 'par' in objective.targets", lambda recipe: "par" in recipe.objective.targets),
        )
    }


@dataclass(frozen=True, kw_only=True)
class Pairs(ObjectiveSettings):
    """How two segments relate.

    Args:
        pairs: The second segment is `contiguous`, half the time of another document (`next_sentence`, BERT), or half the
            time swapped with the first (`sentence_order`, ALBERT).
    """

    pairs: Pairing = "contiguous"

    @property
    def windows(self) -> WindowNeeds:
        """What it asks of its windows: pairs."""
        return super().windows._replace(pairs=self.pairs)

    def problems(self, recipe: Recipe) -> Iterator[Problem]:
        """Segments that cannot be paired so, and targets that ask for another pairing."""
        yield from super().problems(recipe)
        if self.pairs != "contiguous" and recipe.data.segments == 1:
            yield "objective.pairs", "there is one segment only: set data.segments to 2"
        if self.pairs != "contiguous" and recipe.data.documents == "joined":
            yield "objective.pairs", "it relates segments of one document: set data.documents to separate"
        for target, pairs in PAIRS_OF_TARGETS.items():
            if target in self.targets and self.pairs != pairs:
                yield "objective.pairs", f"the target '{target}' needs {pairs}"


@dataclass(frozen=True, kw_only=True)
class Segments(ObjectiveSettings):
    """Names of the segments.

    Args:
        segment_ids: Ids of the first and the second segment, or of source and target; 0 and 1 if not given (UniLM v1 names
            the four language models by them).
    """

    segment_ids: list[int] | None = None

    @property
    def reading(self) -> Reading:
        """How its rows read a text: with segments of these names."""
        return super().reading._replace(segment_ids=self.segment_ids)

    def problems(self, recipe: Recipe) -> Iterator[Problem]:
        """Ids that the model has no row for."""
        yield from super().problems(recipe)
        rows = recipe.model.num_segments
        if self.segment_ids is not None and not 1 <= len(self.segment_ids) <= 2:
            yield "objective.segment_ids", "give one id for both segments or one for each"
        if not all(0 <= number < max(1, rows) for number in self.segment_ids or []):
            yield "objective.segment_ids", f"model.num_segments {rows} has the ids below it"


@dataclass(frozen=True, kw_only=True)
class Directed(Segments):
    """Who reads whom.

    Args:
        visibility: Who reads whom in `masked` and `causal` rows (UniLM v1's four, GPT's one).
    """

    visibility: Literal["bidirectional", "left_to_right", "right_to_left", "prefix"] = "bidirectional"

    @property
    def reading(self) -> Reading:
        """How its rows read a text: in this direction."""
        return super().reading._replace(visibility=self.visibility)

    @property
    def forgets(self) -> str | None:
        """Why its rows cannot go on from a memory; None if they can."""
        if self.visibility == "right_to_left":
            return "read from right to left, only the first slot of a row would see it"
        return super().forgets
