"""Who judges: an endpoint, a local model, or a function of the user's."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from vigneron.config.values import Positive, Strict, Url, dotted_path


class AskedJudgeConfig(Strict):
    model: str
    confidence: Literal["verbal", "agreement", "logprob"] = "verbal"
    """verbal: as the judge says (the paper). agreement: of `samples` scores, drawn at `temperature`; their mean is the
    score. logprob: the probability the judge gave to its own words."""
    samples: Annotated[int, Field(ge=2, le=64)] = 5
    temperature: Annotated[float, Field(gt=0)] = 1.0
    max_tokens: Positive = 512

    @model_validator(mode="after")
    def options_have_an_effect(self) -> "AskedJudgeConfig":
        for key in ("samples", "temperature"):
            if self.confidence != "agreement" and key in self.model_fields_set:
                raise ValueError(f"`{key}` has no effect with `confidence: {self.confidence}`")
        return self

    @model_serializer(mode="wrap")
    def without_inert(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """What is written can be read again."""
        inert = () if self.confidence == "agreement" else ("samples", "temperature")
        return {key: value for key, value in dump(self).items() if key not in inert}


class EndpointJudgeConfig(AskedJudgeConfig):
    """Any OpenAI-compatible endpoint. The key is OPENAI_API_KEY of the environment, and is written nowhere."""

    kind: Literal["endpoint"]
    url: Url | None = None
    """None: OPENAI_BASE_URL, or OpenAI's own."""
    concurrency: Annotated[int, Field(gt=0, le=256)] = 8
    timeout_s: Annotated[float, Field(gt=0)] = 60.0
    retries: Annotated[int, Field(ge=0, le=20)] = 5


class LocalJudgeConfig(AskedJudgeConfig):
    """A transformers model: a hub id, a folder, or a bundled one."""

    kind: Literal["local"]
    reads: Literal["json", "yes_no"] = "json"
    """json: the reply is read. yes_no: the score is the probability of `yes` against `no` as the next token, and the
    confidence its distance from a coin's."""

    @model_validator(mode="after")
    def yes_no_is_its_own_confidence(self) -> "LocalJudgeConfig":
        if self.reads == "yes_no" and self.confidence != "verbal":
            raise ValueError("with `reads: yes_no` the confidence comes from the probability: leave out `confidence`")
        return self


class PythonJudgeConfig(Strict):
    """Your own function of a conversation, `module:function`: returns the reply's text. For tests, and for a judge that
    is a rule."""

    kind: Literal["python"]
    function: Annotated[str, AfterValidator(dotted_path)]


JudgeConfig = Annotated[EndpointJudgeConfig | LocalJudgeConfig | PythonJudgeConfig, Field(discriminator="kind")]
