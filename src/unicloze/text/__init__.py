"""Turns a corpus of documents into windows of tokens.

    documents, sources -> pipeline of jobs -> shards -> sampler -> Windows
                                 |
                     tokenizers, vocabulary

`prepare` streams documents from files, drops duplicates, holds some out (`split`), trains or loads a tokenizer and writes
token shards in datatrove's layout, with their `lineage`. `sampler` cuts windows from them in an order that is a function of
(seed, position): `windows` locates the text of each window and joins its segments. `phrases` are masked as a unit.
`counts` holds the baselines a trained model has to beat.
"""
