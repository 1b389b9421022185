"""Row-wise gradients of tables: the same numbers as autograd's dense ones, in reused memory."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import toys
from test_loop import CPU, gradient_of, micro_batches
from unicloze.settings import TrainingSettings
from unicloze.training import gradients as lookups
from unicloze.training.loop import TrainState, losses_and_norm

READ = torch.tensor([[3, 3, 9], [0, 3, 9]])


def gradients(monkeypatch: pytest.MonkeyPatch, large: int) -> dict[str, torch.Tensor]:
    monkeypatch.setattr(lookups, "LARGE", large)
    state = TrainState(model=toys.model(), optimizers=[])
    losses_and_norm(state, micro_batches(3, rows=4), TrainingSettings(), CPU, str)
    return gradient_of(state.model)


def test_a_table_that_is_output_matrix_too(monkeypatch: pytest.MonkeyPatch) -> None:
    by_rows, dense = gradients(monkeypatch, 1), gradients(monkeypatch, 2**40)
    assert by_rows.keys() == dense.keys()
    for name, gradient in by_rows.items():
        assert not gradient.is_sparse
        torch.testing.assert_close(gradient, dense[name], atol=1e-6, rtol=1e-5)


def test_only_rows_that_were_read_have_a_gradient_and_none_of_the_step_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookups, "LARGE", 1)
    table = nn.Embedding(12, 4)
    unread = nn.Embedding(12, 4)
    model, buffers = nn.ModuleList([table, unread]), dict[nn.Parameter, torch.Tensor]()
    kept = []
    for seed in range(3):
        weights = torch.randn(*READ.shape, 4, generator=torch.Generator().manual_seed(seed))
        model.zero_grad(set_to_none=True)
        for row in range(2):
            with lookups.by_rows(model):
                read = table(READ[row])
            (read * weights[row]).sum().backward()
            assert table.weight.grad is not None and table.weight.grad.is_sparse == (row == 0)
            lookups.fill_gradients(model, buffers)
        expected = torch.zeros(12, 4).index_add_(0, READ.flatten(), weights.flatten(0, 1))
        torch.testing.assert_close(table.weight.grad, expected)
        kept.append(table.weight.grad.data_ptr())
    assert len(set(kept)) == 1 and unread.weight.grad is None
    assert not table.sparse, "other training loops get dense gradients"


def test_small_tables_and_compiled_models_are_left_alone() -> None:
    model = toys.model()
    with lookups.by_rows(model):
        assert not model.backbone.embeddings.tokens.sparse
    large = nn.Embedding(2, lookups.LARGE)
    compiled = type(CPU)(device=CPU.device, precision="fp32", fixed_shape=True)
    with compiled.lookups(large):  # type: ignore[arg-type]
        assert not large.sparse
    with CPU.lookups(large):  # type: ignore[arg-type]
        assert large.sparse
