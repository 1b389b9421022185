"""Settings of how a trained model encodes and generates text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from unicloze.settings.values import Precision


@dataclass(frozen=True, kw_only=True)
class UseSettings:
    """How the trained model writes a text as a row and reads it; an import takes it from the model's family and files.

    Args:
        visibility: Which slots each slot attends to when it encodes a text. With `both_directions`, in tasks, each text is
            read from left to right and, apart, from right to left, and a head reads both means, side by side (ELMo).
        pooling: The slot that represents a text: the `first`, the `last`, or the `mean` of all.
        separators: Number of [EOS] between the two texts of a pair in a task; RoBERTa, MPNet and BART have 2.
        normalize: Whether the vector of a text is divided by its length.
        prompt: Text put before each text that is embedded.
    """

    visibility: Literal["bidirectional", "left_to_right", "right_to_left", "both_directions"] = "bidirectional"
    pooling: Literal["first", "last", "mean"] = "first"
    separators: int = 1
    normalize: bool = False
    prompt: str = ""


@dataclass(frozen=True, kw_only=True)
class DecodingSettings:
    """How text is generated token by token: the search, which tokens it may choose, and when it ends.

    Args:
        beams: Beam size per source; 1 takes the most likely token each time (greedy).
        sample: Sample tokens instead of searching; `num_results` texts are sampled per source.
        temperature: Divisor of the logits before sampling.
        top_k: Sample from this many most likely tokens; default: all.
        top_p: Sample from the fewest most likely tokens whose total probability is at least this; default: all.
        min_length: Minimum number of tokens of a text.
        max_length: Maximum number of tokens; longer texts are cut off. Neither limit counts the closing [EOS].
        length_penalty: Exponent alpha of GNMT's length penalty: hypotheses are compared by log p / ((5 + n) / 6)^alpha, where
            n counts their tokens with [EOS] (Wu et al. 2016, Section 7).
        no_repeat_ngram: No sequence of this many tokens occurs twice in a text; 0 allows repeats. The source does not count.
            `generate` and `serve` use 3 for a pre-trained model of fewer than 50 million weights unless it is given.
        may_repeat: Tokens, as spelled in the vocabulary; a sequence that contains one of them may repeat.
        early_stop: Beam search of a source ends once no hypothesis can beat the worst one to return (`exact`: the same
            results as a full search), or once `beams` hypotheses have ended (`first`).
        num_results: Texts to return per source; at most `beams` unless sampling.
        parallel: Fill this many positions per step, the most confident first, instead of one at a time (models trained with
            `par`). The text then ends at the first [EOS].
        seed: Seed of sampling; a text depends on the seed, the index of its source and the source.
        batch_size: Maximum number of sources per batch.
        precision: `auto`, `bf16` or `fp32`.
    """

    beams: int = 1
    sample: bool = False
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_length: int = 0
    max_length: int = 64
    length_penalty: float = 0.0
    no_repeat_ngram: int = 0
    may_repeat: list[str] = field(default_factory=list)
    early_stop: Literal["exact", "first"] = "exact"
    num_results: int = 1
    parallel: int | None = None
    seed: int = 0
    batch_size: int = 16
    precision: Precision = "fp32"
