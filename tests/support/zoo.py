"""A tiny random model of every common architecture: one line a family, built in the process.

`WINDOW` is the sliding window of those that have one: short texts do not reach it, long ones do.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedConfig,
    PreTrainedModel,
)

from support.tiny_models import VOCABULARY, byte_tokenizer
from vigneron.policy.bundled import quiet_transformers

WINDOW = 16
CONTEXT = 64

IDS = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0, "initializer_range": 0.2}
ROTARY = {
    **IDS,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
}
SIZED = {**ROTARY, "head_dim": 8}
GPT = {**IDS, "n_positions": CONTEXT, "n_embd": 16, "n_layer": 2, "n_head": 2}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
LOCAL_MOE = {"num_local_experts": 4, "num_experts_per_tok": 2}
SLIDING = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 8}
LINEAR = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
MLA = {
    "num_key_value_heads": 4,
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 8,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.2],
    "long_factor": [2.0, 6.0],
    "original_max_position_embeddings": 32,
}
VISION = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 8,
}
GEMMA_3N = {**SIZED, "layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": WINDOW}
GEMMA_3N |= {"num_hidden_layers": 4, "num_kv_shared_layers": 2, "vocab_size_per_layer_input": VOCABULARY}
GEMMA_3N |= {"hidden_size_per_layer_input": 8, "laurel_rank": 4, "activation_sparsity_pattern": [0.0] * 4}
GEMMA_3N |= {"altup_num_inputs": 2, "intermediate_size": [24] * 4}
GEMMA_4 = {**SIZED, **SLIDING, "global_head_dim": 8, "num_kv_shared_layers": 0}
GEMMA_4 |= {"vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 8}
LLAMA_4 = {**SIZED, **LOCAL_MOE, "intermediate_size_mlp": 24, "attention_chunk_size": WINDOW, "num_experts_per_tok": 1}

FAMILIES: dict[str, tuple[str, Mapping[str, Any]]] = {
    # Rotary positions.
    "Llama": ("llama", ROTARY),
    "Llama 3.1 (scaled positions)": ("llama", {**ROTARY, "rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4,
        "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}}),
    "Mistral": ("mistral", {**ROTARY, "sliding_window": None}),
    "Mistral v0.1 (window)": ("mistral", {**ROTARY, "sliding_window": WINDOW}),
    "Ministral": ("ministral", {**SIZED, **SLIDING}),
    "Qwen2": ("qwen2", ROTARY),
    "Qwen2 (window)": ("qwen2", {**ROTARY, **SLIDING, "use_sliding_window": True, "max_window_layers": 1}),
    "Qwen3": ("qwen3", SIZED),
    "SmolLM3": ("smollm3", ROTARY),
    "OLMo": ("olmo", ROTARY),
    "OLMo 2": ("olmo2", ROTARY),
    "OLMo 3": ("olmo3", {**ROTARY, **SLIDING}),
    "Gemma": ("gemma", SIZED),
    "Gemma 2": ("gemma2", {**SIZED, **SLIDING, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0}),
    "Gemma 3 text": ("gemma3_text", {**SIZED, **SLIDING, "query_pre_attn_scalar": 8}),
    "Gemma 3n text": ("gemma3n_text", GEMMA_3N),
    "Gemma 4 text": ("gemma4_text", GEMMA_4),
    "Phi": ("phi", ROTARY),
    "Phi-3": ("phi3", {**ROTARY, "sliding_window": WINDOW}),
    "Phi-3 128k (longrope)": ("phi3", {**ROTARY, "sliding_window": None, "rope_parameters": LONGROPE,
        "original_max_position_embeddings": 32}),
    "GPT-NeoX, Pythia": ("gpt_neox", {**ROTARY, "rotary_pct": 0.5}),
    "GPT-J": ("gptj", {**GPT, "rotary_dim": 4}),
    "CodeGen": ("codegen", {**GPT, "n_head": 4, "rotary_dim": 4, "n_ctx": CONTEXT}),
    "StarCoder2": ("starcoder2", {**ROTARY, "sliding_window": WINDOW, "residual_dropout": 0.3}),
    "StableLM": ("stablelm", ROTARY),
    "Cohere": ("cohere", {**ROTARY, "logit_scale": 0.5}),
    "Cohere 2": ("cohere2", {**SIZED, **SLIDING, "logit_scale": 0.5}),
    "Granite": ("granite", {**ROTARY, "logits_scaling": 2.0, "residual_multiplier": 0.5}),
    "GLM-4": ("glm4", SIZED),
    "Ernie 4.5": ("ernie4_5", SIZED),
    "EXAONE 4": ("exaone4", {**SIZED, **SLIDING}),
    "Seed-OSS": ("seed_oss", SIZED),
    "Hunyuan": ("hunyuan_v1_dense", SIZED),
    "Falcon (rotary)": ("falcon", {**IDS, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
        "alibi": False, "multi_query": True, "new_decoder_architecture": False, "max_position_embeddings": CONTEXT}),
    # Learned positions, or ALiBi.
    "GPT-2": ("gpt2", GPT),
    "GPT-Neo": ("gpt_neo", {**IDS, "hidden_size": 16, "num_layers": 2, "num_heads": 2, "intermediate_size": 24,
        "attention_types": [[["global", "local"], 1]], "window_size": WINDOW, "max_position_embeddings": CONTEXT}),
    "GPT-BigCode": ("gpt_bigcode", GPT),
    "OPT": ("opt", {**IDS, "hidden_size": 16, "ffn_dim": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
        "word_embed_proj_dim": 16, "max_position_embeddings": CONTEXT, "init_std": 0.2}),
    "Falcon (ALiBi)": ("falcon", {**IDS, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
        "alibi": True, "multi_query": False, "new_decoder_architecture": False, "bias": True}),
    "BLOOM": ("bloom", {**IDS, "hidden_size": 16, "n_layer": 2, "n_head": 2, "hidden_dropout": 0.3}),
    "MPT": ("mpt", {**IDS, "d_model": 16, "n_layers": 2, "n_heads": 2, "expansion_ratio": 2, "max_seq_len": CONTEXT}),
    # Mixtures of experts.
    "Mixtral": ("mixtral", {**ROTARY, **LOCAL_MOE, "router_jitter_noise": 0.3}),
    "Qwen2-MoE": ("qwen2_moe", {**ROTARY, **MOE, "shared_expert_intermediate_size": 8}),
    "Qwen3-MoE": ("qwen3_moe", {**SIZED, **MOE}),
    "OLMoE": ("olmoe", {**ROTARY, "num_experts": 4, "num_experts_per_tok": 2}),
    "Phi-3.5-MoE": ("phimoe", {**ROTARY, **LOCAL_MOE}),
    "gpt-oss": ("gpt_oss", {**SIZED, **SLIDING, **LOCAL_MOE}),
    "GraniteMoE": ("granitemoe", {**ROTARY, **LOCAL_MOE}),
    "GLM-4.5": ("glm4_moe", {**SIZED, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8,
        "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1}),
    "Ernie 4.5 MoE": ("ernie4_5_moe", {**ROTARY, "moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 8,
        "moe_layer_start_index": 1}),
    "DeepSeek V2": ("deepseek_v2", {**ROTARY, **MLA}),
    "DeepSeek V3": ("deepseek_v3", {**ROTARY, **MLA}),
    "Llama 4 text": ("llama4_text", LLAMA_4),
    # Recurrent layers.
    "Mamba": ("mamba", {**IDS, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4}),
    "Mamba 2": ("mamba2", {**IDS, "hidden_size": 16, "num_hidden_layers": 2, "num_heads": 4, "head_dim": 8,
        "state_size": 8, "n_groups": 1, "chunk_size": 8}),
    "Granite 4 (hybrid)": ("granitemoehybrid", {**ROTARY, **MAMBA, **LOCAL_MOE, "shared_intermediate_size": 16,
        "layer_types": ["mamba", "attention"]}),
    "Falcon-H1": ("falcon_h1", {**SIZED, **MAMBA, "mamba_d_ssm": 32}),
    "Jamba": ("jamba", {**ROTARY, "num_experts": 4, "num_experts_per_tok": 2, "attn_layer_period": 2,
        "attn_layer_offset": 1, "mamba_d_state": 4, "use_mamba_kernels": False}),
    "LFM2": ("lfm2", {**ROTARY, "layer_types": ["conv", "full_attention"], "block_multiple_of": 8}),
    "RecurrentGemma": ("recurrent_gemma", {**ROTARY, "attention_window_size": WINDOW, "lru_width": 16,
        "block_types": ["recurrent", "attention"]}),
    "Qwen3-Next": ("qwen3_next", {**SIZED, **MOE, **LINEAR, "shared_expert_intermediate_size": 8}),
    "Qwen3.5 text": ("qwen3_5_text", {**SIZED, **LINEAR}),
    # Composite configs: a text model beside an image encoder. Gemma 3n's needs timm, which is not installed here.
    "Gemma 3": ("gemma3", {"text_config": {**SIZED, **SLIDING, "query_pre_attn_scalar": 8}, "vision_config": VISION,
        "mm_tokens_per_image": 4}),
    "Gemma 4": ("gemma4", {"text_config": GEMMA_4, "vision_config": VISION | {"head_dim": 8,
        "num_key_value_heads": 2, "position_embedding_size": 16}}),
    "Mistral 3": ("mistral3", {"text_config": {**SIZED, "model_type": "mistral", "sliding_window": None},
        "vision_config": VISION | {"model_type": "pixtral", "head_dim": 8}}),
    "Llama 4": ("llama4", {"text_config": LLAMA_4, "vision_config": VISION | {"vision_output_dim": 16,
        "projector_input_dim": 16, "projector_output_dim": 16}}),
    "Qwen3.5": ("qwen3_5", {"text_config": {**SIZED, **LINEAR}, "vision_config": {"hidden_size": 16, "depth": 1,
        "intermediate_size": 24, "num_heads": 2, "out_hidden_size": 16, "num_position_embeddings": 16}}),
}  # fmt: skip

UNLIKE = (
    *("Llama", "Gemma 2", "Gemma 3n text", "GPT-2", "BLOOM"),
    *("Mixtral", "gpt-oss", "GraniteMoE", "DeepSeek V3", "Llama 4 text"),
    *("Mamba", "Granite 4 (hybrid)", "Falcon-H1", "Jamba", "LFM2", "RecurrentGemma", "Qwen3-Next"),
    *("Gemma 3", "Gemma 4", "Mistral 3", "Llama 4", "Qwen3.5"),
)
"""Families of every kind of layer, of stored weights and of config: the others' weights are kept as one of these's."""


def zoo_config(name: str) -> PreTrainedConfig:
    kind, options = FAMILIES[name]
    return AutoConfig.for_model(kind, **options)


def zoo_model(name: str, seed: int = 0) -> PreTrainedModel:
    """The family's model as the hub has it, in evaluation mode: of a composite config with its encoders."""
    torch.manual_seed(seed)
    config = zoo_config(name)
    auto: Any = AutoModelForImageTextToText if "text_config" in FAMILIES[name][1] else AutoModelForCausalLM
    return auto.from_config(config).eval()


def zoo_folder(name: str, place: Path, seed: int = 0) -> Path:
    """A folder as `save_pretrained` writes it, with a tokenizer of one token a byte."""
    folder = place / name.replace("/", "-").replace(" ", "-")
    with quiet_transformers():
        zoo_model(name, seed).save_pretrained(folder)
        byte_tokenizer().save_pretrained(folder)
    return folder
