"""Hypotheses of models that carry a state from token to token (LSTMs): each hypothesis has its own state."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unicloze.decoding.inputs import check_numbers
from unicloze.decoding.model_format import GenerationFormat
from unicloze.model.recurrent.steps import StepModel


class CarriedStates:
    """A batch of sources and their hypotheses, as a `Stepper`.

    Args:
        model: Predicts the next tokens.
        layout: The generation layout.
        sources: Token ids of each source, or of the beginning of each text.
        count: Number of hypotheses per source.
    """

    def __init__(
        self,
        model: StepModel,
        layout: GenerationFormat,
        sources: Sequence[npt.NDArray[np.integer]],
        *,
        count: int,
    ) -> None:
        self._model, self._opening, self.count = model, layout.opening, count
        self._rows = [layout.row(source) for source in sources]

    def __len__(self) -> int:
        return len(self._rows)

    @torch.inference_mode()
    def first(self) -> Tensor:
        """Read the sources.

        Returns:
            Logits of the first token of each target. *Shape:* (rows, vocabulary)

        Raises:
            UniclozeError: The logits are nan.
        """
        logits, state = self._model.begin(self._rows)
        for token in self._opening:
            read = torch.full((len(self), 1), token, device=self._model.device)
            logits, state = self._model.step(read, state)
        assert logits is not None
        check_numbers(logits)
        self._state = state.for_hypotheses(self.count)
        return logits[:, 0]

    @torch.inference_mode()
    def step(self, tokens: Tensor, parents: Tensor | None) -> Tensor:
        """Extend hypotheses by one token each, see `unicloze.decoding.branches.Branches.step`."""
        before = self._state if parents is None else self._state.of_parents(parents)
        logits, self._state = self._model.step(tokens, before)
        return logits

    @torch.inference_mode()
    def keep(self, rows: Tensor) -> None:
        """Keep only these sources. *Shape:* (rows kept,)"""
        self._state = self._state.of_rows(rows)
        self._rows = [self._rows[row] for row in rows.tolist()]
