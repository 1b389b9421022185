"""Tokenizers: WordPiece or byte-level BPE through Hugging Face `tokenizers`, trained here or loaded."""

from __future__ import annotations

import functools
import itertools
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from unicloze.arrays import Int64s
from unicloze.bounded import parse_json, read_bytes
from unicloze.digest import digest
from unicloze.errors import UniclozeError, UsageError
from unicloze.run_files import TOKENIZER, TOKENIZER_CONFIG
from unicloze.settings import TokenizerSettings
from unicloze.spelling import BEGIN_TEXT, END_TEXT, spell
from unicloze.text.boundaries import BYTE_LEVEL, SENTENCEPIECE, Boundaries, text_of
from unicloze.text.exported import dressed, undressed
from unicloze.text.joining import join_words
from unicloze.text.merges import BYTE_VOCABULARY, byte_level
from unicloze.text.plain import PlainText
from unicloze.text.tokenizer_config import KEYS, TokenizerConfig
from unicloze.text.tokenizer_limits import LARGEST_FILE, beyond_bounds

PAD, UNUSED, UNK, SOS, EOS, MASK, PSEUDO = "[PAD]", "[unused1]", "[UNK]", "[SOS]", "[EOS]", "[MASK]", "[PSEUDO]"
SPECIAL_TOKENS = PAD, UNUSED, UNK, SOS, EOS, MASK, PSEUDO
"""Special tokens of a trained vocabulary, by id. Id 1 is never used because MPNet treats it as padding."""

_ROLES = {
    "pad": (PAD, "<pad>"),
    "unk": (UNK, "<unk>"),
    "sos": (SOS, "[CLS]", "<cls>", "<s>"),
    "eos": (EOS, "[SEP]", "<sep>", "</s>"),
    "mask": (MASK, "<mask>"),
}
_STAND_INS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "<extra_id_0>": {"sos": _ROLES["eos"], "mask": ("<extra_id_0>",)},
    "<|endoftext|>": dict.fromkeys(_ROLES, ("<|endoftext|>",)),
}
"""Tokens that take the roles a vocabulary lacks, by a token it has: T5's rows use neither [SOS] nor masks, and GPT-2 has one
special token, which separates texts."""
_PSEUDO = PSEUDO, "[P]", "<pseudo>"
_BRACKETED = re.compile(r"\[\w+\]")
_UNUSED = re.compile(r"\[unused\d+\]")
_NUMBERED = re.compile(r"\[unused\d+\]|\[EXTRA\d+\]|<extra_id_\d+>")
_EXTRA = re.compile(r"\[EXTRA(\d+)\]|<extra_id_(\d+)>")
_SENTENCE_ENDS = frozenset(".?!;\u2026\u3002\uff01\uff1f\u0964\u061f\u06d4\n")
_LARGEST_ALPHABET = 1000


@dataclass(frozen=True, kw_only=True, eq=False)
class Vocabulary:
    """Ids of special tokens, and the ids that random tokens are drawn from.

    Args:
        size: Number of ids, used or not.
        pad: Fills the end of a row.
        unk: Replaces text that cannot be spelled.
        sos: First token of a window, also known as [CLS].
        eos: Ends a segment, also known as [SEP].
        mask: [M] of the paper.
        pseudo: [P] of the paper; None if the vocabulary has no spare id.
        special: Ids that are neither masked nor drawn at random, sorted. *Shape:* (number of special ids,)
        ordinary: All other ids, sorted. *Shape:* (number of ordinary ids,)
        extra: Special ids without a fixed role, for sentinels and mode tokens. *Shape:* (number of them,)
        continues: Whether an id continues a word before it, if there is one. *Shape:* (size,)
        ends_sentence: Whether an id ends a sentence. *Shape:* (size,)
        boundaries: Decides whether a token continues the word before it; None if `continues` decides alone.
    """

    size: int
    pad: int
    unk: int
    sos: int
    eos: int
    mask: int
    pseudo: int | None
    special: npt.NDArray[np.int32]
    ordinary: npt.NDArray[np.int32]
    extra: npt.NDArray[np.int32]
    continues: npt.NDArray[np.bool_]
    ends_sentence: npt.NDArray[np.bool_]
    boundaries: Boundaries | None = None

    def follows(
        self, token_ids: npt.NDArray[np.integer], first: npt.NDArray[np.bool_] | None = None
    ) -> npt.NDArray[np.bool_]:
        """Whether each token belongs to the word of the token before it, which must not be a special token.

        Args:
            token_ids: *Shape:* (..., tokens)
            first: Marks further tokens without a predecessor, besides the first of each row. *Shape:* (..., tokens)
        """
        if self.boundaries is not None:
            return self.boundaries.follows(token_ids, first)
        found: npt.NDArray[np.bool_] = self.continues[token_ids]
        return found if first is None else found & ~first


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
        self._mark = _space_mark(backend)
        self.vocabulary = _vocabulary(backend, name, roles or {}, self._mark)
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
        backend = _train_bpe(texts, settings) if settings.kind == "bpe" else _train_wordpiece(texts, settings)
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
                document = byte_level(document, place, special=_names(), prefix_space=config.adds_prefix_space)
                text = json.dumps(document)
            if (problem := beyond_bounds(document)) is not None:
                raise UniclozeError(f"{place} is refused because {problem}: set --tokenizer.path to another.")
            backend = tokenizers.Tokenizer.from_str(text)
            config.check(backend, place)
            return cls(backend, name=str(place), roles=config.roles())
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
        return [np.array(encoding.ids, dtype=np.int32) for encoding in self._plain.encode_fast(texts)]

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


def _space_mark(backend: tokenizers.Tokenizer) -> str | None:
    """How the vocabulary writes a leading space; None if its tokens include none."""
    if isinstance(backend.model, models.WordPiece | models.WordLevel):
        return None
    parts = backend.normalizer, backend.pre_tokenizer, backend.decoder
    if any(part is not None and b'"ByteLevel"' in part.__getstate__() for part in parts):
        return BYTE_LEVEL
    tokens = backend.get_vocab(with_added_tokens=False)
    return next((mark for mark in (SENTENCEPIECE, BYTE_LEVEL) if any(token.startswith(mark) for token in tokens)), None)


def whitespace_tokenizer(text: str, extra_tokens: int = 0) -> Tokenizer:
    """A tokenizer over the white-space-separated words of one text, to inspect examples without a prepared corpus."""
    specials = _specials(TokenizerSettings(extra_tokens=extra_tokens))
    words = dict.fromkeys([*specials, *text.split()])
    backend = tokenizers.Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=UNK))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(specials)
    return Tokenizer(backend)


def _vocabulary(backend: tokenizers.Tokenizer, name: str, named: Mapping[str, str], mark: str | None) -> Vocabulary:
    ids = backend.get_vocab(with_added_tokens=True)
    size = max(ids.values(), default=-1) + 1
    declared = {i: token.content for i, token in backend.get_added_tokens_decoder().items() if token.special}
    roles: dict[str, int] = {}
    for role, names in _ROLES.items():
        usual = sorted(names, key=lambda name: name not in declared.values())  # MPNet's vocabulary has BERT's names too
        known = [ids[token] for token in (named.get(role, ""), *usual) if token in ids]
        if not known:
            others = (each.get(role, ()) for mark, each in _STAND_INS.items() if mark in ids)
            known = [ids[token] for tokens in others for token in tokens if token in ids]
        if not known:
            raise UniclozeError(
                f"{name} has no {names[0]} token (nor {', '.join(names[1:])}): add it to the vocabulary, "
                "or leave --tokenizer.path out to train a tokenizer."
            )
        roles[role] = known[0]
    # MPNet treats id 1 as padding.
    unused = sorted(i for token, i in ids.items() if _UNUSED.fullmatch(token) and i != 1)
    pseudo = next((ids[token] for token in _PSEUDO if token in ids), unused[0] if unused else None)
    # A `vocab.txt` does not mark special tokens; no word of its texts is in brackets.
    reserved = _BRACKETED if isinstance(backend.model, models.WordPiece) else _NUMBERED
    special = {*roles.values(), *declared, *(i for token, i in ids.items() if reserved.fullmatch(token))}
    special |= {pseudo} if pseudo is not None else set()
    numbered = [(match, i) for token, i in ids.items() if (match := _EXTRA.fullmatch(token))]
    extra = [i for match, i in sorted(numbered, key=lambda pair: int(pair[0][1] or pair[0][2]))]
    extra = extra or [i for i in unused if i != pseudo]
    ordinary = set(ids.values()) - special
    if not ordinary:
        raise UniclozeError(f"{name} has only special tokens: give another --tokenizer.path.")
    texts: list[bytes | None] = [None] * size
    for token, i in ids.items():
        texts[i] = None if i in special else text_of(token, mark)
    boundaries = None if mark is None else Boundaries.of(texts)
    prefix = getattr(backend.model, "continuing_subword_prefix", None) or "##"
    ends = [i for i, text in enumerate(texts) if text and text.decode("utf-8", "ignore").lstrip(" ") in _SENTENCE_ENDS]
    return Vocabulary(
        size=size,
        **roles,
        pseudo=pseudo,
        special=np.array(sorted(special), dtype=np.int32),
        ordinary=np.array(sorted(ordinary), dtype=np.int32),
        extra=np.array(extra, dtype=np.int32),
        continues=_marked(size, (i for token, i in ids.items() if token.startswith(prefix) and i not in special))
        if boundaries is None
        else boundaries.continues,
        ends_sentence=_marked(size, ends),
        boundaries=boundaries,
    )


def _marked(size: int, ids: Iterable[int]) -> npt.NDArray[np.bool_]:
    marks = np.zeros(size, dtype=bool)
    marks[list(ids)] = True
    return marks


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
    special = [token for token in _names() if token in vocabulary]
    return _wordpiece(vocabulary, special, config.normalizer(vocabulary))


def _names() -> list[str]:
    """All names of special tokens that have a role."""
    return [*(token for names in (*_ROLES.values(), _PSEUDO) for token in names), *_STAND_INS]


def _wordpiece(vocabulary: dict[str, int], special: Sequence[str], normalizer: Any) -> tokenizers.Tokenizer:
    unknown = next((token for token in _ROLES["unk"] if token in vocabulary), UNK)
    backend = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token=unknown, max_input_chars_per_word=100))
    backend.normalizer = normalizer
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    backend.add_special_tokens(list(special))
    return backend


def _specials(settings: TokenizerSettings) -> list[str]:
    return [*SPECIAL_TOKENS, *(f"[EXTRA{i}]" for i in range(settings.extra_tokens))]


def _train_wordpiece(texts: Iterable[str], settings: TokenizerSettings) -> tokenizers.Tokenizer:
    case = normalizers.BertNormalizer(lowercase=settings.lowercase, strip_accents=settings.strip_accents)
    normalizer = normalizers.Sequence([normalizers.NFC(), case])  # accents may be precomposed or separate
    scaffold = _wordpiece({UNK: 0}, [UNK], normalizer)
    alphabet = _alphabet(texts, scaffold.normalizer, settings.vocab_size)
    # The trainer numbers single-character pieces in hash-map order, which decides ties between merges: two trainings on the
    # same texts would differ unless all these pieces are given beforehand.
    given = [*_specials(settings), *alphabet, *(f"##{character}" for character in alphabet)]
    _check_size(settings.vocab_size, len(given) + 1)
    trainer = trainers.WordPieceTrainer(
        vocab_size=settings.vocab_size,
        min_frequency=2,
        special_tokens=given,
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    scaffold.train_from_iterator(texts, trainer)
    return _wordpiece(scaffold.get_vocab(with_added_tokens=False), _specials(settings), normalizer)


def _train_bpe(texts: Iterable[str], settings: TokenizerSettings) -> tokenizers.Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    _check_size(settings.vocab_size, len(_specials(settings)) + len(alphabet) + 1)
    backend = tokenizers.Tokenizer(models.BPE(unk_token=UNK))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=settings.vocab_size,
        min_frequency=2,
        special_tokens=_specials(settings),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return backend


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
