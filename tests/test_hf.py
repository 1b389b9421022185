"""The models as Transformers classes: the same values, files and losses as our own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import toys
import unicloze
from conftest import slow_except
from decoding_toys import TEXT, loaded, roberta_like
from hf_toys import padded, save_run, written_row
from interop_toys import batch_of, labels_of
from nlu_toys import start
from toys import random_windows, vocabulary
from unicloze.decoding.embed import rows_to_encode
from unicloze.errors import UniclozeError, UsageError
from unicloze.example import collate
from unicloze.model.model import UnifiedModel
from unicloze.objectives import settings_of
from unicloze.settings import ModelSettings, Recipe, UseSettings

transformers = pytest.importorskip("transformers")
hf = pytest.importorskip("unicloze.hf")
own_format = pytest.importorskip("unicloze.hf.save").own_format

SHAPE = toys.SHAPE | dict(vocab_size=50, max_positions=40, eos_token_id=4, bos_token_id=3, mask_token_id=5)
WRITES: dict[str, Any] = dict(predicts="pseudo", pseudo_token_id=6)


@pytest.fixture(autouse=True)
def quiet() -> Any:
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(0)


def ours(model: Any, targets: tuple[str, ...] = ("ae", "par")) -> UnifiedModel:
    """The same weights in the training loop's model."""
    config = model.config
    own = UnifiedModel(
        config.settings, vocab_size=config.vocab_size, max_positions=config.max_positions, targets=targets
    )
    own.load_state_dict(model.state_dict(), strict=False)
    return own.train(model.training)


def same_gradients(model: Any, own: UnifiedModel) -> None:
    theirs = dict(own.named_parameters())
    for name, parameter in model.named_parameters():
        expected = theirs[name].grad
        if expected is None:
            assert parameter.grad is None or not parameter.grad.any()
        else:
            atol = 1e-6 * max(10.0, float(expected.abs().max()))  # sums of large terms round by their size
            torch.testing.assert_close(parameter.grad, expected, atol=atol, rtol=1e-4)


SHAPES: dict[str, dict[str, Any]] = {
    "as published": {},
    "no bias": {"relative_bias": False},
    "pre": {"norm": "pre", "relative_bias": False, "activation": "gelu_tanh"},
    "albert": {"share_layers": "all", "embedding_size": 16},
    "wide heads": {"num_heads": 3, "head_size": 10},
    "transformer_xl": {"positions": "transformer_xl", "relative_bias": False},
    "left to right": {"visibility": "left_to_right"},
    "local": {"visibility": "left_to_right", "layer_visibility": ["full", "local"], "local_width": 3},
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_states_and_gradients_are_the_backbones_with_padding_on_either_side(shape: dict[str, Any]) -> None:
    model = hf.UniclozeModel(hf.UniclozeConfig(**(SHAPE | shape)))
    own = ours(model)
    windows = random_windows(5, 24, short=True, seed=2)
    visibility = shape.get("visibility", "bidirectional")
    causal = {"name": "causal", "targets": ["lm"], "visibility": visibility, "local_width": shape.get("local_width")}
    objective = settings_of(**causal if visibility == "left_to_right" else {})
    recipe = Recipe(objective=objective, use=UseSettings(visibility=visibility), model=ModelSettings(num_segments=2))
    expected = own.backbone(collate(rows_to_encode(windows, recipe)))
    real = torch.arange(24) < torch.from_numpy(windows.lengths)[:, None]
    weights = torch.randn(int(real.sum()), 32)
    (expected[-1][real] * weights).sum().backward()
    tokens = [row[:n].tolist() for row, n in zip(windows.token_ids, windows.lengths, strict=True)]
    parts = [row[:n].tolist() for row, n in zip(windows.segment_ids, windows.lengths, strict=True)]
    for side in ("right", "left"):
        input_ids, mask = padded(tokens, side=side)
        token_type_ids, _ = padded(parts, side=side)
        model.zero_grad()
        found = model(input_ids, attention_mask=mask, token_type_ids=token_type_ids, output_hidden_states=True)
        assert len(found.hidden_states) == 4
        for state, other in zip(found.hidden_states, expected, strict=True):
            torch.testing.assert_close(state[mask.bool()], other[real], atol=1e-5, rtol=1e-5)
        (found.last_hidden_state[mask.bool()] * weights).sum().backward()
        same_gradients(model, own)


def test_no_mask_means_no_padding() -> None:
    model = hf.UniclozeModel(hf.UniclozeConfig(**SHAPE)).eval()
    ids = torch.randint(7, 50, (3, 9))
    torch.testing.assert_close(model(ids)[0], model(ids, attention_mask=torch.ones_like(ids))[0], atol=1e-5, rtol=1e-5)
    shifted = model(ids, position_ids=torch.arange(9).expand(3, 9) + 5)[0]
    assert not torch.allclose(shifted, model(ids)[0], atol=1e-3)
    last, pooled = model(ids, return_dict=False)
    assert torch.equal(pooled, last[:, 0])


@pytest.mark.parametrize("training", [False, True])
def test_the_masked_lms_loss_is_ours(training: bool) -> None:
    model = hf.UniclozeForMaskedLM(hf.UniclozeConfig(**SHAPE)).train(training)
    own = ours(model)
    batch, real = batch_of(vocabulary(), segments=True)
    given = {"attention_mask": real.long(), "token_type_ids": batch.segment_ids, "labels": labels_of(batch)}
    found = model(batch.input_ids, **given)
    slots = batch.targets["ae"].slots
    row, place = batch.targets["ae"].weights.nonzero(as_tuple=True)
    logits = own.logits(batch)["ae"][row, place]
    torch.testing.assert_close(found.logits[row, slots[row, place]], logits, atol=1e-5, rtol=1e-5)
    loss = own(batch)["ae"]
    torch.testing.assert_close(found.loss, loss.total / loss.weight, atol=1e-5, rtol=1e-5)
    found.loss.backward()
    (loss.total / loss.weight).backward()
    same_gradients(model, own)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("relative_bias", [False, True])
def test_the_writers_loss_is_that_of_rows_with_pseudo_masks(training: bool, relative_bias: bool) -> None:
    model = hf.UniclozeForConditionalGeneration(
        hf.UniclozeConfig(**SHAPE, **WRITES, relative_bias=relative_bias)
    ).train(training)
    own = ours(model)
    pairs = [([3, 10, 11, 12, 4], [13, 14, 4]), ([3, 20, 4], [21, 22, 23, 24, 4]), ([3, 4], [30, 4])]
    batches = [written_row(source, target, 6, len(target)) for source, target in pairs]
    losses = [own(batch)["par"] for batch in batches]
    expected = torch.cat([own.logits(batch)["par"][0] for batch in batches])
    mean = torch.stack([loss.total for loss in losses]).sum() / sum(loss.weight for loss in losses)
    mean.backward()
    rows = [source + target for source, target in pairs]
    marked = [[-100] * len(source) + target for source, target in pairs]
    for side in ("right", "left"):
        model.zero_grad()
        input_ids, mask = padded(rows, side=side)
        labels, _ = padded(marked, side=side, value=-100)
        found = model(input_ids, attention_mask=mask, labels=labels)
        torch.testing.assert_close(found.loss, mean, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(found.logits[labels != -100], expected, atol=1e-5, rtol=1e-5)
        assert not found.logits[labels == -100].any()
        found.loss.backward()
        same_gradients(model, own)


def test_a_model_that_predicts_the_next_token_shifts_its_labels() -> None:
    model = hf.UniclozeForConditionalGeneration(
        hf.UniclozeConfig(**SHAPE, predicts="next", source_visibility="left_to_right")
    ).eval()
    ids = torch.randint(7, 50, (2, 8))
    found = model(ids, labels=ids)
    expected = torch.nn.functional.cross_entropy(found.logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    torch.testing.assert_close(found.loss, expected)


def test_dropout_is_drawn_from_torchs_generator() -> None:
    model = hf.UniclozeForMaskedLM(hf.UniclozeConfig(**(SHAPE | {"dropout": 0.3}))).train()
    ids = torch.randint(7, 50, (2, 8))
    losses = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        losses.append(model(ids, labels=ids).loss.item())
    assert losses[0] == losses[1] != losses[2]
    model.eval()
    assert model(ids, labels=ids).loss == model(ids, labels=ids).loss


def test_a_run_is_exported_and_read_back_bit_for_bit(tmp_path: Path) -> None:
    run = save_run(tmp_path / "run")
    for kind, auto in (
        (hf.UniclozeForMaskedLM, transformers.AutoModelForMaskedLM),
        (hf.UniclozeForConditionalGeneration, transformers.AutoModelForCausalLM),
        (hf.UniclozeModel, transformers.AutoModel),
    ):
        model = kind.from_run(tmp_path / "run")
        model.save_pretrained(tmp_path / "saved")
        stored = load_file(tmp_path / "saved" / "model.safetensors")
        theirs = run.model.state_dict()
        assert stored.keys() <= theirs.keys()
        assert all(torch.equal(stored[name], theirs[name]) for name in stored)
        again = auto.from_pretrained(tmp_path / "saved")
        assert type(again) is kind and not again.training
        assert again.config.to_diff_dict() == model.config.to_diff_dict()
        again.save_pretrained(tmp_path / "again")
        second = load_file(tmp_path / "again" / "model.safetensors")
        assert second.keys() == stored.keys() and all(torch.equal(second[name], stored[name]) for name in stored)
        assert "auto_map" not in json.loads((tmp_path / "saved" / "config.json").read_text())
    tokenizer = hf.load_tokenizer(tmp_path / "run")
    tokenizer.save_pretrained(tmp_path / "saved")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert again(TEXT)["input_ids"] == tokenizer(TEXT)["input_ids"]


def test_a_model_that_neither_fills_masks_nor_continues_a_plain_source_is_exported_without_its_head() -> None:
    export = own_format(start("prefix-masked-span-base"))
    assert export.architecture == "UniclozeModel" and export.said[0] == "the class has no token head"
    assert re.search(
        "does not generate, since its rows need a token that opens .*: generate with `unicloze", export.said[1]
    )


@pytest.mark.parametrize("pooling", ["first", "last", "mean"])
def test_the_pooled_output_is_embeds(tmp_path: Path, pooling: Any) -> None:
    save_run(tmp_path, loaded(use=UseSettings(pooling=pooling)))
    texts = [TEXT, "return a list", "the value"]
    model, tokenizer = hf.UniclozeModel.from_run(tmp_path), hf.load_tokenizer(tmp_path)
    for side in ("right", "left"):
        tokenizer.padding_side = side
        with torch.no_grad():
            found = model(**tokenizer(texts, padding=True, return_tensors="pt")).pooler_output
        assert np.allclose(found.numpy(), unicloze.embed(tmp_path, texts), atol=1e-5)


class Kept(transformers.TrainerCallback):  # type: ignore[misc]
    """The gradients of the first step, as the optimiser receives them."""

    def __init__(self) -> None:
        self.gradients: dict[str, Tensor] = {}

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self.gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def trained(
    kind: Any, config: Any, rows: list[dict[str, Tensor]], folder: Path, size: int
) -> tuple[float, dict[str, Tensor], float]:
    """One optimiser step over all rows in micro-batches: its loss, its gradients, and the evaluation loss of Trainer."""
    torch.manual_seed(0)
    model, kept = kind(config), Kept()
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=size, gradient_accumulation_steps=len(rows) // size,
        per_device_eval_batch_size=size, max_steps=1, logging_steps=1, max_grad_norm=0.0, use_cpu=True, report_to="none",
        disable_tqdm=True, save_strategy="no", seed=0, learning_rate=0.0, dataloader_pin_memory=False,
    )  # fmt: skip
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=rows, eval_dataset=rows, callbacks=[kept])
    trainer.remove_callback(transformers.PrinterCallback)
    loss = trainer.train().training_loss
    return loss, kept.gradients, trainer.evaluate()["eval_loss"]


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore:.*pin_memory.*")
@pytest.mark.parametrize("predicts", slow_except(["pseudo"], [None, "pseudo", "next"]))
def test_trainers_loss_and_gradients_do_not_depend_on_gradient_accumulation(
    tmp_path: Path, predicts: str | None
) -> None:
    pytest.importorskip("accelerate")
    kind = hf.UniclozeForMaskedLM if predicts is None else hf.UniclozeForConditionalGeneration
    config = hf.UniclozeConfig(**SHAPE, predicts=predicts, pseudo_token_id=6)
    generator = torch.Generator().manual_seed(3)
    rows = []
    for number in range(8):
        ids = torch.randint(7, 50, (12,), generator=generator)
        labels = ids.clone()
        labels[: (11, 10, 9, 8, 7, 6, 5, 0)[number]] = -100  # 1 to all labels: a mean of means would differ
        rows.append({"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels})
    results = [trained(kind, config, rows, tmp_path, size) for size in (8, 2)]
    torch.manual_seed(0)
    model = kind(config)
    whole = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    expected = model(**whole).loss
    expected.backward()
    assert results[0][2] == pytest.approx(expected.item(), abs=1e-5)
    for loss, gradients, _ in results:
        assert loss == pytest.approx(expected.item(), abs=1e-5)
        assert gradients.keys() == {name for name, p in model.named_parameters() if p.grad is not None}
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                torch.testing.assert_close(gradients[name], parameter.grad, atol=1e-6, rtol=1e-4)


def test_label_smoothing_is_the_configurations(tmp_path: Path) -> None:
    plain, smooth = (
        hf.UniclozeForConditionalGeneration(hf.UniclozeConfig(**SHAPE, **WRITES, label_smoothing=e)) for e in (0.0, 0.1)
    )
    smooth.load_state_dict(plain.state_dict())
    ids = torch.randint(7, 50, (2, 8))
    labels = ids.clone()
    labels[:, :4] = -100
    first, second = plain.eval()(ids, labels=labels), smooth.eval()(ids, labels=labels)
    torch.testing.assert_close(second.loss, first.loss)  # what is measured is the model's own likelihood
    second, asked = smooth.train()(ids, labels=labels), labels != -100
    expected = torch.nn.functional.cross_entropy(second.logits[asked], labels[asked], label_smoothing=0.1)
    torch.testing.assert_close(second.loss, expected)
    with pytest.raises(UsageError, match="label_smoothing"):
        plain.train()(ids)


@pytest.mark.parametrize("norms", [{}, {"norm": "pre", "norm_kind": "rms"}], ids=["", "rms"])
def test_initial_weights_are_drawn_as_the_settings_say(norms: dict[str, Any]) -> None:
    drawn = {"hidden_size": 128, "initializer_range": 0.05, "scaled_init": True}
    model = hf.UniclozeForMaskedLM(hf.UniclozeConfig(**SHAPE | drawn | norms))
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            assert (parameter == 1).all()
        elif name.endswith("bias"):
            assert not parameter.any()
        elif parameter.numel() > 1000:
            writes = name.endswith(("attention.output.weight", "feed_forward.output.weight"))
            assert parameter.std().item() == pytest.approx(0.05 / (6**0.5 if writes else 1), rel=0.1), name


@pytest.mark.parametrize("own", [{}, {"tied_output": False}, {"tied_output": False, "head_bias": False}])
def test_more_tokens_get_embeddings_and_biases(own: dict[str, Any]) -> None:
    model = hf.UniclozeForMaskedLM(hf.UniclozeConfig(**SHAPE, **own)).eval()
    ids = torch.randint(7, 50, (2, 6))
    before = model(ids).logits
    model.resize_token_embeddings(53, mean_resizing=False)
    after = model(ids).logits
    assert after.shape[2] == 53 and model.config.vocab_size == 53
    torch.testing.assert_close(after[:, :, :50], before)
    model.resize_token_embeddings(50)
    torch.testing.assert_close(model(ids).logits, before)


def test_what_a_model_cannot_do_is_refused_in_a_sentence(tmp_path: Path) -> None:
    model = hf.UniclozeModel(hf.UniclozeConfig(**SHAPE)).eval()
    ids = torch.randint(7, 50, (2, 41))
    with pytest.raises(UsageError, match="41 tokens and the model has 40 positions"):
        model(ids)
    mask = torch.ones_like(ids)
    mask[:, :2] = 0
    assert model(ids, attention_mask=mask).last_hidden_state.shape == (2, 41, 32)
    mask = torch.ones(2, 9)
    mask[1, 4] = 0
    with pytest.raises(UsageError, match="gap in row 1"):
        model(ids[:, :9], attention_mask=mask)
    distances = {"positions": "transformer_xl", "relative_bias": False}
    for kind, settings, message in (
        (hf.UniclozeForConditionalGeneration, {}, "not trained to generate text"),
        (hf.UniclozeForConditionalGeneration, {"predicts": "pseudo"}, "pseudo_token_id is not set"),
        (hf.UniclozeForConditionalGeneration, WRITES | distances, "transformer_xl"),
        (hf.UniclozeModel, {"num_heads": 5}, "multiple of num_heads"),
        (hf.UniclozeModel, {"norm": "between"}, "configuration field norm is 'between'"),
    ):
        with pytest.raises(UsageError, match=message):
            kind(hf.UniclozeConfig(**SHAPE | settings))
    writer = hf.UniclozeForConditionalGeneration(hf.UniclozeConfig(**SHAPE, **WRITES))
    with pytest.raises(UsageError, match="row 0 has a label where token_type_ids marks the source"):
        writer(ids[:, :5], token_type_ids=torch.zeros(2, 5), labels=ids[:, :5])
    with pytest.raises(UniclozeError, match="there is no model at"):
        hf.UniclozeModel.from_run(tmp_path / "nowhere")
    save_run(tmp_path / "bert", name="masked", targets=["ae"])
    with pytest.raises(UsageError, match="not trained to generate"):
        hf.UniclozeForConditionalGeneration.from_run(tmp_path / "bert")


def test_the_extra_is_named_where_transformers_is_absent() -> None:
    program = "import sys; sys.modules['transformers'] = None; import unicloze.hf"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].endswith('unicloze.hf needs Transformers: in the clone, pip install -e ".[hf]"')


def test_roberta_like_tokenizers_keep_their_own_names(tmp_path: Path) -> None:
    save_run(tmp_path, loaded(roberta_like()))
    tokenizer = hf.load_tokenizer(tmp_path)
    assert (tokenizer.mask_token, tokenizer.cls_token, tokenizer.sep_token) == ("<mask>", "<s>", "</s>")
    assert tokenizer.model_max_length == 32
    model = hf.UniclozeForConditionalGeneration.from_run(tmp_path)
    assert model.config.pseudo_token_id == tokenizer.mask_token_id
    assert tokenizer.eos_token_id is None or tokenizer.eos_token_id == model.config.eos_token_id
