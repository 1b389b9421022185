"""Runs the server until it is stopped."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from unicloze.errors import UniclozeError, UsageError
from unicloze.files import Plain
from unicloze.progress import counted
from unicloze.serving.app import build_app
from unicloze.serving.guard import Connection, Guard, Limits, is_loopback
from unicloze.serving.served_model import ServedModel, VectorPrecision
from unicloze.training.loading import LoadedModel

TOKEN = "UNICLOZE_TOKEN"
"""Environment variable that holds the token."""
SHORTEST_TOKEN = 16
BACKLOG = 512
"""Connections that wait to be accepted."""
_LONGEST_TOKEN_FILE = 4096


@dataclass(frozen=True, kw_only=True)
class Served(Plain):
    """What a server did until it was stopped."""

    model: str  # name of the model
    url: str  # address of the server
    answered: int  # requests answered with a result
    refused: int  # requests answered with an error

    def __str__(self) -> str:
        return f"{self.model} at {self.url}: answered {counted(self.answered, 'request')}, refused {self.refused:,}"


def token_of(file: Path | None, host: str) -> str | None:
    """The token from a file, or from the environment; None if there is none."""
    place, token = f"the environment variable {TOKEN}", os.environ.get(TOKEN)
    if file is not None:
        place = str(file)
        try:
            with file.open(encoding="utf-8") as opened:
                token = opened.read(_LONGEST_TOKEN_FILE)
        except (OSError, UnicodeDecodeError) as error:
            raise UniclozeError(f"{file}: cannot read the token: {error}; give another --token-file.") from error
    if token is None:
        if not is_loopback(host):
            cure = f"put a token into {TOKEN} or a --token-file, or leave --host out."
            raise UsageError(f"--host {host} lets other machines use the model: {cure}")
        return None
    token = token.strip()
    if len(token) < SHORTEST_TOKEN or not (token.isascii() and token.isprintable()) or " " in token:
        raise UsageError(f"{place}: the token must be {SHORTEST_TOKEN} or more ASCII characters without spaces.")
    return token


class _Server(uvicorn.Server):
    """Stops gracefully at SIGTERM and Ctrl-C, and does not raise the signal again afterwards."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        def stop(number: int, frame: FrameType | None) -> None:
            self.handle_exit(number, frame)

        if threading.current_thread() is not threading.main_thread():  # which alone gets signals
            yield
            return
        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def serve_model(
    model: LoadedModel, vectors: VectorPrecision, *, host: str, port: int, token: str | None, limits: Limits
) -> Served:
    """Serve a model until SIGTERM or Ctrl-C; requests that have begun are finished first."""
    served = ServedModel(model, vectors.model, limits)
    app = build_app(served, token)
    with _listening(host, port) as listening:
        name = f"[{host}]" if ":" in host else host
        url = f"http://{name}:{listening.getsockname()[1]}"
        if vectors.speed_up is not None:
            print(f"unicloze: {vectors}", file=sys.stderr)
        print(f"unicloze: serving {served.name} at {url} (Ctrl-C stops)", file=sys.stderr, flush=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of long texts, which answers note
            until_stopped(app, listening, limits.seconds)
    return Served(model=served.name, url=url, answered=app.answered, refused=app.refused)


def until_stopped(app: Guard, listening: socket.socket, seconds: float) -> None:
    """Serve at a socket until a signal arrives, then finish what has begun, for at most some seconds."""
    _Server(config_of(app, timeout_graceful_shutdown=round(seconds) + 1)).run(sockets=[listening])


def config_of(app: Guard, **options: Any) -> uvicorn.Config:
    """The configuration of a server."""
    return uvicorn.Config(
        app, http=Connection, ws="none", log_level="error", access_log=False, server_header=False, lifespan="on",
        timeout_keep_alive=30, backlog=BACKLOG, **options,
    )  # fmt: skip


@contextlib.contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that listens at an address; connections wait until they are served."""
    if not 0 <= port < 1 << 16:
        raise UsageError(f"port is {port}: give a number from 0 to 65535.")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", "not a host name")
        raise UniclozeError(f"--host {host}: {reason}; give an address of this machine.") from error
    with bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind(address)
            bound.listen(BACKLOG)
        except OSError as error:
            reason = f"{error.strerror}; give another --host or --port"
            raise UniclozeError(f"cannot serve at {host} port {port}: {reason}.") from error
        yield bound
