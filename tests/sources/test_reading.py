"""A reply is an answer whole, or it is none."""

import pytest

from vigneron.sources.reply_parsing import UnparsableReply, parse_answer


@pytest.mark.parametrize(
    "reply",
    [
        '{"OUTPUT": "cold"}',
        '\n {"OUTPUT": " cold\\n"}\n',
        '```json\n{"OUTPUT": "cold"}\n```',
        '```\n{\n "OUTPUT": "cold"\n}\n```\n',
    ],
)
def test_json_is_read_whole(reply: str) -> None:
    assert parse_answer(reply, "json") == "cold"


@pytest.mark.parametrize(
    ("reply", "wrong"),
    [
        ("cold", "one JSON object"),
        ("", "one JSON object"),
        ('Sure! {"OUTPUT": "cold"}', "one JSON object"),
        ('{"OUTPUT": "cold"} as you asked', "one JSON object"),
        ('{"OUTPUT": "cold"', "one JSON object"),
        ('{"OUTPUT": "cold"}{"OUTPUT": "cold"}', "one JSON object"),
        ('["cold"]', "one JSON object"),
        ('"cold"', "one JSON object"),
        ("[" * 100_000, "one JSON object"),
        ("{}", "only key"),
        ("[]", "only key"),
        ('{"output": "cold"}', "only key"),
        ('{"OUTPUT": "cold", "why": "…"}', "only key"),
        ('{"OUTPUT": "cold", "OUTPUT": "hot"}', "only key"),
        ('{"OUTPUT": 3}', "not a text"),
        ('{"OUTPUT": null}', "not a text"),
        ('{"OUTPUT": {"OUTPUT": "cold"}}', "not a text"),
        ('{"OUTPUT": ""}', "empty"),
        ('{"OUTPUT": " \\n"}', "empty"),
        ('{"OUTPUT": "\\ud800"}', "Unicode"),
    ],
)
def test_json_that_is_not_just_that_is_none(reply: str, wrong: str) -> None:
    with pytest.raises(UnparsableReply, match=wrong):
        parse_answer(reply, "json")


def test_text_is_one_line() -> None:
    assert parse_answer("  light blue \n", "text") == "light blue"
    assert parse_answer('"purple"', "text") == "purple"  # as an instruction's examples show it
    assert parse_answer("“purple”", "text") == "purple"
    assert parse_answer('"a" or "b"', "text") == '"a" or "b"'
    for reply, wrong in [
        ('{"OUTPUT": "x"}', "JSON"),
        ('""', "empty"),
        ("", "empty"),
        (" \n\t", "empty"),
        ("a\nb", "line"),
        ("a\u2028b", "line"),
        ("\udc80", "Uni"),
    ]:
        with pytest.raises(UnparsableReply, match=wrong):
            parse_answer(reply, "text")
