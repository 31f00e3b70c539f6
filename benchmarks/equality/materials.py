"""What the cases of `benchmarks.same_runs` train on: tiny models, rows, rubrics and reward functions, written once."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import yaml
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
)
from transformers.utils.logging import disable_progress_bar

WORDS = ("hot", "cold", "big", "small", "up", "down", "wet", "dry")

FUNCTIONS = '''
import asyncio
import json
import os
import signal
from pathlib import Path

CALLS = 0


def vowels(completions, **columns):
    return [sum(c in "aeiouAEIOU" for c in text) / 4 + len(text) / 64 for text in completions]


def any_vowel(completions, **columns):
    """Coarse: in many groups all earn the same."""
    return [float(any(c in "aeiou" for c in text)) for text in completions]


async def vowels_later(completions, **columns):
    await asyncio.sleep(0.01)
    return vowels(completions)


def with_missing(completions, **columns):
    """Some rewards are missing, and the second call gives one that is not finite."""
    global CALLS
    CALLS += 1
    rewards = [None if text[:1] in "abcdefgh" else reward for text, reward in zip(completions, vowels(completions))]
    return [float("nan"), *rewards[1:]] if CALLS == 2 else rewards


def killing(completions, **columns):
    """Kills the process at the sixth call, once: in the fourth step, after two evaluations."""
    global CALLS
    CALLS += 1
    mark = Path("killed")
    if CALLS == 6 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return vowels(completions)


def judge(messages):
    text = messages[-1]["content"]
    if "critique" not in text.lower() or ("Reply" not in text and "yes" not in text):
        return "It could have more vowels."
    return json.dumps({"reasoning": "counted", "score": (text.count("a") % 5) / 4, "confidence": 0.8})
'''

HEADS: dict[str, Any] = {
    "vocab_size": 260,
    "max_position_embeddings": 2048,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
SHAPES: dict[str, Callable[[], PretrainedConfig]] = {
    "llama": lambda: LlamaConfig(**HEADS),
    "qwen": lambda: Qwen3Config(**HEADS, head_dim=8),
    "mistral": lambda: MistralConfig(**HEADS, sliding_window=3),
    "gpt2": lambda: GPT2Config(
        vocab_size=260, n_positions=2048, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    ),
}
ENDS = [0, *range(3, 260, 12)]
"""Tokens that end a completion: so many that nearly half of the completions end before the limit."""


def write_materials(place: Path) -> None:
    """Everything that recipes name as `../shared/…`."""
    place.mkdir(parents=True)
    disable_progress_bar()
    for shape, config in SHAPES.items():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config())
        model.generation_config.eos_token_id = ENDS
        model.save_pretrained(place / shape)
        byte_tokenizer().save_pretrained(place / shape)
    (place / "equality_functions.py").write_text(FUNCTIONS, encoding="utf-8")
    write_data(place)
    write_rubrics(place)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, and `<end>`, which is also the padding."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<end>": 0, **{character: i + 1 for i, character in enumerate(alphabet)}}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>")
    fast.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}answer: "
    return fast


def write_data(place: Path) -> None:
    for part, verb in (("train", "say"), ("held-out", "name")):
        rows: dict[str, Iterable[dict[str, Any]]] = {
            "words": ({"prompt": f"{verb} {w}: ", "answer": w} for w in WORDS),
            "pairs": ({"prompt": f"{verb} {w}:", "chosen": f" {w}!", "rejected": f" {w}?"} for w in WORDS),
            "chats": ({"messages": _turns(f"{verb} {w}", w)} for w in WORDS),
            "scores": (
                {"prompt": f"{verb} {w}:", "completion": f" {w}{end}", "score": score}
                for w in WORDS
                for end, score in ((".", 1.0), ("!", 0.25))
            ),
        }
        for name, some in rows.items():
            text = "".join(json.dumps(row) + "\n" for row in some)
            (place / f"{name}-{part}.jsonl").write_text(text, encoding="utf-8")


def _turns(question: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def write_rubrics(place: Path) -> None:
    vowels = {"name": "vowels", "description": "Vowels.", "flow": "python", "function": "equality_functions:vowels"}
    sounds = {"name": "sounds", "description": "Sounds.", "flow": "judge", "critique": "You are a critic of sounds."}
    short = {"name": "short", "description": "Short.", "flow": "length", "at_most": 1}
    rubrics: dict[str, list[dict[str, Any]]] = {
        "rubric": [{**vowels, "weight": 0.5}, {**sounds, "weight": 0.5}],
        "held-out-rubric": [short],
    }
    for name, items in rubrics.items():
        category = {"items": items, "generate": "Use many vowels."}
        text = yaml.safe_dump({"category_column": None, "categories": {"words": category}})
        (place / f"{name}.yaml").write_text(text, encoding="utf-8")
