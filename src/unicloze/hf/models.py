"""The encoding and the mask-filling model as Transformers' `PreTrainedModel`s."""

from __future__ import annotations

import math
import os
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutputWithPooling, MaskedLMOutput

from unicloze.errors import UsageError
from unicloze.hf.config import UniclozeConfig
from unicloze.interop.calling import never_written
from unicloze.interop.decoding import generate_arguments
from unicloze.interop.opening import open_model
from unicloze.model.backbone import Backbone
from unicloze.model.dropout import DropoutKey
from unicloze.model.from_attention_mask import encoding_batch
from unicloze.model.heads import TokenHead
from unicloze.training.loading import LoadedModel


class UniclozePreTrainedModel(PreTrainedModel):
    """Base class: the backbone, with the tensor names of a run's checkpoint.

    The token embeddings are also the output matrix: the head receives them and has no matrix of its own, so nothing
    needs tying and every file stores them once.
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
            model.generation_config.suppress_tokens = never_written(loaded.recipe, loaded.tokenizer.vocabulary)
            model.generation_config.update(**generate_arguments(loaded))
        model.eval()
        return model

    def get_input_embeddings(self) -> nn.Module:
        """The token embeddings."""
        return self.backbone.embeddings.tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the token embeddings."""
        assert isinstance(value, nn.Embedding)
        self.backbone.embeddings.tokens = value

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.LayerNorm):
            init.ones_(module.weight)
            init.zeros_(module.bias)
            return
        deviation: float = self.config.initializer_range
        if self.config.scaled_init and any(module is writer for writer in self.backbone.residual_writers()):
            deviation /= math.sqrt(2 * self.config.num_layers)
        for name, parameter in module.named_parameters(recurse=False):
            if name == "bias":
                init.zeros_(parameter)
            else:
                init.normal_(parameter, 0.0, deviation)

    def _dropout(self) -> DropoutKey | None:
        """Dropout of a training forward pass, keyed by torch's generator; None in evaluation."""
        return DropoutKey(int(torch.randint(2**62, ())), device=self.device) if self.training else None

    def _encode(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        token_type_ids: Tensor | None,
        position_ids: Tensor | None,
    ) -> list[Tensor]:
        batch = encoding_batch(
            input_ids,
            attention_mask,
            token_type_ids,
            position_ids,
            rule=self.config.encoding,
            max_positions=self.config.max_positions,
        )
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

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> BaseModelOutputWithPooling | tuple[Any, ...]:
        """Encode texts.

        Args:
            input_ids: *Shape:* (rows, slots)
            attention_mask: 1 where a slot is real; padding at the beginning or the end. *Shape:* (rows, slots)
            token_type_ids: 0 for a text, 1 for its second part. *Shape:* (rows, slots)
            position_ids: Default: counted over the real slots. *Shape:* (rows, slots)
            output_hidden_states: Return the states of every layer.
            return_dict: False returns a tuple.

        Raises:
            UsageError: A row is too long, or has padding between its tokens.
        """
        states = self._encode(input_ids, attention_mask, token_type_ids, position_ids)
        wanted = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        pooled = _pooled(states[-1], attention_mask, self.config.pooling)
        output = BaseModelOutputWithPooling(
            last_hidden_state=states[-1],
            pooler_output=functional.normalize(pooled, dim=1) if self.config.normalize else pooled,
            hidden_states=tuple(states) if wanted else None,
        )
        return output if returns_dict(self.config, return_dict) else output.to_tuple()


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

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> Any:
        """Like Transformers', and resizes the bias of the head."""
        return resize_bias(self.token_head, super().resize_token_embeddings(*args, **kwargs))

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> MaskedLMOutput | tuple[Any, ...]:
        """Predict the token of every slot; for other arguments see `UniclozeModel.forward`.

        Args:
            input_ids: *Shape:* (rows, slots)
            attention_mask: *Shape:* (rows, slots)
            token_type_ids: *Shape:* (rows, slots)
            position_ids: *Shape:* (rows, slots)
            labels: The tokens to predict, -100 elsewhere. *Shape:* (rows, slots)
            output_hidden_states: Return the states of every layer.
            return_dict: False returns a tuple.
            num_items_in_batch: Divisor of the summed loss; default: the number of labels.
        """
        states = self._encode(input_ids, attention_mask, token_type_ids, position_ids)
        logits = self.token_head(states[-1], self.backbone.embeddings.tokens.weight)
        loss = None if labels is None else summed_loss(logits, labels, num_items_in_batch)
        wanted = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        output = MaskedLMOutput(
            loss=loss,
            logits=logits,
            hidden_states=tuple(states) if wanted else None,
        )
        return output if returns_dict(self.config, return_dict) else output.to_tuple()


def returns_dict(config: UniclozeConfig, asked: bool | None) -> bool:
    """Whether to return a named output instead of a tuple."""
    return bool(config.return_dict if asked is None else asked)


def summed_loss(logits: Tensor, labels: Tensor, count: Tensor | int | None, *, label_smoothing: float = 0.0) -> Tensor:
    """Cross-entropy summed over the labels other than -100, divided by `count` or by their number.

    Args:
        logits: *Shape:* (..., vocabulary)
        labels: *Shape:* (...)
        count: Divisor; default: the number of labels.
        label_smoothing: Probability mass of a label spread over the vocabulary.
    """
    total = functional.cross_entropy(
        logits.flatten(0, -2).float(), labels.flatten(), reduction="sum", label_smoothing=label_smoothing
    )
    if count is None:
        count = (labels != -100).sum().clamp(min=1)
    return total / (count.to(total.device) if isinstance(count, Tensor) else count)


def resize_bias(head: TokenHead, embeddings: nn.Embedding) -> nn.Embedding:
    """Resize the head's bias to the token embeddings; new entries are 0."""
    if head.bias is not None and len(head.bias) != embeddings.num_embeddings:
        kept = min(len(head.bias), embeddings.num_embeddings)
        bias = head.bias.new_zeros(embeddings.num_embeddings)
        bias[:kept] = head.bias.detach()[:kept]
        head.bias = nn.Parameter(bias)
    return embeddings


def _pooled(hidden: Tensor, attention_mask: Tensor | None, pooling: str) -> Tensor:
    """The vector of each text. *Shape:* (rows, slots, hidden size) to (rows, hidden size)"""
    real = torch.ones_like(hidden[:, :, 0]) if attention_mask is None else (attention_mask != 0).to(hidden.dtype)
    if pooling == "mean":
        pooled: Tensor = (hidden * real[:, :, None]).sum(1) / real.sum(1, keepdim=True).clamp(min=1)
        return pooled
    slots = hidden.shape[1]
    place = real.argmax(1) if pooling == "first" else slots - 1 - real.flip(1).argmax(1)
    return hidden[torch.arange(len(hidden), device=hidden.device), place]
