"""Tiny models and tokenizers, built in the process: real transformers models of real shapes, with random weights."""

from functools import cache
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    CodeGenConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
)

from vigneron.policy.bundled import SMOLLM2, bundled_model_folder
from vigneron.policy.load import make_policy
from vigneron.policy.model import Policy

VOCABULARY = 260


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


GROUPED_HEADS = {
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
LEARNED_POSITIONS = {"vocab_size": VOCABULARY, "n_positions": 64, "n_embd": 16, "n_layer": 2, "n_head": 2}
SHAPES = {
    "gpt2": lambda: GPT2Config(**LEARNED_POSITIONS, bos_token_id=0, eos_token_id=0),
    "llama": lambda: LlamaConfig(**GROUPED_HEADS),
    "qwen": lambda: Qwen3Config(**GROUPED_HEADS, head_dim=8),
    # Attention of its own kind, and a sliding window.
    "codegen": lambda: CodeGenConfig(
        **(LEARNED_POSITIONS | {"n_head": 4}), rotary_dim=4, n_ctx=64, bos_token_id=0, eos_token_id=0
    ),
    "mistral": lambda: MistralConfig(**GROUPED_HEADS, sliding_window=3),
}


def tiny_model(kind: str, seed: int = 0) -> PreTrainedModel:
    """GPT-2 has learned positions and tied embeddings; Llama rotary ones and grouped heads; Qwen norms its queries."""
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(SHAPES[kind]())


def tiny_policy(kind: str = "llama", seed: int = 0, dtype: torch.dtype = torch.float32) -> Policy:
    model = tiny_model(kind, seed).to(dtype).eval()
    return make_policy(model, byte_tokenizer(), device=torch.device("cpu"))


def tiny_scorer(kind: str = "llama", seed: int = 0, dtype: torch.dtype = torch.float32) -> Policy:
    """A sequence-classification model of the same shapes, with a head large enough that texts differ."""
    torch.manual_seed(seed)
    config = SHAPES[kind]()
    config.num_labels = 1
    model = AutoModelForSequenceClassification.from_config(config).to(dtype).eval()
    with torch.no_grad():
        model.score.weight.mul_(20)
    return make_policy(model, byte_tokenizer(), device=torch.device("cpu"))


def long_tiny_folder(folder: Path) -> str:
    """A folder with a tiny Llama of 1,024 positions, for prompts with examples; returns its name."""
    torch.manual_seed(0)
    config = LlamaConfig(**(GROUPED_HEADS | {"max_position_embeddings": 1024}))
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return str(folder)


@cache
def smollm2_tokenizer() -> PreTrainedTokenizerFast:
    """The bundled model's own; not to be changed."""
    return AutoTokenizer.from_pretrained(bundled_model_folder(SMOLLM2))
