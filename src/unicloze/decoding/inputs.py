"""Shared helpers for applying a trained model: cutting texts into windows, batching, and checking its outputs."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unicloze.arrays import Flags, Int32s, Int64s
from unicloze.errors import UniclozeError, UsageError
from unicloze.example import Batch, Examples, Memory, Target, collate
from unicloze.files import BEST, CHECKPOINTS
from unicloze.mixtures import longest_window, parts, phases
from unicloze.model.flops import TRAINING, Amounts
from unicloze.model.heads import cross_entropy
from unicloze.model.model import UnifiedModel
from unicloze.objectives import OBJECTIVES, Ability, defined, seq2seq
from unicloze.objectives.generation_format import GenerationFormat
from unicloze.settings import ObjectiveSettings, Reading, Recipe
from unicloze.tasks import TASKS, generation, task_heads
from unicloze.tasks.rows import TextFormat, task_format
from unicloze.text.vocabulary import Vocabulary
from unicloze.text.windows import Windows, windows_of
from unicloze.training.loading import LoadedModel

T = TypeVar("T")
OPERATIONS_OF_A_THREAD = 1e8
"""Operations of a forward pass below which a second thread does not make it faster."""
PASSES_AT_ONCE = 4
"""Most forward passes whose activations are in memory at once on a CPU."""


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


def fills_masks(objective: ObjectiveSettings) -> bool:
    """Whether a part of an objective predicts masked tokens, at once or in steps."""
    return part_with(objective, "cloze") is not None or part_with(objective, "stepwise") is not None


def predicts_at_masks(objective: ObjectiveSettings) -> bool:
    """Whether a forward pass of a text predicts its masks, as stock classes do: not where a query predicts (XLNet)."""
    return part_with(objective, "cloze") is not None or any(
        OBJECTIVES[part.settings.name].at_masks for part in parts(objective)
    )


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


def rows_to_predict(
    recipe: Recipe,
    ability: Ability,
    windows: Windows,
    vocabulary: Vocabulary,
    steps: Int32s | None = None,
    asked: Flags | None = None,
) -> Examples:
    """Examples that predict tokens of windows with an ability that the model's objective defines.

    Args:
        recipe: The model's recipe.
        ability: How they are predicted.
        windows: The texts.
        vocabulary: Ids of the masks.
        steps: Step of each token to predict, -1 elsewhere; all text tokens if the ability is `causal`. *Shape:* (rows,
            window)
        asked: Which of these predictions are made; default: all. They keep their order: by step, then position. *Shape:*
            (rows, window)
    """
    settings = part_with(objective_of(recipe), ability)
    assert settings is not None  # else it was refused
    lay_out = getattr(defined(settings), ability)
    examples: Examples = lay_out(windows, *(() if steps is None else (steps,)), vocabulary, settings)
    if asked is None:
        return examples
    predicted = windows.maskable if steps is None else steps >= 0
    order = np.argsort(
        np.where(predicted, 0 if steps is None else steps, np.iinfo(np.int32).max), axis=1, kind="stable"
    )
    ((name, target),) = examples.targets.items()
    kept = np.take_along_axis(asked & predicted, order, axis=1)[:, : target.weights.shape[1]]
    target, most = target.only(kept), max(1, int(kept.sum(axis=1).max(initial=0)))
    target = Target(slots=target.slots[:, :most], labels=target.labels[:, :most], weights=target.weights[:, :most])
    return dataclasses.replace(examples, targets={name: target})


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
    if predicts_tokens and fills_masks(objective):
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

    A model fine-tuned to generate does as it learned. Of others, sequence-to-sequence objectives come before those that go on
    with a text, and those that write whole texts before those that write missing spans (UL2).
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
    options = [
        (layout.decoder_only, -len(layout.never), layout)  # spans between sentinels, if nothing else is written
        for part in parts(objective_of(recipe))
        if (generates := OBJECTIVES[part.settings.name].generates) is not None
        and (layout := generates(part.settings, vocabulary)) is not None
    ]
    return min(options, key=lambda each: each[:2])[2] if options else None


def _of_task(recipe: Recipe, vocabulary: Vocabulary) -> GenerationFormat:
    """Layout of a fine-tuned model, as `unicloze.tasks.generation` lays out its rows."""
    by_next = generation.learning_of(recipe) == "next"
    return dataclasses.replace(
        seq2seq.generates(generation.format_of(recipe), vocabulary),
        predicts="next" if by_next else "pseudo",
        pseudo=None if by_next else generation.pseudo_id(recipe, vocabulary),
        decoder_only=generation.reads_left_to_right(recipe),
        local_width=recipe.objective.reading.local_width,
    )


UNLIMITED = 2**31
"""Positions of a model without any, which reads texts of any length."""


def positions_of(model: UnifiedModel) -> int:
    """Positions that source and target may take; LSTMs read texts of any length."""
    return UNLIMITED if model.settings.kind == "recurrent" else model.max_positions


def longest_target(model: LoadedModel) -> int:
    """Tokens of the longest text a model writes if it is given no length; without a task at most half of its positions."""
    recipe, decoding = model.recipe, model.recipe.decoding
    if recipe.task.kind:
        return decoding.max_length
    return max(decoding.min_length, min(decoding.max_length, model.model.max_positions // 2))


def room_for_source(model: LoadedModel, max_length: int) -> int:
    """Most tokens of a source, separators of its parts included, before a target of at most `max_length` tokens."""
    layout = generation_format_of(model.recipe, model.tokenizer.vocabulary)
    room = layout.room(positions_of(model.model), max_length)
    if model.recipe.task.kind:
        room = min(room, generation.room(model.recipe)[0] - generation.SOURCE_SPECIALS)
    return max(0, room)


Logs = npt.NDArray[np.float64]

SPECIALS_OF_A_WINDOW = 2
"""[SOS] and [EOS]."""

_PAIRS_AT_ONCE = 1 << 21
"""Pairs of a query and a key in forward passes at once: a relative position bias takes about 400 bytes for each."""


@dataclass(frozen=True, kw_only=True)
class ReadWindow:
    """As much of a text as the model reads at once."""

    text: int  # index of the text
    first: int  # index of the piece's first token within the text
    tokens: Int32s  # Token ids without [SOS] and [EOS]. *Shape:* (tokens,)

    def __len__(self) -> int:
        return len(self.tokens)


def longest_text(model: LoadedModel) -> int:
    """Tokens of text the model reads at once: at most the positions it was trained on, minus the special tokens."""
    return min(model.model.max_positions, longest_window(model.recipe)) - SPECIALS_OF_A_WINDOW


def text_format(model: LoadedModel) -> TextFormat:
    """How the model's rows write a text or a pair: as its task does, or as `embed` does without one.

    A model whose sources have no [SOS] (T5) writes its texts without it.
    """
    recipe, vocabulary = model.recipe, model.tokenizer.vocabulary
    if task_heads(recipe):
        own = task_format(recipe, vocabulary)
        return dataclasses.replace(own, longest=min(own.longest, model.model.max_positions))
    start = (vocabulary.sos,) if getattr(objective_of(recipe), "source_start", True) else ()
    last = max(0, recipe.model.num_segments - 1)
    first, second = (min(segment, last) for segment in read_as(recipe).segments)
    return TextFormat(
        start=start,
        between=(vocabulary.eos,) * recipe.use.separators,
        end=(vocabulary.eos,),
        segments=(first, second),
        longest=longest_text(model) + len(start) + 1,
    )


def check_text(text: str, name: str) -> None:
    """Reject blank or invalid text."""
    if not isinstance(text, str):
        raise UsageError(f"{name} is of type {type(text).__name__}: give a string")
    if not text.strip():
        raise UsageError(f"{name} is empty: give it at least one word")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UsageError(f"{name} is not valid Unicode at character {error.start}: give it in UTF-8") from error


def check_texts(texts: Sequence[str], name: str) -> None:
    """Reject a string in place of a list of texts, and blank or invalid texts."""
    if isinstance(texts, str):
        raise UsageError(f"{name}s is one string: give a list of texts")
    for i, text in enumerate(texts):
        check_text(text, f"{name} {i + 1} of {len(texts)}")


def check_numbers(values: Tensor) -> None:
    """Reject nan outputs of a model, which would be mistaken for tokens that are not scored."""
    if bool(values.isnan().any()):
        raise UniclozeError(
            "the model predicts nan: its training diverged or its weights are damaged: use another checkpoint"
        )


def batch_of(model: LoadedModel, examples: Examples, memory: Memory | None, *, updates: bool) -> Batch:
    """Rows with the memory of the text before them, which the model updates if asked to."""
    device = model.compute.device
    text = torch.from_numpy(examples.text_slots()).to(device=device, dtype=torch.long) if updates else None
    return dataclasses.replace(collate(examples, device=device), memory=memory, text_slots=text)


@torch.inference_mode()
def logits_of(
    model: LoadedModel, examples: Examples, memory: Memory | None = None, *, updates: bool = False
) -> tuple[Tensor, Tensor]:
    """The model's predictions for examples with one target, and their labels.

    Returns:
        Logits, *Shape:* (rows, predictions, vocabulary), and labels, *Shape:* (rows, predictions).
    """
    batch = batch_of(model, examples, memory, updates=updates)
    few = _operations(model, batch) < OPERATIONS_OF_A_THREAD
    with model.compute.autocast(), _threads(1 if few else torch.get_num_threads()):
        ((name, logits),) = model.model.logits(batch).items()
    return logits, batch.targets[name].labels


def _operations(model: LoadedModel, batch: Batch) -> float:
    """Operations of a forward pass if every slot reads its whole row."""
    rows, slots = batch.input_ids.shape
    counts = {name: target.labels.numel() for name, target in batch.targets.items()}
    amounts = Amounts(rows=rows, slots=rows * slots, keys=slots, predictions=counts, predicting_slots=counts)
    return model.model.flops(amounts) / TRAINING


@torch.inference_mode()
def log_probability(logits: Tensor, labels: Tensor) -> Logs:
    """log p of each label. *Shape:* (rows, predictions)"""
    losses = cross_entropy(logits.flatten(0, 1), labels.flatten()).unflatten(0, labels.shape)
    check_numbers(losses)
    logs: Logs = -losses.cpu().double().numpy()
    return logs


def cut(
    model: LoadedModel, texts: Sequence[str], prompt: str = "", *, truncate: bool = False, remembers: bool = False
) -> tuple[list[Int32s], list[ReadWindow]]:
    """Tokens of each text after a prompt, and the pieces that cover them; names of special tokens are plain text.

    Warns once if a text is longer than the model reads at once.
    """
    check_texts(texts, "text")
    tokens = model.tokenizer.encode_batch([prompt + text for text in texts])
    for i, ids in enumerate(tokens):
        if not len(ids):
            raise UsageError(f"text {i + 1} of {len(texts)} has no tokens: give it at least one word")
    if truncate:
        tokens = [ids[: longest_text(model)] for ids in tokens]
    return tokens, pieces_of(model, tokens, remembers=remembers)


def pieces_of(model: LoadedModel, tokens: Sequence[Int32s], *, remembers: bool) -> list[ReadWindow]:
    """The pieces that cover tokenised texts; warns once if a text is longer than the model reads at once.

    Where the caller `remembers`, a model with a memory reads a piece with those before it.
    """
    limit = longest_text(model)
    pieces = [
        ReadWindow(text=i, first=first, tokens=ids[first : first + limit])
        for i, ids in enumerate(tokens)
        for first in range(0, len(ids), limit)
    ]
    long = sum(len(ids) > limit for ids in tokens)
    if long:
        alone = "" if remembers and model.model.settings.memory else ", each read by itself"
        warnings.warn(
            f"texts longer than the {limit} tokens the model reads at once ({long} of {len(tokens)}) are cut into "
            f"consecutive windows{alone}",
            stacklevel=4,
        )
    return pieces


def one_segment(token_ids: Sequence[Int32s], vocabulary: Vocabulary) -> Windows:
    """Windows "[SOS] text [EOS]" of the given tokens, without random keys."""
    return windows_of([[ids] for ids in token_ids], vocabulary, keys=np.zeros(len(token_ids), dtype=np.uint64))


def rows_to_ask(
    model: LoadedModel,
    ability: Ability,
    texts: Sequence[Int32s],
    steps: Sequence[npt.NDArray[np.integer]] | None = None,
    asked: Sequence[Flags] | None = None,
) -> Examples:
    """`rows_to_predict` for texts that the model reads at once, with the steps of each and what is asked of it."""
    vocabulary = model.tokenizer.vocabulary
    windows = one_segment(texts, vocabulary)
    every, flags = np.full(windows.token_ids.shape, -1, dtype=np.int32), np.zeros(windows.token_ids.shape, dtype=bool)
    for table, rows in ((every, steps), (flags, asked)):
        for row, values in enumerate(rows or ()):
            table[row, 1 : len(values) + 1] = values
    return rows_to_predict(
        model.recipe, ability, windows, vocabulary, None if steps is None else every, None if asked is None else flags
    )


def rows_at_once(slots: int, batch_size: int, passes: int = 1) -> int:
    """Rows per forward pass: `batch_size`, or fewer if rows of `slots` slots would take too much memory in all passes."""
    return max(1, min(batch_size, _PAIRS_AT_ONCE // passes // slots**2))


def by_length(
    lengths: Sequence[int] | npt.NDArray[np.integer], batch_size: int, *, slots_per_token: int = 1, passes: int = 1
) -> Iterator[Int64s]:
    """Indices of the items, longest first, in blocks of one forward pass each."""
    if batch_size < 1:
        raise UsageError(f"batch_size is {batch_size}: give 1 or more")
    each = np.asarray(lengths, dtype=np.int64)
    order = np.argsort(-each, kind="stable")
    first = 0
    while first < len(order):
        slots = (int(each[order[first]]) + SPECIALS_OF_A_WINDOW) * slots_per_token
        rows = rows_at_once(slots, batch_size, passes)
        yield order[first : first + rows]
        first += rows


def passes_at_once(model: LoadedModel) -> int:
    """Number of forward passes that use a CPU's threads best; each has the same number of threads."""
    if model.compute.device.type != "cpu":
        return 1
    threads = torch.get_num_threads()
    return max(count for count in range(1, PASSES_AT_ONCE + 1) if threads % count == 0)


def each_block(model: LoadedModel, work: Callable[[Int64s], T], blocks: Sequence[Int64s]) -> Iterator[T]:
    """What a forward pass finds for each block.

    On a CPU the threads divide many blocks among them: those that share a pass wait for each other at every operation.
    """
    threads, passes = torch.get_num_threads(), passes_at_once(model)
    if len(blocks) < 2 * passes:
        yield from map(work, blocks)
        return
    with _threads(threads // passes), ThreadPoolExecutor(passes) as pool:
        yield from pool.map(work, blocks)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Compute with this number of threads; a thread of Python that first computes elsewhere meanwhile keeps it, too."""
    before = torch.get_num_threads()
    if count != before:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        if count != before:
            torch.set_num_threads(before)
