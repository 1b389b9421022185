"""Weights that are NaN or infinite are never saved, never loaded, and end a run with an error."""

from __future__ import annotations

import dataclasses
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import nlu_toys
import toys
from toys import random_windows, vocabulary
from unicloze.errors import UniclozeError, UsageError
from unicloze.interop.read import write_model
from unicloze.objectives import settings_of
from unicloze.objectives.unilmv2 import unilmv2
from unicloze.pretraining.run import pretrain_run
from unicloze.recipes import load_recipe, toy_overrides
from unicloze.settings import TrainingSettings
from unicloze.training import checkpoint as saving
from unicloze.training import loop
from unicloze.training.batches import MicroBatch
from unicloze.training.checkpoint import list_checkpoints, load_checkpoint, save_checkpoint
from unicloze.training.divergence import first_non_finite
from unicloze.training.ledger import read_ledger
from unicloze.training.loading import load_model
from unicloze.training.loop import Compute, Hooks, NonFiniteError, TrainState, fit
from unicloze.training.optimizers import build_optimizers

CPU = Compute(device=torch.device("cpu"), precision="fp32")
BAD = [math.nan, math.inf, -math.inf]


def test_the_first_bad_tensor_is_named() -> None:
    good = {"ids": torch.tensor([2**40]), "large": torch.tensor([3e38, -3e38]), "none": torch.zeros(0)}
    assert first_non_finite(good) is None, "the norm of large numbers is infinite, they are not"
    assert first_non_finite({}) is None
    for value in BAD:
        parameter = torch.nn.Parameter(torch.tensor([1.0, value]))
        assert first_non_finite({**good, "b": parameter, "c": parameter}) == "b"
        assert first_non_finite({"half": torch.tensor([value], dtype=torch.float16)}) == "half"


def steps_of(rows: int = 4) -> Iterator[list[MicroBatch]]:
    step = 0
    while True:
        windows = random_windows(rows, 24, seed=step)
        yield [MicroBatch(unilmv2(windows, vocabulary(), settings_of()), windows, place="book.txt")]
        step += 1


class Run:
    """A run that records what is saved, logged and evaluated after each step."""

    def __init__(self, steps: int, save_every: int = 0, learning_rate: float = 1e-3) -> None:
        self.settings = TrainingSettings(
            steps=steps, warmup_steps=0, learning_rate=learning_rate, save_every=save_every, evaluate_every=1
        )
        model = toys.model()
        self.state = TrainState(model=model, optimizers=build_optimizers(model, self.settings))
        self.done: list[tuple[str, int]] = []

    def train(self, rows: int = 4) -> None:
        def note(what: str) -> Any:
            return lambda state, *_: self.done.append((what, state.step))

        hooks = Hooks(log=note("log"), evaluate=note("evaluate"), save=note("save"), describe=lambda batch: batch.place)
        fit(self.state, steps_of(rows), self.settings, CPU, hooks)

    def spoil(self, after: int, value: float) -> None:
        """Make the update of a step set one number of the last weight."""
        name, weight = list(self.state.model.named_parameters())[-1]
        self.spoiled = name

        def set_one(*_: Any) -> None:
            if self.state.step == after - 1:
                weight.data.view(-1)[-1] = value

        self.state.optimizers[-1].register_step_post_hook(set_one)


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("steps", [3, 9])
def test_an_update_that_spoils_a_weight_ends_the_run_and_is_not_saved(steps: int, value: float) -> None:
    """Also at the last step, where no later loss would reveal it."""
    run = Run(steps, save_every=1)
    run.spoil(3, value)
    with pytest.raises(NonFiniteError, match=r"^the weights of step 3 are not finite .* earlier checkpoints") as error:
        run.train()
    assert run.spoiled in str(error.value) and error.value.exit_code == 1
    assert run.done == [(what, step) for step in (1, 2) for what in ("log", "save", "evaluate")] + [("log", 3)]


@pytest.fixture(params=[False, True])
def queues(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers are read at once, as from a CPU, or late, as from a GPU."""
    monkeypatch.setattr(Compute, "queues", request.param)


@pytest.mark.usefixtures("queues")
def test_an_update_that_spoils_a_weight_is_noticed_by_the_next_loss() -> None:
    run = Run(9)
    run.settings = dataclasses.replace(run.settings, evaluate_every=0)
    run.spoil(3, math.nan)
    with pytest.raises(NonFiniteError, match=r"before the update of step 4: .* not finite either \("):
        run.train()
    assert run.done == [("log", step) for step in (1, 2, 3)]


@pytest.mark.usefixtures("queues")
def test_a_gradient_that_is_not_finite_leaves_good_weights_that_are_saved() -> None:
    run = Run(5)
    seen = iter(range(100))
    weight = run.state.model.token_head.dense.weight
    weight.register_hook(lambda gradient: gradient * (math.inf if next(seen) == 2 else 1.0))
    message = r"before the update of step 3: the norm of the gradient is (nan|inf)"
    with pytest.raises(NonFiniteError, match=message) as error:
        run.train()
    assert "The finite weights of step 2 were saved" in str(error.value)
    assert run.done[-2:] == [("evaluate", 2), ("save", 2)]
    assert first_non_finite(run.state.model.state_dict()) is None


@pytest.mark.usefixtures("queues")
def test_weights_that_were_bad_from_the_start_are_not_called_good() -> None:
    run = Run(5)
    with torch.no_grad():
        run.state.model.token_head.bias[20] = math.nan
    with pytest.raises(NonFiniteError, match=r"step 1: the loss of ae is nan.* not finite either \(token_head.bias\)"):
        run.train()
    assert run.done == []


def pretrained(corpus: Path, out: Path, **settings: Any) -> None:
    toy = toy_overrides() | {"data.corpus": [str(corpus)], "training.save_every": 1}
    pretrain_run(load_recipe("quickstart", toy | settings), out, progress=False)


@pytest.mark.parametrize(
    ("steps", "message"),
    [(1, "the weights of step 1 are not finite"), (2, "The weights before that step are not finite")],
)
def test_a_diverging_run_exits_with_an_error_and_leaves_no_checkpoint(
    steps: int, message: str, corpus: Path, tmp_path: Path, command: Any
) -> None:
    out = tmp_path / "run"
    settings = f"--training.learning_rate 1e39 --training.warmup_steps 0 --training.steps {steps}".split()
    words = "pretrain", "--recipe", "quickstart", "--toy", "--quiet", "--data.corpus", corpus, "--out", out
    said = command(*words, *settings)
    assert said.code == 1 and message in said.err
    assert list_checkpoints(out / "checkpoints") == []
    assert [event["event"] for event in read_ledger(out / "ledger.jsonl")] == ["start", "samples", "step", "failed"]


@pytest.mark.whole
def test_a_run_that_diverged_continues_with_another_rate_in_the_same_folder(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    settings = {"training.warmup_steps": 0, "training.schedule": "constant", "training.steps": 2}
    pretrained(corpus, out, **settings)
    with pytest.raises(UsageError, match=r"holds a run with training\.learning_rate"):
        pretrained(corpus, out, **settings | {"training.steps": 4, "training.learning_rate": 1e-4})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "clip_gradient", lambda *_: torch.tensor(math.nan))
        with pytest.raises(NonFiniteError, match=r"run the same command with a lower --training\.learning_rate"):
            pretrained(corpus, out, **settings | {"training.steps": 4})
    pretrained(corpus, out, **settings | {"training.steps": 4, "training.learning_rate": 1e-4})
    starts = [event for event in read_ledger(out / "ledger.jsonl") if event["event"] == "start"]
    assert [event["recipe"]["training"]["learning_rate"] for event in starts][-1] == 1e-4
    assert list_checkpoints(out / "checkpoints")[-1].name == "step-00000004"
    with pytest.raises(UsageError, match=r"holds a run with training\.learning_rate 0\.0001"):
        pretrained(corpus, out, **settings | {"training.steps": 6, "training.learning_rate": 1e-5})


def spoil_newest(out: Path, monkeypatch: pytest.MonkeyPatch, value: float = math.nan) -> Path:
    """Rewrite the newest checkpoint of a run with a bad weight, as older versions did."""
    newest = list_checkpoints(out / "checkpoints")[-1]
    checkpoint = load_checkpoint(newest)
    checkpoint.model["token_head.bias"][3] = value
    files = [shutil.copy(newest / name, out) for name in ("recipe.yaml", "tokenizer.json", "tokenizer_config.json")]
    shutil.rmtree(newest)
    with monkeypatch.context() as patch:
        patch.setattr(saving, "first_non_finite", lambda _: None)
        save_checkpoint(
            newest.parent, step=checkpoint.state["step"], model=checkpoint.model, optimizers=[], state=checkpoint.state,
            files=[Path(file) for file in files], keep=9,
        )  # fmt: skip
    return newest


@pytest.mark.whole
def test_an_older_version_s_bad_checkpoint_is_skipped(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    pretrained(corpus, out)
    newest = spoil_newest(out, monkeypatch)
    with pytest.warns(UserWarning, match=r"token_head\.bias is NaN or infinite; using step-00000001 instead"):
        assert load_model(out).step == 1
    with pytest.raises(UniclozeError, match=r"step-00000002 is from a run that diverged: its token_head\.bias is NaN"):
        load_model(newest)
    with pytest.warns(UserWarning, match="using step-00000001 instead"):
        pretrained(corpus, out)
    assert load_model(out).step == 2 and (out / "checkpoints" / "damaged-step-00000002").is_dir()


@pytest.mark.parametrize("value", BAD)
def test_a_model_of_bad_weights_alone_is_refused(
    value: float, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Any
) -> None:
    out = tmp_path / "run"
    pretrained(corpus, out, **{"training.steps": 1})
    spoil_newest(out, monkeypatch, value)
    said = command("fill", "--model", out, "--text", "a [MASK]")
    assert said.code == 1 and "token_head.bias is NaN or infinite, and no earlier one is intact" in said.sentence
    assert "start again with another --out" in said.sentence


def test_nothing_is_written_with_bad_weights(tmp_path: Path) -> None:
    start = nlu_toys.start()
    with torch.no_grad():
        start.model.token_head.bias[3] = math.inf
    with pytest.raises(UniclozeError, match=r"model was not written because token_head\.bias is NaN or infinite"):
        write_model(dataclasses.replace(start), tmp_path / "model")
    assert list(tmp_path.iterdir()) == []
