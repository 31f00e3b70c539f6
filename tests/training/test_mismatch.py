"""A difference between log-probs at sampling and in training is noticed: rounding, a warning, a stop."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from support.tiny_models import tiny_policy
from support.tiny_runs import tiny_config, write_data
from vigneron.batch import Batch
from vigneron.errors import UserError
from vigneron.methods import build_method
from vigneron.rollout.engine.generate_fallback import GenerateSampler
from vigneron.run_store.notices import kept_notices
from vigneron.training.callbacks import Silent
from vigneron.training.loop import train
from vigneron.training.mismatch import BFLOAT16, FLOAT32, mismatch_limits, mismatch_warning
from vigneron.training.setup.start import start_run


@pytest.mark.parametrize(
    ("limits", "rounding", "odd", "broken"), [(FLOAT32, 1e-4, 0.01, 0.2), (BFLOAT16, 0.02, 0.1, 2.1)]
)
def test_the_limits_depend_on_the_dtype(limits: Any, rounding: float, odd: float, broken: float) -> None:
    assert mismatch_warning({"logprob_mismatch": rounding}, limits) is None
    text = mismatch_warning({"logprob_mismatch": odd}, limits)
    assert text is not None
    assert limits.dtype in text
    assert mismatch_warning({"logprob_mismatch": 0.0, "drawn/mismatch": odd}, limits) == text
    with pytest.raises(UserError, match="the run stops"):
        mismatch_warning({"logprob_mismatch": broken}, limits)
    assert mismatch_warning({"logprob_mismatch": broken}, None) is None
    assert mismatch_warning({}, limits) is None


def test_it_is_watched_where_the_sampler_is_exact(tiny_folder: Path, tmp_path: Path) -> None:
    config = tiny_config(tiny_folder, write_data(tmp_path))
    policy = tiny_policy()
    policy.sampler = GenerateSampler(policy, "a test")
    assert mismatch_limits(config, policy) == FLOAT32
    policy.compute_dtype = torch.bfloat16
    assert mismatch_limits(config, policy) == BFLOAT16
    policy.sampler.exact = False
    assert mismatch_limits(config, policy) is None


@pytest.mark.parametrize("shift", [0.0, 0.02, 0.7])
def test_a_run_warns_once_and_stops_before_it_saves(tmp_path: Path, tiny_folder: Path, shift: float) -> None:
    """A sampler whose log-probs are off by `shift`."""
    config = tiny_config(tiny_folder, write_data(tmp_path), eval_every=0, save_every=1, steps=2)
    run = start_run(config, tmp_path, build_method, name="run", view=Silent())
    rollout: Callable[..., Batch] = run.method.rollout

    def shifted(*args: Any, **options: Any) -> Batch:
        batch = rollout(*args, **options)
        return batch.with_samples(behaviour_BT=batch.samples.behaviour_BT + shift)

    run.method = replace(run.method, rollout=shifted)
    if shift > FLOAT32.stop:
        with pytest.raises(UserError, match=r"logprob_mismatch is 0\.7 nats"):
            train(run, Silent())
        assert not list(run.folder.checkpoints.glob("*"))
    else:
        train(run, Silent())
    said = [notice for notice in kept_notices(run.folder.path) if "logprob_mismatch" in notice.text]
    assert len(said) == (1 if shift == 0.02 else 0)
