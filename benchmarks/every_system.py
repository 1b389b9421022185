"""Every system of the papers in small: its own held-out measure before and after training, beside counting or chance.

    python benchmarks/every_system.py --corpus FILE... --out FOLDER [--systems RECIPE...] [--flops 2e12] [--lines FILE]
        [--page FILE]
    python benchmarks/every_system.py                                            # only the table, of what is measured

A system keeps the kind of its network, its objective and its stages, and takes the width, depth, tokenizer and optimiser of
`quickstart` (LSTMs keep their own optimiser). Masked systems predict from the left for the first third of the steps, as
`quickstart` does. `--flops` is the budget of a Transformer; LSTMs get a part of it, since they do fewer operations in a
second. Perplexities are over ordinary tokens that a row does not show elsewhere; counts are the run's own, of the text it
trains on, and on the same predictions. A target without tokens has the entropy of its labels as chance. FILE gets a JSON
line for each system, and PAGE the table; the same command continues after a stop. Dotted settings apply to all systems.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from frame import options, parsed_known, show
from json_lines import once, read_lines
from short_runs import CAUSAL
from unicloze.comparison.contestants import contestants, contestants_at_budget, network
from unicloze.example import collate, predicts_tokens
from unicloze.files import CHECKPOINTS
from unicloze.mixtures import phases
from unicloze.model.build import Model, ReplacedTokenModel
from unicloze.pretraining.budget import Budget
from unicloze.pretraining.data import build_sampler, phrases_for
from unicloze.pretraining.run import pretrain_run
from unicloze.recipes import parse_options
from unicloze.report.history import History
from unicloze.settings import Recipe
from unicloze.text.prepare import Prepared, open_or_prepare
from unicloze.training.batches import MicroBatch, heldout_examples
from unicloze.training.checkpoint import load_newest
from unicloze.training.ledger import Figure, figures_of
from unicloze.training.loading import fit_weights, ready_model, spell_tokens
from unicloze.training.loop import Compute, evaluate
from unicloze.training.verdict import COUNTED, Counted

RESULTS = Path(__file__).parent / "results" / "every_system.jsonl"
LITTLE_DROPOUT = {
    "model.dropout": 0.1, "model.input_dropout": 0.1, "model.hidden_dropout": 0.1, "training.learning_rate": 5e-3,
}  # fmt: skip
"""What the papers' LSTMs need against overfitting keeps small ones from learning in minutes."""


class System(NamedTuple):
    """A recipe, and how it is trained here."""

    recipe: str
    causal_first: bool = False
    share: float = 1.0
    settings: Mapping[str, Any] = {}
    evaluations: int = 6
    window: int = 64


SYSTEMS = {
    "UniLMv2": System("unilmv2-base", True),
    "UniLM v1": System("unilm-v1-base", True, window=16),
    "BERT with next sentences": System("bert-base", True, window=16),
    "RoBERTa": System("roberta-base", True, window=16),
    "ALBERT": System("albert-base", True, window=128),
    "ERNIE in three stages": System("ernie-base", True, window=16),
    "SpanBERT with boundaries": System("spanbert-base", True, window=16),
    "ELECTRA": System("electra-base", window=16),
    "MPNet": System("mpnet-base", True),
    "XLNet with memory": System("xlnet-base", True, settings={"data.directions": "forward"}),
    "GPT": System("gpt"),
    "GPT-2": System("gpt-2"),
    "GPT-3 with local layers and ramp": System(
        "gpt-3-small",
        settings={
            "objective.local_width": 16,
            "training.phases": [
                {"share": 1, "training.batch_size": 4}, {"share": 1, "training.batch_size": 8}, {"share": 6},
            ],
        },
    ),
    "BART": System("bart-base", window=16),
    "MASS": System("mass-base", window=16),
    "T5": System("t5-base"),
    "T5 1.1": System("t5-v1.1-base"),
    "prefix LM": System("prefix-lm-base"),
    "UL2": System("ul2-base", settings={"training.evaluate_windows": 64}),
    "MDLM": System("mdlm-base", True, window=16),
    "BD3-LM": System("bd3lm-base", True, window=16),
    "AWD-LSTM with NT-ASGD": System(
        "awd-lstm", share=0.8, evaluations=24,
        settings={
            "model.dropout": 0.1, "model.input_dropout": 0.1, "model.hidden_dropout": 0.1, "model.weight_dropout": 0.1,
            "model.embedding_dropout": 0.0,
            "training.average_patience": 2, "training.schedule": "constant",
        },
    ),
    "ELMo": System(
        "elmo", share=0.5, settings={**LITTLE_DROPOUT, "model.character_filters": [4, 4, 8, 16, 16, 16, 16]}
    ),
    "CVT's encoder": System("cvt", share=0.25, settings=LITTLE_DROPOUT),
    "CoVe": System("cove", share=0.4, settings=LITTLE_DROPOUT),
}  # fmt: skip
"""With `causal_first` a third of the steps, as in `quickstart`, predicts from the left: without it, masked models this small
stay at the frequencies of words for thousands of steps. With learned positions they have windows of 16: in longer ones they
stay there in any case."""
TOKENS = 1024
"""Tokens of a step."""
VARIANTS = (
    "auto", "bd3lm-base-", "electra-small", "mdlm-base-", "prefix-denoising", "prefix-masked-span", "prefix-span-corruption",
    "quickstart", "transformer-", "ulmfit", "unilm-v1-large", "unilmv2-ablation",
)  # fmt: skip
"""Beginnings of the recipes that are another size, part or form of a system above, or are this project's own."""
MEASURED = {"nsp": "next sentence", "sop": "sentence order", "rtd": "replaced tokens"}
"""Targets without tokens, in words; their losses are shown in nats."""


def recipe_of(system: System, given: argparse.Namespace) -> Recipe:
    """The system's recipe in small."""
    common = {
        "data.corpus": given.corpus, "data.heldout_share": given.heldout, "data.window": system.window,
        "training.batch_size": TOKENS // system.window,
        "training.evaluate_windows": 256, "training.precision": "fp32", "training.device": "cpu", "training.threads": 1,
        "tokenizer.extra_tokens": 100, "training.start": "random",
    }  # fmt: skip
    overrides = {**common, **system.settings, **given.settings}
    (recipe,) = contestants([system.recipe], like="quickstart", overrides=overrides)
    if not system.causal_first:
        return recipe
    own = [{**phase, "share": 2 * phase["share"]} for phase in recipe.training.phases or [{"share": 1}]]
    first = {"share": sum(phase["share"] for phase in own) / 2, "objective": CAUSAL}
    (recipe,) = contestants(
        [system.recipe], like="quickstart", overrides={**overrides, "training.phases": [first, *own]}
    )
    return recipe


def heldout_of(recipe: Recipe, prepared: Prepared, folder: Path) -> Mapping[str, MicroBatch]:
    """The held-out rows of the last stage, as the run itself has them."""
    last = phases(recipe)[-1].recipe
    phrases = phrases_for(recipe, prepared, folder, progress=False)
    sampler = build_sampler(last, prepared, heldout=True, phrases=phrases)
    return heldout_examples(sampler, last.objective, recipe.training.evaluate_windows, lanes=recipe.training.batch_size)


def of_targets(figures: Sequence[Figure]) -> dict[str, float]:
    """Mean nats of each target over the parts of a mixture: of counted tokens where it predicts tokens."""
    sums: dict[str, Figure] = {}
    for figure in figures:
        whole = dataclasses.replace(figure, part="", phase=0)
        sums[figure.target] = sums[figure.target] + whole if figure.target in sums else whole
    means = {name: each.token_mean if predicts_tokens(name) else each.mean for name, each in sums.items()}
    return {name: round(mean, 4) for name, mean in means.items() if mean is not None}


def counted(figures: Sequence[Figure], counts: Counted, target: str) -> dict[str, float]:
    """Mean nats of each kind of counts on the predictions of a target, over the parts of a mixture."""
    parts = [
        (each.counted_weight, counts[each.name]) for each in figures if each.target == target and each.name in counts
    ]
    weight = sum(share for share, _ in parts)
    return {
        kind: round(sum(share * math.log(found[kind]) for share, found in parts) / weight, 4)
        for kind in COUNTED
        if parts
    }


def measured(model: Model, recipe: Recipe, blocks: Mapping[str, MicroBatch]) -> dict[str, float]:
    """The measures of a network."""
    compute, rows = Compute(device=torch.device("cpu"), precision="fp32"), recipe.training.batch_size
    found = [evaluate(model, block.examples, compute, rows, block.windows) for block in blocks.values()]
    return of_targets([figure for each in found for figure in each.values()])


def chance(model: Model, blocks: Mapping[str, MicroBatch], target: str) -> float:
    """Entropy of a target's labels, in nats: the loss of who knows only how frequent each is."""
    labels = []
    for block in blocks.values():
        if target not in block.examples.targets:
            continue
        batch = collate(block.examples)
        if target == "rtd":
            assert isinstance(model, ReplacedTokenModel)
            with torch.no_grad():
                _, batch = model.generate(batch, None)
        asked = batch.targets[target]
        labels.append(asked.labels[asked.weights > 0].numpy())
    shares = np.bincount(np.concatenate(labels).astype(int)) / sum(map(len, labels))
    return float(-sum(share * math.log(share) for share in shares if share > 0))


def ran(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """Train a system, or go on with it, and measure it."""
    system, began = SYSTEMS[name], time.process_time()
    recipe = recipe_of(system, given)
    text = given.out / ("data" if recipe.data.spans_field is None else "data-with-spans")
    prepared = open_or_prepare(recipe.data, recipe.tokenizer, text, progress=False)
    recipe = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, prepared=str(prepared.folder)))
    run, budget = given.out / system.recipe, Budget("flops", given.flops * system.share)
    recipe = contestants_at_budget(recipe, prepared, budget, given.out).recipe
    every = -(-recipe.training.steps // system.evaluations)
    recipe = dataclasses.replace(recipe, training=dataclasses.replace(recipe.training, evaluate_every=every))
    blocks = heldout_of(recipe, prepared, given.out)
    model = ready_model(recipe, prepared.tokenizer.vocabulary.size, torch.device("cpu"))
    spell_tokens(model, prepared.tokenizer.symbols)
    before = measured(model, recipe, blocks)
    if pretrain_run(recipe, run, progress=False).stopped_by:
        raise SystemExit("stopped; the same command continues")
    history = History.read(run)
    turn = min(history.evaluations, key=lambda step: abs(step - history.step / 3))
    at_turn = of_targets(figures_of(history.evaluations[turn])) if system.causal_first else {}
    figures = figures_of(history.evaluations[history.step])
    after = of_targets(figures)
    checkpoint = load_newest(run / CHECKPOINTS)
    assert checkpoint is not None
    fit_weights(model, checkpoint)
    return {
        "network": network(recipe),
        "window": system.window,
        "parameters": history.start["parameters"],
        "steps": history.step,
        "text_tokens": round(history.curve("text_tokens")[-1][1]),
        "targets": {
            target: {
                "before": before[target],
                **({"after a third": at_turn[target]} if at_turn else {}),
                "after": nats,
                "floor": counted(figures, history.counts, target)
                if predicts_tokens(target)
                else {"chance": round(chance(model, blocks, target), 4)},
            }
            for target, nats in after.items()
        },
        "verdict": history.verdict,
        "seconds": round(history.seconds),
        "cpu seconds": round(time.process_time() - began),
    }


def beaten(found: Mapping[str, Any]) -> list[str]:
    """The floors that a measure is below, the strongest last."""
    return [kind for kind, nats in found["floor"].items() if found["after"] < nats]


def table(lines: Sequence[Mapping[str, Any]]) -> str:
    """A row for each system and target, as Markdown, and what does not beat its strongest floor."""
    heads = [
        "system", "network", "window", "predicts", "before", "after the causal third", "after", "counting words",
        "Kneser-Ney trigram", "chance", "steps", "text tokens", "seconds",
    ]  # fmt: skip
    rows = ["| " + " | ".join(heads) + " |", "|---|---|---:|---|" + "---:|" * (len(heads) - 4)]
    nothing: list[str] = []
    behind: list[str] = []
    for name in SYSTEMS:
        for line in (line for line in lines if line["system"] == name):
            about = [name, line["network"], str(line["window"])]
            costs = [f"{line['steps']:,}", f"{line['text_tokens'] / 1e6:.2f} M", f"{line['cpu seconds']}"]
            for target, found in line["targets"].items():
                known = {**found, **found["floor"]}
                shown = [
                    _shown(target, known.get(key))
                    for key in ("before", "after a third", "after", "unigram", "trigram", "chance")
                ]
                over = beaten(found)
                if not over:
                    shown[2] += " (!)"
                    why = (
                        line["verdict"]
                        if predicts_tokens(target)
                        else "no better than knowing how frequent each answer is"
                    )
                    nothing.append(f"- **{name}, {MEASURED.get(target, target)}, beats nothing**: {why}")
                elif "trigram" in found["floor"] and "trigram" not in over and name not in behind:
                    behind.append(name)
                rows.append("| " + " | ".join([*about, MEASURED.get(target, target), *shown, *costs]) + " |")
                about, costs = [""] * 3, [""] * 3
    said = [f"Ahead of counting words but not of the trigram: {', '.join(behind)}."] if behind else []
    return "\n".join([*rows, "", *said, *([""] * bool(nothing)), *nothing])


def _shown(target: str, nats: float | None) -> str:
    if nats is None:
        return ""
    return f"{math.exp(min(nats, 99)):,.0f}" if predicts_tokens(target) else f"{nats:.3f} nats"


def missing(lines: Sequence[Mapping[str, Any]]) -> str:
    """A sentence that names the systems not yet measured; empty if there are none."""
    absent = [name for name in SYSTEMS if name not in {line["system"] for line in lines}]
    return f"\nNot yet measured: {', '.join(absent)}.\n" if absent else ""


def as_text(lines: Sequence[Mapping[str, Any]]) -> str:
    """The table, and what it lacks."""
    return f"{table(lines)}\n{missing(lines)}"


def tables() -> str:
    """What is measured, as text of a page."""
    return as_text(read_lines(RESULTS))


def main() -> None:
    """Run what is missing, print the table and write it into the page."""
    parser = options(__doc__)
    parser.add_argument("--corpus", nargs="+")
    parser.add_argument("--out", type=Path)
    recipes = [system.recipe for system in SYSTEMS.values()]
    parser.add_argument("--systems", nargs="+", choices=recipes, default=recipes, help="their recipes")
    parser.add_argument("--flops", type=float, default=2e12)
    parser.add_argument("--heldout", type=float, default=0.02, help="share of the documents to measure on")
    parser.add_argument("--lines", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, help="write the table into this page")
    given, extra = parsed_known(parser, "--flops 2e9 --heldout 0.3")
    given.settings = parse_options(extra)
    if given.corpus and given.out is None:
        parser.error("--corpus needs --out")
    for name in (name for name, system in SYSTEMS.items() if given.corpus and system.recipe in given.systems):
        once(given.lines, {"system": name}, functools.partial(ran, name, given))
    show(as_text(read_lines(given.lines)), given.page, Path(__file__))


if __name__ == "__main__":
    main()
