"""Chooses the settings of a pre-training run from its text, its budget, this machine and the model it starts from."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from unicloze.decoding.inputs import objective_of
from unicloze.errors import UsageError
from unicloze.interop.read import is_foreign
from unicloze.interop.recipe import UNKNOWN_CORPUS
from unicloze.mixtures import parts
from unicloze.model.backbone import embedding_width
from unicloze.model.build import shapes_only
from unicloze.objectives.groups import PseudoToken
from unicloze.pretraining.budget import LONGEST_TIMING, Budget, Cost, cost_of_a_step, with_steps
from unicloze.pretraining.data import build_sampler, inherited_settings
from unicloze.pretraining.plan import rows_that_fit
from unicloze.progress import short, span
from unicloze.recipes import load_recipe
from unicloze.settings import Recipe
from unicloze.text.prepare import Prepared, open_or_prepare
from unicloze.text.sources import Survey, survey
from unicloze.training.loading import LoadedModel, shape_model
from unicloze.training.pace import DECAY, Clock
from unicloze.training.precision import choose_device

NAME = "auto"
"""Name of the recipe whose settings are chosen."""
VOCABULARY_OF_CHARACTERS = 2.6
"""Vocabulary size divided by the square root of the corpus's characters: 8,192 for 10 million, as in the quickstart."""
VOCABULARY = 2_048, 16_384
"""Smallest and largest vocabulary chosen."""
TOKENS_OF_A_WEIGHT = 5
"""Fewest training tokens per weight, embeddings not counted: as in the quickstart."""
MOST_PASSES = 16
"""Most passes over the text; Muennighoff et al. (2023) find almost no gain from more."""
PASSES_WITHOUT_DROPOUT = 4
"""Most passes over the text that need no dropout; up to here they find repeated text to be nearly as good as new."""
LITTLE_CHARACTERS = 10_000_000
"""Corpora below this get advice on continuing a trained model."""
CONTINUED_WINDOW, CONTINUED_TOKENS = 128, 2_048
"""Longest window of a run that starts from a model, and tokens of its steps: it has few steps, and small ones are more."""
FEWEST_ROWS = 4
"""Fewest rows of a step, since parts of the objective share them."""
CONTINUED_RATE = 0.5
"""Peak rate of a run that starts from a model pre-trained here, as a share of that model's own."""
GENTLE_RATE = 1e-4
"""Peak rate for other starts, such as fine-tuned models and those of other libraries: that of BERT's pre-training."""
HEADLESS_RATE, NEW_HEAD_RATE = 2e-4, 5e-3
"""Peak rates of the body and of the new head after an encoder that predicts no tokens: what its masked slots hold tells next
to nothing of the tokens (docs/log.md), so that the body must learn it, and yet its vectors should stay good."""
REACHED = (
    (257_189, 3.7), (620_960, 1.12), (650_330, 1.34), (731_244, 0.85), (855_861, 1.82), (1_650_045, 1.29),
    (2_178_503, 0.84), (2_262_325, 0.96), (2_568_122, 1.2), (3_225_886, 0.91), (3_539_527, 0.76), (3_600_169, 1.15),
    (4_262_595, 0.72), (6_125_565, 0.78), (7_051_456, 0.99), (7_689_606, 0.98), (8_033_985, 0.77), (8_958_801, 1.0),
    (9_457_197, 0.63), (14_660_166, 0.86),
)  # fmt: skip
"""Tokens that runs from scratch with this schedule read, and their PAR perplexity over that of a Kneser-Ney trigram of their
text on the same predictions: of each text and budget in `benchmarks/results` the best size, by tokens. Some of those above
3 M tokens started at random. Their trigrams stop between the segments of a window, and are 2 to 5 % weaker than today's."""
CONTINUED = (
    (66_107, 1.44), (103_709, 2.66), (129_623, 0.91), (199_252, 1.11), (207_815, 0.79), (209_392, 1.58), (215_045, 0.84),
    (222_005, 0.73), (258_937, 1.14), (375_414, 1.16), (414_748, 0.59), (498_014, 0.56), (576_014, 0.89), (617_697, 0.86),
    (623_794, 0.71), (930_342, 0.76), (965_937, 0.66), (1_201_851, 0.43), (1_365_786, 0.76), (1_418_823, 0.39),
    (1_542_223, 0.53), (2_789_955, 0.63), (2_891_203, 0.53), (3_254_097, 0.69),
)  # fmt: skip
"""The same of runs that started from a trained model."""
ENCODER_SECONDS = 3_600
"""Seconds of a core from which on an encoder was the best start on every text on record: half an hour of two."""


_SHAPE = (
    "model.num_layers", "model.hidden_size", "model.num_heads", "model.intermediate_size", "data.window",
    "training.batch_size",
)  # fmt: skip
SIZES: Sequence[Mapping[str, int]] = [
    dict(zip(_SHAPE, size, strict=True))
    for size in (
        (2, 128, 4, 512, 64, 32),
        (3, 192, 4, 768, 128, 32),
        (4, 256, 4, 1024, 128, 32),
        (6, 384, 6, 1536, 128, 64),
        (8, 512, 8, 2048, 256, 64),
        (12, 768, 12, 3072, 512, 128),
    )
]
"""The sizes to choose from, smallest first: of a model and of the rows it is trained on, as settings."""


@dataclass(frozen=True)
class Choice:
    """The chosen settings."""

    settings: dict[str, Any]  # by dotted name
    reasons: Sequence[str]  # what was chosen and why, a line each
    clock: Clock | None = None  # decides when the run ends, if its budget is a time


def choose(
    given: Mapping[str, Any],
    budget: Budget,
    folder: Path,
    *,
    start: LoadedModel | None = None,
    new_tokenizer: bool = False,
    progress: bool = True,
    began: float | None = None,
) -> Choice:
    """Choose tokenizer, size, schedule and steps; prepares the text in FOLDER/data, where the run looks for it."""
    reasons: list[str] = []
    chosen: dict[str, Any] = {}
    sizes, clock = SIZES, None
    if budget.kind == "time":
        clock = Clock(time.monotonic() if began is None else began, budget.amount, most=0)
    if start is not None:
        chosen = inherited_settings(load_recipe(NAME, given), start, given, new_tokenizer=new_tokenizer, warn=False)
        chosen |= _schedule_after(start, given)
        window = int(given.get("data.window", min(CONTINUED_WINDOW, start.recipe.data.window)))
        sizes = [{"data.window": window, "training.batch_size": max(FEWEST_ROWS, CONTINUED_TOKENS // window)}]
    chosen |= _tokenizer(load_recipe(NAME, {**chosen, **given}), given, budget, reasons)
    recipe = load_recipe(NAME, {**chosen, **given})
    prepared = open_or_prepare(recipe.data, recipe.tokenizer, folder / "data", progress=progress)
    if start is not None and isinstance(recipe.objective, PseudoToken):
        theirs = [part.settings for part in parts(objective_of(start.recipe))]
        shared = any(isinstance(one, PseudoToken) and one.pseudo_token == "mask" for one in theirs)
        if shared or prepared.tokenizer.vocabulary.pseudo is None:
            chosen["objective.pseudo_token"] = "mask"
    chosen = _size(_Candidate({**chosen, **sizes[0]}, given, prepared, budget, folder, clock), sizes[1:], reasons)
    if clock is not None and {"training.schedule", "training.decay_steps"} & given.keys():
        reasons.append("no clock ends the run: you chose its schedule, so that the budget is only planned for")
        clock = None
    return Choice(chosen, reasons, clock)


def _schedule_after(start: LoadedModel, given: Mapping[str, Any]) -> dict[str, Any]:
    """Optimiser, rates and phases of a run that starts from a model: gentler than from scratch, pseudo-masked throughout."""
    theirs = start.recipe.training
    optimizer = given.get("training.optimizer", theirs.optimizer)
    imported = is_foreign(start.path) or UNKNOWN_CORPUS in start.recipe.data.corpus
    pretrained_here = not start.recipe.task.kind and not imported
    rate, muon_rate = theirs.learning_rate, theirs.muon_learning_rate
    if pretrained_here and optimizer == theirs.optimizer and isinstance(rate, float):
        rate, muon_rate = CONTINUED_RATE * rate, None if muon_rate is None else CONTINUED_RATE * muon_rate
    else:
        rate, muon_rate, optimizer = GENTLE_RATE, None, given.get("training.optimizer", "adamw")
    chosen = {"training.phases": [], "training.optimizer": optimizer, "training.muon_learning_rate": muon_rate}
    if not hasattr(start.model, "token_head"):
        chosen["training.head_learning_rate"] = NEW_HEAD_RATE
        rate = rate if start.recipe.task.kind else HEADLESS_RATE
    return {**chosen, "training.learning_rate": rate}


def _tokenizer(recipe: Recipe, given: Mapping[str, Any], budget: Budget, reasons: list[str]) -> dict[str, Any]:
    """Settings of the tokenizer to train; none if one is given."""
    if recipe.tokenizer.path is not None or recipe.data.prepared is not None:
        return {}
    seen = survey(recipe.data)
    vocab_size = recipe.tokenizer.vocab_size if "tokenizer.vocab_size" in given else vocabulary_size(seen)
    fits = 4 * seen.characters <= vocab_size  # WordPiece spends half of its vocabulary at most on single characters
    chosen = {
        "tokenizer.kind": "wordpiece" if seen.spaced and fits else "bpe",
        "tokenizer.lowercase": False,
        "tokenizer.vocab_size": vocab_size,
    }
    final = {**chosen, **given}
    size = "an unknown number of characters" if seen.size is None else f"about {short(seen.size)} characters"
    written = "with" if seen.spaced else "without"
    reasons.append(f"text: {size}, written {written} spaces between words")
    reasons.append(
        f"tokenizer: {final['tokenizer.kind']} with {int(final['tokenizer.vocab_size']):,} tokens, capitals "
        f"{'lowered' if str(final['tokenizer.lowercase']).lower() == 'true' else 'kept'}"
    )
    if seen.size is not None and seen.size < LITTLE_CHARACTERS and recipe.training.initialize_from is None:
        reasons.append(f"advice: this is little text; {_start_to_try(recipe, budget)}")
    return chosen


def _start_to_try(recipe: Recipe, budget: Budget) -> str:
    """Which start was better than a new model on small texts within such a budget (docs/benchmarks.md)."""
    seconds = budget.amount * (recipe.training.threads or torch.get_num_threads())
    if budget.kind != "time" or choose_device(recipe.training).type != "cpu":
        return (
            "a trained model (--init MODEL: a run, an installed model, an encoder of texts) was ahead of a new one after "
            "half an hour of two cores, after ten minutes of one core only on general English"
        )
    if seconds >= ENCODER_SECONDS:
        return "after half an hour of two cores an encoder of its language (--init MODEL) was ahead of a new model"
    return (
        "in less than half an hour of two cores a trained model (--init unicloze-small-en) was ahead of a new one only on "
        "general English"
    )


def vocabulary_size(seen: Survey) -> int:
    """Vocabulary size for a corpus, a multiple of 512."""
    least, most = VOCABULARY
    wanted = most if seen.size is None else VOCABULARY_OF_CHARACTERS * math.sqrt(seen.size)
    return max(least, min(most, round(wanted / 512) * 512))


@dataclass
class _Candidate:
    """A size to choose, with the forecast of its run: the time of a step, the tokens read and the rows that fit."""

    settings: dict[str, Any]  # those chosen, with the size
    given: Mapping[str, Any]  # the user's, which take precedence
    prepared: Prepared
    budget: Budget
    folder: Path
    clock: Clock | None

    def __post_init__(self) -> None:
        self.add({})

    def add(self, settings: Mapping[str, Any]) -> None:
        """Choose more settings."""
        self.settings = {**self.settings, **settings}
        self.recipe = load_recipe(NAME, {**self.settings, **self.given})

    def measure(self, smaller: Cost | None = None) -> None:
        """Count a step, and time it or tell its time from that of a smaller size."""
        recipe, longest = self.recipe, min(LONGEST_TIMING, self.budget.amount / 60)
        timed = smaller is None and self.budget.kind == "time"
        self.cost = cost_of_a_step(recipe, self.prepared, self.folder, timed=timed, sampled=2, longest=longest)
        if smaller is not None and smaller.seconds is not None:
            self.cost = dataclasses.replace(self.cost, seconds=smaller.seconds * self.cost.flops / smaller.flops)
        self.steps_of_a_pass = build_sampler(recipe, self.prepared).rows_of_a_pass / recipe.training.batch_size

    def reads_enough(self) -> bool:
        """Whether it reads enough tokens per weight in what is left of the budget and in passes over the text."""
        left = self.budget.amount if self.clock is None else self.clock.left
        steps = min(left / self.cost.of(self.budget.kind), MOST_PASSES * self.steps_of_a_pass)
        return self.cost.tokens * steps >= TOKENS_OF_A_WEIGHT * inner_weights(self.recipe, self.prepared)

    def fits(self) -> bool:
        """Whether a step fits this machine, if need be in micro-batches and one leaf, which are added to the settings."""
        words = self.prepared.tokenizer.vocabulary.size
        rows = rows_that_fit(self.recipe, words)
        if rows == 0:  # several leaves hold several gradients
            self.add({"training.leaves": 1})
            rows = rows_that_fit(self.recipe, words)
        if rows is None:
            return True
        self.add({"training.micro_batch_size": rows or 1})
        return rows == self.recipe.training.micro_batch_size


def _size(best: _Candidate, larger: Sequence[Mapping[str, Any]], reasons: list[str]) -> dict[str, Any]:
    """Size, window, batch, dropout and steps: the largest size that fits and reads enough text per weight."""
    smallest, chosen, given, budget, clock = best, best.settings, best.given, best.budget, best.clock
    best.fits()  # the smallest is chosen even if it does not
    best.measure()
    for size in larger:
        try:
            candidate = dataclasses.replace(smallest, settings={**chosen, **size})
        except UsageError:  # it does not go with what was given
            break
        candidate.measure(smallest.cost)
        if not candidate.reads_enough() or not candidate.fits():
            break
        best = candidate
    if best is not smallest and clock is not None and clock.left > 0:
        best.measure()
    room, of_a_pass = budget if clock is None else Budget("time", round(clock.left, 1)), best.steps_of_a_pass
    if room.amount <= 0:
        raise UsageError(
            f"recipe auto: the budget {budget} is spent before the first step, by preparing the text and timing a "
            "step: raise it, or run the same command again, since the text is prepared now."
        )
    try:
        steps = with_steps(best.recipe, room, best.cost).training.steps
    except UsageError as error:
        if clock is None:
            raise
        raise UsageError(
            f"{error} Preparing the text and timing a step took the rest of {span(budget.amount)}; the text is prepared now."
        ) from error
    most_steps = max(len(best.recipe.training.phases), math.ceil(MOST_PASSES * of_a_pass))
    limited = steps > most_steps and "training.steps" not in given
    steps = most_steps if limited else steps
    settings: dict[str, Any] = {
        "model.dropout": 0.1 if steps / of_a_pass > PASSES_WITHOUT_DROPOUT else 0.0,
        "training.steps": steps,
        "training.warmup_steps": max(1, min(150, steps // 20)),
        "training.evaluate_every": math.ceil(steps / 8),
        "training.save_every": min(500, math.ceil(steps / 8)),
    }
    if clock is not None:
        clock.most = most_steps
        if not {"training.schedule", "training.decay_steps", "training.warmup_steps"} & given.keys():
            decay = min(round(DECAY * steps), steps - settings["training.warmup_steps"]) or None
            settings |= {"training.schedule": "wsd", "training.decay_steps": decay}
    best.add(settings)
    reasons += _reasons(best, limited)
    return best.settings


def inner_weights(recipe: Recipe, prepared: Prepared) -> int:
    """Weights of a model without its token embeddings."""
    with shapes_only():
        weights = sum(weight.numel() for weight in shape_model(recipe, prepared.tokenizer.vocabulary.size).parameters())
    return weights - prepared.tokenizer.vocabulary.size * embedding_width(recipe.model)


def _reasons(best: _Candidate, limited: bool) -> list[str]:
    """What was chosen for the run, in words; what was given is not explained."""
    recipe, given, budget, cost = best.recipe, best.given, best.budget, best.cost
    model, training, steps = recipe.model, recipe.training, recipe.training.steps
    tokens, start, passes = steps * cost.tokens, training.initialize_from, steps / best.steps_of_a_pass
    passed = f"{passes:,.1f} passes" + ("" if recipe.data.weights is None else " over the source read most")
    duration = "" if cost.seconds is None else f", about {span(steps * cost.seconds)}"
    dropout = f"; dropout {model.dropout:g}, since the text repeats" if model.dropout else ""
    room = span(budget.amount) if budget.kind == "time" else str(budget)
    why = f": {MOST_PASSES} passes over the text are enough" if limited else f" within {room}"
    weights, repeats = inner_weights(recipe, best.prepared), passes > MOST_PASSES
    reads = f"for which {MOST_PASSES} passes over the text hold" if repeats and not limited else "that reads"
    reason = f"the largest {reads} {TOKENS_OF_A_WEIGHT} tokens per weight"
    if start:
        reason = f"started from {start}"
    elif {"model.num_layers", "model.hidden_size"} <= given.keys():
        reason = "as you chose"
    elif SIZES[0].items() <= best.settings.items() and tokens < TOKENS_OF_A_WEIGHT * weights:
        reason = f"the smallest, though it reads only {tokens / weights:.2g} tokens per weight"
    said = [
        f"model: {model.num_layers} layers of width {model.hidden_size}, {weights:,} weights without embeddings: "
        f"{reason}{dropout}",
        f"steps: {steps:,} of {training.batch_size} windows of {recipe.data.window} tokens{why}; {short(tokens)} "
        f"tokens, {passed}{duration}",
    ]
    if start is not None and "training.learning_rate" not in given:
        head = training.head_learning_rate
        why_rate = "gentler than from scratch" if head is None else f"{head:g} for the new head"
        said.append(f"rate: {training.learning_rate:g} ({training.optimizer}), {why_rate}")
    if any(key.startswith(("objective.", "training.phases")) for key in given):
        return said
    if start is not None:
        said.append("objective: pseudo-masked from the first step, since the model is trained")
    else:
        said.append("objective: left to right for a third of the steps, then pseudo-masked")
    if "training.start" in given:
        return said
    return said + expectation(tokens, "text" if limited or repeats else "budget", continued=start is not None)


def expectation(tokens: float, limit: Literal["budget", "text"] = "budget", *, continued: bool = False) -> list[str]:
    """What runs on record that read so much reached beside a Kneser-Ney trigram of their text; advises to raise the limit."""
    reached = CONTINUED if continued else REACHED
    near = [ratio for read, ratio in reached if tokens / 2 <= read <= 2 * tokens]
    if not near:
        said = [f"expect: unknown, no run on record read about {short(tokens)} tokens"]
        if tokens < reached[0][0]:
            start = "" if continued else ", or start from a trained model (--init MODEL)"
            more = "give more text" if limit == "text" else "raise the budget"
            said.append(f"advice: the shortest run on record read {short(reached[0][0])} tokens: {more}{start}")
        return said
    least, most = (f"{bound(near):.1f}" for bound in (min, max))
    runs = "a run" if len(near) == 1 else f"{len(near)} runs"
    words, of = ("", " from a trained model") if continued else (", and no more single words guessed", "")
    said = [
        f"expect: {least if least == most else f'{least} to {most}'} times the perplexity of a Kneser-Ney trigram of the "
        f"text{words}, as {runs} on record{of} that read about as much"
    ]
    level = next(read for read, _ in reached if all(ratio < 1.05 for later, ratio in reached if later >= read))
    if tokens < level:
        times = f"{level / tokens:.{0 if level > 3 * tokens else 1}f}"
        said.append(
            f"advice: all runs on record that read {short(level)} tokens or more came level with it: give {times} times "
            f"the {limit}"
        )
    return said
