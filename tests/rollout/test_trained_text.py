"""What is trained of a conversation is exactly what the model's chat template writes, for the real templates."""

from pathlib import Path
from typing import Any

import pytest

from support.real_templates import llama2, names, plain_llama2, policy_of, smollm2, template
from vigneron.data.formats import with_prompts_and_answers
from vigneron.data.prompts import prompts_token_ids
from vigneron.errors import UserError
from vigneron.policy.chat import Conversation, set_template_defaults, stop_at_turn_end
from vigneron.policy.model import Policy
from vigneron.policy.token_boundaries import ids_with_cuts
from vigneron.rollout.demonstrations import Demonstration, demonstrations
from vigneron.rollout.pairs import sides_of
from vigneron.rollout.recorded import recorded_texts

QUESTIONS, ANSWERS = ("Hello there", "And now?"), ("Hi, you.", "Now what.")
TURNS = [
    {"role": role, "content": content}
    for question, answer in zip(QUESTIONS, ANSWERS, strict=True)
    for role, content in (("user", question), ("assistant", answer))
]


def both(text: str) -> tuple[str, str]:
    return text, text


CHATML = both("{}<|im_end|>")
SENTENCE, TURN = both("{}<｜end▁of▁sentence｜>"), both("{}<turn|>")
NEMOTRON, THINKING = both("</think>{}<|im_end|>"), "\n</think>\n\n{}<|im_end|>"
# What is trained of the first answer and of the last one; {} is the answer.
TABLE = {
    "cohere": both("{}<|END_OF_TURN_TOKEN|>"),
    "cohere2": both("{}<|END_RESPONSE|><|END_OF_TURN_TOKEN|>"),
    "deepseek_r1_distill": SENTENCE,
    "deepseekv3": SENTENCE,
    "diffusion_gemma": TURN,
    "gemma": both("{}<end_of_turn>"),
    "gemma3": both("{}<end_of_turn>"),
    **dict.fromkeys(("gemma4", "gemma4_v2", "gemma4_v3", "gemma4_v4", "gemma4_v5"), TURN),
    "glm4moe": both("\n<think></think>\n{}<|user|>"),
    "gptoss": ("<|channel|>final<|message|>{}<|end|>", "<|channel|>final<|message|>{}<|return|>"),
    "idefics3": both(" {}<end_of_utterance>"),
    **dict.fromkeys(("lfm2", "lfm2_2_5", "lfm2_2_5_v2", "lfm2_2_5_vl", "lfm2_v2"), CHATML),
    **dict.fromkeys(("llama3", "llama3_1", "llama3_2"), both("{}<|eot_id|>")),
    "llava_next": both(" {}</s>"),
    "muse_glimmer": both(" to=user<|message|>{}<|eot|>"),
    **dict.fromkeys(("nemotron_3_5_lightning", "nemotron_3_nano", "nemotron_3_super", "nemotron_3_ultra"), NEMOTRON),
    "phi3": both("{}<|end|>"),
    "phi3_5": both("{}<|end|>"),
    **dict.fromkeys(("qwen2_5", "qwen2_5_vl", "qwen3_instruct_2507", "qwen3_vl"), CHATML),
    "qwen3": ("{}<|im_end|>", "<think>\n\n</think>\n\n{}<|im_end|>"),
    "qwen3_5_nothink": CHATML,
    "qwen3_5_think": ("{}<|im_end|>", THINKING),
    "qwen3_6": ("{}<|im_end|>", THINKING),
    "qwen3_8": both(THINKING),
    "smolvlm": both(" {}<end_of_utterance>"),
}
PARTS_ONLY = ("idefics3", "llava_next", "smolvlm")


def trained(policy: Policy, **row: Any) -> Demonstration:
    (found,) = demonstrations(policy, with_prompts_and_answers([row], "mine"), of="mine")
    return found


def learned(policy: Policy, **row: Any) -> list[str]:
    found = trained(policy, **row)
    return [policy.tokenizer.decode(found.ids[start:stop]) for start, stop in found.spans]


def messages_for(name: str) -> list[dict[str, Any]]:
    if name not in PARTS_ONLY:
        return TURNS
    return [{**turn, "content": [{"type": "text", "text": turn["content"]}]} for turn in TURNS]


@pytest.mark.parametrize("name", TABLE)
def test_a_real_template_token_by_token(name: str) -> None:
    """Llama 2's tokenizer: the tokens of `apply_chat_template`, up to the end of the last answer."""
    policy = policy_of(llama2(), template(name))
    tokenizer, found = policy.tokenizer, trained(policy, messages=TURNS)
    there = tokenizer.apply_chat_template(messages_for(name), tokenize=True, return_dict=False)
    own = list(found.ids)
    if name == "glm4moe":  # it writes nothing after the last answer: what ends earlier ones is trained
        assert own.pop() == tokenizer.convert_tokens_to_ids("<|user|>")
    assert own == there[: len(own)]
    assert tokenizer.decode(there[len(own) :]).strip() in ("", tokenizer.eos_token)
    assert found.spans[-1][1] == len(found.ids)


@pytest.mark.parametrize("name", TABLE)
def test_a_real_template_as_text(name: str) -> None:
    """A byte-level tokenizer, which decodes to the exact text: what is trained, and what comes before it."""
    policy = policy_of(smollm2(), template(name))
    tokenizer, found = policy.tokenizer, trained(policy, messages=TURNS)
    spans = [tokenizer.decode(found.ids[start:stop]) for start, stop in found.spans]
    assert spans == [text.format(answer) for text, answer in zip(TABLE[name], ANSWERS, strict=True)]
    whole, talk = tokenizer.decode(found.ids), Conversation.of(tokenizer, TURNS)
    there = tokenizer.apply_chat_template(messages_for(name), tokenize=False)
    assert there.startswith(whole.removesuffix("<|user|>") if name == "glm4moe" else whole)
    last = trained(policy, prompt=TURNS[:3], completion=TURNS[3:])
    assert tokenizer.decode(last.ids) == whole
    assert tokenizer.decode(last.completion_ids) == spans[-1]
    # Sampling begins after the same tokens, unless the template's history leaves out what its prompt begins.
    (asked,) = prompts_token_ids(tokenizer, [TURNS[:3]])
    if there.startswith(talk.before(3)):
        assert last.prompt_ids == asked
    else:
        assert tokenizer.decode(asked).removesuffix("\n").removesuffix("<think>") in whole


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in TABLE if f"{name}_training" in names()])
def test_trl_trains_the_same_answers(name: str) -> None:
    """TRL's own variants of the templates mark what is generated; some of them write another text."""
    policy = policy_of(llama2(), template(name))
    found, tokenizer = trained(policy, messages=TURNS), policy.tokenizer
    theirs = tokenizer.apply_chat_template(
        messages_for(name),
        chat_template=template(f"{name}_training"),
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    if theirs["input_ids"][: len(found.ids)] != list(found.ids):
        assert name in ("qwen3", "qwen3_5_nothink", "qwen3_5_think", "qwen3_6")
        return
    ours = {place for start, stop in found.spans for place in range(start, stop)}
    masked = {place for place, mask in enumerate(theirs["assistant_masks"]) if mask}
    assert ours <= masked
    # It also trains line breaks around turns, what a generation prompt begins, and Phi's second end.
    extra = tokenizer.decode([theirs["input_ids"][place] for place in sorted(masked - ours)])
    for text in ("<think>", "</s>", "<｜Assistant｜>", "<|start|> assistant"):
        extra = extra.replace(text, "")
    assert extra.strip() == ""


@pytest.mark.parametrize("name", ["llama3", "qwen3_5_think", "gptoss", "glm4moe"])
@pytest.mark.parametrize("tokenizer", [smollm2, llama2])
def test_sections_are_tokenized_as_the_whole(name: str, tokenizer: Any) -> None:
    """Between delimiters, where a token may cross a cut, as the text from its beginning."""
    talk = Conversation.of(policy_of(tokenizer(), template(name)).tokenizer, TURNS)
    answers = talk.assistant_spans([1, 3])
    assert answers is not None
    cuts = [place for span in answers.spans for place in span]
    assert talk.cut_ids(answers.text, cuts) == ids_with_cuts(talk.encode, answers.text, cuts)


def test_the_documented_table_is_this_one() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "chat-templates.md").read_text(encoding="utf-8")
    page = page.partition("## What is trained")[2].partition("\n## ")[0]
    rows = [line.split(" | ") for line in page.replace("\\|", "¦").splitlines() if line.startswith("| `")]
    documented = {name.strip(" |`"): (first, last) for names, first, last, *_ in rows for name in names.split(",")}

    def shown(text: str) -> str:
        return f"`{text.format('A')}`".replace("|", "¦").replace("\n", "\\n")

    assert documented == {name: (shown(first), shown(last)) for name, (first, last) in TABLE.items()}


def test_reasoning_is_trained_as_the_template_writes_it() -> None:
    policy = policy_of(smollm2(), template("qwen3_5_think"))
    reasoned = {"role": "assistant", "content": "<think>\nWhy?\n</think>\n\nSo."}
    assert learned(policy, messages=[TURNS[0], reasoned]) == ["Why?\n</think>\n\nSo.<|im_end|>"]
    given = {"role": "assistant", "content": "So.", "reasoning_content": "Why?"}
    assert trained(policy, prompt=TURNS[:1], completion=[given]) == trained(policy, messages=[TURNS[0], reasoned])


def test_arguments_of_the_template_become_its_defaults() -> None:
    policy = policy_of(smollm2(), template("qwen3"))
    tokenizer = policy.tokenizer
    want = tokenizer.apply_chat_template(TURNS[:1], add_generation_prompt=True, tokenize=False, enable_thinking=False)
    set_template_defaults(tokenizer, {"enable_thinking": False})
    (asked,) = prompts_token_ids(tokenizer, [TURNS[:1]])
    assert tokenizer.decode(asked) == want
    assert want.endswith("<think>\n\n</think>\n\n")
    assert learned(policy, messages=TURNS[:2]) == ["Hi, you.<|im_end|>"]
    # As any default, it gives way to an argument; and a template without the argument says so.
    thinking = tokenizer.apply_chat_template(
        TURNS[:1], add_generation_prompt=True, tokenize=False, enable_thinking=True
    )
    assert thinking.endswith("<|im_start|>assistant\n")
    with pytest.raises(UserError, match=r"^model\.chat_template_kwargs: .* does not use 'enable_thinkin'"):
        set_template_defaults(tokenizer, {"enable_thinkin": False})


@pytest.mark.parametrize("value", ['I "am"\n é😀 %} {{ x }} \\', 3, 2.5, True, None])
def test_any_value_of_an_argument_is_kept(value: Any) -> None:
    tokenizer = policy_of(smollm2(), "\n{{ messages[0].content }}{{ given }}{% if x %}{% endif %}").tokenizer
    want = tokenizer.apply_chat_template(TURNS, tokenize=False, given=value)
    set_template_defaults(tokenizer, {"given": value, "x": 1})
    assert tokenizer.apply_chat_template(TURNS, tokenize=False) == want


LLAMA2 = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token + '[INST] ' + m.content.strip() + ' [/INST]' }}"
    "{% else %}{{ ' ' + m.content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
# As Mistral's: the system message is written in the last user turn, so earlier turns change.
MISTRAL = (
    "{% set system = messages[0].content if messages[0].role == 'system' %}{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'user' %}[INST] {{ system + '\n\n' if system and m == (messages | selectattr('role', 'equalto', "
    "'user') | list)[-1] }}{{ m.content }}[/INST]{% elif m.role == 'assistant' %} {{ m.content }}{{ eos_token }}"
    "{% endif %}{% endfor %}"
)


@pytest.mark.parametrize("text", [LLAMA2, MISTRAL])
@pytest.mark.parametrize("system", [False, True])
def test_templates_without_a_generation_prompt(text: str, system: bool) -> None:
    policy = policy_of(plain_llama2(), text)
    messages = [*([{"role": "system", "content": "Be kind."}] if system and text == MISTRAL else []), *TURNS]
    found = trained(policy, messages=messages)
    assert list(found.ids) == policy.tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False)
    ends = [policy.tokenizer.convert_ids_to_tokens(found.ids[start:stop]) for start, stop in found.spans]
    assert [tokens[0] for tokens in ends] == ["▁Hi", "▁Now"]
    assert [tokens[-1] for tokens in ends] == ["</s>", "</s>"]


def test_pairs_end_as_the_template_ends_them() -> None:
    policy = policy_of(smollm2(), template("gemma"))
    pair = {"prompt": TURNS[:3], "chosen": TURNS[3:], "rejected": [{"role": "assistant", "content": "No."}]}
    texts = demonstrations(policy, sides_of([pair]))
    assert [policy.tokenizer.decode(text.completion_ids) for text in texts] == [
        "Now what.<end_of_turn>",
        "No.<end_of_turn>",
    ]


def test_recorded_samples_follow_the_generation_prompt() -> None:
    """R1's history leaves out reasoning, but a sample is what the model wrote after `<think>`."""
    policy = policy_of(smollm2(), template("deepseek_r1_distill"))
    sample = "Why?\n</think>\n\nSo."
    (found,) = recorded_texts(policy, [{"prompt": TURNS[:1], "completion": sample}])
    assert found.prompt_ids == prompts_token_ids(policy.tokenizer, [TURNS[:1]])[0]
    assert policy.tokenizer.decode(found.completion_ids) == f"{sample}<｜end▁of▁sentence｜>"


def test_a_base_models_samples_end_where_its_template_ends_a_turn() -> None:
    """Qwen2.5's base models end with <|endoftext|>, and their template ends turns with <|im_end|>."""
    policy = policy_of(smollm2(), template("qwen2_5"))
    end = policy.tokenizer.convert_tokens_to_ids("<|im_end|>")
    before = policy.eos_ids
    assert end not in before
    stop_at_turn_end(policy, ["plain"])
    assert policy.eos_ids == before
    stop_at_turn_end(policy, [TURNS[:1]])
    assert policy.eos_ids == before | {end}
    assert policy.causal.generation_config.eos_token_id == sorted(policy.eos_ids)
