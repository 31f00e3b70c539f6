"""What a run has beyond its own process: nothing, unless its config asks for it."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from vigneron.config import Config, VllmSamplingConfig
from vigneron.distributed import ranks
from vigneron.errors import UserError
from vigneron.policy.model import Policy
from vigneron.remote.rank0_sampler import Central, Mirror
from vigneron.remote.ray.cluster import Cluster, Wanted, check_installed
from vigneron.remote.vllm.server_api import VllmServer, reach
from vigneron.run_store.folder import RunFolder
from vigneron.sources.placement import IN_PROCESS, NOT_LOADED, ModelPlacement

if TYPE_CHECKING:
    from vigneron.remote.ray.sampler import RaySampler
    from vigneron.remote.vllm.sampler import VllmSampler


def check_scale(config: Config) -> None:
    """What can be refused before anything is loaded or asked. Devices are those of a resolved config."""
    scale, device = config.scale, config.model.device
    if not scale.uses_ray:
        return
    check_installed()
    if scale.sampling.kind == "ray" and device.startswith("cuda") and not scale.sampling.gpus:
        raise UserError(
            f"scale.sampling.gpus: the model is on '{device}', so an actor needs a GPU: 1, or a share of one, as in "
            "0.4, where it shares the one that trains"
        )
    if scale.sampling.kind == "ray" and scale.sampling.gpus and not device.startswith("cuda"):
        raise UserError(f"scale.sampling.gpus: has no effect with a model on '{device}': leave it out")


class Scale:
    """Joins the cluster when it is made; pools are made when they are first needed.

    Of several ranks the first one has all of it (`here`): the others ask nobody.
    """

    def __init__(self, config: Config, *, here: bool = True) -> None:
        self._config, self._here = config, here
        self._server: VllmServer | None = None
        self._open = ExitStack()
        self._cluster: Cluster | None = None
        self._used: dict[str, Callable[[], Any]] = {}
        scale = config.scale
        if here and scale.sampling.kind == "vllm":
            self._server = reach(scale.sampling)
        if not here or not scale.uses_ray:
            return
        check_scale(config)
        pools = {"sampling": scale.sampling if scale.sampling.kind == "ray" else None}
        pools_wanted: dict[str, Any] = {**pools, "embedding": scale.embedding, "judging": scale.judging}
        self._cluster = Cluster(scale.ray_address)
        self._open.callback(self._cluster.close)
        try:
            self._cluster.check([Wanted(f"scale.{key}", pool) for key, pool in pools_wanted.items() if pool])
        except BaseException:  # whatever it was: raised on
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
            self._keep(embedders.pool, "scale.embedding", "this reward embeds nothing here", lambda: embedders.key)
            embedder = embedders.embedder
        if scale.judging is not None:
            judges = JudgePool(self._cluster, scale.judging)
            self._keep(judges.pool, "scale.judging", "no item of the rubric asks a local judge", lambda: judges.key)
            judge_backend = judges.backend
        return ModelPlacement(embedder, judge_backend)

    def _keep(self, pool: Any, key: str, idle: str, used: Callable[[], Any]) -> None:
        self._open.callback(pool.close)
        self._used[f"{key}: has no effect, as {idle}"] = used

    def complaints(self) -> list[str]:
        """Of actors that were lost since the last time."""
        if self._cluster is None:
            return []
        said, self._cluster.losses = self._cluster.losses, []
        return said

    def check_used(self) -> None:
        """Once rewards are made: a pool that nobody has asked for anything would stay idle."""
        for line, used in self._used.items():
            if not used():
                raise UserError(f"{line}: leave it out")

    def give_sampler(self, policy: Policy, folder: RunFolder) -> None:
        """The policy samples by actors or by a server from now on, if the config says so, until this is closed."""
        kind = self._config.scale.sampling.kind
        if kind == "here" or self._config.method.reads == "pairs":
            return
        mirror = Mirror(policy) if policy.sharding is not None else None
        if mirror is not None:
            mirror.refresh()
        whole = mirror.policy if mirror is not None else policy
        sampler = ranks.agreed(lambda: self._sampler(whole, folder) if self._here else None)
        together = ranks.count() > 1
        policy.sampler = Central(sampler, mirror, exact=kind == "ray") if together else sampler

        def take_back() -> None:
            policy.sampler = None
            if sampler is not None:
                sampler.close()

        self._open.callback(take_back)

    def _sampler(self, policy: Policy, folder: RunFolder) -> "RaySampler | VllmSampler":
        options = self._config.scale.sampling
        if isinstance(options, VllmSamplingConfig):
            from vigneron.remote.vllm.sampler import VllmSampler

            assert self._server is not None
            return VllmSampler(policy, self._server, options, folder.path)
        from vigneron.remote.ray.sampler import RaySampler

        assert self._cluster is not None
        return RaySampler(policy, self._config, self._cluster, partial(folder.append, "sampling.jsonl"))

    def close(self) -> None:
        self._open.close()
