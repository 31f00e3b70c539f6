"""The memory of passes, by fake tensors, against what autograd really keeps; and model sizes against known ones."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, Qwen2Config

from support.tiny_models import tiny_policy
from support.zoo import FAMILIES, zoo_config
from vigneron.core.draws import Sampling
from vigneron.policy.architecture import is_recurrent, language_model_class
from vigneron.policy.attention import Unpacked
from vigneron.policy.fake_policy import Holding, meta_model
from vigneron.policy.fused_modules import fuse_modules
from vigneron.policy.kernel_shapes import shapes_only
from vigneron.policy.live_bytes import BLOCK, LiveBytes
from vigneron.policy.lora import Lora
from vigneron.policy.model import Policy
from vigneron.policy.model_size import NF4_BYTES, cached_numbers, held_bytes, model_size
from vigneron.policy.pass_memory import PassMemory, inner_size

QWEN_1B = Qwen2Config(
    vocab_size=151936,
    hidden_size=1536,
    intermediate_size=8960,
    num_hidden_layers=28,
    num_attention_heads=12,
    num_key_value_heads=2,
    tie_word_embeddings=True,
)
LLAMA_8B = LlamaConfig(
    vocab_size=128256,
    hidden_size=4096,
    intermediate_size=14336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
)
WIDTH, ROWS, LAYERS = 48, 5, 4


@pytest.mark.parametrize(("family", "cast"), [("Gemma", 2), ("Llama", 0)])
def test_a_head_that_stays_float32_is_cast(family: str, cast: int) -> None:
    """A compiled head: logits of a chunk and their gradient, the sum of the head's gradients, and its cast."""
    config = zoo_config(family)
    passes = PassMemory(config, Holding(torch.bfloat16, bfloat16_weights=True, compiled=True), WIDTH)
    text = config.get_text_config()
    logits = 100 * text.vocab_size * (4 + 2)
    assert passes._fused_head(100, exact_kl=False) == logits + text.vocab_size * text.hidden_size * (cast + 4)


def deep_config(family: str) -> Any:
    """The zoo's shape, with more layers."""
    config = zoo_config(family)
    config.num_hidden_layers = LAYERS
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:1] * LAYERS
    return config


def packed_rows(prompt: int) -> tuple[torch.Tensor, torch.Tensor, Unpacked]:
    """Rows of one sample each, or of two that share a prompt of so many tokens."""
    token_BW = torch.arange(ROWS * WIDTH).view(ROWS, WIDTH)
    for row in range(1, ROWS, 2) if prompt else ():
        token_BW[row, :prompt] = token_BW[row - 1, :prompt]
    kept, token = token_BW.unique(return_inverse=True)
    place_N = torch.tensor([int((token.flatten() == n).nonzero()[0]) for n in range(len(kept))])
    shared_M = torch.tensor([n for n in range(len(kept)) if int((token == n).sum()) > 1], dtype=torch.long)
    places = [(token.flatten() == n).nonzero()[:, 0] for n in shared_M]
    places_MG = torch.stack(places) if places else torch.zeros(0, 1, dtype=torch.long)
    ids = torch.ones(1, len(kept), dtype=torch.long)
    return ids, torch.zeros_like(ids), Unpacked(token.view(ROWS, WIDTH), place_N, shared_M, places_MG)


def kept_bytes(config: Any, dtype: torch.dtype, *, prompt: int = 0, fused: bool = False) -> int:
    """What autograd keeps of a real pass on the CPU, weights left out. `fused`: as on a GPU; the kernels make results
    without values."""
    torch.manual_seed(0)
    model = meta_model(config).to_empty(device="cpu")
    if getattr(config, "attn_logit_softcapping", None):
        model.config._attn_implementation = "eager"
    for weight in (*model.parameters(), *model.buffers()):
        torch.nn.init.constant_(weight.data, 0.1)
    policy = Policy(model, None, frozenset(), 0, torch.device("cpu"), dtype, own_attention=True)
    weights = {weight.untyped_storage().data_ptr() for weight in (*model.parameters(), *model.buffers())}
    kept: dict[int, Any] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage  # held, so that no address is used twice
        return tensor

    with shapes_only() if fused else nullcontext():
        assert not fused or fuse_modules(model)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            hidden = policy.trunk(*packed_rows(prompt))
    kept[hidden.untyped_storage().data_ptr()] = hidden.untyped_storage()
    return sum(-(-storage.nbytes() // BLOCK) * BLOCK for storage in kept.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        ("Llama", "float32"),
        ("Qwen3", "bfloat16"),
        ("Gemma 2", "bfloat16"),
        ("GPT-NeoX, Pythia", "float32"),
    ],
)
def test_activations_are_those_that_autograd_keeps(family: str, dtype: str) -> None:
    config, compute = deep_config(family), getattr(torch, dtype)
    estimated = PassMemory(config, Holding(compute=compute), WIDTH).trunk(ROWS).saved
    assert estimated == pytest.approx(kept_bytes(config, compute), rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "prompt"), [("Llama", 0), ("Qwen3", 30)])
def test_fused_modules_keep_less_and_a_shared_prompt_is_kept_once(family: str, prompt: int) -> None:
    config = deep_config(family)
    tokens = ROWS * WIDTH - ROWS // 2 * prompt
    estimated = PassMemory(config, Holding(fused=True), WIDTH).trunk(ROWS, tokens).saved
    assert estimated == pytest.approx(kept_bytes(config, torch.bfloat16, prompt=prompt, fused=True), rel=0.05)
    assert estimated < 0.75 * PassMemory(config, Holding(), WIDTH).trunk(ROWS, tokens).saved


@pytest.mark.slow
@pytest.mark.parametrize("fused", [False, True])
def test_with_checkpointing_a_layer_keeps_its_input(fused: bool) -> None:
    config = deep_config("Llama")
    whole = PassMemory(config, Holding(fused=fused), WIDTH).trunk(ROWS)
    passes = PassMemory(config, Holding(checkpointing=True, fused=fused), WIDTH)
    passes._by_running()  # fails nowhere: the rough formula is for other models
    checkpointed = passes.trunk(ROWS)
    inputs = LAYERS * ROWS * WIDTH * config.hidden_size * 4
    assert inputs <= checkpointed.saved <= 0.4 * whole.saved
    assert checkpointed.beside_saved > whole.beside_saved  # a layer's activations, computed again


CAST_BYTES = 4 * 512 + 3 * 1024
"""Of a layer's matrices in bfloat16, in blocks of 512 bytes: 16 × 16 and 8 × 16 twice each, 24 × 16 three times."""


@pytest.mark.slow
def test_casts_of_weights_are_kept_for_the_backward_pass_alone() -> None:
    """With checkpointing, layers cast them again; there is one at a time, not those of all layers."""
    config = deep_config("Llama")
    kept, again = (
        PassMemory(config, Holding(checkpointing=checkpointing, fused=True), WIDTH).trunk(ROWS)
        for checkpointing in (False, True)
    )
    assert kept.casts == LAYERS * CAST_BYTES
    assert again.casts == 0
    assert 0 < again.forward_casts <= 1024


def test_a_pass_without_gradients_keeps_no_cast() -> None:
    """Of a real model, in float32, at its last norm: a captured CUDA graph would keep the memory of all casts."""
    policy = tiny_policy("llama")
    policy.compute_dtype = torch.bfloat16
    ids, positions = torch.ones(1, 8, dtype=torch.long), torch.arange(8)[None]
    policy.trunk(ids, positions)  # finds out how attention is computed
    linear = [module.weight for module in policy.causal.model.modules() if isinstance(module, nn.Linear)]
    held: list[int] = []
    policy.causal.model.norm.register_forward_pre_hook(lambda *_: held.append(live.casts))
    for gradients in (True, False):
        with LiveBytes(linear) as live, torch.set_grad_enabled(gradients):
            policy.trunk(ids, positions)
    assert held[0] >= sum(2 * weight.numel() for weight in linear)
    assert held[1] == 0


def test_the_head_makes_its_logits_and_the_gradient_of_its_matrix() -> None:
    """V = 260, H = 16, N = 40: logits and gradients of [N, V] float32 and of [V, H] float32, each a few times."""
    head = PassMemory(zoo_config("Llama"), Holding(compute=torch.float32), WIDTH)
    bytes_ = head.head(40, Sampling(), exact_kl=False)
    logits, matrix = 40 * 260 * 4, 260 * 16 * 4
    assert 4 * logits + matrix <= bytes_ <= 9 * logits + 4 * matrix
    assert head.head(40, Sampling(), exact_kl=True) > bytes_


@pytest.mark.parametrize(("config", "parameters"), [(QWEN_1B, 1_543_714_304), (LLAMA_8B, 8_030_261_248)])
def test_parameter_counts(config: Any, parameters: int) -> None:
    assert model_size(config).parameters == parameters


def test_sizes_of_a_shape_by_hand() -> None:
    """H = 16, I = 24, V = 260, 2 layers, 4 heads of 4, 2 key heads, untied."""
    size = model_size(zoo_config("Llama"))
    linear = 2 * (16 * 16 + 2 * 16 * 8 + 16 * 16 + 3 * 16 * 24)
    head = embedding = 260 * 16
    norms = 5 * 16
    assert size.parameters == linear + head + embedding + norms
    assert sum(weight.count for weight in size.weights if weight.linear) == linear + head
    assert sum(weight.count for weight in size.sharded(4).weights) == linear / 4 + head + embedding + norms
    assert size.cached == 2 * 2 * (4 + 4)
    assert held_bytes(size.weights, bfloat16=False) == 4 * size.parameters
    assert held_bytes(size.weights, bfloat16=True) == 2 * (linear + head + embedding) + 4 * norms
    in_4_bits = linear * NF4_BYTES + 2 * (head + embedding) + 4 * norms
    assert held_bytes(size.weights, bfloat16=True, quantised=True) == round(in_4_bits)
    adapter = [weight.count for weight in model_size(zoo_config("Llama"), Lora(rank=2)).trained]
    assert sum(adapter) == 2 * 2 * ((16 + 16) * 2 + (16 + 8) * 2 + (16 + 24) * 3)


@pytest.mark.parametrize("name", FAMILIES)
def test_sizes_of_every_architecture(name: str) -> None:
    """Gemma 3n has a list of inner sizes, Mamba no attention heads: every run and every plan asks for these."""
    config = zoo_config(name)
    assert inner_size(config.get_text_config()) > 0
    least = 0 if is_recurrent(language_model_class(config), config) else 1
    assert cached_numbers(config.get_text_config()) >= least


def test_a_tied_head_is_counted_once_and_copied_by_the_engine() -> None:
    config = zoo_config("Llama")
    untied = model_size(config)
    config.tie_word_embeddings = True
    tied = model_size(config)
    assert untied.parameters - tied.parameters == 260 * 16
    copied = [sum(weight.count for weight in size.weights if weight.linear) for size in (tied, untied)]
    assert copied[0] == copied[1]


def test_the_head_of_a_gpu_has_a_chunk_of_logits_and_its_gradient() -> None:
    """V = 260, H = 16: logits of 1,024 tokens in float32 and their gradient in bfloat16, for a product in float32 on a
    CPU; the matrix in bfloat16, its gradient twice in float32; hidden states."""
    head = PassMemory(zoo_config("Llama"), Holding(fused=True), WIDTH).head(2048, Sampling(), exact_kl=False)
    chunk, matrix, states = 1024 * 260, 260 * 16, 2048 * 16
    assert (4 + 2) * chunk + (2 + 4) * matrix <= head <= (4 + 4) * chunk + (2 + 8) * matrix + 12 * states


def test_experts_and_recurrent_layers_have_a_formula() -> None:
    for family in ("Qwen3-MoE", "Mamba"):
        passes = PassMemory(zoo_config(family), Holding(), WIDTH)
        assert passes.trunk(2).saved == pytest.approx(2 * passes.trunk(1).saved)
        assert passes.trunk(1).saved > 0
