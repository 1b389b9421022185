"""Rejects settings given to a command that would have no effect.

`validate` checks values of any origin. These checks apply only to settings given by the caller: a recipe file may contain
settings that some parts of its mixture, or some commands, do not use.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from unicloze.errors import UsageError
from unicloze.recipes.schema import KEYS, VARIED, find_key, flatten, having, keys_of
from unicloze.recipes.validation import variants
from unicloze.rules import Needs, declared
from unicloze.settings import ObjectiveSettings, Recipe, TaskSettings


def _kind(*names: str) -> Needs:
    return Needs(f"task.kind {_or(names)}", lambda recipe: recipe.task.kind in names)


def _or(names: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


_trained = Needs("a tokenizer that is trained (tokenizer.path null)", lambda recipe: recipe.tokenizer.path is None)
_word_pieces = Needs("tokenizer.kind wordpiece", lambda recipe: recipe.tokenizer.kind == "wordpiece")
_relative = Needs("model.relative_bias true", lambda recipe: recipe.model.relative_bias)
_recurrent = Needs("model.kind recurrent", lambda recipe: recipe.model.kind == "recurrent")
_transformer = Needs("model.kind transformer", lambda recipe: recipe.model.kind == "transformer")
_characters = Needs("model.embeddings characters", lambda recipe: recipe.model.embeddings == "characters")
_teacher = Needs("distillation.teacher", lambda recipe: recipe.distillation.teacher is not None)
_moments = Needs(
    "training.optimizer adamw, adamax, lamb or muon",
    lambda recipe: recipe.training.optimizer not in ("nt_asgd", "adafactor", "sgd"),
)
_muon = Needs("training.optimizer muon", lambda recipe: recipe.training.optimizer == "muon")

OF_LSTMS = (
    "directions", "projection", "residual", "cell_clip", "projection_clip", "embedding_dropout", "input_dropout",
    "hidden_dropout", "weight_dropout", "activation_penalty", "temporal_penalty", "embeddings",
)  # fmt: skip
OF_TRANSFORMERS = (
    "num_heads", "num_segments", "positions", "share_layers", "layer_visibility", "generator_size", "norm",
    "embedding_norm", "relative_bias", "attention_dropout", "scaled_init",
)  # fmt: skip
ANYWHERE: Mapping[str, tuple[Needs, ...]] = {
    **{f"model.{name}": (_recurrent,) for name in OF_LSTMS},
    **{f"model.{name}": (_transformer,) for name in OF_TRANSFORMERS},
    **{f"model.character_{name}": (_recurrent, _characters) for name in ("size", "filters", "highways")},
    "model.relative_start": (_transformer, _relative),
    "model.relative_buckets": (_transformer, _relative),
    "model.relative_max_distance": (_transformer, _relative),
    "training.average_patience": (
        Needs("training.optimizer nt_asgd", lambda recipe: recipe.training.optimizer == "nt_asgd"),
    ),
    "training.betas": (_moments,),
    "training.epsilon": (_moments,),
    "training.momentum": (Needs("training.optimizer sgd", lambda recipe: recipe.training.optimizer == "sgd"),),
    "training.muon_learning_rate": (_muon,),
    "training.muon_momentum": (_muon,),
    "training.spike_factor": (
        Needs("training.on_spike skip or go_back", lambda recipe: recipe.training.on_spike != "accept"),
    ),
    "distillation.temperature": (
        _teacher,
        Needs("classes or tokens (not task.kind regression)", lambda recipe: recipe.task.kind != "regression"),
    ),
    "distillation.weight": (_teacher,),
    "training.checkpoint_activations": (_transformer,),
    "training.decay_steps": (
        Needs("training.schedule cosine or wsd", lambda recipe: recipe.training.schedule in ("cosine", "wsd")),
    ),
    "training.final_rate": (
        Needs(
            "training.schedule linear, cosine or wsd",
            lambda recipe: recipe.training.schedule in ("linear", "cosine", "wsd"),
        ),
    ),
}
"""What settings need in any training."""

IN_PRETRAINING: Mapping[str, tuple[Needs, ...]] = {
    **ANYWHERE,
    "model.layer_mix": (Needs("a task (unicloze finetune)", lambda recipe: False),),
    "data.phrases": (Needs("objective.mask_unit phrase or entity", lambda recipe: recipe.objective.windows.phrases),),
    "data.spans_field": (Needs("objective.mask_unit phrase or entity", lambda recipe: recipe.objective.windows.spans),),
    "data.decontaminate_ngram": (Needs("data.decontaminate", lambda recipe: bool(recipe.data.decontaminate)),),
    "data.overlap": (Needs("data.order streams", lambda recipe: recipe.data.order == "streams"),),
    "data.directions": (Needs("data.order streams", lambda recipe: recipe.data.order == "streams"),),
    "tokenizer.kind": (_trained,),
    "tokenizer.vocab_size": (_trained,),
    "tokenizer.strip_accents": (_trained, _word_pieces),
    "tokenizer.lowercase": (
        Needs(_word_pieces.what, lambda recipe: recipe.tokenizer.path is not None or _word_pieces.holds(recipe)),
    ),
    "tokenizer.extra_tokens": (_trained,),
}
"""What settings need in pre-training, except those of `objective`, which declares its own; others always have an effect."""

_tokens = Needs(
    "predicted tokens (task.kind generation or finetuning.auxiliary)",
    lambda recipe: recipe.task.kind == "generation" or bool(recipe.finetuning.auxiliary),
)
_auxiliary = Needs("finetuning.auxiliary", lambda recipe: bool(recipe.finetuning.auxiliary))
_lora = Needs("finetuning.lora_rank", lambda recipe: recipe.finetuning.lora_rank is not None)
_unlabelled = Needs("finetuning.unlabelled", lambda recipe: bool(recipe.finetuning.unlabelled))
_generation = _kind("generation")
_draws = Needs(
    "generation.learning pseudo or masked", lambda recipe: recipe.generation.learning in ("pseudo", "masked")
)
_pseudo = Needs("generation.learning pseudo", lambda recipe: recipe.generation.learning == "pseudo")

IN_A_TASK: Mapping[str, tuple[Needs, ...]] = {
    **ANYWHERE,
    "model.layer_mix": (Needs("a task with a head of its own", lambda recipe: recipe.task.kind != "generation"),),
    "model.head": (_tokens,),
    "model.head_bias": (_tokens,),
    "model.tied_output": (_tokens,),
    "model.scale_output": (_tokens,),
    "training.label_smoothing": (_tokens,),
    "use.visibility": (
        Needs(
            "generation.learning next",
            lambda recipe: recipe.task.kind != "generation" or recipe.generation.learning == "next",
        ),
    ),
    "use.separators": (
        Needs("texts in pairs (not task.kind generation)", lambda recipe: recipe.task.kind != "generation"),
        Needs("task.predicate repeat", lambda recipe: getattr(recipe.task, "predicate", "repeat") == "repeat"),
        Needs("task.delimiter false", lambda recipe: not getattr(recipe.task, "delimiter", False)),
    ),
    **dict.fromkeys(
        ("use.normalize", "use.prompt"), (Needs("embedded texts (unicloze pretrain)", lambda recipe: False),)
    ),
    "use.pooling": (
        _kind("classification", "regression"),
        Needs("task.pooling null", lambda recipe: recipe.task.pooling is None),
        Needs("task.head dense, plain or batch_norm", lambda recipe: recipe.task.head != "biattentive"),
    ),
    **dict.fromkeys(("finetuning.lora_alpha", "finetuning.lora_dropout", "finetuning.lora_projections"), (_lora,)),
    **dict.fromkeys(("finetuning.views", "finetuning.unlabelled_dropout"), (_unlabelled,)),
    **{key: (_generation,) for key in KEYS if key.startswith(("generation.", "decoding."))},
    "generation.chunk_by": (
        _generation,
        Needs("generation.keep chunk", lambda recipe: recipe.generation.keep == "chunk"),
    ),
    "generation.mask_rate": (
        _generation,
        Needs("generation.learning masked", lambda recipe: recipe.generation.learning == "masked"),
    ),
    "generation.mask_share": (_generation, _draws),
    "generation.random_share": (_generation, _draws),
    "generation.target_noise": (_generation, _pseudo),
    "generation.block_size": (_generation, _pseudo),
    "generation.any_order": (_generation, _pseudo),
}
"""What settings need in fine-tuning."""

IN_GENERATION: Mapping[str, tuple[Needs, ...]] = {
    "decoding.early_stop": (Needs("decoding.beams above 1", lambda recipe: recipe.decoding.beams > 1),),
    "decoding.length_penalty": (
        Needs(
            "decoding.beams above 1, or several sampled texts (decoding.num_results)",
            lambda recipe: recipe.decoding.beams > 1 or recipe.decoding.num_results > 1,
        ),
    ),
    "decoding.may_repeat": (
        Needs("decoding.no_repeat_ngram above 0", lambda recipe: recipe.decoding.no_repeat_ngram > 0),
    ),
    "decoding.seed": (Needs("decoding.sample true", lambda recipe: recipe.decoding.sample),),
}
"""What settings need in generation; `unicloze.decoding.generate.check_settings` checks more."""

_OF_THE_MODEL = "it is taken from the model to start from"
DECIDED_IN_A_TASK: Mapping[str, str] = {
    "training.steps": "give finetuning.epochs",
    "training.warmup_steps": "give finetuning.warmup_share",
    "training.evaluate_every": "give finetuning.evaluations, the number per epoch",
    "training.evaluate_windows": "give task.evaluate_records, the number of records to evaluate on",
    "training.keep_checkpoints": "the newest and the best checkpoint are kept",
    "training.copy_to": "only the checkpoints of pre-training are copied",
    "training.layer_decay": "give finetuning.layer_decay",
    "training.parallel": "every process holds the whole model in fine-tuning",
    "training.compile": "rows differ in length, and recompiling the model for each length is slower",
    "training.phases": "phases change the objective or the windows of pre-training",
    "training.initialize_from": "give --model",
    **dict.fromkeys(("model.pooler", "model.generator_size", "model.memory"), _OF_THE_MODEL),
    "model.scaled_init": _OF_THE_MODEL,
    "model.adapter_size": "give finetuning.adapter_size",
    **{key: _OF_THE_MODEL for key in KEYS if key.startswith(("data.", "tokenizer."))},
}
"""Settings that are derived from others or from the model in fine-tuning, and what to do instead."""

OF_TASKS = "task", "generation", "finetuning"
"""Sections that only fine-tuning uses."""
OF_AN_AUXILIARY = (
    "masking", "mask_unit", "mask_rate", "block_probability", "max_span", "geometric_p", "factorization",
    "masks_in_context", "pseudo_token", "mask_share", "random_share", "corruption_unit", "block_size",
)  # fmt: skip
"""Settings of `objective` that `finetuning.auxiliary` uses."""


def given_settings(overrides: Mapping[str, Any] | None, prefix: str = "") -> dict[str, Any]:
    """The settings given by a caller, nested or not, by dotted key."""
    found = flatten(overrides or {}, lambda key: f"option --{prefix}{key}")
    return {key: setting.value for key, setting in found.items()}


def refuse_unread(recipes: Sequence[Recipe], given: Collection[str]) -> None:
    """Reject given settings that have no effect on pre-training in any recipe, part or phase.

    Settings equal to their default are accepted.
    """
    every = [variant for recipe in recipes for variant in variants(recipe)]
    for key in given:
        found = [variant.recipe for variant in every if key not in variant.set_by]
        if not found:
            place = next(variant.set_by[key] for variant in every)
            raise UsageError(
                f"option --{key}: it has no effect, because each entry of {place} sets it: change it there."
            )
        _refuse(key, found, [_in_pretraining(key, recipe) for recipe in found])


def refuse_unread_in_task(recipes: Sequence[Recipe], given: Collection[str], prefix: str = "") -> None:
    """Reject given settings that have no effect on fine-tuning with any of the models."""
    for key in given:
        section, _, name = key.partition(".")
        needs: list[Sequence[Needs]] = [
            _of_class(key, recipe.task) if section == "task" else IN_A_TASK.get(key, ()) for recipe in recipes
        ]
        if section == "objective" and name not in OF_AN_AUXILIARY:
            raise UsageError(f"option --{prefix}{key}: it has no effect, because {_OF_THE_MODEL}: leave it out.")
        if section == "objective":
            needs = [(_auxiliary, *_in_pretraining(key, recipe)) for recipe in recipes]
        _refuse(key, recipes, needs, prefix)


def refuse_unread_in_generation(recipe: Recipe, given: Collection[str]) -> None:
    """Reject given settings that have no effect on generated text."""
    for key in given:
        _refuse(key, [recipe], [IN_GENERATION.get(key, ())])


def refuse_decided_in_task(given: Collection[str], prefix: str = "") -> None:
    """Reject given settings that fine-tuning derives from others."""
    for key in given:
        if key in DECIDED_IN_A_TASK:
            raise UsageError(f"{prefix}{key} cannot be set in fine-tuning: {DECIDED_IN_A_TASK[key]}.")


def refuse_unread_in_task_files(recipe: Recipe, origins: Mapping[str, str]) -> None:
    """Reject settings of hand-written task files that fine-tuning derives from others or takes from the model."""
    for key, origin in origins.items():
        refuse_decided_in_task([key], f"{origin}: ")
        section, _, name = key.partition(".")
        if section == "objective" and (name not in OF_AN_AUXILIARY or not recipe.finetuning.auxiliary):
            reason = _OF_THE_MODEL if name not in OF_AN_AUXILIARY else "nothing but finetuning.auxiliary uses it"
            raise UsageError(f"{origin}: {key} has no effect, because {reason}: leave it out.")


def refuse_not_of_pretraining(verb: str, given: Collection[str], prefix: str = "") -> None:
    """Reject given settings that only fine-tuning uses."""
    for key in given:
        if key.partition(".")[0] in OF_TASKS:
            instead = f"give --{prefix}{key}" if prefix else "give it to `unicloze finetune`"
            raise UsageError(f"option --{key}: `unicloze {verb}` does not use it: {instead}.")


def refuse_beyond(verb: str, given: Collection[str], reads: Collection[str], instead: str) -> None:
    """Reject given settings that a command does not use at all."""
    for key in given:
        if key not in reads and key.partition(".")[0] not in reads:
            raise UsageError(f"option --{key}: `unicloze {verb}` does not use it: {instead}.")


def _in_pretraining(key: str, recipe: Recipe) -> Sequence[Needs]:
    """What a setting needs in a recipe without parts and phases."""
    return _of_class(key, recipe.objective) if key.startswith("objective.") else IN_PRETRAINING.get(key, ())


def _of_class(key: str, settings: ObjectiveSettings | TaskSettings) -> Sequence[Needs]:
    """What a setting of an objective or task needs: another objective or task, if this one lacks the setting."""
    section, _, name = key.partition(".")
    if key not in keys_of(section, type(settings)):
        _, named = VARIED[section]
        return (Needs(f"{section}.{named} {_or(having(key))}", lambda _: False),)
    needs: Sequence[Needs] = declared(type(settings), "needs").get(name, ())
    return needs


def _refuse(key: str, recipes: Sequence[Recipe], needs: Sequence[Sequence[Needs]], prefix: str = "") -> None:
    """Reject a key if every recipe lacks something it needs there."""
    lacks = [
        next((need for need in of_recipe if not need.holds(recipe)), None)
        for recipe, of_recipe in zip(recipes, needs, strict=True)
    ]
    known = find_key(key)
    if None in lacks or known is None or all(_value(recipe, key, known.default) == known.default for recipe in recipes):
        return
    what = next(need.what for need in lacks if need is not None)
    raise UsageError(f"option --{prefix}{key}: it has no effect without {what}: set that as well, or leave it out.")


def _value(recipe: Recipe, key: str, default: Any) -> Any:
    section, _, name = key.rpartition(".")
    return getattr(getattr(recipe, section) if section else recipe, name, default)
