"""The journal and what is made of it: nothing is lost, everything can be taken back, the file follows from it alone."""

import json
import resource
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.labelling import judge_by, make_run, read_jsonl, sample, session_of, write_comparisons, write_rows
from vigneron.errors import UserError
from vigneron.labels.export import OutFile, winner
from vigneron.labels.items import Comparison
from vigneron.labels.journal import Labels, label_entry, read_entries, undo_entry
from vigneron.labels.judged_answer import JudgedAnswer
from vigneron.labels.session import ConflictingLabel, Session
from vigneron.text import of_cell, to_cell

ITEMS = [Comparison(f"p{n}", ("a", "b")) for n in range(3)]


def close(session: Session) -> None:
    session.journal.close()


def out_text(entries: list[dict[str, Any]]) -> str:
    out = OutFile(Path("pairs.jsonl"))
    out.refresh(Labels([*entries, *(item.record() for item in ITEMS)]))
    return out.text()


def label(item: int, by: str, choice: Any) -> dict[str, Any]:
    return label_entry(ITEMS[item].id, by, [0, 1], choice, lambda: 0.0)


def undo(item: int, by: str) -> dict[str, Any]:
    return undo_entry(ITEMS[item].id, by, lambda: 0.0)


entries_of_one = st.lists(
    st.one_of(
        st.tuples(st.just("label"), st.integers(0, 2), st.sampled_from([0, 1, "tie", "skip", 7, True])),
        st.tuples(st.just("undo"), st.integers(0, 2), st.none()),
    ),
    max_size=8,
)


def journal_of_one(by: str, said: list[tuple[str, int, Any]]) -> list[dict[str, Any]]:
    return [label(item, by, choice) if what == "label" else undo(item, by) for what, item, choice in said]


@given(entries_of_one, entries_of_one, st.randoms(use_true_random=False))
def test_the_order_of_labellers_does_not_matter(one: Any, other: Any, random: Any) -> None:
    records = [item.record() for item in ITEMS]
    ann, bob = [*records, *journal_of_one("ann", one)], [*records[::-1], *journal_of_one("bob", other)]
    mixed = []
    first, second = list(ann), list(bob)
    while first or second:
        mixed.append((first if first and (not second or random.random() < 0.5) else second).pop(0))
    assert out_text(ann + bob) == out_text(bob + ann) == out_text(mixed)


@given(entries_of_one, entries_of_one, st.integers(0, 2), st.sampled_from([0, 1, "tie", "skip"]))
def test_an_undo_restores(one: Any, other: Any, item: int, choice: Any) -> None:
    before = journal_of_one("ann", one) + journal_of_one("bob", other)
    assert out_text([*before, label(item, "ann", choice), undo(item, "ann")]) == out_text(before)


@given(entries_of_one, st.lists(st.binary(max_size=30), max_size=4), st.integers(0, 200))
def test_lines_that_are_none_of_ours_change_nothing(
    tmp_path_factory: pytest.TempPathFactory, said: Any, junk: list[bytes], cut: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.labels.jsonl"
    whole = [json.dumps(entry).encode() for entry in journal_of_one("ann", said)]
    torn = json.dumps(label(0, "ann", 0)).encode()[:-1][:cut]
    strange = [b"[1]", b"null", b'{"label": 3}', b'{"undo": "x", "by": null}', b"[" * 3000, *junk]
    path.write_bytes(b"\n".join([*strange, *whole, torn]))
    assert out_text(read_entries(path, "pairs")) == out_text(journal_of_one("ann", said))


def test_most_votes_decide_and_skips_are_none() -> None:
    assert winner({"ann": 1, "bob": 1, "cleo": 0}) == 1
    assert winner({"ann": 1, "bob": 0}) is None
    assert winner({"ann": "tie", "bob": "tie", "cleo": 0}) == "tie"
    assert winner({"ann": 0, "bob": "skip"}) == 0
    assert winner({"ann": "skip"}) is None


def test_pairs_are_written_and_what_was_shown_is_recorded(tmp_path: Path) -> None:
    session = session_of(write_comparisons(tmp_path), tmp_path / "pairs.jsonl")
    judge_by(session, "!")
    judge_by(session, "?")
    session.judge(session.state()["item"]["id"], "tie")
    session.judge(session.state()["item"]["id"], "skip")
    state = session.state()
    assert (state["item"], state["done"], state["ties"], state["skips"], state["rows"]) == (None, 4, 1, 1, 2)
    rows = read_jsonl(tmp_path / "pairs.jsonl")
    assert sorted(row["chosen"][-1] for row in rows) == ["!", "?"]
    assert all(set(row) == {"prompt", "chosen", "rejected"} for row in rows)
    labels = [entry for entry in read_jsonl(tmp_path / "pairs.labels.jsonl") if "label" in entry]
    assert [set(entry) for entry in labels] == [{"label", "by", "order", "choice", "time"}] * 4
    assert all(sorted(entry["order"]) == [0, 1] for entry in labels)


def test_undo_goes_back_one_by_one_also_into_an_earlier_session(tmp_path: Path) -> None:
    source, out = write_comparisons(tmp_path), tmp_path / "pairs.jsonl"
    session = session_of(source, out)
    first = session.state()["item"]["id"]
    judge_by(session, "!")
    after_one = out.read_bytes()
    second = session.state()["item"]["id"]
    judge_by(session, "!")
    session.undo()
    assert session.state()["item"]["id"] == second
    assert out.read_bytes() == after_one
    close(session)
    again = session_of(source, out)
    assert (again.state()["item"]["id"], again.state()["done"]) == (second, 1)
    again.undo()
    assert again.state()["item"]["id"] == first
    assert out.read_bytes() == b""
    again.undo()
    assert again.state()["done"] == 0


def test_what_was_taken_back_comes_next_though_others_items_come_first(tmp_path: Path) -> None:
    for who in ("ann", "bob"):
        (tmp_path / who).mkdir()
        source = write_rows(tmp_path / who / "rows.jsonl", [{"prompt": who, "completions": ["x!", "y?"]}])
        session = session_of(source, tmp_path / who / "pairs.jsonl", labeller=who)
        judge_by(session, "!")
        close(session)
    journals = [(tmp_path / who / "pairs.labels.jsonl").read_bytes() for who in ("bob", "ann")]
    (tmp_path / "pairs.labels.jsonl").write_bytes(b"".join(journals))
    both = session_of(source, tmp_path / "pairs.jsonl")
    assert len(read_jsonl(tmp_path / "pairs.jsonl")) == 2
    assert both.state()["item"]["prompt"] == "bob"
    both.undo()
    assert (both.state()["item"]["prompt"], both.state()["next"]["prompt"]) == ("ann", "bob")


def test_a_session_goes_on_and_the_file_follows_from_the_journal_alone(tmp_path: Path) -> None:
    source, out = write_comparisons(tmp_path), tmp_path / "pairs.jsonl"
    session = session_of(source, out)
    judge_by(session, "!")
    judge_by(session, "!")
    close(session)
    written = out.read_bytes()
    out.unlink()
    with (tmp_path / "pairs.labels.jsonl").open("ab") as file:
        file.write(b'{"label": "cut')
    write_rows(source, [{"prompt": "other", "completions": ["x!", "y?"]}])
    again = session_of(source, out)
    assert out.read_bytes() == written
    assert (again.state()["done"], again.state()["of"]) == (2, 3)
    judge_by(again, "!")
    assert len(read_jsonl(out)) == 3


def test_a_second_person_judges_the_same_items_and_is_compared(tmp_path: Path) -> None:
    source, out = write_comparisons(tmp_path), tmp_path / "pairs.jsonl"
    for who, marks in (("ann", "!!!!"), ("bob", "!!??"), ("cleo", "!?!?")):
        session = session_of(source, out, labeller=who)
        for mark in marks:
            judge_by(session, mark)
        close(session)
    agreed = session.state()["agreement"]
    assert agreed.startswith("3 people agree on 50% of 4 items; Fleiss' kappa")
    assert [row["chosen"][-1] for row in read_jsonl(out)].count("!") == 3


def test_the_same_answer_twice_is_one_and_another_is_refused(tmp_path: Path) -> None:
    session = session_of(write_comparisons(tmp_path), tmp_path / "pairs.jsonl")
    item = session.state()["item"]["id"]
    session.judge(item, "a")
    before = session.journal.path.read_bytes()
    session.judge(item, "a")
    assert session.journal.path.read_bytes() == before
    with pytest.raises(ConflictingLabel):
        session.judge(item, "b")


def test_the_best_of_a_group_is_a_demonstration(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "rows.jsonl", [{"prompt": "p", "completions": ["a", "b", "c"]}])
    session = session_of(source, tmp_path / "best.jsonl", best=True)
    item = session.state()["item"]
    session.judge(item["id"], item["completions"].index("b") + 1)
    (row,) = read_jsonl(tmp_path / "best.jsonl")
    assert (row["prompt"], row["completion"], sorted(row["others"])) == ("p", "b", ["a", "c"])


def test_two_processes_cannot_label_into_one_file(tmp_path: Path) -> None:
    source, out = write_comparisons(tmp_path), tmp_path / "pairs.jsonl"
    session = session_of(source, out)
    with pytest.raises(UserError, match="another process is writing labels to"):
        session_of(source, out)
    close(session)
    close(session_of(source, out))


def test_a_file_that_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    source = write_comparisons(tmp_path)
    with pytest.raises(UserError, match=r"exists without its journal 'source.labels.jsonl'"):
        session_of(source, source)
    session = session_of(source, tmp_path / "pairs.jsonl")
    judge_by(session, "!")
    close(session)
    with pytest.raises(UserError, match="contains labels of another kind"):
        session_of(source, tmp_path / "pairs.jsonl", best=True)


def test_what_cannot_be_written_is_not_counted(tmp_path: Path) -> None:
    session = session_of(write_comparisons(tmp_path), tmp_path / "pairs.jsonl")
    judge_by(session, "!")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    room = session.journal.path.stat().st_size + 20
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            judge_by(session, "!")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert session.state()["done"] == 1
    judge_by(session, "!")
    close(session)
    again = session_of(tmp_path / "source.jsonl", tmp_path / "pairs.jsonl")
    assert (again.state()["done"], len(read_jsonl(tmp_path / "pairs.jsonl"))) == (2, 2)


@given(st.text(max_size=6), st.sampled_from(["", "'", "''", "=", "'=", "-", "'-", "\t"]))
def test_a_cell_is_no_formula_and_is_read_back(text: str, start: str) -> None:
    assert of_cell(to_cell(start + text)) == start + text
    assert not str(to_cell(start + text)).startswith(("=", "+", "-", "@", "\t", "\r"))


def rubric_said(score: float | None, confidence: float) -> dict[str, Any]:
    said = {"score": score, "confidence": confidence, "critique": "dull", "reasoning": "because"}
    return {"version": "1", "category": "words", "items": {"nice": said}}


def test_scores_are_of_the_least_sure_first_and_the_judges_is_told_after(tmp_path: Path) -> None:
    sure = {"a0": 0.9, "-a1": 0.1, "=a2": 0.5}
    samples = [sample(1, n, "user: p", t, rubric=rubric_said(0.83, c)) for n, (t, c) in enumerate(sure.items())]
    samples.append(sample(1, 9, "user: p", "failed", rubric=rubric_said(None, 0.0)))
    run = make_run(tmp_path / "run", samples)
    session = session_of(run, run / "people.csv", scores=True)
    seen = []
    while (item := session.state()["item"]) is not None:
        assert "0.83" not in json.dumps(session.state()["item"])
        seen.append(item["completion"])
        session.judge(item["id"], 7)
        assert session.state()["last"] == {"item": "nice", "yours": 0.7, "judge": 0.83, "sure": sure[seen[-1]]}
    assert seen == ["-a1", "=a2", "a0"]
    text = (run / "people.csv").read_text()
    assert text.startswith("prompt,completion,category,item,score,labeller\n")
    assert "user: p,'=a2,words,nice,0.7,ann\n" in text
    assert JudgedAnswer.of_record({**JudgedAnswer("p", "c", "w", "i").record(), "name": 3}) is None
