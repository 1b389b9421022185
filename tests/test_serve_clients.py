"""Clients of other servers, as their packages are, over a real connection."""

from __future__ import annotations

import base64
import dataclasses
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")
pytest.importorskip("uvicorn", reason="the extra serve is not installed")

from decoding_toys import TEXT, loaded
from serving_toys import Client, classifier, generator, serving
from unicloze import verbs
from unicloze.decoding import generate, infill
from unicloze.decoding.embed import embed
from unicloze.decoding.inputs import generation_format_of
from unicloze.finetuning.generate import generate_for_records, record_of
from unicloze.recipes import load_recipe
from unicloze.serving.endpoints import CompletionsRequest, GenerateRequest
from unicloze.serving.served_model import ServedModel
from unicloze.settings import DecodingSettings
from unicloze.verbs import recipes

pytestmark = pytest.mark.filterwarnings("ignore:.* tokens the model reads at once")
"""As the command does."""

DOCUMENTS = [Path(__file__).parents[1] / "docs" / name for name in ("serve.md", "tutorials/serve-it.md")]
MASKED = "the [MASK] of items is empty"
TEXTS = [TEXT, "the list is empty"]


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with serving(loaded(relative=True)) as served:
        yield served


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


# openai


@pytest.fixture(scope="module")
def openai_client(client: Client) -> Iterator[object]:
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{client.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_openai_reads_vectors_as_base64_and_as_floats(openai_client: Any, client: Client) -> None:
    expected = unit(embed(loaded(relative=True), TEXTS))
    answer = openai_client.embeddings.create(model="nowhere", input=TEXTS)
    np.testing.assert_allclose([one.embedding for one in answer.data], expected, atol=1e-6)
    assert [one.index for one in answer.data] == [0, 1]
    assert answer.usage.prompt_tokens == len(" ".join(TEXTS).split())
    answer = openai_client.embeddings.create(model="nowhere", input=TEXT, encoding_format="float")
    np.testing.assert_allclose(answer.data[0].embedding, expected[0], atol=1e-6)
    request = {"model": "nowhere", "input": TEXT, "encoding_format": "base64"}
    raw = client.post("/v1/embeddings", request).json["data"][0]["embedding"]
    np.testing.assert_allclose(np.frombuffer(base64.b64decode(raw), "<f4"), expected[0], atol=1e-6)


def test_openai_completes_greedily_by_drawing_and_in_a_stream(openai_client: Any) -> None:
    (expected,) = generate.generate(loaded(relative=True), ["return the"], DecodingSettings(max_length=9))
    asked = {"model": "nowhere", "prompt": "return the", "max_tokens": 9}
    answer = openai_client.completions.create(**asked, temperature=0)
    text = answer.choices[0].text
    assert text.lstrip() == expected.text
    assert answer.choices[0].finish_reason == ("stop" if expected.candidates[0].ended else "length")
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (2, len(expected.candidates[0].tokens))
    chunks = list(openai_client.completions.create(**asked, temperature=0, stream=True))
    assert len(chunks) > 2 and "".join(chunk.choices[0].text for chunk in chunks) == text
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == answer.choices[0].finish_reason
    drawn = [openai_client.completions.create(**asked, n=2, seed=seed).choices for seed in (5, 5, 6)]
    texts = [[choice.text for choice in choices] for choices in drawn]
    assert texts[0] == texts[1] != texts[2] and texts[0][0] != texts[0][1]
    assert [choice.index for choice in drawn[0]] == [0, 1]


@pytest.mark.parametrize("stream", [False, True])
def test_a_completion_ends_before_a_stop_text(openai_client: Any, stream: bool) -> None:
    asked = {"model": "nowhere", "prompt": "return the", "max_tokens": 9, "temperature": 0}
    whole = openai_client.completions.create(**asked).choices[0].text
    stop = whole[4:9]
    answer = openai_client.completions.create(**asked, stop=[stop, "never"], stream=stream)
    choices = [chunk.choices[0] for chunk in answer] if stream else answer.choices
    assert "".join(choice.text for choice in choices) == whole[: whole.index(stop)]
    assert choices[-1].finish_reason == "stop"
    if not stream:
        words = loaded(relative=True).tokenizer.encode_batch([choices[0].text])[0]
        assert answer.usage.completion_tokens == len(words)


def test_a_fine_tuned_generator_answers_the_default_request_and_greedily() -> None:
    """Its recipe searches with five beams."""
    openai, model = pytest.importorskip("openai"), generator()
    decoding = dataclasses.replace(model.recipe.decoding, beams=1, max_length=8)
    greedy = dataclasses.replace(model, recipe=dataclasses.replace(model.recipe, decoding=decoding))
    ((expected,),) = generate_for_records(greedy, [record_of(model, "anna sees")])
    with serving(model) as served, openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as made:
        asked = {"model": "writer", "prompt": "anna sees"}
        assert made.completions.create(**asked).usage.completion_tokens > 0
        written = made.completions.create(**asked, temperature=0, max_tokens=8).choices[0].text
        assert written == expected["prediction"] != ""


def test_no_setting_of_a_recipe_contradicts_what_a_request_asks() -> None:
    names = [row.name for row in recipes() if row.objective.startswith("generation")]
    of_recipes = {repr(one): one for one in (load_recipe(name).decoding for name in names)}
    asked = {"sample": True}, {}, {"beams": 1}, {"beams": 2}, {"max_length": 1}, {"no_repeat_ngram": 0}
    requests: list[CompletionsRequest | GenerateRequest] = [
        *(CompletionsRequest(model="m", prompt="a", temperature=temperature) for temperature in (1.0, 0.0)),
        *(GenerateRequest(text="a", **given) for given in asked),
    ]
    assert len(of_recipes) > 5
    writer, plain = generator(), loaded(relative=True)
    first, *others = of_recipes.values()
    cases = [(plain, DecodingSettings(), 8), (writer, first, 8), *((writer, one, 3) for one in others)]
    for model, decoding, count in cases:
        recipe = dataclasses.replace(model.recipe, decoding=dataclasses.replace(decoding, may_repeat=[]))
        served = ServedModel(dataclasses.replace(model, recipe=recipe))
        for request in requests[:count]:
            ready = served.writer(request.decoding()).recipe
            generate.check_settings(ready.decoding, generation_format_of(ready, model.tokenizer.vocabulary))


@pytest.mark.filterwarnings("ignore:sources longer than", "ignore:1 of 1 sources are longer")
@pytest.mark.parametrize(("model", "room", "cure"), [
    (lambda: loaded(relative=True), 14, "shorten it, or ask for fewer tokens"),
    (generator, 14, "shorten it"),
    (lambda: generator(generation__max_source=12), 10, "shorten it"),
], ids=["pre-trained", "fine-tuned", "max_source"])  # fmt: skip
def test_a_prompt_over_the_limit_is_refused_or_cut_on_request(model: Any, room: int, cure: str, hub: Any) -> None:
    openai, served = pytest.importorskip("openai"), model()
    with serving(served) as client, openai.OpenAI(base_url=f"{client.url}/v1", api_key="none", max_retries=0) as made:
        (name,), prompt = [one.id for one in made.models.list()], "a " * 64
        reads = f"The model reads at most {room} tokens before writing 16, but the text has"
        for asked in ({"prompt": prompt}, {"prompt": ["a", prompt]}, {"prompt": prompt, "stream": True}):
            with pytest.raises(openai.BadRequestError, match=f"{reads} 64: shorten it\\.") as raised:
                made.completions.create(model=name, **asked)
            assert raised.value.code == "context_length_exceeded"
        assert client.post("/generate", {"text": "a " * 20}).error == f"{reads} 20: {cure}."
        for truncate in (False, True):
            refused = client.post("/generate", {"text": "a", "max_length": 99, "truncate": truncate})
            assert refused.status == 400 and "ask for at most 29 tokens" in refused.error
        with pytest.raises(openai.BadRequestError, match="ask for at most 29 tokens") as raised:
            made.completions.create(model=name, prompt="a", max_tokens=99)
        assert raised.value.code == "context_length_exceeded"
        assert client.post("/generate", {"text": prompt, "max_length": 4}).status == 400
        for length in (4, 20):
            assert client.post("/generate", {"text": prompt, "max_length": length, "truncate": True}).status == 200
        asking = hub.InferenceClient(base_url=client.url)
        with pytest.raises(hub.errors.HfHubHTTPError, match=f"{reads} 64"):
            asking.text_generation(prompt)


def test_samples_do_not_depend_on_the_other_prompts(openai_client: Any) -> None:
    def drawn(prompts: list[str]) -> list[str]:
        made = openai_client.completions.create(model="nowhere", prompt=prompts, n=2, seed=3)
        return [choice.text for choice in made.choices]

    alone = drawn(["return the"])
    assert drawn(["a list", "return the", "x"])[2:4] == alone
    assert drawn(["return the", "return the"])[:2] == alone != drawn(["return the", "return the"])[2:]


def test_openai_lists_the_model_and_raises_what_is_wrong(openai_client: Any) -> None:
    openai = pytest.importorskip("openai")
    assert [one.id for one in openai_client.models.list()] == ["nowhere"]
    assert openai_client.models.retrieve("nowhere").owned_by == "unicloze"
    with pytest.raises(openai.NotFoundError, match="There is no model 'gpt' here: ask for 'nowhere'"):
        openai_client.embeddings.create(model="gpt", input="a")
    with pytest.raises(openai.UnprocessableEntityError, match="input holds token ids"):
        openai_client.embeddings.create(model="nowhere", input=[[1, 2]])
    with pytest.raises(openai.UnprocessableEntityError, match="There is no field 'logprobs'"):
        openai_client.completions.create(model="nowhere", prompt="a", logprobs=2)
    with pytest.raises(openai.UnprocessableEntityError, match="With temperature 0 all texts are the same"):
        openai_client.completions.create(model="nowhere", prompt="a", temperature=0, n=2)


# huggingface_hub


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The package, which the tests otherwise keep off the network."""
    found = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr("huggingface_hub.constants.is_offline_mode", lambda: False)
    return found


@pytest.fixture
def hub_client(client: Client, hub: Any) -> Any:
    return hub.InferenceClient(base_url=client.url)


def test_hugging_faces_client_embeds(hub_client: Any) -> None:
    expected = embed(loaded(relative=True), TEXTS)
    np.testing.assert_allclose(hub_client.feature_extraction(TEXTS[0]), expected[:1], atol=1e-5)
    np.testing.assert_allclose(hub_client.feature_extraction(TEXTS), expected, atol=1e-5)
    np.testing.assert_allclose(hub_client.feature_extraction(TEXTS, normalize=True), unit(expected), atol=1e-5)
    assert hub_client.feature_extraction(f"{TEXT} {TEXT} {TEXT} {TEXT}", truncate=True).shape == expected[:1].shape


def test_hugging_faces_client_fills_masks(hub_client: Any, hub: Any) -> None:
    model = loaded(relative=True)
    (mask,) = infill.fill(model, MASKED, top_k=3).masks
    found = hub_client.fill_mask(MASKED, top_k=3)
    assert [one.token_str for one in found] == mask.readable
    assert [one.token for one in found] == [model.tokenizer.token_id(token) for token, _ in mask.top]
    assert [one.score for one in found] == pytest.approx([share for _, share in mask.top], abs=1e-5)
    assert "[MASK]" not in found[0].sequence and found[0].sequence.endswith(" of items is empty")
    assert len(hub_client.fill_mask(MASKED)) == 5
    with pytest.raises(hub.errors.HfHubHTTPError, match="The text has no mask"):
        hub_client.fill_mask("no mask", top_k=2)


def test_hugging_faces_client_classifies(hub: Any) -> None:
    with serving(classifier(["bad", "fair", "good"])) as client:
        made = hub.InferenceClient(base_url=client.url)
        found = made.text_classification("anna sees berlin")
        assert len(made.text_classification("anna sees berlin", top_k=1)) == 1
    (expected,) = verbs.predict(classifier(["bad", "fair", "good"]), text="anna sees berlin")
    assert {one.label: one.score for one in found} == pytest.approx(expected["probabilities"], abs=1e-5)
    assert found[0].label == expected["prediction"]


@pytest.mark.parametrize("model", [lambda: loaded(relative=True), generator], ids=["pre-trained", "fine-tuned"])
def test_hugging_faces_client_generates_summarises_and_translates(model: Any, hub: Any) -> None:
    with serving(served := model()) as client:
        made = hub.InferenceClient(base_url=client.url)
        whole = made.text_generation("anna sees")
        assert len(made.text_generation("anna sees", max_new_tokens=5)) <= len(whole)
        if served.recipe.task.kind:
            assert made.summarization("anna sees").summary_text == whole
            assert made.translation("anna sees").translation_text == whole


# The documentation


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.stem)
def test_snippets_of_documents_run(document: Path, hub: Any) -> None:
    pytest.importorskip("openai")
    text = document.read_text(encoding="utf-8")
    scripts = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    calls = re.findall(r"^ *curl localhost:8000(/\w+) --json (.*)$", text, re.MULTILINE)
    assert scripts and calls
    mine = dataclasses.replace(loaded(relative=True), path=Path("runs/mine"))
    with serving(mine) as served, serving(classifier()) as judging:
        for path, words in calls:
            assert served.post(path, json.loads(shlex.split(words)[0])).status == 200
        for script in scripts:
            url = judging.url if "text_classification" in script else served.url
            exec(script.replace("http://127.0.0.1:8000", url), {})  # the project's own documents
