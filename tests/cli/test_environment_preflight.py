"""What `validate` and `train` find of an environment before any weights are loaded."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from support.command_line import vigneron
from support.real_templates import template

CODE = '''
from vigneron.environments.game import Round
from vigneron.environments.reply import Reply


def price(article: str) -> float:
    """Look up what an article costs.

    Args:
        article: Its name.
    """
    return 1.0


def undescribed(article: str) -> float:
    return 1.0


class NeedsMore:
    def __init__(self, path):
        self.path = path

    price = staticmethod(price)


class Wrong:
    def __init__(self, row, seed):
        pass

    def reply(self):
        return Reply(done=True)


class Fine:
    def __init__(self, row, seed):
        raise AssertionError("it should not be made")

    def reply(self, messages):
        return Reply(done=True)


class Duel:
    roles = ("a", "b")

    def __init__(self, row, seed):
        pass

    def start(self, turns):
        return Round()

    def play(self, turns):
        return Round()


class Fair(Duel):
    def start(self):
        return Round()
'''


@pytest.fixture
def checked(tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A command on a recipe with an environment. The model's folder has no weights: nothing may load them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "preflight_environments.py").write_text(CODE)
    model = tmp_path / "model"
    shutil.copytree(tiny_folder, model)
    (tmp_path / "rows.jsonl").write_text(
        json.dumps({"prompt": "What does a pen cost?", "answer": "one and a half"}) + "\n"
    )

    def run(environment: dict[str, Any], verb: str = "validate", chat_template: str | None = None) -> Any:
        if verb == "train":
            (model / "model.safetensors").unlink(missing_ok=True)
        if chat_template is not None:
            (model / "chat_template.jinja").write_text(chat_template)
        recipe = {
            "method": {"name": "grpo"},
            "model": {"name": str(model), "device": "cpu"},
            "data": {"train": "rows.jsonl"},
            "environment": environment,
            "reward": {"kind": "environment"},
            "group_size": 2,
            "prompts_per_step": 1,
            "max_new_tokens": 4,
        }
        (tmp_path / "talk.yaml").write_text(json.dumps(recipe))
        return vigneron(verb, "talk.yaml")

    return run


def own(name: str, **keys: Any) -> dict[str, Any]:
    return {"kind": "python", "class": f"preflight_environments:{name}", "max_turns": 2, **keys}


def tools(name: str) -> dict[str, Any]:
    return {"kind": "tools", "tools": [f"preflight_environments:{name}"], "max_turns": 2}


@pytest.mark.parametrize(
    ("environment", "line"),
    [
        (own("Wrong"), "cannot be called as reply(messages): too many positional arguments"),
        (own("Missing"), "'preflight_environments' has no function 'Missing'"),
        (
            own("Fine", options={"size": 3}),
            "cannot be called as Class(row, seed, **options): got an unexpected",
        ),
        (own("Duel", kind="game"), "cannot be called as start(): missing a required argument: 'turns'"),
        (tools("undescribed"), "environment.tools: the tool 'undescribed' has no docstring"),
        (tools("NeedsMore"), "the class 'NeedsMore' cannot be called as NeedsMore(): missing a required argument"),
        (tools("price"), "the model's chat template has no known format of tool calls"),
    ],
)
def test_an_environment_that_cannot_be_used_is_refused_by_both_verbs(
    checked: Any, environment: dict[str, Any], line: str
) -> None:
    for verb in ("validate", "train"):
        answer = checked(environment, verb)
        assert answer.code == 2
        assert line in answer.err


def test_the_first_rows_are_shown_with_the_tools_and_no_environment_is_made(checked: Any) -> None:
    shown = checked(tools("price"), chat_template=template("qwen2_5"))
    assert "Look up what an article costs." in shown.out
    assert "<|im_start|>user\\nWhat does a pen cost?" in shown.out
    assert checked(own("Fine")).code == 0


def test_a_template_that_does_not_show_the_tools_is_noted(checked: Any) -> None:
    answer = checked(tools("price"), chat_template=template("deepseekv3"))
    assert "note: the model's chat template does not show the tools to the model: describe them in" in answer.out


def test_of_a_game_no_row_is_shown_and_an_answer_may_take_several_turns(checked: Any) -> None:
    shown = checked(own("Fair", kind="game")).out
    assert "100 steps of 2 games (1 prompts × 2), for each role up to 2 turns of 4 new tokens: 200 games" in shown
    assert "What does a pen cost?" not in shown
    assert "max_new_tokens" not in shown + checked(own("Fine")).out
    assert "max_new_tokens: 4 is too short" in checked(tools("price"), chat_template=template("qwen2_5")).out
