"""Fill the blanks of a text: `python examples/fill.py runs/quickstart "Return a [MASK] of the given list."`"""

import sys

import unicloze

model = unicloze.load_model(sys.argv[1])
for mask in unicloze.fill(model, sys.argv[2], order="confidence").masks:
    print(mask.token, mask.top)
