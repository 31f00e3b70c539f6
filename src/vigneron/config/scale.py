"""How a run is distributed over processes and machines. Only `staleness` and vLLM change the result."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from vigneron.config.values import NotNegative, Positive, Strict, Url


class PoolConfig(Strict):
    """A pool of Ray actors, and the resources of each."""

    actors: Positive = 1
    """Number of actors."""
    cpus: NotNegative = 1.0
    """CPUs per actor."""
    gpus: NotNegative = 0.0
    """GPUs per actor; may be a fraction."""


class HereSamplingConfig(Strict):
    """The training processes sample."""

    kind: Literal["here"] = "here"


class RaySamplingConfig(PoolConfig):
    """A pool of Ray actors samples, each with a copy of the policy and the same engine."""

    kind: Literal["ray"]
    timeout_s: Annotated[float, Field(gt=0)] = 600.0
    """An actor without a response for this many seconds is replaced."""


class VllmSamplingConfig(Strict):
    """vLLM samples, for long completions and large models: a server with `url`, else an engine in the training process.
    Importance weights correct for its log-probs."""

    kind: Literal["vllm"]
    url: Url | None = None
    """Root URL of a server, as `http://127.0.0.1:8000`. null: vLLM runs in the training process, on its GPU, and sleeps
    during the update."""
    memory_share: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Share of the GPU's memory for vLLM while it samples; without `url`. null: half of what training leaves free."""
    model: str | None = None
    """Name under which the server has the model. null: its only model."""
    weights: str | None = None
    """Folder for each step's weights, which the server must be able to read. null: the run's folder."""
    concurrency: Annotated[int, Field(gt=0, le=4096)] = 256
    """Requests in flight to the server."""
    timeout_s: Annotated[float, Field(gt=0)] = 600.0
    """Timeout of one completion of the server, or of one weight update, in seconds."""
    probe_limit: Annotated[float, Field(gt=0)] | None = None
    """Largest mean difference, in nats, between vLLM's and the policy's log-probs of a fixed text; a larger one means
    other weights, and is an error. null: 0.15 if `model.dtype` is bfloat16, else 0.01."""

    @model_validator(mode="after")
    def keys_have_an_effect(self) -> "VllmSamplingConfig":
        if self.url is not None and self.memory_share is not None:
            raise ValueError("`memory_share` has no effect with `url`: the server has its own --gpu-memory-utilization")
        for key in ("model", "weights", "concurrency", "timeout_s"):
            if self.url is None and getattr(self, key) != type(self).model_fields[key].default:
                raise ValueError(f"`{key}` has no effect without `url`: vLLM then runs in the training process")
        return self


ScaledSampling = Annotated[HereSamplingConfig | RaySamplingConfig | VllmSamplingConfig, Field(discriminator="kind")]


class ScaleConfig(Strict):
    """How a run is distributed over processes and machines. Only `staleness` and vLLM change the result."""

    shard: Positive = 1
    """Ranks that share one copy of the weights, with FSDP2. 1: every rank has its own. `--nproc` or torchrun sets the
    number of ranks."""
    sampling: ScaledSampling = HereSamplingConfig()
    """Where completions are sampled."""
    embedding: PoolConfig | None = None
    """Ray actors for the local embedder of a reward. null: the training processes."""
    judging: PoolConfig | None = None
    """Ray actors for the local judge of a rubric. null: the training processes."""
    ray_address: str | None = None
    """Ray cluster to join, as `auto` or `host:6379`. null: start one on this machine for this run."""
    staleness: Annotated[int, Field(ge=0, le=8)] = 0
    """Asynchronous rollout: how many updates old the sampling weights may be (at most 1 with vLLM). Importance weights
    correct for the difference in methods with advantages. 0: every step samples from the current weights."""
    correction_limit: Annotated[float, Field(ge=1)] = 2.0
    """Upper limit of an importance weight, with `staleness` or vLLM."""
    correction_mode: Literal["truncate", "mask"] = "truncate"
    """What happens above the limit, truncate: the weight is the limit. mask: the weight is 0; also below 1 / limit."""
    correction_level: Literal["token", "text"] = "token"
    """token: a weight per token. text: one per completion, the geometric mean of its tokens' ratios."""

    @model_validator(mode="after")
    def staleness_needs_a_sampler(self) -> "ScaleConfig":
        if self.staleness and self.sampling.kind == "here":
            raise ValueError("`staleness` needs a separate sampler: set `scale.sampling.kind` to ray or vllm")
        if self.staleness and isinstance(self.sampling, VllmSamplingConfig) and self.sampling.url is None:
            raise ValueError("`staleness` needs a separate sampler: set `scale.sampling.url` to a vLLM server")
        return self

    @model_validator(mode="after")
    def correction_limit_has_an_effect(self) -> "ScaleConfig":
        for key, default in (("limit", 2.0), ("mode", "truncate"), ("level", "token")):
            if getattr(self, f"correction_{key}") != default and not self.corrects:
                raise ValueError(
                    f"`correction_{key}` has no effect without `staleness` or vLLM: the policy itself samples"
                )
        return self

    @property
    def corrects(self) -> bool:
        """Whether samples can be of other weights or another engine, so that importance weights correct for it."""
        return self.staleness > 0 or self.sampling.kind == "vllm"

    @property
    def uses_ray(self) -> bool:
        return self.sampling.kind == "ray" or self.embedding is not None or self.judging is not None

    @model_validator(mode="after")
    def ray_address_has_an_effect(self) -> "ScaleConfig":
        if self.ray_address is not None and not self.uses_ray:
            raise ValueError("`ray_address` has no effect: no part of this config uses Ray")
        return self
