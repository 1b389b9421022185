"""What a trained model can do: by its objective (for a mixture, that of its parts), in generation, and in error messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicloze.errors import UsageError
from unicloze.files import BEST, CHECKPOINTS
from unicloze.mixtures import parts, phases
from unicloze.objectives import OBJECTIVES, Ability, defined
from unicloze.objectives.generation_format import GenerationFormat
from unicloze.objectives.seq2seq import start_ids
from unicloze.settings import ObjectiveSettings, Reading, Recipe
from unicloze.tasks import TASKS, generation
from unicloze.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from unicloze.training.loading import LoadedModel


def objective_of(recipe: Recipe) -> ObjectiveSettings:
    """The objective a model was trained with: that of the last phase."""
    return phases(recipe)[-1].recipe.objective


def read_as(recipe: Recipe) -> Reading:
    """How a model reads an unmasked text, in the direction set by its recipe.

    Segments and the width of local attention are those of the part of the objective that reads in that direction, or of
    its first part if none does.
    """
    wanted = recipe.use.visibility
    found = [part.settings.reading for part in parts(objective_of(recipe))]
    reading = next((one for one in found if one.visibility == wanted), found[0])
    width = reading.local_width if wanted == "left_to_right" else None
    return reading._replace(visibility=wanted, local_width=width)


def part_with(objective: ObjectiveSettings, ability: Ability) -> ObjectiveSettings | None:
    """Settings of the first part of an objective that defines an ability; None if no part does."""
    able = (part.settings for part in parts(objective) if getattr(defined(part.settings), ability) is not None)
    return next(able, None)


def lacks(objective: ObjectiveSettings, ability: Ability, what: str) -> str:
    """Why a model cannot do something, as a sentence without a full stop."""
    names = dict.fromkeys(_name(part.settings, ability) for part in parts(objective))
    if len(names) > 1:
        return f"none of the objectives {', '.join(names)} defines {what}"
    return f"the objective {next(iter(names))} does not define {what}"


def _name(settings: ObjectiveSettings, ability: Ability) -> str:
    """Name of the objective, with its targets if other targets would define the ability."""
    if getattr(OBJECTIVES[settings.name], ability) is None:
        return settings.name
    return f"{settings.name} with the target{'s' * (len(settings.targets) > 1)} {' and '.join(settings.targets)}"


MASKED = '"Some [MASK] text."'
ANY = '"Some text."'
WEIGHTS_TO_WRITE = 50_000_000
"""A pre-trained model with fewer weights is fluent for a few words, then repeats itself."""


def check_predicts_tokens(model: LoadedModel, what: str) -> None:
    """Reject a model without a head that predicts tokens, such as a classifier."""
    if not hasattr(model.model, "token_head"):
        recipe = model.recipe
        kind = f"a model fine-tuned for {recipe.task.kind}" if recipe.task.kind else "a model without a head for tokens"
        raise UsageError(f"{kind} cannot {what}; {instead(model)}")


def writes_briefly(model: LoadedModel) -> bool:
    """Whether a model that is not fine-tuned is too small to write more than a few words."""
    return not model.recipe.task.kind and model.model.num_parameters() < WEIGHTS_TO_WRITE


def repetition_guard(model: LoadedModel) -> int:
    """Tokens in a row that generation does not repeat: the model's own setting, or three of a model that writes briefly."""
    decoding = model.recipe.decoding
    return decoding.no_repeat_ngram or (3 if writes_briefly(model) and decoding.parallel is None else 0)


def instead(model: LoadedModel) -> str:
    """What a model can do, with the command, such as "it fills masks: `unicloze fill ...`"."""
    return use_of(model.recipe, place_of(model), predicts_tokens=hasattr(model.model, "token_head"))


def use_of(recipe: Recipe, place: str = "DIR", *, predicts_tokens: bool = True) -> str:
    """Like `instead`, from a model's recipe and path."""
    kind, objective = recipe.task.kind, objective_of(recipe)
    if kind == "generation":
        return f"it writes texts: `unicloze generate --model {place} --text {ANY}`"
    if kind:
        task, purpose = TASKS[kind], TASKS[kind].purpose
        given = f"--text {ANY}" if len(set(task.texts) - set(task.optional)) == 1 else "--file FILE"
        return f"it {purpose[0].lower()}{purpose[1:-1]}: `unicloze predict --model {place} {given}`"
    if predicts_tokens and (part_with(objective, "cloze") or part_with(objective, "stepwise")):
        return f"it fills masks: `unicloze fill --model {place} --text {MASKED}`"
    if predicts_tokens and part_with(objective, "causal"):
        return f"it scores texts: `unicloze score --model {place} --text {ANY}`"
    return f"it turns texts into vectors: `unicloze embed --model {place} --text {ANY}`"


def place_of(model: LoadedModel) -> str:
    """The path to name a model on the command line: its run rather than a checkpoint in it."""
    path = model.path
    return str(path.parent.parent if path.parent.name in (CHECKPOINTS, BEST) else path)


def generation_format_of(recipe: Recipe, vocabulary: Vocabulary, place: str = "DIR") -> GenerationFormat:
    """How a model trained by a recipe generates, by the first part of its objective that can.

    A model fine-tuned to generate does as it learned. Of other models, those trained by sequence-to-sequence objectives come
    before those that go on with a text.
    """
    found = find_generation_format(recipe, vocabulary)
    if found is not None:
        return found
    if recipe.task.kind:
        raise UsageError(f"a model fine-tuned for {recipe.task.kind} cannot generate text; {use_of(recipe, place)}")
    names = ", ".join(dict.fromkeys(part.settings.name for part in parts(objective_of(recipe))))
    what = "an encoder without heads" if not objective_of(recipe).trains else f"a model of the objective {names}"
    gaps = [OBJECTIVES[part.settings.name].not_done for part in parts(objective_of(recipe))]
    absent = next((f" ({gap} is not done)" for gap in gaps if gap), "")
    raise UsageError(
        f"{what} cannot generate text{absent}: use one of another objective, such as unilmv2 with the target par, prefix or "
        f"causal; {use_of(recipe, place, predicts_tokens=names != 'none')}"
    )


def find_generation_format(recipe: Recipe, vocabulary: Vocabulary) -> GenerationFormat | None:
    """As `generation_format_of`, but None if the model cannot generate."""
    if recipe.task.kind:
        return _of_task(recipe, vocabulary) if recipe.task.kind == "generation" else None
    options = (_of_part(part.settings, vocabulary) for part in parts(objective_of(recipe)))
    return min((layout for layout in options if layout is not None), key=lambda each: each.decoder_only, default=None)


def _of_part(settings: ObjectiveSettings, vocabulary: Vocabulary) -> GenerationFormat | None:
    generates = OBJECTIVES[settings.name].generates
    return None if generates is None else generates(settings, vocabulary)


def _of_task(recipe: Recipe, vocabulary: Vocabulary) -> GenerationFormat:
    """Layout of a fine-tuned model, as `unicloze.tasks.generation` lays out its rows."""
    by_next = generation.learning_of(recipe) == "next"
    own = generation.pseudo_token(recipe, vocabulary) == "own"
    source, target = generation.segments_of(recipe)
    rows = generation.format_of(recipe)
    return GenerationFormat(
        predicts="next" if by_next else "pseudo",
        start=(vocabulary.sos,) if rows.source_start else (),
        opening=start_ids(vocabulary, rows),
        restarts=rows.restart_positions,
        stop=vocabulary.eos,
        source_segment=source,
        target_segment=target,
        pseudo=None if by_next else vocabulary.pseudo if own else vocabulary.mask,
        decoder_only=generation.reads_left_to_right(recipe),
        delimited=True,
        local_width=recipe.objective.reading.local_width,
        never=tuple(int(i) for i in vocabulary.special if i != vocabulary.eos),
    )
