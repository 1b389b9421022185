"""The verdict of a pre-training run: the content words it guesses, what counting guesses, and its sentence."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from string import ascii_lowercase
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import toys
from corpora import write_corpus
from decoding_toys import Slot, context, loaded, probabilities, wordpiece
from test_counts import source as token_source
from test_counts import trigram_nats
from unicloze import keyed, verbs
from unicloze.example import Examples, Target, predicts_tokens
from unicloze.mixtures import parts
from unicloze.objectives import Ability, make_examples
from unicloze.pretraining.count_baselines import (
    _around,
    open_baselines,
    perplexities_of,
    ranks_by_counts,
    ranks_by_model,
    way_to_ask,
)
from unicloze.pretraining.data import build_sampler
from unicloze.pretraining.run import pretrain_run
from unicloze.recipes import load_recipe, recipe_names
from unicloze.text.counts import ABSENT, ContentWords, Counts
from unicloze.text.prepare import prepare_data
from unicloze.text.sampler import WindowSampler
from unicloze.text.vocabulary import Vocabulary
from unicloze.text.windows import Windows, windows_of
from unicloze.training.batches import heldout_examples
from unicloze.training.ledger import Figure, read_ledger
from unicloze.training.loading import LoadedModel
from unicloze.training.verdict import Course, WordScore, verdict_on

TEXTS = ["the list of items is empty", "return the value or state and not x", "x in the list .", "list of the state ."]
PLACES = [3, 2, 1, 3]


def words_of(model: LoadedModel) -> ContentWords:
    texts = [ids.tolist() for ids in model.tokenizer.encode_batch(TEXTS)]
    return ContentWords(sentences=texts, places=PLACES)


def rank(probability: np.ndarray, answer: int, ordinary: Sequence[int]) -> int:
    return sorted(ordinary, key=lambda token: (-probability[token], token)).index(answer)


def ranks_of(model: LoadedModel, asking: Ability) -> np.ndarray:
    words, vocabulary = words_of(model), model.tokenizer.vocabulary
    return ranks_by_model(model.model, model.recipe, words, vocabulary, asking, model.compute)


def ranks_by_hand(model: LoadedModel, asking: Ability) -> list[int]:
    """The rank of each word, from a separate forward pass."""
    vocabulary, ranks = model.tokenizer.vocabulary, []
    for text, place in zip(words_of(model).sentences, PLACES, strict=True):
        tokens = [vocabulary.sos, *text, vocabulary.eos]
        if asking == "causal":
            row, predict = [Slot(token, at, reads=at + 1) for at, token in enumerate(tokens)], place
        else:
            row = context([vocabulary.mask if at == place + 1 else token for at, token in enumerate(tokens)])
            predict = place + 1
        (found,) = probabilities(model, row, [predict])
        ranks.append(rank(found, text[place], vocabulary.ordinary.tolist()))
    return ranks


@pytest.mark.parametrize(("asking", "objective"), [
    ("cloze", {}),
    ("cloze", {"name": "masked", "targets": ["ae"]}),
    ("causal", {"name": "causal", "targets": ["lm"], "visibility": "left_to_right"}),
])  # fmt: skip
def test_words_are_guessed_by_what_the_objective_defines(
    asking: Ability, objective: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unicloze.pretraining.count_baselines.ROWS", 3)
    model = loaded(**objective)
    assert way_to_ask(model.recipe.objective) == asking
    ranks = ranks_of(model, asking).tolist()
    assert ranks == ranks_by_hand(model, asking) and len(set(ranks)) > 1


def test_every_recipe_uses_its_best_ability_for_words() -> None:
    asked = {name: way_to_ask(load_recipe(name).objective) for name in recipe_names()}
    assert {name for name, way in asked.items() if way is None} == {
        *("bart-base", "electra-base", "electra-small", "mass-base", "t5-base", "t5-v1.1-base", "ul2-base"),
        *("prefix-denoising-base", "prefix-masked-span-base", "prefix-span-corruption-base"),
    }
    assert {name for name, way in asked.items() if way == "stepwise"} >= {"xlnet-base", "mpnet-base"}
    assert {name for name, way in asked.items() if way == "causal"} >= {"gpt", "gpt-2", "bd3lm-base"}
    assert asked["quickstart"] == asked["bert-base"] == "cloze"


def trigram_scores(counts: Counts, around: Sequence[int], ordinary: np.ndarray) -> np.ndarray:
    """Of each token between two tokens on the left and two on the right, as far as they are there."""
    left2, left1, right1, right2 = (np.full(len(ordinary), token) for token in around)
    scores = counts.following(left2, left1, ordinary)
    if right1[0] != ABSENT:
        scores = scores * counts.following(left1, ordinary, right1)
    if right2[0] != ABSENT:
        scores = scores * counts.following(ordinary, right1, right2)
    return scores


def test_the_trigram_guesses_from_both_sides_or_the_left_one(tmp_path: Path) -> None:
    model, draw = loaded(wordpiece()), np.random.default_rng(0)
    vocabulary, words = model.tokenizer.vocabulary, words_of(model)
    texts = [
        [text[place - 1], *text, *draw.choice(vocabulary.ordinary, 20)]
        for text, place in zip(words.sentences, PLACES, strict=True)
    ]
    counts = Counts.of([token_source(tmp_path / "a.ds", texts * 3)], vocabulary)
    ordinary, both, left = vocabulary.ordinary.astype(np.int64), [], []
    for text, place in zip(words.sentences, PLACES, strict=True):
        around = (text[at] if 0 <= at < len(text) else ABSENT for at in range(place - 2, place + 3))
        left2, left1, answer, right1, right2 = around
        for ranks, neighbours in ((left, (left2, left1, ABSENT, ABSENT)), (both, (left2, left1, right1, right2))):
            found = np.zeros(vocabulary.size)
            found[ordinary] = trigram_scores(counts, neighbours, ordinary)
            ranks.append(rank(found, answer, ordinary.tolist()))
    assert ranks_by_counts(counts, words, "cloze").tolist() == both
    assert ranks_by_counts(counts, words, "causal").tolist() == left
    assert both != left


def test_a_model_that_predicts_nan_guesses_nothing() -> None:
    model = loaded()
    with torch.no_grad():
        model.model.backbone.embeddings.tokens.weight.fill_(torch.nan)
    assert ranks_of(model, "cloze").min() >= 5


def test_shares_and_the_error_of_their_difference() -> None:
    score = WordScore.of([0, 4, 5, 9], [1, 5, 0, 9], "causal")
    assert (score.words, score.sees) == (4, "left")
    assert (score.top_1, score.top_5, score.counts_top_1, score.counts_top_5) == (0.25, 0.5, 0.25, 0.5)
    assert score.error == pytest.approx(np.std([0, 1, -1, 0]) / 2)


def score(top_5: float, counts: float, error: float = 0.01, **more: Any) -> WordScore:
    fixed: dict[str, Any] = {"words": 400, "sees": "both", "top_1": 0.1, "counts_top_1": 0.1}
    return WordScore(**fixed | more, top_5=top_5, counts_top_5=counts, error=error)


COUNTS = {target: {"unigram": 900.0, "trigram": 310.0} for target in ("ae", "par")}
LONGER = "train longer or give more text"


def course(training: float, *heldout: float) -> Course:
    """Of 10 steps an evaluation."""
    losses = {10 * number: [figure("ae", loss)] for number, loss in enumerate(heldout, start=1)}
    return Course(training={step: [figure("ae", training)] for step in range(1, 10 * len(heldout) + 1)}, heldout=losses)


def figure(target: str, loss: float, **more: Any) -> Figure:
    """Of a thousand predictions, all counted and equally good unless `deviation` is given."""
    squares = loss**2 + more.pop("deviation", 0.0) ** 2
    fields = {"nats": loss, "weight": 1.0, "counted_nats": loss, "counted_squares": squares, "counted_weight": 1.0}
    return Figure(target=target, **{key: 1000 * value for key, value in fields.items()}, **more)


@pytest.mark.parametrize(
    ("perplexities", "words", "losses", "little", "said"),
    [
        ({"ae": 98.04}, None, course(4.5, 4.6), "", "perplexity 98.0 against 310.0 of RIVAL"),
        ({"ae": 98.0, "par": 95.0}, score(0.197, 0.094), course(4.5, 4.6), "too little text: 800 kB",
         "perplexity 95.0 (par) against 310.0 of RIVAL, content words 19.7 % in the top 5 against 9.4 %"),
        ({"ae": 98.0, "nsp": 0.7}, score(0.1, 0.09, 0.006, sees="left"), course(4.5, 4.6), "",
         "perplexity 98.0 against 310.0 of RIVAL, content words from the left 10.0 % in the top 5 against 9.0 %, "
         "level within 2 standard errors"),
        ({"ae": 98.0}, score(0.06, 0.09), course(4.5, 4.6), "",
         f"worse than RIVAL at content words: {LONGER} (perplexity 98.0 against 310.0 of RIVAL, content words "
         "6.0 % in the top 5 against 9.0 %)"),
        ({"ae": 310.0}, score(0.08, 0.09), course(4.5, 4.6), "",
         "perplexity 310.0 against 310.0 of RIVAL, level within 2 standard errors, content words 8.0 % in the top 5 "
         "against 9.0 %, level within 2 standard errors"),
        ({"ae": 311.0}, None, course(4.5, 4.6), "",
         f"no better than RIVAL: {LONGER} (perplexity 311.0 against 310.0 of RIVAL)"),
        ({"ae": 901.0}, None, course(6.0, 6.5), "",
         f"no better than counting words: {LONGER} (perplexity 901.0 against 900.0 of counted words and 310.0 of RIVAL)"),
        ({"ae": 1937666723.0}, None, course(0.9, 21.4), "too little text: 3 kB",
         "no better than counting words: give more text (perplexity 1,937,666,723 against 900.0 of counted words and 310.0 "
         "of RIVAL); overfitted: training 0.90, held-out 21.40 nats per prediction; too little text: 3 kB"),
        ({"ae": 98.0}, None, course(4.5, 4.5, 4.7, 4.65), "too little text: 3 kB",
         "perplexity 98.0 against 310.0 of RIVAL; overfitted: the held-out loss is 0.15 nats per prediction above "
         "its lowest: give more text or train fewer steps; too little text: 3 kB"),
        ({"ae": 98.0}, None, course(4.5, 6.0, 5.0, 4.66, 4.6), "",
         "perplexity 98.0 against 310.0 of RIVAL; still improving: by its own curve twice the steps "
         "reach a perplexity of 65.7 at best"),
        ({"ae": 98.0}, None, course(4.5, 6.0, 5.0, 4.64, 4.6), "", "perplexity 98.0 against 310.0 of RIVAL"),
        ({"ae": math.nan, "par": 148.0}, None, Course(), "", "perplexity 148.0 (par) against 310.0 of RIVAL"),
        ({"ae": None}, None, Course(), "too little text: 24 bytes",
         "not judged: there is no held-out perplexity; too little text: 24 bytes"),
    ],
)  # fmt: skip
def test_a_sentence_on_the_figures(
    perplexities: dict[str, float | None], words: WordScore | None, losses: Course, little: str, said: str
) -> None:
    figures = {
        name: Figure(target=name) if each is None else figure(name, math.log(each))
        for name, each in perplexities.items()
    }
    assert verdict_on(figures, COUNTS, words, losses, little) == said.replace("RIVAL", "a Kneser-Ney trigram")


@pytest.mark.parametrize(("losses", "unigram", "trigram", "said"), [
    ((8.0, 7.0, 6.5, 6.0), 900.0, 100.0, "it needs at least 110 steps to beat a Kneser-Ney trigram, 7 min more ("),
    ((8.0, 7.0, 6.5, 6.0), 330.0, 900.0, "it needs at least 46 steps to beat counting words, 36 s more ("),
    ((6.05, 6.02, 6.01, 6.0), 900.0, 100.0, "it does not beat a Kneser-Ney trigram in 100 times the steps"),
])  # fmt: skip
def test_advice_names_a_cost_by_the_runs_own_curve(
    losses: tuple[float, ...], unigram: float, trigram: float, said: str
) -> None:
    seen = course(6.0, *losses)
    seen.seconds = 240.0
    counts = {"ae": {"unigram": unigram, "trigram": trigram}}
    assert f": by its own curve {said}" in verdict_on({"ae": figure("ae", 6.0)}, counts, None, seen, "")


def test_a_run_that_started_from_a_model_is_judged_beside_its_start() -> None:
    seen = course(4.6, 4.8, 4.6)
    seen.of_model = True
    for before, worse in ((5.0, ""), (4.0, "worse after training: lower --training.learning_rate (")):
        seen.heldout = {0: [figure("ae", before)], **{step: seen.heldout[step] for step in (10, 20)}}
        said = verdict_on({"ae": figure("ae", 4.6)}, COUNTS, None, seen, "")
        expected = f"perplexity 99.5, {math.exp(before):.1f} before training, against 310.0 of a Kneser-Ney trigram"
        assert said.startswith(worse + expected) and ("still improving" in said) != bool(worse)


def test_a_run_that_started_from_a_model_is_not_told_to_start_from_one() -> None:
    counts = {"ae": {"unigram": 900.0, "trigram": 100.0}}
    for start, cure in ((None, "give more text, another model, or start from a trained one (--init)"),
                        ("a/model", "give more text or another model")):  # fmt: skip
        event = {"event": "start", "step": 0, "recipe": {"training": {"initialize_from": start}}}
        seen = course(6.0, 6.05, 6.02, 6.01, 6.0)
        seen.of_model = Course.of([event]).of_model
        assert f"100 times the steps; {cure} (" in verdict_on({"ae": figure("ae", 6.0)}, counts, None, seen, "")


def test_noise_is_neither_a_gain_nor_a_failure() -> None:
    noisy = figure("ae", math.log(320.0), deviation=3.0)
    assert noisy.error == pytest.approx(3 / math.sqrt(1000))
    said = verdict_on({"ae": noisy}, COUNTS, None, course(5.6, 5.7), "")
    assert said == "perplexity 320.0 against 310.0 of a Kneser-Ney trigram, level within 2 standard errors"


def test_only_losses_of_one_meaning_are_compared() -> None:
    """Another part, phase or kind of labels, or a target without tokens, shows no overfitting."""
    own = figure("ae", 5.0, part="one", phase=1)
    for other in ({"part": "two"}, {"phase": 0}, {"labels": "soft"}):
        trained = dataclasses.replace(figure("ae", 1.0, part="one", phase=1), **other)
        assert Course(training={9: [trained], 10: [trained]}, heldout={10: [own]}).gap is None
        with pytest.raises(ValueError, match="different meaning"):
            own + trained
    alike = dataclasses.replace(own, nats=1000.0)
    assert Course(training={10: [alike]}, heldout={10: [own]}).gap == (1.0, 5.0)
    assert figure("nsp", 0.5).perplexity is None and figure("ae", 0.5, labels="soft").perplexity is None


def test_a_course_is_what_was_done_last() -> None:
    def event(name: str, step: int, **losses: float) -> dict[str, Any]:
        figures = [figure(each.rpartition(".")[2], loss, part=each.rpartition(".")[0]) for each, loss in losses.items()]
        return {"event": name, "step": step, "figures": [one.to_dict() for one in figures]}

    events = [
        {"event": "start", "step": 0}, event("step", 9, **{"a.ae": 3.0}), event("step", 10, **{"a.ae": 5.0}),
        event("evaluate", 10, **{"a.ae": 2.0}), event("step", 20, **{"a.ae": 9.0}), event("evaluate", 20, **{"a.ae": 2.0}),
        {"event": "start", "step": 10}, event("step", 19, **{"a.ae": 1.0}), event("step", 20, **{"a.ae": 2.0, "a.nsp": 0.1}),
        event("evaluate", 20, **{"a.ae": 3.0, "a.nsp": 9.0, "b.ae": 2.5}), {"event": "end", "step": 20}, {"step": 3},
    ]  # fmt: skip
    found = Course.of(events)
    assert sorted(found.training) == [9, 10, 19, 20] and sorted(found.heldout) == [10, 20]
    assert found.gap == (1.5, 3.0), "from the last tenth of the steps, and only of targets that predict tokens"
    assert found.above_lowest == 0.75
    assert Course.of([]).gap is None and Course.of([]).above_lowest == 0 and not Course.of([]).still_falling
    assert not Course.of([{**one, "part": "training-text"} for one in events]).heldout
    old = Course.of(
        [{"event": "evaluate", "step": 3, "loss": {"ae": 2.0}}, {"event": "evaluate", "step": 4, "figures": [3]}]
    )
    assert old.gap is None and not old.still_falling


def test_the_fall_of_a_loss_is_that_of_the_second_half() -> None:
    """Even where no evaluation is at half of the steps, and the one before was before a change of the objective."""
    losses = {step: 9 - math.log(step) for step in (504, 630, 756, 882, 1001)} | {378: 11 - math.log(378)}
    heldout = {step: [figure("ae", loss)] for step, loss in losses.items()}
    last, fall = Course(heldout=heldout).fall(heldout[1001][0]) or (0, 0.0)
    assert last == 1001 and fall == pytest.approx(1.0, abs=0.15)
    assert Course(heldout={1001: heldout[1001]}).fall(heldout[1001][0]) is None


def test_losses_on_other_windows_do_not_count() -> None:
    events = [
        {"event": "evaluate", "step": step, "windows": windows, "figures": [figure("ae", loss).to_dict()]}
        for step, windows, loss in ((1, 512, 4.5), (2, 64, 4.7))
    ]
    assert sorted(Course.of(events).heldout) == [2] and Course.of(events).above_lowest == 0


class Changes(NamedTuple):
    part: str
    objective: str
    windows: Windows
    vocabulary: Vocabulary
    examples: Examples
    name: str
    target: Target
    labels: np.ndarray
    seen: np.ndarray

    @property
    def counted(self) -> np.ndarray:
        real = self.target.weights > 0
        return real if self.target.counted is None else self.target.counted & real


def changed(name: str) -> Iterator[Changes]:
    """Toy rows of each part and target of an objective: whether each prediction's label, and any slot that it sees, changes
    where the token at a position of the window changes. *Shape:* (rows, predictions, window) each."""
    for part in parts(load_recipe(name).objective):
        own = part.settings.without_noise()
        windows, vocabulary = toys.random_windows(4, 20, vocab=37), toys.vocabulary(200, extra=100)
        windows = dataclasses.replace(
            windows, token_ids=windows.token_ids + 100 * windows.maskable, negative=np.zeros(4, dtype=bool)
        )
        examples = make_examples(windows, vocabulary, own)
        others = []
        for position in range(20):
            ids = windows.token_ids.copy()
            ids[:, position] += 30 * windows.maskable[:, position]  # as likely to continue a word or end a sentence
            others.append(make_examples(dataclasses.replace(windows, token_ids=ids), vocabulary, own))
        for n, target in examples.targets.items():
            if not predicts_tokens(n):
                continue
            real = target.weights > 0
            labels = np.stack([(target.labels != one.targets[n].labels) & real for one in others], axis=-1)
            seen = np.zeros(labels.shape, dtype=bool)
            for row, number in zip(*np.nonzero(real), strict=True):
                slot = np.atleast_1d(target.slots[row, number])
                sees = examples.visible(row)[slot[slot >= 0]].any(axis=0)
                for position, one in enumerate(others):
                    different = (examples.input_ids[row] != one.input_ids[row])[: len(sees)]
                    seen[row, number, position] = (different & sees).any()
            ordinary = target.of_ordinary(vocabulary.ordinary)
            yield Changes(part.label, own.name, windows, vocabulary, examples, n, ordinary, labels, seen)


OBJECTIVES = sorted({load_recipe(name).objective.name: name for name in recipe_names()}.values())


@pytest.mark.parametrize("windows_are", ["unknown", "contiguous", "pairs"])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_perplexity_counts_what_the_row_hides_and_the_trigram_sees_the_neighbours_it_shows(
    name: str, windows_are: str
) -> None:
    """A prediction belongs to the token whose change changes its label, and it is shown where that change also changes a slot
    that the prediction sees. Rows with a source and a target are read from the left, so that they may miss neighbours. In
    contiguous text, and in pairs whose second text follows the first, the [EOS] of S1 is no neighbour."""
    contiguous = windows_are != "unknown"
    for one in changed(name):
        hidden = one.labels.any(axis=-1) & ~(one.labels & one.seen).any(axis=-1)
        assert np.array_equal(one.counted, hidden & (one.target.weights > 0)), (one.part, one.name)
        ends = ~one.windows.maskable & (np.arange(20) < one.windows.lengths[:, None])
        paired = windows_are == "pairs"
        windows = one.windows if paired else dataclasses.replace(one.windows, cut=ends, negative=None)
        windows = windows if contiguous else None
        around = _around(one.examples, one.name, one.counted, one.vocabulary, windows)
        joined = one.objective in ("prefix", "span_corruption", "denoising", "masked_span")
        missing = 0
        for (row, number), *tokens in zip(np.argwhere(one.counted), *around, strict=True):
            (answer,) = np.flatnonzero(one.labels[row, number])
            text = [at for at in range(20) if one.windows.maskable[row, at] or not (joined or contiguous)]
            for first, second, away in ((1, 0, -1), (2, 3, 1)):
                for shift, token in ((away, tokens[first]), (2 * away, tokens[second])):
                    place = text.index(answer) + shift
                    shown = 0 <= place < len(text) and one.seen[row, number, text[place]]
                    expected = int(one.windows.token_ids[row, text[place]]) if shown else ABSENT
                    assert token in (expected, ABSENT), (one.part, one.name)
                    missing += token != expected and not (one.objective == "span_corruption" and away > 0)
                    if token == ABSENT:
                        break  # what is behind it is of no use
        most = 1 if one.objective == "span_corruption" else math.inf  # behind a single token between two spans
        assert missing <= (most if joined else 0), (one.part, one.name)


@pytest.mark.parametrize("negative", [False, True])
def test_of_a_pair_only_the_end_of_its_first_text_is_read_across(negative: bool) -> None:
    """Not a document's end within it, where documents are joined; and not if another text follows."""
    vocabulary = toys.vocabulary()
    texts = [np.array([11, vocabulary.eos, 12, 13]), np.array([14, 15])]
    windows = windows_of([texts], vocabulary, keys=keyed.key(0, np.arange(1)))
    windows = dataclasses.replace(windows, negative=np.array([negative]))
    examples = make_examples(windows, vocabulary, load_recipe("gpt").objective)
    target = examples.targets["lm"]
    around = _around(examples, "lm", target.weights > 0, vocabulary, windows)
    before = dict(zip(target.labels[target.weights > 0].tolist(), around.left1.tolist(), strict=True))
    assert (before[12], before[13], before[15]) == (vocabulary.eos, 12, 14)
    assert before[14] == (ABSENT if negative else 13)


@pytest.mark.parametrize("segments", [1, 2])
def test_with_a_memory_the_trigram_sees_the_end_of_the_row_before(tmp_path: Path, segments: int) -> None:
    """Every token then has the probability that it has in the whole text."""
    vocabulary = toys.vocabulary()
    text = np.random.default_rng(0).choice(vocabulary.ordinary, 300).astype(np.int64)
    source = token_source(tmp_path / "text.ds", [text.tolist()])
    counts = Counts.of([source], vocabulary)
    sampler = WindowSampler(
        [source], window=11 + segments, segments=segments, vocabulary=vocabulary, seed=0, documents="joined",
        order="streams",
    )  # fmt: skip
    (block,) = heldout_examples(sampler, load_recipe("awd-lstm").objective, 30, lanes=1).values()
    assert block.windows is not None and block.windows.continues is not None and block.windows.continues[1:].all()
    found = perplexities_of(counts, block.examples, "lm", block.windows, memory=True)
    cut = perplexities_of(counts, block.examples, "lm", block.windows)
    whole = math.exp(trigram_nats(counts, text).mean())
    assert found is not None and cut is not None and len(block.windows) == 30
    assert found["trigram"] == pytest.approx(whole) and cut["trigram"] > found["trigram"]


@pytest.mark.parametrize("name", ["quickstart", "gpt", "mdlm-base"])
def test_the_trigram_is_weighed_like_the_loss_beside_it(name: str, tmp_path: Path) -> None:
    """A figure divides the weighted losses of the counted predictions by their share of the normaliser."""
    for one in changed(name):
        draw = np.random.default_rng(0)
        texts = [draw.choice(one.vocabulary.ordinary, 30).tolist() for _ in range(40)]
        counts = Counts.of([token_source(tmp_path / f"{one.part}.ds", texts)], one.vocabulary)
        target, ordinary = one.target, one.vocabulary.ordinary.astype(np.int64)
        nats = {"unigram": 0.0, "trigram": 0.0}
        around = _around(one.examples, one.name, one.counted, one.vocabulary, one.windows)
        for (row, number), *tokens in zip(np.argwhere(one.counted), *around, strict=True):
            scores = trigram_scores(counts, tokens, ordinary)
            label, weight = target.labels[row, number], float(target.weights[row, number])
            nats["trigram"] -= weight * math.log(scores[ordinary == label][0] / scores.sum())
            nats["unigram"] -= weight * math.log(counts.unigram[label])
        expected = {kind: math.exp(total / target.counted_weight) for kind, total in nats.items()}
        assert perplexities_of(counts, one.examples, one.name, one.windows) == pytest.approx(expected)


# In a run


def toy(corpus: Path, **more: Any) -> dict[str, Any]:
    return toys.toy_settings() | {"data.corpus": [str(corpus)], "data.heldout_share": 0.3} | more


@pytest.mark.whole
def test_a_run_counts_once_and_ends_with_a_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = write_corpus(tmp_path / "text", documents=150)
    recipe = load_recipe("quickstart", toy(corpus))
    result = pretrain_run(recipe, tmp_path / "run", progress=False)
    start, *_ = read_ledger(tmp_path / "run" / "ledger.jsonl")
    assert start["baselines"]["perplexity"] == result.counts
    assert start["baselines"]["counted"] == start["baselines"]["tokens"] > 1000
    assert result.counts.keys() == {"ae", "par"}
    assert all(found["unigram"] > found["trigram"] > 1 for found in result.counts.values())
    *_, end = read_ledger(tmp_path / "run" / "ledger.jsonl")
    assert end["verdict"] == result.verdict and result.verdict.startswith("no better than counting words: train longer")
    assert result.verdict.endswith("too little text: 44 kB")
    assert result.words is not None and end["content_words"] == result.words.to_dict()
    assert result.words.counts_top_5 > result.words.top_5 and 50 <= result.words.words <= 400
    said = str(result).split("\n")
    assert said[0].endswith(f"(Kneser-Ney trigram {result.counts['par']['trigram']:.1f})")
    assert said[1:] == [f"  {result.verdict}"]

    monkeypatch.setattr(Counts, "of", None)
    with pytest.warns(UserWarning, match="trained to step 2"):
        again = pretrain_run(recipe, tmp_path / "run", progress=False)
    assert (again.verdict, again.counts, again.words) == (result.verdict, result.counts, None)
    with pytest.warns(UserWarning, match=r"training\.steps changes from 2 to 3"):
        more = load_recipe("quickstart", toy(corpus, **{"training.steps": 3}))
        longer = pretrain_run(more, tmp_path / "run", progress=False)
    assert longer.counts == result.counts and longer.words is not None
    assert longer.words.counts_top_5 == result.words.counts_top_5
    assert [event["event"] for event in read_ledger(tmp_path / "run" / "ledger.jsonl")].count("end") == 2


@pytest.mark.slow
def test_noise_ends_with_a_verdict_and_a_cure(tmp_path: Path) -> None:
    draw = random.Random(0)
    noise = " ".join("".join(draw.choices(ascii_lowercase, k=draw.randint(2, 8))) for _ in range(500))
    (tmp_path / "noise.txt").write_text(noise)
    settings = {
        "training.steps": 150, "model.hidden_size": 64, "tokenizer.vocab_size": 400, "training.log_every": 1,
        "training.learning_rate": 0.01,
    }  # fmt: skip
    overrides = toy(tmp_path / "noise.txt", **settings)
    with pytest.warns(UserWarning, match="too little text: 3 kB; a model needs 1 MB or more"):
        result = verbs.pretrain("quickstart", tmp_path / "run", quiet=True, overrides=overrides)
    assert result.verdict.startswith("no better than counting words: give more text (perplexity ")
    assert "; overfitted: training " in result.verdict
    assert result.verdict.endswith(" nats per prediction; too little text: 3 kB")
    page = verbs.report(tmp_path / "run").read_text(encoding="utf-8")
    assert "No better than counting words: give more text" in page


def test_little_text_is_warned_of_before_training_and_only_once(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "text", documents=20)
    with pytest.warns(UserWarning, match="too little text: 6 kB; .*--init"):
        pretrain_run(load_recipe("quickstart", toy(corpus)), tmp_path / "run", progress=False)
    with pytest.warns(UserWarning) as warned:
        pretrain_run(load_recipe("quickstart", toy(corpus)), tmp_path / "run", progress=False)
    assert not any("too little" in str(one.message) for one in warned)


def test_baselines_of_other_text_or_damaged_are_made_again(tmp_path: Path) -> None:
    recipe = load_recipe("quickstart", toy(write_corpus(tmp_path / "text")))
    prepared = prepare_data(recipe.data, recipe.tokenizer, tmp_path / "data", progress=False)
    heldout = build_sampler(recipe, prepared, heldout=True)
    blocks = heldout_examples(heldout, recipe.objective, 4, lanes=2)

    first = open_baselines(recipe, prepared, tmp_path, blocks)
    file = tmp_path / "baselines.json"
    kept = file.read_text()
    assert open_baselines(recipe, prepared, tmp_path, blocks) == first
    content = json.loads(kept)
    content["made_from"]["fingerprint"] = "other"
    content["baselines"]["perplexities"] = {}
    for damaged in (json.dumps(content), "{", "[]"):
        file.write_text(damaged)
        assert open_baselines(recipe, prepared, tmp_path, blocks) == first
        assert file.read_text() == kept


def test_objectives_that_predict_no_words_have_none(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "text")
    result = pretrain_run(load_recipe("t5-base", toy(corpus)), tmp_path / "run", progress=False)
    assert result.words is None and result.counts["lm"]["trigram"] > 1
