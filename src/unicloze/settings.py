"""All settings of a run, as dataclasses that import neither torch nor numpy.

A recipe is a YAML file that mirrors these classes; the command line overrides single values by their dotted name
(`--training.steps 100`). Defaults follow the UniLMv2 paper where it states a value.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, Self

from unicloze.rules import Needs, Problem, Range

PYTHON_DOCS = "python-docs"
"""Name of the built-in corpus: the documentation that ships with Python."""

DEVICE = r"auto|cpu|cuda(:(0|[1-9][0-9]*))?"
"""Pattern of device names; `auto` is a CUDA device if there is one, else the CPU."""

Precision = Literal["auto", "bf16", "fp32"]
"""Precision of forward passes: `bf16` (autocast), `fp32`, or `auto`: bf16 where it is faster."""

Order = Literal["confidence", "left-to-right", "span"]
"""Order in which masks are filled: most confident first, left to right, or one span of adjacent masks at a time."""

Mode = Literal["pseudo", "chain", "both"]
"""How sentences are compared: by pseudo-log-likelihood, by the chain rule, or by both."""

Pooling = Literal["mean", "first", "last"]
"""Which last hidden states become the vector of a text: the mean of all, or that of the first or last token."""

TaskPooling = Literal["first", "last", "mean", "concat", "decoder"]
"""Which hidden states represent a text in a task: as in `Pooling`, or the last one read, the maximum and the mean of all,
concatenated."""

HeadActivation = Literal["tanh", "gelu", "relu"]
"""Activation of the dense layer of a task's head."""

SHORTEST_ROW = 8
"""Shortest row of a task, in tokens: the special tokens and some text."""

PredictionFormat = Literal["jsonl", "json", "glue"]
"""Format of prediction files: one object per line, the input of official scripts, or that of GLUE's server."""

Projection = Literal["query", "key", "value", "output", "inner", "outer"]
"""Projection of a layer: three of the attention's input and one of its output, and the two of the feed-forward network."""

Pairing = Literal["contiguous", "next_sentence", "sentence_order"]
"""How the second segment of a window relates to the first: it follows the first, comes from another document half the time
(BERT), or is swapped with the first half the time (ALBERT)."""

ViewName = Literal["full", "forward", "backward", "future", "past"]
"""What a head of cross-view training sees of a text, see `unicloze.model.recurrent.views`."""

Auto = Literal["auto"]
"""A value that the run chooses when it starts, from its model and records."""


def chosen(value: float | Auto) -> float:
    """The value, once it is no longer `auto`.

    Raises:
        ValueError: The value is still `auto`.
    """
    if value == "auto":
        raise ValueError("this value is chosen when the run starts")
    return value


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Where the values of a recipe come from.

    Args:
        paper: Title of the paper.
        place: Section, table and row.
        note: What the paper leaves open and what the recipe chooses.
    """

    paper: str = ""
    place: str = ""
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """Documents and the windows cut from them.

    Args:
        corpus: Files, folders or globs of .txt, .jsonl or .parquet (also .gz, .zst), `python-docs`, or a Hugging Face dataset
            as `hf:NAME[:SPLIT[:COLUMN]]`, where NAME is a folder or OWNER/NAME[/CONFIG]. Files, folders and globs may also be
            URLs such as `s3://bucket/*.jsonl.zst` (fsspec). Each entry is a source.
        weights: Passes over each source per epoch; default: 1.
        text_field: Field of .jsonl or column of .parquet that holds the text.
        spans_field: Field of .jsonl with the spans of a text that `objective.mask_unit` phrase and entity mask as a whole: a
            list of [first character, end, kind] with kind `phrase` or `entity` (default); those of a kind do not overlap.
            Default: spans are not read.
        prepared: Folder written by `prepare`, to read instead of preparing the corpus again.
        window: Length of a window in tokens, special tokens included.
        segments: 2 for "[SOS] S1 [EOS] S2 [EOS]" (paper Section 2.2), 1 for "[SOS] S1 [EOS]".
        documents: `separate` cuts windows within documents (the last window of each may be short); `joined` concatenates all
            documents with an [EOS] between them, so that every window is full (RoBERTa's full sentences, GPT).
        order: `shuffled`, or `streams`: row i of a batch continues the text of row i of the previous batch, as segment
            recurrence needs (XLNet); its two segments are then contiguous.
        overlap: Share of a window's text in `streams` that the next window reads again. Only the other tokens enter the
            memory, and they are in one segment, so that the other segment can come from elsewhere (`objective.pairs`
            next_sentence; XLNet). It needs `joined` documents and two segments.
        directions: With `backward`, the rows of `streams` read the text from its last window to its first, so that the memory
            of a window is the text after it; with `both`, half of them do (XLNet); with `forward`, none do.
        lengths: With `random`, each step reads as many tokens as it draws around the window's (a normal distribution of
            deviation 5, in 5 % of the steps around half), and its learning rate is scaled by their share of the window
            (AWD-LSTM). It needs `joined` documents, one segment and `streams`. Evaluations read whole windows.
        heldout_share: Share of the documents held out for evaluation, chosen by a hash of their text; at least one document
            of every source is kept for training.
        deduplicate: Drop documents whose text was seen before (ignoring white space and case).
        decontaminate: Evaluation files, folders or globs. Training text that shares `decontaminate_ngram` consecutive words
            with one of their texts is cut, with 200 characters on either side.
        decontaminate_ngram: Number of words that must be equal.
        phrases: Text file with one phrase per line, for `objective.mask_unit` phrase and entity; default: phrases found in
            the training text.
    """

    corpus: list[str] = field(default_factory=lambda: [PYTHON_DOCS])
    weights: list[float] | None = None
    text_field: str = "text"
    spans_field: str | None = None
    prepared: str | None = None
    window: int = 512
    segments: Literal[1, 2] = 2
    documents: Literal["separate", "joined"] = "separate"
    order: Literal["shuffled", "streams"] = "shuffled"
    overlap: float = 0.0
    directions: Literal["forward", "backward", "both"] = "forward"
    lengths: Literal["fixed", "random"] = "fixed"
    heldout_share: float = 0.02
    deduplicate: bool = True
    decontaminate: list[str] = field(default_factory=list)
    decontaminate_ngram: int = 13
    phrases: str | None = None


@dataclass(frozen=True, kw_only=True)
class TokenizerSettings:
    """Text to token ids.

    Args:
        path: A `vocab.txt`, `tokenizer.json` or `vocab.json` (with `merges.txt`) to load; default: train one on the corpus.
        kind: Tokenizer to train: `wordpiece` (BERT) or `bpe` (byte-level, GPT-2 and RoBERTa).
        vocab_size: Size of the trained vocabulary, special tokens included.
        lowercase: Lower-case the text when training a tokenizer (WordPiece only). For a loaded `vocab.txt`, the
            `tokenizer_config.json` next to it decides, else whether the vocabulary has capitals.
        strip_accents: Strip accents when training a tokenizer (WordPiece only), as BERT's uncased vocabularies do. In many
            scripts this removes the vowels.
        extra_tokens: Number of special tokens [EXTRA0], [EXTRA1], ... in a trained vocabulary: T5's sentinels, UL2's mode
            tokens.
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
        visibility: Which slots each slot attends to.
        segment_ids: Ids of the first and the second segment; 0 and 1 if None.
        local_width: Number of slots to the left that local layers attend to; None if the objective sets none.
    """

    visibility: str = "bidirectional"
    segment_ids: Sequence[int] | None = None
    local_width: int | None = None

    @property
    def segments(self) -> tuple[int, int]:
        """Ids of the first and the second segment; a single id applies to both."""
        ids = self.segment_ids or (0, 1)
        return ids[0], ids[-1]


class WindowNeeds(NamedTuple):
    """What an objective requires of its windows.

    Args:
        pairs: How the second segment relates to the first.
        static_copies: Passes over the corpus after which the random draws of a window repeat; never if None.
        phrases: Whether phrases must be marked.
        spans: Whether the spans that documents give must be marked.
    """

    pairs: Pairing = "contiguous"
    static_copies: int | None = None
    phrases: bool = False
    spans: bool = False


class Bounds(NamedTuple):
    """Upper bounds on the size of an objective's rows.

    Args:
        slots: Slots of the row.
        predictions: Predicted tokens.
        positions: Positions of its slots.
        sentinels: Distinct sentinels.
    """

    slots: int
    predictions: int
    positions: int
    sentinels: int = 0


@dataclass(frozen=True, kw_only=True)
class ObjectiveSettings:
    """What is masked, in which order it is predicted, and what is shown in its place.

    These settings are common to all objectives. Each objective has a subclass, next to its functions, with its own settings;
    it also defines how rows are made and read (the properties and methods here) and which values are valid.

    Args:
        name: The objective: a key of `unicloze.objectives.OBJECTIVES`; `none` for an imported encoder that is not trained
            here.
        targets: What is predicted: `ae` every masked token from the context alone (equation 3), `par` step by step
            (equation 6), `lm` the next token, `lm_back` the one before (ELMo), `diffusion` noised tokens, `nsp` and `sop` how
            two segments relate, `sbo` a span's tokens from its boundary (SpanBERT), `rtd` which tokens were replaced
            (ELECTRA).
        static_copies: Number of passes over the corpus after which masks repeat (BERT); default: masks never repeat.
        mixture: Parts of a mixture, each a mapping of the settings that differ from these, with `share` (its share of the
            rows of every step; default 1, shares are scaled to sum to 1), `label` (default: its name) and `evaluate`
            (whether it is evaluated on held-out text; default true).
        coefficients: Factor of each target's loss; default: 1.
    """

    name: str = "unilmv2"
    targets: list[str] = field(default_factory=lambda: ["ae", "par"])
    static_copies: int | None = None
    mixture: list[dict[str, Any]] = field(default_factory=list)
    coefficients: dict[str, float] = field(default_factory=dict)

    known_targets: ClassVar[tuple[str, ...]] = ()
    """Targets that the objective supports."""
    trains: ClassVar[bool] = True
    """Whether it can train a model; if not, it needs no target."""
    in_order: ClassVar[bool] = False
    """Whether the slots of a row are in text order, as local attention layers need."""
    ranges: ClassVar[Mapping[str, Range]] = {}
    """Valid range of this class's own settings, by name; inherited ones are declared where they are defined."""
    needs: ClassVar[Mapping[str, tuple[Needs, ...]]] = {}
    """What this class's own settings need to have an effect, by name."""

    @property
    def reading(self) -> Reading:
        """How the rows read a text."""
        return Reading()

    @property
    def windows(self) -> WindowNeeds:
        """What the objective requires of its windows."""
        return WindowNeeds(static_copies=self.static_copies)

    @property
    def rates(self) -> tuple[float, float] | None:
        """Mask rates of the first and the last step; None if the objective has no mask rate."""
        return None

    @property
    def forgets(self) -> str | None:
        """Why rows cannot use the memory of earlier rows; None if they can."""
        return None

    def bounds(self, window: int, rates: Collection[float] = ()) -> Bounds:
        """Upper bounds on the size of any row; by default, only of its positions.

        Args:
            window: Length of the windows in tokens, special tokens included.
            rates: Further mask rates of rows, besides those of the settings: all rows of a run have the same width.
        """
        return Bounds(slots=window, predictions=window, positions=window)

    def without_noise(self) -> Self:
        """The settings with a mask at every masked position: showing other tokens would inflate held-out scores."""
        return self

    def problems(self, recipe: Recipe) -> Iterator[Problem]:
        """Invalid values in a recipe without parts and phases: the key and what its value must be."""
        known = self.known_targets
        if (self.trains and not self.targets) or not set(self.targets) <= set(known):
            yield "objective.targets", f"name at least one of {', '.join(map(repr, known))}"
        if len(set(self.targets)) < len(self.targets):
            yield "objective.targets", "name each target once; objective.coefficients weighs them"
        if self.static_copies is not None and self.static_copies < 1:
            yield "objective.static_copies", "it must be at least 1; leave it out to draw new masks each time"
        for target, coefficient in self.coefficients.items():
            if target not in self.targets:
                yield "objective.coefficients", f"'{target}' is not one of objective.targets {self.targets}"
            elif not 0 <= coefficient < math.inf:
                yield "objective.coefficients", f"the factor of '{target}' must not be negative"


@dataclass(frozen=True, kw_only=True)
class HeadSettings:
    """Settings of a task head.

    Args:
        kind: `classes` predicts one of several classes from the pooled slots of a prediction; `quantities` predicts numbers,
            trained with squared error; `choice` selects one of the slots of a prediction, each scored on its own.
        outputs: Number of classes or quantities; ignored for a choice.
        dense: Put a dense layer before the output layer (BERT's pooler), as wide as the model or one of its two directions.
        activation: Activation of the dense layer.
        directions: Number of directions that a text is read in, one half of the slots of a prediction each. The halves are
            pooled apart and concatenated.
        batch_norm: Put a layer of 50 units with ReLU before the output layer, and batch normalisation before both (ULMFiT).
        view: What it reads of bidirectional LSTMs; default: the last layer's output.
        pooling: Combine the slots of a prediction by their `mean` or `sum`, or `concat`: the last of them, their maximum and
            their mean.
        dropout: Dropout before the output layer; default: the model's.
        encoder_size: Cells of each direction of a biLSTM that reads the predictions of a row before the other layers; 0 for
            none.
        output_mix: Give these layers a second mix of the network's layers beside the output of that biLSTM.
        texts: Read one text or two, whose slots alternate in those of a prediction, with a biattentive network (CoVe);
            0 for any other head.
        size: Width of that network.
    """

    kind: Literal["classes", "quantities", "choice"]
    outputs: int = 1
    dense: bool = True
    activation: HeadActivation = "tanh"
    directions: int = 1
    batch_norm: bool = False
    view: ViewName | None = None
    pooling: Literal["mean", "sum", "concat"] = "mean"
    dropout: float | None = None
    encoder_size: int = 0
    output_mix: bool = False
    texts: Literal[0, 1, 2] = 0
    size: int = 300


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """Shape of the network.

    Args:
        kind: `transformer`, or `recurrent`: LSTMs, each layer of one direction reading the layer below (AWD-LSTM, ELMo).
        hidden_size: Width of the hidden states; of LSTMs, of the last layer's output.
        num_layers: Number of layers; in an encoder-decoder, of the encoder.
        decoder_layers: Number of layers of a decoder, which makes this an encoder-decoder (T5, BART): the encoder reads the
            source of each row, and the decoder its own past and, through cross-attention, the encoder's output. 0 for none.
            With LSTMs as many as `num_layers`: an attention decoder with input feeding, and an encoder whose layers read both
            directions of the layer below (CoVe).
        num_heads: Attention heads of a layer.
        head_size: Width of an attention head; default: `hidden_size` / `num_heads` (some T5 models differ).
        intermediate_size: Inner width of the feed-forward network; of LSTMs, the number of cells of each layer but the last,
            or of every layer with `projection` unless they are bidirectional.
        max_positions: Rows of the position table; default: the number of positions in the objective's rows.
        num_segments: Rows of the segment table; 0 for none; with 1, all slots have the same segment (RoBERTa). With
            `transformer_xl` there is no table; any number above 0 lets attention see whether two slots share a segment.
        embedding_size: Width of the token, position and segment embeddings, projected to the hidden size (ALBERT,
            ELECTRA); default: `hidden_size`.
        embeddings: `table` has a vector for each token; `characters` makes it of the token's bytes by convolutions (ELMo),
            for LSTMs and without `tied_output`.
        character_size: Width of the embeddings of bytes.
        character_filters: Number of filters of width 1, 2, 3, ... over the bytes of a token.
        character_highways: Number of highway layers between the filters and the projection to the embedding width.
        positions: `learned` (a table), `sinusoidal` (Transformer), `transformer_xl` (relative, inside attention; XLNet) or
            `none`.
        scale_embeddings: Multiply the token embeddings by the square root of their width (Transformer, MASS).
        memory: Number of earlier slots whose hidden states each row may attend to (segment recurrence, XLNet). With LSTMs 1:
            a row begins with the state in which the text before it ended.
        share_layers: Which weights all layers share (ALBERT): `none`, `all`, `attention` or `feed_forward`.
        layer_visibility: Visibility of each layer, `full` or `local`, repeated over the layers (GPT-3).
        activation: `gelu`, its approximation `gelu_tanh` (GPT-2, ALBERT), or `relu`; of character filters as well.
        gated: Multiply the activations by a second projection of the same input (T5 1.1's gated GELU).
        biases: Give the linear layers of attention and feed-forward network biases; T5 has none.
        scale_scores: Divide attention scores by the square root of the head size; T5 does not.
        head: `transform` puts a dense layer before the output matrix (BERT), `linear` does not (GPT-2, XLNet).
        head_bias: Give the output matrix a bias.
        tied_output: Use the token embeddings as output matrix; false gives it weights of its own (T5 1.1).
        scale_output: Divide the states before the output matrix by the square root of their width (T5 1.0).
        layer_mix: Let the heads of a task read a mix of all layers and the embeddings instead of the last layer, with trained
            weights: softmax(s) and a factor gamma (ELMo; train it alone with `training.frozen: [backbone]`).
        pooler: Include BERT's dense layer over the first slot even if no pre-training target uses it: an imported encoder
            keeps its pooler, and tasks start from it.
        generator_size: Size of ELECTRA's generator relative to this model, from 0 to 1; 0 for no generator.
        norm: `post` normalises after each residual (BERT), `pre` before each sub-layer (GPT-2).
        norm_kind: `layer` normalises mean and variance; `rms` divides by the root mean square and adds no bias (T5).
        embedding_norm: Normalise the embeddings; default: with `norm: post` only (BERT; GPT does not).
        relative_bias: Add T5's relative position bias, one table shared by all layers (paper Section 4.1); encoder and
            decoder have one each, and cross-attention none.
        relative_buckets: Buckets of that bias.
        relative_max_distance: Distance from which all positions share a bucket.
        directions: Directions that LSTMs read in: `forward` (from left to right), `backward` or `both`, each with a stack of
            its own; or `bidirectional`: each layer reads both directions of the layer below, and each direction makes half of
            its output (CVT).
        projection: Project the cells of every LSTM layer to `hidden_size` outputs (ELMo). In bidirectional layers: those of
            every layer but the last, to half as many outputs (CVT).
        residual: Add the input of each LSTM layer but the first to its output (ELMo).
        cell_clip: Largest absolute value of a cell (ELMo); default: no limit.
        projection_clip: Largest absolute value of a projected output (ELMo); default: no limit.
        dropout: Dropout of the embeddings and of each sub-layer's output; of LSTMs, of the last layer's output.
        embedding_dropout: Dropout of whole tokens of the embedding table (AWD-LSTM).
        input_dropout: Dropout of the first LSTM layer's input; one mask for all steps of a row.
        hidden_dropout: Dropout between LSTM layers; one mask for all steps of a row.
        weight_dropout: Dropout of the recurrent weights of LSTMs; one mask for all rows and steps (weight drop).
        activation_penalty: Factor of the mean square of the dropped-out outputs, added to the gradient (AR).
        temporal_penalty: Factor of the mean squared difference between outputs at adjacent steps, added to the gradient
            (TAR).
        attention_dropout: Dropout of the attention probabilities.
        activation_dropout: Dropout inside the feed-forward network, after the activation (T5, BART).
        final_dropout: Dropout after the final normalisation of each stack of layers (T5).
        layer_norm_eps: Epsilon of the layer normalisation.
        initializer: `normal` draws all weights with one standard deviation; `t5` as T5 does, by the widths of each matrix.
        initializer_range: Standard deviation of the initial weights of `normal`; with LSTMs, half the width of the uniform
            distribution of the initial embeddings.
        scaled_init: Divide this by sqrt(2 x layers) for the matrices that write into the residual stream (GPT-2).
        adapter_size: Width of the bottleneck adapters of a fine-tuned model, see `finetuning.adapter_size`; 0 for none.
    """

    kind: Literal["transformer", "recurrent"] = "transformer"
    hidden_size: int = 768
    num_layers: int = 12
    decoder_layers: int = 0
    num_heads: int = 12
    head_size: int | None = None
    intermediate_size: int = 3072
    max_positions: int | None = None
    num_segments: int = 2
    embedding_size: int | None = None
    embeddings: Literal["table", "characters"] = "table"
    character_size: int = 16
    character_filters: list[int] = field(default_factory=lambda: [32, 32, 64, 128, 256, 512, 1024])
    character_highways: int = 2
    positions: Literal["learned", "sinusoidal", "transformer_xl", "none"] = "learned"
    scale_embeddings: bool = False
    memory: int = 0
    share_layers: Literal["none", "all", "attention", "feed_forward"] = "none"
    layer_visibility: list[Literal["full", "local"]] = field(default_factory=lambda: ["full"])
    activation: Literal["gelu", "gelu_tanh", "relu"] = "gelu"
    gated: bool = False
    biases: bool = True
    scale_scores: bool = True
    head: Literal["transform", "linear"] = "transform"
    head_bias: bool = True
    tied_output: bool = True
    scale_output: bool = False
    layer_mix: bool = False
    pooler: bool = False
    generator_size: float = 0.0
    norm: Literal["post", "pre"] = "post"
    norm_kind: Literal["layer", "rms"] = "layer"
    embedding_norm: bool | None = None
    relative_bias: bool = True
    relative_buckets: int = 32
    relative_max_distance: int = 128
    directions: Literal["forward", "backward", "both", "bidirectional"] = "forward"
    projection: bool = False
    residual: bool = False
    cell_clip: float | None = None
    projection_clip: float | None = None
    dropout: float = 0.1
    embedding_dropout: float = 0.0
    input_dropout: float = 0.0
    hidden_dropout: float = 0.0
    weight_dropout: float = 0.0
    activation_penalty: float = 0.0
    temporal_penalty: float = 0.0
    attention_dropout: float = 0.1
    activation_dropout: float = 0.0
    final_dropout: float = 0.0
    layer_norm_eps: float = 1e-12
    initializer: Literal["normal", "t5"] = "normal"
    initializer_range: float = 0.02
    scaled_init: bool = False
    adapter_size: int = 0

    def memory_shape(self, rows: int) -> tuple[int, int, int, int]:
        """Shape of the states in a memory of some rows, see `unicloze.example.Memory`."""
        if self.kind == "recurrent":  # output and cell of each layer
            return 2 * self.num_layers, rows, self.memory, max(self.hidden_size, self.intermediate_size)
        return self.num_layers, rows, self.memory, self.hidden_size


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """The training loop, its optimiser and its output.

    Args:
        steps: Optimiser steps.
        batch_size: Windows, or rows of records, per step, over all its micro-batches.
        micro_batch_size: Windows or rows per forward pass; default: `batch_size`. Smaller values need less memory.
        leaves: Maximum number (a power of 2) of groups of consecutive micro-batches in which a step's gradients are summed;
            the groups are added in a binary tree, so that any number of processes computes the same bits. Also the maximum
            number of processes; each holds about log2(leaves) gradients.
        parallel: What each of several processes of pre-training holds. `replicate`: all weights, gradients and moments; any
            number of processes then computes the same bits. `shard`: a share of them (FSDP2), for models that do not fit on
            one device; results differ in rounding. `auto`: `replicate` while they fit.
        optimizer: `adamw`; `adamax`, Adam with the infinity norm (Kingma and Ba 2015, Section 7.1), without weight decay;
            `lamb`, Adam with each tensor's update scaled to the tensor's norm (You et al. 2020; ALBERT); `adafactor`, with
            learning rates relative to the size of each tensor (Shazeer and Stern 2018; T5); `muon`: Muon for the hidden
            matrices and AdamW for the rest; `sgd`: gradient descent with `momentum`, without weight decay (CVT); or
            `nt_asgd`: gradient descent that starts to average the weights when evaluations stop improving, in pre-training
            only (AWD-LSTM).
        momentum: Momentum of `sgd`.
        average_patience: With `nt_asgd`, averaging starts at an evaluation that is worse than the best of those before the
            latest ones, this many of them.
        learning_rate: Peak learning rate. In fine-tuning, `auto` chooses it by the size of the model.
        muon_learning_rate: Peak learning rate of Muon's matrices; default: `learning_rate` (Muon's update is scaled to the
            size of AdamW's).
        muon_momentum: Momentum of Muon.
        betas: Decay rates of the moments of AdamW, Adamax and LAMB.
        epsilon: Epsilon of AdamW, Adamax and LAMB.
        weight_decay: Decoupled weight decay of every matrix, but not of biases and layer normalisation.
        schedule: `linear`, `cosine`, `wsd` (warm-up, stable, decay) or `constant`, each after a linear warm-up; or
            `slanted_triangular`, from 1/32 of the peak up to the peak within the warm-up and back down (ULMFiT).
            `inverse_sqrt` falls with the inverse square root of the step after the warm-up (Transformer), and
            `flat_inverse_sqrt` does so from the peak, which it keeps for `warmup_steps` (T5). `slow_inverse_sqrt` is 1 / (1 +
            0.005 sqrt(steps)) of the peak, times the warm-up (CVT).
        warmup_steps: Steps of the warm-up.
        decay_steps: Steps of the decay. Default: a tenth of all steps for `wsd`, all steps after the warm-up for `cosine`. A
            shorter `cosine` then stays at its final rate (GPT-3).
        final_rate: Share of the peak learning rate at which `linear`, `cosine` and `wsd` end.
        layer_decay: Factor of the learning rate from each layer to the one below, in pre-training; as of
            `finetuning.layer_decay`.
        clip_norm: Maximum norm of the gradient; 0 disables clipping.
        on_spike: What happens at a step whose gradient spikes, or whose loss, gradient or update is not finite. `accept`
            makes every finite update and stops the run at a number that is not finite. `skip` leaves out the update of the
            step. `go_back` returns to the last checkpoint at a multiple of `save_every` and continues with the text after
            that of the step; before the first checkpoint it skips. The run stops after 10 spikes in a row.
        spike_factor: A gradient spikes if its norm is more than this many times the median of the last 64 updates (of the
            first 16 updates, none is a spike).
        label_smoothing: Share of each predicted token's label that is spread evenly over the vocabulary, in training only
            (Szegedy et al. 2016, Section 7); rejected if no token is predicted.
        phases: Changes over time: each a mapping of the settings (of `objective`, and `data.window`,
            `training.batch_size` and `training.micro_batch_size`) that differ from the recipe's, with `share`, its share of
            the steps (shares are scaled to sum to 1). Default: one phase with the recipe's settings.
        initialize_from: Run, checkpoint or Hugging Face model folder to take initial weights from, wherever name and shape
            match. The model then has that shape unless the command line overrides it.
        frozen: Parts of the model that are not trained, given as prefixes of weight names: `[generator]`,
            `[backbone.embeddings, backbone.layers.0]`, or `[backbone]` to train only a task's head.
        seed: Seed of initial weights, order, masks and dropout.
        device: `auto` chooses a CUDA device if there is one.
        threads: CPU threads per process; default: torch's own choice. The number affects how sums are rounded.
        precision: `auto`, `bf16` (autocast) or `fp32`.
        attention: `auto`, or an implementation: `explicit` computes all scores, `sdpa` is torch's kernel, `flex` is
            FlexAttention, which skips masked blocks but has no dropout. `auto` takes FlexAttention on a GPU where
            `model.attention_dropout` is 0 and `deterministic` false, else `sdpa`; on a CPU the faster of the other two.
        deterministic: Avoid attention whose gradient is summed in no fixed order: false allows FlexAttention on a GPU, which
            sums that of the relative position bias so. It changes nothing on a CPU, where runs repeat bit for bit.
        checkpoint_activations: Keep only the input of each layer for the backward pass, which computes the layer again: less
            memory, more time, the same results. Transformers only.
        compile: Compile each layer with torch.compile; default: on a GPU, in pre-training.
        evaluate_every: Steps between evaluations on the held-out windows; 0 evaluates at the end only.
        evaluate_windows: Number of held-out windows to evaluate on.
        log_every: Steps between ledger lines.
        save_every: Steps between checkpoints; 0 saves at the end only.
        keep_checkpoints: Number of most recent checkpoints to keep.
        copy_to: URL of a folder, such as `s3://bucket/runs/mine`, to which each checkpoint of pre-training is copied.
            A run whose own folder is lost resumes from there. Each run needs its own.
    """

    steps: int = 500_000
    batch_size: int = 7680
    micro_batch_size: int | None = None
    leaves: int = 64
    parallel: Literal["auto", "replicate", "shard"] = "auto"
    optimizer: Literal["adamw", "adamax", "lamb", "adafactor", "muon", "sgd", "nt_asgd"] = "adamw"
    momentum: float = 0.9
    average_patience: int = 5
    learning_rate: float | Auto = 6e-4
    muon_learning_rate: float | None = None
    muon_momentum: float = 0.95
    betas: tuple[float, float] = (0.9, 0.98)
    epsilon: float = 1e-6
    weight_decay: float = 0.01
    schedule: Literal[
        "linear",
        "cosine",
        "wsd",
        "constant",
        "slanted_triangular",
        "inverse_sqrt",
        "flat_inverse_sqrt",
        "slow_inverse_sqrt",
    ] = "linear"
    warmup_steps: int = 24_000
    decay_steps: int | None = None
    final_rate: float = 0.0
    layer_decay: float = 1.0
    clip_norm: float = 0.0
    on_spike: Literal["accept", "skip", "go_back"] = "accept"
    spike_factor: float = 10.0
    label_smoothing: float = 0.0
    phases: list[dict[str, Any]] = field(default_factory=list)
    initialize_from: str | None = None
    frozen: list[str] = field(default_factory=list)
    seed: int = 0
    device: str = "auto"
    threads: int | None = None
    precision: Precision = "auto"
    attention: Literal["auto", "explicit", "sdpa", "flex"] = "auto"
    deterministic: bool = True
    checkpoint_activations: bool = False
    compile: bool | None = None
    evaluate_every: int = 1000
    evaluate_windows: int = 256
    log_every: int = 10
    save_every: int = 1000
    keep_checkpoints: int = 2
    copy_to: str | None = None


@dataclass(frozen=True, kw_only=True)
class DistillationSettings:
    """Learning from the predictions of a trained model, the teacher, as well as from the labels (Hinton et al. 2015).

    Args:
        teacher: Run, checkpoint or Hugging Face model folder of the teacher, which has the same tokenizer; for a task, a
            model fine-tuned for it. Default: no teacher.
        temperature: Divisor of the logits of both models in the loss of soft labels.
        weight: Share of the loss that compares with the teacher's predictions; the rest compares with the labels.
    """

    teacher: str | None = None
    temperature: float = 2.0
    weight: float = 0.5


@dataclass(frozen=True, kw_only=True)
class UseSettings:
    """How the trained model is used as an encoder.

    Args:
        visibility: Which slots each slot attends to when it encodes a text. With `both_directions`, in tasks, each text is
            read from left to right and, apart, from right to left, and a head reads the mean of either side by side (ELMo).
        pooling: The slot that represents a text: the `first`, the `last`, or the `mean` of all.
    """

    visibility: Literal["bidirectional", "left_to_right", "right_to_left", "both_directions"] = "bidirectional"
    pooling: Literal["first", "last", "mean"] = "first"


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
class TaskSettings:
    """How labelled records are read and become rows, for fine-tuning.

    These settings are common to all tasks. Each kind has a subclass, next to its functions, with its own settings and their
    valid values.

    Args:
        kind: A key of `unicloze.tasks.TASKS`; empty in a recipe for pre-training.
        format: File format: a key of `unicloze.records.FORMATS`, or `auto` to choose by file name (.jsonl, .tsv, .csv, .json,
            also .gz).
        fields: Field of the file for each of the task's roles (`text`, `pair`, `label`, ...); default: the role's name.
        optional: Optional roles in the records: `pair`, `question` (choice), `predicate` (tagging); default: those found in
            the training file. Other files must have the same.
        metrics: Metrics on the development file, keys of `unicloze.evaluation.metrics.METRICS`; the first one selects the
            best checkpoint.
        max_length: Maximum tokens per row, special tokens included; longer texts are cut or windowed.
        metric_options: Metric options by name, such as `profile`; each metric receives those it has.
        evaluate_records: Number of records of the development file to evaluate on, evenly spread over it; default: all.
        train_records: Number of records of the training file to train on, evenly spread over it; default: all.
    """

    kind: str = ""
    format: str = "auto"
    fields: dict[str, str] = field(default_factory=dict)
    optional: list[str] | None = None
    metrics: list[str] = field(default_factory=list)
    max_length: int = 128
    metric_options: dict[str, str] = field(default_factory=dict)
    evaluate_records: int | None = None
    train_records: int | None = None

    ranges: ClassVar[Mapping[str, Range]] = {}
    """As of `ObjectiveSettings`."""
    needs: ClassVar[Mapping[str, tuple[Needs, ...]]] = {}
    """As of `ObjectiveSettings`."""

    def problems(self, recipe: Recipe) -> Iterator[Problem]:
        """Invalid values in a recipe: the key and what its value must be."""
        if not self.metrics:
            yield "task.metrics", "name at least one metric; the first selects the best checkpoint"
        if self.max_length < SHORTEST_ROW:
            yield "task.max_length", f"the special tokens and some text need {SHORTEST_ROW} or more"
        if self.evaluate_records is not None and self.evaluate_records < 1:
            yield "task.evaluate_records", "it must be at least 1; leave it out for all records"
        if self.train_records is not None and self.train_records < 1:
            yield "task.train_records", "it must be at least 1; leave it out for all records"


@dataclass(frozen=True, kw_only=True)
class GenerationSettings:
    """How a generation task turns a record into source and target, and how the target is trained.

    Args:
        learning: `pseudo` predicts every token of the target from a pseudo mask appended to the row (UniLMv2, Section 3.4);
            `masked` masks a share of the target in place (UniLM v1, Section 2.5); `next` predicts the next token from each
            token's own slot. Default: `next` if the model was trained that way, else `pseudo`.
        source: Parts of the source, joined by [EOS]: roles that `task.fields` may rename.
        keep: What to keep of each part if the source is too long (the longest is cut first): its `beginning`, its `end`, or
            the `chunk` that contains the most tokens of the other parts, preferably all of one in sequence.
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
        patience: Stop after this many evaluations without improvement; default: never.
        average_last: Evaluate and keep the mean of the weights at this many last evaluations, or at all so far
            (Transformer 2017, Section 6.1: 5 checkpoints for the base model, 20 for the big one). Training itself continues
            from the weights as they are. 1 averages nothing.
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
        lora_rank: Train low-rank updates of this rank for `lora_projections` and the task's head, and nothing else (LoRA).
            Default: no updates.
        lora_alpha: The updates are scaled by `lora_alpha` / `lora_rank`; default: the rank.
        lora_dropout: Dropout of the input of the updates.
        lora_projections: Projections that are updated: `query`, `key`, `value` and `output` of attention, `inner` and `outer`
            of the feed-forward network.
        adapter_size: Add a bottleneck adapter of this width after each sub-layer, and train the adapters, the normalisations
            and the task's head, and nothing else (Houlsby et al. 2019). Default: no adapters are added.
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


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A complete, reproducible run, as stored in `recipes/*.yaml` and `RUN/recipe.yaml`.

    A recipe with a task fine-tunes: data, tokenizer, objective and model are those of the model it starts from.
    """

    name: str = "unnamed"
    provenance: Provenance = field(default_factory=Provenance)
    data: DataSettings = field(default_factory=DataSettings)
    tokenizer: TokenizerSettings = field(default_factory=TokenizerSettings)
    objective: ObjectiveSettings = field(default_factory=ObjectiveSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    distillation: DistillationSettings = field(default_factory=DistillationSettings)
    use: UseSettings = field(default_factory=UseSettings)
    task: TaskSettings = field(default_factory=TaskSettings)
    generation: GenerationSettings = field(default_factory=GenerationSettings)
    decoding: DecodingSettings = field(default_factory=DecodingSettings)
    finetuning: FinetuningSettings = field(default_factory=FinetuningSettings)

    def to_dict(self) -> dict[str, Any]:
        """This recipe as plain dictionaries and lists, for YAML and JSON."""
        return dataclasses.asdict(self)
