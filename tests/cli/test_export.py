"""`vigneron export`: what transformers loads from the folder is the run's child, or there is no folder; and a hub that
refuses or hangs is one line, without the token."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer, GenerationConfig

from support.command_line import vigneron, write_jsonl, write_recipe
from support.fake_hub import hub
from vigneron.api import load_run
from vigneron.commands import export as exporting
from vigneron.commands.export import error_line
from vigneron.errors import UserError
from vigneron.policy.reward_model import reward_model_kind

TOKEN = "hf_canaryCANARYcanary1234567890"
PAIRS = [f'{{"prompt": "say {w}:", "chosen": " {w}!", "rejected": " {w}?"}}' for w in ("a", "b", "c", "d")]


def made(place: Path, child: Path, *overrides: str, **changes: Any) -> Path:
    place.mkdir()
    quick = {"optimizer": {"actor_lr": 0.05}, "save_every": 1, "eval_every": 0}
    answer = vigneron(
        "train", write_recipe(place, child, **quick | changes), *overrides, "--name", "run", "--runs", place
    )
    assert answer.code == 0, answer.err
    return place / "run"


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("exports")


@pytest.fixture(scope="module")
def adapted(places: Path, tiny_folder: Path) -> Path:
    return made(places / "lora", tiny_folder, "model.lora={rank: 4}")


@pytest.fixture(scope="module")
def whole(places: Path, tiny_folder: Path) -> Path:
    return made(places / "whole", tiny_folder)


def log_probs(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["adapted", "whole"])
def test_transformers_alone_gives_the_childs_log_probs(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    run, target = request.getfixturevalue(kind), tmp_path / "new" / "out"
    answer = vigneron("export", run, target)
    assert answer.code == 0, answer.err
    first, second = answer.out.splitlines()
    assert first == f"wrote {target}: the model after step 2, its tokenizer and its model card"
    assert second.startswith("verified on 2 texts: log-probs differ from the run's model by at most ")
    names = {path.name for path in target.iterdir()}
    assert {"model.safetensors", "config.json", "generation_config.json", "tokenizer.json", "README.md"} <= names
    assert not {name for name in names if "adapter" in name or name == "state"}
    assert not [path for path in target.parent.iterdir() if path != target], "no draft is left"
    saved = [path for path in (run / "checkpoints").rglob("*") if path.is_file()]
    modes = {path.stat().st_mode for path in (*target.iterdir(), *saved)}
    assert modes == {(run / "config.yaml").stat().st_mode}, "the weights can be read by whoever can read the rest"

    model, tokenizer = AutoModelForCausalLM.from_pretrained(target), AutoTokenizer.from_pretrained(target)
    child = load_run(run)
    ids = tokenizer("hello")["input_ids"]
    positions = torch.arange(len(ids))[None]
    with torch.no_grad():
        mine = child.policy.logits(child.policy.hidden(torch.tensor([ids]), positions))[0].log_softmax(-1)
    assert torch.allclose(log_probs(model, ids), mine, atol=1e-4)
    turns = [{"role": "user", "content": "hi"}]
    rendered = tokenizer.apply_chat_template(turns, tokenize=False)
    assert rendered == child.policy.tokenizer.apply_chat_template(turns, tokenize=False)
    assert GenerationConfig.from_pretrained(target).eos_token_id == 0
    card = (target / "README.md").read_text()
    assert "library_name: transformers" in card
    assert str(run.parent) not in card


@pytest.mark.slow
def test_an_older_step_is_another_model(adapted: Path, tmp_path: Path) -> None:
    assert vigneron("export", adapted, tmp_path / "one", "--step", 1).code == 0
    assert vigneron("export", adapted, tmp_path / "two").code == 0
    one, two = (AutoModelForCausalLM.from_pretrained(tmp_path / name) for name in ("one", "two"))
    assert not torch.equal(log_probs(one, [1, 2, 3]), log_probs(two, [1, 2, 3]))
    missing = vigneron("export", adapted, tmp_path / "three", "--step", 9)
    assert (missing.code, "has no checkpoint of step 9" in missing.err) == (2, True)
    assert not (tmp_path / "three").exists()


@pytest.mark.slow
def test_another_dtype_says_what_it_costs(adapted: Path, tmp_path: Path) -> None:
    answer = vigneron("export", adapted, tmp_path / "out", "--dtype", "bfloat16")
    assert answer.code == 0, answer.err
    assert "rounding to bfloat16 changes log-probs by at most 0.0" in answer.out
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"
    wrong = vigneron("export", adapted, tmp_path / "out2", "--dtype", "int4")
    assert (wrong.code, wrong.err) == (2, "error: --dtype: expected float32, bfloat16 or float16, not 'int4'\n")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["reward_model", "preference_model", "dpo"])
def test_scorers_and_preferences_are_exported_too(places: Path, tiny_folder: Path, tmp_path: Path, method: str) -> None:
    data = {"train": str(write_jsonl(tmp_path / "pairs.jsonl", PAIRS))}
    run = made(places / method, tiny_folder, method={"name": method}, data=data, reward=None, max_new_tokens=None)
    answer = vigneron("export", run, tmp_path / "out")
    assert answer.code == 0, answer.err
    assert "verified on 8 texts" in answer.out
    if method == "dpo":
        AutoModelForCausalLM.from_pretrained(tmp_path / "out")
        return
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    child = load_run(run).policy
    assert loaded.config.id2label[0] == reward_model_kind(child)
    assert loaded.score.weight.equal(child.causal.score.weight)


def test_a_merge_that_went_wrong_leaves_nothing(adapted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dropped(policy: Any) -> None:
        policy.model = policy.model.unload()

    monkeypatch.setattr(exporting, "merge", dropped)
    monkeypatch.setattr(exporting, "model_outputs", lambda policy, ids, saw=exporting.model_outputs: saw(child, ids))
    child = load_run(adapted).policy
    answer = vigneron("export", adapted, tmp_path / "out")
    assert answer.code == 2
    assert answer.err.startswith("error: the exported model differs from the run's: by ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_another_template_is_refused(whole: Path) -> None:
    ours, theirs = load_run(whole).policy.tokenizer, load_run(whole).policy.tokenizer
    exporting.check_tokens(ours, theirs, ["a", [{"role": "user", "content": "b"}]])
    theirs.chat_template = theirs.chat_template.replace("answer", "Answer")
    with pytest.raises(UserError, match="the exported tokenizer or chat template differs from the run's"):
        exporting.check_tokens(ours, theirs, ["a"])


@pytest.mark.slow
def test_what_is_there_is_not_overwritten(whole: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "empty").mkdir()
    for name, why in (("full", "exists and is not empty"), ("file", "is a file")):
        answer = vigneron("export", whole, tmp_path / name)
        assert (answer.code, why in answer.err) == (2, True)
    assert (tmp_path / "full" / "mine.txt").read_text() == "mine"
    assert vigneron("export", whole, tmp_path / "empty").code == 0
    assert vigneron("export", tmp_path, tmp_path / "none").err.startswith("error: ")


@pytest.mark.slow
def test_a_damaged_checkpoint_is_not_exported(places: Path, tiny_folder: Path, tmp_path: Path) -> None:
    run = made(tmp_path / "damaged", tiny_folder)
    with (run / "checkpoints" / "step-2" / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        last = file.read(1)
        file.seek(-1, 2)
        file.write(bytes([last[0] ^ 1]))
    answer = vigneron("export", run, tmp_path / "out")
    assert answer.code == 2
    assert "is damaged" in answer.err
    assert not (tmp_path / "out").exists()


# ---------------------------------------------------------------------------------------------- --push


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    return TOKEN


def test_a_hub_gets_the_folder(whole: Path, tmp_path: Path, token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with hub() as there:
        monkeypatch.setenv("HF_ENDPOINT", there.url)
        answer = vigneron("export", whole, tmp_path / "out", "--push", "me/mine")
    assert answer.code == 0, answer.err
    assert answer.out.splitlines()[-1] == f"pushed to {there.url}/me/mine"
    assert {"model.safetensors", "README.md", "tokenizer.json", "config.json"} <= there.files
    assert there.tokens == {f"Bearer {token}"}
    assert token not in answer.out + answer.err


@pytest.mark.parametrize("fault", [401, 403, 404, "garbage", "hang", "closed"])
def test_a_hub_that_misbehaves_is_one_line(
    whole: Path, tmp_path: Path, token: str, monkeypatch: pytest.MonkeyPatch, fault: str | int
) -> None:
    monkeypatch.setattr("vigneron.commands.export.HUB_TIMEOUT_S", 1.0)
    with hub(fault) as there:
        monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9" if fault == "closed" else there.url)
        answer = vigneron("export", whole, tmp_path / "out", "--push", "me/mine")
    assert answer.code == 2
    (line,) = answer.err.splitlines()
    assert line.startswith("error: --push: ")
    assert line.endswith(f"; the exported model is in '{tmp_path / 'out'}'")
    assert token not in answer.out + answer.err
    assert (tmp_path / "out" / "model.safetensors").is_file()


def test_push_is_checked_before_anything_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").touch()  # nothing of it is read
    assert "no Hugging Face token: set HF_TOKEN" in vigneron("export", run, "out", "--push", "me/mine").err
    for name in ("mine", "../mine", "a/b/c", "me/", "me/mine?token=x"):
        assert "is not a repository name" in vigneron("export", run, "out", "--push", name).err


def test_a_token_in_an_error_is_not_repeated() -> None:
    assert error_line(ValueError(f"bad\n  {TOKEN} and hf_otherOTHER123."), TOKEN) == "bad [key] and [key]"
