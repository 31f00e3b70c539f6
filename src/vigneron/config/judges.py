"""The kinds of judges: an endpoint, a local model, or a Python function."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from vigneron.config.values import Positive, Strict, Url, dotted_path


class ModelJudgeConfig(Strict):
    """A judge that is a language model."""

    model: str
    """Name of the model."""
    confidence: Literal["verbal", "agreement", "logprob"] = "verbal"
    """verbal: the judge states its confidence (the paper). agreement: agreement of `samples` scores sampled at
    `temperature`; their mean is the score. logprob: the probability of the judge's own reply."""
    samples: Annotated[int, Field(ge=2, le=64)] = 5
    """Scores per answer, with `confidence: agreement`."""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    """Sampling temperature, with `confidence: agreement`."""
    max_tokens: Positive = 512
    """Length limit of a critique, and of a score."""

    @model_validator(mode="after")
    def options_have_an_effect(self) -> "ModelJudgeConfig":
        for key in ("samples", "temperature"):
            if self.confidence != "agreement" and key in self.model_fields_set:
                raise ValueError(f"`{key}` has no effect with `confidence: {self.confidence}`")
        return self

    @model_validator(mode="after")
    def probabilities_are_their_own_confidence(self) -> "ModelJudgeConfig":
        reads = getattr(self, "reads", "json")
        if reads != "json" and self.confidence != "verbal":
            raise ValueError(
                f"with `reads: {reads}` the confidence is computed from the probability: remove `confidence`"
            )
        return self

    @model_serializer(mode="wrap")
    def without_inert(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out keys that would be errors when read again."""
        inert = () if self.confidence == "agreement" else ("samples", "temperature")
        return {key: value for key, value in dump(self).items() if key not in inert}


class EndpointJudgeConfig(ModelJudgeConfig):
    """A model behind an OpenAI-compatible endpoint. The API key is read from OPENAI_API_KEY and never saved."""

    kind: Literal["endpoint"]
    reads: Literal["json", "digits"] = "json"
    """json: parse the reply. digits: the score is the expected digit of 1 to 10 by the log-probs of the reply's first
    token (d-RLAIF), rescaled to 0 to 1."""
    url: Url | None = None
    """Base URL. null: OPENAI_BASE_URL, or OpenAI's."""
    concurrency: Annotated[int, Field(gt=0, le=256)] = 8
    """Requests in flight."""
    timeout_s: Annotated[float, Field(gt=0)] = 60.0
    """Timeout of one request, in seconds."""
    retries: Annotated[int, Field(ge=0, le=20)] = 5
    """Retries of a failed request."""


class LocalJudgeConfig(ModelJudgeConfig):
    """A transformers model on this machine, by hub id, folder or bundled name."""

    kind: Literal["local"]
    reads: Literal["json", "yes_no", "digits"] = "json"
    """json: parse the reply. yes_no: the score is the probability of `yes` against `no` as the next token, and the
    confidence is its distance from 0.5. digits: the score is the expected digit of 1 to 10 as the next token (d-RLAIF),
    rescaled to 0 to 1."""


class PythonJudgeConfig(Strict):
    """Your own function from a conversation to the reply's text, for tests and rule-based judges."""

    kind: Literal["python"]
    function: Annotated[str, AfterValidator(dotted_path)]
    """Import path of the function."""


JudgeConfig = Annotated[EndpointJudgeConfig | LocalJudgeConfig | PythonJudgeConfig, Field(discriminator="kind")]
