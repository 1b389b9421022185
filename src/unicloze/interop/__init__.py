"""Other libraries' checkpoints, in and out, through reversible key tables.

`tables` says how tensors turn into each other, `entries` and `layouts` what each family calls its tensors and its settings,
`families` puts these together. `read` makes a model of a folder, `start` lets a run begin from one. Files are read by
`config`, `weights` and `vocabulary`, which believe nothing of them before it is checked, and run none of them.

`stock` says which classes of Transformers a model can become and `limits` what they cannot be; `stock_export` and
`tokenizer_files` write one, `peer` loads it back, `check` asks it what the model is asked, `export` puts it in its place with
a model `card`.

`rules` says how a model of ours reads a text and writes a target, `programs` makes programs of tensors of it, `onnx` files.
"""
