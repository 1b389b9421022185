"""Measuring trained models on tests of other people's making, and predictions by the papers' metrics.

`minimal_pairs` reads pairs of sentences, `known_words` filters them, `blimp` asks a model which one of each it prefers.
`lambada` asks for last words, `childrens_books` for missing ones, `prompting` for the answers of any records by a prompt
file; `choices` is what the last two have in common.
`metrics` compares predictions with references and knows no model.
"""
