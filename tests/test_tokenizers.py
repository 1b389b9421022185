from __future__ import annotations

import json
import re
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from decoding_toys import byte_level, plain_format, roberta_like, sentencepiece, wordpiece
from unicloze.errors import UniclozeError, UsageError
from unicloze.interop.tokenizer_files import padding_of, swapped_ids, write_tokenizer
from unicloze.settings import TokenizerSettings
from unicloze.tasks.extraction import encode_passages
from unicloze.text.tokenizers import Tokenizer, whitespace_tokenizer
from unicloze.text.vocabulary import SPECIAL_TOKENS

TEXTS = [
    "The quick brown fox jumps over the lazy dog; the dog sleeps.",
    "Élan vital: naïve cafés, Ünïcode and the brown dog's quick naps.",
    "Numbers 1, 22 and 333 jump over the quick, quick fox. " * 3,
]
WORDPIECE = TokenizerSettings(kind="wordpiece", vocab_size=300)
BPE = TokenizerSettings(kind="bpe", vocab_size=320)


@pytest.mark.parametrize("settings", [WORDPIECE, BPE], ids=["wordpiece", "bpe"])
def test_a_trained_tokenizer(tmp_path: Path, settings: TokenizerSettings) -> None:
    tokenizer = Tokenizer.train(TEXTS, settings)
    vocabulary = tokenizer.vocabulary
    assert tokenizer.tokens(range(len(SPECIAL_TOKENS))) == list(SPECIAL_TOKENS)
    assert (vocabulary.pad, vocabulary.unk, vocabulary.sos, vocabulary.eos) == (0, 2, 3, 4)
    assert (vocabulary.mask, vocabulary.pseudo) == (5, 6)
    assert vocabulary.special.tolist() == list(range(7))
    assert vocabulary.ordinary.tolist() == list(range(7, vocabulary.size))
    assert 7 < vocabulary.size <= settings.vocab_size
    ids = tokenizer.encode_batch(["a [unused1] b \x00 \U0001f600 [PAD] [MASK]"])[0]
    assert not np.isin(ids, [0, 1, 3, 4, 5, 6]).any()
    tokenizer.save(tmp_path)
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        loaded = Tokenizer.load(path)
        assert loaded.fingerprint == tokenizer.fingerprint
        assert loaded.vocabulary.special.tolist() == vocabulary.special.tolist()
        for one, other in zip(loaded.encode_batch(TEXTS), tokenizer.encode_batch(TEXTS), strict=True):
            assert one.tolist() == other.tolist()
    theirs = pytest.importorskip("transformers").PreTrainedTokenizerFast.from_pretrained(str(tmp_path))
    assert (theirs.cls_token_id, theirs.sep_token_id) == (vocabulary.sos, vocabulary.eos)
    assert (theirs.mask_token_id, theirs.pad_token_id, theirs.unk_token_id) == (5, 0, 2)
    assert theirs(TEXTS[0])["input_ids"] == [vocabulary.sos, *tokenizer.encode(TEXTS[0]).tolist(), vocabulary.eos]


@pytest.mark.whole
@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_training_is_deterministic_across_processes(kind: str) -> None:
    program = (
        "from unicloze.settings import TokenizerSettings\n"
        "from unicloze.text.tokenizers import Tokenizer\n"
        "texts = [f'{a}{b} {b}{a}{c} {c}x{a}' for a in 'abcdefghäöü' for b in 'stuvwxyzßé' for c in 'klmnop']\n"
        f"print(Tokenizer.train(texts, TokenizerSettings(kind={kind!r}, vocab_size=400)).fingerprint)"
    )
    prints = {subprocess.run([sys.executable, "-c", program], check=True, capture_output=True).stdout for _ in range(3)}
    assert len(prints) == 1


def test_lower_casing_is_a_setting() -> None:
    lower, cased = (
        Tokenizer.train(TEXTS, TokenizerSettings(vocab_size=400, lowercase=lowercase)) for lowercase in (True, False)
    )
    assert lower.decode(lower.encode("The Élan")) == "the élan"
    assert cased.decode(cased.encode("The Élan")) == "The Élan"
    bare = Tokenizer.train(TEXTS, TokenizerSettings(vocab_size=400, strip_accents=True))
    assert bare.decode(bare.encode("The Élan")) == "the elan"


@pytest.mark.parametrize("text", [
    "मैं अच्छा हिन्दी बोलता हूँ", "วันนี้อากาศดี", "lächeln für straße", "한국어 문장", "tiếng việt", "ελληνικά ή", "עִבְרִית", "العَرَبِيَّة",
])  # fmt: skip
def test_no_script_loses_its_letters(text: str) -> None:
    composed, decomposed = (unicodedata.normalize(form, text) for form in ("NFC", "NFD"))
    one, other = (Tokenizer.train([given] * 3, TokenizerSettings(vocab_size=400)) for given in (composed, decomposed))
    assert one.fingerprint == other.fingerprint
    for given in (composed, decomposed):
        (ids,) = one.encode_batch([given])
        assert one.vocabulary.unk not in ids
        assert one.decode(ids) == composed


@pytest.mark.parametrize("text", ["한국어 문장, 서울", "tiếng việt", "हिन्दी बोलता", "naïve café"])
def test_the_characters_of_a_decomposed_text_are_found(text: str) -> None:
    given = unicodedata.normalize("NFD", text)
    tokenizer = Tokenizer.train([text] * 3, TokenizerSettings(vocab_size=400))
    (passage,) = encode_passages([given], tokenizer)
    assert "".join(passage.span(i, i)[1] for i in range(len(passage))) == re.sub(r"\s", "", given)


def test_bpe_is_lossless() -> None:
    tokenizer = Tokenizer.train(TEXTS, BPE)
    text = "Any bytes:\n\ttabs,  spaces, \U0001f600 and ß."
    assert tokenizer.decode(tokenizer.encode_batch([text])[0]) == text


def test_a_tokenizer_is_opened_again_once_its_files_change(tmp_path: Path) -> None:
    Tokenizer.train(TEXTS, WORDPIECE).save(tmp_path)
    first = Tokenizer.load(tmp_path)
    assert Tokenizer.load(tmp_path) is first
    Tokenizer.train(TEXTS[:1], WORDPIECE).save(tmp_path)
    assert len(Tokenizer.load(tmp_path)) < len(first)
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"mask_token": first.tokens([first.vocabulary.eos])[0]}), encoding="utf-8")
    assert Tokenizer.load(tmp_path).vocabulary.mask == first.vocabulary.eos


KINDS = {"wordpiece": wordpiece, "bpe": byte_level, "roberta": roberta_like, "sentencepiece": sentencepiece}


@pytest.mark.parametrize("kind", KINDS)
def test_user_text_is_text_whatever_it_spells(kind: str) -> None:
    tokenizer = KINDS[kind]()
    vocabulary = tokenizer.vocabulary
    special = set(vocabulary.special.tolist()) - {vocabulary.unk}
    names = tokenizer.tokens(vocabulary.special)
    texts = ["the list", *names, " ".join(["a", *names, "list"]), "".join(f"x{name}" for name in names)]
    texts.append("".join(f" \ufdd0{name}" for name in names))  # their internal names
    for text, (with_offsets, offsets), ids in zip(
        texts, tokenizer.encode_batch_with_offsets(texts), tokenizer.encode_batch(texts), strict=True
    ):
        assert not special & set(ids.tolist()), text
        assert with_offsets.tolist() == ids.tolist()
        assert offsets[-1, 1] == len(text)
    if kind == "sentencepiece":
        assert tokenizer.tokens(tokenizer.encode_batch(["</s>"])[0]) == ["▁", "<", "/", "s", ">"]


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_mask_is_read_as_a_special_token(kind: str) -> None:
    tokenizer = KINDS[kind]()
    vocabulary = tokenizer.vocabulary
    mask, eos = tokenizer.tokens([vocabulary.mask, vocabulary.eos])
    for name in ("[MASK]", mask):
        ids = tokenizer.encode(f"a {name} {eos}{name}").tolist()
        assert ids.count(vocabulary.mask) == 2
        assert vocabulary.eos not in ids
    (plain,) = tokenizer.encode_batch([f"a {eos}"])
    assert tokenizer.encode(f"a {eos}").tolist() == plain.tolist()


@pytest.mark.parametrize(
    "declared",
    [None, {}, {"normalized": True}, {"normalized": False}, {"normalized": False, "single_word": True}],
    ids=str,
)
def test_masks_are_found_however_they_are_declared(declared: dict[str, bool] | None) -> None:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "x", "##x"]
    backend = tokenizers.Tokenizer(tokenizers.models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    backend.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    backend.add_special_tokens(words[:4])
    if declared is not None:
        backend.add_tokens([tokenizers.AddedToken("[MASK]", **declared)])
    tokenizer = Tokenizer(backend)
    assert tokenizer.tokens(range(7)) == words
    assert tokenizer.decode([5, 4]) == "x [MASK]"
    assert tokenizer.encode("x[MASK]XX [MASK]").tolist() == [5, 4, 5, 6, 4]
    assert 4 not in tokenizer.encode_batch(["x [MASK]"])[0]


def test_one_space_before_a_mask_is_removed_if_tokens_include_spaces() -> None:
    specials = ["<pad>", "<unk>", "<s>", "</s>", "<mask>"]
    table = {word: i for i, word in enumerate([*specials, "a", " ", "\n"])}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(table, [], unk_token="<unk>"))
    backend.add_special_tokens(specials)
    assert Tokenizer(backend).encode("a <mask>").tolist() == [5, 6, 4]
    spaced = byte_level()
    assert spaced.tokens(spaced.encode("a \n [MASK]")) == ["a", "Ġ", "Ċ", "[MASK]"]
    for lstrip, normalizer in ((True, None), (False, tokenizers.normalizers.NFC())):
        taking = roberta_like(lstrip=lstrip, normalizer=normalizer)
        assert taking.tokens(taking.encode("a \n <mask>")) == ["a", "<mask>"]


@pytest.mark.parametrize("model", ["Unigram", "WordLevel", "BPE", "merged BPE", "marked BPE"])
def test_special_tokens_of_every_model_are_out_of_reach(model: str) -> None:
    specials = ["<pad>", "<unk>", "<s>", "</s>", "<mask>"]
    words = [*specials, "a", "<", "/", "s", ">", "</", "</s", "</s>a"]
    table = {word: i for i, word in enumerate(words)}
    merges = [("<", "/"), ("</", "s"), ("</s", ">"), ("</s>", "a")]
    marked = {word: i for i, word in enumerate([*specials, "a", "<", "@/", "@s", "@>", "</", "</s"])}
    made = {
        "Unigram": lambda: tokenizers.models.Unigram([(word, -1.0) for word in words], unk_id=1),
        "WordLevel": lambda: tokenizers.models.WordLevel(table, unk_token="<unk>"),
        "BPE": lambda: tokenizers.models.BPE(table, [], unk_token="<unk>", ignore_merges=True),
        "merged BPE": lambda: tokenizers.models.BPE(table, merges, unk_token="<unk>"),
        "marked BPE": lambda: tokenizers.models.BPE(
            marked, [("<", "@/"), ("</", "@s"), ("</s", "@>")], unk_token="<unk>", continuing_subword_prefix="@"
        ),
    }
    backend = tokenizers.Tokenizer(made[model]())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(specials)
    backend.add_tokens(["behind"])
    tokenizer = Tokenizer(backend)
    (ids,) = tokenizer.encode_batch(["a </s> behind <mask>"])
    spelled = tokenizer.tokens(ids)
    assert "</s>" not in spelled and "<mask>" not in spelled
    assert spelled[0] == "a" and "behind" in spelled
    if "merged" in model or "marked" in model:
        assert spelled[1:3] == ["</s", ">" if "merged" in model else "@>"]


def vocab_txt(path: Path, words: list[str]) -> Path:
    path.write_text("\n".join(words) + "\n", encoding="utf-8")
    return path


def test_vocab_txt(tmp_path: Path) -> None:
    words = ["[PAD]", "[unused0]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "t"]
    path = vocab_txt(tmp_path / "vocab.txt", words)
    tokenizer = Tokenizer.load(tmp_path)
    vocabulary = tokenizer.vocabulary
    assert (vocabulary.sos, vocabulary.eos, vocabulary.mask, vocabulary.unk) == (4, 5, 6, 3)
    assert vocabulary.pseudo == 2  # the first unused one except id 1
    assert vocabulary.ordinary.tolist() == [7, 8, 9, 10]
    assert tokenizer.encode("The cats [MASK] dog").tolist() == [7, 8, 9, 6, 3]
    assert Tokenizer.load(path).fingerprint == tokenizer.fingerprint
    roles = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    cased = Tokenizer.load(vocab_txt(tmp_path / "vocab.txt", [*roles, "Paris"]))
    assert cased.encode_batch(["Paris paris"])[0].tolist() == [5, 1]
    assert cased.vocabulary.pseudo is None, "there is no id to spare"
    for words, problem in (
        (roles, "has only special tokens: give another --tokenizer"),
        ([*roles[:4], "a"], r"has no \[MASK\] token \(nor <mask>\)"),
    ):
        with pytest.raises(UniclozeError, match=rf"vocab\.txt {problem}"):
            Tokenizer.load(vocab_txt(path, words))


BERT_WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "paris", "é", "e", "中", "##国", "中国"]


@pytest.mark.parametrize("capitals", [False, True])
@pytest.mark.parametrize("lowercase", [None, False, True])
@pytest.mark.parametrize("accents", [None, False, True])
@pytest.mark.parametrize("ideographs", [None, False, True])
def test_how_text_is_put_for_a_vocab_txt(
    tmp_path: Path, capitals: bool, lowercase: bool | None, accents: bool | None, ideographs: bool | None
) -> None:
    """As in Transformers' configuration, if it says whether to lower-case; otherwise by the vocabulary's capitals."""
    transformers = pytest.importorskip("transformers")
    vocab_txt(tmp_path / "vocab.txt", [*BERT_WORDS, *(["Paris", "É"] if capitals else [])])
    values = {"do_lower_case": lowercase, "strip_accents": accents, "tokenize_chinese_chars": ideographs}
    config = {"tokenizer_class": "BertTokenizer"} | {key: value for key, value in values.items() if value is not None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer.load(tmp_path / "vocab.txt")
    assert tokenizer.lowercase == (not capitals if lowercase is None else lowercase)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"do_lower_case": tokenizer.lowercase}))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in ("Paris", "paris É é", "中国"):
        assert tokenizer.encode(text).tolist() == theirs(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("key", ["do_lower_case", "strip_accents", "tokenize_chinese_chars"])
def test_a_tokenizer_json_that_its_configuration_contradicts(tmp_path: Path, key: str) -> None:
    transformers = pytest.importorskip("transformers")
    saved = transformers.BertTokenizer(vocab={word: i for i, word in enumerate(BERT_WORDS)}, do_lower_case=True)
    saved.save_pretrained(tmp_path)
    file = tmp_path / "tokenizer_config.json"
    config = json.loads(file.read_text())
    for said in (True, None):
        file.write_text(json.dumps(config | {key: said}))
        assert Tokenizer.load(tmp_path).encode("É").tolist() == [7]
    file.write_text(json.dumps(config | {key: False}))
    does = {"do_lower_case": "lower-case", "strip_accents": "strip accents"}.get(key, "set ideographs apart")
    says = rf"tokenizer_config\.json: {key} is false, but .*tokenizer\.json does {does}: correct whichever"
    with pytest.raises(UniclozeError, match=says):
        Tokenizer.load(tmp_path)
    for generic in ("PreTrainedTokenizerFast", "TokenizersBackend"):  # they use only tokenizer.json
        file.write_text(json.dumps(config | {key: False, "tokenizer_class": generic}))
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
        for text in ("É", "中国", "Paris"):
            assert Tokenizer.load(tmp_path).encode(text).tolist() == theirs(text)["input_ids"][1:-1]
    file.write_text(json.dumps(config | {key: "no"}))
    with pytest.raises(UniclozeError, match=rf"{key} is no: give true or false"):
        Tokenizer.load(tmp_path)


def test_sentencepieces_case_is_compared_too(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    specials = [(name, 0.0) for name in ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")]
    pieces = [*specials, ("▁e", -1.0), ("▁É", -1.0)]
    transformers.AlbertTokenizer(vocab=pieces).save_pretrained(tmp_path)
    assert Tokenizer.load(tmp_path).encode("É").tolist() == [5]
    file = tmp_path / "tokenizer_config.json"
    said = json.loads(file.read_text())
    file.write_text(json.dumps(said | {"tokenize_chinese_chars": True}))  # not a key of this class
    assert Tokenizer.load(tmp_path).lowercase
    file.write_text(json.dumps(said | {"do_lower_case": False}))
    with pytest.raises(UniclozeError, match=r"do_lower_case is false, but .* does lower-case"):
        Tokenizer.load(tmp_path)
    pieces[:] = [piece for piece in pieces if piece[0] != "▁e"]
    transformers.AlbertTokenizer(vocab=pieces, do_lower_case=False).save_pretrained(tmp_path)
    file.write_text(json.dumps(json.loads(file.read_text()) | {"do_lower_case": True}))
    with pytest.raises(UniclozeError, match=r"do_lower_case is true, but .* does not lower-case"):
        Tokenizer.load(tmp_path)


def test_roberta_names(tmp_path: Path) -> None:
    words = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "word", "[P]"]
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path)
    vocabulary = tokenizer.vocabulary
    assert (vocabulary.sos, vocabulary.pad, vocabulary.eos, vocabulary.unk) == (0, 1, 2, 3)
    assert (vocabulary.mask, vocabulary.pseudo) == (4, 6)
    assert vocabulary.ordinary.tolist() == [5]
    assert tokenizer.decode([0, 5, 5, 2]) == "<s> word word </s>"
    assert tokenizer.decode([0, 5, 5, 2], skip_special=True) == "word word", "though they are not declared special"


def test_declared_special_tokens_have_the_roles(tmp_path: Path) -> None:
    """MPNet's vocabulary also contains BERT's special tokens, as words that no text produces."""
    transformers = pytest.importorskip("transformers")
    words = ["<s>", "<pad>", "</s>", "<unk>", "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "<mask>"]
    saved = transformers.MPNetTokenizer(vocab={word: i for i, word in enumerate(words)})
    saved.save_pretrained(tmp_path)
    for _ in range(2):
        found = Tokenizer.load(tmp_path / "tokenizer.json").vocabulary
        assert (found.sos, found.pad, found.eos, found.unk, found.mask) == (0, 1, 2, 5, 11)
        (tmp_path / "tokenizer_config.json").unlink(missing_ok=True)


@pytest.mark.parametrize(("name", "content", "problem"), [
    ("", b"", r"holds no tokenizer\.json or vocab\.txt"),
    ("nowhere.json", b"", r"There is no .*nowhere\.json"),
    ("a.json", b'{"model": "?"}', r"a\.json is damaged or not a tokenizer\.json"),
    ("v.txt", b"[PAD]\n\xff\n", r"v\.txt is not valid UTF-8 at byte 6"),
    ("w.txt", b"a\na\n", r"w\.txt:2 repeats the token"),
])  # fmt: skip
def test_files_that_are_not_a_tokenizer_are_named(tmp_path: Path, name: str, content: bytes, problem: str) -> None:
    if content:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UniclozeError, match=problem):
        Tokenizer.load(tmp_path / name)


@pytest.mark.parametrize("settings", [TokenizerSettings(vocab_size=20), TokenizerSettings(kind="bpe", vocab_size=256)])
def test_a_vocabulary_too_small(settings: TokenizerSettings) -> None:
    with pytest.raises(UsageError, match=r"tokenizer\.vocab_size is \d+, too small .* at least \d+"):
        Tokenizer.train(TEXTS, settings)


def test_whitespace_tokenizer() -> None:
    tokenizer = whitespace_tokenizer("x1 x2 [MASK] x1 x3")
    ids = tokenizer.encode("x1 x2 [MASK] x1 x3")
    assert tokenizer.tokens(ids) == ["x1", "x2", "[MASK]", "x1", "x3"]
    assert tokenizer.tokens(tokenizer.vocabulary.ordinary) == ["x1", "x2", "x3"]


@pytest.mark.parametrize("name", ["bert-base-uncased", "bert-base-cased", "unilm-base-cased"])
def test_released_vocabularies(shared_data: Path, name: str) -> None:
    tokenizer = Tokenizer.load(shared_data / "vocab" / f"{name}-vocab.txt")
    vocabulary = tokenizer.vocabulary
    assert tokenizer.lowercase == ("uncased" in name)
    assert tokenizer.tokens([vocabulary.sos, vocabulary.eos, vocabulary.mask]) == ["[CLS]", "[SEP]", "[MASK]"]
    assert vocabulary.size in (28996, 30522) and vocabulary.pseudo is not None
    assert tokenizer.decode(tokenizer.encode("unbelievable words")) == "unbelievable words"


# The files of an exported tokenizer, value for value


def pieces(*words: str) -> Tokenizer:
    """Word pieces; those in brackets are special tokens."""
    backend = tokenizers.Tokenizer(tokenizers.models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    backend.add_special_tokens([word for word in words if word[0] in "[<"])
    return Tokenizer(backend)


def read(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    document, config = (json.loads((folder / name).read_text()) for name in ("tokenizer.json", "tokenizer_config.json"))
    return document, config


ROLES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.mark.parametrize(("words", "wanted", "expected"), [
    (["[PAD]", "[unused1]", *ROLES[1:], "a"], None, (0, None)),
    (["[PAD]", "[unused1]", *ROLES[1:], "a"], 0, (0, None)),
    (["[PAD]", "[unused1]", *ROLES[1:], "a"], 1, (1, None)),
    (["[unused0]", "[PAD]", *ROLES[1:], "a"], 1, (1, None)),
    ([*ROLES, "a"], 1, (1, (0, 1))),
    (["[PAD]", "a", *ROLES[1:]], 1, (1, (0, 1))),
    (["[PAD]", "[MASK]", *ROLES[1:4], "a"], 1, (1, (0, 1))),
    (["[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]", "a"], 1, (1, (2, 1))),
    (["[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]", "a"], 0, (0, (2, 0))),
    (["[PAD]", "[EXTRA0]", *ROLES[1:], "[EXTRA1]", "a"], 1, (1, (0, 1))),
    (["[PAD]", "<extra_id_0>", *ROLES[1:], "a"], 1, (1, (0, 1))),
    (["[PAD]", "[P]", *ROLES[1:], "a"], 1, (1, (0, 1))),
    (["[unused5]", "[PAD]", *ROLES[1:], "a"], 0, (0, (1, 0))),
], ids=lambda value: " ".join(value[:3]) if isinstance(value, list) else str(value))  # fmt: skip
def test_padding_is_an_id_that_means_nothing_or_changes_places(
    words: list[str], wanted: int | None, expected: tuple[int, tuple[int, int] | None]
) -> None:
    """[unused5] is the pseudo mask of a vocabulary without [P]; sentinels are used by objectives."""
    assert padding_of(pieces(*words), wanted) == expected


def test_the_configuration_of_an_exported_tokenizer(tmp_path: Path) -> None:
    write_tokenizer(wordpiece(), tmp_path, plain_format(wordpiece(), 77))
    assert read(tmp_path)[1] == {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 77,
        "padding_side": "right", "truncation_side": "right",
        "pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[SOS]", "sep_token": "[EOS]", "mask_token": "[MASK]",
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"], "clean_up_tokenization_spaces": False,
    }  # fmt: skip


def test_a_model_without_segments_is_given_none(tmp_path: Path) -> None:
    write_tokenizer(wordpiece(), tmp_path, plain_format(wordpiece(), 8), takes_segments=False)
    document, config = read(tmp_path)
    assert config["model_input_names"] == ["input_ids", "attention_mask"]
    assert {slot["type_id"] for part in document["post_processor"]["pair"] for slot in part.values()} == {0}


def test_swapped_ids_in_every_place(tmp_path: Path) -> None:
    own = pieces("[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]", "a", "b")
    write_tokenizer(own, tmp_path, plain_format(own, 8), swapped=(2, 1), pad=1)
    document, config = read(tmp_path)
    theirs = ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]", "a", "b"]
    assert document["model"]["vocab"] == {token: i for i, token in enumerate(theirs)}
    assert [(added["id"], added["content"]) for added in document["added_tokens"]] == list(enumerate(theirs[:5]))
    assert document["post_processor"]["special_tokens"] == {
        "[CLS]": {"id": "[CLS]", "ids": [0], "tokens": ["[CLS]"]},
        "[SEP]": {"id": "[SEP]", "ids": [2], "tokens": ["[SEP]"]},
    }
    assert config["pad_token"] == "[PAD]"
    again = Tokenizer.load(tmp_path)
    assert again.tokens(range(7)) == theirs
    assert (again.vocabulary.pad, again.vocabulary.eos) == (1, 2)


def test_special_tokens_behind_the_vocabulary_can_be_swapped(tmp_path: Path) -> None:
    """As in a tokenizer built without them; the library would renumber them."""
    transformers = pytest.importorskip("transformers")
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(tokenizers.models.BPE({token: i for i, token in enumerate(letters)}, []))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>", "<unk>", "<pad>", "<mask>"])
    own = Tokenizer(backend)
    pad, swapped = padding_of(own, 1)
    assert (pad, swapped) == (1, (259, 1))
    write_tokenizer(own, tmp_path, plain_format(own, 64), swapped=swapped, pad=pad, takes_segments=False)
    ids = swapped_ids(len(own), swapped)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert [theirs.convert_tokens_to_ids(token) for token in own.tokens(range(len(own)))] == ids.tolist()
    text = 'x! <mask> "#'
    assert theirs(text)["input_ids"] == ids[[256, *own.encode(text), 257]].tolist()
    assert (theirs.pad_token_id, theirs.mask_token_id) == (1, 260)


def test_other_properties_of_a_mask_are_kept(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer.from_str(json.dumps(roberta_like(lstrip=False).exported()))
    backend.normalizer = None
    backend.add_special_tokens([tokenizers.AddedToken("<mask>", rstrip=True, normalized=False)])
    write_tokenizer(Tokenizer(backend), tmp_path, plain_format(Tokenizer(backend), 8), takes_segments=False)
    (mask,) = [added for added in read(tmp_path)[0]["added_tokens"] if added["content"] == "<mask>"]
    assert (mask["rstrip"], mask["lstrip"], mask["normalized"]) == (True, False, True)
