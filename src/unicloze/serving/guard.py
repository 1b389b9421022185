"""Refuses requests before they reach an endpoint: from elsewhere, without the token, too large, or too slow."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import sys
import traceback
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from unicloze.serving.limits import Limits, Refused

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN = "/health", "/docs", "/openapi.json"
"""Paths that need no token, beside the page's own files."""
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


def error_body(path: str, status: int, sentence: str, code: str | None = None) -> bytes:
    """An error as JSON, in the form that the clients of a path expect."""
    if path.startswith("/v1/"):
        kind = "server_error" if status >= 500 else "invalid_request_error"
        return json.dumps({"error": {"message": sentence, "type": kind, "param": None, "code": code}}).encode()
    return json.dumps({"error": sentence}).encode()


class Guard:
    """Wraps the application.

    Args:
        app: The application.
        limits: Limits of size and time.
        token: Token that requests must carry; None if everybody on this machine may use the server.
    """

    def __init__(self, app: App, limits: Limits, token: str | None) -> None:
        self.app, self.limits, self.token = app, limits, token
        self.answered = self.refused = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun = False

        async def send_on(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                self._count(message["status"])
                headers = [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", ()), *headers]}
            await send(message)

        path = str(scope["path"])
        try:
            async with asyncio.timeout(self.limits.seconds):
                self._check(scope, path)
                await self.app(scope, await self._whole(scope, receive), send_on)
        except Refused as refused:
            await _answer(send_on, path, refused)
        except TimeoutError:
            if not begun:
                sentence = f"The request took longer than {self.limits.seconds:g} seconds: ask for less at once."
                await _answer(send_on, path, Refused(408, sentence, {"Connection": "close"}))
        except Exception as error:
            _log(error)
            if not begun:
                await _answer(send_on, path, Refused(500, "The server failed: its log says where."))

    def _count(self, status: int) -> None:
        self.answered += status < 400
        self.refused += status >= 400

    def _check(self, scope: Scope, path: str) -> None:
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get("host", "")
        if self.token is None and not is_loopback(_name_of(host)):
            # A page of another site whose name was pointed at this machine.
            raise Refused(403, "The server answers only requests to localhost: give it a token to open it to others.")
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            raise Refused(403, "The request comes from a page of another site: send it from this server's own page.")
        if self.token is None or path in OPEN or (scope["method"] in ("GET", "HEAD") and not path.startswith("/v1/")):
            return
        given = headers.get("authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {self.token}".encode()):
            sentence = "The token is missing or wrong: send it as 'Authorization: Bearer TOKEN'."
            raise Refused(401, sentence, {"WWW-Authenticate": "Bearer"})

    async def _whole(self, scope: Scope, receive: Receive) -> Receive:
        """Read the body up to the limit; returns what gives it to the application."""
        if scope["method"] in ("GET", "HEAD"):
            return receive
        body = bytearray()
        more = True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                return receive
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > self.limits.body:
                sentence = f"The request has more than {self.limits.body:,} bytes: send it in parts."
                raise Refused(413, sentence, {"Connection": "close"})
        whole: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def replay() -> Message:
            return whole.pop() if whole else await receive()

        return replay


def _name_of(host: str) -> str:
    """A Host header without the port."""
    return host.rpartition(":")[0] if host.rpartition("]")[2].count(":") == 1 else host


def _log(error: Exception) -> None:
    """Print the kind and place of an internal error, without its message, which may hold a user's text."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" in {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
    print(f"unicloze: error: a request failed by {type(error).__name__}{place}", file=sys.stderr)


async def _answer(send: Send, path: str, refused: Refused) -> None:
    body = error_body(path, refused.status, refused.sentence)
    headers = {"content-type": "application/json", "content-length": str(len(body)), **refused.headers}
    encoded = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refused.status, "headers": encoded})
    await send({"type": "http.response.body", "body": body})
