"""GRAPE's rollout: where responses come from, and behind which text they are trained."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from support.tiny_models import tiny_policy
from vigneron.batch import Batch
from vigneron.core.draws import Sampling
from vigneron.policy.logprobs import score
from vigneron.rollout.grape import GrapeRollout, Mix, proportional_origins
from vigneron.rollout.grape_memory import EarlierResponse, Memory
from vigneron.rollout.on_policy import OnPolicy

ROWS = [{"prompt": f"say {word}: ", "answer": word} for word in ("hot", "cold", "wet")]
SHARES = st.floats(0.0, 1.0)


def evolving(mix: Mix, memory: Memory | None = None, **changes: Any) -> GrapeRollout:
    on_policy = OnPolicy(tiny_policy(), Sampling(), max_new_tokens=5, group_size=4, seed=3)
    rollout = GrapeRollout(
        on_policy,
        mix,
        memory or Memory(),
        lambda row: f"Be kind. {row['prompt']}",
        lambda row, earlier: f"Better than {earlier.response} ({earlier.feedback}): ",
    )
    return replace(rollout, **changes)


def rewarded(batch: Batch) -> Batch:
    return batch.with_signals(rewards_B=torch.ones(len(batch))).with_samples(
        extras={**batch.samples.extras, "rubric": ("fine",) * len(batch)}
    )


@given(SHARES, SHARES, SHARES, st.integers(1, 33))
def test_proportions_come_nearest(fresh: float, revised: float, demonstrated: float, count: int) -> None:
    whole = fresh + revised + demonstrated
    if whole < 1e-6:
        return
    shares = {"fresh": fresh / whole, "revised": revised / whole, "demonstrated": demonstrated / whole}
    found = Counter(proportional_origins(shares, count))
    assert found.total() == count
    assert all(abs(found[origin] - share * count) < 1 + 1e-6 for origin, share in shares.items())


def test_half_and_half_is_half_and_half() -> None:
    assert proportional_origins({"fresh": 0.5, "revised": 0.25, "demonstrated": 0.25}, 8) == [
        *["fresh"] * 4,
        *["revised"] * 2,
        *["demonstrated"] * 2,
    ]


def test_tools_are_written_in_every_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of fresh and revised responses, of the dataset's answers, and where they are trained."""
    memory, mix = Memory(), Mix(0.25, 0.5, 0.25, by="proportion")

    def asked(text: str) -> list[dict[str, str]]:
        return [{"role": "user", "content": text}]

    prompts: dict[str, Any] = {
        "generation_prompt": lambda row: asked("Be kind."),
        "revision_prompt": lambda row, earlier: asked("Better."),
    }
    rollout = evolving(mix, memory, **prompts)
    tokenizer = rollout.on_policy.policy.tokenizer
    written = "{% for tool in tools or [] %}[{{ tool.function.name }}]{% endfor %}"
    monkeypatch.setattr(tokenizer, "chat_template", f"{written}{tokenizer.chat_template}")
    row = {"prompt": asked("hi"), "answer": "yo", "tools": [{"type": "function", "function": {"name": "add"}}]}
    memory.remember(rewarded(rollout([row], 0)), str)
    batch = rollout([row], 1)
    assert Counter(batch.samples.extras["origin"]) == {"fresh": 1, "revised": 2, "demonstrated": 1}
    assert batch.samples.drawn_ids is not None
    drawn = {tokenizer.decode(ids) for ids in batch.samples.drawn_ids if ids}
    assert drawn == {f"[add]user: {text}\nanswer: " for text in ("Be kind.", "Better.")}
    assert {tokenizer.decode(ids) for ids in batch.samples.prompt_ids} == {"[add]user: hi\nanswer: "}


def test_in_the_first_round_all_are_fresh() -> None:
    batch = evolving(Mix(0.0, 1.0))(ROWS, 0)
    assert set(batch.samples.extras["origin"]) == {"fresh"}


def test_revisions_are_of_the_last_iteration() -> None:
    memory = Memory()
    rollout = evolving(Mix(0.5, 0.5, by="proportion"), memory)
    memory.remember(rewarded(rollout(ROWS[:1], 0)), str)
    seen: list[str] = []
    second = replace(rollout, revision_prompt=lambda row, earlier: seen.append(earlier.response) or "Better: ")(ROWS, 1)
    # Of the first question half are revised, of the others, never answered, none.
    assert Counter(second.samples.extras["origin"][:4]) == {"fresh": 2, "revised": 2}
    assert set(second.samples.extras["origin"][4:]) == {"fresh"}
    assert set(seen) <= {one.response for one in memory.of(ROWS[0])}
    memory.remember(rewarded(second), str)
    assert [one.response for one in memory.of(ROWS[0])] == [str(text) for text in second.samples.completions[:4]]


def test_a_question_without_a_column_that_others_have_is_revised_too() -> None:
    memory, rows = Memory(), [{"prompt": "a", "answer": "b", "note": "c"}, {"prompt": "d", "answer": "e"}]
    rollout = evolving(Mix(0.0, 1.0), memory)
    memory.remember(rewarded(rollout(rows, 0)), str)
    assert [len(memory.of(row)) for row in rows] == [4, 4]
    assert set(rollout(rows, 1).samples.extras["origin"]) == {"revised"}


def test_revisions_end_at_stop_strings_too() -> None:
    """And a revision is of a text that one has ended."""
    memory, stops = Memory(), tuple("abcdefghijklmnopqrstuvwxyz")
    plain = evolving(Mix(0.5, 0.5, by="proportion"), memory)
    rollout = replace(plain, on_policy=replace(plain.on_policy, stop=stops, max_new_tokens=20))
    memory.remember(rewarded(rollout(ROWS, 0)), str)
    batch = rollout(ROWS, 1)
    ended = dict.fromkeys(("fresh", "revised"), 0)
    for row, text in enumerate(batch.samples.completions):
        assert not any(letter in text[:-1] for letter in stops)
        assert bool(batch.samples.truncated_B[row]) == (len(batch.samples.completion_lists()[row]) == 20)
        ended[batch.samples.extras["origin"][row]] += text.endswith(stops)
    assert min(ended.values()) > 0
    assert any(one.response.endswith(stops) for row in ROWS for one in memory.of(row))


def test_what_has_no_reward_is_not_revised() -> None:
    memory = Memory()
    batch = rewarded(evolving(Mix(1.0))(ROWS[:1], 0))
    memory.remember(batch.with_signals(rewards_B=torch.tensor([1.0, torch.nan, 1.0, torch.nan])), str)
    assert [one.response for one in memory.of(ROWS[0])] == [batch.samples.completions[0], batch.samples.completions[2]]


def test_memory_is_written_and_read() -> None:
    memory = Memory({"a": [EarlierResponse("one", "good"), EarlierResponse("two", "bad")]})
    again = Memory()
    again.load(memory.entries())
    assert again == memory


def test_a_group_has_one_demonstration_at_most() -> None:
    batch = evolving(Mix(0.0, 1.0, 100.0))(ROWS, 0)
    for start in range(0, 12, 4):
        assert batch.samples.extras["origin"][start : start + 4].count("demonstrated") == 1
    at = batch.samples.extras["origin"].index("demonstrated")
    assert batch.samples.completions[at].strip() == "hot"
    assert batch.samples.drawn_BT[at].isnan().all()
    assert batch.samples.completion_ids[at][-1] in evolving(Mix(1.0)).on_policy.policy.eos_ids  # type: ignore[index]


def test_trained_behind_the_question_whatever_it_was_drawn_under() -> None:
    """`behaviour` waits to be asked, `drawn` is what the sampler said, under the generation prompt."""
    rollout = evolving(Mix(1.0))
    batch = rollout(ROWS, 0)
    policy = rollout.on_policy.policy
    assert batch.samples.prompt_ids[0] == tuple(policy.tokenizer(ROWS[0]["prompt"])["input_ids"])
    assert batch.samples.behaviour_BT.isnan().all()
    elsewhere = replace(rollout, trained_under="generation_prompt")(ROWS, 0)
    assert torch.equal(elsewhere.samples.completion_BT, batch.samples.completion_BT)
    assert torch.equal(elsewhere.samples.behaviour_BT, elsewhere.samples.drawn_BT)
    torch.testing.assert_close(batch.samples.drawn_BT, elsewhere.samples.behaviour_BT)
    scored = score(policy, elsewhere, Sampling()).logprobs_BT
    torch.testing.assert_close(
        scored[batch.samples.mask_BT], batch.samples.drawn_BT[batch.samples.mask_BT], atol=1e-4, rtol=1e-4
    )


def test_under_the_bare_question_it_is_what_grpo_samples() -> None:
    rollout = evolving(Mix(1.0), generation_prompt=lambda row: row["prompt"])
    ours, plain = rollout(ROWS, 7), rollout.on_policy(ROWS, 7)
    for name in ("completion_BT", "behaviour_BT", "group_B", "sample_B", "truncated_B"):
        assert torch.equal(getattr(ours.samples, name), getattr(plain.samples, name)), name
    for name in ("prompt_ids", "spans", "columns"):
        assert getattr(ours.samples, name) == getattr(plain.samples, name)


@pytest.mark.parametrize("by", ["probability", "proportion"])
def test_a_part_of_a_step_draws_as_the_whole_does(by: Any) -> None:
    memory = Memory()
    rollout = evolving(Mix(0.4, 0.4, 0.2, by=by), memory)
    memory.remember(rewarded(rollout(ROWS, 0)), str)
    whole = rollout(ROWS, 1)
    part = rollout(ROWS[1:], 1, first=1)
    assert part.samples.completions == whole.samples.completions[4:]
    assert part.samples.extras["origin"] == whole.samples.extras["origin"][4:]
    assert part.samples.group_B.tolist() == whole.samples.group_B.tolist()[4:]


def test_a_revision_that_does_not_fit_is_fresh_and_counted() -> None:
    memory = Memory()
    rollout = evolving(Mix(0.0, 1.0), memory, revision_prompt=lambda row, earlier: "long " * 1000)
    memory.remember(rewarded(rollout(ROWS, 0)), str)
    batch = rollout(ROWS, 1)
    assert set(batch.samples.extras["origin"]) == {"fresh"}
    assert batch.signals.metrics["drawn/too_long"] == 1.0


def test_demonstrations_keep_columns_that_other_rows_lack() -> None:
    rows = [{"prompt": "a: ", "answer": "x"}, {"prompt": "b: ", "answer": "y", "truth": "y"}]
    batch = evolving(Mix(0.0, 1.0, 100.0))(rows, 0)
    at = [i for i, origin in enumerate(batch.samples.extras["origin"]) if origin == "demonstrated"]
    assert [batch.samples.columns["truth"][i] for i in at] == [None, "y"]


def test_a_demonstration_is_scored_as_the_text_that_is_trained() -> None:
    """A reward model would tell it apart from samples by its missing space."""
    batch = evolving(Mix(0.0, 1.0, 100.0))([{"prompt": "say:", "answer": "x"}, {"prompt": "say: ", "answer": "y"}], 0)
    at = [i for i, origin in enumerate(batch.samples.extras["origin"]) if origin == "demonstrated"]
    assert [batch.samples.completions[i] for i in at] == [" x", "y"]


def test_a_conversations_last_answer_alone_is_shown_behind_the_groups_text() -> None:
    """Earlier turns are part of the question, and nothing of them is learned."""
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "old turn"},
        {"role": "user", "content": "say small"},
        {"role": "assistant", "content": "small"},
    ]
    row = {"prompt": messages[:3], "answer": "small", "messages": messages}
    rollout = evolving(Mix(1.0, 0.0, 100.0), generation_prompt=lambda row: row["prompt"])
    turns = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    end = "{% if add_generation_prompt %}[assistant]{% endif %}"
    rollout.on_policy.policy.tokenizer.chat_template = turns + end
    batch = rollout([row], 0)
    shown = batch.samples.extras["origin"].index("demonstrated")
    drawn = batch.samples.extras["origin"].index("fresh")
    assert batch.samples.prompt_ids[shown] == batch.samples.prompt_ids[drawn]
    ids = batch.samples.completion_ids[shown]  # type: ignore[index]
    assert rollout.on_policy.policy.tokenizer.decode(ids[:-1]).strip() == "small"
