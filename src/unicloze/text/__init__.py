"""Turns a corpus of documents into windows of tokens.

    readers, python_docs -> prepare -> shards -> sampler -> Windows
                               |
                          tokenizers

`prepare` streams documents from files, drops duplicates, holds some out, trains or loads a tokenizer and writes token
shards in datatrove's layout. `sampler` cuts windows from them in an order that is a function of (seed, position): `pieces`
locates the text of each window, `orders` decides when it is visited, `pairs` how its two segments relate. `counts`, a
Kneser-Ney trigram, is the rival of a trained model, also on `content_words`.
"""
