"""What the commands and recipes of RLAIF print: ties, what was left out, the next step; and their guide."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.command_line import vigneron, write_jsonl
from support.servers import chat, serving
from support.tiny_models import tiny_policy
from support.tiny_runs import tiny_config, write_data
from vigneron.commands.judging import reads_hint
from vigneron.config.judges import LocalJudgeConfig, PythonJudgeConfig
from vigneron.errors import UserError
from vigneron.methods import build_method
from vigneron.policy.reference import Reference
from vigneron.recipe import check_config, load_config
from vigneron.rubric.principles import read_principles
from vigneron.run_data.load import load_data
from vigneron.run_store.headline_metrics import headline_metrics
from vigneron.run_store.run_details import changed_keys
from vigneron.sources.answer_cache import AnswerCache
from vigneron.sources.judges import build_judge
from vigneron.training.method import unchanged
from vigneron.training.parts import Parts
from vigneron.training.setup.resolve import resolved

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "rlaif.md"
PREFERENCES = [{"kind": "preference", "model": "m"}] * 2
JUDGES = """
import json
import re

def likes_x(messages):
    asked = next(m["content"] for m in messages if m["role"] == "user")
    first, second = re.findall(r"<(?:first|second)-[0-9a-f]{8,}>\\n(.*?)\\n?</", asked, re.DOTALL)
    return json.dumps({"reasoning": "x", "score": 0.5 + 0.5 * (first.count("x") - second.count("x")), "confidence": 1})

def writes(messages):
    return "an answer"
"""


@pytest.fixture(autouse=True)
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "message_judges.py").write_text(JUDGES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("VIGNERON_CACHE", str(tmp_path / "cache"))
    return tmp_path


def option(name: str) -> str:
    return f"{{kind: python, function: 'message_judges:{name}'}}"


@pytest.mark.parametrize(("ties", "warned"), [(3, True), (2, False)])
def test_many_ties_are_a_warning(house: Path, ties: int, warned: bool) -> None:
    pairs = [["a", "b"]] * ties + [["x", "b"]] * (5 - ties)
    rows = [json.dumps({"prompt": f"p{n}", "completions": pair}) for n, pair in enumerate(pairs)]
    write_jsonl(house / "file.jsonl", rows)
    judged = vigneron("label", "file.jsonl", "--judge", option("likes_x"), "--out", "pairs.jsonl")
    assert judged.code == 0, judged.err
    assert f"{ties} ties" in judged.out
    assert (f"warning: {ties} of 5 pairs are ties" in " ".join(judged.out.split())) == warned


def test_completions_in_no_pair_are_counted(house: Path, tiny_folder: Path) -> None:
    write_jsonl(house / "prompts.jsonl", [json.dumps({"prompt": f"say {n}:"}) for n in range(3)])
    judged = vigneron(
        "label", "--sample", tiny_folder, "--prompts", "prompts.jsonl", "--group", 3, "--max-new-tokens", 6,
        "--judge", option("likes_x"), "--out", "pairs.jsonl",
    )  # fmt: skip
    assert judged.code == 0, judged.err
    pairs = len((house / "pairs.jsonl").read_text().splitlines())
    assert f"note: {9 - 2 * pairs} of 9 completions are in no pair" in " ".join(judged.out.split())


def test_a_limit_on_the_command_line_is_named_as_a_key_of_the_option(house: Path) -> None:
    write_jsonl(house / "file.jsonl", [json.dumps({"prompt": "p", "completions": ["a", "b"]})])
    with serving(lambda seen, before: chat("cut", "length")) as server:
        judge = f"{{kind: endpoint, model: m, url: '{server.url}', max_tokens: 9, retries: 0}}"
        refused = vigneron("label", "file.jsonl", "--judge", judge, "--out", "pairs.jsonl")
    assert refused.code == 2
    assert "it was cut after 9 tokens (`max_tokens` in --judge)" in refused.err


def test_a_model_that_writes_no_json_is_told_of_other_forms(house: Path, tiny_folder: Path) -> None:
    local = build_judge(
        LocalJudgeConfig(kind="local", model=str(tiny_folder)),
        cache=AnswerCache(house / "answers.sqlite"),
        device="cpu",
        where="--judge",
    )
    why = "its reply 'no': it was not one JSON object and nothing else"
    assert reads_hint(local, why) == f"{why}; `reads: digits` or `reads: yes_no` in --judge needs no JSON"
    assert reads_hint(local, "it refused") == "it refused"
    python = build_judge(
        PythonJudgeConfig(kind="python", function="message_judges:writes"), cache=AnswerCache(house / "answers.sqlite")
    )
    assert reads_hint(python, why) == why


def test_a_judge_s_name_has_a_short_hash(house: Path, tiny_folder: Path) -> None:
    judge = build_judge(
        LocalJudgeConfig(kind="local", model=str(tiny_folder)),
        cache=AnswerCache(house / "answers.sqlite"),
        device="cpu",
    )
    model, _, source = judge.name.rpartition("@sha256:")
    assert model == str(tiny_folder)
    assert len(source) == 12


def test_revise_prints_the_held_out_part_and_the_checker(house: Path) -> None:
    words = ("--principles", "ladder", "--model", option("writes"), "--limit", 2, "--out", "revised.jsonl")
    answer = vigneron("revise", "sft-ladder", *words)
    assert answer.code == 0, answer.err
    data = "data: {train: revised.jsonl, held_out: revised.held_out.jsonl, checker: last_line}"
    assert data in " ".join(answer.out.split())
    assert len(load_data(check_config({"method": {"name": "sft"}, **as_yaml(data)}, "my.yaml")).train) <= 2


def as_yaml(text: str) -> dict[str, Any]:
    from vigneron.yaml_text import parse_yaml

    found: dict[str, Any] = parse_yaml(text, "data")
    return found


def test_a_missing_model_of_a_combined_reward_is_named_with_its_place() -> None:
    config = load_config("morlaif", ["model.name=smollm2-135m", "model.device=cpu"])
    with pytest.raises(UserError, match=r"^reward\.rewards\[0\]\.model: there is no run 'runs/preference-sums'"):
        resolved(config)


def test_resolved_paths_in_a_list_are_no_change() -> None:
    config = load_config("morlaif")

    def with_models(*models: str) -> Any:
        parts = [part.model_copy(update={"model": m}) for part, m in zip(config.reward.rewards, models, strict=True)]
        return config.model_copy(update={"reward": config.reward.model_copy(update={"rewards": parts})})

    steps = ("/x/runs/preference-sums/checkpoints/step-60", "/x/runs/preference-terms/checkpoints/step-60")
    assert changed_keys(with_models(*steps)) == {}
    assert list(changed_keys(with_models("/x/runs/another", steps[1])) or {}) == ["reward.rewards"]


def test_an_interval_without_held_out_data_is_noted(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", ['{"prompt": "a", "answer": "b"}'])
    recipe: dict[str, Any] = {"method": {"name": "sft"}, "data": {"train": str(path)}}
    note = "eval_every: 20 has no effect without held-out data: set `data.held_out`"
    assert load_data(check_config({**recipe, "eval_every": 20}, "my.yaml")).notices == (note,)
    assert load_data(check_config(recipe, "my.yaml")).notices == ()
    held_out = {"data": {"train": str(path), "held_out": str(path)}}
    notices = load_data(check_config({**recipe, **held_out, "eval_every": 20}, "my.yaml")).notices
    assert not any("eval_every" in text for text in notices)


def test_a_reward_that_compares_samples_does_not_show_progress(tmp_path: Path, tiny_folder: Path) -> None:
    def notices(reward: dict[str, Any]) -> tuple[str, ...]:
        given = {"method": {"name": "grpo"}, "reward": reward, "optimizer": {}}
        config = tiny_config(tiny_folder, write_data(tmp_path), **given)
        policy = tiny_policy()
        return build_method(Parts.of(config, policy, Reference.of(policy), unchanged)).notices

    assert notices({"kind": "binary"}) == ()  # a plain run has nothing to be told
    (told,) = notices({"kind": "combined", "rewards": PREFERENCES})
    assert "its mean stays the same: accuracy" in told


def test_the_held_out_reward_of_preference_models_is_not_shown() -> None:
    """One greedy completion has nothing to be compared with: its win rate is always one half."""
    record = {"eval/reward": 1.0, "eval/accuracy": 0.5}
    combined = {"kind": "combined", "combine": "normalised"}
    for reward, shown in (
        ({**combined, "rewards": PREFERENCES}, False),
        (PREFERENCES[0], False),
        ({**combined, "rewards": [{"kind": "binary"}, PREFERENCES[0]]}, True),
    ):
        config = {"method": {"name": "grpo"}, "reward": reward, "data": {"task": "ladder"}}
        assert ("eval/reward" in [one.key for one in headline_metrics(config, [record])]) == shown


def test_the_guide_trains_every_model_that_morlaif_needs() -> None:
    guide, config = GUIDE.read_text(encoding="utf-8"), load_config("morlaif")
    for part in config.reward.rewards:
        assert f"--name {Path(part.model).name}\n" in guide
    for principle in read_principles("ladder"):
        assert f'--principle "{principle.name}"' in guide
