"""One model plays all roles: what each role reads, the rows that are written, and SFT on them."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.command_line import vigneron
from support.house_judges import read
from support.servers import Seen, Sent, chat, refusal, serving
from support.talking import talking_model
from vigneron import api
from vigneron.config.judges import PythonJudgeConfig
from vigneron.errors import UserError
from vigneron.selfplay.roleplay import DittoDialogue, MatrixScene, games_of, play_all
from vigneron.selfplay.scenes import Person, Scene, Scenes, bundled_scenes, read_scenes
from vigneron.sources.answer_cache import AnswerCache
from vigneron.sources.judges import Judge, build_judge

ACTOR = '''
import json

def actor(messages):
    """Names the role that it was given and how often it has spoken."""
    first, spoken = messages[0]["content"], sum(m["role"] == "assistant" for m in messages)
    if first.startswith("You are the cat:"):
        return f"cat {spoken}"
    if first.startswith("You are the owner:"):
        return f"owner {spoken}"
    if first.startswith("You talk with"):
        return f"question {spoken}?"
    if first.startswith("You are "):
        return "reply of " + first.split(".")[0].removeprefix("You are ") + f" {spoken}"
    assert [m["role"] for m in messages] in (["user"], ["user", "assistant", "user"])
    return "revised" if spoken else "first"

def mute(messages):
    """Says nothing as the owner."""
    return "" if messages[0]["content"].startswith("You are the owner:") else actor(messages)
'''
SCENE = {
    "name": "cat",
    "instruction": "How do I wash my cat?",
    "roles": [{"name": "the cat", "about": "hates water"}, {"name": "the owner", "about": "is in a hurry"}],
}
PEOPLE = [{"name": "Ada", "about": "keeps bees"}, {"name": "Bo", "about": "sails"}]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "actors.py").write_text(ACTOR)
    (tmp_path / "scenes.json").write_text(json.dumps({"scenes": [SCENE], "characters": PEOPLE}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("VIGNERON_CACHE", str(tmp_path / "cache"))
    return tmp_path


def actor(place: Path, name: str = "actor") -> Judge:
    return build_judge(
        PythonJudgeConfig(kind="python", function=f"actors:{name}"), cache=AnswerCache(place / "a.sqlite")
    )


def by(name: str) -> str:
    return f"{{kind: python, function: 'actors:{name}'}}"


def test_everybody_concerned_reads_what_followed_and_the_answer_is_written_again(place: Path) -> None:
    (played,) = play_all(actor(place), [MatrixScene(Scene(**SCENE), rounds=2)])
    talks = played.talks
    cat, owner = ([m["content"] for m in talks[role] if m["role"] == "user"] for role in ("the cat", "the owner"))
    assert cat[0].startswith("You are the cat: hates water\nSomebody asked:\n<question-")
    assert "How do I wash my cat?" in cat[0]
    assert "first" in cat[0]
    assert "Nothing yet." in cat[0]
    assert "the cat: cat 0" in owner[0]
    assert cat[1].startswith("Since then:")
    assert "the owner: owner 0" in cat[1]
    assert "cat 1" in owner[1]
    assert "cat 0" not in owner[1]  # it has read that
    last = talks["assistant"][-2]["content"]
    followed = ["the cat: cat 0", "the owner: owner 0", "the cat: cat 1", "the owner: owner 1"]
    assert "\n".join(followed) in last
    assert played.game.row(talks) == {
        "messages": [{"role": "user", "content": SCENE["instruction"]}, {"role": "assistant", "content": "revised"}],
        "scene": "cat",
        "first_answer": "first",
        "followed": followed,
    }


def test_a_dialogue_is_trained_without_the_profile(place: Path) -> None:
    ada, bo = (Person(**person) for person in PEOPLE)
    own, other = play_all(actor(place), [DittoDialogue(ada, turns=2), DittoDialogue(ada, bo, turns=2)])
    assert "keeps bees" in own.talks["interviewer"][0]["content"]
    assert "keeps bees" in own.talks["character"][0]["content"]
    assert "sails" in other.talks["interviewer"][0]["content"]
    assert "keeps bees" in other.talks["character"][0]["content"]
    assert "reply of Ada 0" in own.talks["interviewer"][2]["content"]
    row = own.game.row(own.talks)
    assert row == {
        "messages": [
            {"role": "system", "content": "You are Ada."},
            {"role": "user", "content": "question 0?"},
            {"role": "assistant", "content": "reply of Ada 0"},
            {"role": "user", "content": "question 1?"},
            {"role": "assistant", "content": "reply of Ada 1"},
        ],
        "character": "Ada",
        "asked_about": "Ada",
    }
    assert other.game.row(other.talks)["asked_about"] == "Bo"


def test_all_scenes_and_characters_of_a_file_are_played() -> None:
    scenes = Scenes(**{"scenes": [SCENE], "characters": PEOPLE})
    games = games_of(scenes, 1, 3)
    assert [type(game).__name__ for game in games] == ["MatrixScene", *["DittoDialogue"] * 4]
    assert [game.subject.name for game in games[1:]] == ["Ada", "Bo", "Bo", "Ada"]
    alone = games_of(Scenes(**{"characters": PEOPLE[:1]}), 1, 3)
    assert len(alone) == 1


def test_what_the_command_writes_trains(place: Path) -> None:
    made = vigneron("roleplay", "scenes.json", "--model", by("actor"), "--out", "sft.jsonl")
    assert made.code == 0, made.err
    assert "wrote sft.jsonl: 5 rows (1 scenes, 4 dialogues); 1 answers were changed by what followed" in made.out
    assert "method: {name: sft}\ndata: {train: sft.jsonl}" in made.out
    rows = read(place / "sft.jsonl")
    assert [len(row["messages"]) for row in rows] == [2, 7, 7, 7, 7]
    model, tokenizer = talking_model(positions=1024)
    model.save_pretrained(place / "model")
    tokenizer.save_pretrained(place / "model")
    recipe = "method: {name: sft}\ndata: {train: sft.jsonl}\nsteps: 2\nprompts_per_step: 5\nsave_every: 0\n"
    (place / "sft.yaml").write_text(recipe)
    run = api.train("sft.yaml", runs=place / "runs", model={"name": str(place / "model"), "device": "cpu"})
    losses = [json.loads(line)["loss/nll"] for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert losses[1] < losses[0]


def test_a_missing_reply_leaves_its_scene_out(place: Path) -> None:
    made = vigneron(
        "roleplay", "scenes.json", "--model", "{kind: python, function: 'actors:mute'}", "--out", "sft.jsonl"
    )
    assert made.code == 0, made.err
    assert "note: 1 scenes or dialogues are left out; the first: " in made.out
    assert len(read(place / "sft.jsonl")) == 4


def test_a_cut_reaction_is_used_and_a_cut_answer_is_not(place: Path) -> None:
    def script(seen: Seen, before: int) -> Sent:
        first = seen.body["messages"][0]["content"]
        return chat("so", "length" if first.startswith(("You are the ", "You talk", "You are Bo")) else "stop")

    with serving(script) as server:
        model = f"{{kind: endpoint, model: m, url: '{server.url}', retries: 0}}"
        made = vigneron("roleplay", "scenes.json", "--model", model, "--out", "sft.jsonl", "--turns", 1)
    assert made.code == 0, made.err
    rows = read(place / "sft.jsonl")
    assert [row.get("scene") or row["character"] for row in rows] == ["cat", "Ada", "Ada"]


def test_samples_differ_and_are_asked_once(place: Path) -> None:
    def script(seen: Seen, before: int) -> Sent:
        return chat(f"text {before}")

    words = ("roleplay", "scenes.json", "--turns", 1, "--samples", 2, "--temperature", 0.7)
    with serving(script) as server:
        model = f"{{kind: endpoint, model: m, url: '{server.url}', concurrency: 1, retries: 0}}"
        assert vigneron(*words, "--model", model, "--out", "one.jsonl").code == 0
        asked = len(server.seen)
        assert vigneron(*words, "--model", model, "--out", "two.jsonl").code == 0
        assert len(server.seen) == asked + 1  # the preflight: all else is in the cache
    rows: list[dict[str, Any]] = read(place / "one.jsonl")
    assert len(rows) == 10
    assert rows[0]["messages"] != rows[5]["messages"]
    assert rows == read(place / "two.jsonl")


def test_an_endpoint_that_fails_writes_nothing(place: Path) -> None:
    def script(seen: Seen, before: int) -> Sent:
        return refusal(500, "down") if before else chat("yes")

    with serving(script) as server:
        model = f"{{kind: endpoint, model: m, url: '{server.url}', retries: 0}}"
        made = vigneron("roleplay", "scenes.json", "--model", model, "--out", "sft.jsonl")
    assert made.code == 2
    assert "no row was written: the model gave no reply" in made.err
    assert not (place / "sft.jsonl").exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "neither `scenes` nor `characters`"),
        ({"scenes": [SCENE, SCENE]}, "two of scenes are named 'cat'"),
        ({"characters": [PEOPLE[0], PEOPLE[0]]}, "two of characters are named 'Ada'"),
        ({"scenes": [{**SCENE, "roles": [{"name": "assistant", "about": "x"}]}]}, "give it another name"),
        ({"scenes": [{**SCENE, "roles": []}]}, "scenes[0].roles"),
        ({"characters": [{"name": "Ada"}]}, "'characters[0].about' is missing"),
        ({"scene": [SCENE]}, "did you mean 'scenes'?"),
    ],
)
def test_what_is_no_file_of_scenes_is_named(place: Path, given: Any, message: str) -> None:
    (place / "bad.json").write_text(json.dumps(given))
    with pytest.raises(UserError) as error:
        read_scenes("bad.json")
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("everyday", "--samples", 2), "--samples needs --temperature"),
        (("everydya",), "unknown scenes 'everydya' (did you mean 'everyday'?)"),
        (("alone.json", "--rounds", 2), "--rounds has no effect: 'alone.json' has no scenes"),
    ],
)
def test_options_without_effect_are_named(place: Path, words: Any, message: str) -> None:
    (place / "alone.json").write_text(json.dumps({"characters": PEOPLE}))
    made = vigneron("roleplay", *words, "--model", by("actor"), "--out", "x.jsonl")
    assert made.code == 2
    assert message in made.err


def test_a_model_by_its_name_alone_is_told_the_mapping(place: Path) -> None:
    made = vigneron("roleplay", "everyday", "--model", "gpt-4.1", "--out", "x.jsonl")
    assert made.code == 2
    assert "--model: 'gpt-4.1' is no recipe and no file: for a model of that name, --model '{kind: " in made.err


def test_the_bundled_scenes_are_read() -> None:
    assert bundled_scenes() == ["everyday"]
    scenes = read_scenes("everyday")
    assert (len(scenes.scenes), len(scenes.characters)) == (6, 4)
