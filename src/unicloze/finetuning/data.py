"""Turns labelled records, and unlabelled text, into training steps, and into buckets for prediction.

Unlabelled text serves the pre-training objective on a task's own texts, and cross-view training. There, labelled and
unlabelled steps alternate. On labelled records the task's own heads, the primary ones, learn as usual. On unlabelled text
they predict without dropout and without a gradient, and auxiliary heads with restricted views learn to predict the same. So
the primary heads never learn from unlabelled text, but the network below them does.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unicloze import keyed
from unicloze.arrays import Int64s
from unicloze.errors import UniclozeError, UsageError, option_of
from unicloze.example import Batch, Examples, Kind, SoftLabels
from unicloze.files import digest
from unicloze.mixtures import parts, positions
from unicloze.model.model import UnifiedModel
from unicloze.model.recurrent.backbone import VIEWS
from unicloze.objectives import make_examples
from unicloze.objectives.groups import Pairs
from unicloze.packing import bucket_cost, bucket_sizes
from unicloze.progress import say
from unicloze.records import read_records, record_files
from unicloze.records.files import kind_of, read_text
from unicloze.records.record import Record, evenly
from unicloze.settings import ObjectiveSettings, Recipe, TaskSettings
from unicloze.tasks import TASKS, of_view
from unicloze.tasks.columns import check_roles, record_of_texts, targets_of, with_columns
from unicloze.tasks.extraction import encode_passages
from unicloze.tasks.rows import Row, RowTarget
from unicloze.tasks.several import TAGGING, by_part, has_parts, records_of, rows_per_epoch
from unicloze.tasks.tagging import TaggingSettings
from unicloze.tasks.task import Headed, RecordsNote
from unicloze.text.tokenizers import Tokenizer
from unicloze.text.vocabulary import Vocabulary
from unicloze.text.windows import Windows
from unicloze.training.batches import MicroBatch, Own, every
from unicloze.training.checkpoint import fingerprint
from unicloze.training.loading import LoadedModel
from unicloze.training.loop import Compute


@dataclass(frozen=True)
class Mixture:
    """Rows of several tasks, see `unicloze.tasks.several.rows_per_epoch`."""

    counts: Mapping[str, int]  # rows of each part in an epoch, by label
    members: Mapping[str, Int64s]  # indices of the rows of each part, by label

    @classmethod
    def of(cls, records: Sequence[Record], rows: Sequence[Any], settings: TaskSettings) -> Mixture | None:
        """The mixture of a task's rows; None for a single task."""
        if not has_parts(settings):
            return None
        labels = {number: name for name, numbers in by_part(records, settings).items() for number in numbers}
        of = np.array([labels[row.record] for row in rows])
        members = {name: np.flatnonzero(of == name) for name in dict.fromkeys(of.tolist())}
        return cls(rows_per_epoch({name: len(own) for name, own in members.items()}, settings, len(rows)), members)

    def rows(self, places: Int64s, epoch: int, seed: int) -> Int64s:
        """The rows at some places of an epoch, a function of the arguments only.

        Each part visits all its rows in a random order before it visits one again, across epochs.
        """
        ends = np.cumsum(list(self.counts.values()))
        order = keyed.permutation(places, int(ends[-1]), keyed.key(seed, keyed.Purpose.RECORD_ORDER, epoch)[0])
        part = np.searchsorted(ends, order, side="right")
        found = np.empty_like(order)
        for number, (name, count) in enumerate(self.counts.items()):
            own, members = part == number, self.members[name]
            found[own] = _visited(members, epoch * count + order[own] - (ends[number] - count), seed, number)
        return found

    @property
    def chances(self) -> str:
        """The chance that a step is of each part, as a message."""
        total = sum(self.counts.values())
        return "steps: " + ", ".join(f"{100 * count / total:.0f} % of {name}" for name, count in self.counts.items())

    def __str__(self) -> str:
        each = ", ".join(f"{count:,} of {len(self.members[name]):,} {name}" for name, count in self.counts.items())
        return f"rows per epoch: {each}"


def _visited(members: Int64s, visits: Int64s, seed: int, part: int) -> Int64s:
    """The rows of a part at some of its visits: all its rows in a random order, then all in another, and so on."""
    passes, places = np.divmod(visits, len(members))
    for number in np.unique(passes):
        seen, key = passes == number, keyed.key(seed, keyed.Purpose.RECORD_ORDER, int(number), part + 1)[0]
        places[seen] = keyed.permutation(places[seen], len(members), key)
    rows: Int64s = members[places]
    return rows


@dataclass(frozen=True)
class Turns:
    """Steps of several tasks with heads of their own: each is of a random task (Clark et al. 2018, Section 2.2)."""

    members: Sequence[Int64s]  # indices of the rows of each part
    parts: Int64s  # Index of the part of each step. *Shape:* (steps,)
    earlier: Int64s  # Number of earlier steps of the same part. *Shape:* (steps,)

    @classmethod
    def of(cls, mixture: Mixture, steps: int, seed: int) -> Turns:
        """The steps of a mixture, whose counts are the chances of its parts; a function of the arguments only."""
        chances = np.cumsum(list(mixture.counts.values())) / sum(mixture.counts.values())
        drawn = keyed.bits(keyed.key(seed, keyed.Purpose.PART_OF_STEP), keyed.Stream.ONLY, np.arange(steps))
        parts = np.searchsorted(chances[:-1], keyed.uniform(drawn), side="right")
        earlier = np.zeros(steps, dtype=np.int64)
        for part in range(len(chances)):
            own = parts == part
            earlier[own] = np.arange(own.sum())
        return cls([mixture.members[name] for name in mixture.counts], parts, earlier)

    def rows(self, step: int, count: int, seed: int) -> Int64s:
        """The rows of a step."""
        part = int(self.parts[step])
        visits = self.earlier[step] * count + np.arange(count, dtype=np.int64)
        return _visited(self.members[part], visits, seed, part)


ROWS_SEEN = 256
"""Number of rows checked to find how many segments rows have."""


@dataclass(frozen=True)
class TaskData:
    """Labelled records and their rows."""

    records: Sequence[Record]  # records in file order
    rows: Sequence[Any]  # rows of the records; those of one record are consecutive
    fingerprint: str  # SHA-256 of the records
    unlabelled: TaskData | None = None  # unlabelled text to learn from in every second step, if any


def open_records(path: Path, recipe: Recipe, tokenizer: Tokenizer) -> TaskData:
    """Read and encode development records, a file or a folder; arguments and errors as for `encoded`."""
    return encoded(records_of(path, recipe.task, dev=True), recipe, tokenizer)


def reading_columns(recipe: Recipe, records: Sequence[Record], progress: bool) -> Recipe:
    """The recipe with the columns of text and label; guessed columns are reported."""
    task = with_columns(recipe.task, records)
    guessed = {role: name for role, name in task.fields.items() if recipe.task.fields.get(role) != name}
    if guessed and progress:
        each = ", ".join(f"{role} from '{name}'" for role, name in guessed.items())
        say(f"reading {each} (set {option_of('task.fields')} to change)")
    return dataclasses.replace(recipe, task=task)


def encoded(records: Sequence[Record], recipe: Recipe, tokenizer: Tokenizer, *, answers: bool = True) -> TaskData:
    """Encode records as rows."""
    task = TASKS[recipe.task.kind]
    if not answers:
        records = [dataclasses.replace(record, unread=task.answers) for record in records]
    check_roles(records, task, recipe)
    return TaskData(records, task.encode(records, tokenizer, recipe), records_fingerprint(records))


def records_fingerprint(records: Sequence[Record]) -> str:
    """SHA-256 of the ids and fields of records."""
    return digest([[record.id, dict(record.fields)] for record in records])


def evenly_chosen(data: TaskData, count: int | None) -> TaskData:
    """`count` of the records with their rows, evenly spaced; all if there are no more or `count` is None."""
    if count is None or count >= len(data.records):
        return data
    numbers = {record: number for number, record in enumerate(evenly(range(len(data.records)), count))}
    rows = [dataclasses.replace(row, record=numbers[row.record]) for row in data.rows if row.record in numbers]
    return TaskData([data.records[record] for record in numbers], rows, data.fingerprint)


def segments_of(data: TaskData, recipe: Recipe, vocabulary: Vocabulary) -> int:
    """Number of segments in the first rows; an export needs to know whether the parts of pairs differ in segment."""
    rows = data.rows[:ROWS_SEEN]
    return int(TASKS[recipe.task.kind].lay_out(rows, vocabulary, recipe, None).segment_ids.max()) + 1


def steps_per_epoch(rows: int, batch_size: int) -> int:
    """Steps in which every row is seen once; the last step may have fewer rows."""
    return -(-rows // batch_size)


def check_labels(records: Sequence[Record], recipe: Recipe) -> None:
    """Reject unlabelled training records, which nothing else notices if the recipe names the classes."""
    for record in records:
        TASKS[recipe.task.kind].reference(record, recipe.task)


LITTLE_UNKNOWN, MOST_UNKNOWN = 0.02, 0.5
"""Shares of the targets' characters in [UNK] from which on they are noted, and from which on little else is left to learn."""
TARGETS_SEEN = 1_000
"""Records whose targets are read for [UNK]."""


def check_targets(records: Sequence[Record], recipe: Recipe, tokenizer: Tokenizer) -> None:
    """Refuse training targets that are mostly [UNK] to a model, which it never learns to write; warn of some [UNK]."""
    if not TASKS[recipe.task.kind].generates:
        return
    most = None if recipe.generation.targets == "all" else 1
    texts = [text for record in evenly(records, TARGETS_SEEN) for text in targets_of(record, recipe.task)[:most]]
    passages, unknown = encode_passages(texts, tokenizer), tokenizer.vocabulary.unk
    missing = 0
    for each in passages:
        words = np.flatnonzero(each.ids == unknown)
        missing += sum(_letters(each.text[each.starts[word] : each.ends[word]]) for word in words)
    share = missing / max(1, sum(map(_letters, texts)))
    said = (
        f"{100 * share:.0f} % of the text of the targets is [UNK] to the model's tokenizer, and [UNK] is never written"
    )
    cure = "use a tokenizer of text like this (`unicloze pretrain --init MODEL --new-tokenizer` gives a model one)"
    if share > MOST_UNKNOWN:
        raise UniclozeError(f"{said}: {cure}")
    if share > LITTLE_UNKNOWN:
        warnings.warn(f"{said}: {cure}", RecordsNote, stacklevel=3)


def _letters(text: str) -> int:
    """Characters of a text but for white space."""
    return len("".join(text.split()))


Origin = Mapping[str, str | None]
"""Fingerprints of the model and files that a run started with; None for those it lacks."""


def origin_of(start: LoadedModel, train: TaskData, dev: TaskData | None, teacher: str | None = None) -> Origin:
    """Fingerprints of the models and files of a new run."""
    origin: dict[str, str | None] = {} if teacher is None else {"teacher": teacher}
    origin |= {} if train.unlabelled is None else {"unlabelled text": train.unlabelled.fingerprint}
    files = {"training file": train.fingerprint, "development file": None if dev is None else dev.fingerprint}
    return {**origin, **files, "model": model_fingerprint(start)}


def model_fingerprint(model: LoadedModel) -> str:
    """SHA-256 of a model's vocabulary and weights."""
    return fingerprint(model.tokenizer, model.model.state_dict())


def refuse_other_origin(former: Origin, now: Origin, out: Path) -> None:
    """Reject resuming a run with other records or another model: its evaluations would not be comparable."""
    other = next((what for what in {**now, **former} if former.get(what) != now.get(what)), None)
    if other is not None:
        changed = f"{out} holds a run with another {other}, or one that has changed since"
        raise UniclozeError(f"{changed}: give the new run another --out")


def unlabelled_text(recipe: Recipe, tokenizer: Tokenizer) -> TaskData | None:
    """The unlabelled text of a recipe, with targets for every view; None without any."""
    if not recipe.finetuning.unlabelled:
        return None
    data = encoded(unlabelled_records(recipe), recipe, tokenizer, answers=False)
    return dataclasses.replace(data, rows=with_views(data.rows, recipe))


def finetuning_steps(
    data: TaskData, recipe: Recipe, vocabulary: Vocabulary, device: str, first_step: int, own: Own = every
) -> Iterator[list[MicroBatch]]:
    """The micro-batches of each step from `first_step` to the last; a function of the seed and the step only.

    Each epoch visits the rows in a random order. The rows of a step are packed end to end in buckets of similar length,
    which changes the padding but not the gradient. Each part of them is followed by its rows for the auxiliary objective, if
    there is one, or by none if one forward pass serves both. With unlabelled text, every second step has rows of that text,
    which has its own epochs.
    """
    batch_size, seed, weights = recipe.training.batch_size, recipe.training.seed, recipe.finetuning.auxiliary
    objective = auxiliary_objective(recipe) if weights else None
    mixture = Mixture.of(data.records, data.rows, recipe.task)
    turns = None
    if mixture is not None and recipe.task.kind == TAGGING:
        turns = Turns.of(mixture, recipe.training.steps, seed)
    for step in range(first_step, recipe.training.steps):
        turn, unlabelled = divmod(step, recipe.finetuning.steps_between)
        text = data.unlabelled if unlabelled and data.unlabelled is not None else data
        beside = None if unlabelled else objective
        epoch, number = divmod(turn, steps_per_epoch(len(text.rows), batch_size))
        places = np.arange(number * batch_size, min((number + 1) * batch_size, len(text.rows)))
        if mixture is None or unlabelled:
            purpose = keyed.Purpose.UNLABELLED_ORDER if unlabelled else keyed.Purpose.RECORD_ORDER
            chosen = keyed.permutation(places, len(text.rows), keyed.key(seed, purpose, epoch)[0])
        else:
            chosen = mixture.rows(places, epoch, seed) if turns is None else turns.rows(turn, batch_size, seed)
        places = number * batch_size + np.arange(len(chosen))  # several taggers draw a whole batch each time
        order = np.argsort([-text.rows[number].slots for number in chosen], kind="stable")
        chosen, places, most = chosen[order], places[order], recipe.training.micro_batch_size or len(chosen)
        cuts = [slice(first, first + most) for first in range(0, len(chosen), most)]
        together = 1 if beside is None else 2
        mine = own([*range(together)] * len(cuts))
        step_batches: list[MicroBatch] = []
        for place, cut in enumerate(cuts):
            numbers = chosen[cut]
            visits = () if mixture is None or unlabelled else (places[cut],)  # a mixture may visit a row again
            wanted = [together * place + part in mine for part in range(together)]
            made = absent = [MicroBatch(Examples.none(), None, part=part) for part in range(together)]
            if any(wanted):
                keys = keyed.key(seed, keyed.Purpose.RECORD, epoch, numbers, *visits)
                made = [_micro_batch(text, numbers, recipe, vocabulary, keys, device)]
                if unlabelled:
                    made = [dataclasses.replace(made[0], dropout=recipe.finetuning.unlabelled_dropout)]
            if any(wanted) and beside is not None:
                keys = keyed.key(seed, keyed.Purpose.RECORD_OF_AUXILIARY, epoch, numbers, *visits)
                made = with_auxiliary(made[0], beside, weights, vocabulary, keys)
            step_batches += [made[part] if wanted[part] else absent[part] for part in range(together)]
        yield step_batches


def buckets_by_length(rows: Sequence[Any], most_slots: int) -> Iterator[Int64s]:
    """Indices of all rows, longest first, in buckets of at most `most_slots` slots including padding."""
    lengths = np.array([row.slots for row in rows])
    order, first = np.argsort(-lengths, kind="stable"), 0
    while first < len(order):
        count = max(1, most_slots // int(lengths[order[first]]))
        yield order[first : first + count]
        first += count


def _micro_batch(
    data: TaskData, numbers: Int64s, recipe: Recipe, vocabulary: Vocabulary, keys: keyed.Bits, device: str
) -> MicroBatch:
    rows = [data.rows[number] for number in numbers]
    examples = TASKS[recipe.task.kind].lay_out(rows, vocabulary, recipe, keys)
    others = f" and {len(rows) - 1} more records" if len(rows) > 1 else ""
    place = f"{data.records[rows[0].record].place}{others}"
    buckets = bucket_sizes(examples.lengths, bucket_cost(device))
    return MicroBatch(examples, None, recipe.objective.coefficients, place, buckets)


SEQUENCE = 2**20 + 9
"""Stream of the keys of sequences packed into one row."""
OF_A_ROW = "ae", "par", "lm", "diffusion", "sbo"
"""Targets that a single row has: neither segment-pair relations nor tokens replaced by a generator."""


def auxiliary_objective(recipe: Recipe) -> ObjectiveSettings:
    """The part of the objective that predicts the auxiliary targets with the visibility of the task's rows.

    In a mixture this is the first such part, such as the bidirectional one of UniLM v1's four.
    """
    wanted, reads = recipe.finetuning.auxiliary, recipe.use.visibility
    known: dict[str, None] = {}
    for part in parts(recipe.objective):
        settings = part.settings
        if settings.reading.visibility != reads:
            continue
        known |= dict.fromkeys(name for name in settings.targets if name in OF_A_ROW)
        if not set(wanted) <= known.keys() & set(settings.targets):
            continue
        longest = positions(settings, recipe.task.max_length)
        if recipe.model.max_positions is not None and longest > recipe.model.max_positions:
            needs = f"needs {longest} positions for rows of {recipe.task.max_length} tokens"
            has = f"the model has {recipe.model.max_positions}"
            raise UsageError(f"finetuning.auxiliary {needs}, but {has}: lower {option_of('task.max_length')}")
        targets = [name for name in settings.targets if name in wanted]
        alone = dataclasses.replace(settings, targets=targets)
        return dataclasses.replace(alone, pairs="contiguous") if isinstance(alone, Pairs) else alone
    has = f"with {reads} visibility has {' and '.join(known) or 'no target that a single row has'}"
    cure = f"train on the task alone with {option_of('finetuning.auxiliary')} '{{}}', or start from one trained for it"
    raise UsageError(f"finetuning.auxiliary names {', '.join(wanted)}, but the model's objective {has}: {cure}")


def with_auxiliary(
    batch: MicroBatch,
    objective: ObjectiveSettings,
    weights: Mapping[str, float],
    vocabulary: Vocabulary,
    keys: keyed.Bits,
) -> list[MicroBatch]:
    """A micro-batch of a task, and its rows as an objective lays them out."""
    examples = make_examples(_windows(batch.examples, vocabulary, keys), vocabulary, objective)
    if not _alike(batch.examples, examples):
        buckets = batch.buckets if len(examples) == len(batch.examples) else ()
        return [batch, MicroBatch(examples, None, weights, batch.place, buckets, repeats=True, part=1)]
    both = dataclasses.replace(batch.examples, targets={**batch.examples.targets, **examples.targets})
    merged = dataclasses.replace(batch, examples=both, coefficients={**batch.coefficients, **weights})
    return [merged, MicroBatch(Examples.none(), None, part=1)]


def _windows(examples: Examples, vocabulary: Vocabulary, keys: keyed.Bits) -> Windows:
    """The sequences of a task's rows as windows of text."""
    real = np.arange(examples.input_ids.shape[1]) < examples.lengths[:, None]
    row, slot = np.nonzero(real & (examples.position_ids == 0))  # where each sequence begins
    following = np.append(slot[1:], 0)
    ends = np.where(np.append(row[1:], -1) == row, following, examples.lengths[row])
    lengths = (ends - slot).astype(np.int32)
    inner = np.arange(lengths.max(initial=1))
    taken = inner < lengths[:, None]
    at = row[:, None], np.minimum(slot[:, None] + inner, examples.input_ids.shape[1] - 1)
    plain = (examples.kinds[at] == Kind.CONTEXT) & (examples.position_ids[at] == inner)
    if lengths.sum() != examples.lengths.sum() or not plain[taken].all():
        raise UsageError("finetuning.auxiliary needs rows of plain text only, unlike those of this task: leave it out")
    token_ids = np.where(taken, examples.input_ids[at], vocabulary.pad).astype(np.int32)
    first = np.searchsorted(row, np.arange(len(examples)))
    return Windows(
        token_ids=token_ids,
        segment_ids=np.where(taken, examples.segment_ids[at], 0).astype(np.int32),
        lengths=lengths,
        maskable=taken & ~np.isin(token_ids, vocabulary.special),
        keys=keyed.bits(keys[row], SEQUENCE, np.arange(len(row)) - first[row]) if len(row) > len(keys) else keys,
        source=np.zeros(len(row), dtype=np.int32),
        index=np.arange(len(row), dtype=np.int64),
    )


def _alike(one: Examples, other: Examples) -> bool:
    """Whether two blocks have the same slots with the same visibility, ignoring padding."""
    if one.local is not None or other.local is not None or not np.array_equal(one.lengths, other.lengths):
        return False
    real = np.arange(one.lengths.max(initial=0)) < one.lengths[:, None]
    columns = ("input_ids", "position_ids", "segment_ids", "intervals")
    pairs = [[getattr(each, name)[:, : real.shape[1]][real] for each in (one, other)] for name in columns]
    return all(np.array_equal(*pair) for pair in pairs)


def check_views(recipe: Recipe) -> None:
    """Reject views that the model or the task does not have."""
    task, finetuning = recipe.task, recipe.finetuning
    lstms, other = "bidirectional LSTMs", "give a model such as cvt (model.directions bidirectional)"
    both_ways = recipe.model.kind == "recurrent" and recipe.model.directions == "bidirectional"
    if isinstance(task, Headed) and task.layers == "all" and not both_ways:
        raise UsageError(f"task.layers is all, which only {lstms} have: set it to last, or {other}")
    if not finetuning.unlabelled:
        return
    if not isinstance(task, TaggingSettings):
        why = "the auxiliary decoders of cross-view training for translation are not done"
        only = f"hides the text on one side of a word, so it is for tagging only ({why})"
        raise UsageError(f"finetuning.unlabelled {only}, and task.kind is {task.kind}: leave it out")
    if not both_ways:
        raise UsageError(f"finetuning.unlabelled needs {lstms}, whose first layer has the views: {other}")
    if task.encoder_size:
        why = "and a biLSTM before a head reads the whole sentence: set task.encoder_size to 0"
        raise UsageError(f"finetuning.unlabelled needs heads that see no more than their view, {why}")
    dropouts = {f"model.{name}": value for name, value in vars(recipe.model).items() if "dropout" in name}
    dropouts["task.head_dropout"] = task.head_dropout or 0.0
    if high := [name for name, value in dropouts.items() if value * finetuning.unlabelled_dropout >= 1]:
        given = f"finetuning.unlabelled_dropout is {finetuning.unlabelled_dropout:g}"
        raise UsageError(f"{given}, which makes {high[0]} 1 or more: lower it")
    if recipe.training.on_spike != "accept":
        why = "those on unlabelled text (finetuning.unlabelled) are much smaller at first: set it to accept"
        raise UsageError(f"training.on_spike compares the gradients of all steps, and {why}")
    if recipe.distillation.teacher is not None:
        cure = "leave it out, or leave out distillation.teacher"
        raise UsageError(f"with finetuning.unlabelled the model teaches itself: {cure}")


def unlabelled_records(recipe: Recipe) -> list[Record]:
    """The unlabelled records of a recipe: lines of .txt files, split into words, and records of other files."""
    records: list[Record] = []
    for name in recipe.finetuning.unlabelled:
        for file in record_files(Path(name)):
            records += _lines(file, recipe) if kind_of(file) == ".txt" else read_records(file, recipe.task)
    if not records:
        files = ", ".join(recipe.finetuning.unlabelled)
        raise UniclozeError(f"{files}: there is no text: give {option_of('finetuning.unlabelled')} other files")
    return records


def _lines(file: Path, recipe: Recipe) -> Iterator[Record]:
    for number, line in enumerate(read_text(file).split("\n"), 1):
        if line.strip():
            yield dataclasses.replace(record_of_texts([line], recipe), id=str(number), place=f"{file}, line {number}")


def with_views(rows: Sequence[Row], recipe: Recipe) -> list[Row]:
    """The rows with a target for the primary head and one for each view, which learns from it."""
    found = []
    for row in rows:
        targets = dict(row.targets)
        for name, target in row.targets.items():
            for view in recipe.finetuning.views:
                slots = target.slots
                if VIEWS[view].direction is not None:
                    slots = [[VIEWS[view].slot(first, end)] for first, end in target.units]
                targets[of_view(name, view)] = RowTarget(slots=slots, labels=None)
        found.append(dataclasses.replace(row, targets=targets))
    return found


class OwnTeacher:
    """Replaces the targets of unlabelled batches: the primary heads' by soft labels for the auxiliary ones."""

    def __init__(self, model: UnifiedModel, recipe: Recipe) -> None:
        self._model, self._views = model, recipe.finetuning.views
        self._primary = list(TASKS[recipe.task.kind].heads(recipe.task))

    def __call__(self, batch: Batch, compute: Compute) -> Batch:
        """The batch with the views' targets alone; a labelled batch is returned as it is."""
        asked = {name: batch.targets[name] for name in self._primary if of_view(name, self._views[0]) in batch.targets}
        if not asked:
            return batch
        with torch.no_grad(), compute.autocast():
            found = self._model.predicted_outputs(dataclasses.replace(batch, targets=asked))
        soft = {name: SoftLabels(outputs, temperature=1.0, weight=1.0) for name, outputs in found.items()}
        names = {of_view(name, view): name for name in asked for view in self._views}
        targets = {of: dataclasses.replace(batch.targets[of], soft=soft[name]) for of, name in names.items()}
        return dataclasses.replace(batch, targets=targets)
