"""Windows to examples: what is masked, who may read whom, what is predicted.

An objective is a function `(windows, vocabulary, settings, rates) -> Examples`, pure in its arguments: every random draw
is keyed by `windows.keys`. To add one, write the function, name it here, and give it a recipe and a test.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from unicloze.errors import UsageError
from unicloze.example import Examples
from unicloze.objectives import causal, denoising, diffusion, masked, permuted, seq2seq, unilmv2
from unicloze.objectives.masking import Rates, Steps
from unicloze.objectives.pairs import with_pair_target
from unicloze.settings import ObjectiveSettings
from unicloze.text.tokenizers import Vocabulary
from unicloze.text.windows import Windows

Make = Callable[[Windows, Vocabulary, ObjectiveSettings, Rates | None], Examples]
LayOut = Callable[[Windows, Steps, Vocabulary, ObjectiveSettings], Examples]
Chain = Callable[[Windows, Vocabulary, ObjectiveSettings], Examples]
Check = Callable[[Windows, Vocabulary, ObjectiveSettings], None]


@dataclass(frozen=True, kw_only=True)
class Objective:
    """What one family of objectives can ask of a model.

    `cloze`, `stepwise` and `causal` lay out rows with one target and nothing drawn at random, to measure and to use a
    model by; None where a model trained by this objective does not define that.

    Args:
        make: Rows to train on.
        cloze: Predict the tokens with a step >= 0 all at once from the rest (autoencoding). The j-th prediction of a row is
            its j-th such token by step, then position.
        stepwise: Predict them step by step, each step seeing the tokens of earlier ones; in the same order.
        causal: Predict every maskable token from those left of it. The j-th prediction of a row is its j-th maskable token.
        causal_if: Whether settings train for `causal`; all do if not given.
        check: Refuses text that the objective can do nothing with; called with some windows before the first step.
    """

    make: Make
    cloze: LayOut | None = None
    stepwise: LayOut | None = None
    causal: Chain | None = None
    causal_if: Callable[[ObjectiveSettings], bool] | None = None
    check: Check | None = None


def _nothing(*_: object) -> Examples:
    raise UsageError(
        "objective none, that of an imported encoder, trains nothing: give a recipe with another one, and the encoder as "
        "training.initialize_from"
    )


OBJECTIVES: Mapping[str, Objective] = {
    "unilmv2": Objective(make=unilmv2.unilmv2, cloze=unilmv2.cloze, stepwise=unilmv2.stepwise, causal=unilmv2.causal),
    "masked": Objective(make=masked.masked, cloze=masked.cloze, causal=masked.causal),
    "causal": Objective(
        make=causal.causal,
        causal=causal.chain,
        causal_if=lambda settings: settings.visibility == "left_to_right",
    ),
    "masked_diffusion": Objective(make=diffusion.masked_diffusion, cloze=diffusion.cloze),
    "block_diffusion": Objective(make=diffusion.block_diffusion, causal=diffusion.causal),
    "prefix": Objective(make=seq2seq.prefix, causal=seq2seq.causal, causal_if=seq2seq.starts_from_nothing),
    "span_corruption": Objective(make=denoising.span_corruption),
    "denoising": Objective(make=denoising.denoising, check=denoising.check_sentences),
    "masked_span": Objective(make=denoising.masked_span),
    "permuted": Objective(make=permuted.permuted, stepwise=permuted.permuted_stepwise, causal=permuted.permuted_causal),
    "compensated": Objective(
        make=permuted.compensated, stepwise=permuted.compensated_stepwise, causal=permuted.compensated_causal
    ),
    "none": Objective(make=_nothing),
}


def make_examples(
    windows: Windows, vocabulary: Vocabulary, settings: ObjectiveSettings, rates: Rates | None = None
) -> Examples:
    """Rows to train on, with all targets the settings name.

    Args:
        windows: The text.
        vocabulary: Ids of the masks and of the tokens a random one is drawn from.
        settings: What to mask, predict and show.
        rates: Mask rate of each row; `settings.mask_rate` if not given. *Shape:* (rows,)
    """
    examples = OBJECTIVES[settings.name].make(windows, vocabulary, settings, rates)
    return with_pair_target(examples, windows, settings)


def without_noise(settings: ObjectiveSettings) -> ObjectiveSettings:
    """The settings with a mask at every masked position: random and kept tokens would flatter a held-out figure."""
    return dataclasses.replace(settings, mask_share=1.0, random_share=0.0)


def defined(settings: ObjectiveSettings) -> Objective:
    """What a model trained with these settings defines: an objective's abilities, less those they leave out."""
    objective = OBJECTIVES[settings.name]
    has, reads = set(settings.targets), settings.visibility
    if "rtd" in has:  # ELECTRA's `ae` is its generator's, which is not what is used
        has -= {"ae"}
    sees_both_sides = "diffusion" in has or ("ae" in has and reads == "bidirectional")
    sees_the_left = {"par", "lm", "diffusion"} & has or ("ae" in has and reads == "left_to_right")
    if objective.causal_if is not None:
        sees_the_left = sees_the_left and objective.causal_if(settings)
    return Objective(
        make=objective.make,
        cloze=objective.cloze if sees_both_sides else None,
        stepwise=objective.stepwise if "par" in has else None,
        causal=objective.causal if sees_the_left else None,
        check=objective.check,
    )
