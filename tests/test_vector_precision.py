"""The server computes vectors in bf16 only where that is faster and close to fp32, and says what it measured."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")
pytest.importorskip("uvicorn", reason="the extra serve is not installed")

from decoding_toys import loaded
from serving_toys import serving
from unicloze import verbs
from unicloze.decoding.embed import embed
from unicloze.serving import run, served_model
from unicloze.serving.endpoints import as_numbers
from unicloze.serving.served_model import choose_for_vectors
from unicloze.training.loading import LoadedModel


@pytest.fixture
def half_seconds(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Seconds that the measurement finds for each precision, on a processor that computes bf16."""
    seconds = {"fp32": 1.0, "bf16": 0.5}
    monkeypatch.setattr(served_model, "choose_precision", lambda settings, device: "bf16")
    monkeypatch.setattr(served_model, "_seconds", lambda model, texts: seconds[model.precision])
    return seconds


@pytest.mark.parametrize(("seconds", "rough", "chosen", "said"), [
    (0.5, False, "bf16", "vectors in bf16: bf16 is 2.0 times as fast as fp32 here, and its vectors have cosines of "),
    (0.95, False, "fp32", "vectors in fp32: bf16 is 1.1 times as fast"),
    (0.5, True, "fp32", "at least 0.99875"),
], ids=["faster", "hardly faster", "different"])  # fmt: skip
def test_bf16_is_chosen_where_it_is_faster_and_its_vectors_are_alike(
    half_seconds: dict[str, float], seconds: float, rough: bool, chosen: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(model: LoadedModel, texts: list[str]) -> Any:
        return np.array([[1.0, 0.05 if model.precision == "bf16" else 0.0]] * len(texts), dtype=np.float32)

    half_seconds["bf16"] = seconds
    if rough:
        monkeypatch.setattr(served_model, "embed", away)
    model = loaded()
    found = choose_for_vectors(model)
    assert found.model.precision == chosen and said in str(found) and found.speed_up == pytest.approx(1 / seconds)
    assert found.model.model is model.model
    assert not rough or found.cosine == pytest.approx(1 / np.hypot(1, 0.05))


def test_nothing_is_measured_where_the_processor_gains_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_model, "choose_precision", lambda settings, device: "fp32")
    monkeypatch.setattr(served_model, "embed", None)
    model = loaded()
    found = choose_for_vectors(model)
    assert found.model is model and found.speed_up is None


def test_a_chosen_precision_is_not_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "until_stopped", lambda *given: None)
    monkeypatch.setattr(served_model, "embed", None)
    for precision in ("bf16", "fp32"):
        verbs.serve(loaded(), port=0, precision=precision)
        (said,) = capsys.readouterr().err.splitlines()
        assert "serving" in said and "times as fast" not in said


def test_what_was_measured_is_printed_at_the_start(
    half_seconds: dict[str, float], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    apps: list[Any] = []
    monkeypatch.setattr(run, "until_stopped", lambda app, *given: apps.append(app))
    verbs.serve(loaded(), port=0)
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("unicloze: vectors in bf16: bf16 is 2.0 times as fast") and "serving" in second


def test_vectors_are_in_their_precision_and_all_else_in_that_of_the_model() -> None:
    half = dataclasses.replace(loaded(), precision="bf16")
    text = "the list of items is empty"
    with serving(loaded(), vectors=half) as client, serving(loaded()) as exact:
        assert (client.get("/health").json["vectors"], exact.get("/health").json["vectors"]) == ("bf16", "fp32")
        ours = client.post("/embed", {"inputs": text, "normalize": False}).json
        np.testing.assert_array_equal(np.float32(ours), embed(half, [text]))
        assert client.post("/score", {"text": text}).json == exact.post("/score", {"text": text}).json


def test_numbers_of_an_answer_are_short_and_exact() -> None:
    draw = np.random.default_rng(0)
    vectors = (draw.standard_normal((50, 40)) * 10.0 ** draw.integers(-6, 6, (50, 1))).astype(np.float32)
    vectors[0, :5] = 0, np.float32(1e-45), np.finfo(np.float32).max, -np.finfo(np.float32).tiny, 1 / 3
    written = json.dumps(as_numbers(vectors))
    np.testing.assert_array_equal(np.array(json.loads(written), dtype=np.float32), vectors)
    usual = json.dumps(as_numbers(vectors[1:])).replace("[", "").replace("]", "").split(", ")
    assert max(len(number.partition("e")[0].strip("-").replace(".", "").strip("0")) for number in usual) == 9
