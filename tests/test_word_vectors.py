"""Word vectors by path or from counts: which tokens take them, what is refused, and runs that start from them."""

from __future__ import annotations

import gzip
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import nlu_toys
from test_growing_positions import german_pairs as pairs
from unicloze import verbs
from unicloze.errors import UniclozeError, UsageError
from unicloze.finetuning.initial import untrained
from unicloze.pretraining.run import pretrain_run
from unicloze.recipes import load_recipe, toy_overrides
from unicloze.text.count_vectors import REACH, information, neighbours_of, open_vectors, vectors_of
from unicloze.text.prepare import Prepared, open_or_prepare
from unicloze.training.initial import LENGTH, start_from_counts, start_from_vectors, words_of
from unicloze.training.loading import LoadedModel, load_model, ready_model

WIDTH = 32


def line(word: str, value: float, width: int = WIDTH) -> str:
    return f"{word} {' '.join([str(value)] * width)}\n"


@pytest.fixture
def start(tmp_path: Path) -> LoadedModel:
    network = load_recipe("transformer-tiny", {"tokenizer.vocab_size": 300, "model.hidden_size": WIDTH, "model.num_layers": 1,
                                               "model.decoder_layers": 1})  # fmt: skip
    return untrained(network, load_recipe("transformer-multi30k"), pairs(tmp_path))


@pytest.mark.parametrize("packed", [False, True])
def test_words_of_the_vocabulary_take_their_vectors_and_the_rest_stays(
    packed: bool, start: Any, tmp_path: Path
) -> None:
    table = start.model.backbone.embeddings.tokens.weight
    before, known = table.detach().clone(), {text: number for number, text in words_of(start.tokenizer).items()}
    inner = next(token for token in start.tokenizer.tokens(range(len(start.tokenizer))) if token.startswith("at"))
    content = (
        line("katze", 1.5) + line("unheard", 9) + line("old", -2) + line(". . .", 3) + line("katze", 7) + line(inner, 8)
    )
    file = tmp_path / f"vectors.txt{'.gz' * packed}"
    file.write_bytes(gzip.compress(content.encode()) if packed else content.encode())
    said = start_from_vectors(start.model, start.tokenizer, file)
    taken = {known[word]: value for word, value in (("katze", 1.5), ("old", -2.0)) if word in known}
    assert taken and said.startswith(f"{len(taken)} of {len(known)} tokens that begin a word (")
    for number, row in enumerate(table.detach()):
        wanted = torch.full((WIDTH,), taken[number]) if number in taken else before[number]
        assert torch.equal(row, wanted), number


@pytest.mark.parametrize(("name", "content", "said"), [
    ("v.txt", line("katze", 1) + line("new", 1, 31), r"line 2: a line must be a word and 32 numbers"),
    ("v.txt", "400000 32\n" + line("katze", 1), r"line 1: a line must be a word and 32 numbers"),
    ("v.txt", line("x", 1) + line("katze", 1).replace("1", "one", 1), r"line 2: a number is not finite or not a number"),
    ("v.txt", line("katze", float("nan")), r"line 1: a number is not finite"),
    ("v.txt", line("xyz", 1), r"has no word of the vocabulary"),
    ("v.txt", "", r"has no word of the vocabulary"),
    pytest.param("v.txt", "a" * (2**20 + 1), r"line 1: it has more than 1,048,576 bytes", id="long"),
    ("none.txt", None, r"is .*none\.txt, which does not exist: give"),
    ("cut.gz", gzip.compress(line("katze", 0.5).encode() * 99, mtime=0)[:-12], r"cut\.gz is cut off or damaged"),
])  # fmt: skip
def test_a_malformed_file_is_refused(
    name: str, content: str | bytes | None, said: str, start: Any, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UniclozeError, match=said):
        start_from_vectors(start.model, start.tokenizer, tmp_path / name)


def test_a_missing_file_is_refused_before_the_text_is_prepared(tmp_path: Path) -> None:
    overrides = {**toy_overrides(), "training.word_vectors": str(tmp_path)}
    with pytest.raises(UniclozeError, match="which is a folder: give a file of word vectors"):
        pretrain_run(load_recipe("unilmv2-base", overrides), tmp_path / "run", progress=False)
    assert not (tmp_path / "run" / "data").exists()


def test_a_trained_model_keeps_its_embeddings(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"the embeddings of training\.initialize_from are trained"):
        load_recipe("unilmv2-base", {"training.initialize_from": "runs/a", "training.word_vectors": "vectors.txt"})
    with pytest.raises(UsageError, match=r"training\.word_vectors is for new embeddings"):
        verbs.finetune(
            "classification", nlu_toys.start(), tmp_path / "train.jsonl", out=tmp_path / "run",
            overrides={"training.word_vectors": "vectors.txt"},
        )  # fmt: skip


@pytest.mark.parametrize("frozen", [True, False])
def test_a_run_keeps_or_trains_them(frozen: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = pairs(tmp_path)
    (tmp_path / "vectors.txt").write_text(line("katze", 0.5))
    overrides = {
        "finetuning.epochs": 2, "training.device": "cpu", "training.word_vectors": str(tmp_path / "vectors.txt"),
        "training.frozen": ["backbone.embeddings"] * frozen, "training.learning_rate": 0.01,
    }  # fmt: skip
    verbs.finetune("transformer-multi30k", tmp_path / "network.yaml", file, out=tmp_path / "run", overrides=overrides)
    assert "take their embeddings from" in capsys.readouterr().err
    model: Any = load_model(tmp_path / "run")
    (katze,) = (number for number, text in words_of(model.tokenizer).items() if text == "katze")
    row = model.model.backbone.embeddings.tokens.weight[katze]
    assert torch.equal(row, torch.full_like(row, 0.5)) is frozen


@pytest.mark.parametrize("recipe", ["unilmv2-base", "spanbert-base"])
def test_new_weights_may_start_from_counts_of_the_training_text(recipe: str, corpus: Path, tmp_path: Path) -> None:
    states = []
    for start in ("random", "counts"):
        overrides = {
            **toy_overrides(), "data.corpus": [str(corpus)], "training.steps": 1, "training.learning_rate": 1e-12,
            "training.start": start,
        }  # fmt: skip
        pretrain_run(load_recipe(recipe, overrides), tmp_path / start, progress=False)
        states.append({name: value.numpy() for name, value in load_model(tmp_path / start).model.state_dict().items()})
    before, after = states
    prepared = Prepared.load(tmp_path / "counts" / "data")
    vocabulary, shards = prepared.tokenizer.vocabulary, [shard for source in prepared.train for shard in source.shards]
    times = np.bincount(np.concatenate([shard.tokens for shard in shards]), minlength=vocabulary.size)
    times[vocabulary.special] = 0
    frequent, seen = np.flatnonzero(times >= 20), times > 0
    biases = [name for name in after if name.endswith(("token_head.bias", "boundary_head.bias"))]
    assert len(biases) == 1 + (recipe == "spanbert-base")
    for bias in (after[name] for name in biases):
        assert abs(bias[vocabulary.special]).max() < 1e-9 and abs(bias[vocabulary.ordinary].mean()) < 1e-5
        expected = np.log(times[frequent])
        np.testing.assert_allclose(bias[frequent] - bias[frequent[0]], expected - expected[0], atol=0.1)
        assert bias[times == 0].max(initial=-9) < bias[frequent].min()
    table, drawn = (state["backbone.embeddings.tokens.weight"] for state in (after, before))
    vectors = vectors_of(prepared.train, vocabulary, table.shape[1])
    np.testing.assert_allclose(table[seen], LENGTH / table.shape[1] ** 0.5 * vectors[seen], atol=1e-6)
    np.testing.assert_allclose(table[~seen], drawn[~seen], atol=1e-9)
    for name in after.keys() - {*biases, "backbone.embeddings.tokens.weight"}:
        np.testing.assert_allclose(after[name], before[name], atol=1e-9, err_msg=name)


@pytest.mark.parametrize(("recipe", "starts"), [
    ("t5-base", ["backbone.embeddings.tokens.weight"]),  # drawn wider, and without a bias
    ("cove", ["backbone.embeddings.tokens.weight", "backbone.decoder.embeddings.tokens.weight", "token_head.bias"]),
    ("electra-small", ["discriminator.backbone.embeddings.tokens.weight", "generator.token_head.bias"]),
    ("elmo", ["token_head.bias"]),  # reads characters
])  # fmt: skip
def test_tensors_with_a_row_per_token_start_from_counts(recipe: str, starts: list[str]) -> None:
    rng, size, special = np.random.default_rng(0), 512, 10
    vocabulary = SimpleNamespace(size=size, ordinary=np.arange(special, size))
    counts: Any = SimpleNamespace(vocabulary=vocabulary, unigram=rng.dirichlet(np.ones(size)))

    def vectors(width: int) -> Any:
        return np.vstack([np.zeros((special, width)), rng.standard_normal((size - special, width))]).astype(np.float32)

    model = ready_model(load_recipe(recipe, toy_overrides()), size, torch.device("cpu"))
    drawn = {name: weight.clone() for name, weight in model.state_dict().items()}
    start_from_counts(model, counts, vectors)
    changed = {name: weight for name, weight in model.state_dict().items() if not torch.equal(weight, drawn[name])}
    assert list(changed) == starts
    for name, weight in changed.items():
        rows = weight[special:]
        if name.endswith("bias"):
            logarithms = np.log(counts.unigram[special:])
            np.testing.assert_allclose(rows, logarithms - logarithms.mean(), atol=1e-5)
        else:
            length = max(LENGTH, float(drawn[name].std()) * rows.shape[1] ** 0.5)
            assert float(rows.square().sum(dim=1).mean().sqrt()) == pytest.approx(length, rel=0.01)
        assert torch.equal(weight[:special], drawn[name][:special])


def test_vectors_tell_the_company_of_tokens(corpus: Path, tmp_path: Path) -> None:
    lines = [one for one in corpus.read_text(encoding="utf-8").splitlines() if one.strip()]
    files = [tmp_path / f"{number}.txt" for number in range(40)]
    for number, file in enumerate(files):  # more sources than a sample has stretches
        file.write_text("\n".join(lines[number :: len(files)]), encoding="utf-8")
    overrides = {**toy_overrides(), "data.corpus": [*map(str, files)], "data.heldout_share": 0}
    recipe = load_recipe("unilmv2-base", overrides)
    prepared = open_or_prepare(recipe.data, recipe.tokenizer, tmp_path / "data", progress=False)
    vocabulary, size = prepared.tokenizer.vocabulary, prepared.tokenizer.vocabulary.size
    ordinary, expected = set(vocabulary.ordinary.tolist()), np.zeros((size, 4 * size))
    for source in prepared.train:
        for shard in source.shards:
            for text in (document.tolist() for document in shard.documents()):
                for place, token in enumerate(text):
                    for other in range(max(0, place - REACH), min(len(text), place + REACH + 1)):
                        if other != place and {token, text[other]} <= ordinary:
                            block = 2 * (abs(other - place) > 1) + (other < place)
                            expected[token, block * size + text[other]] += 1
    counts = neighbours_of(prepared.train, vocabulary)
    np.testing.assert_array_equal(counts.toarray(), expected)
    smoothed, of_tokens = expected.sum(axis=0) ** 0.75, expected.sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        mutual = np.log(expected / of_tokens / (smoothed / smoothed.sum()))
    mutual = np.where(expected > 0, np.maximum(mutual, 0), 0)
    np.testing.assert_allclose(information(counts).toarray(), mutual, atol=1e-4)
    seen = expected.any(axis=1)
    left, values, _ = np.linalg.svd(mutual)
    exact = left[seen, :8] * np.sqrt(values[:8])
    exact -= exact.mean(axis=0)
    found = vectors_of(prepared.train, vocabulary, 8)
    assert not found[~seen].any() and found[seen].std() == pytest.approx(1, abs=1e-4)
    products, of_exact = (rows @ rows.T for rows in (found[seen], exact))  # the signs of singular vectors are arbitrary
    assert np.corrcoef(products.ravel(), of_exact.ravel())[0, 1] > 0.99
    assert not vectors_of([], vocabulary, 8).any()
    again = open_vectors(prepared, prepared.train, 8)
    np.testing.assert_array_equal(again, found)
    np.testing.assert_array_equal(open_vectors(prepared, prepared.train, 8), found)
    assert len([*(tmp_path / "data" / "index").glob("vectors-*.npz")]) == 1


def test_what_is_trained_does_not_start_from_counts(corpus: Path, tmp_path: Path) -> None:
    """Embeddings of a file or a model are kept, and with them the bias of a model that predicts tokens."""
    (tmp_path / "vectors.txt").write_text(line("the", 0.5))
    common = {
        **toy_overrides(), "data.corpus": [str(corpus)], "training.steps": 1, "training.learning_rate": 1e-12,
        "training.start": "counts",
    }  # fmt: skip
    pretrain_run(load_recipe("unilmv2-base", {**common, "training.start": "random"}), tmp_path / "a", progress=False)
    given = {"training.word_vectors": str(tmp_path / "vectors.txt")}, {"training.initialize_from": str(tmp_path / "a")}
    for name, setting in zip("bc", given, strict=True):
        pretrain_run(load_recipe("unilmv2-base", {**common, **setting}), tmp_path / name, progress=False)
    drawn, filed, copied = (load_model(tmp_path / name).model.state_dict() for name in "abc")
    table, bias = "backbone.embeddings.tokens.weight", "token_head.bias"
    differs = (filed[table] - drawn[table]).abs().amax(dim=1) > 1e-9
    assert differs.sum() == 1 and filed[bias].std() > 0.1
    torch.testing.assert_close(copied, drawn, atol=1e-9, rtol=0)
