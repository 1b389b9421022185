"""Token embeddings made of characters: convolutions over the bytes of each token, highways and a projection (ELMo)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from unicloze.errors import UniclozeError
from unicloze.model.layers import ACTIVATIONS
from unicloze.settings import ModelSettings
from unicloze.spelling import PADDING, SYMBOLS

CARRY_BIAS = -2.0
"""Initial bias of a highway's gate, which is nearly closed at the start (Srivastava et al. 2015)."""
CHARACTER_RANGE, FILTER_RANGE = 1.0, 0.05
"""Half the widths of the uniform distributions of the initial character embeddings and filters."""


class Highway(nn.Module):
    """g relu(W x + b) + (1 - g) x with g = sigmoid(V x + c) (Srivastava et al. 2015; Kim et al. 2016).

    Args:
        width: Width of the input and the output.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.carry = nn.Linear(width, width)
        self.transform = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """*Shape:* (tokens, width) to the same"""
        gate = torch.sigmoid(self.carry(x))
        return torch.lerp(x, functional.relu(self.transform(x)), gate)


class CharacterCnn(nn.Module):
    """The vector of a token from its symbols (Peters et al. 2018, Section 3.4; Jozefowicz et al. 2016, Section 3.2).

    Filters of width 1, 2, 3, ... are applied to the embeddings of the symbols, padding included; the largest output of each
    over all places goes through the activation, the highways and a projection.

    Args:
        settings: Model shape.

    Attributes:
        symbols: Symbols of each token, see `unicloze.spelling`. They follow from the tokenizer and are in no checkpoint.
            *Shape:* (vocabulary, symbols); None until given.
    """

    symbols: Tensor | None

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        counts = settings.character_filters
        size, total = settings.character_size, sum(counts)
        self.characters = nn.Embedding(SYMBOLS, size)
        self.filters = nn.ModuleList([nn.Conv1d(size, count, width) for width, count in enumerate(counts, start=1)])
        self.highways = nn.ModuleList([Highway(total) for _ in range(settings.character_highways)])
        self.projection = nn.Linear(total, settings.embedding_size or settings.hidden_size)
        self.activation = ACTIVATIONS[settings.activation]
        self.symbols = None

    def initialize(self, generator: torch.Generator) -> None:
        """Draw the weights as ELMo's released code does; biases are 0, except those of the highways' gates."""
        with torch.no_grad():
            self.characters.weight.uniform_(-CHARACTER_RANGE, CHARACTER_RANGE, generator=generator)
            for module in self.modules():
                if isinstance(module, nn.Conv1d):
                    module.weight.uniform_(-FILTER_RANGE, FILTER_RANGE, generator=generator)
                elif isinstance(module, nn.Linear):
                    module.weight.normal_(0, module.in_features**-0.5, generator=generator)
                if isinstance(module, nn.Conv1d | nn.Linear) and module.bias is not None:
                    module.bias.zero_()
            for module in self.modules():
                if isinstance(module, Highway):
                    module.carry.bias.fill_(CARRY_BIAS)

    def forward(self, input_ids: Tensor) -> Tensor:
        """The vector of each token, computed once for each distinct one. *Shape:* (...) to (..., width)"""
        if self.symbols is None:
            raise UniclozeError(
                "the model reads characters, but was not given those of its tokens: call `spell_tokens`"
            )
        if self.symbols.device != input_ids.device:
            self.symbols = self.symbols.to(input_ids.device)
        distinct, place = torch.unique(input_ids, return_inverse=True)
        return functional.embedding(place, self.vectors(self.symbols[distinct]))

    def vectors(self, symbols: Tensor) -> Tensor:
        """The vectors of words. *Shape:* (words, symbols) to (words, width)"""
        widest = len(self.filters)
        longest = int((symbols != PADDING).sum(dim=1).max())
        embedded = self.characters(symbols[:, : longest + widest]).transpose(1, 2)  # more padding changes no maximum
        # for the backward pass `max` keeps indices, where `amax` would keep all outputs of the filters
        x = self.activation(torch.cat([each(embedded).max(dim=2).values for each in self.filters], dim=1))
        for highway in self.highways:
            x = highway(x)
        projected: Tensor = self.projection(x)
        return projected
