"""GAD: the discriminator's loss and its gradient by a plain calculation, its score as GRPO's reward, and runs that
resume with it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from support.resuming import TrainedOnce, check_third_arm
from support.tiny_runs import tiny_config, write_data
from vigneron import api
from vigneron.data.prompts import Row, continuation
from vigneron.errors import NonFinite, UserError
from vigneron.methods import build_method
from vigneron.policy.from_config import policy_from_config
from vigneron.policy.reference import Reference
from vigneron.rollout.demonstrations import demonstrations
from vigneron.training.parts import Parts
from vigneron.training.update import Term

METHOD: dict[str, Any] = {"name": "gad", "kl": {"coefficient": 1e-3}}
COMMON: dict[str, Any] = {"reward": {"kind": "binary"}, "optimizer": {"actor_lr": 1e-3, "critic_lr": 1e-2}}
ROWS: list[Row] = [{"prompt": "say hot: ", "answer": "hot"}, {"prompt": "say cold: ", "answer": "cold"}]


def built(tiny_folder: Path, tmp_path: Path, **options: Any) -> tuple[Any, Any]:
    config = tiny_config(tiny_folder, write_data(tmp_path), method=METHOD | options, **COMMON)
    policy = policy_from_config(config)
    return build_method(Parts.of(config, policy, Reference.of(policy), lambda b: b, ROWS)), policy


def plain_scores(model: Any, texts: list[tuple[int, ...]]) -> torch.Tensor:
    """By transformers' own forward pass, one text at a time: the head at its last token."""
    scores = []
    for ids in texts:
        out = model.model(torch.tensor([ids])).last_hidden_state[0, -1]
        scores.append(out @ model.score.weight[0])
    return torch.stack(scores)


def test_loss_gradient_and_reward_are_those_of_a_plain_calculation(tiny_folder: Path, tmp_path: Path) -> None:
    method, policy = built(tiny_folder, tmp_path)
    batch = method.rollout(ROWS, 3)
    rewarded = method.reward(batch)
    update = method.update.discriminator
    pairs = method.update.pairs(batch)
    discriminator = [weight for _, weight in update.optimized[0].parameters]
    model = update.score.__closure__[0].cell_contents.causal

    def ids_of(texts: list[str]) -> list[tuple[int, ...]]:
        rows = [{"prompt": p, "answer": t} for p, t in zip(batch.samples.prompts, texts, strict=True)]
        return [text.ids for text in demonstrations(policy, rows)]

    samples = plain_scores(model, ids_of(list(batch.samples.completions)))
    torch.testing.assert_close(rewarded.signals.rewards_B, samples.detach(), atol=1e-5, rtol=1e-4)
    answers = plain_scores(model, ids_of(list(batch.samples.columns["answer"])))
    expected = -torch.nn.functional.logsigmoid(answers - samples).mean()
    found = {name: value for name, value, _ in update.accumulate(pairs, lambda p: update.loss(p, update.score(p)))}
    assert found["loss/discriminator"] == pytest.approx(expected.item(), rel=1e-4)
    assert found["discriminator/margin"] == pytest.approx((answers - samples).mean().item(), rel=1e-3, abs=1e-6)
    for weight, wanted in zip(discriminator, torch.autograd.grad(expected, discriminator), strict=True):
        torch.testing.assert_close(weight.grad, wanted, atol=1e-6, rtol=1e-3)
    advantages = method.advantage(rewarded).signals.advantages_BT[:, 0]
    means = samples.detach().view(2, 2).mean(1).repeat_interleave(2)  # two samples of each prompt
    torch.testing.assert_close(advantages, samples.detach() - means, atol=1e-5, rtol=1e-3)


def test_in_its_warmup_the_discriminator_alone_is_trained(tiny_folder: Path, tmp_path: Path) -> None:
    method, policy = built(tiny_folder, tmp_path, warmup=1)
    before = [weight.detach().clone() for _, weight in policy.trainable()]
    changes = []
    for step in range(2):
        batch = method.advantage(method.reward(method.rollout(ROWS, step)))
        metrics = method.update(batch)
        assert "loss/discriminator" in metrics
        assert ("loss/policy" in metrics) == (step == 1)
        now = [weight.detach() for _, weight in policy.trainable()]
        changes.append(any(not torch.equal(a, b) for a, b in zip(before, now, strict=True)))
    assert changes == [False, True]


@pytest.mark.parametrize("warmup", [0, 1])
def test_an_error_of_the_discriminator_says_whether_the_child_was_updated(
    tiny_folder: Path, tmp_path: Path, warmup: int
) -> None:
    method, _ = built(tiny_folder, tmp_path, warmup=warmup)
    method.update.discriminator.loss = lambda batch, scores_B: [
        Term("loss/discriminator", scores_B / 0, 1.0, "samples")
    ]
    batch = method.advantage(method.reward(method.rollout(ROWS, 0)))
    stays = "" if warmup else ", after the child's update of this step, which stays"
    with pytest.raises(NonFinite, match=rf"^loss/discriminator: not finite{stays}\. The update was not applied"):
        method.update(batch)


def test_its_own_reward_does_not_show_progress(tiny_folder: Path, tmp_path: Path) -> None:
    method, _ = built(tiny_folder, tmp_path)
    assert method.notices[-1].endswith("a model's that is trained too: accuracy and eval/reward show progress")


def lose_discriminator(run: Any) -> None:
    torch.nn.init.zeros_(run.method.update.weights()["critic.score.weight"])


def lose_its_optimizer(run: Any) -> None:
    run.method.update.discriminator.optimized[0].optimizer.state.clear()


def lose_the_childs_optimizer(run: Any) -> None:
    run.method.update.child.optimized[0].optimizer.state.clear()


@pytest.mark.slow
@pytest.mark.parametrize("lose", [lose_discriminator, lose_its_optimizer, lose_the_childs_optimizer])
def test_every_part_of_its_state_is_needed(
    tiny_folder: Path, tmp_path: Path, trained_once: TrainedOnce, lose: Any
) -> None:
    def config_in(place: Path) -> Any:
        return tiny_config(tiny_folder, write_data(place), method=METHOD, steps=4, save_every=2, eval_every=0, **COMMON)

    check_third_arm(trained_once("gad", config_in), tmp_path, lose)


@pytest.mark.slow
def test_the_discriminator_learns_to_tell_before_the_child_is_trained(tiny_folder: Path, tmp_path: Path) -> None:
    """First the discriminator alone: it tells answers from random bytes. Then the child is trained too."""
    config = tiny_config(
        tiny_folder,
        write_data(tmp_path),
        method={**METHOD, "warmup": 10, "kl": {"coefficient": 0.0}},
        reward={"kind": "binary"},
        optimizer={"actor_lr": 1e-2, "critic_lr": 3e-3},
        steps=12,
        eval_every=0,
        group_size=8,
    )
    folder = api.train(config, name="run", runs=tmp_path).folder
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    told = [record["discriminator/accuracy"] for record in found]
    assert max(told[5:12]) > 0.9
    assert "loss/policy" not in found[9]
    assert "loss/policy" in found[10]


@pytest.mark.parametrize(
    ("scale", "match"),
    [
        ({"shard": 2}, "set `scale.shard` to 1"),
        ({"staleness": 1, "sampling": {"kind": "ray"}}, "set `scale.staleness` to 0"),
    ],
)
def test_what_it_cannot_do_is_one_line(tiny_folder: Path, tmp_path: Path, scale: dict[str, Any], match: str) -> None:
    with pytest.raises(UserError, match=match):
        tiny_config(tiny_folder, write_data(tmp_path), method=METHOD, scale=scale, **COMMON)


def test_rows_without_answers_are_one_line(tiny_folder: Path, tmp_path: Path) -> None:
    data = tmp_path / "bare.jsonl"
    data.write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    common = {**COMMON, "reward": {"kind": "python", "function": "support.rewards:length"}}
    with pytest.raises(UserError, match="answer"):
        api.train(tiny_config(tiny_folder, data, method=METHOD, **common), name="run", runs=tmp_path)


def test_a_warmup_that_leaves_no_step_for_the_child_is_refused(tiny_folder: Path, tmp_path: Path) -> None:
    data = write_data(tmp_path)
    with pytest.raises(UserError, match=r"`method.warmup: 4` leaves none of 4 steps to train the model in"):
        tiny_config(tiny_folder, data, method=METHOD | {"warmup": 4}, **COMMON, steps=4)
    assert tiny_config(tiny_folder, data, method=METHOD | {"warmup": 3}, **COMMON, steps=4).method.name == "gad"


def test_the_parents_answer_follows_a_text_as_an_answer_does_and_a_conversation_as_it_is() -> None:
    """A sample has its own space: else D could tell the two apart by that."""
    assert continuation("The opposite of hot is", "cold") == " cold"
    assert continuation("Hot?\n", "cold") == "cold"
    assert continuation([{"role": "user", "content": "Hot?"}], "cold") == "cold"
