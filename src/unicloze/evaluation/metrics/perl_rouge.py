"""ROUGE by Lin's Perl script, which users must install themselves because it may not be redistributed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from unicloze.errors import UniclozeError
from unicloze.evaluation.metrics.profiles import profiled
from unicloze.evaluation.metrics.result import MetricResult, check_texts

SCRIPT = "ROUGE-1.5.5.pl"
HOME = "ROUGE_HOME"
"""Environment variable with the script's folder, which contains its folder `data`."""
_LINE = re.compile(r"^\S+ (ROUGE-[12L]) Average_([RPF]): ([\d.]+)", re.MULTILINE)
_NAMES = {"ROUGE-1": "rouge1", "ROUGE-2": "rouge2", "ROUGE-L": "rougeLsum"}
_ENDINGS = {"F": "", "P": "_precision", "R": "_recall"}


def perl_rouge(
    predictions: Sequence[str], references: Sequence[Sequence[str]], *, profile: str = "sentences"
) -> MetricResult:
    """ROUGE-1, ROUGE-2 and ROUGE-L of ROUGE-1.5.5 with the settings of UniLM's scripts: `-a -c 95 -m -n 2 -r 1000`.

    Its ROUGE-L is summary-level and reported as `rougeLsum`. Several references are averaged.
    """
    check_texts(predictions, references)
    script = find_script()
    predictions, references = profiled(predictions, references, profile)
    with tempfile.TemporaryDirectory(prefix="unicloze-rouge-") as name:
        settings = _write(Path(name), predictions, references)
        command = [_perl(), str(script), "-e", str(script.parent / "data")]
        command += ["-a", "-c", "95", "-m", "-n", "2", "-r", "1000", str(settings)]
        done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", check=False)
    found = _LINE.findall(done.stdout)
    if done.returncode or len(found) != len(_NAMES) * len(_ENDINGS):
        said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[0]
        raise UniclozeError(f"{script} failed with the message: {said}. Run its own test, runROUGE-test.pl, first.")
    values = {_NAMES[kind] + _ENDINGS[measure]: 100 * float(value) for kind, measure, value in found}
    order = [name + ending for name in _NAMES.values() for ending in _ENDINGS.values()]
    return MetricResult(
        metric="rouge-perl",
        values={name: values[name] for name in order},
        items=len(predictions),
        note=f"Profile {profile}, {SCRIPT} -a -c 95 -m -n 2 -r 1000.",
    )


def find_script() -> Path:
    """Path of the script: in the folder named by `ROUGE_HOME` if set, else on the PATH."""
    home = os.environ.get(HOME)
    found = Path(home) / SCRIPT if home else Path(shutil.which(SCRIPT) or "")
    if not found.is_file():
        place = f"is not in {home}, which {HOME} names" if home else f"is not on the PATH, and {HOME} is not set"
        raise UniclozeError(f"{SCRIPT} {place}: install it, or use the metric rouge, which needs no Perl.")
    return found.resolve()


def _perl() -> str:
    perl = shutil.which("perl")
    if perl is None:
        raise UniclozeError(f"{SCRIPT} needs perl, which is not on the PATH: install it, or use the metric rouge.")
    return perl


def _write(folder: Path, predictions: Sequence[str], references: Sequence[Sequence[str]]) -> Path:
    """Write a file for each text, one sentence per line, and the settings file that lists them."""
    parts = ['<ROUGE-EVAL version="1.55">']
    for number, (prediction, several) in enumerate(zip(predictions, references, strict=True)):
        _write_text(folder / f"{number}.prediction", prediction)
        models = []
        for place, reference in enumerate(several):
            _write_text(folder / f"{number}.{place}.reference", reference)
            models.append(f'<M ID="{place}">{number}.{place}.reference</M>')
        root = escape(str(folder))
        parts.append(
            f'<EVAL ID="{number}"><MODEL-ROOT>{root}</MODEL-ROOT><PEER-ROOT>{root}</PEER-ROOT>'
            f'<INPUT-FORMAT TYPE="SPL"></INPUT-FORMAT><PEERS><P ID="1">{number}.prediction</P></PEERS>'
            f"<MODELS>{''.join(models)}</MODELS></EVAL>"
        )
    settings = folder / "settings.xml"
    settings.write_text("\n".join([*parts, "</ROUGE-EVAL>"]), encoding="utf-8")
    return settings


def _write_text(file: Path, text: str) -> None:
    file.write_text(f"{text}\n", encoding="utf-8", errors="replace")
