"""SFT in the loop with a real, tiny model: it learns the answers, is evaluated, and goes on after a stop."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from support.tiny_runs import WORDS, final_state, held_out_of, tiny_config, tiny_recipe, write_data
from support.zoo import zoo_folder
from vigneron import api
from vigneron.errors import UserError
from vigneron.recipe import check_config
from vigneron.run_data.load import load_data
from vigneron.run_store.folder import RunFolder
from vigneron.training.callbacks import Silent

SFT: dict[str, Any] = {
    "method": {"name": "sft"},
    "optimizer": {"actor_lr": 1e-2},
    "reward": {"kind": "binary"},
    "group_size": 1,
    "max_new_tokens": 8,
}


def config_of(tmp_path: Path, model: Path, **changes: Any) -> Any:
    return tiny_config(model, write_data(tmp_path), **{**SFT, **changes})


@pytest.mark.slow
def test_it_learns_the_answers_by_heart(tmp_path: Path, tiny_folder: Path) -> None:
    """After 60 steps the loss is 0.06; after 40 of them 0.9 of the answers are right."""
    write_data(tmp_path)
    shutil.copy(tmp_path / "words.jsonl", held_out_of(tmp_path / "words.jsonl"))  # asked what it has learned
    recipe = tiny_recipe(tiny_folder, tmp_path / "words.jsonl", **SFT, steps=60, prompts_per_step=10, eval_every=60)
    config = check_config(recipe, "tiny")
    trained = api.train(config, runs=tmp_path, name="run")
    records = RunFolder(trained.folder).metrics()
    losses = [record["loss/nll"] for record in records if "loss/nll" in record]
    assert losses[0] > 4
    assert losses[-1] < 0.5
    assert records[0]["eval/accuracy"] == 0.0
    assert records[-1]["eval/accuracy"] >= 0.7
    assert "reward" not in records[1]  # demonstrations earn nothing
    assert "accuracy" not in records[1]
    assert records[-1]["eval/reward"] == records[-1]["eval/accuracy"]


@pytest.mark.slow
def test_two_runs_and_a_resumed_one_are_the_same(tmp_path: Path, tiny_folder: Path) -> None:
    whole = api.train(config_of(tmp_path, tiny_folder, steps=6, save_every=2), runs=tmp_path, name="whole")
    half = config_of(tmp_path, tiny_folder, steps=6, save_every=2)
    api.train(half, runs=tmp_path, name="half")
    folder = RunFolder(tmp_path / "half")
    last = max((folder.path / "checkpoints").glob("step-*"), key=lambda path: int(path.name[5:]))
    for file in sorted(last.rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    last.rmdir()
    api.resume(folder.path)
    assert final_state(folder.path) == final_state(whole.folder)


class Listening(Silent):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def notice(self, text: str) -> None:
        self.heard.append(text)


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_answers_that_do_not_fit_are_cut_and_counted_at_the_start(tmp_path: Path, tiny_folder: Path) -> None:
    """The tiny model has room for 64 tokens."""
    rows = [{"prompt": "a", "answer": "b"}, {"prompt": "c", "answer": "d" * 70}, {"prompt": "e", "answer": "f" * 99}]
    config = tiny_config(tiny_folder, write_rows(tmp_path / "rows.jsonl", rows), **SFT, steps=1)
    view = Listening()
    trained = api.train(config, runs=tmp_path, name="run", view=view)
    assert (
        "2 of 3 demonstrations are longer than the model's context of 64 tokens and are truncated, "
        "the first in row 2 of the training data"
    ) in view.heard
    (record,) = RunFolder(trained.folder).metrics()
    assert record["completions/clipped_ratio"] > 0


def test_a_prompt_that_fills_the_context_is_an_error_that_names_its_row(tmp_path: Path, tiny_folder: Path) -> None:
    rows = [{"prompt": "a", "answer": "b"}, {"prompt": "c" * 64, "answer": "d"}]
    config = tiny_config(tiny_folder, write_rows(tmp_path / "rows.jsonl", rows), **SFT)
    line = r"^row 2 of the training data \('.*', row 2\): the prompt has 64 tokens, which fill the model's context"
    with pytest.raises(UserError, match=line):
        api.train(config, runs=tmp_path, name="run")


def talks(tmp_path: Path) -> Path:
    """Conversations of two answers; those held out are the same, so that what was learned can be asked."""
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"say {word}"},
                {"role": "assistant", "content": word},
                {"role": "user", "content": "again"},
                {"role": "assistant", "content": f"{word}!"},
            ]
        }
        for word in WORDS
    ]
    write_rows(held_out_of(tmp_path / "talks.jsonl"), rows)
    return write_rows(tmp_path / "talks.jsonl", rows)


def chat_config(tmp_path: Path, model: Path, data: Path | None = None, **changes: Any) -> Any:
    options = {"method": {"name": "sft", "packing": True}, "model": {"name": str(model), "device": "cpu"}}
    options["model"] = {**options["model"], "chat": "minted"}  # type: ignore[dict-item]
    return tiny_config(model, data or talks(tmp_path), **{**SFT, **options, **changes})


@pytest.mark.slow
def test_a_minted_model_learns_conversations_and_is_asked_for_their_last_turn(
    tmp_path: Path, tiny_folder: Path
) -> None:
    """After 50 steps all of the answers are right."""
    config = chat_config(tmp_path, tiny_folder, steps=75, prompts_per_step=10, eval_every=75)
    trained = api.train(config, runs=tmp_path, name="run")
    records = RunFolder(trained.folder).metrics()
    assert records[0]["eval/accuracy"] == 0.0
    assert records[-1]["eval/accuracy"] >= 0.7
    # A plain transformers folder: the same ids, the same next token.
    saved = max((trained.folder / "checkpoints").iterdir())
    model, tokenizer = AutoModelForCausalLM.from_pretrained(saved), AutoTokenizer.from_pretrained(saved)
    asked = [{"role": "user", "content": "say hot"}]
    ids = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    (said,) = model.generate(**ids, max_new_tokens=8, do_sample=False)
    text = tokenizer.decode(said[ids["input_ids"].shape[1] :], skip_special_tokens=True)
    again = api.load_run(trained.folder)
    assert again.sample([asked]) == trained.sample([asked]) == [text]
    assert again.sample_before([asked]) == trained.sample_before([asked])


@pytest.mark.slow
def test_a_minted_run_goes_on_as_if_it_had_not_been_stopped(tmp_path: Path, tiny_folder: Path) -> None:
    whole = api.train(chat_config(tmp_path, tiny_folder, steps=6, save_every=2), runs=tmp_path, name="whole")
    half = api.train(chat_config(tmp_path, tiny_folder, steps=6, save_every=2), runs=tmp_path, name="half")
    shutil.rmtree(half.folder / "checkpoints" / "step-6")
    api.resume(half.folder)
    assert final_state(half.folder) == final_state(whole.folder)


def test_packing_changes_nothing_but_rounding(tmp_path: Path, tiny_folder: Path) -> None:
    losses = []
    for packing in (False, True):
        method = {"name": "sft", "packing": packing}
        config = chat_config(tmp_path, tiny_folder, method=method, steps=3, eval_every=0)
        trained = api.train(config, runs=tmp_path, name=f"packing-{packing}")
        losses.append([record["loss/nll"] for record in RunFolder(trained.folder).metrics()])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_a_model_that_cannot_keep_samples_apart_goes_without_packing_and_says_so(tmp_path: Path) -> None:
    view = Listening()
    config = config_of(
        tmp_path,
        zoo_folder("BLOOM", tmp_path / "model"),
        method={"name": "sft", "packing": True},
        steps=1,
        eval_every=0,
    )
    api.train(config, runs=tmp_path, name="run", view=view)
    assert "packing: this model cannot keep samples apart in one row, so nothing is packed" in view.heard


def test_demonstrations_may_repeat_a_prompt_and_say_something_else(tmp_path: Path, tiny_folder: Path) -> None:
    rows = [{"prompt": "a", "completion": "b"}, {"prompt": "a", "completion": "c"}]
    config = tiny_config(tiny_folder, write_rows(tmp_path / "rows.jsonl", rows), **SFT, steps=1)
    assert len(load_data(config).train) == 2


@pytest.mark.parametrize(
    ("rows", "changes", "line"),
    [
        ([{"prompt": "a", "answer": "b"}, {"prompt": "c", "answer": " "}], {}, r"row 2 has no text in 'answer'"),
        ([{"prompt": "a", "answer": [{"role": "assistant", "content": " "}]}], {}, r"row 1: the answer is empty"),
        ([{"prompt": "a", "answer": "b"}, {"prompt": "c"}], {}, r"row 2 has no 'answer'"),
        ([{"completion": "b"}], {}, r"row 1 has no 'prompt'"),
        ([{"messages": [{"role": "user", "content": "a"}]}], {}, r"row 1: messages has no turn of role 'assistant'"),
    ],
)
def test_rows_that_cannot_be_learned_from_are_named(
    tmp_path: Path, tiny_folder: Path, rows: list[dict[str, Any]], changes: dict[str, Any], line: str
) -> None:
    config = tiny_config(tiny_folder, write_rows(tmp_path / "rows.jsonl", rows), **{**SFT, **changes})
    with pytest.raises(UserError, match=f"^data: '.*rows.jsonl', {line}"):
        load_data(config)


def test_minted_tokens_that_nothing_would_use_are_refused(tmp_path: Path, tiny_folder: Path) -> None:
    with pytest.raises(UserError, match=r"^model.chat: minted has no effect on plain text prompts"):
        load_data(chat_config(tmp_path, tiny_folder, data=write_data(tmp_path)))
    with pytest.raises(
        UserError, match="`chat: minted` adds embeddings, which a LoRA adapter neither trains nor saves"
    ):
        check_config({"method": "sft", "data": {"task": "colors"}, "model": {"chat": "minted", "lora": {}}}, "my.yaml")


def test_a_parent_answers_the_prompts_of_conversations(tmp_path: Path, tiny_folder: Path) -> None:
    parent = {"kind": "local", "model": str(tiny_folder)}
    (row, *_) = load_data(chat_config(tmp_path, tiny_folder, parent=parent)).train
    assert list(row) == ["prompt"]
    assert [message["content"] for message in row["prompt"]] == ["say hot", "hot", "again"]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"group_size": 4}, "`group_size` has no effect with `method: sft`"),
        ({"sampling": {"temperature": 0.5}}, "`sampling` has no effect with `method: sft`"),
        ({"optimizer": {"critic_lr": 0.1}}, "`optimizer.critic_lr` has no effect"),
    ],
)
def test_inert_options_are_refused(changes: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError, match=line):
        check_config({"method": "sft", "data": {"task": "antonyms"}, **changes}, "my.yaml")


def test_a_reward_may_be_left_out_and_only_then() -> None:
    assert check_config({"method": "sft", "data": {"task": "antonyms"}}, "my.yaml").reward.kind == "binary"
    with pytest.raises(UserError, match="'reward' is missing"):
        check_config({"method": "actor_critic", "data": {"task": "antonyms"}}, "my.yaml")
