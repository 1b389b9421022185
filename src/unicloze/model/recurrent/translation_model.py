"""An LSTM encoder-decoder behind the interface of `UnifiedModel`."""

from __future__ import annotations

from unicloze.model.initialization import draw_lstms
from unicloze.model.model import UnifiedModel


class TranslationModel(UnifiedModel):
    """An LSTM encoder-decoder with the heads of `UnifiedModel`; arguments as there."""

    def initialize(self, seed: int) -> None:
        """Initialise the weights as `RecurrentModel.initialize` does."""
        super().initialize(seed)
        draw_lstms(self.backbone, self.settings.initializer_range, seed)
