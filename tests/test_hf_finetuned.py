"""An exported fine-tuned generator: `generate` without arguments writes what `unicloze generate` writes."""

from __future__ import annotations

import dataclasses
import io
import json
import random
import re
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from conftest import slow_except
from unicloze import verbs
from unicloze.finetuning.initial import task_recipe
from unicloze.finetuning.run import finetune_run
from unicloze.interop.check import quietly
from unicloze.recipes import load_recipe
from unicloze.settings import TokenizerSettings
from unicloze.text.tokenizers import Tokenizer
from unicloze.training.loading import LoadedModel, build_model

transformers = pytest.importorskip("transformers")
pytest.importorskip("unicloze.hf")

WORDS = ["alpha", "beta", "gamma", "delta", "eps", "zeta", "eta", "theta", "iota", "kappa"]
SETTINGS: dict[str, Any] = {
    "finetuning.epochs": 25,
    "finetuning.evaluations": 0.001,
    "training.batch_size": 16,
    "training.learning_rate": 5e-3,
    "training.precision": "fp32",
    "task.metrics": ["coco"],
    "generation.max_target": 12,
    "decoding.max_length": 10,
    "decoding.beams": 3,
    "decoding.no_repeat_ngram": 2,
    "decoding.min_length": 3,
    "decoding.length_penalty": 0.0,
}


@pytest.fixture(autouse=True)
def _silence() -> Any:
    with quietly(transformers):
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained to repeat a source of a few words, so that its texts and their sources share bigrams."""
    place = tmp_path_factory.mktemp("generator")
    tokenizer = Tokenizer.train([" ".join(WORDS)] * 5, TokenizerSettings(vocab_size=120))
    shape = {"data.window": 32, "model.hidden_size": 48, "model.intermediate_size": 96, "model.max_positions": 48}
    recipe = load_recipe("quickstart", shape)
    start = LoadedModel(build_model(recipe, tokenizer.vocabulary.size).for_use().eval(), tokenizer, recipe, place, 0)
    file = place / "train.jsonl"
    file.write_text("".join(json.dumps({"source": text, "target": f"{text} {text}"}) + "\n" for text in texts(96)))
    made = task_recipe(load_recipe("generation", SETTINGS), start, list(SETTINGS))
    finetune_run(made, start, file, None, place / "run", progress=False)
    return place / "run"


def texts(count: int) -> list[str]:
    draw = random.Random(1)
    return [" ".join(draw.choices(WORDS, k=draw.randint(2, 4))) for _ in range(count)]


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
    code = re.search(r"```python\n(.*?)```", card, re.DOTALL)
    assert code is not None
    said = io.StringIO()
    with redirect_stdout(said):
        exec(code[1].replace("THIS FOLDER", str(folder)).replace("SOURCE", "alpha beta gamma"), {})
    assert said.getvalue().strip() == verbs.generate(run, "alpha beta gamma", quiet=True)[0]["prediction"]


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
