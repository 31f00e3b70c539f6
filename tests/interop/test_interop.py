"""Our rewards in TRL's GRPOTrainer, for real, and as verl's compute_score."""

from pathlib import Path

import pytest

from support.later import Later
from vigneron import exact_reward, for_verl, semantic_reward

datasets, trl = Later("datasets"), Later("trl")

WORDS = [("hot", "cold"), ("big", "small"), ("up", "down"), ("wet", "dry")]


@pytest.mark.slow
def test_trl_trains_with_our_rewards_unchanged(tiny_folder: Path, tmp_path: Path) -> None:
    rows = datasets.Dataset.from_list(
        [{"prompt": f"not {word}: ", "answer": answer, "input": word} for word, answer in WORDS]
    )
    seen: list[list[float | None]] = []
    semantic = semantic_reward("lexical", form="shift")

    def watched(**given):  # what TRL hands over is what our reward is called with
        seen.append(semantic(**given))
        return seen[-1]

    options = trl.GRPOConfig(
        output_dir=str(tmp_path / "trl"),
        per_device_train_batch_size=4,
        num_generations=2,
        max_completion_length=4,
        max_steps=2,
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        bf16=False,
        save_strategy="no",
        learning_rate=1e-3,
    )
    trainer = trl.GRPOTrainer(
        str(tiny_folder),
        reward_funcs=[semantic, exact_reward, watched],
        args=options,
        train_dataset=datasets.Dataset.from_list(rows),
    )
    before = {name: weight.clone() for name, weight in trainer.model.named_parameters()}
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "reward" in entry]
    assert len(logged) == 2
    assert len(seen) == 2
    for entry, rewards in zip(logged, seen, strict=True):
        assert entry["rewards/semantic/mean"] == pytest.approx(sum(rewards) / len(rewards), abs=1e-6)
        assert entry["rewards/exact_reward/mean"] == 0.0
    assert any((weight != before[name]).any() for name, weight in trainer.model.named_parameters())


def test_verls_compute_score() -> None:
    score = for_verl(semantic_reward("lexical"))
    assert score("words", "cold", "cold", {"index": 1, "prompt": "hot", "answer": "ignored"}) == pytest.approx(1.0)
    assert score("words", "zebra", "cold", None) < 0.5
    assert for_verl(exact_reward)(data_source="words", solution_str=" Cold.", ground_truth="cold", extra_info={}) == 1.0
    with pytest.raises(ValueError, match="missing"):
        for_verl(exact_reward)("words", "cold", None)
