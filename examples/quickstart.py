"""Shows what the quickstart's model learned: `python examples/quickstart.py runs/quickstart`"""

import dataclasses
import json
import sys
from pathlib import Path

import unicloze
from unicloze.training.loading import build_model

BLANKS = {
    "Return the [MASK] of elements in the list.": "number",
    "If the argument is omitted, the default [MASK] is used.": "value",
    "An exception is [MASK] if the key is not found.": "raised",
    "If the file does not [MASK], an error is raised.": "exist",
    "The default [MASK] is None.": "value",
    "See the documentation for more [MASK].": "details",
    "Return a [MASK] of the given list.": "copy",
    "The [MASK] must be greater than zero.": "value",
}
"""Sentences typical of such documentation, with the expected word."""

run = Path(sys.argv[1])
after = unicloze.load_model(run)
drawn = build_model(after.recipe, len(after.tokenizer)).for_use().eval()
random = dataclasses.replace(after, model=drawn)
right = [text for text, word in BLANKS.items() if unicloze.fill(after, text).masks[0].token == word]
print(
    f"The trained model gets {len(right)} of {len(BLANKS)} words right. The first three (random model -> trained model):"
)
for text in list(BLANKS)[:3]:
    guesses = [unicloze.fill(model, text).masks[0] for model in (random, after)]
    words = " -> ".join(f"{one.readable[0]} ({one.top[0][1]:.0%})" for one in guesses)
    print(f"  {text.replace('[MASK]', '____')}  {words}")
events = [json.loads(line) for line in (run / "ledger.jsonl").read_text(encoding="utf-8").splitlines()]
end = next(event for event in reversed(events) if event["event"] == "end")
measured = next(event for event in reversed(events) if event["event"] == "evaluate")
perplexities = ", ".join(f"{name} {value:.0f}" for name, value in measured["perplexity"].items() if value)
print(f"Perplexity of held-out text: {perplexities} (guessing uniformly: {len(after.tokenizer):,})")
if words := end.get("content_words"):
    shares = f"{words['top_5']:.0%} (Kneser-Ney trigram: {words['counts_top_5']:.0%})"
    print(f"Held-out content words among the first five guesses: {shares} of {words['words']}")
print(f"Verdict: {end.get('verdict') or 'none'}")
