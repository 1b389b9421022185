"""Settings of how a task is trained, and of how a trained model encodes and generates text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from unicloze.settings.values import Auto, Precision, Projection, ViewName


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


@dataclass(frozen=True, kw_only=True)
class GenerationSettings:
    """How a generation task turns a record into source and target, and how the target is trained.

    Args:
        learning: `pseudo` predicts every token of the target from a pseudo mask appended to the row (UniLMv2, Section 3.4);
            `masked` masks a share of the target in place (UniLM v1, Section 2.5); `next` predicts the next token from each
            token's own slot. Default: `next` if the model was trained that way, else `pseudo`.
        source: Parts of the source, joined by [EOS]: roles that `task.fields` may rename.
        keep: What to keep of each part if the source is too long (the longest is cut first): its `beginning`, its `end`, or
            the `chunk` that contains the most tokens of the other parts, preferably all of one in sequence, and an answer
            with `answer_start` at that place. Of a `history` always the end, the latest turns.
        chunk_by: Parts whose tokens select the `chunk`, such as `[question]`; default: all other parts.
        targets: Train on the `first` of a record's targets, or on `all`, one row each.
        max_source: Maximum tokens of a source, [SOS] and [EOS] included; default: what `task.max_length` leaves.
        max_target: Maximum tokens of a target, [EOS] included; at most half of `task.max_length`.
        mask_rate: Share of the target that `masked` masks, its [EOS] included.
        mask_share: Share of the masks or pseudo masks that show a mask.
        random_share: Share that shows a random token; the rest shows the token itself.
        target_noise: Share of the target's own tokens that `pseudo` corrupts as if they were masked, so that the model
            learns to continue after mistakes.
        block_size: Tokens of the target that `pseudo` predicts per step, independently of each other.
        any_order: Let `pseudo` predict the tokens of the target in random order, for `decoding.parallel`.
        segment_ids: Segments of source and target; default: 4 and 5 if the model has six (UniLM v1), else 0 and 1.
    """

    learning: Literal["pseudo", "masked", "next"] | None = None
    source: list[str] = field(default_factory=lambda: ["source"])
    keep: Literal["beginning", "end", "chunk"] = "beginning"
    chunk_by: list[str] | None = None
    targets: Literal["first", "all"] = "first"
    max_source: int | None = None
    max_target: int = 64
    mask_rate: float = 0.7
    mask_share: float = 0.8
    random_share: float = 0.1
    target_noise: float = 0.0
    block_size: int = 1
    any_order: bool = False
    segment_ids: list[int] | None = None


@dataclass(frozen=True, kw_only=True)
class FinetuningSettings:
    """How a task is trained; `steps` and `warmup_steps` of `TrainingSettings` follow from these settings.

    Args:
        epochs: Passes over the training file; `auto` chooses by the number of records.
        warmup_share: Share of the steps in which the learning rate rises.
        evaluations: Evaluations on the development file per epoch; 0.5 evaluates after every other epoch.
        patience: Stop after this many evaluations without improvement, not counting that of a head fitted before the first
            step; default: never.
        average_last: Evaluate and keep the mean of the weights at this many of the latest evaluations, or at all so far if
            they are fewer (Transformer 2017, Section 6.1: 5 checkpoints for the base model, 20 for the big one). Training
            itself continues from the weights as they are. 1 averages nothing.
        auxiliary: Targets of the model's own objective to train on the task's rows as well, and the factor of each loss:
            {ae: 1.0} for UniLM v1's masked language model, {lm: 0.5} for GPT's; default: none.
        unlabelled: Files or folders of unlabelled text for cross-view training: .txt with one sentence per line, or records
            whose labels are ignored. Every second step then trains auxiliary heads, each with a restricted view of the text,
            to predict what the task's own head predicts without dropout (CVT).
        views: Views of the auxiliary heads: `full` sees the whole text, `forward` and `backward` the word and the text on one
            side of it, `future` and `past` only that text.
        unlabelled_dropout: Factor of all dropout rates in steps on unlabelled text.
        layer_decay: Factor of the learning rate from each layer to the one below; the head has `training.learning_rate`, the
            embeddings the lowest. ULMFiT divides by 2.6, a factor of 0.385.
        unfreeze_epochs: Epochs between unfreezing one more layer, starting with the head alone and ending with the
            embeddings (ULMFiT: 1). Default: everything learns from the start.
        lora_rank: Train only the task's head and updates of this rank to `lora_projections` (LoRA). Default: no updates.
        lora_alpha: The updates are scaled by `lora_alpha` / `lora_rank`; default: the rank.
        lora_dropout: Dropout of the input of the updates.
        lora_projections: Projections that are updated: `query`, `key`, `value` and `output` of attention, `inner` and `outer`
            of the feed-forward network.
        adapter_size: Add a bottleneck adapter of this width after each sub-layer, and train only the adapters, the
            normalisations and the task's head (Houlsby et al. 2019). Default: no adapters.
    """

    epochs: float | Auto = 3.0
    warmup_share: float = 0.1
    evaluations: float = 1.0
    patience: int | None = None
    average_last: int = 1
    auxiliary: dict[str, float] = field(default_factory=dict)
    unlabelled: list[str] = field(default_factory=list)
    views: list[ViewName] = field(default_factory=lambda: ["full", "forward", "backward", "future", "past"])
    unlabelled_dropout: float = 1.0
    layer_decay: float = 1.0
    unfreeze_epochs: float | None = None
    lora_rank: int | None = None
    lora_alpha: float | None = None
    lora_dropout: float = 0.0
    lora_projections: list[Projection] = field(default_factory=lambda: ["query", "value"])
    adapter_size: int | None = None

    @property
    def few(self) -> bool:
        """Whether only a few weights learn, which are saved apart from the model they were added to."""
        return self.lora_rank is not None or self.adapter_size is not None

    @property
    def steps_between(self) -> int:
        """Steps from one on labelled records to the next."""
        return 2 if self.unlabelled else 1
