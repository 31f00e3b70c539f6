"""Settings with which section 5's methods would silently train something else: refused, or a notice says so."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForTokenClassification

from support.command_line import vigneron, write_jsonl, write_recipe
from support.minimal_recipe import check, line_of
from support.recorded_data import recorded_config, recorded_rows
from support.tiny_models import byte_tokenizer, tiny_policy, tiny_scorer
from support.tiny_runs import tiny_config, tiny_recipe, write_data
from vigneron import api
from vigneron.batch import Batch
from vigneron.core.draws import Sampling
from vigneron.errors import UserError
from vigneron.methods import build_method
from vigneron.methods.topr import ALL_EQUAL, NO_NEGATIVES_SIGNED
from vigneron.policy.reference import Reference
from vigneron.policy.reward_model import set_reward_model_kind
from vigneron.recipe import check_config
from vigneron.rewards.model import load_reward_scorer
from vigneron.rollout.on_policy import OnPolicy
from vigneron.run_store.notices import kept_notices
from vigneron.training.method import Method, unchanged
from vigneron.training.parts import Parts

PREFERENCE = {"kind": "preference", "model": "m"}
SPPO: dict[str, Any] = {"method": {"name": "sppo"}, "group_size": 2}


def vowels(completions: list[str], **columns: Any) -> list[float]:
    return [float(sum(letter in "aeiou" for letter in text)) for text in completions]


def method_of(config: Any, rows: Any = ()) -> Method:
    policy = tiny_policy()
    return build_method(Parts.of(config, policy, Reference.of(policy), unchanged, rows))


@pytest.mark.parametrize(
    ("reward", "named"),
    [
        ({"kind": "binary"}, "kind: binary"),
        ({"kind": "model", "model": "m"}, "kind: model"),
        ({"kind": "combined", "rewards": [PREFERENCE, PREFERENCE]}, "kind: combined"),
        (PREFERENCE | {"ranking": "tournament"}, "ranking: tournament"),
        (PREFERENCE | {"overlong": {"buffer": 4}}, "without `overlong`"),
    ],
)
def test_sppo_refuses_rewards_that_are_no_win_rates(reward: dict[str, Any], named: str) -> None:
    line = line_of(**SPPO, reward=reward)
    assert "`method: sppo` needs win rates from 0 to 1" in line
    assert named in line


def test_sppo_checks_the_values_of_a_user_s_function(tmp_path: Path, tiny_folder: Path) -> None:
    check(**SPPO, reward=PREFERENCE)
    reward = {"kind": "python", "function": "test_emerging_notices:vowels"}
    config = tiny_config(tiny_folder, write_data(tmp_path), **SPPO, reward=reward, optimizer={})
    method, batch = method_of(config), sampled()
    method.advantage(batch.with_signals(rewards_B=torch.tensor([1.0, 0.0])))
    with pytest.raises(UserError, match="needs win rates from 0 to 1, and this reward leaves that range"):
        method.advantage(batch.with_signals(rewards_B=torch.tensor([3.0, 0.0])))


def sampled() -> Batch:
    return OnPolicy(tiny_policy(), Sampling(), 4, 2)([{"prompt": "say hot:"}])


@pytest.mark.parametrize(
    ("template", "line"),
    [
        ("Be brief.", "sampling.prompt: has no {prompt}, so the model would not see the row's prompt"),
        ("{rules} {{prompt}}", "sampling.prompt: has no {prompt}"),
        ("{} {prompt}", "sampling.prompt: has {} without a column's name"),
        ("{prompt", "sampling.prompt: is not a template"),
    ],
)
def test_a_sampling_prompt_without_the_prompt_is_refused(template: str, line: str) -> None:
    assert line in line_of(sampling={"prompt": template})
    assert check(sampling={"prompt": "{rules[0]} {prompt}"}).sampling.prompt == "{rules[0]} {prompt}"


def test_validate_finds_a_missing_column_of_the_sampling_prompt(tmp_path: Path, tiny_folder: Path) -> None:
    recipe = write_recipe(tmp_path, tiny_folder, sampling={"prompt": "{rules} {prompt}"})
    answer = vigneron("validate", recipe)
    assert answer.code == 2
    assert "sampling.prompt: row 1 of the training data has no column 'rules' (available: prompt, answer)" in answer.err
    assert "\n" not in answer.err.strip()


def test_held_out_rows_need_no_column_of_the_sampling_prompt(tmp_path: Path, tiny_folder: Path) -> None:
    """Evaluation uses the row's own prompt."""
    train = [json.dumps({"prompt": word, "answer": word, "rules": "One word."}) for word in "abcd"]
    write_jsonl(tmp_path / "held-out-rows.jsonl", [json.dumps({"prompt": "e", "answer": "e"})])
    config = tiny_config(
        tiny_folder,
        write_jsonl(tmp_path / "rows.jsonl", train),
        sampling={"prompt": "{rules} {prompt}"},
        method={"name": "rejection_sampling"},
        reward={"kind": "binary"},
        optimizer={},
        steps=1,
    )
    folder = api.train(config, runs=tmp_path / "runs").folder
    assert '"e"' in (folder / "data" / "held_out.jsonl").read_text()


@pytest.mark.parametrize(
    ("rewards", "score", "notice"),
    [
        ("advantage", lambda at: 1.0, ALL_EQUAL),
        ("advantage", lambda at: float(at // 2 % 2), ALL_EQUAL),  # differs between prompts alone
        ("signed", lambda at: 1.0, NO_NEGATIVES_SIGNED),
        ("advantage", lambda at: float(at % 2), None),
        ("signed", lambda at: float(at % 2), None),
    ],
)
def test_topr_says_when_its_rewards_train_nothing(
    tmp_path: Path, tiny_folder: Path, rewards: str, score: Any, notice: str | None
) -> None:
    rows = [{**row, "reward": score(at)} for at, row in enumerate(recorded_rows())]
    config = recorded_config(tmp_path, tiny_folder, {"name": "topr", "rewards": rewards}, rows)
    assert method_of(config, rows).notices == ((notice,) if notice else ())


def test_topr_explains_a_step_of_samples_without_a_signal(tmp_path: Path, tiny_folder: Path) -> None:
    def explained(rewards: str, **metrics: float) -> str:
        method = {"name": "topr", "samples": "sampled", "rewards": rewards}
        config = tiny_config(tiny_folder, write_data(tmp_path), method=method, reward={"kind": "binary"}, optimizer={})
        return " ".join(method_of(config).explain(metrics))

    assert "trains nothing" in explained("advantage", frac_reward_zero_std=1.0)
    assert "2R − 1 is never negative" in explained("signed", **{"topr/negative": 0.0})
    assert explained("signed", **{"topr/negative": 0.5}) == ""


@pytest.mark.parametrize(("labels", "told"), [((1, 1), True), ((0, 0), True), ((1, 0), False), ((0.3, 0.3), False)])
def test_kto_says_when_all_labels_are_one_kind(
    tmp_path: Path, tiny_folder: Path, labels: tuple[float, float], told: bool
) -> None:
    rows = [{"prompt": "a", "completion": f" {x}", "answer": f" {x}", "label": float(x)} for x in labels]
    config = tiny_config(tiny_folder, write_data(tmp_path), method={"name": "kto"}, optimizer={}, group_size=1)
    notices = method_of(config, rows).notices
    assert any("KTO compares good texts with bad ones" in text for text in notices) == told


def train_and_listen(tmp_path: Path, tiny_folder: Path, **changes: Any) -> str:
    common: dict[str, Any] = {"method": {"name": "grpo"}, "optimizer": {}, "steps": 5, "eval_every": 0}
    config = tiny_config(tiny_folder, write_data(tmp_path), **common | changes)
    api.train(config, runs=tmp_path / "runs", name="run")
    return " ".join(notice.text for notice in kept_notices(tmp_path / "runs" / "run"))


def test_a_delimiter_that_never_occurs_is_named(tmp_path: Path, tiny_folder: Path) -> None:
    notices = train_and_listen(tmp_path, tiny_folder, reward={"kind": "binary", "sees": "answer"})
    assert "`</think>` occurs in 0 of 8 completions of this step" in notices
    assert "easier" not in notices, "the reason is another one"


def test_a_separator_that_never_occurs_is_named(tmp_path: Path, tiny_folder: Path) -> None:
    scorer = process_folder(tmp_path)
    notices = train_and_listen(
        tmp_path, tiny_folder, reward={"kind": "process", "model": str(scorer), "separator": "xx"}, steps=1
    )
    assert "the separator 'xx' divides 0 of 8 completions" in notices


def process_folder(place: Path) -> Path:
    scorer = tiny_scorer()
    set_reward_model_kind(scorer, "process", "\n")
    scorer.causal.save_pretrained(place / "process")
    scorer.tokenizer.save_pretrained(place / "process")
    return place / "process"


def test_runs_of_earlier_versions_are_read_and_resumed(tmp_path: Path, tiny_folder: Path) -> None:
    """They may have settings that new runs are refused for; a change of another key is checked as they are."""
    given = tiny_recipe(
        tiny_folder,
        write_data(tmp_path),
        **SPPO,
        reward={"kind": "semantic", "embedder": "lexical", "form": "euclidean"},
        sampling={"prompt": "Say {answer}."},
        optimizer={},
        steps=1,
        eval_every=0,
    )
    with pytest.raises(UserError, match=r"(?s)has no \{prompt\}"):
        check_config(given, "new")
    with pytest.raises(UserError, match="needs win rates from 0 to 1"):
        check_config(given | {"sampling": {}}, "new")
    trained = api.train(check_config(given, "earlier", stored=True), runs=tmp_path, name="run")
    assert trained.config.sampling.prompt == api.load_run(trained.folder).config.sampling.prompt == "Say {answer}."
    assert api.resume(trained.folder, "steps=2").step == 2
    assert vigneron("show", trained.folder).code == 0
    with pytest.raises(UserError, match=r"steps: .*greater than 0"):
        api.resume(trained.folder, "steps=0")


@pytest.mark.parametrize("labels", [1, 2])
def test_a_process_model_of_another_trainer_is_refused(tmp_path: Path, labels: int) -> None:
    """TRL's process models classify tokens."""
    shape = {"vocab_size": 260, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "num_labels": labels}
    LlamaForTokenClassification(LlamaConfig(**shape, **heads)).save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"reward\.model: .* classifies tokens .*`method: process_model`"):
        load_reward_scorer(str(tmp_path), "reward", "cpu")


@pytest.mark.parametrize("kind", ["reward", "first_is_better"])
def test_a_process_model_is_refused_by_other_rewards(tmp_path: Path, kind: Any) -> None:
    folder = str(process_folder(tmp_path))
    load_reward_scorer(folder, "process", "cpu")
    with pytest.raises(UserError, match=r"scores the steps of a text: set `reward\.kind: process`"):
        load_reward_scorer(folder, kind, "cpu")
