"""Exports a model as ONNX files: its encoder, and one generation step; `unicloze.interop.programs` lists their inputs."""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unicloze.errors import UsageError
from unicloze.interop.calling import step_inputs
from unicloze.interop.opening import ModelLike, open_model
from unicloze.interop.programs import Encoder, Program, Step, compare_program, module_of, trace

_LARGEST_FILE = 2**31 - 2**20
"""Largest weights of one file in bytes: protobuf is limited to 2 GiB."""


def export_onnx(model: ModelLike, out: str | os.PathLike[str], *, parts: Sequence[Program] | None = None) -> list[Path]:
    """Write `encoder.onnx` and, if the model generates text, `step.onnx` to a folder; rows and slots are dynamic.

    Each file is run by ONNX Runtime and compared with the model on rows of several shapes before it is moved into place.

    Args:
        model: A run directory, a checkpoint or a loaded model.
        out: The folder; files of these names are replaced.
        parts: `encoder`, `step` or both; default: all the model has.

    Returns:
        The files.

    Raises:
        UsageError: ONNX is not installed, the model lacks the part, or it cannot be exported.
        UniclozeError: A file differs from the model; it was deleted.
    """
    _check_installed()
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
        compare_program(module, _Runner(module, part), str(file))
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


class _Runner:
    """An ONNX file as a function of tensors."""

    def __init__(self, module: Encoder | Step, file: Path) -> None:
        import onnxruntime

        self._names = list(module.inputs)
        self._session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        found = self._session.run(None, {name: each.numpy() for name, each in zip(self._names, inputs, strict=True)})
        return [torch.from_numpy(each) for each in found]


def _check_installed() -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise UsageError(f'{error.name} is not installed: in the clone, pip install -e ".[onnx]"') from error


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
