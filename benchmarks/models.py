"""The compared models as transformers folders; nothing is downloaded."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.work import Model
from vigneron.policy.bundled import SMOLLM2, bundled_model_folder, cache_folder


def model_folder(name: Model) -> Path:
    """SmolLM2-135M as Vigneron bundles it, or GPT-2 Small's shape with random weights, made once."""
    if name == "smollm2-135m":
        return bundled_model_folder(SMOLLM2)
    target = cache_folder() / "benchmark-gpt2-small-shape"
    if not target.is_dir():
        save_random_model(gpt2_small_config(), target)
    return target


def gpt2_small_config() -> Any:
    """transformers' defaults are GPT-2 Small's: 12 layers of 768, 12 heads, 50,257 tokens. Dropout is off for all."""
    from transformers import GPT2Config

    return GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)


def llama_config(layers: int, hidden: int) -> Any:
    """SmolLM2's proportions in another size: heads of 64, a third of them for keys and values."""
    from transformers import LlamaConfig

    heads = hidden // 64
    return LlamaConfig(
        num_hidden_layers=layers,
        hidden_size=hidden,
        intermediate_size=hidden * 8 // 3,
        num_attention_heads=heads,
        num_key_value_heads=heads // 3 if heads % 3 == 0 else heads,
        vocab_size=49152,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )


def save_random_model(config: Any, target: Path) -> None:
    """Random float32 weights of seed 0, with SmolLM2's tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(bundled_model_folder(SMOLLM2))
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for owner in (model.config, model.generation_config):
        owner.bos_token_id = owner.eos_token_id = owner.pad_token_id = tokenizer.eos_token_id
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".benchmark-", dir=target.parent))
    model.save_pretrained(draft)
    tokenizer.save_pretrained(draft)
    if target.is_dir():
        shutil.rmtree(draft)
    else:
        draft.rename(target)
