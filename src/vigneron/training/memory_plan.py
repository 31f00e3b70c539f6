"""What a run will take of a GPU's memory, part by part, from its config and the model's: no weights are loaded.

Sampling and update come one after the other, and the cache is given back between them: the peak is the larger one.
Weights, moments and caches are counted; passes are run on fake tensors (`policy/pass_memory.py`). Where the config says
`auto`, the plan has what training would choose on a GPU of a size.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import torch

from vigneron.config import Config
from vigneron.config.rewards import embeds_here, judges_here
from vigneron.core.draws import Sampling
from vigneron.core.moments import state_bytes
from vigneron.policy.fake_policy import Holding
from vigneron.policy.load import local_config, resolve_device
from vigneron.policy.lora import Lora
from vigneron.policy.model import MOST_GRAPHED
from vigneron.policy.model_size import ModelSize, held_bytes, model_size
from vigneron.policy.pass_memory import PassMemory
from vigneron.rollout.engine.key_value_cache import LARGE
from vigneron.rollout.on_policy import sampling_of
from vigneron.training.memory import BESIDE_CACHE, FEW_TOKENS, MOST_TOKENS, PROBE_TOKENS, SHARE, Sizes
from vigneron.training.memory_parts import CACHE, CONTEXT, GB, Part, Plan
from vigneron.training.planned_passes import PassSize, passes_of
from vigneron.training.setup.resolve import COMPILE_FROM_STEPS

CONTEXT_BYTES = round(0.8 * GB)
"""CUDA's context and loaded kernels: 0.6 to 1 GB, which torch does not count as allocated."""
ASSUMED_PROMPT = 512
ASSUMED_GPU = 80
"""GB of the GPU, where this machine has none."""
SAMPLER_PLANES = 5
"""Tensors of logits' size, in float32, that drawing tokens has at once."""


def estimate(config: Config, longest_prompt: int = ASSUMED_PROMPT, *, gigabytes: float | None = None) -> Plan | None:
    """The plan of a run on one GPU of a size, or on this machine's; None if the model's config is not here."""
    memory = RunMemory.of(config, longest_prompt)
    return None if memory is None else memory.plan(config, gigabytes)


def gpu_gigabytes(config: Config) -> float:
    """What the run may take of this machine's GPU, or of a usual one if there is none."""
    device = resolve_device(config.model.device)
    has_gpu = device.type == "cuda" and torch.cuda.is_available()
    total = torch.cuda.get_device_properties(device).total_memory / GB if has_gpu else ASSUMED_GPU
    return min(total, config.model.memory_gb or total)


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

    def plan(self, config: Config, gigabytes: float | None = None) -> Plan:
        """On a GPU of so many GB; by default this machine's."""
        return _Counting(self, config, gpu_gigabytes(config) if gigabytes is None else gigabytes).plan()

    def fixed(self, config: Config) -> Plan:
        """The parts that need no pass: a lower bound, in a second."""
        return Plan((*_Counting(self, config, 0).fixed_parts(),))

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
    def __init__(self, memory: RunMemory, config: Config, gigabytes: float) -> None:
        self.memory, self.config, self.gigabytes = memory, config, gigabytes
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
        config, sizes = self.config, self.sizes
        parts = [*self.fixed_parts(), *self.pass_parts()]
        if self.samples:
            given = config.model.cache_gb
            limit = sizes.cache_bytes if given is None else round(given * GB)
            wanted, least = self.cache_bytes(config.prompts_per_step), self.cache_bytes(1)
            cache = wanted if limit is None else min(wanted, max(limit, least))
            parts.append(Part(CACHE, cache, update=False, fixed=False, by_torch=cache <= LARGE))
            logits = config.prompts_per_step * config.group_size * self.size.vocabulary * 4
            parts.append(Part("drawing of tokens", SAMPLER_PLANES * logits, update=False, fixed=False))
        return Plan(
            tuple(part for part in parts if part.bytes),
            self.cache_bytes(1),
            sizes.microbatch_tokens,
            sizes.checkpointing,
        )

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
        yield Part("gradients", gradients, sampling=False)
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
        yield Part(CONTEXT, CONTEXT_BYTES, by_torch=False)

    def held(self, weights: Any) -> int:
        return held_bytes(weights, narrow=self.narrow, quantised=self.quantised)

    @property
    def compiled(self) -> bool:
        wanted = self.config.model.compile
        wanted = self.config.steps >= COMPILE_FROM_STEPS if wanted == "auto" else wanted
        return bool(wanted) and self.config.scale.shard == 1

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

    def passes(self, *, checkpointing: bool) -> PassMemory:
        compute = torch.bfloat16 if self.bfloat16 else torch.float32
        fused = self.bfloat16 and self.config.scale.shard == 1
        holding = Holding(compute, self.narrow, self.lora, checkpointing, self.compiled, fused)
        return self.memory.passes(holding, self.width, self.scorer)

    @cached_property
    def sizes(self) -> Sizes:
        """What `training.memory.find_sizes` would choose, by the same rules."""
        model, given = self.config.model, self.config.microbatch_tokens
        checkpointing = model.activation_checkpointing is True
        if given != "auto" and model.cache_gb is not None:
            return Sizes(given, None, checkpointing)
        wanted = MOST_TOKENS if given == "auto" else given
        fits, cache_bytes = self.fitting(checkpointing=checkpointing)
        tight = fits < wanted
        if model.activation_checkpointing == "auto" and fits < min(wanted, FEW_TOKENS):
            checkpointing = True
            fits, cache_bytes = self.fitting(checkpointing=True)
        tokens = max(self.width, min(wanted, fits)) if given == "auto" else given
        return Sizes(tokens, cache_bytes, checkpointing, tight)

    def fitting(self, *, checkpointing: bool) -> tuple[int, int]:
        """Tokens of a pass, and bytes of the cache, as measured passes over two numbers of rows would give them."""
        fixed = [*self.fixed_parts()]
        gradients = sum(part.bytes for part in fixed if not part.sampling)
        free = round(self.gigabytes * GB) - sum(part.bytes for part in fixed if part.sampling)
        passes, rows = self.passes(checkpointing=checkpointing), -(-PROBE_TOKENS // self.width)
        sizes = [
            PassSize(count * self.width, count, count * (self.width - self.width // 4)) for count in (rows, 2 * rows)
        ]
        fewer, more = (max(gradients, sum(_pass_bytes(passes, size, Sampling()))) for size in sizes)
        per_token = max(1, more - fewer) / sizes[0].tokens
        beside = max(0, fewer - per_token * sizes[0].tokens - gradients)
        tokens = int(SHARE * (free - gradients - beside) / per_token) // 256 * 256
        return max(0, tokens), max(2**28, int(SHARE * (free - BESIDE_CACHE)))

    @property
    def exact_kl(self) -> bool:
        kl: Any = getattr(self.config.method, "kl", None)
        return getattr(kl, "estimator", None) == "exact" and kl.coefficient > 0 and kl.against == "reference"

    def pass_parts(self) -> Iterator[Part]:
        config, sizes = self.config, self.sizes
        passes = self.passes(checkpointing=sizes.checkpointing)
        planned = passes_of(config, self.memory.longest_prompt, sizes.microbatch_tokens, packs=passes.packs)
        graphs = [size.rounded(self.width) for size in planned if self.is_graph(size)]
        largest = max([planned[0], *graphs[:1]])
        kept, beside = _pass_bytes(passes, largest, sampling_of(config), exact_kl=self.exact_kl)
        networks = 2 if self.own_critic else 1
        yield Part("activations", round(networks * kept), sampling=False, fixed=False)
        yield Part("head and temporaries", round(beside), sampling=False, fixed=False)
        if graphs:
            trunk = passes.trunk(graphs[0].rows, graphs[0].tokens)
            buffers = self.held(weight for weight in self.size.trained if not weight.head)
            pool = max(trunk.saved + trunk.beside_saved, buffers)
            # The first pass of a shape is no graph: gradients are then beside the buffers that graphs write to.
            yield Part("gradients of CUDA graphs", buffers, fixed=False)
            yield Part("activations of CUDA graphs", round(pool), fixed=False, by_torch=False)
        if self.exact_kl:
            samples = config.prompts_per_step * (config.group_size if config.method.reads == "prompts" else 1)
            states = samples * config.max_new_tokens * self.size.hidden * 4
            yield Part("reference's hidden states", states, sampling=False, fixed=False)

    def is_graph(self, size: PassSize) -> bool:
        """Whether a pass is replayed as a CUDA graph."""
        small = size.tokens * self.size.parameters <= MOST_GRAPHED
        held = self.sizes
        return (
            self.config.model.graphs
            and small
            and not held.tight
            and not held.checkpointing
            and self.config.scale.shard == 1
        )


def _pass_bytes(
    passes: PassMemory, size: PassSize, sampling: Sampling, *, exact_kl: bool = False
) -> tuple[float, float]:
    """What a pass keeps, and the most that it takes beside."""
    trunk = passes.trunk(size.rows, size.tokens)
    return trunk.saved, max(trunk.beside_saved, passes.head(size.predicted, sampling, exact_kl=exact_kl))


EMBEDDER_BYTES = round(0.1 * GB)
"""A sentence embedder such as the bundled one, of 22 million weights."""
