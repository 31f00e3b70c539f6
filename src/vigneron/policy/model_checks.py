"""Checks of a model by test passes: that trunk and head give its logits, and that CUDA graphs can capture it."""

import torch
from torch import Tensor

from vigneron.errors import UserError, first_line
from vigneron.policy.attention import shrunken_windows
from vigneron.policy.cuda_graphs import capture, warm_up
from vigneron.policy.model import TEST_TOKENS, Policy, close_enough, test_row


@torch.no_grad()
def capture_obstacle(policy: Policy) -> str | None:
    """Why the model's layers cannot be captured in a CUDA graph; None if they can."""
    inputs = test_row(policy, TEST_TOKENS)
    try:
        with torch.compiler.set_stance("force_eager"):
            warm_up(lambda: policy.trunk(*inputs), policy.device)
            capture(lambda: policy.trunk(*inputs), policy.device)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:  # any model is possible: some wait for the device
        return first_line(error)
    return None


@torch.no_grad()
def check_head(policy: Policy) -> None:
    """Raise if trunk and head called separately do not give the model's own logits.

    A second pass has a small window and small caps: a few tokens do not reach real ones.
    """
    kind = policy.causal.config.model_type
    try:
        got, expected = _test_logits(policy)
        with shrunken_windows(policy.causal, final_logit_softcapping=float(expected.abs().max())):
            small_got, small_expected = _test_logits(policy)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # any model is possible
        raise UserError(
            f"model: '{kind}' is not supported: a test forward pass on '{policy.device}' fails: {first_line(error)}"
        ) from error
    if not torch.isfinite(expected).all():
        raise UserError("model: its logits are not finite: the weights contain NaN or infinite numbers")
    for ours, theirs in ((got, expected), (small_got, small_expected)):
        if not close_enough(ours, theirs):
            raise UserError(
                f"model: '{kind}' is not supported: its log-probs in training would be off by up to "
                f"{float((ours.log_softmax(-1) - theirs.log_softmax(-1)).abs().max()):.2g} nats"
            )


def _test_logits(policy: Policy) -> tuple[Tensor, Tensor]:
    """The logits of a test pass by trunk and head, and by the model."""
    ids, positions = test_row(policy, TEST_TOKENS)
    with policy._precision():
        expected = policy.causal(input_ids=ids, position_ids=positions, use_cache=False).logits.float()
    return policy.logits(policy.trunk(ids, positions)).float(), expected
