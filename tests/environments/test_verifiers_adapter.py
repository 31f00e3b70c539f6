"""Environments of the real package `verifiers`, built with it and run by it, turn by turn."""

import asyncio
import gc
import json
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from support.talking import LETTERS, talking_folder
from vigneron import api
from vigneron.environments.reply import Reply, checked_reply
from vigneron.environments.verifiers_adapter import VerifiersEnvironment, main, rows_of
from vigneron.environments.verifiers_package import load
from vigneron.errors import UserError
from vigneron.recipe import check_config

try:
    import verifiers as vf

    MISSING = "" if hasattr(vf, "load_environment") else f"verifiers {vf.__version__} has no load_environment"
except ImportError as error:
    MISSING = f"verifiers is not installed ({error}): pip install 'vigneron[verifiers]'"
pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

SINGLE = """
import verifiers as vf
from datasets import Dataset

def load_environment(offset=0):
    rows = [{"question": f"What is {n} + {n}?", "answer": str(2 * n + offset)} for n in (1, 2, 3)]
    def right(completion, answer, **kwargs):
        return 1.0 if completion[-1]["content"] == answer else 0.0
    def length(completion):
        return len(completion[-1]["content"])
    rubric = vf.Rubric(funcs=[right, length], weights=[1.0, 0.1])
    held_out = Dataset.from_list([{"question": "What is 9 + 9?", "answer": "18"}])
    return vf.SingleTurnEnv(
        dataset=Dataset.from_list(rows), eval_dataset=held_out, system_prompt="Add.", rubric=rubric
    )
"""
MULTI = """
import verifiers as vf
from datasets import Dataset

class Countdown(vf.MultiTurnEnv):
    cleaned = []

    async def setup_state(self, state, **kwargs):
        state["left"] = state["info"]["from"]
        return state

    async def env_response(self, messages, state, **kwargs):
        said = messages[-1]["content"]
        if said == "fail":
            raise vf.ToolError("the tool broke")
        if said == "give up":
            state["final_env_response"] = [{"role": "user", "content": "As you like."}]
            return state["final_env_response"]
        state["left"] -= said == str(state["left"])
        return [{"role": "user", "content": f"{state['left']} left"}]

    @vf.stop
    async def at_zero(self, state):
        said = [step["completion"][-1]["content"] for step in state["trajectory"]]
        return state["left"] == 0 or said[-1:] == ["0"]

    @vf.cleanup
    async def forget(self, state):
        self.cleaned.append(state["left"])

async def progress(state, info):
    return 1 - state["left"] / info["from"]

def broken(state):
    return 1 / 0

def load_environment(with_broken=False):
    rows = [{"prompt": [{"role": "user", "content": "Count down from 3."}], "answer": "", "info": {"from": 3}}]
    rubric = vf.Rubric(funcs=[progress, broken] if with_broken else [progress])
    return Countdown(dataset=Dataset.from_list(rows), rubric=rubric, max_turns=5)
"""
TOOLS = """
import verifiers as vf
from datasets import Dataset

async def add(a: int, b: int) -> int:
    '''Add two numbers.

    Args:
        a: One number.
        b: The other.
    '''
    return a + b

def load_environment():
    def right(completion, answer):
        return float(completion[-1].content == answer)
    rows = [{"question": "What is 40 + 2?", "answer": "42"}]
    return vf.ToolEnv(tools=[add], dataset=Dataset.from_list(rows), rubric=vf.Rubric(funcs=[right]), max_turns=4)
"""
GROUPED = """
import verifiers as vf
from datasets import Dataset

def load_environment():
    def best(completions) -> list[float]:
        return [1.0 for _ in completions]
    rows = [{"question": "?", "answer": ""}]
    return vf.SingleTurnEnv(dataset=Dataset.from_list(rows), rubric=vf.Rubric(funcs=[best]))
"""
REWRITING = """
import verifiers as vf
from datasets import Dataset

class Rewriting(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **kwargs):
        return [{"role": "user", "content": "go on"}]

    async def get_prompt_messages(self, state):
        messages = await super().get_prompt_messages(state)
        return messages if len(messages) < 2 else [{"role": "user", "content": "all new"}, *messages[1:]]

def load_environment():
    rows = [{"question": "?", "answer": ""}]
    return Rewriting(dataset=Dataset.from_list(rows), rubric=vf.Rubric(funcs=[lambda completion: 1.0]), max_turns=3)
"""
SOURCES = {"single": SINGLE, "multi": MULTI, "tools": TOOLS, "grouped": GROUPED, "rewriting": REWRITING}


@pytest.fixture(autouse=True, scope="module")
def _modules(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The environments as installed packages would be: modules with a `load_environment`."""
    folder = tmp_path_factory.mktemp("hub")
    for name, source in SOURCES.items():
        (folder / f"vf_test_{name}.py").write_text(source)
    sys.path.insert(0, str(folder))
    yield
    sys.path.remove(str(folder))


def converse(environment: VerifiersEnvironment, prompt: list[Any], turns: list[Any]) -> list[Reply]:
    """The replies to the model's turns, each in an event loop of its own."""
    messages, replies = list(prompt), list[Reply]()
    for turn in turns:
        messages.append({"role": "assistant", "content": turn} if isinstance(turn, str) else turn)
        replies.append(checked_reply(asyncio.run(environment.reply(messages))))
        messages += replies[-1].messages
    return replies


def started(name: str, number: int = 0, **options: Any) -> tuple[VerifiersEnvironment, list[Any]]:
    row = rows_of(load(f"vf-test-{name}", options.get("args")), "train")[number]
    return VerifiersEnvironment(row, 0, env=f"vf-test-{name}", **options), row["prompt"]


def test_a_single_turn_is_scored_by_the_rubric() -> None:
    for answer, reward in (("4", 1 + 0.1), ("nothing", 0.1 * 7)):
        environment, prompt = started("single", 1)
        assert [message["role"] for message in prompt] == ["system", "user"]
        (reply,) = converse(environment, prompt, [answer])
        assert (reply.done, reply.reward) == (True, pytest.approx(reward))
        assert reply.log["right"] == float(answer == "4")
        assert reply.log["length"] == len(answer)
        assert reply.log["stop_condition"] == "max_turns_reached"


def test_arguments_reach_the_environment() -> None:
    environment, prompt = started("single", 1, args={"offset": 5})
    assert converse(environment, prompt, ["9"])[0].log["right"] == 1.0


def test_several_turns_end_by_the_environments_own_stop_condition() -> None:
    environment, prompt = started("multi")
    first, second, third, last = converse(environment, prompt, ["3", "7", "2", "0"])
    assert [reply.messages[0]["content"] for reply in (first, second, third)] == ["2 left", "2 left", "1 left"]
    assert (last.done, last.reward, last.log["stop_condition"]) == (True, pytest.approx(2 / 3), "at_zero")
    assert last.log["num_turns"] == 4
    assert environment.environment.cleaned[-1] == 1


def test_the_packages_limit_of_turns_and_its_last_words_end_a_rollout() -> None:
    environment, prompt = started("multi")
    assert converse(environment, prompt, ["x"] * 5)[-1].log["stop_condition"] == "max_turns_reached"
    environment, prompt = started("multi")
    last = converse(environment, prompt, ["3", "give up"])[-1]
    assert (last.done, last.reward) == (True, pytest.approx(1 / 3))
    assert last.log["stop_condition"] == "has_final_env_response"


def test_samples_that_take_turns_do_not_share_their_state() -> None:
    pairs = [started("multi") for _ in range(3)]
    scripts = [["3", "2", "1"], ["3", "x", "x"], ["x", "x", "3"]]

    async def play(environment: VerifiersEnvironment, prompt: list[Any], turns: list[str]) -> list[str]:
        messages, seen = list(prompt), list[str]()
        for turn in turns:
            messages.append({"role": "assistant", "content": turn})
            reply = checked_reply(await environment.reply(messages))
            messages += reply.messages
            seen += [message["content"] for message in reply.messages]
        return seen

    async def all_at_once() -> list[list[str]]:
        plays = (play(*pair, script) for pair, script in zip(pairs, scripts, strict=True))
        return await asyncio.gather(*plays)

    assert asyncio.run(all_at_once()) == [
        ["2 left", "1 left", "0 left"],
        ["2 left", "2 left", "2 left"],
        ["3 left", "3 left", "2 left"],
    ]


def test_the_reward_is_what_the_packages_own_evaluation_gives() -> None:
    """The same turns, from a client of the package that has them in a list, through `run_rollout`."""
    from verifiers.types import Response, ResponseMessage

    from vigneron.environments.verifiers_package import client_class

    class Scripted(client_class()):  # type: ignore[misc]
        async def get_response(self, prompt: Any, model: str, *_: Any, **__: Any) -> Any:
            message = ResponseMessage(content=turns.pop(0), finish_reason="stop", is_truncated=False)
            return Response(id="", created=0, model=model, message=message)

    environment, prompt = started("multi")
    ours = converse(environment, prompt, ["3", "2", "no", "0"])[-1]
    turns = ["3", "2", "no", "0"]
    given = {**rows_of(environment.environment, "train")[0], "example_id": 0}
    theirs = asyncio.run(environment.environment.run_rollout(given, Scripted(), "m", {}))
    assert (ours.reward, ours.log["stop_condition"]) == (theirs["reward"], theirs["stop_condition"])
    assert theirs["reward"] == pytest.approx(2 / 3)


def test_tools_are_called_and_their_schemas_are_in_the_rows() -> None:
    (row,) = rows_of(load("vf-test-tools"), "train")
    (tool,) = row["tools"]
    assert tool["function"]["name"] == "add"
    assert set(tool["function"]["parameters"]["properties"]) == {"a", "b"}

    def said(call: str) -> str:
        return f"Well.\n<tool_call>\n{call}\n</tool_call>"

    environment, prompt = started("tools", calls="hermes")
    raw = [
        said('{"name": "add", "arguments": {"a": 40, "b": 2}}'),
        said('{"name": "add", "arguments": {"a": 1}}'),
        "42",
    ]
    turns = [environment.read_turn(each, each) for each in raw]
    assert [len(turn.get("tool_calls", ())) for turn in turns] == [1, 1, 0]
    good, bad, last = converse(environment, prompt, turns)
    assert good.messages == ({"role": "tool", "content": "42", "tool_call_id": "call00001"},)
    assert "missing 1 required" in bad.messages[0]["content"]
    assert (last.done, last.reward, last.log["add_calls"]) == (True, 1.0, 2)
    assert last.log["stop_condition"] == "no_tools_called"


def test_arguments_without_types_get_those_of_the_schema() -> None:
    environment, prompt = started("tools", calls="qwen_coder")
    parameters = "".join(f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in (("a", 40), ("b", 2)))
    raw = f"<tool_call>\n<function=add>\n{parameters}</function>\n</tool_call>"
    (reply,) = converse(environment, prompt, [environment.read_turn(raw, raw)])
    assert reply.messages[0]["content"] == "42"


def test_a_call_that_cannot_be_parsed_is_an_answer() -> None:
    environment, prompt = started("tools", calls="hermes")
    turn = environment.read_turn('<tool_call>{"name": "add"', '{"name": "add"')
    assert turn == {"role": "assistant", "content": '{"name": "add"'}
    (last,) = converse(environment, prompt, [turn])
    assert (last.done, last.reward) == (True, 0.0)


@pytest.mark.parametrize(
    ("name", "calls", "reason"),
    [
        ("tools", None, "should name the format of calls: harmony,.* has tools"),
        ("tools", "hermse", "unknown format 'hermse'.*hermes"),
        ("single", "hermes", "has no effect.* has no tools"),
    ],
)
def test_the_format_of_calls_is_needed_with_tools_and_only_then(name: str, calls: str | None, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        started(name, calls=calls)


def test_an_environment_that_fails_raises_instead_of_scoring_0() -> None:
    environment, prompt = started("multi")
    with pytest.raises(ValueError, match=r"the verifiers environment 'vf-test-multi'.*the tool broke"):
        converse(environment, prompt, ["3", "fail"])


def test_a_reward_function_that_raises_is_missing_unless_it_shall_be_0() -> None:
    environment, prompt = started("multi", args={"with_broken": True})
    with pytest.raises(ValueError, match=r"the reward function broken raised ZeroDivisionError"):
        converse(environment, prompt, ["0"])
    environment, prompt = started("multi", args={"with_broken": True}, failed_rewards_are_zero=True)
    assert converse(environment, prompt, ["3", "0"])[-1].reward == pytest.approx(1 / 3)


def test_an_environment_that_rewrites_the_conversation_is_refused() -> None:
    environment, prompt = started("rewriting")
    with pytest.raises(ValueError, match="changes earlier messages"):
        converse(environment, prompt, ["a"])


def test_a_conversation_that_is_cut_is_scored_by_the_rubric() -> None:
    """Behind the first of three numbers, as after a prompt that is too long."""
    environment, prompt = started("multi")
    (reply,) = converse(environment, prompt, ["3"])
    assert (reply.done, reply.reward) == (False, None)
    last = checked_reply(asyncio.run(environment.cut()))
    assert (last.done, last.reward) == (True, pytest.approx(1 / 3))
    assert last.log["stop_condition"] == "prompt_too_long"


@pytest.mark.parametrize("way", ["closed", "forgotten"])
def test_a_rollout_that_is_cut_cleans_up(way: str) -> None:
    environment, prompt = started("multi")
    converse(environment, prompt, ["3"])
    rollout, cleaned, finished = environment.rollout, environment.environment.cleaned, threading.Event()
    assert rollout is not None
    rollout.add_done_callback(lambda _: finished.set())
    before = len(cleaned)
    if way == "closed":
        environment.close()
    del environment
    gc.collect()
    assert finished.wait(600)
    assert len(cleaned) == before + 1
    assert rollout.result()["is_truncated"] is True


def test_handlers_of_signals_stay_and_a_thread_may_load() -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    loaded = list[Any]()
    thread = threading.Thread(target=lambda: loaded.append(load("vf-test-single", {"offset": 77})))
    thread.start()
    thread.join()
    assert len(loaded) == 1
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


@pytest.mark.parametrize(
    ("name", "args", "reason"),
    [
        ("no-such-environment", {}, "cannot load 'no-such-environment'.*installed"),
        ("vf-test-single", {"unknown": 1}, "cannot load 'vf-test-single'.*unknown"),
        ("vf-test-grouped", {}, "scores groups of samples together"),
    ],
)
def test_what_cannot_be_loaded_is_one_line(name: str, args: dict[str, Any], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        load(name, args)


def test_datasets_are_written_as_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["vf-test-single", "--out", str(tmp_path / "rows"), "--args", '{"offset": 1}'])
    train, held_out = ((tmp_path / "rows" / f"{part}.jsonl").read_text().splitlines() for part in ("train", "held_out"))
    assert (len(train), len(held_out)) == (3, 1)
    assert json.loads(train[0]) == {
        "question": "What is 1 + 1?",
        "answer": "3",
        "example_id": 0,
        "prompt": [{"role": "system", "content": "Add."}, {"role": "user", "content": "What is 1 + 1?"}],
    }
    main(["vf-test-multi", "--out", str(tmp_path / "other")])
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["train.jsonl"]


@pytest.mark.slow
def test_a_run_trains_on_an_environment_of_the_package(tmp_path: Path) -> None:
    main(["vf-test-multi", "--out", str(tmp_path / "rows")])
    recipe = {
        "recipe": "countdown",
        "method": {"name": "grpo"},
        "model": {"name": str(talking_folder(tmp_path / "model")), "device": "cpu"},
        "data": {"train": str(tmp_path / "rows" / "train.jsonl")},
        "environment": {
            "kind": "python",
            "class": "vigneron.environments.verifiers_adapter:VerifiersEnvironment",
            "options": {"env": "vf-test-multi"},
            "max_turns": 5,
            "max_reply_tokens": 12,
        },
        "reward": {"kind": "environment"},
        "sampling": {"stop": [*LETTERS, *"0123456789"]},
        "steps": 2,
        "prompts_per_step": 1,
        "group_size": 8,
        "max_new_tokens": 8,
    }
    run = api.train(check_config(recipe, "test"), runs=tmp_path / "runs")
    records = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    for record in records:
        assert record["turns/failed"] == 0
        assert 1 <= record["turns/mean"] <= 5
        assert 0 <= record["reward"] <= 1
