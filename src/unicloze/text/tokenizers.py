"""Tokenizers: WordPiece or byte-level BPE through Hugging Face `tokenizers`, trained here or loaded."""

from __future__ import annotations

import functools
import itertools
import json
import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

from unicloze.arrays import Int32s, Int64s
from unicloze.characters import BEGIN_TEXT, END_TEXT, spell
from unicloze.errors import UniclozeError, UsageError
from unicloze.files import TOKENIZER, TOKENIZER_CONFIG, at_home, digest, parse_json, read_bytes
from unicloze.settings import TokenizerSettings
from unicloze.text import tokenizer_files
from unicloze.text.tokenizer_files import TokenizerConfig
from unicloze.text.vocabulary import (
    MASK,
    PSEUDO,
    ROLES,
    UNK,
    join_words,
    joining_decoder,
    names_with_a_role,
    space_mark,
    special_tokens,
    text_of,
    vocabulary_of,
)

_OUT_OF_REACH = "\ufdd0"
"""First character of renamed special tokens; a noncharacter, reserved by Unicode for internal use."""
_REPLACEMENT = "\ufffd"


# Disabling special tokens is not enough if the model's own vocabulary holds them: a Unigram model encodes "</s>" as
# the piece of that name. Here such pieces get names that no text can contain, with unchanged ids.


class PlainText:
    """Encodes texts without special tokens, except masks on request.

    Args:
        backend: The tokenizer.
        own: What it belongs to, which names the special tokens and masks.
    """

    def __init__(self, backend: tokenizers.Tokenizer, own: Tokenizer) -> None:
        names = sorted(set(own.tokens(own.vocabulary.special)))
        self._mask = _OUT_OF_REACH + own.masks[0]
        # Where tokens include the preceding space, a mask replaces that space too.
        self._masks = re.compile(f"{' ?' if own.spaced else ''}(?:{_any_of(own.masks)})")
        self._names = re.compile(f"{_OUT_OF_REACH}(?={_any_of(names)})")
        content = _out_of_reach(json.loads(backend.to_str()), set(names), own)
        for added in content["added_tokens"]:
            if added["content"] == self._mask:
                added["lstrip"] = takes_white_space(backend, own)
        self._backend = tokenizers.Tokenizer.from_str(json.dumps(content))

    def encode(self, texts: Iterable[str], *, offsets: bool) -> list[tokenizers.Encoding]:
        """Encode texts, with character offsets or without."""
        encode_batch = self._backend.encode_batch if offsets else self._backend.encode_batch_fast
        encodings: list[tokenizers.Encoding] = encode_batch(self._guarded(texts), add_special_tokens=False)
        return encodings

    def encode_masked(self, text: str) -> tokenizers.Encoding:
        """Encode a text in which mask names are masks."""
        (guarded,) = self._guarded([text])
        return self._backend.encode(self._masks.sub(self._mask, guarded), add_special_tokens=False)

    def _guarded(self, texts: Iterable[str]) -> list[str]:
        """Replace the internal names of special tokens in texts."""
        return [self._names.sub(_REPLACEMENT, text) if _OUT_OF_REACH in text else text for text in texts]


def takes_white_space(backend: tokenizers.Tokenizer, own: Tokenizer) -> bool:
    """Whether a mask consumes all white space before it rather than only the one space of the masked token.

    True if the tokenizer declares it, or if a normaliser prevents an exported tokenizer from consuming a single space, see
    `Tokenizer.exported`; so both encode a text alike.
    """
    added = backend.get_added_tokens_decoder().get(own.vocabulary.mask)
    return (added is not None and bool(added.lstrip)) or (own.spaced and backend.normalizer is not None)


def _any_of(names: Iterable[str]) -> str:
    return "|".join(re.escape(name) for name in sorted(set(names)))


def _added_tokens(document: dict[str, Any], own: Tokenizer) -> dict[int, dict[str, Any]]:
    """Added tokens of a `tokenizer.json` by id, sorted; the mask is always among them."""
    number = own.vocabulary.mask
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    mask = {"id": number, "content": own.masks[0], **plain, "special": True}
    added = {number: mask} | {token["id"]: token for token in document["added_tokens"]}
    return dict(sorted(added.items()))


def _out_of_reach(document: dict[str, Any], names: set[str], own: Tokenizer) -> dict[str, Any]:
    """A `tokenizer.json` with unspellable special tokens; the mask always becomes an added token."""

    def renamed(token: str) -> str:
        return _OUT_OF_REACH + token if token in names else token

    model = dict(document["model"])
    if isinstance(model["vocab"], dict):
        model["vocab"] = {renamed(token): number for token, number in model["vocab"].items()}
    else:
        model["vocab"] = [[renamed(token), score] for token, score in model["vocab"]]
    if isinstance(model.get("unk_token"), str):
        model["unk_token"] = renamed(model["unk_token"])
    if "merges" in model:
        prefix = model.get("continuing_subword_prefix") or ""
        pairs = [tuple(merge.split(" ", 1)) if isinstance(merge, str) else tuple(merge) for merge in model["merges"]]
        model["merges"] = [pair for pair in pairs if not names & {*pair, pair[0] + pair[1].removeprefix(prefix)}]
    tokens = [
        {**token, "content": renamed(token["content"]), "single_word": False, "normalized": False, "special": True}
        if token["content"] in names
        else token
        for token in _added_tokens(document, own).values()
    ]
    return document | {"model": model, "added_tokens": tokens, "post_processor": None}


_LARGEST_ALPHABET = 1000


def wordpiece(vocabulary: dict[str, int], special: Sequence[str], normalizer: Any) -> tokenizers.Tokenizer:
    """A WordPiece tokenizer of BERT's kind."""
    unknown = next((token for token in ROLES["unk"] if token in vocabulary), UNK)
    backend = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token=unknown, max_input_chars_per_word=100))
    backend.normalizer = normalizer
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    backend.add_special_tokens(list(special))
    return backend


def train_wordpiece(texts: Iterable[str], settings: TokenizerSettings) -> tokenizers.Tokenizer:
    """Train WordPiece; arguments and errors as of `Tokenizer.train`."""
    case = normalizers.BertNormalizer(lowercase=settings.lowercase, strip_accents=settings.strip_accents)
    normalizer = normalizers.Sequence([normalizers.NFC(), case])  # accents may be precomposed or separate
    scaffold = wordpiece({UNK: 0}, [UNK], normalizer)
    alphabet = _alphabet(texts, scaffold.normalizer, settings.vocab_size)
    # The trainer numbers single-character pieces in hash-map order, which decides ties between merges: two trainings on the
    # same texts would differ unless all these pieces are given beforehand.
    given = [*special_tokens(settings), *alphabet, *(f"##{character}" for character in alphabet)]
    _check_size(settings.vocab_size, len(given) + 1)
    trainer = trainers.WordPieceTrainer(
        **_trained_on(settings, alphabet), special_tokens=given, limit_alphabet=len(alphabet)
    )
    scaffold.train_from_iterator(texts, trainer)
    return wordpiece(scaffold.get_vocab(with_added_tokens=False), special_tokens(settings), normalizer)


def train_bpe(texts: Iterable[str], settings: TokenizerSettings) -> tokenizers.Tokenizer:
    """Train byte-level BPE; arguments and errors as of `Tokenizer.train`."""
    alphabet, special = sorted(pre_tokenizers.ByteLevel.alphabet()), special_tokens(settings)
    _check_size(settings.vocab_size, len(special) + len(alphabet) + 1)
    backend = tokenizers.Tokenizer(models.BPE(unk_token=UNK))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.train_from_iterator(texts, trainers.BpeTrainer(**_trained_on(settings, alphabet), special_tokens=special))
    return backend


def _trained_on(settings: TokenizerSettings, alphabet: list[str]) -> dict[str, Any]:
    """What both trainers are given."""
    size = settings.vocab_size
    return {"vocab_size": size, "min_frequency": 2, "initial_alphabet": alphabet, "show_progress": False}


def _alphabet(texts: Iterable[str], normalizer: Any, vocab_size: int) -> list[str]:
    """The most frequent characters after normalisation, sorted: those that make up 99.99 % of the text.

    There are at most 1,000, and with their "##" pieces at most half of the vocabulary; raises a `UsageError` if they cover
    less than 98 % of the text.
    """
    counts = np.zeros(0x110000, dtype=np.int64)
    for text in texts:
        composed = unicodedata.normalize("NFC", text)  # the only step that looks beyond one character
        codes, numbers = np.unique(np.frombuffer(composed.encode("utf-32-le"), dtype=np.uint32), return_counts=True)
        counts[codes] += numbers
    normalised: Counter[str] = Counter()
    for code in np.flatnonzero(counts):
        for character in normalizer.normalize_str(chr(code)):
            if not character.isspace():
                normalised[character] += int(counts[code])
    frequent = sorted(normalised, key=lambda character: (-normalised[character], character))
    covered = np.cumsum([normalised[character] for character in frequent]) / max(1, normalised.total())
    needed, wanted = (min(int((covered < share).sum()) + 1, _LARGEST_ALPHABET) for share in (0.98, 0.9999))
    _check_size(vocab_size, 4 * min(needed, len(frequent)))
    return sorted(frequent[: min(wanted, vocab_size // 4)])


def _check_size(vocab_size: int, least: int) -> None:
    if vocab_size < least:
        raise UsageError(f"tokenizer.vocab_size is {vocab_size}, too small for this text: give at least {least}.")


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
        place = at_home(path)
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
            text = read_bytes(place, tokenizer_files.LARGEST_FILE).decode()
            document = parse_json(text)
            if place.name == tokenizer_files.BYTE_VOCABULARY:
                document = tokenizer_files.byte_level(document, place, names_with_a_role(), config.adds_prefix_space)
                text = json.dumps(document)
            known = (text, json.dumps(config.values, sort_keys=True))
            if (there := _LOADED.get(known)) is not None:
                return there
            if (problem := tokenizer_files.beyond_bounds(document)) is not None:
                raise UniclozeError(f"{place} is refused because {problem}: set --tokenizer.path to another.")
            backend = tokenizers.Tokenizer.from_str(text)
            config.check(backend, place)
            if len(_LOADED) > 1:
                _LOADED.clear()
            loaded = _LOADED[known] = cls(backend, name=str(place), roles=config.roles())
            return loaded
        except (UniclozeError, OSError):
            raise
        except Exception as error:  # the library raises Exception itself
            raise UniclozeError(
                f"{place} is damaged or not a tokenizer.json of the tokenizers library ({error}): set --tokenizer.path to "
                "another, or remove its folder and prepare again."
            ) from error

    def save(self, folder: Path) -> None:
        """Write `tokenizer.json` and `tokenizer_config.json`, as Transformers' `from_pretrained` reads them."""
        words = {tokenizer_files.KEYS[role]: token for role, token in self._roles().items()}
        config = {"tokenizer_class": "PreTrainedTokenizerFast", **words, "clean_up_tokenization_spaces": False}
        (folder / TOKENIZER).write_text(self._backend.to_str(pretty=True), encoding="utf-8")
        (folder / TOKENIZER_CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")

    def with_pseudo(self) -> Tokenizer:
        """This tokenizer with a [P] token, which is added after all others if it has none."""
        if self.vocabulary.pseudo is not None:
            return self
        backend = tokenizers.Tokenizer.from_str(self._backend.to_str())
        backend.add_special_tokens([PSEUDO])
        return Tokenizer(backend, roles=self._roles())

    def _roles(self) -> dict[str, str]:
        """Token of each role."""
        return {role: self.tokens([getattr(self.vocabulary, role)])[0] for role in tokenizer_files.KEYS}

    def exported(self) -> dict[str, Any]:
        """The `tokenizer.json` with which other libraries encode and decode text as this one does.

        WordPiece vocabularies get a decoder that joins words. Where tokens include the preceding space, the space before a
        mask belongs to the masked token and is removed: `fill` and training rows have no token for it.
        """
        backend = self._backend
        document: dict[str, Any] = json.loads(backend.to_str())
        if isinstance(backend.model, models.WordPiece):
            document["decoder"] = _state(joining_decoder(backend.model.continuing_subword_prefix))
        if self.spaced:
            added, takes_all = _added_tokens(document, self), takes_white_space(backend, self)
            added[self.vocabulary.mask] |= {"lstrip": True} if takes_all else {"normalized": True}
            document["added_tokens"] = list(added.values())
            if not takes_all:
                document["normalizer"] = _without_space(self.masks[0])
        return document

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
        return PlainText(self._backend, self)

    def encode_batch(self, texts: Sequence[str]) -> list[Int32s]:
        """Token ids of each text, without special tokens; names of special tokens are plain text."""
        encodings = self._plain.encode(texts, offsets=False)
        return [np.frombuffer(array("i", encoding.ids), dtype=np.int32) for encoding in encodings]

    def encode_batch_with_offsets(self, texts: Sequence[str]) -> list[tuple[Int32s, Int32s]]:
        """`encode_batch` with the first and last (exclusive) character of each token.

        Returns:
            Per text: token ids, *Shape:* (tokens,), and offsets, *Shape:* (tokens, 2).
        """
        return [
            (np.array(one.ids, dtype=np.int32), np.array(one.offsets, dtype=np.int32).reshape(-1, 2))
            for one in self._plain.encode(texts, offsets=True)
        ]

    def encode(self, text: str) -> Int32s:
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
        """Symbols of each id as a word, see `unicloze.characters`.

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
    words = tokenizer_files.read_lines(path)
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


def undressed(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Undo `Tokenizer.exported`; a tokenizer that was not exported is returned unchanged."""
    if isinstance(backend.model, models.WordPiece):
        prefix = backend.model.continuing_subword_prefix
        if backend.decoder is not None and _state(backend.decoder) == _state(joining_decoder(prefix)):
            backend.decoder = decoders.WordPiece(prefix=prefix, cleanup=False)
        return backend
    if backend.normalizer is None:
        return backend
    state = _state(backend.normalizer)
    names = [token.content for token in backend.get_added_tokens_decoder().values()]
    mask = next((name for name in names if state == _without_space(name)), None)
    if mask is None:
        return backend
    document = json.loads(backend.to_str()) | {"normalizer": None}
    for token in document["added_tokens"]:
        token["normalized"] &= token["content"] != mask
    return tokenizers.Tokenizer.from_str(json.dumps(document))


def _without_space(mask: str) -> dict[str, Any]:
    """A normaliser that removes one space before a mask."""
    return _state(normalizers.Replace(Regex(f" (?={re.escape(mask)})"), ""))


def _state(part: Any) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(part.__getstate__())
    return state
