"""Imports and exports other libraries' checkpoints through reversible key tables.

`tables` defines how tensors are converted, `family` how a family's configuration and tensors are read and written, and
`families` has a record of each. `read` opens a model by its path and imports folders. `files` and `tokenizer_files` read
the files: they check everything before use and never run code.

`stock` and `tokenizer_files` write a class of Transformers, or say what of a model it does not support; `check` loads it back
and compares it with the model, and `export` moves it into place with a model `card`. `programs` exports a model as tensor
programs and as ONNX files.
"""
