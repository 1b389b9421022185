"""Exports a model as self-contained tensor programs and as ONNX files, without dependence on this package.

    encoder   input_ids, attention_mask, token_type_ids  ->  last_hidden_state, and logits where the model predicts tokens
    step      input_ids, attention_mask, token_type_ids, past_mask, past_keys, past_values
                                                         ->  logits, new_keys, new_values

Call `step` first with the source and an empty past (0 slots), then with the last chosen token. The caller appends the
new keys and values to the past. A model that predicts at pseudo masks appends one internally and returns only the keys and
values of the other slots. `token_type_ids` is 0 for the source and 1 for the target. Rows, slots and past are dynamic.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.nn import functional

from unicloze.decoding.inputs import objective_of
from unicloze.errors import UniclozeError, UsageError
from unicloze.interop.read import ModelLike, open_model
from unicloze.interop.stock import OPENED, encoder_inputs, layout_of, step_inputs
from unicloze.mixtures import describe
from unicloze.model.attention import head_width
from unicloze.model.from_attention_mask import StepInputs, encoding_batch, slots_of
from unicloze.model.model import UnifiedModel
from unicloze.model.readers import GivenKeys, check_steps
from unicloze.settings import Reading
from unicloze.training.loading import LoadedModel

Program = Literal["encoder", "step"]

TOLERANCE = 1e-5
"""Largest accepted difference, relative to the largest value of an output if that is above 1."""

_ROWS, _SLOTS, _PAST = Dim("rows"), Dim("slots"), Dim("past")


class Encoder(nn.Module):
    """Maps texts to hidden states, and to logits if the model has a token head."""

    def __init__(self, model: UnifiedModel, rule: Reading) -> None:
        super().__init__()
        self.model = model
        self.rule = rule
        self.predicts = hasattr(model, "token_head")
        self.outputs = ("last_hidden_state", "logits") if self.predicts else ("last_hidden_state",)
        self.inputs: dict[str, dict[int, Dim]] = {
            name: {0: _ROWS, 1: _SLOTS} for name in ("input_ids", "attention_mask", "token_type_ids")
        }

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> tuple[Tensor, ...]:
        """*Shape:* (rows, slots) each to (rows, slots, hidden size) and (rows, slots, vocabulary)"""
        longest = self.model.max_positions
        batch = encoding_batch(input_ids, attention_mask, token_type_ids, rule=self.rule, max_positions=longest)
        hidden = self.model.backbone(batch)[-1]
        return (hidden, self.model.token_logits(hidden)) if self.predicts else (hidden,)


class Step(nn.Module):
    """Maps the next slots of every row to logits of the following token."""

    outputs = "logits", "new_keys", "new_values"

    def __init__(self, model: UnifiedModel, rule: StepInputs) -> None:
        super().__init__()
        check_steps(model.settings)
        self.model = model
        self.rule = rule
        self.inputs: dict[str, dict[int, Dim]] = {
            **{name: {0: _ROWS, 1: _SLOTS} for name in ("input_ids", "attention_mask", "token_type_ids")},
            "past_mask": {0: _ROWS, 1: _PAST},
            **{name: {1: _ROWS, 3: _PAST} for name in ("past_keys", "past_values")},
        }

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor,
        past_mask: Tensor,
        past_keys: Tensor,
        past_values: Tensor,
    ) -> tuple[Tensor, ...]:
        """Compute one step.

        Args:
            input_ids: *Shape:* (rows, slots)
            attention_mask: 1 where a slot is real. *Shape:* (rows, slots)
            token_type_ids: 0 for the source, 1 for the target. *Shape:* (rows, slots)
            past_mask: 1 where a slot of the past is real. *Shape:* (rows, past)
            past_keys: *Shape:* (layers, rows, heads, past, head size)
            past_values: *Shape:* (layers, rows, heads, past, head size)

        Returns:
            Logits, *Shape:* (rows, vocabulary), and new keys and values, *Shape:* (layers, rows, heads, slots, head size)
        """
        kept = input_ids.shape[1]
        if self.rule.pseudo is not None:
            input_ids = functional.pad(input_ids, (0, 1), value=self.rule.pseudo)
            token_type_ids = functional.pad(token_type_ids, (0, 1), value=1)
            attention_mask = functional.pad(attention_mask, (0, 1), value=1)
        new_keys, new_values = [], []

        def append(key: Tensor, value: Tensor, layer: int) -> tuple[Tensor, Tensor]:
            new_keys.append(key[:, :, :kept])
            new_values.append(value[:, :, :kept])
            return torch.cat([past_keys[layer], key], dim=2), torch.cat([past_values[layer], value], dim=2)

        slots = slots_of(
            input_ids,
            torch.cat([past_mask, attention_mask], dim=1),
            token_type_ids,
            rule=self.rule,
            earlier=past_mask.shape[1],
            max_positions=self.model.max_positions,
        )
        backbone = self.model.transformer
        reader = GivenKeys(slots=slots, append=append, local_width=self.rule.local_width, backend=backbone.backend)
        *_, hidden = backbone.read(slots.input_ids, slots.positions, slots.segment_ids, reader)
        places = torch.arange(attention_mask.shape[1], device=attention_mask.device)
        last = (attention_mask * places).amax(dim=1)[:, None, None].expand(-1, 1, hidden.shape[2])  # real slot
        return self.model.token_logits(hidden.gather(1, last)[:, 0]), torch.stack(new_keys), torch.stack(new_values)


def module_of(model: LoadedModel, part: Program) -> Encoder | Step:
    """The module to export for one part of a model."""
    if model.model.settings.decoder_layers:
        raise UsageError(
            f"model.decoder_layers is {model.model.settings.decoder_layers}, and an encoder-decoder cannot be exported as a "
            "program: use unicloze's own commands or `unicloze export`"
        )
    if model.model.settings.positions == "transformer_xl":
        raise UsageError(
            "model.positions is transformer_xl: its distances depend on the text, which cannot be exported"
        )
    if part == "encoder":
        if len(model.model.task_heads):
            warnings.warn(
                f"the program has no head of task {model.recipe.task.kind}: it computes hidden states alone, and `unicloze "
                "export` writes the head for Transformers",
                stacklevel=3,
            )
        return Encoder(model.model, encoder_inputs(model.recipe)).eval()
    rule = step_inputs(model.recipe, model.tokenizer.vocabulary)
    if rule is None and layout_of(model) is not None:
        raise UsageError(
            f"a program does not write this model's targets, since {OPENED}: export only its encoder, and generate with "
            "`unicloze generate`"
        )
    if rule is None:
        objective = objective_of(model.recipe)
        what = "an encoder without heads" if not objective.trains else f"a model of the objective {describe(objective)}"
        raise UsageError(f"{what} does not generate text: export only its encoder")
    return Step(model.model, rule).eval()


def export_program(model: ModelLike, part: Program = "encoder") -> ExportedProgram:
    """A part of a model as an `ExportedProgram`, compared with the model on rows of several shapes."""
    module = module_of(open_model(model), part)
    program = trace(module)
    compare_program(module, program.module(), f"the exported {part}")
    return program


@torch.no_grad()
def trace(module: Encoder | Step) -> ExportedProgram:
    """Trace a part of a model, without comparing it."""
    return torch.export.export(module, _sizes(module, 2, 5, 3), dynamic_shapes=module.inputs)


@torch.no_grad()
def compare_program(module: Encoder | Step, program: Callable[..., Sequence[Tensor]], name: str) -> None:
    """Compare a program with the model on the same rows: one or several, short or long, padded, with and without a past."""
    longest = module.model.max_positions - 1
    for rows, slots, past in ((1, 1, 0), (3, 7, 0), (2, 1, 6), (1, 1, 1), (4, longest // 2, longest - longest // 2)):
        inputs = _sizes(module, rows, min(slots, longest), min(past, longest - 1))
        for output, found, expected in zip(module.outputs, program(*inputs), module(*inputs), strict=True):
            if not expected.numel():
                continue
            difference = float((found - expected).abs().max())
            allowed = TOLERANCE * max(1.0, float(expected.abs().max()))
            if not difference <= allowed:
                shape = "x".join(map(str, inputs[0].shape))
                raise UniclozeError(
                    f"{name} differs from the model by {difference:.2g} in {output} of {shape} tokens, more than "
                    f"{allowed:.2g}: it was discarded"
                )


def _sizes(module: Encoder | Step, rows: int, slots: int, past: int) -> tuple[Tensor, ...]:
    """Random inputs of given sizes; all rows but the first are padded on the left."""
    generator = torch.Generator().manual_seed(rows * slots)
    ids = torch.randint(module.model.vocab_size, (rows, slots), generator=generator)
    real = (torch.arange(slots) >= torch.arange(rows)[:, None].clamp(max=slots - 1)).long()
    if isinstance(module, Encoder):
        return ids, real, torch.randint(2, (rows, slots), generator=generator)
    settings = module.model.settings
    shape = (settings.num_layers, rows, settings.num_heads, past, head_width(settings))
    keys, values = (torch.randn(shape, generator=generator) for _ in range(2))
    if past:
        return ids, torch.ones_like(ids), torch.ones_like(ids), torch.ones(rows, past, dtype=torch.long), keys, values
    return ids, real, torch.zeros_like(ids), torch.ones(rows, 0, dtype=torch.long), keys, values


_LARGEST_FILE = 2**31 - 2**20
"""Largest weights of one file in bytes: protobuf is limited to 2 GiB."""


def export_onnx(model: ModelLike, out: str | os.PathLike[str], *, parts: Sequence[Program] | None = None) -> list[Path]:
    """Write `encoder.onnx` and, if the model generates text, `step.onnx` to a folder; rows and slots are dynamic.

    Each file is run by ONNX Runtime and compared with the model on rows of several shapes before it is moved into place.
    """
    for name in ("onnx", "onnxruntime", "onnxscript"):
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise UsageError(f'{error.name} is not installed: in the clone, pip install -e ".[onnx]"') from error
    loaded = open_model(model)
    writes = step_inputs(loaded.recipe, loaded.tokenizer.vocabulary) is not None
    own: tuple[Program, ...] = ("encoder", "step") if writes else ("encoder",)
    modules = {part: module_of(loaded, part) for part in parts or own}
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    return [_export(module, folder / f"{part}.onnx") for part, module in modules.items()]


def _export(module: Encoder | Step, file: Path) -> Path:
    size = sum(tensor.numel() * tensor.element_size() for tensor in module.parameters())
    if size > _LARGEST_FILE:
        raise UsageError(
            f"the model has {size / 2**30:.1f} GiB of weights, but {file.name} can hold only 2: export a smaller model"
        )
    part = file.with_name(f"{file.name}.partial")
    try:
        with _quiet():
            program = torch.onnx.export(
                trace(module),
                dynamo=True,
                input_names=list(module.inputs),
                output_names=list(module.outputs),
                verbose=False,
            )
        assert program is not None
        program.rename_axes(
            {
                str(given.shape[axis]): dim.__name__
                for given in program.model.graph.inputs
                for axis, dim in module.inputs[str(given.name)].items()
                if given.shape is not None
            }
        )
        _forget_origin(program.model)
        program.save(part, external_data=False)
        compare_program(module, _runner(module, part), str(file))
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)
    return file


def _forget_origin(model: Any) -> None:
    """Remove the metadata the exporter attaches to each node: stack traces with local paths."""
    for graph in (model.graph, *model.functions.values()):
        graph.metadata_props.clear()
        for node in graph.all_nodes():
            node.metadata_props.clear()
            node.doc_string = None
            for output in node.outputs:
                output.metadata_props.clear()


def _runner(module: Encoder | Step, file: Path) -> Callable[..., Sequence[Tensor]]:
    """An ONNX file as a function of tensors."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])

    def run(*inputs: Tensor) -> list[Tensor]:
        arrays = (each.numpy() for each in inputs)
        return [torch.from_numpy(each) for each in session.run(None, dict(zip(module.inputs, arrays, strict=True)))]

    return run


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch's logs about missing packages and its internal warnings; the file is checked afterwards."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
