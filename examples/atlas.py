"""The paper's point in 15 seconds: `python examples/atlas.py runs/atlas`.

Twelve people live in capitals and speak languages, so the two blanks of a sentence depend on each other. Filled all at once
(AE), neither sees the other; filled in an order (PAR), the second sees the first.
"""

import sys
import warnings
from pathlib import Path

import unicloze

sys.path.insert(0, str(Path(__file__).parent / "notebooks"))
import atlas

folder = Path(sys.argv[1])
atlas.write_texts(folder / "texts")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # about the small corpus and about resuming a finished run
    recipe = Path(__file__).parent / "notebooks" / "atlas.yaml"
    unicloze.pretrain(recipe, out=folder, quiet=True, overrides={"data.corpus": [str(folder / "texts")]})
model = unicloze.load_model(folder)


def filled(name: str, order: str | None) -> tuple[str, str]:
    """The capital and the language that the model predicts for a person."""
    capital, language = unicloze.fill(model, f"{name} lives in [MASK] and speaks [MASK].", order=order).masks
    return capital.token, language.token


for order, how in ((None, "all at once"), ("confidence", "in PAR's order")):
    answers = [filled(name, order) for name in atlas.NAMES]
    agree = sum(atlas.LANGUAGES.get(capital) == language for capital, language in answers)
    first = f"{atlas.NAMES[0]} lives in {answers[0][0]} and speaks {answers[0][1]}."
    print(f"{how + ':':15} {agree:2} of {len(answers)} agree, as in: {first}")
