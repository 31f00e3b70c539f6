"""Runs whose folder refers to a large source: what is kept of it, resuming, and files that change."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from support.command_line import vigneron
from support.dataset_hub import parquet
from support.resuming import StopInStep, Stopped
from support.tiny_runs import Listener, final_state, tiny_config, tiny_recipe, write_data
from vigneron import api
from vigneron.config import Config
from vigneron.data import rows as data_rows
from vigneron.data import sources as data_sources
from vigneron.errors import UserError
from vigneron.recipe import check_config
from vigneron.rewards import final_number
from vigneron.run_data import stored
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.run_details import run_details
from vigneron.training.setup.rank_files import files_of, scratch_folder

SFT: dict[str, Any] = {
    "method": {"name": "sft"},
    "reward": {"kind": "binary"},
    "optimizer": {"actor_lr": 1e-3},
    "group_size": 1,
    "steps": 8,
    "eval_every": 0,
}


@pytest.fixture(autouse=True)
def _everything_is_large(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import datasets

    monkeypatch.setattr(data_sources, "LARGE", 0)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")


def sources(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "data" / "train.source.json").read_text())


def as_format(data: Path, kind: str) -> Path:
    rows = [json.loads(line) for line in data.read_text().splitlines()]
    if kind == "csv":
        cells = "".join(f'"{row["prompt"]}",{row["answer"]}\n' for row in [*rows, rows[0]])
        data = data.with_suffix(".csv")
        data.write_text("prompt,answer\n" + cells)
    if kind == "parquet":
        data = data.with_suffix(".parquet")
        data.write_bytes(parquet([*rows, rows[0]]))
    return data


@pytest.mark.parametrize(
    "kind", ["jsonl", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("csv", "parquet"))]
)
def test_a_run_on_a_large_source_is_that_on_a_copy_and_resumes_exactly(
    tmp_path: Path, tiny_folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = as_format(write_data(tmp_path), kind)
    config = tiny_config(tiny_folder, data, **SFT)
    whole = api.train(config, name="whole", runs=tmp_path).folder
    assert sorted(path.name for path in (whole / "data").iterdir()) == [
        "held_out.jsonl" if kind != "jsonl" else "held_out.index.npz",
        *(["held_out.source.json"] if kind == "jsonl" else []),
        "train.index.npz",
        "train.source.json",
    ]
    assert sources(whole)["rows"] == 10
    assert sources(whole)["files"][0]["size"] == data.stat().st_size
    with pytest.raises(Stopped):
        api.train(config, name="other", runs=tmp_path, view=StopInStep(5))
    api.resume(tmp_path / "other")
    assert final_state(tmp_path / "other") == final_state(whole)
    monkeypatch.setattr(data_sources, "LARGE", 10**9)
    copied = api.train(config, name="copied", runs=tmp_path).folder
    assert (copied / "data" / "train.jsonl").is_file()
    one, other = final_state(copied), final_state(whole)
    records = [json.loads(state.pop("scalars")) for state in (one, other)]
    for scalars in records:
        del scalars["data"]["train"], scalars["data"]["held_out"]  # lines are hashed, or rows
    assert (one, records[0]) == (other, records[1])
    assert run_details(whole).rows == run_details(copied).rows


@pytest.fixture
def stopped(tmp_path: Path, tiny_folder: Path) -> tuple[Path, Path, Config]:
    """A run that stopped after step 4, its data and its config."""
    data = write_data(tmp_path)
    config = tiny_config(tiny_folder, data, **SFT)
    with pytest.raises(Stopped):
        api.train(config, name="run", runs=tmp_path, view=StopInStep(5))
    stored.hash_sources(tmp_path / "run" / "data")
    return tmp_path / "run", data, config


def test_a_file_that_has_changed_since_the_start_is_refused_in_one_line(stopped: tuple[Path, Path, Config]) -> None:
    folder, data, _ = stopped
    text = data.read_text()
    data.write_text(text.replace("hot", "hat"))
    with pytest.raises(
        UserError, match=rf"run: data: '{data}' has changed since the run started: it has another hash\n"
    ):
        api.resume(folder)
    data.write_text(text + text.replace("say", "tell"))
    with pytest.raises(UserError, match=r"has changed since the run started: it has 850 bytes, and had 420\n"):
        api.resume(folder)
    data.unlink()
    with pytest.raises(UserError, match="No such file or directory: the run's rows are in this file"):
        api.resume(folder)
    assert api.load_run(folder).evaluate([{"prompt": "say hot: ", "answer": "hot"}])  # needs no training data
    data.write_text(text)
    assert api.resume(folder).step == 8


@pytest.mark.slow
@pytest.mark.parametrize("kept", [True, False], ids=["", "by an earlier version"])
def test_a_run_whose_training_file_is_gone_is_exported_and_chatted_with(
    stopped: tuple[Path, Path, Config], tmp_path: Path, kept: bool
) -> None:
    folder, data, _ = stopped
    written = sources(folder)
    assert [row["prompt"] for row in written["first"]] == [json.loads(row)["prompt"] for row in data.open()]
    data.unlink()
    if not kept:
        del written["first"]
        (folder / "data" / "train.source.json").write_text(json.dumps(written))
        copy = [{"prompt": "say hot: ", "answer": "hot"}]  # held-out rows are enough
        (folder / "data" / "held_out.source.json").unlink()
        (folder / "data" / "held_out.jsonl").write_text(json.dumps(copy[0]) + "\n")
    done = vigneron("export", folder, tmp_path / "exported")
    assert done.code == 0, done.err
    assert (tmp_path / "exported" / "model.safetensors").is_file()
    done = vigneron("chat", folder, stdin="say hot: \n\n")
    assert done.code == 0, done.err
    assert "after" in done.out


def test_changed_rows_are_trained_on_with_allow_changes(stopped: tuple[Path, Path, Config]) -> None:
    folder, data, _ = stopped
    data.write_text(data.read_text().replace("hot", "hat") * 2)
    api.resume(folder, allow_changes=True)
    rows = RunFolder.open(folder).data(RunFolder.open(folder).config()).train
    assert (len(rows), rows[0]["answer"]) == (10, "hat")


def test_a_file_with_another_time_is_the_same_by_its_hash(stopped: tuple[Path, Path, Config]) -> None:
    folder, data, _ = stopped
    os.utime(data, (1, 1))
    assert api.resume(folder).step == 8
    assert sources(folder)["files"][0]["changed"] == 10**9  # the next resume need not hash it again


def test_a_deleted_index_is_made_anew(stopped: tuple[Path, Path, Config]) -> None:
    folder, _, _ = stopped
    (folder / "data" / "train.index.npz").unlink()
    assert api.resume(folder).step == 8


def test_another_rank_gets_the_index_and_takes_a_copy_of_the_file_with_another_time(
    stopped: tuple[Path, Path, Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, data, config = stopped
    own = scratch_folder(files_of(RunFolder.open(folder))).path / "data"
    os.utime(data, (1, 1))  # as a node's own copy may have
    monkeypatch.setattr(stored, "read_source", None)  # they are not read again
    rows = stored.open_rank_data(own, config).train
    assert list(rows) == list(RunFolder.open(folder).data(config).train)
    text = data.read_text()
    for other, line in ((text.replace("hot", "hat"), ""), (text + "\n", ": it has 421 bytes, and had 420")):
        data.write_text(other)
        with pytest.raises(UserError, match=f"^data: '{data}' is not the same file as on rank 0{line}$"):
            stored.open_rank_data(own, config)
    data.unlink()
    with pytest.raises(UserError, match=f"^data: cannot read '{data}': No such file or directory: the run's rows"):
        stored.open_rank_data(own, config)


def test_an_answer_that_an_earlier_version_could_read_is_missing(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "sums.jsonl"
    rows = [{"prompt": f"say {n}: ", "answer": "12 000/3" if n == 5 else "4"} for n in range(40)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    read = {"train": str(data), "checker": "final_number"}
    changes = {**SFT, "method": {"name": "grpo"}, "group_size": 2, "steps": 10, "data": read}
    config = check_config(tiny_recipe(tiny_folder, data) | changes, "tiny")
    with pytest.raises(UserError, match="row 6: the answer has no number that `final_number` can read"):
        api.train(config, name="refused", runs=tmp_path)
    with monkeypatch.context() as earlier:
        earlier.setattr(final_number, "why_no_number", lambda answer: None)
        with pytest.raises(Stopped):
            api.train(config, name="run", runs=tmp_path, view=StopInStep(1))
    listener = Listener()
    assert api.resume(tmp_path / "run", view=listener).step == 10
    assert any(text.startswith("2 samples of a step without a reward") for text in listener.notices)


def test_a_file_that_cannot_be_hashed_is_one_line(
    stopped: tuple[Path, Path, Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, data, config = stopped
    os.utime(data, (1, 1))
    monkeypatch.setattr(stored, "sha256_of", lambda path: Path("/proc/self/mem").read_bytes())  # as a damaged disk
    rows = RunFolder.open(folder).data(config).train
    with pytest.raises(UserError, match=f"^data: cannot read '{data}': Input/output error: the run's rows"):
        rows[0]


def test_without_a_hash_yet_another_time_is_a_change(stopped: tuple[Path, Path, Config]) -> None:
    folder, data, _ = stopped
    written = sources(folder)
    written["files"][0]["sha256"] = None
    (folder / "data" / "train.source.json").write_text(json.dumps(written))
    os.utime(data, (1, 1))
    with pytest.raises(UserError, match="has changed since the run started, and its hash was not computed yet"):
        api.resume(folder)


def test_rows_that_are_not_tokenized_at_the_start_are_refused_in_their_step_by_their_number(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_rows, "LONGEST", 1)
    rows = [{"prompt": f"say {n}: " * 3, "answer": "x"} for n in range(3)] + [{"prompt": "é" * 15, "answer": "y"}]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    limits = {"max_new_tokens": 40, "prompts_per_step": 4, "method": {"name": "reinforce"}}
    config = tiny_config(tiny_folder, data, **{**SFT, **limits})
    with pytest.raises(
        UserError,
        match=r"1 prompts do not fit .*\(the first is prompt 4 of the data \('.*rows.jsonl', row 4\), 30 tokens\)",
    ):
        api.train(config, name="run", runs=tmp_path)
    assert (tmp_path / "run").is_dir()  # it was found in a step
