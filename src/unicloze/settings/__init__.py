"""All settings of a run, as dataclasses that import neither torch nor numpy.

A recipe is a YAML file that mirrors these classes; the command line overrides single values by their dotted name
(`--training.steps 100`). Defaults follow the UniLMv2 paper where it states a value. A field is declared with its rules: its
valid values, and what it needs to have an effect (`unicloze.rules`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Self

from unicloze.rules import AT_LEAST_ONE, Problem, ReadBy, Rule, setting
from unicloze.settings.sections import DEVICE as DEVICE
from unicloze.settings.sections import PYTHON_DOCS as PYTHON_DOCS
from unicloze.settings.sections import SHORTEST_ROW as SHORTEST_ROW
from unicloze.settings.sections import Auto as Auto
from unicloze.settings.sections import DataSettings as DataSettings
from unicloze.settings.sections import DecodingSettings as DecodingSettings
from unicloze.settings.sections import DistillationSettings as DistillationSettings
from unicloze.settings.sections import FinetuningSettings as FinetuningSettings
from unicloze.settings.sections import GenerationSettings as GenerationSettings
from unicloze.settings.sections import HeadName as HeadName
from unicloze.settings.sections import HeadSettings as HeadSettings
from unicloze.settings.sections import Mode as Mode
from unicloze.settings.sections import ModelSettings as ModelSettings
from unicloze.settings.sections import Order as Order
from unicloze.settings.sections import Pairing as Pairing
from unicloze.settings.sections import Pooling as Pooling
from unicloze.settings.sections import Precision as Precision
from unicloze.settings.sections import PredictionFormat as PredictionFormat
from unicloze.settings.sections import Projection as Projection
from unicloze.settings.sections import TaskPooling as TaskPooling
from unicloze.settings.sections import TokenizerSettings as TokenizerSettings
from unicloze.settings.sections import TrainingSettings as TrainingSettings
from unicloze.settings.sections import UseSettings as UseSettings
from unicloze.settings.sections import ViewName as ViewName
from unicloze.settings.sections import chosen as chosen


class Reading(NamedTuple):
    """How rows of an objective read a text.

    Args:
        visibility: Which slots each slot attends to.
        segment_ids: Ids of the first and the second segment; 0 and 1 if None.
        local_width: Number of slots to the left that local layers attend to; None if the objective sets none.
    """

    visibility: str = "bidirectional"
    segment_ids: Sequence[int] | None = None
    local_width: int | None = None

    @property
    def segments(self) -> tuple[int, int]:
        """Ids of the first and the second segment; a single id applies to both."""
        ids = self.segment_ids or (0, 1)
        return ids[0], ids[-1]


class WindowNeeds(NamedTuple):
    """What an objective requires of its windows.

    Args:
        pairs: How the second segment relates to the first.
        static_copies: Passes over the corpus after which the random draws of a window repeat; never if None.
        phrases: Whether phrases must be marked.
        spans: Whether the spans that documents give must be marked.
    """

    pairs: Pairing = "contiguous"
    static_copies: int | None = None
    phrases: bool = False
    spans: bool = False


class Bounds(NamedTuple):
    """Upper bounds on the size of an objective's rows.

    Args:
        slots: Slots of the row.
        predictions: Predicted tokens.
        positions: Positions of its slots.
        sentinels: Distinct sentinels.
    """

    slots: int
    predictions: int
    positions: int
    sentinels: int = 0


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Where the values of a recipe come from.

    Args:
        paper: Title of the paper.
        place: Section, table and row.
        note: What the paper leaves open and what the recipe chooses.
    """

    paper: str = ""
    place: str = ""
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class ObjectiveSettings:
    """What is masked, in which order it is predicted, and what is shown in its place.

    These settings are common to all objectives. Each objective has a subclass, next to its functions, with its own settings;
    it also defines how rows are made and read (the properties and methods here) and which values are valid.

    Args:
        name: The objective: a key of `unicloze.objectives.OBJECTIVES`; `none` for an imported encoder that is not trained
            here.
        targets: What is predicted: `ae` every masked token from the context alone (equation 3), `par` step by step
            (equation 6), `lm` the next token, `lm_back` the one before (ELMo), `diffusion` noised tokens, `nsp` and `sop` how
            two segments relate, `sbo` a span's tokens from its boundary (SpanBERT), `rtd` which tokens were replaced
            (ELECTRA).
        static_copies: Number of passes over the corpus after which masks repeat (BERT); default: masks never repeat.
        mixture: Parts of a mixture, each a mapping of the settings that differ from these, with `share` (its share of the
            rows of every step; default 1, shares are scaled to sum to 1), `label` (default: its name) and `evaluate`
            (whether it is evaluated on held-out text; default true).
        coefficients: Factor of each target's loss; default: 1.
    """

    name: str = "unilmv2"
    targets: list[str] = setting(["ae", "par"])
    static_copies: int | None = setting(None, AT_LEAST_ONE, ReadBy())
    mixture: list[dict[str, Any]] = setting([])
    coefficients: dict[str, float] = setting({}, ReadBy())

    known_targets: ClassVar[tuple[str, ...]] = ()
    """Targets that the objective supports."""
    trains: ClassVar[bool] = True
    """Whether it can train a model; if not, it needs no target."""
    in_order: ClassVar[bool] = False
    """Whether the slots of a row are in text order, as local attention layers need."""
    rules: ClassVar[tuple[Rule, ...]] = (ReadBy(("inspect",)),)
    """Rules of all its settings."""

    @property
    def reading(self) -> Reading:
        """How the rows read a text."""
        return Reading()

    @property
    def windows(self) -> WindowNeeds:
        """What the objective requires of its windows."""
        return WindowNeeds(static_copies=self.static_copies)

    @property
    def rates(self) -> tuple[float, float] | None:
        """Mask rates of the first and the last step; None if the objective has no mask rate."""
        return None

    @property
    def forgets(self) -> str | None:
        """Why rows cannot use the memory of earlier rows; None if they can."""
        return None

    def bounds(self, window: int, rates: Collection[float] = ()) -> Bounds:
        """Upper bounds on the size of any row; by default, only of its positions.

        Args:
            window: Length of the windows in tokens, special tokens included.
            rates: Further mask rates of rows, besides those of the settings: all rows of a run have the same width.
        """
        return Bounds(slots=window, predictions=window, positions=window)

    def without_noise(self) -> Self:
        """The settings with a mask at every masked position: showing other tokens would inflate held-out scores."""
        return self

    def problems(self, recipe: Recipe) -> Iterator[Problem]:
        """Invalid values in a recipe without parts and phases: the key and what its value must be."""
        known = self.known_targets
        if (self.trains and not self.targets) or not set(self.targets) <= set(known):
            yield "objective.targets", f"name at least one of {', '.join(map(repr, known))}"
        if len(set(self.targets)) < len(self.targets):
            yield "objective.targets", "name each target once; objective.coefficients weighs them"
        for target, coefficient in self.coefficients.items():
            if target not in self.targets:
                yield "objective.coefficients", f"'{target}' is not one of objective.targets {self.targets}"
            elif not 0 <= coefficient < math.inf:
                yield "objective.coefficients", f"the factor of '{target}' must not be negative"


@dataclass(frozen=True, kw_only=True)
class TaskSettings:
    """How labelled records are read and become rows, for fine-tuning.

    These settings are common to all tasks. Each kind has a subclass, next to its functions, with its own settings and their
    valid values.

    Args:
        kind: A key of `unicloze.tasks.TASKS`; empty in a recipe for pre-training.
        format: File format: a key of `unicloze.records.FORMATS`, or `auto` to choose by file name (.jsonl, .tsv, .csv, .json,
            also .gz).
        fields: Field of the file for each of the task's roles (`text`, `pair`, `label`, ...); default: the role's name.
        optional: Optional roles in the records: `pair`, `question` (choice), `predicate` (tagging); default: those found in
            the training file. Other files must have the same.
        metrics: Metrics on the development file, keys of `unicloze.evaluation.metrics.registry.METRICS`; the first one
            selects the best checkpoint.
        max_length: Maximum tokens per row, special tokens included; longer texts are cut or windowed.
        metric_options: Metric options by name, such as `profile`; each metric receives those it has.
        evaluate_records: Number of records of the development file to evaluate on, evenly spread over it; default: all.
        train_records: Number of records of the training file to train on, evenly spread over it; default: all.
    """

    kind: str = ""
    format: str = "auto"
    fields: dict[str, str] = setting({})
    optional: list[str] | None = None
    metrics: list[str] = setting([])
    max_length: int = 128
    metric_options: dict[str, str] = setting({})
    evaluate_records: int | None = setting(None, AT_LEAST_ONE)
    train_records: int | None = setting(None, AT_LEAST_ONE)

    def problems(self, recipe: Recipe) -> Iterator[Problem]:
        """Invalid values in a recipe: the key and what its value must be."""
        if not self.metrics:
            yield "task.metrics", "name at least one metric; the first selects the best checkpoint"
        if self.max_length < SHORTEST_ROW:
            yield "task.max_length", f"the special tokens and some text need {SHORTEST_ROW} or more"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A complete, reproducible run, as stored in `recipes/*.yaml` and `RUN/recipe.yaml`.

    A recipe with a task fine-tunes: data, tokenizer, objective and model are those of the model it starts from.
    """

    name: str = "unnamed"
    provenance: Provenance = field(default_factory=Provenance)
    data: DataSettings = field(default_factory=DataSettings)
    tokenizer: TokenizerSettings = field(default_factory=TokenizerSettings)
    objective: ObjectiveSettings = field(default_factory=ObjectiveSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    distillation: DistillationSettings = field(default_factory=DistillationSettings)
    use: UseSettings = field(default_factory=UseSettings)
    task: TaskSettings = field(default_factory=TaskSettings)
    generation: GenerationSettings = field(default_factory=GenerationSettings)
    decoding: DecodingSettings = field(default_factory=DecodingSettings)
    finetuning: FinetuningSettings = field(default_factory=FinetuningSettings)

    def to_dict(self) -> dict[str, Any]:
        """This recipe as plain dictionaries and lists, for YAML and JSON."""
        return dataclasses.asdict(self)
