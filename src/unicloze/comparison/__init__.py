"""Compares objectives with the same text, tokenizer, budget and measures over several seeds, in one table.

`plan` aligns the recipes and converts a budget into steps, `measures` scores a trained model on what its objective defines,
`compare` runs everything and can be interrupted at any time, `page` draws the results.
"""
