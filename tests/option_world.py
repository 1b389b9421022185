"""A tiny corpus, recipes, records and runs, and the outcome of commands on them: output, errors and files."""

from __future__ import annotations

import collections
import contextlib
import functools
import hashlib
import io
import itertools
import json
import os
import random
import re
import shlex
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from test_import_unilm import released
from unicloze import cli
from unicloze.training.ledger import Ledger

NOUNS = [
    "cat", "dog", "house", "tree", "river", "stone", "bird", "child", "window", "garden", "café", "post office",
]  # fmt: skip
VERBS = ["sees", "finds", "follows", "leaves", "paints"]
ADJECTIVES = ["small", "old", "red", "quiet", "heavy", "bright"]

SMALL: dict[str, dict[str, Any]] = {
    "data": {"window": 24, "heldout_share": 0.2},
    "tokenizer": {"vocab_size": 150, "extra_tokens": 24},
    "objective": {},
    "model": {
        "hidden_size": 16, "num_layers": 2, "num_heads": 2, "intermediate_size": 32, "relative_bias": False,
        "initializer_range": 0.2,
    },
    "training": {
        "steps": 3, "batch_size": 4, "learning_rate": 0.01, "warmup_steps": 1, "evaluate_windows": 6, "save_every": 0,
        "evaluate_every": 0, "log_every": 1, "device": "cpu", "precision": "fp32",
    },
}  # fmt: skip
"""Settings that all recipes here share."""

OBJECTIVES: dict[str, dict[str, Any]] = {
    "unilmv2": {"targets": ["ae", "par"]}, "masked": {"targets": ["ae"]},
    "causal": {"targets": ["lm"], "visibility": "left_to_right"}, "bidirectional_lm": {"targets": ["lm", "lm_back"]},
    "masked_diffusion": {"targets": ["diffusion"]}, "block_diffusion": {"targets": ["diffusion"]},
    "prefix": {"targets": ["lm"], "mask_rate": 0.5}, "span_corruption": {"targets": ["lm"], "mask_rate": 0.4},
    "denoising": {"targets": ["lm"], "mask_rate": 0.3}, "masked_span": {"targets": ["lm"], "mask_rate": 0.5},
    "permuted": {"targets": ["par"]}, "compensated": {"targets": ["par"]},
}  # fmt: skip
"""A recipe for each, named after its objective."""

OTHERS: dict[str, dict[str, Any]] = {
    "unprepared": {"objective": {"targets": ["ae", "par"]}},
    "half": {"data": {"heldout_share": 0.5}},
    "streams": {
        "data": {"segments": 1, "order": "streams"},
        "objective": {"name": "permuted", "targets": ["par"]},
        "model": {"positions": "transformer_xl"},
    },
    "local": {
        "objective": {"name": "causal", "targets": ["lm"], "visibility": "left_to_right", "local_width": 3},
        "model": {"layer_visibility": ["local"]},
    },
    "recurrent": {
        "data": {"segments": 1, "order": "streams"},
        "objective": {"name": "causal", "targets": ["lm"], "visibility": "left_to_right"},
        "model": {"kind": "recurrent", "head": "linear"},
    },
    "two_ways": {
        "data": {"segments": 1},
        "objective": {"name": "masked", "targets": ["ae"]},
        "model": {"kind": "recurrent", "directions": "bidirectional", "head": "linear"},
    },
    "electra": {"objective": {"name": "masked", "targets": ["ae", "rtd"]}, "model": {"generator_size": 0.5}},
    "mixture": {
        "objective": {"mixture": [{"label": "one", "mask_rate": 0.2}, {"label": "two", "share": 1, "mask_rate": 0.6}]}
    },
}
"""Additional recipes, by their differences."""

TIMES = {"time", "seconds", "text_tokens_per_second"}
NO_EFFECT = TIMES | {"recipe", "lineage", "learning_rate", "files", "model", "fingerprints"}
"""Fields of a ledger that repeat settings or depend on the clock."""
UNREAD_FILES = {
    "recipe.yaml", "manifest.json", "lock", "optimizer.json", "optimizer.safetensors", "state.json",
    "comparison.json", "index.html", "table.md",
}  # fmt: skip
"""Files that contain the settings themselves."""


class Outcome(NamedTuple):
    """The outcome of a command: everything that may depend on an option."""

    code: int
    out: str
    err: str
    files: dict[str, Any]

    @property
    def refused(self) -> bool:
        """Whether it was refused in one sentence."""
        return self.code in (1, 2) and self.err.count("unicloze: error: ") == 1 and not self.out


class Scene(NamedTuple):
    """A command to which the options are added."""

    words: str  # the verb and what it needs
    then: str = ""  # a command that shows what the first one saved


class World:
    """Everything that commands read, created on first use."""

    def __init__(self, place: Path, scenes: dict[str, Scene]) -> None:
        self.place, self.scenes = place, scenes
        self._known: dict[tuple[str, str], Outcome] = {}
        self._number = 0
        write_texts(place)
        write_records(place)
        write_tests(place)
        recipe = {**SMALL, "data": {**SMALL["data"], "corpus": [str(place / "text.txt")]}}
        (place / "prepare.yaml").write_text(yaml.safe_dump(recipe))
        self._made("prepare", f"prepare --recipe {place}/prepare.yaml --out {place}/prepared --quiet")
        for name, settings in OBJECTIVES.items():
            self._write_recipe(name, {"objective": {"name": name, **settings}}, prepared=True)
        for name, sections in OTHERS.items():
            self._write_recipe(name, sections, prepared=name not in ("unprepared", "half"))
        bert: dict[str, Any] = {"fused": False, "relative": False, "segments": 2, "model_type": "bert"}
        for name in ("released", "pickled", "strange"):
            released(place / name, **bert)
        released(place / "released-2", **bert, num_attention_heads=2)
        pickled, strange = (place / name / "model.safetensors" for name in ("pickled", "strange"))
        torch.save(load_file(pickled), pickled.with_name("pytorch_model.bin"))
        pickled.unlink()
        save_file({**load_file(strange), "strange.weight": torch.zeros(3)}, strange)

    def _write_recipe(self, name: str, sections: dict[str, dict[str, Any]], *, prepared: bool) -> None:
        recipe = {key: {**values, **sections.get(key, {})} for key, values in SMALL.items()}
        recipe["data"] |= {"corpus": [str(self.place / "text.txt")]}
        if prepared:
            recipe["data"]["prepared"] = str(self.place / "prepared")
        (self.place / f"{name}.yaml").write_text(yaml.safe_dump(recipe))

    @functools.cache  # noqa: B019 - a world lives as long as the tests
    def run_of(self, recipe: str) -> Path:
        """Folder of a run of a recipe."""
        out = self.place / "runs" / recipe
        self._made(recipe, f"pretrain --recipe {self.place}/{recipe}.yaml --out {out} --quiet")
        return out

    @functools.cache  # noqa: B019
    def task_run(self, scene: str) -> Path:
        """The output folder of a fine-tuning scene."""
        out = self.place / "runs" / scene
        self._made(scene, f"{self.scenes[scene].words} --out {out}")
        return out

    def _made(self, name: str, command: str) -> None:
        code, _, err = self._call(self.words(command), self.place)
        assert code == 0, f"{name}: {err}"

    def text(self, words: str) -> str:
        """Replaces what is in braces by paths: {RUN:recipe}, {TASK:scene}, {a file of the world}."""

        def named(match: re.Match[str]) -> str:
            kind, _, name = match[1].partition(":")
            place = {"RUN": self.run_of, "TASK": self.task_run}.get(kind, lambda _: self.place / kind)(name)
            return str(place)

        return re.sub(r"\{([\w.:/-]+)\}", named, words)

    def words(self, text: str) -> list[str]:
        """Words split as by a shell, with paths filled in."""
        return shlex.split(self.text(text))

    def outcome(self, scene: str, options: str, unlike: Outcome | None = None) -> Outcome:
        """The outcome of a scene with options; cached. A run ends as soon as it is told apart from one of `unlike`."""
        key = scene, options
        if key in self._known:
            return self._known[key]
        if unlike is not None:
            return self._outcome(self.scenes[scene], options, unlike)
        self._known[key] = self._outcome(self.scenes[scene], options)
        return self._known[key]

    def _outcome(self, scene: Scene, options: str, unlike: Outcome | None = None) -> Outcome:
        words = self.words(f"{scene.words} {options}")
        self._number += 1
        folder = self.place / "scratch" / str(self._number)
        folder.mkdir(parents=True)
        with ends_if_unlike(unlike, folder):
            code, out, err = self._call(words, folder)
        if scene.then and code == 0:
            _, more, _ = self._call(self.words(scene.then), folder)
            out += more
        files = {str(file.relative_to(folder)): content(file) for file in sorted(folder.rglob("*")) if file.is_file()}
        shutil.rmtree(folder)
        return Outcome(code, without_times(out.replace(str(folder), ".")), said(err.replace(str(folder), ".")), files)

    @staticmethod
    def _call(words: Sequence[str], folder: Path) -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = cli.main(words)
            except ToldApart:
                code = 0
        return code, out.getvalue(), err.getvalue()


class ToldApart(BaseException):
    """A run has written something else than the run it is compared with."""


@contextlib.contextmanager
def ends_if_unlike(other: Outcome | None, folder: Path) -> Iterator[None]:
    """Runs in the folder end at the first event of their ledger that the other outcome's ledger does not have."""
    write, written = Ledger.write, collections.Counter[str]()

    def write_and_compare(ledger: Ledger, event: str, **values: object) -> None:
        if ledger._file.closed:  # it is ending
            return
        write(ledger, event, **values)
        name = os.path.relpath(ledger._path.resolve(), folder.resolve())
        place, written[name] = written[name], written[name] + 1
        others = other.files.get(name, []) if other else []
        if others[place : place + 1] != [effect({"event": event, **json.loads(json.dumps(values))})]:
            ledger.close()
            raise ToldApart

    with pytest.MonkeyPatch.context() as patch:
        if other is not None:
            patch.setattr(Ledger, "write", write_and_compare)
        yield


def said(err: str) -> str:
    """Notes, warnings and errors, and whether there is anything else, such as progress, which contains speeds."""
    lines = err.splitlines()
    found = [line for line in lines if line.startswith("unicloze: ")]
    return "\n".join([*found, *(["..."] if len(found) < len(lines) else [])])


def without_times(text: str) -> str:
    """A text without its times and speeds."""
    text = re.sub(r"[\d.,]+ (s|ms|seconds|minutes|GiB|GF/s|in fp32)\b", "TIME", text)
    return re.sub(r'"(time|seconds)": [\d.]+', "TIME", text)


def effect(event: dict[str, Any]) -> dict[str, Any]:
    """What a ledger's event tells that neither repeats settings nor depends on the clock."""
    return {key: value for key, value in event.items() if key not in NO_EFFECT | {"schema"}}


def content(file: Path) -> Any:
    """The contents of a file without settings and times."""
    if file.name in UNREAD_FILES:
        return None
    if file.name == "scores.json":
        return {key: value for key, value in json.loads(file.read_text()).items() if key not in ("recipe", "probes")}
    if file.name == "ledger.jsonl":
        events = [json.loads(line) for line in file.read_text().splitlines()]
        return [effect(event) for event in events]
    if file.name == "lineage.json":
        lineage = json.loads(file.read_text())
        return [[source["train"], source["heldout"]] for source in lineage["sources"]]
    if file.suffix == ".html":
        text = re.sub(r"<svg.*?</svg>", "", file.read_text(encoding="utf-8"), flags=re.DOTALL)
        return re.sub(r"<[^>]*>|[\d.,]+", " ", text)
    if file.suffix == ".json":
        return without_times(file.read_text(encoding="utf-8"))
    return hashlib.sha256(file.read_bytes()).hexdigest()


def write_texts(place: Path) -> None:
    """Texts with capitals, accents, sentences, phrases, and a duplicate document."""
    draw = random.Random(0)

    def sentence() -> str:
        return (
            f"The {draw.choice(ADJECTIVES)} {draw.choice(NOUNS)} {draw.choice(VERBS)} the {draw.choice(ADJECTIVES)} "
            f"{draw.choice(NOUNS)}."
        )

    documents = [" ".join(sentence() for _ in range(draw.randint(3, 9))) for _ in range(60)]
    (place / "text.txt").write_text("\n\n".join([*documents, documents[0]]) + "\n", encoding="utf-8")
    (place / "other.txt").write_text("\n\n".join(documents[::2]) + "\n", encoding="utf-8")
    lines: list[Any] = [{"text": one, "body": other} for one, other in itertools.pairwise(documents)]
    for line in lines[::2]:
        line["marked"] = [[0, line["text"].index("."), "phrase"]]
    write_lines(place / "fields.jsonl", lines)
    (place / "vectors.txt").write_text("".join(f"{word}{' 0.5' * 16}\n" for word in ("the", "small", "cat")))
    (place / "phrases.txt").write_text("the small\npost office\n")
    (place / "phrases-2.txt").write_text("the old\n")
    vocabulary = "[PAD] [UNK] [CLS] [SEP] [MASK] the The cat dog sees . old small "
    (place / "vocab.txt").write_text(vocabulary.replace(" ", "\n"))


def write_tests(place: Path) -> None:
    """Test sets and references for `evaluate` and `measure`."""
    for folder, verbs in (("blimp", VERBS[:3]), ("blimp-2", VERBS[3:])):
        (place / folder).mkdir()
        pairs = [
            {
                "sentence_good": f"The old {noun} {verb} the cat.", "sentence_bad": f"Old the {verb} {noun} the cat.",
                "UID": "order", "field": "syntax", "linguistics_term": "word_order",
            }
            for verb in verbs for noun in NOUNS[:4]
        ]  # fmt: skip
        write_lines(place / folder / "order.jsonl", pairs)
    (place / "words.txt").write_text("\n".join(["the", "old", "cat", "dog", "sees"]) + "\n")
    for name, nouns in (("lambada", NOUNS[:5]), ("lambada-2", NOUNS[5:9])):
        write_lines(place / f"{name}.jsonl", [{"text": f"The old {noun} sees the small {noun}"} for noun in nouns])
        story = "".join(f"{number} The old {noun} sees the cat.\n" for number, noun in enumerate(nouns, start=1))
        asked = "".join(f"21 The small XXXXX sees.\t{noun}\t\t{'|'.join(NOUNS[:10])}\n" for noun in nouns[:1])
        (place / f"{name}.cbt").write_text(story + asked + story + asked)
    for name, template in (("prompt", "{text} is {label}"), ("prompt-2", "{text} are {label}")):
        (place / f"{name}.yaml").write_text(f'template: "{template}"\nlabels: {{same: cat, other: dog}}\n')
    texts = ["the old cat sees the dog", "the dog finds a house", "a bird"]
    for name, lines in (("texts", texts), ("texts-2", [f"{text} ." for text in texts]), ("texts-3", texts[::-1])):
        (place / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))
    (place / "masked.txt").write_text("the [MASK] cat\na [MASK]\n")
    write_lines(place / "masked.jsonl", [{"text": "the old [MASK]", "body": "a [MASK]"}])
    asked = [
        {"id": str(n), "question": "?", "answers": [{"text": "the cat"}] * (n % 2), "is_impossible": not n % 2}
        for n in range(4)
    ]
    (place / "gold.json").write_text(json.dumps({"data": [{"paragraphs": [{"context": "the cat", "qas": asked}]}]}))
    (place / "answers.json").write_text(json.dumps({str(number): "the cat" for number in range(4)}))
    for name, shares in (("sure", [0.9, 0.1]), ("unsure", [0.1, 0.9])):
        (place / f"{name}.json").write_text(json.dumps({str(number): shares[number % 2] for number in range(4)}))


def write_records(place: Path) -> None:
    """Labelled records for every kind of task."""
    pairs = [(one, other) for one in NOUNS[:5] for other in NOUNS[:5]][:12]
    texts = [(f"The old {one} sees the {other}.", f"The {other} finds {one}.") for one, other in pairs]
    same = ["same" if one == other else "other" for one, other in pairs]
    made: dict[str, list[dict[str, Any]]] = {
        "classes": [
            {"text": text, "pair": pair, "label": label} for (text, pair), label in zip(texts, same, strict=True)
        ],
        "numbers": [
            {"text": text, "pair": pair, "label": float(number % 5)} for number, (text, pair) in enumerate(texts)
        ],
        "choices": [
            {"context": text, "question": "who?", "choices": [one, other], "label": number % 2}
            for number, ((text, _), (one, other)) in enumerate(zip(texts, pairs, strict=True))
        ],
        "tags": [
            {"tokens": ["The", one, "sees", other, *"nowhere"], "tags": ["O", "B-X", "O", "B-Y", *"OOOOOOO"], "predicate": 2}
            for one, other in pairs[:8]
        ],
        "questions": [
            {
                "context": f"{text} The small bird finds the {one}.",
                "question": f"The {other} sees whom?",
                "answers": [] if one == other else [f"the {other}"],
            }
            for (text, _), (one, other) in list(zip(texts, pairs, strict=True))[:8]
        ],
        "turns": [
            {
                "story": str(number // 2), "turn": number % 2 + 1,
                "context": f"{text} The small bird finds the {one}.", "question": f"The {other} sees?",
                "history": [["The who?", "yes"]] * (number % 2), "answers": [other],
                "rationale": f"sees the {other}", "rationale_start": len(f"The old {one} "),
            }
            for number, ((text, _), (one, other)) in enumerate(zip(texts, pairs, strict=True))
        ][:8],
        "sources": [
            {"source": text, "hint": pair, "target": f"{one} {other}", "references": [f"{one} {other}", f"The {one}"]}
            for (text, pair), (one, other) in zip(texts, pairs, strict=True)
        ][:8],
    }  # fmt: skip
    made["answered"] = [
        {**record, "answers": [f"the {one}"], "id": str(number), "title": "a"}
        for number, (record, (one, _)) in enumerate(zip(made["questions"], pairs, strict=False))
    ]
    made["more"] = [{**record, "label": "same"} for record in made["classes"][::2]]
    made["said-2"] = [{"id": str(number), "prediction": "other"} for number in range(len(made["classes"]))]
    made["said"] = [{"id": str(number), "prediction": "same"} for number in range(len(made["classes"]))]
    made |= {"sources-2": made["sources"][:3], "answered-2": made["answered"][:5]}
    for name, records in made.items():
        write_lines(place / f"{name}.jsonl", records)


def write_lines(file: Path, records: Sequence[dict[str, Any]]) -> None:
    """A file of JSON lines."""
    text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    file.write_text(text, encoding="utf-8")
