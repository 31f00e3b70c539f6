"""TOPR, OREO and A*-PO in the loop with a real, tiny model: they learn, resume, and a killed stage 0 continues."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from support.recorded_data import A_STAR, HEAD, REWARD, a_star_config, recorded_config, recorded_rows
from support.resuming import TrainedOnce, check_third_arm, lose_critic, lose_nothing, lose_optimizers
from support.tiny_runs import Listener, final_state
from vigneron import api
from vigneron.config import Config
from vigneron.core.draws import Sampling
from vigneron.core.masked import masked_sum
from vigneron.errors import UserError
from vigneron.methods import build_method, reference_samples
from vigneron.methods.reference_samples import FILE
from vigneron.policy.from_config import policy_from_config
from vigneron.policy.logprobs import score
from vigneron.policy.reference import Reference
from vigneron.report.html import write_report
from vigneron.rollout.on_policy import OnPolicy
from vigneron.rollout.recorded import Recorded
from vigneron.run_store.folder import RunFolder
from vigneron.training.parts import Parts
from vigneron.training.setup.build import wrap_method

SIGNED = {"name": "topr", "rewards": "signed"}


def never(completions: list[str], **columns: Any) -> list[float]:
    return [0.0] * len(completions)


def sampled_config(place: Path, model: Path) -> Config:
    method = {"name": "topr", "samples": "sampled", "rewards": "advantage", "updates_per_step": 2}
    return a_star_config(place, model, method=method, group_size=4)


CONFIGS: dict[str, Any] = {
    "topr": lambda place, model: recorded_config(place, model, SIGNED),
    "topr, sampled": sampled_config,
    "oreo": lambda place, model: recorded_config(place, model, HEAD),
    "a_star_po": a_star_config,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "lose"),
    [
        *((name, lose_nothing) for name in ("topr", "topr, sampled", "oreo")),
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
@pytest.mark.parametrize("method", [SIGNED, HEAD])
def test_what_was_rewarded_becomes_likelier(tmp_path: Path, tiny_folder: Path, method: dict[str, Any]) -> None:
    """Full stops were rewarded, exclamation marks not. In 10 steps the gap grows by 4.8 with TOPR, 2.3 with OREO."""
    keys: dict[str, Any] = {"steps": 10, "prompts_per_step": 16, "eval_every": 0, "save_every": 0}
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


@pytest.mark.slow
@pytest.mark.parametrize("network", ["head", "own"])
def test_oreos_value_tells_good_from_bad_texts(tmp_path: Path, tiny_folder: Path, network: str) -> None:
    """From the checkpoint: behind a full stop it is near 1, behind an exclamation mark near 0. The difference is
    0.85 with a head, 0.77 with a network of its own."""
    keys: dict[str, Any] = {"steps": 25, "prompts_per_step": 16, "eval_every": 0, "save_every": 0}
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
    config = a_star_config(tmp_path, tiny_folder, steps=2, eval_every=0)
    whole = api.train(config, name="whole", runs=tmp_path).folder
    other = killed_in_stage_0(config, tmp_path, monkeypatch)
    assert len((other / FILE).read_text().splitlines()) == 4  # what it was drawn with, two parts, a piece of the third
    api.resume(other)
    assert (other / FILE).read_bytes() == (whole / FILE).read_bytes()
    assert final_state(other) == final_state(whole)


@pytest.mark.slow
def test_a_resumed_run_does_not_draw_again(
    tmp_path: Path, tiny_folder: Path, trained_once: TrainedOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = trained_once("a_star_po", lambda place: a_star_config(place, tiny_folder))
    run = shutil.copytree(whole, tmp_path / "run")
    before = (run / FILE).stat().st_size

    def refuse(*_: Any) -> None:
        raise AssertionError("stage 0 was drawn again")

    monkeypatch.setattr(reference_samples, "append_line", refuse)
    api.resume(run, "steps=9")
    assert (run / FILE).stat().st_size == before


@pytest.mark.slow
def test_other_rows_are_drawn_for_again(tmp_path: Path, tiny_folder: Path, trained_once: TrainedOnce) -> None:
    whole = trained_once("a_star_po", lambda place: a_star_config(place, tiny_folder))
    run = shutil.copytree(whole, tmp_path / "run")
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


def test_a_reward_that_fails_is_not_called_an_unsolved_prompt(tmp_path: Path, tiny_folder: Path) -> None:
    reward = {"kind": "python", "function": "support.recorded_data:missing", "missing_limit": 1.0}
    with pytest.raises(UserError, match="the reward is missing for all 40 samples of the reference") as raised:
        api.train(a_star_config(tmp_path, tiny_folder, reward=reward), name="run", runs=tmp_path)
    assert "solves none" not in str(raised.value)


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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_folder_that_an_earlier_version_wrote_resumes(tmp_path: Path, tiny_folder: Path) -> None:
    """`method.reward_column` was `method.score`."""
    run = api.train(recorded_config(tmp_path, tiny_folder, SIGNED, steps=1), runs=tmp_path, name="run").folder
    written = (run / "config.yaml").read_text()
    assert "reward_column: reward" in written
    (run / "config.yaml").write_text(written.replace("reward_column: reward", "score: reward"))
    assert api.resume(run, "steps=2").step == 2
    assert api.load_run(run).config.method.score_column == "reward"
