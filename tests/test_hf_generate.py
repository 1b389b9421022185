"""Transformers' `generate`: texts of plain loops over whole rows, of our decoder, and of a run without arguments."""

from __future__ import annotations

import dataclasses
import io
import json
import random
import re
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import language_model_toys
import nlu_toys
import toys
from conftest import slow_except
from decoding_toys import loaded
from hf_toys import padded, slots_batch
from test_generation_task import WORDS, untrained
from unicloze import verbs
from unicloze.decoding.generate import generate
from unicloze.decoding.inputs import generation_format_of
from unicloze.decoding.search import _uniform
from unicloze.errors import UsageError
from unicloze.finetuning.data import encoded
from unicloze.finetuning.initial import task_recipe
from unicloze.interop.check import quietly
from unicloze.interop.read import open_model
from unicloze.model.model import UnifiedModel
from unicloze.recipes import load_recipe, with_overrides
from unicloze.settings import DecodingSettings
from unicloze.text.vocabulary import join_words
from unicloze.training.loading import LoadedModel, build_model

transformers = pytest.importorskip("transformers")
hf = pytest.importorskip("unicloze.hf")

EOS, PSEUDO, WIDTH = 4, 6, 3
SOURCES = [[3, 10, 11, 12, 13, 4], [3, 20, 4], [3, 30, 31, 32, 4], [3, 40, 41, 42, 43, 44, 45, 4]]

WRITERS: dict[str, dict[str, Any]] = {
    "pseudo masks": {"predicts": "pseudo"},
    "pseudo masks, relative bias": {"predicts": "pseudo", "relative_bias": True},
    "pseudo masks, source from left to right": {
        "predicts": "pseudo", "source_visibility": "left_to_right", "generation_segments": [0, 0],
    },
    "prefix": {"predicts": "next", "norm": "pre", "relative_bias": True},
    "causal": {"predicts": "next", "source_visibility": "left_to_right", "share_layers": "all"},
    "local": {
        "predicts": "next", "source_visibility": "left_to_right", "generation_segments": [0, 0],
        "layer_visibility": ["full", "local"], "local_width": WIDTH, "relative_bias": True,
    },
}  # fmt: skip


@pytest.fixture(autouse=True)
def _silence() -> Any:
    with quietly(transformers):
        yield


def writer(**settings: Any) -> Any:
    """A model with weights large enough for texts to differ, with [EOS] likely enough to occur."""
    tokens = dict(vocab_size=50, eos_token_id=EOS, bos_token_id=3, pad_token_id=0, pseudo_token_id=PSEUDO)
    shape = toys.SHAPE | dict(max_positions=40, initializer_range=0.3, relative_bias=False)
    torch.manual_seed(3)
    model = hf.UniclozeForConditionalGeneration(hf.UniclozeConfig(**shape | tokens | settings)).eval()
    with torch.no_grad():
        model.backbone.embeddings.positions.weight.mul_(4)
        model.token_head.bias[EOS] += 1.2
    return model


Predict = Callable[[list[int], list[int]], Tensor]


def whole_rows(model: Any) -> Predict:
    """log p of the next token after a source and the target so far, from the backbone over a hand-written row."""
    config = model.config
    own = UnifiedModel(
        config.settings, vocab_size=config.vocab_size, max_positions=config.max_positions, targets=("par",)
    ).eval()
    own.load_state_dict(model.state_dict())
    both_ways, appends = config.source_visibility == "bidirectional", config.predicts == "pseudo"
    first, second = config.generation_segments

    def predict(source: list[int], target: list[int]) -> Tensor:
        s, n = len(source), len(source) + len(target) + appends
        intervals = [[0, s if both_ways and i < s else i + 1, 0, 0] for i in range(n)]
        tokens = [*source, *target, *[PSEUDO] * appends]
        segments = [first] * s + [second] * (n - s)
        batch = slots_batch(tokens, list(range(n)), segments, intervals, [n - 1], [0])
        if config.local_width is not None:
            near = batch.intervals.clone()
            near[0, :, 0] = torch.maximum(near[0, :, 0], torch.arange(n) - config.local_width)
            batch = type(batch)(**(vars(batch) | {"local": near}))
        with torch.no_grad():
            return own.logits(batch)["par"][0, 0].log_softmax(-1)

    return predict


def greedy(predict: Predict, source: list[int], steps: int, begun: Sequence[int] = ()) -> list[int]:
    target: list[int] = []
    while len(target) < steps and EOS not in target:
        target.append(int(predict(source, [*begun, *target]).argmax()))
    return target


def texts_of(found: Tensor, width: int) -> list[list[int]]:
    """What was generated after prompts of the given width, without padding."""
    targets = []
    for row in found[:, width:].tolist():
        end = row.index(EOS) + 1 if EOS in row else len(row)
        assert set(row[end:]) <= {0, EOS}
        targets.append(row[:end])
    return targets


@pytest.mark.parametrize("settings", WRITERS.values(), ids=WRITERS.keys())
def test_greedy_texts_and_their_logits_are_those_of_a_plain_loop(settings: dict[str, Any]) -> None:
    model = writer(**settings)
    predict = whole_rows(model)
    expected = [greedy(predict, source, 12) for source in SOURCES]
    assert len({tuple(target) for target in expected}) == len(SOURCES)
    assert any(EOS in target for target in expected) or settings["predicts"] == "next"
    logs = [
        [predict(source, target[:n]) for n in range(len(target))]
        for source, target in zip(SOURCES, expected, strict=True)
    ]
    ids, mask = padded(SOURCES, side="left")
    for use_cache in (True, False):
        found = model.generate(
            ids, attention_mask=mask, max_new_tokens=12, use_cache=use_cache, output_logits=True,
            return_dict_in_generate=True,
        )  # fmt: skip
        assert texts_of(found.sequences, ids.shape[1]) == expected
        for row, of_steps in enumerate(logs):
            for step, wanted in enumerate(of_steps):
                torch.testing.assert_close(found.logits[step][row].log_softmax(-1), wanted, atol=1e-5, rtol=1e-5)
    for source, target in zip(SOURCES, expected, strict=True):
        found = model.generate(torch.tensor([source]), max_new_tokens=12)
        assert texts_of(found, len(source)) == [target]


def test_prompts_padded_at_the_right_give_the_same_texts_at_pseudo_masks() -> None:
    model = writer(predicts="pseudo", relative_bias=True)
    left, left_mask = padded(SOURCES, side="left")
    right, right_mask = padded(SOURCES, side="right")
    expected = model.generate(left, attention_mask=left_mask, max_new_tokens=10)[:, left.shape[1] :]
    for use_cache in (True, False):
        found = model.generate(right, attention_mask=right_mask, max_new_tokens=10, use_cache=use_cache)
        assert torch.equal(found[:, right.shape[1] :], expected)


def test_a_given_beginning_of_the_target_is_continued() -> None:
    model = writer(predicts="pseudo")
    predict = whole_rows(model)
    source, begun = SOURCES[0], [21, 22]
    expected = greedy(predict, source, 5, begun)
    segments = torch.tensor([[0] * len(source) + [1] * len(begun)])
    found = model.generate(torch.tensor([source + begun]), token_type_ids=segments, max_new_tokens=5)
    assert texts_of(found, len(source + begun)) == [expected]


def test_what_cannot_be_generated_is_refused_in_a_sentence() -> None:
    ids, mask = padded(SOURCES, side="right")
    model = writer(predicts="next")
    with pytest.raises(UsageError, match="padding_side = 'left'"):
        model.generate(ids, attention_mask=mask, max_new_tokens=4)
    model = writer(predicts="pseudo")
    with pytest.raises(UsageError, match="StaticCache"):
        model.generate(ids, attention_mask=mask, max_new_tokens=4, cache_implementation="static")
    with pytest.raises(UsageError, match="prefill_chunk_size"):
        model.generate(ids, attention_mask=mask, max_new_tokens=4, prefill_chunk_size=2)
    with pytest.raises(ValueError, match="stateful"):
        model.generate(ids[:1], max_new_tokens=4, prompt_lookup_num_tokens=2)
    with pytest.raises(UsageError, match="position_ids"):
        model.generate(ids[:1], max_new_tokens=4, position_ids=torch.arange(8)[None])
    with pytest.raises(UsageError, match=r"together have 41 tokens .* 40 positions: .* at most 40 - max_new"):
        model.generate(ids[:, :6], max_new_tokens=60, min_new_tokens=60)


# Of exported folders


TEXTS = ["return a list", "the value of the state and a list of items", "x", "playing (lists), not given!"]
LONGEST = 12
SEARCHES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "greedy": (dict(), dict(do_sample=False)),
    "beams": (dict(beams=4, num_results=4), dict(num_beams=4, num_return_sequences=4, early_stopping="never")),
    "beams, long": (dict(beams=3, min_length=5), dict(num_beams=3, min_new_tokens=5, early_stopping="never")),
    "beams, first": (
        dict(beams=4, min_length=3, early_stop="first"),
        dict(num_beams=4, min_new_tokens=3, early_stopping=True),
    ),
}
DRAWS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "of the likeliest": (dict(temperature=1.4, top_k=6), dict(temperature=1.4, top_k=6, top_p=1.0)),
    "of a nucleus": (dict(temperature=1.2, top_p=0.7), dict(temperature=1.2, top_k=0, top_p=0.7)),
    "of both": (dict(top_k=8, top_p=0.8), dict(top_k=8, top_p=0.8)),
}


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    """Weights large enough for texts to differ, with [EOS] likely enough to occur."""
    found = loaded(relative=True, name="unilmv2", targets=["ae", "par"])
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in found.model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.4)
        assert found.model.token_head.bias is not None
        found.model.token_head.bias[found.tokenizer.vocabulary.eos] += 2.0
    return found


@pytest.fixture(scope="module")
def folder(model: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return verbs.export(model, "unicloze", tmp_path_factory.mktemp("hf") / "out").out


def theirs(folder: Path, **how: Any) -> list[str]:
    """The texts generated by the exported folder, grouped by source."""
    writer = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, padding_side="left")
    prompt = tokenizer(TEXTS, padding=True, return_tensors="pt", return_token_type_ids=False)
    found = writer.generate(**prompt, max_new_tokens=LONGEST, length_penalty=0.0, **how)
    written: list[str] = tokenizer.batch_decode(found[:, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
    return [join_words(text) for text in written]  # which Transformers leaves out


def ours(model: LoadedModel, **how: Any) -> list[str]:
    found = generate(model, TEXTS, DecodingSettings(max_length=LONGEST, **how))
    return [candidate.text for each in found for candidate in each.candidates]


@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_finds_the_texts_of_our_decoder(model: LoadedModel, folder: Path, name: str) -> None:
    own, peer = SEARCHES[name]
    expected = ours(model, **own)
    assert theirs(folder, **peer) == expected
    assert len(set(expected)) > len(expected) // 2


@pytest.mark.parametrize("name", DRAWS)
def test_of_the_same_numbers_the_same_texts_are_drawn(
    model: LoadedModel, folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, peer = DRAWS[name]
    count, steps = 5, iter(range(1, LONGEST + 1))

    def same_numbers(shares: Tensor, num_samples: int) -> Tensor:
        """Replaces torch's sampling by our decoder's uniform numbers, with tokens in descending probability."""
        assert num_samples == 1
        heights, order = shares.double().sort(dim=1, descending=True, stable=True)
        heights = heights.cumsum(dim=1)
        uniform = _uniform(0, range(len(TEXTS)), count, next(steps))
        place = torch.searchsorted(heights, uniform[:, None] * heights[:, -1:], right=True)
        return order.gather(1, place.clamp(max=shares.shape[1] - 1))

    expected = ours(model, sample=True, num_results=count, **own)
    monkeypatch.setattr(torch, "multinomial", same_numbers)
    assert theirs(folder, do_sample=True, num_return_sequences=count, **peer) == expected
    assert len(set(expected)) > len(expected) // 2


SETTINGS: dict[str, Any] = {
    "finetuning.epochs": 25, "finetuning.evaluations": 0.001, "training.batch_size": 16, "training.learning_rate": 5e-3,
    "training.precision": "fp32", "task.metrics": ["coco"], "generation.max_target": 12, "decoding.max_length": 10,
    "decoding.beams": 3, "decoding.no_repeat_ngram": 2, "decoding.min_length": 3, "decoding.length_penalty": 0.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained to repeat a source of a few words, so that its texts and their sources share bigrams."""
    place, start = tmp_path_factory.mktemp("generator"), untrained()
    file = nlu_toys.write(place / "train.jsonl", [{"source": text, "target": f"{text} {text}"} for text in texts(96)])
    recipe = task_recipe(load_recipe("generation", SETTINGS), start, list(SETTINGS))
    return nlu_toys.finetuned(recipe, start, file, None, place / "run").out


def texts(count: int) -> list[str]:
    draw = random.Random(1)
    return [" ".join(draw.choices(WORDS[:10], k=draw.randint(2, 4))) for _ in range(count)]


@pytest.mark.whole
@pytest.mark.parametrize(
    "decoding",
    slow_except([{}, {"decoding.beams": 1}], [
        {},
        {"decoding.early_stop": "first", "decoding.num_results": 2},
        {"decoding.beams": 1},
        {"decoding.beams": 1, "decoding.no_repeat_ngram": 0, "decoding.min_length": 0},
    ]),
    ids=str,
)  # fmt: skip
def test_generate_without_arguments_writes_as_the_run_does(decoding: dict[str, Any], run: Path, tmp_path: Path) -> None:
    model = dataclasses.replace(verbs.load_model(run), recipe=load_recipe(run / "recipe.yaml", decoding))
    folder = verbs.export(model, "unicloze", tmp_path / "out").out
    writer = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    repeats_source = 0
    for text in texts(8):
        prompt = tokenizer(text, return_tensors="pt", return_token_type_ids=False)
        found = writer.generate(**prompt)
        theirs = tokenizer.batch_decode(found[:, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
        (own,) = verbs.generate(model, text, quiet=True)
        assert theirs == [each["text"] for each in own.get("candidates", [{"text": own["prediction"]}])]
        repeats_source += len(theirs[0].split()) >= 2 and " ".join(text.split()[:2]) in theirs[0]
    assert repeats_source  # a text may repeat what its source contains


@pytest.mark.whole
def test_the_folder_documents_how_to_generate_and_what_is_unsupported(run: Path, tmp_path: Path) -> None:
    folder = verbs.export(run, "unicloze", tmp_path / "out").out
    config = json.loads((folder / "generation_config.json").read_text())
    wanted = {"num_beams": 3, "early_stopping": "never", "length_penalty": 0.0, "no_repeat_ngram_size": 2}
    wanted |= {"max_new_tokens": 10, "min_new_tokens": 3}
    assert {key: config[key] for key in wanted} == wanted
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "log p / n" not in card
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert f"max_length={tokenizer.model_max_length})" in card.replace(", ", ")")
    written = as_the_card_says(folder, SOURCE="alpha beta gamma")
    assert written.strip() == verbs.generate(run, "alpha beta gamma", quiet=True)[0]["prediction"]


def as_the_card_says(folder: Path, **texts: str) -> str:
    """The output of the code of a model card, with the folder and texts filled in."""
    code = re.search(r"```python\n(.*?)```", (folder / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert code is not None
    filled = code[1].replace("THIS FOLDER", str(folder))
    for name, text in texts.items():
        filled = filled.replace(f'"{name}"', repr(text))
    said = io.StringIO()
    with redirect_stdout(said):
        exec(filled, {})
    return said.getvalue()


@pytest.mark.filterwarnings("ignore:sources longer than")
@pytest.mark.parametrize("imported", [True, False])
def test_a_prompt_made_as_the_card_says_is_that_of_the_model(imported: bool, tmp_path: Path) -> None:
    """A prompt of the imported GPT-2 begins with its text, one of ours with [SOS]."""
    if imported:
        language_model_toys.gpt2(tmp_path / "theirs")
    model = open_model(tmp_path / "theirs") if imported else nlu_toys.start("gpt-2", model__max_positions=40)
    asked = {"decoding.no_repeat_ngram": 2, "decoding.max_length": 6}
    model = dataclasses.replace(model, recipe=with_overrides(model.recipe, asked))
    folder = verbs.export(model, "unicloze", tmp_path / "out").out
    for text in ("anna sees", "the theory of it", "q", "the old cat sees a bird " * 9):
        (own,) = verbs.generate(model, text, quiet=True, overrides=asked)
        assert as_the_card_says(folder, TEXT=text) == own["prediction"] + "\n"


@pytest.mark.filterwarnings("ignore:.* longer than 16 tokens")
@pytest.mark.parametrize(
    ("to", "base", "keep"),
    [("unicloze", "quickstart", "beginning"), ("unicloze", "quickstart", "end"), ("bart", "bart-base", "end")],
)
def test_a_source_of_two_parts_is_the_row_of_the_task(to: str, base: str, keep: str, tmp_path: Path) -> None:
    """One [EOS] joins its parts, also where two are between the texts of a pair (RoBERTa)."""
    asked = {"generation.source": ["context", "question"], "generation.keep": keep}
    model = for_generation(nlu_toys.start(base, use__separators=2), **asked)
    result, recipe = verbs.export(model, to, tmp_path / "out"), model.recipe
    assert not any("too long" in each for each in result.said)
    tokenizer = transformers.AutoTokenizer.from_pretrained(result.out)
    layout = generation_format_of(recipe, model.tokenizer.vocabulary)
    for context in ("anna sees", "anna sees berlin and the old cat leaves " * 4):
        record = nlu_toys.record(context=context, question="who leaves")
        (row,) = encoded([record], recipe, model.tokenizer, answers=False).rows
        found = tokenizer(context, "who leaves", truncation=True)
        assert found["input_ids"] == layout.row(row.source).tolist()
        assert not any(found.get("token_type_ids", [])), "the second part is not the target"


def for_generation(start: LoadedModel, **settings: Any) -> LoadedModel:
    """A newly initialised model of a generation task."""
    asked = {"task.max_length": 32, "decoding.max_length": 8, **settings}
    recipe = task_recipe(load_recipe("generation", asked), start, list(asked))
    network = build_model(recipe, start.tokenizer.vocabulary.size).for_use().eval()
    return dataclasses.replace(start, model=network, recipe=recipe)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (
            {"generation.source": ["context", "question"], "generation.keep": "chunk"},
            [" and ".join(f"the piece of {role} that shares most with the others" for role in ("context", "question"))],
        ),
        (
            {"generation.source": ["context", "history"]},
            ["the beginning of context and the end of history"],
        ),
        ({"generation.source": ["history"]}, []),
        ({"generation.keep": "chunk"}, []),  # without other parts, the first
    ],
    ids=["chunk", "history beside a part", "history", "chunk of one part"],
)
def test_parts_that_the_tokenizer_cuts_otherwise_are_reported(
    asked: dict[str, Any], says: list[str], tmp_path: Path
) -> None:
    result = verbs.export(for_generation(nlu_toys.start("quickstart"), **asked), "unicloze", tmp_path / "out")
    before = "the tokenizer keeps the beginning of each part of a source that is too long, unicloze "
    assert [each for each in result.said if "too long" in each] == [before + each for each in says]


@pytest.mark.parametrize(("size", "ends"), [(1, False), (2, True)])
def test_a_bart_whose_tokens_may_not_repeat_never_ends(size: int, ends: bool, tmp_path: Path) -> None:
    """Its target begins with the [EOS] that would end it."""
    model = nlu_toys.start("bart-base", model__decoder_layers=1, model__head_bias=True)
    model = dataclasses.replace(model, recipe=model.recipe.changed("decoding", max_length=6, no_repeat_ngram=size))
    end = model.tokenizer.vocabulary.eos
    with torch.no_grad():
        model.model.token_head.bias[end] += 50
    result = verbs.export(model, "bart", tmp_path / "out")
    (written,) = transformers.AutoModelForSeq2SeqLM.from_pretrained(result.out).generate(torch.tensor([[3, 9, 4]]))
    assert (end in written[1:]) == ends
    assert any("never writes [EOS]" in each for each in result.said) != ends


def test_a_t5_with_more_decoder_layers_generates_without_a_cache(tmp_path: Path) -> None:
    """Transformers makes a cache of as many layers as the encoder has."""
    model = nlu_toys.start("t5-base", model__num_layers=1, model__decoder_layers=2)
    result = verbs.export(model, "t5", tmp_path / "out")
    peer = transformers.AutoModelForSeq2SeqLM.from_pretrained(result.out)
    tokenizer = transformers.AutoTokenizer.from_pretrained(result.out)
    prompt = tokenizer("anna sees berlin", return_tensors="pt")
    written = peer.generate(**prompt, max_new_tokens=8)[0, 1:].tolist()
    (own,) = generate(model, ["anna sees berlin"], DecodingSettings(max_length=8))
    assert written == own.candidates[0].tokens and len(written) == 8
    assert any("without a cache" in each for each in result.said)


@pytest.mark.parametrize(
    ("decoding", "config", "says"),
    [
        ({"length_penalty": 0.9}, {"length_penalty": 0.9}, "ranks beams by log p / n^0.9"),
        (
            {"beams": 1, "sample": True, "top_p": 0.8, "temperature": 1.5},
            {"do_sample": True, "top_k": 0, "top_p": 0.8, "temperature": 1.5},
            "torch's random numbers",
        ),
        ({"may_repeat": ["alpha"]}, {"no_repeat_ngram_size": 2}, "allows those with a token of alpha"),
    ],
    ids=str,
)
def test_what_generate_cannot_write_is_reported(
    decoding: dict[str, Any], config: dict[str, Any], says: str, run: Path, tmp_path: Path
) -> None:
    recipe = load_recipe(run / "recipe.yaml", {f"decoding.{key}": value for key, value in decoding.items()})
    result = verbs.export(dataclasses.replace(verbs.load_model(run), recipe=recipe), "unicloze", tmp_path / "out")
    written = json.loads((result.out / "generation_config.json").read_text())
    assert {key: written[key] for key in config} == config
    assert any(says in each for each in result.said)
    assert says in (result.out / "README.md").read_text(encoding="utf-8")
