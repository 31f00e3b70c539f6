"""A reward model's score and a preference model's rankings, against transformers' own pass over one text at a time."""

import json
import math
from typing import Any

import pytest
import torch

from support.small_batch import make_batch
from support.tiny_models import tiny_scorer
from vigneron.errors import UserError
from vigneron.rewards.apply import ApplyReward
from vigneron.rewards.combined import CombinedReward
from vigneron.rewards.graders.models import RewardModelGrader
from vigneron.rewards.model import ModelReward, PreferenceReward
from vigneron.rewards.process import ProcessReward
from vigneron.rubric.model import RewardModelItem
from vigneron.sources.verdict import GraderInput

SCORER = tiny_scorer("gpt2", dtype=torch.float64)
SCORER.model.config.pad_token_id = None


def plain(text: str) -> float:
    with torch.no_grad():
        return float(SCORER.model(torch.tensor([[*SCORER.tokenizer(text)["input_ids"], 0]])).logits)


def plain_better(prompt: str, one: str, other: str) -> float:
    """The mean of both orders."""

    def first_wins(first: str, second: str) -> float:
        return 1 / (1 + math.exp(-plain(f"{prompt}\nFirst: {first}\nSecond: {second}\nBetter:")))

    return (first_wins(one, other) + 1 - first_wins(other, one)) / 2


def test_a_score_is_of_the_prompt_with_the_completion() -> None:
    """Joined as they were sampled."""
    prompts: list[Any] = ["say", "say", "go ", [{"role": "user", "content": "hi"}], "q"]
    completions: list[Any] = ["hot", " hot", "on", [{"role": "assistant", "content": "yo"}], ""]
    wanted = [plain(text) for text in ("sayhot", "say hot", "go on", "user: hi\nanswer: yo", "q")]
    got = ModelReward(SCORER)(prompts=prompts, completions=completions, completion_ids=None, answer=["x"] * 5)
    assert got == pytest.approx(wanted, abs=1e-10)


def test_the_win_rate_is_the_mean_over_the_others_of_the_prompt() -> None:
    prompts = ["p", "q", "p", "p", "q", "lone"]
    texts = ["a", "bb", "ccc", " a", "d", "e"]
    got = PreferenceReward(SCORER)(prompts=prompts, completions=texts)
    a_c, b_d = plain_better("p", "a", "ccc"), plain_better("q", "bb", "d")
    wanted = [(a_c + 0.5) / 2, b_d, 1 - a_c, (0.5 + a_c) / 2, 1 - b_d, 0.5]
    assert got == pytest.approx(wanted, abs=1e-10)
    assert sum(got[i] or 0 for i in (0, 2, 3)) == pytest.approx(1.5)


def test_groups_of_the_same_prompt_are_ranked_apart() -> None:
    """The same row twice in a step: two groups of two, not one of four. By itself, and as a part beside lengths."""
    batch = make_batch([2] * 4, [1] * 4, prompts=("p",) * 4, completions=("a", "ccc", "bb", "d"))
    assert batch.samples.group_B.tolist() == [0, 0, 1, 1]
    a_c, b_d = plain_better("p", "a", "ccc"), plain_better("p", "bb", "d")
    for ranking, wanted in (
        ("win_rate", [a_c, 1 - a_c, b_d, 1 - b_d]),
        ("tournament", [float(a_c >= 0.5), float(a_c < 0.5), float(b_d >= 0.5), float(b_d < 0.5)]),
    ):
        reward = PreferenceReward(SCORER, ranking)  # type: ignore[arg-type]
        assert ApplyReward(reward)(batch).signals.rewards_B.tolist() == pytest.approx(wanted)
        both = CombinedReward([("preference", reward), ("length", length)], [2.0, 1.0], "sum")
        scored = ApplyReward(both)(batch)
        summed = [2 * rank + letters for rank, letters in zip(wanted, (1, 3, 2, 1), strict=True)]
        assert scored.signals.rewards_B.tolist() == pytest.approx(summed)
        assert scored.samples.extras["reward_preference"] == pytest.approx(wanted)


def length(completions: list[str], **columns: Any) -> list[float]:
    return [float(len(text)) for text in completions]


def test_messages_are_grouped_and_compared_through_the_template() -> None:
    prompts = [[{"role": "user", "content": "hi"}]] * 2
    completions = [[{"role": "assistant", "content": text}] for text in ("yo", "no")]
    won = plain_better("user: hi\nanswer: ", "yo", "no")
    assert PreferenceReward(SCORER)(prompts=prompts, completions=completions) == pytest.approx([won, 1 - won])


TOOLS = [{"type": "function", "function": {"name": "add"}}]
WITH_TOOLS = "{% for tool in tools or [] %}[{{ tool.function.name }}]{% endfor %}"


def test_tools_are_written_before_the_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """By every kind of model; a prompt with other tools is another prompt."""
    monkeypatch.setattr(SCORER.tokenizer, "chat_template", f"{WITH_TOOLS}{SCORER.tokenizer.chat_template}")
    prompts = [[{"role": "user", "content": "hi"}]] * 3
    completions = [[{"role": "assistant", "content": text}] for text in ("yo", "no", "no")]
    tools, head = [None, TOOLS, json.dumps(TOOLS)], "user: hi\nanswer: "
    scores = [plain(f"{head}yo"), plain(f"[add]{head}no"), plain(f"[add]{head}no")]
    assert ModelReward(SCORER)(prompts=prompts, completions=completions, tools=tools) == pytest.approx(scores)
    right = [1 / (1 + math.exp(-score)) for score in scores]
    assert ProcessReward(SCORER)(prompts=prompts, completions=completions, tools=tools) == pytest.approx(right)
    samples = [
        GraderInput(row={"prompt": prompt, "tools": given}, question="hi", response=message[0]["content"])
        for prompt, given, message in zip(prompts, tools, completions, strict=True)
    ]
    item = RewardModelItem(name="m", description="d", flow="reward_model", model="m", squash="none")
    assert [verdict.score for verdict in RewardModelGrader(item, ModelReward(SCORER))(samples)] == pytest.approx(scores)
    won = plain_better(f"[add]{head}", "yo", "no")
    rates = PreferenceReward(SCORER)(prompts=prompts, completions=completions, tools=[TOOLS, TOOLS, None])
    assert rates == pytest.approx([won, 1 - won, 0.5])


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8])
def test_a_tournament_is_a_knock_out(count: int) -> None:
    texts = ["a", "bb", "ccc", "dd", "e", "ff", "g", "hhh"][:count]
    left, won, rounds = texts[:], dict.fromkeys(texts, 0), 0
    while len(left) > 1:
        through = [
            pair[0] if len(pair) == 1 or plain_better("p", *pair) >= 0.5 else pair[1]
            for pair in (left[at : at + 2] for at in range(0, len(left), 2))
        ]
        for text in through:
            won[text] += 1
        left, rounds = through, rounds + 1
    wanted = [won[text] / rounds for text in texts] if rounds else [0.5]
    # A second prompt in between changes nothing.
    prompts = [prompt for _ in texts for prompt in ("p", "other")]
    completions = [text for one in texts for text in (one, one * 2)]
    got = PreferenceReward(SCORER, "tournament")(prompts=prompts, completions=completions)
    assert got[0::2] == wanted
    assert count == 1 or sorted(w or 0 for w in got)[-1] == 1.0


def test_a_tournament_asks_for_fewer_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    hidden = type(SCORER).hidden

    def counted(self: Any, ids_RS: Any, *rest: Any) -> Any:
        asked.append(len(ids_RS))
        return hidden(self, ids_RS, *rest)

    monkeypatch.setattr(type(SCORER), "hidden", counted)
    monkeypatch.setattr(SCORER, "shares_prompts", False)
    texts = ["a", "bb", "ccc", "dd"]
    for ranking, passes in (("win_rate", 4 * 3), ("tournament", 2 * 3)):
        asked.clear()
        PreferenceReward(SCORER, ranking)(prompts=["p"] * 4, completions=texts)  # type: ignore[arg-type]
        assert sum(asked) == passes


def test_a_text_longer_than_the_scorer_reads_is_said_so() -> None:
    with pytest.raises(UserError, match=r"reward.model: .* exceeds the model's context of 64 tokens: lower"):
        ModelReward(SCORER)(prompts=["p"], completions=["x" * 68])
