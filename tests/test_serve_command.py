"""`unicloze serve` as a command: what it refuses before it starts, and how it stops."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")
pytest.importorskip("uvicorn", reason="the extra serve is not installed")

from cli_toys import Command
from conftest import slow_except
from decoding_toys import loaded
from hf_toys import save_run
from unicloze import verbs
from unicloze.errors import UniclozeError, UsageError
from unicloze.serving import run, served_model


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
    tokens = [app.token for app, *_ in started]
    assert tokens == ["from-a-file-1234567", "from-the-environment", "from-a-file-1234567"]


@pytest.mark.parametrize(
    "token", ["short", "", "sixteen letters and spaces", "umlauts-äöü-umlauts", "line\nbreak-break"]
)
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
        with pytest.raises(
            UniclozeError, match=f"cannot serve at 127.0.0.1 port {port}: .*; give another --host or --port"
        ):
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
