"""Encoder-decoders against Transformers' T5 and BART at random initialisation, in float32, and their folders."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers
from torch import Tensor

import two_stack_toys as toys
from nlu_toys import write
from toys import random_windows, vocabulary
from unicloze import verbs
from unicloze.decoding.embed import embed
from unicloze.decoding.generate import generate, generate_parts
from unicloze.errors import UniclozeError, UsageError
from unicloze.example import Batch, Examples, collate
from unicloze.finetuning.initial import start_weights, task_recipe
from unicloze.finetuning.run import finetune_run
from unicloze.interop.export import stock_format, write_export
from unicloze.interop.families import FAMILIES
from unicloze.interop.read import import_checkpoint
from unicloze.interop.stock import check_format, stock_export
from unicloze.model.dropout import DropoutKey
from unicloze.objectives.seq2seq import PrefixSettings, generates, prefix
from unicloze.packing import pack
from unicloze.recipes import load_recipe
from unicloze.records import read_records
from unicloze.settings import DecodingSettings
from unicloze.tasks import TASKS
from unicloze.tasks.task import Headed
from unicloze.training.loading import LoadedModel, build_model, load_model

transformers = pytest.importorskip("transformers")

PAD, EOS = 0, 4


def settings_for(kind: str) -> PrefixSettings:
    """Rows as the peer reads them: T5 without [SOS] and from its pad token, BART from [EOS], both from position 0."""
    t5 = kind.startswith("t5")
    return PrefixSettings(
        mask_rate=0.5, source_start=not t5, target_start=["pad"] if t5 else ["eos"], restart_positions=True,
        segment_ids=[0, 0],
    )  # fmt: skip


def rows(kind: str, count: int = 5, seed: int = 2) -> Examples:
    return prefix(random_windows(count, 24, short=True, seed=seed), vocabulary(), settings_for(kind))


def inputs_of(examples: Examples) -> dict[str, Tensor]:
    """The same rows as a peer takes them: sources, decoder inputs and labels, each padded on the right."""
    sources, targets, labels = [], [], []
    target = examples.targets["lm"]
    for row in range(len(examples)):
        first, last = int(examples.mutual[row]), int(examples.lengths[row])
        ids = torch.from_numpy(examples.input_ids[row]).long()
        sources.append(ids[:first])
        targets.append(ids[first:last])
        answers = torch.full((last - first,), -100)
        real = target.weights[row] > 0
        answers[torch.from_numpy(target.slots[row][real]).long() - first] = torch.from_numpy(
            target.labels[row][real]
        ).long()
        labels.append(answers)

    def padded(parts: list[Tensor], value: int) -> Tensor:
        return torch.nn.utils.rnn.pad_sequence(parts, batch_first=True, padding_value=value)

    ones = [torch.ones(len(part), dtype=torch.long) for part in sources]
    return {
        "input_ids": padded(sources, PAD),
        "attention_mask": padded(ones, 0),
        "decoder_input_ids": padded(targets, PAD),
        "labels": padded(labels, -100),
    }


def same_losses_and_gradients(theirs: Any, model: Any, examples: Examples, batch: Batch, dropout: Any = None) -> None:
    inputs = inputs_of(examples)
    expected = theirs(**inputs)
    found = model(batch, dropout)["lm"]
    torch.testing.assert_close(found.total / found.weight, expected.loss, atol=1e-5, rtol=1e-5)
    (found.total / found.weight).backward()
    expected.loss.backward()
    _, table = toys.beside(theirs)
    given = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    given |= {name: torch.zeros_like(buffer) for name, buffer in theirs.named_buffers()}
    converted = dict(table.ours(given))
    compared = 0
    for name, parameter in model.named_parameters():
        if name != "token_head.bias":  # a buffer of theirs
            torch.testing.assert_close(parameter.grad, converted[name], atol=1e-5, rtol=1e-4, msg=name)
            compared += 1
    assert compared >= 40


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", toys.KINDS)
def test_losses_and_gradients_are_those_of_transformers(kind: str, packed: bool) -> None:
    theirs = toys.peer(kind)
    model, examples = toys.twin(theirs), rows(kind)
    batch = collate(examples)
    if packed:
        batch = pack([collate(examples[:2]), collate(examples[2:4]), collate(examples[4:])])
    same_losses_and_gradients(theirs, model, examples, batch)


@pytest.mark.parametrize("kind", toys.KINDS)
def test_dropout_is_where_transformers_has_it(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call of torch's dropout is answered with our draw of the same number, in the same order."""
    rates = (
        {"dropout_rate": 0.2}
        if kind.startswith("t5")
        else {"dropout": 0.1, "attention_dropout": 0.2, "activation_dropout": 0.3}
    )
    theirs = toys.peer(kind, **rates).train()
    examples = rows(kind, count=1)  # padding would shift the number of an element
    model = toys.twin(theirs).train()
    key, calls = DropoutKey(7), []

    def ours(hidden: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        calls.append(p)
        return key(hidden, p) if training else hidden

    monkeypatch.setattr(torch.nn.functional, "dropout", ours)
    same_losses_and_gradients(theirs, model, examples, collate(examples), DropoutKey(7))
    assert len(calls) >= 20


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("kind", toys.KINDS)
def test_generated_texts_are_those_of_transformers(kind: str, beams: int) -> None:
    theirs = toys.peer(kind)
    model, settings = toys.twin(theirs), settings_for(kind)
    layout = dataclasses.replace(generates(settings, vocabulary()), never=(PAD,))
    draw = np.random.default_rng(0)
    sources = [draw.integers(10, toys.VOCABULARY, size) for size in (9, 4, 6)]
    decoding = DecodingSettings(beams=beams, max_length=11, num_results=beams, no_repeat_ngram=2)
    results = [each for part in generate_parts(model, sources, decoding, layout) for each in part.results]
    given = [torch.from_numpy(layout.row(source)).long() for source in sources]
    padded = torch.nn.utils.rnn.pad_sequence(given, batch_first=True, padding_value=PAD)
    real = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in given], batch_first=True)
    written = theirs.generate(
        input_ids=padded, attention_mask=real, num_beams=beams, max_new_tokens=11, do_sample=False,
        suppress_tokens=[PAD], no_repeat_ngram_size=2,
        num_return_sequences=beams, **({"length_penalty": 0.0} if beams > 1 else {}),
    )  # fmt: skip
    expected = [ids[1:].tolist() for ids in written]
    expected = [[*ids[: ids.index(EOS)]] if EOS in ids else ids for ids in expected]
    assert [hypothesis.tokens for each in results for hypothesis in each] == expected
    assert len({tuple(tokens) for tokens in expected}) > 1


# Folders, imported, fine-tuned, exported, and compared both ways


TEXT = "the a cat dog sees hears big small red blue house tree and of to is was in on with by at it he she"
WORDS = TEXT.split()
SOURCES = ["the cat sees a dog", "a red house", "he was in the small tree with it"]


def folder_of(kind: str, folder: Path) -> Any:
    """A stock folder with a tokenizer of whole words, as T5's without [SOS] and [MASK] or as BART's; the model in it."""
    model = toys.peer(kind)
    model.save_pretrained(folder)
    own = ["<extra_id_1>", "<unk>", "<extra_id_0>"] if kind.startswith("t5") else ["<mask>", "<unk>", "<s>"]
    specials = ["<pad>", *own, "</s>"]
    vocabulary = {word: number for number, word in enumerate([*specials, *WORDS])}
    vocabulary |= {f"<unused{number}>": number for number in range(len(vocabulary), toys.VOCABULARY)}
    backend = Backend(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.decoder = decoders.WordPiece(prefix="##")
    backend.add_special_tokens(specials)
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return model


def written_by(model: Any, loaded: LoadedModel, source: str, beams: int) -> list[int]:
    """The ids Transformers writes after the start slots, without [EOS] and what follows."""
    t5 = loaded.recipe.objective.name == "span_corruption"
    row = [*([] if t5 else [3]), *loaded.tokenizer.encode(source).tolist(), 4]
    sentinels = [1, 3] if t5 else []
    never = [number for number in loaded.tokenizer.vocabulary.special.tolist() if number not in (4, *sentinels)]
    scores = {"num_beams": beams, "length_penalty": 0.0} if beams > 1 else {}
    found = model.generate(
        torch.tensor([row]), decoder_input_ids=torch.tensor([[0] if t5 else [4, 3]]), max_new_tokens=7, do_sample=False,
        suppress_tokens=never, **scores,
    )[0].tolist()  # fmt: skip
    written = found[1 if t5 else 2 :]
    return written[: written.index(4)] if 4 in written else written


@pytest.mark.whole
@pytest.mark.parametrize("kind", ["t5", "t5 1.1", "bart", "mass"])
def test_a_folder_imports_and_generates_as_transformers_does(kind: str, tmp_path: Path) -> None:
    peer = folder_of(kind, tmp_path)
    loaded = import_checkpoint(tmp_path)
    assert loaded.recipe.model == dataclasses.replace(toys.twin(peer).settings, max_positions=64)
    vocabulary = loaded.tokenizer.vocabulary
    assert (vocabulary.pad, vocabulary.eos) == (0, 4)
    for beams in (1, 3):
        found = generate(loaded, SOURCES, DecodingSettings(beams=beams, max_length=7))
        assert [one.candidates[0].tokens for one in found] == [
            written_by(peer, loaded, each, beams) for each in SOURCES
        ]


@pytest.mark.parametrize("kind", ["t5", "t5 1.1", "bart", "mass"])
def test_an_imported_folder_exports_bit_by_bit(kind: str, tmp_path: Path) -> None:
    peer = folder_of(kind, tmp_path / "theirs")
    loaded = import_checkpoint(tmp_path / "theirs")
    to = "t5" if kind.startswith("t5") else "bart"
    result = write_export(loaded, stock_format(loaded, to), tmp_path / "ours")
    assert result.differences["logits"] < 1e-5
    again = type(peer).from_pretrained(tmp_path / "ours")
    for (name, weight), (_, other) in zip(peer.state_dict().items(), again.state_dict().items(), strict=True):
        if "embed_positions" in name:  # rows that no text uses
            weight, other = weight[2:], other[2:]
        assert torch.equal(weight, other), name
    assert again.config.decoder_start_token_id == peer.config.decoder_start_token_id


@pytest.mark.parametrize(
    ("kind", "rows"),
    [
        ("bart", {"target_start": ["sos"]}),
        ("bart", {"target_start": ["eos"], "source_start": False}),
        ("bart", {"target_start": ["mask", "sos"]}),
        ("t5", {"target_start": ["eos"], "source_start": True}),
    ],
)
def test_an_exported_folder_names_what_opens_source_and_target(kind: str, rows: dict[str, Any], tmp_path: Path) -> None:
    folder_of(kind, tmp_path / "theirs")
    loaded = import_checkpoint(tmp_path / "theirs")
    loaded = dataclasses.replace(loaded, recipe=loaded.recipe.changed("objective", **rows))
    stock_export(FAMILIES[kind], loaded).write(tmp_path)
    assert import_checkpoint(tmp_path).recipe.objective == loaded.recipe.objective


def test_a_mode_token_that_spans_need_is_left_out(tmp_path: Path) -> None:
    folder_of("t5", tmp_path / "theirs")
    loaded = import_checkpoint(tmp_path / "theirs")
    rows = {key: getattr(loaded.recipe.objective, key) for key in ("source_start", "target_start", "segment_ids")}
    objective = PrefixSettings(targets=["lm"], restart_positions=True, mode_token=0, **rows)
    loaded = dataclasses.replace(loaded, recipe=dataclasses.replace(loaded.recipe, objective=objective))
    stock_export(FAMILIES["t5"], loaded).write(tmp_path)
    with pytest.warns(UserWarning, match="is one of the 4 that stand for spans in further training, so it is left out"):
        assert import_checkpoint(tmp_path).recipe.objective.mode_token is None  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_an_exported_folder_writes_as_its_recipe_says(kind: str, tmp_path: Path) -> None:
    folder_of(kind, tmp_path / "theirs")
    loaded, decoding = import_checkpoint(tmp_path / "theirs"), DecodingSettings(beams=3, min_length=2, max_length=7)
    loaded = dataclasses.replace(loaded, recipe=dataclasses.replace(loaded.recipe, decoding=decoding))
    write_export(loaded, stock_format(loaded, kind), tmp_path / "ours")
    library = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    opened, end = {"t5": 1, "bart": 2}[kind], loaded.tokenizer.vocabulary.eos
    for source, own in zip(SOURCES, generate(loaded, SOURCES, decoding), strict=True):
        written = library.generate(**tokenizer(source, return_tensors="pt"))[0, opened:].tolist()
        assert own.candidates[0].tokens == (written[: written.index(end)] if end in written else written)


@pytest.mark.whole
@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_an_imported_folder_learns_to_generate_and_exports_what_it_learned(kind: str, tmp_path: Path) -> None:
    folder_of(kind, tmp_path / "theirs")
    start = import_checkpoint(tmp_path / "theirs")
    pairs = [{"source": f"{one} cat", "target": f"{one} dog"} for one in WORDS[4:12]]
    train = write(tmp_path / "train.jsonl", pairs)
    changes = {
        "finetuning.epochs": 40, "training.batch_size": 8, "training.learning_rate": 0.01, "training.device": "cpu",
        "training.label_smoothing": 0.0, "task.max_length": 24, "decoding.max_length": 4, "decoding.beams": 1,
        "generation.target_noise": 0.0,
    }  # fmt: skip
    recipe = task_recipe(load_recipe("generation", changes), start, list(changes))
    finetune_run(recipe, start, train, None, tmp_path / "run", progress=False)
    tuned = load_model(tmp_path / "run")
    sources, expected = ([pair[side] for pair in pairs[:4]] for side in ("source", "target"))
    assert [one.text for one in generate(tuned, sources, DecodingSettings(max_length=4))] == expected
    write_export(tuned, stock_format(tuned, kind), tmp_path / "ours")
    library = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    written = library.generate(**tokenizer(sources, return_tensors="pt", padding=True), max_new_tokens=6)
    assert tokenizer.batch_decode(written, skip_special_tokens=True) == expected


def test_bart_classifies_from_the_last_slot_of_its_decoder(tmp_path: Path) -> None:
    """The rows, states and logits of BartForSequenceClassification; so does a text in a batch of longer ones."""
    folder_of("bart", tmp_path)
    start = import_checkpoint(tmp_path)
    changes = {"task.labels": ["x", "y", "z"], "training.device": "cpu", "task.max_length": 24}
    recipe = task_recipe(load_recipe("classification", changes), start, list(changes))
    assert isinstance(recipe.task, Headed) and recipe.task.pooling == "decoder"
    config = transformers.BartConfig(**toys.KINDS["bart"], num_labels=3, attn_implementation="eager")
    theirs = transformers.BartForSequenceClassification(config).eval()
    theirs.model.load_state_dict(transformers.BartModel.from_pretrained(tmp_path).state_dict())
    ours = build_model(recipe, len(start.tokenizer)).eval()
    start_weights(ours, start, recipe.task)
    head, dense = theirs.classification_head, ours.task_head("label").dense
    assert dense is not None
    with torch.no_grad():
        for own, other in ((dense, head.dense), (ours.task_head("label").output, head.out_proj)):
            own.weight.copy_(other.weight)
            own.bias.copy_(other.bias)
        file = write(tmp_path / "records.jsonl", [{"text": text, "label": "x"} for text in SOURCES])
        records = read_records(file, recipe.task)
        rows = TASKS["classification"].encode(records, start.tokenizer, recipe)
        examples = TASKS["classification"].lay_out(rows, start.tokenizer.vocabulary, recipe, None)
        found = ours.outputs(collate(examples))["label"][:, 0]
        for row, text in enumerate(SOURCES):
            ids = torch.tensor([[3, *start.tokenizer.encode(text).tolist(), 4]])
            torch.testing.assert_close(found[row], theirs(input_ids=ids).logits[0], atol=1e-5, rtol=1e-5)
    theirs.save_pretrained(tmp_path / "classifier")
    (tmp_path / "tokenizer.json").rename(tmp_path / "classifier" / "tokenizer.json")
    imported = import_checkpoint(tmp_path / "classifier")
    assert torch.equal(imported.model.outputs(collate(examples))["label"][:, 0], found)
    assert [each["prediction"] for each in verbs.predict(imported, file, quiet=True)] == [
        f"LABEL_{number}" for number in found.argmax(dim=1).tolist()
    ]


def test_what_one_row_cannot_hold_is_refused(tmp_path: Path) -> None:
    folder_of("t5", tmp_path)
    start = import_checkpoint(tmp_path)
    with pytest.raises(UsageError, match="which an encoder-decoder does not read: use task generation"):
        task_recipe(load_recipe("choice"), start)
    for pooling in ("decoder", "mean"):
        both = load_recipe("classification", {"task.both_orders": True, "task.pooling": pooling})
        with pytest.raises(UsageError, match="packs two texts into one row, which an encoder-decoder does not read"):
            task_recipe(both, start)


def test_vectors_are_those_of_the_encoder(tmp_path: Path) -> None:
    """T5 reads a text without [SOS]."""
    peer = folder_of("t5", tmp_path)
    loaded = import_checkpoint(tmp_path)
    for text, vector in zip(SOURCES, embed(loaded, SOURCES, pooling="mean"), strict=True):
        ids = torch.tensor([[*loaded.tokenizer.encode(text).tolist(), 4]])
        with torch.no_grad():
            expected = peer.encoder(ids).last_hidden_state[0].mean(dim=0)
        torch.testing.assert_close(torch.from_numpy(vector), expected, atol=1e-5, rtol=1e-5)


def test_what_a_class_does_not_have_is_refused(tmp_path: Path) -> None:
    folder_of("t5", tmp_path)
    loaded = import_checkpoint(tmp_path)
    with pytest.raises(UsageError, match=r"model.decoder_layers is 2, and the BertModel .* one stack .* --to t5"):
        check_format("bert", loaded)
    with pytest.raises(UsageError, match=r"model.norm is pre, and the BartForConditionalGeneration .* has post"):
        check_format("bart", loaded)
    with pytest.raises(UsageError, match=r"is an encoder-decoder, and unicloze.hf has no .* --to t5"):
        check_format("unicloze", loaded)
    shape = dataclasses.replace(loaded.recipe.model, adapter_size=4)
    adapted = build_model(dataclasses.replace(loaded.recipe, model=shape), loaded.model.vocab_size).for_use()
    with pytest.raises(UsageError, match=r"finetuning.adapter_size is 4, and the T5\w+ .* no adapters"):
        check_format("t5", dataclasses.replace(loaded, model=adapted))
    three = loaded.recipe.changed("objective", target_start=["eos", "sos", "mask"])
    with pytest.raises(UsageError, match=r"objective.target_start is .* the T5\w+ .* at most two tokens"):
        check_format("t5", dataclasses.replace(loaded, recipe=three))


def test_a_configuration_with_another_layout_is_refused(tmp_path: Path) -> None:
    folder_of("bart", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "decoder_attention_heads": 2}))
    with pytest.raises(UniclozeError, match=r"decoder_attention_heads is 2: only 4 is supported with the other keys"):
        import_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**config, "forced_bos_token_id": 9}))
    with pytest.raises(
        UniclozeError, match=r"config.json: forced_bos_token_id is 9: only padding, \[SOS\], .* open a target"
    ):
        import_checkpoint(tmp_path)
