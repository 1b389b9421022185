"""The benchmark of UniLM v1's Table 9, end to end at toy size."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import generated_questions as benchmark
from nlu_toys import Killed
from qa_toys import small_model
from unicloze.errors import UsageError

NAMES = ["Berlin", "Dublin", "Fargo", "Oslo", "Quito", "Zagreb", "Lima", "Turin"]


def squad(articles: int, *, second: bool) -> dict[str, Any]:
    """Articles of two passages, one of which answers a question; in version 2 the other one's has no answer."""
    draw = random.Random(7)
    data = []
    for number in range(articles):
        paragraphs = []
        for place in range(2):
            name, year = draw.choice(NAMES), 1900 + draw.randrange(90)
            context = f"The old door of {name} is red. They built {name} in {year} with 12 stones."
            lacking = second and place == 1
            answers = [] if lacking else [{"text": name, "answer_start": context.index(name)}]
            question = {"id": f"a{number}-{place}", "question": "Which door is red?", "answers": answers}
            paragraphs.append({"context": context, "qas": [question | ({"is_impossible": lacking} if second else {})]})
        data.append({"title": f"article {number:02}", "paragraphs": paragraphs})
    return {"version": "2.0" if second else "1.1", "data": data}


def texts(count: int = 4) -> list[dict[str, Any]]:
    sentence = "A small house in {} has 7 windows, and the small house of {} was built in {}."
    return [
        {"id": f"t{n}", "text": " ".join(sentence.format(NAMES[n], NAMES[-n - 1], 1950 + k) for k in range(20))}
        for n in range(count)
    ]


@pytest.mark.filterwarnings("ignore:.* of the text of the targets is .UNK.")
@pytest.mark.slow
def test_the_whole_experiment_runs_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = small_model(tmp_path / "start")
    short = {
        "training.device": "cpu", "training.precision": "fp32", "training.batch_size": 8, "finetuning.epochs": 1,
        "training.learning_rate": 0.003,
    }  # fmt: skip
    asker = {
        "task.max_length": 300, "generation.max_source": 280, "generation.max_target": 12, "decoding.beams": 1,
        "decoding.max_length": 8, **short,
    }  # fmt: skip
    answerer = {"task.max_length": 300, "task.stride": 8, "task.max_question": 12, **short}

    def experiment(out: str, **changes: Any) -> Any:
        given = {"asker": asker, "answerer": answerer, "passages": 9, "answers": 2, "seeds": 2, **changes}
        files = {"squad1": squad(14, second=False), "squad2": squad(12, second=True), "texts": texts()}
        return benchmark.Table9(start=start, out=tmp_path / out, **files, **given)

    results = experiment("whole").run()
    assert results["passages"] == 9 and results["answers"] == 18
    assert results["generated"] + results["made unanswerable"] > 18 and results["test questions"] == 4
    assert all(len(values) == 2 for values in results["f1"].values())
    assert results["low"] <= results["difference"] <= results["high"]
    mean = np.mean(results["f1"]["with"]) - np.mean(results["f1"]["without"])
    assert results["difference"] == pytest.approx(mean)
    assert set(results["seconds"]) == {"asker", "questions"} | {
        f"seed-{seed}-{name}" for seed in range(2) for name in ("made", "with", "without")
    }
    assert "F1 with generated questions" in benchmark.verdict(results)

    original = benchmark.Table9._stage

    def stage(self: Any, name: str, do: Any) -> Any:
        if name == "seed-1-with":
            raise Killed
        return original(self, name, do)

    with monkeypatch.context() as patch:
        patch.setattr(benchmark.Table9, "_stage", stage)
        with pytest.raises(Killed):
            experiment("killed").run()
    again = experiment("killed").run()
    assert again | {"seconds": None} == results | {"seconds": None}
    with pytest.raises(UsageError, match="holds results of other data or settings"):
        experiment("whole", passages=8).run()
    made = [json.loads(line) for line in (tmp_path / "whole" / "made-train.jsonl").read_text().splitlines()]
    tested = {each for each, _ in benchmark.all_questions(json.loads((tmp_path / "whole" / "test.json").read_text()))}
    assert not tested & {record["context"] for record in made}


def test_articles_are_in_one_group_in_both_files() -> None:
    one, two = squad(14, second=False), squad(12, second=True)
    groups = benchmark.groups_of(one, two)
    found = {
        name: [each["title"] for each in benchmark.only(two, groups, name)["data"]] for name in set(groups.values())
    }
    assert sorted(title for titles in found.values() for title in titles) == [f"article {n:02}" for n in range(12)]
    assert {name: len(titles) for name, titles in found.items()} == {"train": 6, "passages": 2, "dev": 2, "test": 2}


def test_answers_are_spans_that_do_not_overlap() -> None:
    passage = "The small house of John Smith cost $5,000 in 1987. The small house in New York cost 12 percent more."
    for key in range(30):
        found = benchmark.answers_of(passage, 3, key)
        assert len(found) == 3 == len({text for text, _ in found})
        assert all(passage[start : start + len(text)] == text for text, start in found)
        ends = [start + len(text) for text, start in found]
        assert all(end <= start for end, (_, start) in zip(ends, found[1:], strict=False))
    every = {text for key in range(200) for text, _ in benchmark.answers_of(passage, 3, key)}
    assert every == {"John Smith", "$5,000", "1987", "small house", "New York", "12 percent"}
    assert benchmark.answers_of("nothing here at all", 3, 0) == []


@pytest.mark.whole
def test_the_interval_covers_seeds_and_passages() -> None:
    """Questions of one passage stand together: with two passages of equal questions there are three possible means."""
    constant = benchmark.interval(np.full((3, 40), 2.5), ["a", "b"] * 20)
    assert constant == {"difference": 2.5, "low": 2.5, "high": 2.5}
    apart = benchmark.interval(np.tile([0.0, 10.0], (3, 20)), ["a", "b"] * 20)
    assert apart == {"difference": 5.0, "low": 0.0, "high": 10.0}
    alone = benchmark.interval(np.tile([0.0, 10.0], (3, 200)), [str(number) for number in range(400)])
    assert 4.4 < alone["low"] < 4.6 < 5.4 < alone["high"] < 5.6
    of_seeds = benchmark.interval(np.array([[0.0] * 9, [3.0] * 9]), list("abcabcabc"))
    assert (of_seeds["low"], of_seeds["high"]) == (0.0, 3.0)
