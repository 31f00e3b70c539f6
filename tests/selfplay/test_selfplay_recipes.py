"""The recipes of games of several roles: they validate, train and evaluate, here with a tiny model."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from support.command_line import vigneron
from support.talking import talking_model
from vigneron import api
from vigneron.data.nim import STONES
from vigneron.data.sum_lists import ROUNDS
from vigneron.data.tasks import load_task
from vigneron.errors import UserError
from vigneron.policy.bundled import bundled_model_folder
from vigneron.policy.reply_tokens import reply_ids
from vigneron.recipe import load_config

RECIPES = {
    "sft-debate": ("a", "b"),
    "debate-sums": ("a", "b"),
    "consultancy-sums": ("consultant",),
    "self-play-nim": ("first", "second"),
}
SPLIT = {"self-play-nim": "held_out"}
"""What is evaluated, if not the tuning rows."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("tiny")
    model, tokenizer = talking_model(positions=2048)
    model.save_pretrained(place)
    tokenizer.save_pretrained(place)
    return place


def test_a_game_may_take_as_many_turns_as_it_needs() -> None:
    for name in RECIPES:
        environment = load_config(name, keys={"model": {"name": "x"}}).environment
        assert environment is not None
        # A stone a move, and the first player takes the odd one; a debate has two rounds.
        assert environment.max_turns == ((3 * STONES + 1) // 2 if "nim" in name else ROUNDS)


@pytest.mark.slow
def test_turns_and_replies_of_debates_fit_with_the_bundled_models_tokens() -> None:
    tokenizer = AutoTokenizer.from_pretrained(bundled_model_folder("smollm2-135m"))
    config = load_config("debate-sums", keys={"model": {"name": "smollm2-135m"}})
    assert config.environment is not None
    for row in load_task("sum-lists-warmup").rows("train")[::7]:
        opened, first, heard, second = row["messages"]
        for turn in (first, second):
            assert len(tokenizer(turn["content"]).input_ids) < config.max_new_tokens
        heard = {**heard, "content": heard["content"].replace("verified", "unverified")}
        ids = reply_ids(tokenizer, [opened, first], [heard], tokenizer.eos_token_id)
        assert len(ids) <= config.environment.max_reply_tokens


@pytest.mark.slow
@pytest.mark.usefixtures("few_rows")
@pytest.mark.parametrize("name", RECIPES)
def test_it_trains_and_is_evaluated_by_whole_games(name: str, folder: Path, tmp_path: Path) -> None:
    task = load_config(name, keys={"model": {"name": str(folder)}}).data.task
    keys: dict[str, Any] = {
        "steps": 2, "prompts_per_step": 2, "eval_every": 2, "save_every": 0, "max_new_tokens": 4,
        "model": {"name": str(folder), "device": "cpu"},
        "data": {"task": task, "held_out": SPLIT.get(name, "tuning")},
        **({} if name.startswith("sft") else {"group_size": 2}),
    }  # fmt: skip
    run = api.train(name, runs=tmp_path / "runs", name=name, **keys)
    records = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    last = records[-1]
    assert last["step"] == 2
    assert 0 <= last["eval/accuracy"] <= 1
    if "nim" not in name:
        assert last["eval/turns/judge_right"] == pytest.approx(last["eval/accuracy"])
    if not name.startswith("sft"):
        assert {f"roles/{role}/reward" for role in RECIPES[name]} <= last.keys() | {"roles/second/reward"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["consultancy-sums", "self-play-nim"])
def test_it_validates(name: str, folder: Path) -> None:
    done = vigneron("validate", name, f"model.name={folder}")
    assert done.code == 0, done.err


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"sampling": {"prompt": "Think. {prompt}"}}, "`sampling.prompt` has no effect on a game"),
        ({"curriculum": {"by": "loss"}}, "`curriculum.by: loss` needs one reward for each row, and a game has one for"),
        (
            {"method": {"name": "a_star_po"}},
            "`method: a_star_po` needs one reward for each sample of a row, and `environment.kind: game` has one for",
        ),
    ],
)
def test_what_needs_one_sample_for_each_row_is_refused(keys: Any, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        load_config("self-play-nim", keys=keys)


@pytest.mark.slow
def test_a_game_is_probed_by_role(folder: Path) -> None:
    done = vigneron("validate", "self-play-nim", f"model.name={folder}", "max_new_tokens=4", "--probe", "--samples", 16)
    assert done.code == 0, done.err
    assert re.search(r"^probe: 16 games of the untrained model \(\d+ rows × \d+\)$", done.out, re.MULTILINE)
    assert re.search(r"^  first: 16 samples\n    mean reward +[-\d]", done.out, re.MULTILINE)
    assert re.search(r"^  second: (\d+|no) samples", done.out, re.MULTILINE)


def test_requests_of_a_probe_to_players_are_said_first(folder: Path) -> None:
    player = 'environment.players={second: {kind: endpoint, model: big, url: "http://127.0.0.1:1/v1"}}'
    done = vigneron("validate", "self-play-nim", f"model.name={folder}", player, "--probe")
    assert done.code == 2
    assert "--probe sends requests to the player 'big', which may cost money" in done.err


def test_samples_of_games_are_not_recorded(folder: Path, tmp_path: Path) -> None:
    recorded = vigneron("sample", "self-play-nim", f"model.name={folder}", "--out", tmp_path / "samples.jsonl")
    assert recorded.code == 2
    assert "recorded samples are single answers" in recorded.err
