"""`vigneron sample`: samples are recorded with rewards, trained on and searched by their value."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from support.command_line import vigneron
from support.recorded_data import HEAD, a_star_config, has_vowel, recorded_config
from support.tiny_runs import Listener, tiny_config, write_data
from vigneron import api
from vigneron.core.draws import Sampling
from vigneron.errors import UserError
from vigneron.policy.from_config import policy_from_config
from vigneron.recipe import check_config, load_config, recipe_names
from vigneron.rollout.on_policy import OnPolicy
from vigneron.rollout.recorded import Recorded
from vigneron.run_data.readers import checker_name
from vigneron.run_store.folder import RunFolder
from vigneron.sources.embedders import SentenceEmbedder
from vigneron.training import record_samples


@pytest.mark.slow
def test_samples_are_recorded_trained_on_and_searched(tmp_path: Path, tiny_folder: Path) -> None:
    """From a model to a file, from the file to a policy with a value, and its answers by that value."""
    recipe = a_star_config(tmp_path, tiny_folder, method={"name": "grpo"}, group_size=2)
    listener = Listener()
    out = tmp_path / "samples.jsonl"
    recording = api.record_samples(recipe, out=out, samples=3, notice=listener.notice)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert recording.rows == len(rows) == 30
    assert recording.mean_reward == pytest.approx(sum(row["reward"] for row in rows) / 30)
    assert [row["prompt"] for row in rows[:4]] == [rows[0]["prompt"]] * 3 + [rows[3]["prompt"]]
    again = api.record_samples(recipe, out=tmp_path / "again.jsonl", samples=3)
    assert [json.loads(line)["token_ids"] for line in again.file.read_text().splitlines()] == [
        row["token_ids"] for row in rows
    ]
    with pytest.raises(UserError, match="exists: choose another name"):
        api.record_samples(recipe, out=out)

    scored = [row | {"reward": float(row["reward"] >= 0.5)} for row in rows]
    (tmp_path / "scored.jsonl").write_text("".join(json.dumps(row) + "\n" for row in scored))
    keys = {
        "method": HEAD,
        "model": {"name": str(tiny_folder), "device": "cpu"},
        "data": {"train": str(tmp_path / "scored.jsonl"), "held_out": str(recording.held_out)},
        "steps": 3,
        "prompts_per_step": 8,
        "max_new_tokens": 6,
    }
    trained = api.train(check_config({"recipe": "tiny", **keys}, "tiny"), runs=tmp_path, name="oreo")
    loaded = api.load_run(trained.folder)
    found = loaded.evaluate_by_value(best_of=4)
    assert set(found) == {f"{name}/{key}" for name in ("sampled", "best_of_4") for key in ("reward", "accuracy")}
    assert found == trained.evaluate_by_value(best_of=4), "the value is the checkpoint's, whoever asks"
    with pytest.raises(UserError, match="the separator 'never this' occurs in none"):
        loaded.evaluate_by_value(beam=2, separator="never this")


calls: list[int] = []
TRIED = 2
"""Calls of a reward before the model is loaded: with a row's answer, and with empty completions."""


def fails_at_the_third_part(completions: list[str], **columns: Any) -> list[float]:
    calls.append(len(completions))
    if len(calls) == TRIED + 3:
        raise RuntimeError("the judge is down")
    return has_vowel(completions)


@pytest.mark.slow
def test_samples_are_kept_if_a_later_part_fails(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same command continues, and the file is the one of an uninterrupted command, to the byte."""
    monkeypatch.setattr(record_samples, "PROMPTS", 3)
    reward = {"kind": "python", "function": "test_record_samples:fails_at_the_third_part"}
    recipe = a_star_config(tmp_path, tiny_folder, method={"name": "grpo"}, group_size=2, reward=reward)
    out, listener = tmp_path / "samples.jsonl", Listener()
    calls.clear()
    with pytest.raises(UserError, match="the judge is down"):
        api.record_samples(recipe, out=out, samples=2, notice=listener.notice)
    assert not out.exists()
    assert listener.notices[-1].startswith("12 samples are kept in ")
    api.record_samples(recipe, out=out, samples=2, notice=listener.notice)
    assert listener.notices[-1].startswith("continues behind the 12 samples in ")
    assert calls == [2, 2, 6, 6, 6, 2, 2, 6, 2], "the first two parts are not rewarded again"
    whole = api.record_samples(recipe, out=tmp_path / "whole.jsonl", samples=2).file
    assert whole.read_bytes() == out.read_bytes()
    assert sorted(path.name for path in tmp_path.glob("samples*")) == ["samples.held_out.jsonl", "samples.jsonl"]

    calls.clear()
    with pytest.raises(UserError, match="the judge is down"):
        api.record_samples(recipe, out=tmp_path / "other.jsonl", samples=2)
    api.record_samples(recipe, out=tmp_path / "other.jsonl", samples=1)
    assert calls[5:] == [2, 2, 3, 3, 3, 1], "drawn with another number of samples: nothing is continued"


def missing_at_first(completions: list[str], **columns: Any) -> list[float | None]:
    calls.append(len(completions))
    return [None if len(calls) == TRIED + 1 else 1.0] * len(completions)


def test_a_part_without_rewards_is_not_a_step(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_samples, "PROMPTS", 3)
    keys: dict[str, Any] = {"method": {"name": "grpo"}, "group_size": 2}
    reward = {"kind": "python", "function": "test_record_samples:missing_at_first"}
    calls.clear()
    done = api.record_samples(
        a_star_config(tmp_path, tiny_folder, reward=reward, **keys), out=tmp_path / "a.jsonl", samples=1
    )
    assert (done.rows, done.mean_reward) == (10, 1.0)
    reward = {"kind": "python", "function": "support.recorded_data:missing", "missing_limit": 0.5}
    recipe = a_star_config(tmp_path, tiny_folder, reward=reward, **keys)
    with pytest.raises(UserError, match=r"^the reward is missing for all 10 samples: nothing is written$"):
        api.record_samples(recipe, out=tmp_path / "b.jsonl", samples=1)
    assert not list(tmp_path.glob("b.jsonl*"))


def test_embeddings_of_samples_are_cached(tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second command asks the embedder for nothing."""
    monkeypatch.setenv("VIGNERON_CACHE", str(tmp_path / "cache"))
    asked: list[int] = []
    embed = SentenceEmbedder.embed

    def counted(embedder: SentenceEmbedder, texts: Any) -> Any:
        asked.append(len(texts))
        return embed(embedder, texts)

    monkeypatch.setattr(SentenceEmbedder, "embed", counted)
    changes = {"method": {"name": "grpo"}, "optimizer": {"actor_lr": 1e-3}}
    reward = {"kind": "semantic", "embedder": "minilm"}
    recipe = tiny_config(tiny_folder, write_data(tmp_path), reward=reward, **changes)
    first = api.record_samples(recipe, out=tmp_path / "a.jsonl", samples=1).file
    assert asked
    asked.clear()
    assert api.record_samples(recipe, out=tmp_path / "b.jsonl", samples=1).file.read_bytes() == first.read_bytes()
    assert not asked


def test_a_folder_that_does_not_exist_is_refused_before_a_model_is_loaded(tmp_path: Path) -> None:
    recipe = a_star_config(tmp_path, tmp_path / "no model", method={"name": "grpo"}, group_size=2)
    with pytest.raises(UserError, match=r"cannot write '.*': the folder '.*none' does not exist"):
        api.record_samples(recipe, out=tmp_path / "none" / "samples.jsonl")


@pytest.mark.parametrize("samples", [1, 4])
def test_the_command_to_train_on_samples_fits_the_recipe(samples: int) -> None:
    """Every built-in recipe that samples: the overrides are accepted, and model and checker stay."""
    recording = record_samples.Recording(Path("my samples.jsonl"), 9, 0.5, Path("my samples.held_out.jsonl"))
    for recipe in [name for name in recipe_names() if load_config(name).method.reads == "prompts"]:
        config = load_config(recipe, ["max_new_tokens=77"])
        overrides = record_samples.training_overrides(config, recording, samples)
        trained = load_config(recipe, ["max_new_tokens=77", *overrides])
        assert trained.method.reads == "recorded", recipe
        assert (trained.data.task, trained.data.train) == (None, "my samples.jsonl"), recipe
        assert (trained.model, trained.max_new_tokens) == (config.model, 77), recipe
        assert checker_name(trained) == checker_name(config), recipe


def test_recorded_log_probs_are_those_that_the_model_gives(tmp_path: Path, tiny_folder: Path) -> None:
    """A recorded file trained on by the model that wrote it: π/μ is 1, so every weight is 1."""
    recipe = a_star_config(tmp_path, tiny_folder, method={"name": "grpo"}, group_size=2)
    recording = api.record_samples(recipe, out=tmp_path / "samples.jsonl", samples=2)
    rows = [json.loads(line) | {"reward": -1.0} for line in recording.file.read_text().splitlines()]
    config = recorded_config(tmp_path, tiny_folder, {"name": "topr"}, rows, steps=1, prompts_per_step=20)
    metrics = RunFolder(api.train(config, runs=tmp_path, name="run").folder).metrics()
    assert metrics[-1]["topr/weight"] == pytest.approx(1.0, abs=1e-4)
    assert metrics[-1]["topr/negative"] == 1.0


@pytest.mark.slow
def test_the_commands(tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    overrides = [f"model.name={tiny_folder}", "model.device=cpu", "max_new_tokens=2"]
    done = vigneron("sample", "grpo-ladder", *overrides, "--out", "s.jsonl", "--samples", "1")
    assert done.code == 0, done.err
    assert "wrote s.jsonl: 540 samples, mean reward 0.000" in done.out
    assert (tmp_path / "s.held_out.jsonl").is_file()
    command = shlex.split(done.out.splitlines()[-1].removeprefix("train"))
    assert command[:3] == ["vigneron", "train", "grpo-ladder"]
    trained = load_config(command[2], command[3:])
    assert (trained.model.name, trained.data.train, trained.method.reads) == (str(tiny_folder), "s.jsonl", "recorded")
    done = vigneron("sample", "sft-ladder", *overrides, "--out", "t.jsonl")
    assert done.code == 2
    assert "samples nothing: give a recipe that does" in done.err
    run = api.train(a_star_config(tmp_path, tiny_folder, steps=1), runs=tmp_path, name="run").folder
    done = vigneron("eval", str(run), "--best-of", "2")
    assert done.code == 2
    assert "trains no value to choose answers by" in done.err
    run = api.train(recorded_config(tmp_path, tiny_folder, HEAD, steps=1), runs=tmp_path, name="value").folder
    done = vigneron("eval", str(run), "--best-of", "2", "--show", "0")
    assert done.code == 0, done.err
    assert "best_of_2" in done.out
    done = vigneron("eval", str(run), "--expand", "3")
    assert done.code == 2
    assert "--expand has no effect without --beam" in done.err


def test_a_conversation_is_recorded_and_read_with_the_same_tokens(tmp_path: Path, tiny_folder: Path) -> None:
    prompts = [[{"role": "user", "content": word}] for word in ("hot", "big")]
    train = tmp_path / "chat.jsonl"
    train.write_text("".join(json.dumps({"prompt": prompt, "answer": "x"}) + "\n" for prompt in prompts))
    keys: dict[str, Any] = {"method": {"name": "grpo"}, "reward": {"kind": "binary"}, "optimizer": {"actor_lr": 1e-3}}
    recipe = tiny_config(tiny_folder, train, **keys)
    file = api.record_samples(recipe, out=tmp_path / "samples.jsonl", samples=2).file
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    policy = policy_from_config(recipe)
    sampled = OnPolicy(policy, Sampling(), 4, 2)([json.loads(line) for line in train.read_text().splitlines()])
    read = Recorded(policy)(rows)
    assert read.samples.prompt_ids == sampled.samples.prompt_ids
    assert read.samples.completion_ids == sampled.samples.completion_ids
    assert read.samples.truncated_B.tolist() == sampled.samples.truncated_B.tolist()
    without = Recorded(policy)([{k: v for k, v in row.items() if k != "token_ids"} for row in rows])
    assert without.samples.prompt_ids == sampled.samples.prompt_ids
