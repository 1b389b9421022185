"""Whether generated questions improve answering (UniLM v1, Section 3.3, Table 9), from a small checkpoint.

    python benchmarks/generated_questions.py --model DIR --squad1 squad-dev-v1.1.json.gz --squad2 squad-dev-v2.0.json.gz \
        --texts openstax_train.jsonl.gz --out runs/table9 [--json FILE] [--passages 2000] [--answers 3] [--seeds 3] [settings]

1. Articles, by title and the same in both files: half to train on, a sixth each for passages, development and testing.
2. An asker learns questions from SQuAD 1.1's articles to train on.
3. Passages: those of the held-out articles, and of the texts (.jsonl with "text" and "title") up to `--passages` in all.
   Spans that look like answers (names, numbers, repeated terms) are drawn from each; SQuAD's own questions are not used.
4. The asker writes a question for each; unanswerable ones are made from these, four for every five.
5. For each seed: an answerer trained one epoch on the generated questions and then on SQuAD 2.0's articles to train on,
   and one trained on these alone. The development articles choose the threshold of no answer.
6. F1 of both on the test articles, and the difference with its 95 % interval: 10,000 bootstrap samples of seeds and passages.

The same command resumes. Dotted settings apply to all trainings; --asker.SETTING and --answerer.SETTING to one kind. A model
that was never trained to fill masks is fine-tuned without the paper's auxiliary masked language model.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import frame
from unicloze import keyed, verbs
from unicloze.errors import UsageError
from unicloze.evaluation.metrics.answers import squad
from unicloze.files import digest, replace_file
from unicloze.finetuning.seeds import FinetuneSummary
from unicloze.recipes import parse_options
from unicloze.training.loading import LoadedModel

GROUPS = "train", "train", "train", "passages", "dev", "test"
"""Groups that articles join in turn, in the order of their titles."""
ASKER: Mapping[str, Any] = {
    "finetuning.epochs": 3,
    "training.batch_size": 16,
    "training.learning_rate": 5e-4,
    "training.clip_norm": 1.0,
    "generation.max_source": 200,
    "generation.max_target": 40,
    "task.max_length": 256,
    "decoding.beams": 1,
    "decoding.max_length": 40,
}
ANSWERER: Mapping[str, Any] = {
    "training.batch_size": 16,
    "training.learning_rate": 1e-4,
    "training.clip_norm": 1.0,
}
"""Settings for a checkpoint of 22 M weights, instead of those of UniLM v1 large."""
WORDS_OF_A_PASSAGE = 100
PASSAGES_OF_A_TEXT = 8
SAMPLES = 10_000
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z0-9\"\u201c])")
_NAME = re.compile(
    r"(?<=[\w,;:)] )[A-Z][\w\u2019'-]+(?: (?:(?:of|the|and|de|van|von) )?[A-Z][\w\u2019'-]+){0,4}"  # not after a full stop
)
_NUMBER = re.compile(r"(?<![\w.])[$\u20ac\u00a3]?\d[\d,]*(?:\.\d+)?(?: ?%| (?:percent|million|billion|[a-z]{3,}s\b))?")
_TERM = re.compile(r"\b[a-z]{4,} [a-z]{5,}\b")


def text_of(path: Path) -> str:
    """A file's text, decompressed if necessary."""
    content = path.read_bytes()
    return (gzip.decompress(content) if path.suffix == ".gz" else content).decode()


def groups_of(squad1: Mapping[str, Any], squad2: Mapping[str, Any]) -> dict[str, str]:
    """Group of each article by title."""
    titles = sorted({article["title"] for content in (squad1, squad2) for article in content["data"]})
    return {title: GROUPS[number % len(GROUPS)] for number, title in enumerate(titles)}


def only(content: Mapping[str, Any], groups: Mapping[str, str], group: str) -> dict[str, Any]:
    """The articles of a group."""
    return {**content, "data": [article for article in content["data"] if groups[article["title"]] == group]}


def passages_of(text: str) -> Iterator[str]:
    """Whole sentences, about WORDS_OF_A_PASSAGE words at a time."""
    taken: list[str] = []
    words = 0
    for sentence in _SENTENCE.split(" ".join(text.split())):
        taken.append(sentence)
        words += len(sentence.split())
        if words >= WORDS_OF_A_PASSAGE:
            yield " ".join(taken)
            taken, words = [], 0


def answers_of(passage: str, count: int, key: int) -> list[tuple[str, int]]:
    """Up to `count` spans of a passage that look like answers, none twice and none overlapping, drawn by a key."""
    terms = [found for found in _TERM.finditer(passage) if passage.count(found.group()) > 1]
    spans = [found.span() for kind in (_NAME, _NUMBER) for found in kind.finditer(passage)]
    spans += [found.span() for found in terms]
    order = keyed.permutation(np.arange(len(spans)), max(1, len(spans)), keyed.key(key)[0])
    chosen: list[tuple[int, int]] = []
    for start, end in (spans[number] for number in order.tolist()):
        new = all(end <= first or start >= last for first, last in chosen)
        if new and passage[start:end] not in {passage[first:last] for first, last in chosen}:
            chosen.append((start, end))
        if len(chosen) == count:
            break
    return [(passage[start:end], start) for start, end in sorted(chosen)]


def passage_records(
    articles: Mapping[str, Any], texts: Sequence[Mapping[str, Any]], most: int, answers: int
) -> list[dict[str, Any]]:
    """Passages of the articles, then of the texts, with a record for each of their answers."""
    found = [(article["title"], one["context"]) for article in articles["data"] for one in article["paragraphs"]]
    for text in texts:
        name = str(text.get("id") or text.get("title") or digest(text["text"]))
        found += [
            (name, passage) for passage, _ in zip(passages_of(text["text"]), range(PASSAGES_OF_A_TEXT), strict=False)
        ]
    records: list[dict[str, Any]] = []
    passages = 0
    for title, context in found:
        chosen = answers_of(context, answers, passages)
        for number, (answer, start) in enumerate(chosen):
            answered = [{"text": answer, "answer_start": start}]
            records.append({"id": f"p{passages}-{number}", "title": title, "context": context, "answers": answered})
        passages += bool(chosen)
        if passages == most:
            break
    return records


def interval(differences: np.ndarray[Any, Any], passages: Sequence[str]) -> dict[str, float]:
    """Mean difference and its 95 % interval over bootstrap samples of seeds and of passages with their questions.

    Args:
        differences: Of each seed and question. *Shape:* (seeds, questions)
        passages: Passage of each question.
    """
    names = {name: number for number, name in enumerate(dict.fromkeys(passages))}
    place = np.array([names[name] for name in passages])
    sums = np.stack([np.bincount(place, one, len(names)) for one in differences])
    sizes = np.bincount(place, minlength=len(names))
    draws = np.random.default_rng(0)
    means = np.empty(SAMPLES)
    for sample in range(SAMPLES):
        drawn = draws.integers(0, len(names), len(names))
        of_seeds = sums[draws.integers(0, len(sums), len(sums))].mean(axis=0)
        means[sample] = of_seeds[drawn].sum() / sizes[drawn].sum()
    low, high = np.percentile(means, [2.5, 97.5])
    return {"difference": float(differences.mean()), "low": float(low), "high": float(high)}


@dataclass
class Table9:
    """The whole experiment in a folder; every stage that is done is recorded there and not repeated.

    Args:
        start: The model to start from.
        squad1: Content of a file of SQuAD 1.1.
        squad2: Content of a file of SQuAD 2.0.
        texts: Records with `text`.
        out: The folder.
        passages: Largest number of passages.
        answers: Largest number of answers per passage.
        seeds: Number of seeds.
        asker: Settings of the asker.
        answerer: Settings of the answerers.
    """

    start: LoadedModel
    squad1: Mapping[str, Any]
    squad2: Mapping[str, Any]
    texts: Sequence[Mapping[str, Any]]
    out: Path
    passages: int = 2000
    answers: int = 3
    seeds: int = 3
    asker: Mapping[str, Any] = field(default_factory=dict)
    answerer: Mapping[str, Any] = field(default_factory=dict)

    def run(self) -> dict[str, Any]:
        """Do what is left; returns the results.

        Raises:
            UsageError: The folder holds an experiment with other data or settings.
        """
        self._same()
        groups = groups_of(self.squad1, self.squad2)
        files = {name: self.out / f"{name}.json" for name in ("asked", "train", "dev", "test")}
        replace_file(files["asked"], json.dumps(only(self.squad1, groups, "train")))
        for name in ("train", "dev", "test"):
            replace_file(files[name], json.dumps(only(self.squad2, groups, name)))
        records = passage_records(only(self.squad1, groups, "passages"), self.texts, self.passages, self.answers)
        passages = self.out / "passages.jsonl"
        replace_file(passages, "".join(json.dumps(record) + "\n" for record in records))
        about = {"passages": len({record["context"] for record in records}), "answers": len(records)}
        self._stage(
            "asker", lambda: self._finetune("squad-question-generation", self.start, files["asked"], self.asker)
        )
        written = self._stage("questions", lambda: self._write_questions(passages))
        scores = [self._of_seed(seed, files) for seed in range(self.seeds)]
        references = dict(questions_of(json.loads(files["test"].read_text())))
        shared = list(references)
        f1 = {name: np.array([[one[name][each] for each in shared] for one in scores]) for name in ("with", "without")}
        where = {each["id"]: passage for passage, each in all_questions(json.loads(files["test"].read_text()))}
        return {
            **about,
            **written,
            "test questions": len(shared),
            "f1": {name: [float(mean) for mean in values.mean(axis=1)] for name, values in f1.items()},
            **interval(f1["with"] - f1["without"], [where[each] for each in shared]),
            "seconds": {
                file.stem: json.loads(file.read_text())["seconds"] for file in sorted(self._stages.glob("*.json"))
            },
        }

    @property
    def _stages(self) -> Path:
        return self.out / "stages"

    def _same(self) -> None:
        self._stages.mkdir(parents=True, exist_ok=True)
        data = [self.squad1, self.squad2, list(self.texts)]
        settings = {
            "data": digest(data),
            "model": digest({name: list(weight.shape) for name, weight in self.start.model.state_dict().items()}),
            **{name: getattr(self, name) for name in ("passages", "answers")},
            **{name: {key: str(value) for key, value in getattr(self, name).items()} for name in ("asker", "answerer")},
        }
        file = self.out / "settings.json"
        if not file.is_file():
            replace_file(file, json.dumps(settings, indent=1))
        elif json.loads(file.read_text()) != settings:
            raise UsageError(f"{self.out} holds results of other data or settings: give another --out.")

    def _stage(self, name: str, do: Callable[[], Any]) -> Any:
        """The result of a stage, computed unless it is recorded."""
        file = self._stages / f"{name}.json"
        if not file.is_file():
            print(f"{name} ...", file=sys.stderr, flush=True)
            began = time.perf_counter()
            result = do()
            replace_file(file, json.dumps({"seconds": time.perf_counter() - began, "result": result}))
        return json.loads(file.read_text())["result"]

    def _finetune(
        self,
        task: str,
        start: LoadedModel | Path,
        train: Path,
        settings: Mapping[str, Any],
        name: str = "asker",
        dev: Path | None = None,
    ) -> None:
        out = self.out / name
        summary = verbs.finetune(task, start, train, dev, out, quiet=True, overrides=settings)
        assert isinstance(summary, FinetuneSummary)
        step = summary.runs[0]
        if step.stopped_by:
            raise SystemExit(128 + step.stopped_by)

    def _write_questions(self, passages: Path) -> dict[str, int]:
        made, train = self.out / "made.jsonl", self.out / "made-train.jsonl"
        verbs.generate(self.out / "asker", file=passages, into="question", out=made, quiet=True)
        written = verbs.unanswerable(made, train)
        return {"generated": written.answerable, "made unanswerable": written.unanswerable}

    def _of_seed(self, seed: int, files: Mapping[str, Path]) -> dict[str, dict[str, float]]:
        """F1 of each test question by an answerer with the generated questions and one without."""
        own = {**self.answerer, "training.seed": seed}
        if self.start.recipe.objective.name == "none":
            own["finetuning.auxiliary"] = {}
        task, folder = "squad-v2-generated", f"seed-{seed}"

        def made() -> None:
            once = {**own, "finetuning.epochs": 1}
            self._finetune(task, self.start, self.out / "made-train.jsonl", once, f"{folder}/made")

        def answerer(name: str, start: LoadedModel | Path) -> dict[str, float]:
            place = f"{folder}/{name}"
            self._finetune(task, start, files["train"], {**own, "finetuning.evaluations": 0.5}, place, files["dev"])
            found = verbs.predict(self.out / place, file=files["test"], quiet=True)
            said = {str(one["id"]): str(one["prediction"]) for one in found}
            references = questions_of(json.loads(files["test"].read_text()))
            return {each: squad({each: said[each]}, {each: answers}).values["f1"] for each, answers in references}

        self._stage(f"{folder}-made", made)
        return {
            "with": self._stage(f"{folder}-with", lambda: answerer("with", self.out / folder / "made")),
            "without": self._stage(f"{folder}-without", lambda: answerer("without", self.start)),
        }


def all_questions(content: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each question of a SQuAD file with its passage."""
    for article in content["data"]:
        for paragraph in article["paragraphs"]:
            yield from ((paragraph["context"], question) for question in paragraph["qas"])


def questions_of(content: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Each question's id and right answers."""
    for _, question in all_questions(content):
        yield str(question["id"]), [answer["text"] for answer in question["answers"]]


def verdict(results: Mapping[str, Any]) -> str:
    """The result in a sentence."""
    low, high = results["low"], results["high"]
    said = "more than without" if low > 0 else "less than without" if high < 0 else "no clear difference"
    return f"F1 with generated questions {results['difference']:+.2f} points, 95 % interval {low:+.2f} to {high:+.2f}: {said}"


def main() -> None:
    parser = frame.options(__doc__)
    parser.add_argument("--model", required=True)
    for name in ("squad1", "squad2", "out"):
        parser.add_argument(f"--{name}", required=True, type=Path)
    parser.add_argument("--texts", required=True, type=Path, nargs="+")
    for name, default in (("passages", 2000), ("answers", 3), ("seeds", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options, extra = parser.parse_known_args()
    own: dict[str, dict[str, Any]] = {"asker": dict(ASKER), "answerer": dict(ANSWERER)}
    for key, value in parse_options(extra).items():
        kind, _, setting = key.partition(".")
        for settings in [own[kind]] if kind in own else own.values():
            settings[setting if kind in own else key] = value
    experiment = Table9(
        start=verbs.load_model(options.model),
        squad1=json.loads(text_of(options.squad1)),
        squad2=json.loads(text_of(options.squad2)),
        texts=[json.loads(line) for file in options.texts for line in text_of(file).splitlines()],
        out=options.out,
        passages=options.passages,
        answers=options.answers,
        seeds=options.seeds,
        **own,
    )
    results = experiment.run()
    print(json.dumps(results, indent=1))
    print(verdict(results))
    if options.json:
        replace_file(options.json, json.dumps({"settings": own, **results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
