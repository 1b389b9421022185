"""Writes a model as a stock class of Transformers: weights, configuration and tokenizer."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from unicloze.decoding.inputs import text_format
from unicloze.interop.configurations import Architecture
from unicloze.interop.families import Family
from unicloze.interop.limits import HEADS, exported_heads, said_of_training, task_class
from unicloze.interop.tables import Table
from unicloze.interop.task_classes import DROPOUT
from unicloze.interop.tokenizer_files import padding_of, swapped_ids, write_sentence_files, write_tokenizer
from unicloze.settings import ModelSettings
from unicloze.tasks import task_heads
from unicloze.tasks.groups import Labelled
from unicloze.tasks.rows import TextFormat
from unicloze.training.initial import SEGMENT_ROWS, TOKEN_ROWS
from unicloze.training.loading import LoadedModel


@dataclass(frozen=True, kw_only=True)
class StockExport:
    """A model with everything needed to write it as a stock class.

    Args:
        family: Its family.
        architecture: Name of the class.
        loaded: The model.
        settings: Model shape as the family has it.
        table: The key table.
        padding: Number of rows in their position table before ours.
        pad: Their padding id.
        swapped: Two ids to swap.
        form: Rows of texts, whose segments are the class's `token_type_ids`.
        said: What is changed or missing in the export, as sentences.
    """

    family: Family
    architecture: str
    loaded: LoadedModel
    settings: ModelSettings
    table: Table
    padding: int
    pad: int
    swapped: tuple[int, int] | None
    form: TextFormat
    said: tuple[str, ...]

    def state(self) -> dict[str, Tensor]:
        """Our tensors with rows in their order."""
        ours = dict(self.loaded.model.state_dict())
        if self.swapped is not None:
            ids = torch.from_numpy(swapped_ids(self.loaded.model.vocab_size, self.swapped))
            ours |= {name: ours[name][ids] for name in TOKEN_ROWS if name in ours}
        if SEGMENT_ROWS in ours:
            ours[SEGMENT_ROWS] = ours[SEGMENT_ROWS][_segment_order(self.loaded)]
        elif self.settings.num_segments:
            ours[SEGMENT_ROWS] = ours[TOKEN_ROWS[0]].new_zeros(1, ours[TOKEN_ROWS[0]].shape[1])
        return ours

    def write(self, folder: Path) -> None:
        """Write weights, configuration, tokenizer and the files of sentence-transformers.

        Raises:
            UniclozeError: Ids must be swapped, but the order of the tokenizer's tokens is fixed (Unigram).
        """
        model, recipe = self.loaded.model, self.loaded.recipe
        config = {
            "architectures": [self.architecture],
            "model_type": self.family.name,
            "vocab_size": model.vocab_size,
            "pad_token_id": self.pad,
            "dtype": "float32",
            **self.family.configuration.write(self.settings, positions=model.max_positions, padding=self.padding),
            **self._task_config(),
        }
        (folder / "config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        write_tokenizer(
            self.loaded.tokenizer,
            folder,
            self.form,
            swapped=self.swapped,
            pad=self.pad,
            takes_segments=self.family.configuration.has_segments,
            words=recipe.task.kind == "tagging" and self.loaded.tokenizer.spaced,
        )
        if not task_heads(recipe):
            write_sentence_files(folder, recipe.use, hidden_size=self.settings.hidden_size, longest=self.form.longest)
        weights = {name: tensor.detach().clone() for name, tensor in self.table.to_theirs(self.state()).items()}
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    def _task_config(self) -> dict[str, object]:
        task, heads = self.loaded.recipe.task, task_heads(self.loaded.recipe)
        if not heads:
            return {}
        rate = max(self.loaded.model.task_head(name).rate for name in heads)
        key, own = DROPOUT.get(self.family.name, ("classifier_dropout", None))
        key = "qa_dropout" if self.family.name == "distilbert" and "start" in heads else key
        # Classes without a default of their own have the encoder's rate.
        given = own is not None or (rate != self.settings.dropout and self.family.name != "mpnet")
        values: dict[str, object] = {key: rate} if given else {}
        if "label" not in heads and "tags" not in heads:
            return values
        if not isinstance(task, Labelled) or task.labels is None:
            return {**values, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, "problem_type": "regression"}
        names = dict(enumerate(task.labels))
        values |= {"id2label": names, "label2id": {name: number for number, name in names.items()}}
        return values | ({"problem_type": "single_label_classification"} if "label" in heads else {})


def stock_export(family: Family, loaded: LoadedModel) -> StockExport:
    """Prepare the export of a model to a family that can hold it, see `limits`."""
    model, heads = loaded.model, task_heads(loaded.recipe)
    pad, swapped = padding_of(loaded.tokenizer, family.configuration.padding_id)
    padding = pad + 1 if family.configuration.after_padding else 0
    own = model.settings.num_segments
    form = text_format(loaded)
    settings = dataclasses.replace(
        model.settings, num_segments=max(1, own) if family.configuration.has_segments else own
    )
    kept, lost = exported_heads(family, loaded)
    if heads:
        kept, lost = [], [*lost, *(HEADS[head] for head in kept)]
    kind = task_class(heads)
    bare = not kept and not heads
    table = family.table(Architecture(settings=settings, padding=padding), heads=kept, bare=bare, task=kind)
    said = [f"{each} is omitted" for each in lost] + said_of_training(family, loaded)
    if not family.configuration.has_segments and own > 1:
        said.append("the first segment is added to the positions, and both texts of a pair are read as that segment")
    if swapped is not None:
        said.append(f"ids {swapped[0]} and {swapped[1]} are swapped, because padding has id {pad} there")
    return StockExport(
        family=family,
        architecture=family.classes[frozenset(kept)] if kind is None else f"{family.prefix_of_classes}{kind}",
        loaded=loaded,
        settings=settings,
        table=table,
        padding=padding,
        pad=pad,
        swapped=swapped,
        form=dataclasses.replace(form, segments=(0, int(form.segments[0] != form.segments[1]))),
        said=tuple(said),
    )


def _segment_order(loaded: LoadedModel) -> list[int]:
    """Order of the segment table's rows, with those of a text and its second part first."""
    named = list(dict.fromkeys(text_format(loaded).segments))
    return named + [row for row in range(loaded.model.settings.num_segments) if row not in named]
