"""Trains, measures and fine-tunes one run of a comparison; its `scores.json` records what is done."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import operator
import shutil
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch

from unicloze.arrays import Int32s
from unicloze.comparison.probes import PREFIX, Probe, finetuning_flops, recipe_for
from unicloze.comparison.table import PROBES, probe_key, words_key
from unicloze.decoding.inputs import ReadWindow, objective_of, part_with, rows_to_predict
from unicloze.decoding.likelihood import rows_of, with_memories
from unicloze.errors import UniclozeError, options_begin_with, signal_name
from unicloze.example import Examples, collate, select_rows
from unicloze.files import CHECKPOINTS, RECIPE, digest, write_file
from unicloze.finetuning.run import finetune_run
from unicloze.model.model import perplexity
from unicloze.objectives import Ability
from unicloze.objectives.causal import CausalSettings, chain
from unicloze.objectives.unilmv2 import UniLMv2Settings, cloze, draw_steps, stepwise
from unicloze.pretraining.count_baselines import perplexities_of, read_known
from unicloze.pretraining.data import tokens_per_byte
from unicloze.pretraining.run import pretrain_run
from unicloze.recipes import load_recipe
from unicloze.report.history import History
from unicloze.settings import Recipe
from unicloze.tasks.task import RecordsNote
from unicloze.text.counts import ABSENT, Counts
from unicloze.text.prepare import Prepared
from unicloze.text.sampler import WindowSampler
from unicloze.text.vocabulary import Vocabulary
from unicloze.text.windows import Windows
from unicloze.training.ledger import NUMBERS, Figure
from unicloze.training.loading import LoadedModel, load_model
from unicloze.training.loop import Compute, evaluate
from unicloze.training.pace import Clock
from unicloze.training.precision import choose_device
from unicloze.training.verdict import Side

MEASURES: Mapping[str, Ability] = {"ae": "cloze", "par": "stepwise", "causal": "causal"}
"""The ability of an objective that each measure needs."""


# All models see the same windows and the same masked positions, drawn by Algorithm 1: `ae` predicts them all at once
# from the rest, `par` predicts them block by block, `causal` predicts every token from those to its left. A score
# that an objective does not define is None. A model with a memory also reads the text before each window, as far as
# its memory goes back and no further than the window's document.


def masked_steps(windows: Windows, vocabulary: Vocabulary) -> Int32s:
    """Step of each masked position of held-out windows, -1 elsewhere. *Shape:* (rows, window)"""
    plain = UniLMv2Settings()
    return draw_steps(windows, plain, np.full(len(windows), plain.mask_rate), vocabulary)


def held_out(
    loaded: LoadedModel,
    windows: Windows,
    compute: Compute,
    rows: int,
    before: Callable[[int], Sequence[Sequence[Int32s]]] | None = None,
) -> dict[str, Figure | None]:
    """The loss by measure; None if it is undefined."""
    vocabulary = loaded.tokenizer.vocabulary
    steps = masked_steps(windows, vocabulary)
    result: dict[str, Figure | None] = {}
    for measure, ability in MEASURES.items():
        if part_with(objective_of(loaded.recipe), ability) is None:
            result[measure] = None
            continue
        asked = None if ability == "causal" else steps
        examples = rows_to_predict(loaded.recipe, ability, windows, vocabulary, asked)
        if before is None or not loaded.model.settings.memory:
            (figure,) = evaluate(loaded.model, examples, compute, rows).values()
        else:
            count = math.ceil(loaded.model.settings.memory / (windows.token_ids.shape[1] - 2))
            figure = _with_memory(loaded, examples, windows, before(count), compute, rows)
        result[measure] = figure  # these rows predict ordinary tokens that they show nowhere
    return result


def counted(
    counts: Counts, windows: Windows, before: Sequence[Sequence[Int32s]] | None = None
) -> dict[str, dict[str, float]]:
    """Perplexities of counts on the same predictions, by measure and by kind of count.

    With `before`, the texts of the windows before each, counts see the end of these too, as models with a memory do.
    """
    ends = None
    if before is not None:
        ends = np.full((len(windows), 2), ABSENT)
        for row, texts in enumerate(before):
            ends[row] = np.concatenate([ends[row], *texts])[-2:]
    vocabulary, settings = counts.vocabulary, UniLMv2Settings()
    steps = masked_steps(windows, vocabulary)
    rows = {
        "ae": cloze(windows, steps, vocabulary, settings),
        "par": stepwise(windows, steps, vocabulary, settings),
        "causal": chain(windows, vocabulary, CausalSettings(visibility="left_to_right")),
    }
    found = {
        measure: perplexities_of(counts, examples, next(iter(examples.targets)), windows, before=ends)
        for measure, examples in rows.items()
    }
    return {measure: perplexities for measure, perplexities in found.items() if perplexities}


def _with_memory(
    loaded: LoadedModel,
    examples: Examples,
    windows: Windows,
    before: Sequence[Sequence[Int32s]],
    compute: Compute,
    rows: int,
) -> Figure:
    """The summed losses of the only target, each row with the memory of its past."""
    loaded = dataclasses.replace(loaded, precision=compute.precision)
    figure = Figure(target=next(iter(examples.targets)))
    rows_of_windows = zip(before, windows.token_ids, windows.lengths, strict=True)
    texts = [[*past, tokens[1 : length - 1]] for past, tokens, length in rows_of_windows]
    pieces = [ReadWindow(text=row, first=0, tokens=piece) for row, each in enumerate(texts) for piece in each]
    own = set((np.cumsum([len(each) for each in texts]) - 1).tolist())
    model = loaded.model.eval()
    for numbers, memory in with_memories(loaded, pieces, rows):
        places = np.array([place for place, number in enumerate(numbers) if number in own], dtype=np.int64)
        if not len(places):
            continue
        chosen = np.array([pieces[numbers[place]].text for place in places])
        batch = collate(select_rows(examples, chosen), device=compute.device)
        if memory is not None:
            batch = dataclasses.replace(batch, memory=rows_of(memory, places))
        with torch.no_grad(), compute.autocast():
            (loss,) = model(batch).values()
        sums = float(loss.total), loss.weight, *map(float, loss.counted), loss.counted_weight
        figure += Figure.of(figure.target, sums)
    return figure


SCHEMA = 2
SCORES = "scores.json"


Evaluator = Callable[[Path], Mapping[str, float | None]]
"""Computes additional scores of a run from its directory."""


def run_once(
    recipe: Recipe,
    seed: int,
    run: Path,
    prepared: Prepared,
    sampler: WindowSampler,
    windows: Windows,
    evaluators: Mapping[str, Evaluator],
    progress: bool,
    clock: Clock | None = None,
) -> dict[str, Any]:
    """Train and measure one run, unless `scores.json` has it already; returns the content of `scores.json`."""
    scores_file = run / SCORES
    known = read_known(scores_file)
    wanted = {
        "schema": SCHEMA,
        "steps": recipe.training.steps,
        "windows": len(windows),
        "recipe": digest(recipe.changed("data", prepared=None).to_dict()),
        "text": prepared.fingerprint,
        **({"memory": recipe.model.memory} if recipe.model.memory else {}),
    }
    if any(known.get(key) != value for key, value in wanted.items()):
        training = recipe.training
        result = pretrain_run(recipe.changed("training", seed=seed), run, progress=progress, clock=clock)
        if result.stopped_by:
            raise Interrupted(result.stopped_by, run)
        compute = Compute(device=choose_device(training), precision=training.precision)
        loaded = load_model(run)
        rows = training.micro_batch_size or training.batch_size
        loaded.model.to(compute.device)
        figures = held_out(loaded, windows, compute, rows, lambda count: sampler.texts_before(windows, count))
        nats = {measure: None if figure is None else figure.mean for measure, figure in figures.items()}
        known = {**wanted, "nats": nats, "scores": {}, PROBES: {}}
        known["figures"] = {measure: figure.to_dict() for measure, figure in figures.items() if figure is not None}
        causal, density = nats["causal"], tokens_per_byte(prepared)
        known["bits_per_byte"] = None if causal is None or density is None else causal / math.log(2) * density
        write_file(scores_file, json.dumps(known, indent=1))
    for name, evaluator in evaluators.items():
        if name not in known["scores"]:
            known["scores"][name] = dict(evaluator(run))
            write_file(scores_file, json.dumps(known, indent=1))
    known.setdefault(PROBES, {})
    return known


def fine_tune(probe: Probe, run: Path, known: dict[str, Any], progress: bool) -> None:
    """Fine-tune a trained run on a probe, resuming if interrupted, and add the result to its scores."""
    start, out, (train, dev) = load_model(run), run / PROBES / probe.name, probe.files
    with warnings.catch_warnings(), options_begin_with(PREFIX):
        warnings.simplefilter("ignore", RecordsNote)  # shown when the probe was fitted
        must_fit = probe.recipe.finetuning.fit_head is True and "finetuning.fit_head" in probe.overridden
        result = finetune_run(recipe_for(probe, start), start, train, dev, out, progress=progress, must_fit=must_fit)
        if result.stopped_by:
            raise Interrupted(result.stopped_by, out)
        flops = finetuning_flops(load_recipe(out / RECIPE), train, start.tokenizer, result.step)
    score = result.scores[probe.recipe.task.metrics[0]]
    known[PROBES][probe.name] = {
        "score": score.values[result.chosen_by],
        "unit": score.units.get(result.chosen_by, "%"),
        "flops": flops,
        "seconds": History.read(out).seconds,
        "best_step": result.best_step,
        "results": {name: dict(found.values) for name, found in result.scores.items()},
    }
    write_file(run / SCORES, json.dumps(known, indent=1))
    shutil.rmtree(out / CHECKPOINTS)  # the best one is kept for `predict`


class Interrupted(UniclozeError):
    """A signal stopped the comparison; the same command resumes it.

    Args:
        number: Number of the signal.
        run: Directory of the run it stopped.
    """

    def __init__(self, number: int, run: Path) -> None:
        super().__init__(f"stopped by {signal_name(number)} in {run}; run the same command again to resume.")
        self.exit_code = 128 + number


def scores_of(
    known: Mapping[str, Any], history: History, evaluators: Iterable[str], probes: Iterable[Probe]
) -> dict[str, float | None]:
    """The scores of a run by measure, from the content of `scores.json` and the run's ledger."""
    perplexities = {name: None if value is None else perplexity(value, 1) for name, value in known["nats"].items()}
    more = {key: value for name in evaluators for key, value in known["scores"][name].items()}
    probed = {probe_key(probe.name): known[PROBES].get(probe.name, {}).get("score") for probe in probes}
    words = history.content_words
    guessed = {words_key(side): 100 * words["top_5"] if words.get("sees") == side else None for side in get_args(Side)}
    return {**perplexities, "bits_per_byte": known["bits_per_byte"], **guessed, **more, **probed}


def figures_over_seeds(runs: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
    """The loss of each measure, the mean over the seeds with the error of a single run, from each `scores.json`."""
    noted = [known.get("figures", {}) for known in runs]
    every = [{name: figure for name, values in each.items() if (figure := Figure.read(values))} for each in noted]
    found = {}
    for name in every[0]:
        each = [figures[name] for figures in every if name in figures]
        total = functools.reduce(operator.add, each)
        found[name] = dataclasses.replace(total, **{key: getattr(total, key) / len(each) for key in NUMBERS})
    return found
