"""Of a memory plan, what is held whatever the samples: weights, gradients, moments, reference, other models."""

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any

from vigneron.config import Config
from vigneron.config.kl import needs_reference_head
from vigneron.config.local_models import local_judges, local_players
from vigneron.config.rewards import asks_reference, embeds_here
from vigneron.core.moments import BLOCK, device_state_bytes, is_8bit, state_bytes
from vigneron.policy.lora import Lora
from vigneron.policy.model_names import local_config
from vigneron.policy.model_size import ModelSize, Weight, held_bytes, model_size
from vigneron.policy.stored import IN_BFLOAT16, StoredWeights, stored_weights
from vigneron.training.memory_parts import CONTEXT, Part, pinned_bytes
from vigneron.training.method_copies import TRUST_REGION_VECTORS
from vigneron.values import GB

CONTEXT_BYTES = round(0.8 * GB)
"""CUDA's context and loaded kernels: 0.6 to 1 GB, which torch does not count as allocated."""
EMBEDDER_BYTES = round(0.1 * GB)
"""A sentence embedder such as the bundled one, of 22 million weights."""

SAMPLING: Any = {"scorer": False, "samples": True}


def frozen_bytes(
    name: str, key: str, *, scorer: bool, bfloat16: bool | None = None, samples: bool = False
) -> int | None:
    """Bytes of a model that is not trained: with matrices in bfloat16 or not, or as they are stored. `samples`: with
    the engine's bfloat16 copies of what is in float32. None if its config is not on this machine."""
    known = local_config(name)
    if known is None:
        return None
    stored = stored_weights(name, known, key)
    weights = model_size(known, scorer=scorer).merged
    held = stored.bfloat16 if bfloat16 is None else bfloat16
    in_4_bits = [weight for weight in weights if stored.packed and weight.quantised]
    in_bfloat16 = [weight for weight in weights if held and weight.castable]
    copied = [w for w in weights if samples and w.linear and w not in in_4_bits and w not in in_bfloat16]
    return held_bytes(weights, bfloat16=held, quantised=stored.packed) + 2 * sum(weight.count for weight in copied)


class HeldParts:
    """`size_of`: the weights of the model with an adapter, and as a scorer or not. `engine`: whether this process
    samples with its own engine. `stored`: how the model's files have its weights."""

    def __init__(
        self,
        config: Config,
        size_of: Callable[[Lora | None, bool], ModelSize],
        *,
        engine: bool,
        stored: StoredWeights = IN_BFLOAT16,
        frozen: Callable[..., int | None] = frozen_bytes,
    ) -> None:
        self.config, self._size_of, self._engine, self._frozen = config, size_of, engine, frozen
        options = config.model
        self.scorer = config.method.trains == "scorer"
        self.lora: Lora | None = None
        if options.lora is not None:
            targets = options.lora.targets
            named = targets if isinstance(targets, str) else tuple(targets)
            self.lora = Lora(options.lora.rank, options.lora.alpha, named)
        self.bfloat16_compute = options.dtype != "float32"  # auto: as on a GPU that has it
        self.quantised = options.weights == "4bit" or stored.packed
        exact = self.lora is not None and options.weights != "float32" and self.bfloat16_compute and stored.bfloat16
        self.bfloat16_weights = options.weights == "bfloat16" or (exact and config.scale.shard == 1)

    @cached_property
    def size(self) -> ModelSize:
        return self._size_of(self.lora, self.scorer)

    @cached_property
    def _own(self) -> ModelSize:
        """What this rank has of it."""
        return self.size.sharded(self.config.scale.shard)

    def held(self, weights: Iterable[Weight]) -> int:
        return held_bytes(weights, bfloat16=self.bfloat16_weights, quantised=self.quantised)

    def parts(self) -> Iterator[Part]:
        own, config = self._own, self.config
        method, held = config.method, self.held
        if self.lora is None:
            yield Part("trained weights", held(own.merged))
        else:
            yield Part("frozen base", held(w for w in own.merged if not w.adapter))
            yield Part("adapter", held(w for w in own.merged if w.adapter))
        gradients, moments = held(own.trained), self._moments(own)
        yield Part("gradients", gradients, sampling=False, scoring=False)
        if method.steps_by_gradient:
            yield Part("optimizer moments", moments)
        else:
            vectors = TRUST_REGION_VECTORS * gradients
            yield Part("vectors of the trust region", vectors, sampling=False, scoring=False)
        if self.copies_reference:
            yield from self._reference_parts()
        if method.keeps_previous:
            yield Part("copy of the policy that sampled", self._frozen_copy)
        if self._engine:
            yield from self._engine_parts()
        if method.has_own_critic:
            yield Part("critic", held(own.merged) + moments)
            yield Part("critic's gradients", gradients, sampling=False, scoring=False)
        if method.trains_its_reward:  # trained whole, also beside an adapter
            scorer, in_bfloat16 = self._size_of(None, True), config.model.weights == "bfloat16"
            weights, trained = (held_bytes(some, bfloat16=in_bfloat16) for some in (scorer.merged, scorer.trained))
            yield Part("discriminator", weights + self._moments(scorer))
            yield Part("discriminator's gradients", trained, sampling=False, scoring=False)
        yield from self._other_models()
        yield Part(CONTEXT, CONTEXT_BYTES, by_torch=False)

    def _moments(self, size: ModelSize) -> int:
        optimizer = self.config.optimizer
        if optimizer.offload:
            return 0
        return sum(times * state_bytes(optimizer.kind, count) for count, times in size.trained_sizes.items())

    @property
    def moments_in_flight(self) -> int:
        """Bytes of offloaded moments that an update has on the GPU, when the activations are freed."""
        optimizer = self.config.optimizer
        if not optimizer.offload:
            return 0
        return device_state_bytes(optimizer.kind, self.size.trained_sizes.elements(), offload=True)

    # ---------------------------------------------------------------------------------------------------- copies

    @property
    def copies_reference(self) -> bool:
        """An adapter's reference is its base."""
        config = self.config
        wanted = config.method.uses_reference or asks_reference(config.reward) or config.scale.shard > 1
        return wanted and self.lora is None

    def _copied(self, weight: Weight) -> int:
        """Bytes of a weight in a frozen copy of the policy: a matrix in bfloat16 if that is the compute dtype."""
        rounded = self.bfloat16_compute and self.config.scale.shard == 1 and weight.matrix
        return held_bytes([weight], bfloat16=self.bfloat16_weights) if not rounded else 2 * weight.count

    @property
    def _frozen_copy(self) -> int:
        weights = self._own.merged
        if self.quantised:
            rest = (weight for weight in weights if not weight.quantised)
            return self.held(weight for weight in weights if weight.quantised) + sum(map(self._copied, rest))
        return sum(map(self._copied, weights))

    def _engine_parts(self) -> Iterator[Part]:
        """bfloat16 copies of what linear layers have in float32. On a base in bfloat16 or 4 bits adapters stay beside
        it and are copied; else they are merged into the copies."""
        beside = self.bfloat16_weights or self.quantised
        copied = [weight for weight in self.size.merged if weight.linear and (beside or not weight.adapter)]
        if self.bfloat16_compute:
            in_float32 = [weight for weight in copied if self.held([weight]) == 4 * weight.count]
            yield Part("the engine's bfloat16 matrices", 2 * sum(weight.count for weight in in_float32))
        if self.config.scale.shard > 1 and (self.lora is not None or not self.bfloat16_compute):
            gathered = sum(weight.count for weight in self.size.merged if weight.layer)
            yield Part("the engine's gathered matrices", 4 * gathered)

    @property
    def _kept_head(self) -> list[Weight]:
        """Of an offloaded reference, what stays on the GPU for an exact KL."""
        head = [weight for weight in self.size.merged if weight.head or weight.tied]
        return head if needs_reference_head(self.config.method) else []

    def _reference_parts(self) -> Iterator[Part]:
        if not self.config.model.offload_reference:
            yield Part("reference", self._frozen_copy)
            return
        head = sum(map(self._copied, self._kept_head))
        if head:
            yield Part("reference's head", head)
        yield Part("reference, offloaded", self._frozen_copy - head, sampling=False, update=False)

    @property
    def host_bytes(self) -> int:
        """Pinned host memory of offloaded weights and moments."""
        sizes: list[int] = []
        if self.config.model.offload_reference and self.copies_reference:  # the head is copied there first
            sizes += map(self._copied, self.size.weights)
        if self.config.optimizer.offload and self.config.method.steps_by_gradient:
            for count in self.size.trained_sizes.elements():
                eight_bit = is_8bit(self.config.optimizer.kind, count)
                sizes += 2 * ([count, 4 * -(-count // BLOCK)] if eight_bit else [4 * count])
        return pinned_bytes(sizes)

    # ----------------------------------------------------------------------------------------------- other models

    def _other_models(self) -> Iterator[Part]:
        """A parent, a game's frozen players, and of the reward: reward models, a local judge, a local embedder; where
        their configs are on this machine."""
        reward, scale = self.config.reward, self.config.scale
        names: list[tuple[str, str, str, Any]]
        scorers: list[Any] = [part for part in reward.parts if getattr(part, "model", None)]
        names = [("reward model", part.model, "reward.model", {"scorer": True}) for part in scorers]
        if scale.judging is None:
            judges = {name: key for key, name in reversed(local_judges(reward).items())}
            names += [("local judge", name, key, SAMPLING | {"bfloat16": True}) for name, key in judges.items()]
        players = local_players(self.config.environment)
        names += [("frozen player", name, key, SAMPLING) for key, name in players.items()]
        for what, name, key, how in names:
            yield Part(what, self._frozen(name, key, **how) or 0)
        if (parent := self.config.method.parent_model) is not None:
            half = self.bfloat16_compute
            yield Part("parent", self._frozen(parent, "method.parent", scorer=False, bfloat16=half) or 0)
        if embeds_here(reward) and scale.embedding is None:
            yield Part("embedder", EMBEDDER_BYTES)
