"""Records the messages of the command line: tests/messages.txt contains errors and the first lines of all helps.

This command writes that file; read its changes before you commit them:

    python tests/test_messages.py
"""

from __future__ import annotations

import contextlib
import difflib
import io
import os
import re
import shlex
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hf_toys import save_run
from unicloze import cli, recipes
from unicloze.settings import UseSettings

GOLDEN = Path(__file__).with_name("messages.txt")
WIDTH = 126

FILES = {
    "empty.txt": "",
    "broken.jsonl": '{"text": "a"}\n{"text": \n',
    "other.jsonl": '{"body": "a"}\n',
    "records.jsonl": '{"text": "the list", "label": "a"}\n{"label": "b"}\n',
    "unlabelled.jsonl": '{"text": "the list"}\n',
    "short.jsonl": '{"prediction": "a"}\n',
    "predictions.txt": "the list\n",
    "references.txt": "the list\nthe state\n",
    "answers.json": '{"a": "the list"}',
    "prompt.yaml": "template: 7\n",
    "unknown.yaml": "base: quickstart\nmodel:\n  hiden_size: 64\n",
    "type.yaml": "base: quickstart\nmodel:\n  hidden_size: wide\n",
    "null.yaml": "training:\n  steps: null\n",
    "section.yaml": "training: 5\n",
    "twice.yaml": "model:\n  num_layers: 2\n  num_layers: 3\n",
    "syntax.yaml": "model: [\n",
    "list.yaml": "- model\n",
    "circle.yaml": "base: circle.yaml\n",
    "base.yaml": "base: quikstart\n",
    "part.yaml": "base: quickstart\nobjective:\n  mixture:\n    - {mask_rat: 0.3}\n",
    "labels.yaml": "base: quickstart\nobjective:\n  mixture:\n    - {label: a}\n    - {label: a}\n",
    "share.yaml": "base: quickstart\nobjective:\n  mixture:\n    - {share: 0}\n",
    "phase.yaml": "base: quickstart\ntraining:\n  phases:\n    - {model.hidden_size: 8}\n",
    "measured.yaml": "base: quickstart\nobjective:\n  mixture:\n    - {evaluate: false}\n",
}
"""Files in the working directory of all commands."""

COMMANDS = """
--nothing
pretrian --recipe quickstart
quickstart

prepare everything
prepare --recipe quikstart
prepare --recipe missing.yaml
prepare --out
prepare --outt data
prepare --data.prepared run
prepare --data.corpus missing --out data --quiet
prepare --data.corpus empty.txt --out data --quiet
prepare --data.corpus broken.jsonl --out data --quiet
prepare --data.corpus other.jsonl --out data --quiet
prepare --data.heldout_share 1
prepare --data.weights 1 2
prepare --tokenizer.vocab_size 3
prepare --tokenizer.kind bpx
prepare --tokenizer.path missing.json --data.corpus records.jsonl --out data --quiet

pretrain
pretrain --out missing
pretrain --init run
pretrain --recipe quickstart --new-tokenizer
pretrain --recipe quickstart --init missing --out new --quiet
pretrain --recipe quickstart --steps 10
pretrain --recipe quickstart --training.step 10
pretrain --recipe quickstart --trainin.steps 10
pretrain --recipe quickstart --training.steps
pretrain --recipe quickstart --training.steps ten
pretrain --recipe quickstart --training.steps 0
pretrain --recipe quickstart --training.steps 10 20
pretrain --recipe quickstart --training.warmup_steps 5000
pretrain --recipe quickstart --training.compile maybe
pretrain --recipe quickstart --training.betas 0.9
pretrain --recipe quickstart --training.optimizer adam
pretrain --recipe quickstart --training.device gpu
pretrain --recipe quickstart --training.micro_batch_size 5
pretrain --recipe quickstart --training.phases 1
pretrain --recipe quickstart --model.num_heads 7
pretrain --recipe quickstart --model.max_positions 8
pretrain --recipe quickstart --model.memory 16
pretrain --recipe quickstart --model.layer_visibility local
pretrain --recipe quickstart --model.generator_size 0.5
pretrain --recipe xlnet-base --model.relative_bias true
pretrain --recipe t5-base --tokenizer.extra_tokens 3
pretrain --recipe unknown.yaml
pretrain --recipe type.yaml
pretrain --recipe null.yaml
pretrain --recipe section.yaml
pretrain --recipe twice.yaml
pretrain --recipe syntax.yaml
pretrain --recipe list.yaml
pretrain --recipe circle.yaml
pretrain --recipe base.yaml
pretrain --recipe part.yaml
pretrain --recipe labels.yaml
pretrain --recipe share.yaml
pretrain --recipe phase.yaml
pretrain --recipe measured.yaml
pretrain --recipe .

inspect
inspect --text the
inspect --text "one two" --seed x
inspect --text "one two" --seed -1
inspect --text "one two" --json --picture a.svg
inspect --text "one two" --picture a.gif
inspect --text "one two" --part last
inspect --text "one two" --out missing
inspect --text "one two" --objective.name unilm
inspect --text "one two" --objective.targets ae lm
inspect --text "one two" --objective.targets ae ae
inspect --text "one two" --objective.mask_rate 0
inspect --text "one two" --objective.mask_rate 2
inspect --text "one two" --objective.masking words
inspect --text "one two" --objective.masks_in_context false
inspect --text "one two" --objective.mask_share 0.95
inspect --text "one two" --objective.max_span 0
inspect --text "one two" --objective.block_probability 1
inspect --text "one two" --objective.coefficients.lm 2
inspect --text "one two" --objective.pairs next_sentence --data.segments 1
inspect --text "one two" --objective.static_copies 0
inspect --text "one two" --objective.visibility prefix
inspect --text "one two" --objective.segment_ids 0 1
inspect --text "one two" --objective.local_width 4
inspect --text "one two" --recipe bert-base --objective.pairs contiguous
inspect --text "one two" --recipe gpt --objective.visibility bidirectional
inspect --text "one two" --recipe gpt-3-small --objective.local_width null
inspect --text "one two" --recipe xlnet-base --objective.pairs sentence_order
inspect --text "one two" --recipe bart-base --objective.noise shuffle
inspect --text "one two" --recipe t5-base --objective.mode_token 1
inspect --text "one two" --recipe t5-base --objective.mean_span 0.5
inspect --text "one two" --recipe prefix-span-corruption-base --model.num_segments 1
inspect --text "one two" --recipe electra-base --model.generator_size 0

compare
compare unilmv2-base gpt --budget 500
compare unilmv2-base gpt --budget hours=3
compare unilmv2-base gtp --like quickstart --budget steps=5 --quiet
compare unilmv2-base --like quickstart --budget steps=5 --seeds 0 --quiet
compare unilmv2-base gpt --like quickstart --budget steps=5 --blimp-limit 3
compare unilmv2-base gpt --like quickstart --budget steps=5 --probe classification records.jsonl
compare unilmv2-base gpt --like quickstart --budget steps=5 --probe.finetuning.epochs 1
compare --budget steps=5

report
report missing
report run --json

fill --model run
fill --model missing --text "a [MASK]"
fill --modl run --text "a [MASK]"
fill --model run --text "no mask"
fill --model run --text ""
fill --model run --text "a [MASK]" --order left
fill --model run --text "a [MASK]" --top-k 0
fill --model run --text "a [MASK]" --top-k many
fill --model run --text "a [MASK]" --device gpu
fill --model run --text "a [MASK]" --training.steps 1
fill --model encoder --text "a [MASK]" --order confidence
fill --model writer --text "a [MASK]"
fill --model . --text "a [MASK]"

embed --model run
embed --model run --text list --out vectors.csv
score --model run
score --model run --text "the list" --file empty.txt
score --model run --text " "
score --model run --file missing.txt
score --model run --file empty.txt

evaluate
evaluate blip
evaluate --model run
evaluate --model run --blimp missing
evaluate --metric list
evaluate blimp --model run
evaluate blimp missing --model run
evaluate blimp missing --model run --limit 0
evaluate blimp missing --model run --mode ae
evaluate blimp missing --model run --stop-words english
evaluate blimp missing --model run --task.format tsv
evaluate lambada missing.jsonl
evaluate lambada missing.jsonl --model run
evaluate lambada missing.jsonl --model run --shots 2
evaluate cbt missing.txt --model run
evaluate cbt missing.txt --model run --precision fp16
evaluate prompt prompt.yaml --model run
evaluate prompt prompt.yaml --model run --records records.jsonl

measure
serve
serve --model run --queue 0
serve --model run --timeout 0
measure rogue --predictions predictions.txt --references references.txt
measure rouge --references references.txt
measure rouge --predictions predictions.txt
measure rouge --predictions predictions.txt --references references.txt
measure rouge --predictions predictions.txt --references references.txt --model run
measure rouge --predictions predictions.txt --references predictions.txt --option profile
measure rouge --predictions predictions.txt --references predictions.txt --option profile=news
measure rouge --predictions predictions.txt --references predictions.txt --option stem=yes
measure squad --predictions answers.json --references records.jsonl

measure-task --predictions predictions.txt --references references.txt
measure-task classification --predictions short.jsonl
measure-task classification --predictions short.jsonl --references records.jsonl references.txt
measure-task quickstart --predictions short.jsonl --references records.jsonl
measure-task classification --predictions short.jsonl --references records.jsonl --training.steps 1

metrics rouge

finetune
finetune --model run
finetune --task missing.yaml --model run --train records.jsonl
finetune --task quickstart --model run --train records.jsonl --out new --quiet
finetune --task classification --model missing --train records.jsonl --out new --quiet
finetune --task classification --model run --train missing.jsonl --out new --quiet
finetune --task classification --model run --train records.jsonl --out new --quiet
finetune --task classification --model run --train unlabelled.jsonl --out new --quiet
finetune --task classification --model run --train broken.jsonl --out new --quiet
finetune --task classification --model run --train records.jsonl --seeds 0
finetune --task classification --model run --train records.jsonl --training.steps 5
finetune --task classification --model run --train records.jsonl --task.metrics rouge --out new --quiet
finetune --task classification --model run --train records.jsonl --task.metrics acuracy --out new --quiet
finetune --task classification --model run --train records.jsonl --task.kind sorting
finetune --task classification --model run --train records.jsonl --task.fields label=2
finetune --task classification --model run --train records.jsonl --task.max_length 2
finetune --task classification --model run --train records.jsonl --task.both_orders true
finetune --task classification --model run --train records.jsonl --finetuning.epochs 0
finetune --task choice --model run --train records.jsonl --task.pooling mean
finetune --task generation --model run --train records.jsonl --generation.max_target 1
finetune --task generation --model run --train records.jsonl --generation.source []

predict --model run
predict --model run --file records.jsonl
predict --model run --file records.jsonl --format xml
predict --model run --file records.jsonl --out predictions.xml
predict --model run --file records.jsonl --out missing/predictions.jsonl
predict --model run --file records.jsonl --training.steps 1

generate --model run
generate --model run --text "the list" --file references.txt
generate --model run --text "the list" --stream --json
generate --model run --text " "
generate --model run --text "the list" --text "the state"
generate --model run --text "the list" --training.steps 1
generate --model run --text "the list" --decoding.beams 0
generate --model run --text "the list" --decoding.beams 2 --decoding.sample true
generate --model run --text "the list" --decoding.num_results 3
generate --model writer --text "the list" --decoding.parallel 2
generate --model encoder --text "the list"
generate --model run --file missing.txt
generate --model run --text "the list" --out run

unanswerable --file records.jsonl
unanswerable --file records.jsonl --out made.txt
unanswerable --file records.jsonl --out made.jsonl --share 2
unanswerable --file records.jsonl --out made.jsonl --seed -1
unanswerable --file records.jsonl --out made.jsonl --training.steps 1

import
import missing --out new
import run --out new
import run/tokenizer.json --out new
import run --out new --positions many
import run --out new --allows x

export
export run
export run --to gpt3
export missing --to bert
export run --to mpnet
export run --to bert --out references.txt
export run --to bert --out .
export run --to albert --out exported
export writer --to bert --out exported

completion fish
recipes quickstart
recipes --all
doctor --jso
"""
"""Invalid commands, one per line."""


SECTIONS = {
    "positional arguments": r"^  (\[?[A-Za-z]\w*)  ",
    "options": r"^  (?:-h, )?(--[\w-]+)[ ,\n]",
}
"""Parts of a help, and the names in each."""
VARYING: Mapping[str, Any] = {
    rf"{re.escape(str(Path(recipes.__file__).parent))}/([^,]*), line [0-9]+": r"recipes/\1, line N",
    r"(?<=choose from )[^)]*": lambda match: match[0].replace("'", ""),  # without quotes since Python 3.14
}
"""What differs between machines and versions of Python."""


def output(words: list[str]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(words)
    return code, out.getvalue(), err.getvalue()


def verbs() -> list[tuple[str, str]]:
    """Each verb and its line in the program's help."""
    listed = output(["--help"])[1].partition("verbs:\n")[2].partition("\n\n")[0]
    return [(re.split(r" {2,}| (?=[A-Z])", line.strip(), maxsplit=1)[0], line.strip()) for line in listed.splitlines()]


def help_of(verb: str) -> Iterator[str]:
    """The first line of a verb's help, its arguments and options, and the settings it shows."""
    code, text, _ = output([*verb.split(), "--help"])
    assert code == 0
    yield text.split("\n\n")[1].strip()
    for title, pattern in SECTIONS.items():
        section = re.search(rf"^{title}:\n(.*?)(?:\n\n|\Z)", text, re.DOTALL | re.MULTILINE)
        found = re.findall(pattern, f"{section[1]}\n", re.MULTILINE) if section else []
        if found:
            yield f"{title}: {' '.join(found)}"
    settings = re.findall(r"^  --(\w+\.\w+)$", text, re.MULTILINE)
    if settings:
        yield f"settings: {' '.join(settings)}"


def said_to(command: str, folder: Path) -> Iterator[str]:
    """The exit code and the error, which must be one line."""
    code, out, err = output(shlex.split(command))
    errors = [line for line in err.splitlines() if line.startswith("unicloze: error: ")]
    assert len(errors) == 1 and code in (1, 2) and not out, f"{command}: {code}, {out}{err}"
    said = errors[0].removeprefix("unicloze: error: ").replace(f"{folder}{os.sep}", "")
    for pattern, same_everywhere in VARYING.items():
        said = re.sub(pattern, same_everywhere, said)
    yield f"{code}: {said}"


def prepare(folder: Path) -> None:
    """The files and models that the commands name."""
    for name, content in FILES.items():
        (folder / name).write_text(content, encoding="utf-8")
    save_run(folder / "run")
    save_run(folder / "encoder", name="masked", targets=["ae"])
    save_run(
        folder / "writer",
        name="causal",
        targets=["lm"],
        visibility="left_to_right",
        use=UseSettings(visibility="left_to_right"),
    )


def messages(folder: Path) -> str:
    """All messages as text, one block per verb and command."""
    prepare(folder)
    blocks = ["\n".join(["$ unicloze --help", *(line for _, line in verbs())])]
    blocks += ["\n".join([f"$ unicloze {verb} --help", *help_of(verb)]) for verb, _ in verbs()]
    with contextlib.chdir(folder):
        for command in filter(None, COMMANDS.splitlines()):
            blocks.append("\n".join([f"$ unicloze {command}".rstrip(), *said_to(command, folder)]))
    wrapped = [
        textwrap.fill(line, WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
        for block in blocks
        for line in [*block.split("\n"), ""]
    ]
    return "\n".join(wrapped)


def test_the_messages_equal_the_golden_file(tmp_path: Path) -> None:
    found, wanted = messages(tmp_path), GOLDEN.read_text(encoding="utf-8")
    difference = difflib.unified_diff(wanted.splitlines(), found.splitlines(), "messages.txt", "now", lineterm="", n=1)
    cure = "no message may get worse: read the difference, then write the file with `python tests/test_messages.py`"
    assert found == wanted, "\n".join([cure, *difference])


def test_every_verb_has_a_message() -> None:
    for verb, _ in verbs():
        assert any(f"{line} ".startswith(f"{verb} ") for line in COMMANDS.splitlines()), verb


if __name__ == "__main__":
    place = Path(tempfile.mkdtemp())
    try:
        GOLDEN.write_text(messages(place), encoding="utf-8")
    finally:
        shutil.rmtree(place)
    print(f"{GOLDEN}: {sum(map(bool, COMMANDS.splitlines()))} messages", file=sys.stderr)
