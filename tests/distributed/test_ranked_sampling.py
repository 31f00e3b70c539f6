"""Sampling by several ranks: what is wrong with one rank's samples is an error on all of them."""

from pathlib import Path

import pytest
import torch

from support import fault_runs
from support.tiny_models import tiny_policy
from vigneron.core.draws import Sampling
from vigneron.distributed import ranks
from vigneron.errors import UserError
from vigneron.rollout.engine.sample import sampler_of
from vigneron.rollout.on_policy import OnPolicy


def sample_from_damaged_weights() -> None:
    """Rank 1 has NaN weights."""
    ranks.join(torch.device("cpu"))
    policy = tiny_policy()
    sampler_of(policy)
    if ranks.rank() == 1:
        with torch.no_grad():
            policy.causal.get_output_embeddings().weight.fill_(torch.nan)
    try:
        OnPolicy(policy, Sampling(), 4, together=True)([{"prompt": word} for word in ("one", "two", "three")])
    except UserError as error:
        print(error, "(shown by another rank)" if error.reported_elsewhere else "", flush=True)
    ranks.leave()


@pytest.mark.slow
def test_nan_logits_of_one_rank_are_an_error_on_all_of_them(tmp_path: Path) -> None:
    logs = [tmp_path / f"rank-{rank}.log" for rank in range(2)]
    processes = [
        fault_runs.started(
            fault_runs.logged,
            str(log),
            sample_from_damaged_weights,
            (),
            environment=fault_runs.environment_of(rank, 2, tmp_path),
        )
        for rank, log in enumerate(logs)
    ]
    assert [fault_runs.ended(process) for process in processes] == [0, 0]
    first, second = (log.read_text().splitlines()[-1] for log in logs)
    assert first.startswith("the model's logits are NaN or infinite in 2 of 3 samples")
    assert second.strip() == f"{first.strip()} (shown by another rank)"
