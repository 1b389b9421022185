"""Fine-tunes a model of 512 positions on rows of 720 source and 48 target tokens: do they fit, and in how much memory?

    python benchmarks/long_rows.py --books books.jsonl.gz [--steps 100] [--width 64] [--batch-size 4] [--json FILE] [--toy]

The model has two layers and random weights, so the loss shows that the rows are learned, not how well. The rows are cut from
the books: a source, and the text that continues it as the target.
"""

from __future__ import annotations

import gzip
import json
import resource
import tempfile
import time
import warnings
from pathlib import Path

import frame
from unicloze import verbs
from unicloze.files import LEDGER
from unicloze.finetuning.initial import untrained
from unicloze.recipes import load_recipe
from unicloze.training.ledger import read_ledger
from unicloze.training.loading import load_model

SOURCE, TARGET, POSITIONS = 720, 48, 512
"""Tokens of a source and of a target; positions of the model to start from."""
SPECIAL = 3
"""[SOS], and [EOS] after either text."""
VOCABULARY, CHARACTERS = 4000, 4_000_000


def main() -> None:
    parser = frame.options(__doc__)
    parser.add_argument("--books", required=True, type=Path)
    for name, default in (("steps", 100), ("width", 64), ("batch-size", 4)):
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = frame.parsed(parser, "--steps 2 --width 16 --batch-size 1")
    rows = asked.steps * asked.batch_size
    lines = gzip.decompress(asked.books.read_bytes()).decode().splitlines()
    text = " ".join(json.loads(line)["text"] for line in lines)[:CHARACTERS]
    settings = {
        "generation.max_source": SOURCE, "generation.max_target": TARGET, "task.max_length": SOURCE + TARGET + SPECIAL,
        "finetuning.epochs": 1, "training.batch_size": asked.batch_size, "training.learning_rate": 3e-3,
        "training.device": "cpu", "training.precision": "fp32", "training.log_every": 1,
    }  # fmt: skip
    network = load_recipe(
        "unilmv2-base",
        {
            "tokenizer.vocab_size": VOCABULARY, "data.window": POSITIONS, "model.max_positions": POSITIONS,
            "model.hidden_size": asked.width, "model.num_layers": 2, "model.num_heads": 2,
            "model.intermediate_size": 4 * asked.width,
        },
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        file, run = Path(name, "rows.jsonl"), Path(name, "run")
        words = text.split()  # at least as many tokens: texts are cut to length
        cuts = [words[first : first + SOURCE + TARGET] for first in range(0, len(words), SOURCE + TARGET)][:rows]
        records = [{"source": " ".join(each[:SOURCE]), "target": " ".join(each[SOURCE:])} for each in cuts]
        file.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
        start = untrained(network, load_recipe("cnndm"), file)
        assert start.model.max_positions == POSITIONS
        before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
        if verbs.finetune("cnndm", start, file, None, run, quiet=True, overrides=settings).exit_code:
            raise SystemExit("stopped: nothing to measure")
        spent = time.process_time() - began
        steps = [event for event in read_ledger(run / LEDGER) if event["event"] == "step"]
        losses = [next(iter(event["loss"].values())) for event in steps]
        tuned = load_model(run)
    count = max(1, len(losses) // 10)
    found = {
        "rows": len(records), "steps": len(losses), "positions": [POSITIONS, tuned.model.max_positions],
        "parameters": tuned.model.num_parameters(), "loss, first tenth": sum(losses[:count]) / count,
        "loss, last tenth": sum(losses[-count:]) / count, "cpu seconds": round(spent, 1),
        "peak memory, MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "memory before training, MB": before // 1024, "said": [str(each.message) for each in said],
    }  # fmt: skip
    print(json.dumps(found, indent=1))
    frame.write(found, asked.json)


if __name__ == "__main__":
    main()
