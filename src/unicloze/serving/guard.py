"""Refuses requests before they reach an endpoint: from elsewhere, without the token, too large, too slow, or not HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import Response
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

LONGEST_OUTPUT = 512
"""Maximum number of tokens to generate."""
MOST_TEXTS_OUT = 16
"""Maximum number of beams, and of generated texts per source."""
MOST_CANDIDATES = 50
"""Maximum number of candidates per mask."""
MOST_STOPS, LONGEST_STOP = 16, 256
"""Maximum number of texts that end a generated text, and of their characters."""
TOO_LONG = "context_length_exceeded"
"""Code of the refusal of a text that is too long, in OpenAI's interface."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a server."""

    body: int = 1 << 20  # bytes of a request
    texts: int = 512  # texts of a request
    characters: int = 200_000  # characters of all texts of a request that reads each text once
    # characters of all texts of a request that takes a forward pass for each token or mask
    careful_characters: int = 4_000
    masks: int = 64  # masks of a text
    waiting: int = 128  # requests that wait for the model; more are refused
    seconds: float = 60.0  # time from the end of a request's headers to the last byte of its answer
    head_seconds: float = 10.0  # time until the headers of a request have come
    connections: int = 512  # open connections; more are refused


class Refused(Exception):
    """A request that is answered with an error.

    Args:
        status: HTTP status.
        sentence: What is wrong and how to fix it.
        headers: Additional headers of the answer.
        code: Name of the error for clients of OpenAI's interface.
    """

    def __init__(
        self, status: int, sentence: str, headers: Mapping[str, str] | None = None, code: str | None = None
    ) -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.headers, self.code = status, sentence, dict(headers or {}), code


def sentence_of(message: str) -> str:
    """A message of the package as a sentence."""
    return message[:1].upper() + message[1:] + ("" if message.endswith((".", "?", "!")) else ".")


def check_texts(texts: Sequence[str], most: int, characters: int) -> None:
    """Refuse too many or blank texts, and texts that are too long together."""
    if not texts:
        raise Refused(422, "There is no text: give at least one.")
    if len(texts) > most:
        raise Refused(413, f"The request has {len(texts):,} texts, but at most {most:,} are read: send them in parts.")
    total = sum(map(len, texts))
    if total > characters:
        raise Refused(413, f"The text has {total:,} characters, but at most {characters:,} are read: shorten it.")
    blank = next((number for number, text in enumerate(texts, start=1) if not text.strip()), None)
    if blank is not None:
        which = "The text" if len(texts) == 1 else f"Text {blank} of {len(texts):,}"
        raise Refused(422, f"{which} is empty: give it at least one word.")


FAILED = "The server failed: its log says where."
SECURITY_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine's own."""
    name = host.strip("[]").lower()
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def answer_of(path: str, refused: Refused) -> Response:
    """The answer to a refused request, in the form that the clients of its path expect."""
    error: Any = refused.sentence
    if path.startswith("/v1/"):
        kind = "server_error" if refused.status >= 500 else "invalid_request_error"
        error = {"message": refused.sentence, "type": kind, "param": None, "code": refused.code}
    return JSONResponse({"error": error}, refused.status, headers=refused.headers)


def last_event(path: str, refused: Refused) -> Message:
    """The end of a stream of events that an error cuts off, in the form that the clients of its path expect."""
    error = b"data: " + bytes(answer_of(path, refused).body) + b"\n\n"
    done = b"data: [DONE]\n\n" if path.startswith("/v1/") else b""
    return {"type": "http.response.body", "body": error + done, "more_body": False}


def too_large(limits: Limits) -> Refused:
    """The refusal of a request with too many bytes."""
    return Refused(413, f"The request has more than {limits.body:,} bytes: send it in parts.")


class Guard:
    """Wraps the application.

    Args:
        app: The application.
        limits: Limits of size and time.
        token: Token that requests must carry; None if everybody on this machine may use the server.
    """

    def __init__(self, app: ASGIApp, limits: Limits, token: str | None) -> None:
        self.app, self.limits, self.token = app, limits, token
        self.answered = self.refused = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun = streams = False

        async def send_on(message: Message) -> None:
            nonlocal begun, streams
            if message["type"] == "http.response.start":
                begun = True
                streams = Headers(scope=message).get("content-type", "").startswith("text/event-stream")
                self.answered += message["status"] < 400
                self.refused += message["status"] >= 400
                MutableHeaders(scope=message).update(SECURITY_HEADERS)
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body"):
                streams = False

        try:
            async with asyncio.timeout(self.limits.seconds):
                self._check(scope)
                await self.app(scope, receive, send_on)
            return
        except Refused as error:
            refused = error
        except TimeoutError:
            sentence = f"The request took longer than {self.limits.seconds:g} seconds: ask for less at once."
            refused = Refused(408, sentence, {"Connection": "close"})
        except Exception as error:
            # Its kind and place, without its message, which may hold a user's text.
            frames = traceback.extract_tb(error.__traceback__)
            place = f" in {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
            print(f"unicloze: error: a request failed by {type(error).__name__}{place}", file=sys.stderr)
            refused = Refused(500, FAILED)
        if not begun:
            await answer_of(scope["path"], refused)(scope, receive, send_on)
        elif streams:
            self.answered, self.refused = self.answered - 1, self.refused + 1
            with contextlib.suppress(TimeoutError):  # of a client that no longer reads
                async with asyncio.timeout(1):
                    await send(last_event(scope["path"], refused))

    def _check(self, scope: Scope) -> None:
        headers, path = Headers(scope=scope), str(scope["path"])
        host = headers.get("host", "")
        name = host.rpartition(":")[0] if host.rpartition("]")[2].count(":") == 1 else host
        if self.token is None and not is_loopback(name):
            # A page of another site whose name was pointed at this machine.
            raise Refused(403, "The server answers only requests to localhost: give it a token to open it to others.")
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            raise Refused(403, "The request comes from a page of another site: send it from this server's own page.")
        free = self.token is None or (scope["method"] in ("GET", "HEAD") and not path.startswith("/v1/"))
        given, known = headers.get("authorization", ""), f"Bearer {self.token}"
        if not free and not hmac.compare_digest(given.encode(), known.encode()):
            sentence = "The token is missing or wrong: send it as 'Authorization: Bearer TOKEN'."
            raise Refused(401, sentence, {"WWW-Authenticate": "Bearer"})
        if int(headers.get("content-length", 0)) > self.limits.body:  # FastAPI counts the bytes of others
            raise too_large(self.limits)


class Connection(H11Protocol):
    """An HTTP/1.1 connection that is closed if the headers of a request do not come in time.

    It is refused if too many are open, and ends if the client does not read what it is sent. uvicorn bounds the idle time,
    and the guard the time from the headers on.
    """

    late: asyncio.TimerHandle
    unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a request, unless too many connections are open."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)  # so that all that is not read pauses the writing
        self._wait()
        most = self._limits.connections
        if len(self.connections) > most:
            full = answer_of("", Refused(503, f"{most} connections are open already: try again later."))
            head = [b"HTTP/1.1 503 Service Unavailable", b"retry-after: 1", b"connection: close"]
            head += [name + b": " + value for name, value in full.raw_headers]
            transport.write(b"\r\n".join([*head, b"", bytes(full.body)]))
            transport.close()

    def data_received(self, data: bytes) -> None:
        """Stop waiting once the headers are complete, and wait again from the beginning of the next request."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self.late.cancel()
        elif self.late.cancelled():
            self._wait()

    def pause_writing(self) -> None:
        """Wait for the client to read."""
        super().pause_writing()
        self.unread = self.loop.call_later(self._limits.seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """It has read."""
        super().resume_writing()
        self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _stop_waiting(self) -> None:
        if self.unread is not None:
            self.unread.cancel()

    def _wait(self) -> None:
        self.late = self.loop.call_later(self._limits.head_seconds, self.transport.close)

    @property
    def _limits(self) -> Limits:
        limits: Limits = self.config.app.limits  # type: ignore[union-attr]
        return limits
