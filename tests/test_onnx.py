"""Exported programs against rows laid out by NumPy and by hand, and against each other."""

from __future__ import annotations

import copy
import dataclasses
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import toys
from conftest import slow_except
from decoding_toys import loaded
from hf_toys import slots_batch
from nlu_toys import start
from serving_toys import classifier
from toys import random_windows
from unicloze.decoding.embed import rows_to_encode
from unicloze.errors import UniclozeError, UsageError
from unicloze.example import collate
from unicloze.interop import programs
from unicloze.interop.programs import export_onnx, export_program
from unicloze.training.loading import LoadedModel

SOURCES = [[3, 10, 11, 12, 13, 4], [3, 20, 4]]
SIZES = {"rows", "slots", "past"}


def encode_by_hand(model: LoadedModel) -> tuple[list[torch.Tensor], torch.Tensor, list[torch.Tensor]]:
    """Inputs of an encoder, which slots are not padding, and the expected output there."""
    windows = random_windows(4, 20, vocab=30, short=True)
    batch = collate(rows_to_encode(windows, model.recipe))
    with torch.no_grad():
        hidden = model.model.backbone(batch)[-1]
    real = torch.arange(batch.input_ids.shape[1]) < torch.from_numpy(windows.lengths)[:, None]
    expected = [hidden[real], model.model.token_logits(hidden[real]).detach()]
    return [batch.input_ids, real.long(), batch.segment_ids], real, expected


def write_by_hand(model: LoadedModel, source: list[int], steps: int) -> tuple[list[int], list[torch.Tensor]]:
    """The most likely target and the logits of each step; every step is a whole row with a pseudo mask at its end."""
    pseudo = model.tokenizer.vocabulary.pseudo
    assert pseudo is not None
    target: list[int] = []
    logits = []
    for _ in range(steps):
        s, n = len(source), len(source) + len(target) + 1
        intervals = [[0, s if i < s else i + 1, 0, 0] for i in range(n)]
        batch = slots_batch(
            [*source, *target, pseudo], list(range(n)), [0] * s + [1] * (n - s), intervals, [n - 1], [0]
        )
        with torch.no_grad():
            logits.append(model.model.logits(batch)["par"][0, 0])
        target.append(int(logits[-1].argmax()))
    return target, logits


def write(run: Any, model: LoadedModel, steps: int) -> tuple[list[list[int]], list[list[torch.Tensor]]]:
    """The same for both sources in one left-padded batch, by a single-step program."""
    settings = model.model.settings
    width = max(map(len, SOURCES))
    ids = torch.tensor([[0] * (width - len(source)) + source for source in SOURCES])
    mask = torch.tensor([[0] * (width - len(source)) + [1] * len(source) for source in SOURCES])
    part = torch.zeros_like(ids)
    past_mask = mask[:, :0]
    shape = settings.num_layers, len(ids), settings.num_heads, 0, settings.hidden_size // settings.num_heads
    keys, values = torch.zeros(shape), torch.zeros(shape)
    targets: list[list[int]] = [[] for _ in SOURCES]
    logits: list[list[torch.Tensor]] = [[] for _ in SOURCES]
    for _ in range(steps):
        found, new_keys, new_values = run(ids, mask, part, past_mask, keys, values)
        past_mask = torch.cat([past_mask, mask], dim=1)
        keys, values = torch.cat([keys, new_keys], dim=3), torch.cat([values, new_values], dim=3)
        ids = found.argmax(-1, keepdim=True)
        mask, part = torch.ones_like(ids), torch.ones_like(ids)
        for row in range(len(SOURCES)):
            targets[row].append(int(ids[row]))
            logits[row].append(found[row])
    return targets, logits


def check_encoder(run: Any, model: LoadedModel) -> None:
    inputs, real, expected = encode_by_hand(model)
    for found, wanted in zip(run(*inputs), expected, strict=True):
        torch.testing.assert_close(found[real], wanted, atol=1e-5, rtol=1e-5)


def check_step(run: Any, model: LoadedModel) -> None:
    targets, logits = write(run, model, 5)
    for row, source in enumerate(SOURCES):
        target, expected = write_by_hand(model, source, 5)
        assert targets[row] == target
        torch.testing.assert_close(torch.stack(logits[row]), torch.stack(expected), atol=1e-5, rtol=1e-5)


@pytest.mark.whole
@pytest.mark.parametrize("relative", slow_except([True], [False, True]))
def test_programs_give_what_the_model_gives(relative: bool) -> None:
    model = loaded(relative=relative)
    check_encoder(export_program(model).module(), model)
    check_step(export_program(model, "step").module(), model)


def test_padding_may_be_on_either_side_where_the_last_token_predicts() -> None:
    model = loaded(name="causal", targets=["lm"], visibility="left_to_right")
    step, settings = programs.module_of(model, "step"), model.model.settings

    def first(*rows: list[int]) -> torch.Tensor:
        ids = torch.tensor(rows)
        empty = torch.zeros(
            settings.num_layers, len(rows), settings.num_heads, 0, settings.hidden_size // settings.num_heads
        )
        with torch.no_grad():
            return step(ids, (ids > 0).long(), torch.zeros_like(ids), ids[:, :0], empty, empty)[0]

    wanted = first([3, 20, 4])[0]
    for padded in ([0, 0, 3, 20, 4], [3, 20, 4, 0, 0]):
        torch.testing.assert_close(first(padded, [3, 10, 11, 12, 13])[0], wanted)


@pytest.mark.whole
def test_onnx_files_give_what_the_model_gives(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model = loaded(relative=True)
    files = export_onnx(model, tmp_path / "out")
    assert (
        [file.name for file in files]
        == ["encoder.onnx", "step.onnx"]
        == sorted(file.name for file in (tmp_path / "out").iterdir())
    )

    def runner(file: Path) -> Any:
        session = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        names = [each.name for each in session.get_inputs()]
        assert {size for each in session.get_inputs() for size in each.shape if isinstance(size, str)} <= SIZES
        return lambda *inputs: [
            torch.from_numpy(each)
            for each in session.run(None, {n: np.asarray(x) for n, x in zip(names, inputs, strict=True)})
        ]

    for file in files:
        raw = file.read_bytes()
        assert b".py" not in raw and str(Path(__file__).parents[1]).encode() not in raw, "no path of this machine"
    check_encoder(runner(files[0]), model)
    check_step(runner(files[1]), model)


@pytest.mark.whole
def test_a_file_that_computes_something_else_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxscript")

    trace = programs.trace

    def changed(module: Any) -> Any:
        program = trace(module)
        with torch.no_grad():
            module.model.backbone.layers[0].attention.qkv.weight.mul_(1.01)
        return program

    monkeypatch.setattr(programs, "trace", changed)
    model = loaded()
    export = torch.export.export
    monkeypatch.setattr(torch.export, "export", lambda module, *a, **k: export(copy.deepcopy(module), *a, **k))
    with pytest.raises(UniclozeError, match=r"encoder\.onnx differs from the model by .* in last_hidden_state of 1x1"):
        export_onnx(model, tmp_path, parts=["encoder"])
    assert not list(tmp_path.iterdir())


def test_a_program_that_computes_something_else_is_refused() -> None:
    module = programs.module_of(loaded(), "encoder")
    with pytest.raises(UniclozeError, match="the program differs from the model by"):
        programs.compare_program(
            module, lambda *inputs: [each + 3e-5 * each.abs().max() for each in module(*inputs)], "the program"
        )


def test_a_step_takes_heads_of_any_width() -> None:
    model = loaded()
    network = toys.model(vocab=len(model.tokenizer), num_heads=4, head_size=6, relative_bias=True).eval()
    module = programs.module_of(dataclasses.replace(model, model=network), "step")
    programs.compare_program(module, module, "the program")


def test_a_program_has_no_head_of_a_task() -> None:
    with pytest.warns(UserWarning, match="the program has no head of task classification"):
        programs.module_of(classifier(), "encoder")


def test_what_cannot_be_exported_is_refused_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="masked ae does not generate text"):
        export_program(loaded(name="masked", targets=["ae"]), "step")
    with pytest.raises(UsageError, match=r"^an encoder without heads does not generate text"):
        export_program(loaded(name="none", targets=[]), "step")
    with pytest.raises(UsageError, match="opens the target or names the task: export only its encoder"):
        export_program(start("prefix-masked-span-base"), "step")
    with pytest.raises(UsageError, match=r"^model.decoder_layers is \d+, and an encoder-decoder cannot be exported"):
        export_program(start("bart-base"))
    with pytest.raises(UniclozeError, match="there is no model at"):
        export_program(tmp_path / "nowhere")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UsageError, match=r'onnxruntime is not installed: in the clone, pip install -e "\.\[onnx\]"'):
        export_onnx(loaded(), tmp_path / "out")
    assert not (tmp_path / "out").exists()
