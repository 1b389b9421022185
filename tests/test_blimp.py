"""BLiMP against a scorer of one sentence and one mask at a time; what is read, skipped, refused and reported."""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import re
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import nlu_toys
from corpora import write_corpus
from decoding_toys import CAUSAL, WORDS, loaded, one_by_one
from unicloze.errors import UniclozeError, UsageError
from unicloze.evaluation.blimp import (
    TIE,
    blimp,
    frequent_word_list,
    keep_known,
    listed_words,
    read_pairs,
    words_of,
)
from unicloze.settings import DataSettings, TokenizerSettings
from unicloze.text.prepare import prepare_data
from unicloze.training.loading import LoadedModel

Pairs = Iterable[tuple[str, str]]


def record(good: str, bad: str, uid: str, field: str = "syntax", term: str = "order") -> dict[str, Any]:
    return {"sentence_good": good, "sentence_bad": bad, "UID": uid, "field": field, "linguistics_term": term}


def write_set(folder: Path, pairs: Pairs, uid: str, *groups: str) -> Path:
    folder.mkdir(exist_ok=True)
    return nlu_toys.write(folder / f"{uid}.jsonl", [record(good, bad, uid, *groups) for good, bad in pairs])


def random_pairs(count: int, seed: int = 0) -> list[tuple[str, str]]:
    rng = np.random.default_rng(seed)
    texts = [" ".join(rng.choice(WORDS, rng.integers(3, 9))) for _ in range(2 * count)]
    return list(zip(texts[::2], texts[1::2], strict=True))


@pytest.fixture
def sets(tmp_path: Path) -> Path:
    """Three sets of different sizes, two of them of one field and two of one phenomenon."""
    folder = tmp_path / "blimp"
    write_set(folder, random_pairs(7), "a_first", "morphology", "agreement")
    write_set(folder, random_pairs(4, seed=1), "b_second", "syntax", "agreement")
    write_set(folder, random_pairs(5, seed=2), "c_third", "syntax", "islands")
    return folder


def brute_force(model: LoadedModel, sets: Path, measure: str) -> dict[str, float]:
    accuracy = {}
    for file in sets.iterdir():
        records = [json.loads(line) for line in file.read_text().splitlines()]
        right = [
            sum(one_by_one(model, record["sentence_good"], measure))
            - sum(one_by_one(model, record["sentence_bad"], measure))
            for record in records
        ]
        assert min(map(abs, right)) > 10 * TIE, "choose other pairs: these prove nothing"
        accuracy[file.stem] = sum(margin > 0 for margin in right) / len(right)
    return accuracy


def test_accuracy_equals_that_of_a_scorer_of_one_mask_at_a_time(sets: Path) -> None:
    model = loaded()
    expected = brute_force(model, sets, "pseudo")
    assert len(set(expected.values())) > 1
    for batch_size in (3, 1000):
        result = blimp(model, sets, batch_size=batch_size, progress=False)
        assert {one.name: one.accuracy["pseudo"] for one in result.sets} == pytest.approx(expected)
    assert result.measures == ["pseudo"]


def test_a_causal_model_is_measured_by_the_chain_rule(sets: Path) -> None:
    model = loaded(**CAUSAL)
    result = blimp(model, sets, progress=False)
    assert result.measures == ["chain"]
    assert {one.name: one.accuracy["chain"] for one in result.sets} == pytest.approx(brute_force(model, sets, "chain"))


def test_means_are_over_sets(sets: Path) -> None:
    result = blimp(loaded(), sets, mode="both", progress=False)
    assert result.measures == ["pseudo", "chain"]
    for measure in result.measures:
        a, b, c = (one.accuracy[measure] for one in result.sets)
        assert result.accuracy[measure] == pytest.approx((a + b + c) / 3)
        assert {name: means[measure] for name, means in result.fields.items()} == pytest.approx(
            {"morphology": a, "syntax": (b + c) / 2}
        )
        assert {name: means[measure] for name, means in result.terms.items()} == pytest.approx(
            {"agreement": (a + b) / 2, "islands": c}
        )
    assert [(one.name, one.pairs) for one in result.sets] == [("a_first", 7), ("b_second", 4), ("c_third", 5)]
    assert result.pairs == 16


def prefers(word: str) -> LoadedModel:
    """A model that gives one word a high probability everywhere."""
    model = loaded()
    with torch.no_grad():
        model.model.token_head.bias[model.tokenizer.token_id(word)] = 20.0
    return model


def test_a_known_answer(tmp_path: Path) -> None:
    write_set(tmp_path, [("the list list", "the items items"), ("items of list", "list of list")], "known")
    result = blimp(prefers("list"), tmp_path, mode="both", progress=False)
    assert result.accuracy == {"pseudo": 0.5, "chain": 0.5}
    assert blimp(prefers("list"), tmp_path, limit=1, progress=False).accuracy == {"pseudo": 1.0}
    assert blimp(prefers("items"), tmp_path, mode="both", progress=False).accuracy == {"pseudo": 0.5, "chain": 0.5}


def test_ties_are_wrong_and_reported(tmp_path: Path) -> None:
    same = [("the list", "the list"), ("The LIST", "the list"), ("the list", "the items")]
    write_set(tmp_path, same, "ties")
    result = blimp(prefers("list"), tmp_path, progress=False)
    assert (result.accuracy["pseudo"], result.ties) == (pytest.approx(1 / 3), {"pseudo": 2})
    assert "ties, counted as wrong: 2 by pseudo" in str(result)


def test_orders_that_a_model_cannot_distinguish_are_ties(tmp_path: Path) -> None:
    model = loaded()
    torch.nn.init.zeros_(model.model.backbone.embeddings.positions.weight)
    pairs = [("the list of items", "items the of list"), ("return x , or not", "or not x , return")]
    write_set(tmp_path, pairs, "bags")
    assert blimp(model, tmp_path, progress=False).ties == {"pseudo": 2}


def test_pairs_of_unknown_tokens_are_left_out_and_counted(tmp_path: Path) -> None:
    pairs = [("the list", "the items"), ("the zzz", "the list"), ("the list", "the \u200b zzz"), ("the list", "\u200b")]
    write_set(tmp_path, pairs, "some")
    write_set(tmp_path, [("zzz", "the")], "none", "semantics", "other")
    result = blimp(prefers("list"), tmp_path, progress=False)
    none, some = result.sets
    assert (some.pairs, some.unknown, some.accuracy) == (1, 3, {"pseudo": 1.0})
    assert (none.pairs, none.unknown, none.accuracy) == (0, 1, {})
    assert (result.accuracy, list(result.fields), result.unknown) == ({"pseudo": 1.0}, ["syntax"], 4)
    assert "4 pairs left out: they have tokens" in str(result)
    with pytest.raises(UniclozeError, match=r"Every pair of .* has tokens not in the model's vocabulary"):
        blimp(loaded(), tmp_path / "none.jsonl", progress=False)


def test_sentences_longer_than_the_model_reads_are_scored_in_parts(tmp_path: Path) -> None:
    model = loaded(positions=6)
    long, short = "the list of items is empty and not", "x or x"
    write_set(tmp_path, [(long, short), (short, long)], "long")
    with pytest.warns(UserWarning, match=r"longer than the 4 tokens .*\(1 of 2\)"):
        result = blimp(model, tmp_path, progress=False)
    assert result.accuracy == {"pseudo": 0.5} and result.ties == {"pseudo": 0}


def test_results_print_and_serialise(sets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = blimp(loaded(), sets, mode="both", progress=False)
    assert capsys.readouterr() == ("", "")
    assert blimp(loaded(), sets, mode="both") == result, "a second run gives the same"
    err = capsys.readouterr().err
    assert all(re.search(rf"{name}: (\d+) of \1 tokens", err) for name in ("pseudo-log-likelihood", "chain rule"))
    data = json.loads(json.dumps(result.to_dict()))
    assert data["sets"][0]["name"] == "a_first" and data["model"] == "nowhere"
    rows = [line.split() for line in str(result).splitlines() if line]
    percent = [f"{result.accuracy[measure]:.1%}" for measure in result.measures]
    assert ["overall", "3", *percent] in rows
    assert [row[0] for row in rows][1:6] == ["morphology", "syntax", "agreement", "islands", "overall"]


def test_each_sequence_of_tokens_is_scored_once(sets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_set(sets, [("the list", "the items"), ("The list", "THE ITEMS"), ("the items", "the list")], "d_again")
    model, rows = loaded(), []
    logits = model.model.logits
    monkeypatch.setattr(model.model, "logits", lambda batch: rows.append(len(batch.input_ids)) or logits(batch))
    blimp(model, sets / "d_again.jsonl", progress=False)
    assert sum(rows) == 4


# What is read


def pack(archive: Path, members: dict[str, bytes], mode: str = "w:gz") -> Path:
    with tarfile.open(archive, mode) as tar:  # type: ignore[call-overload]
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return archive


@pytest.mark.parametrize(("ending", "mode"), [("tar.gz", "w:gz"), ("tar", "w"), ("tar.xz", "w:xz"), ("tgz", "w:gz")])
def test_an_archive_equals_its_folder(sets: Path, tmp_path: Path, ending: str, mode: str) -> None:
    members = {f"data/{file.name}": file.read_bytes() for file in sets.iterdir()}
    archive = pack(tmp_path / f"all.{ending}", {"README": b"no set", "data/._a.jsonl": b"\0", **members}, mode)
    assert read_pairs(archive) == read_pairs(sets)


def test_an_archive_is_never_unpacked(sets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    good = {"../../a.jsonl": (sets / "a_first.jsonl").read_bytes(), "/b.jsonl": (sets / "b_second.jsonl").read_bytes()}
    archive = pack(tmp_path / "evil.tar", good, "w")
    with tarfile.open(archive, "a") as tar:
        for name, kind in (("link", tarfile.SYMTYPE), ("pipe", tarfile.FIFOTYPE), ("folder", tarfile.DIRTYPE)):
            member = tarfile.TarInfo(f"{name}.jsonl")
            member.type, member.linkname = kind, str(sets / "c_third.jsonl")
            tar.addfile(member)
    before = sorted(tmp_path.rglob("*"))
    assert [len(one.pairs) for one in read_pairs(archive)] == [7, 4], "regular members only"
    assert sorted(tmp_path.rglob("*")) == before and not list(empty.iterdir())


def test_archives_far_too_large_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "folder"
    content = write_set(folder, random_pairs(50), "big").read_bytes()
    archive = pack(tmp_path / "big.tar.gz", {"./big.jsonl": content})
    monkeypatch.setattr("unicloze.evaluation.blimp.LARGEST_FILE", len(content) - 1)
    for place in (archive, folder):
        with pytest.raises(UniclozeError, match=r"big\.jsonl"):
            read_pairs(place)
    monkeypatch.undo()
    monkeypatch.setattr("unicloze.evaluation.blimp.LARGEST_ARCHIVE", 2 * len(content))
    assert read_pairs(archive)
    padded = pack(tmp_path / "padded.tar.gz", {"zeros.bin": bytes(2 * len(content)), "big.jsonl": content})
    with pytest.raises(UniclozeError, match="unpacks to far more than BLiMP"):
        read_pairs(padded)


def test_a_damaged_archive_is_reported(sets: Path, tmp_path: Path) -> None:
    members = {file.name: file.read_bytes() for file in sets.iterdir()}
    whole = pack(tmp_path / "whole.tar.gz", members).read_bytes()
    places = range(24, len(whole), 29)
    damaged = {
        "header": whole[:5],
        **{f"flipped {at}": whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :] for at in places},
        **{f"cut at {at}": whole[:at] for at in (10, 20, *places)},
        "no archive": b"no archive at all " * 100,
        "nothing": b"",
        "inner": gzip.compress(gzip.decompress(whole)[:1500]),
    }
    for name, content in damaged.items():
        (archive := tmp_path / "damaged.tar.gz").write_bytes(content)
        with pytest.raises(UniclozeError, match=r"damaged\.tar\.gz") as refused:
            read_pairs(archive)
            pytest.fail(f"{name}: not noticed")
        assert "\n" not in str(refused.value), name


def damaged(**changes: Any) -> str:
    fields = record("the list", "list the", "some_set") | changes
    return json.dumps({key: value for key, value in fields.items() if value is not ...})


@pytest.mark.parametrize(("line", "says"), [
    ('{"sentence_good": "a', "this is not JSON"),
    ("[1, 2]", "a record must be a JSON object"),
    (damaged(sentence_bad=...), 'no text in the field "sentence_bad"'),
    (damaged(sentence_bad=7), 'no text in the field "sentence_bad"'),
    (damaged(sentence_good=" "), 'no text in the field "sentence_good"'),
    (damaged(sentence_good="a \udcff"), "half of a surrogate pair"),
    (damaged(UID=None), 'no text in the field "UID"'),
    (damaged(UID="other_set"), "belongs to the set other_set, but the lines before it to some_set"),
    ("[" * 100_000, "this is not JSON"),
    ("\xff", "this is not UTF-8"),
], ids=lambda value: value[:40])  # fmt: skip
def test_a_damaged_line_is_named(tmp_path: Path, line: str, says: str) -> None:
    file = write_set(tmp_path, [("the list", "list the")], "some_set")
    file.write_bytes(file.read_bytes() + b"\n" + line.encode("latin-1") + b"\n")
    with pytest.raises(UniclozeError, match=f"some_set.jsonl, line 3\\b.*{says}") as told:
        read_pairs(tmp_path)
    assert str(told.value).startswith(f"{file}, line 3")
    archive = pack(tmp_path / "some.tar.gz", {"data/some_set.jsonl": file.read_bytes()})
    with pytest.raises(UniclozeError, match=f"some.tar.gz:data/some_set.jsonl, line 3\\b.*{says}"):
        read_pairs(archive)


def test_folders_without_sets_are_reported(tmp_path: Path) -> None:
    with pytest.raises(UniclozeError, match=r"There is no .*nowhere: name the folder"):
        read_pairs(tmp_path / "nowhere")
    with pytest.raises(UniclozeError, match=r"has no \.jsonl files"):
        read_pairs(tmp_path)
    file = write_set(tmp_path, [], "empty")
    with pytest.raises(UniclozeError, match=r"empty\.jsonl has no pairs"):
        read_pairs(tmp_path)
    file.write_bytes(write_set(tmp_path, [("a", "b")], "twice").read_bytes())
    with pytest.raises(UniclozeError, match=r"twice\.jsonl is a second file of the set twice"):
        read_pairs(tmp_path)


def test_groups_are_named_as_in_the_paper(tmp_path: Path) -> None:
    write_set(tmp_path, [("a", "b")], "one", "syntax/semantics", "s-selection")
    (one,) = read_pairs(tmp_path)
    assert (one.field, one.term) == ("syntax_semantics", "argument_structure")


# Filters


def test_words() -> None:
    assert words_of("Who hasn't hugged Bob\u2019s high-school friend, 2 times?") == [
        "who", "hasn't", "hugged", "bob's", "high", "school", "friend", "2", "times",
    ]  # fmt: skip


def test_a_filter_keeps_pairs_of_known_words(tmp_path: Path) -> None:
    pairs = [("the list", "list the"), ("the state", "the list"), ("the list", "the State.")]
    write_set(tmp_path, pairs, "some")
    write_set(tmp_path, [("a state", "state a")], "none")
    none, some = keep_known(read_pairs(tmp_path), {"the", "list"})
    assert (some.pairs, some.filtered, list(none.pairs), none.filtered) == (pairs[:1], 2, [], 1)
    words = tmp_path / "words.txt"
    words.write_text("\ufeffThe\nLIST\n\n", encoding="utf-8")
    result = blimp(prefers("list"), tmp_path, filter_by=words, progress=False)
    assert (result.pairs, result.filtered) == (1, 3)
    assert "3 pairs left out by the filter" in str(result)
    words.write_text("state\nthe\nlist\na\n")
    limited = blimp(prefers("list"), tmp_path, filter_by=words, limit=1, progress=False)
    assert (limited.pairs, limited.filtered) == (2, 0)
    words.write_text("zebra\n")
    with pytest.raises(UniclozeError, match="leaves no pair"):
        blimp(loaded(), tmp_path, filter_by=words, progress=False)


def test_invalid_word_lists(tmp_path: Path) -> None:
    words = tmp_path / "words.txt"
    bad = {b"one\ntwo words\n": "words.txt, line 2 has several", b"\n": "no word", b"\xff": "not UTF-8"}
    for content, says in bad.items():
        words.write_bytes(content)
        with pytest.raises(UniclozeError, match=says):
            listed_words(words)
    with pytest.raises(UniclozeError, match="or `corpus`"):
        listed_words(tmp_path / "nowhere.txt")


def test_words_of_the_corpus_must_occur_twice(tmp_path: Path) -> None:
    (tmp_path / "text.jsonl").write_text('{"body": "The list. A state"}\n{"body": "the LIST\'s list"}\n')
    data = DataSettings(corpus=[str(tmp_path / "text.jsonl")], text_field="body")
    wanted = {"the", "list", "list's", "state", "zebra"}
    assert frequent_word_list(data, wanted, progress=False) == {"the", "list"}
    write_set(tmp_path / "pairs", [("the list", "list the"), ("the state", "state the")], "some")
    model = loaded()
    model = dataclasses.replace(model, recipe=dataclasses.replace(model.recipe, data=data))
    result = blimp(model, tmp_path / "pairs", filter_by="corpus", progress=False)
    assert (result.pairs, result.filtered) == (1, 1)
    with pytest.raises(UniclozeError, match=r"no text file at .*gone"):
        frequent_word_list(DataSettings(corpus=[str(tmp_path / "gone.txt")]), wanted, progress=False)


def test_the_corpus_of_a_prepared_folder_is_the_one_it_was_made_from(tmp_path: Path) -> None:
    write_corpus(tmp_path / "text")
    data = DataSettings(corpus=[str(tmp_path / "text")])
    prepare_data(data, TokenizerSettings(vocab_size=300), tmp_path / "prepared", progress=False)
    prepared = DataSettings(corpus=["elsewhere"], prepared=str(tmp_path / "prepared"))
    wanted = {"cat", "river", "zebra"}
    assert frequent_word_list(prepared, wanted, progress=False) == {"cat", "river"}


# Wrong arguments


@pytest.mark.parametrize(("settings", "arguments", "says"), [
    ({}, {"mode": "ae"}, "mode is 'ae': give one of pseudo, chain, both"),
    ({}, {"batch_size": 0}, "batch_size is 0"),
    ({"targets": ["ae"]}, {"mode": "chain"}, "by the chain rule, which `chain` asks for: ask for `pseudo`"),
    ({"targets": ["ae"]}, {"mode": "both"}, "which `chain` asks for"),
    ({"targets": ["par"]}, {"mode": "pseudo"}, "does not define a pseudo-log-likelihood"),
], ids=str)  # fmt: skip
def test_bad_arguments_are_refused(sets: Path, settings: dict, arguments: dict, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        blimp(loaded(**settings), sets, progress=False, **arguments)


# Real data


@pytest.mark.slow
def test_all_of_blimp_is_read(shared_data: Path) -> None:
    sets = read_pairs(shared_data / "blimp" / "blimp.tar.gz")
    assert (len(sets), {len(one.pairs) for one in sets}) == (67, {1000})
    assert {one.field for one in sets} == {"morphology", "syntax", "semantics", "syntax_semantics"}
    by_term = {term: sum(one.term == term for one in sets) for term in {one.term for one in sets}}
    assert by_term == {
        "anaphor_agreement": 2, "argument_structure": 9, "binding": 7, "control_raising": 5,
        "determiner_noun_agreement": 8, "ellipsis": 2, "filler_gap_dependency": 7, "irregular_forms": 2,
        "island_effects": 8, "npi_licensing": 7, "quantifiers": 4, "subject_verb_agreement": 6,
    }  # fmt: skip
    pairs = [pair for one in sets for pair in one.pairs]
    assert sum(good == bad for good, bad in pairs) == 7, "a few of BLiMP's pairs have two identical sentences"
