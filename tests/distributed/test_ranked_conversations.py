"""Conversations and games over several ranks are those of one process, each environment on one rank alone."""

import hashlib
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from support import fault_runs
from support.talking import LETTERS, Counting, talking_model
from vigneron.batch import Batch
from vigneron.config import GameConfig, PythonEnvironmentConfig
from vigneron.core.draws import Sampling
from vigneron.distributed import ranks
from vigneron.environments.build import Environments
from vigneron.policy.load import make_policy
from vigneron.rollout.build import RolloutParts
from vigneron.rollout.on_policy import OnPolicy
from vigneron.selfplay.rollout import build

ROWS = [{"prompt": [{"role": "user", "content": text}], "topic": text, "wanted": 3} for text in ("one", "two", "x")]
OPTIONS = {"max_turns": 3, "max_reply_tokens": 12}


class Counted(Counting):
    made: ClassVar[list[Any]] = []

    def __init__(self, row: dict[str, Any], seed: int) -> None:
        super().__init__(row, seed)
        Counted.made.append(row)


def digest(batch: Batch) -> str:
    samples = batch.samples
    what = (samples.completion_lists(), samples.spans, samples.completions, samples.columns, samples.extras)
    logprobs = samples.behaviour_BT.mul(1000).round().tolist()  # the rows of a pass differ, and with them the last bits
    return hashlib.sha256(repr([what, logprobs, batch.signals.metrics]).encode()).hexdigest()


def batches(rows: list[Any]) -> list[Batch]:
    model, tokenizer = talking_model()
    policy = make_policy(model, tokenizer, device=torch.device("cpu"))
    options = PythonEnvironmentConfig.model_validate({"kind": "python", "class": "a:B", **OPTIONS})
    game = GameConfig.model_validate({"kind": "game", "class": "support.talking:Letters", **OPTIONS})
    plain = OnPolicy(policy, Sampling(), 8, 1, 5, stop=tuple(LETTERS), together=True)
    talking = OnPolicy(
        policy,
        Sampling(),
        8,
        1,
        5,
        stop=tuple(LETTERS),
        together=True,
        environments=Environments("it", Counted, options),
    )
    return [talking(rows), build(RolloutParts(None, policy, plain), game)(rows)]  # type: ignore[arg-type]


def by_rank() -> None:
    ranks.join(torch.device("cpu"))
    for rows in (ROWS, ROWS[:1]):
        print(*(digest(batch) for batch in batches(rows)), flush=True)
    print(len(Counted.made), flush=True)
    ranks.leave()


@pytest.mark.slow
def test_ranks_have_the_batch_of_one_process(tmp_path: Path) -> None:
    expected = [" ".join(digest(batch) for batch in batches(rows)) for rows in (ROWS, ROWS[:1])]
    logs = [tmp_path / f"rank-{rank}.log" for rank in range(2)]
    processes = [
        fault_runs.started(
            fault_runs.logged, str(log), by_rank, (), environment=fault_runs.environment_of(rank, 2, tmp_path)
        )
        for rank, log in enumerate(logs)
    ]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    first, second = (log.read_text().splitlines()[-3:] for log in logs)
    assert first[:2] == second[:2] == expected
    # Of three rows one rank has one and the other two; of one row both sample it, and one drops it.
    assert sorted([int(first[2]), int(second[2])]) == [2, 3]
