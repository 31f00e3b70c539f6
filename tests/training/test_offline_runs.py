"""TOPR, OREO and A*-PO in the loop with a real, tiny model: they learn, resume, and a killed stage 0 continues."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch

from support.command_line import vigneron
from support.recorded_data import recorded_config, recorded_rows
from support.resuming import TrainedOnce, check_third_arm, lose_critic, lose_nothing, lose_optimizers
from support.tiny_runs import Listener, final_state, tiny_config, write_data
from vigneron import api
from vigneron.config import Config
from vigneron.core.draws import Sampling
from vigneron.core.masked import masked_sum
from vigneron.errors import UserError
from vigneron.methods import build_method, reference_samples
from vigneron.methods.reference_samples import FILE
from vigneron.policy.from_config import policy_from_config
from vigneron.policy.logprobs import score
from vigneron.policy.model import Reference
from vigneron.recipe import check_config, load_config, recipe_names
from vigneron.report.html import write_report
from vigneron.rollout.on_policy import OnPolicy
from vigneron.rollout.recorded import Recorded
from vigneron.run_data.readers import checker_name
from vigneron.run_store.folder import RunFolder
from vigneron.sources.embedders import SentenceEmbedder
from vigneron.training import record_samples
from vigneron.training.parts import Parts
from vigneron.training.setup.build import wrap_method

OWN_VALUE = {"name": "oreo", "critic": {"network": "own"}}
HEAD = {"name": "oreo", "critic": {"network": "head"}}
SIGNED = {"name": "topr", "rewards": "signed"}
REWARD = {"kind": "python", "function": "test_offline_runs:has_vowel"}
A_STAR = {"name": "a_star_po", "reference_samples": 4, "beta": 0.05}


def has_vowel(completions: list[str], **columns: Any) -> list[float]:
    """From the random generator of torch too: its state must not depend on when the reference was sampled."""
    return [float(any(c in "aeiouAEIOU" for c in text)) + 1e-3 * float(torch.rand(())) for text in completions]


def never(completions: list[str], **columns: Any) -> list[float]:
    return [0.0] * len(completions)


def a_star_config(place: Path, model: Path, **changes: Any) -> Config:
    common: dict[str, Any] = {"method": A_STAR, "reward": REWARD, "optimizer": {"actor_lr": 1e-3}, "group_size": 1}
    return tiny_config(model, write_data(place), **common | {"steps": 8, "eval_every": 4} | changes)


def sampled_config(place: Path, model: Path) -> Config:
    method = {"name": "topr", "samples": "sampled", "rewards": "advantage", "updates_per_step": 2}
    return a_star_config(place, model, method=method, group_size=4)


CONFIGS: dict[str, Any] = {
    "topr": lambda place, model: recorded_config(place, model, SIGNED),
    "topr, sampled": sampled_config,
    "oreo": lambda place, model: recorded_config(place, model, HEAD),
    "oreo, own": lambda place, model: recorded_config(place, model, OWN_VALUE),
    "a_star_po": a_star_config,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "lose"),
    [
        *((name, lose_nothing) for name in CONFIGS),
        ("topr", lose_optimizers),
        ("a_star_po", lose_optimizers),
        ("oreo", lose_critic),
    ],
)
def test_a_resumed_run_is_the_same(
    tmp_path: Path, tiny_folder: Path, trained_once: TrainedOnce, name: str, lose: Any
) -> None:
    check_third_arm(trained_once(name, lambda place: CONFIGS[name](place, tiny_folder)), tmp_path, lose)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", [SIGNED, pytest.param({"name": "topr", "rewards": "advantage"}, marks=pytest.mark.slow), HEAD]
)
def test_what_was_rewarded_becomes_likelier(tmp_path: Path, tiny_folder: Path, method: dict[str, Any]) -> None:
    """Full stops were rewarded, exclamation marks not."""
    keys: dict[str, Any] = {"steps": 40, "prompts_per_step": 16, "eval_every": 0, "save_every": 0}
    config = recorded_config(tmp_path, tiny_folder, method, **keys)
    trained = api.train(config, runs=tmp_path, name="run")
    batch = Recorded(trained.policy)(recorded_rows())
    gaps = []
    for policy in (trained.reference.policy, trained.policy):
        with torch.no_grad():
            logps_B = masked_sum(score(policy, batch, Sampling()).logprobs_BT, batch.samples.mask_BT)
        gaps.append(float((logps_B[0::2] - logps_B[1::2]).mean()))
    assert gaps[1] > gaps[0] + 1.0
    write_report([trained.folder], tmp_path / "report.html")


@pytest.mark.parametrize(("method", "curriculum"), [(SIGNED, {"by": "level"}), (HEAD, {"by": "loss"})])
def test_recorded_samples_can_have_a_curriculum(
    tmp_path: Path, tiny_folder: Path, method: dict[str, Any], curriculum: Any
) -> None:
    rows = [row | {"level": number % 2} for number, row in enumerate(recorded_rows())]
    config = recorded_config(tmp_path, tiny_folder, method, rows, steps=2, curriculum=curriculum, eval_every=0)
    assert len(RunFolder(api.train(config, runs=tmp_path, name="run").folder).metrics()) == 2


def test_topr_has_no_order_by_loss(tmp_path: Path, tiny_folder: Path) -> None:
    """−w R log π is negative for a bad text: those with the worst rewards would come first. With `samples: sampled` the
    measure is a reward."""
    with pytest.raises(UserError, match=r"`curriculum.by: loss` has no order with `method: topr`") as raised:
        recorded_config(tmp_path, tiny_folder, SIGNED, curriculum={"by": "loss"})
    assert "\n" not in str(raised.value)
    a_star_config(tmp_path, tiny_folder, method={"name": "topr", "samples": "sampled"}, curriculum={"by": "loss"})


def test_rewards_that_compare_samples_have_no_v(tmp_path: Path, tiny_folder: Path) -> None:
    both = {"kind": "combined", "rewards": [{"kind": "binary"}, REWARD], "combine": "normalised"}
    for reward in (both, {"kind": "preference", "model": "a model"}):
        with pytest.raises(UserError, match=r"`method: a_star_po` compares the rewards of prompts, but `reward: ") as e:
            a_star_config(tmp_path, tiny_folder, reward=reward, group_size=2)
        assert "\n" not in str(e.value)
    a_star_config(tmp_path, tiny_folder, reward=both | {"combine": "sum"}, group_size=2)


@pytest.mark.parametrize("network", [pytest.param("head", marks=pytest.mark.slow), "own"])
def test_oreos_value_tells_good_from_bad_texts(tmp_path: Path, tiny_folder: Path, network: str) -> None:
    """From the checkpoint: behind a full stop it is near 1, behind an exclamation mark near 0."""
    keys: dict[str, Any] = {"steps": 60, "prompts_per_step": 16, "eval_every": 0, "save_every": 0}
    keys["optimizer"] = {"actor_lr": 1e-3, "critic_lr": 1e-2}
    method = {"name": "oreo", "critic": {"network": network}}
    trained = api.train(recorded_config(tmp_path, tiny_folder, method, **keys), runs=tmp_path, name="run")
    search = api.load_run(trained.folder)._value_search(seed=0)
    batch = Recorded(search.policy)(recorded_rows())
    values = search.values(list(zip(batch.samples.prompt_ids, batch.samples.completion_ids or (), strict=True)))
    good, bad = (sum(values[side::2]) / 8 for side in (0, 1))
    assert good > bad + 0.3


# ---------------------------------------------------------------------------------------------------- stage 0


def killed_in_stage_0(config: Config, place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run whose process ends when half of the prompts have been sampled, in the middle of a line."""
    calls: list[int] = []
    write = reference_samples.append_line

    def killed(path: Path, line: str) -> None:
        calls.append(1)
        if len(calls) == 3:
            with path.open("a") as file:
                file.write(line[:5])
            raise KeyboardInterrupt
        write(path, line)

    with monkeypatch.context() as patch:
        patch.setattr(reference_samples, "append_line", killed)
        patch.setattr(RunFolder, "remove", lambda folder: folder.unlock())  # a kill removes nothing
        with pytest.raises(KeyboardInterrupt):
            api.train(config, name="other", runs=place)
    return place / "other"


@pytest.mark.slow
def test_stage_0_continues_where_it_was_killed(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference_samples, "PROMPTS", 3)
    config = a_star_config(tmp_path, tiny_folder)
    whole = api.train(config, name="whole", runs=tmp_path).folder
    other = killed_in_stage_0(config, tmp_path, monkeypatch)
    assert len((other / FILE).read_text().splitlines()) == 4  # what it was drawn with, two parts, a piece of the third
    api.resume(other)
    assert (other / FILE).read_bytes() == (whole / FILE).read_bytes()
    assert final_state(other) == final_state(whole)


def test_a_resumed_run_does_not_draw_again(
    tmp_path: Path, tiny_folder: Path, trained_once: TrainedOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = a_star_config(tmp_path, tiny_folder)
    run = api.train(config, name="run", runs=tmp_path).folder
    before = (run / FILE).stat().st_size

    def refuse(*_: Any) -> None:
        raise AssertionError("stage 0 was drawn again")

    monkeypatch.setattr(reference_samples, "append_line", refuse)
    api.resume(run, "steps=9")
    assert (run / FILE).stat().st_size == before


def test_other_rows_are_drawn_for_again(tmp_path: Path, tiny_folder: Path) -> None:
    run = api.train(a_star_config(tmp_path, tiny_folder), name="run", runs=tmp_path).folder
    file = run / "data" / "train.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows[0]["prompt"] = "another prompt: "
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    before = (run / FILE).read_text().splitlines()
    api.resume(run, "steps=9", allow_changes=True)
    after = (run / FILE).read_text().splitlines()
    assert before[0] != after[0]
    assert len(after) == len(before)


def test_a_reference_that_solves_nothing_ends_before_training_and_leaves_no_folder(
    tmp_path: Path, tiny_folder: Path
) -> None:
    reward = {"kind": "python", "function": "test_offline_runs:never"}
    with pytest.raises(UserError, match=r"the reference solves none of the 10 training prompts in 4 samples each"):
        api.train(a_star_config(tmp_path, tiny_folder, reward=reward), name="run", runs=tmp_path)
    assert not (tmp_path / "run").exists()


def missing(completions: list[str], **columns: Any) -> list[None]:
    return [None] * len(completions)


def test_a_reward_that_fails_is_not_called_an_unsolved_prompt(tmp_path: Path, tiny_folder: Path) -> None:
    reward = {"kind": "python", "function": "test_offline_runs:missing", "missing_limit": 1.0}
    with pytest.raises(UserError, match="the reward is missing for all 40 samples of the reference") as raised:
        api.train(a_star_config(tmp_path, tiny_folder, reward=reward), name="run", runs=tmp_path)
    assert "solves none" not in str(raised.value)


# ---------------------------------------------------------------------------------------------------- sample, search


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


def fails_at_the_third_call(completions: list[str], **columns: Any) -> list[float]:
    calls.append(len(completions))
    if len(calls) == 3:
        raise RuntimeError("the judge is down")
    return has_vowel(completions)


def test_samples_are_kept_if_a_later_part_fails(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same command continues, and the file is the one of an uninterrupted command, to the byte."""
    monkeypatch.setattr(record_samples, "PROMPTS", 3)
    reward = {"kind": "python", "function": "test_offline_runs:fails_at_the_third_call"}
    recipe = a_star_config(tmp_path, tiny_folder, method={"name": "grpo"}, group_size=2, reward=reward)
    out, listener = tmp_path / "samples.jsonl", Listener()
    calls.clear()
    with pytest.raises(UserError, match="the judge is down"):
        api.record_samples(recipe, out=out, samples=2, notice=listener.notice)
    assert not out.exists()
    assert listener.notices[-1].startswith("12 samples are kept in ")
    api.record_samples(recipe, out=out, samples=2, notice=listener.notice)
    assert listener.notices[-1].startswith("continues behind the 12 samples in ")
    assert calls == [6, 6, 6, 6, 2], "the first two parts are not rewarded again"
    whole = api.record_samples(recipe, out=tmp_path / "whole.jsonl", samples=2).file
    assert whole.read_bytes() == out.read_bytes()
    assert sorted(path.name for path in tmp_path.glob("samples*")) == ["samples.held_out.jsonl", "samples.jsonl"]

    calls.clear()
    with pytest.raises(UserError, match="the judge is down"):
        api.record_samples(recipe, out=tmp_path / "other.jsonl", samples=2)
    api.record_samples(recipe, out=tmp_path / "other.jsonl", samples=1)
    assert calls[3:] == [3, 3, 3, 1], "drawn with another number of samples: nothing is continued"


def missing_at_first(completions: list[str], **columns: Any) -> list[float | None]:
    calls.append(len(completions))
    return [None if len(calls) == 1 else 1.0] * len(completions)


def test_a_part_without_rewards_is_not_a_step(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_samples, "PROMPTS", 3)
    keys: dict[str, Any] = {"method": {"name": "grpo"}, "group_size": 2}
    reward = {"kind": "python", "function": "test_offline_runs:missing_at_first"}
    calls.clear()
    done = api.record_samples(
        a_star_config(tmp_path, tiny_folder, reward=reward, **keys), out=tmp_path / "a.jsonl", samples=1
    )
    assert (done.rows, done.mean_reward) == (10, 1.0)
    reward = {"kind": "python", "function": "test_offline_runs:missing", "missing_limit": 0.5}
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
    recipe = tiny_config(tiny_folder, write_data(tmp_path), method={"name": "grpo"}, optimizer={"actor_lr": 1e-3})
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


def test_stale_samples_are_weighed_by_topr_alone(tmp_path: Path, tiny_folder: Path) -> None:
    """The log-probs at sampling stay μ: no importance weight is put on top of the taper."""
    sampled = {"name": "topr", "samples": "sampled", "rewards": "signed"}
    scale = {"staleness": 1, "sampling": {"kind": "ray"}}
    weighted = {}
    for method in (sampled, {"name": "grpo"}):
        config = a_star_config(tmp_path, tiny_folder, method=method, group_size=2, scale=scale)
        policy = policy_from_config(config)
        parts = Parts.of(config, policy, Reference.of(policy), lambda batch: batch)
        wrapped, _ = wrap_method(build_method(parts), parts)
        batch = OnPolicy(policy, Sampling(), 4, 2)([{"prompt": "say hot:"}])
        stale_BT = batch.samples.behaviour_BT - 1.0
        batch = batch.with_samples(behaviour_BT=stale_BT).with_signals(rewards_B=torch.tensor([1.0, 0.0]))
        after = wrapped.advantage(batch)
        weighted[method["name"]] = "importance/mean" in after.signals.metrics
        assert torch.equal(after.samples.behaviour_BT, stale_BT) == (method is sampled)
    assert weighted == {"topr": False, "grpo": True}
    with pytest.raises(UserError, match=r"`scale.correction_limit` has no effect with `method: topr`"):
        a_star_config(tmp_path, tiny_folder, method=sampled, scale=scale | {"correction_limit": 3.0})


@pytest.mark.parametrize(
    "method",
    [A_STAR, {"name": "sppo"}, {"name": "dpo", "pairs": "sampled"}, {"name": "rejection_sampling"}],
    ids=lambda method: method["name"],
)
@pytest.mark.parametrize(
    "correction", [{"correction_limit": 3.0}, {"correction_mode": "mask"}, {"correction_level": "text"}]
)
def test_a_correction_without_advantages_is_refused(
    tmp_path: Path, method: dict[str, Any], correction: dict[str, Any]
) -> None:
    scale = {"staleness": 1, "sampling": {"kind": "ray"}}
    a_star_config(tmp_path, tmp_path, method=method, group_size=2, scale=scale)
    with pytest.raises(UserError, match=r"`scale.correction_\w+` has no effect with .*, which has no advantages") as e:
        a_star_config(tmp_path, tmp_path, method=method, group_size=2, scale=scale | correction)
    assert "\n" not in str(e.value)


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


def test_log_probs_of_a_text_that_is_cut_are_not_used(tmp_path: Path, tiny_folder: Path) -> None:
    """The tiny model has room for 64 tokens."""
    rows = [{"prompt": "a", "completion": "b" * length, "reward": 1.0, "logprobs": -3.0} for length in (9, 99)]
    config = recorded_config(tmp_path, tiny_folder, SIGNED, rows)
    batch = Recorded(policy_from_config(config))(rows)
    assert batch.samples.behaviour_BT.isnan().any(1).tolist() == [False, True]
    assert float(batch.samples.behaviour_BT[0].sum()) == pytest.approx(-3.0)
    listener = Listener()
    api.train(config, runs=tmp_path, name="run", view=listener)
    assert any("1 of 2 recorded samples are longer than the model's context" in text for text in listener.notices)


def test_scores_of_a_runs_folder_are_checked_on_resume(tmp_path: Path, tiny_folder: Path) -> None:
    run = api.train(recorded_config(tmp_path, tiny_folder, HEAD, steps=1), runs=tmp_path, name="run").folder
    rows = recorded_rows()
    rows[1]["reward"] = 3
    (run / "data" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UserError, match=r"row 2: reward is 3, not a number from 0 to 1"):
        api.resume(run, "steps=2")
