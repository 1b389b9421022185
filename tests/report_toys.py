"""Hand-written ledgers, and a parser of their page."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from unicloze.recipes import load_recipe, save_recipe
from unicloze.report.page import build_report
from unicloze.text.tokenizers import whitespace_tokenizer

WORDS = "the value of each key in this mapping is a list of the other names and their order stays fixed"
TIME = 1_800_000_000.0
VOID = {"meta", "hr"}


class Page(HTMLParser):
    """Checks that tags nest, and collects texts, tags and attributes."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []
        self.words = " ".join(" ".join(self.texts).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def all(self, name: str) -> list[str]:
        """The values of an attribute."""
        return [str(attributes[name]) for _, attributes in self.tags if name in attributes]


def lineage() -> dict[str, Any]:
    return {
        "fingerprint": "f1a9" * 16,
        "tokenizer": {"fingerprint": "7e57" * 16, "vocab_size": 8192},
        "sources": [
            {
                "corpus": "books/*.txt",
                "files": [{"path": "books/<b>one</b>.txt", "size": 4711, "mtime_ns": 1, "hash": "abcd"}],
                "documents": 2123,
                "duplicates": 17,
                "train": {"documents": 2077, "tokens": 2689298, "bytes": 10350966},
                "heldout": {"documents": 45, "tokens": 56842, "bytes": 222329},
            }
        ],
    }


def event(name: str, step: int, time: float = TIME, **facts: Any) -> dict[str, Any]:
    return {"schema": 1, "event": name, "time": time, "step": step, **facts}


def start(resumed_from: str | None = None, time: float = TIME, **changes: Any) -> dict[str, Any]:
    recipe = load_recipe("quickstart", {"training.steps": 100, "training.device": "cpu"})
    facts = {
        "recipe": recipe.to_dict(), "lineage": lineage(), "parameters": 1478848, "device": "cpu (test)",
        "precision": "fp32", "threads": 2, "versions": {"unicloze": "0.1.0", "torch": "2.13.0"},
    }  # fmt: skip
    at = int(resumed_from[-8:]) if resumed_from else 0
    return event("start", at, time, resumed_from=resumed_from, **(facts | changes))


def step(number: int, loss: float, time: float = TIME) -> dict[str, Any]:
    return event(
        "step", number, time, loss={"ae": loss, "par": loss - 0.5}, gradient_norm=1.0 / number, learning_rate=0.001,
        text_tokens=4096 * number, text_tokens_per_second=9000.0 + number,
    )  # fmt: skip


def evaluation(number: int, perplexity: float, time: float = TIME) -> dict[str, Any]:
    return event(
        "evaluate", number, time, loss={"ae": 5.0, "par": 5.0}, perplexity={"ae": perplexity, "par": perplexity * 2},
        bits_per_byte={"ae": 2.25, "par": 2.5}, predictions={"ae": 2751.0, "par": 2751.0}, window=64, windows=256,
    )  # fmt: skip


def samples(number: int, filling: str, time: float = TIME) -> dict[str, Any]:
    tokens = ["[SOS]", *WORDS.split(), "[EOS]"]
    tokens[2] = tokens[5] = "[MASK]"
    masked = [
        {"position": 2, "step": 1, "truth": "value", "ae": filling, "par": "value"},
        {"position": 5, "step": 0, "truth": "key", "ae": filling, "par": filling},
    ]
    sample = {"document": "folder/books.txt, document 3, token 120", "tokens": tokens, "masked": masked}
    return event("samples", number, time, samples=[sample])


def whole() -> list[dict[str, Any]]:
    """A run of 100 steps in 130 seconds."""
    events = [start(), samples(0, "zebra", TIME + 10)]
    for number in range(1, 101):
        time = TIME + 10 + number
        events.append(step(number, 9.0 - number / 25, time))
        if number % 25 == 0:
            saved = event("save", number, time, checkpoint=f"step-{number:08}")
            events += [evaluation(number, 5000.0 / number, time), saved]
    return [*events, samples(100, "key", TIME + 120), event("end", 100, TIME + 130, seconds=130.0)]


def make_run(folder: Path, events: list[dict[str, Any]], *, torn: str = "") -> Path:
    folder.mkdir(parents=True)
    lines = [json.dumps(event) + "\n" for event in events]
    (folder / "ledger.jsonl").write_text("".join(lines) + torn, encoding="utf-8")
    save_recipe(load_recipe("quickstart", {"training.steps": 100}), folder / "recipe.yaml")
    whitespace_tokenizer(WORDS).save(folder)
    return folder


def page_of(run: Path) -> Page:
    return Page(build_report(run).read_text(encoding="utf-8"))


def cards(page: Page) -> str:
    return page.words.partition("Curves")[0]
