"""Fine-tune a generator and generate a text: `python examples/generate.py runs/quickstart train.jsonl "..." runs/writer`"""

import sys

import unicloze

start, train, source, out = sys.argv[1:]
unicloze.finetune("generation", start, train, out=out)
print(unicloze.generate(out, source, overrides={"decoding.beams": 4})[0]["prediction"])
