"""Of a memory plan, what is held whatever the samples: weights, gradients, moments, reference, other models."""

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any

from vigneron.config import Config, GameConfig
from vigneron.config.kl import needs_reference_head
from vigneron.config.rewards import asks_reference, embeds_here, judges_here
from vigneron.core.moments import BLOCK, device_state_bytes, is_8bit, state_bytes
from vigneron.policy.lora import Lora
from vigneron.policy.model_names import local_config
from vigneron.policy.model_size import ModelSize, Weight, held_bytes, model_size
from vigneron.training.memory_parts import CONTEXT, Part, pinned_bytes
from vigneron.training.method_copies import TRUST_REGION_VECTORS
from vigneron.values import GB

CONTEXT_BYTES = round(0.8 * GB)
"""CUDA's context and loaded kernels: 0.6 to 1 GB, which torch does not count as allocated."""
EMBEDDER_BYTES = round(0.1 * GB)
"""A sentence embedder such as the bundled one, of 22 million weights."""


class HeldParts:
    """`size_of`: the weights of the model with an adapter, and as a scorer or not. `engine`: whether this process
    samples with its own engine."""

    def __init__(self, config: Config, size_of: Callable[[Lora | None, bool], ModelSize], *, engine: bool) -> None:
        self.config, self._size_of, self._engine = config, size_of, engine
        options = config.model
        self.scorer = config.method.trains == "scorer"
        self.lora: Lora | None = None
        if options.lora is not None:
            targets = options.lora.targets
            named = targets if isinstance(targets, str) else tuple(targets)
            self.lora = Lora(options.lora.rank, options.lora.alpha, named)
        self.bfloat16_compute = options.dtype != "float32"  # auto: as on a GPU that has it
        self.quantised = options.weights == "4bit"
        frozen = self.lora is not None and options.weights != "float32" and self.bfloat16_compute
        self.bfloat16_weights = options.weights == "bfloat16" or frozen or self.quantised

    @cached_property
    def size(self) -> ModelSize:
        return self._size_of(self.lora, self.scorer)

    def held(self, weights: Iterable[Weight]) -> int:
        return held_bytes(weights, bfloat16=self.bfloat16_weights, quantised=self.quantised)

    def parts(self) -> Iterator[Part]:
        size, config, shard = self.size, self.config, self.config.scale.shard
        method, held = config.method, self.held
        if self.lora is None:
            yield Part("trained weights", held(size.merged) // shard)
        else:
            yield Part("frozen base", held(w for w in size.merged if not w.adapter) // shard)
            yield Part("adapter", held(w for w in size.merged if w.adapter) // shard)
        gradients, moments = held(size.trained) // shard, self._moments(size) // shard
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
        if self._engine and self.bfloat16_compute and not self.bfloat16_weights:
            yield Part("the engine's bfloat16 matrices", 2 * size.linear)
        if method.has_own_critic:
            yield Part("critic", held(size.merged) // shard + moments)
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
        if self.quantised:
            rest = (weight for weight in self.size.merged if not weight.quantised)
            quantised = self.held(weight for weight in self.size.merged if weight.quantised)
            return (quantised + sum(map(self._copied, rest))) // self.config.scale.shard
        return sum(map(self._copied, self.size.merged)) // self.config.scale.shard

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
        scorers: list[Any] = [part for part in reward.parts if getattr(part, "model", None)]
        names = [("reward model", part.model, True) for part in scorers]
        if self.config.method.parent_model is not None:
            names.append(("parent", self.config.method.parent_model, False))
        if judges_here(reward) and scale.judging is None:
            judges = (getattr(reward, "judge", None), getattr(reward, "held_out_judge", None))
            local = {judge.model for judge in judges if judge is not None and judge.kind == "local"}
            names += [("local judge", name, False) for name in sorted(local)]
        if isinstance(self.config.environment, GameConfig):
            players = self.config.environment.players.values()
            names += [("frozen player", one.model, False) for one in players if one.kind == "local"]
        for what, name, scorer in names:
            known = local_config(name)
            if known is not None:
                yield Part(what, held_bytes(model_size(known, scorer=scorer).weights, bfloat16=self.bfloat16_compute))
        if embeds_here(reward) and scale.embedding is None:
            yield Part("embedder", EMBEDDER_BYTES)
