"""GRAPE in the loop with a real, tiny model: it is GRPO in its simplest case, it learns, and it is resumed exactly."""

import json
import math
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from support import fault_runs
from support.grape_runs import item, recipe, write_rubric
from support.learning import Learned, UntilLearned
from support.tiny_models import tiny_scorer
from support.tiny_runs import Listener, final_state, held_out_of
from vigneron import api
from vigneron.core.draws import Sampling
from vigneron.errors import UserError
from vigneron.methods import build_method
from vigneron.policy.logprobs import score
from vigneron.policy.reward_model import set_reward_model_kind
from vigneron.recipe import check_config
from vigneron.run_store.samples import SampleStore
from vigneron.training.callbacks import Silent
from vigneron.training.loop import train
from vigneron.training.setup.start import start_run


@pytest.mark.slow
def test_grpo_is_the_special_case(tmp_path: Path, tiny_folder: Path) -> None:
    """One item of a reward model, confidence 1, fresh answers to the bare question: GRPO, bit for bit, at its KL."""
    scorer = tiny_scorer()
    set_reward_model_kind(scorer, "reward")
    folder = tmp_path / "scorer"
    scorer.model.save_pretrained(folder)
    scorer.tokenizer.save_pretrained(folder)
    rubric = write_rubric(tmp_path, item("liked", flow="reward_model", model=str(folder), squash="none"))
    same = {"updates_per_step": 2, "kl": {"coefficient": 0.04}}
    grape, grpo = {"name": "grape", "mix": {"fresh": 1.0, "revised": 0.0}, **same}, {"name": "grpo", **same}
    runs = {
        "grape": recipe(tmp_path, tiny_folder, rubric, steps=3, method=grape),
        "grpo": recipe(
            tmp_path, tiny_folder, rubric, steps=3, method=grpo, reward={"kind": "model", "model": str(folder)}
        ),
    }
    weights = {}
    for name, given in runs.items():
        trained = api.train(check_config(given, name), name=name, runs=tmp_path)
        weights[name] = {key: value.clone() for key, value in trained.policy.model.state_dict().items()}
    assert all(torch.equal(weights["grape"][key], weights["grpo"][key]) for key in weights["grpo"])
    rewards = [
        [json.loads(line)["reward"] for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in runs
    ]
    assert rewards[0] == rewards[1]
    assert len(set(rewards[0])) == 3


@pytest.mark.slow
@pytest.mark.usefixtures("grape_functions")
@pytest.mark.parametrize(
    ("method", "revised"),
    [
        ({"level": "sequence", "aggregation": "sum_over_samples", "mix": {"fresh": 1.0, "revised": 0.0}}, False),
        ({"mix": {"fresh": 0.5, "revised": 0.5}}, True),
    ],
)
def test_the_policy_learns_what_is_rewarded(
    tmp_path: Path, roomy_folder: Path, method: dict[str, Any], revised: bool
) -> None:
    rubric = write_rubric(tmp_path, item("vowels", flow="python", function="grape_functions:vowels"))
    options = {"name": "grape", "kl": {"coefficient": 0.0}, **method}
    given = recipe(tmp_path, roomy_folder, rubric, steps=40, prompts_per_step=8, method=options)
    run = start_run(check_config(given, "tiny"), tmp_path, build_method, name="run", view=Silent())
    with pytest.raises(Learned):
        train(run, until := UntilLearned(0.25))
    run.close()  # with the update's sign turned, vowels would become rarer
    assert any(record["origin/revised"] for record in run.folder.metrics()) == revised
    assert sum(until.values[:3]) / 3 < 0.1


@pytest.mark.usefixtures("grape_functions")
def test_the_ratio_begins_at_one_behind_the_trained_text(tmp_path: Path, roomy_folder: Path) -> None:
    """π₀ is asked behind the bare question; what was drawn is kept, and how far the two lie apart is logged."""
    rubric = write_rubric(
        tmp_path, item("vowels", flow="python", function="grape_functions:vowels"), generate="Use many vowels."
    )
    method = {"name": "grape", "mix": {"fresh": 0.5, "revised": 0.3, "demonstrated": 0.2}}
    config = check_config(recipe(tmp_path, roomy_folder, rubric, method=method), "tiny")
    run = start_run(config, tmp_path, build_method, name="run", view=Silent())
    for step in range(2):
        batch = run.method.advantage(run.method.reward(run.method.rollout(run.curriculum.at(step), step)))
        now = score(run.policy, batch, Sampling()).logprobs_BT
        mask = batch.samples.mask_BT
        torch.testing.assert_close(now[mask], batch.samples.behaviour_BT[mask], atol=1e-4, rtol=1e-4)
        assert not batch.samples.behaviour_BT.isnan().any()
        gap = (batch.samples.drawn_BT - batch.samples.behaviour_BT)[mask].abs()
        assert batch.signals.metrics["drawn/gap"] == pytest.approx(float(gap[~gap.isnan()].mean()), rel=1e-4)
        assert batch.signals.metrics["drawn/gap"] > 0.001
        assert batch.signals.metrics["drawn/mismatch"] < 1e-4
    run.close()


@pytest.mark.usefixtures("grape_functions")
def test_the_correction_weighs_tokens_by_the_two_probabilities(tmp_path: Path, roomy_folder: Path) -> None:
    """Advantages times min(1, π₀(· | question) / π₀(· | what it was drawn under)); what was not drawn counts whole."""
    rubric = write_rubric(
        tmp_path, item("vowels", flow="python", function="grape_functions:vowels"), generate="Use many vowels."
    )
    batches = {}
    for correction in ("none", "truncated"):
        mix = {"fresh": 0.5, "revised": 0.3, "demonstrated": 0.2}
        method = {"name": "grape", "mix": mix, "correction": correction}
        given = recipe(tmp_path, roomy_folder, rubric, method=method, prompts_per_step=8)
        run = start_run(check_config(given, "tiny"), tmp_path, build_method, name=correction, view=Silent())
        batches[correction] = run.method.advantage(run.method.reward(run.method.rollout(run.curriculum.at(0), 0)))
        run.close()
    plain, corrected = batches["none"], batches["truncated"]
    expected, weights = [], []
    for i, j in plain.samples.mask_BT.nonzero().tolist():
        here, drawn = float(plain.samples.behaviour_BT[i, j]), float(plain.samples.drawn_BT[i, j])
        weights.append(1.0 if math.isnan(drawn) else min(1.0, math.exp(here - drawn)))
        expected.append(float(plain.signals.advantages_BT[i, j]) * weights[-1])
    assert corrected.signals.advantages_BT[plain.samples.mask_BT].tolist() == pytest.approx(
        expected, rel=1e-5, abs=1e-7
    )
    assert corrected.signals.metrics["drawn/weight"] == pytest.approx(sum(weights) / len(weights), rel=1e-5)
    assert any(weight < 0.999 for weight in weights)
    assert any(math.isnan(value) for value in plain.samples.drawn_BT[plain.samples.mask_BT].tolist())


@pytest.mark.slow
@pytest.mark.usefixtures("grape_functions")
def test_killed_and_resumed_equals_uninterrupted(tmp_path: Path, roomy_folder: Path) -> None:
    rubric = write_rubric(
        tmp_path,
        item("vowels", flow="python", function="grape_functions:vowels", weight=0.5),
        item("sounds", flow="judge", critique="You are a critic of sounds.", weight=0.5),
        generate="Use many vowels.",
    )
    given = recipe(
        tmp_path,
        roomy_folder,
        rubric,
        steps=6,
        prompts_per_step=6,
        method={"name": "grape", "updates_per_step": 2, "mix": {"fresh": 0.4, "revised": 0.4, "demonstrated": 0.2}},
        reward={"kind": "rubric", "file": rubric, "judge": {"kind": "python", "function": "grape_functions:judge"}},
        eval_every=3,
        save_every=2,
    )
    file = tmp_path / "tiny.yaml"
    file.write_text(yaml.safe_dump(given))
    whole = api.train(str(file), name="whole", runs=tmp_path).folder
    origins = [s.extras["origin"] for s in SampleStore(whole, read_only=True).page(step=6)]
    assert "revised" in origins
    code = fault_runs.exit_code(fault_runs.killed_at_step, str(file), str(tmp_path), "killed", 4)
    assert code == -signal.SIGKILL
    api.resume(tmp_path / "killed")
    assert final_state(tmp_path / "killed") == final_state(whole)
    stores = [SampleStore(path, read_only=True) for path in (whole, tmp_path / "killed")]
    assert stores[0].page(step=6) == stores[1].page(step=6)


@pytest.mark.usefixtures("grape_functions")
def test_another_rubric_on_resume(tmp_path: Path, tiny_folder: Path) -> None:
    first = write_rubric(tmp_path, item("vowels", flow="python", function="grape_functions:vowels"))
    second = write_rubric(tmp_path, item("short", flow="length", at_most=1), name="second.yaml")
    given = recipe(tmp_path, tiny_folder, first, steps=4, save_every=2)
    run = start_run(check_config(given, "tiny"), tmp_path, build_method, name="run", view=Silent())
    run.save()
    run.close()
    before = (tmp_path / "run" / "rubric.yaml").read_text()
    judged = write_rubric(tmp_path, item("good", flow="judge", critique="You are a critic."), name="judged.yaml")
    for bad, why in ((f"{second}x", r"second\.yamlx"), (judged, "scored by a judge")):
        with pytest.raises(UserError, match=why):
            api.resume(tmp_path / "run", rubric=bad)
        assert (tmp_path / "run" / "rubric.yaml").read_text() == before
    api.resume(tmp_path / "run", rubric=second)
    kept = SampleStore(tmp_path / "run", read_only=True).page(step=4)
    assert {name for sample in kept for name in sample.extras["rubric"]["items"]} == {"short"}


@pytest.mark.usefixtures("grape_functions")
def test_a_run_of_an_earlier_version_keeps_names_that_end_with_a_space(tmp_path: Path, tiny_folder: Path) -> None:
    rubric = write_rubric(tmp_path, item("vowels", flow="python", function="grape_functions:vowels"))
    given = recipe(tmp_path, tiny_folder, rubric, steps=2)
    start_run(check_config(given, "tiny"), tmp_path, build_method, name="run", view=Silent()).close()
    write_rubric(tmp_path / "run", item("vowels ", flow="python", function="grape_functions:vowels"))
    listener = Listener()
    api.resume(tmp_path / "run", view=listener)
    assert "names that end with a space are kept in this run, and refused in a new one: 'vowels '" in listener.notices
    kept = SampleStore(tmp_path / "run", read_only=True).page(step=2)
    assert {name for sample in kept for name in sample.extras["rubric"]["items"]} == {"vowels "}
    with pytest.raises(UserError, match="does not end with a space"):
        api.train(
            check_config({**given, "reward": {"kind": "rubric", "file": str(tmp_path / "run" / "rubric.yaml")}}, "x")
        )


@pytest.mark.usefixtures("grape_functions")
def test_an_edit_that_does_not_fit_changes_nothing(tmp_path: Path, tiny_folder: Path) -> None:
    """Each of them can be read, and none can be used with this run."""
    first = write_rubric(tmp_path, item("vowels", flow="python", function="grape_functions:vowels"))
    bad = [
        yaml.safe_dump({"category_column": None, "categories": {"words": {"items": [one]}}})
        for one in (
            item("good", flow="judge", critique="You are a critic."),
            item("gone", flow="python", function="grape_functions:nothing"),
            item("same", flow="string_check", reference="{{ row.truth }}"),
        )
    ]
    said: list[str] = []

    class Editor:
        def notice(self, text: str) -> None:
            said.append(text)

        def step(self, run: Any, *_: Any) -> None:
            if bad:
                (run.folder.path / "rubric.yaml").write_text(bad.pop())

    given = recipe(tmp_path, tiny_folder, first, steps=5)
    trained = api.train(check_config(given, "tiny"), name="run", runs=tmp_path, view=Editor())
    assert trained.step == 5
    assert len([text for text in said if "cannot be used" in text]) == 3
    store = SampleStore(trained.folder, read_only=True)
    assert {name for step in range(1, 6) for s in store.page(step=step) for name in s.extras["rubric"]["items"]} == {
        "vowels"
    }


@pytest.mark.usefixtures("grape_functions")
def test_the_datasets_answers_are_not_counted_as_the_childs(tmp_path: Path, tiny_folder: Path) -> None:
    rubric = write_rubric(tmp_path, item("right", flow="string_check"))
    method = {"name": "grape", "mix": {"fresh": 0.5, "revised": 0.0, "demonstrated": 0.5, "by": "proportion"}}
    given = recipe(tmp_path, tiny_folder, rubric, steps=1, method=method)
    trained = api.train(check_config(given, "tiny"), name="run", runs=tmp_path)
    record = json.loads((trained.folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert record["exact_match"] == 0.0
    assert record["reward"] == 0.0
    assert record["origin/reward/demonstrated"] == 1.0
    assert record["origin/demonstrated"] == 0.25


@pytest.mark.usefixtures("grape_functions")
def test_canaries_and_a_second_rubric_are_looked_at(tmp_path: Path, tiny_folder: Path) -> None:
    rubric = write_rubric(tmp_path, item("any", flow="length", at_most=50))
    other = write_rubric(tmp_path, item("never", flow="regex", pattern="qqqq"), name="other.yaml")
    given = recipe(tmp_path, tiny_folder, rubric, steps=1, eval_every=1)
    given["reward"]["held_out_file"] = other
    said: list[str] = []

    class Ear:
        def notice(self, text: str) -> None:
            said.append(text)

        def step(self, *_: Any) -> None: ...

    trained = api.train(check_config(given, "tiny"), name="run", runs=tmp_path, view=Ear())
    last = json.loads((trained.folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["eval/canary/words"] == 1.0
    assert last["eval/held_out_rubric/reward"] == 0.0
    assert last["eval/reward"] == 1.0
    assert any("deserves nothing" in line for line in said)


def test_what_is_wrong_is_said_before_a_model_is_loaded(tmp_path: Path, tiny_folder: Path) -> None:
    rubric = write_rubric(tmp_path, item("good", flow="judge", critique="You are a critic."))
    given = recipe(tmp_path, tiny_folder, rubric)
    with pytest.raises(UserError, match=r"reward\.judge: the rubric's item 'good' is scored by a judge"):
        api.train(check_config(given, "tiny"), name="run", runs=tmp_path)
    assert not (tmp_path / "run").exists()
    with pytest.raises(UserError, match=r"set `reward\.kind: rubric`"):
        check_config({**given, "reward": {"kind": "binary"}}, "tiny")
    sorts = tmp_path / "sorts.yaml"
    words = {"items": [item("short", flow="length", at_most=3)]}
    sorts.write_text(yaml.safe_dump({"categories": {"words": words, "others": words}}))
    with pytest.raises(UserError, match="row 1 has no 'category'"):
        api.train(check_config({**given, "reward": {"kind": "rubric", "file": str(sorts)}}, "tiny"), runs=tmp_path)
    assert held_out_of(tmp_path / "words.jsonl").exists()
