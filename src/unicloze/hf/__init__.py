"""Transformers classes for the models: `from_pretrained`, `save_pretrained`, `generate`, `Trainer`, pipelines.

    import unicloze.hf
    from transformers import AutoModelForMaskedLM

    unicloze.hf.UniclozeForMaskedLM.from_run("runs/quickstart").save_pretrained("mine")
    unicloze.hf.load_tokenizer("runs/quickstart").save_pretrained("mine")
    model = AutoModelForMaskedLM.from_pretrained("mine")

Importing this package registers the models with the Auto classes; code in model folders is never run. The generating
model is registered with `AutoModelForCausalLM`, not with `AutoModelForSeq2SeqLM`: one stack of layers reads source and
target as one row, and generated tokens are appended to the prompt.

Needs the extra `hf`.
"""

from __future__ import annotations

from unicloze.errors import UniclozeError

try:
    import transformers
except ImportError as error:
    raise UniclozeError('unicloze.hf needs Transformers: in the clone, pip install -e ".[hf]"') from error

from unicloze.hf.generation import UniclozeForConditionalGeneration
from unicloze.hf.models import UniclozeConfig, UniclozeForMaskedLM, UniclozeModel
from unicloze.hf.save import AUTO, load_tokenizer

__all__ = [
    "UniclozeConfig",
    "UniclozeForConditionalGeneration",
    "UniclozeForMaskedLM",
    "UniclozeModel",
    "load_tokenizer",
]

transformers.AutoConfig.register(UniclozeConfig.model_type, UniclozeConfig, exist_ok=True)
for _model, _auto in AUTO.items():
    _auto.register(UniclozeConfig, _model, exist_ok=True)
