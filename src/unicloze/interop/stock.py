"""The stock classes of Transformers that a model can be exported to, and their key tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from unicloze.interop.families import FAMILIES, Family, Head
from unicloze.settings import ModelSettings


@dataclass(frozen=True, kw_only=True)
class Stock:
    """The classes of one family.

    Args:
        family: Its key tables.
        prefix: Prefix of the class names.
        classes: Class for each set of pre-training heads.
        relative: Whether they have a relative position bias.
        narrow: Whether embeddings are narrower than hidden states; None if both are possible.
        shared: Their equivalent of `model.share_layers`.
        counts_from_padding: Whether positions start after the padding token's id.
        padding_id: The id always used for padding; None if configurable.
        epsilon: The epsilon always used in normalisation; None if configurable.
    """

    family: Family
    prefix: str
    classes: Mapping[frozenset[Head], str]
    relative: bool = False
    narrow: bool | None = False
    shared: str = "none"
    counts_from_padding: bool = False
    padding_id: int | None = None
    epsilon: float | None = None

    @property
    def name(self) -> str:
        """Name of the family, and its `model_type`."""
        return self.family.name

    @property
    def has_segments(self) -> bool:
        """Whether they distinguish the segments of a pair."""
        return self.name not in ("mpnet", "distilbert")

    def config(self, settings: ModelSettings, *, positions: int, vocab_size: int, pad: int) -> dict[str, object]:
        """Their configuration of a model shape.

        Args:
            settings: Model shape.
            positions: Rows of their position table.
            vocab_size: Rows of the token table.
            pad: Their padding id.
        """
        values: dict[str, object] = {
            "model_type": self.name,
            "vocab_size": vocab_size,
            "hidden_size": settings.hidden_size,
            "num_hidden_layers": settings.num_layers,
            "num_attention_heads": settings.num_heads,
            "intermediate_size": settings.intermediate_size,
            "max_position_embeddings": positions,
            "hidden_act": ACTIVATIONS[settings.activation],
            "hidden_dropout_prob": settings.dropout,
            "attention_probs_dropout_prob": settings.attention_dropout,
            "layer_norm_eps": settings.layer_norm_eps,
            "initializer_range": settings.initializer_range,
            "pad_token_id": pad,
            "tie_word_embeddings": True,
            "dtype": "float32",
        }
        if self.has_segments:
            values["type_vocab_size"] = settings.num_segments
        if self.relative:
            values["relative_attention_num_buckets"] = settings.relative_buckets
        if self.narrow is not False:
            values["embedding_size"] = settings.embedding_size or settings.hidden_size
        if self.shared == "all":
            values |= {"num_hidden_groups": 1, "inner_group_num": 1}
        return {self.family.keys.get(key, key): value for key, value in values.items()}


ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "relu": "relu"}
"""Their names of our activations."""

_NONE: frozenset[Head] = frozenset()
_TOKEN: frozenset[Head] = frozenset({"token"})

STOCK: Mapping[str, Stock] = {
    stock.name: stock
    for stock in (
        Stock(
            family=FAMILIES["bert"],
            prefix="Bert",
            classes={
                _NONE: "BertModel",
                _TOKEN: "BertForMaskedLM",
                frozenset({"next"}): "BertForNextSentencePrediction",
                frozenset({"token", "next"}): "BertForPreTraining",
            },
        ),
        Stock(
            family=FAMILIES["mpnet"],
            prefix="MPNet",
            classes={_NONE: "MPNetModel", _TOKEN: "MPNetForMaskedLM"},
            relative=True,
            counts_from_padding=True,
            padding_id=1,
        ),
        Stock(
            family=FAMILIES["roberta"],
            prefix="Roberta",
            classes={_NONE: "RobertaModel", _TOKEN: "RobertaForMaskedLM"},
            counts_from_padding=True,
        ),
        Stock(
            family=FAMILIES["electra"],
            prefix="Electra",
            classes={
                _NONE: "ElectraModel",
                _TOKEN: "ElectraForMaskedLM",
                frozenset({"replaced"}): "ElectraForPreTraining",
            },
            narrow=None,
        ),
        Stock(
            family=FAMILIES["albert"],
            prefix="Albert",
            classes={
                _NONE: "AlbertModel",
                _TOKEN: "AlbertForMaskedLM",
                frozenset({"token", "order"}): "AlbertForPreTraining",
            },
            narrow=True,
            shared="all",
        ),
        Stock(
            family=FAMILIES["distilbert"],
            prefix="DistilBert",
            classes={_NONE: "DistilBertModel", _TOKEN: "DistilBertForMaskedLM"},
            epsilon=1e-12,
        ),
    )
}
"""Stock classes by family name."""
