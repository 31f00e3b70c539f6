"""The cost of a step in operations and bytes. Each formula states its origin."""

from dataclasses import dataclass

BF16, FP32 = 2, 4


@dataclass(frozen=True)
class Decoder:
    """Sizes of a decoder that determine its cost. `matrices`: weights in its layers; `table`: vocabulary × width."""

    name: str
    layers: int
    matrices: int
    width: int
    vocabulary: int
    key_heads: int
    head_size: int
    tied: bool = False

    @property
    def table(self) -> int:
        return self.vocabulary * self.width

    @property
    def replicated(self) -> int:
        """Embeddings, head and norms: two norms per layer and one at the end."""
        return self.table * (1 if self.tied else 2) + self.width * (2 * self.layers + 1)

    @property
    def parameters(self) -> int:
        return self.matrices + self.replicated

    @property
    def used(self) -> int:
        """Weights that a token is multiplied by: the layers' and the head's. An embedding is looked up."""
        return self.matrices + self.table


@dataclass(frozen=True)
class Work:
    """P prompts, G samples each, and their numbers of tokens."""

    prompts: int
    group: int
    prompt_tokens: int
    new_tokens: int

    @property
    def samples(self) -> int:
        return self.prompts * self.group

    @property
    def sampled_tokens(self) -> int:
        return self.samples * self.new_tokens

    @property
    def once(self) -> int:
        """Tokens of a pass that computes a prompt once for its group."""
        return self.prompts * self.prompt_tokens + self.sampled_tokens


def forward_flops(decoder: Decoder, tokens: int) -> int:
    """2·N·tokens: each weight takes part in one multiplication and one addition for each token. Attention's own
    products, 4·S·width per layer and token, are ignored: below a tenth for S under a few thousand."""
    return 2 * decoder.used * tokens


def update_flops(decoder: Decoder, tokens: int) -> int:
    """6·N·tokens: the forward pass, and two products in the backward pass (inputs' and weights' gradients)."""
    return 3 * forward_flops(decoder, tokens)


def weight_bytes(decoder: Decoder, each: int = BF16) -> int:
    """All weights once: the bytes of a weight sync to one sampler."""
    return decoder.parameters * each


def cache_bytes(decoder: Decoder, tokens: int, each: int = BF16) -> int:
    """A key and a value for each token, layer and key head."""
    return 2 * decoder.layers * decoder.key_heads * decoder.head_size * tokens * each


def all_reduce_bytes(size: int, ranks: int) -> float:
    """Sent by each rank in a ring: a reduce-scatter and an all-gather of (r − 1)/r of the data each."""
    return 2 * size * (ranks - 1) / ranks


def gather_bytes(size: int, ranks: int) -> float:
    """Received by each rank: every other rank's part of the data. A reduce-scatter sends as much."""
    return size * (ranks - 1) / ranks


def sharded_step_bytes(decoder: Decoder, shard: int, passes: int = 1) -> float:
    """FSDP2, by each rank: per microbatch the matrices gathered in bfloat16 for the forward pass and again for the
    backward pass, and their gradients scattered in float32; replicated weights are all-reduced once, in float32."""
    gathered = gather_bytes(decoder.matrices * BF16, shard)
    scattered = gather_bytes(decoder.matrices * FP32, shard)
    return passes * (2 * gathered + scattered) + all_reduce_bytes(decoder.replicated * FP32, shard)


def replicated_step_bytes(decoder: Decoder, ranks: int) -> float:
    """Data parallelism without sharding: one all-reduce of all gradients, in float32."""
    return all_reduce_bytes(decoder.parameters * FP32, ranks)


def state_bytes(weights: int) -> int:
    """Bytes of trained weights: master, gradient and AdamW's two moments, in float32."""
    return weights * 4 * FP32


@dataclass(frozen=True)
class RankMemory:
    """Bytes on one rank, by purpose."""

    sharded_state: int
    replicated_state: int
    reference: int
    sampling_copy: int
    cache: int
    activations: int

    @property
    def total(self) -> int:
        return sum(vars(self).values())

    @property
    def largest(self) -> str:
        return max(vars(self), key=lambda name: vars(self)[name])


def rank_memory(
    decoder: Decoder, shard: int, *, samples_here: bool, rows: int, tokens: int, microbatch: int
) -> RankMemory:
    """Matrices sharded, embeddings, head and norms whole on every rank, all in float32; the reference alike, without
    gradient and moments. A rank that samples holds all matrices again in bfloat16, and the cache of its rows. With
    activation checkpointing a token keeps its width once a layer, and one layer's 34 widths (norms, projections, the
    perceptron's four-fold inside) while it is computed anew."""
    kept = microbatch * decoder.width * BF16
    return RankMemory(
        state_bytes(decoder.matrices) // shard,
        state_bytes(decoder.replicated),
        (decoder.matrices // shard + decoder.replicated) * FP32,
        decoder.matrices * BF16 if samples_here else 0,
        cache_bytes(decoder, rows * tokens) if samples_here else 0,
        kept * decoder.layers + 17 * kept,
    )
