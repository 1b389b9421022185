"""LoRA and adapters: what they compute, what learns, and what is saved apart from the model they start from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import nlu_toys
from hf_toys import save_run
from nlu_toys import finetuned, resumed_alike
from test_finetuning_resume import files
from unicloze import verbs
from unicloze.errors import UniclozeError, UsageError
from unicloze.example import collate
from unicloze.finetuning.data import encoded, finetuning_steps
from unicloze.finetuning.initial import learning_rate, start_weights
from unicloze.finetuning.run import FinetuneResult, finetune_run, with_steps
from unicloze.model.adapters import LowRankLinear
from unicloze.model.build import Model
from unicloze.model.dropout import DropoutKey
from unicloze.model.model import UnifiedModel
from unicloze.records import read_records
from unicloze.settings import Recipe
from unicloze.training.batches import MicroBatch
from unicloze.training.checkpoint import load_checkpoint
from unicloze.training.loading import LoadedModel, load_model, ready_model
from unicloze.training.optimizers import build_optimizers

ALL = ["query", "key", "value", "output", "inner", "outer"]
SHORT = {"finetuning__epochs": 3, "finetuning__evaluations": 1, "training__batch_size": 8, "task__labels": ["a", "b"]}
LORA = {**SHORT, "finetuning__lora_rank": 3, "finetuning__lora_alpha": 6.0}
ADAPTERS = {**SHORT, "finetuning__adapter_size": 4}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return save_run(tmp_path_factory.mktemp("start") / "run", nlu_toys.start())


def recipe_for(start: LoadedModel, settings: dict[str, Any], task: str = "classification") -> Recipe:
    return nlu_toys.recipe_for(start, task, **settings)


def ran(start: LoadedModel, folder: Path, settings: dict[str, Any], out: str = "run") -> FinetuneResult:
    train, dev = files(folder)
    return finetuned(recipe_for(start, settings), start, train, dev, folder / out)


def predicts_as_when_evaluated(run: Path, dev: Path) -> None:
    """A finished run, loaded, gives the probabilities that its evaluation during training wrote."""
    predicted = verbs.predict(run, file=dev, quiet=True)
    lines = [json.loads(line) for line in (run / "dev_predictions.jsonl").read_text().splitlines()]
    for one, other in zip(predicted, lines, strict=True):
        assert one["probabilities"] == pytest.approx(other["probabilities"], abs=1e-5)


def step_of(start: LoadedModel, recipe: Recipe, folder: Path) -> tuple[Recipe, MicroBatch]:
    """The first micro-batch of a fine-tuning, packed in buckets, and the recipe with its steps."""
    train, _ = files(folder)
    records = read_records(train, recipe.task)
    recipe = with_steps(recipe, len(records))
    data = encoded(records, recipe, start.tokenizer)
    ((batch,),) = [next(finetuning_steps(data, recipe, start.tokenizer.vocabulary, "cpu", 0))]
    return recipe, batch


def begun(start: LoadedModel, recipe: Recipe) -> Any:
    """The model of a fine-tuning before its first step."""
    model = ready_model(recipe, start.model.vocab_size, torch.device("cpu"))
    start_weights(model, start, recipe.task)
    return model


def with_updates(start: LoadedModel, recipe: Recipe) -> UnifiedModel:
    """A task model whose low-rank updates are no longer zero."""
    model: UnifiedModel = begun(start, recipe)
    generator = torch.Generator().manual_seed(4)
    for module in model.modules():
        if isinstance(module, LowRankLinear):
            module.up.data.normal_(0, 0.3, generator=generator)
    return model.for_use()


def dense_weight(layer: LowRankLinear) -> tuple[np.ndarray[Any, Any], list[tuple[slice, int]]]:
    """W + alpha/r B A by definition, and the rows of each update."""
    weight = layer.weight.detach().double().numpy().copy()
    rows = []
    for block, learned in enumerate(layer.updated):
        if learned:
            number = len(rows)
            place = slice(block * layer.size, (block + 1) * layer.size)
            update = layer.up[number].detach().double().numpy() @ layer.down[number].detach().double().numpy()
            weight[place] += 2.0 * update  # alpha 6 over rank 3
            rows.append((place, number))
    return weight, rows


@pytest.mark.parametrize(("name", "more"), [
    ("bert-base", {}), ("gpt", {}), ("albert-base", {}), ("xlnet-base", {"model__memory": 0}),
    ("unilmv2-ablation-ae-par-relpos", {}), ("t5-v1.1-base", {}), ("bart-base", {}),
])  # fmt: skip
@pytest.mark.parametrize("projections", [["query", "value"], ["key"], ["value", "key"], ALL])
def test_values_and_gradients_are_those_of_the_dense_sum(
    tmp_path: Path, name: str, more: dict[str, Any], projections: list[str]
) -> None:
    """With all layers, the late selection of the last one, and rows packed in buckets."""
    start = nlu_toys.start(name, **more)
    settings = {**LORA, "finetuning__lora_projections": projections}
    recipe, step = step_of(start, recipe_for(start, settings), tmp_path)
    model = with_updates(start, recipe)
    batch = step.batch(torch.device("cpu"))
    loss = sum(each.total for each in model(batch).values())
    assert isinstance(loss, torch.Tensor)
    loss.backward()

    plain = begun(start, recipe_for(start, SHORT)).for_use()
    own = {key: value for key, value in model.state_dict().items() if not key.endswith((".down", ".up"))}
    layers = {place: each for place, each in model.named_modules() if isinstance(each, LowRankLinear)}
    places = {place: dense_weight(layer) for place, layer in layers.items()}
    plain.load_state_dict({**own, **{f"{p}.weight": torch.from_numpy(w).float() for p, (w, _) in places.items()}})
    expected = sum(each.total for each in plain(batch).values())
    assert isinstance(expected, torch.Tensor)
    expected.backward()
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-5)
    assert layers and sum(map(len, (rows for _, rows in places.values()))) == sum(
        _owned_layers(plain, one) for one in projections
    )
    for place, layer in layers.items():
        dense = plain.get_parameter(f"{place}.weight").grad
        assert dense is not None and layer.up.grad is not None and layer.down.grad is not None
        for rows, number in places[place][1]:
            above, low = layer.up[number].detach(), layer.down[number].detach()
            torch.testing.assert_close(layer.up.grad[number], 2.0 * dense[rows] @ low.T, atol=1e-5, rtol=1e-4)
            torch.testing.assert_close(layer.down.grad[number], 2.0 * above.T @ dense[rows], atol=1e-5, rtol=1e-4)


def _owned_layers(model: UnifiedModel, projection: str) -> int:
    """Layers with weights of their own, with a decoder's cross-attention as one more for the projections of attention."""
    if model.settings.share_layers == "all":
        return 1
    of_decoder = 1 if projection in ("inner", "outer") else 2
    return model.settings.num_layers + of_decoder * model.settings.decoder_layers


def test_updates_start_at_the_base_model_and_their_dropout_acts_in_training_only(
    start: LoadedModel, tmp_path: Path
) -> None:
    settings = {**LORA, "finetuning__lora_dropout": 0.5, "finetuning__lora_projections": ALL}
    recipe, step = step_of(start, recipe_for(start, settings), tmp_path)
    batch = step.batch(torch.device("cpu"))
    models = begun(start, recipe), begun(start, recipe_for(start, SHORT))
    one, other = (float(model(batch)["label"].total.detach()) for model in models)
    assert one == pytest.approx(other, abs=1e-6)
    model = with_updates(start, recipe)
    dropped = [float(model(batch, DropoutKey(1, key))["label"].total.detach()) for key in (0, 0, 1)]
    assert dropped[0] == dropped[1] != dropped[2]


def learned(model: Model) -> set[str]:
    return {name for name, weight in model.named_parameters() if weight.requires_grad}


def test_only_the_updates_and_the_head_learn_and_have_moments(start: LoadedModel) -> None:
    recipe = recipe_for(start, LORA)
    model = begun(start, recipe)
    layers = [f"backbone.layers.{n}.attention.qkv" for n in range(2)]
    head = {f"task_heads.label.{part}.{kind}" for part in ("dense", "output") for kind in ("weight", "bias")}
    assert learned(model) == head | {f"{layer}.{part}" for layer in layers for part in ("down", "up")}
    optimizers = build_optimizers(model, recipe.training)
    held = {id(weight) for each in optimizers for group in each.param_groups for weight in group["params"]}
    assert held == {id(weight) for weight in model.parameters() if weight.requires_grad}


def test_only_adapters_norms_and_the_head_learn(start: LoadedModel) -> None:
    model = begun(start, recipe_for(start, ADAPTERS))
    names = learned(model)
    own = {"down", "up", "norm", "attention_norm", "feed_forward_norm", "dense", "output"}
    assert {name.split(".")[-2] for name in names} == own
    assert all("norm" in name or "_adapter." in name or name.startswith("task_heads.") for name in names)
    width, size = 32, 4
    adapters = sum(weight.numel() for name, weight in model.named_parameters() if "_adapter." in name)
    assert adapters == 2 * 2 * (2 * width * size + width + size)  # Houlsby et al., Section 2.1: 2md + d + m each


def test_all_normalisations_of_an_encoder_decoder_learn_beside_its_adapters() -> None:
    """T5's are RMS normalisations, and a decoder's layer has three sub-layers."""
    start = nlu_toys.start("t5-base")
    names = learned(begun(start, recipe_for(start, ADAPTERS)))
    layer = "backbone.decoder.layers.0."
    parts = {name.removeprefix(layer).split(".")[0] for name in names if name.startswith(layer)}
    subs = ("attention", "cross_attention", "feed_forward")
    assert parts == {f"{sub}_{part}" for sub in subs for part in ("norm", "adapter")}


@pytest.mark.parametrize("name", ["bert-base", "gpt-2"])
def test_an_adapter_adds_a_bottleneck_to_each_sub_layer(tmp_path: Path, name: str) -> None:
    """By definition, and before the residual; at the start the model is nearly what it was."""
    start = nlu_toys.start(name)
    recipe, step = step_of(start, recipe_for(start, ADAPTERS), tmp_path)
    batch = collate(step.examples)
    model, plain = (begun(start, one).for_use() for one in (recipe, recipe_for(start, SHORT)))
    near = (model.backbone(batch)[-1] - plain.backbone(batch)[-1]).abs().max()
    assert 0 < float(near.detach()) < 1e-3

    layer = model.backbone.layers[0]
    for adapter in (layer.attention_adapter, layer.feed_forward_adapter):
        adapter.up.weight.data.normal_(0, 0.5)
        adapter.down.weight.data.normal_(0, 0.5)
    residual, update = torch.randn(2, 1, 3, 32, generator=torch.Generator().manual_seed(1)).unbind(0)

    def bottleneck(adapter: Any, x: torch.Tensor) -> torch.Tensor:
        inner = torch.nn.functional.gelu(x @ adapter.down.weight.T + adapter.down.bias)
        return x + inner @ adapter.up.weight.T + adapter.up.bias

    attended = residual + bottleneck(layer.attention_adapter, update)
    if layer.norm_first:
        inner = layer.feed_forward(layer.feed_forward_norm(attended))
        expected = attended + bottleneck(layer.feed_forward_adapter, inner)
    else:
        attended = layer.attention_norm(attended)
        inner = layer.feed_forward(attended)
        expected = layer.feed_forward_norm(attended + bottleneck(layer.feed_forward_adapter, inner))
    reader: Any = SimpleNamespace(computed=lambda *_: residual, attend=lambda *_: update)
    torch.testing.assert_close(layer(residual, reader, None), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.whole
@pytest.mark.parametrize("settings", [LORA, ADAPTERS], ids=["lora", "adapters"])
def test_a_run_saves_what_it_learned_apart_and_is_put_together_again(
    start: LoadedModel, tmp_path: Path, settings: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    train, dev = files(tmp_path)
    finetune_run(recipe_for(start, settings), start, train, dev, tmp_path / "run")
    said = capsys.readouterr().err
    (best,) = (tmp_path / "run" / "best").glob("step-*")
    saved = load_checkpoint(best)
    model = begun(start, recipe_for(start, settings))
    numbers = sum(weight.numel() for weight in saved.model.values())
    rows = saved.model.pop("backbone.embeddings.positions.weight")  # 32 became 128
    assert saved.model.keys() == learned(model)
    assert f"{numbers - rows.numel():,} of {sum(w.numel() for w in model.parameters()):,} weights learn" in said
    began = json.loads((tmp_path / "run" / "ledger.jsonl").read_text().split("\n")[0])
    assert began["learned"] == numbers - rows.numel()

    loaded = load_model(tmp_path / "run")
    before, after = start.model.state_dict(), loaded.model.state_dict()
    grown = "backbone.embeddings.positions.weight"
    kept = [name for name in before if name in after and ".qkv." not in name and "norm" not in name and name != grown]
    assert kept and all(torch.equal(before[name], after[name]) for name in kept)
    predicts_as_when_evaluated(tmp_path / "run", dev)


@pytest.mark.whole
@pytest.mark.parametrize("settings", [{**LORA, "finetuning__lora_dropout": 0.2}, ADAPTERS], ids=["lora", "adapters"])
def test_a_stopped_run_ends_with_the_same_bits(start: LoadedModel, tmp_path: Path, settings: dict[str, Any]) -> None:
    settings = {**settings, "model__dropout": 0.1}
    resumed_alike(lambda out: ran(start, tmp_path, settings, out), 5, folder=tmp_path)
    (optimizer,) = load_checkpoint(tmp_path / "whole" / "checkpoints" / "step-00000009").optimizers
    assert optimizer["state"]


@pytest.mark.slow
def test_another_start_model_is_refused_and_one_that_moved_is_found_again(tmp_path: Path) -> None:
    start = save_run(tmp_path / "start", nlu_toys.start())
    ran(start, tmp_path, LORA)
    expected = load_model(tmp_path / "run").model.state_dict()
    (tmp_path / "moved").mkdir()
    for name in ("start", "run"):
        shutil.move(tmp_path / name, tmp_path / "moved" / name)
    found = load_model(tmp_path / "moved" / "run").model.state_dict()
    assert all(torch.equal(found[name], expected[name]) for name in expected)

    run = tmp_path / "moved" / "run"
    shutil.move(tmp_path / "moved" / "start", tmp_path / "elsewhere")
    with pytest.raises(UniclozeError, match=rf"no longer at .*: put it back, or link it as {run / 'start'}"):
        load_model(run)
    (run / "start").symlink_to(tmp_path / "elsewhere")
    load_model(run)
    save_run(tmp_path / "other", nlu_toys.start(training__seed=8))
    (run / "start").unlink()
    (run / "start").symlink_to(tmp_path / "other")
    with pytest.raises(UniclozeError, match=r"on top of another model than .*, whose weights differ: restore"):
        load_model(run)


def test_a_model_in_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no folder none: save that model first, or train all weights"):
        ran(nlu_toys.start(), tmp_path, LORA)


@pytest.mark.whole
def test_updates_are_merged_on_export_and_adapters_are_refused(start: LoadedModel, tmp_path: Path) -> None:
    ran(start, tmp_path, {**LORA, "task__head": "dense"}, "lora")
    exported = verbs.export(tmp_path / "lora", "bert", tmp_path / "stock")
    assert max(exported.differences.values()) < 1e-5
    ran(start, tmp_path, ADAPTERS, "adapters")
    with pytest.raises(
        UsageError, match=r"finetuning\.adapter_size is 4, and the BertModel of Transformers has no adap"
    ):
        verbs.export(tmp_path / "adapters", "bert", tmp_path / "no")


@pytest.mark.slow
def test_a_tuned_model_is_a_start_itself(start: LoadedModel, tmp_path: Path) -> None:
    ran(start, tmp_path, LORA, "first")
    ran(load_model(tmp_path / "first"), tmp_path, {**LORA, "finetuning__lora_rank": 2}, "second")
    assert load_model(tmp_path / "second").recipe.finetuning.lora_rank == 2
    ran(start, tmp_path, ADAPTERS, "adapted")
    adapted = load_model(tmp_path / "adapted")
    assert recipe_for(adapted, SHORT).model.adapter_size == 4
    with pytest.raises(UsageError, match=r"adapter_size is 8, but the model .* has adapters of width 4: give 4"):
        recipe_for(adapted, {**SHORT, "finetuning__adapter_size": 8})


@pytest.mark.whole
@pytest.mark.parametrize("settings", [{"finetuning__lora_rank": 2, "finetuning__lora_projections": ALL},
                                      {"finetuning__adapter_size": 4}], ids=["lora", "adapters"])  # fmt: skip
def test_generation_with_few_weights_reads_the_updates(tmp_path: Path, settings: dict[str, Any]) -> None:
    """During training with packed weights, afterwards merged: the same texts."""
    start = save_run(tmp_path / "start", nlu_toys.start("unilmv2-base"))
    words = nlu_toys.WORDS
    pairs = [{"source": f"{words[n % 6]} {words[n // 2]}", "target": words[n % 6]} for n in range(12)]
    file = nlu_toys.write(tmp_path / "pairs.jsonl", pairs)
    values = {"task__max_length": 24, "generation__max_target": 4, "decoding__max_length": 3, "decoding__beams": 1,
              "training__learning_rate": 0.03, "finetuning__epochs": 12, **settings}  # fmt: skip
    recipe = recipe_for(start, values, "generation")
    finetuned(recipe, start, file, file, tmp_path / "run")
    loaded = load_model(tmp_path / "run")
    lines = (tmp_path / "run" / "dev_predictions.jsonl").read_text().splitlines()
    said = [json.loads(line)["prediction"] for line in lines]
    written = [one["prediction"] for one in verbs.generate(loaded, file=file, quiet=True)]
    assert written == said and len(set(said)) > 1


@pytest.mark.parametrize(("settings", "message"), [
    ({"finetuning__lora_rank": 0}, r"finetuning\.lora_rank is 0; it must be at least 1"),
    ({"finetuning__lora_rank": 2, "finetuning__adapter_size": 2}, "either low-rank updates or adapters"),
    ({"finetuning__lora_rank": 2, "finetuning__lora_projections": []}, "name at least one"),
    ({"finetuning__lora_rank": 2, "finetuning__lora_dropout": 1.0}, "at least 0 and below 1"),
    ({"finetuning__lora_rank": 2, "finetuning__lora_alpha": 0.0}, "it must be above 0"),
    ({"finetuning__adapter_size": 0}, "it must be at least 1"),
])  # fmt: skip
def test_settings_that_make_no_sense_are_refused(start: LoadedModel, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        recipe_for(start, settings)


@pytest.mark.parametrize("few", ["finetuning__lora_rank", "finetuning__adapter_size"])
def test_a_recurrent_model_has_none(few: str) -> None:
    with pytest.raises(UsageError, match=r"needs the layers of a Transformer, and none has model\.kind recurrent"):
        recipe_for(nlu_toys.start("awd-lstm"), {**SHORT, few: 2})


def test_few_weights_learn_at_a_higher_rate() -> None:
    assert learning_rate(110_000_000) == 3e-5
    rates = {110_000_000: 3e-4, 22_000_000: 1.5e-3, 5_000_000: 6.6e-3, 1_500_000: 1e-2}
    assert {weights: learning_rate(weights, few=True) for weights in rates} == rates


def test_a_start_in_a_hugging_face_folder_is_found_again(start: LoadedModel, tmp_path: Path) -> None:
    verbs.export(start, "bert", tmp_path / "stock")
    train, dev = files(tmp_path)
    given = {
        "finetuning.lora_rank": 2, "finetuning.epochs": 1, "training.device": "cpu", "training.precision": "fp32",
        "training.learning_rate": 0.01,
    }  # fmt: skip
    verbs.finetune("classification", tmp_path / "stock", train, dev, tmp_path / "run", quiet=True, overrides=given)
    predicts_as_when_evaluated(tmp_path / "run", dev)
