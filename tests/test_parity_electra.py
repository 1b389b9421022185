"""Both networks of ELECTRA against Transformers' two models at random initialisation: outputs, losses, gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from toys import random_windows, vocabulary
from unicloze.example import Batch, collate
from unicloze.model.build import ReplacedTokenModel, build, generator_settings
from unicloze.model.dropout import DropoutKey
from unicloze.model.model import UnifiedModel
from unicloze.objectives import make_examples, settings_of
from unicloze.settings import ModelSettings

transformers = pytest.importorskip("transformers")

OBJECTIVE = settings_of(
    name="masked", targets=["ae", "rtd"], masking="token", mask_rate=0.3, mask_share=0.85, random_share=0.0
)
EMBEDDINGS = {
    "embeddings.tokens": "embeddings.word_embeddings",
    "embeddings.positions": "embeddings.position_embeddings",
    "embeddings.segments": "embeddings.token_type_embeddings",
    "embeddings.norm": "embeddings.LayerNorm",
}
LAYER = {
    "attention.qkv": ["attention.self.query", "attention.self.key", "attention.self.value"],
    "attention.output": ["attention.output.dense"],
    "attention_norm": ["attention.output.LayerNorm"],
    "feed_forward.inner": ["intermediate.dense"],
    "feed_forward.output": ["output.dense"],
    "feed_forward_norm": ["output.LayerNorm"],
}
HEADS = {
    "token_head.dense": "generator_predictions.dense",
    "token_head.norm": "generator_predictions.LayerNorm",
    "token_head": "generator_lm_head",
    "replaced_head.dense": "discriminator_predictions.dense",
    "replaced_head.output": "discriminator_predictions.dense_prediction",
}


def chain(embedding_size: int | None) -> ReplacedTokenModel:
    settings = ModelSettings(
        hidden_size=32, num_layers=3, num_heads=4, intermediate_size=64, embedding_size=embedding_size,
        generator_size=0.5, relative_bias=False, dropout=0.0, attention_dropout=0.0, initializer_range=0.15,
    )  # fmt: skip
    model = build(settings, vocab_size=50, max_positions=40, targets=OBJECTIVE.targets)
    assert isinstance(model, ReplacedTokenModel)
    model.initialize(0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.1, generator=generator)
    return model


def peer_of(settings: ModelSettings, kind: str) -> Any:
    config = transformers.ElectraConfig(
        vocab_size=50, embedding_size=settings.embedding_size or settings.hidden_size, hidden_size=settings.hidden_size,
        num_hidden_layers=settings.num_layers, num_attention_heads=settings.num_heads,
        intermediate_size=settings.intermediate_size, max_position_embeddings=40, type_vocab_size=2,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, layer_norm_eps=1e-12, pad_token_id=None,
        attn_implementation="eager",
    )  # fmt: skip
    return getattr(transformers, kind)(config)


def counterparts(name: str) -> list[str]:
    """Transformers' names for a parameter of one of our networks."""
    module, _, kind = name.rpartition(".")
    if not module.startswith("backbone."):
        return [f"{HEADS[module]}.{kind}"]
    module = module.removeprefix("backbone.")
    if module == "embeddings.projection":
        return [f"electra.embeddings_project.{kind}"]
    if module in EMBEDDINGS:
        return [f"electra.{EMBEDDINGS[module]}.{kind}"]
    _, number, part = module.split(".", 2)
    return [f"electra.encoder.layer.{number}.{other}.{kind}" for other in LAYER[part]]


def pairs(network: UnifiedModel, peer: nn.Module) -> list[tuple[Tensor, list[Tensor]]]:
    """Our parameters with the peer's; a fused parameter and the embeddings correspond to several."""
    theirs = dict(peer.named_parameters())
    return [(own, [theirs[other] for other in counterparts(name)]) for name, own in network.named_parameters()]


def copied(model: ReplacedTokenModel) -> tuple[Any, Any, list[tuple[Tensor, list[list[Tensor]]]]]:
    """Transformers' generator and discriminator with our weights; each of ours with all its copies."""
    generator = peer_of(generator_settings(model.discriminator.settings), "ElectraForMaskedLM")
    discriminator = peer_of(model.discriminator.settings, "ElectraForPreTraining")
    found = [(own, [others]) for own, others in pairs(model.discriminator, discriminator)]
    found += [(own, [others]) for own, others in pairs(model.generator, generator)]
    theirs, shared = dict(generator.named_parameters()), model.discriminator.backbone.named_parameters()
    of_generator = {id(own): theirs[counterparts(f"backbone.{name}")[0]] for name, own in shared if _is_shared(name)}
    found = [(own, [*groups, *([[of_generator[id(own)]]] if id(own) in of_generator else [])]) for own, groups in found]
    with torch.no_grad():
        for own, groups in found:
            for others in groups:
                for part, other in zip(own.chunk(len(others)), others, strict=True):
                    other.copy_(part)
    copies = sum(1 for _, groups in found for others in groups for _ in others)
    assert copies == sum(1 for peer in (generator, discriminator) for _ in peer.parameters()), "none is left out"
    return generator, discriminator, found


def _is_shared(name: str) -> bool:
    return name.rpartition(".")[0] in EMBEDDINGS


def padded_batch() -> tuple[Batch, Tensor]:
    """Rows of several lengths, and the peer's attention mask."""
    windows = random_windows(6, 24, short=True, seed=2)
    batch = collate(make_examples(windows, vocabulary(), OBJECTIVE))
    return batch, (torch.arange(batch.input_ids.shape[1]) < torch.from_numpy(windows.lengths)[:, None]).long()


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("embedding_size", [None, 20, 16])
def test_both_networks_and_their_joint_loss(embedding_size: int | None, training: bool) -> None:
    """At size 16 the generator needs no projection, at 20 both do, at the discriminator's 32 only the generator."""
    model = chain(embedding_size).train(training)
    generator, discriminator, found = copied(model)
    generator.train(training)
    discriminator.train(training)
    batch, attention_mask = padded_batch()
    real = attention_mask.bool()
    dropout = DropoutKey(0) if training else None

    target = batch.targets["ae"]
    row, j = target.weights.nonzero(as_tuple=True)
    labels = torch.full_like(batch.input_ids, -100)
    labels[row, target.slots[row, j]] = target.labels[row, j]
    mlm = generator(
        input_ids=batch.input_ids, token_type_ids=batch.segment_ids, attention_mask=attention_mask, labels=labels
    )
    logits = model.logits(batch)["ae"]
    torch.testing.assert_close(logits[row, j], mlm.logits[row, target.slots[row, j]], atol=1e-5, rtol=1e-5)

    _, following = model.generate(batch, DropoutKey(0) if training else None)
    original = batch.targets["rtd"].labels
    replaced = (following.input_ids != original).long()
    assert 10 < int(replaced[real].sum()) < int(real.sum()) / 2
    rtd = discriminator(
        input_ids=following.input_ids,
        token_type_ids=batch.segment_ids,
        attention_mask=attention_mask,
        labels=replaced,
        output_hidden_states=True,
    )
    states = model.discriminator.backbone(following)
    for ours, theirs in zip(states, rtd.hidden_states, strict=True):
        torch.testing.assert_close(ours[real], theirs[real], atol=1e-5, rtol=1e-5)
    verdicts = model.discriminator.replaced_head(states[-1])
    torch.testing.assert_close(verdicts[real], rtd.logits[real], atol=1e-5, rtol=1e-5)

    losses = model(batch, dropout)
    means = {name: loss.total / loss.weight for name, loss in losses.items()}
    torch.testing.assert_close(means["ae"], mlm.loss, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(means["rtd"], rtd.loss, atol=1e-5, rtol=1e-5)
    (means["ae"] + 50 * means["rtd"]).backward()
    (mlm.loss + 50 * rtd.loss).backward()
    for own, groups in found:
        assert own.grad is not None
        expected = torch.stack([torch.cat([_gradient(other) for other in others]) for others in groups]).sum(0)
        # In units of the discriminator's mean loss, whose coefficient is 50.
        torch.testing.assert_close(own.grad / 50, expected / 50, atol=1e-5, rtol=1e-4)


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad
