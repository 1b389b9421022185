"""All settings of a run, as dataclasses that import neither torch nor numpy.

A recipe is a YAML file that mirrors these classes; the command line overrides single values by their dotted name
(`--training.steps 100`). Defaults follow the UniLMv2 paper where it states a value. A field is declared with its rules: its
valid values, and what it needs to have an effect (`unicloze.rules`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, Self

from unicloze.files import Plain
from unicloze.rules import (
    AT_LEAST_ONE,
    BELOW_ONE,
    DISTINCT,
    NOT_NEGATIVE,
    POSITIVE,
    SHARE,
    UP_TO_ONE,
    Derived,
    Needs,
    Problem,
    Range,
    ReadBy,
    Rule,
    at_most,
    needs,
    setting,
)

PYTHON_DOCS = "python-docs"
"""Name of the built-in corpus: the documentation that ships with Python."""

DEVICE = r"auto|cpu|mps|(cuda|xpu)(:(0|[1-9][0-9]*))?"
"""Pattern of device names; `auto` is a CUDA device if there is one, else the CPU."""

Precision = Literal["auto", "bf16", "fp32"]
"""Precision of forward passes: `bf16` (autocast), `fp32`, or `auto`: bf16 where it is faster."""

Order = Literal["confidence", "left-to-right", "span"]
"""Order in which masks are filled: most confident first, left to right, or one span of adjacent masks at a time."""

Mode = Literal["pseudo", "chain", "both"]
"""How texts are scored: by pseudo-log-likelihood, by the chain rule, or by both."""

Pooling = Literal["mean", "first", "last"]
"""Which last hidden states become the vector of a text: the mean of all, or that of the first or last token."""

TaskPooling = Literal["first", "last", "mean", "concat", "decoder"]
"""Which hidden states represent a text in a task: as in `Pooling`, or the last one read, the maximum and the mean of all,
concatenated."""

HeadName = Literal["dense", "dense_gelu", "dense_relu", "plain", "batch_norm", "biattentive"]
"""Name of a task's head, a key of `unicloze.model.task_heads.TASK_HEADS`."""

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
"""What a head of cross-view training sees of a text, see `unicloze.model.recurrent.backbone`."""

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


OF_LSTMS = needs("model.kind", "recurrent")
OF_TRANSFORMERS = needs("model.kind", "transformer")
OF_CHARACTERS = needs("model.embeddings", "characters")
OF_A_BIAS = needs("model.relative_bias", True)
IN_STREAMS = needs("data.order", "streams")
MARKED = needs("objective.mask_unit", "phrase", "entity")
TRAINED = Needs("a tokenizer that is trained (tokenizer.path null)", lambda recipe: recipe.tokenizer.path is None)
WORD_PIECES = needs("tokenizer.kind", "wordpiece")
MOMENTS = needs("training.optimizer", "adamw", "adamax", "lamb", "muon")
MUON = needs("training.optimizer", "muon")
TEACHER = needs("distillation.teacher")
CLASSES = Needs("classes or tokens (not task.kind regression)", lambda recipe: recipe.task.kind != "regression")
HEAD = Needs(
    "a task with a head of its own (unicloze finetune)", lambda recipe: recipe.task.kind not in ("", "generation")
)
TOKENS = Needs(
    "predicted tokens (task.kind generation or finetuning.auxiliary)",
    lambda recipe: recipe.task.kind in ("", "generation") or bool(recipe.finetuning.auxiliary),
)
WRITTEN = Needs("task.kind generation", lambda recipe: recipe.task.kind in ("", "generation"))
NEXT = Needs(
    "generation.learning next",
    lambda recipe: recipe.task.kind != "generation" or recipe.generation.learning == "next",
)
POOLED = (
    Needs(
        "task.kind classification or regression",
        lambda recipe: recipe.task.kind in ("", "classification", "regression"),
    ),
    Needs("task.pooling null", lambda recipe: getattr(recipe.task, "pooling", None) is None),
    Needs("task.head dense, plain or batch_norm", lambda recipe: getattr(recipe.task, "head", "") != "biattentive"),
)
PAIRED = (
    Needs("texts in pairs (not task.kind generation)", lambda recipe: recipe.task.kind != "generation"),
    Needs("task.predicate repeat", lambda recipe: getattr(recipe.task, "predicate", "repeat") == "repeat"),
    Needs("task.delimiter false", lambda recipe: not getattr(recipe.task, "delimiter", False)),
)
EMBEDDED = Needs("embedded texts (unicloze pretrain)", lambda recipe: not recipe.task.kind)
PSEUDO = needs("generation.learning", "pseudo")
DRAWN = needs("generation.learning", "pseudo", "masked")
BEAMS = Needs("decoding.beams above 1", lambda recipe: recipe.decoding.beams > 1)
SEVERAL = Needs(
    "decoding.beams above 1, or several sampled texts (decoding.num_results)",
    lambda recipe: recipe.decoding.beams > 1 or recipe.decoding.num_results > 1,
)
NO_REPEATS = Needs("decoding.no_repeat_ngram above 0", lambda recipe: recipe.decoding.no_repeat_ngram > 0)
LORA = needs("finetuning.lora_rank")
UNLABELLED = needs("finetuning.unlabelled")
FACTORS = Range(
    lambda factors: all(0 < factor < math.inf for factor in factors.values()), "each factor must be above 0 and finite"
)

OF_THE_MODEL = Derived("it is taken from the model to start from")
PREPARED, INSPECTED = ReadBy(("prepare",)), ReadBy(("inspect",))
PREPARED_AND_INSPECTED = ReadBy(("prepare", "inspect"))


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
        lengths: With `random`, each step draws the length of its windows around `window` (a normal distribution of deviation
            5; in 5 % of the steps around half of it), and its learning rate is scaled by their share of `window` (AWD-LSTM).
            It needs `joined` documents, one segment and `streams`. Evaluations read whole windows.
        heldout_share: Share of the documents held out for evaluation, chosen by a hash of their text; at least one document
            of every source is kept for training.
        deduplicate: Drop documents whose text was seen before (ignoring white space and case).
        decontaminate: Evaluation files, folders or globs. Training text that shares `decontaminate_ngram` consecutive words
            with one of their texts is cut, with 200 characters on either side.
        decontaminate_ngram: Number of words that must be equal.
        phrases: Text file with one phrase per line, for `objective.mask_unit` phrase and entity; default: phrases found in
            the training text.
    """

    rules: ClassVar[tuple[Rule, ...]] = (OF_THE_MODEL,)

    corpus: list[str] = setting([PYTHON_DOCS], PREPARED)
    weights: list[float] | None = None
    text_field: str = setting("text", PREPARED)
    spans_field: str | None = setting(None, PREPARED, MARKED)
    prepared: str | None = setting(None, INSPECTED)
    window: int = setting(512, POSITIVE, at_most(2**18), INSPECTED)
    segments: Literal[1, 2] = setting(2, INSPECTED)
    documents: Literal["separate", "joined"] = setting("separate", INSPECTED)
    order: Literal["shuffled", "streams"] = "shuffled"
    overlap: float = setting(0.0, IN_STREAMS)
    directions: Literal["forward", "backward", "both"] = setting("forward", IN_STREAMS)
    lengths: Literal["fixed", "random"] = "fixed"
    heldout_share: float = setting(0.02, PREPARED, BELOW_ONE)
    deduplicate: bool = setting(True, PREPARED)
    decontaminate: list[str] = setting([], PREPARED)
    decontaminate_ngram: int = setting(13, POSITIVE, PREPARED, needs("data.decontaminate"))
    phrases: str | None = setting(None, MARKED, needs("objective.unmarked_unit", "phrase"))


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

    rules: ClassVar[tuple[Rule, ...]] = (OF_THE_MODEL, PREPARED)

    path: str | None = setting(None, PREPARED_AND_INSPECTED)
    kind: Literal["wordpiece", "bpe"] = setting("wordpiece", TRAINED)
    vocab_size: int = setting(30522, TRAINED, at_most(2**22))
    lowercase: bool = setting(True, TRAINED, WORD_PIECES)
    strip_accents: bool = setting(False, TRAINED, WORD_PIECES)
    extra_tokens: int = setting(0, TRAINED, NOT_NEGATIVE, at_most(2**16), PREPARED_AND_INSPECTED)


@dataclass(frozen=True, kw_only=True)
class HeadSettings:
    """Settings of a task head.

    Args:
        kind: `classes` predicts one of several classes from the pooled slots of a prediction; `quantities` predicts numbers,
            trained with squared error; `choice` selects one of the slots of a prediction, each scored on its own.
        name: As of `task.head`. A dense layer is as wide as the model or one of its two directions.
        outputs: Number of classes or quantities; ignored for a choice.
        directions: Number of directions that a text is read in, one half of the slots of a prediction each. The halves are
            pooled apart and concatenated.
        view: What it reads of bidirectional LSTMs; default: the last layer's output.
        pooling: Combine the slots of a prediction by their `mean` or `sum`, or `concat`: the last of them, their maximum and
            their mean.
        dropout: Dropout before the output layer; default: the model's.
        encoder_size: Cells of each direction of a biLSTM that reads the predictions of a row before the other layers; 0 for
            none.
        output_mix: Give these layers a second mix of the network's layers beside the output of that biLSTM.
        texts: Number of texts of a prediction, whose slots alternate, for a biattentive head.
        size: Width of a biattentive head.
    """

    kind: Literal["classes", "quantities", "choice"]
    name: HeadName = "dense"
    outputs: int = 1
    directions: int = 1
    view: ViewName | None = None
    pooling: Literal["mean", "sum", "concat"] = "mean"
    dropout: float | None = None
    encoder_size: int = 0
    output_mix: bool = False
    texts: Literal[1, 2] = 1
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
            `transformer_xl` there is no table: any number above 0 makes attention depend on whether two slots are in one
            segment.
        embedding_size: Width of the token, position and segment embeddings, projected to the hidden size (ALBERT,
            ELECTRA); default: `hidden_size`.
        embeddings: `table` has a vector for each token; `characters` computes it from the token's bytes by convolutions
            (ELMo), for LSTMs and without `tied_output`.
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
        relative_start: How that bias starts: near `zero`, or raised by 4 at the nearest `neighbours`, one for each of the
            first four heads (-1, +1, -2, +2; to the left only: -1, -2), which a small model needs many steps to find.
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
        activation_penalty: Factor of the mean square of the outputs after dropout, added to the gradient (AR).
        temporal_penalty: Factor of the mean squared difference between outputs at adjacent steps, added to the gradient
            (TAR).
        attention_dropout: Dropout of the attention probabilities.
        activation_dropout: Dropout inside the feed-forward network, after the activation (T5, BART).
        final_dropout: Dropout after the final normalisation of each stack of layers (T5).
        layer_norm_eps: Epsilon of the layer normalisation.
        initializer: `normal` draws all weights with one standard deviation; `truncated_normal` draws again what lies beyond
            two of them (BERT); `t5` draws as T5 does, by the widths of each matrix.
        initializer_range: Standard deviation of the normal distribution of the initial weights; with LSTMs, half the width
            of the uniform distribution of the initial embeddings.
        scaled_init: Divide this by sqrt(2 x layers) for the matrices that write into the residual stream (GPT-2).
        adapter_size: Width of the bottleneck adapters of a fine-tuned model, see `finetuning.adapter_size`; 0 for none.
    """

    kind: Literal["transformer", "recurrent"] = "transformer"
    hidden_size: int = setting(768, POSITIVE, at_most(2**17))
    num_layers: int = setting(12, POSITIVE, at_most(2**10))
    decoder_layers: int = setting(0, NOT_NEGATIVE, at_most(2**10))
    num_heads: int = setting(12, POSITIVE, at_most(2**12), OF_TRANSFORMERS)
    head_size: int | None = setting(None, POSITIVE, at_most(2**17), OF_TRANSFORMERS)
    intermediate_size: int = setting(3072, POSITIVE, at_most(2**19))
    max_positions: int | None = setting(None, POSITIVE, at_most(2**18))
    num_segments: int = setting(2, NOT_NEGATIVE, OF_TRANSFORMERS, INSPECTED)
    embedding_size: int | None = setting(None, POSITIVE, at_most(2**17))
    embeddings: Literal["table", "characters"] = setting("table", OF_LSTMS)
    character_size: int = setting(16, POSITIVE, OF_LSTMS, OF_CHARACTERS)
    character_filters: list[int] = setting([32, 32, 64, 128, 256, 512, 1024], OF_LSTMS, OF_CHARACTERS)
    character_highways: int = setting(2, NOT_NEGATIVE, OF_LSTMS, OF_CHARACTERS)
    positions: Literal["learned", "sinusoidal", "transformer_xl", "none"] = setting("learned", OF_TRANSFORMERS)
    scale_embeddings: bool = setting(False, OF_TRANSFORMERS)
    memory: int = setting(0, NOT_NEGATIVE, at_most(2**18), OF_THE_MODEL)
    share_layers: Literal["none", "all", "attention", "feed_forward"] = setting("none", OF_TRANSFORMERS)
    layer_visibility: list[Literal["full", "local"]] = setting(["full"], OF_TRANSFORMERS)
    activation: Literal["gelu", "gelu_tanh", "relu"] = "gelu"
    gated: bool = setting(False, OF_TRANSFORMERS)
    biases: bool = setting(True, OF_TRANSFORMERS)
    scale_scores: bool = setting(True, OF_TRANSFORMERS)
    head: Literal["transform", "linear"] = setting("transform", TOKENS)
    head_bias: bool = setting(True, TOKENS)
    tied_output: bool = setting(True, TOKENS)
    scale_output: bool = setting(False, TOKENS)
    layer_mix: bool = setting(False, HEAD)
    pooler: bool = setting(False, OF_THE_MODEL)
    generator_size: float = setting(0.0, OF_TRANSFORMERS, OF_THE_MODEL, INSPECTED, SHARE)
    norm: Literal["post", "pre"] = setting("post", OF_TRANSFORMERS)
    norm_kind: Literal["layer", "rms"] = "layer"
    embedding_norm: bool | None = setting(None, OF_TRANSFORMERS)
    relative_bias: bool = setting(True, OF_TRANSFORMERS)
    relative_start: Literal["zero", "neighbours"] = setting("zero", OF_TRANSFORMERS, OF_A_BIAS)
    relative_buckets: int = setting(32, POSITIVE, OF_TRANSFORMERS, OF_A_BIAS)
    relative_max_distance: int = setting(128, POSITIVE, OF_TRANSFORMERS, OF_A_BIAS)
    directions: Literal["forward", "backward", "both", "bidirectional"] = setting("forward", OF_LSTMS)
    projection: bool = setting(False, OF_LSTMS)
    residual: bool = setting(False, OF_LSTMS)
    cell_clip: float | None = setting(None, POSITIVE, OF_LSTMS)
    projection_clip: float | None = setting(None, POSITIVE, OF_LSTMS)
    dropout: float = setting(0.1, BELOW_ONE)
    embedding_dropout: float = setting(0.0, BELOW_ONE, OF_LSTMS)
    input_dropout: float = setting(0.0, BELOW_ONE, OF_LSTMS)
    hidden_dropout: float = setting(0.0, BELOW_ONE, OF_LSTMS)
    weight_dropout: float = setting(0.0, BELOW_ONE, OF_LSTMS)
    activation_penalty: float = setting(0.0, NOT_NEGATIVE, OF_LSTMS)
    temporal_penalty: float = setting(0.0, NOT_NEGATIVE, OF_LSTMS)
    attention_dropout: float = setting(0.1, BELOW_ONE, OF_TRANSFORMERS)
    activation_dropout: float = setting(0.0, BELOW_ONE, OF_TRANSFORMERS)
    final_dropout: float = setting(0.0, BELOW_ONE, OF_TRANSFORMERS)
    layer_norm_eps: float = setting(1e-12, POSITIVE)
    initializer: Literal["normal", "truncated_normal", "t5"] = "normal"
    initializer_range: float = setting(0.02, POSITIVE)
    scaled_init: bool = setting(False, OF_TRANSFORMERS, OF_THE_MODEL)
    adapter_size: int = setting(0, NOT_NEGATIVE, Derived("give finetuning.adapter_size"))

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
        average_patience: With `nt_asgd`, averaging starts at an evaluation that is worse than the best one so far, not
            counting this many of the latest.
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
        head_learning_rate: Peak learning rate of the heads, which are all weights outside the backbone, in pre-training;
            default: `learning_rate`. A head that reuses the embeddings alone has none. The new head of a run that starts from
            an encoder without one learns at a higher rate.
        clip_norm: Maximum norm of the gradient; 0 disables clipping.
        on_spike: What happens at a step whose gradient spikes, or whose loss or gradient is not finite. `accept` makes every
            finite update and stops the run at a number that is not finite. `skip` leaves out the update of the step; the run
            stops after 10 such steps in a row.
        spike_factor: A gradient spikes if its norm is more than this many times the median of the last 64 updates (of the
            first 16 updates of a phase, none is a spike).
        label_smoothing: Share of each predicted token's label that is spread evenly over the vocabulary, in training only
            (Szegedy et al. 2016, Section 7); rejected if no token is predicted.
        phases: Changes over time: each a mapping of the settings (of `objective`, and `data.window`,
            `training.batch_size` and `training.micro_batch_size`) that differ from the recipe's, with `share`, its share of
            the steps (shares are scaled to sum to 1). Default: one phase with the recipe's settings.
        initialize_from: Run, checkpoint or Hugging Face model folder to take initial weights from, wherever name and shape
            match. The model then has that shape unless the command line overrides it.
        start: How new token embeddings and output biases start in pre-training: `random` and at 0, or by `counts` of the
            training text: at vectors that tell the company of each token (Levy et al. 2015), and at the logarithms of the
            tokens' frequencies. Embeddings of `initialize_from` and `word_vectors` stay as they are, and so do the output
            biases of a model that predicts tokens.
        word_vectors: File of word vectors from which the embeddings of a new model start: on each line a word and its
            numbers (GloVe's text format); it may be .gz. `frozen: [backbone.embeddings]` keeps them as they are.
        frozen: Parts of the model that are not trained, given as prefixes of weight names: `[generator]`,
            `[backbone.embeddings, backbone.layers.0]`, or `[backbone]` to train only a task's head.
        seed: Seed of initial weights, order, masks and dropout.
        device: cpu, cuda, cuda:N; xpu, xpu:N or mps, which have not been tested; `auto` chooses a CUDA device if there is
            one.
        threads: CPU threads per process; default: torch's own choice. The number affects how sums are rounded.
        precision: `auto`, `bf16` (autocast) or `fp32`.
        attention: `auto`, or an implementation: `explicit` computes all scores, `sdpa` is torch's kernel, `flex` is
            FlexAttention, which skips masked blocks but has no dropout. `auto` takes FlexAttention on a GPU where
            `model.attention_dropout` is 0 and `deterministic` false, else `sdpa`; on a CPU the faster of the other two.
        deterministic: Avoid attention whose gradient is summed in no fixed order: false allows FlexAttention on a GPU, where
            that of the relative position bias has no such order. It changes nothing on a CPU, where runs repeat bit for bit.
        checkpoint_activations: Keep only the input of each layer for the backward pass, which computes the layer again: less
            memory, more time, the same results. Transformers only.
        compile: Compile each layer with torch.compile, in pre-training; default: false.
        evaluate_every: Steps between evaluations on the held-out windows; 0 evaluates at the end only. A run that starts
            from a model is also evaluated before its first step.
        evaluate_windows: Number of held-out windows to evaluate on.
        log_every: Steps between ledger lines.
        save_every: Steps between checkpoints; 0 saves at the end only.
        keep_checkpoints: Number of most recent checkpoints to keep.
        copy_to: URL of a folder, such as `s3://bucket/runs/mine`, to which each checkpoint of pre-training is copied.
            A run whose own folder is lost resumes from there. Each run needs its own.
    """

    steps: int = setting(500_000, POSITIVE, at_most(2**40), Derived("give finetuning.epochs"))
    batch_size: int = setting(7680, POSITIVE, at_most(2**20))
    micro_batch_size: int | None = setting(None, POSITIVE)
    leaves: int = 64
    parallel: Literal["auto", "replicate", "shard"] = setting(
        "auto", Derived("every process holds the whole model in fine-tuning")
    )
    optimizer: Literal["adamw", "adamax", "lamb", "adafactor", "muon", "sgd", "nt_asgd"] = "adamw"
    momentum: float = setting(0.9, BELOW_ONE, needs("training.optimizer", "sgd"))
    average_patience: int = setting(5, POSITIVE, needs("training.optimizer", "nt_asgd"))
    learning_rate: float | Auto = setting(6e-4, POSITIVE)
    muon_learning_rate: float | None = setting(None, POSITIVE, MUON)
    muon_momentum: float = setting(0.95, BELOW_ONE, MUON)
    betas: tuple[float, float] = setting((0.9, 0.98), MOMENTS)
    epsilon: float = setting(1e-6, POSITIVE, MOMENTS)
    weight_decay: float = setting(0.01, NOT_NEGATIVE)
    schedule: Literal[
        "linear", "cosine", "wsd", "constant", "slanted_triangular", "inverse_sqrt", "flat_inverse_sqrt", "slow_inverse_sqrt",
    ] = "linear"  # fmt: skip
    warmup_steps: int = setting(24_000, NOT_NEGATIVE, Derived("give finetuning.warmup_share"))
    decay_steps: int | None = setting(None, POSITIVE, needs("training.schedule", "cosine", "wsd"))
    final_rate: float = setting(0.0, BELOW_ONE, needs("training.schedule", "linear", "cosine", "wsd"))
    layer_decay: float = setting(1.0, POSITIVE, Derived("give finetuning.layer_decay"))
    head_learning_rate: float | None = setting(None, POSITIVE, Derived("give training.learning_rate"))
    clip_norm: float = setting(0.0, NOT_NEGATIVE)
    on_spike: Literal["accept", "skip"] = "accept"
    spike_factor: float = setting(10.0, AT_LEAST_ONE, needs("training.on_spike", "skip"))
    label_smoothing: float = setting(0.0, BELOW_ONE, TOKENS)
    phases: list[dict[str, Any]] = setting([], Derived("phases change the objective or the windows of pre-training"))
    initialize_from: str | None = setting(None, Derived("give --model"))
    start: Literal["random", "counts"] = setting("random", Derived("a task has too little text to count in"))
    word_vectors: str | None = None
    frozen: list[str] = setting([])
    seed: int = setting(0, NOT_NEGATIVE)
    device: str = "auto"
    threads: int | None = setting(None, POSITIVE)
    precision: Precision = "auto"
    attention: Literal["auto", "explicit", "sdpa", "flex"] = "auto"
    deterministic: bool = True
    checkpoint_activations: bool = setting(False, OF_TRANSFORMERS)
    compile: bool | None = setting(
        None, Derived("rows differ in length, and recompiling the model for each length is slower")
    )
    evaluate_every: int = setting(1000, NOT_NEGATIVE, Derived("give finetuning.evaluations, the number per epoch"))
    evaluate_windows: int = setting(
        256, POSITIVE, at_most(2**24), Derived("give task.evaluate_records, the number of records to evaluate on")
    )
    log_every: int = setting(10, POSITIVE)
    save_every: int = setting(1000, NOT_NEGATIVE)
    keep_checkpoints: int = setting(2, POSITIVE, Derived("the newest and the best checkpoint are kept"))
    copy_to: str | None = setting(None, Derived("only the checkpoints of pre-training are copied"))


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
    temperature: float = setting(2.0, POSITIVE, TEACHER, CLASSES)
    weight: float = setting(0.5, UP_TO_ONE, TEACHER)


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

    visibility: Literal["bidirectional", "left_to_right", "right_to_left", "both_directions"] = setting(
        "bidirectional", NEXT
    )
    pooling: Literal["first", "last", "mean"] = setting("first", *POOLED)
    separators: int = setting(1, AT_LEAST_ONE, *PAIRED)
    normalize: bool = setting(False, EMBEDDED)
    prompt: str = setting("", EMBEDDED)


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

    rules: ClassVar[tuple[Rule, ...]] = (WRITTEN,)

    beams: int = setting(1, at_most(2**10))
    sample: bool = False
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_length: int = 0
    max_length: int = setting(64, at_most(2**18))
    length_penalty: float = setting(0.0, SEVERAL)
    no_repeat_ngram: int = 0
    may_repeat: list[str] = setting([], NO_REPEATS)
    early_stop: Literal["exact", "first"] = setting("exact", BEAMS)
    num_results: int = 1
    parallel: int | None = None
    seed: int = setting(0, needs("decoding.sample", True))
    batch_size: int = setting(16, at_most(2**16))
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

    rules: ClassVar[tuple[Rule, ...]] = (WRITTEN,)

    learning: Literal["pseudo", "masked", "next"] | None = None
    source: list[str] = setting(["source"], Range(bool, "name at least one role for the source"))
    keep: Literal["beginning", "end", "chunk"] = "beginning"
    chunk_by: list[str] | None = setting(None, needs("generation.keep", "chunk"))
    targets: Literal["first", "all"] = "first"
    max_source: int | None = setting(None, Range(lambda size: size >= 4, "[SOS], some text and [EOS] need 4 or more"))
    max_target: int = setting(64, Range(lambda size: size >= 2, "a token and [EOS] need 2 or more"))
    mask_rate: float = setting(0.7, SHARE, needs("generation.learning", "masked"))
    mask_share: float = setting(0.8, SHARE, DRAWN)
    random_share: float = setting(0.1, SHARE, DRAWN)
    target_noise: float = setting(0.0, SHARE, PSEUDO)
    block_size: int = setting(1, AT_LEAST_ONE, PSEUDO)
    any_order: bool = setting(False, PSEUDO)
    segment_ids: list[int] | None = setting(
        None, Range(lambda ids: len(ids) in (1, 2), "give one id for source and target each")
    )


@dataclass(frozen=True, kw_only=True)
class FinetuningSettings:
    """How a task is trained; `steps` and `warmup_steps` of `TrainingSettings` follow from these settings.

    Args:
        epochs: Passes over the training file; `auto` chooses by the number of records.
        warmup_share: Share of the steps in which the learning rate rises.
        evaluations: Evaluations on the development file per epoch; 0.5 evaluates after every other epoch.
        fit_head: Begin with a head fitted by logistic or ridge regression on the model's features, where a class or a
            quantity is predicted and there are few labels; `auto` does so if `training.learning_rate` is `auto`. Classes
            are then calibrated by the development file (Guo et al. 2017).
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

    epochs: float | Auto = setting(3.0, POSITIVE)
    warmup_share: float = setting(0.1, BELOW_ONE)
    evaluations: float = setting(1.0, POSITIVE)
    fit_head: bool | Auto = setting("auto", needs("task.kind", "classification", "regression"))
    patience: int | None = setting(None, AT_LEAST_ONE)
    average_last: int = setting(1, AT_LEAST_ONE)
    auxiliary: dict[str, float] = setting({}, FACTORS)
    unlabelled: list[str] = setting([])
    views: list[ViewName] = setting(["full", "forward", "backward", "future", "past"], DISTINCT, UNLABELLED)
    unlabelled_dropout: float = setting(1.0, NOT_NEGATIVE, UNLABELLED)
    layer_decay: float = setting(1.0, UP_TO_ONE)
    unfreeze_epochs: float | None = setting(None, POSITIVE)
    lora_rank: int | None = setting(None, AT_LEAST_ONE)
    lora_alpha: float | None = setting(None, POSITIVE, LORA)
    lora_dropout: float = setting(0.0, BELOW_ONE, LORA)
    lora_projections: list[Projection] = setting(["query", "value"], DISTINCT, LORA)
    adapter_size: int | None = setting(None, AT_LEAST_ONE, at_most(2**16))

    @property
    def few(self) -> bool:
        """Whether only a few weights learn, which are saved apart from the model they were added to."""
        return self.lora_rank is not None or self.adapter_size is not None

    @property
    def steps_between(self) -> int:
        """Steps from one on labelled records to the next."""
        return 2 if self.unlabelled else 1


class Reading(NamedTuple):
    """How rows of an objective read a text."""

    visibility: str = "bidirectional"  # which slots each slot attends to
    segment_ids: Sequence[int] | None = None  # ids of the first and the second segment; 0 and 1 if None
    local_width: int | None = None  # slots to the left that local layers attend to; None if the objective sets none

    @property
    def segments(self) -> tuple[int, int]:
        """Ids of the first and the second segment; a single id applies to both."""
        ids = self.segment_ids or (0, 1)
        return ids[0], ids[-1]


class WindowNeeds(NamedTuple):
    """What an objective requires of its windows."""

    pairs: Pairing = "contiguous"  # how the second segment relates to the first
    static_copies: int | None = None  # passes over the corpus after which the draws of a window repeat; never if None
    phrases: bool = False  # whether phrases must be marked
    spans: bool = False  # whether the spans that documents give must be marked


class Bounds(NamedTuple):
    """Upper bounds on the numbers in an objective's rows; sentinels are counted once each."""

    slots: int
    predictions: int
    positions: int
    sentinels: int = 0


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
    targets: list[str] = setting(["ae", "par"])
    static_copies: int | None = setting(None, AT_LEAST_ONE, ReadBy())
    mixture: list[dict[str, Any]] = setting([])
    coefficients: dict[str, float] = setting({}, ReadBy())

    known_targets: ClassVar[tuple[str, ...]] = ()
    """Targets that the objective supports."""
    trains: ClassVar[bool] = True
    """Whether it can train a model; if not, it needs no target."""
    in_order: ClassVar[bool] = False
    """Whether the slots of a row are in text order, as local attention layers need."""
    rules: ClassVar[tuple[Rule, ...]] = (ReadBy(("inspect",)),)
    """Rules of all its settings."""

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
        for target, coefficient in self.coefficients.items():
            if target not in self.targets:
                yield "objective.coefficients", f"'{target}' is not one of objective.targets {self.targets}"
            elif not 0 <= coefficient < math.inf:
                yield "objective.coefficients", f"the factor of '{target}' must not be negative"


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
        metrics: Metrics on the development file, keys of `unicloze.evaluation.metrics.registry.METRICS`; the first one
            selects the best checkpoint.
        max_length: Maximum tokens per row, special tokens included; longer texts are cut or windowed.
        metric_options: Metric options by name, such as `profile`; each metric receives those it has.
        evaluate_records: Number of records of the development file to evaluate on, evenly spread over it; default: all.
        train_records: Number of records of the training file to train on, evenly spread over it; default: all.
    """

    kind: str = ""
    format: str = "auto"
    fields: dict[str, str] = setting({})
    optional: list[str] | None = None
    metrics: list[str] = setting([])
    max_length: int = 128
    metric_options: dict[str, str] = setting({})
    evaluate_records: int | None = setting(None, AT_LEAST_ONE)
    train_records: int | None = setting(None, AT_LEAST_ONE)

    def problems(self, recipe: Recipe) -> Iterator[Problem]:
        """Invalid values in a recipe: the key and what its value must be."""
        if not self.metrics:
            yield "task.metrics", "name at least one metric; the first selects the best checkpoint"
        if self.max_length < SHORTEST_ROW:
            yield "task.max_length", f"the special tokens and some text need {SHORTEST_ROW} or more"


@dataclass(frozen=True, kw_only=True)
class Recipe(Plain):
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

    def changed(self, section: str, **values: Any) -> Recipe:
        """This recipe with other values of some settings of a section."""
        return dataclasses.replace(self, **{section: dataclasses.replace(getattr(self, section), **values)})

    def flat(self, *sections: str) -> dict[str, Any]:
        """The settings of some sections by dotted name, as plain values."""
        held = {section: dataclasses.asdict(getattr(self, section)) for section in sections}
        return {f"{section}.{name}": value for section, values in held.items() for name, value in values.items()}
