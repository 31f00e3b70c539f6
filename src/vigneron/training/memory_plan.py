"""What a run will take of a GPU's memory, part by part, from its config and the model's: no weights are loaded.

Sampling and update come one after the other, and the cache is given back between them: the peak is the larger one.
Weights, moments and caches are counted; passes are run on fake tensors (`policy/pass_memory.py`). Where the config says
`auto`, the plan has what training would choose on a GPU of a size.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, cached_property
from typing import Any

import torch

from vigneron.config import Config, VllmSamplingConfig
from vigneron.config.distill import needs_parent_head
from vigneron.config.kl import has_exact_kl
from vigneron.config.phases import engine_samples, sampling_phase
from vigneron.core.draws import Sampling
from vigneron.policy.device import resolve_device
from vigneron.policy.fake_policy import Holding
from vigneron.policy.fused_head import HEAD_CHUNK
from vigneron.policy.lora import Lora
from vigneron.policy.model import MOST_GRAPHED
from vigneron.policy.model_names import local_config
from vigneron.policy.model_size import ModelSize, model_size
from vigneron.policy.pass_memory import PassMemory
from vigneron.policy.stored import IN_BFLOAT16, StoredWeights, stored_weights
from vigneron.remote.vllm.in_process import FREE_SHARE, min_bytes
from vigneron.rollout.engine.decode_tiles import PAGE
from vigneron.rollout.engine.key_value_cache import LARGE, paged_room, pages_for
from vigneron.rollout.on_policy import sampling_of
from vigneron.training.held_parts import HeldParts, frozen_bytes
from vigneron.training.memory import (
    FEW_TOKENS,
    GAPS,
    MOST_TOKENS,
    SHARE,
    Sizes,
    fitting_tokens,
    probe_rows,
    reference_states_bytes,
)
from vigneron.training.memory_parts import CACHE, Part, Plan
from vigneron.training.planned_passes import PassSize, passes_of
from vigneron.training.sampling_graphs import BESIDE_CACHE, logit_planes, sampling_graph_bytes
from vigneron.training.setup.resolve import COMPILE_FROM_STEPS
from vigneron.values import GB

ASSUMED_PROMPT = 512
FEW_SAMPLES = 8
"""Samples of a prompt that a run should draw at a time, where it fits. One at a time would do."""
ASSUMED_GPU = 80
"""GB of the GPU, where this machine has none."""
OF_SAMPLING: Any = {"scoring": False, "update": False, "fixed": False}


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
    """Plans of one model and its data, of a config and of changed ones. `held_out`: rows that are evaluated on;
    `stored`: how the model's files have its weights."""

    def __init__(
        self, model: Any, longest_prompt: int, *, held_out: int = 1, stored: StoredWeights = IN_BFLOAT16
    ) -> None:
        self.model, self.longest_prompt, self.held_out, self.stored = model, longest_prompt, held_out, stored
        self.frozen = cache(frozen_bytes)
        self._sizes: dict[Any, ModelSize] = {}
        self._passes: dict[Any, PassMemory] = {}
        self._planned: dict[Any, Sequence[PassSize]] = {}
        self._heads: dict[Any, int] = {}

    @classmethod
    def of(cls, config: Config, longest_prompt: int = ASSUMED_PROMPT, *, held_out: int = 1) -> "RunMemory | None":
        name = config.model.name
        model = local_config(name)
        return (
            None if model is None else cls(model, longest_prompt, held_out=held_out, stored=stored_weights(name, model))
        )

    def plan(self, config: Config, gigabytes: float | None = None) -> Plan:
        """On a GPU of so many GB; by default this machine's."""
        return _Counting(self, config, gpu_gigabytes(config) if gigabytes is None else gigabytes).plan()

    def fixed(self, config: Config) -> Plan:
        """The parts that need no pass: a lower bound, in a second."""
        return Plan((*_Counting(self, config, 0).fixed_parts(),))

    def host_bytes(self, config: Config) -> int:
        """Pinned host memory of what is offloaded."""
        return _Counting(self, config, 0).held.host_bytes

    def size(self, lora: Lora | None, scorer: bool) -> ModelSize:
        key = lora, scorer
        if key not in self._sizes:
            self._sizes[key] = model_size(self.model, lora, scorer=scorer)
        return self._sizes[key]

    def planned(self, config: Config, budget: int, *, packs: bool) -> Sequence[PassSize]:
        key = config.method.reads, config.prompts_per_step, config.group_size, config.completion_tokens, budget, packs
        if key not in self._planned:
            self._planned[key] = passes_of(config, self.longest_prompt, budget, packs=packs)
        return self._planned[key]

    def passes(self, holding: Holding, width: int, scorer: bool) -> PassMemory:
        key = holding, width, scorer
        if key not in self._passes:
            self._passes[key] = PassMemory(self.model, holding, width, scorer, self._heads)
        return self._passes[key]


class _Counting:
    def __init__(self, memory: RunMemory, config: Config, gigabytes: float) -> None:
        self.memory, self.config, self.gigabytes = memory, config, gigabytes
        self.phase = sampling_phase(config, held_out=memory.held_out > 0)
        self.engine = engine_samples(config, held_out=memory.held_out > 0)
        self.held = HeldParts(config, memory.size, engine=self.engine, stored=memory.stored, frozen=memory.frozen)
        self.width = memory.longest_prompt + (config.completion_tokens if config.method.reads == "prompts" else 0)

    @cached_property
    def size(self) -> ModelSize:
        return self.held.size

    def plan(self) -> Plan:
        config, sizes = self.config, self.sizes
        parts = [*self.fixed_parts(), *self.pass_parts()]
        if self.engine:
            parts += self.engine_parts()
        if self.phase is None:
            parts = [replace(part, sampling=False) for part in parts]
        return Plan(
            tuple(part for part in parts if part.bytes),
            self.cache_bytes(1, min(config.group_size, FEW_SAMPLES)),
            sizes.microbatch_tokens,
            sizes.checkpointing,
            self.phase,
            self.held.host_bytes,
        )

    def fixed_parts(self) -> Iterator[Part]:
        yield from self.held.parts()
        sampling = self.config.scale.sampling
        if self.phase is not None and isinstance(sampling, VllmSamplingConfig) and sampling.url is None:
            yield from self.vllm_parts(sampling)

    # ------------------------------------------------------------------------------------------------- sampling

    def engine_parts(self) -> Iterator[Part]:
        """A step's samples, or an evaluation's, whatever takes more; the limit of the cache is one of their number."""
        config, given = self.config, self.config.model.cache_gb
        limit = self.sizes.cache_bytes if given is None else int(given * GB)
        groups = [(self.memory.held_out, 1)] if config.eval_every else []
        groups += [(config.prompts_per_step, config.group_size)] if self.phase == "sampling" else []
        wanted, prompts, group = max((self.cache_bytes(*some), *some) for some in groups)
        least = self.cache_bytes(1, 1)
        cache = wanted if limit is None else min(wanted, max(limit, least))
        yield Part(CACHE, cache, **OF_SAMPLING, by_torch=cache <= LARGE)
        logits = self.rows_at_once(prompts, group, cache) * self.size.vocabulary * 4
        yield Part("drawing of tokens", logit_planes(config, self.size.vocabulary) * logits, **OF_SAMPLING)
        yield Part("CUDA graphs of sampling", self.sampling_graphs, fixed=False, by_torch=False)

    @property
    def sampling_graphs(self) -> int:
        memory, text = self.memory, self.memory.model.get_text_config()
        parameters, prompt = self.size.parameters, memory.longest_prompt
        return sampling_graph_bytes(self.config, text, parameters, prompt, self.wanted, memory.held_out)

    def vllm_parts(self, sampling: VllmSamplingConfig) -> Iterator[Part]:
        """In this process, while it is awake: its own copy of the weights, what it computes with, and its cache."""
        itemsize = 2 if self.held.bfloat16_compute else 4
        weights = itemsize * self.size.parameters
        least = min_bytes(weights)
        total = self.gigabytes * GB
        if sampling.memory_share is not None:
            taken = round(sampling.memory_share * total)
        else:
            left = total - sum(part.bytes for part in self.held.parts() if part.name != "reference, offloaded")
            taken = max(round(FREE_SHARE * left), least)
        yield Part("vLLM's weights and buffers", min(least, taken), scoring=False, update=False, by_torch=False)
        yield Part(CACHE, max(0, taken - least), **OF_SAMPLING, by_torch=False)

    # ---------------------------------------------------------------------------------------- cache and passes

    def cache_bytes(self, prompts: int, group: int) -> int:
        """A prompt's keys and values once, and those of each sample, in whole pages."""
        return (
            prompts
            * (pages_for(self.memory.longest_prompt) + group * pages_for(self.config.completion_tokens))
            * self.page_bytes
        )

    @property
    def page_bytes(self) -> int:
        return PAGE * self.size.cached * (2 if self.held.bfloat16_compute else 4)

    def rows_at_once(self, prompts: int, group: int, cache: int) -> int:
        """The samples that are drawn at a time, of groups with one prompt each."""
        if not self.page_bytes:  # recurrent layers have no such cache
            return prompts * group
        groups = [(self.memory.longest_prompt, group)] * prompts
        whole = self.config.environment is not None
        return paged_room(groups, self.config.completion_tokens, cache // self.page_bytes, whole=whole).rows

    # --------------------------------------------------------------------------------------------------- passes

    @property
    def compiled(self) -> bool:
        wanted = self.config.model.compile
        wanted = self.config.steps >= COMPILE_FROM_STEPS if wanted == "auto" else wanted
        return bool(wanted) and self.config.scale.shard == 1

    def passes(self, *, checkpointing: bool) -> PassMemory:
        held = self.held
        compute = torch.bfloat16 if held.bfloat16_compute else torch.float32
        fused = held.bfloat16_compute and self.config.scale.shard == 1
        holding = Holding(
            compute, held.bfloat16_weights or held.quantised, held.lora, checkpointing, self.compiled, fused
        )
        return self.memory.passes(holding, self.width, held.scorer)

    @property
    def wanted(self) -> int:
        """Tokens of a pass, if they fit."""
        given = self.config.microbatch_tokens
        return MOST_TOKENS if given == "auto" else given

    @cached_property
    def sizes(self) -> Sizes:
        """What `training.memory.find_sizes` would choose, by the same rules."""
        model, given = self.config.model, self.config.microbatch_tokens
        checkpointing = model.activation_checkpointing is True
        if given != "auto" and model.cache_gb is not None:
            return Sizes(given, None, checkpointing)
        wanted = self.wanted
        graphs = model.graphs and self.config.scale.shard == 1 and not checkpointing
        fits, cache_bytes = self.fitting(wanted, checkpointing=checkpointing, graphs=graphs)
        tight = fits < wanted
        if tight and graphs:
            fits, cache_bytes = self.fitting(wanted, checkpointing=checkpointing, graphs=False)
        if model.activation_checkpointing == "auto" and fits < min(wanted, FEW_TOKENS):
            checkpointing = True
            fits, cache_bytes = self.fitting(wanted, checkpointing=True, graphs=False)
        if fits < (few := min(wanted, HEAD_CHUNK)):
            fits = max(fits, min(few, self.fitting(few, checkpointing=checkpointing, graphs=False)[0]))
        tokens = max(self.width, min(wanted, fits)) if given == "auto" else given
        return Sizes(tokens, cache_bytes, checkpointing, tight)

    def fitting(self, wanted: int, *, checkpointing: bool, graphs: bool) -> tuple[int, int]:
        """Tokens of a pass, and bytes of the cache, as measured passes over two numbers of rows would give them."""
        fixed = [*self.held.parts()]
        updating = sum(part.bytes for part in fixed if part.update and not part.sampling)
        offloaded = sum(part.bytes for part in fixed if not part.update)
        of_graphs = sum(part.bytes for part in fixed if part.name == "gradients") if graphs else 0
        states = reference_states_bytes(self.config, self.size.hidden)
        free = round((1 - GAPS) * self.gigabytes * GB) - sum(part.bytes for part in fixed if part.sampling)
        free -= self.held.moments_in_flight + self.sampling_graphs
        passes, rows = self.passes(checkpointing=checkpointing), probe_rows(self.width, wanted)
        sizes = [
            PassSize(count * self.width, count, count * (self.width - self.width // 4)) for count in (rows, 2 * rows)
        ]
        fewer, more = (sum(self.pass_bytes(passes, size, Sampling())) for size in sizes)
        room = free - states - max(updating, of_graphs + offloaded)
        cache = max(2**28, int(SHARE * (free - of_graphs - BESIDE_CACHE)))
        return fitting_tokens(room, fewer, more, sizes[0].tokens), cache

    @property
    def exact_kl(self) -> bool:
        return has_exact_kl(self.config.method) or needs_parent_head(self.config.method)

    def pass_parts(self) -> Iterator[Part]:
        config, sizes = self.config, self.sizes
        passes = self.passes(checkpointing=sizes.checkpointing)
        planned = self.memory.planned(config, sizes.microbatch_tokens, packs=passes.packs)
        graphs = [size.rounded(self.width) for size in planned if self.is_graph(size)]
        largest = max([planned[0], *graphs[:1]])
        kept, beside = self.pass_bytes(passes, largest, sampling_of(config))
        yield Part("activations", round(kept), sampling=False, scoring=False, fixed=False)
        yield Part("head and temporaries", round(beside), sampling=False, fixed=False)
        if graphs:
            trunk = passes.trunk(graphs[0].rows, graphs[0].tokens)
            buffers = self.held.held(weight for weight in self.size.trained if not weight.head)
            pool = max(trunk.saved + trunk.beside_saved, buffers)
            # The first pass of a shape is no graph: gradients are then beside the buffers that graphs write to.
            yield Part("gradients of CUDA graphs", buffers, fixed=False)
            yield Part("activations of CUDA graphs", round(pool), fixed=False, by_torch=False)
        if self.exact_kl:
            states = reference_states_bytes(config, self.size.hidden)
            yield Part("hidden states for the exact KL", states, sampling=False, fixed=False)

    def pass_bytes(self, passes: PassMemory, size: PassSize, sampling: Sampling) -> tuple[float, float]:
        """What a pass keeps, with that of a critic's own network, and the most that it takes beside."""
        trunk = passes.trunk(size.rows, size.tokens)
        networks = 2 if self.config.method.has_own_critic else 1
        beside = max(trunk.beside_saved, passes.head(size.predicted, sampling, exact_kl=self.exact_kl))
        return networks * trunk.saved, beside

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
