"""Parts of a vague item: strictly read, fully checked, and in a rubric only when accepted."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vigneron.commands.rubric_atomize import confirm_each, select_proposals
from vigneron.config.judges import PythonJudgeConfig
from vigneron.errors import UserError
from vigneron.rewards.graders.build import build_grader
from vigneron.rubric.atomize import (
    MAX_PROPOSALS,
    Proposal,
    atomize_prompt,
    check_proposals,
    find_item,
    next_version,
    parse_proposals,
    request_proposals,
    with_parts,
)
from vigneron.rubric.formats.vigneron_write import rubric_file_text
from vigneron.rubric.model import AnyItem, Rubric
from vigneron.rubric.read import normalised
from vigneron.sources.answer_cache import AnswerCache
from vigneron.sources.judges import Judge, build_judge
from vigneron.sources.reply_parsing import UnparsableReply

VAGUE = {"name": "clear", "description": "It is clear.", "flow": "judge", "critique": "Criticise for {{ row.reader }}."}
RUBRIC = Rubric.model_validate(
    {
        "version": "1",
        "categories": {
            "a": {"items": [{**VAGUE, "weight": 3}, {"name": "right", "description": "d", "flow": "verify"}]},
            "b": {"items": [{**VAGUE, "name": "kind"}, {**VAGUE, "name": "clear"}]},
        },
    }
)
SHORT = {"name": "short", "description": "At most ten words.", "flow": "length", "at_most": 10}
GOOD: list[dict[str, Any]] = [
    SHORT,
    {"name": "no shouting", "description": "No capitals.", "flow": "regex", "pattern": "[A-Z]{4}", "expect": "absent"},
    {
        "name": "names it",
        "description": "d",
        "flow": "string_check",
        "operation": "includes",
        "reference": "{{ row.x }}",
    },
    {"name": "json", "description": "d", "flow": "json_schema", "json_schema": {"type": "object"}},
    {"name": "true", "description": "d", "flow": "verify", "truth": "answer"},
]
BAD: list[tuple[Any, str]] = [
    ("short", "it is not a JSON object"),
    ({"name": "x", "description": "d", "flow": "python", "function": "os:system"}, "flow: expected one of regex"),
    ({"name": "x", "description": "d", "flow": "judge", "critique": "c"}, "flow: expected one of regex"),
    ({**SHORT, "at_most": "10"}, "at_most: "),
    ({**SHORT, "at_mots": 3}, "unknown key 'at_mots' (did you mean 'at_most'?)"),
    ({**SHORT, "name": "clear"}, "the category already has an item 'clear'"),
    ({"name": "x", "description": "d", "flow": "regex", "pattern": "(a"}, "pattern: not a valid regular expression"),
    ({**GOOD[2], "reference": "{{ row.__class__ }}"}, "'__class__' is not allowed"),
    ({**GOOD[2], "reference": "{{ answer }}"}, "unknown name 'answer'"),
    ({**GOOD[3], "json_schema": {"type": "objet"}}, "json_schema"),
    ({**GOOD[3], "json_schema": {"$ref": "http://x"}}, "is not in the schema"),
    ({**SHORT, "weight": 0}, "weight: should be greater than 0"),
]


def grade(item: AnyItem) -> None:
    if item.flow != "verify":
        build_grader(item, render=lambda template, sample: template)


PROPOSING = """
seen = []

def judge(messages):
    seen.append(messages)
    return replies[len(seen) - 1]
"""


def judge_saying(folder: Path, monkeypatch: pytest.MonkeyPatch, *replies: str) -> Judge:
    (folder / "proposing.py").write_text(f"replies = {list(replies)!r}\n{PROPOSING}")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "proposing", raising=False)
    config = PythonJudgeConfig(kind="python", function="proposing:judge")
    return build_judge(config, cache=AnswerCache(folder / "answers.sqlite"))


def reply(items: Sequence[Any]) -> str:
    return json.dumps({"items": list(items)})


def test_every_verifiable_flow_is_taken() -> None:
    found = check_proposals(parse_proposals(f"```json\n{reply(GOOD)}\n```"), ["clear"], grade)
    assert [proposal.errors for proposal in found] == [()] * len(GOOD)
    assert [proposal.item.flow for proposal in found if proposal.item] == [item["flow"] for item in GOOD]


@pytest.mark.parametrize(("given", "line"), BAD)
def test_a_bad_proposal_is_shown_with_what_is_wrong(given: Any, line: str) -> None:
    (found,) = check_proposals([given], ["clear"], grade)
    assert found.item is None
    assert line in "; ".join(found.errors)
    with pytest.raises(UserError, match="proposal 1 cannot be accepted"):
        select_proposals([found], [1])


def test_two_of_one_name_are_not_both_taken() -> None:
    first, second = check_proposals([SHORT, {**SHORT, "at_most": 9}], [])
    assert first.item is not None
    assert second.errors == ("the category already has an item 'short'",)


@pytest.mark.parametrize(
    "text",
    ["", "Sure! " + reply([SHORT]), "[]", '{"items": 3}', '{"items": [], "more": 1}', reply([SHORT])[:-1], "[" * 10**5],
)
def test_what_is_not_the_form_is_not_read(text: str) -> None:
    with pytest.raises(UnparsableReply):
        parse_proposals(text)


def test_more_than_asked_for_is_not_read() -> None:
    with pytest.raises(UnparsableReply, match="more than"):
        parse_proposals(reply([SHORT] * (MAX_PROPOSALS + 1)))


@settings(max_examples=40, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=9),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["name", "description", "flow", "pattern", "x"]), inner, max_size=4)
        ),
        max_leaves=8,
    )
)
def test_nothing_a_judge_says_breaks_the_check(given: Any) -> None:
    for proposal in check_proposals([given, {"flow": "regex", "name": given}], [], grade):
        assert (proposal.item is None) == bool(proposal.errors)


def test_one_more_try_for_a_reply_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    question = atomize_prompt(RUBRIC, "a", find_item(RUBRIC, "clear", "a")[1])
    judge = judge_saying(tmp_path, monkeypatch, "Here you are.", reply([SHORT]))
    assert request_proposals(judge, question) == [SHORT]
    import proposing  # type: ignore[import-not-found]

    again = proposing.seen[1]
    assert again[-2] == {"role": "assistant", "content": "Here you are."}
    assert "could not be read: it was not one JSON object" in again[-1]["content"]
    with pytest.raises(UserError, match="no readable proposals in two attempts"):
        request_proposals(judge_saying(tmp_path, monkeypatch, "No.", "No."), question)


def test_the_judge_is_told_the_item_and_the_columns() -> None:
    (_, system), (_, user) = atomize_prompt(RUBRIC, "a", find_item(RUBRIC, "clear", "a")[1])
    assert '{"items": [ ... ]}' in system
    assert "{{ row.answer }}" in system
    assert "clear\nIt is clear." in user
    assert "answer, reader" in user


@pytest.mark.parametrize(
    ("name", "category", "line"),
    [
        ("clear", None, "the categories a, b all have an item 'clear': choose one with --category"),
        ("claer", None, "the rubric has no item 'claer' (did you mean 'clear'?)"),
        ("clear", "x", "--category: the rubric has no category 'x' (available: a, b)"),
        ("right", "a", "'a.right' has `flow: verify`: only items with `flow: judge` can be atomized"),
    ],
)
def test_which_item_is_meant(name: str, category: str | None, line: str) -> None:
    with pytest.raises(UserError) as caught:
        find_item(RUBRIC, name, category)
    assert str(caught.value) == line
    assert find_item(RUBRIC, "kind", None)[0] == "b"


def test_weights_by_hand() -> None:
    """3 of weight, a third of it to parts that weigh 1 and 3."""
    parts = [item for p in check_proposals([SHORT, {**GOOD[1], "weight": 3}], []) if (item := p.item)]
    grown = with_parts(RUBRIC, "a", "clear", parts, 1 / 3)
    assert [(item.name, pytest.approx(item.weight)) for item in grown.categories["a"].items] == [
        ("clear", 2.0),
        ("short", 0.25),
        ("no shouting", 0.75),
        ("right", 1.0),
    ]
    assert grown.version == "1.1"
    assert grown.categories["b"] == RUBRIC.categories["b"]
    assert rubric_file_text(grown, json_form=False)


@given(st.floats(0.01, 0.99), st.lists(st.floats(0.01, 100), min_size=1, max_size=4))
@settings(max_examples=40, deadline=None)
def test_the_categorys_weight_stays(share: float, weights: list[float]) -> None:
    parts = [
        p.item
        for p in check_proposals([{**SHORT, "name": f"s{n}", "weight": w} for n, w in enumerate(weights)], [])
        if p.item
    ]
    before, after = (normalised(each)[0] for each in (RUBRIC, with_parts(RUBRIC, "a", "clear", parts, share)))
    held = {item.name: item.weight for item in after.categories["a"].items}
    assert held["right"] == pytest.approx(before.categories["a"].items[1].weight)
    assert sum(held.values()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("version", "following"), [("1", "1.1"), ("1.1", "1.2"), ("2.0.9", "2.0.10"), ("draft", "draft.1"), ("v3", "v3.1")]
)
def test_the_next_version(version: str, following: str) -> None:
    assert next_version(version) == following


def test_a_person_decides() -> None:
    proposals = [*check_proposals(GOOD[:2], []), Proposal({}, None, ("bad",))]
    asked: list[str] = []

    def only_the_second(question: str) -> bool:
        asked.append(question)
        return "2" in question

    assert [item.name for item in confirm_each(proposals, only_the_second)] == ["no shouting"]
    assert asked == ["accept 1, 'short'?", "accept 2, 'no shouting'?"], "a bad one is not offered"
    with pytest.raises(UserError, match="no proposal 7: the numbers are 1 to 3"):
        select_proposals(proposals, [7])
