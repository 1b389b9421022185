"""Goldens: records what this package computes, to prove that a change of structure preserves every bit.

    python benchmarks/goldens.py --out before.json --runs before/     # on the old commit
    python benchmarks/goldens.py --out after.json                     # on the new commit, same machine
    python benchmarks/goldens.py --compare before.json after.json     # prints what differs; exit code 1 if anything does

To measure a commit, check it out or put its `src` first in PYTHONPATH. The command trains every pre-training recipe at toy
size and fine-tunes a model for each head, then records weights, losses, predictions, generated and filled texts, scores,
vectors, and exports. `--only SECTION ...` limits it to some sections.

The runs are kept in `--runs FOLDER`. Runs found there are reused, so a copy of the old commit's folder proves that the new
commit reads and resumes the old one's runs:

    cp -r before/ copy/ && python benchmarks/goldens.py --out compatible.json --runs copy/ # on the new commit
    python benchmarks/goldens.py --compare before.json compatible.json

Values are SHA-256 digests, or the values themselves if they are readable. They depend on the machine, since CPU kernels add
in different orders, so goldens are never committed. They are computed in float32 on one thread in about a minute and a
half.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import platform
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from golden_text import write_material
from golden_values import array_digest, compare, digest, weights

os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}

Goldens = Iterator[tuple[str, Any]]

COMMON = {
    "data.corpus": "corpus",
    "data.heldout_share": 0.1,
    "training.precision": "fp32",
    "training.seed": 7,
    "training.steps": 4,
    "training.micro_batch_size": 4,
    "training.evaluate_every": 2,
    "model.hidden_size": 48,
    "model.num_layers": 3,
    "model.initializer_range": 0.1,
}
"""Settings of every pre-training run, in addition to `--toy`. With two heads of 24 the scale of the scores is not a power
of 2, so a different order of products shows."""
OWN: Mapping[str, dict[str, Any]] = {
    "quickstart": {"training.steps": 200, "training.save_every": 100, "model.dropout": 0.1},
    "xlnet-base": {"model.memory": 16},
    "gpt-3-small": {"objective.local_width": 8, "training.steps": 40},
    "bert-base": {"training.phases": [{"share": 1, "data.window": 16}, {"share": 1}]},
    "albert-base": {"model.embedding_size": 16},
    "roberta-base": {"training.optimizer": "adamax", "training.weight_decay": 0, "training.schedule": "cosine"},
    "cove": {"model.decoder_layers": COMMON["model.num_layers"]},
}
"""Additional settings of some recipes: more steps to generate texts, and mechanisms that no recipe uses at toy size."""
LEARNING = {
    "finetuning.epochs": 6, "finetuning.evaluations": 0.5, "training.batch_size": 8, "training.learning_rate": 3e-3,
    "training.precision": "fp32", "training.seed": 7, "training.device": "cpu", "task.max_length": 32,
}  # fmt: skip
"""Settings of every fine-tuning."""
TASKS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "classification": ("bert-base", {"task.pooling": "first"}),
    "regression": ("gpt-3-small", {}),
    "choice": ("unilmv2-base", {}),
    "tagging": ("roberta-base", {}),
    "squad-v2": ("mpnet-base", {"task.stride": 8, "task.no_answer": "span", "finetuning.epochs": 3}),
    "generation": ("quickstart", {"decoding.max_length": 8, "finetuning.layer_decay": 0.9}),
    "gpt-classification": ("gpt-3-small", {}),
}
"""The initial model of each task, and additional settings."""
REFUSED = "(refused)"
"""Replaces a value that the objective does not define."""
TEXTS = "the small cat sees the old dog.", "a bird crosses the cold river. the child opens a letter.", "song"
BLANKS = "the small [MASK] sees the [MASK] [MASK].", "the [MASK] cat [MASK] the red house. a [MASK] bird."
WRITERS = (
    "quickstart", "unilm-v1-base", "gpt-3-small", "gpt", "prefix-lm-base", "ul2-base",
    "prefix-span-corruption-base", "prefix-denoising-base", "prefix-masked-span-base", "t5-base", "bart-base", "mass-base",
)  # fmt: skip
FILLERS = "quickstart", "bert-base", "xlnet-base", "mpnet-base", "unilm-v1-base", "mdlm-base", "electra-small"
RESUMED = "quickstart", "electra-small", "xlnet-base", "bart-base"
EXPORTS = (
    ("bert", "pretraining/bert-base"),
    ("bert", "finetuning/classification"),
    ("mpnet", "pretraining/quickstart"),
    ("mpnet", "finetuning/squad-v2"),
    ("roberta", "pretraining/roberta-base"),
    ("roberta", "finetuning/tagging"),
    ("electra", "pretraining/electra-small"),
    ("albert", "pretraining/albert-base"),
    ("unicloze", "pretraining/quickstart"),
    ("unicloze", "pretraining/gpt-3-small"),
    ("unicloze", "pretraining/prefix-lm-base"),
)
ONNX = "pretraining/quickstart", "pretraining/gpt-3-small"


def package() -> SimpleNamespace:
    """Everything used from the package. If a commit has other names, change them only here."""
    import unicloze
    from unicloze import verbs
    from unicloze.errors import UsageError
    from unicloze.interop.programs import export_onnx
    from unicloze.recipes import recipe_names

    return SimpleNamespace(
        place=Path(unicloze.__file__).parent,
        Refused=UsageError,
        recipe_names=recipe_names,
        load_recipe=unicloze.load_recipe,
        inspect=verbs.inspect,
        pretrain=verbs.pretrain,
        finetune=verbs.finetune,
        predict=verbs.predict,
        generate=verbs.generate,
        stream=verbs.stream,
        fill=verbs.fill,
        score=verbs.score,
        embed=verbs.embed,
        export=verbs.export,
        import_checkpoint=verbs.import_checkpoint,
        export_onnx=export_onnx,
    )


# Runs


def newest(run: Path) -> Path:
    """The weights of a run: those of the best checkpoint if one is kept, otherwise of the newest."""
    best = sorted(run.glob("best/*/model.safetensors"))
    return (best or sorted(run.glob("checkpoints/*/model.safetensors")))[-1]


def is_trained(run: Path) -> bool:
    """Whether a folder holds a finished run."""
    ledger = run / "ledger.jsonl"
    return ledger.is_file() and '"event": "end"' in ledger.read_text(encoding="utf-8")


def run_values(run: Path) -> Goldens:
    """Weights of a run, and the losses in its ledger."""
    yield "weights", weights(newest(run))
    kept = (
        "event", "step", "loss", "gradient_norm", "learning_rate", "perplexity", "bits_per_byte", "predictions", "headline",
    )  # fmt: skip
    events = map(json.loads, (run / "ledger.jsonl").read_text(encoding="utf-8").splitlines())
    shown = [event for event in events if event["event"] in ("step", "evaluate")]
    yield "ledger", [{key: event[key] for key in kept if key in event} for event in shown]


def plain(result: Any) -> Any:
    """A result as JSON, without notes: their wording may change."""
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        return plain(dataclasses.asdict(result))
    if isinstance(result, Mapping):
        return {str(key): plain(value) for key, value in result.items() if key != "note"}
    return [plain(value) for value in result] if isinstance(result, list | tuple) else result


# Sections: each returns values by name


def examples(own: SimpleNamespace, runs: Path) -> Goldens:
    """The rows of every part of every recipe."""
    for name in own.recipe_names():
        parts = [entry["label"] for entry in own.load_recipe(name).objective.mixture] or [None]
        for part in parts:
            for seed in range(3):
                try:
                    view = own.inspect(
                        text=" ".join(TEXTS[:2]), recipe=name, seed=seed, part=part, out=runs_of(runs, name)
                    )
                except own.Refused:  # too little text for the objective
                    yield f"{name}/{part}/{seed}", REFUSED
                else:
                    yield f"{name}/{part}/{seed}", digest(view.to_dict() | {"title": ""})


def runs_of(runs: Path, name: str) -> Path:
    """The folder of the run of a pre-training recipe."""
    return runs / "pretraining" / name


def pretraining(own: SimpleNamespace, runs: Path) -> Goldens:
    """The runs of all recipes, which `main` has trained."""
    for name in own.recipe_names():
        for key, value in run_values(runs_of(runs, name)):
            yield f"{name}/{key}", value


def resuming(own: SimpleNamespace, runs: Path) -> Goldens:
    """Runs that continue for two more steps, and one that starts from another run."""
    for name in RESUMED:
        copy = Path(tempfile.mkdtemp(dir=".")) / "run"
        shutil.copytree(runs_of(runs, name), copy)
        steps = {**COMMON, **OWN.get(name, {})}["training.steps"] + 2
        own.pretrain(out=copy, quiet=True, overrides={"training.steps": steps})
        yield f"{name}/weights", weights(newest(copy))
    started = Path(tempfile.mkdtemp(dir="."))
    name, init = "unilmv2-ablation-ae-par-relpos", runs_of(runs, "bert-base")
    settings = {key: value for key, value in COMMON.items() if not key.startswith("model.")}
    own.pretrain(recipe=name, init=init, out=started, toy=True, quiet=True, overrides=settings | {"data.window": 16})
    yield f"{name}-from-bert/weights", weights(newest(started))


def finetuning(own: SimpleNamespace, runs: Path) -> Goldens:
    """Every kind of head: weights, development scores, predictions."""
    for task in TASKS:
        run = runs / "finetuning" / task
        for key, value in run_values(run):
            yield f"{task}/{key}", value
        yield f"{task}/scores", json.loads((run / "results.json").read_text(encoding="utf-8"))["scores"]
        predictions = own.predict(model=run, file=f"{task}-dev.jsonl", device="cpu", quiet=True)
        yield f"{task}/predictions", plain(predictions)


def generating(own: SimpleNamespace, runs: Path) -> Goldens:
    """Texts by greedy and beam search, sampling, parallel generation, and streaming."""
    ways: dict[str, dict[str, Any]] = {
        "greedy": {"beams": 1},
        "beams": {"beams": 4, "num_results": 3, "length_penalty": 0.6, "no_repeat_ngram": 2, "min_length": 2},
        "first": {"beams": 3, "early_stop": "first"},
        "drawn": {
            "beams": 1, "sample": True, "top_k": 40, "top_p": 0.95, "temperature": 1.3, "num_results": 3, "seed": 5,
        },
        "parallel": {"beams": 1, "no_repeat_ngram": 0, "parallel": 2},
    }  # fmt: skip
    models = [*(runs_of(runs, name) for name in WRITERS), runs / "finetuning" / "generation"]
    Path("sources.txt").write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    for model in models:
        for way, settings in ways.items():
            overrides = {"decoding.max_length": 12} | {f"decoding.{key}": value for key, value in settings.items()}
            name = f"{model.name}/{way}"
            arguments = dict(model=model, device="cpu", overrides=overrides)
            try:
                yield name, plain(own.generate(file="sources.txt", quiet=True, **arguments))
                if way in ("greedy", "beams"):
                    yield f"{name}/streamed", list(own.stream(text=TEXTS[0], **arguments))
            except own.Refused:
                yield name, REFUSED


def filling(own: SimpleNamespace, runs: Path) -> Goldens:
    """Masks filled at once (AE) and in every order (PAR), with their candidates."""
    for name in FILLERS:
        for order in (None, "confidence", "left-to-right", "span"):
            for number, text in enumerate(BLANKS):
                try:
                    found = plain(own.fill(model=runs_of(runs, name), text=text, top_k=3, order=order, device="cpu"))
                except own.Refused:
                    found = REFUSED
                yield f"{name}/{order or 'at once'}/{number}", found


def scoring(own: SimpleNamespace, runs: Path) -> Goldens:
    """Log-likelihoods by every objective that defines one."""
    for name in own.recipe_names():
        yield name, plain(own.score(model=runs_of(runs, name), text=TEXTS, device="cpu"))


def embedding(own: SimpleNamespace, runs: Path) -> Goldens:
    """Vectors of texts by every model and every pooling."""
    for name in own.recipe_names():
        for pooling in ("mean", "first", "last"):
            found = own.embed(model=runs_of(runs, name), texts=TEXTS, pooling=pooling, device="cpu")
            yield f"{name}/{pooling}", [array_digest(found), *map(float, found[0, :3])]


def exporting(own: SimpleNamespace, runs: Path) -> Goldens:
    """Files of every kind of export, the outputs of Transformers' classes, and re-imported weights."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM
    from transformers.utils import logging

    import unicloze.hf  # noqa: F401 -- registers the classes

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    for to, run in EXPORTS:
        name, out = f"{run.partition('/')[2]} to {to}", Path(tempfile.mkdtemp(dir=".")) / to
        result = own.export(model=runs / run, to=to, out=out)
        yield f"{name}/class", result.architecture
        yield f"{name}/weights", weights(out / "model.safetensors")
        for file in ("config.json", "tokenizer.json"):
            yield f"{name}/{file}", digest(json.loads((out / file).read_text(encoding="utf-8")))
        if to != "unicloze":
            heads, back = ("classifier*", "qa_outputs*"), out.with_name("back")
            own.import_checkpoint(checkpoint=out, out=back, allow=heads)
            yield f"{name}/back", weights(next(back.rglob("model.safetensors")))
            continue
        reader, writer = (kind.from_pretrained(out).eval() for kind in (AutoModelForMaskedLM, AutoModelForCausalLM))
        ids = torch.tensor([[0, 0, 3, 20, 21, 22, 23, 4], [3, 30, 31, 32, 33, 34, 35, 4]])
        given = {"input_ids": ids, "attention_mask": (ids != 0).long()}
        with torch.inference_mode():
            yield f"{name}/masked", array_digest(reader(**given).logits)
            yield f"{name}/next", array_digest(writer(**given).logits)
            learned = writer(**given, labels=torch.where(torch.arange(8) > 4, ids, -100))
            yield f"{name}/learned", [float(learned.loss), array_digest(learned.logits)]
            for beams in (1, 3):
                made = writer.generate(**given, num_beams=beams, max_new_tokens=8, do_sample=False)
                yield f"{name}/generated by {beams}", made.tolist()


def onnx(own: SimpleNamespace, runs: Path) -> Goldens:
    """ONNX programs: interface, initialisers and outputs; not the files, whose nodes name source files.

    Initialisers that are weights of the model are compared by name; those that the exporter numbers by content.
    """
    import numpy as np
    import onnx as library
    import onnxruntime
    from onnx import numpy_helper

    for run in ONNX:
        for file in own.export_onnx(runs / run, tempfile.mkdtemp(dir=".")):
            name, graph = f"{run.partition('/')[2]}/{file.name}", library.load(file).graph
            named, numbered = {}, []
            for tensor in graph.initializer:
                found = array_digest(numpy_helper.to_array(tensor))
                if "." in tensor.name:
                    named[tensor.name] = found
                else:
                    numbered.append(found)
            yield f"{name}/weights", dict(sorted(named.items()))
            yield f"{name}/constants", sorted(numbered)
            session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
            for what, slots in (("inputs", session.get_inputs()), ("outputs", session.get_outputs())):
                yield f"{name}/{what}", [[slot.name, slot.type, [str(size) for size in slot.shape]] for slot in slots]
            for sizes in ({"rows": 2, "slots": 6, "past": 0}, {"rows": 3, "slots": 1, "past": 5}):
                draw = np.random.default_rng(0)
                given: dict[str, Any] = {}
                for slot in session.get_inputs():
                    shape = [sizes.get(size, size) for size in slot.shape]
                    if "float" in slot.type:
                        given[slot.name] = draw.standard_normal(shape).astype(np.float32)
                    elif slot.name == "input_ids":
                        given[slot.name] = draw.integers(7, 100, shape)
                    else:
                        given[slot.name] = np.full(shape, int("mask" in slot.name or sizes["past"] > 0), np.int64)
                outputs = session.run(None, given)
                yield f"{name}/outputs of {'x'.join(map(str, sizes.values()))}", list(map(array_digest, outputs))


SECTIONS: Mapping[str, Callable[[SimpleNamespace, Path], Goldens]] = {
    section.__name__: section
    for section in (
        examples, pretraining, resuming, finetuning, generating, filling, scoring, embedding, exporting, onnx,
    )
}  # fmt: skip


def train(own: SimpleNamespace, runs: Path) -> None:
    """Make the runs that all sections read, unless they exist."""
    for name in own.recipe_names():
        if not is_trained(runs_of(runs, name)):
            settings = {**COMMON, **OWN.get(name, {})}
            own.pretrain(recipe=name, out=runs_of(runs, name), toy=True, quiet=True, overrides=settings)
    for task, (start, settings) in TASKS.items():
        run = runs / "finetuning" / task
        if not is_trained(run):
            own.finetune(
                task=task, model=runs_of(runs, start), train=f"{task}-train.jsonl", dev=f"{task}-dev.jsonl", out=run,
                quiet=True, overrides={**LEARNING, **settings},
            )  # fmt: skip


def make(runs: Path, only: list[str]) -> dict[str, Any]:
    """Make the goldens of the imported package in the working directory."""
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    own = package()
    seconds: dict[str, float] = {}
    values: dict[str, Any] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        result = work()
        seconds[name] = round(time.perf_counter() - start, 1)
        print(f"{name:<12} {seconds[name]:6.1f} s", file=sys.stderr)
        return result

    write_material(TASKS)
    timed("training", lambda: train(own, runs))
    for name in only or SECTIONS:
        section = timed(name, functools.partial(lambda each: list(each(own, runs)), SECTIONS[name]))
        values |= {f"{name}/{key}": value for key, value in section}
    processor = next(
        (line for line in lines_of("/proc/cpuinfo") if line.startswith("model name")), platform.processor()
    )
    about = {
        "package": str(own.place),
        "machine": f"{platform.machine()}, {processor.rpartition(': ')[2]}",
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "sections": only or list(SECTIONS),
        "seconds": seconds,
    }
    return {"about": about, "values": values}


def lines_of(file: str) -> list[str]:
    """The lines of a file; none if it does not exist."""
    return Path(file).read_text(encoding="utf-8").splitlines() if Path(file).is_file() else []


def main() -> int:
    """Make goldens, or compare two files of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", type=Path, metavar="FILE", help="make goldens and write them to this file")
    what.add_argument("--compare", type=Path, nargs=2, metavar="FILE", help="print what differs between two such files")
    parser.add_argument("--runs", type=Path, metavar="FOLDER", help="folder of the runs (default: a temporary one)")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=[], metavar="SECTION", help=", ".join(SECTIONS))
    options = parser.parse_args()
    if options.compare:
        return compare(*options.compare)
    out = options.out.resolve()
    with tempfile.TemporaryDirectory() as temporary:
        runs = Path(temporary) / "runs" if options.runs is None else options.runs.resolve()
        runs.mkdir(parents=True, exist_ok=True)
        os.chdir(temporary)  # the corpus and the records have the same relative paths everywhere
        goldens = make(runs, options.only)
        os.chdir(out.parent)
    out.write_text(json.dumps(goldens, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{out}: {len(goldens['values'])} values, in {sum(goldens['about']['seconds'].values()):.0f} seconds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
