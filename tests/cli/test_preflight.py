"""What `validate` and `train` find before any weights are loaded: the user's reward, names, rates and sizes."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from support.command_line import Answer, vigneron, write_recipe
from vigneron.config import Config
from vigneron.recipe import check_config
from vigneron.training.setup.quick_checks import rate_notices

REWARDS = """
def right(prompts, completions, answer, **columns):
    return [float(a in c) for a, c in zip(answer, completions)]

def targets(prompts, completions, target, **columns):
    return [1.0] * len(completions)

def closed(prompts, completions, answer):
    return [1.0] * len(completions)

def by_key(prompts, completions, **columns):
    return [float(a in c) for a, c in zip(columns["solution"], completions)]

def words(prompts, completions, **columns):
    return ["good"] * len(completions)

def one_word(**columns):
    return "good"

async def first(prompts, completions, **columns):
    return [float(len(c.split()[0])) for c in completions]

def half(completions, **columns):
    return [0.5] * len(completions)

def length(completions, **columns):
    return [len(c.strip()) for c in completions]

def ranked(prompts, completions, **columns):
    return [1 / (prompts.count(prompt) - 1) for prompt in prompts]
"""


@pytest.fixture
def checked(tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A command on a recipe with a reward of the user's own, in the folder of its module."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "preflight_rewards.py").write_text(REWARDS)

    def run(function: str, *overrides: str, verb: str = "validate", **keys: Any) -> Answer:
        reward = {"kind": "python", "function": f"preflight_rewards:{function}"}
        keys = {"method": {"name": "grpo"}, "group_size": 2, "reward": reward, **keys}
        return vigneron(verb, write_recipe(tmp_path, tiny_folder, **keys), *overrides)

    return run


COLUMNS = "which the training data does not have; its columns: 'answer'"


@pytest.mark.parametrize(
    ("function", "line"),
    [
        (
            "targets",
            f"reward.function: reward 'targets' (preflight_rewards.py, line 5) needs a column 'target', {COLUMNS}",
        ),
        ("closed", "has no parameter for 'completion_ids', 'completion_truncated', 'log_extra', 'log_metric': add `**"),
        ("by_key", "raised KeyError: 'solution' (preflight_rewards.py, line 12); the columns of the training data: 'a"),
        ("words", "reward 'words' (preflight_rewards.py, line 14) returned the text 'good' for row 1; expected a numb"),
        ("one_word", "reward 'one_word' (preflight_rewards.py, line 17) returned the text 'good', not a list of numb"),
    ],
)
def test_a_reward_that_cannot_score_the_rows_is_refused_by_both_verbs(
    checked: Any, tmp_path: Path, function: str, line: str
) -> None:
    for verb in ("validate", "train"):
        answer = checked(function, verb=verb)
        assert answer.code == 2
        assert line in answer.err
    assert not (tmp_path / "runs").exists()


def test_a_reward_that_fails_on_empty_texts_is_noted(checked: Any) -> None:
    answer = checked("first")
    assert answer.code == 0, answer.err
    assert "note: reward 'first' (preflight_rewards.py, line 20) raised IndexError" in answer.out
    assert "for an empty completion, which stops the run as soon as the model writes nothing" in answer.out
    assert "note: reward" not in checked("right").out


def test_a_reward_that_takes_messages_for_text_is_noted_or_explained(checked: Any) -> None:
    """`'b' in [{"role": …}]` is false for every completion: such a run would train on nothing."""
    noted = checked("right", "data.chat=true")
    assert noted.code == 0, noted.err
    line = "note: reward 'right' (preflight_rewards.py, line 2) gives 0.0 to the data's own answer and to an empty comp"
    text = 'completions are lists of messages here, as in TRL: `completion[0]["content"]` is the text'
    assert line in noted.out
    assert text in noted.out
    raised = checked("length", "data.chat=true")
    assert "raised AttributeError: 'list' object has no attribute 'strip'" in raised.err
    assert text in raised.err
    assert checked("length").code == 0


@pytest.mark.slow
def test_a_reward_that_broke_since_is_found_before_a_model_is_loaded(
    checked: Any, tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By `resume`, after an edit of the file, and by `sample`."""
    trained = checked("right", "steps=1", verb="train")
    assert trained.code == 0, trained.err
    monkeypatch.setattr("preflight_rewards.right", sys.modules["preflight_rewards"].words)
    monkeypatch.setattr("vigneron.policy.from_config.load_policy", None)  # must not be called
    line = "reward 'words' (preflight_rewards.py, line 14) returned the text 'good' for row 1"
    assert line in vigneron("resume", "runs/my", "steps=2").err
    assert line in checked("right", verb="sample").err
    assert "method.name was grpo, is ppo: it cannot be changed" in vigneron("resume", "runs/my", "method.name=ppo").err


def test_a_reward_that_compares_the_completions_of_a_prompt_is_given_a_group(checked: Any, tmp_path: Path) -> None:
    (tmp_path / "other.jsonl").write_text('{"prompt": "e", "answer": "e"}\n')
    assert checked("ranked").code == 0
    assert checked("ranked", "data.held_out=other.jsonl", "eval_every=0").code == 0
    evaluated = checked("ranked", "data.held_out=other.jsonl")
    assert "raised ZeroDivisionError" in evaluated.err, "an evaluation has one completion of each prompt"


def test_a_column_that_only_the_held_out_data_lacks_and_a_bad_checker_are_found(checked: Any, tmp_path: Path) -> None:
    (tmp_path / "other.jsonl").write_text('{"prompt": "e"}\n')
    answer = checked("right", "data.held_out=other.jsonl")
    assert "needs a column 'answer', which the held-out data does not have" in answer.err
    answer = checked("right", "data.checker=preflight_rewards:half")
    assert "checker 'half' (preflight_rewards.py, line 23) returned 0.5; expected 1, 0 or None" in answer.err


RUBRIC = """\
categories:
  words:
    items:
      - {name: own, description: d, flow: python, function: 'preflight_rewards:targets'}
"""


def test_the_function_of_a_rubric_s_item_is_called_if_code_is_allowed(checked: Any, tmp_path: Path) -> None:
    (tmp_path / "rubric.yaml").write_text(RUBRIC)
    reward = {"kind": "rubric", "file": "rubric.yaml"}
    assert "Read it, then add --allow-code" in checked("", reward=reward).err
    line = "words.own: function 'targets' (preflight_rewards.py, line 5) needs a column 'target'"
    assert line in checked("", "--allow-code", reward=reward).err
    (tmp_path / "rubric.yaml").write_text(RUBRIC.replace("targets", "right"))
    assert checked("", "--allow-code", reward=reward).code == 0


@pytest.mark.slow
def test_sizes_that_do_not_fit_the_data_are_noted_before_training(checked: Any, tmp_path: Path) -> None:
    long = {"prompt": "c", "answer": "a long answer of many tokens"}
    (tmp_path / "long.jsonl").write_text(json.dumps({"prompt": "a", "answer": "b"}) + "\n" + json.dumps(long) + "\n")
    sizes = ("data.train=long.jsonl", "prompts_per_step=3", "optimizer.actor_lr=0.5")
    shown = checked("right", *sizes).out
    trained = checked("right", *sizes, "steps=1", verb="train")
    assert trained.code == 0, trained.err
    for note in (
        "optimizer.actor_lr: 0.5 is very high for `method: grpo` on all weights: 1e-7 to 1e-4 is usual",
        "prompts_per_step: 3 prompts a step, but the training data has 2 rows",
        "max_new_tokens: 2 is too short for 1 of 2 answers in the training data",
    ):
        assert f"note: {note}" in shown
        assert note in " ".join(trained.out.split())
    assert "  row 1: 'a»…«'\n  row 2: 'c»…«'" in shown


def test_a_model_that_is_not_here_is_compared_with_what_is(checked: Any) -> None:
    assert "looked up on the hub (did you mean 'smollm2-135m'?)" in checked("right", "model=smolm2").out
    assert "did you mean" not in checked("right", "model=distilgpt2").out


def config(name: str, rate: float, **model: Any) -> Config:
    data = {"task": "antonyms"}
    given = {"method": {"name": name}, "data": data, "model": model, "optimizer": {"actor_lr": rate}}
    sampled = {"reward": {"kind": "binary"}, "group_size": 2} if name == "grpo" else {}
    return check_config({**given, **sampled}, "my.yaml")


@pytest.mark.parametrize(
    ("method", "rate", "lora", "usual"),
    [
        ("grpo", 1e-5, False, None),
        ("grpo", 5e-4, False, "high for `method: grpo` on all weights: 1e-7 to 1e-4"),
        ("grpo", 5e-4, True, None),
        ("grpo", 1e-9, True, "low for `method: grpo` on a LoRA adapter: 1e-6 to 0.001"),
        ("sft", 1e-5, True, None),
        ("sft", 1e-6, False, None),
        ("sft", 3e-3, False, "high for `method: sft` on all weights: 1e-6 to 2e-4"),
        ("dpo", 1e-3, True, "high for `method: dpo` on a LoRA adapter: 1e-6 to 5e-4"),
    ],
)
def test_usual_learning_rates(method: str, rate: float, lora: bool, usual: str | None) -> None:
    notices = list(rate_notices(config(method, rate, **({"lora": {}} if lora else {}))))
    assert len(notices) == (usual is not None)
    assert usual is None or f"{usual} is usual" in notices[0]


def test_a_discriminator_is_a_whole_model_and_not_a_head() -> None:
    given = {"method": {"name": "gad"}, "data": {"task": "antonyms"}, "group_size": 2, "optimizer": {"critic_lr": 1e-3}}
    (notice,) = rate_notices(check_config(given, "my.yaml"))
    assert notice == "optimizer.critic_lr: 0.001 is very high for a discriminator: 1e-6 to 1e-4 is usual"
