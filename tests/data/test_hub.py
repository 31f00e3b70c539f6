"""Datasets of the hub, from a local server. In processes of their own: libraries read HF_ENDPOINT at import."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.dataset_hub import DatasetHub, dataset_hub, parquet

pytestmark = pytest.mark.slow

TRAIN = [{"question": f"{n} + {n} =", "result": str(2 * n)} for n in range(5)]
TEST = [{"question": "9 + 9 =", "result": "18"}]
READ = """
import json, sys
from vigneron.data.sources import SourceSpec, open_source
from vigneron.errors import UserError
for given in json.loads(sys.argv[1]):
    try:
        source = open_source(SourceSpec(**given))
        print(json.dumps([list(source), source.spec.revisions]))
    except UserError as error:
        print(json.dumps(str(error)))
"""


def read(hub: DatasetHub, home: Path, *wanted: dict[str, object], **env: str) -> list[object]:
    variables = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", **env}
    command = [sys.executable, "-c", READ, json.dumps([{"names": ["hf:me/sums"], **each} for each in wanted])]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_configuration_split_and_columns_of_a_hub_dataset(tmp_path: Path) -> None:
    renamed = [{"prompt": row["question"], "answer": row["result"]} for row in TRAIN]
    columns = {"prompt": "question", "answer": "result"}
    commit = {"hf:me/sums": "a" * 40}
    with dataset_hub(TRAIN, TEST) as hub:
        assert read(
            hub,
            tmp_path,
            {},
            {"split": "test"},
            {"config": "hard", "columns": columns},
            {"split": "train[:60%]", "columns": columns},
            {"config": "harder"},
            {"split": "tests"},
            {"names": ["hf:me/none"]},
            {"columns": {"prompt": "qestion"}},
        ) == [
            [TRAIN, commit],
            [TEST, commit],
            [renamed[:1], commit],
            [renamed[:3], commit],
            "data: cannot read 'hf:me/sums': BuilderConfig 'harder' not found. Available: ['plain', 'hard']",
            "data: cannot read 'hf:me/sums': Unknown split \"tests\". Should be one of ['train', 'test'].",
            "data: the hub has no dataset 'me/none', or it is private: check the name, and log in with `hf auth login`",
            "data.columns: 'hf:me/sums, train', row 1 has no 'qestion' (did you mean 'question'?)",
        ]
        # Without the network the cached copy is read, whose commit is known, also by the commit that a run recorded.
        assert read(
            hub, tmp_path, {"config": "plain"}, {"config": "plain", "revisions": commit}, HF_HUB_OFFLINE="1"
        ) == [[TRAIN, commit], [TRAIN, commit]]


def test_a_recorded_commit_is_read_though_the_hub_has_a_newer_one(tmp_path: Path) -> None:
    old, new = {"hf:me/sums": "a" * 40}, {"hf:me/sums": "b" * 40}
    with dataset_hub(TRAIN, TEST) as hub:
        hub.publish("b" * 40, plain_train=parquet(TEST))
        assert read(hub, tmp_path, {}, {"revisions": old}) == [[TEST, new], [TRAIN, old]]
        del hub.history["a" * 40]
        (lost,) = read(hub, tmp_path / "elsewhere", {"revisions": old})
        assert str(lost).startswith("data: cannot read 'hf:me/sums': ")
        # The library would read the newest commit of its cache instead.
        (other,) = read(hub, tmp_path, {"split": "test", "revisions": {"hf:me/sums": "c" * 40}})
        assert other == f"data: the hub does not give commit {'c' * 40} of 'hf:me/sums', which the run was started with"


def test_a_hub_that_cannot_be_reached_is_one_line_and_its_cached_dataset_is_read(tmp_path: Path) -> None:
    with dataset_hub(TRAIN, TEST) as hub:
        assert read(hub, tmp_path, {"config": "plain"}) == [[TRAIN, {"hf:me/sums": "a" * 40}]]
    # The server is gone: connections to its port are refused.
    for env in ({}, {"HF_HUB_OFFLINE": "1"}):
        assert read(hub, tmp_path, {"config": "plain"}, {"names": ["hf:me/others"]}, **env) == [
            [TRAIN, {"hf:me/sums": "a" * 40}],
            "data: cannot reach the hub for 'me/others', and its rows are not in the cache: check the network, or "
            "HF_HUB_OFFLINE and HF_ENDPOINT",
        ]
