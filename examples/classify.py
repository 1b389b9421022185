"""Fine-tune a text classifier and predict: `python examples/classify.py runs/quickstart train.tsv new.tsv runs/classes`"""

import sys

import unicloze

start, train, new, out = sys.argv[1:]
unicloze.finetune("classification", start, train, out=out)
for said in unicloze.predict(out, new):
    print(said["id"], said["prediction"])
