"""Imports and exports other libraries' checkpoints through reversible key tables.

`tables` defines how tensors are converted, `entries` and `layouts` the tensor names and settings of each family, and
`families` combines them. `read` imports a folder as a model; `start` lets a run begin from one. `config`, `weights` and
`vocabulary` read the files: they check everything before use and never run code.

`stock` lists the classes of Transformers a model can be exported to, and `limits` what they do not support; `stock_export`
and `tokenizer_files` write one, `peer` loads it back, `check` compares it with the model, and `export` moves it into place
with a model `card`.

`rules` says how a model encodes a text and generates a target; `programs` exports it as tensor programs, `onnx` as files.
"""
