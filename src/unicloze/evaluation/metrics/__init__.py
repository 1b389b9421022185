"""Computes metrics of predictions, as defined for the papers' tables.

    read_files.py        files of predictions and references
        |
    registry.py          name -> what is compared, the function, the headline value
        |
    rouge, perl_rouge    summaries           (profiles.py: the papers' post-processing)
    bleu, nist           translations, responses
    coco, meteor         questions
    diversity            responses without references
    squad, coqa          answers             (answers.py: their normalisation)
    labels, numbers      classes, scores
    tags                 entities
    last_words           LAMBADA
    spread               standard errors

A metric is a pure function of predictions and references that returns a `MetricResult`. Nothing here depends on a model,
and libraries of optional extras are imported where they are used.
"""
