"""Labels of steps by continuations, with models whose continuations are known."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.command_line import vigneron
from support.tiny_models import byte_tokenizer, tiny_policy
from vigneron.core.draws import Sampling
from vigneron.data.steps import prefix_lengths
from vigneron.errors import UserError
from vigneron.labels.monte_carlo import MonteCarlo
from vigneron.policy.load import load_policy
from vigneron.rewards.checkers import build_check
from vigneron.rollout.on_policy import OnPolicy


def labeller(
    policy: Any, *, count: int = 4, hard: bool = False, checker: str = "last_line", seed: int = 0
) -> MonteCarlo:
    return MonteCarlo(OnPolicy(policy, Sampling(temperature=0.01), 4, count, seed), build_check(checker), "\n", hard)


def test_a_prefix_ends_where_the_next_step_begins() -> None:
    tokenizer = byte_tokenizer()
    texts = ["ab\n\ncd\ne", " x", "a\n"]
    ids = [[*tokenizer(text)["input_ids"], 0] for text in texts]
    assert prefix_lengths(tokenizer, ids, texts, "\n") == [[4, 7], [], []]


def test_a_label_is_the_share_of_continuations_that_end_right(obliging_folder: Path) -> None:
    """The model answers `xy` to everything: from a step's end it is right where `xy` is the reference."""
    rows = [
        {"prompt": "p", "completion": "a\nb\nq", "answer": "xy"},
        {"prompt": "p", "completion": "a\nxy", "answer": "xy"},
        {"prompt": "p", "completion": "a\nb", "answer": "b"},
        {"prompt": "p", "completion": " \n", "answer": "b"},
    ]
    labelled = labeller(load_policy(str(obliging_folder), device="cpu")).labelled(rows)
    assert [row["labels"] for row in labelled] == [[1.0, 1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]
    assert [row["correct"] for row in labelled] == [False, True, True]


def test_continuations_end_at_the_stop_string(obliging_folder: Path) -> None:
    """`xy` ends at `x`; a stop string in the steps before, as the separator, ends nothing."""
    rows = [{"prompt": "p", "completion": "a\nb\nq", "answer": "x"}]
    plain = labeller(load_policy(str(obliging_folder), device="cpu"))
    stopped = replace(plain, sampler=replace(plain.sampler, stop=("x", "\n")))
    assert plain.labelled(rows)[0]["labels"] == [0.0, 0.0, 0.0]
    assert stopped.labelled(rows)[0]["labels"] == [1.0, 1.0, 0.0]


@pytest.mark.slow
def test_shares_against_single_continuations() -> None:
    """A random model: each continuation drawn by itself, with the same key, gives the same verdicts."""
    policy = tiny_policy("llama")
    rows = [{"prompt": f"p{n}", "completion": "ab\nc\nd", "answer": "x"} for n in range(3)]

    def ends_in_an_odd_byte(texts: list[str]) -> list[float]:
        return [float(sum(map(ord, text)) % 2) for text in texts]

    def check(batch: Any) -> Any:
        return batch.with_signals(correct=tuple(bool(v) for v in ends_in_an_odd_byte(list(batch.samples.completions))))

    def labels(count: int, seed: int = 0, hard: bool = False) -> list[list[float]]:
        sampler = OnPolicy(policy, Sampling(), 4, count, seed)
        return [row["labels"] for row in MonteCarlo(sampler, check, "\n", hard).labelled(rows)]

    wanted = []
    for number, row in enumerate(rows):
        shares = []
        for step, beginning in enumerate(("ab\n", "ab\nc\n")):
            ids = tuple(policy.tokenizer(row["prompt"] + beginning)["input_ids"])
            right = 0.0
            for at in range(8):
                name = (2 * number + step) * 8 + at
                one = OnPolicy(policy, Sampling(), 4, 8).of_samples([row], [ids], 1, [name])
                right += ends_in_an_odd_byte([beginning + one.samples.completions[0]])[0]
            shares.append(right / 8)
        wanted.append([*shares, float(sum(map(ord, "ab\nc\nd")) % 2)])
    assert labels(8) == wanted
    assert labels(8, hard=True) == [[float(label > 0) for label in row] for row in wanted]
    assert labels(8, seed=1) != wanted


def test_draws_do_not_depend_on_how_rows_are_split() -> None:
    policy = tiny_policy("llama")

    def check(batch: Any) -> Any:
        return batch.with_signals(correct=tuple(len(text) % 2 == 0 for text in batch.samples.completions))

    made = MonteCarlo(OnPolicy(policy, Sampling(), 6, 4, 3), check)
    prompts = [{"prompt": f"p{n}"} for n in range(4)]
    solutions = made.solutions(prompts, 2)
    assert solutions == [*made.solutions(prompts[:1], 2), *made.solutions(prompts[1:], 2, first=1)]
    rows = [{"prompt": f"p{n}", "completion": "ab\nc"} for n in range(4)]
    assert made.labelled(rows) == [*made.labelled(rows[:1]), *made.labelled(rows[1:], first=1)]


def test_a_row_without_a_reference_is_one_line(obliging_folder: Path) -> None:
    with pytest.raises(UserError, match="each row needs the reference in the column `answer`"):
        labeller(load_policy(str(obliging_folder), device="cpu")).labelled([{"prompt": "p", "completion": "a\nb"}])


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_command_writes_what_a_process_model_reads(tmp_path: Path, obliging_folder: Path) -> None:
    rows = [{"prompt": f"p{n}", "completion": f"{n}\nxy", "answer": "xy"} for n in range(3)]
    file, out = write(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    options = ["--continuations", 2, "--checker", "last_line", "--max-new-tokens", 4, "--temperature", 0.01]
    answer = vigneron("process", "label", obliging_folder, file, "--out", out, *options)
    assert answer.code == 0, answer.err
    assert "3 solutions, 6 steps, 0% of them without a right continuation" in answer.out
    written = [json.loads(line) for line in out.read_text().splitlines()]
    assert written[0] == {
        "prompt": "p0",
        "completion": "0\nxy",
        "labels": [1.0, 1.0],
        "correct": True,
        "reference": "xy",
    }
    again = vigneron("process", "label", obliging_folder, file, "--out", out, *options)
    assert again.code == 2
    assert "exists" in again.err
    sampled = write(tmp_path / "prompts.jsonl", [{"prompt": "p", "answer": "xy"}])
    answer = vigneron(
        "process", "label", obliging_folder, sampled, "--out", tmp_path / "s.jsonl", "--solutions", 2, *options
    )
    assert "2 solutions, 2 steps" in answer.out
    assert "no solution has two steps" in answer.out


@pytest.mark.parametrize(
    ("rows", "options", "line"),
    [
        ([{"prompt": "p", "completion": "a\nb", "answer": "b"}], ["--solutions", 2], "leave out one"),
        ([{"prompt": "p", "completion": "a"}, {"prompt": "p"}], [], "row 2 has no `completion`"),
        ([{"answer": "b"}], [], "row 1 has no 'prompt'"),
        ([{"prompt": "p"}], ["--separator", ""], "--separator is empty"),
        (None, [], "is not a run: give a file"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, obliging_folder: Path, rows: Any, options: list[Any], line: str) -> None:
    file = [] if rows is None else [write(tmp_path / "in.jsonl", rows)]
    answer = vigneron("process", "label", obliging_folder, *file, "--out", tmp_path / "out.jsonl", *options)
    assert answer.code == 2
    assert line in answer.err
    assert answer.err.count("\n") == 1


def test_the_output_is_checked_before_the_model_is_loaded(tmp_path: Path) -> None:
    file = write(tmp_path / "in.jsonl", [{"prompt": "p", "completion": "a", "answer": "b"}])
    answer = vigneron("process", "label", "no-such-model", file, "--out", tmp_path / "missing" / "out.jsonl")
    assert answer.code == 2
    assert "missing' does not exist" in answer.err
    assert answer.err.count("\n") == 1


def test_an_error_midway_leaves_no_new_file(
    tmp_path: Path, obliging_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second part's rows have no reference; the first part's labels are beside the output."""
    monkeypatch.setattr("vigneron.commands.process.PART", 2)
    rows = [{"prompt": "p", "completion": "a", **({"answer": "a"} if n < 2 else {})} for n in range(4)]
    file, out = write(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    answer = vigneron("process", "label", obliging_folder, file, "--out", out)
    assert answer.code == 2
    assert "each row needs the reference" in answer.err
    assert not out.exists()
    assert len((tmp_path / "out.jsonl.part").read_text().splitlines()) == 2


@pytest.mark.parametrize("given", ["\\n\\n", "\n\n"])
def test_a_separator_may_be_written_with_a_backslash(tmp_path: Path, obliging_folder: Path, given: str) -> None:
    file = write(tmp_path / "in.jsonl", [{"prompt": "p", "completion": "a\n\nb\n\nc", "answer": "c"}])
    options = ["--continuations", 1, "--max-new-tokens", 4, "--separator", given]
    answer = vigneron("process", "label", obliging_folder, file, "--out", tmp_path / "out.jsonl", *options)
    assert answer.code == 0, answer.err
    assert "1 solutions, 3 steps" in answer.out
    assert 'separator: "\\n\\n"' in answer.out
