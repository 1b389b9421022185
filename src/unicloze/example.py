"""Examples: rows of slots with visibility and prediction targets, and the batches made of them.

Objectives and tasks make `Examples`, a block of rows as NumPy arrays; `collate` turns it into a `Batch`, tensors on a
device. The backbone and the training loop see nothing else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from unicloze.arrays import Flags, Int32s
from unicloze.errors import UniclozeError
from unicloze.visibility import NOTHING_NEARBY, Intervals, bool_mask

if TYPE_CHECKING:
    import torch


WITHOUT_TOKENS: Collection[str] = "nsp", "sop", "rtd"
"""Targets of text whose labels are not tokens."""

Block = TypeVar("Block")


def predicts_tokens(target: str) -> bool:
    """Whether a target of text, such as `lm` or `bidirectional.nsp`, predicts tokens: its loss has a perplexity."""
    return target.rpartition(".")[2] not in WITHOUT_TOKENS


def select_rows(block: Block, rows: slice | npt.NDArray[np.integer]) -> Block:
    """Select rows of every array field of a dataclass, including arrays in mappings; None stays None."""

    def cut(column: Any) -> Any:
        if isinstance(column, Mapping):
            return {name: inner[rows] for name, inner in column.items()}
        return None if column is None else column[rows]

    columns = {field.name: cut(getattr(block, field.name)) for field in dataclasses.fields(block)}  # type: ignore[arg-type]
    return type(block)(**columns)


class Kind(IntEnum):
    """What a slot holds."""

    CONTEXT = 0
    """An unmasked token of the window."""
    MASK = 1
    """A masked position of the context: the mask, a random token or the token itself."""
    ORIGINAL = 2
    """The original token of a masked position, read by later steps."""
    PSEUDO = 3
    """The pseudo mask of a masked position, which predicts it."""
    MEMORY = 4
    """A key without a query, from a memory."""
    PADDING = 5
    """Fills up a row; reads only itself, and no other slot reads it."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """Predictions of one target, padded on the right with weight 0."""

    # The slot or slots each prediction is made from, -1 where a prediction has fewer. *Shape:* (rows, predictions) or
    # (rows, predictions, slots per prediction)
    slots: Int32s
    # Expected token or class ids, or float32 quantities. *Shape:* (rows, predictions)
    labels: Int32s | npt.NDArray[np.float32]
    weights: npt.NDArray[np.float32]  # Weight of each prediction in the loss. *Shape:* (rows, predictions)
    # Position of each answer relative to its slots, for heads that use it. *Shape:* (rows, predictions)
    places: Int32s | None = None
    # Contribution of each row to the loss normaliser; default: the sum of its weights. *Shape:* (rows,)
    norms: npt.NDArray[np.float32] | None = None
    # Which predictions count in a perplexity: ordinary tokens that the row does not show elsewhere; default: all.
    # *Shape:* (rows, predictions)
    counted: Flags | None = None

    def __getitem__(self, rows: slice) -> Target:
        return select_rows(self, rows)

    def only(self, kept: npt.NDArray[np.bool_]) -> Target:
        """Keep some predictions, moved left in order; the others get weight 0. *Shape:* (rows, predictions)"""
        order = np.argsort(~kept, axis=1, kind="stable")
        rows = np.arange(len(kept))[:, None]
        return dataclasses.replace(
            self,
            slots=self.slots[rows, order],
            labels=self.labels[rows, order],
            weights=np.where(kept, self.weights, np.float32(0))[rows, order],
            places=None if self.places is None else self.places[rows, order],
            counted=None if self.counted is None else self.counted[rows, order],
        )

    def of_ordinary(self, ordinary: Int32s) -> Target:
        """The target with only ordinary tokens `counted`."""
        counted = np.isin(self.labels, ordinary) & (True if self.counted is None else self.counted)
        return dataclasses.replace(self, counted=None if counted[self.weights > 0].all() else counted)

    @property
    def counted_weight(self) -> float:
        """The share of the normaliser that belongs to the counted predictions."""
        if self.counted is None:
            return self.normaliser
        share = float(self.weights[self.counted].sum()) / max(float(self.weights.sum()), 1e-9)
        return share * self.normaliser

    @property
    def normaliser(self) -> float:
        """Divisor of the summed loss of these rows."""
        return float((self.weights if self.norms is None else self.norms).sum())


@dataclass(frozen=True, kw_only=True)
class Examples:
    """A block of examples. In each row real slots come first, then padding."""

    input_ids: Int32s  # Token id of each slot. *Shape:* (rows, slots)
    position_ids: Int32s  # Position each slot stands for. *Shape:* (rows, slots)
    segment_ids: Int32s  # Segment id of that position. *Shape:* (rows, slots)
    kinds: npt.NDArray[np.uint8]  # `Kind` of each slot. *Shape:* (rows, slots)
    steps: Int32s  # Factorization step, from 0; -1 if none. *Shape:* (rows, slots)
    intervals: Intervals  # Visibility, see `unicloze.visibility`. *Shape:* (rows, slots, 4)
    lengths: Int32s  # Slots of each row that are not padding. *Shape:* (rows,)
    # Number of leading slots that read exactly each other, so that attention among them needs no mask. *Shape:* (rows,)
    mutual: Int32s
    text_tokens: Int32s  # Tokens in the text of each row, special tokens included. *Shape:* (rows,)
    targets: Mapping[str, Target]  # predictions by name
    # Visibility in layers that read only nearby slots; None if there is no such rule. *Shape:* (rows, slots, 4)
    local: Intervals | None = None

    def __len__(self) -> int:
        return len(self.input_ids)

    def __getitem__(self, rows: slice) -> Examples:
        return select_rows(self, rows)

    @classmethod
    def none(cls) -> Examples:
        """A block without rows and targets."""
        slots, rows = np.zeros((0, 1), dtype=np.int32), np.zeros(0, dtype=np.int32)
        return cls(
            input_ids=slots,
            position_ids=slots,
            segment_ids=slots,
            kinds=slots.astype(np.uint8),
            steps=slots,
            intervals=np.zeros((0, 1, 4), dtype=np.int32),
            lengths=rows,
            mutual=rows,
            text_tokens=rows,
            targets={},
        )

    def split(self, rows: int) -> Iterator[Examples]:
        """Cut into blocks of at most `rows` rows."""
        for first in range(0, len(self), rows):
            yield self[first : first + rows]

    def text_slots(self) -> Int32s:
        """Slot of each token of the text, in text order; -1 after its end. *Shape:* (rows, tokens)

        For a masked token this is its original, if the row has one.
        """
        slots = np.full((len(self), int(self.text_tokens.max(initial=0))), -1, dtype=np.int32)
        for kinds in ((Kind.CONTEXT, Kind.MASK), (Kind.ORIGINAL,)):
            row, slot = np.nonzero(np.isin(self.kinds, kinds))
            slots[row, self.position_ids[row, slot]] = slot
        return slots

    def visible(self, row: int) -> npt.NDArray[np.bool_]:
        """Which slots of a row read which, without padding. *Shape:* (slots, slots)"""
        length = int(self.lengths[row])
        mask: npt.NDArray[np.bool_] = bool_mask(self.intervals[row, :length], length)
        return mask


@dataclass(frozen=True)
class SoftLabels:
    """What another model, the teacher, predicts in the place of a target's predictions (Hinton et al. 2015)."""

    # Its logits, or quantities, of each prediction with nonzero weight, row by row. *Shape:* (predictions, outputs)
    outputs: torch.Tensor
    temperature: float  # divisor of both models' logits
    weight: float  # share of the loss from soft labels; the rest is that of the labels


def nonzero(weights: torch.Tensor, count: int) -> torch.Tensor:
    """Indices of `count` nonzero elements of a flattened tensor; to count them there, a GPU would have to be waited for."""
    import torch

    return torch.nonzero_static(weights.flatten(), size=count).squeeze(1)


@dataclass(frozen=True, kw_only=True)
class TargetBatch:
    """A `Target` as tensors, with its normaliser summed over the rows.

    `predictions` of them have a nonzero weight. Missing slots hold 0 and are False in `present`, which is None if no slot is
    missing; without `counted`, all predictions are. In a training step a teacher may add `soft` labels. If rows are packed
    into one, `shapes` has the rows and predictions of each bucket.
    """

    slots: torch.Tensor
    labels: torch.Tensor
    weights: torch.Tensor
    normaliser: float
    predictions: int
    counted_weight: float = 0.0
    counted: torch.Tensor | None = None
    places: torch.Tensor | None = None
    present: torch.Tensor | None = None
    soft: SoftLabels | None = None
    shapes: tuple[tuple[int, int], ...] = ()

    def predicted(self) -> torch.Tensor:
        """Predictions with nonzero weight, numbered row by row. *Shape:* (predictions,)"""
        return nonzero(self.weights, self.predictions)


@dataclass(frozen=True, kw_only=True)
class Leading:
    """The leading slots of a batch, as many as its longest context has; they attend to only a few leading keys."""

    slots: int  # number of leading slots
    keys: int  # number of leading keys they read from
    alike: bool  # whether each of them reads all these keys in every row, so that no mask is needed
    in_order: bool  # Whether their positions are 0, 1, 2, ... in all rows but the shorter ones.
    # Rows with a shorter context, whose leading slots include other kinds; None if there are none. *Shape:* (shorter
    # rows,)
    shorter: torch.Tensor | None

    @classmethod
    def of(cls, examples: Examples) -> Leading:
        """Find the leading slots of a block of examples."""
        import torch

        slots = int(examples.mutual.max(initial=0))
        is_shorter = examples.mutual < slots
        in_order = (examples.position_ids[:, :slots] == np.arange(slots)).all(axis=1)
        return cls(
            slots=slots,
            keys=max(slots, int(examples.lengths[is_shorter].max(initial=0))) if slots else 0,
            alike=not is_shorter.any(),
            in_order=bool(in_order[~is_shorter].all()),
            shorter=torch.from_numpy(np.flatnonzero(is_shorter)) if is_shorter.any() else None,
        )


NO_LEADING = Leading(slots=0, keys=0, alike=True, in_order=True, shorter=None)
"""No leading slots: all slots attend under the mask."""
WIDTHS = 16
"""Multiple of slots in rows of fixed shape."""


@dataclass(frozen=True, kw_only=True)
class Split:
    """Where the source of each row ends, for an encoder-decoder: its leading slots that read exactly each other."""

    lengths: torch.Tensor  # Slots of each source. *Shape:* (rows,)
    slots: int  # slots of the longest source
    rest: int  # largest number of slots after a source
    in_order: bool  # whether the positions of all sources are 0, 1, 2, ..
    causal: bool  # whether each slot after a source reads the source, the slots between and itself
    counts_up: bool  # whether the positions after a source go up by 1 from slot to slot

    @classmethod
    def of(cls, examples: Examples) -> Split:
        """Find the sources of a block of examples."""
        import torch

        sources, slot = examples.mutual[:, None], np.arange(examples.input_ids.shape[1])
        in_source, after = slot < sources, (slot >= sources) & (slot < examples.lengths[:, None])
        position_ids, intervals = examples.position_ids, examples.intervals
        row = np.arange(len(examples))[:, None]
        first = position_ids[row, np.minimum(sources, max(0, len(slot) - 1))]
        reads_past = (intervals[:, :, 0] == 0) & (intervals[:, :, 1] == slot + 1)
        return cls(
            lengths=torch.from_numpy(examples.mutual.astype(np.int64)),
            slots=int(sources.max(initial=0)),
            rest=int((examples.lengths - examples.mutual).max(initial=0)),
            in_order=bool((~in_source | (position_ids == slot)).all()),
            causal=bool((~after | (reads_past & (intervals[:, :, 2] == intervals[:, :, 3]))).all()),
            counts_up=bool((~after | (position_ids - first == slot - sources)).all()),
        )


@dataclass(kw_only=True)
class Memory:
    """Hidden states of the text before each row: keys without queries (segment recurrence, Dai et al. 2019, Section 3.2).

    The forward pass reads a memory and then updates it for the rows that continue these.
    """

    # Inputs of each layer, the token nearest to the row last. *Shape:* (layers, rows, memory, hidden size)
    states: torch.Tensor
    # How many of them a row reads, the last ones; the others are of no text of its own. *Shape:* (rows,)
    lengths: torch.Tensor
    # Whether a row's memory is of the text behind it; None if it never is. *Shape:* (rows,)
    backward: torch.Tensor | None = None

    @property
    def slots(self) -> int:
        """Number of keys per row."""
        return self.states.shape[2]

    def remember(self, states: Sequence[torch.Tensor], text: torch.Tensor) -> None:
        """Append the inputs of each layer in the slots of the text, see `Examples.text_slots`, and keep the newest."""
        import torch

        tokens = (text >= 0).sum(dim=1)
        if self.backward is not None:  # the first token of the text is the nearest to what stands before it
            place = torch.arange(text.shape[1], device=text.device).expand_as(text)
            turned = torch.where(self.backward[:, None], tokens[:, None] - 1 - place, place)
            text = torch.where(place < tokens[:, None], text.gather(1, turned.clamp(min=0)), text)
        place = torch.arange(self.slots, device=text.device) + tokens[:, None]
        appended = text.gather(1, (place - self.slots).clamp(min=0))
        kept = torch.where(place < self.slots, place, self.slots + appended)[:, :, None]
        layers = [
            torch.cat(pair, dim=1) for pair in zip(self.states, (state.detach() for state in states), strict=True)
        ]
        self.states = torch.stack([layer.gather(1, kept.expand(-1, -1, layer.shape[2])) for layer in layers])
        self.lengths = (self.lengths + tokens).clamp(max=self.slots)


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Examples as tensors: the input of the model."""

    input_ids: torch.Tensor  # *Shape:* (rows, slots)
    position_ids: torch.Tensor  # *Shape:* (rows, slots)
    segment_ids: torch.Tensor  # *Shape:* (rows, slots)
    intervals: torch.Tensor  # *Shape:* (rows, slots, 4)
    leading: Leading  # how the leading slots of all rows attend
    targets: Mapping[str, TargetBatch]  # predictions by name
    text_tokens: int  # number of text tokens in all rows
    last_position: int | None = None  # the largest position id; None if only the tensor has it
    split: Split | None = None  # where the sources of the rows end; None where no encoder-decoder reads them
    # Visibility in layers that read only nearby slots; None if there are none. *Shape:* (rows, slots, 4)
    local: torch.Tensor | None = None
    memory: Memory | None = None  # hidden states of the preceding text; None if rows stand alone
    # Slots the memory remembers, see `Examples.text_slots`. *Shape:* (rows, tokens)
    text_slots: torch.Tensor | None = None
    # the buckets concatenated into the only row, see `unicloze.packing`; empty otherwise
    buckets: tuple[Batch, ...] = ()

    @property
    def rows_by_length(self) -> tuple[Batch, ...]:
        """The batches attention processes separately: the buckets, or the batch itself."""
        return self.buckets or (self,)

    def under(self, visibility: str) -> Batch:
        """The batch as seen by layers of one visibility: `full`, or `local` for nearby slots only."""
        if visibility == "full":
            return self
        if self.local is None:
            raise UniclozeError(NOTHING_NEARBY)
        buckets = tuple(bucket.under(visibility) for bucket in self.buckets)
        return dataclasses.replace(self, intervals=self.local, leading=NO_LEADING, buckets=buckets)


def _widened(array: npt.NDArray[Any], slots: int) -> npt.NDArray[Any]:
    """Rows with padding up to some slots; in intervals, padding reads only itself. *Shape:* (rows, slots, ...)"""
    rows, width = array.shape[:2]
    wide = np.zeros((rows, slots, *array.shape[2:]), dtype=array.dtype)
    wide[:, :width] = array
    if array.ndim == 3:
        wide[:, width:, 0] = np.arange(width, slots)
        wide[:, width:, 1] = np.arange(width + 1, slots + 1)
    return wide


def collate(examples: Examples, *, device: torch.device | str = "cpu", fixed_shape: bool = False) -> Batch:
    """Turn a block of examples into a batch.

    Args:
        examples: The rows.
        device: Device of the tensors.
        fixed_shape: Keep the full width of the block, padded to a multiple of `WIDTHS`, and no mask-free leading slots where
            contexts differ, so that all batches have the same shape; otherwise drop columns that are padding in every row.
    """
    import torch

    from unicloze.devices import to_device

    def tensor(array: npt.NDArray[np.generic], dtype: torch.dtype) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(dtype)

    def column(array: npt.NDArray[np.generic], dtype: torch.dtype) -> torch.Tensor:
        return tensor(array[:, :slots] if slots <= width_of_block else _widened(array, slots), dtype)

    width_of_block = examples.input_ids.shape[1]
    slots = -(-width_of_block // WIDTHS) * WIDTHS if fixed_shape else int(examples.lengths.max(initial=1))
    leading = Leading.of(examples)
    if fixed_shape and not leading.alike:
        leading = dataclasses.replace(leading, slots=0, keys=0)  # an encoder still asks which sources are shorter
    targets = {}
    for name, target in examples.targets.items():
        width = target.slots.shape[1]
        if not fixed_shape:
            width = max(1, int((target.weights > 0).sum(axis=1).max(initial=0)))
        numbers = target.slots[:, :width]
        if numbers.ndim == 3 and not fixed_shape:
            used = np.flatnonzero((numbers >= 0).any(axis=(0, 1)))
            numbers = numbers[:, :, : used[-1] + 1 if len(used) else 1]
        present = numbers >= 0
        targets[name] = TargetBatch(
            slots=tensor(np.maximum(numbers, 0), torch.long),
            present=None if present.all() else tensor(present, torch.bool),
            labels=tensor(target.labels[:, :width], torch.long if target.labels.dtype.kind == "i" else torch.float32),
            weights=tensor(target.weights[:, :width], torch.float32),
            places=None if target.places is None else tensor(target.places[:, :width], torch.long),
            normaliser=target.normaliser,
            counted_weight=target.counted_weight,
            counted=None if target.counted is None else tensor(target.counted[:, :width], torch.bool),
            predictions=int(np.count_nonzero(target.weights[:, :width])),
        )
    batch = Batch(
        input_ids=column(examples.input_ids, torch.long),
        position_ids=column(examples.position_ids, torch.long),
        segment_ids=column(examples.segment_ids, torch.long),
        intervals=column(examples.intervals, torch.int32),
        local=None if examples.local is None else column(examples.local, torch.int32),
        leading=leading,
        split=Split.of(examples),
        targets=targets,
        text_tokens=int(examples.text_tokens.sum()),
        last_position=int(examples.position_ids[:, :slots].max(initial=0)),
    )
    return to_device(batch, torch.device(device))
