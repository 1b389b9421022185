"""Every setting of a run, as dataclasses that need neither torch nor numpy.

A recipe is a YAML file that mirrors these classes; the command line overrides single values by their dotted name
(`--training.steps 100`). The values here are those of the UniLMv2 paper where it states one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, Self

from unicloze.rules import Needs, Problem, Range

PYTHON_DOCS = "python-docs"
"""Name of the built-in corpus: the documentation found in every Python installation."""

DEVICE = r"auto|cpu|cuda(:(0|[1-9][0-9]*))?"
"""Names of devices; `auto` is a CUDA device where there is one, else the CPU."""

Precision = Literal["auto", "bf16", "fp32"]
"""Of forward passes: `bf16` by autocast, `fp32`, or `auto`: bf16 where it is faster."""

Order = Literal["confidence", "left-to-right", "span"]
"""In which masks are filled one after the other: the most certain next, from the left, adjacent ones together."""

Mode = Literal["pseudo", "chain", "both"]
"""How sentences are compared: by their pseudo-log-likelihood, by the chain rule, or by both."""

Pooling = Literal["mean", "first", "last"]
"""What of the last hidden states is the vector of a text: their mean, or that of its first or last token."""

SHORTEST_ROW = 8
"""Special tokens and some text of a task."""

PredictionFormat = Literal["jsonl", "json", "glue"]
"""How predictions are written: an object a line, as official scripts read them, or as GLUE's server does."""

Pairing = Literal["contiguous", "next_sentence", "sentence_order"]
"""How the second segment of a window relates to the first: it follows it, is half the time of another document (BERT), or
is half the time swapped with it (ALBERT)."""

Auto = Literal["auto"]
"""Stands for a value that a run chooses where it begins, from its model and its records."""


def chosen(value: float | Auto) -> float:
    """A value that is no longer `auto`.

    Raises:
        ValueError: It still is.
    """
    if value == "auto":
        raise ValueError("this value is chosen where the run begins")
    return value


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Where the values of a recipe come from.

    Args:
        paper: Title of the paper.
        place: Section, table and row.
        note: What the paper leaves open and how the recipe decides it.
    """

    paper: str = ""
    place: str = ""
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """Documents and the windows cut from them.

    Args:
        corpus: Files, folders or globs of .txt, .jsonl or .parquet (also .gz, .zst), `python-docs`, or a dataset of Hugging
            Face as `hf:NAME[:SPLIT[:COLUMN]]`, NAME a folder or OWNER/NAME[/CONFIG]. Each is a source.
        weights: How often one epoch passes over each source; once each if not given.
        text_field: Field of .jsonl and column of .parquet that holds the text.
        prepared: Folder of an earlier `prepare` to read instead of preparing the corpus again.
        window: Length of a window in tokens, special tokens included.
        segments: 2 for "[SOS] S1 [EOS] S2 [EOS]" (paper Section 2.2), 1 for "[SOS] S1 [EOS]".
        documents: `separate` cuts windows within documents (the last of one may be short), `joined` out of all documents
            one after the other with an [EOS] between them, so that every window is full (RoBERTa's full sentences, GPT).
        order: `shuffled`, or `streams`: row i of a batch goes on where row i of the batch before it stopped, as segment
            recurrence needs (XLNet).
        heldout_share: Share of the documents held out for evaluation, chosen by a hash of their text; every source keeps at
            least one to train on.
        deduplicate: Drop documents whose text was seen before (white space and case ignored).
        phrases: Text file with one phrase a line, for `objective.mask_unit: phrase`; phrases are found in the training
            text if not given.
    """

    corpus: list[str] = field(default_factory=lambda: [PYTHON_DOCS])
    weights: list[float] | None = None
    text_field: str = "text"
    prepared: str | None = None
    window: int = 512
    segments: Literal[1, 2] = 2
    documents: Literal["separate", "joined"] = "separate"
    order: Literal["shuffled", "streams"] = "shuffled"
    heldout_share: float = 0.02
    deduplicate: bool = True
    phrases: str | None = None


@dataclass(frozen=True, kw_only=True)
class TokenizerSettings:
    """Text to token ids.

    Args:
        path: A `vocab.txt` or `tokenizer.json` to load; a tokenizer is trained on the corpus if not given.
        kind: What to train: `wordpiece` (BERT) or `bpe` (byte-level, GPT-2 and RoBERTa).
        vocab_size: Size of the trained vocabulary, special tokens included.
        lowercase: Lower-case the text when a tokenizer is trained (WordPiece only). Of a `vocab.txt` that is loaded the
            `tokenizer_config.json` beside it says so, else whether it has capitals.
        strip_accents: Strip accents when a tokenizer is trained (WordPiece only), as BERT's uncased vocabularies do. Of many
            scripts that takes the vowels.
        extra_tokens: Special tokens [EXTRA0], [EXTRA1], ... in a trained vocabulary: T5's sentinels, UL2's mode tokens.
    """

    path: str | None = None
    kind: Literal["wordpiece", "bpe"] = "wordpiece"
    vocab_size: int = 30522
    lowercase: bool = True
    strip_accents: bool = False
    extra_tokens: int = 0


class Reading(NamedTuple):
    """How rows of an objective read a text.

    Args:
        visibility: Who reads whom.
        segment_ids: Ids of the first and the second segment; 0 and 1 if None.
        local_width: Slots to the left that layers read which read nearby slots only; None if it does not say.
    """

    visibility: str = "bidirectional"
    segment_ids: Sequence[int] | None = None
    local_width: int | None = None

    @property
    def segments(self) -> tuple[int, int]:
        """Ids of the first and the second segment; a single one names both."""
        ids = self.segment_ids or (0, 1)
        return ids[0], ids[-1]


class WindowNeeds(NamedTuple):
    """What an objective asks of the windows it is given.

    Args:
        pairs: How the second segment relates to the first.
        static_copies: Passes over the corpus after which the draws for a window repeat; never if None.
        phrases: Whether phrases must be marked.
    """

    pairs: Pairing = "contiguous"
    static_copies: int | None = None
    phrases: bool = False


class Bounds(NamedTuple):
    """The most that a row of an objective can take up.

    Args:
        slots: Slots of the row.
        predictions: Tokens it predicts.
        positions: Positions its slots stand for.
        sentinels: Different sentinels it shows.
    """

    slots: int
    predictions: int
    positions: int
    sentinels: int = 0


@dataclass(frozen=True, kw_only=True)
class ObjectiveSettings:
    """What is masked, in which order it is predicted, and what is shown in its place.

    These settings all objectives have. Each has a class of its own, beside its functions, with what it has besides; that
    class also says how rows are made and read (the properties and methods here) and what its values must be.

    Args:
        name: The objective: a key of `unicloze.objectives.OBJECTIVES`; `none` for an encoder that was imported, not
            trained here.
        targets: What is predicted: `ae` every masked token from the context alone (equation 3), `par` step by step
            (equation 6), `lm` the next token, `diffusion` noised tokens, `nsp` and `sop` how two segments relate, `sbo` a
            span's tokens from its boundary (SpanBERT), `rtd` which tokens were replaced (ELECTRA).
        static_copies: Draw masks for so many passes over the corpus and repeat them then (BERT); always anew if not given.
        mixture: Parts of a mixture, each a mapping of the settings in which it differs from these, with `share` (its share
            of the rows of every step; 1 if not given, shares are scaled to 1), `label` (its name if not given) and
            `evaluate` (whether it is measured on held-out text; true if not given).
        coefficients: Factor of each target's loss; 1 where not given.
    """

    name: str = "unilmv2"
    targets: list[str] = field(default_factory=lambda: ["ae", "par"])
    static_copies: int | None = None
    mixture: list[dict[str, Any]] = field(default_factory=list)
    coefficients: dict[str, float] = field(default_factory=dict)

    known_targets: ClassVar[tuple[str, ...]] = ()
    """Targets that it can have."""
    trains: ClassVar[bool] = True
    """Whether a model can be trained by it; if not, it needs no target."""
    in_order: ClassVar[bool] = False
    """Whether the slots of a row are in the order of the text, so that layers can read nearby slots only."""
    ranges: ClassVar[Mapping[str, Range]] = {}
    """By name what numbers a setting of this class, none that it inherits, may be."""
    needs: ClassVar[Mapping[str, tuple[Needs, ...]]] = {}
    """By name what a setting of this class, none that it inherits, needs to have an effect."""

    @property
    def reading(self) -> Reading:
        """How its rows read a text."""
        return Reading()

    @property
    def windows(self) -> WindowNeeds:
        """What it asks of its windows."""
        return WindowNeeds(static_copies=self.static_copies)

    @property
    def rates(self) -> tuple[float, float] | None:
        """Mask rates of the first and the last step; None where nothing is masked by a rate."""
        return None

    @property
    def forgets(self) -> str | None:
        """Why its rows cannot go on from a memory; None if they can."""
        return None

    def bounds(self, window: int, rates: Collection[float] = ()) -> Bounds:
        """The most that any row takes up, as far as positions go.

        Args:
            window: Length of its windows in tokens, special tokens included.
            rates: Mask rates of rows, beside every rate the settings lead to: all rows of a run are as wide.
        """
        return Bounds(slots=window, predictions=window, positions=window)

    def without_noise(self) -> Self:
        """The settings with a mask at every masked position: other tokens would flatter a held-out figure."""
        return self

    def problems(self, recipe: Recipe) -> Iterator[Problem]:
        """Keys with a value that cannot work in a recipe, itself without parts and phases, and what it must be."""
        known = self.known_targets
        if (self.trains and not self.targets) or not set(self.targets) <= set(known):
            yield "objective.targets", f"name at least one of {', '.join(map(repr, known))}"
        if len(set(self.targets)) < len(self.targets):
            yield "objective.targets", "name each target once; objective.coefficients weighs them"
        if self.static_copies is not None and self.static_copies < 1:
            yield "objective.static_copies", "it must be at least 1; leave it out to draw anew each time"
        for target, coefficient in self.coefficients.items():
            if target not in self.targets:
                yield "objective.coefficients", f"'{target}' is none of objective.targets {self.targets}"
            elif not 0 <= coefficient < math.inf:
                yield "objective.coefficients", f"the factor of '{target}' must not be negative"


@dataclass(frozen=True, kw_only=True)
class HeadSettings:
    """Settings of a task head.

    Args:
        kind: `classes`: one of several, from the pooled slots of a prediction. `quantities`: numbers, trained with squared
            error. `choice`: one of the slots of a prediction, each scored on its own.
        outputs: Number of classes or quantities; ignored for a choice.
        dense: Put a dense layer and tanh before the output layer (BERT's pooler).
        pooling: Combine the slots of a prediction by their `mean` or `sum`.
        dropout: Dropout before the output layer; default: the model's.
    """

    kind: Literal["classes", "quantities", "choice"]
    outputs: int = 1
    dense: bool = True
    pooling: Literal["mean", "sum"] = "mean"
    dropout: float | None = None


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """Shape of the Transformer.

    Args:
        hidden_size: Width of the hidden states.
        num_layers: Number of Transformer layers.
        num_heads: Attention heads of a layer.
        intermediate_size: Inner width of the feed-forward network.
        max_positions: Rows of the position table; as many as the objective's rows have positions if not given.
        num_segments: Rows of the segment table; 0 for none, and with 1 all slots are of that segment (RoBERTa). With
            `transformer_xl` there is no table, and any number above 0 lets attention see whether two slots are of the same
            segment.
        embedding_size: Width of the token, position and segment embeddings, projected to the hidden size (ALBERT,
            ELECTRA); `hidden_size` if not given.
        positions: `learned` rows of a table, `transformer_xl` (relative, inside attention; XLNet) or `none`.
        memory: Hidden states of that many earlier slots each row may read (segment recurrence, XLNet).
        share_layers: Which weights all layers share (ALBERT): `none`, `all`, `attention` or `feed_forward`.
        layer_visibility: Names of the visibility of each layer, `full` or `local`, repeated over the layers (GPT-3).
        activation: `gelu`, `gelu_tanh`, its approximation (GPT-2, ALBERT), or `relu`.
        head: `transform` puts a dense layer before the output matrix (BERT), `linear` does not (GPT-2, XLNet).
        head_bias: Give the output matrix a bias.
        pooler: Have BERT's dense layer over the first slot even if nothing pre-trained reads it: an imported encoder keeps
            its own, and tasks start from it.
        generator_size: Size of ELECTRA's generator against this model, from 0 to 1; 0 for no generator.
        norm: `post` normalises after each residual (BERT), `pre` before each sub-layer (GPT-2).
        embedding_norm: Normalise the embeddings; if not given, with `norm: post` only (BERT; GPT does not).
        relative_bias: Add T5's relative position bias, one table shared by all layers (paper Section 4.1).
        relative_buckets: Buckets of that bias.
        relative_max_distance: Distance from which all positions share a bucket.
        dropout: Dropout of the embeddings and of each sub-layer's output.
        attention_dropout: Dropout of the attention probabilities.
        layer_norm_eps: Epsilon of the layer normalisation.
        initializer_range: Standard deviation of the initial weights.
        scaled_init: Divide it by sqrt(2 x layers) for the matrices that write into the residual stream (GPT-2).
    """

    hidden_size: int = 768
    num_layers: int = 12
    num_heads: int = 12
    intermediate_size: int = 3072
    max_positions: int | None = None
    num_segments: int = 2
    embedding_size: int | None = None
    positions: Literal["learned", "transformer_xl", "none"] = "learned"
    memory: int = 0
    share_layers: Literal["none", "all", "attention", "feed_forward"] = "none"
    layer_visibility: list[Literal["full", "local"]] = field(default_factory=lambda: ["full"])
    activation: Literal["gelu", "gelu_tanh", "relu"] = "gelu"
    head: Literal["transform", "linear"] = "transform"
    head_bias: bool = True
    pooler: bool = False
    generator_size: float = 0.0
    norm: Literal["post", "pre"] = "post"
    embedding_norm: bool | None = None
    relative_bias: bool = True
    relative_buckets: int = 32
    relative_max_distance: int = 128
    dropout: float = 0.1
    attention_dropout: float = 0.1
    layer_norm_eps: float = 1e-12
    initializer_range: float = 0.02
    scaled_init: bool = False


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """The loop, its optimiser and what it writes.

    Args:
        steps: Optimiser steps.
        batch_size: Windows or records' rows of one step, over all its micro-batches.
        micro_batch_size: Those of one forward pass; `batch_size` if not given. Fewer need less memory.
        optimizer: `adamw`; `adamax`, Adam by the largest gradient (Kingma and Ba 2015, Section 7.1), without weight decay;
            or `muon`: Muon for the hidden matrices and AdamW for the rest.
        learning_rate: Peak learning rate. In fine-tuning `auto` chooses one by the size of the model.
        muon_learning_rate: Peak learning rate of Muon's matrices; `learning_rate` if not given (Muon's update is scaled to
            the size of AdamW's).
        muon_momentum: Momentum of Muon.
        betas: Decay rates of the moments of AdamW and Adamax.
        epsilon: Epsilon of AdamW and Adamax.
        weight_decay: Decoupled weight decay of every matrix; biases and layer normalisation have none.
        schedule: `linear`, `cosine`, `wsd` (warm-up, stable, decay) or `constant`, each after a linear warm-up; or
            `slanted_triangular`, up within the warm-up from a 32nd of the peak and down to it again (ULMFiT).
        warmup_steps: Steps of the warm-up.
        decay_steps: Steps of the decay of `wsd`; a tenth of all steps if not given.
        clip_norm: Largest norm of the gradient; 0 does not clip.
        label_smoothing: Share of every predicted token's label that is spread evenly over the vocabulary, in training only
            (Szegedy et al. 2016, Section 7); refused where no token is predicted.
        phases: Changes over time: each a mapping of the settings (of `objective`, and `data.window`,
            `training.batch_size` and `training.micro_batch_size`) that differ from the recipe's, with `share`, its share of
            the steps (shares are scaled to 1). One phase as the recipe says if none are given.
        initialize_from: Run, checkpoint, or folder of another library's checkpoint to take the initial weights from,
            wherever name and shape fit. The model's shape is then that one's where the command line does not say another.
        frozen: Parts of the model that do not learn, by the beginning of their weights' names: `[generator]`,
            `[backbone.embeddings, backbone.layers.0]`, or all of `[backbone]` to train a task's head alone.
        seed: Seed of initial weights, order, masks and dropout.
        device: `auto` takes a CUDA device where there is one.
        precision: `auto`, `bf16` (autocast) or `fp32`.
        attention: `auto`, or an implementation: `explicit` multiplies out the scores, `sdpa` is torch's kernel, `flex` is
            FlexAttention, which skips what nobody reads but has neither dropout nor, here, the relative position bias.
        compile: Compile the model with torch.compile.
        evaluate_every: Steps between evaluations on the held-out windows; 0 evaluates at the end only.
        evaluate_windows: Number of held-out windows to evaluate on.
        log_every: Steps between lines of the ledger.
        save_every: Steps between checkpoints; 0 saves at the end only.
        keep_checkpoints: Number of newest checkpoints to keep.
    """

    steps: int = 500_000
    batch_size: int = 7680
    micro_batch_size: int | None = None
    optimizer: Literal["adamw", "adamax", "muon"] = "adamw"
    learning_rate: float | Auto = 6e-4
    muon_learning_rate: float | None = None
    muon_momentum: float = 0.95
    betas: tuple[float, float] = (0.9, 0.98)
    epsilon: float = 1e-6
    weight_decay: float = 0.01
    schedule: Literal["linear", "cosine", "wsd", "constant", "slanted_triangular"] = "linear"
    warmup_steps: int = 24_000
    decay_steps: int | None = None
    clip_norm: float = 0.0
    label_smoothing: float = 0.0
    phases: list[dict[str, Any]] = field(default_factory=list)
    initialize_from: str | None = None
    frozen: list[str] = field(default_factory=list)
    seed: int = 0
    device: str = "auto"
    precision: Precision = "auto"
    attention: Literal["auto", "explicit", "sdpa", "flex"] = "auto"
    compile: bool = False
    evaluate_every: int = 1000
    evaluate_windows: int = 256
    log_every: int = 10
    save_every: int = 1000
    keep_checkpoints: int = 2


@dataclass(frozen=True, kw_only=True)
class UseSettings:
    """How the trained model is used as an encoder.

    Args:
        visibility: Who reads whom when it encodes a text.
        pooling: The slot that stands for a text: the `first`, the `last`, or the `mean` of all.
    """

    visibility: Literal["bidirectional", "left_to_right"] = "bidirectional"
    pooling: Literal["first", "last", "mean"] = "first"


@dataclass(frozen=True, kw_only=True)
class DecodingSettings:
    """How a text is generated token by token: the search, what it may choose, and when it ends.

    Args:
        beams: Hypotheses kept of each source by beam search; 1 takes the most likely token each time (greedy).
        sample: Draw tokens instead of searching; `num_results` texts are drawn of each source.
        temperature: Divides the logits before a token is drawn.
        top_k: Draw from so many most likely tokens; from all if not given.
        top_p: Draw from the fewest most likely tokens that together have at least this probability; from all if not given.
        min_length: Tokens before which a text does not end.
        max_length: Tokens after which it is cut off, ended or not; neither counts the closing [EOS].
        length_penalty: Exponent alpha of GNMT's length penalty: hypotheses are compared by log p / ((5 + n) / 6)^alpha, n
            being their tokens with [EOS] (Wu et al. 2016, Section 7).
        no_repeat_ngram: No sequence of so many tokens occurs twice in a text; 0 lets all repeat. The source does not count.
        may_repeat: Tokens, as the vocabulary spells them; a sequence that holds one of them may repeat.
        early_stop: Beam search of a source ends once no hypothesis can become better than the worst to return (`exact`: the
            results are those of a search to the end), or once `beams` hypotheses have ended (`first`).
        num_results: Hypotheses to return of each source, at most `beams` unless they are drawn.
        parallel: Fill so many positions a step, the most certain first, instead of one after the other (models trained by
            `par`). A text then has the length at which the first [EOS] falls.
        seed: Seed of what is drawn; a text depends on it, on the number of its source and on the source.
        batch_size: Most sources at once.
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
class TaskSettings:
    """What labelled records are and how they become rows; for fine-tuning.

    These settings all tasks have. Each kind has a class of its own, beside its functions, with what it has besides and what
    its values must be.

    Args:
        kind: A key of `unicloze.tasks.TASKS`; nothing in a recipe for pre-training.
        format: How a file holds its records: a key of `unicloze.records.FORMATS`, or `auto` by its name (.jsonl, .tsv,
            .csv, .json, also .gz).
        fields: Where the file keeps what the task calls `text`, `pair`, `label`, ...; under that name if not given.
        optional: What else than the necessary records hold: `pair`, `question` (choice), `predicate` (tagging); what those of
            the training file hold if not given. Other files must hold the same.
        metrics: What is measured on the development file, keys of `unicloze.evaluation.metrics.METRICS`; the first one
            chooses the best checkpoint.
        max_length: Most tokens of a row, special tokens included; what is longer is cut or windowed.
        metric_options: Options of the metrics by name, such as `profile`; each metric gets those it has.
        evaluate_records: So many records of the development file are predicted and measured, evenly spread over it; all if
            not given.
    """

    kind: str = ""
    format: str = "auto"
    fields: dict[str, str] = field(default_factory=dict)
    optional: list[str] | None = None
    metrics: list[str] = field(default_factory=list)
    max_length: int = 128
    metric_options: dict[str, str] = field(default_factory=dict)
    evaluate_records: int | None = None

    ranges: ClassVar[Mapping[str, Range]] = {}
    """As of `ObjectiveSettings`."""
    needs: ClassVar[Mapping[str, tuple[Needs, ...]]] = {}
    """As of `ObjectiveSettings`."""

    def problems(self, recipe: Recipe) -> Iterator[Problem]:
        """Keys with a value that cannot work in a recipe, and what it must be."""
        if not self.metrics:
            yield "task.metrics", "name at least one metric, which chooses the best checkpoint"
        if self.max_length < SHORTEST_ROW:
            yield "task.max_length", f"the special tokens and some text need {SHORTEST_ROW} or more"
        if self.evaluate_records is not None and self.evaluate_records < 1:
            yield "task.evaluate_records", "measure one record or more, or leave it out for all"


@dataclass(frozen=True, kw_only=True)
class GenerationSettings:
    """How a task that generates makes a source and a target of a record, and how the target is learned.

    Args:
        learning: `pseudo` predicts every token of the target by a pseudo mask behind the row (UniLMv2, Section 3.4); `masked`
            masks a share of the target in place (UniLM v1, Section 2.5); `next` predicts the next token at each token's own
            slot. If not given, `next` where the model was trained so, else `pseudo`.
        source: What the source is put together from, an [EOS] between any two: roles that `task.fields` may rename.
        keep: What stays of the parts of a source that is too long, the longest being cut first: their `beginning`, their
            `end`, or the `chunk` that has most of the tokens of the other parts, the whole of one if possible.
        targets: Learn the `first` of a record's targets, or `all`, a row each.
        max_source: Most tokens of a source, [SOS] and [EOS] included; what `task.max_length` leaves if not given.
        max_target: Most tokens of a target, [EOS] included, and no more than half of `task.max_length`.
        mask_rate: Share of the target that `masked` masks, its [EOS] included.
        mask_share: Share of the pseudo masks, or of the masks, that show a mask.
        random_share: Share that shows a random token; what is left shows the token itself.
        target_noise: Share of the target's own tokens that `pseudo` shows as if they were masked, so that the model learns
            to go on after mistakes.
        block_size: Tokens of the target that `pseudo` predicts in one step, none of them knowing the others.
        any_order: Let `pseudo` predict the tokens of the target in a random order, for `decoding.parallel`.
        segment_ids: Segments of source and target; if not given, 4 and 5 where the model has six (UniLM v1), else 0 and 1.
    """

    learning: Literal["pseudo", "masked", "next"] | None = None
    source: list[str] = field(default_factory=lambda: ["source"])
    keep: Literal["beginning", "end", "chunk"] = "beginning"
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
    """How a task is learned, beside `TrainingSettings`, of which `steps` and `warmup_steps` follow from these.

    Args:
        epochs: Passes over the training file; `auto` chooses them by its number of records.
        warmup_share: Share of the steps in which the learning rate rises.
        evaluations: Evaluations on the development file in an epoch; 0.5 evaluates after every other epoch.
        patience: Stop after so many evaluations without a better one; never if not given.
        auxiliary: Targets of the model's own objective that are learned on the rows of the task beside it, and the factor of
            each one's loss: {ae: 1.0} for UniLM v1's masked language model, {lm: 0.5} for GPT's; none if empty.
        layer_decay: Factor of the learning rate from each layer to the one below it; the head has `training.learning_rate`,
            the embeddings the lowest. ULMFiT divides by 2.6, which is a factor of 0.385.
        unfreeze_epochs: Epochs after which one more layer learns: the head alone at first, the embeddings last (ULMFiT:
            1). All learn from the start if not given.
    """

    epochs: float | Auto = 3.0
    warmup_share: float = 0.1
    evaluations: float = 1.0
    patience: int | None = None
    auxiliary: dict[str, float] = field(default_factory=dict)
    layer_decay: float = 1.0
    unfreeze_epochs: float | None = None


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A complete, reproducible run: `recipes/*.yaml` and `RUN/recipe.yaml` hold one each.

    A recipe with a task is one for fine-tuning: data, tokenizer, objective and model are those of the model it starts from.
    """

    name: str = "unnamed"
    provenance: Provenance = field(default_factory=Provenance)
    data: DataSettings = field(default_factory=DataSettings)
    tokenizer: TokenizerSettings = field(default_factory=TokenizerSettings)
    objective: ObjectiveSettings = field(default_factory=ObjectiveSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    use: UseSettings = field(default_factory=UseSettings)
    task: TaskSettings = field(default_factory=TaskSettings)
    generation: GenerationSettings = field(default_factory=GenerationSettings)
    decoding: DecodingSettings = field(default_factory=DecodingSettings)
    finetuning: FinetuningSettings = field(default_factory=FinetuningSettings)

    def to_dict(self) -> dict[str, Any]:
        """This recipe as plain dictionaries and lists, fit for YAML and JSON."""
        return dataclasses.asdict(self)
