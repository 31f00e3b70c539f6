"""Methods that learn from preferences in the loop, with real, tiny models: they learn, go on after a stop, and what
they train is a reward for others."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from support.judged_data import WORDS, pairs_config
from support.learning import Learned, UntilLearned
from support.resuming import TrainedOnce, check_third_arm, lose_nothing, lose_optimizers, lose_schedule
from support.tiny_runs import final_state, tiny_config, write_data
from vigneron import api
from vigneron.errors import UserError
from vigneron.policy.reward_model import load_reward_model, reward_model_kind
from vigneron.recipe import check_config
from vigneron.report.html import write_report
from vigneron.rewards.build import build_reward
from vigneron.rewards.checkers import load_checker
from vigneron.run_store.folder import RunFolder

RESUMED = {"steps": 4, "save_every": 2}
LOSS = {"dpo": "loss/dpo", "reward_model": "loss/bradley_terry", "preference_model": "loss/preference"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dpo", "reward_model", "preference_model"])
def test_preferences_are_learned_and_carry_over_to_other_prompts(tmp_path: Path, tiny_folder: Path, name: str) -> None:
    steps = 60 if name == "preference_model" else 30  # to compare is harder than to score
    config = pairs_config(tmp_path, tiny_folder, name, steps=steps, prompts_per_step=8, eval_every=steps)
    run = api.train(config, runs=tmp_path, name="run")
    records = RunFolder(run.folder).metrics()
    losses = [record[LOSS[name]] for record in records if LOSS[name] in record]
    assert losses[-1] < losses[0] / 2
    loss, accuracy = ("loss/dpo", "rewards/accuracies") if name == "dpo" else ("loss", "accuracy")
    assert records[-1][f"eval/{loss}"] < records[0][f"eval/{loss}"] / 2
    assert records[-1][f"eval/{accuracy}"] == 1.0
    if name == "dpo":
        assert records[-1]["rewards/margins"] > 0 == records[1]["rewards/margins"]
        assert records[-1]["logps/chosen"] - records[-1]["logps/rejected"] > 1
    else:
        assert records[-1]["eval/margin"] > 1
        assert records[-1]["eval/calibration_error"] < 0.3
    assert "reward" not in records[1]
    again = api.load_run(run.folder)
    assert again.evaluate() == pytest.approx(
        {key.removeprefix("eval/"): value for key, value in records[-1].items() if key.startswith("eval/")}
    )
    write_report([run.folder], tmp_path / "report.html")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "lose"),
    [("dpo", lose_optimizers), ("reward_model", lose_schedule), ("preference_model", lose_optimizers)],
)
def test_every_part_of_the_state_is_needed(
    tmp_path: Path, tiny_folder: Path, trained_once: TrainedOnce, name: str, lose: Any
) -> None:
    whole = trained_once(name, lambda place: pairs_config(place, tiny_folder, name, **RESUMED))
    check_third_arm(whole, tmp_path, lose)


@pytest.mark.slow
def test_dpo_with_an_adapter_is_against_the_adapter_off(
    tmp_path: Path, tiny_folder: Path, trained_once: TrainedOnce
) -> None:
    model = {"name": str(tiny_folder), "device": "cpu", "lora": {"rank": 4}}
    whole = trained_once("dpo, adapter", lambda place: pairs_config(place, tiny_folder, "dpo", model=model, **RESUMED))
    check_third_arm(whole, tmp_path, lose_nothing)
    records = RunFolder(whole).metrics()
    assert records[1]["rewards/margins"] == 0.0
    assert records[-1]["rewards/margins"] > 0.0


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"model": {"activation_checkpointing": True}}, {"microbatch_tokens": 20}])
def test_what_bounds_memory_changes_nothing_but_rounding(
    tmp_path: Path, tiny_folder: Path, changes: dict[str, Any]
) -> None:
    config = pairs_config(tmp_path, tiny_folder, "reward_model", steps=3, eval_every=3)
    given = config.model_dump(exclude_unset=True)
    changed = {**given, **changes, "model": {**given["model"], **changes.get("model", {})}}
    figures = [
        RunFolder(api.train(each, runs=tmp_path, name=name).folder).metrics()[-1]
        for name, each in (("plain", config), ("changed", check_config(changed, "tiny")))
    ]
    assert figures[0] == pytest.approx(figures[1], rel=1e-3, abs=1e-5)


def share_of_vowels(completions: list[str], **columns: Any) -> list[float]:
    return [sum(c in "aeiouAEIOU" for c in text) / 4 for text in completions]


SAMPLED: dict[str, Any] = {
    "reward": {"kind": "python", "function": f"{__name__}:share_of_vowels"},
    "optimizer": {"actor_lr": 1e-2},
    "group_size": 8,
    "prompts_per_step": 8,
    "eval_every": 0,
}
SAMPLED_METHODS: dict[str, dict[str, Any]] = {
    "dpo": {"name": "dpo", "pairs": "sampled"},
    "reference-free": {"name": "dpo", "pairs": "sampled", "reference_free": True},
    "rejection_sampling": {"name": "rejection_sampling", "keep": 2, "min_reward": 0.25, "updates_per_round": 2},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLED_METHODS)
def test_the_policy_learns_what_is_rewarded(tmp_path: Path, tiny_folder: Path, name: str) -> None:
    changes = SAMPLED | {"method": SAMPLED_METHODS[name], "steps": 40, "save_every": 0}
    config = tiny_config(tiny_folder, write_data(tmp_path), **changes)
    with pytest.raises(Learned):
        api.train(config, runs=tmp_path, name="run", view=(until := UntilLearned(0.3)))
    records = RunFolder(tmp_path / "run").metrics()
    assert sum(until.values[:3]) / 3 < 0.15
    if name == "rejection_sampling":
        assert all(record["kept/reward"] >= record["reward"] for record in records if record["kept/share"])
        assert records[0]["kept/groups_rejected"] > records[-1]["kept/groups_rejected"]
        assert records[-1]["entropy"] < records[0]["entropy"]
    else:
        assert records[0]["pairs"] + records[0]["groups_without_pair"] == 8
        assert all(record.get("rewards/accuracies", 0) <= 1 for record in records)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "lose"),
    [("dpo", lose_optimizers), ("rejection_sampling", lose_optimizers), ("rejection_sampling", lose_nothing)],
)
def test_sampled_runs_go_on_bit_by_bit(
    tmp_path: Path, tiny_folder: Path, trained_once: TrainedOnce, name: str, lose: Any
) -> None:
    changes = SAMPLED | {"method": SAMPLED_METHODS[name], **RESUMED}
    whole = trained_once(f"{name}, sampled", lambda place: tiny_config(tiny_folder, write_data(place), **changes))
    check_third_arm(whole, tmp_path, lose)


def test_a_checkpoint_is_a_transformers_classifier(tiny_folder: Path, trained_once: TrainedOnce) -> None:
    whole = trained_once("reward_model", lambda place: pairs_config(place, tiny_folder, "reward_model", **RESUMED))
    run = api.load_run(whole)
    path = run.folder / "checkpoints" / "step-4"
    loaded, info = AutoModelForSequenceClassification.from_pretrained(path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert loaded.config.id2label == {0: "reward"}
    tokenizer = AutoTokenizer.from_pretrained(path)
    config = check_config(
        {"method": {"name": "sft"}, "data": {"task": "colors"}, "reward": {"kind": "model", "model": str(path)}}, "t"
    )
    reward = build_reward(config.reward, load_checker("equality"))
    with torch.no_grad():
        wanted = [float(loaded(torch.tensor([[*tokenizer(t)["input_ids"], 0]])).logits) for t in ("say ab", "x y")]
    assert reward(prompts=["say a", "x "], completions=["b", "y"]) == pytest.approx(wanted, abs=1e-5)
    with pytest.raises(UserError, match="cannot generate text"):
        run.sample(["say"])


@pytest.fixture(scope="module")
def scorers(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> dict[str, Path]:
    """Runs that have trained a reward model and a preference model."""
    runs = tmp_path_factory.mktemp("scorers")
    return {
        name: api.train(
            pairs_config(runs, tiny_folder, name, steps=20, prompts_per_step=8, eval_every=0), runs=runs, name=name
        ).folder
        for name in ("reward_model", "preference_model")
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "reward"),
    [
        ("rejection_sampling", {"kind": "model", "model": "reward_model"}),
        ("grpo", {"kind": "preference", "model": "preference_model"}),
        ("grpo", {"kind": "preference", "model": "preference_model", "ranking": "tournament"}),
    ],
)
def test_a_run_is_rewarded_by_what_another_run_trained(
    tmp_path: Path, tiny_folder: Path, scorers: dict[str, Path], reward: dict[str, Any], method: str
) -> None:
    reward = {**reward, "model": str(scorers[reward["model"]])}
    changes: dict[str, Any] = {"optimizer": {"actor_lr": 1e-3}, "steps": 3, "eval_every": 3, "group_size": 4}
    data = tmp_path / "prompts.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"say {word}:"}) + "\n" for word in WORDS))
    shutil.copy(data, tmp_path / "held-out-prompts.jsonl")  # no answers anywhere
    config = tiny_config(tiny_folder, data, method={"name": method}, reward=reward, **changes)
    run = api.train(config, runs=tmp_path, name="run")
    records = RunFolder(run.folder).metrics()
    assert [record["step"] for record in records] == [0, 1, 2, 3]
    for record in records[1:]:
        assert record["reward_missing"] == 0
        if reward["kind"] == "preference" and reward.get("ranking") is None:
            assert record["reward"] == pytest.approx(0.5)  # what one wins another loses
    assert run.config.reward.model.endswith("checkpoints/step-20")  # type: ignore[union-attr]
    if "ranking" in reward:  # whose rounds are drawn
        again = api.train(config, runs=tmp_path, name="again")
        assert final_state(run.folder) == final_state(again.folder)


@pytest.mark.slow
def test_what_is_no_such_model_is_refused_in_one_line(
    tmp_path: Path, tiny_folder: Path, scorers: dict[str, Path]
) -> None:
    data = write_data(tmp_path)

    def line(kind: str, model: Path) -> str:
        config = tiny_config(
            tiny_folder,
            data,
            method={"name": "grpo"},
            optimizer={},
            reward={"kind": kind, "model": str(model)},
        )
        with pytest.raises(UserError) as caught:
            api.train(config, runs=tmp_path, name="run")
        assert not (tmp_path / "run").exists()
        (found,) = str(caught.value).splitlines()
        return found

    assert line("model", tiny_folder).endswith(
        "is not a reward or preference model: it has no score.weight; train one first"
    )
    assert "compares two texts: set `reward.kind: preference`" in line("model", scorers["preference_model"])
    assert "scores one text: set `reward.kind: model`" in line("preference", scorers["reward_model"])
    assert "has no config.json" in line("model", tmp_path)
    assert "is not a folder" in line("model", tmp_path / "nowhere")
    unfinished = tmp_path / "unfinished"
    shutil.copytree(scorers["reward_model"], unfinished)
    shutil.rmtree(unfinished / "checkpoints")
    assert "has no checkpoint yet" in line("model", unfinished)
    assert (
        reward_model_kind(load_reward_model(str(scorers["reward_model"] / "checkpoints" / "step-20"), start=False))
        == "reward"
    )


def test_a_pair_too_long_for_the_model_is_found_at_the_start(tmp_path: Path, tiny_folder: Path) -> None:
    config = pairs_config(tmp_path, tiny_folder, "preference_model")
    rows = [{"prompt": "p", "chosen": "a" * 25, "rejected": "b" * 25}]
    (tmp_path / "pairs.jsonl").write_text(json.dumps(rows[0]) + "\n")
    with pytest.raises(UserError, match=r"2 texts of preference pairs do not fit .* row 1 of the training data"):
        api.train(config, runs=tmp_path, name="run")
    # A reward model reads them one at a time.
    fits = config.model_copy(update={"method": pairs_config_method("reward_model"), "steps": 1})
    assert api.train(fits, runs=tmp_path, name="run").step == 1


def pairs_config_method(name: str) -> Any:
    return check_config({"method": {"name": name}, "data": {"train": "a.jsonl"}}, "t").method


def test_pairs_of_equal_texts_are_said_to_be_left_out(tmp_path: Path, tiny_folder: Path) -> None:
    config = pairs_config(tmp_path, tiny_folder, "dpo", steps=1, eval_every=0)
    with (tmp_path / "pairs.jsonl").open("a") as file:
        file.write(json.dumps({"prompt": "p", "chosen": "a", "rejected": "a"}) + "\n")
    said: list[str] = []

    class Ear:
        def notice(self, text: str) -> None:
            said.append(text)

        def step(self, *_: Any) -> None: ...

    run = api.train(config, runs=tmp_path, name="run", view=Ear())
    assert any("1 pairs have equal texts and are left out, the first in row 9" in text for text in said)
    assert len(RunFolder(run.folder).data(run.config).train) == 8
