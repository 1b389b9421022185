"""Two calls of every verb for each of its options, whose effects must differ; see `option_table`."""

from __future__ import annotations

from collections.abc import Iterator

from option_table import TUNE

PREPARE = "prepare --recipe {prepare.yaml} --quiet"
PRETRAIN = "pretrain --recipe {unilmv2.yaml} --quiet"
INSPECT = "inspect --text 'The small cat sees an old house.' --recipe"
SHOWN = f"{INSPECT} {{unilmv2.yaml}}"
COMPARE = "compare {unilmv2.yaml} --budget steps=2 --seeds 1 --quiet --json"
PROBED = "--probe classification {classes.jsonl} {classes.jsonl} --probe.finetuning.epochs 1"
OLD = "--text 'The old cat sees the house.'"
FILL = "fill --model {RUN:unilmv2}"
FILLED = f"{FILL} --text 'The [MASK] cat [MASK] the house.'"
MODEL = "--model {RUN:unilmv2} --quiet --json"
BLIMP = f"evaluate blimp {{blimp}} {MODEL}"
LAMBADA = f"evaluate lambada {{lambada.jsonl}} {MODEL}"
BOOKS = f"evaluate cbt {{lambada.cbt}} {MODEL}"
PROMPT = f"evaluate prompt {{prompt.yaml}} --records {{classes.jsonl}} {MODEL}"
SHOTS = f"{PROMPT} --examples {{more.jsonl}} --shots 2"
FILES = "measure rouge --predictions {texts.txt} --references {texts-2.txt} --json"
SQUAD = "measure squad --predictions {answers.json} --references {gold.json} --json"
OF_A_TASK = "measure-task classification --predictions {said.jsonl} --references {classes.jsonl}"
FINETUNE = f"finetune --model {{RUN:unilmv2}} {TUNE} --finetuning.epochs 1"
CLASSES = f"{FINETUNE} --train {{classes.jsonl}} --dev {{classes.jsonl}}"
PREDICT = "predict --model {TASK:classes} --file {classes.jsonl} --quiet"
WRITE = "generate --model {TASK:writer} --text 'The old dog sees the cat.'"
WRITE_ALL = "generate --model {TASK:writer} --file {sources.jsonl} --quiet"
UNANSWERABLE = "unanswerable --file {answered.jsonl} --out made.jsonl"
RELEASED = "import {released} --out model"
EXPORT = "export {RUN:masked} --out hf --to"
SERVE = "serve --model {RUN:unilmv2}"

MODELS = "--model {RUN:unilmv2}", "--model {RUN:masked}"
FOLDERS = "--out here", "--out there"
NO_SUCH_DEVICE = "--device cuda:97"
"""More than any machine has: refused."""
JSON = {"--json": {" --json": ""}}
QUIET = {"--quiet": {" --quiet": ""}}
EVALUATE = {
    "--model": {"unilmv2": "causal"}, "--limit": "--limit 1", "--device": NO_SUCH_DEVICE, "--precision": "--precision bf16",
    **QUIET, **JSON,
}  # fmt: skip

Change = str | tuple[str, str] | dict[str, str]
"""What an option adds to a command, two things it adds, or what it replaces."""
COMMANDS: tuple[tuple[str, dict[str, Change]], ...] = (
    ("prepare --quiet --out data", {"--recipe": ("--recipe {prepare.yaml}", "--recipe {half.yaml}")}),
    (PREPARE, {"--out": FOLDERS}),
    (f"{PREPARE} --out data", {"--jobs": "--jobs 2", **QUIET, "--json": "--json"}),
    ("pretrain --quiet --out run", {"--recipe": ("--recipe {unilmv2.yaml}", "--recipe {masked.yaml}")}),
    (PRETRAIN, {"--out": FOLDERS}),
    (f"{PRETRAIN} --out run", {
        "--init": "--init {RUN:masked}", "--verify": "--verify", "--plan": "--plan", **QUIET, "--json": "--json",
    }),
    ("pretrain --recipe {unprepared.yaml} --quiet --out run", {"--toy": "--toy"}),
    ("pretrain --recipe {half.yaml} --quiet --out run --init {RUN:masked}", {"--new-tokenizer": "--new-tokenizer"}),
    ("pretrain --recipe auto --data.corpus {text.txt} --data.window 16 --training.precision fp32 --quiet --out run", {
        "--budget": ("--budget steps=2", "--budget steps=3"),
    }),
    (INSPECT, {"--recipe": ("{unilmv2.yaml}", "{masked.yaml}")}),
    ("inspect --recipe {unilmv2.yaml}", {"--text": ("--text 'The cat.'", "--text 'The dog.'")}),
    (SHOWN, {"--seed": "--seed 1", "--json": "--json", "--picture": "--picture row.svg"}),
    (f"{INSPECT} {{half.yaml}}", {"--out": "--out {prepared}"}),
    (f"{INSPECT} {{mixture.yaml}}", {"--part": "--part two"}),
    (COMPARE, {
        "recipes": {"unilmv2": "masked"}, "--budget": {"=2": "=3"}, "--seeds": {"seeds 1": "seeds 2"}, "--out": FOLDERS,
        "--like": "--like {half.yaml}", "--blimp": "--blimp {blimp}", "--probe": PROBED, **QUIET, **JSON,
    }),
    (f"{COMPARE} --blimp {{blimp}}", {"--blimp-limit": "--blimp-limit 1"}),
    ("report --out page.html", {"run": ("{RUN:unilmv2}", "{RUN:masked}")}),
    ("report {RUN:unilmv2}", {"--out": ("--out a.html", "--out b.html")}),
    ("report {RUN:unilmv2} --out a.html", {
        "--watch": "--watch 1", "--tensorboard": "--tensorboard board", "--json": "--json",
    }),
    ("fill --text 'The [MASK] cat.'", {"--model": MODELS}),
    (FILL, {
        "--text": ("--text 'The [MASK] cat.'", "--text 'A [MASK].'"),
        "--file": ("--file {masked.txt}", "--file {masked.jsonl}"),
    }),
    (f"{FILL} --file {{masked.jsonl}}", {"--text-field": "--text-field body", "--quiet": "--quiet"}),
    (FILLED, {"--top-k": "--top-k 2", "--order": "--order confidence", "--device": NO_SUCH_DEVICE, "--json": "--json"}),
    *(
        change for verb in ("score", "embed") for change in (
            (f"{verb} {OLD}", {"--model": MODELS}),
            (f"{verb} --model {{RUN:unilmv2}}", {
                "--text": ("--text 'The old cat.'", "--text 'The old dog.'"),
                "--file": ("--file {texts.txt}", "--file {texts-3.txt}"),
            }),
            (f"{verb} --model {{RUN:unilmv2}} --file {{masked.jsonl}}", {
                "--text-field": "--text-field body", "--quiet": "--quiet",
            }),
            (f"{verb} --model {{RUN:unilmv2}} {OLD}", {"--device": NO_SUCH_DEVICE, "--json": "--json"}),
        )
    ),
    (f"score --model {{RUN:unilmv2}} {OLD}", {"--mode": "--mode chain"}),
    (f"embed --model {{RUN:unilmv2}} {OLD}", {
        "--out": ("--out a.npy", "--out b.jsonl"), "--pooling": "--pooling last", "--batch-size": "--batch-size 1",
        "--precision": "--precision bf16",
    }),
    (BLIMP, {
        **EVALUATE, "pairs": {"{blimp}": "{blimp-2}"}, "--mode": "--mode chain", "--filter": "--filter {words.txt}",
        "--precision": "--precision fp16",  # so few pairs agree in bf16
    }),
    (LAMBADA, {**EVALUATE, "passages": {"lambada.": "lambada-2."}, "--stop-words": "--stop-words {words.txt}"}),
    (BOOKS, {**EVALUATE, "questions": {"lambada.": "lambada-2."}}),
    (PROMPT, {**EVALUATE, "prompt": {"prompt.": "prompt-2."}, "--records": {"classes.jsonl": "more.jsonl"}}),
    (SHOTS, {"--examples": {"more.jsonl": "classes.jsonl"}, "--shots": {"shots 2": "shots 1"}, "--seed": "--seed 1"}),
    ("serve", {"--model": MODELS}),
    (SERVE, {
        "--host": "--host ::1", "--port": "--port 0", "--token-file": "--token-file {texts.txt}", "--queue": "--queue 1",
        "--timeout": "--timeout 1", "--device": NO_SUCH_DEVICE, "--precision": "--precision bf16", "--json": "--json",
    }),
    (FILES, {
        "metric": {"rouge": "bleu"}, "--predictions": {"texts.txt": "texts-3.txt"}, "--references": {"xts-2": "xts-3"},
        "--option": "--option profile=xsum", **JSON,
    }),
    (SQUAD, {"--na-probabilities": ("--na-probabilities {sure.json}", "--na-probabilities {unsure.json}")}),
    (OF_A_TASK, {
        "task": {"classification": "glue-cola"}, "--predictions": {"said.jsonl": "texts.txt"},
        "--references": {"classes.jsonl": "more.jsonl"}, "--metric": "--metric macro-f1", "--json": "--json",
    }),
    (f"{OF_A_TASK} --metric f1", {"--option": "--option positive=same"}),
    *((verb, {"--json": "--json"}) for verb in ("metrics", "recipes", "doctor")),
    ("completion", {"shell": ("bash", "zsh")}),
    ("completion bash", {"--json": "--json"}),
    (CLASSES, {
        "--task": ("--task classification", "--task regression"), "--model": {"RUN:unilmv2": "RUN:masked"},
        "--out": FOLDERS, "--seeds": "--seeds 2", "--grid-budget": "--grid-budget 2", **QUIET, "--json": "--json",
    }),
    (FINETUNE, {"--train": ("--train {classes.jsonl}", "--train {more.jsonl}")}),
    (f"{FINETUNE} --train {{classes.jsonl}}", {"--dev": "--dev {classes.jsonl}"}),
    (PREDICT, {
        "--model": {"TASK:classes": "TASK:numbers"}, "--also": "--also {TASK:numbers}",
        "--file": {"classes.jsonl": "more.jsonl"}, "--out": ("--out a.jsonl", "--out b.jsonl"), "--format": "--format glue",
        "--device": NO_SUCH_DEVICE, "--precision": "--precision bf16", **QUIET, "--json": "--json",
    }),
    ("predict --model {TASK:classes} --text 'The old cat.'", {"--text": ("--text 'The cat.'", "--text 'It.'")}),
    (WRITE, {
        "--model": {"TASK:writer": "TASK:sources"}, "--text": "--text 'The dog finds a house.'",
        "--device": NO_SUCH_DEVICE, "--json": "--json",
    }),
    (f"{WRITE} --decoding.beams 2 --decoding.num_results 2", {"--stream": "--stream"}),
    (WRITE_ALL, {
        "--file": {"sources.jsonl": "sources-2.jsonl"}, "--out": ("--out a.jsonl", "--out b.jsonl"),
        "--into": "--into said", **QUIET,
    }),
    (UNANSWERABLE, {
        "--file": {"answered": "answered-2"}, "--out": {"made.jsonl": "other.jsonl"}, "--share": "--share 0.3",
        "--seed": "--seed 1", "--json": "--json",
    }),
    (RELEASED, {
        "checkpoint": {"{released}": "{released-2}"}, "--out": {"model": "there"}, "--positions": "--positions 64",
        "--tokenizer": "--tokenizer {vocab.txt}", "--json": "--json",
    }),
    ("import {strange} --out model", {"--allow": "--allow 'strange.*'"}),
    ("import {pickled} --out model", {"--pickle": "--pickle"}),
    ("export --to unicloze --out hf", {"model": ("{RUN:unilmv2}", "{RUN:masked}")}),
    (EXPORT, {"--to": ("unicloze", "bert")}),
    (f"{EXPORT} unicloze", {"--out": {"hf": "there"}, "--json": "--json"}),
)  # fmt: skip
"""Commands, and for each of their options how to call them a first and a second time."""

SAME = {
    ("prepare", "--jobs"): "processes change no byte: see tests/test_prepare_jobs.py",
    ("pretrain", "--verify"): "only damaged text tells them apart: see tests/trust/test_digests.py",
    ("report", "--watch"): "the run has ended: see tests/test_report.py",
    ("embed", "--batch-size"): "the rows of a pass read only themselves",
}
"""Options whose two calls must do the same, and why."""


def _calls() -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
    for command, options in COMMANDS:
        verb, second, *_ = f"{command} -".split(" ")
        for option, change in options.items():
            calls = command, f"{command} {change}"
            if isinstance(change, dict):
                ((old, new),) = change.items()
                calls = command, command.replace(old, new)
            elif isinstance(change, tuple):
                calls = f"{command} {change[0]}", f"{command} {change[1]}"
            yield (f"{verb} {second}" if verb == "evaluate" else verb, option), calls


OPTIONS = dict(_calls())
"""Two commands for every option and every positional argument of every verb; `COMMON` are those of all verbs."""

COMMON = "--help", "--debug", "--plugin"
"""Options that all verbs have: they print help, or the traceback of an error."""

MIXED = "--objective.mixture '[{mask_rate: 0.2}, {mask_rate: 0.3, label: b}]' --objective.mask_rate 0.9"
REFUSED = {
    f"{PRETRAIN} --out run --objective.block_size 2": "block_size is not a setting of unilmv2; block_diffusion has it",
    f"{PRETRAIN} --out run {MIXED}": "each entry of objective.mixture sets it",
    f"{PRETRAIN} --out run --training.phases '[{{data.window: 16}}]' --data.window 20": "each entry of training.phases",
    f"{PRETRAIN} --out run --finetuning.epochs 3": "give it to `unicloze finetune`",
    f"{PRETRAIN} --out run --training.attention flex --model.attention_dropout 0": "trains only on a GPU",
    f"{PREPARE} --out data --training.steps 5": "or give it to `unicloze pretrain`",
    f"{PREPARE} --out data --tokenizer.kind bpe --tokenizer.lowercase false": "without tokenizer.kind wordpiece",
    f"{PREPARE} --out data --tokenizer.path {{vocab.txt}} --tokenizer.vocab_size 90": "applies to training a tokenizer",
    f"{INSPECT} {{unilmv2.yaml}} --out {{prepared}}": "data.prepared already names the tokenizer",
    f"{INSPECT} {{half.yaml}} --tokenizer.lowercase false": "does not use it",
    f"{INSPECT} {{half.yaml}} --objective.static_copies 2": "does not use it",
    f"{INSPECT} {{mixture.yaml}} --part two --objective.mask_rate 0.9": "each entry of objective.mixture sets it",
    f"{COMPARE} --finetuning.epochs 3": "give --probe.finetuning.epochs",
    f"{COMPARE} --use.pooling mean": "--use.pooling applies only to probes",
    f"{COMPARE} --training.decay_steps 3": "the comparison sets this",
    f"{COMPARE} {PROBED} --probe.task.stride 3": "--probe.task.stride: stride is not a setting of classification",
    f"{COMPARE} {PROBED} --probe.training.evaluate_every 3": "--probe.training.evaluate_every cannot be set in fine-tuning",
    f"{CLASSES} --objective.mask_rate 0.3": "no effect without finetuning.auxiliary",
    f"{CLASSES} --objective.static_copies 3": "it is taken from the model to start from",
    f"{CLASSES} --task.unanswerable true": "unanswerable is not a setting of classification; extraction has it",
    f"{CLASSES} --training.label_smoothing 0.3": "predicted tokens",
    f"{CLASSES} --task.fields '{{lable: label}}'": "names the role 'lable'",
    f"{CLASSES} --task.metric_options '{{positive: same}}'": "accuracy has it: leave it out",
    f"{PREDICT} --task.fields '{{lable: label}}'": "names the role 'lable'",
    f"{UNANSWERABLE} --task.fields '{{passage: context}}'": "names the role 'passage'",
    f"{OF_A_TASK} --task.fields '{{lable: label}}'": "names the role 'lable'",
    f"{WRITE} --task.fields '{{source: x}}'": "applies to a file, but a text is given",
    f"{WRITE} --stream --task.format jsonl": "applies to a file, but a text is given",
    f"{WRITE} --decoding.seed 3": "no effect without decoding.sample true",
    f"{WRITE} --decoding.beams 1 --decoding.early_stop first": "no effect without decoding.beams above 1",
    f"{WRITE} --decoding.beams 1 --decoding.length_penalty 2": "no effect without decoding.beams above 1",
    f"{WRITE} --decoding.no_repeat_ngram 0 --decoding.may_repeat the": "without decoding.no_repeat_ngram above 0",
    "metrics --model somewhere": "there is no option --model",
    f"{FILES} --task.format jsonl": "unexpected '--task.format'",
    f"{PREDICT} --format glue --json": "not allowed with argument --format",
}
"""Commands with a part that would have no effect, and the error about it."""
