"""Connections: limits how long the headers of a request may take and how many are open, and refuses what is not HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from unicloze.serving.guard import error_body
from unicloze.serving.limits import Limits


class Connection(H11Protocol):
    """An HTTP/1.1 connection of a server whose application is a `Guard`.

    A request's body and answer are bounded by the guard; this bounds what comes before the guard sees the request.
    """

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.limits: Limits = self.config.app.limits  # type: ignore[union-attr]
        self.late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a request, unless too many connections are open."""
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            sentence = f"{self.limits.connections} connections are open already: try again later."
            self._refuse("503 Service Unavailable", sentence, "retry-after: 1\r\n")
        else:
            self._wait()

    def data_received(self, data: bytes) -> None:
        """Stop waiting once the headers of a request are complete."""
        super().data_received(data)
        if self._is_answering:
            self._stop_waiting()
        elif self.late is None and not self.transport.is_closing():
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop_waiting()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP in one sentence."""
        if self._is_answering:
            self.transport.close()
        else:
            self._refuse("400 Bad Request", "The request is not valid HTTP, or its headers are too long: send another.")

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait(self) -> None:
        self.late = self.loop.call_later(self.limits.head_seconds, self._is_late)

    def _stop_waiting(self) -> None:
        if self.late is not None:
            self.late.cancel()
            self.late = None

    def _is_late(self) -> None:
        if self.conn.trailing_data[0]:
            sentence = f"The headers took longer than {self.limits.head_seconds:g} seconds: send them at once."
            self._refuse("408 Request Timeout", sentence)
        else:
            self.transport.close()

    def _refuse(self, status: str, sentence: str, headers: str = "") -> None:
        if self.transport.is_closing():
            return
        body = error_body("", int(status[:3]), sentence)
        head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n{headers}"
        self.transport.write(f"{head}connection: close\r\n\r\n".encode() + body)
        self.transport.close()
