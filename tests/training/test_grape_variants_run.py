"""GRAPE's variants in the loop with a real, tiny model: GRPO where nothing is off policy, and resumed exactly."""

import json
import math
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from support import fault_runs
from support.grape_runs import VOWELS, item, recipe, write_rubric
from support.tiny_runs import final_state
from vigneron import api
from vigneron.batch import Batch
from vigneron.config import GrapeConfig
from vigneron.data.prompts import prompt_text
from vigneron.errors import UserError
from vigneron.methods import build_method
from vigneron.methods.grape import failed
from vigneron.recipe import check_config, config_yaml
from vigneron.report.figures import panels_of
from vigneron.rollout.grape_memory import EarlierResponse, Memory
from vigneron.rubric.prompts import feedback_of, hindsight_prompt
from vigneron.run_store.samples import SampleStore
from vigneron.training.callbacks import Silent
from vigneron.training.grape_prompts import Scaffold
from vigneron.training.run import Run
from vigneron.training.setup.resolve import with_values
from vigneron.training.setup.start import start_run

pytestmark = pytest.mark.usefixtures("grape_functions")
NO_KL = {"kl": {"coefficient": 0.0}}
PAPER = {"correction": "none", "baseline": "group"}
OTHER = {"items": [VOWELS], "generate": "Use many vowels."}
RARELY = 1e-12
"""A share of the mix that no draw falls into."""


def grape(**options: Any) -> dict[str, Any]:
    return {"name": "grape", **NO_KL, **options}


def started(
    tmp_path: Path,
    model: Path,
    rubric: str,
    method: dict[str, Any],
    *,
    name: str = "run",
    column: str | None = None,
    **changes: Any,
) -> Run:
    """`column`: the category of all rows."""
    given = recipe(tmp_path, model, rubric, method=method, **changes)
    if column is not None:
        data = Path(given["data"]["train"])
        rows = [{**json.loads(line), "category": column} for line in data.read_text().splitlines()]
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        given["data"]["held_out"] = None
    return start_run(check_config(given, "tiny"), tmp_path, build_method, name=name, view=Silent())


def rewarded(run: Run, step: int = 0) -> Batch:
    return run.check(run.method.reward(run.method.rollout(run.curriculum.at(step), step)))


# ---------------------------------------------------------------------------------------------- GRPO


@pytest.mark.slow
def test_without_revisions_and_prompts_every_variant_is_grpo(tmp_path: Path, roomy_folder: Path) -> None:
    """The same weights to the bit, after two steps of two updates."""
    rubric = tmp_path / "two.yaml"
    categories = {"words": {"items": [VOWELS]}, "others": OTHER}
    rubric.write_text(yaml.safe_dump({"category_column": "category", "categories": categories}))
    methods: dict[str, dict[str, Any]] = {
        "grpo": {"name": "grpo", **NO_KL},
        "default": grape(mix={"fresh": 1.0}),
        "default, two origins": grape(mix={"fresh": 1.0, "revised": RARELY}),
        "paper": grape(mix={"fresh": 1.0}, **PAPER),
        "topr": grape(mix={"fresh": 1.0}, correction="topr"),
        "origins": grape(mix={"fresh": 1.0, "revised": RARELY}, baseline="origin", revise="failures"),
        "luffy": grape(mix={"fresh": 1.0, "demonstrated": RARELY}, demonstration_gamma=0.1),
        "scaffold": grape(mix={"fresh": 1.0}, scaffold={"shows": "generation_prompt"}),
        "hindsight": grape(self_distillation={"sees": "generation_prompt"}),
    }
    weights: dict[str, dict[str, torch.Tensor]] = {}
    for name, method in methods.items():
        run = started(tmp_path, roomy_folder, str(rubric), {**method, "updates_per_step": 2}, name=name, column="words")
        for step in range(2):
            assert run.method.update(run.method.advantage(rewarded(run, step)))["grad_norm/actor"] > 0
        weights[name] = {key: value.clone() for key, value in run.policy.model.state_dict().items()}
        run.close()
    for name in methods:
        assert all(torch.equal(weights[name][key], weights["grpo"][key]) for key in weights["grpo"]), name


# ---------------------------------------------------------------------------------------------- on policy


def plain_logprobs(run: Run, prompt: Any, completion_ids: tuple[int, ...]) -> list[float]:
    """log π of each token, by one forward pass of the model itself over the whole text."""
    ids = run.policy.tokenizer(prompt_text(prompt))["input_ids"]
    with torch.no_grad():
        logits = run.policy.causal(torch.tensor([[*ids, *completion_ids]])).logits[0].double()
    logprobs = logits.log_softmax(-1)
    return [float(logprobs[len(ids) - 1 + t, token]) for t, token in enumerate(completion_ids)]


@pytest.mark.parametrize("sees", ["feedback", "best", "generation_prompt"])
def test_the_policy_that_has_seen_more_scores_the_tokens(tmp_path: Path, roomy_folder: Path, sees: str) -> None:
    """A = R − mean + λ clip(log π(token | seen, question) − log π(token | question)), text by text."""
    rubric = write_rubric(tmp_path, VOWELS, generate="Use many vowels.")
    options = {"sees": sees, "coefficient": 0.7, "limit": 0.01}
    run = started(tmp_path, roomy_folder, rubric, grape(self_distillation=options), sampling={"temperature": 1.0})
    batch = run.method.advantage(rewarded(run))
    rewards, groups = batch.signals.rewards_B.tolist(), batch.samples.group_B.tolist()
    logged = batch.samples.extras["rubric"]
    clipped = told = 0
    for i, row in enumerate(batch.samples.prompts):
        group = [j for j, other in enumerate(groups) if other == groups[i]]
        best = max(group, key=lambda j: (rewards[j], -j))
        seen = {
            "feedback": hindsight_prompt(row, feedback_of(logged[i])),
            "best": hindsight_prompt(row, feedback_of(logged[best]), batch.samples.completions[best]),
            "generation_prompt": f"Use many vowels.\n\n{row}",
        }[sees]
        ids = batch.samples.completion_lists()[i]
        now, hindsight = (plain_logprobs(run, prompt, tuple(ids)) for prompt in (row, seen))
        has_signal = sees != "best" or rewards[best] > rewards[i]
        told += has_signal
        centred = rewards[i] - sum(rewards[j] for j in group) / len(group)
        for t, (before, after) in enumerate(zip(now, hindsight, strict=True)):
            clipped += abs(after - before) > 0.01
            signal_t = max(-0.01, min(0.01, after - before)) if has_signal else 0.0
            assert float(batch.signals.advantages_BT[i, t]) == pytest.approx(centred + 0.7 * signal_t, abs=2e-5)
    assert batch.samples.extras["drawn_under"] == (None,) * len(batch)
    assert clipped > 0
    assert told > 0
    assert batch.signals.metrics["hindsight/share"] == told / len(batch)
    assert batch.signals.metrics["drawn/helped"] == 0.0
    assert run.method.memory is None
    explained = run.method.explain({"frac_reward_zero_std": 1.0})
    assert bool(explained) == (sees == "best"), "of equal rewards all are the best, and have no signal"
    run.close()


def test_a_prompt_that_does_not_fit_gives_no_signal(tmp_path: Path, tiny_folder: Path) -> None:
    """The feedback is longer than the tiny model's context."""
    rubric = write_rubric(tmp_path, VOWELS)
    run = started(tmp_path, tiny_folder, rubric, grape(self_distillation={"sees": "feedback"}))
    batch = run.method.advantage(rewarded(run))
    assert batch.signals.metrics["hindsight/too_long"] == 1.0
    assert batch.signals.metrics["hindsight/share"] == 0.0
    assert (batch.signals.advantages_BT == batch.signals.advantages_BT[:, :1]).all()
    run.close()


def test_equal_rewards_still_train_in_hindsight(tmp_path: Path, roomy_folder: Path) -> None:
    rubric = write_rubric(tmp_path, item("never", flow="regex", pattern="qqqq"))
    given = recipe(tmp_path, roomy_folder, rubric, steps=1, method=grape(self_distillation={"sees": "feedback"}))
    trained = api.train(check_config(given, "tiny"), name="run", runs=tmp_path)
    record = json.loads((trained.folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert record["frac_reward_zero_std"] == 1.0
    assert record["grad_norm/actor"] > 0
    assert record["hindsight/size"] > 0


# ---------------------------------------------------------------------------------------------- off policy


def test_topr_weighs_whole_texts_that_are_bad(tmp_path: Path, roomy_folder: Path) -> None:
    """Advantages times 1, or min(1, Π π₀(· | question) / π₀(· | what it was drawn under)) where they are negative."""
    rubric = write_rubric(tmp_path, VOWELS, generate="Use many vowels.")
    batches = {}
    for correction in ("none", "topr"):
        mix = {"fresh": 0.8, "demonstrated": 0.2}
        method = grape(mix=mix, correction=correction)
        run = started(tmp_path, roomy_folder, rubric, method, name=correction, prompts_per_step=8)
        batches[correction] = run.method.advantage(rewarded(run))
        run.close()
    plain, weighed = batches["none"], batches["topr"]
    tapered = 0
    for i in range(len(plain)):
        mask = plain.samples.mask_BT[i]
        before = float(plain.signals.advantages_BT[i, 0])
        gap = float((plain.samples.behaviour_BT[i] - plain.samples.drawn_BT[i])[mask].sum())
        weight = 1.0 if before >= 0 or math.isnan(gap) else min(1.0, math.exp(gap))
        tapered += weight < 0.999
        assert weighed.signals.advantages_BT[i][mask].tolist() == pytest.approx(
            [before * weight] * int(mask.sum()), rel=1e-4
        )
    assert tapered > 0


def test_demonstrations_have_luffys_loss(tmp_path: Path, roomy_folder: Path) -> None:
    """−A π/(π + γ) for each of their tokens, and −A r for the others, r being 1."""
    rubric = write_rubric(tmp_path, VOWELS)
    mix = {"fresh": 0.5, "demonstrated": 0.5, "by": "proportion"}
    run = started(tmp_path, roomy_folder, rubric, grape(mix=mix, demonstration_gamma=0.05))
    batch = run.method.advantage(rewarded(run))
    now = run.method.update.score(batch)  # type: ignore[attr-defined]
    (term,) = [term for term in run.method.update.loss(batch, now) if term.name == "loss/policy"]  # type: ignore[attr-defined]
    for i, origin in enumerate(batch.samples.extras["origin"]):
        for t in range(len(batch.samples.completion_lists()[i])):
            chance, advantage = (
                math.exp(float(now.logprobs_BT[i, t].detach())),
                float(batch.signals.advantages_BT[i, t]),
            )
            factor = chance / (chance + 0.05) if origin == "demonstrated" else 1.0
            assert float(term.values[i, t].detach()) == pytest.approx(-advantage * factor, rel=1e-4, abs=1e-6)
    assert batch.samples.extras["origin"].count("demonstrated") == 4
    run.close()


THIRDS = {"fresh": 0.5, "revised": 0.25, "demonstrated": 0.25, "by": "proportion"}
HALVES = {"fresh": 0.5, "revised": 0.5, "by": "proportion"}


@pytest.mark.parametrize(
    ("options", "cancel"),
    [
        ({**PAPER, "mix": THIRDS}, True),
        ({**PAPER, "mix": HALVES, "baseline": "origin"}, True),
        ({**PAPER, "mix": THIRDS, "baseline": "origin"}, False),
        ({**PAPER, "mix": HALVES, "correction": "topr"}, False),
        ({**PAPER, "mix": HALVES, "correction": "truncated"}, False),
        ({**PAPER, "mix": THIRDS, "demonstration_gamma": 0.1}, False),
        ({"mix": HALVES}, False),
        ({"self_distillation": {"sees": "generation_prompt"}}, False),
    ],
)
def test_losses_of_a_group_cancel_out_without_corrections(
    tmp_path: Path, roomy_folder: Path, options: dict[str, Any], cancel: bool
) -> None:
    """The sum over a group of the samples' mean losses, in the second step, which has revisions."""
    rubric = write_rubric(tmp_path, VOWELS, generate="Use many vowels.")
    run = started(tmp_path, roomy_folder, rubric, grape(**options), prompts_per_step=10, group_size=8)
    for step in range(2):
        batch = run.method.advantage(rewarded(run, step))
    (term,) = [t for t in run.method.update.loss(batch, run.method.update.score(batch)) if t.name == "loss/policy"]  # type: ignore[attr-defined]
    mask_BT = batch.samples.mask_BT
    means_B = (term.values.detach() * mask_BT).sum(1) / mask_BT.sum(1)
    sums_Q = torch.zeros(10).index_add(0, batch.samples.group_B, means_B)
    run.close()
    assert (sums_Q.abs().max() < 1e-5) == cancel


def test_only_questions_whose_group_failed_are_revised(tmp_path: Path, roomy_folder: Path) -> None:
    """Of ten questions all are answered; in the next step those without a vowel get revisions, the others none."""
    rubric = write_rubric(tmp_path, VOWELS)
    mix = {"fresh": 0.5, "revised": 0.5, "by": "proportion"}
    method = grape(mix=mix, revise="failures", fails_below=0.2)
    run = started(tmp_path, roomy_folder, rubric, method, prompts_per_step=10)
    first = run.method.advantage(rewarded(run))
    reached: dict[str, float] = {}
    for prompt, reward in zip(first.samples.prompts, first.signals.rewards_B.tolist(), strict=True):
        reached[prompt] = max(reward, reached.get(prompt, 0.0))
    second = run.method.rollout(run.curriculum.at(1), 1)
    revised = {
        p for p, o in zip(second.samples.prompts, second.samples.extras["origin"], strict=True) if o == "revised"
    }
    assert revised == {prompt for prompt, best in reached.items() if best < 0.2}
    assert 0 < len(revised) < 10
    run.close()


def test_when_a_group_has_failed() -> None:
    """Fresh responses alone count; old checkpoints know no rewards, and what they hold is revised as before."""
    by_reward = check_method(revise="failures", fails_below=0.6)
    by_check = check_method(revise="failures", fails_by="check")
    low, high = EarlierResponse("a", "f", 0.5, True), EarlierResponse("b", "f", 0.6, False)
    revised = EarlierResponse("c", "f")
    assert [failed(some, by_reward) for some in ([low], [low, high], [low, revised], [revised])] == [1, 0, 1, 1]
    assert [failed(some, by_check) for some in ([high], [low, high], [high, revised], [revised])] == [1, 0, 1, 1]
    memory = Memory()
    memory.load([("key", [["old", "feedback"]]), ("other", [["new", "feedback", 0.25, None]])])
    assert memory.earlier == {
        "key": [EarlierResponse("old", "feedback")],
        "other": [EarlierResponse("new", "feedback", 0.25)],
    }
    again = Memory()
    again.load(json.loads(json.dumps(list(memory.entries()))))
    assert again == memory


def check_method(**options: Any) -> Any:
    return GrapeConfig.model_validate({"name": "grape", **options})


# ---------------------------------------------------------------------------------------------- scaffold


def test_items_are_shown_less_and_less(tmp_path: Path, roomy_folder: Path) -> None:
    """Four items: of a group of three, 4, 2 and 0 of them at first, at half of the training 2, 1 and 0, then none."""
    names = ("short", "long", "blue", "red")
    items = [item(name, flow="length", at_most=3) for name in names]
    rubric = write_rubric(tmp_path, *items, generate="Never shown.")
    method = grape(mix={"fresh": 1.0}, scaffold={"half_at": 0.5, "steepness": 30.0})
    run = started(tmp_path, roomy_folder, rubric, method, group_size=3, steps=9)
    chosen = set()
    for step, counts in ((0, [4, 2, 0]), (4, [2, 1, 0]), (8, [0, 0, 0])):
        batch = run.method.rollout(run.curriculum.at(step), step)
        for i, text in enumerate(batch.samples.extras["drawn_under"]):
            shown = [name for name in names if f"- {name}: what it says" in (text or "")]
            assert len(shown) == counts[i % 3]
            assert (text is None) == (not shown)
            assert text is None or text.endswith(f"\n\n{batch.samples.prompts[i]}")
            chosen.add(tuple(shown))
        assert batch.signals.metrics["drawn/helped"] == pytest.approx(sum(map(bool, counts)) / 3)
        part = run.method.rollout(run.curriculum.at(step)[2:], step, first=2)
        assert part.samples.extras["drawn_under"] == batch.samples.extras["drawn_under"][6:]
        ids = [tuple(run.policy.tokenizer(prompt)["input_ids"]) for prompt in batch.samples.prompts]
        assert list(batch.samples.prompt_ids) == ids, "trained after the bare question"
    assert len({one for one in chosen if len(one) == 2}) > 1, "not always the same two"
    run.close()


def test_the_generation_prompt_as_help(tmp_path: Path, roomy_folder: Path) -> None:
    """For those of a group whose share is at least one half."""
    rubric = write_rubric(tmp_path, VOWELS, generate="Use many vowels.")
    method = grape(mix={"fresh": 1.0}, scaffold={"shows": "generation_prompt"})
    run = started(tmp_path, roomy_folder, rubric, method, group_size=3, steps=11)
    helped = [text is not None for text in run.method.rollout(run.curriculum.at(0), 0).samples.extras["drawn_under"]]
    assert helped == [True, True, False] * 4
    assert isinstance(run.method.rollout.scaffolded, Scaffold)  # type: ignore[attr-defined]
    assert run.method.rollout.scaffolded.share(0, 4) == pytest.approx(0.5)  # type: ignore[attr-defined]
    assert set(run.method.rollout(run.curriculum.at(10), 10).samples.extras["drawn_under"]) == {None}
    run.close()


# ---------------------------------------------------------------------------------------------- metrics, resume


def test_reward_share_and_advantage_of_each_origin_are_logged_and_drawn(tmp_path: Path, roomy_folder: Path) -> None:
    rubric = write_rubric(tmp_path, VOWELS)
    mix = {"fresh": 0.5, "revised": 0.25, "demonstrated": 0.25, "by": "proportion"}
    method = grape(mix=mix, baseline="origin", correction="none")
    given = recipe(tmp_path, roomy_folder, rubric, steps=2, prompts_per_step=10, group_size=8, method=method)
    trained = api.train(check_config(given, "tiny"), name="run", runs=tmp_path)
    records = [json.loads(line) for line in (trained.folder / "metrics.jsonl").read_text().splitlines()]
    shares = [records[1][f"origin/{origin}"] for origin in ("fresh", "revised", "demonstrated")]
    assert shares == [0.625, 0.25, 0.125], "a group has the dataset's answer once"
    samples = SampleStore(trained.folder, read_only=True).page(step=2, limit=100)
    for origin in ("fresh", "revised", "demonstrated"):
        rewards = [sample.reward for sample in samples if sample.extras["origin"] == origin]
        assert records[1][f"origin/reward/{origin}"] == pytest.approx(sum(rewards) / len(rewards), abs=1e-6)
    assert records[1]["origin/advantage/revised"] == pytest.approx(0, abs=1e-6), "compared with each other"
    assert records[1]["origin/advantage/demonstrated"] != 0.0
    drawn = {panel.title: [label for label, _ in panel.members] for panel in panels_of([records])}
    for title in ("share of each origin", "reward by origin", "advantage by origin"):
        assert drawn[title] == ["demonstrated", "fresh", "revised"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [
        {
            "mix": {"fresh": 0.4, "revised": 0.4, "demonstrated": 0.2},
            "correction": "topr",
            "baseline": "origin",
            "revise": "failures",
            "fails_below": 0.25,
            "demonstration_gamma": 0.1,
            "scaffold": {"half_at": 0.5, "steepness": 10.0},
        },
        {"self_distillation": {"sees": "best"}},
    ],
    ids=["off policy", "on policy"],
)
def test_killed_and_resumed_equals_uninterrupted(tmp_path: Path, roomy_folder: Path, method: dict[str, Any]) -> None:
    rubric = write_rubric(tmp_path, VOWELS)
    options = {"name": "grape", "updates_per_step": 2, **method}
    given = recipe(tmp_path, roomy_folder, rubric, steps=5, prompts_per_step=8, method=options, save_every=2)
    file = tmp_path / "tiny.yaml"
    file.write_text(yaml.safe_dump(given))
    whole = api.train(str(file), name="whole", runs=tmp_path).folder
    code = fault_runs.exit_code(fault_runs.killed_at_step, str(file), str(tmp_path), "killed", 3)
    assert code == -signal.SIGKILL
    api.resume(tmp_path / "killed")
    assert final_state(tmp_path / "killed") == final_state(whole)
    if "mix" in method:
        records = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
        assert any(record["origin/revised"] > 0 for record in records[3:]), "after the resume"


# ---------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"baseline": "origin", "mix": {"fresh": 1.0}}, "all responses of `mix` have one origin"),
        ({"baseline": "origin", "mix": {**THIRDS, "fresh": 2.0}}, "set `group_size` to 20 or more"),
        ({"revise": "failures", "mix": {"fresh": 1.0}}, "no revised responses"),
        ({"fails_below": 0.2}, "`fails_below` has no effect with `revise: all`"),
        ({"revise": "failures", "fails_by": "check", "fails_below": 0.2}, "with `fails_by: check`"),
        ({"demonstration_gamma": 0.1}, "no demonstrated responses"),
        ({"correction": "topr", "level": "geometric", "aggregation": "samples"}, "`correction: topr` weights tokens"),
        ({"scaffold": {}, "mix": {"revised": 1.0}}, "no fresh responses"),
        ({"scaffold": {}, "trained_under": "generation_prompt"}, "set `trained_under: question`"),
        ({"self_distillation": {}, "mix": {"fresh": 0.5, "revised": 0.5}}, "leave out `mix`"),
        ({"self_distillation": {}, "correction": "topr"}, "`correction` has no effect with `self_distillation`"),
        ({"self_distillation": {}, "baseline": "origin"}, "all responses of `mix` have one origin"),
        ({"trained_under": "generation_prompt", "mix": {"fresh": 1.0}, "correction": "topr"}, "has no effect"),
        (
            {"mix": {**HALVES, "fresh": 2.0}, "baseline": "origin"},
            "`group_size` to 10 or more, .*, or `method.baseline: group`",
        ),
        ({"self_distillation": {}, "level": "geometric", "aggregation": "samples"}, "set `level: token`"),
    ],
)
def test_an_option_without_effect_is_refused(
    tmp_path: Path, tiny_folder: Path, options: dict[str, Any], why: str
) -> None:
    with pytest.raises(UserError, match=why):
        check_config(recipe(tmp_path, tiny_folder, "rubric.yaml", method={"name": "grape", **options}), "tiny")


@pytest.mark.parametrize("by", ["proportion", "probability"])
@pytest.mark.parametrize(("size", "baseline"), [(9, "group"), (10, "origin")])
def test_an_origin_that_would_be_alone_is_compared_with_its_group(
    tmp_path: Path, tiny_folder: Path, by: str, size: int, baseline: str
) -> None:
    """One in five is revised: a group of ten has two. Nobody asked for a baseline."""
    method = {"name": "grape", "mix": {"fresh": 0.8, "revised": 0.2, "by": by}}
    given = recipe(tmp_path, tiny_folder, "rubric.yaml", method=method, group_size=size)
    method = with_values(check_config(given, "tiny")).method
    assert isinstance(method, GrapeConfig)
    assert method.baseline == baseline


@pytest.mark.parametrize(
    ("options", "correction", "baseline"),
    [
        ({}, "topr", "origin"),
        ({"mix": {"by": "proportion"}}, "topr", "origin"),
        ({"mix": {"fresh": 1}}, "topr", "group"),
        ({"mix": {"revised": 1}}, "topr", "group"),
        ({"mix": {"fresh": 0.9, "demonstrated": 0.1}}, "topr", "origin"),
        ({"self_distillation": {}}, "none", "group"),
        ({"level": "sequence", "aggregation": "sum_over_samples"}, "none", "origin"),
        ({"level": "geometric", "aggregation": "samples", "mix": {"fresh": 1}}, "none", "group"),
        ({"trained_under": "generation_prompt", "mix": {"fresh": 1}}, "none", "group"),
        ({"trained_under": "generation_prompt"}, "topr", "origin"),
        (PAPER, "none", "group"),
    ],
)
def test_an_unset_correction_or_baseline_without_an_effect_is_left_out(
    options: dict[str, Any], correction: str, baseline: str
) -> None:
    method = check_method(**options)
    assert (method.correction, method.baseline) == (correction, baseline)
    assert GrapeConfig.model_validate(method.model_dump(mode="json")) == method


def test_a_run_of_an_earlier_version_keeps_the_papers_form(tmp_path: Path, tiny_folder: Path) -> None:
    """Its config may lack both keys, which had the paper's defaults; one that it has is kept."""
    for options, expected in (({}, ("none", "group")), ({"correction": "topr"}, ("topr", "group"))):
        given = recipe(tmp_path, tiny_folder, "rubric.yaml", method=grape(**options))
        before, now = (check_config(given, "tiny", stored=stored).method for stored in (True, False))
        assert (before.correction, before.baseline) == expected  # type: ignore[union-attr]
        assert (now.correction, now.baseline) == ("topr", "origin")  # type: ignore[union-attr]


@pytest.mark.parametrize("mix", [3, "fresh", {"fresh": "half"}, {"fresh": 0.0}, {"stale": 1.0}])
def test_a_wrong_mix_is_the_only_error(tmp_path: Path, tiny_folder: Path, mix: Any) -> None:
    with pytest.raises(UserError, match=r"method\.mix") as error:
        check_config(recipe(tmp_path, tiny_folder, "rubric.yaml", method=grape(mix=mix)), "tiny")
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"self_distillation": {"sees": "generation_prompt"}}, "no category of the rubric has a `generate` prompt"),
        ({"scaffold": {"shows": "generation_prompt"}}, "no category of the rubric has a `generate` prompt"),
        ({"revise": "failures", "fails_by": "check"}, "no row has an `answer`"),
    ],
)
def test_what_the_rubric_or_the_data_lack_is_said(
    tmp_path: Path, tiny_folder: Path, options: dict[str, Any], why: str
) -> None:
    given = recipe(tmp_path, tiny_folder, write_rubric(tmp_path, VOWELS), method=grape(**options))
    data = Path(given["data"]["train"])
    data.write_text("".join(json.dumps({"prompt": f"say {word}: "}) + "\n" for word in "abcdef"))
    given["data"]["held_out"] = None
    with pytest.raises(UserError, match=why):
        start_run(check_config(given, "tiny"), tmp_path, build_method, name="run", view=Silent())


def test_a_written_config_is_read_again(tmp_path: Path, tiny_folder: Path) -> None:
    for options in ({"self_distillation": {}}, {"revise": "failures"}, {"scaffold": {}}, {"correction": "topr"}):
        config = check_config(recipe(tmp_path, tiny_folder, "rubric.yaml", method=grape(**options)), "tiny")
        assert check_config(yaml.safe_load(config_yaml(config)), "again") == config
    assert check_method(self_distillation={}).mix.fresh == 1.0
