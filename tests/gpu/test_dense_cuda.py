"""Dense rewards on a CUDA device: the policy's own probability of an answer, as on the CPU, and a run by it."""

from pathlib import Path

import pytest
import torch

from support.tiny_models import byte_tokenizer, tiny_model
from support.tiny_runs import tiny_config, write_data
from vigneron import api
from vigneron.policy.load import make_policy
from vigneron.rewards.probability import ProbabilityReward
from vigneron.run_store.folder import RunFolder

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


def test_the_probability_of_an_answer_is_the_cpus() -> None:
    found = []
    for device in ("cpu", "cuda"):
        model = tiny_model("llama", seed=3).eval().to(device)
        with torch.no_grad():
            model.lm_head.weight.mul_(30)
        reward = ProbabilityReward(debias=False)
        reward.attach(make_policy(model, byte_tokenizer(), device=torch.device(device)), None)
        found.append(reward(["q: "] * 2, ["3 + 4\n9", "odd\n9"], answer=["7x"] * 2))
    assert found[0] == pytest.approx(found[1], rel=1e-2)


@pytest.mark.parametrize(
    "reward",
    [
        {"kind": "probability", "answer_after": "a", "debias": False},
        {"kind": "combined", "combine": "annealed", "rewards": [{"kind": "binary"}, {"kind": "token_f1"}]},
    ],
)
def test_a_run(tmp_path: Path, tiny_folder: Path, reward: dict[str, object]) -> None:
    config = tiny_config(
        tiny_folder,
        write_data(tmp_path),
        model={"name": str(tiny_folder), "device": "cuda"},
        method={"name": "grpo"},
        optimizer={"actor_lr": 1e-3},
        reward=reward,
        steps=3,
        eval_every=3,
    )
    folder = RunFolder.open(api.train(config, name="run", runs=tmp_path).folder)
    assert all(record["reward"] >= 0 for record in folder.metrics() if record["step"])
