"""The text and labelled records used to make goldens."""

from __future__ import annotations

import json
import random
from collections.abc import Collection
from pathlib import Path
from typing import Any

NOUNS = [
    "cat", "dog", "house", "tree", "river", "stone", "bird", "child", "window", "door", "road", "letter", "song", "cloud",
]  # fmt: skip
VERBS = ["sees", "finds", "follows", "leaves", "watches", "paints", "crosses", "opens"]
ADJECTIVES = ["small", "old", "red", "quiet", "heavy", "bright", "cold", "green"]


def write_material(tasks: Collection[str]) -> None:
    """Write a corpus and the records of tasks to the working directory, the same on every machine."""
    draw = random.Random(0)

    def words() -> list[str]:
        first, second = draw.sample(NOUNS, 2)
        return ["the", draw.choice(ADJECTIVES), first, draw.choice(VERBS), "the", draw.choice(ADJECTIVES), second]

    def sentence() -> str:
        return "a post office opens." if draw.random() < 0.2 else " ".join(words()) + "."

    documents = [" ".join(sentence() for _ in range(draw.randint(3, 12))) for _ in range(80)]
    Path("corpus").mkdir(exist_ok=True)
    Path("corpus/text.txt").write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    for name, count in (("train", 32), ("dev", 9)):
        records: dict[str, list[dict[str, Any]]] = {task: [] for task in tasks}
        for number in range(count):
            given = words()
            text, right = " ".join(given), number % 3
            old = {"text": text, "label": "old" if given[1] in ADJECTIVES[:4] else "new"}
            records["classification"].append(old)
            records["gpt-classification"].append(old)
            records["regression"].append({"text": text, "pair": given[2], "label": float(len(given[2]))})
            choices = draw.sample(NOUNS, 3)
            choices[right] = given[2]
            cloze = " ".join([*given[:2], "_", *given[3:]])
            records["choice"].append({"cloze": cloze, "choices": choices, "label": right})
            tags = ["O", "O", "B-WHO", "O", "O", "B-WHAT", "I-WHAT"]
            records["tagging"].append({"tokens": given, "tags": tags})
            answer = {"text": given[2], "answer_start": text.index(f" {given[2]} ") + 1}
            context = f"{text}. {' '.join(words())}. {' '.join(words())}."
            asked = {"id": f"q{number}", "context": context, "question": f"who {given[3]}?"}
            records["squad-v2"].append(asked | {"answers": [answer] if right else []})
            records["generation"].append({"source": text, "target": " ".join(given[4:])})
        for task, lines in records.items():
            Path(f"{task}-{name}.jsonl").write_text(
                "".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8"
            )
