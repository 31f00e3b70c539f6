"""Notes about what a chat template does not write of a conversation."""

from pathlib import Path
from typing import Any

import pytest

from support.labelling import write_rows
from support.real_templates import smollm2, template
from support.tiny_runs import tiny_config
from support.zoo import zoo_folder
from vigneron import api
from vigneron.data.formats import with_prompts_and_answers
from vigneron.policy.chat import mint
from vigneron.rollout.trained_text_notes import template_notes, trained_text_notes
from vigneron.run_store.notices import kept_notices

USER = {"role": "user", "content": "Hi"}
REASONED = {"role": "assistant", "content": "<think>\nhmm\n</think>\n\nyo"}
PLAIN = {"role": "assistant", "content": "yo"}


def notes(name: str, **row: Any) -> list[str]:
    tokenizer = smollm2()
    tokenizer.chat_template = template(name)
    return trained_text_notes(tokenizer, with_prompts_and_answers([row], "mine")[0])


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("deepseek_r1_distill", REASONED),
        ("deepseek_r1_distill", {**PLAIN, "reasoning_content": "hmm"}),
        ("gemma", {**PLAIN, "reasoning_content": "hmm"}),
    ],
)
def test_reasoning_that_the_template_drops_is_named(name: str, answer: dict[str, str]) -> None:
    (note,) = notes(name, messages=[USER, answer])
    assert note.startswith("the chat template does not write 'hmm' of the answer in turn 2, so it is not trained")
    assert notes(name, prompt=[USER], completion=[answer]) == [note]
    assert note.endswith("put it into `content`" if "reasoning_content" in answer else "set `model.chat: minted`")


def test_the_advice_works() -> None:
    assert notes("gemma", messages=[USER, REASONED]) == []
    tokenizer = smollm2()
    mint(tokenizer)
    row = with_prompts_and_answers([{"messages": [USER, REASONED]}], "mine")[0]
    assert trained_text_notes(tokenizer, row) == []


def test_reasoning_that_the_template_writes_has_no_note() -> None:
    assert notes("qwen3", messages=[USER, REASONED]) == []
    assert notes("qwen3", messages=[USER, {**PLAIN, "reasoning_content": "hmm"}]) == []
    assert notes("gemma", messages=[USER, PLAIN, USER, {**PLAIN, "content": "  a\n b "}]) == []
    # An earlier answer's reasoning is left out of the history.
    (note,) = notes("qwen3", messages=[USER, REASONED, USER, PLAIN])
    assert "'hmm' of the answer in turn 2" in note


def test_turns_after_the_last_answer_are_named() -> None:
    assert notes("qwen3", messages=[USER, PLAIN, USER]) == [
        "turn 3 (role 'user') comes after the last answer and is not used"
    ]


@pytest.mark.parametrize("reads", ["demonstrations", "pairs", "prompts"])
def test_a_template_that_seems_to_be_applied_twice_is_named(reads: str) -> None:
    tokenizer = smollm2()
    tokenizer.chat_template = template("qwen3")
    applied = {"role": "assistant", "content": "yo<|im_end|>"}
    row = {
        "demonstrations": {"messages": [USER, applied]},
        "pairs": {"prompt": [USER], "chosen": [PLAIN], "rejected": [applied]},
        "prompts": {"prompt": [{**USER, "content": "<|im_start|>user\nHi"}], "answer": "<|im_end|>"},
    }[reads]
    row = with_prompts_and_answers([row], "mine")[0] if reads == "demonstrations" else row
    (note,) = template_notes(tokenizer, row, reads)
    found = "<|im_start|>" if reads == "prompts" else "<|im_end|>"
    assert note.startswith(f"a message contains '{found}', a special token of the model, which is taken as plain text")
    harmless = {"prompt": [{**USER, "content": "<|endoftext|> and <think>"}], "answer": "<|im_end|>"}
    assert template_notes(tokenizer, harmless, "prompts") == []


def test_what_a_generation_prompt_ends_in() -> None:
    (note,) = notes("deepseek_r1_distill", messages=[USER, PLAIN])
    assert note.startswith(r"the generation prompt ends in '<think>\n', which the template does not write")
    # The generation prompt is there, though the template writes the first answer differently now.
    assert notes("qwen3", messages=[USER, PLAIN, {**PLAIN, "content": "and"}]) == []


def test_a_run_gives_notice_of_dropped_reasoning_and_of_dropped_encoders(tmp_path: Path) -> None:
    folder = zoo_folder("Llama 4", tmp_path)
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.role[0] + m.content.split('</think>')[-1] + eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}a{% endif %}"
    )
    rows = write_rows(tmp_path / "rows.jsonl", [{"messages": [USER, one]} for one in (PLAIN, REASONED)])
    model = {"name": str(folder), "device": "cpu", "dtype": "float32"}
    options = {"method": {"name": "sft"}, "model": model, "reward": {"kind": "binary"}, "group_size": 1, "steps": 1}
    config = tiny_config(folder, rows, **options, optimizer={"actor_lr": 1e-3}, eval_every=0, prompts_per_step=1)
    run = api.train(config, runs=tmp_path, name="run")
    texts = [notice.text for notice in kept_notices(run.folder)]
    noted = f"row 2 of the training data ('{rows}', row 2): the chat template does not write 'hmm'"
    assert any(text.startswith(noted) for text in texts)
    assert any(text.endswith("checkpoints and exports have no encoder of images") for text in texts)
