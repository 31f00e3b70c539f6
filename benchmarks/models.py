"""The compared models as transformers folders; nothing is downloaded."""

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any, get_args

import torch

from benchmarks.prompts import WORDS
from benchmarks.work import Model
from vigneron.policy.bundled import SMOLLM2, bundled_model_folder, cache_folder


def model_folder(name: Model) -> Path:
    """SmolLM2-135M as Vigneron bundles it, or a shape with random weights, made once.

    The shapes of real size are in bfloat16, as they are published. VIGNERON_CACHE can name a folder in memory."""
    if name == "smollm2-135m":
        return bundled_model_folder(SMOLLM2)
    target = shape_folder(name)
    if not target.is_dir():
        if name == "gpt2-small-shape":
            save_random_model(gpt2_small_config(), target)
        else:
            save_shape(shape_config(name), target)
    return target


def model_config(name: Model) -> Any:
    """Of a shape without making its weights."""
    from transformers import AutoConfig

    return shape_config(name) if name in SIZES else AutoConfig.from_pretrained(model_folder(name))


def shape_folder(name: Model) -> Path:
    return cache_folder() / f"benchmark-{name}"


SIZES: dict[str, dict[str, Any]] = {
    "qwen2.5-0.5b-shape": {
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "vocab_size": 151936,
    },
    "qwen2.5-1.5b-shape": {
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "vocab_size": 151936,
    },
    "llama-3.1-8b-shape": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    },
    "tiny-shape": {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "vocab_size": 4096,
    },
}
"""As in the published configs of Qwen2.5 and Llama 3.1."""


def shape_config(name: str) -> Any:
    from transformers import LlamaConfig, Qwen2Config

    if name.startswith("llama"):
        return LlamaConfig(**SIZES[name], max_position_embeddings=8192, tie_word_embeddings=False)
    return Qwen2Config(**SIZES[name], max_position_embeddings=8192, tie_word_embeddings=True)


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

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    _save(model, AutoTokenizer.from_pretrained(bundled_model_folder(SMOLLM2)), target)


def save_shape(config: Any, target: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Random weights of seed 0, with a tokenizer of as many tokens as the model has. On a GPU if there is one, because
    8 billion draws take minutes on a CPU."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    _save(model, word_tokenizer(config.vocab_size), target)


def word_tokenizer(size: int) -> Any:
    """Byte-level BPE for the words of the prompts, filled up with tokens that only a model writes: every id has a text,
    and texts differ in the letter that is rewarded."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    learnt = Tokenizer(models.BPE())
    learnt.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    learnt.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=2048, initial_alphabet=alphabet, special_tokens=[END], show_progress=False)
    learnt.train_from_iterator([" " + " ".join(WORDS)], trainer)
    kept = json.loads(learnt.to_str())
    vocabulary = kept["model"]["vocab"]
    vocabulary |= {f"|{number:x}": number for number in range(len(vocabulary), size)}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(kept)), eos_token=END, bos_token=END, pad_token=END
    )


END = "<|end|>"


def _save(model: Any, tokenizer: Any, target: Path) -> None:
    for owner in (model.config, model.generation_config):
        owner.bos_token_id = owner.eos_token_id = owner.pad_token_id = tokenizer.eos_token_id
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".benchmark-", dir=target.parent))
    model.save_pretrained(draft, max_shard_size="4GB")
    tokenizer.save_pretrained(draft)
    if target.is_dir():
        shutil.rmtree(draft)
    else:
        draft.rename(target)


if __name__ == "__main__":
    # In a process of its own: what it had on the GPU is free again when it ends.
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, choices=get_args(Model))
    print(model_folder(parser.parse_args().model))
