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


def llama2() -> Any:
    """The tokenizer of Llama 2, which WordLlama's package has: SentencePiece."""
    file = folder_of("wordllama") / "tokenizers" / "l2_supercat_tokenizer_config.json"
    return PreTrainedTokenizerFast(tokenizer_file=str(file), bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def smollm2() -> Any:
    """Byte-level BPE, with a token for two line breaks."""
    return AutoTokenizer.from_pretrained(bundled_model_folder(SMOLLM2))


def with_template(tokenizer: Any, text: str, end: str | None = None) -> Any:
    """The tokenizer with a template and its tokens; `end` is the model's end token."""
    # Tokens are written in pieces, as in '<|start_header_id|>'; macros' names are none.
    special = dict.fromkeys(SPECIAL.findall(text))
    named = [AddedToken(token, special=False, normalized=False) for token in dict.fromkeys(NAMED.findall(text))]
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.add_tokens(named)
    tokenizer.chat_template = text
    if end is not None:
        tokenizer.add_tokens([AddedToken(end, special=True, normalized=False)])
        tokenizer.eos_token = end
    return tokenizer


def policy_of(tokenizer: Any) -> Policy:
    """A model of no size."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=4,
        intermediate_size=4,
        num_hidden_layers=1,
        num_attention_heads=1,
        max_position_embeddings=4096,
        eos_token_id=tokenizer.eos_token_id,
    )
    torch.manual_seed(0)
    return make_policy(LlamaForCausalLM(config), tokenizer, device=torch.device("cpu"))
