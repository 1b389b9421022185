"""Every setting of a run, as dataclasses that need neither torch nor numpy.

A recipe is a YAML file that mirrors these classes; the command line overrides single values by their dotted name
(`--training.steps 100`). The values here are those of the UniLMv2 paper where it states one.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

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

PredictionFormat = Literal["jsonl", "json", "glue"]
"""How predictions are written: an object a line, as official scripts read them, or as GLUE's server does."""

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


@dataclass(frozen=True, kw_only=True)
class ObjectiveSettings:
    """What is masked, in which order it is predicted, and what is shown in its place.

    Args:
        name: A key of `unicloze.objectives.OBJECTIVES`; `none` for an encoder that was imported, not trained here.
        targets: What is predicted: `ae` every masked token from the context alone (equation 3), `par` step by step
            (equation 6), `lm` the next token, `diffusion` noised tokens, `nsp` and `sop` how two segments relate, `sbo` a
            span's tokens from its boundary (SpanBERT), `rtd` which tokens were replaced (ELECTRA).
        masking: `blockwise` is Algorithm 1; `token` draws single units without replacement (BERT); `geometric` draws spans
            of 1 to `max_span` units with probability proportional to (1 - `geometric_p`)^length (SpanBERT); `ngram` spans
            of 1 to `max_span` units with probability proportional to 1/length (ALBERT).
        mask_unit: What is masked as a whole: a `token`, a `word`, or a `phrase` found by collocation (ERNIE).
        mask_rate: Share of the text tokens to mask; special tokens are neither masked nor counted. Of a `prefix` language
            model the mean share that is predicted: 0.5 splits uniformly.
        final_mask_rate: Mask rate at the last step, reached linearly; `mask_rate` throughout if not given.
        block_probability: Chance that a draw of Algorithm 1 is a block of several tokens.
        max_span: Longest block or span; 1 draws single tokens only.
        geometric_p: Parameter of the geometric span lengths.
        factorization: `block` predicts a drawn block in one step (PAR); `token` splits the blocks and shuffles all masked
            tokens into an order of their own (AR). The paper leaves this open for its AR rows.
        masks_in_context: Keep a mask in the context at every masked position (Figure 3).
        pseudo_token: `own` gives [P] its own id as the paper draws it; `mask` shares [M]'s id as the released models do.
        mask_share: Share of the masked positions that show a mask.
        random_share: Share that shows a random token; what is left shows the token itself.
        corruption_unit: Whether mask, random token or token itself is drawn for each `token` or for a whole `span`.
        visibility: Who reads whom in `masked` and `causal` rows (UniLM v1's four, GPT's one).
        local_width: Slots to the left a slot reads in the layers whose `model.layer_visibility` is `local` (GPT-3).
        segment_ids: Ids of the first and the second segment; 0 and 1 if not given (UniLM v1 names the four language
            models by them).
        pairs: The second segment is `contiguous`, half the time of another document (`next_sentence`, BERT), or half the
            time swapped with the first (`sentence_order`, ALBERT).
        static_copies: Draw masks for so many passes over the corpus and repeat them then (BERT); always anew if not given.
        mean_span: Mean length of a corrupted span of `span_corruption` (T5) and `denoising` (BART: Poisson).
        noise: What `denoising` does to the source, in this order: `mask`, `delete`, `infill`, `permute_sentences`,
            `rotate` (BART).
        mode_token: Number of the extra token that names the task in front of the source (UL2); none if not given. The
            sentinels are the extra tokens from number 0 on, so a mode token stands behind all of them.
        block_size: Tokens of a block of `block_diffusion`.
        mixture: Parts of a mixture, each a mapping of the settings in which it differs from these, with `share` (its share
            of the rows of every step; 1 if not given, shares are scaled to 1), `label` (its name if not given) and
            `evaluate` (whether it is measured on held-out text; true if not given).
        coefficients: Factor of each target's loss; 1 where not given.
    """

    name: str = "unilmv2"
    targets: list[str] = field(default_factory=lambda: ["ae", "par"])
    masking: Literal["blockwise", "token", "geometric", "ngram"] = "blockwise"
    mask_unit: Literal["token", "word", "phrase"] = "token"
    mask_rate: float = 0.15
    final_mask_rate: float | None = None
    block_probability: float = 0.4
    max_span: int = 6
    geometric_p: float = 0.2
    factorization: Literal["block", "token"] = "block"
    masks_in_context: bool = True
    pseudo_token: Literal["own", "mask"] = "own"
    mask_share: float = 0.8
    random_share: float = 0.1
    corruption_unit: Literal["token", "span"] = "token"
    visibility: Literal["bidirectional", "left_to_right", "right_to_left", "prefix"] = "bidirectional"
    local_width: int | None = None
    segment_ids: list[int] | None = None
    pairs: Literal["contiguous", "next_sentence", "sentence_order"] = "contiguous"
    static_copies: int | None = None
    mean_span: float = 3.0
    noise: list[str] = field(default_factory=lambda: ["infill"])
    mode_token: int | None = None
    block_size: int = 4
    mixture: list[dict[str, Any]] = field(default_factory=list)
    coefficients: dict[str, float] = field(default_factory=dict)


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
        leaves: Gradients of a step are summed in groups of consecutive micro-batches, so many at most (a power of 2), and the
            groups in a binary tree, so that any number of processes computes the same bits. Most processes that share a
            step; each holds about log2(leaves) gradients.
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
        threads: Threads that each process computes with on a CPU; as many as torch would take if not given. The number
            changes how sums are rounded.
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
    leaves: int = 64
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
    threads: int | None = None
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

    Args:
        kind: A key of `unicloze.tasks.TASKS`; nothing in a recipe for pre-training.
        format: How a file holds its records: a key of `unicloze.tasks.records.FORMATS`, or `auto` by its name (.jsonl, .tsv,
            .csv, .json, also .gz).
        fields: Where the file keeps what the task calls `text`, `pair`, `label`, ...; under that name if not given.
        optional: What else than the necessary records hold: `pair`, `question` (choice), `predicate` (tagging); what those of
            the training file hold if not given. Other files must hold the same.
        labels: The classes, in the order of their numbers; those of the training file, sorted, if not given.
        metrics: What is measured on the development file, keys of `unicloze.evaluation.metrics.METRICS`; the first one
            chooses the best checkpoint.
        max_length: Most tokens of a row, special tokens included; what is longer is cut or windowed.
        head: `dense` puts BERT's dense layer and tanh before the output layer (it can be exported), `plain` does not (as
            both UniLM papers say).
        pooling: What stands for a text: its `first` slot, its `last`, or the `mean` of all; as the model's recipe says
            (`use.pooling`) if not given. In tagging: what stands for a word; for a choice, no answer and the kind of an
            answer: one slot. These are the `last` of a model that reads from left to right, else the `first`, if not given.
        head_dropout: Dropout of what the output layer reads; `model.dropout` if not given.
        delimiter: Put a token of its own between two texts and give both one segment, as GPT does, instead of [EOS] and
            segments.
        both_orders: Read each pair in both orders and sum what stands for it, as GPT does where the order has no meaning.
        predicate: How a tagged sentence shows its predicate, where it has one: by `segment` 1, or `repeat`ed behind it.
        max_question: Most tokens of a question, that of a conversation with the turns before it; the rest of a row is for
            the passage.
        stride: Tokens of the passage from the beginning of one window to that of the next; half a window where that is
            less.
        max_answer: Most tokens of an extracted answer.
        n_best: How many answers a prediction lists.
        unanswerable: Whether questions may have no answer in their passage (SQuAD 2.0); whether one of the training file
            has none if not given.
        no_answer_threshold: How far the score of no answer must lie above that of the best answer for there to be none;
            chosen on the development file if not given, 0 without one.
        metric_options: Options of the metrics by name, such as `profile`; each metric gets those it has.
        evaluate_records: So many records of the development file are predicted and measured, evenly spread over it; all if
            not given.
    """

    kind: str = ""
    format: str = "auto"
    fields: dict[str, str] = field(default_factory=dict)
    optional: list[str] | None = None
    labels: list[str] | None = None
    metrics: list[str] = field(default_factory=list)
    max_length: int = 128
    head: Literal["dense", "plain"] = "dense"
    pooling: Literal["first", "last", "mean"] | None = None
    head_dropout: float | None = None
    delimiter: bool = False
    both_orders: bool = False
    predicate: Literal["segment", "repeat"] = "segment"
    max_question: int = 64
    stride: int = 128
    max_answer: int = 30
    n_best: int = 5
    unanswerable: bool | None = None
    no_answer_threshold: float | None = None
    metric_options: dict[str, str] = field(default_factory=dict)
    evaluate_records: int | None = None


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
