"""Laws of every objective: rows of their own, targets, who reads whom, leakage through the window, abilities, floors."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import brute_force
import toys
from brute_force import Slot, by_step, group, matrix
from conftest import slow_except
from objective_toys import CASES, COLUMNS, SEQ2SEQ, V, changed, infilling, masked_by, some_windows, text_windows, train
from recurrent_toys import recurrent_model
from toys import MASK, PAD, PSEUDO, random_windows, vocabulary
from unicloze import visibility
from unicloze.errors import UsageError
from unicloze.example import Examples, Kind, collate
from unicloze.mixtures import positions
from unicloze.model.build import build
from unicloze.model.dropout import DropoutKey
from unicloze.objectives import OBJECTIVES, defined, make_examples, settings_of
from unicloze.objectives.row_builder import in_turn
from unicloze.objectives.unilmv2 import UniLMv2Settings
from unicloze.settings import ModelSettings, ObjectiveSettings
from unicloze.text.windows import Windows
from xl_toys import xl_model

every_objective = pytest.mark.parametrize("name", CASES)


def test_all_objectives_are_tried() -> None:
    assert {settings.name for settings in CASES.values()} == set(OBJECTIVES) - {"none"}


# Rows and targets


@every_objective
def test_rows_are_the_same_alone_and_among_others(name: str) -> None:
    """All rows of a run are equally wide, and every draw of a row is keyed by its window."""
    windows = some_windows(40, 30)
    together = make_examples(windows, V, CASES[name])
    for row in (0, 13, 39):
        alone = make_examples(windows[row : row + 1], V, CASES[name])
        assert alone.input_ids.shape[1] == together.input_ids.shape[1]
        for column in (*COLUMNS, "lengths", "mutual"):
            assert np.array_equal(getattr(alone, column)[0], getattr(together, column)[row]), column
        for target, own in alone.targets.items():
            other, real = together.targets[target][row : row + 1], own.weights > 0
            for column in ("weights", "slots", "labels"):
                assert np.array_equal(getattr(own, column)[real], getattr(other, column)[real]), (target, column)
            assert own.weights.sum() == other.weights.sum()
    assert len(make_examples(windows[:0], V, CASES[name])) == 0
    others = make_examples(dataclasses.replace(windows, keys=windows.keys + np.uint64(1)), V, CASES[name])
    drawn = any(not np.array_equal(getattr(others, column), getattr(together, column)) for column in COLUMNS)
    assert drawn == (CASES[name].name not in ("causal", "bidirectional_lm"))


@every_objective
def test_targets_are_real_slots_and_tokens_of_the_window(name: str) -> None:
    windows = some_windows(40, 30, seed=4)
    examples = make_examples(windows, V, CASES[name])
    assert list(examples.targets) == CASES[name].targets
    for target in examples.targets.values():
        real = target.weights > 0
        assert (np.diff(real.astype(int), axis=1) <= 0).all(), "predictions come first"
        assert real.any(axis=1).mean() > (0.6 if "diffusion" in examples.targets else 0.99)
        slots = target.slots.reshape(*real.shape, -1)
        assert (slots[real] < examples.lengths[np.nonzero(real)[0], None]).all()
        for row in range(40):
            tokens = Counter(windows.token_ids[row].tolist())
            answers = Counter(target.labels[row, real[row]].tolist())
            if name in SEQ2SEQ:
                answers = Counter(token for token in answers.elements() if token not in V.special)
            assert not answers - tokens
            predicting = list(map(tuple, slots[row, real[row]].tolist()))
            assert len(set(predicting)) == len(predicting) or target.places is not None


@pytest.mark.parametrize("targets", [["ae"], ["par"], ["ae", "par"]])
@pytest.mark.parametrize("factorization", ["block", "token"])
def test_the_five_variants_of_unilmv2_predict_the_same_tokens(targets: list[str], factorization: str) -> None:
    windows = random_windows(30, 32)
    examples = make_examples(windows, vocabulary(), settings_of(targets=targets, factorization=factorization))
    plain = make_examples(windows, vocabulary(), settings_of())
    masked = [e.targets[t].labels[row][e.targets[t].weights[row] > 0].tolist()
              for e, t in ((examples, targets[0]), (plain, "ae")) for row in range(30)]  # fmt: skip
    assert list(map(sorted, masked[:30])) == list(map(sorted, masked[30:]))
    assert (examples.kinds.shape[1] == 32) == (targets == ["ae"])


# Who reads whom


def definition(
    settings: Any, windows: Windows, examples: Examples, row: int
) -> tuple[list[Slot], Callable[[Slot, Slot], bool]]:
    """The slots of a row in the terms of its paper, and the paper's rule."""
    length, window = int(examples.lengths[row]), int(windows.lengths[row])
    if settings.name in ("masked", "causal"):
        source = int((windows.segment_ids[row, :window] == 0).sum())
        return group("x", length), brute_force.text(settings.visibility, source)
    if settings.name == "bidirectional_lm":
        rules = {"forward": brute_force.text("left_to_right"), "backward": brute_force.text("right_to_left")}
        halves = group("forward", window) + group("backward", window)
        return halves, lambda q, k: q.group == k.group and rules[q.group](q, k)
    if settings.name.endswith("diffusion"):
        size = min(getattr(settings, "block_size", window), window)
        blocks = [min(size, window - start) for start in range(0, window, size)]
        clean = by_step("clean", blocks) if settings.name == "block_diffusion" else []
        return clean + by_step("noised", blocks), brute_force.block_diffusion
    if settings.name in ("unilmv2", "permuted", "compensated"):
        letters = {Kind.CONTEXT: "C", Kind.ORIGINAL: "O", Kind.MASK: "M", Kind.PSEUDO: "P"}
        rule = {"unilmv2": brute_force.pseudo_masked}.get(settings.name) or getattr(brute_force, settings.name)
        letters |= {"unilmv2": {Kind.MASK: "C"}, "permuted": {}, "compensated": {Kind.PSEUDO: "Q"}}[settings.name]
        kinds, steps = examples.kinds[row, :length], examples.steps[row, :length]
        return [Slot(letters[Kind(k)], i, int(s)) for i, (k, s) in enumerate(zip(kinds, steps, strict=True))], rule
    source = int(examples.mutual[row])
    slots = group("source", source) + [Slot("target", place) for place in range(source, length)]
    return slots, brute_force.source_and_target


@every_objective
def test_rows_read_what_the_paper_says_and_padding_reads_itself(name: str) -> None:
    settings, windows = CASES[name], some_windows(30, 24, seed=1)
    examples = make_examples(windows, V, settings)
    width = examples.input_ids.shape[1]
    for row in range(30):
        slots, reads = definition(settings, windows, examples, row)
        length = int(examples.lengths[row])
        assert len(slots) == length
        rules = [(examples.intervals, reads)]
        if examples.local is not None:
            rules.append((examples.local, brute_force.text(settings.visibility, width=settings.local_width)))
        for intervals, rule in rules:
            found = visibility.bool_mask(intervals[row], width)
            assert np.array_equal(found[:length, :length], matrix(slots, slots, rule))
            assert np.array_equal(found[length:], np.eye(width, dtype=bool)[length:])
            assert not found[:length, length:].any()
        assert np.array_equal(examples.visible(row), matrix(slots, slots, reads))
        real = np.arange(width) < length
        assert np.array_equal(examples.kinds[row] != Kind.PADDING, real)
        assert (examples.input_ids[row, ~real] == PAD).all() and (examples.steps[row, ~real] == -1).all()
    assert (examples.local is None) == (getattr(settings, "local_width", None) is None)


# What a prediction sees


MODELS: dict[str, Callable[..., Any]] = {
    "transformer": lambda: toys.model(vocab=90, positions=60, dropout=0.1, attention_dropout=0.1),
    "encoder-decoder": lambda: toys.model(
        vocab=90, positions=60, num_layers=2, decoder_layers=2, dropout=0.1, attention_dropout=0.1
    ),
    "transformer-xl": lambda: xl_model(vocab=90, dropout=0.1, attention_dropout=0.1),
    **{
        f"lstm, {directions}": lambda directions=directions: recurrent_model(
            vocab=90, directions=directions, dropout=0.1, hidden_dropout=0.1, weight_dropout=0.1
        )
        for directions in ("forward", "backward", "both", "bidirectional")
    },
}
LEAKS = [
    *itertools.product([name for name in CASES if name not in ("words", "gpt-3")], ["transformer"]),
    *itertools.product(["xlnet", "xlnet, blocks", "mpnet", "mpnet, blocks"], ["transformer-xl"]),
    *itertools.product(SEQ2SEQ, ["encoder-decoder"]),
    ("gpt", "lstm, forward"), ("gpt, right_to_left", "lstm, backward"), ("elmo", "lstm, both"),
    ("unilmv2, ae", "lstm, bidirectional"),
]  # fmt: skip


Prediction = tuple[str, int]
"""The target of a prediction, and the position of the slot that predicts."""


def predictions(model: Any, examples: Examples, dropout: DropoutKey | None = None) -> tuple[list[Prediction], Tensor]:
    """The predictions of the only row, and the hidden state behind each."""
    batch = collate(examples)
    with torch.no_grad():
        states = model.backbone(batch, select=True, dropout=dropout)[-1][0]
    places = [
        (name, int(examples.position_ids[0, slot]))
        for name, target in batch.targets.items()
        for slot in target.slots[0].flatten().tolist()
    ]
    return places, states


def predicted_steps(examples: Examples) -> tuple[dict[int, int], set[int]]:
    """The step of each position of the only row that is predicted, and the positions among them that show no mask."""
    slots = np.flatnonzero(np.isin(examples.kinds[0], (Kind.MASK, Kind.PSEUDO)))
    places = examples.position_ids[0, slots].tolist()
    shown = ~np.isin(examples.input_ids[0, slots], (MASK, PSEUDO))
    return dict(zip(places, examples.steps[0, slots].tolist(), strict=True)), set(np.array(places)[shown].tolist())


def sees(settings: Any, windows: Windows, steps: dict[int, int], prediction: Prediction, token: int) -> bool:
    """Whether a prediction may depend on a token of the window, as the paper of the objective says."""
    target, place = prediction
    if settings.name in ("unilmv2", "permuted", "compensated"):
        return token not in steps or (target == "par" and steps[token] < steps[place])
    if settings.name == "block_diffusion":
        block, own = (position // settings.block_size for position in (token, place))
        return block < own or (block == own and token not in steps)
    if settings.name == "bidirectional_lm":
        return token <= place if target == "lm" else token >= place
    reads = brute_force.text(getattr(settings, "visibility", "bidirectional"), int((windows.segment_ids == 0).sum()))
    return token not in steps and reads(Slot("x", place), Slot("x", token))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("name", "kind"), LEAKS)
def test_a_token_reaches_the_predictions_that_may_see_it_and_no_other(name: str, kind: str, training: bool) -> None:
    """Independent of rows and rules: change a token of the window, make the row again, compare every prediction."""
    settings, model = CASES[name], MODELS[kind]()
    windows = text_windows(1, 24, seed=3) if name in SEQ2SEQ else some_windows(1, 30, seed=11, short=False)
    before = make_examples(windows, V, settings)
    steps, shown = ({}, set()) if name in SEQ2SEQ else predicted_steps(before)
    key = (lambda: DropoutKey(1, 2, 3)) if training else (lambda: None)
    places, reference = predictions(model, before, key())
    seen = Counter[bool]()
    for token in np.flatnonzero(windows.maskable[0]).tolist():
        if token in shown:
            continue  # its answer is no secret
        after = make_examples(changed(windows, token), V, settings)
        again, states = predictions(model, after, key())
        assert again == places and np.array_equal(after.steps, before.steps), "no draw depends on the text"
        may = [sees(settings, windows, steps, place, token) for place in places]
        if name in SEQ2SEQ:
            source = slice(int(before.mutual[0]))
            (differing,) = np.nonzero(after.targets["lm"].labels[0] != before.targets["lm"].labels[0])
            hidden = np.array_equal(after.input_ids[0, source], before.input_ids[0, source])
            may = [not hidden or number > differing[0] for number in range(len(places))]
        same = [torch.equal(one, other) for one, other in zip(states, reference, strict=True)]
        assert [not each for each in same] == may, token
        seen.update(may)
    assert min(seen[True], seen[False]) >= 10


ABILITIES: dict[str, Sequence[str]] = {
    **dict.fromkeys(CASES, ()),
    **dict.fromkeys(("unilmv2", "unilmv2, ar"), ("cloze", "stepwise", "causal")),
    **dict.fromkeys(("unilmv2, par", "unilmv2, no masks in context"), ("stepwise", "causal")),
    **dict.fromkeys(("unilmv2, ae", "spanbert", "words", "mdlm"), ("cloze",)),
    **dict.fromkeys(("xlnet", "xlnet, blocks", "mpnet", "mpnet, blocks"), ("stepwise", "causal")),
    **dict.fromkeys(("masked, left_to_right", "spanbert, left_to_right", "gpt", "gpt-3", "elmo"), ("causal",)),
    **dict.fromkeys(("bd3lm, 1", "bd3lm, 4", "bd3lm, 100", "prefix"), ("causal",)),
}
"""What a model trained with an objective can do. ELECTRA's generator is not used, T5, BART and MASS need a source."""
MASKS_ALL = {"unilmv2", "masked", "permuted", "compensated"}


@every_objective
def test_abilities_are_those_that_training_gives(name: str) -> None:
    has = defined(CASES[name])
    assert [ability for ability in ("cloze", "stepwise", "causal") if getattr(has, ability)] == list(ABILITIES[name])
    assert has.causal_masks == (CASES[name].name in MASKS_ALL)


@pytest.mark.parametrize(
    ("name", "ability"),
    [(name, ability) for name in ABILITIES for ability in ABILITIES[name] if name not in ("gpt-3", "bd3lm, 100")],
)
def test_rows_of_an_ability_predict_in_order_from_what_they_may_see(name: str, ability: str) -> None:
    """All text tokens from the left (causal), or given ones by step and position, from the rest or step by step."""
    settings, model = CASES[name], MODELS["transformer"]()
    lay_out: Any = getattr(defined(settings), ability)

    def make(windows: Windows) -> Examples:
        return lay_out(windows, *(() if ability == "causal" else (steps,)), V, settings)  # type: ignore[no-any-return]

    windows = some_windows(12, 20, seed=2)
    drawn = np.random.default_rng(0).integers(-2, 3, windows.maskable.shape).astype(np.int32).clip(min=-1)
    steps = in_turn(windows) if ability == "causal" else np.where(windows.maskable, drawn, np.int32(-1))
    rows = make(windows)
    (target,) = rows.targets.values()
    order = [sorted(np.flatnonzero(row >= 0), key=lambda place, row=row: (row[place], place)) for row in steps]
    for row, places in enumerate(order):
        real = target.weights[row] > 0
        assert target.labels[row, real].tolist() == windows.token_ids[row, places].tolist()
    longest = int(windows.lengths.argmax())
    windows, steps, places = windows[longest : longest + 1], steps[longest : longest + 1], order[longest]
    _, reference = predictions(model, make(windows))
    outcomes = Counter[bool]()
    for token in np.flatnonzero(windows.maskable[0]).tolist():
        _, states = predictions(model, make(changed(windows, token)))
        for place, old, new in zip(places, reference, states, strict=True):
            own, other = steps[0, place], steps[0, token]
            may = other < 0 or (ability != "cloze" and other < own)
            if name == "prefix" and other < 0:
                may = token < place
            assert torch.equal(old, new) != may, (token, place)
            outcomes[may] += 1
    assert min(outcomes[True], outcomes[False]) > 10


def test_what_cannot_be_predicted_is_refused() -> None:
    windows = some_windows(2, 12)
    with pytest.raises(UsageError, match=r"mask_rate 0\.25 never predicts a text from its beginning"):
        OBJECTIVES["prefix"].causal(windows, V, CASES["UL2's S"])  # type: ignore[misc]
    both_ways = dataclasses.replace(CASES["gpt"], visibility="bidirectional")
    with pytest.raises(UsageError, match=r"see its own answer: set --objective\.visibility left_to_right or"):
        make_examples(windows, V, both_ways)
    whole = np.where(np.arange(12) < windows.lengths[:, None], 0, -1).astype(np.int32)
    for settings in (CASES["xlnet"], CASES["mpnet"]):
        with pytest.raises(UsageError, match=r"leave at least \[SOS\] as context"):
            OBJECTIVES[settings.name].stepwise(windows, whole, V, settings)  # type: ignore[misc]


@pytest.mark.parametrize("token, expected", [("mask", MASK), ("own", PSEUDO)])
def test_a_generator_reads_the_pseudo_mask_it_was_trained_with(token: str, expected: int) -> None:
    generates: Any = OBJECTIVES["unilmv2"].generates
    found = generates(UniLMv2Settings(pseudo_token=token), vocabulary())  # type: ignore[arg-type]
    assert (found.predicts, found.pseudo) == ("pseudo", expected)
    shown = make_examples(
        random_windows(3, 20),
        vocabulary(),
        settings_of(targets=["par"], pseudo_token=token, mask_share=1.0, random_share=0.0),
    )
    assert (shown.input_ids[shown.kinds == Kind.PSEUDO] == expected).all()
    assert generates(UniLMv2Settings(targets=["ae"]), vocabulary()) is None


@pytest.mark.parametrize("name", ["unilmv2", "xlnet", "mpnet"])
@pytest.mark.parametrize("relative_bias", [False, True])
def test_no_softmax_is_over_nothing(name: str, relative_bias: bool) -> None:
    """[SOS] is never predicted, so step 0 reads it even if nothing else is context."""
    model, windows = toys.model(relative_bias=relative_bias), random_windows(20, 24, short=True)
    objective = dataclasses.replace(CASES[name], targets=["par"], mask_rate=1.0)
    causal: Any = defined(objective).causal
    for rows in (make_examples, causal):
        examples = rows(windows, vocabulary(), objective)
        batch = collate(examples, fixed_shape=True)
        assert all(torch.isfinite(state).all() for state in model.backbone(batch))
        model(batch)["par"].total.backward()
        assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("name", ["unilmv2, ae", "BART", "gpt", "mdlm"])
def test_padding_and_neighbours_do_not_matter(name: str) -> None:
    model = toys.model(vocab=90, positions=60)
    examples = make_examples(some_windows(8, 20), V, CASES[name])
    with torch.no_grad():
        together = model.backbone(collate(examples))[-1]
        for row in range(8):
            length = int(examples.lengths[row])
            alone = model.backbone(collate(examples[row : row + 1]))[-1]
            torch.testing.assert_close(together[row, :length], alone[0, :length], atol=1e-5, rtol=1e-5)


# Floors: random tokens are learned down to their entropy and no further


def told(ordinary: int, masks: float, noise: float) -> float:
    """Entropy of a token, shown as a mask, as a random token or as itself with the rest of the probability."""
    hit = (1 - masks - noise + noise / ordinary) / (1 - masks) if masks < 1 else 1.0
    rest = -hit * math.log(hit) - (1 - hit) * math.log((1 - hit) / (ordinary - 1)) if hit < 1 else 0.0
    return masks * math.log(ordinary) + (1 - masks) * rest


def floors_of_electra(
    text: int, special: int, masked: int, *, ordinary: int = 8, shown: float = 0.85
) -> dict[str, float]:
    """A share `shown` of the masked slots shows a mask; the generator copies the other tokens, so its sample is the original.

    At a mask it samples uniformly and hits the original once in `ordinary` times. Samples look like text: the discriminator
    can only learn how often a text slot is replaced, and that a special one never is.
    """
    replaced = masked / text * shown * (1 - 1 / ordinary)
    entropy = -replaced * math.log(replaced) - (1 - replaced) * math.log(1 - replaced)
    return {"ae": shown * math.log(ordinary), "rtd": entropy * text / (text + special)}


def infilled(tokens: int, ordinary: int) -> float:
    """Entropy of a text from its infilled source, half of it in spans of mean 1.5: all texts and draws are enumerated."""
    joint: dict[tuple[int, ...], Counter[tuple[int, ...]]] = {}
    for text in itertools.product(range(ordinary), repeat=tokens):
        for pattern, chance in infilling(tokens // 2, tokens, 1.5, most=6).items():
            source = tuple(-1 if place < 0 else text[place] for place in pattern)
            joint.setdefault(source, Counter())[text] += chance / ordinary**tokens
    return sum(-p * math.log(p / texts.total()) for texts in joint.values() for p in texts.values() if p)


@dataclasses.dataclass(frozen=True)
class Floor:
    """Random texts of `tokens` ordinary tokens, the least loss of each target, and how long to train."""

    settings: ObjectiveSettings
    floors: dict[str, float]
    tokens: int = 8
    ordinary: int = 8
    steps: int = 120
    rate: float = 6e-3
    rows: int = 48
    extra: int = 0


LN8 = math.log(8)
WEIGHED = math.nan
"""ln V times the weights that were drawn, over the normaliser."""


def like(name: str, **changes: Any) -> ObjectiveSettings:
    return dataclasses.replace(CASES[name], **changes)


BERT = settings_of("masked", targets=["ae"], masking="token", mask_rate=0.3)
SPANBERT = masked_by("bidirectional", targets=["ae", "sbo"], masking="geometric", max_span=3, mask_rate=0.3)
FLOORS: dict[str, Floor] = {
    "unilmv2": Floor(settings_of(mask_rate=0.3), dict.fromkeys(("ae", "par"), told(8, 0.8, 0.1)), steps=250),
    "unilmv2, ar": Floor(
        settings_of(mask_rate=0.3, factorization="token"), dict.fromkeys(("ae", "par"), told(8, 0.8, 0.1)), steps=250
    ),
    "gpt": Floor(CASES["gpt"], {"lm": 8 * LN8 / 9}),
    "bert": Floor(BERT, {"ae": told(8, 0.8, 0.1)}, steps=250),
    "spanbert": Floor(SPANBERT, {"ae": LN8, "sbo": LN8}),
    "electra": Floor(CASES["electra"], floors_of_electra(10, 2, 3), tokens=10, steps=200),
    "xlnet": Floor(like("xlnet", mask_rate=0.3), {"par": LN8}),
    "mpnet": Floor(like("mpnet", mask_rate=0.3), {"par": told(8, 0.8, 0.1)}, steps=250),
    "mdlm": Floor(CASES["mdlm"], {"diffusion": WEIGHED}),
    "bd3lm": Floor(CASES["bd3lm, 4"], {"diffusion": WEIGHED}),
    "prefix": Floor(CASES["prefix"], {"lm": 4.5 * LN8 / 5.5}),
    # of 8 tokens 3 are noise, in spans of 1 and 2 or 2 and 1; sentinels cost nothing
    "T5": Floor(like("T5", mask_rate=3 / 8, mean_span=1.5), {"lm": (math.log(2) + 3 * LN8) / 7}, extra=3, rate=1e-2),
    "MASS": Floor(like("MASS", mask_share=0.4, random_share=0.2), {"lm": told(8, 0.4, 0.2)}, tokens=6, steps=300),
    "BART, masks": Floor(
        like("BART", noise=["mask"], mask_rate=1 / 3), {"lm": 2 * LN8 / 7}, tokens=6, steps=200, rate=1e-2, rows=32
    ),
    "BART, infilling": Floor(like("BART", mean_span=1.5), {"lm": math.nan}, tokens=4, ordinary=3, steps=500, rows=64),
}


@pytest.mark.whole
@pytest.mark.parametrize("name", slow_except(["BART, masks"], FLOORS))
def test_random_tokens_are_learned_down_to_the_floor_and_no_further(name: str) -> None:
    case = FLOORS[name]
    words = vocabulary(toys.FIRST_ORDINARY + case.extra + case.ordinary, case.extra)

    def make(seed: int, rows: int = case.rows) -> Examples:
        return make_examples(text_windows(rows, case.tokens, words, seed=seed + 1), words, case.settings)

    shape = ModelSettings(
        hidden_size=32, num_layers=2, num_heads=4, intermediate_size=64, dropout=0.0, attention_dropout=0.0,
        initializer_range=0.05, generator_size=0.5 if "rtd" in case.floors else 0.0,
    )  # fmt: skip
    longest = positions(case.settings, case.tokens + 2)
    model = build(shape, vocab_size=words.size, max_positions=longest, targets=list(case.floors))
    model.initialize(0)
    train(model, make, steps=case.steps, rate=case.rate)
    examples = make(100_000, 5000)
    with torch.no_grad():
        losses = model(collate(examples))
    for target, floor in case.floors.items():
        weights = examples.targets[target].weights.astype(np.float64)
        if name == "BART, infilling":
            floor = infilled(4, 3) / 5
        elif math.isnan(floor):
            floor = LN8 * weights.sum() / losses[target].weight
        noise = 4 * math.sqrt((weights**2).sum()) / losses[target].weight
        loss = float(losses[target].total / losses[target].weight)
        assert floor - noise < loss < floor + 0.05, f"{target}: floor {floor:.3f}, loss {loss:.3f}"
