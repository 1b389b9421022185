"""A new user's first hours with default settings: what is reported, and that the defaults beat baselines.

Always on the built-in corpus, and on real data where it is present. The margins are well below the results measured when the
tests were written, which are given next to them.
"""

from __future__ import annotations

import csv
import gzip
import random
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import REPOSITORY
from unicloze import cli, verbs
from unicloze.training.ledger import read_ledger

pytestmark = [pytest.mark.journey, pytest.mark.filterwarnings("ignore::UserWarning")]


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The run made by `make quickstart`, and the output of its commands without the installation's."""
    folder = tmp_path_factory.mktemp("quickstart")
    made = subprocess.run(["make", "-n", "quickstart"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    printed = ""
    for line in made.stdout.splitlines():
        if not line.startswith((".venv/bin/unicloze ", ".venv/bin/python examples/")):
            continue
        words = [word.replace("runs/", f"{folder}/") for word in shlex.split(line)]
        start = [sys.executable, *(["-m", "unicloze"] if words[0].endswith("unicloze") else [])]
        done = subprocess.run([*start, *words[1:]], cwd=REPOSITORY, capture_output=True, text=True, check=True)
        printed += done.stdout
    return folder / "quickstart", printed


# The visitor: `make quickstart`


def test_the_quickstart_shows_the_papers_point_and_a_model_that_learned(quickstart: tuple[Path, str]) -> None:
    run, printed = quickstart
    assert "all at once:     0 of 12 agree" in printed and "in PAR's order: 12 of 12 agree" in printed
    assert len(re.findall(r"____.*\) -> \S+ \(\d+%\)", printed)) == 3
    (start,) = [event for event in read_ledger(run / "ledger.jsonl") if event["event"] == "start"]
    end = [event for event in read_ledger(run / "ledger.jsonl") if event["event"] == "evaluate"][-1]
    trigram = {name: found["trigram"] for name, found in start["baselines"]["perplexity"].items()}
    assert end["perplexity"]["par"] < trigram["par"]  # 57 of 74
    assert end["perplexity"]["ae"] < trigram["ae"]  # 60 of 82
    assert "Verdict: worse than a Kneser-Ney trigram at content words" in printed


def test_what_the_readme_quotes_is_what_a_run_prints(quickstart: tuple[Path, str]) -> None:
    """Line by line but where it says "...", with numbers within 30 % or 3; guesses and examples may differ."""
    number = re.compile(r"-?\d[\d,]*(?:\.\d+)?")

    def lines_of(text: str) -> list[tuple[str, list[float]]]:
        text = re.sub(r"as in: .*", "as in: ...", text)
        text = re.sub(r", [\d ]*(?:s|min|h)(?: \d+ (?:s|min))? more\b", "", text)
        text = re.sub(r"(____.*?  ).* -> \S+ \(\d+%\)", r"\1->", text)
        lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
        return [(number.sub("#", line), [float(n.replace(",", "")) for n in number.findall(line)]) for line in lines]

    printed = lines_of(quickstart[1])
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```text\n(.*?)```", readme, flags=re.DOTALL)
    assert len(blocks) == 2 and all(len(lines_of(block)) >= 8 for block in blocks)
    at, skips = 0, False
    for words, numbers in lines_of("...\n" + "...\n".join(blocks)):
        gap = words == "..."
        if not gap:
            later = [place for place in range(at, len(printed)) if printed[place][0] == words]
            assert later and (skips or later[0] == at), words
            at = later[0]
            assert (words, numbers) == (printed[at][0], pytest.approx(printed[at][1], rel=0.3, abs=3))
            at += 1
        skips = gap


# The linguist: own text of a few megabytes


def test_a_short_run_is_reported_as_no_better_than_a_trigram(shared_data: Path, tmp_path: Path) -> None:
    text = next(iter(sorted((shared_data / "text" / "multilingual").rglob("*fi*.gz"))))
    corpus = tmp_path / f"finnish{''.join(text.suffixes[-2:])}"
    corpus.write_bytes(text.read_bytes())
    given = {"data.corpus": [str(corpus)], "training.steps": 60, "training.evaluate_every": 0}
    run = verbs.pretrain("quickstart", tmp_path / "run", quiet=True, overrides=given)
    assert run.verdict.startswith("no better than a Kneser-Ney trigram: train longer or give more text")
    assert "too little text" in run.verdict or run.words is not None


# The practitioner: labelled sentences, with `finetune` as in the README


def test_a_classifier_beats_the_most_frequent_class(
    quickstart: tuple[Path, str], shared_data: Path, tmp_path: Path
) -> None:
    with gzip.open(shared_data / "glue" / "SST-2" / "train.tsv.gz", "rt", encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t") for line in file][1:]
    random.Random(0).shuffle(rows)
    for name, part in (("train", rows[:1500]), ("dev", rows[1500:2300])):
        with (tmp_path / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("sentence", "label"), *part])
    words = ["--train", str(tmp_path / "train.csv"), "--dev", str(tmp_path / "dev.csv"), "--out", str(tmp_path / "run")]
    assert cli.main(["finetune", "--model", str(quickstart[0]), *words, "--quiet"]) == 0
    results = (tmp_path / "run" / "results.json").read_text(encoding="utf-8")
    found = max(float(value) for value in re.findall(r'"accuracy": ([\d.]+)', results))
    assert found >= 58  # the most frequent class reaches about 56, this start reached 64 to 69
    (said,) = verbs.predict(tmp_path / "run", text="a wonderful film")
    assert said["prediction"] in ("0", "1")


# The owner of a table with other names


def test_columns_of_a_table_need_not_be_renamed(
    quickstart: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [(f"the list holds {n} values", "good") if n % 2 else (f"an error {n} is raised", "bad") for n in range(60)]
    with (tmp_path / "table.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("sentence", "kind"), *rows])
    table = str(tmp_path / "table.csv")
    words = ["--train", table, "--dev", table, "--out", str(tmp_path / "run")]
    assert cli.main(["finetune", "--model", str(quickstart[0]), *words]) == 0
    said = capsys.readouterr()
    assert "sentence" in said.err and "(set --task.fields to change)" in said.err
    assert "better than always answering" in said.out
