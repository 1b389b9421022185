"""`unicloze serve` over the loopback: throughput, latency, and many requests with bad ones among them.

    python benchmarks/serve.py --model DIR [--requests N] [--seconds S] [--json FILE] [--toy]

DIR is a run, or a Hugging Face model folder. The server is started here as a separate process. Three parts:

  throughput   vectors of short texts, 32 per request from 4 connections. If sentence-transformers is installed and reads DIR,
               its `encode` of the same texts, in batches of 32 in a separate process, taking turns with the server; medians.
               Texts per second of processor time too, which depend less on what else the machine does
  latency      single texts from 16 connections that always wait for an answer give the saturation; then requests are sent at
               half and at twice that rate, whatever has been answered. p50 and p99 count from the time a request was due
  endurance    N requests of all kinds, a quarter of them bad, from 16 connections: none may be lost, and every answer must be
               the one the request gets alone; the server's memory is read before, at half and after
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import platform
import random
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import frame

WORDS = tuple("the a list of items is empty return value given state and not in to when if an object string".split())  # noqa: SIM905
TEXTS_PER_REQUEST = 32
CONNECTIONS = 16
TICK = 1 / os.sysconf("SC_CLK_TCK")
"""Resolution of processor times, in seconds."""
ROUNDS = 5
WARM_UP = 20
TOLERANCE = 2e-3
COARSE = 5e-2
"""Tolerance of bf16."""

ENCODE = """
import json, sys, time
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(sys.argv[1], device="cpu")
print("ready", flush=True)
for line in sys.stdin:
    texts = json.loads(line)
    begin, used = time.perf_counter(), time.process_time()
    model.encode(texts, batch_size=32, show_progress_bar=False)
    print(time.perf_counter() - begin, time.process_time() - used, flush=True)
"""

Request = tuple[str, bytes]
Answer = tuple[int, bytes]


def sentence(draw: random.Random, longest: int = 12) -> str:
    return " ".join(draw.choices(WORDS, k=draw.randint(4, longest)))


class Connection:
    """A connection that is kept open."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, request: Request) -> Answer:
        path, body = request
        if self.streams is None:
            self.streams = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 24)
        reader, writer = self.streams
        head = (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        )
        writer.write(f"{head}\r\n\r\n".encode() + body)
        answer = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = re.search(rb"content-length: (\d+)", answer)
        assert length is not None
        content = await reader.readexactly(int(length[1]))
        if b"connection: close" in answer:
            self.close()
        return int(answer.split()[1]), content

    def close(self) -> None:
        if self.streams is not None:
            self.streams[1].close()
            self.streams = None


def request_of(path: str, content: Any) -> Request:
    return path, json.dumps(content).encode()


async def in_turn(port: int, requests: list[Request], connections: int) -> tuple[list[Answer | None], float]:
    """The answers of requests sent by connections that each wait for an answer, and the seconds that took."""
    answers: list[Answer | None] = [None] * len(requests)
    left = iter(range(len(requests)))

    async def work() -> None:
        connection = Connection(port)
        for number in left:
            answers[number] = await connection.send(requests[number])
        connection.close()

    begin = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(connections)))
    return answers, time.perf_counter() - begin


async def at_a_rate(port: int, requests: list[Request], rate: float) -> dict[str, Any]:
    """Latencies of requests that are sent at a rate, in milliseconds."""
    free: list[Connection] = []
    statuses: Counter[int] = Counter()
    seconds: list[float] = []
    begin = time.perf_counter()

    async def one(number: int) -> None:
        due = begin + number / rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        connection = free.pop() if free else Connection(port)
        status, _ = await connection.send(requests[number])
        free.append(connection)
        statuses[status] += 1
        if status == 200:
            seconds.append(time.perf_counter() - due)

    await asyncio.gather(*(one(number) for number in range(len(requests))))
    for connection in free:
        connection.close()
    ranked = sorted(seconds)
    return {
        "rate": rate,
        "statuses": dict(statuses),
        "p50_ms": 1000 * ranked[len(ranked) // 2],
        "p99_ms": 1000 * ranked[min(len(ranked) - 1, math.ceil(0.99 * len(ranked)) - 1)],
        "answered_per_second": len(seconds) / (time.perf_counter() - begin),
    }


@contextmanager
def server(model: Path, *options: str) -> Iterator[tuple[int, int]]:
    """A server in a process of its own; its port and process id."""
    words = ["-m", "unicloze", "serve", "--model", str(model), "--port", "0", *options]
    process = subprocess.Popen([sys.executable, *words], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        said, served = "", None
        while served is None:
            line = process.stderr.readline()
            said, served = said + line, re.search(r"at http://127\.0\.0\.1:(\d+) ", line)
            if not line:
                sys.exit(said)
        print(said, end="", file=sys.stderr)
        yield int(served[1]), process.pid
    finally:
        process.terminate()
        process.wait()


def health(port: int) -> dict[str, Any]:
    from urllib.request import urlopen

    with urlopen(f"http://127.0.0.1:{port}/health") as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def memory(process: int) -> float:
    """Resident memory of a process, in MiB."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def processor_time(process: int) -> float:
    """Seconds of processor time that a process has used."""
    user, system = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) * TICK


# Parts


def throughput(port: int, process: int, model: Path, count: int) -> dict[str, Any]:
    draw = random.Random(1)
    texts = [sentence(draw) for _ in range(count)]
    requests = [
        request_of("/embed", {"inputs": texts[first : first + TEXTS_PER_REQUEST]})
        for first in range(0, len(texts), TEXTS_PER_REQUEST)
    ]
    asyncio.run(in_turn(port, requests, 4))
    encoder = subprocess.Popen(
        [sys.executable, "-c", ENCODE, str(model)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True,
    )  # fmt: skip
    assert encoder.stdin is not None and encoder.stdout is not None
    compared = encoder.stdout.readline().startswith("ready")
    ours, theirs = [], []
    for turn in range(ROUNDS + compared):
        used = processor_time(process)
        answers, seconds = asyncio.run(in_turn(port, requests, 4))
        assert all(answer is not None and answer[0] == 200 for answer in answers)
        ours.append((seconds, max(TICK, processor_time(process) - used)))
        if compared:
            encoder.stdin.write(json.dumps(texts) + "\n")
            encoder.stdin.flush()
            taken = tuple(map(float, encoder.stdout.readline().split()))
            if turn:  # the first call warms up
                theirs.append(taken)
    encoder.kill()
    encoder.wait()
    found: dict[str, Any] = {"texts": len(texts), "vectors": health(port)["vectors"]}
    for place, kind in enumerate(("per_second", "per_processor_second")):
        speeds = [len(texts) / statistics.median(one[place] for one in times) for times in (ours, theirs) if times]
        found |= dict(zip((f"served_{kind}", f"sentence_transformers_{kind}"), speeds, strict=False))
        if len(speeds) == 2:
            found[f"ratio_{kind}"] = speeds[0] / speeds[1]
    return found


def latency(port: int, seconds: float) -> dict[str, Any]:
    draw = random.Random(2)

    def requests(count: int) -> list[Request]:
        return [request_of("/embed", {"inputs": sentence(draw)}) for _ in range(count)]

    asyncio.run(in_turn(port, requests(WARM_UP * CONNECTIONS), CONNECTIONS))
    several = requests(600)
    _, taken = asyncio.run(in_turn(port, several, CONNECTIONS))
    rate = len(several) / taken
    parts = {
        name: asyncio.run(at_a_rate(port, requests(max(50, int(seconds * share * rate))), share * rate))
        for name, share in (("half", 0.5), ("twice", 2.0))
    }
    return {"saturation_per_second": rate, **parts}


def kinds_of_requests(abilities: list[str]) -> list[Request]:
    """Some requests of each kind that the model answers, and bad ones."""
    draw = random.Random(3)
    texts = [sentence(draw) for _ in range(12)]
    kinds: list[Request] = [request_of("/embed", {"inputs": text}) for text in texts]
    kinds += [request_of("/embed", {"inputs": texts[:3], "normalize": False})]
    if "fill" in abilities:
        kinds += [request_of("/fill", {"text": f"{text} [MASK] {text}"}) for text in texts[:4]]
    if "orders" in abilities:
        kinds += [
            request_of("/fill", {"text": "[MASK] list of [MASK]", "order": order}) for order in ("confidence", [2, 1])
        ]
    if "score" in abilities:
        kinds += [request_of("/score", {"text": text}) for text in texts[:4]]
    if "generate" in abilities:
        kinds += [request_of("/generate", {"text": text, "max_length": 4}) for text in texts[:4]]
    if "predict" in abilities:
        kinds += [request_of("/predict", {"text": text}) for text in texts[:4]]
    bad = [
        ("/embed", b"{"),
        ("/embed", b"\xff"),
        request_of("/embed", {"inputs": " "}),
        request_of("/embed", {"inputs": 7}),
        request_of("/embed", {"inputs": "x" * 300_000}),
        request_of("/embed", {"inputs": "a", "unknown": 1}),
        request_of("/nowhere", {}),
        request_of("/embed", {"inputs": ["a"] * 513}),
    ]
    every = max(1, len(kinds) // (3 * len(bad)))
    return kinds * max(1, 3 * len(bad) // len(kinds)) + bad * every


def alike(one: Any, other: Any, tolerance: float) -> bool:
    """Whether two answers are equal up to rounding."""
    if isinstance(one, dict):
        return (
            isinstance(other, dict)
            and one.keys() == other.keys()
            and all(alike(one[key], other[key], tolerance) for key in one)
        )
    if isinstance(one, list):
        return (
            isinstance(other, list)
            and len(one) == len(other)
            and all(alike(*pair, tolerance) for pair in zip(one, other, strict=True))
        )
    if isinstance(one, float) and isinstance(other, float | int):
        return math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance)
    return bool(one == other)


def endurance(port: int, process: int, count: int, tolerance: float) -> dict[str, Any]:
    kinds = kinds_of_requests(health(port)["abilities"])
    alone = dict(zip(kinds, asyncio.run(in_turn(port, kinds, 1))[0], strict=True))
    draw = random.Random(4)
    asyncio.run(in_turn(port, draw.choices(kinds, k=WARM_UP * CONNECTIONS), CONNECTIONS))
    resident, statuses, lost, wrong, seconds = [memory(process)], Counter[int](), 0, 0, 0.0
    for _ in range(2):
        requests = draw.choices(kinds, k=count // 2)
        answers, taken = asyncio.run(in_turn(port, requests, CONNECTIONS))
        seconds += taken
        for request, answer in zip(requests, answers, strict=True):
            expected = alone[request]
            if answer is None or expected is None:
                lost += 1
                continue
            statuses[answer[0]] += 1
            wrong += answer[0] != expected[0] or not alike(json.loads(answer[1]), json.loads(expected[1]), tolerance)
        resident.append(memory(process))
    return {
        "requests": 2 * (count // 2),
        "per_second": 2 * (count // 2) / seconds,
        "lost": lost,
        "wrong": wrong,
        "statuses": dict(sorted(statuses.items())),
        "memory_mib": [round(each, 1) for each in resident],
    }


def main() -> None:
    parser = frame.options(__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=2048, help="texts of the throughput")
    parser.add_argument("--seconds", type=float, default=10, help="duration of each rate of the latency")
    parser.add_argument("--requests", type=int, default=10_000, help="requests of the endurance")
    parser.add_argument("--queue", type=int, default=128)
    parser.add_argument(
        "--precision", help="of the server (default: as it chooses); sentence-transformers computes in fp32"
    )
    given = frame.parsed(parser, "--texts 8 --seconds 0.5 --requests 20")
    found: dict[str, Any] = {
        "model": given.model.name,
        "precision": given.precision or "as the server chooses",
        "cores": os.cpu_count(),
        "machine": platform.processor(),
    }
    precision = [] if given.precision is None else ["--precision", given.precision]
    with server(given.model, "--queue", str(given.queue), *precision) as (port, process):
        tolerance = TOLERANCE if health(port)["vectors"] == "fp32" else COARSE
        for name, part in (
            ("throughput", lambda: throughput(port, process, given.model, given.texts)),
            ("latency", lambda: latency(port, given.seconds)),
            ("endurance", lambda: endurance(port, process, given.requests, tolerance)),
        ):
            found[name] = part()
            print(f"{name}: {json.dumps(found[name])}", flush=True)
    frame.write(found, given.json)


if __name__ == "__main__":
    main()
