"""On-policy distillation: from a parent's log-probs (GKD, or a reward per token), or from its answers alone (GAD)."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from vigneron.config.group import GroupRelativeConfig
from vigneron.config.options import Aggregation, MethodOptions
from vigneron.config.values import Share, Url


class DistillConfig(MethodOptions):
    """On-policy distillation: the child samples, and is moved towards a parent whose log-probs are at hand. The reward
    measures the samples and is not trained on."""

    description: ClassVar[str] = (
        "On-policy distillation from a parent's log-probs: GKD's divergence, or a token reward."
    )
    card: ClassVar[str] = (
        "On-policy distillation: on its own samples, the model's next-token distribution is moved towards a parent's."
    )
    metrics: ClassVar[tuple[str, ...]] = ("loss/distill", "kl_parent", "eval/kl_parent")
    learns_from_reward: ClassVar[bool] = False
    name: Literal["distill"]
    parent: str | None = None
    """The parent: a hub id, a folder, a run (`runs/NAME`) or a bundled model, with the tokenizer of the model. With
    `url`, its name on the server; null: the server's only model."""
    url: Url | None = None
    """Root URL of a vLLM server that has the parent, as `http://127.0.0.1:8000`. null: the parent is loaded here."""
    loss: Literal["divergence", "sampled"] = "divergence"
    """divergence: between both next-token distributions at each position. sampled: the policy gradient with log parent
    − log child of the sampled token as its advantage; its mean is the gradient of the divergence with `beta: 1`."""
    beta: Share = 1.0
    """β of GKD's generalised Jensen-Shannon divergence, over β (1 − β). 1: KL(child ‖ parent), the reverse KL, which
    chooses among the parent's answers. 0: KL(parent ‖ child), the forward KL, which covers all of them."""
    top_k: Annotated[int, Field(ge=1, le=1000)] | None = None
    """The divergence over the parent's k most likely tokens, and all others as one. null: over the vocabulary, which
    needs the parent here. A server allows 20, if it was not started with `--max-logprobs`."""
    aggregation: Aggregation = "tokens"
    """How the loss is averaged: over tokens, over samples of their mean, or as the sum of each sample."""

    @property
    def parent_model(self) -> str | None:
        return self.parent if self.url is None else None

    @property
    def uses_reference(self) -> bool:
        return False

    @property
    def has_advantages(self) -> bool:  # type: ignore[override]
        return self.loss == "sampled"

    @model_validator(mode="after")
    def a_parent_is_named(self) -> "DistillConfig":
        if self.parent is None and self.url is None:
            raise ValueError("`parent` is missing: a model, a folder or a run with the model's tokenizer, or `url`")
        if self.url is not None and self.loss == "divergence" and self.top_k is None:
            raise ValueError(
                "a server gives no whole distributions: set `top_k` (20 is vLLM's limit), or `loss: sampled`"
            )
        return self

    @model_validator(mode="after")
    def options_have_an_effect(self) -> "DistillConfig":
        for key in ("beta", "top_k") if self.loss == "sampled" else ():
            if key in self.model_fields_set:
                raise ValueError(f"`{key}` has no effect with `loss: sampled`")
        return self

    @model_serializer(mode="wrap")
    def without_inert(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without keys that would be refused when the file is read again."""
        return {k: v for k, v in dump(self).items() if self.loss == "divergence" or k not in ("beta", "top_k")}


class GadConfig(GroupRelativeConfig):
    """Generative adversarial distillation (GAD, Ye et al. 2025): GRPO whose reward is the score of a discriminator. It
    is a Bradley-Terry model, trained beside the child to put the parent's answer above the child's own samples. The
    config's reward measures held-out completions and is not trained on."""

    description: ClassVar[str] = (
        "GRPO against a discriminator that tells a parent's answers from the model's own (GAD)."
    )
    card: ClassVar[str] = (
        "Generative adversarial distillation: GRPO, rewarded by a discriminator that is trained to tell a parent's "
        "recorded answers from the model's own."
    )
    metrics: ClassVar[tuple[str, ...]] = ("loss/discriminator", "discriminator/accuracy")
    learns_from_reward: ClassVar[bool] = False
    trains_its_reward: ClassVar[bool] = True
    name: Literal["gad"]
    warmup: Annotated[int, Field(ge=0)] = 0
    """Steps at the start in which the discriminator alone is trained."""

    @property
    def has_critic(self) -> bool:
        return True  # the discriminator, with `optimizer.critic_lr`

    @property
    def shows_answers(self) -> bool:
        return True


def needs_parent_head(method: Any) -> bool:
    """Whether the update computes a divergence over the vocabulary to a parent in this process, by its head."""
    whole = isinstance(method, DistillConfig) and method.loss == "divergence" and method.top_k is None
    return whole and method.parent_model is not None
