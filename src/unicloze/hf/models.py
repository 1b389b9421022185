"""The Transformers configuration, and the encoding and the mask-filling model as `PreTrainedModel`s."""

from __future__ import annotations

import dataclasses
import math
import os
import typing
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Self

import torch
from huggingface_hub.dataclasses import type_validator
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedConfig, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutputWithPooling, MaskedLMOutput
from transformers.utils.generic import can_return_tuple

from unicloze.errors import UsageError
from unicloze.interop import stock
from unicloze.interop.read import open_model
from unicloze.model.backbone import Backbone
from unicloze.model.dropout import DropoutKey
from unicloze.model.from_attention_mask import StepInputs, encoding_batch
from unicloze.model.heads import TokenHead
from unicloze.settings import ModelSettings, Reading
from unicloze.tasks.rows import text_pooling
from unicloze.training.loading import LoadedModel

_TYPES = typing.get_type_hints(ModelSettings)


class UniclozeConfig(PreTrainedConfig):
    """Configuration of the models of `unicloze.hf`.

    Besides the fields below it has every field of `unicloze.settings.ModelSettings` under the same name (`hidden_size`,
    `num_layers`, `relative_bias`, ...); `num_hidden_layers` and `num_attention_heads` are aliases of `num_layers` and
    `num_heads`.

    Args:
        vocab_size: Rows of the token table.
        pad_token_id: Padding.
        bos_token_id: First token of a text, [SOS].
        eos_token_id: Ends a segment and a target, [EOS].
        mask_token_id: [M] of the paper.
        visibility: How a text is encoded: `bidirectional` or `left_to_right`.
        pooling: The vector of a text: its `first` or `last` slot, or the `mean` of all.
        normalize: Whether that vector is divided by its length.
        segments: Segment ids that `token_type_ids` 0 and 1 stand for when a text is encoded.
        local_width: How many slots to its left a slot reads in `local` layers.
        predicts: How a target is generated: `pseudo` predicts each token at a pseudo mask, `next` at the previous token; None
            if the model was not trained to generate.
        source_visibility: How a source is read when a target is generated after it.
        generation_segments: Segment ids of source and target.
        pseudo_token_id: The pseudo mask, [P] of the paper.
        label_smoothing: Probability mass of a label spread over the vocabulary in the loss of a target, in training mode.
    """

    model_type = "unicloze"
    attribute_map: ClassVar[dict[str, str]] = {"num_hidden_layers": "num_layers", "num_attention_heads": "num_heads"}

    vocab_size: int = 30522
    pad_token_id: int | None = 0
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    mask_token_id: int | None = None
    visibility: Literal["bidirectional", "left_to_right"] = "bidirectional"
    pooling: Literal["first", "last", "mean"] = "first"
    normalize: bool = False
    segments: list[int] | tuple[int, ...] = (0, 1)
    local_width: int | None = None
    predicts: Literal["pseudo", "next"] | None = None
    source_visibility: Literal["bidirectional", "left_to_right"] = "bidirectional"
    generation_segments: list[int] | tuple[int, ...] = (0, 1)
    pseudo_token_id: int | None = None
    label_smoothing: float = 0.0
    use_cache: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        """Take the fields of `ModelSettings`, with defaults, from the remaining arguments."""
        for alias, name in self.attribute_map.items():
            if alias in kwargs:
                kwargs[name] = kwargs.pop(alias)
        defaults = ModelSettings(max_positions=512)
        for name in _TYPES:
            setattr(self, name, kwargs.pop(name, getattr(defaults, name)))
        super().__post_init__(**kwargs)

    @property
    def settings(self) -> ModelSettings:
        """The model shape."""
        values = {name: getattr(self, name) for name in _TYPES}
        for name, value in values.items():
            try:
                type_validator(name, value, _TYPES[name])
            except TypeError as error:
                raise UsageError(f"configuration field {name} is {value!r}: {error}") from error
        settings = ModelSettings(**values)
        if settings.decoder_layers:
            raise UsageError(
                f"decoder_layers is {settings.decoder_layers}, and unicloze.hf has no class for an encoder-decoder: export "
                "the model with `unicloze export --to t5` or `--to bart`"
            )
        if settings.num_heads < 1 or (settings.head_size is None and settings.hidden_size % settings.num_heads):
            raise UsageError(
                f"hidden_size is {settings.hidden_size}: give a multiple of num_heads, {settings.num_heads}"
            )
        return settings

    @property
    def encoding(self) -> Reading:
        """How a text is encoded."""
        return Reading(self.visibility, self.segments, self.local_width)

    @property
    def writing(self) -> StepInputs:
        """How a target is generated."""
        if self.predicts is None:
            raise UsageError(
                "the model was not trained to generate text: use UniclozeModel or UniclozeForMaskedLM, or set "
                "config.predicts to 'pseudo' or 'next'"
            )
        if self.predicts == "pseudo" and self.pseudo_token_id is None:
            raise UsageError(
                "config.predicts is 'pseudo' but config.pseudo_token_id is not set: set it to the id of the pseudo mask"
            )
        source, target = self.generation_segments
        return StepInputs(
            predicts=self.predicts,
            source=self.source_visibility,
            segment_ids=(source, target),
            pseudo=self.pseudo_token_id if self.predicts == "pseudo" else None,
            local_width=self.local_width,
        )

    @classmethod
    def of(cls, loaded: LoadedModel, **changes: Any) -> UniclozeConfig:
        """The configuration of a trained model.

        Args:
            loaded: The model.
            changes: Fields to override.
        """
        vocabulary, recipe = loaded.tokenizer.vocabulary, loaded.recipe
        reading, writing = stock.encoder_inputs(recipe), stock.step_inputs(recipe, vocabulary)
        fields: dict[str, Any] = dataclasses.asdict(loaded.model.settings) | {
            "max_positions": loaded.model.max_positions,
            "vocab_size": loaded.model.vocab_size,
            "pad_token_id": vocabulary.pad,
            "bos_token_id": vocabulary.sos,
            "eos_token_id": vocabulary.eos,
            "mask_token_id": vocabulary.mask,
            "visibility": reading.visibility,
            "pooling": text_pooling(recipe),
            "normalize": recipe.use.normalize,
            "segments": list(reading.segments),
            "local_width": reading.local_width,
        }
        if writing is not None:
            fields |= {
                "predicts": writing.predicts,
                "source_visibility": writing.source,
                "generation_segments": list(writing.segment_ids),
                "pseudo_token_id": writing.pseudo,
                "local_width": writing.local_width or reading.local_width,
            }
        return cls(**(fields | changes))


class UniclozePreTrainedModel(PreTrainedModel):
    """Base class: the backbone, with the tensor names of a run's checkpoint.

    The token embeddings are also the output matrix, which the head receives (unless `tied_output` is off): nothing needs
    tying, and every file stores them once.
    """

    config_class = UniclozeConfig
    config: UniclozeConfig
    base_model_prefix = ""
    main_input_name = "input_ids"
    _no_split_modules: ClassVar[list[str]] = ["Layer"]  # type: ignore[misc]

    def __init__(self, config: UniclozeConfig) -> None:
        super().__init__(config)
        self.backbone = Backbone(config.settings, vocab_size=config.vocab_size, max_positions=config.max_positions)

    @classmethod
    def from_run(cls, path: str | os.PathLike[str], **changes: Any) -> Self:
        """Load the weights of a run.

        Args:
            path: A run directory, its checkpoints folder, or one checkpoint.
            changes: Configuration fields to override.

        Returns:
            The model in evaluation mode, float32, on the CPU.

        Raises:
            UniclozeError: There is no intact checkpoint, or the run lacks a head this model needs.
        """
        return cls.of(open_model(path), **changes)

    @classmethod
    def of(cls, loaded: LoadedModel, **changes: Any) -> Self:
        """Make a model from a loaded one, like `from_run`."""
        model = cls(UniclozeConfig.of(loaded, **changes))
        theirs = loaded.model.state_dict()
        absent = sorted(model.state_dict().keys() - theirs.keys())
        if absent:
            raise UsageError(
                f"{loaded.path} has no {absent[0]}: it was not trained to predict tokens, so use UniclozeModel"
            )
        model.load_state_dict({name: theirs[name] for name in model.state_dict()})
        if model.can_generate():
            model.generation_config.update(**stock.generate_arguments(loaded))
        model.eval()
        return model

    def get_input_embeddings(self) -> nn.Module:
        """The token embeddings."""
        return self.backbone.embeddings.tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the token embeddings."""
        assert isinstance(value, nn.Embedding)
        self.backbone.embeddings.tokens = value

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> Any:
        """Like Transformers', and resizes the head's bias and own output matrix, whose new entries are 0."""
        embeddings = super().resize_token_embeddings(*args, **kwargs)
        head, size = getattr(self, "token_head", None), embeddings.num_embeddings
        for name in ("bias", "output"):
            held = getattr(head, name, None)
            if held is not None and len(held) != size:
                kept = held.detach()[:size]
                grown = functional.pad(kept, (*(0, 0) * (kept.dim() - 1), 0, size - len(kept)))
                setattr(head, name, nn.Parameter(grown))
        return embeddings

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.LayerNorm | nn.RMSNorm):
            init.ones_(module.weight)
            if isinstance(bias := getattr(module, "bias", None), Tensor):
                init.zeros_(bias)
            return
        deviation: float = self.config.initializer_range
        if self.config.scaled_init and any(module is writer for writer in self.backbone.residual_writers()):
            deviation /= math.sqrt(2 * self.config.num_layers)
        for name, parameter in module.named_parameters(recurse=False):
            if name == "bias":
                init.zeros_(parameter)
            else:
                init.normal_(parameter, 0.0, deviation)

    def _shown(self, states: Sequence[Tensor], wanted: bool | None) -> tuple[Tensor, ...] | None:
        """The states of every layer, if they are asked for."""
        return tuple(states) if (self.config.output_hidden_states if wanted is None else wanted) else None

    def _dropout(self) -> DropoutKey | None:
        """Dropout of a training forward pass, keyed by torch's generator; None in evaluation."""
        return DropoutKey(int(torch.randint(2**62, ())), device=self.device) if self.training else None

    def _encode(self, input_ids: Tensor, *others: Tensor | None) -> list[Tensor]:
        """Hidden states; arguments as of `UniclozeModel.forward`."""
        rule, longest = self.config.encoding, self.config.max_positions
        batch = encoding_batch(input_ids, *others, rule=rule, max_positions=longest)
        states: list[Tensor] = self.backbone(batch, dropout=self._dropout())
        return states


class UniclozeModel(UniclozePreTrainedModel):
    """The backbone: encodes texts to hidden states, in the direction given by the recipe.

    `pooler_output` is the text vector that `unicloze.embed` returns (`config.pooling`).
    """

    _keys_to_ignore_on_load_unexpected = [  # noqa: RUF012
        r"^token_head\."
    ]

    def __init__(self, config: UniclozeConfig) -> None:
        super().__init__(config)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        output_hidden_states: bool | None = None,
    ) -> BaseModelOutputWithPooling:
        """Encode texts.

        Args:
            input_ids: *Shape:* (rows, slots)
            attention_mask: 1 where a slot is real; padding at the beginning or the end. *Shape:* (rows, slots)
            token_type_ids: 0 for a text, 1 for its second part. *Shape:* (rows, slots)
            position_ids: Default: counted over the real slots. *Shape:* (rows, slots)
            output_hidden_states: Return the states of every layer.

        Raises:
            UsageError: A row is too long, or has padding between its tokens.
        """
        states = self._encode(input_ids, attention_mask, token_type_ids, position_ids)
        pooled = _pooled(states[-1], attention_mask, self.config.pooling)
        return BaseModelOutputWithPooling(
            last_hidden_state=states[-1],
            pooler_output=functional.normalize(pooled, dim=1) if self.config.normalize else pooled,
            hidden_states=self._shown(states, output_hidden_states),
        )


class UniclozeForMaskedLM(UniclozePreTrainedModel):
    """Fills masks: logits over the vocabulary at every slot.

    The loss is summed over the labels and divided by `num_items_in_batch`, which Transformers' `Trainer` counts over all
    micro-batches of a step, or by the number of labels.
    """

    accepts_loss_kwargs = True

    def __init__(self, config: UniclozeConfig) -> None:
        super().__init__(config)
        self.token_head = TokenHead(config.settings, vocab_size=config.vocab_size)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> MaskedLMOutput:
        """Predict the token of every slot; for other arguments see `UniclozeModel.forward`.

        Args:
            input_ids: *Shape:* (rows, slots)
            attention_mask: *Shape:* (rows, slots)
            token_type_ids: *Shape:* (rows, slots)
            position_ids: *Shape:* (rows, slots)
            labels: The tokens to predict, -100 elsewhere. *Shape:* (rows, slots)
            output_hidden_states: Return the states of every layer.
            num_items_in_batch: Divisor of the summed loss; default: the number of labels.
        """
        states = self._encode(input_ids, attention_mask, token_type_ids, position_ids)
        logits = self.token_head(states[-1], self.backbone.embeddings.tokens.weight)
        loss = None if labels is None else summed_loss(logits, labels, num_items_in_batch)
        return MaskedLMOutput(loss=loss, logits=logits, hidden_states=self._shown(states, output_hidden_states))


def summed_loss(logits: Tensor, labels: Tensor, count: Tensor | int | None, *, label_smoothing: float = 0.0) -> Tensor:
    """Cross-entropy summed over the labels other than -100, divided by `count` or by their number."""
    total = functional.cross_entropy(
        logits.flatten(0, -2).float(), labels.flatten(), reduction="sum", label_smoothing=label_smoothing
    )
    if count is None:
        count = (labels != -100).sum().clamp(min=1)
    return total / (count.to(total.device) if isinstance(count, Tensor) else count)


def _pooled(hidden: Tensor, attention_mask: Tensor | None, pooling: str) -> Tensor:
    """The vector of each text. *Shape:* (rows, slots, hidden size) to (rows, hidden size)"""
    real = torch.ones_like(hidden[:, :, 0]) if attention_mask is None else (attention_mask != 0).to(hidden.dtype)
    if pooling == "mean":
        pooled: Tensor = (hidden * real[:, :, None]).sum(1) / real.sum(1, keepdim=True).clamp(min=1)
        return pooled
    slots = hidden.shape[1]
    place = real.argmax(1) if pooling == "first" else slots - 1 - real.flip(1).argmax(1)
    return hidden[torch.arange(len(hidden), device=hidden.device), place]
