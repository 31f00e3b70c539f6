"""Runs with a chat template that writes the date and takes an argument: training, resume, evaluation, chat, export."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from support.labelling import write_rows
from support.tiny_models import byte_tokenizer, tiny_model
from support.tiny_runs import final_state, tiny_config
from vigneron import api
from vigneron.commands.export import export
from vigneron.data.prompts import prompts_token_ids
from vigneron.errors import UserError
from vigneron.policy import chat_template
from vigneron.run_store.folder import RunFolder

TEMPLATE = (
    "{{ strftime_now('%Y-%m-%d') }}{% for m in messages %}{{ m.role[0] }}{{ '!' if m.role[0] == 'a' and quick }}"
    "{{ m.content }}<stop>{% endfor %}{% if add_generation_prompt %}a{{ '!' if quick }}{% endif %}"
)
ASKED = [{"role": "user", "content": "x"}]
PLAIN = {"optimizer": {"actor_lr": 1e-3}, "eval_every": 0}


@pytest.fixture(autouse=True)
def own_date() -> Any:
    yield
    chat_template.set_date(None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("dated")
    model, tokenizer = tiny_model("llama"), byte_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<stop>"]})
    model.resize_token_embeddings(len(tokenizer))
    tokenizer.chat_template = TEMPLATE
    model.save_pretrained(place)
    tokenizer.save_pretrained(place)
    return place


def config_of(tmp_path: Path, folder: Path, **changes: Any) -> Any:
    rows = [{"messages": [*ASKED, {"role": "assistant", "content": word}]} for word in ("ab", "cd", "ef", "gh")]
    rows = [{"messages": [{"role": "user", "content": f"x{n}"}, row["messages"][1]]} for n, row in enumerate(rows)]
    model = {"name": str(folder), "device": "cpu", "chat_template_kwargs": {"quick": True}}
    options = {"method": {"name": "sft"}, "model": model, "steps": 4, "save_every": 2, **PLAIN}
    options |= {"reward": {"kind": "binary"}, "group_size": 1, "prompts_per_step": 2}
    return tiny_config(folder, write_rows(tmp_path / "rows.jsonl", rows), **{**options, **changes})


def day(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("vigneron.training.setup.build.today", lambda: text)


@pytest.mark.slow
def test_a_resumed_run_keeps_its_date_and_arguments(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    day(monkeypatch, "2001-02-03")
    whole = api.train(config_of(tmp_path, folder), runs=tmp_path, name="whole")
    half = api.train(config_of(tmp_path, folder), runs=tmp_path, name="half")
    assert RunFolder.open(half.folder).config().model.chat_date == "2001-02-03"
    shutil.rmtree(half.folder / "checkpoints" / "step-4")
    day(monkeypatch, "2002-03-04")
    chat_template.set_date(None)
    api.resume(half.folder)
    assert final_state(half.folder) == final_state(whole.folder)
    other = api.train(config_of(tmp_path, folder), runs=tmp_path, name="other")
    assert final_state(other.folder) != final_state(whole.folder)

    # Loaded again, it is asked with the same date and argument, and ends where its template ends turns.
    again = api.load_run(whole.folder)
    (ids,) = prompts_token_ids(again.policy.tokenizer, [ASKED])
    assert again.policy.tokenizer.decode(ids) == "2001-02-03ux<stop>a!"
    stop = again.policy.tokenizer.convert_tokens_to_ids("<stop>")
    assert len(again.sample([ASKED])) == 1
    assert stop in again.policy.eos_ids

    # The checkpoint and the export carry the argument as the template's default, and the end token.
    saved = AutoTokenizer.from_pretrained(whole.folder / "checkpoints" / "step-4")
    exported = AutoTokenizer.from_pretrained(export(whole.folder, tmp_path / "out").path)
    for tokenizer in (saved, exported):
        text = tokenizer.apply_chat_template(ASKED, add_generation_prompt=True, tokenize=False)
        assert text.endswith("ux<stop>a!")
        assert text != "2001-02-03ux<stop>a!"  # the date of the day
    for place in (whole.folder / "checkpoints" / "step-4", tmp_path / "out"):
        assert str(stop) in (place / "generation_config.json").read_text()


def test_a_config_may_name_the_date_and_a_resume_cannot_change_it(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = {"name": str(folder), "device": "cpu", "chat_date": "2003-04-05"}
    day(monkeypatch, "2001-02-03")
    run = api.train(config_of(tmp_path, folder, model=model), runs=tmp_path, name="run")
    assert RunFolder.open(run.folder).config().model.chat_date == "2003-04-05"
    with pytest.raises(UserError, match=r"model\.chat_date was '2003-04-05', is '2004-05-06'"):
        api.resume(run.folder, "model.chat_date=2004-05-06", "steps=5")


def test_a_date_that_the_template_does_not_write_is_refused(tmp_path: Path, folder: Path) -> None:
    dateless = shutil.copytree(folder, tmp_path / "dateless")
    tokenizer = AutoTokenizer.from_pretrained(dateless)
    tokenizer.chat_template = TEMPLATE.replace("{{ strftime_now('%Y-%m-%d') }}", "")
    tokenizer.save_pretrained(dateless)
    for more in ({}, {"chat": "minted"}):
        model = {"name": str(dateless), "device": "cpu", "chat_date": "2003-04-05", **more}
        with pytest.raises(UserError, match=r"^model\.chat_date has no effect: .* writes no date: remove it$"):
            api.train(config_of(tmp_path, dateless, model=model), runs=tmp_path, name="run")


def test_a_reinforcement_learning_run_samples_after_the_arguments(tmp_path: Path, folder: Path) -> None:
    rows = write_rows(
        tmp_path / "prompts.jsonl",
        [{"prompt": ASKED, "answer": "ab"}, {"prompt": [{**ASKED[0]}, *ASKED], "answer": "c"}],
    )
    model = {"name": str(folder), "device": "cpu", "chat_template_kwargs": {"quick": True}, "chat_date": "2003-04-05"}
    options = {"method": {"name": "grpo"}, "reward": {"kind": "binary"}, "group_size": 2, "max_new_tokens": 4}
    config = tiny_config(folder, rows, model=model, steps=1, prompts_per_step=2, **PLAIN, **options)
    run = api.train(config, runs=tmp_path, name="run")
    (ids,) = prompts_token_ids(run.policy.tokenizer, [ASKED])
    assert run.policy.tokenizer.decode(ids) == "2003-04-05ux<stop>a!"
