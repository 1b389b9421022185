"""Prepares a fine-tuning: the recipe of a task for one model, values for `auto`, and the initial weights."""

from __future__ import annotations

import dataclasses
import importlib
import math
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from unicloze.decoding.inputs import objective_of
from unicloze.errors import UsageError, option_of
from unicloze.evaluation.metrics.registry import measurable
from unicloze.finetuning.data import TaskData, auxiliary_objective, check_views
from unicloze.finetuning.predict import outputs_of, ready_to_generate
from unicloze.finetuning.scores import temperature
from unicloze.mixtures import positions
from unicloze.model.model import UnifiedModel
from unicloze.model.recurrent.backbone import VIEWS
from unicloze.model.task_heads import LinearHead
from unicloze.progress import say
from unicloze.recipes import load_recipe, task_names, with_overrides
from unicloze.records.record import Record
from unicloze.settings import Recipe, TaskSettings, chosen
from unicloze.tasks import TASKS, of_view
from unicloze.tasks.columns import has_target, resolved, targets_of, texts_of, with_columns
from unicloze.tasks.rows import UNREAD, pooling_of
from unicloze.tasks.several import records_of
from unicloze.tasks.tagging import TaggingSettings, taggers_of
from unicloze.tasks.task import OF_TEXTS, Headed, Labelled, Paired, Passages
from unicloze.text.tokenizers import Tokenizer
from unicloze.training.initial import POSITION_ROWS, repeated, said_of_positions, start_from_vectors
from unicloze.training.loading import LoadedModel, build_model, spell_tokens

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def untrained(network: Recipe, task: Recipe, train: Path, *, progress: bool = True) -> LoadedModel:
    """A model with random weights, drawn by the network's seed, as Vaswani et al. 2017 train translation."""
    if network.model.generator_size:
        raise UsageError(f"recipe {network.name} trains two networks: give a recipe of one, such as transformer-base")
    if network.tokenizer.path is not None:
        tokenizer = Tokenizer.load(network.tokenizer.path)
    else:
        records = records_of(train, task.task)
        settings = resolved(with_columns(task.task, records), records)
        texts = [text for record in records for text in _texts(record, settings, task.generation.source)]
        tokenizer = Tokenizer.train(texts, network.tokenizer)
    model = build_model(network, len(tokenizer)).for_use()
    spell_tokens(model, tokenizer.symbols)
    if task.training.word_vectors is not None:
        said = start_from_vectors(model, tokenizer, Path(task.training.word_vectors))
        if progress:
            say(said)
    return LoadedModel(model.eval(), tokenizer, network, Path(f"{network.name} (untrained)"), 0)


def _texts(record: Record, settings: TaskSettings, source: Sequence[str]) -> Iterator[str]:
    """The texts of a record, with those of its target."""
    task = TASKS[settings.kind]
    read = task.texts or [role for role in task.roles if role not in task.answers]
    for role in source if task.generates else read:
        if record.get(settings, role) is not None:
            texts = texts_of(record, settings, role)
            yield from [f" {' '.join(texts)}"] if isinstance(settings, TaggingSettings) else texts
    if task.generates and has_target(record, settings):
        yield from targets_of(record, settings)


def refuse_word_vectors(recipe: Recipe) -> None:
    """Reject word vectors for a model that has trained embeddings."""
    if recipe.training.word_vectors is not None:
        cure = "leave it out, or give the recipe of a network as --model"
        raise UsageError(f"training.word_vectors is for new embeddings, and those of --model are trained: {cure}")


FREE = (
    "dropout", "attention_dropout", "activation_dropout", "final_dropout", "initializer_range", "embedding_dropout",
    "input_dropout", "hidden_dropout", "weight_dropout", "activation_penalty", "temporal_penalty", "layer_mix",
)  # fmt: skip
"""`model` settings that a task may change, as no trained weight depends on them."""
FITTED = "task_heads.label.output."
"""Prefix of the weights of the output layer that is fitted."""
FEW_ROWS = 5_000
"""Most training rows for which a head is fitted first."""
FITTED_HEADS = "dense", "plain"
"""Heads that are linear, or nearly so with a small identity before them."""
NOT_FITTED = (
    "finetuning.fit_head is true, but no head is fitted: it takes a new dense or plain head that learns, two texts of each "
    f"class, {FEW_ROWS:,} rows at most, and no class weights, averaged weights, LoRA, adapters or unlabelled text"
)
MOST_FOLDS = 5
STRENGTHS = np.logspace(-1, 2, 7)
"""Inverse strengths of the regularisation of a fitted head, for features at distance 1 of their mean."""
FITTED_TEMPERATURES = np.geomspace(1e-2, 10, 61)
"""What the logits of a fitted head may be divided by: strong regularisation makes them small."""
LINEAR = 0.3
"""Root mean square of the inputs of a fitted head's tanh, which bends them by 3 %."""
LEFT_OUT = "generator_size", "memory", "pooler"
"""Parts of a model that no task uses."""


def task_recipe(
    recipe: Recipe,
    start: LoadedModel,
    overridden: Sequence[str] = (),
    objective: Mapping[str, Any] | None = None,
    origins: Mapping[str, str] | None = None,
) -> Recipe:
    """The recipe of a task for one model, with the data, tokenizer, objective and model settings of that model.

    The model gets as many positions as the rows of the task need, unless `model.max_positions` is overridden.
    """
    if not recipe.task.kind:
        raise UsageError(f"recipe {recipe.name} is for pre-training: give a task (`unicloze recipes` lists them)")
    _refuse_other_models(recipe, start, overridden, origins or {})
    if recipe.finetuning.few and start.recipe.model.kind == "recurrent":
        key = "lora_rank" if recipe.finetuning.lora_rank is not None else "adapter_size"
        cure = "leave it out, or train its head alone (--training.frozen backbone)"
        needs = "needs the layers of a Transformer"
        raise UsageError(f"finetuning.{key} {needs}, and {start.path} has model.kind recurrent: {cure}")
    own = dataclasses.replace(start.recipe, objective=objective_of(start.recipe))
    sections: dict[str, Any] = {"objective": (with_overrides(own, objective) if objective else own).objective}
    for section in ("data", "tokenizer", "model", "use"):
        names = [key.partition(".")[2] for key in overridden if key.startswith(f"{section}.")]
        values = {name: getattr(getattr(recipe, section), name) for name in names}
        sections[section] = dataclasses.replace(getattr(own, section), **values)
    if "task.metrics" not in overridden:
        recipe = recipe.changed("task", metrics=measurable(recipe.task.metrics))
    asked = recipe.model.max_positions if "model.max_positions" in overridden else None
    longest = recipe.task.max_length if asked is None else min(recipe.task.max_length, asked)
    unused = {"generator_size": 0.0, "memory": 0, "pooler": False}
    size, own_size = recipe.finetuning.adapter_size, start.recipe.model.adapter_size
    if size is not None and own_size not in (0, size):
        has = f"the model {start.path} has adapters of width {own_size}"
        raise UsageError(f"finetuning.adapter_size is {size}, but {has}: give {own_size} to train these")
    size = own_size if size is None else size
    sections["model"] = dataclasses.replace(sections["model"], max_positions=asked, adapter_size=size, **unused)
    recipe = dataclasses.replace(recipe, **sections).changed("training", phases=[], initialize_from=None)
    recipe = _pooled(recipe.changed("task", max_length=longest))
    if TASKS[recipe.task.kind].generates:
        recipe = ready_to_generate(recipe, start.tokenizer)
    check_views(recipe)
    if recipe.finetuning.auxiliary:
        auxiliary = auxiliary_objective(recipe)
        if not hasattr(start.model, "token_head"):
            raise UsageError(f"{start.path} has no head that predicts tokens: leave out finetuning.auxiliary")
        longest = max(longest, positions(auxiliary, longest))
    if asked is None:
        recipe = recipe.changed("model", max_positions=max(longest, start.model.max_positions))
    return recipe


def _refuse_other_models(
    recipe: Recipe, start: LoadedModel, overridden: Sequence[str], origins: Mapping[str, str]
) -> None:
    """Reject settings that differ from those the model fixes: a different shape would leave weights newly initialised."""
    for key in overridden:
        section, _, name = key.partition(".")
        said = f"{origins[key]}: {key}" if key in origins else key
        if key == "model.max_positions":
            asked, own = recipe.model.max_positions, start.model.max_positions
            if asked is not None and asked < own:
                cure = f"give {own} or more, or set --task.max_length for shorter rows"
                raise UsageError(f"{said} is {asked}, but the model {start.path} has {own} positions: {cure}")
            continue
        if section not in ("data", "tokenizer", "model") or name in FREE:
            continue
        asked, own = (getattr(getattr(each, section), name) for each in (recipe, start.recipe))
        if asked != own:
            free = f"fine-tuning can change only {', '.join(f'model.{one}' for one in (*FREE, 'max_positions'))}"
            raise UsageError(
                f"{said} is {asked}, but the model {start.path} was trained with {own}: leave it out; {free}"
            )


def changed_settings(recipe: Recipe, start: LoadedModel) -> dict[str, tuple[Any, Any]]:
    """Model settings that a task changes, by dotted name: old and new value."""
    own = vars(dataclasses.replace(start.recipe.model, max_positions=start.model.max_positions))
    new = {name: value for name, value in vars(recipe.model).items() if name not in LEFT_OUT and value != own[name]}
    return {f"model.{name}": (own[name], value) for name, value in new.items()}


def what_changed(changed: Mapping[str, tuple[Any, Any]], start: LoadedModel) -> str:
    """The changes of `changed_settings` in words; empty if there are none."""
    said = []
    for key, (former, now) in changed.items():
        if key == "model.max_positions" and not start.model.state_dict().keys().isdisjoint(POSITION_ROWS):
            said.append(said_of_positions(former, now, start.path))
        else:
            said.append(f"{key} is {now} ({start.path}: {former})")
    return "; ".join(said)


def _pooled(recipe: Recipe) -> Recipe:
    """The recipe with a default `task.pooling` that suits how the model reads."""
    task, reads = recipe.task, recipe.use.visibility
    if not isinstance(task, Headed) or task.head == "biattentive":
        return recipe
    if recipe.model.decoder_layers or task.pooling == "decoder":
        _refuse_decoder(recipe, task)
    pooling = task.pooling
    if pooling is None:
        if recipe.model.decoder_layers and isinstance(task, Paired):
            pooling = "decoder"  # BART
        elif reads == "both_directions":
            pooling = "mean"
        elif reads == "left_to_right" and isinstance(task, TaggingSettings | Passages):
            pooling = "last"
        elif task.kind == "tagging":
            pooling = "first"
    recipe = recipe.changed("task", pooling=pooling)
    unread, other = UNREAD.get(reads, ("", ""))
    if task.kind != "tagging" and pooling_of(recipe) == unread:
        key = "use.pooling" if pooling is None else "task.pooling"
        why = f"the model reads from {reads.replace('_', ' ')}, so its {unread} slot has not read the text"
        raise UsageError(f"{key} is {unread}, but {why}: set {option_of('task.pooling')} {other}")
    return recipe


def _refuse_decoder(recipe: Recipe, task: Headed) -> None:
    """Reject what an encoder-decoder does not read, and the pooling of a decoder elsewhere."""
    has_decoder = bool(recipe.model.decoder_layers)
    if task.pooling == "decoder" and not (has_decoder and isinstance(task, Paired)):
        what = f"task {task.kind} has no slot of its own there" if has_decoder else "it has no decoder"
        raise UsageError(f"task.pooling is decoder, but {what}: give first, last or mean")
    packed = "into one row, which an encoder-decoder does not read"
    if has_decoder and task.kind == "choice":
        cure = "use task generation, with the right choice as target"
        raise UsageError(f"task choice packs the choices of a record {packed}: {cure}")
    unread = recipe.model.kind == "transformer" or task.pooling in (None, "decoder")
    if isinstance(task, Paired) and task.both_orders and has_decoder and unread:
        raise UsageError(f"task.both_orders packs two texts {packed}: set {option_of('task.both_orders')} false")


def _labels(task: TaskSettings) -> Mapping[str, Sequence[str] | None]:
    """The classes of each target."""
    if isinstance(task, TaggingSettings):
        return taggers_of(task)
    return dict.fromkeys(TASKS[task.kind].heads(task), task.labels) if isinstance(task, Labelled) else {}


def start_weights(model: torch.nn.Module, start: LoadedModel, task: TaskSettings) -> list[str]:
    """Copy a trained model's weights into a task model, and its pooler into the dense layers of heads with tanh, as it has.

    If the task needs more positions, those of the trained model are repeated, as in UniLM's released code. The output
    layers of an already fine-tuned model are copied if its classes and `task.head` are the same.
    """
    own, theirs = model.state_dict(), start.model.state_dict()
    theirs |= {name: repeated(theirs[name], len(own[name])) for name in POSITION_ROWS if name in theirs}
    fitting = {name: theirs[name] for name in own if name in theirs and theirs[name].shape == own[name].shape}
    former, head = _labels(start.recipe.task), getattr(task, "head", None)
    if head != (former_head := getattr(start.recipe.task, "head", None)):
        if start.recipe.task.kind == task.kind and former == _labels(task):
            warnings.warn(
                f"the head of {start.path} is task.head {former_head}, and this one {head}: it is newly initialised; give "
                f"{option_of('task.head')} {former_head} to keep what it learned",
                stacklevel=4,
            )
        fitting = {name: weight for name, weight in fitting.items() if not name.startswith("task_heads.")}
    renewed = {target for target, labels in _labels(task).items() if former.get(target) != labels}
    renewed |= {of_view(target, view) for target in renewed for view in VIEWS}
    for name in own:
        if name.startswith("task_heads.") and ".output." in name and name.split(".")[1] in renewed:
            fitting.pop(name, None)
        if name.startswith("task_heads.") and ".dense." in name and head == "dense":
            kind = name.rpartition(".")[2]
            pooler = theirs.get(f"pooler.{kind}", theirs.get(f"pair_head.dense.{kind}"))
            if pooler is not None and pooler.shape == own[name].shape and name not in fitting:
                fitting[name] = pooler
    model.load_state_dict(fitting, strict=False)
    return sorted(own.keys() - fitting.keys())


def fit_head(model: LoadedModel, data: TaskData) -> bool:
    """Fit the head of a classification or regression on frozen features, by logistic or ridge regression.

    The dense layer becomes a multiple of the identity, small enough that tanh is nearly linear. Few labels teach such a head
    more than gradient steps.
    """
    head = dict(model.model.task_heads.items()).get("label")
    answers = _answers(data)
    if not isinstance(head, LinearHead) or head.head.name not in FITTED_HEADS or head.encoder is not None:
        return False
    finetuning, weighted = model.recipe.finetuning, getattr(model.recipe.task, "class_weights", None)
    learns = all(weight.requires_grad for weight in head.parameters())
    if not 2 <= len(answers) <= FEW_ROWS or finetuning.few or finetuning.unlabelled or weighted or not learns:
        return False
    classes = head.head.kind == "classes"
    seen: dict[bytes, int] = {}
    texts = np.array([seen.setdefault(row.input_ids.tobytes(), number) for number, row in enumerate(data.rows)])
    splits = folds(answers, texts, head.width) if classes else []
    if classes != bool(splits) or (head.dense is not None and head.dense.in_features != head.dense.out_features):
        return False
    features, scale = _features(model, head, data)
    if classes and model.recipe.model.kind != "recurrent":  # after a final norm, directions tell more than lengths do
        lengths = np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-6)
        features *= lengths.mean() / lengths
    centre = features.mean(axis=0)
    spread = max(float(np.linalg.norm(features - centre, axis=1).mean()), 1e-6)
    features = (features - centre) / spread
    limited = importlib.import_module("threadpoolctl").threadpool_limits

    def fitted() -> list[list[Any]]:
        with limited(1, "blas"):  # the same bits on any number of cores
            weight, bias = logistic(features, answers, splits) if classes else ridge(features, answers, texts)
            weight = weight / spread
            return [weight.tolist(), (bias - weight @ centre).tolist()]

    weight, bias = map(np.array, model.world.only_first(fitted))
    with torch.no_grad():
        head.output.weight.copy_(torch.from_numpy(weight))
        head.output.bias.copy_(torch.from_numpy(bias))
        if head.dense is not None:
            head.dense.weight.copy_(scale * torch.eye(len(head.dense.weight)))
            head.dense.bias.zero_()
    return True


def _answers(data: TaskData) -> npt.NDArray[Any]:
    """The label of each row that has one."""
    return np.array([row.targets["label"].labels[0] for row in data.rows if "label" in getattr(row, "targets", ())])


def start_at_labels(model: UnifiedModel, data: TaskData) -> None:
    """Start the quantities of a new regression head near its labels, if these are far from what small weights give."""
    head = dict(model.task_heads.items()).get("label")
    if not isinstance(head, LinearHead) or head.head.kind != "quantities":
        return
    labels = _answers(data)
    mean, spread = float(labels.mean()), float(labels.std())
    if max(abs(mean), spread) > LARGE_LABELS:
        with torch.no_grad():
            head.output.weight.mul_(max(spread, 1.0))
            head.output.bias.fill_(mean)


def _features(model: LoadedModel, head: LinearHead, data: TaskData) -> tuple[Floats, float]:
    """What the output layer of a head reads of each row if its dense layer multiplies by a number, and that number."""
    output, dense = head.output, head.dense
    head.output, head.dense = torch.nn.Identity(), None  # type: ignore[assignment]
    features = np.concatenate([each["label"] for each in outputs_of(model, data.rows)]).astype(np.float64)
    head.output, head.dense = output, dense
    if dense is None:
        return features, 1.0
    scale = LINEAR / max(float(np.sqrt(np.mean(features**2))), 1e-6)
    return np.tanh(scale * features), scale


def folds(answers: Ints, texts: Ints, classes: int) -> list[tuple[Ints, Ints]]:
    """Training and held-out rows of a stratified cross-validation that holds equal texts out together.

    `texts` has the first row with the same text for each row. Empty if a class has a single text.
    """
    first, rows = np.unique(texts), np.arange(len(texts))
    number = min(MOST_FOLDS, int(np.bincount(answers[first], minlength=classes).min()))
    if number < 2:
        return []
    split = importlib.import_module("sklearn.model_selection").StratifiedKFold(number).split
    held = [np.isin(texts, first[each]) for _, each in split(first, answers[first])]
    return [(rows[~each], rows[each]) for each in held]


def logistic(features: Floats, answers: Ints, splits: Sequence[tuple[Ints, Ints]]) -> tuple[Floats, Floats]:
    """Weight and bias of a logistic regression, whose strength and temperature are the likeliest of a cross-validation.

    Without a temperature the likelihood asks for weak regularisation, since strong regularisation makes weights small. It
    does not divide the bias, which is not regularised.
    """
    fitted = importlib.import_module("sklearn.linear_model").LogisticRegression(max_iter=1000, warm_start=True)

    def fit(rows: Any, strength: float) -> tuple[Floats, Floats]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of many classes with few rows each, or a fit cut short
            fitted.set_params(C=strength).fit(features[rows], answers[rows])
        weight, bias = fitted.coef_, fitted.intercept_
        return (weight, bias) if len(weight) > 1 else (np.vstack([-weight, weight]) / 2, np.append(-bias, bias) / 2)

    logits, biases = np.zeros((2, len(STRENGTHS), len(answers), int(answers.max()) + 1))
    for train, held in splits:
        for place, strength in enumerate(STRENGTHS):
            weight, biases[place, held] = fit(train, strength)
            logits[place, held] = features[held] @ weight.T
    softer = [temperature(one, answers, FITTED_TEMPERATURES, other) for one, other in zip(logits, biases, strict=True)]
    best = int(np.argmin([loss for _, loss in softer]))
    weight, bias = fit(slice(None), STRENGTHS[best])
    return weight / softer[best][0], bias


def ridge(features: Floats, answers: npt.ArrayLike, texts: Ints) -> tuple[Floats, Floats]:
    """Weight and bias of a ridge regression, whose strength is chosen by leaving out one text, with all of its rows."""
    first, of_text, counts = np.unique(texts, return_inverse=True, return_counts=True)
    means = np.bincount(of_text, np.asarray(answers, float)) / counts
    fitted = importlib.import_module("sklearn.linear_model").RidgeCV(alphas=np.logspace(-3, 2, 11))
    fitted.fit(features[first], means, sample_weight=counts)
    return np.atleast_2d(fitted.coef_), np.atleast_1d(fitted.intercept_)


def unchanged(model: torch.nn.Module, start: LoadedModel) -> frozenset[str]:
    """Names of the weights of a task model that never learn and are those of the trained model it started from."""
    theirs = start.model.state_dict()
    return frozenset(
        name
        for name, weight in model.named_parameters()
        if not weight.requires_grad and name in theirs and torch.equal(weight.detach().cpu(), theirs[name].cpu())
    )


def what_learns(model: torch.nn.Module) -> str:
    """The share of the weights that learn, in words."""
    sizes = [(weight.numel(), weight.requires_grad) for weight in model.parameters()]
    total, learned = sum(size for size, _ in sizes), sum(size for size, learns in sizes if learns)
    return f"{learned:,} of {total:,} weights learn ({100 * learned / total:.2g} %)"


RATE_TIMES_WEIGHTS = 3.3e3
"""Learning rate times number of weights: 2e-3 for 1.5 M weights, 1.5e-4 for 22 M, 3e-5 for the 110 M of the papers."""
HIGHEST_RATE = 3e-3
"""Learning rate of the smallest models."""
ROWS = 10_000
"""Target number of rows seen over all epochs, within the bounds of `EPOCHS`."""
EPOCHS = 3, 10
"""Fewest and most epochs: the papers take 3 for large files, and 10 where there are few records (UniLMv2, Table 9)."""
PAPER_WEIGHTS = 110_000_000
"""Weights of the base models for which the papers chose their rates."""
FEW_TIMES = 10
"""How many times higher the rate of low-rank updates and adapters is: at 110 M weights, LoRA takes 5e-4 (Hu et al., Table 9)
and adapters 3e-4 (Houlsby et al., Section 3.1)."""
HIGHEST_OF_FEW = 1e-2
"""Learning rate of low-rank updates and adapters in the smallest models. With 5 M weights, 6e-3 was best of 3e-3, 6e-3 and
1.5e-2 (benchmarks/results/few_weights.jsonl)."""
PAPER_ROWS = 40_000
"""Training rows from which on the values of a paper's recipe for questions hold: SQuAD has 88,000 questions."""
MUCH_SMALLER = 10
"""How many times fewer weights a model must have to need a higher rate."""


LARGE_LABELS = 10.0
"""Mean or standard deviation of quantities that a head does not reach from small weights; those of STS-B are from 0 to 5."""
HEAD_RATE = 5e-3
"""Learning rate of a head alone, over a frozen network, as in benchmarks/elmo_tags.py."""


def learning_rate(weights: int, few: bool = False) -> float:
    """The peak learning rate for a model, rounded to two significant digits."""
    times, highest = (FEW_TIMES, HIGHEST_OF_FEW) if few else (1, HIGHEST_RATE)
    return float(f"{min(highest, RATE_TIMES_WEIGHTS / weights * times):.1e}")


def usual_rate(recipe: Recipe, weights: int) -> float:
    """The learning rate that `auto` takes."""
    return HEAD_RATE if head_alone(recipe) else learning_rate(weights, recipe.finetuning.few)


def head_alone(recipe: Recipe) -> bool:
    """Whether the network below the head is frozen."""
    return "backbone" in recipe.training.frozen


def epochs(rows: int) -> int:
    """Number of epochs for a number of rows."""
    fewest, most = EPOCHS
    return max(fewest, min(most, math.ceil(ROWS / max(1, rows))))


def adaptable(recipe: Recipe, overridden: Collection[str]) -> Recipe:
    """A recipe of the package, of questions with `auto` for a paper's rate and epochs, unless overridden.

    See `with_chosen`. A file's values are its own, even where they are those of the recipe it is named after.
    """
    paper = _of_paper(recipe)
    if paper is None:
        return recipe
    for section, key in (("training", "learning_rate"), ("finetuning", "epochs")):
        own, papers = (getattr(getattr(one, section), key) for one in (recipe, paper))
        if f"{section}.{key}" not in overridden and own == papers:
            recipe = recipe.changed(section, **{key: "auto"})
    return recipe


def _of_paper(recipe: Recipe) -> Recipe | None:
    """The recipe of the package, all from papers, that a recipe of questions has its name from; None for others."""
    return load_recipe(recipe.name) if isinstance(recipe.task, Passages) and recipe.name in task_names() else None


def with_chosen(recipe: Recipe, weights: int, rows: int, former: Recipe | None = None) -> Recipe:
    """The recipe with a value for each `auto`, as in the run so far."""
    few = recipe.finetuning.few
    if recipe.finetuning.fit_head == "auto" and recipe.task.kind in OF_TEXTS:
        fits = recipe.training.learning_rate == "auto" if former is None else former.finetuning.fit_head
        recipe = recipe.changed("finetuning", fit_head=fits)
    if former is None and weights > PAPER_WEIGHTS / 2 and rows >= PAPER_ROWS and not few and not head_alone(recipe):
        former = _of_paper(recipe)
    if recipe.training.learning_rate == "auto":
        rate = usual_rate(recipe, weights) if former is None else chosen(former.training.learning_rate)
        recipe = recipe.changed("training", learning_rate=rate)
    if recipe.finetuning.epochs == "auto":
        passes = epochs(rows) if former is None else former.finetuning.epochs
        recipe = recipe.changed("finetuning", epochs=passes)
    return recipe


def what_was_chosen(before: Recipe, after: Recipe, weights: int, rows: int) -> str:
    """Each value chosen for `auto` and what it follows from, in words; empty if there is none."""
    said = []
    if before.training.learning_rate == "auto":
        own = after.training.learning_rate == learning_rate(weights, after.finetuning.few)
        extrapolated = ", extrapolated from the papers" if weights > PAPER_WEIGHTS / 2 and own else ""
        few = ", of which few learn" if after.finetuning.few else ""
        of_these = f"{weights:,} weights{few}{extrapolated}"
        if head_alone(after):
            of_these = "a head over a frozen network"
        said.append(f"learning rate {chosen(after.training.learning_rate):.2g} for {of_these}")
    if before.finetuning.epochs == "auto":
        said.append(f"{chosen(after.finetuning.epochs):g} epochs for {rows:,} rows")
    return ", ".join(said)


def why_not_fitted(before: Recipe, after: Recipe, rows: int) -> str:
    """Why no head is fitted to few labels where one could be, in words; otherwise empty."""
    settings, task = before.finetuning, before.task
    could = isinstance(task, Paired) and task.head in FITTED_HEADS and rows <= FEW_ROWS and not head_alone(before)
    other = settings.few or settings.unlabelled or settings.average_last > 1 or getattr(task, "class_weights", None)
    if settings.fit_head != "auto" or after.finetuning.fit_head or not could or other:
        return ""
    cure = f"{option_of('finetuning.fit_head')} true fits one where each class has two texts"
    return f"no head is fitted to the few labels before training, since the learning rate is given; {cure}"


def too_low_a_rate(recipe: Recipe, weights: int) -> str:
    """A warning if the learning rate suits only much larger models; otherwise empty."""
    rate, better = chosen(recipe.training.learning_rate), usual_rate(recipe, weights)
    if rate * MUCH_SMALLER > better or weights * MUCH_SMALLER > PAPER_WEIGHTS:
        return ""
    return (
        f"the learning rate {rate:.2g} suits models of about {PAPER_WEIGHTS:,} weights, but this one has {weights:,}: "
        f"it may learn almost nothing; --training.learning_rate auto uses {better:.2g}"
    )
