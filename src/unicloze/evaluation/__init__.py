"""Evaluates trained models on published benchmarks, and predictions with the papers' metrics.

`minimal_pairs` reads pairs of sentences, `known_words` filters them, `blimp` tests which one of each a model prefers.
`lambada` predicts last words, `childrens_books` missing words, `prompting` the answers to any records with a prompt file;
`choices` is shared by the last two.
`metrics` compares predictions with references and is independent of models.
"""
