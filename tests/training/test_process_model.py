"""A process model: cross-entropy at step ends, the outcome model as its last step, its rewards, a run that resumes."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from support.judged_data import process_config as config_in
from support.judged_data import score_config, score_rows
from support.minimal_recipe import again
from support.resuming import TrainedOnce, check_third_arm, lose_optimizers, lose_schedule
from support.tiny_models import tiny_scorer
from support.tiny_runs import final_state, tiny_recipe, write_data
from vigneron import api
from vigneron.errors import UserError
from vigneron.methods import build_method
from vigneron.policy.reference import Reference
from vigneron.policy.reward_model import reward_model_kind, set_reward_model_kind, step_separator
from vigneron.recipe import check_config
from vigneron.rewards.build import build_reward
from vigneron.rewards.model import ModelReward
from vigneron.rewards.process import ProcessReward, step_probabilities
from vigneron.training.method import unchanged
from vigneron.training.parts import Parts
from vigneron.training.row_losses import row_losses


def loss_and_gradients(method: dict[str, Any], rows: list[dict[str, Any]], budget: int = 4096) -> Any:
    """One update's loss and gradients, on a scorer in float64."""
    policy = tiny_scorer("llama", dtype=torch.float64)
    given = {"method": method, "data": {"train": "x.jsonl"}, "microbatch_tokens": budget}
    config = check_config(given | {"optimizer": {"max_grad_norm": 1e9}}, "test")
    built = build_method(Parts.of(config, policy, Reference.of(policy), unchanged))
    batch = built.advantage(built.rollout([{**row, "answer": row["completion"]} for row in rows]))
    update: Any = built.update
    values = update.accumulate(batch, lambda part: update.loss(part, update.score(part)))
    gradients = {name: weight.grad.clone() for name, weight in policy.trainable() if weight.grad is not None}
    return {value.name: value.value for value in values}, gradients, policy


ROWS = [
    {"prompt": "p", "completion": "ab\nc\nd", "labels": [1.0, 0.0, None]},
    {"prompt": "p", "completion": "xyz", "labels": [0.25]},
    {"prompt": "qq", "completion": "e\nfg", "labels": [None, 1.0]},
]


def plain_loss(policy: Any, rows: list[dict[str, Any]] = ROWS) -> float:
    """Every label by itself: transformers' pass over one text, without padding or packing."""
    total, count = 0.0, 0
    head, trunk = policy.causal.score, policy.causal.model
    for row in rows:
        ids = [*policy.tokenizer(row["prompt"])["input_ids"], *policy.tokenizer(row["completion"])["input_ids"], 0]
        hidden = trunk(torch.tensor([ids])).last_hidden_state[0]
        at, steps = len(row["prompt"]), row["completion"].split("\n")
        for number, (step, label) in enumerate(zip(steps, row["labels"], strict=True)):
            at += len(step)
            place = len(ids) - 1 if number == len(steps) - 1 else at - 1
            at += 1
            if label is not None:
                p = float(head(hidden[place]).sigmoid())
                total -= label * torch.tensor(p).log() + (1 - label) * torch.tensor(1 - p).log()
                count += 1
    return float(total) / count


@pytest.mark.parametrize("budget", [4096, 12])
def test_the_loss_is_the_mean_cross_entropy_at_the_labelled_ends(budget: int) -> None:
    values, gradients, policy = loss_and_gradients({"name": "process_model"}, ROWS, budget)
    with torch.no_grad():
        assert values["loss/score"] == pytest.approx(plain_loss(policy), abs=1e-6)
    _, whole, _ = loss_and_gradients({"name": "process_model"}, ROWS)
    for name, gradient in whole.items():
        torch.testing.assert_close(gradients[name], gradient)


def test_the_loss_of_a_row_is_the_mean_over_its_own_labels() -> None:
    """What `curriculum.by: loss` orders by: neither the number of steps nor the other rows count."""
    policy = tiny_scorer("llama", dtype=torch.float64)
    config = check_config({"method": {"name": "process_model"}, "data": {"train": "x.jsonl"}}, "test")
    parts = Parts.of(config, policy, Reference.of(policy), unchanged)
    measure = row_losses(parts, build_method(parts))
    rows = [{**row, "answer": row["completion"]} for row in ROWS]
    with torch.no_grad():
        wanted = [plain_loss(policy, [row]) for row in ROWS]
    assert measure(rows) == pytest.approx(wanted, abs=1e-6)
    assert measure(rows[:2]) == pytest.approx(wanted[:2], abs=1e-6)


SCORED = [{"prompt": f"p{n}", "completion": "ab" * (1 + n % 2), "score": n / 5} for n in range(6)]


@pytest.mark.parametrize("budget", [4096, 12])
def test_one_step_is_the_score_model_to_the_bit(budget: int) -> None:
    scores = loss_and_gradients({"name": "score_model"}, SCORED, budget)
    one_step = [{**row, "labels": [row["score"]]} for row in SCORED]
    last = [{**row, "labels": [None, row["score"]]} for row in SCORED]
    for method, rows in (
        ({"separator": None}, one_step),
        ({"separator": "\n"}, one_step),
        ({"separator": "\n", "steps": "last"}, last),
    ):
        values, gradients, _ = loss_and_gradients({"name": "process_model", **method}, rows, budget)
        assert values == scores[0]
        assert all(torch.equal(gradients[name], gradient) for name, gradient in scores[1].items())


def test_a_run_of_one_step_is_the_run_of_a_score_model(tmp_path: Path, tiny_folder: Path) -> None:
    rows = score_rows("say {}:")
    config = score_config(tmp_path, tiny_folder, rows).model_copy(update={"steps": 3, "eval_every": 0})
    scores = api.train(config, name="scores", runs=tmp_path)
    one_step = [{**row, "labels": [row["score"]]} for row in rows]
    same = {"prompts_per_step": 16, "steps": 3, "eval_every": 0, "save_every": 0, "optimizer": {"actor_lr": 3e-3}}
    config = config_in(tmp_path, tiny_folder, {"separator": None}, rows=one_step, held_out=False, **same)
    steps = api.train(config, name="steps", runs=tmp_path)
    before, after = (final_state(each.folder) for each in (scores, steps))
    assert before["model.safetensors"] == after["model.safetensors"]
    assert before["state/tensors.safetensors"] == after["state/tensors.safetensors"]


@pytest.mark.slow
def test_it_learns_which_steps_are_right_and_is_a_reward(tmp_path: Path, tiny_folder: Path) -> None:
    learning = {"optimizer": {"actor_lr": 1e-2}, "steps": 60, "prompts_per_step": 32, "eval_every": 30, "save_every": 0}
    config = config_in(tmp_path, tiny_folder, **learning)
    trained = api.train(config, name="steps", runs=tmp_path)
    records = [json.loads(line) for line in (trained.folder / "metrics.jsonl").read_text().splitlines()]
    assert records[0]["eval/loss"] > 0.6
    assert records[-1]["eval/accuracy"] > 0.9
    assert (reward_model_kind(trained.policy), step_separator(trained.policy)) == ("process", "\n")

    def reward(prompts: list[str], texts: list[str], **options: Any) -> list[Any]:
        given = {"kind": "process", "model": str(tmp_path / "steps" / "checkpoints" / "step-60"), **options}
        method: dict[str, Any] = {"method": {"name": "reinforce"}, "data": {"task": "antonyms"}}
        return build_reward(check_config({**method, "reward": given}, "t").reward, unchanged)(prompts, texts)

    texts = ["hot.\nhot.", "hot.\nhot!", "hot!\nhot.", ""]
    right, late, early, empty = reward(["name hot:"] * 4, texts)
    assert right > 0.6 > 0.4 > max(late, early)
    assert 0 < empty < 1
    # Another separator: the text is one step, read at its end.
    assert reward(["name hot:"], texts[2:3], separator=";") == reward(["name hot:"], texts[2:3], combine="last")
    outcome = api.train(config_in(tmp_path, tiny_folder, {"steps": "last"}), name="outcome", runs=tmp_path)
    with pytest.raises(UserError, match=r"scores one text: set `reward\.kind: model`"):
        reward([], [], model=str(outcome.folder / "checkpoints" / "step-8"))


def test_probabilities_are_those_of_one_text_at_a_time() -> None:
    scorer = tiny_scorer("gpt2", dtype=torch.float64)
    texts = ["ab\nc\nd", "xyz", "", "e\n\nfg\n"]
    prompts = ["p", "q", "p", [{"role": "user", "content": "hi"}]]
    together = step_probabilities(scorer, prompts, texts, "\n")
    assert list(map(len, together)) == [3, 1, 1, 2]
    for prompt, text, row in zip(prompts, texts, together, strict=True):
        assert step_probabilities(scorer, [prompt], [text], "\n")[0] == pytest.approx(row, abs=1e-10)
    with torch.no_grad():
        ids = scorer.tokenizer("pab")["input_ids"]
        first = float(scorer.causal.score(scorer.causal.transformer(torch.tensor([ids])).last_hidden_state[0, -1]))
    assert together[0][0] == pytest.approx(float(torch.tensor(first).sigmoid()), abs=1e-7)
    # The last step is the outcome: what a reward model reads.
    outcome = ModelReward(scorer)(["p ", "q "], ["ab\nc\nd", "xyz"])
    last = [row[-1] for row in step_probabilities(scorer, ["p ", "q "], texts[:2], "\n")]
    assert last == pytest.approx(torch.tensor(outcome, dtype=torch.float64).sigmoid().tolist(), abs=1e-6)


def test_shaped_rewards_and_what_is_logged() -> None:
    scorer = tiny_scorer("gpt2", dtype=torch.float64)
    set_reward_model_kind(scorer, "process", "\n")
    extras: dict[str, Any] = {}
    metrics: dict[str, float] = {}
    log = {"log_extra": extras.__setitem__, "log_metric": metrics.__setitem__}
    texts = ["ab\nc\nd", " xyz\n"]
    rewards = ProcessReward(scorer, combine="product", at_steps=True)(["p", "q"], texts, **log)
    steps = step_probabilities(scorer, ["p", "q"], texts, "\n")
    assert metrics == {"steps": 2.0}
    assert extras["step_probabilities"] == [[round(p, 4) for p in row] for row in steps]
    assert [[stop for stop, _ in row] for row in extras["step_rewards"]] == [[2, 4, 6], [4]]
    a, b, c = steps[0]
    changes = [reward for _, reward in extras["step_rewards"][0]]
    assert changes == pytest.approx([a, a * b - a, a * b * c - a * b])
    assert rewards == pytest.approx([a * b * c, steps[1][0]])
    s = (a * b * c) ** (1 / 3)
    n = torch.tensor(3 / 8, dtype=torch.float64)
    wanted = s * 10.735 * 1.5 / 8 * n**0.5 * torch.exp(-(n**1.5))
    assert ProcessReward(scorer, shape="pspo")(["p"], texts[:1]) == pytest.approx([float(wanted)])
    released = ProcessReward(scorer, shape="pspo_released")(["p"], texts[:1])
    assert released == pytest.approx([s * s * float(torch.tensor(1.5, dtype=torch.float64).exp())])


@pytest.mark.parametrize("lose", [lose_optimizers, lose_schedule])
def test_every_part_of_the_state_is_needed(
    tmp_path: Path, tiny_folder: Path, trained_once: TrainedOnce, lose: Any
) -> None:
    check_third_arm(trained_once("process", lambda place: config_in(place, tiny_folder)), tmp_path, lose)


@pytest.mark.parametrize(
    ("method", "rows", "line"),
    [
        ({"separator": ";"}, None, "the separator ';' occurs in no completion: set `method.separator`"),
        ({"labels": "marks"}, None, "row 1: 'marks' must be a list"),
        ({}, [{"prompt": "p", "completion": "a\nb", "labels": [1, 1, 1]}], "row 1: 3 labels for 2 steps"),
    ],
)
def test_bad_data_is_one_line(tmp_path: Path, tiny_folder: Path, method: dict[str, Any], rows: Any, line: str) -> None:
    changes = {} if rows is None else {"rows": rows}
    with pytest.raises(UserError, match=line) as caught:
        api.train(config_in(tmp_path, tiny_folder, method, **changes), runs=tmp_path)
    assert "\n" not in str(caught.value)


def test_trls_stepwise_rows_are_read(tmp_path: Path, tiny_folder: Path) -> None:
    rows = [{"prompt": f"p{n}", "completions": ["a", f"b{n}"], "labels": [True, False]} for n in range(4)]
    trained = api.train(config_in(tmp_path, tiny_folder, rows=rows, held_out=False), name="trl", runs=tmp_path)
    saved = [json.loads(line) for line in (trained.folder / "data" / "train.jsonl").read_text().splitlines()]
    assert sorted(row["completion"] for row in saved) == [f"a\nb{n}" for n in range(4)]
    assert saved[0]["labels"] == [1.0, 0.0]


@pytest.mark.parametrize(
    ("reward", "method", "line"),
    [
        ({"rewards_at": "steps"}, {"name": "grpo"}, "`reward.rewards_at: steps` has no effect with `method: grpo`"),
        ({"rewards_at": "steps"}, {"name": "ppo", "advantage": "eq_12"}, "it needs `method: ppo`"),
        ({"rewards_at": "steps", "sees": "answer"}, {"name": "ppo"}, "needs the whole completion"),
        ({"shape": "pspo", "combine": "min"}, {"name": "grpo"}, "`combine` has no effect with `shape: pspo`"),
        ({"combine": "sum"}, {"name": "grpo"}, "reward.combine"),
    ],
)
def test_options_without_an_effect(reward: dict[str, Any], method: dict[str, Any], line: str) -> None:
    given = {"reward": {"kind": "process", "model": "m", **reward}, "method": method}
    with pytest.raises(UserError, match=line):
        check_config({**given, "group_size": 2, "data": {"task": "ladder-steps"}}, "t")


@pytest.mark.parametrize("options", [{"shape": "pspo"}, {"combine": "last"}, {"rewards_at": "steps"}])
def test_a_config_is_read_as_it_was_written(options: dict[str, Any]) -> None:
    reward = {"kind": "process", "model": "m", **options}
    config = check_config({"method": {"name": "ppo"}, "data": {"task": "ladder-steps"}, "reward": reward}, "t")
    assert again(config) == config


def test_a_part_of_a_combined_reward_has_one_reward_a_text() -> None:
    part = {"kind": "process", "model": "m"}
    given: dict[str, Any] = {"method": {"name": "ppo"}, "data": {"task": "ladder-steps"}}
    for rewards_at in ("end", "steps"):
        parts = [{"kind": "binary"}, {**part, "rewards_at": rewards_at}]
        given["reward"] = {"kind": "combined", "rewards": parts}
        if rewards_at == "end":
            check_config(given, "t")
        else:
            with pytest.raises(UserError, match="has no effect in a combined reward"):
                check_config(given, "t")


@pytest.mark.slow
def test_ppo_with_rewards_at_step_ends(tmp_path: Path, tiny_folder: Path) -> None:
    scorer = api.train(config_in(tmp_path, tiny_folder), name="steps", runs=tmp_path).folder
    reward = {"kind": "process", "model": str(scorer), "separator": "a", "rewards_at": "steps"}
    given = tiny_recipe(
        tiny_folder, write_data(tmp_path), method={"name": "ppo"}, reward=reward, steps=2, max_new_tokens=8
    )
    trained = api.train(check_config(given, "tiny"), name="ppo", runs=tmp_path)
    last = json.loads((trained.folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert 0 < last["reward"] < 1
    assert last["reward/steps"] >= 1
