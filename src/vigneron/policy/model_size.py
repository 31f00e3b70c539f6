"""The weights of a model by how they can be held, and its key/value cache, from a transformers config alone."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch import nn

from vigneron.policy.architecture import ATTENTION_LAYERS
from vigneron.policy.compiling import decoder_layers
from vigneron.policy.fake_policy import meta_model
from vigneron.policy.held_weights import MATRICES, castable
from vigneron.policy.lora import Lora

NF4_BYTES = 1 / 2 + 1 / 64 + 4 / (64 * 256)
"""Of a 4-bit weight: half a byte, a byte for the scale of 64, 4 for the scale of 256 scales (QLoRA)."""


@dataclass(frozen=True)
class Weight:
    """A parameter, counted once if it is tied."""

    count: int
    trained: bool
    adapter: bool = False
    castable: bool = False
    """Whether it may be held in bfloat16; others, such as norms, stay in float32."""
    matrix: bool = False
    """Of a linear layer, and not tied to an embedding: the reference holds it in bfloat16."""
    quantised: bool = False
    """Whether `weights: 4bit` holds it so: linear layers but the head."""
    head: bool = False
    """Of the head, and not tied to an embedding."""
    tied: bool = False
    """Of the head, and of an embedding."""
    linear: bool = False
    """Of a linear layer, biases, adapters and a tied head included: the engine has a bfloat16 copy of what is in
    float32."""
    layer: bool = False
    """A matrix of a decoder layer: ranks share these."""


@dataclass(frozen=True)
class ModelSize:
    weights: tuple[Weight, ...]
    cached: int
    """Keys and values of a token in all layers."""
    hidden: int
    vocabulary: int

    @cached_property
    def merged(self) -> tuple[Weight, ...]:
        """Sums of the weights that are held alike: a few, of thousands."""
        totals: Counter[Weight] = Counter()
        for weight in self.weights:
            totals[replace(weight, count=0)] += weight.count
        return tuple(replace(weight, count=count) for weight, count in totals.items())

    def sharded(self, shard: int) -> "ModelSize":
        """What one of `shard` ranks has, as sums."""
        if shard == 1:
            return self
        own = (replace(one, count=-(-one.count // shard)) if one.layer else one for one in self.merged)
        return replace(self, weights=tuple(own))

    @property
    def parameters(self) -> int:
        return sum(weight.count for weight in self.merged if not weight.adapter)

    @property
    def trained(self) -> list[Weight]:
        """Of the merged ones."""
        return [weight for weight in self.merged if weight.trained]

    @cached_property
    def trained_sizes(self) -> Counter[int]:
        """How many trained weights there are of each size."""
        return Counter(weight.count for weight in self.weights if weight.trained)


def model_size(config: Any, lora: Lora | None = None, *, scorer: bool = False) -> ModelSize:
    model = meta_model(config, lora, scorer=scorer)
    causal = model.get_base_model() if lora is not None else model
    may_cast = {id(weight) for weight in castable(causal)}
    head = causal.get_output_embeddings()
    linear = [(name, module) for name, module in causal.named_modules() if isinstance(module, MATRICES)]
    plain = [module for name, module in linear if "lora_" not in name]
    embedded = {id(module.weight) for module in causal.modules() if isinstance(module, nn.Embedding)}
    matrices = {id(m.weight) for m in plain} - embedded
    quantised = {id(m.weight) for m in plain if m is not head and type(m) is nn.Linear} - embedded
    in_linear = {id(weight) for _, module in linear for weight in module.parameters(recurse=False)}
    in_layers = {id(weight) for layer in decoder_layers(causal) for weight in layer.parameters() if weight.dim() > 1}
    weights = tuple(
        Weight(
            weight.numel(),
            trained=weight.requires_grad,
            adapter="lora_" in name,
            castable=id(weight) in may_cast,
            matrix=id(weight) in matrices,
            quantised=id(weight) in quantised,
            head=head is not None and weight is head.weight and id(weight) in matrices,
            tied=head is not None and weight is head.weight and id(weight) in embedded,
            linear=id(weight) in in_linear,
            layer=id(weight) in in_layers,
        )
        for name, weight in model.named_parameters()
    )
    text = config.get_text_config()
    return ModelSize(weights, cached_numbers(text), text.hidden_size, text.vocab_size)


def cached_numbers(text: Any) -> int:
    """Of a text config: numbers in the keys and values of one token, in all layers with attention."""
    kinds = getattr(text, "layer_types", None) or ["full_attention"] * text.num_hidden_layers
    layers = sum(kind in ATTENTION_LAYERS for kind in kinds)
    heads = getattr(text, "num_attention_heads", None)
    if heads is None:  # Mamba
        return 0
    if getattr(text, "kv_lora_rank", None):  # latent attention: the engine caches what each head reads
        return layers * heads * (text.qk_nope_head_dim + text.qk_rope_head_dim + text.v_head_dim)
    key_heads = getattr(text, "num_key_value_heads", None) or heads
    size = getattr(text, "head_dim", None) or text.hidden_size // heads
    return int(layers * key_heads * 2 * size)


def held_bytes(weights: Iterable[Weight], *, bfloat16: bool, quantised: bool = False) -> int:
    """Bytes of weights in float32; `bfloat16`: in bfloat16 where that is done, and `quantised`: in 4 bits."""
    total = 0.0
    for weight in weights:
        if quantised and weight.quantised:
            total += weight.count * NF4_BYTES
        else:
            total += weight.count * (2 if bfloat16 and weight.castable else 4)
    return round(total)
