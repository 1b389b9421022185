"""A small pre-trained model, records and a recipe for the tests of question answering."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from corpora import write_corpus
from unicloze import verbs
from unicloze.finetuning.initial import task_recipe
from unicloze.recipes import load_recipe
from unicloze.settings import Recipe
from unicloze.training.loading import LoadedModel, load_model

BY_HEART = {
    "finetuning.epochs": 40,
    "finetuning.evaluations": 0.1,
    "training.batch_size": 8,
    "training.learning_rate": 6e-3,
    "training.precision": "fp32",
    "task.no_answer": "span",
}
PEOPLE = ["Zo\u00eb", "O'Brien", "Li", "\u00c5sa", "Bo", "Ann-Kr", "Mei", "Udo"]


def small_model(folder: Path, recipe: str = "quickstart", **overrides: Any) -> LoadedModel:
    """A two-layer model trained for two steps, with a vocabulary of 300."""
    settings = {"data.corpus": [str(write_corpus(folder))], "tokenizer.vocab_size": 300, "data.window": 64, **overrides}
    verbs.pretrain(recipe, folder / "run", toy=True, quiet=True, overrides=settings)
    return load_model(folder / "run")


def recipe_for(start: LoadedModel, name: str, **overrides: Any) -> Recipe:
    """A task's recipe that memorises a few records; `__` stands for a dot."""
    settings = {**BY_HEART, **{key.replace("__", "."): value for key, value in overrides.items()}}
    if not name.startswith("squad"):
        del settings["task.no_answer"]
    return task_recipe(load_recipe(name, settings), start, list(settings))


def questions(count: int = 16, *, answerable: int | None = None) -> list[dict[str, Any]]:
    """Questions about where somebody is; those after the first `answerable` ask for somebody the passage does not mention."""
    found = []
    for number in range(count):
        here, there = PEOPLE[number % 8], PEOPLE[(number // 2 + 3) % 8]
        context = f"{here} sees a {'red' if number % 3 else 'big'} door. {there}, too!"
        has = answerable is None or number < answerable
        answers = [{"text": here, "answer_start": 0}] if has else []
        question = f"who sees door {number % 3}?" if has else f"who opens tree {number % 3}?"
        found.append({"id": f"q{number}", "context": context, "question": question, "answers": answers})
    return found
