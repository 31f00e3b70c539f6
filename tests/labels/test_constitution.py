"""Critique and revision, labels by a judge, pairs from easy to hard: with judges whose every reply is known."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from support.command_line import vigneron, write_jsonl
from support.servers import Seen, Sent, chat, refusal, serving
from vigneron.config.judges import EndpointJudgeConfig, PythonJudgeConfig
from vigneron.errors import UserError
from vigneron.labels.by_judge import label_pairs, pair_key, pair_row
from vigneron.labels.graded_pairs import graded_pairs
from vigneron.labels.items import Comparison
from vigneron.labels.revisions import drawn, revise
from vigneron.rubric.comparing import Compared, both_orders, compare
from vigneron.rubric.ladder_rule import judge as ladder_judge
from vigneron.rubric.principles import Principle, parse_principles, read_principles
from vigneron.sources.answer_cache import AnswerCache
from vigneron.sources.judges import Judge, build_judge

PRINCIPLES = [Principle(name=name, text=f"It is {name}.") for name in ("short", "kind", "true")]
FUNCTIONS = '''
import json
import re

def request(messages):
    return next(m["content"] for m in messages if m["role"] == "user")

def texts(messages):
    found = re.findall(r"<(\\w+)-([0-9a-f]{8,})>\\n(.*?)\\n?</", request(messages), re.DOTALL)
    return {name: text for name, _, text in found}

def biased(messages):
    """More letters e are better, the first text by 0.2 too: the order of the texts matters to it."""
    seen = texts(messages)
    gap = seen["first"].count("e") - seen["second"].count("e")
    score = min(1.0, max(0.0, 0.6 + 0.2 * gap))
    return json.dumps({"reasoning": "e", "score": score, "confidence": 1})

def always_first(messages):
    return json.dumps({"reasoning": "first", "score": 1, "confidence": 1})

def silent_on_x(messages):
    seen = texts(messages)
    return "I will not." if "x" in seen["first"] else biased(messages)

def writer(messages):
    """Answers, criticises and adds the number of its critique; silent about rows with z."""
    seen, asked = texts(messages), request(messages)
    if "critique" in seen:
        return seen["response"] + "+" + re.search(r"It is (\\w+)", asked)[1]
    if "response" in seen:
        return "" if "z" in seen["question"] else "Say more."
    system = messages[0]["content"] if messages[0]["role"] == "system" else ""
    if "badly" in system:
        return "bad"
    if "as well as" in system:
        return "good eee"
    return "answer to " + asked
'''


@pytest.fixture(autouse=True)
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "house_judges.py").write_text(FUNCTIONS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("VIGNERON_CACHE", str(tmp_path / "cache"))
    return tmp_path


def rule(name: str, folder: Path) -> Judge:
    config = PythonJudgeConfig(kind="python", function=f"house_judges:{name}")
    return build_judge(config, cache=AnswerCache(folder / "answers.sqlite"))


def option(name: str) -> str:
    return f"{{kind: python, function: 'house_judges:{name}'}}"


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# ------------------------------------------------------------------------------------------------ both orders


def test_both_orders_are_averaged_by_hand(house: Path) -> None:
    """`e` against `ee`: 0.6 − 0.2 = 0.4 as the first text, 0.6 + 0.2 = 0.8 for the other: (0.4 + 1 − 0.8) / 2 = 0.3."""
    pairs = [Compared("q", "e", "ee"), Compared("q", "ee", "e"), Compared("q", "one", "two"), Compared("q", "a", "b")]
    found = [each.probability for each in compare(rule("biased", house), pairs)]
    assert found == pytest.approx([0.3, 0.7, 0.7, 0.5])


def test_a_judge_that_always_prefers_the_first_text_has_no_say(house: Path) -> None:
    found = compare(rule("always_first", house), [Compared("q", "a", "b"), Compared("q", "c", "d")])
    assert [each.probability for each in found] == [0.5, 0.5]


def test_a_label_that_is_missing_in_one_order_is_missing(house: Path) -> None:
    lost, kept = compare(rule("silent_on_x", house), [Compared("q", "a", "x"), Compared("q", "e", "a")])
    assert lost.probability is None
    assert lost.why is not None
    assert "JSON" in lost.why
    assert kept.probability == pytest.approx(0.7)


@given(st.floats(0, 1), st.floats(0, 1))
def test_the_mean_does_not_depend_on_the_order(one: float, other: float) -> None:
    assert both_orders(one, other) == pytest.approx(1 - both_orders(other, one))
    assert 0 <= both_orders(one, other) <= 1


@given(st.floats(0, 1))
def test_the_better_text_is_chosen_and_its_label_at_least_one_half(probability: float) -> None:
    row = pair_row("q", ("a", "b"), probability, "judge")
    assert row["preferred"] >= 0.5
    assert row["preferred"] == pytest.approx(probability if row["chosen"] == "a" else 1 - probability)
    assert {row["chosen"], row["rejected"]} == {"a", "b"}


# ------------------------------------------------------------------------------------------------ labels


def comparisons(*pairs: tuple[str, str]) -> list[Comparison]:
    return [Comparison(f"q{number}", pair) for number, pair in enumerate(pairs)]


def test_labels_keep_ties_soft_and_name_the_principle(house: Path) -> None:
    items = comparisons(("a", "e"), ("b", "c"), ("x", "e"))
    found = label_pairs(rule("silent_on_x", house), items, principles=PRINCIPLES, seed=3)
    assert [(row["chosen"], row["rejected"], row["preferred"]) for row in found.rows] == [
        ("e", "a", 0.7),
        ("b", "c", 0.5),
    ]
    assert [row["principle"] for row in found.rows] == [drawn(PRINCIPLES, 3, item.id).name for item in items[:2]]
    assert (found.ties, found.missing, found.count("judge")) == (1, 1, 2)


def test_people_win_and_their_pairs_cost_nothing(house: Path) -> None:
    people = [{"prompt": "q0", "chosen": "a", "rejected": "e"}, {"prompt": "other", "chosen": "c", "rejected": "d"}]
    judge = rule("biased", house)
    found = label_pairs(judge, comparisons(("e", "a"), ("e", "b")), people=people)
    assert judge.calls == 2, "only the second pair, in both orders"
    assert [(row["chosen"], row["preferred"], row["labelled_by"]) for row in found.rows] == [
        ("a", 1.0, "people"),
        ("c", 1.0, "people"),
        ("e", 0.7, "judge"),
    ]
    assert pair_key("q0", ("e", "a")) == pair_key("q0", ("a", "e "))


def test_a_checker_decides_first_and_the_judge_among_right_answers(house: Path) -> None:
    """HRLAIF. Right is what ends in 1; unknown is what ends in ?."""

    def check(prompt: Any, completion: Any) -> bool | None:
        return None if completion.endswith("?") else completion.endswith("1")

    judge = rule("biased", house)
    items = comparisons(("ee0", "a1"), ("b1", "e0"), ("a0", "b0"), ("a1", "e1"), ("e?", "a1"))
    found = label_pairs(judge, items, check=check)
    assert [(row["chosen"], row["preferred"], row["labelled_by"]) for row in found.rows] == [
        ("a1", 1.0, "checker"),
        ("b1", 1.0, "checker"),
        ("e1", 0.7, "judge"),
        ("e?", 0.7, "judge"),
    ]
    assert (found.both_wrong, judge.calls) == (1, 4)


def test_the_command_labels_a_file_and_the_pairs_train(house: Path) -> None:
    rows = [
        {"prompt": "p", "completion_a": "e1", "completion_b": "a1", "answer": "1"},
        {"prompt": "q", "completion_a": "b", "completion_b": "ee", "answer": "ee"},
        {"prompt": "r", "completion_a": "b", "completion_b": "c", "answer": "d"},
    ]
    write_jsonl(house / "file.jsonl", map(json.dumps, rows))
    write_jsonl(house / "people.jsonl", [json.dumps({"prompt": "p", "chosen": "a1", "rejected": "e1"})])
    judged = vigneron(
        "label", "file.jsonl", "--judge", option("biased"), "--people", "people.jsonl", "--checker", "equality",
        "--out", "pairs.jsonl",
    )  # fmt: skip
    assert judged.code == 0, judged.err
    assert [(row["chosen"], row["labelled_by"]) for row in read(house / "pairs.jsonl")] == [
        ("a1", "people"),
        ("ee", "checker"),
    ]
    assert "note: 1 pairs of two wrong answers are left out" in judged.out
    assert "wrote pairs.jsonl: 2 pairs (1 by people, 1 by checker), 0 ties" in judged.out
    checked = vigneron("validate", "dpo.yaml") if write_dpo(house) else None
    assert checked is not None
    assert checked.code == 0, checked.err


def write_dpo(folder: Path) -> Path:
    path = folder / "dpo.yaml"
    path.write_text("method: {name: dpo}\ndata: {train: pairs.jsonl}\nsteps: 1\nprompts_per_step: 1\n")
    return path


def test_pairs_that_are_ties_only_are_written_with_a_notice_and_refused_in_training(house: Path) -> None:
    write_jsonl(house / "file.jsonl", [json.dumps({"prompt": "p", "completions": ["a", "b"]})])
    judged = vigneron("label", "file.jsonl", "--judge", option("biased"), "--out", "pairs.jsonl")
    assert judged.code == 0
    assert "note: all pairs are ties" in judged.out
    write_dpo(house)
    refused = vigneron("validate", "dpo.yaml")
    assert refused.code == 2
    assert (
        refused.err == "error: data: 'pairs.jsonl': all 1 pairs are ties (`preferred` is 0.5): nothing can be learned\n"
    )


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--people", "file.jsonl"], "--people needs --judge"),
        (["--judge", "J", "--best"], "--judge labels pairs: leave out --best, --scores, --solutions and --as"),
        (["--judge", "J", "--principle", "kind"], "--principle needs --principles: the file that has it"),
        (["--judge", "J", "--checker", "equality"], "--checker: equality needs the column 'answer', which no row has"),
        (
            ["--judge", "J", "--principles", "ladder", "--principle", "all"],
            "--principle: 'ladder' has no principle 'all' (available: running sums, all terms)",
        ),
        (["--judge", "{kind: python}"], "--judge: 'judge.function' is missing"),
    ],
)
def test_mistakes_are_one_line(house: Path, words: Sequence[str], line: str) -> None:
    write_jsonl(house / "file.jsonl", [json.dumps({"prompt": "p", "completions": ["a", "b"]})])
    refused = vigneron(
        "label", "file.jsonl", "--out", "pairs.jsonl", *(option("biased") if word == "J" else word for word in words)
    )
    assert refused.code == 2
    assert refused.err.startswith(f"error: {line}")
    assert len(refused.err.splitlines()) == 1
    assert not (house / "pairs.jsonl").exists()


def test_a_checker_that_fails_is_one_line(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (house / "failing_checks.py").write_text("def check(completions, **_): return [1 / 0]")
    monkeypatch.syspath_prepend(str(house))
    write_jsonl(house / "file.jsonl", [json.dumps({"prompt": "p", "completions": ["a", "b"]})])
    words = ["--judge", option("biased"), "--checker", "failing_checks:check", "--out", "pairs.jsonl"]
    refused = vigneron("label", "file.jsonl", *words)
    assert refused.code == 2
    assert refused.err.startswith("error: checker 'failing_checks:check' raised ZeroDivisionError")
    assert len(refused.err.splitlines()) == 1
    assert not (house / "pairs.jsonl").exists()


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
