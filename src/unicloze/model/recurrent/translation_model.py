"""An LSTM encoder-decoder behind the interface of `UnifiedModel`."""

from __future__ import annotations

from collections.abc import Mapping

from unicloze.model.flops import TRAINING
from unicloze.model.initialization import draw_lstms
from unicloze.model.model import UnifiedModel
from unicloze.model.recurrent.translation import TranslationBackbone


class TranslationModel(UnifiedModel):
    """An LSTM encoder-decoder with the heads of `UnifiedModel`; arguments as there."""

    def initialize(self, seed: int) -> None:
        """Initialise the weights as `RecurrentModel.initialize` does."""
        super().initialize(seed)
        draw_lstms(self.backbone, self.settings.initializer_range, seed)

    def flops(
        self,
        *,
        rows: int,
        slots: int,
        keys: float,
        predictions: Mapping[str, int],
        predicting_slots: Mapping[str, int],
        source_slots: int = 0,
        source_pairs: int = 0,
    ) -> float:
        """As of `UnifiedModel`; rows without a target are sources alone."""
        assert isinstance(self.backbone, TranslationBackbone)
        encoded = source_slots or slots
        written, hidden, narrow = slots - encoded, self.settings.hidden_size, self.backbone.decoder.embedded
        encoder, decoder, below, fed = 0, 0, narrow, narrow + hidden
        for width in self.backbone.widths:
            encoder += 2 * 4 * width * (below + width // 2)
            decoder += 2 * 4 * width * (fed + width)
            below = fed = width
        last = self.backbone.widths[-1]
        decoder += 2 * (last * last + 2 * last * hidden)
        pairs = max(0.0, slots * keys - source_pairs - written * (written / max(1, rows) + 1) / 2)
        attention = 4 * last * pairs if written else 0.0
        heads = sum(self._head_flops(name, predictions[name], predicting_slots[name]) for name in predictions)
        return TRAINING * (encoded * encoder + written * decoder + attention + heads)
