"""Settings of the network and its task heads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from unicloze.settings.values import HeadName, ViewName


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
    relative_start: Literal["zero", "neighbours"] = "zero"
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
    initializer: Literal["normal", "truncated_normal", "t5"] = "normal"
    initializer_range: float = 0.02
    scaled_init: bool = False
    adapter_size: int = 0

    def memory_shape(self, rows: int) -> tuple[int, int, int, int]:
        """Shape of the states in a memory of some rows, see `unicloze.example.Memory`."""
        if self.kind == "recurrent":  # output and cell of each layer
            return 2 * self.num_layers, rows, self.memory, max(self.hidden_size, self.intermediate_size)
        return self.num_layers, rows, self.memory, self.hidden_size
