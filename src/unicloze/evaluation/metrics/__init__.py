"""Text or predictions to numbers, by the definitions the papers' tables use.

    read_files.py        files of predictions and references
        |
    registry.py          name -> what is compared, the function, the value that counts
        |
    rouge, perl_rouge    summaries           (profiles.py: the papers' post-processing)
    bleu, nist           translations, responses
    coco, meteor         questions
    diversity            responses by themselves
    squad, coqa          answers             (answers.py: their normalisation)
    labels, numbers      classes, scores
    tags                 entities
    last_words           LAMBADA
    spread               standard errors

A metric is a pure function of predictions and references that gives a `MetricResult`. Nothing here knows a model, and
libraries of an extra are imported where they are used.
"""
