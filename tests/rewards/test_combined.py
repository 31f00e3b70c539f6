"""Several rewards in one, what follows a delimiter, and the penalty of long completions: numbers worked out by hand."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from support.small_batch import make_batch
from support.tiny_runs import tiny_config, write_data
from vigneron import api
from vigneron.batch import Batch
from vigneron.config import Config
from vigneron.core.shaping import tie_break
from vigneron.errors import UserError
from vigneron.recipe import check_config
from vigneron.rewards.apply import SEEN, ApplyReward, after
from vigneron.rewards.combined import CombinedReward, combined
from vigneron.rewards.user_reward import RewardFailed
from vigneron.run_store.folder import RunFolder
from vigneron.training.metrics import batch_metrics

NAN = math.nan


def letters(prompts: list[Any], completions: list[Any], **_: Any) -> list[float | None]:
    return [float(len(text)) if text else None for text in completions]


def ends_in_a_vowel(prompts: list[Any], completions: list[Any], **_: Any) -> list[float | None]:
    return [float(text[-1:] in "aeiou" and bool(text)) for text in completions]


async def slowly(prompts: list[Any], completions: list[Any], **_: Any) -> list[float | None]:
    return [10.0] * len(completions)


def small_batch(*, completions: tuple[str, ...] = ("a", "b", "c", "d")) -> Batch:
    return make_batch([2] * 4, [1, 2, 3, 4], completions=completions)


def config_with(reward: dict[str, Any], **more: Any) -> Config:
    return check_config(
        {
            "method": {"name": "grpo"},
            "data": {"train": "rows.jsonl"},
            "reward": reward,
            "group_size": 4,
            "max_new_tokens": 8,
            **more,
        },
        "test",
    )


def test_each_way_to_combine_by_hand() -> None:
    """Two groups of two; the second reward of the last sample is missing."""
    raw = torch.tensor([[1.0, 10.0], [3.0, 10.0], [0.0, 4.0], [1.0, NAN]]).double()
    groups, weights = torch.tensor([0, 0, 7, 7]), torch.tensor([1.0, 0.5]).double()
    assert combined(raw, groups, weights, "sum")[:3].tolist() == [6.0, 8.0, 2.0]
    assert combined(raw, groups, weights, "min")[:3].tolist() == [1.0, 3.0, 0.0]
    root = math.sqrt(2)  # the unbiased std of 1 and 3
    normalised = combined(raw, groups, weights, "normalised")
    assert normalised[:2].tolist() == pytest.approx([-1 / (root + 1e-4), 1 / (root + 1e-4)])
    assert normalised[2].item() == 0, "there is no other sample with all rewards in its group"
    for kind in ("sum", "min", "normalised"):
        assert combined(raw, groups, weights, kind)[3].isnan(), kind  # type: ignore[arg-type]


def test_a_sample_with_a_missing_reward_is_in_no_mean_and_no_std_of_the_other_rewards() -> None:
    """The 100 is left out: of 0, 1, 2 the mean is 1 and the std 1, of 1, 0, ½ they are ½ and ½."""
    raw = torch.tensor([[0.0, 1.0], [1.0, 0.0], [2.0, 0.5], [100.0, NAN]]).double()
    got = combined(raw, torch.zeros(4, dtype=torch.long), torch.tensor([1.0, 3.0]).double(), "normalised")
    one, half = 1 / (1 + 1e-4), 0.5 / (0.5 + 1e-4)
    assert got[:3].tolist() == pytest.approx([-one + 3 * half, -3 * half, one])
    assert got[3].isnan()


@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(-500, 500)), min_size=4, max_size=12), st.floats(0.1, 50))
def test_a_part_s_scale_does_not_matter_once_normalised(rows: list[tuple[float, float]], factor: float) -> None:
    raw = torch.tensor(rows, dtype=torch.float64).round(decimals=2)
    groups, weights = torch.arange(len(rows)) // 4, torch.ones(2).double()
    one = combined(raw, groups, weights, "normalised")
    other = combined(raw * torch.tensor([1.0, factor]).double(), groups, weights, "normalised")
    spread = raw[:, 1].std()
    assert torch.allclose(one, other, atol=0.02) or spread * min(factor, 1.0) < 0.05


def test_parts_are_logged_and_a_missing_one_is_missing() -> None:
    reward = CombinedReward([("python", letters), ("python", ends_in_a_vowel)], [1.0, 10.0], "sum")
    batch = ApplyReward(reward, missing_limit=1.0)(small_batch(completions=("abc", "", "ba", "b")))
    values = batch.signals.rewards_B.tolist()
    assert [values[0], values[2], values[3]] == [3.0, 12.0, 1.0]
    assert math.isnan(values[1])
    assert batch.signals.metrics["reward/python_1"] == 2.0
    assert batch.signals.metrics["reward/python_2"] == 0.25
    assert batch.samples.extras["reward_python_2"] == (0.0, 0.0, 1.0, 0.0)


def test_it_can_be_called_as_trl_does() -> None:
    reward = CombinedReward([("letters", letters), ("vowel", ends_in_a_vowel)], [1.0, 1.0], "normalised")
    values = reward(["p", "p", "q", "q"], ["a", "b", "aaa", "b"], answer=["", "", "", ""])
    root = math.sqrt(0.5) + 1e-4
    assert values[:2] == pytest.approx([0.5 / root, -0.5 / root])
    assert values[2] == pytest.approx(1 / (math.sqrt(2) + 1e-4) + 0.5 / root)


def test_an_asynchronous_part_overlaps_and_a_failing_one_is_named() -> None:
    assert CombinedReward([("a", slowly), ("b", letters)], [1, 1], "sum").overlaps
    both = ApplyReward(CombinedReward([("slow", slowly), ("letters", letters)], [1, 1], "sum"))
    assert both(small_batch(completions=("abc", "d", "ba", "b"))).signals.rewards_B.tolist() == [13.0, 11.0, 12.0, 11.0]

    def fails(**_: Any) -> list[float]:
        raise ValueError("no")

    for name, shown in (("mine", "mine"), ("python", "fails")):
        with pytest.raises(RewardFailed, match=rf"reward '{shown}' raised ValueError: no"):
            ApplyReward(CombinedReward([(name, fails), ("letters", letters)], [1, 1], "sum"))(small_batch())


def test_what_follows_the_delimiter() -> None:
    assert after("so 3 + 4 is </think> 7 ", "</think>") == "7"
    assert after("a</think>b</think>c", "</think>") == "c"
    assert after("it never ends", "</think>") == "", "reasoning must not reach the reward"
    assert after([{"role": "assistant", "content": "x</think>y"}], "</think>") == [
        {"role": "assistant", "content": "y"}
    ]


def test_reward_and_checker_see_only_the_answer() -> None:
    config = config_with({"kind": "python", "function": f"{__name__}:letters", "sees": "answer", "missing_limit": 1.0})
    batch = ApplyReward.of(config, letters)(
        small_batch(completions=("long</think>ab", "no", "</think>abc", "x</think>"))
    )
    values = batch.signals.rewards_B.tolist()
    assert [values[0], values[2]] == [2.0, 3.0]
    assert math.isnan(values[1])
    assert math.isnan(values[3])
    assert batch.samples.extras[SEEN] == ("ab", "", "abc", "")
    assert batch.signals.metrics["completions/answered"] == 0.75


def test_the_tokens_of_the_reasoning_are_not_given() -> None:
    seen: list[set[str]] = []

    def reward(completions: list[Any], **columns: Any) -> list[float]:
        seen.append(set(columns))
        return [1.0] * len(completions)

    for sees in ("answer", "completion"):
        config = config_with({"kind": "python", "function": f"{__name__}:letters", "sees": sees})
        ApplyReward.of(config, reward)(small_batch(completions=("a</think>b",) * 4))
    assert "completion_ids" not in seen[0]
    assert "completion_ids" in seen[1]


def test_the_overlong_penalty_is_added() -> None:
    reward = {"kind": "python", "function": f"{__name__}:letters", "overlong": {"buffer": 2, "penalty": 3.0}}
    batch = small_batch(completions=("a", "bb", "ccc", "dddd"))
    widths = batch.samples.widths
    limit = max(widths)
    config = config_with(reward, max_new_tokens=limit)
    values = ApplyReward.of(config, letters)(batch)
    wanted = [n + 1.0 - 3.0 * min(1.0, max(0.0, (width - limit + 2) / 2)) for n, width in enumerate(widths)]
    assert values.signals.rewards_B.tolist() == pytest.approx(wanted)
    assert values.signals.metrics["reward/overlong"] < 0


def test_the_overlong_penalty_of_a_conversation_counts_the_models_own_tokens() -> None:
    """Three turns of 4 tokens at most: 12. The replies in between have 5 tokens each."""
    reward = {"kind": "python", "function": f"{__name__}:letters", "overlong": {"buffer": 4}}
    talk = {"environment": {"kind": "python", "class": "a:B", "max_turns": 3}, "max_new_tokens": 4}
    batch = small_batch(completions=("a", "bb", "ccc", "dddd"))
    turns = (((3, 7), (12, 16), (21, 25)), ((3, 7), (12, 14)), ((3, 6), (11, 14), (19, 23)), ((3, 7),))
    wide = torch.zeros(4, 22, dtype=torch.long)
    batch = batch.with_samples(spans=turns, completion_BT=wide, completion_ids=None)
    scored = ApplyReward.of(config_with(reward, **talk), letters)(batch)
    assert scored.signals.rewards_B.tolist() == pytest.approx([1.0 - 1.0, 2.0, 3.0 - 0.5, 4.0])
    assert batch_metrics(scored)["completions/mean_length"] == (12 + 6 + 10 + 4) / 4


def test_what_the_reward_saw_is_compared_also_beside_demonstrations() -> None:
    batch = small_batch(completions=("so</think>hot", "no</think>cold", "hot", "x"))
    batch = batch.with_samples(
        columns={"answer": ("hot",) * 4},
        extras={"origin": ("fresh", "fresh", "demonstrated", "fresh"), SEEN: ("hot", "cold", "hot", "x")},
    ).with_signals(rewards_B=torch.zeros(4))
    assert batch_metrics(batch)["exact_match"] == 1 / 3


@pytest.mark.parametrize(
    ("reward", "line"),
    [
        ({"kind": "combined", "rewards": [{"kind": "binary"}]}, "rewards"),
        ({"kind": "combined", "rewards": [{"kind": "binary"}] * 2, "weights": [1.0]}, "1 numbers for 2 rewards"),
        ({"kind": "combined", "rewards": [{"kind": "binary", "sees": "answer"}, {"kind": "binary"}]}, "belongs to the"),
        ({"kind": "binary", "delimiter": "###"}, "no effect without `sees: answer`"),
        ({"kind": "binary", "overlong": {"buffer": 100}}, "above the longest completion"),
        ({"kind": "combined", "rewards": [{"kind": "rubric", "file": "x"}, {"kind": "binary"}]}, "rubric"),
    ],
)
def test_bad_input(reward: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError, match=line):
        config_with(reward)


def test_normalising_needs_groups() -> None:
    reward = {"kind": "combined", "rewards": [{"kind": "binary"}] * 2, "combine": "normalised"}
    with pytest.raises(UserError, match="group_size"):
        config_with(reward, method={"name": "reinforce", "baseline": "none"}, group_size=1)


@pytest.mark.slow
def test_a_run_by_a_combined_reward_can_be_read_again(tmp_path: Any, tiny_folder: Any) -> None:
    parts = [{"kind": "binary"}, {"kind": "python", "function": f"{__name__}:ends_in_a_vowel"}]
    config = tiny_config(
        tiny_folder,
        write_data(tmp_path),
        method={"name": "grpo"},
        reward={"kind": "combined", "rewards": parts, "weights": [1.0, 0.5], "combine": "normalised"},
        optimizer={"actor_lr": 1e-3},
        group_size=4,
        steps=2,
    )
    run = api.train(config, name="run", runs=tmp_path)
    again = RunFolder.open(run.folder)
    assert again.config().reward.kind == "combined"
    assert {"reward/binary", "reward/python"} <= again.metrics()[-1].keys()
    assert api.load_run(run.folder).evaluate()["reward"] >= 0


def two(combine: str, check: Any = ends_in_a_vowel, dense: Any = letters) -> CombinedReward:
    return CombinedReward([("check", check), ("dense", dense)], [1.0, 1.0], combine)  # type: ignore[arg-type]


def test_annealed_by_hand() -> None:
    """Dense (the number of letters) until a sample of the prompt ends in a vowel; from then on the check."""
    reward = two("annealed")
    prompts = ["p", "p", "q", "q"]
    assert reward(prompts, ["bb", "ccc", "b", "dd"]) == [2.0, 3.0, 1.0, 2.0]
    assert reward(prompts, ["bb", "ccc", "a", "dd"]) == [2.0, 3.0, 1.0, 0.0], "the step of the first hit is checked"
    assert reward(prompts, ["bb", "ccc", "bb", "dd"]) == [2.0, 3.0, 0.0, 0.0], "q stays checked, p is still dense"


def test_what_is_missing_in_an_annealed_reward_is_what_is_used() -> None:
    """The dense part is missing for an empty text: that does not matter once the prompt has been hit."""
    reward = two("annealed")
    assert reward(["p", "p"], ["", "bb"]) == [None, 2.0]
    assert reward(["p", "p"], ["", "ba"]) == [0.0, 1.0]
    unknown = two("annealed", check=lambda prompts, completions, **_: [None, 1.0])
    assert unknown(["p", "q"], ["bb", "cc"]) == [2.0, 1.0], "a missing check is no hit"


def test_the_memory_is_kept_in_checkpoints_and_not_touched_by_evaluation() -> None:
    reward = two("annealed")
    slot = ApplyReward(reward)
    batch = small_batch(completions=("ba", "bb", "bb", "bb"))  # four prompts, a hit of the first
    assert slot.evaluate(batch).signals.rewards_B.tolist() == [1.0, 0.0, 0.0, 0.0], "the check alone"
    assert slot.scalars()["hits"] == []
    misses = small_batch(completions=("bb", "b", "b", "b"))
    assert slot(misses).signals.rewards_B.tolist() == [2.0, 1.0, 1.0, 1.0]
    slot(batch)
    other = ApplyReward(two("annealed"))
    other.load(slot.scalars())
    assert other(misses).signals.rewards_B.tolist() == [0.0, 1.0, 1.0, 1.0]
    other.load({"seen": 0, "missing": 0})  # of a checkpoint before there was a memory
    assert other(misses).signals.rewards_B.tolist() == [2.0, 1.0, 1.0, 1.0]


def test_tie_break_by_hand() -> None:
    """Group 0 is all wrong: ¼ · its dense rewards over their largest, 4. Group 1 differs: the check. Group 2 is all
    right. Group 3 is one sample: nothing to break."""
    check = torch.tensor([0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0]).double()
    dense = torch.tensor([1.0, 4.0, 0.9, 0.1, 0.2, 0.6, 0.3]).double()
    groups = torch.tensor([0, 0, 1, 1, 2, 2, 3])
    assert tie_break(check, dense, groups).tolist() == pytest.approx([1 / 16, 1 / 4, 0, 1, 1.05, 1.15, 1])
    assert two("tie_break")(["p", "p"], ["bb", "b"]) == pytest.approx([1 / 4, 1 / 8])
    assert two("tie_break")(["p", "p"], ["ba", "b"]) == [1.0, 0.0]
    assert two("tie_break")(["p", "p"], ["", "b"]) == [None, 1 / 4], "its dense reward is missing, and used"
    assert two("tie_break")(["p", "p", "p"], ["", "ba", "b"]) == [0.0, 1.0, 0.0], "missing, and not used"


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0.0, 0.25, 0.3, 1.0, 7.0, NAN]),
            st.floats(-1e6, 1e6) | st.just(NAN),
            st.integers(0, 3),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_a_tie_breaker_never_overturns_a_checked_difference(rows: list[tuple[float, float, int]]) -> None:
    check, dense = (torch.tensor([row[i] for row in rows], dtype=torch.float64) for i in (0, 1))
    groups = torch.tensor([row[2] for row in rows])
    got = tie_break(check, dense, groups)
    for i, (checked, value, group) in enumerate(rows):
        own = [row for row in rows if row[2] == group and row[0] == row[0]]
        tied = len(own) > 1 and len({row[0] for row in own}) == 1
        assert bool(got[i].isnan()) == (checked != checked or (tied and value != value))
        if not tied and checked == checked:
            assert got[i] == checked
        for j, (other, larger, where) in enumerate(rows):
            if checked < other and not got[[i, j]].isnan().any():
                assert got[i] < got[j]
            if tied and where == group and value < larger - 1e-3 and not got[[i, j]].isnan().any():
                assert got[i] < got[j], "inside a tied group the dense reward decides"


def test_a_tie_breaker_needs_groups() -> None:
    reward = {"kind": "combined", "rewards": [{"kind": "binary"}, {"kind": "token_f1"}], "combine": "tie_break"}
    with pytest.raises(UserError, match="group_size"):
        config_with(reward, method={"name": "reinforce", "baseline": "none"}, group_size=1)
