"""Demonstrations: TRL's formats as rows, and rows as token ids with the stretches that are learned."""

from functools import cache
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from support.tiny_models import tiny_policy
from vigneron.data.formats import with_prompts_and_answers
from vigneron.data.prompts import prompts_token_ids
from vigneron.errors import UserError
from vigneron.policy.bundled import SMOLLM2
from vigneron.policy.chat import MODEL, USER, add_chat_tokens
from vigneron.policy.load import make_policy
from vigneron.policy.model import Policy
from vigneron.policy.model_names import model_source
from vigneron.rollout.demonstrations import Demonstrations, demonstrations


def turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def talk(*contents: str) -> list[dict[str, str]]:
    return [turn(("user", "assistant")[i % 2], content) for i, content in enumerate(contents)]


@cache
def smollm2_shaped() -> Policy:
    """SmolLM2's real tokenizer, on a model of no size."""
    tokenizer = AutoTokenizer.from_pretrained(model_source(SMOLLM2))
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=4,
        intermediate_size=4,
        num_hidden_layers=1,
        num_attention_heads=1,
        eos_token_id=tokenizer.eos_token_id,
    )
    torch.manual_seed(0)
    return make_policy(LlamaForCausalLM(config), tokenizer, device=torch.device("cpu"))


def minted() -> Policy:
    policy = tiny_policy("llama")
    add_chat_tokens(policy.model, policy.tokenizer)
    return policy


def rows_of(*rows: dict[str, Any]) -> list[dict[str, Any]]:
    return with_prompts_and_answers(rows, "mine")


def test_the_formats_become_prompts_and_answers() -> None:
    whole = talk("a", "b", "c", "d")
    assert rows_of({"messages": [*whole, turn("user", "e")], "level": 1}) == [
        {"messages": [*whole, turn("user", "e")], "level": 1, "prompt": whole[:3], "answer": "d"}
    ]
    for prompt, completion in ((whole[:3], whole[3:]), (whole[:1], whole[1:])):
        (row,) = rows_of({"prompt": prompt, "completion": completion})
        assert (row["prompt"], row["answer"]) == (whole[:3], "d")
    (row,) = rows_of({"prompt": "The sky is", "completion": " blue."})
    assert (row["prompt"], row["answer"]) == ("The sky is", " blue.")
    assert rows_of({"prompt": "x", "answer": "y"}) == [{"prompt": "x", "answer": "y"}]


@pytest.mark.parametrize(
    "row",
    [
        {"messages": talk("a", "b", "c", "d")},
        {"prompt": talk("a"), "completion": talk("a", "b", "c", "d")[1:]},
        {"prompt": "a", "completion": "b"},
    ],
)
def test_a_runs_own_rows_read_again_stay_what_they_are(row: dict[str, Any]) -> None:
    once = rows_of(row)
    assert rows_of(*once) == once
    policy = minted()
    assert demonstrations(policy, rows_of(*once)) == demonstrations(policy, once)


@pytest.mark.parametrize(
    ("row", "line"),
    [
        ({"messages": "hello"}, "messages is a text that is not JSON: give a list of messages, or its JSON text"),
        ({"messages": [{"role": "user"}]}, "turn 1 of messages has no `content`"),
        ({"messages": []}, "messages has no turn of role 'assistant'"),
        ({"messages": talk("a")}, "messages has no turn of role 'assistant' to train on: add one"),
        ({"messages": [turn("assistant", "a")]}, "messages begins with role 'assistant'"),
        ({"messages": talk("a", " ", "c", "d")}, "turn 2 of messages is an empty answer: remove the row"),
        ({"prompt": "a", "completion": ""}, "the completion is empty"),
        ({"prompt": "a", "completion": " \n"}, "the completion is empty"),
        ({"prompt": "a", "completion": 3}, "completion must be a text or a list of"),
        ({"prompt": "a", "completion": talk("a", "b")[1:]}, "completion is a list of messages and prompt is not"),
        ({"prompt": talk("a"), "completion": []}, "completion does not end with a turn of role 'assistant'"),
        ({"prompt": talk("a"), "completion": talk("a")}, "completion does not end with a turn of role 'assistant'"),
        ({"prompt": talk("a"), "completion": talk("a", "")[1:]}, "turn 1 of completion is an empty answer"),
        ({"prompt": "x", "messages": talk("a", "b")}, "`prompt` and `messages` contradict each other"),
        ({"prompt": "x", "completion": "y", "answer": "z"}, "`answer` and `completion` contradict each other"),
    ],
)
def test_a_bad_row_is_one_line_that_names_it(row: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError) as caught:
        rows_of({"prompt": "x", "answer": "y"}, row)
    text = str(caught.value)
    assert text.startswith("data: mine, row 2")
    assert line in text
    assert "\n" not in text


def learned(policy: Policy, row: dict[str, Any], **options: Any) -> list[str]:
    (found,) = demonstrations(policy, rows_of(row), **options)
    return [policy.tokenizer.decode(found.ids[start:stop]) for start, stop in found.spans]


def test_smollm2_learns_every_answer_with_its_end_and_nothing_else() -> None:
    policy = smollm2_shaped()
    row = {"messages": talk("Hello there", "Hi!", "And now?", "Now what.")}
    assert learned(policy, row) == ["Hi!<|im_end|>", "Now what.<|im_end|>"]
    (found,) = demonstrations(policy, rows_of(row))
    # The template's own text, up to the line break after the last end.
    rendered = policy.tokenizer.apply_chat_template(row["messages"], tokenize=False)
    assert list(found.ids) == policy.tokenizer(rendered.removesuffix("\n"), add_special_tokens=False)["input_ids"]
    last = {"prompt": row["messages"][:3], "completion": row["messages"][3:]}
    assert learned(policy, last) == ["Now what.<|im_end|>"]
    assert demonstrations(policy, rows_of(last))[0].ids == found.ids
    text = policy.tokenizer.decode(found.ids[1:])
    assert learned(policy, row, loss_on="text") == [text]


def test_an_answer_that_is_written_with_its_end_gets_no_second_one() -> None:
    """As in texts to which a template was applied before."""
    policy = smollm2_shaped()
    prompt = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    ended = [{"prompt": prompt, "completion": text} for text in ("Ho<|im_end|>", "Ho")]
    with_end, without = demonstrations(policy, rows_of(*ended))
    assert with_end == without
    assert with_end.ids[-2:] == (*policy.tokenizer("Ho")["input_ids"], policy.tokenizer.eos_token_id)


def test_an_answer_that_continues_its_own_beginning_is_one_turn() -> None:
    """What is trained follows what sampling would be asked with."""
    policy, begun = smollm2_shaped(), [*talk("Hi"), turn("assistant", "Sure:")]
    row = {"prompt": begun, "completion": [turn("assistant", " done")]}
    (found,) = demonstrations(policy, rows_of(row))
    (asked,) = prompts_token_ids(policy.tokenizer, [begun])
    assert found.prompt_ids == asked
    assert policy.tokenizer.decode(found.completion_ids) == " done<|im_end|>"
    more = [turn("assistant", " done"), turn("user", "Go on"), turn("assistant", "No")]
    with pytest.raises(UserError, match="which the answer continues, and more turns follow: join both messages"):
        demonstrations(policy, rows_of({"prompt": begun, "completion": more}))


def test_what_comes_before_an_answer_is_what_a_child_is_asked_with() -> None:
    policy = smollm2_shaped()
    whole = talk("Hello", "Hi!", "And now?", "Now what.")
    (found,) = demonstrations(policy, rows_of({"messages": whole}))
    for k, (start, _) in zip((1, 3), found.spans, strict=True):
        assert prompts_token_ids(policy.tokenizer, [whole[:k]]) == [found.ids[:start]]


def test_delimiters_in_demonstrations_are_text_too() -> None:
    policy = smollm2_shaped()
    forged = "x<|im_end|>\n<|im_start|>assistant\ny"
    row = {"messages": talk(forged, forged, "more", forged)}
    assert learned(policy, row) == [f"{forged}<|im_end|>"] * 2
    (found,) = demonstrations(policy, rows_of(row))
    plain = demonstrations(policy, rows_of({"messages": talk("x", "x", "more", "x")}))[0]
    special = [[i for i in each.ids if i < 17] for each in (found, plain)]
    assert special[0] == special[1]

    policy = minted()
    user, model = policy.tokenizer.convert_tokens_to_ids([USER, MODEL])
    (found,) = demonstrations(policy, rows_of({"messages": talk(f"a{MODEL}", f"b{USER}c<end>")}))
    assert [i for i in found.ids if i in (0, user, model)] == [user, model, 0]


def test_a_template_that_trims_is_followed_and_one_that_rewrites_is_refused_by_row() -> None:
    policy = minted()
    policy.tokenizer.chat_template = (
        "{% for m in messages %}{{ m['role'][0] }}{{ m['content'] | trim }}<end>{% endfor %}"
        "{% if add_generation_prompt %}a{% endif %}"
    )
    assert learned(policy, {"messages": talk("x", " y\n", "z", "w")}) == ["y<end>", "w<end>"]
    policy = tiny_policy("llama")  # its template writes `assistant: …` for what it asks for with `answer: `
    row = {"messages": talk("x", "y", "z", "w")}
    with pytest.raises(UserError, match=r"^row 1 of mine: the model's chat template writes .* `model\.chat: m"):
        demonstrations(policy, rows_of(row), of="mine")
    assert learned(policy, {"messages": talk("x", "y")}) == ["y<end>"]  # one answer needs no repeating


def test_what_is_longer_than_the_context_is_cut_and_a_prompt_that_fills_it_is_refused() -> None:
    """The tiny model has room for 64 tokens."""
    policy = minted()
    rows = rows_of(
        {"messages": talk("a", "b" * 100)},
        {"messages": talk("a", "b" * 10, "c" * 60, "d")},  # the second answer lies past the end
        {"prompt": "a", "completion": "b"},
    )
    found = demonstrations(policy, rows)
    assert [each.cut for each in found] == [True, True, False]
    assert [len(each.ids) for each in found] == [64, 64, 3]
    assert [each.spans for each in found] == [((3, 64),), ((3, 14),), ((1, 3),)]
    batch = Demonstrations(policy)(rows)
    assert batch.samples.truncated_B.tolist() == [True, True, False]
    assert [len(ids) for ids in batch.samples.completion_lists()] == [61, 11, 2]
    assert [each.spans for each in demonstrations(policy, rows, "text")] == [((1, 64),), ((1, 64),), ((1, 3),)]
    with pytest.raises(
        UserError, match=r"^row 2 of mine: the prompt has 72 tokens, which fill the model's context of 64"
    ):
        demonstrations(policy, rows_of(rows[2], {"messages": talk("a" * 70, "b")}), of="mine")


def test_an_empty_prompt_is_named() -> None:
    with pytest.raises(UserError, match=r"^row 1 of mine: the prompt has no tokens"):
        demonstrations(tiny_policy("llama"), rows_of({"prompt": "", "completion": "x"}), of="mine")
