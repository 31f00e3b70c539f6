"""Preference pairs of conversations: the model's turns are trained on, the others are read, a score reads both."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from support import real_templates
from support.talking import talking_folder, talking_model
from vigneron.data.pairs import read_pairs
from vigneron.methods import build_method
from vigneron.policy.load import make_policy
from vigneron.policy.model import Policy
from vigneron.policy.reference import Reference
from vigneron.policy.reward_model import load_reward_model, scores_in_parts
from vigneron.recipe import check_config
from vigneron.rewards.model import ModelReward
from vigneron.rollout.pairs import OrderedPairs, Pairs
from vigneron.training.output import samples_of
from vigneron.training.parts import Parts


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def model(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


ROW = {
    "prompt": [user("hi")],
    "chosen": [model("yo"), user("so?"), model("ok")],
    "rejected": [model("no"), user("why?"), user("say"), model("it is")],
}
SHORT = {"prompt": [user("hi")], "chosen": [model("a")], "rejected": [model("b"), user("c"), model("a")]}
# Of each side: what is read, what is trained, and so on.
PARTS = (
    ("<|vigneron_user|>hi<|vigneron_model|>", "yo<end>", "<|vigneron_user|>so?<|vigneron_model|>", "ok<end>"),
    (
        "<|vigneron_user|>hi<|vigneron_model|>",
        "no<end>",
        "<|vigneron_user|>why?<|vigneron_user|>say<|vigneron_model|>",
        "it is<end>",
    ),
)


def policy_of() -> Policy:
    made, tokenizer = talking_model()
    return make_policy(made.double(), tokenizer, device=torch.device("cpu"))


def read(*rows: dict[str, Any]) -> list[dict[str, Any]]:
    return read_pairs(list(rows), "'file'")[0]


def plain_logp(policy: Policy, causal: Any, parts: tuple[str, ...]) -> Tensor:
    """Σ log π of every second part, token by token."""
    ids = [policy.tokenizer(part, add_special_tokens=False)["input_ids"] for part in parts]
    whole = torch.tensor([[token for part in ids for token in part]])
    logprobs = causal(whole).logits[0, :-1].log_softmax(-1).gather(1, whole[0, 1:, None])[:, 0]
    total, at = torch.zeros((), dtype=torch.float64), 0
    for number, part in enumerate(ids):
        if number % 2:
            total = total + logprobs[at - 1 : at - 1 + len(part)].sum()
        at += len(part)
    return total


def test_turns_of_the_model_are_trained_and_others_read() -> None:
    policy = policy_of()
    samples = Pairs(policy)(read(ROW)).samples
    for spans, head, tail, parts in zip(
        samples.spans, samples.prompt_ids, samples.completion_lists(), PARTS, strict=True
    ):
        ids = [*head, *tail]
        assert policy.tokenizer.decode(ids) == "".join(parts)
        assert [policy.tokenizer.decode(ids[start:stop]) for start, stop in spans] == list(parts[1::2])
    assert samples.prompt_ids[0] == samples.prompt_ids[1]
    assert samples.prompts == ([user("hi")],) * 2
    assert samples.completions == (ROW["chosen"], ROW["rejected"])


def test_dpo_of_two_conversations_is_that_of_plain_transformers() -> None:
    policy = policy_of()
    reference = Reference.of(policy)
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight += 0.05 * torch.randn_like(weight)
    before = deepcopy(policy.model)
    config = check_config(
        {
            "method": {"name": "dpo", "beta": 0.3},
            "data": {"train": "pairs.jsonl"},
            "optimizer": {"actor_lr": 0.1, "max_grad_norm": 1e9},
        },
        "test",
    )
    method = build_method(Parts.of(config, policy, reference, lambda batch: batch))
    (actor,) = method.update.optimized  # type: ignore[attr-defined]
    actor.optimizer = torch.optim.SGD([weight for _, weight in actor.parameters], lr=0.1)
    metrics = method.update(method.advantage(method.reward(method.rollout(read(ROW), 0))))
    chosen, rejected = (plain_logp(policy, before, parts) for parts in PARTS)
    with torch.no_grad():
        old_chosen, old_rejected = (plain_logp(policy, reference.policy.model, parts) for parts in PARTS)
    loss = -logsigmoid(0.3 * (chosen - old_chosen) - 0.3 * (rejected - old_rejected))
    assert metrics["loss/dpo"] == pytest.approx(float(loss.detach()), rel=1e-9)
    assert metrics["logps/rejected"] == pytest.approx(float(rejected.detach()), rel=1e-9)
    weights = dict(before.named_parameters())
    gradients = torch.autograd.grad(loss, list(weights.values()))
    for (name, weight), gradient in zip(weights.items(), gradients, strict=True):
        torch.testing.assert_close(policy.model.get_parameter(name), weight - 0.1 * gradient, atol=1e-7, rtol=0)


def test_a_short_side_beside_a_long_one_and_equal_last_answers() -> None:
    """They are two texts, though both end with the same answer."""
    (row,) = read(SHORT)
    assert (row["chosen"], row["rejected"]) == (SHORT["chosen"], SHORT["rejected"])
    batch = Pairs(policy_of())([row])
    assert [len(spans) for spans in batch.samples.spans] == [1, 2]
    shown = samples_of(batch, 1, "train")
    assert [sample.completion for sample in shown] == ["a", "assistant: b\nuser: c\nassistant: a"]
    assert [sample.extras["conversation"] for sample in shown] == [None, SHORT["rejected"]]


def test_without_a_prompt_the_shared_turns_are_it() -> None:
    whole = {side: [*ROW["prompt"], *ROW[side]] for side in ("chosen", "rejected")}
    assert read(whole) == [whole | ROW]


def test_a_preference_model_reads_all_turns() -> None:
    policy = policy_of()
    batch = OrderedPairs(policy)(read(SHORT))
    text = policy.tokenizer.decode(batch.samples.completion_lists()[1])
    assert text == "\nFirst: assistant: b\nuser: c\nassistant: a\nSecond: a\nBetter:<end>"


def test_a_reward_model_scores_a_conversation_as_it_was_trained_on_it(tmp_path: Path) -> None:
    """Of an environment's samples too: not the last answer alone."""
    policy = load_reward_model(str(talking_folder(tmp_path)), start=True, device="cpu", dtype="float32", key="model")
    with torch.no_grad():
        policy.causal.score.weight.normal_()
    trained = scores_in_parts(policy, Pairs(policy)(read(ROW)), 1000).tolist()
    prompts, completions = [ROW["prompt"]] * 3, [ROW["chosen"], ROW["rejected"], ROW["chosen"][-1:]]
    given = ModelReward(policy)(prompts=prompts, completions=completions)
    assert given[:2] == pytest.approx(trained, rel=1e-4)
    assert given[2] != pytest.approx(trained[0], rel=1e-3)


CALL = {"type": "function", "id": "call00001", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}
TOOLS = [{"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {"type": "object"}}}]


@pytest.mark.parametrize("name", ["qwen2_5", "llama3_1"])
def test_calls_are_trained_and_results_read_as_real_templates_write_them(name: str) -> None:
    tokenizer = real_templates.smollm2()
    policy = real_templates.policy_of(tokenizer, real_templates.template(name))
    called = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    result = {"role": "tool", "name": "add", "tool_call_id": "call00001", "content": "it gives 3"}
    row = {
        "prompt": [user("1 + 2?")],
        "tools": TOOLS,
        "chosen": [called, result, model("Three.")],
        "rejected": [model("4")],
    }
    samples = Pairs(policy)(read(row)).samples
    ids = [*samples.prompt_ids[0], *samples.completion_lists()[0]]
    written = tokenizer.apply_chat_template([*row["prompt"], *row["chosen"]], tools=TOOLS, tokenize=False)
    assert written.startswith(tokenizer.decode(ids))
    first, last = (tokenizer.decode(ids[start:stop]) for start, stop in samples.spans[0])
    assert "add" in first
    assert last.startswith("Three.")
    between = tokenizer.decode(ids[samples.spans[0][0][1] : samples.spans[0][1][0]])
    assert "it gives 3" in between
    assert "add" in tokenizer.decode(samples.prompt_ids[0])  # the tools
    assert samples.prompt_ids[0] == samples.prompt_ids[1]
