"""Evaluates trained models on published benchmarks, and predictions with the papers' metrics.

`blimp` tests which sentence of a pair a model prefers, `missing_words` predicts last words (LAMBADA) and missing ones (CBT),
and `prompting` answers any records with a prompt file. `metrics` compares predictions with references and is independent
of models.
"""
