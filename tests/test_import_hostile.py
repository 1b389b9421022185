"""Damaged, inconsistent or malicious checkpoints: one sentence each; no code is run and nothing is written elsewhere."""

from __future__ import annotations

import json
import math
import os
import pickle
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from test_import_unilm import released
from unicloze.errors import UniclozeError, UsageError
from unicloze.interop.read import import_checkpoint, is_foreign, open_model, write_model

WEIGHTS = "model.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "checkpoint"
    place.mkdir()
    released(place, fused=False, relative=False, segments=2, model_type="bert")
    return place


def refused(folder: Path, match: str, **arguments: Any) -> None:
    before = sorted(folder.parent.rglob("*"))
    with pytest.raises(UniclozeError, match=match) as caught:
        import_checkpoint(folder, **arguments)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 1600
    assert sorted(folder.parent.rglob("*")) == before


def change(folder: Path, **values: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def restate(folder: Path, mend: Callable[[dict[str, torch.Tensor]], None]) -> None:
    state = load_file(folder / WEIGHTS)
    mend(state)
    save_file(state, folder / WEIGHTS)


@pytest.mark.parametrize(("values", "match"), [
    ({"auto_map": {"AutoModel": "evil.Model"}}, r"config.json: auto_map is .*a checkpoint's code is never run"),
    ({"model_type": "unicloze"}, r"model_type is unicloze: .* give the run or checkpoint it was made from"),
    ({"model_type": "llama"}, r"config.json: model_type is llama: supported models are bert,"),
    ({"model_type": ["bert"]}, "model_type is .*supported models"),
    ({"position_embedding_type": "relative_key"}, "position_embedding_type is relative_key: .*absolute"),
    ({"is_decoder": True}, "is_decoder is True: only False is supported"),
    ({"add_cross_attention": True}, "add_cross_attention is True: only False is supported"),
    ({"hidden_act": "silu"}, "hidden_act is silu: supported activations are gelu"),
    ({"pruned_heads": {"0": [1]}}, "pruned_heads is"),
    ({"quantization_config": {"bits": 4}}, "quantization_config is .*unquantised"),
    ({"hidden_size": 10**12}, "hidden_size is 1000000000000: expected a whole number from 1 to"),
    ({"hidden_size": -1}, "hidden_size is -1: expected"),
    ({"hidden_size": "32"}, "hidden_size is 32: expected"),
    ({"hidden_size": True}, "hidden_size is True: expected"),
    ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000: expected"),
    ({"num_hidden_layers": 1024}, r"16,336 tensors missing: .*layer.\*.output.dense.bias \(x1021\), .*\(x1021\); pass"),
    ({"vocab_size": 4_000_000}, r"2 tensors of another shape: .*word_embeddings.weight \(50x32, not 4000000x32\)"),
    ({"max_position_embeddings": 200_000}, r"position_embeddings.weight \(40x32, not 200000x32\)"),
    ({"intermediate_size": 60}, r"9 tensors of .*intermediate.dense.weight \(64x32, not 60x32, x3\),.*60, x3\); pass"),
    ({"num_attention_heads": 5}, "num_attention_heads is 5: hidden_size is 32"),
    ({"layer_norm_eps": "tiny"}, "layer_norm_eps is tiny: expected a number"),
    ({"layer_norm_eps": float("nan")}, "layer_norm_eps is nan: expected a number"),
    ({"hidden_dropout_prob": 1.5}, "hidden_dropout_prob is 1.5: expected"),
    ({"hidden_size": None}, "has no hidden_size"),
])  # fmt: skip
def test_configurations(folder: Path, values: dict[str, Any], match: str) -> None:
    change(folder, **values)
    refused(folder, match)


@pytest.mark.parametrize(("text", "match"), [
    ("{not json", "config.json is not valid JSON"),
    ("[1, 2]", "is not a JSON object"),
    ("[" * 100_000, "config.json is not valid JSON"),
    (" " * (5 << 20), "too many for such a file"),
    ("\ud800", "config.json is not valid JSON"),
])  # fmt: skip
def test_invalid_configurations(folder: Path, text: str, match: str) -> None:
    (folder / "config.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    refused(folder, match)


def test_tensors_missing_unexpected_and_of_another_shape(folder: Path) -> None:
    def mend(state: dict[str, torch.Tensor]) -> None:
        del state["bert.encoder.layer.1.attention.self.key.bias"]
        state["classifier.weight"] = torch.zeros(2, 32)
        state["classifier.bias"] = torch.zeros(2)

    restate(folder, mend)
    missing = r"1 tensor missing: bert.encoder.layer.1.attention.self.key.bias"
    refused(folder, missing + r"; 2 tensors unexpected: classifier.bias, classifier.weight; pass --allow PATTERN")
    for allowed in (["classifier.*"], "classifier.*"):
        refused(folder, missing + "; pass --allow", allow=allowed)
    with pytest.warns(UserWarning) as said:
        loaded = import_checkpoint(folder, allow=["classifier.*", "*.key.bias"])
    drawn, unread = (str(each.message) for each in said)
    assert drawn.startswith(
        f"3 tensors of {folder} did not fit, as allowed, and are newly initialised: bert.encoder.layer.1."
    )
    assert unread == f"2 tensors of {folder} ignored, as allowed: classifier.bias, classifier.weight"
    bias = loaded.model.backbone.layers[1].attention.qkv.bias  # type: ignore[union-attr]
    assert not bias.any(), "of fused tensors all parts are newly initialised"
    stored = load_file(folder / WEIGHTS)
    assert torch.equal(
        loaded.model.backbone.layers[1].attention.output.bias,
        stored["bert.encoder.layer.1.attention.output.dense.bias"],
    )  # type: ignore[union-attr]


def test_another_shape_may_be_allowed(folder: Path) -> None:
    change(folder, max_position_embeddings=64)
    refused(folder, "1 tensor of another shape")
    with pytest.warns(
        UserWarning, match="1 tensor of .* are newly initialised: bert.embeddings.position_embeddings.weight$"
    ):
        loaded = import_checkpoint(folder, allow=["*position_embeddings*"])
    assert loaded.model.backbone.embeddings.positions is not None
    weight = loaded.model.backbone.embeddings.positions.weight
    assert len(weight) == 64 and 0.015 < float(weight.detach().std()) < 0.025


def test_truncated_and_huge_headers(folder: Path) -> None:
    file = folder / WEIGHTS
    whole = file.read_bytes()
    for part in (b"", whole[:5], whole[:100], whole[: len(whole) // 2], whole[:-1]):
        file.write_bytes(part)
        refused(folder, "damaged|truncated")
    file.write_bytes(b"\x08\0\0\0\0\0\0\0" + b"\xff" * 8)
    refused(folder, "damaged")
    size = 100_000_000
    with file.open("wb") as stream:
        stream.write(size.to_bytes(8, "little"))
        stream.truncate(size + 8)  # a sparse file: nothing is on the disk, nothing may be read
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused(folder, "a header of 100,000,000 bytes")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000
    file.write_bytes((2**63).to_bytes(8, "little") + whole)
    refused(folder, "truncated")


@pytest.mark.parametrize("name", ["../other.safetensors", "/etc/passwd", "sub/x.safetensors", "..", "a\\b", "a\0b", ""])
def test_shards_outside_the_folder(folder: Path, name: str) -> None:
    shutil.copy(folder / WEIGHTS, folder.parent / "other.safetensors")
    (folder / WEIGHTS).unlink()
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    refused(folder, "which is not in its folder: it is not read")


@pytest.mark.parametrize("content", [{}, {"weight_map": []}, {"weight_map": {"a": 3}}, {"weight_map": {}}])
def test_invalid_indices(folder: Path, content: dict[str, Any]) -> None:
    (folder / WEIGHTS).rename(folder / "a.safetensors")
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps(content))
    refused(folder, "has no weight_map")


def test_a_shard_that_is_not_there_and_a_tensor_that_is_twice(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "a.safetensors")
    index = folder / f"{WEIGHTS}.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "b.safetensors"}}))
    refused(folder, "names b.safetensors, which is not there")
    shutil.copy(folder / "a.safetensors", folder / "b.safetensors")
    index.write_text(json.dumps({"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}))
    refused(folder, "so does another file")


@pytest.mark.parametrize("name", [WEIGHTS, "vocab.txt", "config.json"])
def test_links_out_of_the_folder(folder: Path, name: str) -> None:
    elsewhere = folder.parent / "elsewhere"
    elsewhere.mkdir()
    (folder / name).rename(elsewhere / name)
    (folder / name).symlink_to(elsewhere / name)
    refused(folder, "is a link out of its folder")
    (elsewhere / name).unlink()
    refused(folder, "is a link to a file that is not there")
    (folder / name).unlink()
    (folder / name).mkdir()
    refused(folder, "is not a regular file|holds no model")


def test_links_within_the_folder_and_of_a_cache_are_followed(folder: Path) -> None:
    expected = open_model(folder).model.state_dict()

    def assert_read(place: Path) -> None:
        found = open_model(place).model.state_dict()
        assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)

    (folder / WEIGHTS).rename(folder / "real")
    (folder / WEIGHTS).symlink_to("real")
    assert_read(folder)
    blobs, snapshot = folder.parent / "blobs", folder.parent / "snapshots" / "abc"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for number, name in enumerate((WEIGHTS, "vocab.txt", "config.json")):
        shutil.copy(folder / name, blobs / str(number))
        (snapshot / name).symlink_to(Path("..") / ".." / "blobs" / str(number))
    assert_read(snapshot)


class Bomb:
    """Writes a file when unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.target}",)


@pytest.mark.parametrize("plain", [False, True])
def test_pickles_that_would_run_code(folder: Path, plain: bool) -> None:
    (folder / WEIGHTS).unlink()
    bomb = {"bert.pooler.dense.weight": Bomb(folder.parent / "exploded")}
    if plain:
        (folder / "pytorch_model.bin").write_bytes(pickle.dumps(bomb))
    else:
        torch.save(bomb, folder / "pytorch_model.bin")
    with pytest.raises(UsageError, match="weights only as a pickle"):
        import_checkpoint(folder)
    refused(folder, "may be code: it is not read|damaged or not a torch.save file", pickle=True)
    assert not (folder.parent / "exploded").exists()


@pytest.mark.parametrize(("content", "match"), [
    ([1, 2], "does not hold tensors by name"),
    ({"a": [torch.zeros(2)]}, "does not hold tensors by name"),
    ({"a": torch.zeros(2, dtype=torch.int8)}, "int8 numbers"),
    ({"a": torch.zeros(1).expand(1 << 20, 1 << 18)}, "a holds fewer numbers than its shape requires"),
    ({"a": torch.zeros(2, device="meta")}, "a holds fewer numbers than its shape requires"),
    ({"a": torch.eye(2).to_sparse()}, "a holds fewer numbers than its shape requires"),
])  # fmt: skip
def test_bins_that_hold_something_else(folder: Path, content: Any, match: str) -> None:
    (folder / WEIGHTS).unlink()
    torch.save(content, folder / "pytorch_model.bin")
    refused(folder, match, pickle=True)
    (folder / "pytorch_model.bin").write_bytes(b"PK\x03\x04 no archive")
    refused(folder, "damaged", pickle=True)


def test_quantised_tensors(folder: Path) -> None:
    restate(folder, lambda state: state.update({"cls.predictions.bias": torch.zeros(50, dtype=torch.int8)}))
    refused(folder, "cls.predictions.bias holds I8 numbers: use the unquantised checkpoint")


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_not_finite(folder: Path, value: float) -> None:
    restate(folder, lambda state: state["bert.encoder.layer.1.output.dense.bias"].fill_(value))
    refused(folder, r"checkpoint holds NaN or infinite values \(backbone\.layers\.1\.feed_forward\.output\.bias\)")


@pytest.mark.whole
def test_without_weights_or_tokenizer(folder: Path) -> None:
    (folder / "vocab.txt").rename(folder.parent / "vocab.txt")
    refused(folder, "holds no tokenizer.json or vocab.txt: give its tokenizer with --tokenizer")
    assert len(import_checkpoint(folder, tokenizer=folder.parent / "vocab.txt").tokenizer) == 50
    with pytest.raises(UniclozeError, match=r"holds no tokenizer\.json or vocab\.txt: give a tokenizer file"):
        import_checkpoint(folder, tokenizer=folder)
    (folder / WEIGHTS).unlink()
    refused(folder, "holds no model.safetensors")
    assert not is_foreign(folder.parent)
    refused(folder.parent, "there is no checkpoint at")


def test_tokenizers_that_do_not_fit(folder: Path) -> None:
    file = folder / "vocab.txt"
    file.write_text(file.read_text() + "more\n")
    refused(folder, "has 50 token rows but its tokenizer .*vocab.txt has 51 tokens: they do not belong together")
    file.write_text(file.read_text().replace("[MASK]", "none"))
    refused(folder, r"has no \[MASK\]")
    (folder / "tokenizer.json").write_text("{}")
    refused(folder, "tokenizer.json is damaged")
    (folder / "tokenizer_config.json").write_text("{")
    refused(folder, "tokenizer_config.json cannot be read as JSON")


def test_what_is_written_is_only_where_it_should_be(folder: Path) -> None:
    loaded = open_model(folder)
    taken = folder.parent / "taken"
    taken.mkdir()
    (taken / "mine").write_text("mine")
    with pytest.raises(UsageError, match="is not empty"):
        write_model(loaded, taken)
    assert [file.name for file in taken.iterdir()] == ["mine"]
    with pytest.raises(UsageError, match="is not empty"):
        write_model(loaded, taken / "mine")
    before = {path for path in folder.parent.rglob("*")}
    write_model(loaded, folder.parent / "new")
    made = {path for path in folder.parent.rglob("*")} - before
    assert all(path.is_relative_to(folder.parent / "new") for path in made)


@pytest.mark.parametrize("positions", [8, 0, -1, 10**9])
def test_numbers_of_positions_that_cannot_be(folder: Path, positions: int) -> None:
    with pytest.raises(
        UsageError, match=rf"positions is {positions}: give a number from 40, the number in .*, to 262144"
    ):
        import_checkpoint(folder, positions=positions)
