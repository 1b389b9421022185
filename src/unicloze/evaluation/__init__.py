"""Measuring trained models on tests of other people's making, and predictions by the papers' metrics.

`minimal_pairs` reads pairs of sentences, `known_words` filters them, `blimp` asks a model which one of each it prefers.
`metrics` compares predictions with references and knows no model.
"""
