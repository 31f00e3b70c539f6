"""Environments of the package `verifiers` (before 0.4: `pip install 'vigneron[verifiers]'`), run by the package itself.

    python -m vigneron.environments.verifiers_adapter wordle --out wordle     # writes train.jsonl and held_out.jsonl

    data: {train: wordle/train.jsonl, held_out: wordle/held_out.jsonl}
    environment:
      kind: python
      class: "vigneron.environments.verifiers_adapter:VerifiersEnvironment"
      options: {env: wordle, args: {}}
      max_turns: 6
    reward: {kind: environment}

Each sample runs the package's own rollout, with a client that waits for Vigneron's model and calls no endpoint.
So what an environment does in `setup_state`, `env_response`, its stop conditions, cleanup and rubric happens as it does
there. The package has no seeds: what an environment draws at random is not repeated by a resumed run.

The rubric scores a conversation at its end, as the package does: also one that `environment.max_turns`, a turn's length
or the context cuts, which the environment sees as a prompt that is too long.
"""

import argparse
import asyncio
import json
import sys
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from vigneron.data.prompts import Row
from vigneron.environments.reply import Reply
from vigneron.environments.tool_calls import FORMATS, THINKING, BadCall, Call, CallFormat
from vigneron.environments.tool_schema import WrongArguments, checked_arguments
from vigneron.environments.verifiers_package import client_class, failures, load, tool_schema_of
from vigneron.errors import UserError, did_you_mean
from vigneron.policy.message_forms import Message
from vigneron.threads import event_loop

PARTS = {"train": "build_dataset", "held_out": "build_eval_dataset"}
_running: set[asyncio.Task[Any]] = set()
"""Rollouts that wait: the event loop holds them weakly."""


class VerifiersEnvironment:
    """One rollout of an environment of `verifiers`. Its reward is the rubric's, at the end.

    `calls` is the format in which the model calls the environment's tools, as `hermes` (`tool_calls.FORMATS`). A reward
    function that raises makes the sample fail; with `failed_rewards_are_zero` it counts 0, as in the package.
    """

    def __init__(
        self,
        row: Row,
        seed: int,
        env: str,
        args: Mapping[str, Any] | None = None,
        calls: str | None = None,
        failed_rewards_are_zero: bool = False,
    ) -> None:
        self.environment = load(env, args)
        self.format, self.calls = _format(self.environment, calls), 0
        self.row, self.zero = row, failed_rewards_are_zero
        self.client = client_class()()
        self.rollout: asyncio.Task[Any] | None = None
        weakref.finalize(self, _cut, self.client).atexit = False

    @staticmethod
    def check_options(env: str, args: Mapping[str, Any] | None = None, calls: str | None = None, **_: Any) -> None:
        """Before a run: the package is there, has the environment, and its tools can be called."""
        _format(load(env, args), calls)

    def read_turn(self, raw: str, text: str) -> Message:
        """The message of a sampled turn, with its tool calls. Calls that cannot be parsed are text, so an answer."""
        try:
            turn = None if self.format is None else self.format.parse(raw)
        except BadCall:
            turn = None
        if turn is None or not turn.calls:
            return {"role": "assistant", "content": text}
        calls = []
        for call in turn.calls:
            self.calls += 1
            function = {"name": call.name, "arguments": self._arguments(call)}
            calls.append({"type": "function", "id": call.id or f"call{self.calls:05d}", "function": function})
        return {"role": "assistant", "content": turn.text, "tool_calls": calls}

    def _arguments(self, call: Call) -> dict[str, Any]:
        """With the types of the tool's schema, if the format writes texts alone; the environment checks them."""
        schemas = [tool_schema_of(tool) for tool in self.environment.tool_defs if tool.name == call.name]
        if schemas and not call.typed:
            with suppress(WrongArguments):
                return checked_arguments(schemas[0], call.arguments, typed=False)
        return dict(call.arguments)

    async def reply(self, messages: list[Message]) -> Reply:
        turn = asyncio.run_coroutine_threadsafe(self._turn(messages), event_loop())
        return await asyncio.wrap_future(turn)

    async def cut(self) -> Reply:
        """The rubric's score of what is there."""
        self.close()
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._end(), event_loop()))
        return self._result()

    async def _end(self) -> None:
        assert self.rollout is not None
        await asyncio.wait({self.rollout})

    def close(self) -> None:
        """End a rollout that was cut, as for a prompt that is too long: the environment cleans up."""
        _cut(self.client)

    async def _turn(self, messages: list[Message]) -> Reply:
        """On the event loop: answer the rollout's question, and wait for the next or for its end."""
        if self.rollout is None:
            self.rollout = asyncio.create_task(_run(self.environment, self.client, self.row, self.zero))
            _running.add(self.rollout)
            self.rollout.add_done_callback(_running.discard)
            if await self._question(messages[:-1]):
                self.close()
                raise ValueError(
                    f"{_name(self.environment)} adds messages before the first turn, which was sampled without"
                )
        self.client.answers.put_nowait(messages[-1])
        new = await self._question(messages)
        return self._result() if new is None else Reply([_message(message) for message in new])

    async def _question(self, before: Sequence[Message]) -> list[Any] | None:
        """The messages that the model is to answer, without those before. None: the rollout is over."""
        assert self.rollout is not None
        question = asyncio.create_task(self.client.questions.get())
        await asyncio.wait({question, self.rollout}, return_when=asyncio.FIRST_COMPLETED)
        if not question.done():
            question.cancel()
            return None
        prompt = question.result()
        if list(map(_role_and_text, prompt[: len(before)])) != list(map(_role_and_text, before)):
            self.close()
            name = _name(self.environment)
            raise ValueError(f"{name} changes earlier messages, so it would not score what was sampled")
        return prompt[len(before) :]

    def _result(self) -> Reply:
        assert self.rollout is not None
        output = self.rollout.result()
        if output.get("error") is not None:
            raise ValueError(f"{_name(self.environment)}: {output['error']}")
        log = {"stop_condition": output.get("stop_condition"), **(output.get("metrics") or {})}
        return Reply(reward=output["reward"], done=True, log=log)


async def _run(environment: Any, client: Any, row: Row, failed_rewards_are_zero: bool) -> Any:
    """The package's rollout, with its score."""
    raised = list[str]()
    failures.set(raised)
    output = await environment.run_rollout({"example_id": 0, **row}, client, "vigneron", {})
    if raised and not failed_rewards_are_zero:
        raise ValueError(f"{_name(environment)}: {raised[0]}")
    return output


def _cut(client: Any) -> None:
    event_loop().call_soon_threadsafe(client.answers.put_nowait, None)


def _name(environment: Any) -> str:
    return f"the verifiers environment '{environment.env_id}'"


def _format(environment: Any, name: str | None) -> CallFormat | None:
    """The format of tool calls; needed by environments with tools, and by them alone."""
    formats = {known.name: known for known, _ in FORMATS}
    if bool(environment.tool_defs) != (name is not None):
        should = f"should name the format of calls: {', '.join(formats)}" if name is None else "has no effect"
        tools = "tools" if name is None else "no tools"
        raise UserError(f"environment.options.calls {should}: {_name(environment)} has {tools}")
    if name is not None and name not in formats:
        raise UserError(f"environment.options.calls: unknown format '{name}'{did_you_mean(name, formats)}")
    # The template is unknown here; <think> is what most models write.
    return None if name is None else replace(formats[name], thinking=THINKING[0])


def _role_and_text(message: Any) -> tuple[str, str]:
    content = message.get("content")
    return message["role"], _text(content) if isinstance(content, list) else content or ""


def _text(parts: Sequence[Any]) -> str:
    if any(part.get("type") != "text" for part in parts):
        raise ValueError("the environment writes content that is no text")
    return "".join(part["text"] for part in parts)


def _message(message: Any) -> dict[str, Any]:
    role, content = _role_and_text(message)
    call = {"tool_call_id": message["tool_call_id"]} if role == "tool" else {}
    return {"role": role, "content": content, **call}


def rows_of(environment: Any, part: str) -> list[Row]:
    """The rows of the environment's dataset (`train`) or evaluation dataset (`held_out`), with its tools' schemas."""
    dataset = getattr(environment, PARTS[part])()
    tools = [tool_schema_of(tool) for tool in environment.tool_defs or []]
    extra = {"tools": tools} if tools else {}
    return [{**row, "prompt": _prompt(row["prompt"]), **extra} for row in dataset or []]


def _prompt(prompt: Any) -> Any:
    """Without the keys that a table of messages fills with None."""
    if isinstance(prompt, str):
        return prompt
    return [{name: value for name, value in message.items() if value is not None} for message in prompt]


def write_rows(env: str, args: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write the datasets of an environment, those that it has."""
    environment, written = load(env, args), list[Path]()
    folder.mkdir(parents=True, exist_ok=True)
    for part in PARTS:
        if rows := rows_of(environment, part):
            written.append(folder / f"{part}.jsonl")
            lines = (json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)
            written[-1].write_text("".join(lines), encoding="utf-8")
    return written


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Write the datasets of a verifiers environment as JSONL.")
    parser.add_argument("env", help="the environment's name, as for vf.load_environment")
    parser.add_argument("--args", type=json.loads, default={}, help="its arguments, as a JSON object")
    parser.add_argument("--out", type=Path, required=True, help="a folder for train.jsonl and held_out.jsonl")
    given = parser.parse_args(arguments)
    try:
        for path in write_rows(given.env, given.args, given.out):
            print(path)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
