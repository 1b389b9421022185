"""Documents to windows.

    readers, python_docs -> prepare -> shards -> sampler -> Windows
                               |
                          tokenizers

`prepare` streams documents out of files, drops duplicates, holds some out, trains or loads a tokenizer and writes token
shards in datatrove's layout. `sampler` cuts windows from them in an order that is a function of (seed, position): `pieces`
says where they lie, `orders` which comes when, `pairs` how a window's two segments relate. `counts` and `content_words`
say what a trained model has to beat.
"""
