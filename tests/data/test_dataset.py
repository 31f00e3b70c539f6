"""Datasets as they are read: rows, and errors that name the line."""

import gzip
import json
import subprocess
from pathlib import Path

import pytest

from vigneron.data.dataset import check_rows
from vigneron.data.lines import LONGEST_LINE
from vigneron.data.sources import read_rows
from vigneron.errors import UserError


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_jsonl_rows_keep_their_types_and_blank_lines_are_skipped(tmp_path: Path) -> None:
    rows = [
        {"prompt": "mix red and blue", "answer": "purple", "level": 3},
        {"prompt": [{"role": "user", "content": "café\n"}], "answer": None},
    ]
    text = "\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n  \n"
    assert read_rows(write(tmp_path / "rows.jsonl", text)) == rows
    assert read_rows(str(write(tmp_path / "windows.jsonl", text.replace("\n", "\r\n")))) == rows
    for name in ("rows.ndjson", "ROWS.JSONL", "ROWS.NDJSON", "ROWS.JSON"):
        assert read_rows(write(tmp_path / name, text)) == rows


@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_csv_rows_are_texts_with_quotes_newlines_and_a_byte_order_mark(tmp_path: Path, bom: bytes) -> None:
    text = 'prompt,answer,level\n"red, ""and"" blue",purple,3\r\n"two\nlines",café\n'
    assert read_rows(write(tmp_path / "rows.csv", bom + text.encode())) == [
        {"prompt": 'red, "and" blue', "answer": "purple", "level": "3"},
        {"prompt": "two\nlines", "answer": "café", "level": None},
    ]
    assert read_rows(write(tmp_path / "ROWS.CSV", b"prompt, answer \na, b\n")) == [{"prompt": "a", "answer": " b"}]
    assert read_rows(write(tmp_path / "SAME.CSV", b"a, a\nb,c\n")) == [{"a": "b", " a": "c"}]


@pytest.mark.parametrize("encoding", ["UTF-16", "UTF-32"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.json", "a b.tsv.gz"])
def test_another_encoding_is_named_with_a_command_that_converts_it(tmp_path: Path, name: str, encoding: str) -> None:
    text = "prompt\tanswer\nHi\té\n" if "tsv" in name else "prompt\nHi é\n" if "csv" in name else '{"prompt": "é"}\n'
    data = text.encode(encoding)
    path = write(tmp_path / name, gzip.compress(data) if name.endswith(".gz") else data)
    with pytest.raises(UserError, match=f"'{path}' is {encoding} text, by its byte-order mark: convert it") as caught:
        read_rows(path)
    command = str(caught.value).split("`")[1].removesuffix(" > NEW")
    assert subprocess.check_output(command, shell=True).decode() == text


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"prompt": "x"}\n\n{"prompt": }\n', "'.*a.jsonl', line 3 is not JSON"),
        ("a.jsonl", "prompt,answer\nx,y\n", ".*line 1 is not JSON: Expecting value: if this is CSV, name it"),
        ("a.jsonl", '{\n"prompt": "x"\n}\n', ".*line 1 is not JSON: .*: a .jsonl file has one whole object on"),
        ("a.jsonl", '{"prompt": "x"}\n["x"]\n', "'.*a.jsonl', line 2 is not a JSON object"),
        ("a.jsonl", '{"prompt": "' + "x" * LONGEST_LINE + '"}\n', "'.*a.jsonl', line 1 is longer than"),
        ("a.jsonl", b'{"prompt": "caf\xe9"}\n', "'.*a.jsonl', line 1 is not UTF-8"),
        ("a.csv", b"prompt\na\ncaf\xe9\n", "'.*a.csv', row 2 is not UTF-8"),
        ("a.csv", b"caf\xe9\na\n", "'.*a.csv', line 1 is not UTF-8"),
        ("a.csv", "prompt,answer\ra,b\rc,d\r", r"'.*a.csv' ends its lines as old Macs did.*: convert it with `tr '"),
        ("a.csv", "prompt,answer\na,b\rc\nd,e\n", "'.*a.csv', line 2: a carriage return stands outside of quotes"),
        (
            "a.csv",
            'prompt, answer\n"a", "b, c"\n',
            r"'.*a.csv', row 1 has more fields .*; write no space before a quote",
        ),
        ("a.jsonl", '{"prompt": "x"},\n', r"'.*a.jsonl', line 1 is not JSON: Extra data: a comma follows the object"),
        ("a.jsonl", '{"prompt": "x"} {"prompt": "y"}\n', ".*line 1 .*: a second object follows in the line: write one"),
        ("a.jsonl", '{"prompt": "x"}\r{"prompt": "y"}\r', ".*line 1 .*: the lines end as old Macs ended them"),
        (
            "a.jsonl",
            '{"prompt": "x"} # old\n',
            ".*line 1 is not JSON: Extra data: '# old' follows the object: remove it",
        ),
        ("a.csv", "prompt,answer\na,b\nc,d,e,f\n", r"'.*a.csv', row 2 has more fields than its header: \['e', 'f'\]"),
        (
            "a.csv",
            'prompt\n"' + "x" * (LONGEST_LINE + 1) + '"\n',
            "'.*a.csv', line 2: a cell is longer than 10000000 char",
        ),
        ("a.json", '[{"prompt": "x"}, {"prompt": }]', r"'.*a.json', row 2 is not JSON"),
        ("a.json", '[{"prompt": "x"}', r"'.*a.json', row 2 is not JSON: the list does not end"),
        ("a.json", '[{"prompt": "x"}, 3]', r"'.*a.json', row 2 is not a JSON object"),
        (
            "a.json",
            '{"data": [\n{"prompt": "x"}]}',
            r"'.*a.json' is one JSON object, or its first line is not JSON: give",
        ),
        ("a.json.gz", gzip.compress(b'{\n"prompt": "x"}', mtime=0), r"'.*a.json.gz' is one JSON object, or"),
        ("a.csv", "\nprompt,answer\na,b\n", "'.*a.csv', line 1 is blank: the first line must name the columns"),
        ("a.jsonl.gz", "no gzip", r"cannot unpack '.*a.jsonl.gz': it is not complete, or not a .gz file"),
        (
            "a.txt",
            "{}",
            r"'.*a.txt' is not a .jsonl or .csv file, nor .tsv, .json, .parquet, .jsonl.gz or .csv.gz",
        ),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_broken_file_is_one_line_that_names_the_row(
    tmp_path: Path, name: str, content: str | bytes, message: str
) -> None:
    with pytest.raises(UserError, match=f"^data: {message}") as caught:
        read_rows(write(tmp_path / name, content))
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^data: file not found: '.*none.jsonl'"):
        read_rows(tmp_path / "none.jsonl")
    folder = tmp_path / "folder.jsonl"
    folder.mkdir()
    line = f"^data: '{folder}' is a folder that `datasets.save_to_disk` has not written: "
    with pytest.raises(UserError, match=line + "name a file$"):
        read_rows(folder)
    write(folder / "a.parquet", b"")
    with pytest.raises(UserError, match=line + rf"for its files give the pattern '{folder}/\*.parquet'$"):
        read_rows(folder)


@pytest.mark.parametrize("content", ["", "\n\n", "prompt,answer\n"])
def test_an_empty_file_has_no_rows_and_is_refused(tmp_path: Path, content: str) -> None:
    path = write(tmp_path / ("rows.csv" if "," in content else "rows.jsonl"), content)
    rows = read_rows(path)
    assert rows == []
    with pytest.raises(UserError, match=r"^data: mine has no rows$"):
        check_rows(rows, ["prompt"], "mine")


GOOD = {"prompt": "x", "answer": "y"}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"promt": "x", "answer": "y"}, r"row 2 has no 'prompt' \(did you mean 'promt'\?\)"),
        (
            {"question": "x", "answer": "y"},
            r"row 2 has no 'prompt' .*: set `data.columns: \{prompt: question\}`",
        ),
        ({"prompt": "", "answer": "y"}, "row 2 has an empty 'prompt': fill it in, or remove the row"),
        (
            {"Frage": "x", "Antwort": "y"},
            r"row 2 has no 'prompt' .available: Frage.*: set `data.columns: \{prompt: Frage, answer: Antwort\}` if",
        ),
        (
            {"a": "x", "b": "y", "c": "z"},
            r"row 2 has no 'prompt' .*: name it in `data.columns: \{prompt: NAME\}`, or set",
        ),
        ({"text": "x"}, "row 2 has no 'prompt' .*: split `text` into `prompt` and `completion`, which is trained on"),
        ({"prompt": [], "answer": "y"}, "row 2: 'prompt' is an empty list: give at least one message"),
        ({"prompt": "x", "answer": None}, "row 2 has no 'answer'"),
        ({"prompt": "x", "answer": " \n"}, "row 2 has no text in 'answer': add it, or set a `parent`"),
        ({}, "row 2 has no 'prompt'"),
        ({"prompt": 7, "answer": "y"}, "row 2: prompt must be a text or a list of"),
        ({"prompt": ["hello"], "answer": "y"}, "row 2: turn 1 of prompt is no object: give"),
        ({"prompt": [{"role": "user"}], "answer": "y"}, "row 2: turn 1 of prompt has no `content`"),
    ],
)
def test_check_rows_names_the_first_bad_row(row: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=f"^data: mine, {message}"):
        check_rows([GOOD, row, {}], ["prompt", "answer"], "mine")


def test_check_rows_takes_texts_conversations_and_a_zero() -> None:
    conversation = {"prompt": [{"role": "system", "content": ""}, {"role": "user", "content": "x"}], "answer": 0}
    check_rows([GOOD, conversation], ["prompt", "answer"], "mine")


@pytest.mark.parametrize("column", ["prompt", "messages", "chosen"])
def test_a_role_that_nobody_knows_is_named(column: str) -> None:
    talk = [{"role": "user", "content": "hi"}, {"role": "asistant", "content": "yo"}]
    row = {"prompt": "p", column: talk}
    line = r"data: 'file', row 2: .*, turn 2: unknown role 'asistant' \(did you mean 'assistant'\?\)"
    with pytest.raises(UserError, match=line):
        check_rows([{"prompt": "p"}, row], ["prompt"], "'file'")
