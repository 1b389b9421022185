"""Computes metrics of predictions, as defined for the papers' tables.

    files       predictions and references of .txt, .tsv, .jsonl and .json files
        |
    registry    name -> what is compared, the function, the headline value
        |
    texts       summaries, translations, questions and responses
    answers     answers of SQuAD and CoQA, LAMBADA's last words
    labels      classes, quantities, entities, calibration
        |
    result      a metric's values with their standard errors; the papers' post-processing

A metric is a pure function of predictions and references that returns a `MetricResult`. Nothing here depends on a model,
and libraries of optional extras are imported where they are used.
"""
