"""Preparation in portions: by several processes, killed and restarted, always with the same bytes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from test_prepare import content, run, sentence, texts_of
from unicloze.errors import UniclozeError
from unicloze.settings import DataSettings, TokenizerSettings
from unicloze.text import portions, split, workers
from unicloze.text.portions import Job
from unicloze.text.prepare import Prepared, prepare_data
from unicloze.text.sampler import WindowSampler
from unicloze.text.split import first_copies, text_hash

FILES = 6


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """180 documents in six files; every file repeats one document of the file before it."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    for number in range(FILES):
        texts = [sentence(number * 30 + i - (i == 0)) for i in range(30)]
        (folder / f"{number}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return folder


@pytest.fixture
def small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portions, "PORTION", 1)


def prepare(corpus: Path, out: Path, jobs: int = 1, **options: Any) -> Prepared:
    data = DataSettings(corpus=[str(corpus)], heldout_share=0.1, **options)
    return prepare_data(data, TokenizerSettings(vocab_size=200), out, progress=False, jobs=jobs)


@pytest.mark.whole
@pytest.mark.usefixtures("small_portions")
def test_the_number_of_processes_changes_no_byte(corpus: Path, tmp_path: Path) -> None:
    prepared = prepare(corpus, tmp_path / "1")
    (entry,) = prepared.lineage["sources"]
    assert entry["portions"] == FILES == len(prepared.train[0].shards)
    assert (entry["documents"], entry["duplicates"]) == (180, FILES - 1)
    for jobs in (2, 3):
        prepare(corpus, tmp_path / f"{jobs}", jobs)
        assert content(tmp_path / f"{jobs}") == content(tmp_path / "1")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2", "3", "corpus"]


@pytest.mark.whole
def test_portions_hold_the_documents_and_windows_of_a_whole(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = prepare(corpus, tmp_path / "whole")
    monkeypatch.setattr(portions, "PORTION", 1)
    parted = prepare(corpus, tmp_path / "parted")
    assert len(whole.train[0].shards) == 1 and len(parted.train[0].shards) == FILES
    assert whole.fingerprint == parted.fingerprint and whole.tokenizer.fingerprint == parted.tokenizer.fingerprint
    for one, other in ((whole.train, parted.train), (whole.heldout, parted.heldout)):
        assert texts_of(whole, one) == texts_of(parted, other)
        samplers = [
            WindowSampler(sources, window=20, segments=1, vocabulary=whole.tokenizer.vocabulary, seed=3)
            for sources in (one, other)
        ]
        first, second = (sampler.read(0, sampler.epoch_size) for sampler in samplers)
        assert (first.token_ids == second.token_ids).all() and (first.keys == second.keys).all()
        names = [[str(sampler.name(0, index)) for index in range(20)] for sampler in samplers]
        assert names[0] == names[1]


KILLED = """
import os, signal, sys
from pathlib import Path
from unicloze.settings import DataSettings, TokenizerSettings
from unicloze.text import portions, prepare

portions.PORTION = 1
count = 0

def killing(do):
    def counted(*arguments):
        global count
        count += 1
        result = do(*arguments)
        if count == int(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return counted

portions._survey, portions._tokenise = killing(portions._survey), killing(portions._tokenise)
data = DataSettings(corpus=[sys.argv[1]], heldout_share=0.1)
prepare.prepare_data(data, TokenizerSettings(vocab_size=200), Path(sys.argv[2]), progress=False)
"""


@pytest.mark.whole
@pytest.mark.usefixtures("small_portions")
@pytest.mark.parametrize("killed_in", [3, FILES + 1, FILES + 4])
def test_a_kill_loses_one_portion(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_in: int
) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-c", KILLED, str(corpus), str(out), str(killed_in)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    done = list[str]()
    for name in ("_survey", "_tokenise"):
        do = getattr(portions, name)
        monkeypatch.setattr(portions, name, lambda job, *rest, do=do: (done.append(job.what), do(job, *rest))[1])
    prepare(corpus, out)
    assert len(done) == 2 * FILES - (killed_in - 1), "the killed job is the only one that is done twice"
    prepare(corpus, tmp_path / "clean")
    assert content(out) == content(tmp_path / "clean")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clean", "corpus", "out"]


@pytest.mark.whole
@pytest.mark.usefixtures("small_portions")
def test_what_a_killed_preparation_read_before_a_file_changed_is_read_again(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-c", KILLED, str(corpus), str(out), str(FILES + 4)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    with (corpus / "0.jsonl").open("a") as file:
        file.write(json.dumps({"text": sentence(1000)}) + "\n")
    prepare(corpus, out)
    prepare(corpus, tmp_path / "clean")
    assert content(out) == content(tmp_path / "clean")


@pytest.mark.whole
@pytest.mark.usefixtures("small_portions")
def test_a_killed_worker_is_named_and_its_portion_done_again(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give = workers._Worker.give

    def give_and_kill(self: workers._Worker, job: Job) -> None:
        give(self, job)
        if job.what == "tokenise":
            self._process.kill()

    with monkeypatch.context() as context:
        context.setattr(workers._Worker, "give", give_and_kill)
        with pytest.raises(UniclozeError, match=r"was killed by signal 9: run the same command again"):
            prepare(corpus, tmp_path / "out", 2)
    prepare(corpus, tmp_path / "out", 2)
    prepare(corpus, tmp_path / "clean")
    assert content(tmp_path / "out") == content(tmp_path / "clean")


@pytest.mark.usefixtures("small_portions")
def test_what_a_worker_cannot_read_is_said_in_the_same_words(corpus: Path, tmp_path: Path) -> None:
    (corpus / "4.jsonl").write_text('{"text": "fine"}\n{"text": \n')
    said = []
    for jobs in (1, 2):
        with pytest.raises(UniclozeError) as error:
            prepare(corpus, tmp_path / "out", jobs)
        said.append(str(error.value))
    assert said[0] == said[1] and "4.jsonl:2 is not JSON" in said[0]


def test_a_worker_does_not_outlive_the_end_of_its_input() -> None:
    worker = subprocess.Popen([sys.executable, "-m", "unicloze.text.workers"], stdin=subprocess.PIPE)
    assert worker.stdin is not None
    worker.stdin.close()
    assert worker.wait(timeout=60) == 1


@pytest.mark.parametrize("bucket", [10, 64, 10**6])
def test_the_first_copy_of_every_hash_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket: int) -> None:
    monkeypatch.setattr(split, "BUCKET", bucket)
    draw = np.random.default_rng(5)
    values = np.concatenate(
        [draw.integers(0, 2**63, 200).astype(np.uint64) * np.uint64(2), np.arange(50, dtype=np.uint64)]
    )
    hashes = draw.choice(values, size=1000)
    seen, expected = set[int](), []
    for value in hashes.tolist():
        expected.append(value not in seen)
        seen.add(value)
    found = first_copies(np.split(hashes, [0, 7, 500, 500]), len(hashes), tmp_path / "buckets")
    assert found.tolist() == expected


def test_a_copy_is_dropped_however_many_documents_lie_between(tmp_path: Path) -> None:
    """Once, a document whose hash shared its lowest 20 bits with one in between was not recognised."""
    slots = dict[int, str]()
    for number in range(10_000):
        text = sentence(number)
        slot = text_hash(text, 0)[0] % 2**20
        if slot in slots:
            break
        slots[slot] = text
    texts = [slots[slot], text, slots[slot], *(sentence(10_000 + i) for i in range(30))]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    prepared = run(tmp_path / "a.jsonl", tmp_path / "out")
    assert prepared.lineage["sources"][0]["duplicates"] == 1


def test_a_folder_of_the_version_before_is_still_opened(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from unicloze.text import lineage

    with monkeypatch.context() as context:
        context.setattr(lineage, "CODE", 4)
        before = prepare(corpus, tmp_path / "out").fingerprint
    assert prepare(corpus, tmp_path / "out").fingerprint == before


WAITING = """
import sys
from pathlib import Path
from unicloze.settings import DataSettings, TokenizerSettings
from unicloze.text import pipeline, prepare

run = pipeline.Preparation.run

def told(self):
    print("begun", flush=True)
    sys.stdin.readline()
    return run(self)

pipeline.Preparation.run = told
data = DataSettings(corpus=[sys.argv[1]], heldout_share=0.1)
prepare.prepare_data(data, TokenizerSettings(vocab_size=200), Path(sys.argv[2]), progress=False)
print("done", flush=True)
"""


@pytest.mark.whole
def test_a_second_process_waits_for_the_first(corpus: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", WAITING, str(corpus), str(tmp_path / "out")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdin is not None and first.stdout is not None
        assert first.stdout.readline() == "begun\n"
        with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as second:
            assert second.stderr is not None
            assert "is preparing" in second.stderr.readline()
            first.stdin.write("\n")
            first.stdin.flush()
            assert first.stdout.readline() == "done\n"
            said, _ = second.communicate(timeout=60)
    assert said == "done\n", "it opened what the first prepared"
