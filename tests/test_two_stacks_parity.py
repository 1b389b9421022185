"""Encoder-decoders against Transformers' T5 and BART at random initialisation, in float32."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import two_stack_toys as toys
from toys import random_windows, vocabulary
from unicloze.decoding.generate import generate_parts
from unicloze.example import Batch, Examples, collate
from unicloze.model.dropout import DropoutKey
from unicloze.objectives.seq2seq import PrefixSettings, generates, prefix
from unicloze.packing import pack
from unicloze.settings import DecodingSettings

pytest.importorskip("transformers")

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
