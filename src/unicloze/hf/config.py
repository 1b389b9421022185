"""The Transformers configuration: model shape, special tokens, and how a model encodes and generates."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any, ClassVar, Literal

from huggingface_hub.dataclasses import type_validator
from transformers import PreTrainedConfig

from unicloze.errors import UsageError
from unicloze.interop.calling import encoder_inputs, step_inputs
from unicloze.model.from_attention_mask import EncoderInputs, StepInputs
from unicloze.settings import ModelSettings
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
        """The model shape.

        Raises:
            UsageError: A field has the wrong type, the hidden size is not a multiple of the number of heads, or this is an
                encoder-decoder.
        """
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
        if settings.num_heads < 1 or settings.hidden_size % settings.num_heads:
            raise UsageError(
                f"hidden_size is {settings.hidden_size}: give a multiple of num_heads, {settings.num_heads}"
            )
        return settings

    @property
    def encoding(self) -> EncoderInputs:
        """How a text is encoded."""
        first, second = self.segments
        return EncoderInputs(visibility=self.visibility, segment_ids=(first, second), local_width=self.local_width)

    @property
    def writing(self) -> StepInputs:
        """How a target is generated.

        Raises:
            UsageError: The model was not trained to generate, or the pseudo mask has no id.
        """
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
            pseudo=self.pseudo_token_id,
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
        reading, writing = encoder_inputs(recipe), step_inputs(recipe, vocabulary)
        fields: dict[str, Any] = dataclasses.asdict(loaded.model.settings) | {
            "max_positions": loaded.model.max_positions,
            "vocab_size": loaded.model.vocab_size,
            "pad_token_id": vocabulary.pad,
            "bos_token_id": vocabulary.sos,
            "eos_token_id": vocabulary.eos,
            "mask_token_id": vocabulary.mask,
            "visibility": reading.visibility,
            "pooling": recipe.use.pooling,
            "normalize": recipe.use.normalize,
            "segments": list(reading.segment_ids),
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
