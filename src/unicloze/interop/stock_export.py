"""Writes a model as a stock class of Transformers, an encoder or a language model: weights, configuration, tokenizer."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from unicloze.decoding.inputs import (
    find_generation_format,
    generation_format_of,
    read_as,
    repetition_guard,
    text_format,
)
from unicloze.errors import UsageError
from unicloze.interop.configurations import Architecture
from unicloze.interop.families import CLASSES, DROPOUT, FAMILIES, Family
from unicloze.interop.limits import HEADS, exported_heads, said_of_training, task_class
from unicloze.interop.tables import Table
from unicloze.interop.tokenizer_files import padding_of, swapped_ids, write_sentence_files, write_tokenizer
from unicloze.model.from_attention_mask import EncoderInputs, StepInputs
from unicloze.objectives.generation_format import GenerationFormat
from unicloze.objectives.permuted import PermutedSettings
from unicloze.objectives.unilmv2 import pseudo_id
from unicloze.settings import ModelSettings, Recipe
from unicloze.tasks import generation, task_heads
from unicloze.tasks.groups import Labelled
from unicloze.tasks.rows import TextFormat
from unicloze.text.vocabulary import Vocabulary
from unicloze.training.initial import SEGMENT_ROWS, TOKEN_ROWS
from unicloze.training.loading import LoadedModel


def encoder_inputs(recipe: Recipe) -> EncoderInputs:
    """How a model reads a text with nothing masked, as `embed` does; no segment lies beyond the end of its table."""
    reading, visibility = read_as(recipe), recipe.use.visibility
    if visibility not in ("bidirectional", "left_to_right") or recipe.model.kind != "transformer":
        raise UsageError(
            "only a Transformer that reads a text in both directions or from left to right can be exported "
            "(use.visibility, model.kind)"
        )
    last = max(0, recipe.model.num_segments - 1)
    first, second = (min(segment, last) for segment in reading.segments)
    return EncoderInputs(visibility=visibility, segment_ids=(first, second), local_width=reading.local_width)


def step_inputs(recipe: Recipe, vocabulary: Vocabulary) -> StepInputs | None:
    """How a model generates a target, see `unicloze.decoding.inputs`.

    None if it cannot, or if its rows hold more than source, target and the tokenizer's special tokens: a token that
    opens the target (MASS) or names the task (UL2).
    """
    layout = find_generation_format(recipe, vocabulary)
    if layout is None or layout.opening or len(layout.start) > 1:
        return None
    last = max(0, recipe.model.num_segments - 1)
    return StepInputs(
        predicts=layout.predicts,
        source="left_to_right" if layout.decoder_only else "bidirectional",
        segment_ids=(min(layout.source_segment, last), min(layout.target_segment, last)),
        pseudo=layout.pseudo,
        local_width=layout.local_width,
    )


def never_written(recipe: Recipe, vocabulary: Vocabulary) -> list[int]:
    """Tokens that a target never contains: all special ones except [EOS], and except sentinels if targets consist of them."""
    layout = find_generation_format(recipe, vocabulary)
    return sorted({*vocabulary.special.tolist()} - {vocabulary.eos} if layout is None else {*layout.never})


def generate_arguments(loaded: LoadedModel) -> dict[str, Any]:
    """Arguments of `generate` that reproduce `unicloze generate` as far as possible."""
    decoding = loaded.recipe.decoding
    found: dict[str, Any] = {"max_new_tokens": _longest_target(loaded)}
    if decoding.min_length:
        found["min_new_tokens"] = decoding.min_length
    if decoding.no_repeat_ngram:
        found["no_repeat_ngram_size"] = decoding.no_repeat_ngram
    if decoding.num_results > 1:
        found["num_return_sequences"] = decoding.num_results
    if decoding.sample:
        return found | {
            "do_sample": True,
            "temperature": decoding.temperature,
            "top_k": decoding.top_k or 0,
            "top_p": 1.0 if decoding.top_p is None else decoding.top_p,
        }
    if decoding.beams > 1:
        found |= {
            "num_beams": decoding.beams,
            "early_stopping": True if decoding.early_stop == "first" else "never",
            "length_penalty": decoding.length_penalty,
        }
    return found


def not_said(loaded: LoadedModel) -> list[str]:
    """How `generate` differs from the recipe's `decoding`, as sentences without a full stop."""
    decoding = loaded.recipe.decoding
    said = []
    if decoding.beams > 1 and decoding.length_penalty:
        alpha = f"{decoding.length_penalty:g}"
        said.append(
            f"`generate` ranks beams by log p / n^{alpha}, unicloze by log p / ((5 + n) / 6)^{alpha}: "
            "with short texts they may choose differently (`length_penalty=0.0` is the same in both)"
        )
    if decoding.sample:
        said.append("`generate` samples with torch's random numbers instead of `decoding.seed`: the texts differ")
    if decoding.no_repeat_ngram and decoding.may_repeat:
        said.append(
            "`generate` blocks every repeated n-gram, unicloze allows those with a token of "
            f"{', '.join(decoding.may_repeat)}"
        )
    if (guard := repetition_guard(loaded)) and not decoding.no_repeat_ngram:
        said.append(f"unicloze lets so small a model repeat no {guard} tokens (`no_repeat_ngram_size={guard}`)")
    if decoding.parallel is not None:
        said.append("`generate` writes one token at a time, unicloze `decoding.parallel` at once")
    return said


def longest_source(loaded: LoadedModel) -> int:
    """Largest source in tokens, special tokens included, that leaves room for a target."""
    most = loaded.model.max_positions - _longest_target(loaded)
    return min(most, generation.room(loaded.recipe)[0]) if loaded.recipe.task.kind else most


def goes_on(loaded: LoadedModel) -> bool:
    """Whether the model continues a text, which then has no final [EOS]."""
    return not generation_format_of(loaded.recipe, loaded.tokenizer.vocabulary).ends_source


def _longest_target(loaded: LoadedModel) -> int:
    """As in `unicloze generate`: without fine-tuned lengths, the target gets at most half of the positions."""
    longest = loaded.recipe.decoding.max_length
    return longest if loaded.recipe.task.kind else min(longest, loaded.model.max_positions // 2)


@dataclass(frozen=True, kw_only=True)
class StockExport:
    """A model with everything needed to write it as a stock class."""

    family: Family  # its family
    architecture: str  # name of the class
    loaded: LoadedModel  # the model
    settings: ModelSettings  # model shape as the family has it
    table: Table  # the key table
    padding: int  # number of rows in their position table before ours
    pad: int  # their padding id
    swapped: tuple[int, int] | None  # two ids to swap
    form: TextFormat  # rows of texts, whose segments are the class's `token_type_ids`
    said: tuple[str, ...]  # what is changed or missing in the export, as sentences

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
        """Write weights, configuration, tokenizer and the files of sentence-transformers."""
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


def layout_of(loaded: LoadedModel) -> GenerationFormat | None:
    """How a model generates; None if it cannot."""
    return find_generation_format(loaded.recipe, loaded.tokenizer.vocabulary)


def table_of(to: str, settings: ModelSettings, query: int | None = None) -> Table:
    """The key table of a class."""
    family = FAMILIES[to]
    return family.table(
        Architecture(settings=settings, padding=family.configuration.padding, query=query), heads=["token"]
    )


def write(to: str, loaded: LoadedModel, folder: Path) -> None:
    """Write weights, configuration, generation settings and tokenizer."""
    model, settings, layout = loaded.model, loaded.model.settings, layout_of(loaded)
    vocabulary, state = loaded.tokenizer.vocabulary, dict(model.state_dict())
    if to == "bart" and not settings.head_bias:
        state["token_head.bias"] = torch.zeros(model.vocab_size)
        settings = dataclasses.replace(settings, head_bias=True)
    table = table_of(to, settings, query_of(loaded) if to == "xlnet" else None)
    weights = {name: tensor.detach().clone() for name, tensor in table.to_theirs(state).items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    ids: dict[str, Any] = {
        "pad_token_id": vocabulary.pad,
        "eos_token_id": vocabulary.eos,
        "bos_token_id": vocabulary.sos,
    }
    if settings.decoder_layers:
        assert layout is not None
        ids["decoder_start_token_id"] = layout.opening[0]
    config = {
        "architectures": [CLASSES[to]],
        "model_type": to,
        "vocab_size": model.vocab_size,
        "dtype": "float32",
        **ids,
        **FAMILIES[to].configuration.write(settings, positions=model.max_positions, padding=0),
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    write_tokenizer(loaded.tokenizer, folder, form_of(loaded), takes_segments=to == "xlnet")
    if layout is None:
        return
    generation = {**ids, "forced_eos_token_id": None}
    if len(layout.opening) > 1:
        generation["forced_bos_token_id"] = layout.opening[1]
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n", encoding="utf-8")


def form_of(loaded: LoadedModel) -> TextFormat:
    """The rows of a text: of a source, or of an XLNet's whole text."""
    layout, form = layout_of(loaded), text_format(loaded)
    if layout is None:
        return dataclasses.replace(form, segments=(0, 1), longest=loaded.model.max_positions)
    end = (loaded.tokenizer.vocabulary.eos,) if layout.ends_source else ()
    longest = longest_source(loaded) if loaded.recipe.task.kind else loaded.model.max_positions
    return dataclasses.replace(form, start=layout.start, end=end, longest=longest)


def query_of(loaded: LoadedModel) -> int:
    """Id of the token whose row is the vector of predicted slots."""
    settings = loaded.recipe.objective
    assert isinstance(settings, PermutedSettings)
    return pseudo_id(loaded.tokenizer.vocabulary, settings)
