"""Curricula in the loop with a tiny model: resumed bit for bit, measured, evaluated by level, reported, refused."""

import json
import math
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from support import fault_runs
from support.command_line import vigneron
from support.judged_data import write_pairs
from support.resuming import TrainedOnce, check_third_arm, lose_nothing
from support.small_batch import make_batch
from support.tiny_runs import final_state, held_out_of, tiny_config, tiny_recipe, write_data
from vigneron import api
from vigneron.batch import Batch
from vigneron.config import SuccessCurriculumConfig
from vigneron.data.curricula import ByLevel, ByLoss, BySuccess
from vigneron.errors import NonFinite, UserError
from vigneron.methods import build_method
from vigneron.recipe import check_config
from vigneron.report.figures import comparison_figure, panels_of
from vigneron.report.html import write_report
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.metric_table import metric
from vigneron.training.async_rollout import AsyncRollout
from vigneron.training.callbacks import Silent
from vigneron.training.collect import DynamicSampling
from vigneron.training.setup.start import start_run

GRPO: dict[str, Any] = {
    "method": {"name": "grpo", "kl": {"coefficient": 0.0}},
    "reward": {"kind": "python", "function": "test_curricula_run:share_of_letters"},
    "optimizer": {"actor_lr": 1e-2},
    "steps": 8,
    "eval_every": 4,
}
LEVEL = {"by": "level", "schedule": "gaussian"}
LOSS = {"by": "loss", "every": 3, "growth": 1.5}
SUCCESS = {"by": "success", "solved": 0.6, "hopeless": 0.2}


def share_of_letters(completions: list[str], **columns: Any) -> list[float]:
    return [sum(letter.isalpha() for letter in text) / 4 for text in completions]


def with_levels(path: Path, count: int = 3) -> Path:
    """The rows of a file and of its held-out part, with levels 1, 2, 3 in turn."""
    for file in (path, held_out_of(path)):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        levelled = [row | {"level": 1 + i % count} for i, row in enumerate(rows)]
        file.write_text("".join(json.dumps(row) + "\n" for row in levelled))
    return path


def grpo_config(place: Path, model: Path, curriculum: dict[str, Any], **changes: Any) -> Any:
    return tiny_config(model, with_levels(write_data(place)), curriculum=curriculum, **GRPO | changes)


def texts_config(place: Path, model: Path, method: str, curriculum: dict[str, Any], **changes: Any) -> Any:
    """Of a method that reads pairs or demonstrations."""
    data = with_levels(write_data(place) if method == "sft" else write_pairs(place))
    recipe = tiny_recipe(model, data, method={"name": method}, curriculum=curriculum, **changes)
    without = ("reward", "group_size", *(() if method == "sft" else ("max_new_tokens",)))
    recipe = {key: value for key, value in recipe.items() if key not in without}
    return check_config(recipe | {"optimizer": {"actor_lr": 1e-2}, "steps": 8, "eval_every": 4} | changes, "tiny")


def lose_means(run: Any) -> None:
    run.curriculum.mean_N.fill_(math.nan)
    run.curriculum.seen_N.fill_(False)


def lose_losses(run: Any) -> None:
    """The round's losses are measured again, with later weights."""
    run.curriculum.round = -1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("curriculum", "lose"),
    [(LOSS, lose_losses), (SUCCESS, lose_means)],
)
def test_a_grpo_run_resumed_without_the_curriculum_s_state_is_another(
    tmp_path: Path, tiny_folder: Path, trained_once: TrainedOnce, curriculum: dict[str, Any], lose: Any
) -> None:
    """With it, it is the same, also when killed: see below."""
    whole = trained_once(curriculum["by"], lambda place: grpo_config(place, tiny_folder, curriculum))
    check_third_arm(whole, tmp_path, lose)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "curriculum"),
    [("dpo", LEVEL), ("reward_model", {"by": "level", "schedule": "classical"}), ("dpo", LOSS), ("sft", LOSS)],
)
def test_a_resumed_run_on_given_texts_is_the_same(
    tmp_path: Path, tiny_folder: Path, trained_once: TrainedOnce, method: str, curriculum: dict[str, Any]
) -> None:
    name = f"{method} {curriculum['by']}"
    whole = trained_once(name, lambda place: texts_config(place, tiny_folder, method, curriculum))
    check_third_arm(whole, tmp_path, lose_nothing)


@pytest.mark.slow
@pytest.mark.parametrize("curriculum", [LEVEL, LOSS, SUCCESS])
def test_a_killed_and_resumed_run_is_the_same(
    tmp_path: Path, tiny_folder: Path, trained_once: TrainedOnce, curriculum: dict[str, Any]
) -> None:
    whole = trained_once(curriculum["by"], lambda place: grpo_config(place, tiny_folder, curriculum))
    recipe = tmp_path / "tiny.yaml"
    recipe.write_text((whole / "config.yaml").read_text())
    killed = fault_runs.exit_code(fault_runs.killed_at_step, str(recipe), str(tmp_path), "killed", 6)
    assert killed == -signal.SIGKILL
    api.resume(tmp_path / "killed")
    assert final_state(tmp_path / "killed") == final_state(whole)


@pytest.mark.slow
def test_training_longer_stays_at_the_schedules_end(tmp_path: Path, tiny_folder: Path) -> None:
    """`classical` over 3 steps has reached level 3; with `steps: 6` it would otherwise begin again at level 2."""
    classical = {"by": "level", "schedule": "classical"}
    config = grpo_config(tmp_path, tiny_folder, classical, steps=3, eval_every=0)
    folder = api.train(config, name="run", runs=tmp_path).folder
    api.resume(folder, "steps=6")
    records = RunFolder(folder).metrics()
    drawn = [[r[f"curriculum/level/{level}"] for level in (1, 2, 3)] for r in records]
    assert drawn == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 1], [0, 0, 1], [0, 0, 1]]


@pytest.mark.slow
def test_each_level_is_evaluated_and_drawn(tmp_path: Path, tiny_folder: Path, trained_once: TrainedOnce) -> None:
    """The levels' accuracies, weighted by their rows (4, 3 and 3 of 10), are the whole's."""
    folder = trained_once("level", lambda place: grpo_config(place, tiny_folder, LEVEL))
    records = RunFolder(folder).metrics()
    of_levels = [records[-1][f"eval/accuracy/level/{level}"] for level in (1, 2, 3)]
    assert sum(n * a for n, a in zip((4, 3, 3), of_levels, strict=True)) / 10 == records[-1]["eval/accuracy"]
    titles = {panel.title: [label for label, _ in panel.members] for panel in panels_of([records])}
    assert titles["share of each level in the step's rows"] == ["1", "2", "3"]
    assert titles["accuracy by level (held out)"] == ["1", "2", "3"]
    assert metric("curriculum/level/3").section == "Curriculum"  # its group in `view`
    figure = comparison_figure({"one": [records], "two": [records]}, panels=panels_of([records]), columns=4)
    legends = [axis.get_legend() for axis in figure.axes]
    assert [[text.get_text() for text in one.get_texts()] for one in legends if one] == [["1", "2", "3"]] * 2
    page = write_report([folder], tmp_path / "report.html").read_text()
    assert "share of each level in the step" in page
    metrics = api.load_run(folder).evaluate()
    assert {f"accuracy/level/{level}" for level in (1, 2, 3)} <= set(metrics)


@pytest.mark.slow
def test_held_out_pairs_are_measured_by_level(tiny_folder: Path, trained_once: TrainedOnce) -> None:
    """3, 3 and 2 of 8 pairs."""
    for method, curriculum, name in (
        ("dpo", LEVEL, "rewards/accuracies"),
        ("reward_model", {"by": "level", "schedule": "classical"}, "accuracy"),
    ):
        whole = trained_once(
            f"{method} level", lambda place, m=method, c=curriculum: texts_config(place, tiny_folder, m, c)
        )
        last = RunFolder(whole).metrics()[-1]
        of_levels = [last[f"eval/{name}/level/{level}"] for level in (1, 2, 3)]
        weighted = sum(n * a for n, a in zip((3, 3, 2), of_levels, strict=True)) / 8
        assert weighted == pytest.approx(last[f"eval/{name}"])
        assert api.load_run(whole).evaluate()[f"{name}/level/3"] == pytest.approx(of_levels[2])


@pytest.mark.parametrize("method", ["sft", "dpo", "preference_model"])
def test_losses_are_those_that_are_trained(tmp_path: Path, tiny_folder: Path, method: str) -> None:
    """Each row's loss, by the method's own evaluation of that row alone; the update changes nothing while measuring."""
    config = texts_config(tmp_path, tiny_folder, method, LOSS, microbatch_tokens=40)
    run = start_run(config, tmp_path, build_method, name="run", view=Silent())
    assert isinstance(run.curriculum, ByLoss)
    before = [weight.clone() for weight in run.policy.model.parameters()]
    rows = run.data.train[:5]
    measured = run.curriculum.measure(rows)
    key = {"sft": "loss/nll", "dpo": "loss/dpo", "preference_model": "loss/preference"}[method]
    alone = [run.method.update.evaluate(run.method.advantage(run.method.rollout([row])))[key] for row in rows]  # type: ignore[attr-defined]
    assert measured == pytest.approx(alone, rel=1e-4)
    assert all(torch.equal(a, b) for a, b in zip(before, run.policy.model.parameters(), strict=True))
    run.close()


def test_a_prompts_loss_is_what_its_greedy_completion_misses(tmp_path: Path, tiny_folder: Path) -> None:
    config = grpo_config(tmp_path, tiny_folder, LOSS)
    run = start_run(config, tmp_path, build_method, name="run", view=Silent())
    assert isinstance(run.curriculum, ByLoss)
    rows = run.data.train[:4]
    texts = api.Trained(run.folder.path, config, 0, run.policy, run.reference).sample([row["prompt"] for row in rows])
    assert run.curriculum.measure(rows) == pytest.approx([1 - reward for reward in share_of_letters(texts)])
    run.close()


def test_success_goes_with_dynamic_sampling(tmp_path: Path, tiny_folder: Path) -> None:
    """Prompts that are replaced, as all of their rewards are equal, are seen too, and so are those in their place."""
    method = {"name": "grpo", "kl": {"coefficient": 0.0}, "resample": 1}
    reward = {"kind": "python", "function": "test_curricula_run:spread_of_some"}
    options = {"method": method, "reward": reward, "steps": 2, "eval_every": 0, "prompts_per_step": 3}
    folder = api.train(grpo_config(tmp_path, tiny_folder, SUCCESS, **options), name="run", runs=tmp_path).folder
    records = RunFolder(folder).metrics()
    state = json.loads((folder / "checkpoints" / "step-2" / "state" / "scalars.json").read_text())["curriculum"]
    replaced = sum(record["groups_replaced"] for record in records)
    assert replaced > 0
    assert len(state["means"]) == min(10, 6 + replaced)  # all of them unseen before
    assert 1.0 in state["means"].values()
    shares = [sum(v for k, v in record.items() if k.startswith("curriculum/success/")) for record in records]
    assert shares == pytest.approx([1.0, 1.0])
    with pytest.raises(UserError, match=r"has no verdicts of the groups that `method.resample` replaces"):
        grpo_config(tmp_path, tiny_folder, SUCCESS | {"measure": "verdict"}, **options)


def spread_of_some(prompts: list[str], **columns: Any) -> list[float]:
    """All samples of a short prompt get 1; those of a longer one differ."""
    return [1.0 if len(prompt) < len("say cold: ") else float(i % 2) for i, prompt in enumerate(prompts)]


def drawn_by_async_steps(curriculum: BySuccess, first: int, last: int, skipped: int | None = None) -> list[list[str]]:
    """The prompts that each step's batch has, with two steps in flight and groups that are replaced. `skipped`: a step
    with a reward that is not finite."""
    seen: list[list[str]] = []

    def rollout(rows: Any, step: int = 0, first: int = 0) -> Batch:
        if step == skipped:
            raise NonFinite("a reward is NaN")
        rewards = torch.tensor([int(row["prompt"]) % 3 / 2 for row in rows for _ in range(2)])
        rewards[1::2] += torch.tensor([0.1 * (int(row["prompt"]) % 2) for row in rows])  # even ones have no spread
        batch = make_batch([1] * len(rewards), [2] * len(rewards), rewards_B=rewards)
        group_B = torch.arange(first, first + len(rows)).repeat_interleave(2)
        return batch.with_samples(prompts=tuple(row["prompt"] for row in rows for _ in range(2)), group_B=group_B)

    config: Any = SimpleNamespace(steps=12, eval_every=4, save_every=4, scale=SimpleNamespace(staleness=2))
    sampler = SimpleNamespace(publish=lambda: SimpleNamespace(version=0), use=lambda weights: None)
    policy: Any = SimpleNamespace(sampler=sampler, device=torch.device("cpu"))
    ahead = AsyncRollout(DynamicSampling(rollout, curriculum, attempts=1), curriculum, config, policy)
    for step in range(first, last):
        rows = curriculum.at(step)
        try:
            batch = ahead(rows, step)
        except NonFinite:
            curriculum.skipped(step)
            continue
        curriculum.observe(batch)
        seen.append(list(batch.samples.prompts))
    ahead.close()
    return seen


@pytest.mark.parametrize("skipped", [None, 5, 7])
def test_success_with_steps_in_flight_is_resumed_exactly(skipped: int | None) -> None:
    def make() -> BySuccess:
        rows = [{"prompt": str(i)} for i in range(20)]
        return BySuccess(rows, 3, 0, SuccessCurriculumConfig(by="success"), staleness=2)

    whole, part, resumed = make(), make(), make()
    steps = drawn_by_async_steps(whole, 0, 12, skipped)
    before = drawn_by_async_steps(part, 0, 8, skipped)
    assert before == steps[: len(before)]
    resumed.load(json.loads(json.dumps(part.scalars())))
    assert drawn_by_async_steps(resumed, 8, 12) == steps[len(before) :]
    assert resumed.scalars() == whole.scalars()


@pytest.mark.parametrize(
    ("curriculum", "line"),
    [
        ({"by": "level", "column": "lvel"}, "curriculum.column: the training data, row 1 has no 'lvel' (did you mean"),
        ({"by": "level", "column": "answer"}, "row 1: answer is 'hot', not a number"),
        ({"by": "level", "levels": [9]}, "no row of the training data has the level 9: it has 1, 2, 3"),
    ],
)
def test_a_level_that_is_not_there_is_refused_before_a_model_is_loaded(
    tmp_path: Path, curriculum: dict[str, Any], line: str
) -> None:
    config = grpo_config(tmp_path, tmp_path / "no-model", curriculum)
    with pytest.raises(UserError) as raised:
        api.train(config, name="run", runs=tmp_path)
    assert line in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"curriculum": {"by": "levels"}}, "curriculum.by: one of 'level', 'loss', 'success', or give `name: module:"),
        ({"curriculum": {"by": "level", "sigma": 1.0}}, "`sigma` has no effect with `schedule: cosine`"),
        ({"curriculum": {"by": "level", "levels": []}}, "curriculum.levels: "),
        ({"curriculum": {"by": "level", "levels": [1, 1]}}, "`levels` names a level twice"),
        ({"curriculum": {"by": "loss", "growth": 1.0}}, "curriculum.growth: should be greater than 1"),
        ({"curriculum": {"by": "success", "hopeless": 0.9}}, "`hopeless` is 0.9, which is not below `solved`, 0.9"),
        ({"curriculum": {"by": "level", "start": 0.5}}, "unknown key 'curriculum.start'"),
    ],
)
def test_bad_options_get_one_line(tmp_path: Path, changes: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError) as raised:
        tiny_config(tmp_path, write_data(tmp_path), **GRPO | changes)
    assert line in str(raised.value)
    assert "\n" not in str(raised.value)


def test_success_needs_rewards(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"`curriculum.by: success` needs rewards, but `method: dpo` samples nothing"):
        texts_config(tmp_path, tmp_path, "dpo", SUCCESS)


@pytest.mark.parametrize("by", ["success", "loss"])
def test_rewards_that_compare_samples_order_no_prompts(tmp_path: Path, by: str) -> None:
    """Their mean over a group is the same for every prompt, and one greedy completion has none."""
    both = {"kind": "combined", "rewards": [{"kind": "binary"}, {"kind": "binary"}], "combine": "normalised"}
    for reward in (both, {"kind": "preference", "model": "a model"}):
        keys = GRPO | {"reward": reward, "curriculum": {"by": by}}
        with pytest.raises(UserError, match=rf"`curriculum.by: {by}` compares the rewards of prompts") as raised:
            tiny_config(tmp_path, write_data(tmp_path), **keys)
        assert "\n" not in str(raised.value)
    keys = GRPO | {"reward": both, "curriculum": {"by": "success", "measure": "verdict"}}
    tiny_config(tmp_path, write_data(tmp_path), **keys)


def test_a_config_is_read_again_as_it_was_written(tmp_path: Path, tiny_folder: Path) -> None:
    for curriculum in ({"by": "level"}, LEVEL, LOSS, SUCCESS):
        config = grpo_config(tmp_path, tiny_folder, curriculum)
        assert check_config(config.model_dump(mode="json"), "again") == config


@pytest.mark.slow
def test_pass_at_k_of_a_run(tmp_path: Path, tiny_folder: Path, trained_once: TrainedOnce) -> None:
    folder = trained_once("level", lambda place: grpo_config(place, tiny_folder, LEVEL))
    run = api.load_run(folder)
    rows = [{"prompt": f"say {word}: ", "answer": word} for word in ("a", "b")]
    rows += [{"prompt": "say nothing: ", "answer": None}]
    run.config = run.config.model_copy(
        update={"data": run.config.data.model_copy(update={"checker": "test_curricula_run:has_a_vowel"})}
    )
    one, four = run.pass_at_k([1, 4], samples=6, rows=rows)
    assert (one.k, four.k, one.prompts, one.left_out, one.samples) == (1, 4, 2, 1, 6)
    # The same completions, drawn again, and the estimator by hand.
    batch = api.OnPolicy(
        run.policy, api.Sampling(temperature=1.0), run.config.max_new_tokens, group_size=6, seed=run.config.seed
    )(rows[:2])
    right = [bool(set(text) & set("aeiou")) for text in batch.samples.completions]
    counts = [sum(right[:6]), sum(right[6:])]
    assert one.value == pytest.approx(sum(counts) / 12)
    expected = [1 - math.comb(6 - count, 4) / math.comb(6, 4) for count in counts]
    assert four.value == pytest.approx(sum(expected) / 2)
    assert one.low <= one.value <= one.high
    assert run.pass_at_k([1], samples=6, rows=rows)[0] == one
    for ks, samples, line in (([7], 6, "k is 7: it lies between 1 and the 6 samples"), ([], 6, "at least one k")):
        with pytest.raises(UserError, match=line):
            run.pass_at_k(ks, samples=samples, rows=rows)
    with pytest.raises(UserError, match="no prompt has a verdict for at least 1 of its samples"):
        run.pass_at_k([1], samples=2, rows=rows[2:])
    with pytest.raises(UserError, match="no rows to evaluate on"):
        run.pass_at_k([1], samples=2, rows=[])


def has_a_vowel(completions: list[str], answer: list[Any], **columns: Any) -> list[float | None]:
    return [
        None if wanted is None else float(bool(set(text) & set("aeiou")))
        for text, wanted in zip(completions, answer, strict=True)
    ]


@pytest.mark.slow
def test_pass_at_k_on_the_command_line(tiny_folder: Path, trained_once: TrainedOnce) -> None:
    folder = trained_once("level", lambda place: grpo_config(place, tiny_folder, LEVEL))
    done = vigneron("eval", folder, "--samples", "4", "--k", "1,4")
    assert done.code == 0, done.err
    assert "pass@1 " in done.out
    assert "pass@4 " in done.out
    assert "10 prompts, 4 samples each" in done.out
    default = vigneron("eval", folder, "--samples", "5")
    assert [f"pass@{k} " in default.out for k in (1, 2, 4, 5)] == [True, True, True, False]
    for words, line in (
        (("--samples", "4", "--k", "8"), "--k: 8 does not lie between 1 and the 4 samples of each prompt"),
        (("--samples", "4", "--k", "0"), "--k: 0 does not lie"),
        (("--samples", "4", "--k", "two"), "--k: expected whole numbers such as 1,4,8, not 'two'"),
        (("--samples", "4", "--k", "9" * 5000), "--k: expected whole numbers"),
        (("--k", "2"), "--k has no effect without --samples"),
    ):
        refused = vigneron("eval", folder, *words)
        assert refused.code == 2
        assert refused.err.startswith(f"error: {line}"), refused.err
        assert refused.err.count("\n") == 1


def test_a_reward_model_has_no_pass_at_k(tiny_folder: Path, trained_once: TrainedOnce) -> None:
    classical = {"by": "level", "schedule": "classical"}
    whole = trained_once(
        "reward_model level", lambda place: texts_config(place, tiny_folder, "reward_model", classical)
    )
    refused = vigneron("eval", whole, "--samples", "2")
    assert "trains a reward model, which cannot generate text" in refused.err


def test_the_curriculum_of_a_level_is_built(tmp_path: Path, tiny_folder: Path) -> None:
    config = grpo_config(tmp_path, tiny_folder, {"by": "level", "levels": [3]})
    run = start_run(config, tmp_path, build_method, name="run", view=Silent())
    assert isinstance(run.curriculum, ByLevel)
    assert {row["level"] for row in run.curriculum.at(0)} == {3}
    run.close()
