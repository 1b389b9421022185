"""Vectors of texts against a separate pass for each."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from decoding_toys import TEXT, byte_level, loaded, roberta_like, sentencepiece
from toys import random_windows
from unicloze import verbs
from unicloze.decoding.embed import embed, rows_to_encode
from unicloze.errors import UsageError
from unicloze.example import Batch, Leading
from unicloze.settings import UseSettings
from unicloze.training.loading import LoadedModel
from unicloze.visibility import bool_mask

RELATIVE = pytest.mark.parametrize("relative", [False, True])


def last_hidden_states(
    model: LoadedModel, text: str, *, left_to_right: bool = False, most: int | None = None
) -> np.ndarray:
    """Hidden states of "[SOS] text [EOS]" in a hand-written batch, at most `most` tokens. *Shape:* (tokens, hidden size)"""
    vocabulary = model.tokenizer.vocabulary
    (ids,) = model.tokenizer.encode_batch([text])
    tokens = torch.tensor([[vocabulary.sos, *ids.tolist()[:most], vocabulary.eos]])
    n = tokens.shape[1]
    batch = Batch(
        input_ids=tokens,
        position_ids=torch.arange(n)[None],
        segment_ids=torch.zeros_like(tokens),
        intervals=torch.tensor([[[0, i + 1 if left_to_right else n, 0, 0] for i in range(n)]], dtype=torch.int32),
        leading=Leading(slots=0 if left_to_right else n, keys=n, alike=True, in_order=True, shorter=None),
        targets={},
        text_tokens=n,
    )
    with torch.no_grad():
        return model.model.backbone(batch)[-1][0].numpy()


@RELATIVE
def test_vectors_are_pooled_last_hidden_states(relative: bool) -> None:
    model = loaded(relative=relative)
    texts = [TEXT, "the", "play the list", "of " * 30]
    for batch_size in (2, 32):
        mean, first, last = (embed(model, texts, pooling=p, batch_size=batch_size) for p in ("mean", "first", "last"))
        assert mean.shape == first.shape == last.shape == (4, 32) and mean.dtype == np.float32
        for i, text in enumerate(texts):
            states = last_hidden_states(model, text)
            np.testing.assert_allclose(mean[i], states.mean(axis=0), atol=1e-5)
            np.testing.assert_allclose(first[i], states[0], atol=1e-5)
            np.testing.assert_allclose(last[i], states[-1], atol=1e-5)


@pytest.mark.parametrize("threads", [2, 6])
def test_passes_at_once_make_the_same_vectors(threads: int) -> None:
    model, texts, before = loaded(), [f"{TEXT} {'of ' * length}" for length in range(12)], torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = embed(model, texts, batch_size=2)
        torch.set_num_threads(threads)
        np.testing.assert_array_equal(embed(model, texts, batch_size=2), one)
        assert torch.get_num_threads() == threads
        model.model.backbone.layers[0].forward = None
        with pytest.raises(TypeError):
            embed(model, texts, batch_size=2)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


@RELATIVE
def test_a_causal_model_reads_from_left_to_right(relative: bool) -> None:
    model = loaded(relative=relative, use=UseSettings(visibility="left_to_right", pooling="last"))
    texts = [TEXT, "the", "play the list"]
    vectors = embed(model, texts)
    for text, vector in zip(texts, vectors, strict=True):
        states = last_hidden_states(model, text, left_to_right=True)
        np.testing.assert_allclose(vector, states[-1], atol=1e-5)
        assert np.abs(vector - last_hidden_states(model, text)[-1]).max() > 1e-3
    unread = loaded(relative=relative, use=UseSettings(visibility="left_to_right", pooling="first"))
    np.testing.assert_array_equal(embed(unread, texts), vectors)


@pytest.mark.parametrize("make", [None, byte_level, roberta_like, sentencepiece])
def test_a_truncated_text_is_its_first_tokens(make: Any) -> None:
    """Cut text is not tokenized again: it may have other tokens, and more than one window."""
    model = loaded(make() if make else None, positions=16)
    texts = [f"{'x' * size} Return naïve 東京 café {TEXT * 3}" for size in range(12)]
    for pooling, pooled in (("mean", lambda states: states.mean(axis=0)), ("last", lambda states: states[-1])):
        vectors = embed(model, texts, pooling=pooling, truncate=True)
        for text, vector in zip(texts, vectors, strict=True):
            np.testing.assert_allclose(vector, pooled(last_hidden_states(model, text, most=14)), atol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "first", "last"])
def test_the_recipe_defines_the_pooling(pooling: str) -> None:
    model = loaded(use=UseSettings(pooling=pooling))
    np.testing.assert_array_equal(embed(model, [TEXT]), embed(loaded(), [TEXT], pooling=pooling))


def test_rows_to_encode_follow_the_objective() -> None:
    masked = {"name": "masked", "targets": ["ae"]}
    causal = {
        "name": "causal",
        "targets": ["lm"],
        "visibility": "left_to_right",
        "segment_ids": [2, 2],
        "local_width": 2,
    }
    model = loaded(use=UseSettings(visibility="left_to_right"), mixture=[masked, {"label": "causal", **causal}])
    windows = random_windows(3, 9, short=True, seed=3)
    rows = rows_to_encode(windows, model.recipe)
    for row, length in enumerate(windows.lengths):
        causal_mask = np.tri(length, dtype=bool)
        np.testing.assert_array_equal(rows.visible(row), causal_mask)
        assert rows.local is not None
        local = bool_mask(rows.local[row, :length], length)
        np.testing.assert_array_equal(local, causal_mask & ~np.tri(length, k=-3, dtype=bool))
    assert (rows.segment_ids == 2).all() and rows.mutual.sum() == 0
    both_ways = rows_to_encode(windows, loaded().recipe)
    np.testing.assert_array_equal(both_ways.segment_ids, windows.segment_ids)
    np.testing.assert_array_equal(both_ways.mutual, windows.lengths)
    for row, length in enumerate(windows.lengths):
        assert both_ways.visible(row).all()
        padding = bool_mask(both_ways.intervals[row], 9)[length:]
        np.testing.assert_array_equal(padding, np.eye(9, dtype=bool)[length:])


def test_long_texts_are_pooled_over_all_their_windows() -> None:
    model = loaded(positions=8)
    words = TEXT.split()
    states = [last_hidden_states(model, " ".join(part)) for part in (words[:6], words[6:])]
    pooled = {"mean": np.concatenate(states).mean(axis=0), "first": states[0][0], "last": states[1][-1]}
    for pooling, expected in pooled.items():
        with pytest.warns(UserWarning, match=r"longer than the 6 tokens .*\(1 of 2\)"):
            vector, _ = embed(model, [TEXT, "the"], pooling=pooling)
        np.testing.assert_allclose(vector, expected, atol=1e-5)


def test_every_objective_gives_an_encoder() -> None:
    for settings in ({"targets": ["ae"]}, {"targets": ["par"]}, {"targets": ["par"], "masks_in_context": False}):
        np.testing.assert_array_equal(embed(loaded(**settings), [TEXT]), embed(loaded(), [TEXT]))
    assert embed(loaded(roberta_like()), ["a list"]).shape == (1, 32)


def test_vectors_keep_their_texts_when_they_are_pickled() -> None:
    found = verbs.embed(loaded(), iter(["the list", "the"]))  # type: ignore[arg-type]
    again = pickle.loads(pickle.dumps(found))
    assert again.texts == ["the list", "the"] and str(again) == str(found)
    assert [*found[:1].to_dict()[0]] == ["vector"]


def test_no_text_gives_no_vector() -> None:
    assert embed(loaded(), []).shape == (0, 32)


@pytest.mark.parametrize(("arguments", "message"), [
    ({"texts": ["the", ""]}, "text 2 of 2 is empty"),
    ({"texts": ["the", float("nan")]}, "text 2 of 2 is of type float: give a string"),
    ({"texts": "the"}, "texts is one string"),
    ({"texts": ["the"], "pooling": "first", "use": UseSettings(visibility="left_to_right")}, "its first slot has not read"),
    ({"texts": ["the"], "pooling": "max"}, "pooling is 'max': give one of mean, first, last"),
    ({"texts": ["the"], "batch_size": 0}, "batch_size is 0"),
])  # fmt: skip
def test_bad_input_is_refused(arguments: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        embed(loaded(use=arguments.pop("use", None)), **arguments)


def test_the_progress_through_a_file_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, file = loaded(), tmp_path / "texts.txt"
    file.write_text("the list\nthe [MASK]\n", encoding="utf-8")
    for verb, said in ((verbs.embed, "embed: 2 of 2 windows"), (verbs.score, "score: 6 of 6 predictions")):
        verb(model, file=file)
        assert said in capsys.readouterr().err
        verb(model, file=file, quiet=True)
        verb(model, "the list" if verb is verbs.score else ["the list"])
        assert not capsys.readouterr().err
    file.write_text("the [MASK]\n", encoding="utf-8")
    verbs.fill(model, file=file)
    assert "fill: 1 of 1 texts" in capsys.readouterr().err


def test_vectors_are_written_and_printed(tmp_path: Path) -> None:
    model, texts = loaded(), ["the list", "the"]
    file = tmp_path / "texts.txt"
    file.write_text("the list\nthe\n", encoding="utf-8")
    vectors = verbs.embed(model, texts)
    lines = [json.loads(line) for line in str(vectors).split("\n")]
    assert [line["text"] for line in lines] == texts and lines == vectors.to_dict()
    np.testing.assert_array_equal(np.array([line["vector"] for line in lines], dtype=np.float32), np.asarray(vectors))
    assert str(verbs.embed(model, texts[:1], out=tmp_path / "v.npy")) == f"{tmp_path / 'v.npy'}: 1 vector of 32"
    kept = verbs.embed(model, file=file, out=tmp_path / "v.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "v.npy", allow_pickle=False), vectors)
    assert str(kept) == f"{tmp_path / 'v.npy'}: 2 vectors of 32"
    verbs.embed(model, file=file, out=tmp_path / "v.jsonl")
    assert (tmp_path / "v.jsonl").read_text(encoding="utf-8") == f"{vectors}\n"
    assert str(vectors[0] * 0 + 1).startswith("[1. 1.")  # results computed from them print as any array
    assert sorted(path.name for path in tmp_path.iterdir()) == ["texts.txt", "v.jsonl", "v.npy"]
    with pytest.raises(UsageError, match=r"end the name in \.npy or \.jsonl"):
        verbs.embed(model, texts, out=tmp_path / "v.csv")
    with pytest.raises(UsageError, match="Give either a text or a file to embed"):
        verbs.embed(model)
