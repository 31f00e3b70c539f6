"""Labels of steps: sources, choices, what is written, and that a process model trains on it."""

from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from support.command_line import vigneron
from support.judged_data import process_config
from support.labelling import make_run, read_jsonl, sample, session_of, write_rows
from vigneron import api
from vigneron.errors import UserError
from vigneron.labels.from_solutions import solutions_of
from vigneron.labels.solution import Solution
from vigneron.web.label import label_app

ROWS = [
    {"prompt": "1 + 2 =\n", "completion": "1\n3", "correct": True},
    {"prompt": "2 + 2 =\n", "completion": "2\n5", "correct": False},
    {"prompt": "3 + 2 =\n", "completion": "4\n\n5", "correct": True},
]


def judge(session: Any, *marks: str) -> dict[str, Any]:
    item = session.state()["item"]
    session.judge(item["id"], list(marks))
    return item


def test_a_solution_is_labelled_step_by_step(tmp_path: Path) -> None:
    source, out = write_rows(tmp_path / "in.jsonl", ROWS), tmp_path / "steps.jsonl"
    session = session_of(source, out, solutions=True)
    item = judge(session, "right", "wrong")
    completion = next(row["completion"] for row in ROWS if row["prompt"] == item["prompt"])
    assert item["steps"] == [line for line in completion.split("\n") if line]
    assert read_jsonl(out) == [{"prompt": item["prompt"], "completion": completion, "labels": [1, 0]}]
    judge(session, "unclear", "unclear")
    assert len(read_jsonl(out)) == 1
    session.undo()
    judge(session, "unclear", "right")
    assert [row["labels"] for row in read_jsonl(out) if None in row["labels"]] == [[None, 1]]
    session.judge(session.state()["item"]["id"], "skip")
    assert session.state()["skips"] == 1
    assert len(read_jsonl(out)) == 2
    session.journal.close()
    # Another session continues where this one ended, from the journal alone.
    again = session_of(source, out, solutions=True)
    assert again.state()["done"] == 3


def test_the_majority_decides_for_each_step() -> None:
    solution = Solution("p", "a\nb\nc\nd")
    choices = {"ann": "110?", "bob": "100?", "eve": "1??1", "dan": "skip"}
    assert solution.labels(choices) == [1, None, 0, 1]
    assert solution.labels({"dan": "skip"}) == [None] * 4


@pytest.mark.parametrize("choice", [["right"], ["right", "good"], "right", ["right", 1], None, {"a": 1}, ["right"] * 3])
def test_a_bad_choice_is_one_line(tmp_path: Path, choice: Any) -> None:
    session = session_of(write_rows(tmp_path / "in.jsonl", ROWS[:1]), tmp_path / "out.jsonl", solutions=True)
    client = TestClient(label_app(session, "steps"))
    answer = client.post("/judge", json={"item": client.get("/data/state").json()["item"]["id"], "choice": choice})
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("invalid labels ")
    assert client.get("/").status_code == 200


def test_records_that_were_changed_are_ignored() -> None:
    record = Solution("p", "a\nb").record()
    assert Solution.of_record(record) == Solution("p", "a\nb")
    for change in ({"completion": "a\nc"}, {"separator": ""}, {"prompt": 3}, {"completion": None}):
        assert Solution.of_record({**record, **change}) is None


def test_solutions_of_a_run(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [sample(1, n, f"say {n}:", f"{n}\n{n}!") for n in range(3)], ["say 0:"])
    solutions, notices = solutions_of(run, separator="\n", by=None, step=None, seed=0)
    assert {solution.completion for solution in solutions} == {"0\n0!", "1\n1!", "2\n2!"}
    assert notices == []


def test_the_most_convincing_wrong_answers_come_first(tmp_path: Path, tiny_folder: Path) -> None:
    scorer = api.train(process_config(tmp_path, tiny_folder), name="scorer", runs=tmp_path).folder
    rows = [{"prompt": f"p{n}", "completion": f"{n}\n{n}.", "correct": n % 2 == 0} for n in range(8)]
    source = write_rows(tmp_path / "in.jsonl", rows)
    options: dict[str, Any] = {"separator": "\n", "step": None, "seed": 0}
    solutions, notices = solutions_of(source, by=str(scorer), **options)
    assert [int(s.completion[0]) % 2 for s in solutions][:4] == [1, 1, 1, 1]
    assert len(solutions) == 8
    assert notices == []
    source = write_rows(tmp_path / "unknown.jsonl", [{k: v for k, v in row.items() if k != "correct"} for row in rows])
    assert "no solution is known to be wrong" in solutions_of(source, by=str(scorer), **options)[1][0]


@pytest.mark.parametrize(
    ("rows", "options", "line"),
    [
        (ROWS, {"separator": ";"}, "the separator ';' occurs in no completion"),
        ([{"prompt": "p", "completion": "\n "}], {}, "no solution has a step"),
        ([{"prompt": "p"}], {}, "has no 'completion'"),
        (ROWS, {"solutions": False, "by": "x"}, "--by needs --solutions"),
        (ROWS, {"best": True}, "exclude each other"),
        (ROWS, {"sample": "model"}, "leave out --sample"),
    ],
)
def test_bad_input(tmp_path: Path, rows: list[dict[str, Any]], options: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError, match=line):
        session_of(write_rows(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl", **{"solutions": True, **options})


def test_whether_a_solution_is_right_is_text_in_a_csv(tmp_path: Path, tiny_folder: Path) -> None:
    scorer = api.train(process_config(tmp_path, tiny_folder), name="scorer", runs=tmp_path).folder
    marks = ["True", "False", "true", "FALSE", "1", "0", "", "false"]
    source = tmp_path / "in.csv"
    source.write_text("prompt,completion,correct\n" + "".join(f'p{n},"{n}\n{n}.",{m}\n' for n, m in enumerate(marks)))
    solutions, notices = solutions_of(source, separator="\n", by=str(scorer), step=None, seed=0)
    assert {int(solution.completion[0]) for solution in solutions[:4]} == {1, 3, 5, 7}
    assert notices == []


def test_a_separator_may_be_written_with_a_backslash(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "in.jsonl", ROWS)
    refused = vigneron("label", source, "--solutions", "--separator", r"\n;", "--out", tmp_path / "out.jsonl")
    assert refused.code == 2
    assert r"the separator '\n;' occurs in no completion" in refused.err
