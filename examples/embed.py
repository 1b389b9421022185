"""Rank texts by similarity to the first: `python examples/embed.py runs/quickstart "a list" "a sequence" "an error"`"""

import sys

import numpy as np

import unicloze

vectors = unicloze.embed(sys.argv[1], sys.argv[2:])
vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
for text, likeness in zip(sys.argv[3:], vectors[1:] @ vectors[0], strict=True):
    print(f"{likeness:.3f}  {text}")
