"""Tokenizers: WordPiece or byte-level BPE through Hugging Face `tokenizers`, trained here or loaded."""

from __future__ import annotations

import functools
import itertools
import json
from array import array
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from unicloze.arrays import Int64s
from unicloze.bounded import parse_json, read_bytes
from unicloze.digest import digest
from unicloze.errors import UniclozeError
from unicloze.run_files import TOKENIZER, TOKENIZER_CONFIG
from unicloze.settings import TokenizerSettings
from unicloze.spelling import BEGIN_TEXT, END_TEXT, spell
from unicloze.text.boundaries import text_of
from unicloze.text.exported import dressed, undressed
from unicloze.text.joining import join_words
from unicloze.text.merges import BYTE_VOCABULARY, byte_level
from unicloze.text.plain import PlainText
from unicloze.text.special_tokens import MASK, PSEUDO, UNK, names_with_a_role, special_tokens
from unicloze.text.tokenizer_config import KEYS, TokenizerConfig
from unicloze.text.tokenizer_limits import LARGEST_FILE, beyond_bounds
from unicloze.text.tokenizer_training import train_bpe, train_wordpiece, wordpiece
from unicloze.text.vocabulary import space_mark, vocabulary_of

_LOADED: dict[tuple[str, str], Tokenizer] = {}
"""The last tokenizers that were loaded, by the content of their files: a command opens the same one several times."""


class Tokenizer:
    """A `tokenizers.Tokenizer` with the special tokens this library needs.

    Args:
        backend: The tokenizer to wrap. Its padding, truncation and post-processing are reset.
        name: Its name in messages.
        roles: Token of a role (`pad`, `unk`, `sos`, `eos`, `mask`) where the usual names do not apply or are ambiguous.

    Raises:
        UniclozeError: A role has no token.
    """

    def __init__(
        self, backend: tokenizers.Tokenizer, *, name: str = "the tokenizer", roles: Mapping[str, str] | None = None
    ) -> None:
        backend.no_padding()
        backend.no_truncation()
        backend = undressed(backend)
        self._mark = space_mark(backend)
        self.vocabulary = vocabulary_of(backend, name, roles or {}, self._mark)
        self._backend = backend
        # The library would return these names normalised.
        self._added = {number: token.content for number, token in backend.get_added_tokens_decoder().items()}
        sos, eos = self.tokens([self.vocabulary.sos, self.vocabulary.eos])
        backend.post_processor = processors.TemplateProcessing(
            single=f"{sos} $A {eos}",
            pair=f"{sos} $A {eos} $B:1 {eos}:1",
            special_tokens=[(sos, self.vocabulary.sos), (eos, self.vocabulary.eos)],
        )
        backend.encode_special_tokens = False
        self.fingerprint: str = digest(json.loads(backend.to_str()))

    @classmethod
    def train(cls, texts: Iterable[str], settings: TokenizerSettings) -> Tokenizer:
        """Train on texts. The same texts give the same tokenizer.

        Args:
            texts: Read twice for WordPiece, so not an iterator; memory grows only with the number of distinct words.
            settings: All but `path` are used.

        Raises:
            UsageError: `vocab_size` is too small for the special tokens and characters.
        """
        backend = train_bpe(texts, settings) if settings.kind == "bpe" else train_wordpiece(texts, settings)
        return cls(backend)

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """Load a `tokenizer.json`, a BERT-style `vocab.txt`, a GPT-2-style `vocab.json`, or a folder that holds one.

        A `tokenizer_config.json` next to it names the tokens with a role and the normalisation for a `vocab.txt`. If it does
        not mention lower-casing, a vocabulary without capitals is lower-cased.

        Args:
            path: The file or folder.

        Raises:
            UniclozeError: It is missing, not readable as such, lacks a token for a role, or contradicts the configuration.
        """
        place = Path(path).expanduser()
        if place.is_dir():
            files = [file for file in (place / TOKENIZER, place / "vocab.txt") if file.is_file()]
            if not files:
                raise UniclozeError(f"{place} holds no tokenizer.json or vocab.txt: set --tokenizer.path to one.")
            place = files[0]
        if not place.is_file():
            raise UniclozeError(f"There is no file {place}: set --tokenizer.path to a vocab.txt or tokenizer.json.")
        config = TokenizerConfig.beside(place)
        if place.suffix != ".json":
            return cls(_from_vocab_txt(place, config), name=str(place), roles=config.roles())
        try:
            text = read_bytes(place, LARGEST_FILE).decode()
            document = parse_json(text)
            if place.name == BYTE_VOCABULARY:
                document = byte_level(
                    document, place, special=names_with_a_role(), prefix_space=config.adds_prefix_space
                )
                text = json.dumps(document)
            known = (text, json.dumps(config.values, sort_keys=True))
            if known in _LOADED:
                return _LOADED[known]
            if (problem := beyond_bounds(document)) is not None:
                raise UniclozeError(f"{place} is refused because {problem}: set --tokenizer.path to another.")
            backend = tokenizers.Tokenizer.from_str(text)
            config.check(backend, place)
            if len(_LOADED) > 1:
                _LOADED.clear()
            _LOADED[known] = cls(backend, name=str(place), roles=config.roles())
            return _LOADED[known]
        except (UniclozeError, OSError):
            raise
        except Exception as error:  # the library raises Exception itself
            raise UniclozeError(
                f"{place} is damaged or not a tokenizer.json of the tokenizers library ({error}): set --tokenizer.path to "
                "another, or remove its folder and prepare again."
            ) from error

    def save(self, folder: Path) -> None:
        """Write `tokenizer.json` and `tokenizer_config.json`, as Transformers' `from_pretrained` reads them."""
        words = {key: self.tokens([getattr(self.vocabulary, role)])[0] for role, key in KEYS.items()}
        config = {"tokenizer_class": "PreTrainedTokenizerFast", **words, "clean_up_tokenization_spaces": False}
        (folder / TOKENIZER).write_text(self._backend.to_str(pretty=True), encoding="utf-8")
        (folder / TOKENIZER_CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")

    def with_pseudo(self) -> Tokenizer:
        """This tokenizer with a [P] token, which is added after all others if it has none."""
        if self.vocabulary.pseudo is not None:
            return self
        backend = tokenizers.Tokenizer.from_str(self._backend.to_str())
        backend.add_special_tokens([PSEUDO])
        roles = {role: self.tokens([getattr(self.vocabulary, role)])[0] for role in KEYS}
        return Tokenizer(backend, roles=roles)

    def exported(self) -> dict[str, Any]:
        """The `tokenizer.json` with which other libraries encode and decode text as this one does."""
        return dressed(self._backend, mask=(self.vocabulary.mask, self.masks[0]), spaced=self.spaced)

    @property
    def spaced(self) -> bool:
        """Whether tokens include the preceding space, so that a mask replaces that space too."""
        return self._mark is not None

    @property
    def lowercase(self) -> bool:
        """Whether text is lower-cased."""
        return self._backend.normalizer is not None and self._backend.normalizer.normalize_str("A") == "a"

    @property
    def names_are_pieces(self) -> bool:
        """Whether the bare model encodes the names of special tokens in a text as those tokens."""
        return isinstance(self._backend.model, models.Unigram)

    @property
    def masks(self) -> tuple[str, ...]:
        """Strings read as a mask by `encode`: the tokenizer's own mask token, and [MASK]."""
        return tuple(dict.fromkeys((*self.tokens([self.vocabulary.mask]), MASK)))

    @functools.cached_property
    def _plain(self) -> PlainText:
        mask = self.vocabulary.mask
        return PlainText(
            self._backend,
            special=self.tokens(self.vocabulary.special),
            mask=(mask, self.masks[0]),
            masks=self.masks,
            spaced=self.spaced,
        )

    def encode_batch(self, texts: Sequence[str]) -> list[npt.NDArray[np.int32]]:
        """Token ids of each text, without special tokens; names of special tokens are plain text."""
        return [np.frombuffer(array("i", encoding.ids), dtype=np.int32) for encoding in self._plain.encode_fast(texts)]

    def encode_batch_with_offsets(
        self, texts: Sequence[str]
    ) -> list[tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]]:
        """`encode_batch` with the first and last (exclusive) character of each token.

        Returns:
            Per text: token ids, *Shape:* (tokens,), and offsets, *Shape:* (tokens, 2).
        """
        return [
            (np.array(one.ids, dtype=np.int32), np.array(one.offsets, dtype=np.int32).reshape(-1, 2))
            for one in self._plain.encode(texts)
        ]

    def encode(self, text: str) -> npt.NDArray[np.int32]:
        """Token ids of a text in which `masks` are masks; names of other special tokens are plain text. *Shape:* (tokens,)

        Where tokens include the preceding space, a mask replaces that space too, as in training.
        """
        return np.array(self._plain.encode_masked(text).ids, dtype=np.int32)

    def decode(self, ids: Iterable[int], *, skip_special: bool = False) -> str:
        """The text of token ids; for WordPiece, spaces follow `join_words`."""
        left_out = set(self.vocabulary.special.tolist()) if skip_special else set()
        backend, numbers = self._backend, [int(i) for i in ids if int(i) not in left_out]
        if not isinstance(backend.model, models.WordPiece):
            return str(backend.decode(numbers, skip_special_tokens=False))
        prefix = backend.model.continuing_subword_prefix
        pieces = [self._spelled(number) for number in numbers]
        text = decoders.WordPiece(prefix=prefix, cleanup=False).decode([piece for piece in pieces if piece])
        return join_words(text.removeprefix(prefix))

    def settled(self, ids: Sequence[int]) -> str:
        """The beginning of the text of token ids that cannot change when tokens follow.

        With WordPiece the last word may be incomplete, and a complete word may still change the space before it; with other
        tokenizers the last token may be part of a character.
        """
        ends = [len(ids) - 1, len(ids)]
        if isinstance(self._backend.model, models.WordPiece):
            starts = [place for place, number in enumerate(ids) if not self.vocabulary.continues[number]]
            ends = [0, 0, *starts][-2:]
        before, after = (self.decode(ids[:end]) for end in ends)
        alike = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False))
        return "".join(one for one, _ in alike).rstrip("\ufffd")

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Spelling of each id in the vocabulary; `[id]` for an id without a token."""
        return [self._spelled(int(i)) or f"[{int(i)}]" for i in ids]

    def _spelled(self, number: int) -> str | None:
        return self._added.get(number) or self._backend.id_to_token(number)

    def texts(self) -> list[bytes]:
        """UTF-8 text of each id, including its leading space; for some ids it is part of a character."""
        return [text_of(token, self._mark) for token in self.tokens(range(self.vocabulary.size))]

    def symbols(self) -> Int64s:
        """Symbols of each id as a word, see `unicloze.spelling`.

        Tokens that continue a word have no mark of its beginning. The tokens that begin and end a text have symbols of
        their own, and other special tokens are spelled by their names. *Shape:* (size, symbols)
        """
        vocabulary, words, begins = self.vocabulary, [], []
        special = set(vocabulary.special.tolist())
        for number, text in enumerate(self.texts()):
            if number in (vocabulary.sos, vocabulary.eos):
                words.append([BEGIN_TEXT if number == vocabulary.sos else END_TEXT])
                begins.append(True)
            elif self._mark is None or number in special:
                continues = bool(vocabulary.continues[number])
                words.append([*(text.removeprefix(b"##") if continues else text)])
                begins.append(not continues)
            else:
                words.append([*text.removeprefix(b" ")])
                begins.append(text.startswith(b" "))
        return spell(words, begins)

    def token_id(self, token: str) -> int | None:
        """The id of a token; None if the vocabulary lacks it."""
        return self._backend.token_to_id(token)

    def __len__(self) -> int:
        return self.vocabulary.size


def whitespace_tokenizer(text: str, extra_tokens: int = 0) -> Tokenizer:
    """A tokenizer over the white-space-separated words of one text, to inspect examples without a prepared corpus."""
    specials = special_tokens(TokenizerSettings(extra_tokens=extra_tokens))
    words = dict.fromkeys([*specials, *text.split()])
    backend = tokenizers.Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=UNK))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(specials)
    return Tokenizer(backend)


def _from_vocab_txt(path: Path, config: TokenizerConfig) -> tokenizers.Tokenizer:
    try:
        lines = read_bytes(path, LARGEST_FILE).decode().split("\n")
    except UnicodeDecodeError as error:
        raise UniclozeError(
            f"{path} is not valid UTF-8 at byte {error.start}: give another --tokenizer.path."
        ) from error
    words = [line.removesuffix("\r") for line in lines]
    while words and not words[-1]:
        words.pop()
    vocabulary: dict[str, int] = {}
    for i, word in enumerate(words):
        if vocabulary.setdefault(word, i) != i:
            raise UniclozeError(
                f"{path}:{i + 1} repeats the token {word!r} of line {vocabulary[word] + 1}: remove one."
            )
    special = [token for token in names_with_a_role() if token in vocabulary]
    return wordpiece(vocabulary, special, config.normalizer(vocabulary))
