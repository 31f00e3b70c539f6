"""How a run is spread over processes and machines. But for `staleness` and vLLM none of it changes what is learned."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from vigneron.config.values import NotNegative, Positive, Strict, Url


class PoolConfig(Strict):
    """Ray actors of one kind, and what each of them takes of its node."""

    actors: Positive = 1
    cpus: NotNegative = 1.0
    gpus: NotNegative = 0.0


class HereSamplingConfig(Strict):
    """By the processes that train."""

    kind: Literal["here"] = "here"


class RaySamplingConfig(PoolConfig):
    """By a pool of Ray actors, each with a copy of the policy and the engine that samples here."""

    kind: Literal["ray"]
    timeout_s: Annotated[float, Field(gt=0)] = 600.0
    """An actor that has not answered for so long is taken for dead, and replaced."""


class VllmSamplingConfig(Strict):
    """By a vLLM server, for long completions and large models. Its log-probs are corrected for."""

    kind: Literal["vllm"]
    url: Url
    """The server's root, as `http://127.0.0.1:8000`."""
    model: str | None = None
    """The name it serves the child under. None: it serves one model."""
    weights: str | None = None
    """A folder that the server can read too, for the weights of each step. None: the run's own."""
    concurrency: Annotated[int, Field(gt=0, le=4096)] = 256
    timeout_s: Annotated[float, Field(gt=0)] = 600.0
    """For one completion, or one update of its weights."""
    probe_limit: Annotated[float, Field(gt=0)] = 0.1
    """Nats by which its log-probs of a fixed text may differ from the policy's, on average: more is another model."""


ScaledSampling = Annotated[HereSamplingConfig | RaySamplingConfig | VllmSamplingConfig, Field(discriminator="kind")]


class ScaleConfig(Strict):
    shard: Positive = 1
    """Ranks that share one copy of the weights, by FSDP2. 1: every rank has its own."""
    sampling: ScaledSampling = HereSamplingConfig()
    embedding: PoolConfig | None = None
    """Ray actors that embed, for a reward that compares embeddings."""
    judging: PoolConfig | None = None
    """Ray actors that judge, for a rubric with a local judge."""
    ray_address: str | None = None
    """The cluster to join, as `auto` or `host:6379`. None: one on this machine, for this run."""
    staleness: Annotated[int, Field(ge=0, le=8)] = 0
    """So many versions of the weights the one that sampled may be behind: sampling goes on while weights are updated,
    and its log-probs are corrected for. 0: every step samples from the weights it trains."""
    correction_limit: Annotated[float, Field(ge=1)] = 2.0
    """Where what sampled is not the policy itself: a token's importance weight is at most this."""

    @model_validator(mode="after")
    def somebody_samples_meanwhile(self) -> "ScaleConfig":
        if self.staleness and self.sampling.kind == "here":
            raise ValueError("`staleness` needs somebody who samples meanwhile: set `sampling.kind` to ray or vllm")
        return self

    @model_validator(mode="after")
    def a_limit_has_an_effect(self) -> "ScaleConfig":
        if self.correction_limit != 2.0 and not self.staleness and self.sampling.kind != "vllm":
            raise ValueError("`correction_limit` has no effect: what samples is the policy itself")
        return self

    @property
    def uses_ray(self) -> bool:
        return self.sampling.kind == "ray" or self.embedding is not None or self.judging is not None

    @model_validator(mode="after")
    def an_address_has_an_effect(self) -> "ScaleConfig":
        if self.ray_address is not None and not self.uses_ray:
            raise ValueError("`ray_address` has no effect: nothing here runs on Ray")
        return self
