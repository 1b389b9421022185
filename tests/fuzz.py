"""Mutates the files that unicloze reads: each must be refused in one sentence, quickly and in bounded memory.

    python tests/fuzz.py [--cases 10000] [--seconds 3600] [FORMAT ...]

Mutations change the parsed structure of a file, since the parser would reject most changes of bytes. Checksums are
recomputed, as an attacker can do too. Each format runs in a separate process with limits on memory and on seconds per case.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import faulthandler
import hashlib
import io
import json
import math
import multiprocessing
import queue
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import yaml
from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

import conftest  # noqa: F401 - the profile of drawn cases
from corpora import write_corpus
from test_import_unilm import released
from unicloze import cli
from unicloze.errors import UniclozeError
from unicloze.evaluation.prompting import read_prompt
from unicloze.interop.families import FAMILIES
from unicloze.interop.family import class_of
from unicloze.interop.files import Config
from unicloze.interop.read import import_checkpoint
from unicloze.interop.recipe import imported_task
from unicloze.pretraining.run import pretrain_run
from unicloze.recipes import load_recipe, toy_overrides
from unicloze.records import read_records
from unicloze.report.page import build_report
from unicloze.settings import TaskSettings
from unicloze.text.digests import SEAL, seal
from unicloze.text.documents import Tally, read_file
from unicloze.text.prepare import Prepared
from unicloze.text.sampler import WindowSampler
from unicloze.text.shards import TokenShard
from unicloze.text.tokenizers import Tokenizer
from unicloze.training.checkpoint import load_checkpoint
from unicloze.training.loading import load_model, ready_model
from unicloze.training.optimizers import build_optimizers
from unicloze.training.process import load_moments
from unicloze.verbs import measure

SECONDS = 10
"""Time limit of a case."""
MEMORY = 2**32
"""Limit of a worker's address space in bytes; torch maps about half of it on import."""

Json = Any
Case = Callable[[Json], None]

LEAVES: st.SearchStrategy[Json] = st.one_of(
    st.sampled_from(
        [
            None, True, False, 0, -1, 1, 2, 2**31, 2**63, 2**64, 10**12, 10**40, -(2**63) - 1, 0.0, -0.5, 1e300, 1e-300,
            float("inf"), float("-inf"), float("nan"), "", " ", "\x00", "\ud800", "x" * 5000, "../../etc/passwd", "/", ".",
            "~", "*", "**", "[", "null", "1e999", "\u202e", "é", "[MASK]", "[PAD]", [], {}, [[]], [{}], {"": None},
        ]
    ),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
)  # fmt: skip
NESTED: st.SearchStrategy[Json] = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
).map(copy.deepcopy)


def places(value: Json, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path to each part of a structure."""
    yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inside:
        yield from places(part, (*path, key))


@st.composite
def mutated(draw: st.DrawFn, base: Json) -> Json:
    """A structure with one to three of its parts replaced, removed, repeated, moved or added."""
    value = copy.deepcopy(base)
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(list(places(value))))
        if not path:
            value = draw(st.one_of(NESTED, st.just(value)))
            continue
        parent = value
        for key in path[:-1]:
            parent = parent[key]
        match draw(st.sampled_from(["replace", "replace", "remove", "repeat", "add", "move"])):
            case "replace":
                parent[path[-1]] = draw(NESTED)
            case "remove":
                del parent[path[-1]]
            case "repeat" if isinstance(parent, list):
                parent.insert(path[-1], copy.deepcopy(parent[path[-1]]))
            case "add" if isinstance(parent, dict):
                parent[draw(st.text(max_size=8))] = draw(NESTED)
            case _:
                donors = list(places(value))
                donor = value
                for key in draw(st.sampled_from(donors)):
                    donor = donor[key]
                parent[path[-1]] = copy.deepcopy(donor)
        if not isinstance(value, dict | list):
            break
    return value


def spelled(value: Json) -> bytes:
    """As JSON; lone surrogates are kept."""
    return json.dumps(value).encode()


class World:
    """A small corpus, prepared, and a run trained on it, in a folder."""

    def __init__(self, place: Path) -> None:
        self.place = place
        corpus = write_corpus(place / "corpus", documents=30)
        overrides = {**toy_overrides(), "data.corpus": [str(corpus)], "training.precision": "fp32"}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pretrain_run(load_recipe("unilmv2-base", overrides), place / "run", progress=False)
        self.run, self.data = place / "run", place / "run" / "data"
        self.checkpoint = next((self.run / "checkpoints").iterdir())

    def copy(self, folder: Path) -> Path:
        """A copy that may be changed."""
        copied = self.place / f"copy-of-{folder.name}"
        shutil.rmtree(copied, ignore_errors=True)
        shutil.copytree(folder, copied)
        return copied


def sign_checkpoint(folder: Path) -> None:
    names = [file.name for file in folder.iterdir() if file.name != "manifest.json"]
    sums = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}
    (folder / "manifest.json").write_text(json.dumps({"schema": 1, "sha256": sums}))


def of_file(
    place: Callable[[World], Path], use: Callable[[Path], Any], spell: Callable[[Json], bytes] = spelled
) -> Callable[[World], tuple[Json, Case]]:
    """The content of a file, which is written again for each case."""

    def make(world: World) -> tuple[Json, Case]:
        file = place(world)

        def read(value: Json) -> None:
            file.write_bytes(spell(value))
            use(file)

        parse = yaml.safe_load if file.suffix == ".yaml" else json.loads
        return parse(file.read_text()), read

    return make


def in_yaml(value: Json) -> bytes:
    return yaml.safe_dump(value).encode(errors="surrogatepass")


def of_checkpoint(name: str) -> Callable[[World], tuple[Json, Case]]:
    def use(file: Path) -> None:
        if name != "manifest.json":
            sign_checkpoint(file.parent)
        load_checkpoint(file.parent)
        load_model(file.parent)

    return of_file(lambda world: world.copy(world.checkpoint) / name, use)


def of_moments(world: World) -> tuple[Json, Case]:
    opened = load_model(world.checkpoint)
    model = ready_model(opened.recipe, opened.model.vocab_size, torch.device("cpu"))

    def use(file: Path) -> None:
        sign_checkpoint(file.parent)
        load_moments(build_optimizers(model, opened.recipe.training), load_checkpoint(file.parent))

    return of_file(lambda world: world.copy(world.checkpoint) / "optimizer.json", use)(world)


def signed_lineage(value: Json) -> bytes:
    return spelled(value | {SEAL: seal(value)} if isinstance(value, dict) else value)


def use_lineage(file: Path) -> None:
    opened = Prepared.load(file.parent)
    opened.to_dict(), str(opened)
    WindowSampler(opened.train, window=16, segments=1, vocabulary=opened.tokenizer.vocabulary, seed=0).read(0, 2)


def use_tokenizer(file: Path) -> None:
    tokenizer = Tokenizer.load(file if file.name == "vocab.json" else file.parent)
    tokenizer.decode(tokenizer.encode("The old cat [MASK] sees the house; é 中."))


def of_ledger(world: World) -> tuple[Json, Case]:
    folder = world.copy(world.run)
    events = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]

    def read(value: Json) -> None:
        lines = value if isinstance(value, list) else [value]
        (folder / "ledger.jsonl").write_bytes(b"\n".join(map(spelled, lines)) + b"\n")
        build_report(folder)

    return events, read


def recipe_file(world: World) -> Path:
    return shutil.copyfile(world.run / "recipe.yaml", world.place / "recipe.yaml")


def prompt_file(world: World) -> Path:
    file = world.place / "prompt.yaml"
    file.write_text('{"template": "{text} It was {label}.", "labels": {"0": "bad", "1": "good"}}')
    return file


def of_vocabulary(world: World) -> tuple[Json, Case]:
    folder = world.place / "vocabulary"
    folder.mkdir(exist_ok=True)
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "th", "the", "<|endoftext|>"]

    def read(value: Json) -> None:
        vocabulary, merges = [*value, None, None][:2] if isinstance(value, list) else (value, None)
        (folder / "vocab.json").write_bytes(spelled(vocabulary))
        lines = merges if isinstance(merges, list) else [merges]
        (folder / "merges.txt").write_text("\n".join(map(str, lines)), encoding="utf-8", errors="surrogatepass")
        use_tokenizer(folder / "vocab.json")

    return [{token: number for number, token in enumerate(tokens)}, ["#version: 0.2", "t h", "th e"]], read


def of_lines(base: Json, use: Callable[[Path], Any]) -> Callable[[World], tuple[Json, Case]]:
    """Lines of JSON, or one document."""

    def make(world: World) -> tuple[Json, Case]:
        file = world.place / f"lines.json{'l' if isinstance(base, list) else ''}"

        def read(value: Json) -> None:
            lines = value if isinstance(base, list) and isinstance(value, list) else [value]
            file.write_bytes(b"\n".join(map(spelled, lines)))
            use(file)

        return base, read

    return make


def use_documents(file: Path) -> None:
    for document in read_file(file, "text", Tally(), "spans"):
        document.text.encode()
        for first, end, _ in document.spans.found:
            assert document.text[first:end].strip() == document.text[first:end] != ""


def use_records(kind: Any) -> Callable[[Path], Any]:
    return lambda file: [str(record.place) for record in read_records(file, TaskSettings(kind=kind))]


def use_answers(file: Path) -> None:
    said = file.with_name("said.json")
    said.write_text('{"1": "a dog"}')
    str(measure("squad", said, file))


DOCUMENTS = [{"text": "The cat.", "spans": [[0, 7], [4, 8, "phrase"]]}, {"text": "A dog.", "n": 1}]
RECORDS = [{"text": "The cat.", "label": "a", "id": 1}, {"text": "A dog.", "label": "b"}]
SQUAD = {
    "data": [
        {"title": "t", "paragraphs": [{"context": "The cat sees a dog.", "qas": [
            {"id": "1", "question": "What?", "answers": [{"text": "a dog", "answer_start": 13}], "is_impossible": False}
        ]}]}
    ]
}  # fmt: skip
TASK_CONFIG = {
    "architectures": ["BertForSequenceClassification"],
    "model_type": "bert",
    "id2label": {"0": "a", "1": "b"},
    "problem_type": "single_label_classification",
    "classifier_dropout": 0.1,
}


def released_folder(world: World, name: str) -> Path:
    folder = world.place / name
    folder.mkdir(exist_ok=True)
    released(folder, fused=False, relative=False, segments=2, model_type="bert")
    return folder


def use_task_config(file: Path) -> None:
    config = Config.read(file)
    if (kind := class_of(config)) is not None:
        imported_task(config, kind, FAMILIES["bert"])


def of_sentence_files(world: World) -> tuple[Json, Case]:
    """Those of sentence-transformers beside a tokenizer's limit."""
    folder = released_folder(world, "sentences")
    (folder / "1_Pooling").mkdir(exist_ok=True)

    def read(value: Json) -> None:
        for name in files:
            (folder / name).unlink(missing_ok=True)
            if isinstance(value, dict) and name in value:
                (folder / name).write_bytes(spelled(value[name]))
        import_checkpoint(folder)

    types = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    files = {
        "modules.json": [{"idx": 0, "name": "0", "path": path, "type": f"a.b.{kind}"} for path, kind in types.items()],
        "1_Pooling/config.json": {"pooling_mode": "mean", "include_prompt": True, "pooling_mode_cls_token": False},
        "sentence_bert_config.json": {"max_seq_length": 12, "do_lower_case": False},
        "config_sentence_transformers.json": {"prompts": {"a": "b "}, "default_prompt_name": "a"},
    }
    return files, read


def of_arguments(world: World) -> tuple[Json, Case]:
    corpus, out = str(world.place / "corpus"), str(world.place / "out")
    base = [
        ["prepare", "--recipe", "quickstart", "--data.corpus", corpus, "--out", out],
        ["fill", "--model", str(world.run), "--text", "the [MASK] cat", "--top-k", "3"],
        ["score", "--model", str(world.run), "--text", "the cat"],
        ["inspect", "--recipe", "unilmv2-base", "--text", "one two three four", "--seed", "1"],
        ["report", str(world.run), "--out", str(world.place / "page.html")],
        ["generate", "--model", str(world.run), "--text", "the", "--decoding.max_length", "3"],
        ["measure", "rouge", "--predictions", str(world.place / "corpus" / "corpus.txt"), "--references", "x"],
        ["recipes", "--json"],
    ]  # fmt: skip

    def read(value: Json) -> None:
        lines = value if isinstance(value, list) else [value]
        for line in [line for line in lines if line not in base]:
            words = [str(word)[:200] for word in line] if isinstance(line, list) else [str(line)[:200]]
            slow = {"pretrain", "compare", "finetune"} & set(words)
            if slow or ("prepare" in words and corpus not in words):  # it would read the recipe's own corpus
                continue
            said = io.StringIO()
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
                code = cli.main(words)
            assert code != 70, (words, said.getvalue()[-500:])

    return base, read


FORMATS: dict[str, Callable[[World], tuple[Json, Case]]] = {
    "recipe": of_file(recipe_file, lambda file: str(load_recipe(file).to_dict()), in_yaml),
    "checkpoint-state": of_checkpoint("state.json"),
    "checkpoint-manifest": of_checkpoint("manifest.json"),
    "checkpoint-optimizer": of_moments,
    "lineage": of_file(lambda world: world.copy(world.data) / "lineage.json", use_lineage, signed_lineage),
    "shard": of_file(
        lambda world: world.copy(world.data) / "train" / "corpus.ds.json",
        lambda file: TokenShard.open(file.with_suffix("")),
    ),
    "ledger": of_ledger,
    "prompt": of_file(prompt_file, read_prompt, in_yaml),
    "tokenizer": of_file(lambda world: world.copy(world.checkpoint) / "tokenizer.json", use_tokenizer),
    "tokenizer-config": of_file(lambda world: world.copy(world.checkpoint) / "tokenizer_config.json", use_tokenizer),
    "vocabulary": of_vocabulary,
    "documents": of_lines(DOCUMENTS, use_documents),
    "records": of_lines(RECORDS, use_records("classification")),
    "squad": of_lines(SQUAD, use_records("extraction")),
    "answers": of_lines(SQUAD, use_answers),
    "config": of_file(
        lambda world: released_folder(world, "released") / "config.json", lambda file: import_checkpoint(file.parent)
    ),
    "task-config": of_lines(TASK_CONFIG, use_task_config),
    "sentence-files": of_sentence_files,
    "arguments": of_arguments,
}
"""Input formats: each makes a valid base and its reader."""


class Slow(BaseException):
    """A case took too long."""


class Enough(Exception):
    """The time for a format is over."""


def _too_slow(*_: object) -> None:
    raise Slow(f"longer than {SECONDS} s")


def attack(
    world: World, name: str, cases: int, number: int = 0, *, seconds: float = math.inf
) -> tuple[int, dict[str, str]]:
    """Run cases of a format within a time limit.

    Returns:
        The number of cases run, and the first case of each failure by its location in unicloze.
    """
    base, read = FORMATS[name](world)
    with contextlib.suppress(UniclozeError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        read(copy.deepcopy(base))  # imports what it needs, which is not to count as time of the first case
    until = time.monotonic() + seconds
    tried, found = 0, dict[str, str]()

    @seed(number)
    @settings(max_examples=cases, phases=[Phase.generate])
    @given(mutated(base))
    def check(value: Json) -> None:
        nonlocal tried
        if time.monotonic() > until:
            raise Enough
        tried += 1
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                read(copy.deepcopy(value))
        except UniclozeError:
            pass
        except BaseException as error:
            frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "unicloze" in frame.filename]
            place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
            found.setdefault(f"{place} {type(error).__name__}: {str(error)[:300]}", differences(base, value))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    former = signal.signal(signal.SIGALRM, _too_slow)
    try:
        with contextlib.suppress(Enough):
            check()
    finally:
        signal.signal(signal.SIGALRM, former)
    return tried, found


def differences(base: Json, value: Json) -> str:
    """What a case changed, limited to a few places."""
    ways = {*places(base), *places(value)}
    changed = []
    for way in sorted(ways, key=str):
        parts = [base, value]
        for key in way:
            parts = [part[key] if _holds(part, key) else KeyError for part in parts]
        if not all(isinstance(part, dict | list) for part in parts) and repr(parts[0]) != repr(parts[1]):
            changed.append(f"{'.'.join(map(str, way))}: {parts[1]!r:.120}")
    return "; ".join(changed[:4])


def _holds(part: Json, key: Any) -> bool:
    return (
        key in part if isinstance(part, dict) else isinstance(part, list) and isinstance(key, int) and key < len(part)
    )


def _worker(name: str, cases: int, number: int, seconds: float, said: Any) -> None:
    torch.set_num_threads(1)
    faulthandler.enable()
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        world = World(Path(place))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        said.put(attack(world, name, cases, number, seconds=seconds))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("formats", nargs="*", default=list(FORMATS))
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seconds", type=int, default=3600, help="for each format")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    failed = 0
    context = multiprocessing.get_context("spawn")
    for name in options.formats:
        said = context.Queue()
        worker = context.Process(target=_worker, args=(name, options.cases, options.seed, options.seconds, said))
        worker.start()
        tried, found = 0, {"?": "the worker died, or hung beyond its time"}
        with contextlib.suppress(queue.Empty):
            tried, found = said.get(timeout=options.seconds + 300)
        worker.kill()
        failed += len(found)
        print(f"{name}: {tried:,} cases, {f'{len(found)} faults' if found else 'nothing but sentences'}", flush=True)
        for fault, case in found.items():
            print(f"    {fault}\n        {case}", flush=True)
    return min(1, failed)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    sys.exit(main())
