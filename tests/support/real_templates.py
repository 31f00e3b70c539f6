"""The chat templates of TRL's package, which are those of the models, with real tokenizers that have their tokens."""

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from vigneron.policy.bundled import SMOLLM2, bundled_model_folder
from vigneron.policy.load import make_policy
from vigneron.policy.model import Policy

# Tokens of the models that are added and not special.
NAMED = re.compile(r"</?(?:think|tool_call|tool_response|arg_key|arg_value|tools|tool)>")
SPECIAL = re.compile(
    r"<[|｜][^<>{}'\"\s]+?>|<[a-z_]+\|>|<(?:start_of_turn|end_of_turn|end_of_utterance|sop|image|bos|eos)>|\[gMASK\]|"
    r"\[/?(?:INST|TOOL_CALLS|TOOL_RESULTS|AVAILABLE_TOOLS)\]"
)


def folder_of(package: str) -> Path:
    found = find_spec(package)
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


@cache
def template(name: str) -> str:
    return (folder_of("trl") / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")


def names() -> list[str]:
    return sorted(path.stem for path in (folder_of("trl") / "chat_templates").glob("*.jinja"))


@cache
def llama2() -> Any:
    """The tokenizer of Llama 2, which WordLlama's package has: SentencePiece. With the templates' tokens."""
    return _with_tokens(plain_llama2())


def plain_llama2() -> Any:
    file = folder_of("wordllama") / "tokenizers" / "l2_supercat_tokenizer_config.json"
    return PreTrainedTokenizerFast(tokenizer_file=str(file), bos_token="<s>", eos_token="</s>", unk_token="<unk>")


@cache
def smollm2() -> Any:
    """Byte-level BPE, with a token for two line breaks. With the templates' tokens."""
    tokenizer = AutoTokenizer.from_pretrained(bundled_model_folder(SMOLLM2))
    tokenizer.add_tokens([AddedToken("</s>", special=True, normalized=False)])
    tokenizer.eos_token = "</s>"
    return _with_tokens(tokenizer)


def _with_tokens(tokenizer: Any) -> Any:
    texts = "".join(template(name) for name in names())
    for pattern, special in ((SPECIAL, True), (NAMED, False)):
        found = dict.fromkeys(pattern.findall(texts))
        tokenizer.add_tokens([AddedToken(token, special=special, normalized=False) for token in found])
    return tokenizer


def policy_of(tokenizer: Any, text: str | None = None) -> Policy:
    """A model of no size. Its tokenizer is shared, and gets the chat template."""
    tokenizer.chat_template = text
    return make_policy(_model(len(tokenizer), tokenizer.eos_token_id), tokenizer, device=torch.device("cpu"))


def _model(vocabulary: int, end: int) -> Any:
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=4,
        intermediate_size=4,
        num_hidden_layers=1,
        num_attention_heads=1,
        max_position_embeddings=4096,
        eos_token_id=end,
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config)
