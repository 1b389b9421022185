"""Starts a task from random weights: the network of a pre-training recipe, and a tokenizer trained on the records."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from unicloze.errors import UsageError
from unicloze.progress import say
from unicloze.records.record import Record
from unicloze.settings import Recipe
from unicloze.tasks import TASKS
from unicloze.tasks.roles import resolved
from unicloze.tasks.several import records_of
from unicloze.tasks.targets import has_target, targets_of, texts_of
from unicloze.text.tokenizers import Tokenizer
from unicloze.training.initial import start_from_vectors
from unicloze.training.loading import LoadedModel, build_model, spell_tokens


def untrained(network: Recipe, task: Recipe, train: Path, *, progress: bool = True) -> LoadedModel:
    """A model with random weights, drawn by the network's seed, as Vaswani et al. 2017 train translation."""
    if network.model.generator_size:
        raise UsageError(f"recipe {network.name} trains two networks: give a recipe of one, such as transformer-base")
    if network.tokenizer.path is not None:
        tokenizer = Tokenizer.load(network.tokenizer.path)
    else:
        records = records_of(train, task.task)
        settings = resolved(task.task, records)
        texts = [
            text for record in records for text in _texts(record, Recipe(task=settings, generation=task.generation))
        ]
        tokenizer = Tokenizer.train(texts, network.tokenizer)
    model = build_model(network, len(tokenizer)).for_use()
    spell_tokens(model, tokenizer.symbols)
    if task.training.word_vectors is not None:
        said = start_from_vectors(model, tokenizer, Path(task.training.word_vectors))
        if progress:
            say(said)
    return LoadedModel(model.eval(), tokenizer, network, Path(f"{network.name} (untrained)"), 0)


def _texts(record: Record, recipe: Recipe) -> Iterator[str]:
    """The texts of a record, with those of its target."""
    settings = recipe.task
    writes = settings.kind == "generation"
    for role in recipe.generation.source if writes else TASKS[settings.kind].texts:
        if record.get(settings, role) is not None:
            yield from texts_of(record, settings, role)
    if writes and has_target(record, settings):
        yield from targets_of(record, settings)
