"""`vigneron rubric try | convert | atomize | review`, as a user sees them."""

import csv
import io
import json
import re
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import yaml

from support.command_line import Answer, vigneron, write_jsonl
from support.servers import Seen, Sent, chat, refusal, serving, verdict
from vigneron.rubric.read import read_rubric
from vigneron.run_store.samples import Sample, SampleStore
from vigneron.sources import client as client_module

RUBRIC = """\
version: "2"
categories:
  words:
    items:
      - {name: same, description: the same word, flow: string_check, weight: 3}
      - {name: nice, description: a nice one, flow: judge, critique: "You are a critic of {{ row.language }}."}
  numbers:
    items:
      - {name: short, description: a short one, flow: length, at_most: 2}
"""
FUNCTIONS = '''
import json

def judge(messages):
    """Half a point for each e, surer of long answers; silent about what it is told to be silent about."""
    said = next(m["content"] for m in messages if m["role"] == "user")
    response = said.split("<response-")[1].split(">\\n")[1].split("\\n</")[0]
    if "Write your critique" in said:
        return f"[bold]Of {response}[/bold]: \\x1b[31mno red here."
    if response == "silence":
        return "I would rather not."
    confidence = 0.5 if response == "tree" else 1.0
    return json.dumps({"reasoning": f"an e in {response}", "score": response.count("e") / 2, "confidence": confidence})

def propose(messages):
    return json.dumps({"items": [
        {"name": "few words", "description": "At most ten.", "flow": "length", "at_most": 10},
        {"name": "broken", "description": "d", "flow": "regex", "pattern": "(a"},
        {"name": "no capitals", "description": "d", "flow": "regex", "pattern": "[A-Z]", "expect": "absent"},
    ]})
'''
JUDGE = "{kind: python, function: verb_functions:judge}"
PROPOSE = "{kind: python, function: verb_functions:propose}"


@pytest.fixture
def rubric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "verb_functions.py").write_text(FUNCTIONS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / "mine.yaml"
    path.write_text(RUBRIC, encoding="utf-8")
    return path


def answers(folder: Path, *completions: str, **keys: Any) -> Path:
    row = {"prompt": "Say tree.", "category": "words", "language": "English", "answer": "tree", **keys}
    return write_jsonl(folder / "answers.jsonl", [json.dumps({**row, "completion": said}) for said in completions])


def refused(answer: Answer) -> str:
    """One line, and nothing before it."""
    assert answer.code == 2
    (line,) = answer.err.splitlines()
    return line.removeprefix("error: ")


def flat(text: str) -> str:
    return " ".join(text.split())


# ------------------------------------------------------------------------------------------------ try


def test_try_shows_scores_words_reward_and_advantage(rubric: Path) -> None:
    """φ̄ is 1 and 0.75; R = 2 (0.75·τ₁ + 0.25·0.75·τ₂) / 1.75: 15/14 for the first, 3/28 for the second."""
    answer = vigneron("rubric", "try", rubric, answers(rubric.parent, "tree", "red"), "--judge", JUDGE)
    assert answer.code == 0, answer.err
    assert "note: the weights of 'words' sum to 4" in answer.out
    assert "answer 1 of 2: words, one of 2 answers to question 1" in answer.out
    assert re.search(r"same +0\.75 +1\.00 +1\.00 +the response equals", answer.out)
    assert re.search(r"nice +0\.25 +1\.00 +0\.50 +\[bold\]Of tree\[/bold\]: \\x1b\[31mno red", answer.out)
    assert "an e in tree" in answer.out
    assert "\x1b" not in answer.out
    assert "reward 1.0714   advantage +0.4821" in answer.out
    assert "reward 0.1071   advantage -0.4821" in answer.out
    assert re.search(r"rubric 2@[0-9a-f]{8}: 2 answers, 4 scores\n", answer.out)
    assert "judge python:verb_functions:judge: 4 calls, 0 tokens in, 0 out; 0 replies from the cache" in answer.out


def test_normalise_gives_a_perfect_answer_one(rubric: Path) -> None:
    answer = vigneron("rubric", "try", rubric, answers(rubric.parent, "tree"), "--judge", JUDGE, "--normalise")
    assert "reward 1.0000\n" in answer.out
    assert "advantage" not in answer.out


def test_a_failure_is_never_a_zero(rubric: Path) -> None:
    """The item leaves the question's rubric: the other answer's reward is its string_check alone."""
    answer = vigneron("rubric", "try", rubric, answers(rubric.parent, "tree", "silence"), "--judge", JUDGE)
    assert answer.code == 0, answer.err
    assert re.search(r"nice +0\.25 +missing +failed: its reply", answer.out)
    assert "not one JSON object" in flat(answer.out)
    assert answer.out.count("dropped for all answers to this question because they failed: nice") == 2
    assert "reward 1.0000   advantage +0.5000" in answer.out
    assert "4 scores, 1 missing (ignored, not counted as 0)" in answer.out


def test_a_judge_is_needed_only_where_it_judges(rubric: Path) -> None:
    numbers = answers(rubric.parent, "one two three four", category="numbers")
    answer = vigneron("rubric", "try", rubric, numbers)
    assert answer.code == 0, answer.err
    assert "reward 0.5000" in answer.out
    assert "judge" not in answer.out
    line = refused(vigneron("rubric", "try", rubric, answers(rubric.parent, "tree")))
    assert line.startswith("'words.nice' is scored by a judge (flow: judge): add one, e.g. --judge '{kind: endpoint")


def test_the_judge_of_a_recipe_or_of_a_file(rubric: Path) -> None:
    given = answers(rubric.parent, "tree")
    alone = rubric.parent / "judge.json"
    alone.write_text('{"kind": "python", "function": "verb_functions:judge"}')
    recipe = rubric.parent / "recipe.yaml"
    write_jsonl(rubric.parent / "rows.jsonl", ['{"prompt": "a"}'])
    held = {"kind": "rubric", "file": str(rubric), "judge": yaml.safe_load(JUDGE)}
    common = {"method": {"name": "grape"}, "model": {"name": "x"}, "data": {"train": "rows.jsonl"}, "group_size": 2}
    recipe.write_text(yaml.safe_dump({**common, "reward": held}))
    for judge in (alone, recipe):
        answer = vigneron("rubric", "try", rubric, given, "--judge", judge)
        assert answer.code == 0, answer.err
        assert "reward 1.1667" in answer.out, "2 (0.75 + 0.25 · 0.5) / 1.5"
    recipe.write_text(yaml.safe_dump({**common, "reward": {"kind": "rubric", "file": str(rubric)}}))
    assert "has no `reward.judge`" in refused(vigneron("rubric", "try", rubric, given, "--judge", recipe))


@pytest.mark.parametrize(
    ("judge", "line"),
    [
        ("{kind: enpoint, model: m}", "--judge: judge.kind: one of 'endpoint', 'local', 'python', not 'enpoint'"),
        ("{kind: endpoint}", "--judge: 'judge.model' is missing"),
        ("{kind: endpoint, model: m, modle: n}", "--judge: unknown key 'judge.modle' (did you mean 'model'?)"),
        ("{kind: endpoint", "--judge, line 1: not valid YAML"),
        ("[1]", "--judge: expected a mapping, a recipe or a file"),
        ("nowhere.json", "--judge: cannot read 'nowhere.json': No such file or directory"),
        ("nowhere.yaml", "cannot read the recipe 'nowhere.yaml': No such file or directory"),
        ("{kind: python, function: nowhere:f}", "--judge.function: "),
    ],
)
def test_a_wrong_judge_is_one_line(rubric: Path, judge: str, line: str) -> None:
    given = answers(rubric.parent, "tree")
    assert refused(vigneron("rubric", "try", rubric, given, "--judge", judge)).startswith(line)


@pytest.mark.parametrize(
    ("row", "line"),
    [
        ({"prompt": "p"}, "row 1 has no 'completion'"),
        ({"prompt": "p", "completion": 3}, "row 1: completion is neither a string nor a list of messages"),
        ({"completion": "a"}, "row 1 has no 'prompt'"),
        ({"prompt": "p", "completion": ""}, "row 1 has no 'category'"),
        ({"prompt": "p", "completion": "", "category": "words", "answer": "a"}, "row 1 has no 'language'"),
    ],
)
def test_bad_answers_are_one_line(rubric: Path, row: dict[str, Any], line: str) -> None:
    path = write_jsonl(rubric.parent / "bad.jsonl", [json.dumps(row)])
    assert line in refused(vigneron("rubric", "try", rubric, path, "--judge", JUDGE))


def test_try_against_a_server(rubric: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Critiques and scores over HTTP; one answer is refused with 400, and is missing; nothing is paid twice."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    monkeypatch.setenv("VIGNERON_CACHE", str(rubric.parent / "cache"))
    monkeypatch.setattr(client_module, "FIRST_WAIT_S", 0.01)

    def script(seen: Seen, before: int) -> Sent:
        said = seen.body["messages"][-1]["content"]
        if "hopeless" in said:
            return refusal(400, "too hopeless")
        if "Write your critique" in said:
            return chat("Nicely said.")
        return verdict(0.5, 1.0, "in between")

    with serving(script) as server:
        given = answers(rubric.parent, "tree", "bush", "hopeless")
        judge = json.dumps({"kind": "endpoint", "model": "grape", "url": server.url, "retries": 0})
        first = vigneron("rubric", "try", rubric, given, "--judge", judge)
        assert first.code == 0, first.err
        calls = len(server.seen)
        second = vigneron("rubric", "try", rubric, given, "--judge", judge)
    assert "Nicely said." in first.out
    assert re.search(r"failed: its critique: .*too hopeless", flat(first.out))
    assert "reward 1.0000   advantage +0.6667" in first.out, "only the string_check is left for this question"
    assert f"judge grape@{server.url}: {calls} calls" in first.out
    assert "4 replies from the cache" in second.out
    assert "2 calls, " in second.out, "the greeting, and the one that failed"


# ------------------------------------------------------------------------------------------------ convert


def test_convert_there_and_back(rubric: Path) -> None:
    answer = vigneron("rubric", "convert", "explanations", "e.json", "--from", "vigneron", "--to", "openai")
    assert answer.code == 0, answer.err
    assert "note: 'right length' is left out: `flow: length` has no counterpart\n" in answer.out
    assert answer.out.endswith("wrote e.json\n")
    answer = vigneron("rubric", "convert", "e.json", "e.yaml", "--from", "openai", "--to", "vigneron")
    assert answer.code == 0, answer.err
    back, was = read_rubric("e.yaml"), read_rubric("explanations")
    kept = {item.name: item for item in was.categories["explanations"].items if item.flow in ("judge", "verify")}
    for item in back.categories["explanations"].items:
        assert item.description == kept[item.name].description
    assert vigneron("rubric", "validate", "e.yaml").code == 0


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ["mine.yaml", "x.json", "--from", "vigneron", "--to", "openia"],
            "--to: unknown format 'openia' (did you mean",
        ),
        (["mine.yaml", "x.txt", "--from", "vigneron", "--to", "openai"], "'x.txt' must end in .json"),
        (["mine.yaml", "mine.yaml", "--from", "vigneron", "--to", "vigneron"], "'mine.yaml' exists"),
        (["mine.yaml", "x.json", "--from", "vigneron", "--to", "openai"], "OpenAI's graders have no categories"),
        (
            ["mine.yaml", "x.json", "--from", "vigneron", "--to", "openai", "--category", "word"],
            "--category: the rubric has no category 'word' (did you mean 'words'?)",
        ),
        (
            ["mine.yaml", "x.jsonl", "--from", "vigneron", "--to", "healthbench", "--model", "m"],
            "--model has no effect",
        ),
        (["no.json", "x.yaml", "--from", "verifiers", "--to", "vigneron"], "cannot read 'no.json': No such file"),
        (["no.jsonl", "x.yaml", "--from", "healthbench", "--to", "vigneron"], "data: file not found"),
        (["bad.json", "x.yaml", "--from", "openai", "--to", "vigneron"], "'bad.json', line 1: not valid JSON"),
        (
            ["mine.yaml", "no/x.json", "--from", "vigneron", "--to", "vigneron"],
            "cannot write 'no/x.json': No such file",
        ),
    ],
)
@pytest.mark.usefixtures("rubric")
def test_what_cannot_be_converted_is_one_line(words: list[str], line: str) -> None:
    Path("bad.json").write_text("{")
    assert refused(vigneron("rubric", "convert", *words)).startswith(line)
    assert not Path("x.json").exists()


# ------------------------------------------------------------------------------------------------ atomize


def test_atomize_writes_nothing_by_itself(rubric: Path) -> None:
    before = set(rubric.parent.iterdir())
    answer = vigneron("rubric", "atomize", rubric, "nice", "--judge", PROPOSE)
    assert answer.code == 0, answer.err
    assert "3 proposals for 'words.nice'" in answer.out
    assert "cannot be accepted: pattern: not a valid regular expression" in answer.out
    assert "nothing is written: to accept proposals add e.g. --accept 1,2 --out NEW.yaml" in answer.out
    assert {path for path in rubric.parent.iterdir() if path.suffix == ".yaml"} <= before


def test_atomize_writes_what_is_accepted(rubric: Path) -> None:
    words = ("rubric", "atomize", rubric, "nice", "--judge", PROPOSE, "--accept", "1, 3", "--share", "0.2")
    answer = vigneron(*words, "--out", "new.yaml")
    assert answer.code == 0, answer.err
    assert "accepted 'few words', 'no capitals': 20% of the weight of 'nice'" in answer.out
    grown = read_rubric("new.yaml")
    assert grown.version == "2.1"
    assert {item.name: round(item.weight, 6) for item in grown.categories["words"].items} == {
        "same": 3.0,
        "nice": 0.8,
        "few words": 0.1,
        "no capitals": 0.1,
    }
    assert read_rubric(rubric).version == "2"
    assert "'new.yaml' exists" in refused(vigneron(*words, "--out", "new.yaml"))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("typed", "names"), [("y\nn\n", ["few words"]), ("n\nYES\n", ["no capitals"]), ("", [])])
def test_at_a_terminal_each_is_asked_for(rubric: Path, typed: str, names: list[str]) -> None:
    with patch("io.StringIO", Terminal):
        answer = vigneron("rubric", "atomize", rubric, "nice", "--judge", PROPOSE, stdin=typed)
    assert answer.code == 0, answer.err
    assert "accept 1, 'few words'? [y/n]" in answer.out
    assert "accept 2" not in answer.out, "what is broken is not offered"
    written = Path("mine-2.1.yaml")
    assert written.exists() == bool(names)
    if names:
        assert [item.name for item in read_rubric(written).categories["words"].items] == ["same", "nice", *names]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["nicer"], "the rubric has no item 'nicer' (did you mean 'nice'?)"),
        (["same"], "'words.same' has `flow: string_check`: only items with `flow: judge` can be atomized"),
        (["nice", "--accept", "1"], "--accept needs --out"),
        (
            ["nice", "--accept", "one", "--out", "x.yaml"],
            "--accept: expected numbers of proposals such as 1,3, not 'one'",
        ),
        (
            ["nice", "--accept", "2", "--out", "x.yaml"],
            "--accept: proposal 2 cannot be accepted: pattern: not a valid reg",
        ),
        (["nice", "--accept", "4", "--out", "x.yaml"], "--accept: no proposal 4: the numbers are 1 to 3"),
        (["nice", "--share", "1"], "--share: expected a number between 0 and 1, not 1"),
        (["nice", "--out", "x.txt"], "'x.txt' should end in .yaml or .yml or .json"),
    ],
)
def test_what_cannot_be_atomized_is_one_line(rubric: Path, words: list[str], line: str) -> None:
    assert refused(vigneron("rubric", "atomize", rubric, *words, "--judge", PROPOSE)).startswith(line)
    assert not Path("x.yaml").exists()


# ------------------------------------------------------------------------------------------------ review


def scored(
    step: int, number: int, nice: float | None, same: float, version: str = "1@aa", kind: Any = "train"
) -> Sample:
    items: dict[str, Any] = {
        "nice": {"score": nice, "confidence": 0.4} if nice is not None else {"score": None, "why": "boom"},
        "same": {"score": same, "confidence": 1.0},
    }
    rubric = {"version": version, "category": "words", "items": items}
    text = f"a{number}"
    return Sample(step, kind, number, "user: p", text, None, 0.5, 0.0, None, False, {"rubric": rubric})


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text("{}")
    store = SampleStore(folder)
    store.add([scored(1, n, n / 10, n % 2) for n in range(10)])
    store.add([scored(2, 0, 1.0, 1.0, version="1.1@bb"), scored(2, 1, None, 0.0, version="1.1@bb")])
    store.add([scored(2, 0, 1.0, 0.5, version="1.1@bb", kind="eval")])
    store.close()
    return folder


def test_review_puts_the_weak_first(run: Path, tmp_path: Path) -> None:
    answer = vigneron("rubric", "review", run)
    assert answer.code == 0, answer.err
    found = [line.split() for line in answer.out.splitlines() if line.startswith("  words")]
    assert [(line[1], line[2]) for line in found] == [
        ("nice", "1.1@bb"),
        ("nice", "1@aa"),
        ("same", "1.1@bb"),
        ("same", "1@aa"),
    ]
    assert found[1][3:] == ["0.40", "0.45", "0.29", "10", "0"]
    assert "words.nice: low confidence, fails often (1 of 3)" in answer.out
    only = vigneron("rubric", "review", run, "--step", 1)
    assert "1.1@bb" not in only.out


def test_review_with_labels_and_a_csv(run: Path, tmp_path: Path) -> None:
    rows = [f"p,a{n},same,{(n + 1) % 2}" for n in range(10)] + ["p,other,same,1"]
    labels = write_jsonl(tmp_path / "labels.csv", ["prompt,completion,item,score", *rows])
    answer = vigneron("rubric", "review", run, "--labels", labels, "--step", 1, "--out", tmp_path / "review.csv")
    assert answer.code == 0, answer.err
    assert "words.same: disagrees with people (by 1.00 on average)" in answer.out
    assert "note: 1 of 11 labels match no score" in answer.out
    first, second = csv.DictReader((tmp_path / "review.csv").open())
    assert (first["item"], first["disagreement"], first["labelled"]) == ("same", "1.0", "10")
    assert float(first["correlation"]) == pytest.approx(-1)
    assert (second["item"], second["disagreement"], second["weak"]) == ("nice", "", "low confidence")


def test_labels_may_be_conversations(run: Path, tmp_path: Path) -> None:
    row = {"prompt": [{"role": "user", "content": "p"}], "completion": [{"role": "assistant", "content": "a3"}]}
    labels = write_jsonl(tmp_path / "labels.jsonl", [json.dumps({**row, "item": "nice", "score": 0.3})])
    answer = vigneron("rubric", "review", run, "--labels", labels)
    assert answer.code == 0, answer.err
    assert "match no score" not in answer.out


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["nowhere"], "there is no run 'nowhere'"),
        (["run", "--step", "7"], "--step: no stored samples of step 7; available steps: 1, 2"),
        (["run", "--out", "x.txt"], "'x.txt' should end in .csv"),
        (["run", "--labels", "empty.csv"], "labels: 'empty.csv' has no rows"),
        (["run", "--labels", "none.csv"], "labels: none of the 1 rows of 'none.csv' matches a score"),
        (["run", "--labels", "bad.csv"], "labels: 'bad.csv', row 1: score is '3', not a number from 0 to 1"),
        (["plain"], "'plain': the samples of this run have no rubric scores"),
        (["new"], "'new' has no samples yet"),
        (["broken"], "cannot read 'broken/samples.sqlite': file is not a database"),
    ],
)
def test_what_cannot_be_reviewed_is_one_line(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_jsonl(Path("empty.csv"), ["prompt,completion,item,score"])
    write_jsonl(Path("none.csv"), ["prompt,completion,item,score", "p,zzz,nice,1"])
    write_jsonl(Path("bad.csv"), ["prompt,completion,item,score", "p,a1,nice,3"])
    for name in ("plain", "new", "broken"):
        Path(name).mkdir()
        Path(name, "config.yaml").write_text("{}")
    Path("broken", "samples.sqlite").write_text("this is no database, however long it is made to look like one")
    store = SampleStore(Path("plain"))
    store.add([Sample(1, "train", 0, "p", "a", None, 0.5, 0.0, None, False, {})])
    store.close()
    assert refused(vigneron("rubric", "review", *words)).startswith(line)
