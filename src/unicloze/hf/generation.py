"""The generating model, for Transformers' `generate` and `Trainer`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import DynamicCache, GenerationMixin, LogitsProcessor, LogitsProcessorList
from transformers.generation.logits_process import NoRepeatNGramLogitsProcessor, SuppressTokensLogitsProcessor
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from unicloze.decoding.search import repeats
from unicloze.errors import UsageError
from unicloze.hf.models import UniclozeConfig, UniclozePreTrainedModel, summed_loss
from unicloze.model.from_attention_mask import Slots, slots_of, with_pseudo_masks
from unicloze.model.heads import TokenHead
from unicloze.model.readers import GivenKeys, check_steps


class UniclozeForConditionalGeneration(UniclozePreTrainedModel, GenerationMixin):
    """Generates a target after a source: `generate` takes the source "[SOS] text [EOS]" and returns it with the target.

    One stack of layers reads both, so to Transformers this is a causal language model and not an encoder-decoder: there are
    no `decoder_input_ids`. `token_type_ids` tells source (0) from target (1); `generate` keeps them itself. Where
    `config.predicts` is `pseudo`, `generate` appends a pseudo mask to every step and takes it out of the cache again.

    `no_repeat_ngram_size` applies to the target only, not to the prompt: a target may repeat its source.

    To train, pass source and target in one row and `labels` that are -100 everywhere except in the target, where they hold
    the token of the same slot (do not shift them). The pseudo masks are appended internally.
    """

    accepts_loss_kwargs = True
    # Drafts of several tokens would need a pseudo mask each; this makes Transformers reject assisted generation.
    _is_stateful = True

    def __init__(self, config: UniclozeConfig) -> None:
        super().__init__(config)
        self.rule = config.writing
        self.token_head = TokenHead(config.settings, vocab_size=config.vocab_size)
        check_steps(config.settings)
        # Trainer counts labels[:, 1:] if the loss shifts labels, and all of them otherwise.
        self.loss_type = "ForCausalLM" if self.rule.predicts == "next" else "ForMaskedLM"
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        past_key_values: DynamicCache | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        output_hidden_states: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> CausalLMOutputWithPast:
        """Logits of every slot, or with `labels` the loss of the target.

        Positions are counted over the real slots, so padding may be anywhere.

        Args:
            input_ids: New slots. *Shape:* (rows, slots)
            attention_mask: 1 where a slot is real, cached slots included. *Shape:* (rows, cached + slots)
            token_type_ids: 0 for the source, 1 for the target. Default: the target begins at a row's first label; without
                labels all slots are source. *Shape:* (rows, slots)
            labels: The tokens to predict, at their own slots, -100 elsewhere. *Shape:* (rows, slots)
            past_key_values: Keys and values of earlier slots; the new ones are appended.
            use_cache: Create a cache if none is given.
            logits_to_keep: Return logits of only this many last slots, all if 0; ignored with labels.
            output_hidden_states: Return the states of every layer, including pseudo masks.
            num_items_in_batch: Divisor of the summed loss; default: the number of labels.

        Returns:
            With labels and pseudo masks, logits are at the labels' slots and 0 elsewhere. Otherwise a slot's logits predict
            the next token, and a pseudo mask's logits the token at its position.
        """
        if labels is None and self.training:
            raise UsageError(
                "the model is in training mode but got no labels, which mark the slots to predict (use "
                "config.label_smoothing instead of Trainer's label_smoothing_factor, which removes the labels)"
            )
        if labels is not None:
            token_type_ids = _target_of(labels, token_type_ids)
            past_key_values, use_cache = None, False
        if past_key_values is None and (self.config.use_cache if use_cache is None else use_cache):
            past_key_values = DynamicCache(config=self.config)
        slots = slots_of(
            input_ids,
            attention_mask,
            token_type_ids,
            rule=self.rule,
            earlier=0 if past_key_values is None else past_key_values.get_seq_length(),
            max_positions=self.config.max_positions,
        )
        loss = None
        if labels is None:
            states = self._states(slots, past_key_values)
            logits = self._logits(states[-1][:, -logits_to_keep:] if logits_to_keep else states[-1])
        elif self.rule.predicts == "next":
            states = self._states(slots, None)
            logits = self._logits(states[-1])
            loss = self._loss(logits[:, :-1], labels[:, 1:], num_items_in_batch)
        else:
            states, logits, loss = self._with_pseudo_masks(slots, labels, num_items_in_batch)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=past_key_values,
            hidden_states=self._shown(states, output_hidden_states),
        )

    def _with_pseudo_masks(
        self, slots: Slots, labels: Tensor, count: Tensor | int | None
    ) -> tuple[list[Tensor], Tensor, Tensor]:
        """States, logits at the labels, and the loss."""
        assert self.rule.pseudo is not None
        is_label = labels != -100
        most = max(1, int(is_label.sum(1).max()))
        labelled = is_label.int().argsort(dim=1, descending=True, stable=True)[:, :most]
        states = self._states(with_pseudo_masks(slots, labelled, self.rule.pseudo, self.rule.segment_ids[1]), None)
        predicted = self._logits(states[-1][:, labels.shape[1] :])
        asked = labels.gather(1, labelled)
        loss = self._loss(predicted, asked, count)
        logits = predicted.new_zeros(*labels.shape, predicted.shape[2])
        place = labelled[:, :, None].expand_as(predicted)
        logits = logits.scatter(1, place, predicted.detach() * (asked != -100)[:, :, None])
        return states, logits, loss

    def _states(self, slots: Slots, cache: DynamicCache | None) -> list[Tensor]:
        def append(key: Tensor, value: Tensor, layer: int) -> tuple[Tensor, Tensor]:
            return (key, value) if cache is None else cache.update(key, value, layer)

        dropout, backend = self._dropout(), self.backbone.backend
        reader = GivenKeys(
            slots=slots, append=append, local_width=self.rule.local_width, backend=backend, dropout=dropout
        )
        return list(self.backbone.read(slots.input_ids, slots.positions, slots.segment_ids, reader, dropout))

    def _logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.token_head(hidden, self.backbone.embeddings.tokens.weight)
        return logits

    def _loss(self, logits: Tensor, labels: Tensor, count: Tensor | int | None) -> Tensor:
        smoothing = self.config.label_smoothing if self.training else 0.0
        return summed_loss(logits, labels, count, label_smoothing=smoothing)

    def prepare_inputs_for_generation(  # type: ignore[override]
        self,
        input_ids: Tensor,
        next_sequence_length: int | None = None,
        past_key_values: DynamicCache | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        output_hidden_states: bool | None = None,
        **others: Any,
    ) -> dict[str, Any]:
        """The slots of the next forward pass, followed by a pseudo mask if the model predicts at one."""
        given = [name for name, value in others.items() if value is not None and value is not False]
        unused = [name for name in given if name in ("position_ids", "inputs_embeds", "output_attentions")]
        if unused:
            raise UsageError(f"the model does not support {unused[0]}: leave it out")
        if past_key_values is not None and type(past_key_values) is not DynamicCache:
            raise UsageError(
                f"the cache is a {type(past_key_values).__name__}, but the model needs a DynamicCache: leave out "
                "cache_implementation"
            )
        if next_sequence_length is not None:
            input_ids = input_ids[:, -next_sequence_length:]
        part = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids[:, -input_ids.shape[1] :]
        earlier = 0 if past_key_values is None else past_key_values.get_seq_length()
        if earlier and self.rule.source == "bidirectional" and not bool(part.all()):
            raise UsageError(
                "a source must be read as a whole: leave out prefill_chunk_size, and start a new cache for a longer source"
            )
        if self.rule.pseudo is not None:
            input_ids = functional.pad(input_ids, (0, 1), value=self.rule.pseudo)
            part = functional.pad(part, (0, 1), value=1)
            attention_mask = None if attention_mask is None else functional.pad(attention_mask, (0, 1), value=1)
        elif attention_mask is not None and not bool(attention_mask[:, -1].all()):
            raise UsageError(
                "a prompt ends in padding, but the model predicts at the last token: set tokenizer.padding_side = 'left'"
            )
        return {
            "input_ids": input_ids,
            "past_key_values": past_key_values,
            "attention_mask": attention_mask,
            "token_type_ids": part,
            "use_cache": use_cache,
            "logits_to_keep": logits_to_keep,
            "output_hidden_states": output_hidden_states,
        }

    def _expand_inputs_for_generation(
        self: Any,
        expand_size: int = 1,
        is_encoder_decoder: bool = False,
        input_ids: torch.LongTensor | None = None,
        **model_kwargs: Any,
    ) -> tuple[Any, dict[str, Any]]:
        """Called by `generate` once before its loop; marks the prompt as source."""
        if input_ids is not None and model_kwargs.get("token_type_ids") is None:
            model_kwargs["token_type_ids"] = torch.zeros_like(input_ids)
        mixin: Any = super()  # whose method was static in earlier releases
        expanded: tuple[Any, dict[str, Any]] = mixin._expand_inputs_for_generation(
            expand_size, is_encoder_decoder, input_ids, **model_kwargs
        )
        return expanded

    def _get_logits_processor(self: Any, **kwargs: Any) -> LogitsProcessorList:  # type: ignore[override]
        """Like Transformers', except that a target may repeat its source."""
        processors: LogitsProcessorList = GenerationMixin._get_logits_processor(self, **kwargs)
        for each in [each for each in processors if isinstance(each, NoRepeatNGramLogitsProcessor)]:
            place = processors.index(each)
            processors.remove(each)
            # After processors that suppress other tokens: if no token is left, a text may end.
            others = [i for i, other in enumerate(processors) if isinstance(other, SuppressTokensLogitsProcessor)]
            own = _NoRepeatInTarget(each.ngram_size, kwargs["input_ids_seq_length"], self.config.eos_token_id)
            processors.insert(max([place, *(i + 1 for i in others)]), own)
        return processors

    def _update_model_kwargs_for_generation(
        self, outputs: Any, model_kwargs: dict[str, Any], is_encoder_decoder: bool = False, num_new_tokens: int = 1
    ) -> dict[str, Any]:
        """Remove the pseudo mask from the cache and mark the new token as target."""
        updated: dict[str, Any] = super()._update_model_kwargs_for_generation(
            outputs, model_kwargs, is_encoder_decoder, num_new_tokens
        )
        if self.rule.predicts == "pseudo" and updated.get("past_key_values") is not None:
            updated["past_key_values"].crop(-1)
        updated["token_type_ids"][:, -num_new_tokens:] = 1
        return updated


class _NoRepeatInTarget(LogitsProcessor):
    """Suppresses tokens that would complete an n-gram already in the target; [EOS] is allowed when all else is suppressed."""

    def __init__(self, size: int, prompt: int, end: int | None) -> None:
        self.size, self.prompt, self.end = size, prompt, end

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> Any:
        target = input_ids[:, self.prompt :]
        if target.shape[1] < self.size:
            return scores
        left = scores.clone()
        left[repeats(target, self.size, ())] = -torch.inf
        if self.end is not None:
            stuck = left.amax(dim=1) == -torch.inf
            left[stuck, self.end] = scores[stuck, self.end]
        return left


def _target_of(labels: Tensor, token_type_ids: Tensor | None) -> Tensor:
    """1 where a slot belongs to the target. *Shape:* (rows, slots)"""
    is_label = labels != -100
    if token_type_ids is None:
        return (is_label.int().cumsum(1) > 0).to(labels.dtype)
    if not torch.compiler.is_compiling() and bool((is_label & (token_type_ids == 0)).any()):
        row = int((is_label & (token_type_ids == 0)).any(1).nonzero()[0])
        raise UsageError(
            f"row {row} has a label where token_type_ids marks the source (0): labels must be in the target (1), which the "
            "source does not read"
        )
    return token_type_ids
