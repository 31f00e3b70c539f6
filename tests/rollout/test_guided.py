"""Samples drawn from another prompt than they are trained after (`sampling.prompt`)."""

from pathlib import Path
from typing import Any

import pytest
import torch

from support.resuming import TrainedOnce, check_third_arm, lose_nothing
from support.tiny_models import tiny_policy
from support.tiny_runs import tiny_config, write_data
from vigneron import api
from vigneron.data.prompts import prompts_token_ids
from vigneron.errors import UserError
from vigneron.policy.logprobs import score
from vigneron.rollout.build import build_rollout, evaluation_rollout
from vigneron.rollout.guided import guided
from vigneron.rollout.on_policy import OnPolicy, sampling_of
from vigneron.run_store.folder import RunFolder
from vigneron.training.setup.build import wrap_method

TEMPLATE = "Rule: one word. {prompt}"
GRPO: dict[str, Any] = {"method": {"name": "grpo", "kl": {"coefficient": 0}}, "optimizer": {"actor_lr": 1e-2}}


def config_of(folder: Path, place: Path, **changes: Any) -> Any:
    options = {"group_size": 4, "sampling": {"prompt": TEMPLATE}, **GRPO, **changes}
    return tiny_config(folder, write_data(place), **options)


def test_the_template_is_filled_in_text_and_in_the_last_message() -> None:
    assert guided({"prompt": "not hot:"}, TEMPLATE) == "Rule: one word. not hot:"
    talk = [{"role": "system", "content": "s"}, {"role": "user", "content": "not hot:"}]
    assert guided({"prompt": talk}, TEMPLATE) == [talk[0], {"role": "user", "content": "Rule: one word. not hot:"}]
    with pytest.raises(UserError, match="cannot be filled"):
        guided({"prompt": "a"}, "{rules} {prompt}")


def test_drawn_after_one_prompt_and_trained_after_another(tmp_path: Path, tiny_folder: Path) -> None:
    config, policy = config_of(tiny_folder, tmp_path), tiny_policy()
    rows = [{"prompt": "not hot:"}, {"prompt": "not up:"}]
    batch = build_rollout(config, policy)(rows, 3)
    plain = OnPolicy.of(config, policy, sampling_of(config))
    drawn = plain([{"prompt": guided(row, TEMPLATE)} for row in rows], 3)
    assert batch.samples.completions == drawn.samples.completions
    assert batch.samples.drawn_ids == drawn.samples.prompt_ids
    own = prompts_token_ids(policy.tokenizer, [row["prompt"] for row in rows])
    assert batch.samples.prompt_ids == tuple(ids for ids in own for _ in range(4))
    assert batch.samples.prompts == ("not hot:",) * 4 + ("not up:",) * 4
    assert batch.samples.behaviour_BT.isnan().all(), "not known after the other prompt"
    greedy = evaluation_rollout(config, policy)(rows)
    assert greedy.samples.prompt_ids == tuple(own), "evaluation does without the template"


def test_log_probs_after_the_row_s_own_prompt_are_filled_in(tmp_path: Path, tiny_folder: Path) -> None:
    from vigneron.methods import build_method
    from vigneron.policy.reference import Reference
    from vigneron.training.parts import Parts

    config, policy = config_of(tiny_folder, tmp_path), tiny_policy()
    parts = Parts.of(config, policy, Reference.of(policy), lambda batch: batch)
    method, _ = wrap_method(build_method(parts), parts)
    batch = method.rollout([{"prompt": "not hot:"}], 0)
    batch = method.advantage(batch.with_signals(rewards_B=torch.tensor([0.0, 1.0, 0.0, 1.0])))
    mask = batch.samples.mask_BT
    wanted = score(policy, batch, parts.sampling).logprobs_BT
    torch.testing.assert_close(batch.samples.behaviour_BT[mask], wanted[mask], atol=1e-5, rtol=1e-5)
    assert batch.signals.metrics["drawn/gap"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("method", ["grpo", "rejection_sampling"])
def test_a_run_resumes(tmp_path: Path, tiny_folder: Path, trained_once: TrainedOnce, method: str) -> None:
    options = GRPO if method == "grpo" else {**GRPO, "method": {"name": method}}
    whole = trained_once(method, lambda place: config_of(tiny_folder, place, steps=4, save_every=2, **options))
    assert RunFolder.open(whole).config().sampling.prompt == TEMPLATE
    check_third_arm(whole, tmp_path, lose_nothing)


def test_a_missing_column_is_one_line(tmp_path: Path, tiny_folder: Path) -> None:
    with pytest.raises(UserError, match=r"sampling.prompt: row 1 of the training data has no column 'rules'"):
        api.train(config_of(tiny_folder, tmp_path, sampling={"prompt": "{rules} {prompt}"}), runs=tmp_path)


@pytest.mark.parametrize(
    "scale",
    [
        {"staleness": 1, "sampling": {"kind": "ray"}},
        {"sampling": {"kind": "vllm", "url": "http://127.0.0.1:1"}},
    ],
)
def test_stale_or_foreign_samples_are_refused(tmp_path: Path, scale: dict[str, Any]) -> None:
    """Their log-probs after the row's own prompt are not known, so nothing could correct for the difference."""
    with pytest.raises(UserError, match=r"nothing corrects for `scale.staleness` or vLLM") as raised:
        config_of(tmp_path, tmp_path, scale=scale)
    assert "\n" not in str(raised.value)
    config_of(tmp_path, tmp_path, scale={"sampling": {"kind": "ray"}})
