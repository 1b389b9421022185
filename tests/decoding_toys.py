"""Untrained models with small tokenizers, for the tests of decoding."""

from __future__ import annotations

import dataclasses
import math
import string
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch

from objective_toys import rows_of, target_of
from toys import model as toy_model
from unicloze.decoding.generate import generate_parts
from unicloze.decoding.search import Hypothesis
from unicloze.example import collate
from unicloze.model.model import UnifiedModel
from unicloze.objectives import settings_of
from unicloze.objectives.groups import PseudoToken
from unicloze.settings import DataSettings, Recipe, TokenizerSettings, UseSettings
from unicloze.tasks.rows import TextFormat
from unicloze.text.tokenizers import Tokenizer
from unicloze.text.vocabulary import SPECIAL_TOKENS
from unicloze.training.loading import LoadedModel

WORDS = [
    "the", "a", "list", "of", "items", "is", "empty", "return", "play", "x", "state", "given", "value", "and", "or",
    "not", "in", "to",
]  # fmt: skip
PIECES = ["##ing", "##s", "##ed"]
PUNCTUATION = list(".,!()-")
TEXT = "the list of items is empty and not given to the value"
CAUSAL: dict[str, Any] = {"name": "causal", "targets": ["lm"], "visibility": "left_to_right"}
"""Settings of a causal objective."""


def generate_tokens(*arguments: Any, **settings: Any) -> list[list[Hypothesis]]:
    """The hypotheses of all sources, see `generate_parts`."""
    return [found for part in generate_parts(*arguments, **settings) for found in part.results]


def wordpiece() -> Tokenizer:
    vocabulary = {token: i for i, token in enumerate([*SPECIAL_TOKENS, *WORDS, *PIECES, *PUNCTUATION])}
    backend = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    backend.decoder = tokenizers.decoders.WordPiece(prefix="##", cleanup=False)
    backend.add_special_tokens(list(SPECIAL_TOKENS))
    return Tokenizer(backend)


def byte_level() -> Tokenizer:
    return Tokenizer.train(
        ["Return a list. Return a café, é and lists"] * 3, TokenizerSettings(kind="bpe", vocab_size=290)
    )


def roberta_like(*, lstrip: bool = True, normalizer: Any = None) -> Tokenizer:
    """Byte-level; <mask> absorbs the white space before it, as in RoBERTa."""
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*specials, *letters])}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [], unk_token="<unk>"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.add_special_tokens(specials[:-1])
    backend.add_special_tokens([tokenizers.AddedToken("<mask>", lstrip=lstrip, special=True)])
    return Tokenizer(backend)


def sentencepiece(*, split: bool = True) -> Tokenizer:
    """Unigram pieces as in XLM-R and CamemBERT, whose model vocabulary also contains the special tokens.

    Args:
        split: Split texts at white space first, as those models do; otherwise spaces stay where they are.
    """
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    words = [f"▁{word}" for word in ("the", "cat", "list", "of", "items", "is", "empty", "return", "a")]
    pieces = [(piece, 0.0) for piece in specials]
    pieces += [(piece, -1.0 - i / 100) for i, piece in enumerate([*words, "▁", "ing", "es"])]
    pieces += [(one, -4.0) for one in string.ascii_letters + string.digits + ".,!?()[]</>_"] + [("<mask>", 0.0)]
    backend = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, unk_id=3))
    metaspace = tokenizers.pre_tokenizers.Metaspace()
    white = tokenizers.pre_tokenizers.WhitespaceSplit()
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([white, metaspace]) if split else metaspace
    backend.decoder = tokenizers.decoders.Metaspace()
    backend.add_special_tokens([*specials, "<mask>"])
    return Tokenizer(backend)


def loaded(
    tokenizer: Tokenizer | None = None,
    *,
    positions: int = 32,
    relative: bool = False,
    use: UseSettings | None = None,
    **objective: Any,
) -> LoadedModel:
    """A model with random weights, as if trained with the given objective."""
    tokenizer = tokenizer or wordpiece()
    settings = settings_of(**objective)
    if tokenizer.vocabulary.pseudo is None and isinstance(settings, PseudoToken):
        settings = dataclasses.replace(settings, pseudo_token="mask")
    recipe = Recipe(data=DataSettings(window=positions), objective=settings, use=use or UseSettings())
    model = toy_model(
        vocab=tokenizer.vocabulary.size, positions=positions, num_layers=2, num_heads=2, relative_bias=relative
    )
    recipe = dataclasses.replace(recipe, model=model.settings)
    return LoadedModel(model.eval(), tokenizer, recipe, Path("nowhere"), 0)


@dataclasses.dataclass(frozen=True)
class Slot:
    """A slot of a hand-written row: it reads the first `reads` slots and, if `itself`, itself."""

    token: int
    position: int
    reads: int
    itself: bool = False
    segment: int = 0


def logits(model: UnifiedModel, row: list[Slot], predict: list[int], local_width: int | None = None) -> torch.Tensor:
    """Logits at some slots of one row, from a separate forward pass. *Shape:* (predictions, vocabulary)"""
    columns = np.array([[(s.token, s.position, s.segment) for s in row]], dtype=np.int32)
    reads = [[0, s.reads, *((i, i + 1) if s.itself else (0, 0))] for i, s in enumerate(row)]
    intervals, local = np.array([reads], dtype=np.int32), None
    if local_width is not None:
        local = intervals.copy()
        local[0, :, 0] = np.maximum(0, np.arange(len(row)) - local_width)
    examples = rows_of(
        columns[:, :, 0], intervals, {"p": target_of([predict], [[0] * len(predict)])}, position_ids=columns[:, :, 1],
        segment_ids=columns[:, :, 2], local=local, mutual=np.zeros(1, np.int32),
    )  # fmt: skip
    with torch.no_grad():
        return model.logits(collate(examples))["p"][0]


def probabilities(model: LoadedModel, row: list[Slot], predict: list[int]) -> np.ndarray:
    """Softmax over the whole vocabulary at some slots of one row. *Shape:* (predictions, vocabulary)"""
    return logits(model.model, row, predict).softmax(-1).numpy()


class ReadAgain:
    """A stepper that reads the whole text again at every step: `read` gives the logits after a source and a text."""

    def __init__(self, read: Callable[[Any, list[int]], torch.Tensor], rows: Sequence[Any], count: int) -> None:
        self.read, self.rows, self.count = read, list(rows), count
        self.texts: list[list[list[int]]] = [[[] for _ in range(count)] for _ in rows]

    def __len__(self) -> int:
        return len(self.rows)

    def first(self) -> torch.Tensor:
        return torch.stack([self.read(row, []) for row in self.rows])

    def step(self, tokens: torch.Tensor, parents: torch.Tensor | None) -> torch.Tensor:
        chosen = torch.arange(self.count).expand(len(self), -1) if parents is None else parents
        self.texts = [
            [[*texts[parent], token] for token, parent in zip(new, old, strict=True)]
            for texts, new, old in zip(self.texts, tokens.tolist(), chosen.tolist(), strict=True)
        ]
        rows = zip(self.rows, self.texts, strict=True)
        return torch.stack([torch.stack([self.read(row, text) for text in texts]) for row, texts in rows])

    def keep(self, rows: torch.Tensor) -> None:
        self.rows, self.texts = [self.rows[row] for row in rows.tolist()], [self.texts[row] for row in rows.tolist()]


def finish(steps: Generator[Any, None, Any]) -> Any:
    """What a search returns."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def context(tokens: list[int], *, without: frozenset[int] = frozenset()) -> list[Slot]:
    """C: every slot reads all of C; positions in `without` are left out."""
    kept = [(token, position) for position, token in enumerate(tokens) if position not in without]
    return [Slot(token, position, reads=len(kept)) for token, position in kept]


def plain_format(tokenizer: Tokenizer, longest: int, segments: tuple[int, int] = (0, 1)) -> TextFormat:
    """Rows "[SOS] text [EOS]" and "[SOS] text [EOS] second text [EOS]"."""
    sos, eos = tokenizer.vocabulary.sos, tokenizer.vocabulary.eos
    return TextFormat(start=(sos,), between=(eos,), end=(eos,), segments=segments, longest=longest)


def window(model: LoadedModel, text: str) -> list[int]:
    """Tokens of "[SOS] text [EOS]"."""
    vocabulary = model.tokenizer.vocabulary
    return [vocabulary.sos, *model.tokenizer.encode_batch([text])[0].tolist(), vocabulary.eos]


def one_by_one(model: LoadedModel, text: str, measure: str) -> list[float]:
    """log p of each token of a text, each from a separate row: of the others, or of those before it; nan for [UNK]."""
    vocabulary, tokens, logs = model.tokenizer.vocabulary, window(model, text), []
    for place, token in enumerate(tokens[1:-1], start=1):
        if measure == "pseudo":
            row, predict = context([*tokens[:place], vocabulary.mask, *tokens[place + 1 :]]), place
        else:
            row, predict = [Slot(before, i, reads=i + 1) for i, before in enumerate(tokens[:place])], place - 1
        share = float(probabilities(model, row, [predict])[0][token])
        logs.append(math.nan if token == vocabulary.unk else math.log(share))
    return logs
