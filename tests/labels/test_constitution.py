"""Critique and revision, pairs from easy to hard, the ladder's rule: with judges whose every reply is known."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from support.command_line import vigneron, write_jsonl
from support.house_judges import PRINCIPLES, option, read, rule
from support.servers import Seen, Sent, chat, refusal, serving
from vigneron.config.judges import EndpointJudgeConfig, PythonJudgeConfig
from vigneron.errors import UserError
from vigneron.labels.graded_pairs import graded_pairs
from vigneron.labels.revisions import drawn, revise
from vigneron.rubric.comparing import Compared, compare
from vigneron.rubric.ladder_rule import judge as ladder_judge
from vigneron.rubric.principles import parse_principles, read_principles
from vigneron.sources.answer_cache import AnswerCache
from vigneron.sources.judges import build_judge

# ------------------------------------------------------------------------------------------------ revisions


def test_each_revision_has_a_drawn_principle(house: Path) -> None:
    prompts = [f"p{number}" for number in range(8)]
    found = revise(rule("writer", house), prompts, None, PRINCIPLES, revisions=4, seed=1)
    for number, row in enumerate(found.rows):
        names = [drawn(PRINCIPLES, 1, number, revision).name for revision in range(4)]
        assert row.answer == "+".join([f"answer to p{number}", *names])
        assert row.principles == names
        assert row.row() == {
            "prompt": f"p{number}",
            "completion": f" {row.answer}",
            "first_answer": f"answer to p{number}",
            "principles": names,
        }
    counted = Counter(name for row in found.rows for name in row.principles)
    assert set(counted) == {"short", "kind", "true"}
    shorter = revise(rule("writer", house), prompts, None, PRINCIPLES, revisions=2, seed=1)
    assert [row.principles for row in shorter.rows] == [row.principles[:2] for row in found.rows]


def test_conversations_stay_conversations(house: Path) -> None:
    prompt = [{"role": "user", "content": "hello"}]
    found = revise(rule("writer", house), [prompt], ["hi"], PRINCIPLES[:1], revisions=1, seed=0)
    assert found.rows[0].row()["completion"] == [{"role": "assistant", "content": "hi+short"}]


def test_a_missing_critique_keeps_the_last_good_answer_and_is_counted(house: Path) -> None:
    write_jsonl(house / "rows.jsonl", [json.dumps({"prompt": p, "first": "F"}) for p in ("a", "z", "b")])
    (house / "p.yaml").write_text("principles: [{name: kind, text: It is kind.}]")
    made = vigneron(
        "revise", "rows.jsonl", "--principles", "p.yaml", "--model", option("writer"), "--out", "sft.jsonl",
        "--revisions", 2, "--answers", "first",
    )  # fmt: skip
    assert made.code == 0, made.err
    assert [row["completion"] for row in read(house / "sft.jsonl")] == [" F+kind+kind", " F", " F+kind+kind"]
    assert "note: 2 critiques or revisions are missing: the last good answer is kept; the first: " in made.out
    assert "wrote sft.jsonl: 3 rows, 2 of them revised to another text" in made.out


def test_a_stopped_command_pays_for_nothing_twice(house: Path) -> None:
    """The endpoint fails after five replies; the second call of the command requests only what is missing."""

    def failing(seen: Seen, before: int) -> Sent:
        return chat(f"reply to {len(seen.body['messages'][-1]['content'])}") if before < 5 else refusal(401, "paid out")

    write_jsonl(house / "rows.jsonl", [json.dumps({"prompt": p, "first": "F"}) for p in "abcd"])
    (house / "p.yaml").write_text("principles: [{name: kind, text: It is kind.}]")
    words = ["revise", "rows.jsonl", "--principles", "p.yaml", "--out", "sft.jsonl", "--answers", "first"]
    replies: list[int] = []
    with serving(lambda seen, n: failing(seen, n) if not replies else chat("again")) as server:
        model = f"{{kind: endpoint, model: m, url: '{server.url}', concurrency: 1, retries: 0}}"
        stopped = vigneron(*words, "--model", model)
        assert stopped.code == 2
        assert not (house / "sft.jsonl").exists()
        paid = len(server.seen)
        assert paid in (6, 7), "the preflight, four critiques, and revisions that were refused"
        replies.append(1)
        made = vigneron(*words, "--model", model)
        assert made.code == 0, made.err
        assert len(server.seen) == paid + 5, "the preflight and four revisions"
        assert "4 replies from the cache" in made.out


def test_a_local_model_criticises_and_revises(house: Path, obliging_folder: Path) -> None:
    """It says `xy` to everything, with our engine; the second time nothing is computed."""
    model = AutoModelForCausalLM.from_pretrained(obliging_folder, n_positions=4096, ignore_mismatched_sizes=True)
    torch.nn.init.zeros_(model.transformer.wpe.weight)
    model.save_pretrained(house / "model")
    AutoTokenizer.from_pretrained(obliging_folder).save_pretrained(house / "model")
    write_jsonl(house / "rows.jsonl", [json.dumps({"prompt": p}) for p in "ab"])
    words = ["revise", "rows.jsonl", "--principles", "ladder", "--model", "{kind: local, model: model, max_tokens: 4}"]
    made = vigneron(*words, "--out", "sft.jsonl")
    assert made.code == 0, made.err
    assert [row["completion"] for row in read(house / "sft.jsonl")] == [" xy", " xy"]
    assert "6 calls" in made.out
    again = vigneron(*words, "--out", "again.jsonl")
    assert "0 calls" in again.out
    assert read(house / "again.jsonl") == read(house / "sft.jsonl")


@pytest.mark.parametrize("cut", [True, False])
def test_a_critique_that_was_cut_is_used_and_a_revision_is_not(house: Path, cut: bool) -> None:
    """The limit of tokens ends one of the two: of a cut critique the revision is kept, of a cut revision the answer."""

    def script(seen: Seen, before: int) -> Sent:
        is_revision = "<critique-" in seen.body["messages"][1]["content"]
        return chat("revised" if is_revision else "Say m", "length" if is_revision != cut else "stop")

    with serving(script) as server:
        config = EndpointJudgeConfig(kind="endpoint", model="m", url=server.url, retries=0)
        model = build_judge(config, cache=AnswerCache(house / "answers.sqlite"))
        found = revise(model, ["p"], ["first"], PRINCIPLES, revisions=1, seed=0)
        model.stop()
    assert (found.rows[0].answer, found.failed) == (("revised", 0) if cut else ("first", 1))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("principles: []\n", "p.yaml, line 1: principles: "),
        ("", "p.yaml: a file of principles must be a mapping of keys to values"),
        ("principles:\n  - name: kind\n", "p.yaml, line 2: 'principles[0].text' is missing"),
        ("principles:\n  - name: kind\n    text: '  '\n", "p.yaml, line 3: principles[0].text: "),
        (
            "principles:\n  - {name: a, text: b}\n  - {name: a, text: c}\n",
            "p.yaml, line 3: principles[1].name: two principles are named 'a'",
        ),
        (
            "principles:\n  - name: a\n    text: b\n    critic: c\n",
            "p.yaml, line 4: unknown key 'principles[0].critic' (did you mean 'critique'?)",
        ),
        ("principles: [", "p.yaml, line 1: not valid YAML"),
    ],
)
def test_every_error_of_a_file_of_principles_has_its_line(text: str, line: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_principles(text, "p.yaml")
    assert str(caught.value).startswith(line)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--principles", "leader"], "unknown principles 'leader' (did you mean 'ladder'?)"),
        (["--answers", "fist"], "--answers: 'rows.jsonl', row 1 has no 'fist' (did you mean 'first'?)"),
        (["--answers", "first", "--sample", "m"], "--answers and --sample exclude each other"),
        (["--temperature", "0.5"], "--temperature needs --sample"),
        (["--out", "rows.jsonl"], "'rows.jsonl' exists: choose another name"),
    ],
)
def test_mistakes_of_revise(house: Path, words: Sequence[str], line: str) -> None:
    write_jsonl(house / "rows.jsonl", [json.dumps({"prompt": "a", "first": "F"})])
    given = {"--principles": "ladder", "--out": "sft.jsonl"} | dict(zip(words[0::2], words[1::2], strict=True))
    options = [word for pair in given.items() for word in pair]
    refused = vigneron("revise", "rows.jsonl", "--model", option("writer"), *options)
    assert refused.code == 2
    assert refused.err.startswith(f"error: {line}")


# ------------------------------------------------------------------------------------------------ easy to hard


def sampling(seen: Seen, before: int) -> Sent:
    """Guided answers by their system message; random ones differ from draw to draw."""
    system = seen.body["messages"][0]["content"]
    if "badly" in system:
        return chat("bad")
    return chat("good") if "as well as" in system else chat(f"random {before} {'e' * (before % 3)}")


def test_pairs_from_easy_to_hard(house: Path) -> None:
    with serving(sampling) as server:
        config = EndpointJudgeConfig(kind="endpoint", model="m", url=server.url, concurrency=1, retries=0)
        model = build_judge(config, cache=AnswerCache(house / "answers.sqlite"))
        found = graded_pairs(model, rule("biased", house), ["p", "q"], PRINCIPLES, seed=0)
        assert {seen.body["temperature"] for seen in server.seen} == {0.0, 1.0}
        assert len(server.seen) == 8, "good, bad and two random answers of each prompt"
        model.stop()
    assert [row["level"] for row in found.rows] == [1, 1, 2, 2, 3, 3]
    for row in found.rows[:4]:
        assert (row["chosen"], row["preferred"], row["labelled_by"]) == ("good", 1.0, "construction")
    assert [row["rejected"].split()[0] for row in found.rows[:4]] == ["bad", "bad", "random", "random"]
    hard = found.rows[4:]
    assert {row["labelled_by"] for row in hard} == {"judge"}
    assert all(row["chosen"].count("e") >= row["rejected"].count("e") for row in hard)


def test_the_pairs_command_and_its_mistakes(house: Path) -> None:
    write_jsonl(house / "rows.jsonl", [json.dumps({"prompt": p}) for p in "ab"])
    words = ["pairs", "rows.jsonl", "--principles", "ladder", "--model", option("writer"), "--out", "pairs.jsonl"]
    without = vigneron(*words)
    assert without.err.startswith("error: level 3 compares two random answers, which needs --judge")
    assert vigneron(*words, "--levels", "1,4").err.startswith("error: --levels: expected levels of 1 to 3")
    unused = vigneron(*words, "--levels", "1,2", "--judge", option("biased"))
    assert unused.err.startswith("error: --judge has no effect without level 3")
    made = vigneron(*words, "--judge", option("biased"))
    assert made.code == 0, made.err
    assert "note: 2 pairs of equal texts are left out" in made.out, "a rule draws nothing at random"
    assert Counter(row["level"] for row in read(house / "pairs.jsonl")) == {1: 2, 2: 2}


# ------------------------------------------------------------------------------------------------ the ladder's rule


def asked(*messages: tuple[str, str]) -> str:
    return ladder_judge([{"role": role, "content": content} for role, content in messages])


def test_the_ladders_rule_mends_one_fault_a_revision(house: Path) -> None:
    config = PythonJudgeConfig(kind="python", function="vigneron.rubric.ladder_rule:judge")
    model = build_judge(config, cache=AnswerCache(house / "answers.sqlite"))
    principles = read_principles("ladder", only="running sums")
    found = revise(model, ["7 + 12 + 5 =\n"] * 2, ["8\n19\n25", "7\n19\n24"], principles, revisions=1, seed=0)
    assert [row.answer for row in found.rows] == ["7\n19\n25", "7\n19\n24"]
    twice = revise(model, ["7 + 12 + 5 =\n"], ["8\n19\n25"], principles, revisions=2, seed=0)
    assert twice.rows[0].answer == "7\n19\n24"
    terms = read_principles("ladder", only="all terms")
    lines = revise(model, ["7 + 12 + 5 =\n"] * 2, ["7", "7\n19\n24\n24"], terms, revisions=1, seed=0)
    assert [row.answer for row in lines.rows] == ["7\n19\n24", "7\n19\n24"]
    better, equal = compare(
        model,
        [
            Compared("7 + 12 =\n", "7\n19", "7\n20", principles[0].text),
            Compared("7 + 12 =\n", "7\n19", "7\n20", terms[0].text),
        ],
    )
    assert (better.probability, equal.probability) == (1.0, 0.5)
    assert asked(("user", "7 + 12 =\n")) == "7\n19"
