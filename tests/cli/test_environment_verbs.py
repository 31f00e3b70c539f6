"""Commands that sample from a run with an environment: they run it, or refuse with one line."""

import re
import shutil
import threading
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from support.command_line import vigneron
from support.judged_data import process_config
from support.labelling import session_of, write_rows
from support.talking_runs import Asked, talking_config, talking_rows, talking_run
from vigneron import api
from vigneron.recipe import check_config, config_yaml
from vigneron.report.html import write_report
from vigneron.run_store.folder import RunFolder
from vigneron.web.view import view_app


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """A recipe, its run, and what training printed."""
    place = tmp_path_factory.mktemp("talk")
    recipe = place / "talk.yaml"
    recipe.write_text(config_yaml(talking_config(place)))
    said = printed("train", recipe, "--runs", place / "runs", "--name", "talk")
    return recipe, place / "runs" / "talk", said


@pytest.fixture(scope="module")
def run(trained: tuple[Path, Path, str]) -> Path:
    return trained[1]


def printed(*words: object, stdin: str = "") -> str:
    answer = vigneron(*words, stdin=stdin)
    assert answer.code == 0, answer.err
    return answer.out


def refused(*words: object) -> str:
    answer = vigneron(*words)
    assert (answer.code, answer.err.count("\n")) == (2, 1), answer.err
    return answer.err


def asked_by(*words: object, stdin: str = "") -> tuple[str, int]:
    before = Asked.count
    return printed(*words, stdin=stdin), Asked.count - before


@pytest.mark.slow
def test_the_number_of_turns_is_in_the_line_of_a_step_and_in_show(trained: tuple[Path, Path, str]) -> None:
    _, run, said = trained
    (line,) = re.findall(r"^step 2/2 .*$", said, re.MULTILINE)
    assert re.search(r"  turns [123]\.\d{3}  ", line)
    shown = printed("show", run)
    assert re.search(r"^  turns +[123]\.\d{3}", shown, re.MULTILINE)
    assert f"vigneron chat {run} --environment" in shown


@pytest.mark.slow
def test_eval_runs_the_environment_and_shows_its_conversations(run: Path) -> None:
    said, asked = asked_by("eval", run, "--show", 2)
    metrics = {name: float(value) for name, value in re.findall(r"^  ([a-z]\S+) +([\d.]+) *$", said, re.MULTILINE)}
    assert metrics["turns/mean"] == asked / 3 > 1
    assert metrics["reward"] == pytest.approx(metrics["turns/reward/1"] + metrics["turns/reward/2"], abs=1e-3)
    assert said.count("--- sample ") == 2
    assert re.search(r"^--- sample 0, reward \S+ ---\nuser: x\nassistant: ", said, re.MULTILINE)
    assert "user: 1?" in said
    assert "  [reward " in said


@pytest.mark.slow
def test_eval_of_other_rows_and_their_failure_is_missing(run: Path, tmp_path: Path) -> None:
    rows = [*talking_rows("pq"), *talking_rows("r", breaks=True)]
    said = printed("eval", run, "--file", write_rows(tmp_path / "rows.jsonl", rows))
    assert "reward missing ---" in said
    assert "[the environment failed, so there is no reward: it raised ValueError: out of order" in said
    assert re.search(r"turns/failed\s+0\.3333", said)
    assert re.search(r"reward_missing\s+1\b", said)


@pytest.mark.slow
def test_pass_at_k_is_of_whole_conversations(run: Path) -> None:
    said, asked = asked_by("eval", run, "--samples", 4, "--k", "1,4")
    assert asked > 3 * 4
    assert "3 prompts, 4 samples each" in said


@pytest.mark.slow
def test_an_environment_that_fails_is_named_by_pass_at_k_and_by_the_probe(
    trained: tuple[Path, Path, str], tmp_path: Path
) -> None:
    recipe, run, _ = trained
    broken = write_rows(tmp_path / "broken.jsonl", talking_rows("pqr", breaks=True))
    named = "most often because it raised ValueError: out of order"
    assert named in refused("eval", run, "--file", broken, "--samples", 2)
    mixed = write_rows(tmp_path / "mixed.jsonl", [*talking_rows("pq"), *talking_rows("r", breaks=True)])
    some = [*talking_rows("pq", answer="~"), *talking_rows("r", answer="~", breaks=True)]
    said = printed("eval", run, "--file", write_rows(tmp_path / "some.jsonl", some), "--samples", 4, "--k", 2)
    left_out = "3 prompts, 4 samples each; .* 4 samples have no verdict .* pass@2 leaves out 1 prompts"
    assert re.search(left_out, " ".join(said.split()))
    said = printed("validate", recipe, "--probe", "--samples", 24, f"data.train={mixed}", "reward.missing_limit=1")
    assert re.search(rf"^note: the environment failed in 8 of 24 conversations .*{named}", said, re.MULTILINE)


@pytest.mark.slow
def test_a_sample_is_the_next_turn_and_converse_the_whole(run: Path) -> None:
    trained, before = api.load_run(run), Asked.count
    (turn,) = trained.sample(["x"])
    assert trained.sample([[{"role": "user", "content": "x"}]]) == [turn]
    assert Asked.count == before
    (sample,) = trained.converse(talking_rows("x"))
    first, reply, last = sample.extras["conversation"]
    assert (first["content"], reply, last["role"]) == (turn, {"role": "user", "content": "1?"}, "assistant")
    assert Asked.count == before + 2
    drawn = [trained.converse(talking_rows("x"), temperature=5.0, seed=seed)[0].completion for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.slow
def test_chat_the_user_plays_the_environment(run: Path) -> None:
    trained = api.load_run(run)
    # A first message to which the answer is a text that is printed as it is, and not half a character.
    first = next(word for word in map(chr, range(97, 123)) if re.fullmatch(r"[ !#-&(-~]+", trained.sample([word])[0]))
    said, asked = asked_by("chat", run, stdin=f"{first}\nhigher\n/new\n{first}\n/exit\n")
    assert asked == 0
    turns = re.findall(r"^(?:> )*(before|after) +'(.*)'$", said, re.MULTILINE)
    assert [name for name, _ in turns] == ["before", "after"] * 3
    assert turns[4:] == turns[:2]  # a new conversation
    assert said.count("--- the conversation is over: type the first message of a new one ---") == 1
    talk = [{"role": "user", "content": first}, {"role": "assistant", "content": turns[1][1]}]
    assert trained.sample([[*talk, {"role": "user", "content": "higher"}]], seed=1) == [turns[3][1]]


@pytest.mark.slow
def test_chat_watches_the_environment(run: Path) -> None:
    said, asked = asked_by("chat", run, "--environment", stdin="x\n#2\n#9\n#x\n\n")
    assert "type a first message, or #1 to #3 for a held-out row" in said
    assert said.count("--- before training ---") == said.count("--- after training ---") == 2
    assert "user: y" in said  # the second row
    assert "there is no row '9': #1 to #3" in said
    assert "there is no row 'x'" in said
    assert len(re.findall(r"\[reward (0|1), odd [01]\]", said)) == asked
    assert len(re.findall(r"^--- over after \d turns?, reward \d: the environment ended it ---$", said, re.M)) == 4


@pytest.mark.slow
def test_chat_says_why_the_environment_failed_and_goes_on(run: Path, tmp_path: Path) -> None:
    """A typed message has none of a row's columns, which an environment may need."""
    folder = Path(shutil.copytree(run, tmp_path / "run"))
    config = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(config.replace("talking_runs:Asked", "talking_runs:Strict"))
    said = printed("chat", folder, "--environment", stdin="x\n#1\n\n")
    assert "[the environment failed, so there is no reward: it raised KeyError: 'wanted'" in said
    assert "--- over after 1 turn: the environment failed ---" in said
    assert "[reward " in said


@pytest.mark.slow
def test_the_probe_talks_with_the_environment(trained: tuple[Path, Path, str]) -> None:
    said, asked = asked_by("validate", trained[0], "--probe", "--samples", 16)
    assert asked > 16
    assert "probe: 16 samples of the untrained model (4 prompts × 4)" in said
    assert re.search(r"mean reward +[01]\.\d", said)
    assert "annealed" not in said  # the environment gives the reward, not the check
    assert "conversations of up to 3 turns of 8 new tokens" in said


@pytest.mark.slow
def test_labels_of_new_samples_are_of_conversations(run: Path, tmp_path: Path) -> None:
    prompts = write_rows(tmp_path / "prompts.jsonl", talking_rows("pq", 3))
    before = Asked.count
    session = session_of(None, tmp_path / "pairs.jsonl", sample=str(run), prompts=prompts)
    for thread in threading.enumerate():
        if thread.name == "sampling":  # else it is done
            thread.join(600)
    assert session.note is None
    assert Asked.count > before + 4
    items = session.offered()
    assert len(items) == 2
    completions = [completion for item in items for completion in item.record()["completions"]]
    assert max(map(len, completions)) > 1
    assert all("reward" in message for completion in completions for message in completion[::2])


@pytest.mark.slow
def test_what_reads_single_answers_refuses(trained: tuple[Path, Path, str], tmp_path: Path) -> None:
    recipe, run, _ = trained
    prompts = write_rows(tmp_path / "prompts.jsonl", talking_rows("p"))
    principles = tmp_path / "principles.yaml"
    principles.write_text("principles: [{name: kind, text: Be kind.}]")
    revise = ("revise", prompts, "--principles", principles, "--model", "m", "--sample", run)
    for words, line in (
        (("sample", recipe), "recorded samples are single answers"),
        (("process", "label", run), "its samples are conversations, not steps"),
        (("label", run, "--solutions"), "whose steps cannot be labelled"),
        (revise, "its samples are conversations, and this revises single answers"),
    ):
        assert line in refused(*words, "--out", tmp_path / "out.jsonl")
    assert "answers cannot be chosen by value in conversations" in refused("eval", run, "--best-of", 2)


@pytest.mark.slow
def test_best_of_is_by_a_model_that_reads_conversations(run: Path, tmp_path: Path, tiny_folder: Path) -> None:
    config = process_config(tmp_path, tiny_folder, {}, steps=1, eval_every=0)
    process = api.train(config, name="process", runs=tmp_path).folder
    assert "scores the steps of one answer" in refused("eval", run, "--best-of", 2, "--by", process)
    out = tmp_path / "pairs.jsonl"
    session = session_of(run, out)
    while (item := session.state()["item"]) is not None:
        session.judge(item["id"], "a")
    model = {"name": RunFolder(run).config().model.name, "device": "cpu"}
    recipe = {"method": {"name": "reward_model"}, "model": model, "data": {"train": str(out)}, "steps": 1}
    scorer = api.train(check_config(recipe, "tiny"), name="scorer", runs=tmp_path).folder
    said, asked = asked_by("eval", run, "--best-of", 3, "--by", scorer)
    assert asked > 9
    assert "best of 3 by" in said


@pytest.mark.slow
def test_the_viewer_has_the_turns(run: Path) -> None:
    answer = TestClient(view_app([run])).get("/data/samples", params={"run": "talk"}).json()
    (first, *_) = answer["found"]["samples"]
    assert first["conversation"]["turns"][0]["trained"] is True
    assert set(first["extras"]) == {}.keys()
    history = {"run": "talk", "kind": "train", "step": 2, "sample": first["sample"]}
    found = TestClient(view_app([run])).get("/data/history", params=history).json()
    assert all(sample["conversation"]["turns"] for sample in found["samples"])


@pytest.mark.slow
def test_each_role_of_a_game_is_shown(tmp_path: Path) -> None:
    run = talking_run(tmp_path, environment={"kind": "game", "class": "support.talking:Letters"})
    said = printed("eval", run, "--show", 2)
    assert "--- sample 0, ann, reward " in said
    assert "--- sample 1, bob, reward " in said
    watched = printed("chat", run, "--environment", stdin="#1\n\n")
    assert watched.count("as ann:\nuser: ann two\nassistant: ") == watched.count("as bob:\nuser: bob two\n") == 2
    page = write_report([run], tmp_path / "report.html").read_text()
    assert page.count('<div class="conversation">') == 12  # three rows, two roles, before and after
