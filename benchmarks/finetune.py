"""Compares fine-tuning with Transformers' AutoModelForSequenceClassification: same model, records, settings and seeds.

    python benchmarks/finetune.py --task glue-sst-2 --model DIR --train FILE --test FILE [--seeds 5] [--first-seed 0]
        [--json FILE] [--toy] [--peer tuned|default|none] [--limit N] [dotted settings]

DIR is a Hugging Face folder of a BERT-shaped model; the peer predicts from its first slot, so a folder with other pooling
needs `--task.pooling first`. Each run is a separate process; the two contenders take turns, seed by seed, alternating which
is first. Same batches in the same order, epochs, AdamW, schedule, clipping, dropout, precision and longest row. The peer
pads each batch to its longest row, as Transformers' collator does; `tuned` gives it this package's allocator settings,
`default` leaves a user's defaults. No development file is used: the score is that of the last step on the test file.

Paired over the seeds: the mean difference of the first metric with its standard error, and the ratios of the seconds and of
the processor seconds spent in training (without reading, tokenizing and saving).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import frame


class Clock(NamedTuple):
    """Wall time and processor time of a training; other work on the machine affects the latter less."""

    seconds: float
    processor_seconds: float


def now() -> Clock:
    """The time."""
    return Clock(time.perf_counter(), time.process_time())


def since(began: Clock) -> Clock:
    """The time elapsed since then."""
    return Clock(*(end - start for start, end in zip(began, now(), strict=True)))


def ours(spec: dict[str, Any]) -> dict[str, Any]:
    """Fine-tune one seed here."""
    from unicloze.cores import tune_allocator

    tune_allocator()
    import tempfile

    from unicloze.finetuning import run as room
    from unicloze.finetuning.data import open_records
    from unicloze.finetuning.initial import task_recipe
    from unicloze.finetuning.predict import predict
    from unicloze.finetuning.scores import measure
    from unicloze.interop.read import open_model
    from unicloze.recipes import load_recipe
    from unicloze.records.record import Record
    from unicloze.tasks.several import records_of
    from unicloze.training import process
    from unicloze.training.loading import load_model
    from unicloze.training.loop import fit

    settings = {**spec["settings"], "training.seed": spec["seed"]}
    start = open_model(spec["model"])
    recipe = task_recipe(load_recipe(spec["task"], settings), start, list(settings))
    spent = {}

    def timed(state: Any, steps: Any, training: Any, compute: Any, hooks: Any) -> Any:
        saving = [Clock(0.0, 0.0)]

        def save(state: Any) -> None:
            began = now()
            hooks.save(state)
            saving.append(since(began))

        began = now()
        result = fit(state, steps, training, compute, dataclasses.replace(hooks, save=save))
        whole = since(began)
        spent.update({key: getattr(whole, key) - sum(getattr(one, key) for one in saving) for key in Clock._fields})
        return result

    def first_records(*arguments: Any) -> list[Record]:
        return records_of(*arguments)[: spec["limit"]]

    vars(process)["fit"] = timed
    vars(room)["records_of"] = first_records
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        room.finetune_run(recipe, start, Path(spec["train"]), None, out, progress=False)
        model = load_model(out)
        data = open_records(Path(spec["test"]), model.recipe, model.tokenizer)
        predictions = predict(model, data)
        results = measure(predictions, data.records, model.recipe, errors=True)
    scores = {key: value for result in results.values() for key, value in result.values.items()}
    errors = {key: value for result in results.values() for key, value in result.errors.items()}
    return {
        **spent,
        "scores": scores,
        "standard_errors": errors,
        "steps": model.recipe.training.steps,
        "precision": model.recipe.training.precision,
    }


def peer(spec: dict[str, Any]) -> dict[str, Any]:
    """Fine-tune one seed with Transformers."""
    if spec["peer"] == "tuned":
        from unicloze.cores import tune_allocator

        tune_allocator()
    import contextlib

    import numpy as np
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from unicloze import keyed
    from unicloze.evaluation.metrics.registry import metric
    from unicloze.finetuning.run import with_steps
    from unicloze.recipes import load_recipe
    from unicloze.records import read_records
    from unicloze.settings import chosen
    from unicloze.tasks import TASKS
    from unicloze.tasks.task import Labelled
    from unicloze.training.optimizers import schedule_factor
    from unicloze.training.precision import choose_precision

    recipe = load_recipe(spec["task"], spec["settings"])
    task, training = recipe.task, recipe.training
    torch.manual_seed(spec["seed"])
    precision = choose_precision(training, torch.device("cpu"))
    train = read_records(Path(spec["train"]), task)[: spec["limit"]]
    test = read_records(Path(spec["test"]), task)
    task = TASKS[task.kind].resolve(task, train)
    regression = task.kind == "regression"
    labels = (task.labels or []) if isinstance(task, Labelled) else []
    tokenizer = AutoTokenizer.from_pretrained(spec["model"])
    own = {"hidden_dropout_prob": "dropout", "attention_probs_dropout_prob": "attention_dropout"}
    rates = {key: getattr(recipe.model, name) for key, name in own.items() if f"model.{name}" in spec["settings"]}
    model = AutoModelForSequenceClassification.from_pretrained(
        spec["model"], num_labels=1 if regression else len(labels), attn_implementation="sdpa", **rates
    )

    def encoded(records: Any) -> list[dict[str, Any]]:
        texts = [record.text(task, "text") for record in records]
        others = [record.get(task, "pair") for record in records]
        pairs = None if others[0] is None else others
        rows = tokenizer(texts, pairs, truncation=True, max_length=task.max_length)
        return [{key: rows[key][i] for key in rows} for i in range(len(texts))]

    def answer(record: Any) -> Any:
        value = TASKS[task.kind].reference(record, task)
        return float(value) if regression else labels.index(value)

    rows, answers = encoded(train), torch.tensor([answer(record) for record in train])
    training = with_steps(recipe, len(rows)).training
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": training.weight_decay}, {"params": others, "weight_decay": 0.0}],
        lr=chosen(training.learning_rate), betas=training.betas, eps=training.epsilon, fused=True,
    )  # fmt: skip
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: schedule_factor(step, training))

    def autocast() -> Any:
        return torch.autocast("cpu", torch.bfloat16) if precision == "bf16" else contextlib.nullcontext()

    began, done, epoch = now(), 0, 0
    model.train()
    while done < training.steps:
        shuffled = keyed.permutation(
            np.arange(len(rows)), len(rows), keyed.key(spec["seed"], keyed.Purpose.RECORD_ORDER, epoch)[0]
        )
        epoch += 1
        for rows_of_batch in torch.from_numpy(shuffled).split(training.batch_size):
            if done == training.steps:
                break
            batch = tokenizer.pad([rows[int(i)] for i in rows_of_batch], return_tensors="pt")
            with autocast():
                loss = model(**batch, labels=answers[rows_of_batch]).loss
            loss.backward()
            if training.clip_norm:
                torch.nn.utils.clip_grad_norm_(model.parameters(), training.clip_norm)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
            done += 1
    spent = since(began)._asdict()
    model.eval()
    shown = encoded(test)
    order = sorted(range(len(shown)), key=lambda i: len(shown[i]["input_ids"]))
    predicted: list[Any] = [None] * len(shown)
    with torch.inference_mode():
        for first in range(0, len(order), 64):
            block = order[first : first + 64]
            logits = model(**tokenizer.pad([shown[i] for i in block], return_tensors="pt")).logits
            for i, values in zip(block, logits, strict=True):
                predicted[i] = float(values[0]) if regression else labels[int(values.argmax())]
    references = [TASKS[task.kind].reference(record, task) for record in test]
    results = [metric(name)(predicted, references) for name in task.metrics]
    scores = {key: value for result in results for key, value in result.values.items()}
    return {**spent, "scores": scores, "steps": training.steps, "precision": precision}


def compared(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Means and paired differences of all values."""
    names = [name for name in runs["ours"][0]["scores"] if all(name in run["scores"] for run in runs["peer"])]
    summary: dict[str, Any] = {}
    for name in names:
        values = {who: [run["scores"][name] for run in each] for who, each in runs.items() if each}
        entry: dict[str, Any] = {who: {"mean": statistics.fmean(v), "values": v} for who, v in values.items()}
        if runs["peer"]:
            differences = [a - b for a, b in zip(values["ours"], values["peer"], strict=True)]
            error = statistics.stdev(differences) / len(differences) ** 0.5 if len(differences) > 1 else None
            entry |= {"difference": statistics.fmean(differences), "standard_error": error}
        summary[name] = entry
    if runs["peer"]:
        for name, key in (("times faster", "seconds"), ("times less processor time", "processor_seconds")):
            ratios = [b[key] / a[key] for a, b in zip(runs["ours"], runs["peer"], strict=True)]
            summary[name] = {"median": statistics.median(ratios), "values": ratios}
    return summary


def main() -> None:
    parser = frame.options(__doc__)
    parser.add_argument("--task", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--train", required=True)
    parser.add_argument("--test", required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--peer", choices=("tuned", "default", "none"), default="tuned")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options, extra = frame.parsed_known(parser, "--seeds 1 --limit 8")
    if options.worker:
        spec = json.loads(options.worker)
        print(json.dumps((ours if spec["who"] == "ours" else peer)(spec)))
        return
    from unicloze.recipes import parse_options

    settings = parse_options(extra)
    from unicloze.recipes import load_recipe

    load_recipe(options.task, settings)  # reject invalid settings before anything runs
    runs: dict[str, list[dict[str, Any]]] = {"ours": [], "peer": []}
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        contenders = ("ours",) if options.peer == "none" else ("ours", "peer") if seed % 2 == 0 else ("peer", "ours")
        for who in contenders:
            spec = {"who": who, "seed": seed, "settings": settings, "peer": options.peer, "limit": options.limit}
            spec |= {name: getattr(options, name) for name in ("task", "model", "train", "test")}
            command = [sys.executable, "-W", "ignore", __file__, "--worker", json.dumps(spec)]
            command += [
                part for name in ("task", "model", "train", "test") for part in (f"--{name}", getattr(options, name))
            ]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            runs[who].append(json.loads(done.stdout.splitlines()[-1]))
            print(f"seed {seed}, {who}: {runs[who][-1]}", file=sys.stderr, flush=True)
    summary = compared(runs)
    print(json.dumps(summary, indent=1))
    about = {"task": options.task, "settings": settings, "peer": options.peer, "limit": options.limit}
    frame.write({**about, "summary": summary, "runs": runs}, options.json)


if __name__ == "__main__":
    main()
