"""Preparation by several processes, killed and restarted, always with the same bytes; and what must not be prepared."""

from __future__ import annotations

import errno
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from test_prepare import content, run, sentence, texts_of, write_documents, write_texts
from unicloze.errors import UniclozeError, UsageError
from unicloze.settings import TokenizerSettings
from unicloze.text import pipeline, split
from unicloze.text.prepare import Prepared
from unicloze.text.sampler import WindowSampler
from unicloze.text.split import first_copies, text_hash
from unicloze.text.tokenizers import Tokenizer

FILES = 6


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """180 documents in six files; every file repeats one document of the file before it."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    for number in range(FILES):
        write_texts(folder / f"{number}.jsonl", [sentence(number * 30 + i - (i == 0)) for i in range(30)])
    return folder


@pytest.fixture
def small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "PORTION", 1)


@pytest.mark.whole
@pytest.mark.usefixtures("small_portions")
def test_the_number_of_processes_changes_no_byte(corpus: Path, tmp_path: Path) -> None:
    prepared = run(corpus, tmp_path / "1")
    (entry,) = prepared.lineage["sources"]
    assert entry["portions"] == FILES == len(prepared.train[0].shards)
    assert (entry["documents"], entry["duplicates"]) == (180, FILES - 1)
    for jobs in (2, 3):
        run(corpus, tmp_path / f"{jobs}", jobs=jobs)
        assert content(tmp_path / f"{jobs}") == content(tmp_path / "1")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2", "3", "corpus"]


@pytest.mark.whole
def test_portions_hold_the_documents_and_windows_of_a_whole(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(corpus, tmp_path / "whole")
    monkeypatch.setattr(pipeline, "PORTION", 1)
    parted = run(corpus, tmp_path / "parted")
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
from unicloze.text import pipeline, prepare

pipeline.PORTION = 1
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

pipeline._survey, pipeline._tokenise = killing(pipeline._survey), killing(pipeline._tokenise)
data = DataSettings(corpus=[sys.argv[1]], heldout_share=0.1)
prepare.prepare_data(data, TokenizerSettings(vocab_size=200), Path(sys.argv[2]), progress=False)
"""


def killed_in(job: int, corpus: Path, out: Path) -> Path:
    """The folder of a preparation that was killed at the end of a job."""
    command = [sys.executable, "-c", KILLED, str(corpus), str(out), str(job)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    return out


@pytest.mark.whole
@pytest.mark.usefixtures("small_portions")
@pytest.mark.parametrize("killed", [3, FILES + 1, FILES + 4])
def test_a_kill_loses_one_portion(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: int) -> None:
    out = killed_in(killed, corpus, tmp_path / "out")
    assert not out.exists() and (tmp_path / ".out.partial").is_dir()
    done = list[str]()
    for name in ("_survey", "_tokenise"):
        do = getattr(pipeline, name)
        monkeypatch.setattr(pipeline, name, lambda job, *rest, do=do: (done.append(job.what), do(job, *rest))[1])
    run(corpus, out)
    assert len(done) == 2 * FILES - (killed - 1), "the killed job is the only one that is done twice"
    run(corpus, tmp_path / "clean")
    assert content(out) == content(tmp_path / "clean")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clean", "corpus", "out"]


@pytest.mark.whole
@pytest.mark.usefixtures("small_portions")
def test_what_a_killed_preparation_read_before_a_file_changed_is_read_again(corpus: Path, tmp_path: Path) -> None:
    out = killed_in(FILES + 4, corpus, tmp_path / "out")
    with (corpus / "0.jsonl").open("a") as file:
        file.write(json.dumps({"text": sentence(1000)}) + "\n")
    run(corpus, out)
    run(corpus, tmp_path / "clean")
    assert content(out) == content(tmp_path / "clean")


@pytest.mark.whole
@pytest.mark.usefixtures("small_portions")
def test_a_killed_worker_is_named_and_its_portion_done_again(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, started = pipeline._start, list[int]()

    def start_and_kill() -> subprocess.Popen[bytes]:
        started.append((process := start()).pid)
        if len(started) == FILES + 2:
            process.kill()
        return process

    with monkeypatch.context() as context:
        context.setattr(pipeline, "_start", start_and_kill)
        with pytest.raises(UniclozeError, match=r"was killed by signal 9: run the same command again"):
            run(corpus, tmp_path / "out", jobs=2)
    run(corpus, tmp_path / "out", jobs=2)
    run(corpus, tmp_path / "clean")
    assert content(tmp_path / "out") == content(tmp_path / "clean")


@pytest.mark.usefixtures("small_portions")
def test_what_a_worker_cannot_read_is_said_in_the_same_words(corpus: Path, tmp_path: Path) -> None:
    (corpus / "4.jsonl").write_text('{"text": "fine"}\n{"text": \n')
    said = []
    for jobs in (1, 2):
        with pytest.raises(UniclozeError) as error:
            run(corpus, tmp_path / "out", jobs=jobs)
        said.append(str(error.value))
    assert said[0] == said[1] and "4.jsonl:2 is not JSON" in said[0]


@pytest.mark.parametrize("line", [b"", b'{"files": [], "hashed": []}\n'], ids=["without a job", "within a job"])
def test_a_process_does_not_outlive_the_end_of_its_input(line: bytes) -> None:
    endless = "pipeline.Job = lambda **_: SimpleNamespace(run=lambda _: time.sleep(600))"
    imports = "import time; from types import SimpleNamespace; from unicloze.text import pipeline"
    program = f"{imports}; {endless}; pipeline.main()"
    worker = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)
    worker.communicate(line, timeout=60)
    assert worker.returncode == 1


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
        slot = text_hash(text)[0] % 2**20
        if slot in slots:
            break
        slots[slot] = text
    texts = [slots[slot], text, slots[slot], *(sentence(10_000 + i) for i in range(30))]
    prepared = run(write_texts(tmp_path / "a.jsonl", texts), tmp_path / "out")
    assert prepared.lineage["sources"][0]["duplicates"] == 1


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
            assert "waiting until it is prepared" in second.stderr.readline()
            first.stdin.write("\n")
            first.stdin.flush()
            assert first.stdout.readline() == "done\n"
            said, _ = second.communicate(timeout=60)
    assert said == "done\n", "it opened what the first prepared"


# Files that change, are damaged or belong to something else


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return write_documents(tmp_path / "corpus")


def test_a_foreign_folder_is_left_alone(small: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert run(small, tmp_path / "out").train, "an empty folder is fine"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    with pytest.raises(UniclozeError, match="mine has files that `prepare` did not write"):
        run(small, tmp_path / "mine")
    with pytest.raises(UniclozeError, match=r"thesis\.txt is a file, not a folder"):
        run(small, tmp_path / "mine" / "thesis.txt")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "x"


def test_a_full_disk(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as context:
        context.setattr(pipeline.ShardWriter, "write", full)
        with pytest.raises(UniclozeError, match=r"The disk of .* is full: free some space"):
            run(small, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus"]
    assert run(small, tmp_path / "out").train


@pytest.mark.parametrize(("goes", "message"), [
    (False, r"a\.jsonl changed while it was being read"),
    (True, "corpus changed while it was being read"),
])  # fmt: skip
def test_a_file_that_changes_or_goes_while_the_corpus_is_read(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, goes: bool, message: str
) -> None:
    train = Tokenizer.train
    (small / "ab.jsonl").touch()  # ends before the next document too

    def change(*arguments: Any) -> Tokenizer:
        if goes:
            (small / "b.jsonl").unlink()
        else:
            with (small / "a.jsonl").open("a") as file:
                file.write('{"text": "more"}\n')
        return train(*arguments)

    monkeypatch.setattr(Tokenizer, "train", change)
    with pytest.raises(UniclozeError, match=message):
        run(small, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_tokens_of_another_tokenizer_are_refused(small: Path, tmp_path: Path) -> None:
    first = run(small, tmp_path / "first")
    other = run(small, tmp_path / "other", TokenizerSettings(kind="bpe", vocab_size=400))
    names = f"{first.tokenizer.fingerprint[:16]}, not {other.tokenizer.fingerprint[:16]}"
    with pytest.raises(
        UniclozeError, match=rf"corpus\.ds holds tokens of tokenizer {names}: give --tokenizer\.path the"
    ):
        run(first.folder, tmp_path / "out", TokenizerSettings(path=str(other.folder)))
    assert run(first.folder, tmp_path / "out", TokenizerSettings(path=str(first.folder))).train


def test_texts_next_to_token_shards_are_not_left_out_silently(small: Path, tmp_path: Path) -> None:
    run(small, tmp_path / "earlier")
    shutil.copytree(tmp_path / "earlier", small / "earlier" / "data")
    prepared = Prepared.load(small / "earlier" / "data")
    tokenizer = TokenizerSettings(path=str(prepared.folder))
    with pytest.raises(UsageError, match=r"holds tokens \(.*\.ds\) and texts \(.*\): use separate folders"):
        run(small, tmp_path / "out", tokenizer)
    with pytest.raises(
        UsageError, match=r"\*\*/\* holds tokens \(.*\.ds\) and texts \(.*\): .* a pattern that ends in \.ds"
    ):
        run(f"{small}/**/*", tmp_path / "out", tokenizer)
    with pytest.raises(UniclozeError, match=r"\.jsonl is not read beside tokens \(.*\.ds\)"):
        run(small, tmp_path / "earlier")
    only = run(f"{small}/**/*.ds", tmp_path / "only", tokenizer)
    assert only.train[0].num_documents + only.heldout[0].num_documents > 0
    assert run(prepared.folder, tmp_path / "again", tokenizer).train[0].num_tokens > 0


def test_every_file_of_a_prepared_folder_is_needed_whole(small: Path, tmp_path: Path) -> None:
    for file in [*run(small, tmp_path / "out").folder.rglob("*.*")]:
        raw = file.read_bytes()
        file.unlink()
        with pytest.raises(UniclozeError, match=r"is missing|is damaged|is not a prepared corpus \(no lineage\.json\)"):
            Prepared.load(tmp_path / "out")
        file.write_bytes(raw[:-9])
        with pytest.raises(UniclozeError, match=file.name):
            Prepared.load(tmp_path / "out")
        file.write_bytes(raw)


@pytest.mark.usefixtures("small_portions")
def test_a_restart_without_hard_links(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Path) -> None:
        raise PermissionError

    monkeypatch.setattr("os.link", refuse)
    monkeypatch.setattr(pipeline.Preparation, "is_small", False)
    with monkeypatch.context() as patch:
        patch.setattr(pipeline.Digests, "make", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run(corpus, tmp_path / "out")
    assert run(corpus, tmp_path / "out").train
