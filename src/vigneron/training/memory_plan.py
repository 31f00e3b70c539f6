"""What a run will take of a GPU's memory, part by part, from its config and the model's: no weights are loaded.

Sampling and update come one after the other, and the cache is given back between them: the peak is the larger one.
Weights, moments and caches are counted; passes are run on fake tensors (`policy/pass_memory.py`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from vigneron.config import Config
from vigneron.config.rewards import embeds_here, judges_here
from vigneron.core.moments import state_bytes
from vigneron.policy.load import local_config
from vigneron.policy.lora import Lora
from vigneron.policy.model import MOST_GRAPHED
from vigneron.policy.model_size import ModelSize, held_bytes, model_size
from vigneron.policy.pass_memory import Holding, PassMemory
from vigneron.rollout.on_policy import sampling_of
from vigneron.training.setup.resolve import COMPILE_FROM_STEPS

GB = 2**30
CONTEXT_BYTES = round(0.8 * GB)
"""CUDA's context and loaded kernels: 0.6 to 1 GB, which torch does not count as allocated."""
CONTEXT = "CUDA context and kernels"
CACHE = "key/value cache"
ASSUMED_PROMPT = 512
SAMPLER_PLANES = 5
"""Tensors of logits' size, in float32, that drawing tokens has at once."""


@dataclass(frozen=True)
class Part:
    """A part of the memory, and the phases in which it is in use."""

    name: str
    bytes: int
    sampling: bool = True
    update: bool = True
    fixed: bool = True
    """Whether no number of samples or tokens makes it smaller."""


@dataclass(frozen=True)
class Plan:
    parts: tuple[Part, ...]
    one_group: int = 0
    """Bytes of the cache for one prompt's samples: it takes what is left, and sampling then takes several rounds."""

    @property
    def sampling_bytes(self) -> int:
        return sum(part.bytes for part in self.parts if part.sampling)

    @property
    def update_bytes(self) -> int:
        return sum(part.bytes for part in self.parts if part.update)

    @property
    def peak_bytes(self) -> int:
        """The most that the process takes of the GPU."""
        return max(self.sampling_bytes, self.update_bytes)

    @property
    def allocated_bytes(self) -> int:
        """The most that torch allocates: what `torch.cuda.max_memory_allocated` reports after two steps."""
        return self.peak_bytes - sum(part.bytes for part in self.parts if part.name == CONTEXT)

    @property
    def least_bytes(self) -> int:
        """What the run cannot do without: with the cache of one group."""
        cache = sum(part.bytes for part in self.parts if part.name == CACHE)
        return max(self.update_bytes, self.sampling_bytes - cache + min(cache, self.one_group))

    @property
    def fixed_bytes(self) -> int:
        """Of the larger phase, what does not depend on the number of samples or tokens."""
        fixed = [part for part in self.parts if part.fixed]
        return max(sum(p.bytes for p in fixed if p.sampling), sum(p.bytes for p in fixed if p.update))


def estimate(config: Config, longest_prompt: int = ASSUMED_PROMPT) -> Plan | None:
    """The plan of a run on one GPU; None if the model's config is not on this machine."""
    memory = RunMemory.of(config, longest_prompt)
    return None if memory is None else memory.plan(config)


class RunMemory:
    """Plans of one model and its data: of a config, and of changed ones."""

    def __init__(self, model: Any, longest_prompt: int) -> None:
        self.model, self.longest_prompt = model, longest_prompt
        self._sizes: dict[Any, ModelSize] = {}
        self._passes: dict[Any, PassMemory] = {}

    @classmethod
    def of(cls, config: Config, longest_prompt: int = ASSUMED_PROMPT) -> "RunMemory | None":
        model = local_config(config.model.name)
        return None if model is None else cls(model, longest_prompt)

    def plan(self, config: Config) -> Plan:
        return _Counting(self, config).plan()

    def fixed(self, config: Config) -> Plan:
        """The parts that need no pass: a lower bound, in a second."""
        return Plan((*_Counting(self, config).fixed_parts(),))

    def size(self, lora: Lora | None, scorer: bool) -> ModelSize:
        key = lora, scorer
        if key not in self._sizes:
            self._sizes[key] = model_size(self.model, lora, scorer=scorer)
        return self._sizes[key]

    def passes(self, holding: Holding, width: int, scorer: bool) -> PassMemory:
        key = holding, width, scorer
        if key not in self._passes:
            self._passes[key] = PassMemory(self.model, holding, width, scorer)
        return self._passes[key]


class _Counting:
    def __init__(self, memory: RunMemory, config: Config) -> None:
        self.memory, self.config = memory, config
        options = config.model
        self.scorer = config.method.trains == "scorer"
        self.lora: Lora | None = None
        if options.lora is not None:
            targets = options.lora.targets
            named = targets if isinstance(targets, str) else tuple(targets)
            self.lora = Lora(options.lora.rank, options.lora.alpha, named)
        self.bfloat16 = options.dtype != "float32"  # auto: as on a GPU that has it
        self.quantised = options.weights == "4bit"
        frozen = self.lora is not None and options.weights != "float32" and self.bfloat16
        self.narrow = options.weights == "bfloat16" or frozen or self.quantised
        self.width = memory.longest_prompt + (config.max_new_tokens if config.method.reads == "prompts" else 0)

    @cached_property
    def size(self) -> ModelSize:
        return self.memory.size(self.lora, self.scorer)

    def plan(self) -> Plan:
        fixed = [*self.fixed_parts()]
        cache = self.cache_bytes(self.config.prompts_per_step) if self.samples else 0
        parts = [*fixed, *self.pass_parts()]
        if self.samples:
            parts.append(Part(CACHE, cache, update=False, fixed=False))
            logits = self.config.prompts_per_step * self.config.group_size * self.size.vocabulary * 4
            parts.append(Part("drawing of tokens", SAMPLER_PLANES * logits, update=False, fixed=False))
        return Plan(tuple(part for part in parts if part.bytes), self.cache_bytes(1))

    @property
    def samples(self) -> bool:
        """Whether this process samples, in training or evaluation."""
        config = self.config
        wanted = config.method.trains == "policy" and config.method.reads != "pairs"
        return wanted and config.scale.sampling.kind == "here"

    # ------------------------------------------------------------------------------ weights, gradients, moments

    def fixed_parts(self) -> Iterator[Part]:
        size, config, shard = self.size, self.config, self.config.scale.shard
        trained, held = size.trained, self.held
        if self.lora is None:
            yield Part("trained weights", held(size.weights) // shard)
        else:
            yield Part("frozen base", held(w for w in size.weights if not w.adapter) // shard)
            yield Part("adapter", held(w for w in size.weights if w.adapter) // shard)
        gradients = held(trained) // shard
        moments = sum(state_bytes(config.optimizer.kind, weight.count) for weight in trained) // shard
        moments = 0 if config.optimizer.offload or not config.method.steps_by_gradient else moments
        yield Part("gradients", gradients, sampling=self.graphed)
        yield Part("optimizer moments", moments)
        if self.lora is None:  # a frozen copy with matrices in bfloat16
            rounded = sum(w.count for w in size.weights if w.matrix and not (self.narrow and w.narrow))
            rounded = rounded if self.bfloat16 and shard == 1 else 0
            yield Part("reference", (held(size.weights) - 2 * rounded) // shard)
        if self.samples and self.bfloat16 and not self.narrow:
            yield Part("the engine's bfloat16 matrices", 2 * size.linear)
        if self.own_critic:
            yield Part("critic", (held(size.weights) + moments) // shard)
            yield Part("critic's gradients", gradients, sampling=False)
        yield from self.other_models()
        yield Part(CONTEXT, CONTEXT_BYTES)

    def held(self, weights: Any) -> int:
        return held_bytes(weights, narrow=self.narrow, quantised=self.quantised)

    @property
    def compiled(self) -> bool:
        wanted = self.config.model.compile
        wanted = self.config.steps >= COMPILE_FROM_STEPS if wanted == "auto" else wanted
        return bool(wanted) and self.config.scale.shard == 1

    @property
    def graphed(self) -> bool:
        """Whether gradients have buffers that CUDA graphs write to."""
        model = self.config.model
        small = self.config.resolved_microbatch_tokens * self.size.parameters <= MOST_GRAPHED
        return model.graphs and small and model.activation_checkpointing is not True and self.config.scale.shard == 1

    @property
    def own_critic(self) -> bool:
        method = self.config.method
        return method.has_critic and getattr(getattr(method, "critic", None), "network", None) == "own"

    def other_models(self) -> Iterator[Part]:
        """Of the reward: reward models, a local judge, a local embedder, where their configs are on this machine."""
        reward, scale = self.config.reward, self.config.scale
        scorers: list[Any] = [part for part in reward.parts if getattr(part, "model", None)]
        names = [("reward model", part.model, True) for part in scorers]
        if judges_here(reward) and scale.judging is None:
            judges = (getattr(reward, "judge", None), getattr(reward, "held_out_judge", None))
            local = {judge.model for judge in judges if judge is not None and judge.kind == "local"}
            names += [("local judge", name, False) for name in sorted(local)]
        for what, name, scorer in names:
            known = local_config(name)
            if known is not None:
                yield Part(what, held_bytes(model_size(known, scorer=scorer).weights, narrow=self.bfloat16))
        if embeds_here(reward) and scale.embedding is None:
            yield Part("embedder", EMBEDDER_BYTES)

    # ---------------------------------------------------------------------------------------- cache and passes

    def cache_bytes(self, prompts: int) -> int:
        """A prompt's keys and values once, and those of each sample."""
        config, itemsize = self.config, 2 if self.bfloat16 else 4
        tokens = self.memory.longest_prompt + config.group_size * config.max_new_tokens
        return prompts * tokens * self.size.cached * itemsize

    def pass_parts(self) -> Iterator[Part]:
        config, width = self.config, self.width
        tokens = config.resolved_microbatch_tokens
        samples = config.prompts_per_step * (config.group_size if config.method.reads == "prompts" else 1)
        samples *= 2 if config.method.reads == "pairs" else 1
        rows = max(1, min(tokens // width, samples))
        compute = torch.bfloat16 if self.bfloat16 else torch.float32
        holding = Holding(compute, self.narrow, self.lora, config.model.activation_checkpointing is True, self.compiled)
        passes = self.memory.passes(holding, width, self.scorer)
        trunk = passes.trunk(rows)
        share = config.max_new_tokens / width if config.method.reads == "prompts" else 1
        kl: Any = getattr(config.method, "kl", None)
        exact = getattr(kl, "estimator", None) == "exact" and kl.coefficient > 0 and kl.against == "reference"
        head = passes.head(max(1, round(rows * width * share)), sampling_of(config), exact_kl=exact)
        times = 2 if self.own_critic else 1
        yield Part("activations", round(times * trunk.saved), sampling=False, fixed=False)
        yield Part("head and temporaries", round(max(trunk.beside_saved, head)), sampling=False, fixed=False)
        if exact:
            states = samples * config.max_new_tokens * self.size.hidden * 4
            yield Part("reference's hidden states", states, sampling=False, fixed=False)


EMBEDDER_BYTES = round(0.1 * GB)
"""A sentence embedder such as the bundled one, of 22 million weights."""
