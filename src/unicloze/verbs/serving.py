"""Serves a trained model over HTTP."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from unicloze.errors import UniclozeError, UsageError
from unicloze.settings import Precision
from unicloze.verbs.options import Device, File, Model, Number, Option

if TYPE_CHECKING:
    from unicloze.serving.run import Served

NEEDS = "fastapi", "uvicorn"


def serve(
    model: Model,
    host: Annotated[str, Option("ADDRESS")] = "127.0.0.1",
    port: Number = 8000,
    token_file: File | None = None,
    queue: Number = 128,
    timeout: Annotated[float, Option("SECONDS")] = 60.0,
    device: Device = "auto",
    precision: Precision | None = None,
) -> Served:
    """Serve a model over HTTP: a page to try it on, JSON endpoints, and those of OpenAI and Hugging Face clients.

    Stops at SIGTERM or Ctrl-C after finishing the requests that have begun. Without a token, only this machine is served.

    Args:
        model: Run directory, one of its checkpoints, or a Hugging Face model folder; in Python also a loaded model.
        host: Address to serve at; others than this machine's own need a token.
        port: Port; 0 chooses a free one.
        token_file: File with the token that requests must carry (default: the environment variable UNICLOZE_TOKEN).
        queue: Maximum number of waiting requests; further ones are refused.
        timeout: Maximum seconds per request.
        device: Where to compute: cpu, cuda, cuda:N, xpu, mps, or auto (CUDA if it is there); in Python a loaded model
            stays where it is.
        precision: Precision of the forward passes; auto is bf16 where it is faster (default: fp32, and bf16 for vectors if a
            measurement at the start shows it to be faster, with cosines of at least 0.999).

    Returns:
        Numbers of requests answered and refused.

    Examples:
        unicloze serve --model runs/quickstart
        unicloze serve --model runs/classification --host 0.0.0.0 --token-file token.txt

    Raises:
        UsageError: A value is out of range, there is no such device, or other machines could use the server and there is no
            token.
        UniclozeError: There is no complete checkpoint, the extra `serve` is not installed, or the address cannot be used.
    """
    if queue < 1:
        raise UsageError(f"queue is {queue}: give 1 or more.")
    if not 0 < timeout < math.inf:
        raise UsageError(f"timeout is {timeout:g}: give more than 0 seconds.")
    missing = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise UniclozeError(f"serving needs {' and '.join(missing)}: in the clone, pip install -e '.[serve]'.")
    from unicloze.interop.opening import open_model
    from unicloze.serving.guard import Limits
    from unicloze.serving.run import serve_model, token_of
    from unicloze.serving.served_model import VectorPrecision, choose_for_vectors

    token = token_of(None if token_file is None else Path(token_file), host)
    loaded = open_model(model, device, precision)
    vectors = VectorPrecision(model=loaded) if precision else choose_for_vectors(loaded)
    return serve_model(
        loaded, vectors, host=host, port=port, token=token, limits=Limits(waiting=queue, seconds=timeout)
    )
