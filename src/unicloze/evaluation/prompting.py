"""Zero- and few-shot prompting: answers records with a model that was not trained on them.

The answer to a record is the likeliest one in the blank of its prompt (Brown et al. 2020, Section 2.4); a template without a
blank is continued by the model, as in GPT-2's "TL;DR:" (Radford et al. 2019, Section 3.6).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from unicloze import keyed
from unicloze.errors import UniclozeError, UsageError
from unicloze.evaluation.answer_choice import Choice, PromptResult, choose, measure
from unicloze.evaluation.metrics.registry import metric
from unicloze.evaluation.prompt_files import IN_FILE, LABEL, Prompt, read_prompt
from unicloze.records import read_records
from unicloze.records.record import Record
from unicloze.settings import DecodingSettings
from unicloze.training.loading import LoadedModel


def prompted(
    model: LoadedModel,
    prompt: str | Path | Prompt,
    records: str | Path,
    *,
    examples: str | Path | None = None,
    shots: int = 0,
    seed: int = 0,
    limit: int | None = None,
    batch_size: int = 64,
    progress: bool = True,
) -> PromptResult:
    """Answer a file of records with a prompt."""
    if limit is not None and limit < 1:
        raise UsageError(f"limit is {limit}: give 1 or more")
    asked = prompt if isinstance(prompt, Prompt) else read_prompt(Path(prompt))
    chosen = read_records(Path(records), asked.records, cure=IN_FILE)[:limit]
    _check_metrics(asked)
    drawn = draw_examples(asked, chosen, None if examples is None else Path(examples), shots, seed)
    if not asked.has_blank:
        references = [_references(asked, record) for record in chosen]
        return _generated(model, asked, chosen, drawn, references, shots, batch_size, progress)
    choices = [_choice(asked, record, few) for record, few in zip(chosen, drawn, strict=True)]
    return choose(
        model, choices, task=asked.name, metrics=asked.metrics, normalise=asked.normalise, shots=shots,
        batch_size=batch_size, progress=progress,
    )  # fmt: skip


def _check_metrics(prompt: Prompt) -> None:
    """Reject metrics that cannot score what the prompt produces, before the model runs."""
    compares = "labels" if prompt.has_blank else "texts"
    for name in prompt.metrics:
        chosen = metric(name)
        if chosen.compares != compares:
            given = "chooses answers" if prompt.has_blank else "writes texts"
            raise UsageError(
                f"the prompt {prompt.name} {given}, but {name} compares {chosen.compares}: name metrics of {compares}"
            )
        if not prompt.has_blank:
            chosen(["a b c"], [["a b c"]])
        elif prompt.labels:
            chosen([*prompt.labels], [*prompt.labels])


def draw_examples(
    prompt: Prompt, records: Sequence[Record], path: Path | None, shots: int, seed: int
) -> list[list[Record]]:
    """The examples of each record: distinct, drawn uniformly, and never with the same text as the record."""
    if not 0 <= seed < 2**63:
        raise UsageError(f"seed is {seed}: give a number from 0 to 2^63 - 1")
    if shots < 0:
        raise UsageError(f"shots is {shots}: give 0 or more")
    if (shots > 0) != (path is not None):
        raise UsageError(
            "examples and shots go together: give a file to draw from and the number of examples, or neither"
        )
    if path is None:
        if seed:
            raise UsageError(f"seed is {seed}, but no examples are drawn: give examples and shots, or leave it out")
        return [[] for _ in records]
    known = read_records(path, prompt.records, cure=IN_FILE)
    said = [prompt.sides(example) for example in known]
    times = Counter(said)
    drawn = []
    for number, asked in enumerate(map(prompt.sides, records)):
        if len(known) - times[asked] < shots:
            other = " other than the one to be answered" if times[asked] else ""
            raise UsageError(
                f"shots is {shots}, but {path} has {len(known) - times[asked]} records{other}: give as many"
            )
        places = np.arange(shots + times[asked])
        order = keyed.permutation(places, len(known), keyed.key(seed, keyed.Purpose.SHOTS, number)[0])
        # The record itself, if drawn, would give away its answer.
        drawn.append([known[place] for place in order.tolist() if said[place] != asked][:shots])
    return drawn


def _choice(prompt: Prompt, record: Record, examples: Sequence[Record]) -> Choice:
    before, after = prompt.text(record, examples)
    kept, answers = before.rstrip(), prompt.answers(record)
    return Choice(
        id=record.id,
        before=kept,
        after=after,
        names=list(answers),
        answers=[before[len(kept) :] + answer for answer in answers.values()],
        gold=prompt.gold(record),
        place=record.place,
    )


def _references(prompt: Prompt, record: Record) -> list[str] | None:
    """The reference texts of a record; None if it has no label."""
    gold = record.get(prompt.records, LABEL)
    if gold is None:
        return None
    several = record.texts(prompt.records, LABEL) if isinstance(gold, list) else [record.text(prompt.records, LABEL)]
    if not several:
        raise UniclozeError(f"{record.place}: '{LABEL}' has no text to compare with: give one, or leave it out")
    return several


def _generated(
    model: LoadedModel,
    prompt: Prompt,
    records: Sequence[Record],
    examples: Sequence[Sequence[Record]],
    references: Sequence[list[str] | None],
    shots: int,
    batch_size: int,
    progress: bool,
) -> PromptResult:
    """Generate a continuation of each prompt, up to the separator."""
    from unicloze.decoding.generate import generate

    sources = [prompt.text(record, few)[0].rstrip() for record, few in zip(records, examples, strict=True)]
    usual = DecodingSettings()
    longest, rows = min(usual.max_length, model.model.max_positions // 2), min(usual.batch_size, batch_size)
    given = {"precision": model.precision, "max_length": longest, "batch_size": rows, **prompt.generate}
    settings = DecodingSettings(**given)
    written = generate(model, sources, settings, keep="end", progress=progress)  # the end is the record itself
    predictions = []
    for record, one, several in zip(records, written, references, strict=True):
        text = one.text.partition(prompt.separator)[0] if prompt.separator else one.text
        predictions.append({"id": record.id, "prediction": text.strip(), "reference": several})
    return PromptResult(
        task=prompt.name, model=str(model.path), by="generation", shots=shots, records=len(records),
        scores=measure(predictions, prompt.metrics), predictions=predictions,
    )  # fmt: skip
