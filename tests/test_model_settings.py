"""Settings of objectives and models that contradict each other are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from unicloze.errors import UsageError
from unicloze.model.attention import RelativeBias
from unicloze.recipes import load_recipe, toy_overrides

LSTM_SIDES = r"model\.directions is 'bidirectional'; .* set it to forward"
REFUSALS: list[tuple[str, dict[str, Any], str]] = [
    ("gpt", {"objective.visibility": "prefix"}, r"objective causal needs left_to_right or right_to_left\."),
    ("gpt", {"objective.targets": ["ae"]}, r"name at least one of 'lm'\."),
    ("gpt", {"objective.local_width": -1}, r"it must be at least 0 and finite\."),
    ("gpt", {"model.layer_visibility": []}, r"name at least one of 'full' and 'local'\."),
    ("gpt", {"model.layer_visibility": ["local"]}, r"'local' needs objective\.local_width"),
    ("gpt", {"data.segments": 2}, "two segments need a segment table"),
    ("gpt", {"model.embedding_size": 0}, r"it must be above 0 and finite\."),
    ("gpt", {"model.num_segments": -1}, r"it must be at least 0 and finite\."),
    ("unilmv2-base", {"model.layer_visibility": ["full", "local"]}, r"'local' needs rows in text order, .* causal.* pseudo"),
    ("bd3lm-base", {"objective.block_size": 0}, r"objective\.block_size is 0; it must be above 0 and finite"),
    ("t5-base", {"tokenizer.extra_tokens": 20}, "objective span_corruption needs 26 in windows of 512"),
    ("ul2-base", {"tokenizer.extra_tokens": 90}, "objective span_corruption needs 98"),
    ("t5-base", {"objective.mode_token": 3}, "the first 26 extra tokens are sentinels"),
    ("prefix-denoising-base", {"objective.noise": ["shuffle"]}, "name at least one of 'mask'"),
    ("prefix-denoising-base", {"model.max_positions": 600}, "positions of a row of objective denoising, "),
    ("prefix-denoising-base", {"model.num_segments": 1}, "source and target are segments 0 and 1"),
    ("prefix-denoising-base", {"objective.segment_ids": [1]}, "give two numbers"),
    ("prefix-denoising-base", {"objective.mean_span": 0.5}, "it must be at least 1 and finite"),
    ("electra-small", {"model.generator_size": 0.0}, "generator_size.*'rtd' needs a generator"),
    ("electra-small", {"model.generator_size": 1.5}, "generator_size.*between 0 and 1"),
    ("electra-small", {"objective.targets": ["rtd"]}, r"objective\.targets.*'rtd' needs 'ae'"),
    ("electra-small", {"objective.targets": ["ae"], "objective.coefficients": {}}, "only a model with the target 'rtd'"),
    ("bart-base", {"model.generator_size": 0.5}, "only a model with the target 'rtd' has a generator"),
    ("bart-base", {"use.visibility": "left_to_right"}, "an encoder reads in both directions"),
    ("bart-base", {"model.layer_visibility": ["local"]}, "'local' needs rows in text order"),
    ("bart-base", {"model.hidden_size": 770}, "it must be a multiple of model.num_heads, 12"),
    ("bert-base", {"model.decoder_layers": 2}, "the rows of objective masked have no source and target: use span_c"),
    ("prefix-lm-base", {"model.decoder_layers": 2}, "a decoder needs a start slot before the target: give one or more"),
    ("mass-base", {"objective.target_start": ["eos", "mask"]}, "the span keeps its positions"),
    ("mass-base", {"objective.restart_positions": True}, "the span keeps the positions it has in the source"),
    ("transformer-base", {"model.hidden_size": 36 * 8 + 1, "model.head_size": 8}, "embeddings of an even width"),
    ("xlnet-base", {"data.overlap": 1.0}, "it must be 0, or a share below 1"),
    ("xlnet-base", {"data.overlap": 0.01, "data.window": 32}, "that leaves two tokens of a window to read again"),
    ("xlnet-base", {"data.documents": "separate"}, r"0\.5; it needs data\.documents joined and data\.segments 2"),
    ("xlnet-base", {"training.phases": [{"data.window": 16}, {}]}, r"is 384, but training\.phases changes data\.window"),
    ("xlnet-base", {"data.overlap": 0.0}, "set objective.pairs to contiguous, or to next_sentence with data.overlap"),
    ("awd-lstm", {"model.memory": 2}, r"model\.memory is 2; a recurrent model carries one state"),
    ("awd-lstm", {"data.order": "shuffled", "data.lengths": "fixed"}, r"1; a carried state needs data\.order streams"),
    ("awd-lstm", {"data.directions": "both"}, r"model\.memory is 1; a carried state needs data\.order streams"),
    ("awd-lstm", {"objective.visibility": "right_to_left"}, r"'forward'; objective\.visibility is right_to_left, which is"),
    ("awd-lstm", {"model.projection": True, "model.hidden_size": 1150}, r"model\.projection is True; it projects"),
    ("awd-lstm", {"training.compile": True}, r"training\.compile is True; LSTMs are compiled already"),
    ("awd-lstm", {"objective.name": "unilmv2", "objective.targets": ["ae"]}, "'recurrent'; it reads left_to_right or right"),
    ("awd-lstm", {"training.optimizer": "muon"}, "Muon must not take the stacked gates"),
    ("cvt", {"model.memory": 1, "data.order": "streams"}, r"model\.memory is 1; a carried state needs"),
    ("cvt", {"model.hidden_size": 33}, r"model\.hidden_size is 33; it must be even"),
    ("cvt", {"model.intermediate_size": 512}, r"model\.projection is True; it projects .* half of model\.hidden_size"),
    ("cvt", {"objective.visibility": "left_to_right"}, LSTM_SIDES),
    ("elmo", {"model.directions": "forward"}, r"model\.directions is 'forward'; objective bidirectional_lm reads in both"),
    ("elmo", {"model.tied_output": True}, r"model\.tied_output is True; embeddings made of characters cannot be shared"),
    ("elmo", {"model.character_filters": [8, 0]}, r"model\.character_filters is \[8, 0\]; list a number of filters"),
    ("elmo", {"model.character_filters": [1] * 51}, "for each of up to 50 widths"),
    ("classification", {"training.optimizer": "adamax"}, r"training\.weight_decay is 0\.01; Adamax does not support"),
    ("t5-base", {"model.relative_max_distance": 16}, r"is 16; it must exceed model\.relative_buckets 32 / 2"),
    ("mpnet-base", {"model.relative_max_distance": 8}, r"is 8; it must exceed model\.relative_buckets 32 / 4"),
    ("bert-base", {"data.corpus": ["caf\udce9.txt"]}, "cannot contain a name that is not UTF-8: rename the file, or give"),
    ("bert-base", {"training.word_vectors": "caf\udce9.txt"}, "a recipe cannot contain a name that is not UTF-8"),
    ("bert-base", {"model.embeddings": "characters"}, r"model\.embeddings is 'characters'; only LSTMs read characters"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "overrides", "message"), REFUSALS, ids=str)
def test_settings_that_contradict_each_other_are_refused(name: str, overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_recipe(name, (toy_overrides() if name == "xlnet-base" else {}) | overrides)


@pytest.mark.parametrize(("name", "distance"), [("t5-base", 17), ("mpnet-base", 9)])
def test_the_smallest_relative_distance_that_is_allowed_works(name: str, distance: int) -> None:
    settings = load_recipe(name, {"model.relative_max_distance": distance}).model
    bias = RelativeBias(settings, both_ways=not settings.decoder_layers)
    buckets = bias.bucket(-torch.arange(40)).tolist()
    assert buckets == sorted(buckets) and buckets[distance - 1] == distance - 1
    assert {*buckets[distance:]} == {(settings.relative_buckets if settings.decoder_layers else 16) - 1}


def test_a_bias_by_products_is_the_one_that_is_looked_up() -> None:
    """As on a GPU."""
    bias = RelativeBias(
        load_recipe("mpnet-base", {"model.num_heads": 3, "model.hidden_size": 12}).model, both_ways=True
    )
    torch.nn.init.normal_(bias.weight, generator=torch.Generator().manual_seed(0))
    places = torch.arange(9)[None]
    slope = torch.randn(1, 3, 9, 9, generator=torch.Generator().manual_seed(1))
    found = []
    for make in (lambda: bias(places, places), lambda: bias.by_product(places[:, None, :] - places[:, :, None])):
        values = make()
        (gradient,) = torch.autograd.grad((values * slope).sum(), bias.weight)
        found.append((values, gradient))
    torch.testing.assert_close(found[1], found[0])


def test_a_tokenizer_of_ones_own_may_have_its_extra_tokens() -> None:
    recipe = load_recipe("t5-base", {"tokenizer.extra_tokens": 0, "tokenizer.path": "their/tokenizer.json"})
    assert (recipe.tokenizer.extra_tokens, recipe.tokenizer.path) == (0, "their/tokenizer.json")
