"""Two calls of every verb for each of its options, whose effects must differ; see `option_table`."""

from __future__ import annotations

from dataclasses import dataclass

from option_table import TUNE


@dataclass(frozen=True)
class Calls:
    """Two commands that differ in one option.

    Args:
        first: One of them.
        second: The other.
        same: Why the results must be identical, if they must.
    """

    first: str
    second: str
    same: str = ""


def with_or_without(command: str, option: str, same: str = "") -> Calls:
    """A command without and with an option."""
    return Calls(command, f"{command} {option}", same)


def either(command: str, first: str, second: str) -> Calls:
    """A command that needs an option, with two values of it."""
    return Calls(f"{command} {first}", f"{command} {second}")


NO_SUCH_DEVICE = "--device cuda:97"
"""More than any machine has: refused."""

PREPARE = "prepare --recipe {prepare.yaml} --quiet"
PRETRAIN = "pretrain --recipe {unilmv2.yaml} --quiet"
INSPECT = "inspect --text 'The small cat sees an old house.' --recipe"
COMPARE = "compare {unilmv2.yaml} --budget steps=2 --seeds 1 --quiet --json"
BLIMP_COMPARED = f"{COMPARE} --blimp {{blimp}}"
PROBED = "--probe classification {classes.jsonl} {classes.jsonl} --probe.finetuning.epochs 1"
FILL = "fill --model {RUN:unilmv2} --text 'The [MASK] cat [MASK] the house.'"
SCORE = "score --model {RUN:unilmv2} --text 'The old cat sees the house.'"
EMBED = "embed --model {RUN:unilmv2} --text 'The old cat sees the house.'"
PROMPT = "evaluate prompt {prompt.yaml} --model {RUN:unilmv2} --records {classes.jsonl} --quiet --json"
SHOTS = f"{PROMPT} --examples {{more.jsonl}} --shots 2"
MODEL = "--model {RUN:unilmv2} --quiet --json"
BLIMP = f"evaluate blimp {{blimp}} {MODEL}"
LAMBADA = f"evaluate lambada {{lambada.jsonl}} {MODEL}"
BOOKS = f"evaluate cbt {{lambada.cbt}} {MODEL}"
FILES = "measure rouge --predictions {texts.txt} --references {texts-2.txt} --json"
OF_A_TASK = "measure-task classification --predictions {said.jsonl} --references {classes.jsonl}"
SQUAD = "measure squad --predictions {answers.json} --references {gold.json} --json"
FINETUNE = f"finetune --model {{RUN:unilmv2}} {TUNE} --finetuning.epochs 1"
CLASSES = f"{FINETUNE} --train {{classes.jsonl}} --dev {{classes.jsonl}}"
PREDICT = "predict --model {TASK:classes} --file {classes.jsonl} --quiet"
WRITE = "generate --model {TASK:writer} --text 'The old dog sees the cat.'"
WRITE_ALL = "generate --model {TASK:writer} --file {sources.jsonl} --quiet"
UNANSWERABLE = "unanswerable --file {answered.jsonl} --out made.jsonl"

SERVE = "serve --model {RUN:unilmv2}"

OPTIONS = {
    ("prepare", "--recipe"): either("prepare --quiet --out data --recipe", "{prepare.yaml}", "{half.yaml}"),
    ("prepare", "--out"): either(f"{PREPARE} --out", "here", "there"),
    ("prepare", "--quiet"): with_or_without("prepare --recipe {prepare.yaml} --out data", "--quiet"),
    ("prepare", "--jobs"): with_or_without(
        f"{PREPARE} --out data", "--jobs 2", same="processes change no byte: see tests/test_prepare_jobs.py"
    ),
    ("pretrain", "--recipe"): either("pretrain --quiet --out run --recipe", "{unilmv2.yaml}", "{masked.yaml}"),
    ("pretrain", "--out"): either(f"{PRETRAIN} --out", "here", "there"),
    ("pretrain", "--toy"): with_or_without("pretrain --recipe {unprepared.yaml} --quiet --out run", "--toy"),
    ("pretrain", "--init"): with_or_without(f"{PRETRAIN} --out run", "--init {RUN:masked}"),
    ("pretrain", "--new-tokenizer"): with_or_without(
        "pretrain --recipe {half.yaml} --quiet --out run --init {RUN:masked}", "--new-tokenizer"
    ),
    ("pretrain", "--budget"): either(
        "pretrain --recipe auto --data.corpus {text.txt} --data.window 16 --quiet --out run",
        "--budget steps=2",
        "--budget steps=3",
    ),
    ("pretrain", "--verify"): with_or_without(
        f"{PRETRAIN} --out run", "--verify", same="only damaged text tells them apart: see tests/trust/test_digests.py"
    ),
    ("pretrain", "--plan"): with_or_without(f"{PRETRAIN} --out run", "--plan"),
    ("pretrain", "--quiet"): with_or_without("pretrain --recipe {unilmv2.yaml} --out run", "--quiet"),
    ("inspect", "--recipe"): either(INSPECT, "{unilmv2.yaml}", "{masked.yaml}"),
    ("inspect", "--text"): either("inspect --recipe {unilmv2.yaml} --text", "'The cat.'", "'The dog.'"),
    ("inspect", "--seed"): with_or_without(f"{INSPECT} {{unilmv2.yaml}}", "--seed 1"),
    ("inspect", "--out"): with_or_without(f"{INSPECT} {{half.yaml}}", "--out {prepared}"),
    ("inspect", "--part"): with_or_without(f"{INSPECT} {{mixture.yaml}}", "--part two"),
    ("inspect", "--json"): with_or_without(f"{INSPECT} {{unilmv2.yaml}}", "--json"),
    ("inspect", "--picture"): with_or_without(f"{INSPECT} {{unilmv2.yaml}}", "--picture row.svg"),
    ("compare", "recipes"): Calls(COMPARE, COMPARE.replace("unilmv2", "masked")),
    ("compare", "--budget"): Calls(COMPARE, COMPARE.replace("=2", "=3")),
    ("compare", "--seeds"): Calls(COMPARE, COMPARE.replace("seeds 1", "seeds 2")),
    ("compare", "--out"): either(f"{COMPARE} --out", "here", "there"),
    ("compare", "--like"): with_or_without(COMPARE, "--like {half.yaml}"),
    ("compare", "--blimp"): with_or_without(COMPARE, "--blimp {blimp}"),
    ("compare", "--blimp-limit"): with_or_without(BLIMP_COMPARED, "--blimp-limit 1"),
    ("compare", "--probe"): with_or_without(COMPARE, PROBED),
    ("compare", "--quiet"): Calls(COMPARE.replace("--quiet ", ""), COMPARE),
    ("compare", "--json"): Calls(COMPARE.removesuffix(" --json"), COMPARE),
    ("report", "run"): either("report --out page.html", "{RUN:unilmv2}", "{RUN:masked}"),
    ("report", "--out"): either("report {RUN:unilmv2} --out", "a.html", "b.html"),
    ("report", "--watch"): with_or_without(
        "report {RUN:unilmv2} --out a.html", "--watch 1", same="the run has ended: see tests/test_live_report.py"
    ),
    ("report", "--tensorboard"): with_or_without("report {RUN:unilmv2} --out a.html", "--tensorboard board"),
    ("fill", "--model"): either("fill --text 'The [MASK] cat.' --model", "{RUN:unilmv2}", "{RUN:masked}"),
    ("fill", "--text"): either("fill --model {RUN:unilmv2} --text", "'The [MASK] cat.'", "'A [MASK].'"),
    ("fill", "--file"): either("fill --model {RUN:unilmv2} --file", "{masked.txt}", "{masked.jsonl}"),
    ("fill", "--text-field"): with_or_without("fill --model {RUN:unilmv2} --file {masked.jsonl}", "--text-field body"),
    ("fill", "--top-k"): with_or_without(FILL, "--top-k 2"),
    ("fill", "--order"): with_or_without(FILL, "--order confidence"),
    ("fill", "--device"): with_or_without(FILL, NO_SUCH_DEVICE),
    ("fill", "--json"): with_or_without(FILL, "--json"),
    ("score", "--model"): either("score --text 'The old cat.' --model", "{RUN:unilmv2}", "{RUN:masked}"),
    ("score", "--text"): either("score --model {RUN:unilmv2} --text", "'The old cat.'", "'The old dog.'"),
    ("score", "--file"): either("score --model {RUN:unilmv2} --file", "{texts.txt}", "{texts-3.txt}"),
    ("score", "--text-field"): with_or_without(
        "score --model {RUN:unilmv2} --file {masked.jsonl}", "--text-field body"
    ),
    ("score", "--device"): with_or_without(SCORE, NO_SUCH_DEVICE),
    ("score", "--json"): with_or_without(SCORE, "--json"),
    ("embed", "--model"): either("embed --text 'The old cat.' --model", "{RUN:unilmv2}", "{RUN:masked}"),
    ("embed", "--text"): either("embed --model {RUN:unilmv2} --text", "'The old cat.'", "'The old dog.'"),
    ("embed", "--file"): either("embed --model {RUN:unilmv2} --file", "{texts.txt}", "{texts-3.txt}"),
    ("embed", "--text-field"): with_or_without(
        "embed --model {RUN:unilmv2} --file {masked.jsonl}", "--text-field body"
    ),
    ("embed", "--out"): either(f"{EMBED} --out", "a.npy", "b.jsonl"),
    ("embed", "--pooling"): with_or_without(EMBED, "--pooling last"),
    ("embed", "--batch-size"): with_or_without(EMBED, "--batch-size 1", "the rows of a pass read only themselves"),
    ("embed", "--device"): with_or_without(EMBED, NO_SUCH_DEVICE),
    ("embed", "--precision"): with_or_without(EMBED, "--precision bf16"),
    ("embed", "--json"): with_or_without(EMBED, "--json"),
    ("evaluate blimp", "pairs"): Calls(BLIMP, BLIMP.replace("{blimp}", "{blimp-2}")),
    ("evaluate blimp", "--mode"): with_or_without(BLIMP, "--mode chain"),
    ("evaluate blimp", "--filter"): with_or_without(BLIMP, "--filter {words.txt}"),
    ("evaluate lambada", "passages"): Calls(LAMBADA, LAMBADA.replace("lambada.", "lambada-2.")),
    ("evaluate lambada", "--stop-words"): with_or_without(LAMBADA, "--stop-words {words.txt}"),
    ("evaluate cbt", "questions"): Calls(BOOKS, BOOKS.replace("lambada.", "lambada-2.")),
    ("evaluate prompt", "prompt"): Calls(PROMPT, PROMPT.replace("prompt.yaml", "prompt-2.yaml")),
    ("evaluate prompt", "--records"): Calls(PROMPT, PROMPT.replace("classes.jsonl", "more.jsonl")),
    ("evaluate prompt", "--examples"): Calls(SHOTS, SHOTS.replace("more.jsonl", "classes.jsonl")),
    ("evaluate prompt", "--shots"): Calls(SHOTS, SHOTS.replace("shots 2", "shots 1")),
    ("evaluate prompt", "--seed"): with_or_without(SHOTS, "--seed 1"),
    **{
        (f"evaluate {what}", option): calls
        for what, words in (("blimp", BLIMP), ("lambada", LAMBADA), ("cbt", BOOKS), ("prompt", PROMPT))
        for option, calls in {
            "--model": Calls(words, words.replace("unilmv2", "causal")),
            "--limit": with_or_without(words, "--limit 1"),
            "--device": with_or_without(words, NO_SUCH_DEVICE),
            "--precision": with_or_without(words, "--precision bf16"),
            "--quiet": Calls(words.replace(" --quiet", ""), words),
            "--json": Calls(words.removesuffix(" --json"), words),
        }.items()
    },
    ("evaluate blimp", "--precision"): with_or_without(BLIMP, "--precision fp16"),  # so few pairs agree in bf16
    ("serve", "--model"): either("serve --model", "{RUN:unilmv2}", "{RUN:masked}"),
    ("serve", "--host"): with_or_without(SERVE, "--host ::1"),
    ("serve", "--port"): with_or_without(SERVE, "--port 0"),
    ("serve", "--token-file"): with_or_without(SERVE, "--token-file {texts.txt}"),
    ("serve", "--queue"): with_or_without(SERVE, "--queue 1"),
    ("serve", "--timeout"): with_or_without(SERVE, "--timeout 1"),
    ("serve", "--device"): with_or_without(SERVE, NO_SUCH_DEVICE),
    ("serve", "--precision"): with_or_without(SERVE, "--precision bf16"),
    ("serve", "--json"): with_or_without(SERVE, "--json"),
    ("measure", "metric"): Calls(FILES, FILES.replace("rouge", "bleu")),
    ("measure", "--predictions"): Calls(FILES, FILES.replace("{texts.txt}", "{texts-3.txt}")),
    ("measure", "--references"): Calls(FILES, FILES.replace("{texts-2.txt}", "{texts-3.txt}")),
    ("measure", "--na-probabilities"): either(f"{SQUAD} --na-probabilities", "{sure.json}", "{unsure.json}"),
    ("measure", "--option"): with_or_without(FILES, "--option profile=xsum"),
    ("measure", "--json"): Calls(FILES.removesuffix(" --json"), FILES),
    ("measure-task", "task"): Calls(OF_A_TASK, OF_A_TASK.replace("classification", "glue-cola")),
    ("measure-task", "--predictions"): Calls(OF_A_TASK, OF_A_TASK.replace("said.jsonl", "texts.txt")),
    ("measure-task", "--references"): Calls(OF_A_TASK, OF_A_TASK.replace("classes.jsonl", "more.jsonl")),
    ("measure-task", "--metric"): with_or_without(OF_A_TASK, "--metric macro-f1"),
    ("measure-task", "--option"): with_or_without(f"{OF_A_TASK} --metric f1", "--option positive=same"),
    ("measure-task", "--json"): with_or_without(OF_A_TASK, "--json"),
    ("metrics", "--json"): with_or_without("metrics", "--json"),
    ("prepare", "--json"): with_or_without(f"{PREPARE} --out data", "--json"),
    ("pretrain", "--json"): with_or_without(f"{PRETRAIN} --out run", "--json"),
    ("report", "--json"): with_or_without("report {RUN:unilmv2} --out page.html", "--json"),
    ("predict", "--json"): with_or_without(PREDICT, "--json"),
    ("import", "--json"): with_or_without("import {released} --out model", "--json"),
    ("export", "--json"): with_or_without("export {RUN:masked} --to unicloze --out hf", "--json"),
    ("finetune", "--task"): Calls(f"{CLASSES} --task classification", f"{CLASSES} --task regression"),
    ("finetune", "--model"): Calls(CLASSES, CLASSES.replace("RUN:unilmv2", "RUN:masked")),
    ("finetune", "--train"): either(FINETUNE, "--train {classes.jsonl}", "--train {more.jsonl}"),
    ("finetune", "--dev"): with_or_without(f"{FINETUNE} --train {{classes.jsonl}}", "--dev {classes.jsonl}"),
    ("finetune", "--out"): either(f"{CLASSES} --out", "here", "there"),
    ("finetune", "--seeds"): with_or_without(CLASSES, "--seeds 2"),
    ("finetune", "--grid-budget"): with_or_without(CLASSES, "--grid-budget 2"),
    ("finetune", "--quiet"): Calls(CLASSES.replace("--quiet ", ""), CLASSES),
    ("finetune", "--json"): with_or_without(CLASSES, "--json"),
    ("predict", "--model"): Calls(PREDICT, PREDICT.replace("TASK:classes", "TASK:numbers")),
    ("predict", "--also"): Calls(PREDICT, f"{PREDICT} --also {{TASK:numbers}}"),
    ("predict", "--file"): Calls(PREDICT, PREDICT.replace("classes.jsonl", "more.jsonl")),
    ("predict", "--text"): either("predict --model {TASK:classes} --text 'The old cat.' --text", "'The cat.'", "'It.'"),
    ("predict", "--out"): either(f"{PREDICT} --out", "a.jsonl", "b.jsonl"),
    ("predict", "--format"): with_or_without(PREDICT, "--format glue"),
    ("predict", "--device"): with_or_without(PREDICT, NO_SUCH_DEVICE),
    ("predict", "--precision"): with_or_without(PREDICT, "--precision bf16"),
    ("predict", "--quiet"): Calls(PREDICT.removesuffix(" --quiet"), PREDICT),
    ("generate", "--model"): Calls(WRITE, WRITE.replace("TASK:writer", "TASK:sources")),
    ("generate", "--text"): Calls(WRITE, f"{WRITE} --text 'The dog finds a house.'"),
    ("generate", "--file"): Calls(WRITE_ALL, WRITE_ALL.replace("sources.jsonl", "sources-2.jsonl")),
    ("generate", "--out"): either(f"{WRITE_ALL} --out", "a.jsonl", "b.jsonl"),
    ("generate", "--into"): with_or_without(WRITE_ALL, "--into said"),
    ("generate", "--stream"): with_or_without(f"{WRITE} --decoding.beams 2 --decoding.num_results 2", "--stream"),
    ("generate", "--device"): with_or_without(WRITE, NO_SUCH_DEVICE),
    ("generate", "--quiet"): Calls(WRITE_ALL.removesuffix(" --quiet"), WRITE_ALL),
    ("generate", "--json"): with_or_without(WRITE, "--json"),
    ("unanswerable", "--file"): Calls(UNANSWERABLE, UNANSWERABLE.replace("answered", "answered-2")),
    ("unanswerable", "--out"): Calls(UNANSWERABLE, UNANSWERABLE.replace("made.jsonl", "other.jsonl")),
    ("unanswerable", "--share"): with_or_without(UNANSWERABLE, "--share 0.3"),
    ("unanswerable", "--seed"): with_or_without(UNANSWERABLE, "--seed 1"),
    ("unanswerable", "--json"): with_or_without(UNANSWERABLE, "--json"),
    ("import", "checkpoint"): either("import --out model", "{released}", "{released-2}"),
    ("import", "--out"): either("import {released} --out", "here", "there"),
    ("import", "--allow"): with_or_without("import {strange} --out model", "--allow 'strange.*'"),
    ("import", "--positions"): with_or_without("import {released} --out model", "--positions 64"),
    ("import", "--tokenizer"): with_or_without("import {released} --out model", "--tokenizer {vocab.txt}"),
    ("import", "--pickle"): with_or_without("import {pickled} --out model", "--pickle"),
    ("export", "model"): either("export --to unicloze --out hf", "{RUN:unilmv2}", "{RUN:masked}"),
    ("export", "--to"): either("export {RUN:masked} --out hf --to", "unicloze", "bert"),
    ("export", "--out"): either("export {RUN:masked} --to unicloze --out", "here", "there"),
    ("completion", "shell"): either("completion", "bash", "zsh"),
    ("completion", "--json"): with_or_without("completion bash", "--json"),
    ("recipes", "--json"): with_or_without("recipes", "--json"),
    ("doctor", "--json"): with_or_without("doctor", "--json"),
}
"""Every option and every positional argument of every verb; `COMMON` are those of all verbs."""

COMMON = "--help", "--debug", "--plugin"
"""Options that all verbs have: they print help, or the traceback of an error."""

MIXED = "--objective.mixture '[{mask_rate: 0.2}, {mask_rate: 0.3, label: b}]' --objective.mask_rate 0.9"
REFUSED = {
    f"{PRETRAIN} --out run --training.muon_momentum 0.5": "no effect without training.optimizer muon",
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
    f"{COMPARE} --objective.noise delete": "noise is not a setting of unilmv2; denoising has it",
    f"{COMPARE} {PROBED} --probe.task.stride 3": "--probe.task.stride: stride is not a setting of classification",
    f"{COMPARE} {PROBED} --probe.training.evaluate_every 3": "--probe.training.evaluate_every cannot be set in fine-tuning",
    f"{CLASSES} --data.window 12": "it is taken from the model to start from",
    f"{CLASSES} --objective.mask_rate 0.3": "no effect without finetuning.auxiliary",
    f"{CLASSES} --objective.static_copies 3": "it is taken from the model to start from",
    f"{CLASSES} --task.unanswerable true": "unanswerable is not a setting of classification; extraction has it",
    f"{CLASSES} --training.label_smoothing 0.3": "predicted tokens",
    f"{CLASSES} --task.fields '{{lable: label}}'": "names the role 'lable'",
    f"{CLASSES} --task.metric_options '{{positive: same}}'": "accuracy has no option positive",
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
    f"{WRITE} --stream --out said.jsonl": "leave --out out",
}
"""Commands with a part that would have no effect, and the error about it."""
