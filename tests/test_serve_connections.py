"""`unicloze serve`: what hostile clients send before or in place of a request, and the command that starts and stops it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")
pytest.importorskip("uvicorn", reason="the extra serve is not installed")

from cli_toys import Command
from conftest import slow_except
from decoding_toys import loaded
from hf_toys import save_run
from serving_toys import Client, serving
from unicloze import verbs
from unicloze.errors import UniclozeError, UsageError
from unicloze.serving import run, served_model
from unicloze.serving.guard import Limits

HEADERS = b"Host: localhost\r\nConnection: close\r\n"
PAGE = b"GET /favicon.ico HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with serving(loaded(), Limits(head_seconds=0.3)) as served:
        yield served


def connected(client: Client) -> socket.socket:
    return socket.create_connection(("127.0.0.1", client.port), timeout=30)


def rest(connection: socket.socket) -> bytes:
    """What comes until the server closes the connection."""
    found = b""
    with contextlib.suppress(ConnectionResetError):  # it closed before it read everything
        while part := connection.recv(1 << 16):
            found += part
    return found


def answer_of(connection: socket.socket) -> bytes:
    """An answer whose body ends with the end of an element."""
    found = b""
    while not found.endswith(b"</svg>\n") and not found.endswith(b"</svg>"):
        part = connection.recv(1 << 16)
        assert part, found
        found += part
    return found


def answer(client: Client, request: bytes) -> tuple[int, str]:
    """Status and body of the answer to some bytes."""
    with connected(client) as connection:
        with contextlib.suppress(OSError):
            connection.sendall(request)
        head, _, body = rest(connection).partition(b"\r\n\r\n")
    return int(head.split()[1]), body.decode()


def refusal(client: Client, request: bytes) -> int:
    """Status of the answer to some bytes, whose error must be one sentence."""
    status, body = answer(client, request)
    sentence = json.loads(body)["error"]
    assert sentence.endswith(".") and "\n" not in sentence
    return status


@pytest.mark.parametrize("beginning", [b"", b"POST /embed HTTP/1.1\r\nHost: loc"])
def test_a_connection_without_complete_headers_is_closed_in_time(client: Client, beginning: bytes) -> None:
    with connected(client) as connection:
        connection.sendall(beginning)
        assert rest(connection) == b""


def test_headers_that_come_byte_by_byte_are_cut_off_in_time(client: Client) -> None:
    with connected(client) as connection:
        connection.settimeout(0.02)
        connection.sendall(b"GET / HTTP/1.1\r\n")
        closed, end = False, time.monotonic() + 20
        while not closed and time.monotonic() < end:
            try:
                connection.sendall(b"X: 1\r\n")
                closed = connection.recv(1 << 16) == b""
            except TimeoutError:
                pass
            except OSError:
                closed = True
    assert closed


@pytest.mark.whole
def test_a_connection_that_is_kept_open_may_wait_for_its_next_request(client: Client) -> None:
    with connected(client) as connection:
        connection.sendall(PAGE)
        assert answer_of(connection).startswith(b"HTTP/1.1 200 ")
        connection.settimeout(0.5)  # longer than headers may take
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.settimeout(30)
        connection.sendall(PAGE[:20])
        connection.sendall(PAGE[20:])
        assert answer_of(connection).startswith(b"HTTP/1.1 200 ")
        connection.sendall(PAGE[:20])
        assert rest(connection) == b""


def test_more_connections_than_allowed_are_refused_and_later_ones_are_answered() -> None:
    with serving(loaded(), Limits(head_seconds=60, connections=4)) as client:
        with contextlib.ExitStack() as stack:
            first, *_ = [stack.enter_context(connected(client)) for _ in range(4)]
            refused = client.get("/health")
            assert (refused.status, refused.error) == (503, "4 connections are open already: try again later.")
            first.sendall(PAGE)
            assert answer_of(first).startswith(b"HTTP/1.1 200 ")
        end = time.monotonic() + 20
        while (status := client.get("/health").status) == 503 and time.monotonic() < end:
            time.sleep(0.02)
        assert status == 200


def test_a_client_that_reads_no_answer_is_cut_off() -> None:
    with serving(loaded(), Limits(seconds=0.5, connections=1)) as client, socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", int(client.url.rpartition(":")[2])))
        deaf.settimeout(0.2)
        with contextlib.suppress(OSError):  # once the server stops reading too
            deaf.sendall(PAGE.replace(b"/favicon.ico", b"/page/page.js") * 400)
        end = time.monotonic() + 20
        while (status := client.get("/health").status) == 503 and time.monotonic() < end:
            time.sleep(0.05)
        assert status == 200


@pytest.mark.parametrize("request_", [
    b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: evil.example\r\nHost: localhost\r\n\r\n",
    b"POST /embed HTTP/1.1\r\n" + HEADERS + b"Content-Length: -1\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + HEADERS + b"X: " + b"a" * 200_000 + b"\r\n\r\n",
], ids=["TLS", "two hosts", "negative length", "200 kB"])  # fmt: skip
def test_what_is_not_http_is_refused(client: Client, request_: bytes) -> None:
    assert answer(client, request_) == (400, "Invalid HTTP request received.")


@pytest.mark.parametrize("declared", [False, True])
def test_a_large_body_is_refused_whether_its_length_is_declared_or_not(client: Client, declared: bool) -> None:
    body: Any = b'"' * (17 << 16) if declared else iter([b'"' * (1 << 16)] * 17)
    refused = client.send("POST", "/score", body, {"Content-Type": "application/json"})
    assert (refused.status, refused.error) == (413, "The request has more than 1,048,576 bytes: send it in parts.")
    assert client.get("/health").status == 200


@pytest.mark.parametrize("path", [
    "/page/../../app.py", "/page/%2e%2e/%2e%2e/app.py", "/page//etc/passwd", "//etc/passwd",
])  # fmt: skip
def test_paths_lead_nowhere_else(client: Client, path: str) -> None:
    assert refusal(client, f"GET {path} HTTP/1.1\r\n".encode() + HEADERS + b"\r\n") == 404


def test_no_websocket_is_opened(client: Client) -> None:
    upgrade = b"Upgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    headers = b"Host: localhost\r\nConnection: Upgrade, close\r\n"
    assert refusal(client, b"GET /nowhere HTTP/1.1\r\n" + headers + upgrade + b"\r\n") == 404


def test_other_sites_learn_nothing_and_send_nothing(client: Client) -> None:
    asked = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    preflight = client.send("OPTIONS", "/embed", headers=asked)
    assert preflight.status == 403
    assert not [name for name in preflight.headers if name.lower().startswith("access-control")]
    assert client.post("/embed", {"inputs": "a"}, {"Origin": client.url}).status == 200
    for origin in ("null", "http://localhost:9", "http://evil.example"):
        refused = client.post("/embed", {"inputs": "a"}, {"Origin": origin})
        assert refused.status == 403 and "another site" in refused.error
    # What a page of another site may send without asking first.
    plain = client.send("POST", "/embed", b'{"inputs": "a"}', {"Content-Type": "text/plain"})
    assert plain.status == 422 and "content type" in plain.error


# `unicloze serve` as a command: what it refuses before it starts, and how it stops


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What would be served, and where."""
    found: list[Any] = []

    def keep(app: Any, listening: socket.socket, seconds: float) -> None:
        found.append((app, listening.getsockname()[1], seconds))

    monkeypatch.setattr(run, "until_stopped", keep)
    monkeypatch.setattr(served_model, "choose_precision", lambda settings, device: "fp32")
    monkeypatch.delenv(run.TOKEN, raising=False)
    return found


def test_it_serves_this_machine_at_a_port(started: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    served = verbs.serve(loaded(), port=0, queue=3, timeout=7)
    ((app, port, seconds),) = started
    url = f"http://127.0.0.1:{port}"
    assert seconds == 7 and capsys.readouterr().err == f"unicloze: serving nowhere at {url} (Ctrl-C stops)\n"
    assert (app.token, app.limits.waiting, app.limits.seconds) == (None, 3, 7)
    assert str(served) == f"nowhere at {url}: answered 0 requests, refused 0"
    assert served.to_dict() == {"model": "nowhere", "url": url, "answered": 0, "refused": 0}


def test_other_machines_need_a_token(started: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for host in ("0.0.0.0", "::", "192.168.1.7", "example.org"):
        with pytest.raises(UsageError, match="lets other machines use the model: put a token into UNICLOZE_TOKEN"):
            verbs.serve(loaded(), host=host)
    (tmp_path / "token").write_text("  from-a-file-1234567\n")
    verbs.serve(loaded(), host="0.0.0.0", port=0, token_file=tmp_path / "token")
    monkeypatch.setenv(run.TOKEN, "from-the-environment")
    verbs.serve(loaded(), host="0.0.0.0", port=0)
    verbs.serve(loaded(), port=0, token_file=tmp_path / "token")
    with pytest.raises(UniclozeError, match=r"--host 127\.0\.0\.\.1: not a host name; give an address of this machine"):
        verbs.serve(loaded(), host="127.0.0..1")
    tokens = [app.token for app, *_ in started]
    assert tokens == ["from-a-file-1234567", "from-the-environment", "from-a-file-1234567"]


@pytest.mark.parametrize("token", [
    "short", "", "sixteen letters and spaces", "umlauts-äöü-umlauts", "line\nbreak-break",
])  # fmt: skip
def test_a_weak_token_is_refused(token: str, started: list[Any], tmp_path: Path) -> None:
    (tmp_path / "token").write_text(token, encoding="utf-8")
    with pytest.raises(UsageError, match=r"token: the token must be 16 or more ASCII characters without spaces"):
        verbs.serve(loaded(), token_file=tmp_path / "token")
    assert not started


@pytest.mark.parametrize(("options", "error", "sentence"), [
    ({"queue": 0}, UsageError, "queue is 0: give 1 or more."),
    ({"timeout": 0}, UsageError, "timeout is 0: give more than 0 seconds."),
    ({"timeout": float("nan")}, UsageError, "timeout is nan"),
    ({"port": 70000}, UsageError, "port is 70000: give a number from 0 to 65535."),
    ({"token_file": "nowhere"}, UniclozeError, "nowhere: cannot read the token"),
    ({"device": "cuda:97"}, UsageError, "cuda:97"),
])  # fmt: skip
def test_what_cannot_be_served_is_refused(
    options: dict[str, Any], error: type[Exception], sentence: str, started: list[Any]
) -> None:
    with pytest.raises(error, match=re.escape(sentence)):
        verbs.serve(loaded(), **options)
    assert not started


def test_a_used_port_is_refused(started: list[Any]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UniclozeError, match=f"127.0.0.1 port {port}: .*; give another --host or --port"):
            verbs.serve(loaded(), port=port)


def test_without_the_extra_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch, command: Command) -> None:
    from unicloze.verbs import use

    monkeypatch.setattr(use, "NEEDS", ("fastapi", "no_such_package"))
    said = command("serve", "--model", "nowhere")
    assert said.code == 1 and said.sentence == "serving needs no_such_package: in the clone, pip install -e '.[serve]'."


@pytest.mark.whole
@pytest.mark.parametrize("number", slow_except([signal.SIGTERM], [signal.SIGTERM, signal.SIGINT]), ids=str)
def test_a_signal_finishes_what_runs(number: int, tmp_path: Path) -> None:
    save_run(tmp_path / "run", loaded())
    words = [sys.executable, "-m", "unicloze", "serve", "--model", str(tmp_path / "run"), "--port", "0", "--json"]
    words += ["--precision", "fp32"]  # otherwise what was measured is printed first
    environment = {key: value for key, value in os.environ.items() if key != run.TOKEN}
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        served = re.search(r"serving run at http://127\.0\.0\.1:(\d+) ", line)
        assert served, line + process.stderr.readline()
        connection = http.client.HTTPConnection("127.0.0.1", int(served[1]), timeout=60)
        body = json.dumps({"text": "the list", "max_length": 20, "min_length": 20, "stream": True}).encode()
        connection.request("POST", "/generate", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        beginning = answer.read1(20)
        process.send_signal(number)
        rest = answer.read()
        answer.close()
        connection.close()
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert b'"done"' in beginning + rest
    assert process.returncode == 0 and err == ""
    assert json.loads(out) == {"model": "run", "url": f"http://127.0.0.1:{served[1]}", "answered": 1, "refused": 0}
