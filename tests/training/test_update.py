"""The update slot on a policy of one weight, w, whose loss is a function of w: every number is worked out by hand."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from support.small_batch import make_batch
from vigneron.batch import Batch
from vigneron.errors import NonFinite
from vigneron.training.optimizers import Optimized
from vigneron.training.update import GradientUpdate, Term


def descent(weight: nn.Parameter, loss: Callable[[Tensor], Tensor], rate: float, **options: Any) -> GradientUpdate:
    """Gradient descent on `loss(w)`, with the metric `w` of the policy that sampled."""

    def terms(batch: Batch, scores: Any) -> list[Term]:
        each_B = torch.ones(len(batch))
        return [
            Term("loss", loss(weight) * each_B, 1.0, "samples"),
            Term("w", weight.detach() * each_B, first_update_only=True),
        ]

    actor = Optimized("actor", [("w", weight)], learning_rate=rate, max_grad_norm=1e9)
    actor.optimizer = torch.optim.SGD([weight], lr=rate)
    return GradientUpdate(lambda batch: None, terms, [actor], total_updates=100, **options)


def four_samples(*, trained: int = 4) -> Batch:
    return make_batch([2] * 4, [1] * 4, excluded_B=torch.arange(4) >= trained)


def test_what_describes_the_policy_that_sampled_is_measured_before_any_update() -> None:
    """L = w: each of the 2 × 4 updates takes ¼ from w = 1. The loss is a mean over updates, 1 − ¼ · 3.5; w is not."""
    update = descent(nn.Parameter(torch.ones(())), lambda w: w, 0.25, updates_per_step=2, minibatches=4)
    metrics = update(four_samples())
    assert metrics["w"] == 1.0
    assert metrics["loss"] == 0.125
    assert metrics["grad_norm/actor"] == pytest.approx(1.0)


def test_minibatches_that_are_passed_over_count_as_no_update_of_the_first_pass() -> None:
    """Two samples are trained on, so that each pass has two updates, of four: 1, ¾, then ½, ¼."""
    update = descent(nn.Parameter(torch.ones(())), lambda w: w, 0.25, updates_per_step=2, minibatches=4)
    metrics = update(four_samples(trained=2))
    assert metrics["w"] == 1.0
    assert metrics["loss"] == 0.625
    assert update.done == 8


def test_an_error_says_which_updates_of_the_step_were_applied() -> None:
    """L = log w: its derivative at w = 1 is 1, so that an update at rate 1 leads to w = 0, where L is not finite."""
    weight = nn.Parameter(torch.ones(()))
    update = descent(weight, torch.log, 1.0, updates_per_step=2)
    stays = r"^loss: not finite, after 1 of 2 updates of this step, which stay\. The update was not applied"
    with pytest.raises(NonFinite, match=stays):
        update(four_samples())
    assert weight.item() == 0.0
    update.begin_at(1)
    with pytest.raises(NonFinite, match=r"^loss: not finite\. The update was not applied"):
        update(four_samples())
