"""Conversations with an environment are labelled whole, and what is written is trained on."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from support import real_templates
from support.labelling import read_jsonl, session_of, write_rows
from support.talking import conversing, talking_model
from support.talking_runs import talking_config, talking_run
from vigneron import api
from vigneron.errors import UserError
from vigneron.labels.by_judge import pair_key
from vigneron.labels.from_file import comparisons_of_file
from vigneron.labels.from_run import comparisons_of_run
from vigneron.labels.items import Comparison, distinct
from vigneron.labels.session import Session
from vigneron.recipe import check_config
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.samples import SampleStore

USER = [{"role": "user", "content": "hi"}]
NEXT = {"role": "user", "content": "so?"}


def said(text: str, **notes: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **notes}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return talking_run(tmp_path_factory.mktemp("talk"))


def label_all(session: Session, choice: Any) -> None:
    while (item := session.state()["item"]) is not None:
        session.judge(item["id"], choice)


def train_on(file: Path, method: str, run: Path, place: Path) -> list[dict[str, Any]]:
    recipe = {
        "method": {"name": method},
        "model": {"name": RunFolder(run).config().model.name, "device": "cpu"},
        "data": {"train": str(file)},
        "steps": 1,
        "prompts_per_step": 2,
        "save_every": 0,
    }
    config = check_config(recipe, "tiny")
    return RunFolder(api.train(config, name=method, runs=place).folder).metrics()


@pytest.mark.slow
@pytest.mark.parametrize(("method", "loss"), [("dpo", "loss/dpo"), ("reward_model", "loss/bradley_terry")])
def test_pairs_of_a_runs_conversations_are_trained_on(run: Path, tmp_path: Path, method: str, loss: str) -> None:
    out = tmp_path / "pairs.jsonl"
    session = session_of(run, out)
    shown = session.state()["item"]["completions"][0]["turns"]
    assert [turn["role"] for turn in shown] == ["assistant", "user"] * (len(shown) // 2) + ["assistant"]
    assert all((turn["reward"] in (0.0, 1.0)) == turn["model"] for turn in shown)
    assert {turn["trained"] for turn in shown} == {None}
    label_all(session, "a")
    rows = read_jsonl(out)
    assert max(len(row["chosen"]) for row in rows) == 5
    assert {name for row in rows for message in row["chosen"] for name in message} == {"role", "content"}
    (record,) = [record for record in train_on(out, method, run, tmp_path) if record["step"] == 1]
    assert 0 < record[loss] < 1


@pytest.mark.slow
def test_the_best_conversation_is_fine_tuned_on(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "best.jsonl"
    label_all(session_of(run, out, best=True), 1)
    assert max(len(row["completion"]) for row in read_jsonl(out)) == 5
    assert train_on(out, "sft", run, tmp_path)[-1]["loss/nll"] > 0


@pytest.mark.slow
def test_one_whose_environment_failed_is_left_out_and_counted(run: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(run, tmp_path / "run"))
    store = SampleStore(folder)
    (sample, *others) = store.page(step=2)
    failed = sample.__class__(**{**vars(sample), "extras": sample.extras | {"environment_error": "raised"}})
    store.add([failed])
    store.close()
    collected = comparisons_of_run(folder, kind="best", step=2, seed=0)
    assert collected.notices == [f"1 conversations of '{folder}' are left out: their environment failed"]
    assert sum(len(item.completions) for item in collected.items) <= len(others)


@pytest.mark.slow
def test_prompts_that_are_texts_and_tools_are_as_the_model_read_them(tmp_path: Path) -> None:
    """An environment makes a user's message of a text."""
    place = tmp_path / "texts"
    config = talking_config(place)
    rows = [{"prompt": text, "wanted": 2} for text in "abcd"]
    data = config.data.model_copy(update={"train": str(write_rows(place / "rows.jsonl", rows)), "held_out": None})
    changed = config.model_copy(update={"data": data, "eval_every": 0, "steps": 1})
    folder = api.train(changed, name="texts", runs=place).folder
    items = comparisons_of_run(folder, kind="pairs", step=None, seed=0).items
    assert {item.prompt[0]["content"] for item in items} <= set("abcd")
    assert all(item.prompt[0]["role"] == "user" for item in items)


TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {}}}]


def test_a_file_of_conversations_with_its_tools(tmp_path: Path) -> None:
    row = {"prompt": USER, "chosen": [said("a"), NEXT, said("b")], "rejected": [said("a")], "tools": TOOLS}
    source, out = write_rows(tmp_path / "rows.jsonl", [row]), tmp_path / "pairs.jsonl"
    (item,) = comparisons_of_file(source, kind="pairs", seed=0).items
    assert Comparison.of_record(item.record()) == item
    assert Comparison.of_record({**item.record(), "tools": None}) is None
    label_all(session_of(source, out), "a")
    (written,) = read_jsonl(out)
    assert written["tools"] == TOOLS
    assert {str(written["chosen"]), str(written["rejected"])} == {str(row["chosen"]), str(row["rejected"])}


def test_conversations_are_compared_by_all_their_turns() -> None:
    one, other = [said("x"), NEXT, said("b")], [said("y", reward=1.0), NEXT, said("b")]
    assert distinct([one, other, [*one]]) == [one, other]
    assert distinct([one, [said(""), NEXT, said("b")]]) == [one]
    assert len(pair_key(USER, (one, other))[1]) == 2


def test_calls_results_and_hostile_text_are_shown() -> None:
    call = {"type": "function", "function": {"name": "add\u202e", "arguments": {"a": "\x1b"}}}
    talk = [said("", tool_calls=[call], reward=0.5), {"role": "tool", "name": "add", "content": "3\x00"}, said("three")]
    item = Comparison(USER, (talk, [said("four")]))
    first, second = item.shown([0, 1])["completions"]
    asks, answers, _ = first["turns"]
    assert asks["calls"] == [{"name": "add\\u202e", "arguments": '{"a": "\\u001b"}'}]
    assert (asks["reward"], answers["name"], answers["text"]) == (0.5, "add", "3\\x00")
    assert second == "four"


def double(number: int) -> int:
    """Double a number.

    Args:
        number: Any.
    """
    return 2 * number


@pytest.mark.slow
def test_tools_of_an_environment_are_in_the_rows(tmp_path: Path) -> None:
    """As the chat template wrote them into the prompt."""
    model, tokenizer = talking_model(positions=4096)
    tokenizer.chat_template = real_templates.template("qwen2_5")
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "model")
    tools = {"kind": "tools", "tools": [f"{__name__}:double"], "max_turns": 2}
    rows = write_rows(tmp_path / "rows.jsonl", [{"prompt": text} for text in "abcd"])
    recipe = conversing(tmp_path / "model", method={"name": "grpo"}, steps=1, eval_every=0)
    config = check_config({**recipe, "environment": tools, "data": {"train": str(rows)}}, "tools")
    run, out = api.train(config, name="tools", runs=tmp_path).folder, tmp_path / "pairs.jsonl"
    label_all(session_of(run, out), "a")
    written = read_jsonl(out)
    assert {row["tools"][0]["function"]["name"] for row in written} == {"double"}
    assert train_on(out, "dpo", run, tmp_path)[-1]["loss/dpo"] > 0
    shutil.rmtree(tmp_path / "model")  # labelled on another machine
    label_all(session_of(run, tmp_path / "again.jsonl"), "a")
    assert read_jsonl(tmp_path / "again.jsonl")[0]["tools"] == written[0]["tools"]
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(UserError, match=r"has no checkpoint, and its model .* is not on this machine: the tokenizer"):
        session_of(run, tmp_path / "third.jsonl")
