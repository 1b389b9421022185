"""A server in this process, at a free port of the loopback, and small models to serve."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import uvicorn

import nlu_toys
from unicloze.serving.app import build_app
from unicloze.serving.guard import Guard, Limits
from unicloze.serving.run import config_of
from unicloze.serving.served_model import ServedModel
from unicloze.training.loading import LoadedModel, build_model


class Answer(NamedTuple):
    """Status, headers and body of an answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The error, which must be one sentence and nothing else."""
        assert self.status >= 400 and list(self.json) == ["error"]
        sentence = self.json["error"]
        sentence = sentence if isinstance(sentence, str) else sentence["message"]
        assert sentence.endswith(".") and "\n" not in sentence and "Traceback" not in sentence
        return sentence


class Client(NamedTuple):
    """Sends requests to a server."""

    port: int
    app: Guard

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def send(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with contextlib.closing(connection):
            connection.request(method, path, body, dict(headers or {}))
            answer = connection.getresponse()
            return Answer(answer.status, dict(answer.headers), answer.read())

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        return self.send("GET", path, None, headers)

    def post(self, path: str, content: Any, headers: Mapping[str, str] | None = None) -> Answer:
        given = {"Content-Type": "application/json", **(headers or {})}
        return self.send("POST", path, json.dumps(content).encode(), given)


@contextlib.contextmanager
def serving(
    model: LoadedModel, limits: Limits | None = None, token: str | None = None, vectors: LoadedModel | None = None
) -> Iterator[Client]:
    """A server on a thread of this process, while it is used."""
    app = build_app(ServedModel(model, vectors, limits), token)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        server = uvicorn.Server(config_of(app))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield Client(listening.getsockname()[1], app)
        finally:
            server.should_exit = True
            thread.join()


def untrained(name: str, task: str, **settings: Any) -> LoadedModel:
    """A model of random weights, as if fine-tuned by a recipe."""
    start = nlu_toys.start("quickstart")
    recipe = nlu_toys.recipe_for(start, task, **settings)
    model = build_model(recipe, start.tokenizer.vocabulary.size).for_use().eval()
    return LoadedModel(model, start.tokenizer, recipe, start.path / name, 0)


def generator(**settings: Any) -> LoadedModel:
    return untrained("writer", "generation", **{"task__max_length": 32, **settings})


def classifier(labels: list[str] | None = None, task: str = "classification", **settings: Any) -> LoadedModel:
    labelled = {"task__labels": labels or ["no", "yes"]} if task in ("classification", "tagging") else {}
    return untrained("judge", task, **labelled, **settings)
