"""NT-ASGD against torch's SGD and ASGD, when it starts, what is saved, and that a resumed run goes on alike."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from corpora import toy_corpus
from hf_toys import cut_after, same_ends
from unicloze.errors import UsageError
from unicloze.pretraining.run import pretrain_run
from unicloze.recipes import load_recipe
from unicloze.training.checkpoint import list_checkpoints, load_checkpoint
from unicloze.training.ledger import read_ledger
from unicloze.training.loading import load_model
from unicloze.training.optimizers import NtAsgd, averaged


def gradient(weight: torch.Tensor, step: int) -> torch.Tensor:
    return torch.sin(weight.detach() * (step + 1)) + 0.1 * step


def test_it_is_sgd_and_then_asgd() -> None:
    ours, theirs = (torch.nn.Parameter(torch.linspace(-1, 1, 6)) for _ in range(2))
    optimizer = NtAsgd([ours], lr=0.1, weight_decay=0.01)
    sgd = torch.optim.SGD([theirs], lr=0.1, weight_decay=0.01)
    asgd = torch.optim.ASGD([theirs], lr=0.1, lambd=0.0, t0=0, weight_decay=0.01)
    for step in range(10):
        if step == 4:
            for loss in (1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0):
                optimizer.hear(loss)
            assert optimizer.averages
        ours.grad, theirs.grad = gradient(ours, step), gradient(theirs, step)
        optimizer.step()
        (sgd if step < 4 else asgd).step()
        torch.testing.assert_close(ours, theirs)
    assert asgd.state[theirs]["step"].item() == 6
    with averaged([optimizer]):
        torch.testing.assert_close(ours.detach(), asgd.state[theirs]["ax"])
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(("losses", "starts"), [
    ([5, 4, 3, 2, 1], None),
    ([1, 2, 2], None),
    ([1, 2, 2, 2], 3),
    ([3, 2, 2, 2.5, 2.6, 2.7], 4),
    ([3, 3, 3, 3, 3], None),
])  # fmt: skip
def test_it_averages_once_an_evaluation_is_worse_than_the_best_before_the_latest(
    losses: list[float], starts: int | None
) -> None:
    optimizer = NtAsgd([torch.nn.Parameter(torch.zeros(2))], patience=2)
    started = []
    for loss in losses:
        optimizer.hear(loss)
        started.append(optimizer.averages)
    assert (started.index(True) if True in started else None) == starts


@pytest.mark.whole
@pytest.mark.parametrize("cut_at", [4, 8])
def test_a_resumed_run_averages_alike(cut_at: int, tmp_path: Path) -> None:
    """Cut before and after the average starts; the saved model is the average."""
    overrides = toy_corpus(tmp_path, {
        "training.steps": 12, "training.save_every": 4, "training.evaluate_every": 2, "training.keep_checkpoints": 9,
        "training.average_patience": 1, "training.learning_rate": 400.0, "training.clip_norm": 5.0,
    })  # fmt: skip
    recipe, whole = load_recipe("awd-lstm", overrides), tmp_path / "whole"
    pretrain_run(recipe, whole, progress=False)
    saved = [load_checkpoint(path) for path in list_checkpoints(whole / "checkpoints")]
    assert [bool(one.optimizers[0]["state"]) for one in saved] == [False, True, True]
    pretrain_run(recipe, cut := cut_after(whole, cut_at), progress=False)
    averages = [state["average"] for state in same_ends(whole, cut).optimizers[0]["state"].values()]
    weights = list(load_model(cut).model.parameters())
    assert any(
        not torch.equal(weight, average)
        for weight, average in zip(weights, averages, strict=False)
        if weight.shape == average.shape
    )
    events = [read_ledger(run / "ledger.jsonl") for run in (whole, cut)]
    losses = [[event["loss"] for event in run if event["event"] == "evaluate"][-1] for run in events]
    assert losses[0] == losses[1]


def test_a_resumed_run_evaluates_as_often_and_as_much_as_before(tmp_path: Path) -> None:
    """Evaluations decide when the averaging starts."""
    settings = toy_corpus(tmp_path, {"training.save_every": 1})
    pretrain_run(load_recipe("awd-lstm", settings), tmp_path / "run", progress=False)
    for key in ("training.evaluate_every", "training.evaluate_windows"):
        with pytest.raises(UsageError, match=f"holds a run with {key}"):
            pretrain_run(load_recipe("awd-lstm", settings | {key: 1}), tmp_path / "run", progress=False)
