"""Compares objectives with the same text, tokenizer, budget and measures over several seeds, in one table.

`contestants` aligns the recipes and converts a budget into steps, `runs` trains a model and scores it on what its objective
defines, `compare` runs everything and can be interrupted at any time, `table` shows the results.
"""
