"""A trained model prepared for incremental decoding: weights in one data type, packed for matrix products."""

from __future__ import annotations

import copy
import dataclasses
from collections import deque

import torch
from torch import Tensor, nn

from unicloze.errors import UsageError
from unicloze.model.adapters import LowRankLinear
from unicloze.model.encoder_decoder import SourceKeys
from unicloze.model.layers import Layer
from unicloze.model.model import UnifiedModel
from unicloze.model.readers import Cache, OwnCache, check_steps


class PackedLinear(nn.Module):
    """A linear layer for CPU inference, with its weight pre-packed for the matrix product.

    Products with few rows spend much of their time packing the weight: with 40 rows, 12 layers of BERT's size took 39 ms
    instead of 94 in fp32, and 20 instead of 29 in bf16.

    Args:
        weight: *Shape:* (outputs, inputs)
        bias: *Shape:* (outputs,)
        dtype: Data type of the product.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach().to(dtype), 64)
        self.bias = None if bias is None else bias.detach().to(dtype)

    def forward(self, hidden: Tensor) -> Tensor:
        """*Shape:* (..., inputs) to (..., outputs)"""
        dtype = self.weight.dtype
        product: Tensor = torch.ops.mkldnn._linear_pointwise(hidden.to(dtype), self.weight, self.bias, "none", [], "")
        return product


def linear_for(weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> nn.Module:
    """A linear layer for inference in one data type: packed where torch supports it, else with its weight cast once."""
    if weight.device.type == "cpu" and _packs(dtype):
        return PackedLinear(weight, bias, dtype)
    plain = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    plain.weight = nn.Parameter(weight.detach().to(dtype), requires_grad=False)
    if bias is not None:
        plain.bias = nn.Parameter(bias.detach().to(dtype), requires_grad=False)
    return plain


def _packs(dtype: torch.dtype) -> bool:
    """Whether torch packs weights of a data type on this CPU; for bf16 it needs AVX-512."""
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    return dtype != torch.bfloat16 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


class Output:
    """Maps states to logits over the vocabulary, with the output matrix prepared for inference.

    Raises:
        UsageError: The model does not predict tokens.
    """

    def __init__(self, model: UnifiedModel, dtype: torch.dtype) -> None:
        if not hasattr(model, "token_head"):
            raise UsageError("this model does not predict tokens, so it cannot generate text: use another objective")
        self.head, self._dtype = model.token_head, dtype
        self._output = linear_for(model.token_head.matrix(model.token_table), model.token_head.bias, dtype)

    def __call__(self, hidden: Tensor) -> Tensor:
        """*Shape:* (..., hidden size) to (..., vocabulary), float32"""
        logits: Tensor = self._output(self.head.transform(hidden).to(self._dtype))
        return logits.float()


class IncrementalModel:
    """A model that predicts tokens, processing some slots of a row at a time.

    It shares the model's weights except in linear layers, which are converted copies; do not train the model while using it.

    Args:
        model: A model that predicts tokens.
        dtype: Data type of linear layers and attention.

    Raises:
        UsageError: The model does not predict tokens, or its attention does not support incremental decoding.
    """

    def __init__(self, model: UnifiedModel, dtype: torch.dtype) -> None:
        self._logits = Output(model, dtype)
        check_steps(model.settings)
        shared: dict[int, object] = {id(tensor): tensor for tensor in model.parameters()}
        self._backbone = copy.deepcopy(model.transformer, shared)
        self._logits.head = copy.deepcopy(model.token_head, shared)
        for module in (*self._backbone.modules(), *self._logits.head.modules()):
            for name, part in list(module.named_children()):
                if isinstance(part, nn.Linear | LowRankLinear):
                    weight = part.merged_weight() if isinstance(part, LowRankLinear) else part.weight
                    setattr(module, name, linear_for(weight, part.bias, dtype))
        self.settings, self.max_positions, self.vocab_size = model.settings, model.max_positions, model.vocab_size
        self.device, self.dtype = model.transformer.embeddings.tokens.weight.device, dtype
        self._writes = self._backbone.decoder or self._backbone

    def cache(self, rows: int, capacity: int) -> Cache:
        """An empty cache with room for `capacity` slots per row; of an encoder-decoder, for the slots of its decoder."""
        return Cache.empty(self.settings, rows=rows, capacity=capacity, dtype=self.dtype, device=self.device)

    def encode(self, input_ids: Tensor, segment: int, real: Tensor) -> SourceKeys:
        """Encode sources with the encoder of an encoder-decoder.

        Args:
            input_ids: *Shape:* (rows, slots)
            segment: Segment of every slot.
            real: Which slots are not padding. *Shape:* (rows, slots)

        Returns:
            What the decoder reads of them.
        """
        rows, slots = input_ids.shape
        scratch = dataclasses.replace(self.settings, decoder_layers=0)
        cache = Cache.empty(scratch, rows=rows, capacity=slots, dtype=self.dtype, device=self.device)
        positions = torch.arange(slots, device=self.device)[None]
        reads = None if bool(real.all()) else real[:, None, :]
        reader = OwnCache(cache=cache, positions=positions, reads=reads)
        decoder = self._backbone.decoder
        assert decoder is not None
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32):
            states = self._backbone.read(input_ids, positions, torch.full_like(positions, segment), reader)
            encoded = deque(states, maxlen=1).pop()
            layers = [layer.cross_attention for layer in decoder.layers if isinstance(layer, Layer)]
            return SourceKeys.of(layers, encoded, real)

    def extend(
        self,
        cache: Cache,
        input_ids: Tensor,
        position_ids: Tensor,
        segment: int,
        reads: Tensor | None,
        *,
        select: slice | Tensor | None = None,
        local_width: int | None = None,
    ) -> Tensor:
        """Logits at the next slots of every row, or at selected ones; see `unicloze.model.readers.OwnCache`.

        Args:
            cache: Must have room for the slots; the caller updates `cache.filled` for those to keep.
            input_ids: Tokens; several slots may share a position. *Shape:* (rows, positions, slots per position)
            position_ids: *Shape:* (rows or 1, positions), 1 only if the cache is empty
            segment: Segment of every slot.
            reads: Which keys each slot reads: those in the cache, then these slots; default: all.
                *Shape:* (rows or 1, slots or 1, keys)
            select: Return only these slots, see `OwnCache`.
            local_width: Largest distance in positions that `local` layers read.

        Returns:
            float32. *Shape:* (rows, slots or selected, vocabulary)
        """
        copies = input_ids.shape[2]
        reader = OwnCache(
            cache=cache, positions=position_ids, reads=reads, copies=copies, select=select, local_width=local_width
        )
        positions = position_ids.repeat_interleave(copies, dim=1)
        segments = torch.full_like(positions, segment)
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32):
            states = self._writes.read(input_ids.flatten(1), positions, segments, reader, source=cache.source)
            return self._logits(deque(states, maxlen=1).pop())
