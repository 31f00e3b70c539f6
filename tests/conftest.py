"""Tiny models and tokenizers, built in the process: real transformers models of real shapes, with random weights."""

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

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


def tiny_model(kind: str, seed: int = 0) -> GPT2LMHeadModel | LlamaForCausalLM:
    """GPT-2's shape has learned positions and tied embeddings; Llama's has rotary positions and grouped heads."""
    torch.manual_seed(seed)
    if kind == "gpt2":
        return GPT2LMHeadModel(
            GPT2Config(
                vocab_size=VOCABULARY, n_positions=64, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
            )
        )
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            max_position_embeddings=64,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            bos_token_id=0,
            eos_token_id=0,
            pad_token_id=0,
        )
    )


def tiny_policy(kind: str = "llama", seed: int = 0, dtype: torch.dtype = torch.float32) -> Policy:
    model = tiny_model(kind, seed).to(dtype).eval()
    return make_policy(model, byte_tokenizer(), device=torch.device("cpu"))


@pytest.fixture(params=["gpt2", "llama"])
def policy(request: pytest.FixtureRequest) -> Policy:
    return tiny_policy(request.param)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama as a transformers folder, for everything that loads a model by name."""
    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    tiny_model("llama").save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder
