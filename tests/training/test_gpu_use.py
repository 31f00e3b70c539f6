"""The GPU's use is kept where it is known, and is no reason to end a run where it is not."""

import pytest
import torch

from vigneron.run_store.speed import GPU_PERCENT, speed_of
from vigneron.training.peak_memory import GpuUse


def test_it_is_a_curve_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "utilization", lambda device: 87)
    use = GpuUse(torch.device("cuda")).now()
    assert speed_of({"step": 1, "seconds": 2.0, **use}) == {GPU_PERCENT: 87.0, "speed/step_seconds": 2.0}
    assert GpuUse(torch.device("cpu")).now() == {}


def test_a_driver_that_cannot_say_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def utilization(device: torch.device) -> int:
        asked.append(device)
        raise ModuleNotFoundError("pynvml does not seem to be installed")

    monkeypatch.setattr(torch.cuda, "utilization", utilization)
    use = GpuUse(torch.device("cuda"))
    assert [use.now(), use.now()] == [{}, {}]
    assert len(asked) == 1
