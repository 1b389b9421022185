"""Makes the recipe of an imported model: its objective, task, data settings and provenance as far as known."""

from __future__ import annotations

import dataclasses
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePath
from typing import Any, Literal

from unicloze.errors import UniclozeError
from unicloze.files import TOKENIZER, TOKENIZER_CONFIG
from unicloze.interop.family import PREDICTS, TARGETS, Family, Head, TaskClass
from unicloze.interop.files import LARGEST, Config, inside, read_json
from unicloze.interop.tokenizer_files import POOLING, ids_before_text, separators_in
from unicloze.objectives.causal import CausalSettings
from unicloze.objectives.denoising import DenoisingSettings, SpanCorruptionSettings
from unicloze.objectives.groups import PseudoToken
from unicloze.objectives.masked import MaskedSettings, UntrainedSettings
from unicloze.objectives.permuted import PermutedSettings
from unicloze.objectives.seq2seq import SourceTarget
from unicloze.objectives.unilmv2 import UniLMv2Settings
from unicloze.recipes import load_recipe, validate
from unicloze.settings import (
    DataSettings,
    DecodingSettings,
    ModelSettings,
    ObjectiveSettings,
    Provenance,
    Recipe,
    TaskSettings,
    TokenizerSettings,
    UseSettings,
)
from unicloze.text.tokenizers import Tokenizer
from unicloze.text.vocabulary import Vocabulary

UNKNOWN_CORPUS = "unknown"
"""Corpus of an imported model; not a path, so anything that needs the corpus reports it as missing."""
_PAIRS: dict[str, Literal["next_sentence", "sentence_order"]] = {"nsp": "next_sentence", "sop": "sentence_order"}
_OBJECTIVES: Mapping[str, ObjectiveSettings] = {
    "t5": SpanCorruptionSettings(
        targets=["lm"], source_start=False, target_start=["pad"], restart_positions=True, segment_ids=[0, 0]
    ),
    "bart": DenoisingSettings(
        targets=["lm"], mask_rate=0.3, noise=["infill", "permute_sentences"], target_start=["eos", "sos"],
        restart_positions=True, segment_ids=[0, 0],
    ),
    "gpt2": CausalSettings(targets=["lm"], visibility="left_to_right"),
    "xlnet": PermutedSettings(
        targets=["par"], masking="ngram", mask_rate=1 / 6, max_span=5, factorization="token", pseudo_token="own"
    ),
}  # fmt: skip
"""Training objective of the families that are not encoders, with the rows their released models read."""


def imported_recipe(
    place: Path,
    config: Config,
    own: Vocabulary,
    family: Family,
    model: ModelSettings,
    heads: Sequence[Head],
    task: TaskSettings | None,
    tokenizer: Tokenizer,
    settings: TokenizerSettings,
    window: int | None,
    allow: Sequence[str],
) -> Recipe:
    """Make the recipe of an imported model whose rows have `window` tokens at most; default: as many as its files say.

    Its configuration names tokens by their ids in its `own` vocabulary; the tokenizer may have another.
    """
    if window is None:
        window = _longest_row(place, model.max_positions or 1, prompts=family.name == "gpt2")
    objective = _objective(model, heads, relative=family.name == "unilm" and model.relative_bias)
    if family.name in _OBJECTIVES and ("token" in heads or not family.queries):
        objective = _OBJECTIVES[family.name]
        if isinstance(objective, SourceTarget):
            opening = _opening(place, config, own, objective.starts)
            before = _before_source(place, own, tokenizer.vocabulary)
            objective = dataclasses.replace(objective, target_start=opening, **before)
    if tokenizer.vocabulary.pseudo is None and isinstance(objective, PseudoToken):
        objective = dataclasses.replace(objective, pseudo_token="mask")
    longest = window  # up to it, the rows of an encoder-decoder must fit its positions
    while (
        model.decoder_layers and longest > 1 and objective.bounds(longest).positions > (model.max_positions or window)
    ):
        longest -= 1
    if isinstance(objective, SourceTarget) and objective.mode_token is not None:
        sentinels = objective.bounds(longest).sentinels
        if objective.mode_token < sentinels:
            said = (
                f"the token that begins its sources is one of the {sentinels} that stand for spans in further training"
            )
            warnings.warn(f"{place}: {said}, so it is left out", stacklevel=3)
            objective = dataclasses.replace(objective, mode_token=None)
    pairs = any(_PAIRS.get(TARGETS[head]) for head in heads) or bool(objective.mixture)
    recipe = Recipe(
        name=re.sub(r"[^\w.-]+", "-", place.resolve().name).lstrip(".-") or family.name,
        provenance=Provenance(
            paper=family.paper, place=f"imported from {place.resolve()}", note=_note(family, model, heads, task)
        ),
        data=DataSettings(
            corpus=[UNKNOWN_CORPUS],
            window=longest,
            segments=2 if pairs and model.num_segments > 1 else 1,
            documents="joined" if model.memory else "separate",
            order="streams" if model.memory else "shuffled",
        ),
        tokenizer=settings,
        objective=objective,
        model=model,
        task=TaskSettings() if task is None else dataclasses.replace(task, max_length=window),
        use=_text_use(place, family, tokenizer, settings, allow),
        decoding=_decoding(place, config, objective) if family.generates and task is None else DecodingSettings(),
    )
    validate(recipe)
    return recipe


def _objective(model: ModelSettings, heads: Sequence[Head], *, relative: bool) -> ObjectiveSettings:
    """The training objective, as far as heads and segments reveal it."""
    targets = [TARGETS[head] for head in heads]
    kind: Any = next((_PAIRS[target] for target in targets if target in _PAIRS), "contiguous")
    if "ae" not in targets:
        return UntrainedSettings(targets=targets, pairs=kind)
    if model.num_segments == 6:  # UniLM v1: one or two ids for each of its four objectives
        v1 = load_recipe("unilm-v1-base").objective
        if "nsp" in targets:
            return v1
        plain = [{**part, "pairs": "contiguous", "targets": ["ae"]} for part in v1.mixture]
        return dataclasses.replace(v1, mixture=plain)
    if relative:
        return UniLMv2Settings(targets=["ae", "par", *targets[1:]], pseudo_token="mask", pairs=kind)
    return MaskedSettings(targets=targets, masking="token", max_span=1, pairs=kind)


def _opening(place: Path, config: Config, own: Vocabulary, usual: Sequence[str]) -> list[Any]:
    """Roles of the tokens that open a target: as the files of a checkpoint say, or as usual in its family."""
    configs = _that_generate(place, config)
    roles = {getattr(own, role): role for role in ("mask", "pad", "sos", "eos", *usual)}

    def role(key: str, holder: Config | None) -> str | None:
        if holder is None or holder.values[key] is None:
            return None
        token = holder.whole(key, kind="vocab_size", least=0)
        if token not in roles:
            cure = "set it to the id of one, or remove it to open targets as usual"
            raise holder.refused(key, f"only padding, [SOS], [EOS] and [MASK] can open a target; {cure}")
        return roles[token]

    first, second = "decoder_start_token_id", "forced_bos_token_id"
    start = role(first, next((each for each in configs if each.values.get(first) is not None), None)) or usual[0]
    # null in generation_config.json is an answer, too
    says = (
        one for one in configs if one.values.get(second) is not None or (one is not config and second in one.values)
    )
    forced_by = next(says, None)
    forced = role(second, forced_by)
    if forced is None:
        return [*usual] if start == usual[0] and forced_by is None else [start]
    return [start, forced]


def _that_generate(place: Path, config: Config) -> list[Config]:
    """The files that say how a checkpoint writes, the decisive one first; older checkpoints have only the second."""
    file = inside(place, "generation_config.json")
    return [config] if file is None else [Config(file, read_json(file)), config]


def _decoding(place: Path, config: Config, objective: ObjectiveSettings) -> DecodingSettings:
    """How a checkpoint's files say that its texts are written; limits that they leave open are those of here.

    Their limits count tokens that open a target, `max_length` and `min_length` also the first. Their length penalty divides
    by n^alpha instead of GNMT's.
    """
    values = _that_generate(place, config)[0].values  # Transformers reads one of the files

    def given(key: str, kind: type, least: float = 0) -> Any:
        value: Any = values.get(key)
        return value if type(value) in (kind, int) and value >= least else None

    opened = len(objective.starts) if isinstance(objective, SourceTarget) else 0
    found: dict[str, Any] = {"no_repeat_ngram": given("no_repeat_ngram_size", int)}
    for ours, new, old in (
        ("max_length", "max_new_tokens", "max_length"),
        ("min_length", "min_new_tokens", "min_length"),
    ):
        if (limit := given(new, int)) is not None:
            found[ours] = max(0, limit - max(0, opened - 1))
        elif opened and (limit := given(old, int)) is not None:
            found[ours] = max(0, limit - opened)
    if given("do_sample", bool):
        found |= {"sample": True, "temperature": given("temperature", float) or None}
        found["top_k"] = (50 if values.get("top_k") is None else given("top_k", int)) or None
        share = given("top_p", float) or 1.0
        found["top_p"] = share if share < 1 else None
    elif (beams := given("num_beams", int, 2)) is not None:
        penalty = given("length_penalty", float, -math.inf)
        found |= {"beams": beams, "length_penalty": 1.0 if values.get("length_penalty") is None else penalty}
        found["early_stop"] = "first" if given("early_stopping", bool) is True else "exact"
    results = given("num_return_sequences", int, 1)
    if results is not None and (found.get("sample") or results <= found.get("beams", 1)):
        found["num_results"] = results
    most = {"max_length": 2**18, "min_length": 2**18, "beams": 2**10}
    fitting = {key: min(value, most.get(key, value)) for key, value in found.items() if value is not None}
    longest = max(fitting.get("max_length") or DecodingSettings().max_length, fitting.get("min_length", 0))
    return DecodingSettings(**{**fitting, "max_length": longest})


def _before_source(place: Path, own: Vocabulary, new: Vocabulary) -> dict[str, Any]:
    """Settings for what a checkpoint's tokenizer writes before a source; none unless [SOS], a mode token, both or nothing."""
    file = inside(place, TOKENIZER)
    before = None if file is None else ids_before_text(file)
    if before is None:
        return {}
    starts = before[:1] == [own.sos]
    modes = [own.extra.tolist().index(token) for token in before[starts:] if token in own.extra]
    if len(modes) < len(before[starts:]) or len(modes) > 1 or (modes and new.size != own.size):
        return {}
    return {"source_start": starts, "mode_token": modes[0] if modes else None}


def _note(family: Family, model: ModelSettings, heads: Sequence[Head], task: TaskSettings | None) -> str:
    if task is not None:
        return f"A model of the family {family.name}, fine-tuned for {task.kind}."
    if family.always:
        return f"{'An encoder-decoder' if model.decoder_layers else 'A language model'} of the family {family.name}."
    if not heads:
        return f"A model of the family {family.name} without heads, for text embeddings."
    said = " and ".join(PREDICTS[head] for head in heads)
    return f"A model of the family {family.name} with heads that predict {said}."


def _text_use(
    place: Path, family: Family, tokenizer: Tokenizer, settings: TokenizerSettings, allow: Sequence[str]
) -> UseSettings:
    """How a checkpoint writes a text: separators of its tokenizer or family, and what sentence-transformers does with it."""
    separators = separators_in(settings.path or "") or family.separators
    use = UseSettings(separators=separators)
    if family.name == "gpt2":
        use = dataclasses.replace(use, visibility="left_to_right", pooling="last")
    for kind, folder in _modules(place):
        file = inside(place, f"{folder}/config.json" if folder else "sentence_bert_config.json")
        config = {} if file is None else read_json(file)
        if kind == "Transformer" and not folder:
            if config.get("do_lower_case") and not tokenizer.lowercase:
                raise UniclozeError(
                    f"{file}: do_lower_case is true, but the tokenizer keeps capital letters: set it to false"
                )
        elif kind == "Pooling":
            use = dataclasses.replace(use, pooling=_pooling(place / folder / "config.json", config))
            if config.get("include_prompt") is False and _prompts(place).get("default_prompt_name"):
                raise UniclozeError(f"{file}: include_prompt is false, and embed pools the prompt too: set it to true")
        elif kind == "Normalize":
            use = dataclasses.replace(use, normalize=True)
        elif kind != "Dropout" and not any(fnmatchcase(folder, pattern) for pattern in allow):
            raise UniclozeError(
                f"{place}/modules.json: embed has no {kind} after the encoder: pass --allow '{folder or kind}' to import the "
                "model without it, which gives other vectors"
            )
    return dataclasses.replace(use, prompt=_prompt(place))


def _modules(place: Path) -> list[tuple[str, str]]:
    """Class and folder of each module of a sentence-transformers model, in order; none if the folder is not one."""
    if (file := inside(place, "modules.json")) is None:
        pools = inside(place, "1_Pooling/config.json") is not None
        return [("Transformer", ""), ("Pooling", "1_Pooling")] if pools else []
    modules = read_json(file, kind=list)
    for module in modules:
        kind, folder = (module.get("type"), module.get("path")) if isinstance(module, dict) else (None, None)
        if not (isinstance(kind, str) and isinstance(folder, str) and PurePath(folder).name == folder != ".."):
            raise UniclozeError(f"{file} does not list modules by type and path: download it again")
    return [(module["type"].rpartition(".")[2], module["path"]) for module in modules]


def _pooling(file: Path, config: Mapping[str, Any]) -> Literal["first", "last", "mean"]:
    """Pooling of a sentence-transformers model."""
    flags = [
        key.removeprefix("pooling_mode_")
        for key, on in config.items()
        if on is True and key.startswith("pooling_mode_")
    ]
    modes = config.get("pooling_mode") or flags or "mean"
    modes = [modes] if isinstance(modes, str) else modes
    name = modes[0] if isinstance(modes, list) and len(modes) == 1 else None
    for theirs, ours in POOLING.items():
        if name in (theirs, theirs.removesuffix("_tokens").removesuffix("_token")):
            return ours
    raise UniclozeError(
        f"{file} pools by {str(modes)[:80]}, and embed by the first or the last slot or their mean: use another "
        "checkpoint, or delete the file to choose with --pooling"
    )


def _prompts(place: Path) -> Mapping[str, Any]:
    file = inside(place, "config_sentence_transformers.json")
    return {} if file is None else read_json(file)


def _prompt(place: Path) -> str:
    """The default prompt of a sentence-transformers model; warns of others, which are used on request there."""
    config = _prompts(place)
    prompts, name = config.get("prompts"), config.get("default_prompt_name")
    prompts = prompts if isinstance(prompts, dict) else {}
    others = [key for key, text in prompts.items() if text and key != name]
    if others:
        warnings.warn(
            f"{place} has prompts for {', '.join(others)}, which embed does not add: put them before the texts",
            stacklevel=2,
        )
    prompt = prompts.get(name) if isinstance(name, str) else None
    return prompt if isinstance(prompt, str) else ""


def _longest_row(place: Path, positions: int, *, prompts: bool) -> int:
    """Longest row of a checkpoint: that of sentence-transformers or of its tokenizer, at most its positions.

    A tokenizer of `prompts` may leave room for what the model writes after them.
    """
    limits = {"sentence_bert_config.json": "max_seq_length"} | (
        {} if prompts else {TOKENIZER_CONFIG: "model_max_length"}
    )
    for name, key in limits.items():
        file = inside(place, name)
        longest = None if file is None else read_json(file).get(key)
        if isinstance(longest, int) and not isinstance(longest, bool) and longest >= 3:
            return min(longest, positions)
    return positions


def imported_task(config: Config, kind: TaskClass, family: Family) -> TaskSettings:
    """The task of a checkpoint with a task's head."""
    if not family.has_task(kind):
        raise _refused(config, "architectures", "a head of this class cannot be imported")
    recipes = {"ForTokenClassification": "tagging", "ForQuestionAnswering": "squad-v1.1", "ForMultipleChoice": "choice"}
    name = recipes.get(kind, "classification")
    key, default = family.dropout_key(kind)
    values: dict[str, Any] = {
        "head": family.head_of(kind),
        "pooling": "decoder" if family.decodes else "first",
        "head_dropout": default if config.values.get(key) is None else config.number(key, 0.0, most=1),
    }
    if kind in ("ForSequenceClassification", "ForTokenClassification"):
        values["labels"] = labels = _labels(config)
        if kind == "ForSequenceClassification" and _is_regression(config, labels):
            name = "regression"
            del values["labels"]
        elif kind == "ForTokenClassification" and not all(re.fullmatch(r"O|[BI]-.+", label) for label in labels):
            values["metrics"] = ["tag-accuracy"]
    task: Any = load_recipe(name).task
    imported: TaskSettings = dataclasses.replace(task, **values)
    return imported


def _is_regression(config: Config, labels: list[str]) -> bool:
    """Whether a class of texts has one output, a quantity."""
    problem = config.values.get("problem_type")
    if problem not in (None, "regression", "single_label_classification"):
        raise _refused(config, "problem_type", "only one class or one quantity of a text can be predicted")
    if problem == "regression" and len(labels) != 1:
        raise _refused(config, "problem_type", f"only one quantity of a text can be predicted, not {len(labels)}")
    if problem == "single_label_classification" and len(labels) < 2:
        raise _refused(config, "problem_type", "there is only one class")
    return len(labels) == 1


def _labels(config: Config) -> list[str]:
    """The classes of a configuration, in the order of their indices."""
    named = config.values.get("id2label")
    if named is None:
        return [f"LABEL_{number}" for number in range(config.whole("num_labels", 2))]
    wrong = not isinstance(named, dict) or not 1 <= len(named) <= LARGEST["size"]
    labels = [] if wrong else [named.get(str(number)) for number in range(len(named))]
    if wrong or not all(isinstance(label, str) and label for label in labels) or len(set(labels)) < len(labels):
        raise _refused(config, "id2label", "it must give every class from 0 a name of its own")
    return labels


def _refused(config: Config, key: str, why: str) -> Exception:
    return config.refused(key, f"{why}; pass --allow 'PATTERN' for the tensors of its head to import the encoder alone")
