"""Rows from every kind of source are the same rows."""

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from support.dataset_hub import parquet
from vigneron.config.parts import DataConfig
from vigneron.data.sources import SourceSpec, open_source, read_rows
from vigneron.errors import UserError

TALK = [{"role": "user", "content": "2020-01-01?"}, {"role": "assistant", "content": "café ☕"}]
ROWS: list[dict[str, Any]] = [
    {"prompt": "2020-01-01", "answer": "a", "level": 3, "messages": None},
    {"prompt": "x\u2028y", "answer": "b", "level": 0, "messages": TALK},
    {"prompt": "01", "answer": "c\nd", "level": -1, "messages": [*TALK, *TALK]},
]


@pytest.fixture(autouse=True)
def own_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setenv("VIGNERON_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")


def lines(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def write_all(folder: Path) -> dict[str, Path]:
    import datasets

    contents = {
        "a.jsonl": lines(ROWS),
        "a.json": json.dumps(ROWS, indent=2).encode(),
        "lines.json": lines(ROWS),
        "a.jsonl.gz": gzip.compress(lines(ROWS)),
        "a.json.gz": gzip.compress(json.dumps(ROWS).encode()),
        "a.parquet": parquet(ROWS),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    datasets.Dataset.from_list(ROWS).save_to_disk(str(folder / "saved"))
    return {name: folder / name for name in (*contents, "saved")}


def test_every_format_gives_the_same_rows_in_order_and_by_index(tmp_path: Path) -> None:
    for name, path in write_all(tmp_path).items():
        source = open_source(SourceSpec((str(path),)))
        assert list(source) == ROWS, name
        assert [source[2], source[0], source[1]] == [ROWS[2], ROWS[0], ROWS[1]], name
        assert list(source.between(1, 3)) == ROWS[1:], name
        assert source.place(1) == f"'{path}', row 2"


def test_several_files_and_patterns_follow_each_other(tmp_path: Path) -> None:
    write_all(tmp_path)
    (tmp_path / "more").mkdir()
    for number in (2, 10, 1):
        (tmp_path / "more" / f"part{number:02}.jsonl").write_bytes(lines([{"prompt": str(number)}]))
    given = (str(tmp_path / "more" / "*.jsonl"), str(tmp_path / "a.parquet"))
    source = open_source(SourceSpec(given))
    assert [row["prompt"] for row in source] == ["1", "2", "10", *(row["prompt"] for row in ROWS)]
    assert source[4] == ROWS[1]
    assert list(source.between(2, 5)) == [{"prompt": "10"}, *ROWS[:2]]
    assert source.place(2).endswith("part10.jsonl', row 1")
    assert source.place(5).endswith("a.parquet', row 3")
    (tmp_path / "more" / "part03.jsonl").write_bytes(b"{}\n")  # a later file does not join a source that is reopened
    assert len(open_source(source.spec)) == 6
    (tmp_path / "odd[1].jsonl").write_bytes(lines([{"prompt": "odd"}]))  # a name, though it looks like a pattern
    assert read_rows(tmp_path / "odd[1].jsonl") == [{"prompt": "odd"}]


def test_splits_of_a_saved_folder_and_columns_by_name(tmp_path: Path) -> None:
    import datasets

    parts = {"train": datasets.Dataset.from_list(ROWS), "test": datasets.Dataset.from_list(ROWS[:1])}
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "splits"))
    wanted = SourceSpec((str(tmp_path / "splits"),), split="test", columns={"question": "prompt"})
    assert list(open_source(wanted)) == [{"question": "2020-01-01", "answer": "a", "level": 3, "messages": None}]
    for split, line in (
        ("tset", r"no split 'tset' \(did you mean 'test'\?\): set `data.held_out_split`"),
        (None, "several splits: set `data.held_out_split` to one of train, test"),
    ):
        with pytest.raises(UserError, match=f"^data: '.*splits' has {line}$"):
            open_source(SourceSpec(wanted.names, split=split, split_key="data.held_out_split"))


def test_messages_of_a_table_have_only_their_own_keys(tmp_path: Path) -> None:
    call = {"role": "assistant", "content": "", "tool_calls": [{"name": "add", "arguments": {"x": 1}}]}
    rows = [{"messages": [TALK[0], call], "score": None}, {"messages": TALK, "score": float("nan")}]
    (tmp_path / "a.parquet").write_bytes(parquet(rows))
    assert read_rows(tmp_path / "a.parquet") == [
        {"messages": rows[0]["messages"], "score": None},
        {"messages": TALK, "score": None},
    ]


def test_null_arguments_of_tool_calls_are_dropped_from_tables_and_kept_in_json(tmp_path: Path) -> None:
    def call(arguments: Any) -> list[dict[str, Any]]:
        return [{"role": "assistant", "content": "", "tool_calls": [{"name": "add", "arguments": arguments}]}]

    rows = [{"messages": call(arguments)} for arguments in ({"x": 1}, {"y": 2, "x": None}, {})]
    (tmp_path / "a.parquet").write_bytes(parquet(rows))
    read = [row["messages"][0]["tool_calls"][0]["arguments"] for row in read_rows(tmp_path / "a.parquet")]
    assert read == [{"x": 1}, {"y": 2}, {}]  # a table cannot tell a null from an argument that is not there
    written = [{"messages": call(json.dumps({"y": 2, "x": None}))}]
    (tmp_path / "b.parquet").write_bytes(parquet(written))
    assert read_rows(tmp_path / "b.parquet") == written
    (tmp_path / "c.jsonl").write_bytes(lines(rows))
    assert read_rows(tmp_path / "c.jsonl") == rows


@pytest.mark.parametrize(
    ("wanted", "line"),
    [
        ({"names": ("none*.jsonl",)}, "data: no file fits the pattern '.*none"),
        ({"names": ("a.jsonl",), "split": "train"}, "data.split has no effect on files"),
        ({"names": ("a.jsonl",), "config": "main"}, "data.config has no effect"),
        ({"names": ("saved",), "split": "train"}, "data.split: '.*saved' is one dataset, without splits"),
        (
            {"names": ("a.jsonl",), "columns": {"prompt": "promt"}},
            r"data.columns: '.*a.jsonl', row 1 has no 'promt' \(did you mean 'p",
        ),
        (
            {"names": ("a.jsonl",), "split": "test", "split_key": "data.held_out_split"},
            "data.held_out_split has no effect on files",
        ),
        ({"names": (".",)}, "data: '.*' is a folder that `datasets.save_to_disk` has not written"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_source_that_cannot_be_read_is_one_line(tmp_path: Path, wanted: dict[str, Any], line: str) -> None:
    write_all(tmp_path)
    names = tuple(str(tmp_path / name) for name in wanted["names"])
    with pytest.raises(UserError, match=f"^{line}"):
        open_source(SourceSpec(**{**wanted, "names": names}))


def test_a_column_of_images_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(parquet([{"prompt": "x", "image": b"\x89PNG"}]))
    with pytest.raises(UserError, match=r"^data: '.*a.parquet': the column 'image' is of type Value, not text"):
        read_rows(tmp_path / "a.parquet")


@pytest.mark.parametrize("after", ["xx", '[{"prompt": "b"}]'])
def test_text_after_a_list_of_rows_is_refused(tmp_path: Path, after: str) -> None:
    file = tmp_path / "rows.json"
    file.write_text('[{"prompt": "a", "answer": "b"}]\n' + after)
    with pytest.raises(UserError, match="text follows the list of rows"):
        open_source(SourceSpec((str(file),)))


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("openai/gsm8k", "file not found: '.*openai/gsm8k': a dataset of the hub is written `hf:openai/gsm8k`"),
        ("data/train.jsonl", "file not found: '.*data/train.jsonl'"),
        ("https://example.com/a.jsonl", "'https://example.com/a.jsonl' is a URL, which is not read: download the file"),
        ("https://huggingface.co/datasets/openai/gsm8k", "'.*' is a URL, which is not read: write `hf:openai/gsm8k`"),
        ("s3://bucket/a.parquet", "'s3://bucket/a.parquet' is a URL, which is not read: download"),
        ("hf:", "'hf:' is no dataset of the hub: write `hf:org/name`"),
        ("hf:a/b/c", "'hf:a/b/c' is no dataset of the hub: write `hf:org/name`"),
        ("hf: openai/gsm8k", "'hf: openai/gsm8k' is no dataset of the hub"),
    ],
)
def test_a_name_that_is_no_source_says_what_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=f"^data: {line}") as caught:
        open_source(SourceSpec((name,)))
    assert ("hf:" in str(caught.value)) == ("hf:" in line or "URL" in line or name.startswith("hf:"))


def test_a_folder_with_files_further_down_is_named_by_a_pattern(tmp_path: Path) -> None:
    (tmp_path / "data" / "part").mkdir(parents=True)
    (tmp_path / "data" / "part" / "a.parquet").write_bytes(b"")
    with pytest.raises(UserError, match=r"give the pattern '.*data/\*/\*.parquet'$"):
        open_source(SourceSpec((str(tmp_path / "data"),)))


def test_a_parquet_file_without_rows_has_none(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    empty = pyarrow.table({"prompt": pyarrow.array([], pyarrow.string())})
    pyarrow.parquet.write_table(empty, tmp_path / "a.parquet")
    (tmp_path / "b.parquet").write_bytes(parquet(ROWS))
    assert read_rows(tmp_path / "a.parquet") == []
    assert list(open_source(SourceSpec((str(tmp_path / "*.parquet"),)))) == ROWS


def test_tables_separated_by_tabs_and_compressed_tables(tmp_path: Path) -> None:
    rows = [{"prompt": 'a, "b"', "answer": "c\nd"}, {"prompt": "e;f", "answer": "g"}]
    for name, mark in (("a.csv", ","), ("a.tsv", "\t")):
        with (tmp_path / name).open("w", newline="") as file:
            writer = csv.DictWriter(file, ["prompt", "answer"], delimiter=mark)
            writer.writeheader()
            writer.writerows(rows)
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress((tmp_path / name).read_bytes()))
        for path in (tmp_path / name, tmp_path / f"{name}.gz"):
            source = open_source(SourceSpec((str(path),)))
            assert list(source) == rows
            assert [source[1], source[0]] == rows[::-1]
            assert source.place(1) == f"'{path}', row 2"


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("a.csv", "prompt;answer\na;b\n", "'.*a.csv', line 1 separates its columns by ';': separate them by ','"),
        ("a.csv", "prompt\tanswer\na\tb\n", "'.*a.csv', line 1 separates its columns by a tab: name it .tsv"),
        ("a.tsv", "prompt,answer\na,b\n", "'.*a.tsv', line 1 separates its columns by ',': name it .csv"),
        ("a.csv", "prompt,prompt\na,b\n", "'.*a.csv', line 1 names the column 'prompt' twice: rename one"),
        ("a.csv", 'prompt,answer\na,b\n"c,d\ne,f\n', "'.*a.csv', lines 3 to 4: a quote is opened and never closed"),
        ("a.csv", 'prompt,answer\n"Yes" she said,b\n', "'.*a.csv', line 2: text follows the closing quote of a cell: "),
        ("a.tsv", 'q\ta\n1\t2\n"one\t1\ntwo "2"\t3\n', "'.*a.tsv', lines 3 to 4: text follows the closing quote"),
        ("a.tsv", 'q\ta\n"one\t1\ntwo\t2\nthree"\t3\n4\t4\n', "'.*a.tsv', lines 2 to 4 are one cell, from a quote to"),
    ],
)
def test_a_table_that_is_read_wrongly_is_refused(tmp_path: Path, name: str, text: str, line: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=f"^data: {line}"):
        open_source(SourceSpec((str(tmp_path / name),)))


def test_a_rightly_quoted_cell_of_a_tsv_file_may_hold_lines_and_tabs(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text('q\ta\n"if x:\n\ty\n\tz"\t1\n"""Yes"" she said"\t2\n5\'10" tall\t3\n')
    rows = [("if x:\n\ty\n\tz", "1"), ('"Yes" she said', "2"), ("5'10\" tall", "3")]
    assert [tuple(row.values()) for row in read_rows(tmp_path / "a.tsv")] == rows


def test_an_empty_list_of_files_is_one_line() -> None:
    with pytest.raises(ValueError, match="need at least one file: an empty list names none"):
        DataConfig(train=[])
