"""Environments: what the model talks with over several turns."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field

from vigneron.config.values import Positive, Strict, Url, dotted_path


class EnvironmentOptions(Strict):
    """What every environment has. `max_new_tokens` is then the longest turn of the model."""

    model_config = ConfigDict(serialize_by_alias=True)

    max_turns: Positive = 8
    """The most turns of the model in a conversation."""
    max_reply_tokens: Positive = 256
    """The longest reply between two turns; more is cut. The cache of sampling has room for replies of this length."""
    timeout_s: Annotated[float, Field(gt=0)] = 60.0
    """Seconds that a reply may take. After that the sample has no reward."""
    concurrency: Positive | None = None
    """Replies that are worked on at a time. null: as many as there are, if they are async, and 64 of functions, each of
    which takes a thread."""
    patience: Annotated[int, Field(ge=0)] | None = None
    """Tokens that other samples go on before a reply is waited for; it is read then and not earlier, so that results do
    not depend on time. null: 0, and `max_new_tokens` for tools and async environments: others end their turns first."""

    def completion_tokens(self, max_new_tokens: int) -> int:
        """The most tokens of a conversation after its prompt."""
        return self.max_turns * max_new_tokens + (self.max_turns - 1) * self.max_reply_tokens


class PythonEnvironmentConfig(EnvironmentOptions):
    """Your own: a class that is made for each sample as `Class(row, seed, **options)` and has `reply(messages)`, or a
    function `reply(messages, row, seed, **options)`. Either may be async. See docs/guides/environments.md."""

    kind: Literal["python"]
    class_: Annotated[str, AfterValidator(dotted_path), Field(alias="class")]
    """Import path, as `module:Class`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Further arguments."""


class ToolsEnvironmentConfig(EnvironmentOptions):
    """Tools that the model calls in its template's format: Python functions with type hints and docstrings. A turn
    without a call ends the conversation. What goes wrong in a call is a message to the model. See docs/guides/tools.md.
    """

    kind: Literal["tools"]
    tools: Annotated[list[str], Field(min_length=1)]
    """`module:function`, `module:Class`, all of whose public methods are tools of an object made for each sample, or
    `python`, which runs the model's code in the sandbox."""
    timeout_s: Annotated[float, Field(gt=0)] = 30.0
    """Seconds that a call may take; after that the model reads an error."""
    max_result_chars: Positive = 4000
    """The longest result of a call, in characters; more is cut."""


class LocalPlayerConfig(Strict):
    """A frozen model on this machine: an earlier checkpoint, or any other."""

    kind: Literal["local"]
    model: str
    """Hub id, folder, bundled name, or the folder of a run (its newest checkpoint)."""
    adapter: str | None = None
    """Folder of an adapter of this model. Of a run with `model.lora`, whose folder is given as `model`, both are filled
    in: its newest adapter and its base model."""


class ReferencePlayerConfig(Strict):
    """The model that training begins with, frozen: `kind: local` with what `model.name` is at the run's start."""

    kind: Literal["reference"]


class EndpointPlayerConfig(Strict):
    """A model behind an OpenAI-compatible endpoint. The API key is read from OPENAI_API_KEY and never saved."""

    kind: Literal["endpoint"]
    model: str
    """Name of the model."""
    url: Url | None = None
    """Base URL. null: OPENAI_BASE_URL, or OpenAI's."""


PlayerConfig = Annotated[LocalPlayerConfig | ReferencePlayerConfig | EndpointPlayerConfig, Field(discriminator="kind")]


class GameConfig(EnvironmentOptions):
    """A game of several roles: a class with `roles`, `start()` and `play(turns)`, made for each episode as
    `Class(row, seed, **options)`. The policy plays every role that `players` does not name, and is trained on them,
    each with a baseline of its own. See docs/guides/self-play.md."""

    kind: Literal["game"]
    class_: Annotated[str, AfterValidator(dotted_path), Field(alias="class")]
    """Import path, as `module:Class`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Further arguments."""
    players: dict[str, PlayerConfig] = Field(default_factory=dict)
    """Who plays a role, if not the policy."""


EnvironmentConfig = Annotated[
    PythonEnvironmentConfig | ToolsEnvironmentConfig | GameConfig, Field(discriminator="kind")
]
