"""A reply that takes long holds up its own sample, and changes nothing that is sampled."""

import asyncio
from typing import Any

import pytest
import torch

from support.talking import LETTERS, Counting, talking_model
from vigneron.batch import Batch
from vigneron.config import PythonEnvironmentConfig, ToolsEnvironmentConfig
from vigneron.core.draws import Sampling
from vigneron.environments.build import Environments
from vigneron.environments.reply import Reply
from vigneron.policy.load import make_policy
from vigneron.rollout.on_policy import OnPolicy

SAMPLES = 8
TURN_TOKENS = 60
OPTIONS = {"max_reply_tokens": 12, "timeout_s": 600}


def talked(environment: type[Counting], **given: Any) -> Batch:
    model, tokenizer = talking_model()
    policy = make_policy(model, tokenizer, device=torch.device("cpu"))
    options = PythonEnvironmentConfig.model_validate(
        {"kind": "python", "class": "support.talking:Counting", "max_turns": 3, **OPTIONS, **given}
    )
    environments = Environments("environment 'mine'", environment, options, waits=True)
    rollout = OnPolicy(
        policy,
        Sampling(),
        TURN_TOKENS,
        group_size=SAMPLES,
        seed=5,
        stop=tuple(LETTERS[:12]),
        environments=environments,
    )
    return rollout([{"prompt": [{"role": "user", "content": "one"}], "wanted": 2}], step=2)


class AtOnce(Counting):
    async def reply(self, messages: list[dict[str, Any]]) -> Reply:  # type: ignore[override]
        return super().reply(messages)


def test_other_samples_end_their_turns_before_a_slow_reply_is_waited_for() -> None:
    ended: list[int] = []
    all_ended = asyncio.Event()

    class UntilAllHaveEnded(AtOnce):
        """Answers nobody before every sample has ended its first turn."""

        async def reply(self, messages: list[dict[str, Any]]) -> Reply:  # type: ignore[override]
            ended.append(len(messages[-1]["content"]))
            if len(ended) == SAMPLES:
                all_ended.set()
            await all_ended.wait()
            return await super().reply(messages)

    slow, quick = talked(UntilAllHaveEnded).samples, talked(AtOnce).samples
    assert max(ended[:SAMPLES]) - min(ended[:SAMPLES]) > 16
    assert slow.extras["environment_error"] == (None,) * SAMPLES
    assert torch.equal(slow.completion_BT, quick.completion_BT)
    assert torch.equal(slow.behaviour_BT, quick.behaviour_BT)


def test_other_samples_go_on_while_one_that_was_cut_is_scored() -> None:
    went_on = asyncio.Event()

    class Scoring(AtOnce):
        async def reply(self, messages: list[dict[str, Any]]) -> Reply:  # type: ignore[override]
            if len(messages) > 2:
                went_on.set()
            return await super().reply(messages)

        async def cut(self) -> Reply:
            await went_on.wait()
            return Reply(done=True, reward=7.0)

    extras = talked(Scoring, patience=TURN_TOKENS).samples.extras
    assert (1, "length") in zip(extras["turns"], extras["cut"], strict=True)
    assert extras["environment_error"] == (None,) * SAMPLES
    for cut, rewards in zip(extras["cut"], extras["environment_rewards"], strict=True):
        assert (rewards[-1] >= 7.0) == (cut is not None)


@pytest.mark.parametrize(
    ("waits", "given", "tokens"), [(True, None, 60), (False, None, 0), (True, 5, 5), (False, 5, 5)]
)
def test_a_reply_that_may_take_long_is_waited_for_after_a_turn(waits: bool, given: int | None, tokens: int) -> None:
    options = ToolsEnvironmentConfig(kind="tools", tools=["x:y"], patience=given)
    assert Environments("tools", Counting, options, waits).patience(60) == tokens
