"""Settings of every objective, windows of one segment, rows as text, and a plain training loop."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

import toys
from toys import EOS, PAD, SOS
from unicloze import keyed
from unicloze.example import Examples, Kind, Target, collate
from unicloze.objectives import settings_of
from unicloze.settings import ObjectiveSettings
from unicloze.text.tokenizers import Tokenizer, whitespace_tokenizer
from unicloze.text.vocabulary import Vocabulary
from unicloze.text.windows import Windows, windows_of

V = toys.vocabulary(90, extra=30)
COLUMNS = "input_ids", "position_ids", "segment_ids", "kinds", "steps", "intervals"
"""The columns of a row's slots."""
PLAIN: dict[str, Any] = {"mask_share": 1.0, "random_share": 0.0}
SPANS: dict[str, Any] = {"masking": "geometric", "max_span": 4, "mask_rate": 0.3}


def masked_by(visibility: str, **others: Any) -> ObjectiveSettings:
    """A masked language model that shows a mask at every masked position."""
    return settings_of(**{"name": "masked", "targets": ["ae"], "visibility": visibility} | PLAIN | others)


def diffusion_of(size: int | None = None) -> ObjectiveSettings:
    """Block diffusion with blocks of that size, or MDLM."""
    if size is None:
        return settings_of("masked_diffusion", targets=["diffusion"])
    return settings_of("block_diffusion", targets=["diffusion"], block_size=size)


def of_text(name: str, **others: Any) -> ObjectiveSettings:
    """An objective with the target `lm`."""
    return settings_of(name, **{"targets": ["lm"]} | others)


PREFIX = of_text("prefix", mask_rate=0.5)
T5 = of_text("span_corruption")
BART = of_text("denoising", mask_rate=0.3)
MASS = of_text("masked_span", mask_rate=0.5)
GPT = of_text("causal", visibility="left_to_right")
XLNET = settings_of("permuted", targets=["par"], factorization="token", mask_rate=0.4)
MPNET = settings_of("compensated", targets=["par"], factorization="token", mask_rate=0.4)
ELECTRA = settings_of(
    "masked", targets=["ae", "rtd"], masking="token", mask_rate=0.3, mask_share=0.85, random_share=0.0
)
CASES: dict[str, ObjectiveSettings] = {
    "unilmv2": settings_of(mask_rate=0.4),
    "unilmv2, ae": settings_of(targets=["ae"], mask_rate=0.4),
    "unilmv2, par": settings_of(targets=["par"], mask_rate=0.4),
    "unilmv2, ar": settings_of(factorization="token", mask_rate=0.4),
    "unilmv2, no masks in context": settings_of(targets=["par"], mask_rate=0.4, masks_in_context=False),
    **{f"masked, {name}": masked_by(name, **SPANS) for name in ("left_to_right", "right_to_left", "prefix")},
    "spanbert": masked_by("bidirectional", **SPANS | {"targets": ["ae", "sbo"]}),
    "spanbert, left_to_right": masked_by("left_to_right", **SPANS | {"targets": ["ae", "sbo"]}),
    "words": settings_of("masked", targets=["ae"], mask_unit="word", corruption_unit="span", masking="ngram"),
    "electra": ELECTRA,
    "gpt": GPT,
    "gpt, right_to_left": dataclasses.replace(GPT, visibility="right_to_left"),
    "gpt-3": dataclasses.replace(GPT, local_width=5),
    "elmo": settings_of("bidirectional_lm", targets=["lm", "lm_back"]),
    "mdlm": diffusion_of(),
    **{f"bd3lm, {size}": diffusion_of(size) for size in (1, 4, 100)},
    "prefix": PREFIX,
    "UL2's S": dataclasses.replace(PREFIX, mask_rate=0.25, mode_token=28),
    "T5": dataclasses.replace(T5, mask_rate=0.4),
    "UL2's X": dataclasses.replace(T5, mask_rate=0.5, mode_token=29),
    "BART": dataclasses.replace(BART, mask_rate=0.5, noise=["infill"]),
    "all noise": dataclasses.replace(BART, noise=["rotate", "permute_sentences", "infill", "delete", "mask"]),
    "MASS": dataclasses.replace(MASS, **PLAIN),
    "xlnet": XLNET,
    "xlnet, blocks": dataclasses.replace(XLNET, factorization="block"),
    "mpnet": MPNET,
    "mpnet, blocks": dataclasses.replace(MPNET, factorization="block"),
}
"""Every objective, with each setting that decides which slots there are or what they read."""
SEQ2SEQ = [name for name, settings in CASES.items() if settings.name in (PREFIX.name, T5.name, BART.name, MASS.name)]


def some_windows(rows: int, window: int, seed: int = 0, *, short: bool = True) -> Windows:
    """Two segments, short rows among them, no sentinels of `V` in the text."""
    windows = toys.random_windows(rows, window, vocab=53, seed=seed, short=short)
    return dataclasses.replace(windows, token_ids=np.where(windows.maskable, windows.token_ids + 30, windows.token_ids))


def changed(windows: Windows, position: int, vocabulary: Vocabulary = V) -> Windows:
    """The only row with another ordinary token at a position."""
    tokens, ordinary = windows.token_ids.copy(), vocabulary.ordinary
    tokens[0, position] = ordinary[(tokens[0, position] - ordinary[0] + 1) % len(ordinary)]
    return dataclasses.replace(windows, token_ids=tokens)


def window_of(ids: list[int], rows: int = 1, segments: list[int] | None = None) -> Windows:
    """The same window in every row, padded if it says so, with other draws in each; ordinary tokens are its text."""
    tokens = np.tile(np.array([ids], dtype=np.int32), (rows, 1))
    return Windows(
        token_ids=tokens,
        segment_ids=np.tile(np.array([segments or [0] * len(ids)], dtype=np.int32), (rows, 1)),
        lengths=np.full(rows, len(ids) - ids.count(PAD), dtype=np.int32),
        maskable=tokens >= toys.FIRST_ORDINARY,
        keys=keyed.key(7, 0, np.arange(rows)),
        source=np.zeros(rows, np.int32),
        index=np.arange(rows),
    )


def repeated(one: Windows, rows: int) -> Windows:
    """The same window many times, each row with its own draws."""
    fields = {f.name: getattr(one, f.name) for f in dataclasses.fields(Windows)}
    copies = {name: np.repeat(value, rows, axis=0) for name, value in fields.items() if value is not None}
    return Windows(**copies | {"keys": keyed.key(1, 2, np.arange(rows))})


def text_windows(rows: int, tokens: int, vocabulary: Vocabulary = V, *, seed: int = 0) -> Windows:
    """Windows "[SOS] text [EOS]" with the given numbers of random text tokens."""
    rng = np.random.default_rng(seed)
    windows = window_of([SOS, *[toys.FIRST_ORDINARY] * tokens, EOS], rows)
    text = vocabulary.ordinary[rng.integers(0, len(vocabulary.ordinary), (rows, tokens))]
    windows.token_ids[:, 1:-1] = text
    return dataclasses.replace(windows, keys=keyed.key(seed, 1, np.arange(rows)))


def rows_of(ids: Any, intervals: Any, targets: dict[str, Target], *, lengths: Any = None, **columns: Any) -> Examples:
    """Rows by hand: positions count up, all slots are of the first segment, and `lengths` are those without padding."""
    rows, slots = ids.shape
    lengths = np.full(rows, slots, np.int32) if lengths is None else lengths
    place, blank = np.arange(slots, dtype=np.int32), np.zeros_like(ids)
    kinds = np.where(place < lengths[:, None], Kind.CONTEXT, Kind.PADDING).astype(np.uint8)
    rest = dict(position_ids=np.tile(place, (rows, 1)), segment_ids=blank, steps=blank - 1, mutual=lengths)
    rest |= {"kinds": kinds, "lengths": lengths, "text_tokens": lengths}
    return Examples(input_ids=ids, intervals=intervals, targets=targets, **rest | columns)


def target_of(slots: Any, labels: Any) -> Target:
    """Predictions of weight 1. *Shape:* (rows, predictions)"""
    slots, labels = np.asarray(slots, np.int32), np.asarray(labels, np.int32)
    return Target(slots=slots, labels=labels, weights=np.ones(labels.shape, np.float32))


def row_of(
    ids: Any, ends: Any, slots: Any, labels: Any, *, target: str = "lm", mutual: int = 0, **columns: Any
) -> Examples:
    """One row by hand whose slot q reads the keys before `ends[q]`, with one target."""
    intervals = np.zeros((1, len(ids), 4), np.int32)
    intervals[0, :, 1] = ends
    more = {name: np.array([values], np.int32) for name, values in columns.items()}
    targets = {target: target_of([slots], [labels])}
    return rows_of(np.array([ids], np.int32), intervals, targets, mutual=np.array([mutual], np.int32), **more)


def infilling(wanted: int, tokens: int, mean: float, most: int) -> dict[tuple[int, ...], float]:
    """Probability of each source of the text 0, 1, ...; -1 is a mask. All draws of up to `most` spans are enumerated."""
    poisson = [math.exp(-mean) * mean**k / math.factorial(k) for k in range(wanted)]
    chances: Counter[tuple[int, ...]] = Counter()

    def draw(lengths: tuple[int, ...], chance: float) -> None:
        left = wanted - sum(lengths)
        if len(lengths) < most:
            for length in range(left):
                draw((*lengths, length), chance * poisson[length])
        finished = (*lengths, left), chance * (1 - sum(poisson[:left]))
        for last in range(len(finished[0])):
            arrange(finished[0], last, finished[1] / len(finished[0]))

    def arrange(lengths: tuple[int, ...], last: int, chance: float) -> None:
        order = list(lengths)
        order[last], order[-1] = order[-1], order[last]
        items = len(order) + tokens - wanted
        ways = list(itertools.combinations(range(items), len(order)))
        for places in ways:
            source, position, rest = [], 0, list(order)
            for item in range(items):
                source.append(-1 if item in places else position)
                position += rest.pop(0) if item in places else 1
            chances[tuple(source)] += chance / len(ways)

    draw((), 1.0)
    return chances


def spoken(text: str, rows: int = 1, extra: int = 4) -> tuple[Windows, Tokenizer]:
    """The same text in every row, and the tokenizer that spells it."""
    tokenizer = whitespace_tokenizer(text, extra)
    ids = tokenizer.encode_batch([text])[0]
    return windows_of([[ids]] * rows, tokenizer.vocabulary, keys=keyed.key(5, np.arange(rows))), tokenizer


def spelled(examples: Examples, tokenizer: Tokenizer, row: int = 0) -> str:
    """A row as text, with a bar between source and target."""
    ids, source = examples.input_ids[row, : examples.lengths[row]], int(examples.mutual[row])
    return f"{' '.join(tokenizer.tokens(ids[:source]))} | {' '.join(tokenizer.tokens(ids[source:]))}"


def predicted(examples: Examples, tokenizer: Tokenizer, row: int = 0) -> str:
    """What each slot of a row predicts, as text: "slot's token -> answer"."""
    target = examples.targets["lm"]
    real = target.weights[row] > 0
    shown = tokenizer.tokens(examples.input_ids[row, target.slots[row, real]])
    return ", ".join(f"{a} -> {b}" for a, b in zip(shown, tokenizer.tokens(target.labels[row, real]), strict=True))


def picture(mask: Any) -> list[str]:
    """Rows of a boolean matrix as text, with 1 where a slot reads a key."""
    return ["".join(map(str, row)) for row in np.asarray(mask).astype(int)]


def equally_likely(outcomes: Iterable[Any], number: int) -> Counter[Any]:
    """Check that there are so many different outcomes, each as often as chance says, and count them."""
    counts = Counter(outcomes)
    error = 4.5 * math.sqrt((1 - 1 / number) / number / counts.total())
    assert len(counts) == number and all(abs(count / counts.total() - 1 / number) <= error for count in counts.values())
    return counts


def train(model: Any, make: Callable[[int], Examples], *, steps: int, rate: float) -> None:
    """Train a model on what `make` gives for each step, with the mean losses of all targets added."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / 30, max(0.02, 1.1 - step / steps))
    )
    for step in range(steps):
        optimizer.zero_grad()
        torch.stack([loss.total / loss.weight for loss in model(collate(make(step))).values()]).sum().backward()
        optimizer.step()
        schedule.step()
