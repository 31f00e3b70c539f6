"""What `vigneron view` answers, over HTTP, as its scripts ask it."""

import json
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from support.view_data import HOSTILE, write_run
from vigneron.errors import UserError
from vigneron.run_store.curves import CURVES
from vigneron.web.answers import groups
from vigneron.web.runs import differences
from vigneron.web.view import view_app


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("all") / "runs"
    write_run(folder / "first", state="finished")
    write_run(folder / "compared" / "second", indexed=False, lr=2e-5)
    write_run(folder / "broken", steps=12, state="failed", error="the disk is full")
    (folder / "broken" / CURVES).write_bytes(b"no database" * 100)
    write_run(folder.parent / "secret")
    return folder


@pytest.fixture(scope="module")
def client(runs: Path) -> TestClient:
    return TestClient(view_app([runs]))


def get(client: TestClient, what: str, status: int = 200, **asked: Any) -> Any:
    answer = client.get(f"/data/{what}", params=asked)
    assert answer.status_code == status, answer.text
    return answer.json()


def test_the_list_of_runs(client: TestClient) -> None:
    found = {run["name"]: run for run in get(client, "runs")["runs"]}
    assert set(found) == {"first", "compared/second", "broken"}
    assert found["broken"]["state"] == "failed"
    assert found["broken"]["error"] == "the disk is full"
    assert (found["first"]["step"], found["first"]["steps"]) == (30, 30)
    assert found["first"]["metrics"][0]["label"] == "held-out reward"
    assert found["first"]["metrics"][0]["value"] == 1.0
    assert found["first"]["outcome"]["cell"] == "0.000 → 1.000"
    assert found["first"]["outcome"]["text"].startswith("no verdict: held-out reward rose from 0.000 to 1.000")


def test_runs_may_be_given_one_by_one(runs: Path) -> None:
    places = [runs / "first", runs / "compared", runs / "first"]
    found = get(TestClient(view_app(places)), "runs")["runs"]
    assert sorted(run["name"] for run in found) == ["first", "first (2)", "second"]


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no folder"):
        view_app([tmp_path / "none"])


@pytest.mark.parametrize("name", ["../secret", "first/../../secret", "/etc", "..", "", "first/", "compared"])
@pytest.mark.parametrize("what", ["names", "samples", "configs"])
def test_a_run_outside_is_not_there(client: TestClient, what: str, name: str) -> None:
    answer = client.get(f"/data/{what}", params={"run": name})
    assert answer.status_code == 404
    assert client.get("/curves", params={"run": name}).status_code == 404


@pytest.mark.parametrize(
    "path", ["/../secret/config.yaml", "/static/../view.py", "/static/%2e%2e/view.py", "/data/none"]
)
def test_no_file_but_the_static_ones_is_served(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 404


def test_curves_of_several_runs_with_and_without_an_index(client: TestClient) -> None:
    names = ["first", "compared/second", "broken"]
    answer = get(client, "curves", run=names, name=["reward", "eval/reward", "none such"])["runs"]
    assert list(answer) == names
    assert answer["first"] == answer["compared/second"]
    assert answer["first"]["eval/reward"]["steps"] == [0, 10, 20, 30]
    assert answer["first"]["none such"]["steps"] == []
    zoomed = get(client, "curves", run="first", name="reward", **{"from": 4.5, "to": 8})["runs"]["first"]["reward"]
    assert zoomed["steps"] == [5, 6, 7, 8]
    assert len(answer["broken"]["reward"]["steps"]) == 13


def test_a_broken_index_is_said(client: TestClient) -> None:
    (note,) = get(client, "names", run=["first", "broken"])["notes"]
    assert "metrics.jsonl was read instead" in note


def test_figures_in_groups() -> None:
    names = [
        "reward",
        "eval/reward",
        "loss/policy",
        "reward/a/reward",
        "reward/a/x/score",
        "reward/embedding",
        "odd/one",
    ]
    found = {group.title: group for group in groups(names)}
    assert found["Overview"].names == ("eval/reward", "reward")
    assert found["Rubric: a"].names == ("reward/a/reward", "reward/a/x/score")
    assert not found["Rubric: a"].open
    assert sorted(name for group in found.values() for name in group.names) == sorted(names)


def test_config_differences(client: TestClient) -> None:
    answer = get(client, "configs", run=["first", "compared/second"])
    assert answer["differences"] == [{"key": "optimizer.actor_lr", "values": ["1.0e-05", "2.0e-05"]}]
    assert differences({"a": {"x": None, "y": {}}, "b": {"x": True}}) == [
        {"key": "x", "values": ["null", "true"]},
        {"key": "y", "values": ["{}", "–"]},
    ]


def test_weak_items(client: TestClient) -> None:
    rows = get(client, "items", run="first")["items"]
    assert {row["item"]: row["weak"] for row in rows} == {"right": ["never varies"], "short": ["never varies"]}


def test_samples_filtered_and_sorted(client: TestClient) -> None:
    def numbers(**asked: Any) -> list[int]:
        answer = get(client, "samples", run="first", step=4, **asked)
        return [sample["sample"] for sample in answer["found"]["samples"]]

    assert numbers() == list(range(8))
    assert numbers(which="wrong", sort="-reward") == [5, 3, 1, 7]
    assert numbers(which="truncated") == [5]
    assert numbers(which="missing") == [7]
    assert numbers(search="COMPLETION 6") == [6]
    assert numbers(category="words") == [6, 7]
    assert numbers(offset=6, sort="advantage") == [6, 7]
    answer = get(client, "samples", run="first", step=4)
    assert answer["steps"] == {"first": 1, "before": 3, "at": 4, "after": 5, "last": 30}
    assert answer["found"]["categories"] == ["sums", "words"]
    assert get(client, "samples", run="first")["steps"]["at"] == 30
    assert get(client, "samples", run="first", kind="eval")["found"] is None


def test_what_could_hide_or_turn_text_is_made_visible(client: TestClient) -> None:
    sample = get(client, "samples", run="first", step=1, search="alert")["found"]["samples"][0]
    assert sample["completion"].endswith("abc\\u202edef\\x1b[31m\\x00")
    assert sample["extras"]["cosine"] == "nan"
    assert HOSTILE not in json.dumps(sample, ensure_ascii=False)


def test_warnings_with_their_steps(client: TestClient) -> None:
    (warning,) = [one for one in get(client, "notices", run="first")["runs"]["first"] if one["kind"] == "warning"]
    assert (warning["step"], warning["text"]) == (12, "entropy is low\\u202e")
    found = {run["name"]: run for run in get(client, "runs")["runs"]}
    assert (found["first"]["warnings"], found["first"]["warning"]) == (1, "entropy is low\\u202e")
    assert len(get(client, "runs", run="first")["runs"][0]["metrics"]) >= len(found["first"]["metrics"])


def test_values_of_a_samples_tokens(client: TestClient) -> None:
    answer = get(client, "samples", run="first", step=4)
    assert (answer["tokens"], answer["tokens_near"]) == ([], 30)
    assert get(client, "samples", run="first", step=30)["tokens"] == [0]
    found = get(client, "tokens", run="first", step=30, sample=0)
    assert found["trained"] == [True, True, False]
    assert found["values"]["logprob"] == [-0.5, -2.0, None]
    assert found["pieces"][0].endswith("abc\\u202edef\\x1b[31m\\x00")
    assert "no token values" in get(client, "tokens", 400, run="first", step=4, sample=0)["error"]


def test_a_prompts_history(client: TestClient) -> None:
    answer = get(client, "history", run="first", kind="train", step=3, sample=2)
    assert answer["prompt"] == "prompt 2"
    assert [sample["step"] for sample in answer["samples"]] == list(range(30, 0, -1))
    assert "no sample 99" in get(client, "history", 400, run="first", step=3, sample=99)["error"]


@pytest.mark.parametrize(
    ("what", "asked"),
    [
        ("samples", {"step": "one"}),
        ("samples", {"step": "1e99"}),
        ("samples", {"sort": "reward; DROP TABLE samples"}),
        ("samples", {"kind": "x"}),
        ("curves", {"from": "nan"}),
        ("history", {}),
        ("tokens", {"step": 1}),
        ("samples", {"reward_from": "low"}),
    ],
)
def test_a_question_that_makes_no_sense_is_answered_in_a_line(client: TestClient, what: str, asked: Any) -> None:
    error = get(client, what, 400, run="first", **asked)["error"]
    assert "\n" not in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    "file", ["samples.sqlite", "metrics.jsonl", "notices.jsonl", "config.yaml", "status.json", CURVES]
)
def test_a_damaged_file_is_a_line_and_never_a_traceback(tmp_path: Path, file: str) -> None:
    (write_run(tmp_path / "runs" / "one") / file).write_bytes(b"\xff\x00{garbage" * 400)
    client = TestClient(view_app([tmp_path / "runs"]), raise_server_exceptions=True)
    for what in ("runs", "names", "curves", "notices", "configs", "items", "samples"):
        answer = client.get(f"/data/{what}", params={"run": "one", "name": "reward"})
        assert answer.status_code in (200, 400, 500, 503)
        assert answer.status_code == 200 or "\n" not in answer.json()["error"]


def test_pages_escape_a_run_name(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "<b>bold<")
    page = TestClient(view_app([tmp_path / "runs"])).get("/curves", params={"run": "<b>bold<"})
    assert "<b>bold" not in page.text
    assert "&lt;b&gt;bold" in page.text
