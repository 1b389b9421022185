"""The parts of the path on a GPU that a CPU can prove: compiled graphs, FlexAttention, padding at use, Muon in batches.

Tests marked `gpu` were written without one and never run on one.
"""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import toys
from conftest import slow_except
from toys import random_windows, vocabulary
from unicloze import devices
from unicloze.errors import UniclozeError
from unicloze.example import Examples, collate
from unicloze.model import heads
from unicloze.model.dropout import DropoutKey
from unicloze.model.layers import Layer
from unicloze.model.model import UnifiedModel
from unicloze.objectives import settings_of
from unicloze.objectives.unilmv2 import unilmv2
from unicloze.pretraining.run import pretrain_run
from unicloze.recipes import load_recipe, toy_overrides
from unicloze.settings import TrainingSettings
from unicloze.training import loop
from unicloze.training.ledger import read_ledger
from unicloze.training.loading import attention_backend, explain_compile_errors, load_model
from unicloze.training.optimizers import Muon, orthogonalised
from unicloze.visibility import bool_mask

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # by torch

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def examples_of(step: int = 0, *, short: bool = False, rows: int = 4, window: int = 24) -> Examples:
    return unilmv2(random_windows(rows, window, seed=step, short=short), vocabulary(), settings_of())


# Compiled graphs


@pytest.mark.whole
@pytest.mark.parametrize(
    ("short", "most"),
    slow_except([([False, True], 3)], [([False], 2), ([True], 2), ([False, True], 3)]),
    ids=["full windows", "windows of all lengths", "both"],
)
@pytest.mark.parametrize("checkpoints", slow_except([True], [False, True]))
def test_layers_of_twenty_steps_make_two_graphs(
    short: list[bool], most: int, checkpoints: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One for all layers but the last, which computes only the predicted slots, and one for that.

    Leading slots without a mask make one more.
    """
    dropped = functional.dropout  # torch's, which a GPU takes
    monkeypatch.setattr(DropoutKey, "__call__", lambda _, x, rate: dropped(x, rate) if rate else x)
    model = toys.model(num_layers=4, dropout=0.1, attention_dropout=0.1)
    model.transformer.checkpoint_activations = checkpoints
    graphs = []

    def backend(graph: Any, _: Any) -> Any:
        """Torch's front end only."""
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    for module in model.modules():
        if isinstance(module, Layer):
            module.compile(backend=backend, fullgraph=True)
    for step in range(20):
        batch = collate(examples_of(step, short=short[step % len(short)]), fixed_shape=True)
        sum(loss.total for loss in model(batch, DropoutKey(step)).values()).backward()
    torch._dynamo.reset()
    assert len(graphs) == most


@pytest.mark.whole
@pytest.mark.parametrize("checkpoints", slow_except([True], [False, True]))
def test_compiled_layers_give_the_losses_and_gradients_of_others(checkpoints: bool) -> None:
    plain = toys.model(num_layers=3, dropout=0.0)
    compiled = copy.deepcopy(plain)
    compiled.transformer.checkpoint_activations = checkpoints
    torch._dynamo.reset()
    for module in compiled.modules():
        if isinstance(module, Layer):
            module.compile(backend="aot_eager")
    found = []
    for model, fixed in ((plain, False), (compiled, True)):
        losses = model(collate(examples_of(short=True), fixed_shape=fixed), DropoutKey(0))
        sum(loss.total for loss in losses.values()).backward()
        found.append(
            {name: loss.total for name, loss in losses.items()} | {n: p.grad for n, p in model.named_parameters()}
        )
    torch._dynamo.reset()
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


@pytest.mark.whole
def test_a_run_whose_layers_do_not_compile_says_so_and_continues_without(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_layer = nn.Module.compile

    def backend(*_: Any) -> Any:
        raise AssertionError("no such tile")

    monkeypatch.setattr(nn.Module, "compile", lambda module: compile_layer(module, backend=backend))
    given = {"training.device": "cpu", "training.steps": 1}
    torch._dynamo.reset()
    with pytest.raises(UniclozeError, match=r"no such tile\): run the same command with --training\.compile false$"):
        pretrained(corpus, tmp_path, **given, **{"training.compile": True})
    torch._dynamo.reset()
    pretrained(corpus, tmp_path, **given)
    said = r"cannot compile FlexAttention \(no such tile\): start a run with --training\.attention sdpa$"
    with pytest.raises(UniclozeError, match=said), explain_compile_errors(TrainingSettings()):
        raise torch._dynamo.exc.TorchDynamoException("no such tile\n\nand much more")
    full = torch._dynamo.exc.BackendCompilerFailed(backend, torch.OutOfMemoryError("of 80 GiB"), None)
    assert loop.is_out_of_memory(full) and not loop.is_out_of_memory(
        torch._dynamo.exc.TorchDynamoException("no such tile")
    )


def test_rows_of_fixed_shape_are_multiples_of_16_wide_and_padding_changes_no_loss() -> None:
    model = toys.model()
    for short in (False, True):
        examples = examples_of(1, short=short)
        fixed, tight = collate(examples, fixed_shape=True), collate(examples)
        assert fixed.input_ids.shape[1] == 48 and examples.input_ids.shape[1] == 42
        masks = bool_mask(fixed.intervals, 48)
        assert torch.equal(masks[:, 42:], torch.eye(48, dtype=torch.bool)[42:].expand(4, -1, -1))
        assert not masks[:, :42, 42:].any()
        with torch.no_grad():
            for name, loss in model(fixed).items():
                torch.testing.assert_close(loss.total, model(tight)[name].total)


# FlexAttention


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("short", [False, True])
def test_flex_attention_reads_the_mask_and_the_relative_bias(relative: bool, short: bool) -> None:
    """Distances above the largest included."""
    model = toys.model(relative_bias=relative, relative_max_distance=12)
    batch, found = collate(examples_of(2, short=short)), {}
    for backend in ("explicit", "flex"):
        model.backbone.backend = backend  # type: ignore[assignment]
        with torch.no_grad():
            found[backend] = model.backbone(batch)
    for explicit, flex in zip(found["explicit"], found["flex"], strict=True):
        torch.testing.assert_close(flex, explicit, atol=2e-5, rtol=1e-4)


FREE = {"training.deterministic": False, "model.attention_dropout": 0.0}


@pytest.mark.parametrize(("recipe", "device", "changes", "backend"), [
    ("unilmv2-base", GPU, FREE, "flex"),
    ("unilmv2-base", GPU, FREE | {"model.attention_dropout": 0.1}, None),
    ("unilmv2-base", GPU, FREE | {"training.deterministic": True}, None),
    ("unilmv2-base", GPU, FREE | {"model.hidden_size": 64, "model.num_heads": 8}, None),
    ("unilmv2-base", CPU, FREE, None),
    ("unilmv2-base", GPU, FREE | {"training.attention": "sdpa"}, "sdpa"),
    ("xlnet-base", GPU, FREE, None),
    ("bart-base", GPU, FREE, None),
])  # fmt: skip
def test_the_attention_of_a_run_follows_device_dropout_determinism_and_stacks(
    recipe: str, device: torch.device, changes: dict[str, Any], backend: str | None
) -> None:
    assert attention_backend(load_recipe(recipe, changes), device) == backend


# Copies to the device


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """All tensors in a batch, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from tensors_of(each)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from tensors_of(getattr(value, field.name))


@pytest.mark.parametrize("fixed_shape", [False, True])
@pytest.mark.parametrize("short", [False, True])
def test_a_batch_is_copied_as_one_buffer(fixed_shape: bool, short: bool) -> None:
    batch = collate(examples_of(3, short=short), fixed_shape=fixed_shape)
    sent: list[torch.Tensor] = []

    def send(buffer: torch.Tensor) -> torch.Tensor:
        sent.append(buffer.clone())
        buffer.fill_(255)
        return sent[0]

    copied = devices.moved(batch, send)
    wanted, found = list(tensors_of(batch)), list(tensors_of(copied))
    assert len(wanted) == len(found) >= 11
    for one, other in zip(wanted, found, strict=True):
        assert torch.equal(one, other) and one.dtype == other.dtype and other.is_contiguous()
        assert other.untyped_storage().data_ptr() == sent[0].untyped_storage().data_ptr()
        assert other.storage_offset() * other.element_size() % devices.ALIGNED == 0
    assert len(sent) == 1 and sent[0].nbytes < sum(tensor.nbytes + devices.ALIGNED for tensor in wanted)


def test_a_batch_for_a_cpu_is_not_copied() -> None:
    batch = collate(examples_of())
    assert devices.to_device(batch, CPU) is batch
    assert {tensor.device.type for tensor in tensors_of(collate(examples_of(), device="meta"))} == {"meta"}


# The vocabulary


@pytest.mark.parametrize(("vocab", "rows"), [(50, 64), (64, 64), (65, 128)])
def test_a_padded_vocabulary_gives_the_same_logits_and_gradients(
    vocab: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    products: list[int] = []
    linear = functional.linear

    def note(hidden: Any, matrix: Any, bias: Any) -> Any:
        products.append(len(matrix))
        return linear(hidden, matrix, bias)

    def gradients(padded: bool) -> list[Any]:
        monkeypatch.setattr(heads, "PADDED_ON", frozenset({"cpu"} if padded else ()))
        draw = torch.Generator().manual_seed(0)
        hidden, matrix = (torch.randn(n, 8, generator=draw).requires_grad_() for n in (5, vocab))
        bias = torch.randn(vocab, generator=draw).requires_grad_()
        monkeypatch.setattr(functional, "linear", note)
        logits = heads.vocabulary_logits(hidden, matrix, bias)
        monkeypatch.setattr(functional, "linear", linear)
        losses = heads.cross_entropy(logits, torch.arange(5), 0.1)
        losses.sum().backward()
        return [logits, losses, hidden.grad, matrix.grad, bias.grad]

    torch.testing.assert_close(gradients(True), gradients(False))
    assert products == [rows, vocab]


# Muon


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_muon_moves_matrices_of_one_shape_as_torchs_loop_does(device: str) -> None:
    shapes = [(8, 24), (24, 8), (8, 24), (8, 8), (24, 8)]
    draw = torch.Generator().manual_seed(0)
    start = [torch.randn(shape, generator=draw) for shape in shapes]
    steps = [[torch.randn(shape, generator=draw) for shape in shapes] for _ in range(3)]
    found = []
    for kind, where in ((torch.optim.Muon, "cpu"), (Muon, device)):
        weights = [nn.Parameter(weight.to(where, copy=True)) for weight in start]
        optimizer = kind(weights, lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
        for gradients in steps:
            for number, (weight, gradient) in enumerate(zip(weights, gradients, strict=True)):
                weight.grad = None if number == 3 and gradient is steps[0][3] else gradient.to(where, copy=True)
            optimizer.step()
        moved = [*weights, *(optimizer.state[weight]["momentum_buffer"] for weight in weights)]
        found.append([tensor.detach().cpu() for tensor in moved])
    rtol, atol = (1e-3, 5e-4) if device == "cpu" else (1e-2, 1e-2)
    torch.testing.assert_close(found[1], found[0], rtol=rtol, atol=atol)


def test_muon_needs_no_bf16_products_on_a_cpu_without_instructions_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    used = []

    def noted(matrices: torch.Tensor, *others: Any) -> torch.Tensor:
        used.append(matrices.dtype)
        return orthogonalised(matrices, *others)

    monkeypatch.setattr("unicloze.training.optimizers.orthogonalised", noted)
    for there in (False, True):
        abilities = {"amx_bf16": False, "avx512_bf16": there}
        monkeypatch.setattr("unicloze.training.optimizers.cpu_abilities", lambda abilities=abilities: abilities)
        weight = nn.Parameter(torch.randn(4, 6, generator=torch.Generator().manual_seed(0)))
        weight.grad = weight.detach().clone()
        Muon([weight]).step()
    assert used == [torch.float32, torch.bfloat16]


def test_batched_iterations_are_those_of_each_matrix() -> None:
    from torch.optim._muon import _zeropower_via_newtonschulz as of_torch

    coefficients = (3.4445, -4.775, 2.0315)
    for shape in ((3, 16, 48), (3, 48, 16)):
        matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        wanted = torch.stack([of_torch(matrix.clone(), coefficients, 5, 1e-7) for matrix in matrices])
        torch.testing.assert_close(
            orthogonalised(matrices.bfloat16(), coefficients, 5, 1e-7), wanted, rtol=2e-2, atol=2e-2
        )
        exact = orthogonalised(matrices, coefficients, 5, 1e-7)
        torch.testing.assert_close(exact, wanted.float(), rtol=5e-2, atol=5e-2)


# A GPU


def pretrained(corpus: Path, out: Path, **settings: Any) -> UnifiedModel:
    overrides = {
        **toy_overrides(), "data.corpus": [str(corpus)], "training.device": "cuda", "training.steps": 6,
        "training.precision": "fp32", "training.log_every": 1, **settings,
    }  # fmt: skip
    pretrain_run(load_recipe("unilmv2-base", overrides), out, progress=False)
    return load_model(out).model.for_use()


STILL = {"model.dropout": 0.0, "model.attention_dropout": 0.0}


def trained_alike(corpus: Path, folder: Path, runs: dict[str, dict[str, Any]]) -> None:
    """Two runs have about the same losses."""
    warnings.filterwarnings("ignore", "TensorFloat32 tensor cores", UserWarning)  # exact products are compared
    losses = []
    for name, settings in runs.items():
        pretrained(corpus, folder / name, **settings)
        events = read_ledger(folder / name / "ledger.jsonl")
        losses.append([event["loss"] for event in events if event["event"] == "step"])
    for one, other in zip(*losses, strict=True):
        assert other == pytest.approx(one, rel=1e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("compile", [False, True])
def test_a_gpu_learns_what_a_cpu_learns(compile: bool, corpus: Path, tmp_path: Path) -> None:
    settings = {"cpu": {"training.device": "cpu"}, "gpu": {"training.compile": compile}}
    trained_alike(corpus, tmp_path, {name: STILL | changes for name, changes in settings.items()})


@pytest.mark.gpu
@pytest.mark.parametrize(("checkpoints", "settings"), [
    ((False, False), {"training.optimizer": "muon", "training.compile": True}), ((True, True), {"training.compile": True}),
    ((False, True), {"training.optimizer": "muon"}),
])  # fmt: skip
def test_a_deterministic_run_repeats_its_bits_on_a_gpu(
    checkpoints: tuple[bool, bool], settings: dict[str, Any], corpus: Path, tmp_path: Path
) -> None:
    """And recomputed layers give those of kept ones."""
    one, other = (
        pretrained(corpus, tmp_path / f"{n}", **settings, **{"training.checkpoint_activations": on}).state_dict()
        for n, on in enumerate(checkpoints)
    )
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.gpu
def test_flex_attention_trains_as_sdpa_does(corpus: Path, tmp_path: Path) -> None:
    free = STILL | {"training.deterministic": False}
    trained_alike(corpus, tmp_path, {name: free | {"training.attention": name} for name in ("sdpa", "flex")})


@pytest.mark.gpu
def test_a_step_on_a_gpu_waits_once(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch's own debug mode counts, from the rows to the update."""
    take, waits = loop.take_step, []

    def watched(*arguments: Any) -> bool:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                return take(*arguments)
            finally:
                torch.cuda.set_sync_debug_mode("default")
                waits.append(sum("synchronizing CUDA operation" in str(each.message) for each in caught))

    monkeypatch.setattr(loop, "take_step", watched)
    quiet = {"training.evaluate_every": 0, "training.save_every": 0}
    pretrained(corpus, tmp_path / "run", **quiet)
    assert len(waits) == 6 and waits[1:-1] == [1] * 4, "the first may prepare libraries, the last evaluates and saves"


@pytest.mark.gpu
def test_a_batch_is_copied_to_a_gpu_beside_what_it_computes() -> None:
    """The copy ends while the stream of the computations is still busy, and the process waits for neither."""
    examples, buffers = examples_of(3, short=True), []
    send = devices._sent
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "_sent", lambda buffer, device: send(buffers.append(buffer) or buffer, device))
        collate(examples, device=GPU)  # makes the stream and the buffers
        torch.cuda.synchronize()
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype", UserWarning)
        torch.cuda.set_sync_debug_mode("error")
        try:
            torch.cuda._sleep(10**9)
            computed = torch.cuda.Event()
            computed.record()
            batch = collate(examples, device=GPU)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    devices._side_stream(torch.device("cuda", torch.cuda.current_device())).synchronize()
    assert not computed.query() and all(buffer.is_pinned() for buffer in buffers) and len(buffers) == 2
    for one, other in zip(tensors_of(collate(examples)), tensors_of(batch), strict=True):
        assert other.is_cuda and torch.equal(one, other.cpu())


@pytest.mark.gpu
def test_dropout_seeds_its_own_device_alone() -> None:
    before = torch.cuda.default_generators[0].initial_seed()
    DropoutKey(1, 2, device=torch.device("cpu"))
    assert torch.cuda.default_generators[0].initial_seed() == before
    one, other = (functional.dropout(torch.ones(64, device="cuda"), 0.5) for _ in map(_seed, range(2)))
    assert torch.equal(one, other)


def _seed(_: int) -> None:
    DropoutKey(1, 2, device=torch.device("cuda", torch.cuda.current_device()))
