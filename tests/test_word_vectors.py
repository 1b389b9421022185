"""Word vectors by path: which tokens take them, what is refused, and runs that start from them."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
import torch

import nlu_toys
from test_growing_positions import german_pairs as pairs
from unicloze import verbs
from unicloze.errors import UniclozeError, UsageError
from unicloze.finetuning.initial import untrained
from unicloze.pretraining.run import pretrain_run
from unicloze.recipes import load_recipe, toy_overrides
from unicloze.training.initial import start_from_vectors, words_of
from unicloze.training.loading import LoadedModel, load_model

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
