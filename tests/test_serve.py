"""The server's own endpoints, and what it refuses."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")
pytest.importorskip("uvicorn", reason="the extra serve is not installed")

import nlu_toys
from decoding_toys import TEXT, loaded
from serving_toys import Client, classifier, generator, serving
from unicloze import docstrings, verbs
from unicloze.decoding import generate, infill, likelihood
from unicloze.decoding.embed import embed
from unicloze.interop.card import verdict_of
from unicloze.report.page import ANY
from unicloze.serving.guard import Limits
from unicloze.serving.served_model import ServedModel
from unicloze.settings import DecodingSettings

pytestmark = pytest.mark.filterwarnings("ignore:.* tokens the model reads at once", "ignore:the text has .* tokens")
"""As the command does."""

MASKED = "the [MASK] of [MASK] is empty"
SECRET = "the zebra's secret"


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with serving(loaded(relative=True)) as served:
        yield served


@pytest.fixture(scope="module")
def judge() -> Iterator[Client]:
    with serving(classifier(task__max_length=16)) as served:
        yield served


# Answers


def test_health_says_what_the_model_can_do(client: Client, judge: Client) -> None:
    offers = {
        "abilities": ["fill", "orders", "score", "generate", "embed"],
        "offers": ["fill", "orders", "score", "embed"],
    }
    expected = {"status": "ok", "model": "nowhere", "task": "", **offers, "reads": ["source"], "longest_text": 30}
    assert expected.items() <= client.get("/health").json.items(), "it is too small to offer to write"
    assert client.get("/health").json["example"] == ANY[1]
    expected = {
        "model": "judge",
        "task": "classification",
        "abilities": ["embed", "predict"],
        "reads": ["text", "pair"],
        "longest_text": 14,
    }
    assert expected.items() <= judge.get("/health").json.items()


@pytest.mark.parametrize(("verdict", "writes"), [
    ("", False), ("not judged: there is no held-out perplexity", False), ("perplexity 9.0 against 20.0 of counts", True),
    ("no better than counting words: train longer", False), ("worse than counting at content words: train longer", False),
])  # fmt: skip
@pytest.mark.parametrize("file", ["ledger.jsonl", "README.md"])
def test_the_page_offers_to_write_as_the_verdict_says(tmp_path: Path, file: str, verdict: str, writes: bool) -> None:
    """By the ledger of a run and by the card of an export; a small model that was not judged does not write."""
    events = [
        {"schema": 1, "event": "start", "time": 0.0, "step": 0},
        {"schema": 1, "event": "end", "step": 1, "verdict": verdict},
        {"schema": 1, "event": "start", "step": 1, "resumed_from": "step-1"},  # the same command again
    ]
    card = f"## Evaluation\n\nVerdict: {verdict}.\n" if verdict else "## Evaluation\n"
    lines = "\n".join(map(json.dumps, events)) + "\n"
    (tmp_path / file).write_text(card if file == "README.md" else lines)
    served = ServedModel(dataclasses.replace(loaded(relative=True), path=tmp_path))
    assert ("generate" in served.offers) == writes and "generate" in served.abilities
    if file == "ledger.jsonl":
        assert verdict_of(tmp_path) == verdict
        (tmp_path / file).write_text(f"{lines}{json.dumps({'event': 'save', 'step': 2})}\n")
        assert verdict_of(tmp_path) == "", "it was trained further since"


@pytest.mark.parametrize(("name", "abilities"), [
    ("awd-lstm", ["score", "generate", "embed"]), ("elmo", ["score", "embed"]), ("t5-base", ["generate", "embed"]),
])  # fmt: skip
def test_only_models_that_can_generate_offer_it(name: str, abilities: list[str]) -> None:
    assert list(ServedModel(nlu_toys.start(name)).abilities) == abilities


@pytest.mark.parametrize("order", [None, "confidence", "left-to-right", "span", [2, 1]], ids=str)
def test_fill_answers_as_python_does(client: Client, order: object) -> None:
    answer = client.post("/fill", {"text": MASKED, "top_k": 3, "order": order}).json
    expected = infill.fill(loaded(relative=True), MASKED, top_k=3, order=order)  # type: ignore[arg-type]
    assert answer == {**json.loads(json.dumps(expected.to_dict())), "picture": None}


def test_the_picture_shows_the_order_of_the_clicks(client: Client) -> None:
    pictures = [
        client.post("/fill", {"text": MASKED, "order": order, "picture": True}).json["picture"]["svg"]
        for order in ([2, 1], [1, 2], None)
    ]
    assert all(picture.startswith("<svg") for picture in pictures)
    assert "Factorization steps, by position: 4 -&gt; 2" in pictures[0]
    assert "Factorization steps, by position: 2 -&gt; 4" in pictures[1]
    assert "pseudo mask (P)" in pictures[0] and "pseudo mask (P)" not in pictures[2]
    filled = client.post("/fill", {"text": MASKED, "order": [2, 1]}).json["masks"][0]["token"]
    assert f"par: {filled}" in pictures[0]
    answer = client.post("/fill", {"text": f"{MASKED} {TEXT} {TEXT} {TEXT}", "picture": True})
    assert (answer.status, answer.json["picture"]) == (200, None), "it is too long to draw"


def test_score_answers_as_python_does(client: Client) -> None:
    texts = [TEXT, "the list is empty"]
    answer = client.post("/score", {"text": texts}).json
    expected = likelihood.score(loaded(relative=True), texts)
    for one, other in zip(answer["scores"], expected, strict=True):
        assert one["tokens"] == other.tokens
        for measure in ("chain_per_token", "pseudo_per_token"):
            assert one[measure] == pytest.approx(getattr(other, measure), abs=1e-4)


def test_generate_answers_as_python_does(client: Client) -> None:
    answer = client.post("/generate", {"text": "return the", "beams": 3, "num_results": 2, "max_length": 6}).json
    settings = DecodingSettings(beams=3, num_results=2, max_length=6)
    (expected,) = generate.generate(loaded(relative=True), ["return the"], settings)
    assert [one["text"] for one in answer["texts"]] == [one.text for one in expected.candidates]
    assert answer["texts"][0]["score"] == pytest.approx(expected.candidates[0].score, abs=1e-4)


def events(body: bytes) -> list[dict]:
    return [json.loads(line.removeprefix("data: ")) for line in body.decode().split("\n\n") if line]


def test_a_stream_ends_with_the_whole_text(client: Client) -> None:
    request = {"text": "return the", "max_length": 8}
    *pieces, last = events(client.post("/generate", {**request, "stream": True}).body)
    whole = client.post("/generate", request).json["texts"][0]
    assert len(pieces) > 2 and "".join(piece["piece"] for piece in pieces) == whole["text"]
    assert last == {"done": whole}


def test_a_drawn_text_depends_on_its_seed_alone(client: Client) -> None:
    request = {"text": "return the", "sample": True, "max_length": 12}
    drawn = [client.post("/generate", {**request, "seed": seed}).json["texts"][0]["text"] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len({client.post("/generate", request).body for _ in range(3)}) > 1
    drawing = ServedModel(generator(decoding__sample=True, decoding__beams=1))
    models = [
        drawing._ready(["return"], given, truncate=False)[0] for given in ({}, {}, {"seed": 3}, {"sample": False})
    ]
    assert [one.recipe.decoding.sample for one in models] == [True, True, True, False]
    assert len({one.recipe.decoding.seed for one in models[:3]}) == 3 and models[2].recipe.decoding.seed == 3


def test_embed_answers_as_python_does(client: Client) -> None:
    texts = [TEXT, "the list", f"{TEXT} {TEXT} {TEXT} {TEXT}"]
    expected = embed(loaded(relative=True), texts)
    answer = client.post("/embed", {"inputs": texts, "normalize": False}).json
    np.testing.assert_allclose(answer, expected, atol=1e-5)
    answer = client.post("/embed", {"inputs": texts}).json
    np.testing.assert_allclose(answer, expected / np.linalg.norm(expected, axis=1, keepdims=True), atol=1e-5)
    cut = client.post("/embed", {"inputs": texts[2], "normalize": False, "truncate": True}).json
    words = " ".join(f"{TEXT} {TEXT} {TEXT}".split()[:30])
    np.testing.assert_allclose(cut, embed(loaded(relative=True), [words]), atol=1e-5)


def test_predict_answers_as_python_does(judge: Client) -> None:
    for text in ("anna sees berlin", ["anna sees berlin", "carl leaves dublin"]):
        answer = judge.post("/predict", {"text": text}).json
        (expected,) = verbs.predict(classifier(task__max_length=16), text=text)
        assert answer["prediction"] == expected["prediction"] and "id" not in answer
        assert answer["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-5)
    with serving(classifier(["O", "B-PER", "I-PER"], "tagging")) as tagger:
        answer = tagger.post("/predict", {"text": "Anna sees Berlin."}).json
    assert answer["tokens"] == ["Anna", "sees", "Berlin", "."] and len(answer["prediction"]) == 4


@pytest.mark.filterwarnings("ignore:.* records are longer")
def test_an_answer_tells_that_its_text_was_cut(judge: Client) -> None:
    long = "anna sees berlin " * 100
    assert judge.post("/predict", {"text": long}).json["truncated"] is True
    assert "truncated" not in judge.post("/predict", {"text": "anna sees berlin"}).json
    refused = judge.post("/", {"inputs": ["anna sees berlin", long]})
    assert refused.status == 400 and "A text is longer than the rows of" in refused.error
    assert len(judge.post("/", {"inputs": long, "truncate": True}).json[0]) == 2


# Waiting requests


def together(client: Client, requests: list[tuple[str, dict]]) -> list[tuple[int, object]]:
    """The answers to requests sent at the same time, in their order."""
    found: list[tuple[int, object]] = [(0, None)] * len(requests)

    def ask(number: int) -> None:
        answer = client.post(*requests[number])
        found[number] = answer.status, answer.json

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(requests))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.whole
def test_many_at_once_get_the_answers_they_get_alone(client: Client) -> None:
    words, requests = TEXT.split(), list[tuple[str, dict]]()
    for first in range(len(words)):
        text = " ".join(words[first:])
        requests += [
            ("/embed", {"inputs": text}),
            ("/score", {"text": text}),
            ("/generate", {"text": text, "max_length": 5}),
            ("/generate", {"text": text, "max_length": 5, "sample": True, "seed": 3}),
            ("/fill", {"text": f"{text} [MASK]"}),
            ("/fill", {"text": text}),
            ("/score", {"text": " "}),
        ]
    alone = [client.post(*request) for request in requests]
    assert {one.status for one in alone} == {200, 422}
    for (status, content), one in zip(together(client, requests), alone, strict=True):
        assert status == one.status
        assert rounded(content) == rounded(one.json)


def rounded(content: object) -> object:
    if isinstance(content, dict):
        return {key: rounded(value) for key, value in content.items()}
    if isinstance(content, list):
        return [rounded(value) for value in content]
    return pytest.approx(content, rel=1e-3, abs=1e-4) if isinstance(content, float) else content


# Refusals


@pytest.mark.parametrize(
    ("path", "content", "status", "sentence"),
    [
        ("/fill", {}, 422, "The field 'text' is missing: give it; /docs shows how."),
        ("/fill", {"text": 7}, 422, "The field 'text' is invalid: input should be a valid string"),
        ("/fill", {"text": MASKED, "topk": 7}, 422, "There is no field 'topk': leave it out; /docs lists the fields."),
        ("/fill", {"text": MASKED, "top_k": 0}, 422, "The field 'top_k' is invalid: input should be greater"),
        ("/fill", {"text": "the list"}, 422, 'The text has no mask: put [MASK] in place of a word, as in "The [MASK] of'),
        ("/fill", {"text": MASKED, "order": [1, 1]}, 422, "The order 1 1 does not name each of the 2 masks once"),
        ("/fill", {"text": MASKED, "order": "random"}, 422, "The field 'order' is invalid"),
        ("/fill", {"text": "[MASK] " * 65}, 413, "The text has 65 masks, but at most 64 are filled: leave some out."),
        ("/score", {"text": ["a", " "]}, 422, "Text 2 of 2 is empty: give it at least one word."),
        ("/score", {"text": []}, 422, "There is no text: give at least one."),
        ("/score", {"text": "a" * 4001}, 413, "The text has 4,001 characters, but at most 4,000 are read: shorten it."),
        ("/embed", {"inputs": ["a"] * 513}, 413, "The request has 513 texts, but at most 512 are read"),
        ("/generate", {"text": "a", "temperature": 2.0}, 422, "Temperature is 2.0, but nothing is sampled"),
        ("/generate", {"text": "a", "max_length": 513}, 422, "The field 'max_length' is invalid: input should be less"),
        ("/generate", {"text": "a", "stream": True, "beams": 2, "num_results": 2}, 422, "Only one text can be streamed"),
        ("/", {"inputs": "a", "parameters": {"top_k": 3, "max_new_tokens": 5}}, 422, "top_k is for masks and classes"),
        ("/generate", {"text": ["a", "b"]}, 422, "This model reads source: give 1 text, not 2."),
        ("/predict", {"text": "a"}, 422, "This model cannot predict labels; it can fill masks, "),
        ("/score", {"text": "\ud800 a"}, 422, "Text 1 of 1 is not valid Unicode at character 0"),
        ("/generate", {"text": "\ud800 a"}, 422, "The source is not valid Unicode at character 0"),
        ("/v1/completions", {"model": "nowhere", "prompt": "a", "stop": ["b"] * 17}, 422, "At most 16 stop texts of at most"),
        ("/v1/completions", {"model": "\ud800", "prompt": "a"}, 404, "There is no model '?' here: ask for '"),
    ],
)  # fmt: skip
def test_a_wrong_request_is_refused_in_one_sentence(
    client: Client, path: str, content: object, status: int, sentence: str
) -> None:
    answer = client.post(path, content)
    assert answer.status == status and answer.error.startswith(sentence), answer.body


def test_what_is_not_json_is_refused(client: Client) -> None:
    kinds = {"Content-Type": "application/json"}
    for body in (b"{", b"\xff", b"\xff\xfe", b'{"text": "\xff"}', b"null}"):
        answer = client.send("POST", "/fill", body, kinds)
        assert (answer.status, answer.error) == (422, "The request is not valid JSON: send a JSON object.")
    assert client.send("POST", "/fill", b"[]", kinds).error.startswith("The request is not a JSON object")
    assert client.send("POST", "/fill", b"", kinds).status == 422
    assert client.get("/nothing").error == "There is nothing here: /docs lists what there is."
    assert client.get("/fill").status == 405


@pytest.mark.whole
def test_a_slow_request_is_refused_and_later_ones_are_answered() -> None:
    with serving(loaded(), Limits(seconds=1.5)) as client:
        with socket.create_connection(("127.0.0.1", client.port), timeout=10) as slow:
            slow.sendall(b"POST /fill HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20\r\n\r\n{")
            answer = slow.makefile("rb").read()
        assert answer.startswith(b"HTTP/1.1 408 ") and b"took longer than 1.5 seconds" in answer
        assert client.post("/fill", {"text": MASKED}).status == 200


def test_a_stream_that_takes_too_long_ends_with_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def stream(*_: object, **__: object) -> AsyncIterator[str]:
        yield "the"
        await asyncio.sleep(20)

    monkeypatch.setattr(ServedModel, "stream", stream)
    sentence = "The request took longer than 0.7 seconds: ask for less at once."
    with serving(loaded(), Limits(seconds=0.7)) as client, ThreadPoolExecutor() as threads:
        name = client.get("/health").json["model"]
        own = threads.submit(client.post, "/generate", {"text": TEXT, "stream": True})
        others = client.post("/v1/completions", {"model": name, "prompt": TEXT, "stream": True})
        bodies = [own.result().body.decode(), others.body.decode()]
    (piece, error, *_), (_, last, *ends) = ([line[6:] for line in body.split("\n\n")] for body in bodies)
    assert (json.loads(piece), json.loads(error)) == ({"piece": "the"}, {"error": sentence})
    assert json.loads(last)["error"]["message"] == sentence and ends == ["[DONE]", ""]


def test_a_full_queue_refuses_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(loaded(), Limits(waiting=2)) as client:
        open_gate, entered = threading.Event(), threading.Event()
        compute = likelihood.scoring

        def held(*arguments: object) -> object:
            entered.set()
            assert open_gate.wait(20)
            return compute(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr("unicloze.serving.served_model.scoring", held)
        found: list[int] = []
        ask = lambda: found.append(client.post("/score", {"text": TEXT}).status)  # noqa: E731
        threads = [threading.Thread(target=ask) for _ in range(3)]
        threads[0].start()
        assert entered.wait(20)
        for thread in threads[1:]:
            thread.start()
        while client.get("/health").json["waiting"] < 2:
            pass
        refused = client.post("/score", {"text": TEXT})
        open_gate.set()
        for thread in threads:
            thread.join()
    assert refused.status == 429 and refused.headers["retry-after"] == "1"
    assert refused.error == "2 requests are waiting already: send this one again later."
    assert found == [200, 200, 200]


def test_a_bug_is_reported_without_the_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise ValueError(SECRET)

    monkeypatch.setattr("unicloze.serving.served_model.scoring", broken)
    with serving(loaded()) as client:
        answer = client.post("/score", {"text": SECRET})
        assert (answer.status, answer.error) == (500, "The server failed: its log says where.")
    said = capsys.readouterr()
    assert "a request failed by ValueError in test_serve.py, line " in said.err
    assert "zebra" not in said.err + said.out and "Traceback" not in said.err


def test_no_text_reaches_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(loaded()) as client:
        for path in ("/fill", "/score", "/generate", "/predict", f"/{SECRET.replace(' ', '%20')}"):
            client.post(path, {"text": SECRET})
        client.post("/embed", {"inputs": f"{SECRET} " * 100})
    said = capsys.readouterr()
    assert said.out == said.err == ""


# Who may ask


def test_without_a_token_only_this_machine_is_answered(client: Client) -> None:
    for host in ("localhost:1", "127.0.0.1", "[::1]:8000", "127.8.8.8:80"):
        assert client.get("/health", {"Host": host}).status == 200
    named = "evil.example", "evil.example:8000", "192.168.1.7:8000", "localhost.evil.example", "", "127.0.0.1.nip.io"
    for host in (*named, "localhost@evil.example"):
        answer = client.get("/health", {"Host": host})
        assert answer.status == 403 and "only requests to localhost" in answer.error


def test_with_a_token_only_those_who_have_it_are_answered() -> None:
    token = "a-token-of-some-length"
    with serving(loaded(), token=token) as client:
        right, wrong = {"Authorization": f"Bearer {token}"}, {"Authorization": f"Bearer {token}x"}
        assert client.post("/fill", {"text": MASKED}, {**right, "Host": "model.example"}).status == 200
        for headers in ({}, wrong, {"Authorization": token}, {"Authorization": "Bearer \xff"}):
            answer = client.post("/fill", {"text": MASKED}, headers)
            assert answer.status == 401 and answer.headers["www-authenticate"] == "Bearer"
            assert "The token is missing or wrong" in answer.error
        assert client.get("/v1/models").status == 401 and client.get("/v1/models", right).status == 200
        assert client.get("/health").status == client.get("/").status == client.get("/docs").status == 200


# Pages


def test_pages_load_nothing_from_elsewhere(client: Client) -> None:
    page = {"/page/page.css": "text/css", "/page/report.css": "text/css", "/page/page.js": "text/javascript"}
    for path, kind in {"/": "text/html", "/docs": "text/html", **page}.items():
        answer = client.get(path)
        assert answer.status == 200 and answer.headers["content-type"].startswith(kind)
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "unsafe" not in answer.headers["content-security-policy"]
        head = client.send("HEAD", path)
        assert (head.status, head.body) == (200, b"") and head.headers["content-length"] == str(len(answer.body))
        text = answer.body.decode()
        assert not re.search(r"[\"'(:]//", text)
        assert "<script>" not in text and "style=" not in text and "onclick" not in text


def test_answers_are_described_by_what_they_are_made_of(client: Client) -> None:
    schemas = client.get("/openapi.json").json["components"]["schemas"]
    kinds = {"TextScore": likelihood.TextScore, "MaskFill": infill.MaskFill, "FillAnswer": infill.FillResult}
    for name, of in kinds.items():
        expected = {key: text.replace("None", "null") for key, text in docstrings.arguments(of).items()}
        described = {key: field["description"] for key, field in schemas[name]["properties"].items()}
        assert expected.items() <= described.items() and described.keys() - expected.keys() <= {"picture"}
        assert set(expected) == {field.name for field in dataclasses.fields(of)}
    answer = client.post("/score", {"text": TEXT}).json["scores"][0]
    assert answer.keys() == schemas["TextScore"]["properties"].keys() == set(schemas["TextScore"]["required"])


def test_the_reference_lists_all_endpoints(client: Client) -> None:
    paths = client.get("/openapi.json").json["paths"]
    assert {"/fill", "/score", "/generate", "/embed", "/predict", "/health", "/", "/v1/embeddings"} <= set(paths)
    page = client.get("/docs").body.decode()
    assert all(f"{method.upper()} {path}<" in page for path, methods in paths.items() for method in methods)
    assert "Text with [MASK] for each missing token." in page
