"""Commands in a process that lacks what Windows lacks; see windows_like.py."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
WORDS = ["der", "große", "Hund", "sieht", "die", "schöne", "Katze", "→", "und", "läuft", "weg", "☃"]


def run(folder: Path, *commands: list[str]) -> tuple[str, list[int]]:
    """What the commands print on a console with the encoding cp1252, and their exit codes."""
    environment = {**os.environ, "PYTHONIOENCODING": "cp1252", "PYTHONUTF8": "0", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-X", "warn_default_encoding", str(HERE / "windows_like.py"), json.dumps(commands)],
        cwd=folder, env=environment, capture_output=True, encoding="cp1252", timeout=300,
    )  # fmt: skip
    assert done.returncode == 0 and "bug" not in done.stderr, done.stderr
    return done.stdout, [int(code) for code in re.findall(r"^exit code (\d+)$", done.stdout, re.MULTILINE)]


@pytest.mark.whole
def test_a_run_trains_stops_resumes_and_is_used(tmp_path: Path) -> None:
    draw = random.Random(0)
    paragraphs = "\n\n".join(" ".join(draw.choices(WORDS, k=60)) for _ in range(60))
    (tmp_path / "gr\u00fc\u00dfe.txt").write_text(paragraphs, encoding="utf-8")
    records = [
        {"text": f"Katze {n}" if n % 2 else f"Hund {n}", "label": "s\u00fc\u00df \u2603" if n % 2 else "ja"}
        for n in range(24)
    ]
    lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    (tmp_path / "train.jsonl").write_text(lines, encoding="utf-8")
    corpus = ["--data.corpus", "gr\u00fc\u00dfe.txt", "--tokenizer.vocab_size", "300"]
    pretrain = ["pretrain", "--recipe", "quickstart", "--toy", "--data.prepared", "data", "--training.steps", "4"]
    exact = ["--training.precision", "fp32"]  # `auto` times products, which other programs slow down
    pretrain += [*exact, "--training.save_every", "2", "--out"]
    finetune = ["finetune", "--model", "run", "--train", "train.jsonl", "--dev", "train.jsonl"]
    finetune += [*exact, "--finetuning.epochs", "3", "--out"]
    said, codes = run(
        tmp_path,
        ["prepare", "--recipe", "quickstart", *corpus, "--jobs", "2", "--out", "data"],
        ["interrupt"], [*pretrain, "run"], [*pretrain, "run"], [*pretrain, "straight"],
        ["interrupt"], [*finetune, "tuned"], [*finetune, "tuned"], [*finetune, "tuned at once"],
        ["predict", "--model", "tuned", "--text", "Katze"],
        ["predict", "--model", "tuned", "--file", "train.jsonl", "--out", "predicted.jsonl"],
        ["fill", "--model", "run", "--text", "die [MASK] Katze \u2603"],
        ["report", "tuned"], ["report", "run"], ["doctor"],
    )  # fmt: skip
    assert codes == [0, 130, 0, 0, 130, 0, 0, 0, 0, 0, 0, 0, 0], said
    assert "stopped and saved at step 2" in said and "s\u00fc\u00df \\u2603" in said
    weights = "checkpoints/step-00000004/model.safetensors"
    assert (tmp_path / "run" / weights).read_bytes() == (tmp_path / "straight" / weights).read_bytes()
    weights = "checkpoints/step-00000003/model.safetensors"
    assert (tmp_path / "tuned" / weights).read_bytes() == (tmp_path / "tuned at once" / weights).read_bytes()
    predicted = (tmp_path / "predicted.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(predicted) == 24 and {json.loads(line)["prediction"] for line in predicted} <= {
        "s\u00fc\u00df \u2603",
        "ja",
    }
    assert "\u2603" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


@pytest.mark.whole
def test_a_run_in_use_is_refused_by_the_name_of_its_holder(tmp_path: Path) -> None:
    """Where only a soft lock is possible."""
    code = (
        "import sys; sys.argv[1] = '[]'; import windows_like; from pathlib import Path\n"
        "from unicloze.training.lock import hold_run\n"
        "with hold_run(Path('run')):\n"
        "    try:\n"
        "        with hold_run(Path('run')): print('twice')\n"
        "    except Exception as error: print(error)\n"
        "with hold_run(Path('run')): print('again')\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, sys.path)])}
    done = subprocess.run(
        [sys.executable, "-c", code, "-"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    said = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(
        r"run is in use by process \d+ on \S+ since .*: wait for it, stop it, or give .* another --out", said[0]
    )
    assert said[1:] == ["again"]
