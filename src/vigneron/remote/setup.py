"""The Ray cluster, actor pools and vLLM engine of a run, as its config's `scale` section asks for."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from vigneron.config import Config, VllmSamplingConfig
from vigneron.distributed import ranks
from vigneron.errors import UserError
from vigneron.policy.held_weights import is_quantised
from vigneron.policy.model import Policy
from vigneron.remote.ray.cluster import Cluster, PoolSpec, check_installed
from vigneron.remote.vllm.completion import VllmEngine
from vigneron.remote.vllm.in_process import InProcessEngine, check_in_process
from vigneron.remote.vllm.server_api import VllmServer, connect
from vigneron.rollout.engine.request import Completions, Request, Sampler
from vigneron.run_store.folder import RunFolder
from vigneron.sources.placement import IN_PROCESS, NOT_LOADED, ModelPlacement

if TYPE_CHECKING:
    from vigneron.remote.ray.sampler import RaySampler
    from vigneron.remote.vllm.sampler import VllmSampler


NO_4BIT = (
    "scale.sampling: vLLM cannot take 4-bit weights: use a base that is stored in bfloat16 and `model.weights: auto`, "
    "or set scale.sampling.kind to here or ray"
)


class UnshardedCopy:
    """An unsharded copy of a sharded policy, in rank 0's host memory, from which weights are sent."""

    def __init__(self, policy: Policy) -> None:
        self._sharded = policy
        self.policy = policy
        if ranks.is_rank0():
            weights = {
                name: nn.Parameter(torch.empty(one.shape, dtype=one.dtype), one.requires_grad)
                for name, one in policy.model.named_parameters()
            }
            model = policy.sharding.with_weights(weights).eval().to("cpu")
            self.policy = replace(policy, model=model, device=torch.device("cpu"), sharding=None, sampler=None)
        self._version: int | None = None

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the weights if they have changed. A collective operation: every rank calls it."""
        if self._version == self._sharded.version:
            return
        into = dict(self.policy.model.named_parameters())
        for name, weight in self._sharded.model.named_parameters():
            full = ranks.full_tensor(weight)
            if ranks.is_rank0():
                into[name].copy_(full)
        self._version = self.policy.version = self._sharded.version


class Rank0Sampler:
    """The sampler of every rank. `inner` is rank 0's remote sampler, None on the others."""

    def __init__(self, inner: Sampler | None, unsharded: UnshardedCopy | None, *, exact: bool) -> None:
        self._inner, self._unsharded, self.exact = inner, unsharded, exact
        self.notice = inner.notice if inner is not None else None

    def sample_for_all(self, request: Request, device: torch.device) -> Completions:
        """Sample on rank 0 and return the completions on every rank, all of which call it."""
        if self._unsharded is not None:
            self._unsharded.refresh()
        return _moved(ranks.run_on_rank0(lambda: _moved(self.sample(request), torch.device("cpu"))), device)

    def sample(self, request: Request) -> Completions:
        assert self._inner is not None
        return self._inner.sample(request)


def _moved(done: Completions, device: torch.device) -> Completions:
    tensors: dict[str, Any] = {name: v.to(device) for name, v in vars(done).items() if isinstance(v, Tensor)}
    return replace(done, **tensors)


def check_scale(config: Config) -> None:
    """Check the `scale` section before anything is loaded. The config's devices are resolved."""
    scale, device = config.scale, config.model.device
    if isinstance(scale.sampling, VllmSamplingConfig):
        if config.model.weights == "4bit":
            raise UserError(NO_4BIT)
        if scale.sampling.url is None:
            check_in_process(scale.sampling, device)
    if not scale.uses_ray:
        return
    check_installed()
    if scale.sampling.kind == "ray" and device.startswith("cuda") and not scale.sampling.gpus:
        raise UserError(
            f"scale.sampling.gpus: the model is on '{device}', so every actor needs a GPU: set 1, or a fraction such "
            "as 0.4 to share the GPU that trains"
        )
    if scale.sampling.kind == "ray" and scale.sampling.gpus and not device.startswith("cuda"):
        raise UserError(f"scale.sampling.gpus: has no effect with the model on '{device}': leave it out")


class RemoteWorkers:
    """Connects to the cluster or server on creation; creates actor pools when they are first needed.

    Only rank 0 has them (`here`).
    """

    def __init__(self, config: Config, *, here: bool = True) -> None:
        self._config, self._here = config, here
        self._server: VllmServer | None = None
        self._open = ExitStack()
        self._cluster: Cluster | None = None
        self._used: dict[str, Callable[[], Any]] = {}
        scale = config.scale
        check_scale(config)
        if here and isinstance(scale.sampling, VllmSamplingConfig) and scale.sampling.url is not None:
            self._server = connect(scale.sampling)
        if not here or not scale.uses_ray:
            return
        pools = {"sampling": scale.sampling if scale.sampling.kind == "ray" else None}
        requested: dict[str, Any] = {**pools, "embedding": scale.embedding, "judging": scale.judging}
        self._cluster = Cluster(scale.ray_address)
        self._open.callback(self._cluster.close)
        try:
            self._cluster.check([PoolSpec(f"scale.{key}", pool) for key, pool in requested.items() if pool])
        except BaseException:  # close and re-raise
            self.close()
            raise

    @cached_property
    def placement(self) -> ModelPlacement:
        scale = self._config.scale
        if not self._here:
            return NOT_LOADED
        if self._cluster is None or not (scale.embedding or scale.judging):
            return IN_PROCESS
        from vigneron.remote.ray.embedding import EmbedderPool
        from vigneron.remote.ray.judging import JudgePool

        embedder = judge_backend = None
        if scale.embedding is not None:
            embedders = EmbedderPool(self._cluster, scale.embedding)
            self._keep(embedders.pool, "scale.embedding", "this reward uses no local embedder", lambda: embedders.key)
            embedder = embedders.embedder
        if scale.judging is not None:
            judges = JudgePool(self._cluster, scale.judging)
            self._keep(judges.pool, "scale.judging", "no item of the rubric uses a local judge", lambda: judges.key)
            judge_backend = judges.backend
        return ModelPlacement(embedder, judge_backend)

    def _keep(self, pool: Any, key: str, idle: str, used: Callable[[], Any]) -> None:
        self._open.callback(pool.close)
        self._used[f"{key}: has no effect, because {idle}"] = used

    def take_warnings(self) -> list[str]:
        """Warnings about lost actors since the last call."""
        if self._cluster is None:
            return []
        warnings, self._cluster.warnings = self._cluster.warnings, []
        return warnings

    def check_used(self) -> None:
        """Raise if a pool is never used. Called once the rewards are built."""
        for line, used in self._used.items():
            if not used():
                raise UserError(f"{line}: leave it out")

    def attach_sampler(self, policy: Policy, folder: RunFolder) -> None:
        """Make the policy sample by actors or by vLLM, if the config says so, until this is closed."""
        kind = self._config.scale.sampling.kind
        if kind == "here" or self._config.method.reads == "pairs":
            return
        if kind == "vllm" and any(map(is_quantised, policy.model.modules())):  # a base that is stored so
            raise UserError(NO_4BIT)
        unsharded = UnshardedCopy(policy) if policy.sharding is not None else None
        if unsharded is not None:
            unsharded.refresh()
        full_policy = unsharded.policy if unsharded is not None else policy
        sampler = ranks.run_on_all_ranks(lambda: self._sampler(full_policy, folder) if self._here else None)
        distributed = ranks.world_size() > 1
        policy.sampler = Rank0Sampler(sampler, unsharded, exact=kind == "ray") if distributed else sampler

        def detach() -> None:
            policy.sampler = None
            if sampler is not None:
                sampler.close()

        self._open.callback(detach)

    def _sampler(self, policy: Policy, folder: RunFolder) -> "RaySampler | VllmSampler":
        options = self._config.scale.sampling
        if isinstance(options, VllmSamplingConfig):
            from vigneron.remote.vllm.sampler import VllmSampler
            from vigneron.remote.vllm.server import ServerEngine

            engine: VllmEngine
            if self._server is not None:
                engine = ServerEngine(policy, self._server, options, folder.path)
            else:
                engine = InProcessEngine(
                    policy, options, folder.path, self._config.optimizer, graphs=self._config.model.graphs
                )
            return VllmSampler(policy, engine, options.probe_limit)
        from vigneron.remote.ray.sampler import RaySampler

        assert self._cluster is not None
        return RaySampler(policy, self._config, self._cluster, partial(folder.append, "sampling.jsonl"))

    def close(self) -> None:
        self._open.close()
