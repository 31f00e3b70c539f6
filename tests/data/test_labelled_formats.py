"""Files of labelled texts as other tools write them: labels in CSV, references beside samples, steps as lists."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.command_line import write_jsonl
from vigneron.config.options import StepLabels
from vigneron.data.first_pass import read_list
from vigneron.data.steps import StepLabelReader, with_step_text
from vigneron.errors import UserError
from vigneron.recipe import check_config
from vigneron.run_data.load import Data, load_data, load_saved_rows

LINES, LAST = StepLabels("labels", "\n"), StepLabels("labels", "\n", last=True)


def loaded(path: Path, **method: Any) -> Data:
    return load_data(check_config({"method": method, "data": {"train": str(path)}}, "my.yaml"))


def refused(path: Path, **method: Any) -> str:
    with pytest.raises(UserError) as caught:
        loaded(path, **method)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_labels_of_a_csv_file_may_be_words(tmp_path: Path) -> None:
    path = tmp_path / "kto.csv"
    path.write_text(
        "prompt,completion,label\n" + "".join(f"p{i},c,{x}\n" for i, x in enumerate(["True", "false", "1", "0.3"]))
    )
    assert [row["label"] for row in loaded(path, name="kto").train] == [1.0, 0.0, 1.0, 0.3]
    path.write_text("prompt,completion,label\np,c,yes\n")
    assert "row 1: label is 'yes', not a number from 0 to 1" in refused(path, name="kto")


@pytest.mark.parametrize("method", [{"name": "kto", "label": "reward"}, {"name": "flower", "score": "reward"}])
def test_samples_with_a_reference_can_be_trained_on(tmp_path: Path, method: dict[str, Any]) -> None:
    """As `vigneron sample` writes them, of texts and of conversations."""
    chat = {"prompt": [{"role": "user", "content": "q"}], "completion": [{"role": "assistant", "content": " low"}]}
    rows = [{"prompt": "say up:", "completion": " down", **x} for x in ({"answer": "up"}, {"answer": " down"})]
    rows = [{**row, "reward": 0.5} for row in (*rows, {**chat, "answer": "low"})]
    found = loaded(write_jsonl(tmp_path / "s.jsonl", map(json.dumps, rows)), **method).train
    assert [(row["answer"], row.get("reference")) for row in found] == [
        (" down", "up"),
        (" down", None),
        (" low", "low"),
    ]
    config = check_config({"method": method, "data": {"train": "s.jsonl"}}, "my.yaml")
    saved = write_jsonl(tmp_path / "saved.jsonl", map(json.dumps, found))
    assert list(load_saved_rows(config, saved, "train")) == list(found)


def test_sft_still_refuses_two_answers(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "s.jsonl", ['{"prompt": "a", "completion": "b", "answer": "c"}'])
    assert "contradict each other" in refused(path, name="sft")


def test_pairs_for_kto_are_named(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "pairs.jsonl", ['{"prompt": "a", "chosen": "b", "rejected": "c"}'])
    line = refused(path, name="kto")
    assert "row 1 has no 'completion': `method: kto` reads `prompt`, `completion` and `label`" in line
    assert "this row is a pair: use `method: dpo`" in line


def test_a_score_of_0_names_file_and_row(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "completion": x, "score": score} for x, score in (("b", 0.5), ("c", 0))]
    path = write_jsonl(tmp_path / "f.jsonl", map(json.dumps, rows))
    assert "f.jsonl', row 2: score is 0, and `method: flower` samples in proportion" in refused(path, name="flower")
    assert loaded(path, name="score_model").train[1]["score"] == 0.0


@pytest.mark.parametrize("column", ["steps", "completions"])
def test_solutions_of_one_step_as_lists_need_no_separator(tmp_path: Path, column: str) -> None:
    rows = [{"prompt": "a", column: ["one line"], "labels": [1]}, {"prompt": "b", column: ["another"], "labels": [0]}]
    path = write_jsonl(tmp_path / "steps.jsonl", map(json.dumps, rows))
    found = loaded(path, name="process_model").train
    assert [row["labels"] for row in found] == [[1.0], [0.0]]
    config = check_config({"method": {"name": "process_model"}, "data": {"train": "x.jsonl"}}, "my.yaml")
    saved = write_jsonl(tmp_path / "saved.jsonl", map(json.dumps, found))
    assert list(load_saved_rows(config, saved, "train")) == list(found)


def test_an_outcome_model_reads_the_last_label_whatever_the_separator() -> None:
    rows = [{"prompt": "a", "completion": "x", "answer": "x", "labels": [1, 0]}]
    found, _ = read_list([with_step_text(row, "'f'", LAST) for row in rows], StepLabelReader(LAST), "'f'")
    assert found[0]["labels"] == [1.0, 0.0]
    with pytest.raises(UserError, match="0 labels for 1 step"):
        read_list([{**rows[0], "labels": []}], StepLabelReader(LAST), "'f'")


@pytest.mark.parametrize(
    ("labels", "separator", "line"),
    [
        ([1] * 5, None, r"row 1: 5 labels for 1 step: `method.separator` is null, so that a completion is one step"),
        ([1, 1, 1], "\n", r"row 1: 3 labels for 2 steps, which '\\n' separates: check `method.separator`"),
        ("[1, 0]", "\n", r"'labels' must be a list .* \(a CSV file cannot hold lists: write .jsonl\)"),
    ],
)
def test_a_wrong_number_of_labels_is_explained(labels: Any, separator: str | None, line: str) -> None:
    row = {"prompt": "a", "completion": "x\ny", "answer": "x\ny", "labels": labels}
    with pytest.raises(UserError, match=line):
        read_list([row], StepLabelReader(StepLabels("labels", separator)), "'f'")
