"""Recorded samples with scores: what is read, what is left out, what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.minimal_recipe import again
from support.recorded_data import recorded_config, recorded_rows
from vigneron.data.first_pass import read_list
from vigneron.data.recorded import RecordedReader
from vigneron.errors import UserError
from vigneron.recipe import check_config
from vigneron.run_data.load import load_data

TOPR = {"name": "topr"}


def refused(place: Path, method: dict[str, Any], **change: Any) -> str:
    """The error about the third row."""
    rows = recorded_rows()
    rows[2] |= change
    with pytest.raises(UserError) as error:
        load_data(recorded_config(place, place, method, rows))
    return str(error.value)


@pytest.mark.parametrize(
    ("method", "score", "line"),
    [
        (TOPR, "good", "row 3: reward is 'good', not a number"),
        (TOPR, [1], "row 3: reward is [1], not a number"),
        ({"name": "topr", "rewards": "signed"}, -1, "row 3: reward is -1, not a number from 0 to 1"),
        ({"name": "oreo"}, 1.5, "row 3: reward is 1.5, not a number from 0 to 1"),
        ({"name": "oreo"}, -0.1, "row 3: reward is -0.1, not a number from 0 to 1"),
    ],
)
def test_a_score_out_of_range_names_its_row(tmp_path: Path, method: Any, score: Any, line: str) -> None:
    assert line in refused(tmp_path, method, reward=score)


@pytest.mark.parametrize("score", [-3, 7.5, True, "0.5"])
def test_topr_takes_any_number(tmp_path: Path, score: Any) -> None:
    rows = recorded_rows()
    rows[2]["reward"] = score
    assert load_data(recorded_config(tmp_path, tmp_path, TOPR, rows)).train[2]["reward"] == float(score)


def test_rows_without_a_score_are_left_out_with_a_notice(tmp_path: Path) -> None:
    rows = recorded_rows()
    rows[2]["reward"] = None
    del rows[5]["reward"]
    data = load_data(recorded_config(tmp_path, tmp_path, TOPR, rows))
    assert len(data.train) == len(rows) - 2
    assert any("2 of 16 rows have no `reward` and are left out" in notice for notice in data.notices)


def test_no_score_at_all_is_refused(tmp_path: Path) -> None:
    rows = [{key: value for key, value in row.items() if key != "reward"} | {"rewards_": 1} for row in recorded_rows()]
    with pytest.raises(UserError, match=r"no row has a reward in the column 'reward' \(did you mean 'rewards_'\?\)"):
        load_data(recorded_config(tmp_path, tmp_path, TOPR, rows))
    named = {"name": "topr", "reward_column": "rewards_"}
    assert load_data(recorded_config(tmp_path, tmp_path, named, rows)).train[0]["rewards_"] == 1.0


@pytest.mark.parametrize("method", [TOPR, {"name": "oreo"}])
def test_a_config_of_an_earlier_version_calls_the_column_score(tmp_path: Path, method: Any) -> None:
    config = recorded_config(tmp_path, tmp_path, {**method, "score": "rewards_"})
    assert config.method.score_column == "rewards_"
    assert again(config) == config
    assert "score" not in config.model_dump()["method"]


def test_equal_samples_are_kept_and_the_reference_answer_may_differ(tmp_path: Path) -> None:
    rows = [recorded_rows()[0]] * 3
    data = load_data(recorded_config(tmp_path, tmp_path, TOPR, rows))
    assert len(data.train) == 3
    assert data.train[0]["answer"] == "hot."
    assert data.train[0]["completion"] == " hot."


def test_a_held_out_file_of_samples_gives_its_prompts_once(tmp_path: Path) -> None:
    config = recorded_config(tmp_path, tmp_path, TOPR)
    config = config.model_copy(update={"data": config.data.model_copy(update={"held_out": config.data.train})})
    held_out = load_data(config).held_out
    assert len(held_out) == 8
    assert set(held_out[0]) == {"prompt", "answer"}


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"completion": None}, "row 3 has no 'completion'"),
        ({"completion": 5}, "row 3: completion must be a text"),
        ({"completion": [{"role": "assistant", "content": "x"}]}, "row 3: completion must be a text"),
        ({"logprobs": 3.0}, "row 3: logprobs has 3.0"),
        ({"logprobs": [-1.0, "x"]}, "row 3: logprobs has 'x'"),
        ({"prompt": None}, "row 3 has no 'prompt'"),
    ],
)
def test_a_broken_row_is_named(tmp_path: Path, change: Any, line: str) -> None:
    assert line in refused(tmp_path, TOPR, **change)


def test_a_task_has_no_recorded_samples() -> None:
    config = check_config({"method": {"name": "oreo"}, "data": {"task": "ladder"}}, "tiny")
    with pytest.raises(UserError, match=r"has no recorded samples: draw some with `vigneron sample"):
        load_data(config)


def test_text_of_a_csv_file_is_read_as_numbers(tmp_path: Path) -> None:
    file = tmp_path / "samples.csv"
    file.write_text("prompt,completion,reward,logprobs,truncated\na:,b,1,-2.5,false\na:,c,,-1,\na:,d,0,,true\n")
    config = recorded_config(tmp_path, tmp_path, TOPR)
    config = config.model_copy(update={"data": config.data.model_copy(update={"train": str(file)})})
    first, last = load_data(config).train
    assert (first["reward"], first["logprobs"], first["truncated"]) == (1.0, -2.5, False)
    assert (last["reward"], last["logprobs"], last["truncated"]) == (0.0, "", True)


@pytest.mark.parametrize(
    ("method", "keys", "line"),
    [
        ({"name": "topr", "samples": "sampled", "reward_column": "x"}, {}, "`reward_column` has no effect"),
        ({"name": "topr"}, {"group_size": 4}, "`group_size` has no effect"),
        ({"name": "oreo", "critic": {"clip": 0.2}}, {}, "unknown key 'method.critic.clip'"),
        ({"name": "oreo", "kl": {"adaptive": {}}}, {}, "`kl.adaptive` has no effect"),
    ],
)
def test_options_without_effect_are_refused(tmp_path: Path, method: Any, keys: Any, line: str) -> None:
    with pytest.raises(UserError, match=line.replace("(", r"\(")):
        recorded_config(tmp_path, tmp_path, method, **keys)


def test_advantages_of_samples_need_a_group() -> None:
    method = {"name": "topr", "samples": "sampled", "rewards": "advantage"}
    with pytest.raises(UserError, match="set `group_size` to 2 or more"):
        check_config({"method": method, "data": {"task": "ladder"}, "reward": "binary"}, "tiny")


@given(st.lists(st.one_of(st.none(), st.floats(0, 1), st.integers(0, 1), st.booleans()), min_size=1))
def test_every_score_in_range_is_kept_and_in_order(scores: list[Any]) -> None:
    rows = [{"prompt": "a", "completion": "b", "reward": score, "number": n} for n, score in enumerate(scores)]
    present = [n for n, score in enumerate(scores) if score is not None]
    if not present:
        with pytest.raises(UserError):
            read_list(rows, RecordedReader("reward", (0.0, 1.0)), "'file'")
        return
    kept, notices = read_list(rows, RecordedReader("reward", (0.0, 1.0)), "'file'")
    assert [row["number"] for row in kept] == present
    assert bool(notices) == (len(present) < len(scores))
    assert json.dumps(kept)
