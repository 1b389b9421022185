"""Small vocabularies, windows and models for tests."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from unicloze import keyed
from unicloze.model.model import UnifiedModel
from unicloze.recipes import toy_overrides
from unicloze.settings import HeadSettings, ModelSettings
from unicloze.text.shards import ShardWriter, TokenShard, TokenSource
from unicloze.text.vocabulary import Boundaries, Vocabulary
from unicloze.text.windows import Windows

PAD, UNK, SOS, EOS, MASK, PSEUDO = 0, 2, 3, 4, 5, 6
FIRST_ORDINARY = 7


def vocabulary(size: int = 50, extra: int = 0) -> Vocabulary:
    """Special tokens below 7, then `extra` ones, ordinary ones above.

    Every third id continues a word, every tenth ends a sentence.
    """
    first, ids = FIRST_ORDINARY + extra, np.arange(size)
    return Vocabulary(
        size=size, pad=PAD, unk=UNK, sos=SOS, eos=EOS, mask=MASK, pseudo=PSEUDO,
        special=np.arange(first, dtype=np.int32),
        ordinary=np.arange(first, size, dtype=np.int32),
        extra=np.arange(FIRST_ORDINARY, first, dtype=np.int32),
        boundaries=Boundaries.marked((ids >= first) & (ids % 3 == 0)),
        ends_sentence=(ids >= first) & (ids % 10 == 9),
    )  # fmt: skip


def random_windows(rows: int, window: int, *, vocab: int = 50, seed: int = 0, short: bool = False) -> Windows:
    """Windows "[SOS] S1 [EOS] S2 [EOS]" of random tokens, some of them optionally short and padded."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(FIRST_ORDINARY, vocab, (rows, window)).astype(np.int32)
    lengths = rng.integers(5, window + 1, rows) if short else np.full(rows, window)
    position = np.arange(window)
    middle = rng.integers(2, lengths - 2)
    is_eos = (position == middle[:, None]) | (position == lengths[:, None] - 1)
    real = position < lengths[:, None]
    tokens[is_eos], tokens[:, 0], tokens[~real] = EOS, SOS, PAD
    return Windows(
        token_ids=tokens,
        segment_ids=((position > middle[:, None]) & real).astype(np.int32),
        lengths=lengths.astype(np.int32),
        maskable=real & ~is_eos & (position > 0),
        keys=keyed.key(seed, 0, np.arange(rows)),
        source=np.zeros(rows, np.int32),
        index=np.arange(rows),
    )


SHAPE: dict[str, Any] = dict(
    hidden_size=32, num_layers=3, num_heads=4, intermediate_size=64, dropout=0.0, attention_dropout=0.0,
    initializer_range=0.15,
)  # fmt: skip


def model(
    vocab: int = 50,
    positions: int = 40,
    targets: Collection[str] = ("ae", "par"),
    heads: Mapping[str, HeadSettings] | None = None,
    encoding: str = "learned",
    **settings: Any,
) -> UnifiedModel:
    """A small float32 model with weights large enough for differences to show; `encoding` is the setting `positions`."""
    shape = ModelSettings(**(SHAPE | {"positions": encoding} | settings))
    return with_biases(UnifiedModel(shape, vocab_size=vocab, max_positions=positions, targets=targets, heads=heads))


def with_biases(model: UnifiedModel) -> UnifiedModel:
    """Initialised, with biases that are not zero."""
    model.initialize(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.1, generator=torch.Generator().manual_seed(1))
    return model


def gradients_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """All gradients, which are cleared."""
    found = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
    model.zero_grad()
    return found


def toy_settings() -> dict[str, Any]:
    """`toy_overrides` as options may give them to a Transformer, which has no characters."""
    return {key: value for key, value in toy_overrides().items() if not key.startswith("model.character")}


def token_shard(
    path: Path, documents: Sequence[npt.ArrayLike], *, vocab_size: int = 3000, chosen: Sequence[int] | None = None
) -> TokenShard:
    """A shard of documents of 10 bytes a token, two in each file, or some of its documents."""
    with ShardWriter(path, vocab_size=vocab_size, tokenizer_name="toy") as writer:
        for number, document in enumerate(documents):
            ids = np.asarray(document, dtype=np.int64)
            writer.begin_file(f"{path.stem}-{number // 2}.txt")
            writer.write(ids, 10 * len(ids))
    if chosen is None:
        return TokenShard.open(path)
    np.array(chosen, dtype="<u8").tofile(path.with_suffix(".documents"))
    return TokenShard.open(path, documents=path.with_suffix(".documents"))


def token_source(folder: Path, documents: Sequence[npt.ArrayLike], *, name: str = "a", **options: Any) -> TokenSource:
    """A source of one `token_shard`."""
    return TokenSource(name=name, shards=(token_shard(folder / f"{name}.ds", documents, **options),))
