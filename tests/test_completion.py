"""The shell completes what is there: the script is run by bash itself."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from unicloze import cli
from unicloze.cli import completion
from unicloze.recipes import recipe_names

EXPECTED = {
    ("unicloze", "pre"): {"prepare", "pretrain", "predict"},
    ("unicloze", "evaluate", ""): {"blimp", "lambada", "cbt", "prompt"},
    ("unicloze", "evaluate", "blimp", "--lim"): {"--limit"},
    ("unicloze", "pretrain", "--training.optim"): {"--training.optimizer"},
    ("unicloze", "pretrain", "--training.optimizer", ""): {
        "adamw",
        "adamax",
        "lamb",
        "adafactor",
        "muon",
        "sgd",
        "nt_asgd",
    },
    ("unicloze", "pretrain", "--recipe", "gpt"): {name for name in recipe_names() if name.startswith("gpt")},
    ("unicloze", "fill", "--order", ""): {"confidence", "left-to-right", "span"},
    ("unicloze", "generate", "--decoding.beam"): {"--decoding.beams"},
    ("unicloze", "generate", "--training.st"): set(),
    ("unicloze", "completion", ""): {"bash", "zsh"},
}


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("completion") / "unicloze.bash"
    file.write_text(completion("bash"), encoding="utf-8")
    return file


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize("words", EXPECTED, ids=" ".join)
def test_bash_completes(words: tuple[str, ...], script: Path) -> None:
    program = (
        'source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _shtab_unicloze; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", program, script, *words], capture_output=True, text=True, check=False)
    assert done.stderr == "" and {*done.stdout.split()} == EXPECTED[words]


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_script_knows_every_verb(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", shell]) == 0
    printed = capsys.readouterr().out
    assert all(word in printed for name in cli.VERBS for word in name.split())
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=printed, text=True, check=True)
