"""The study's list of SFT runs: the choice is made on the tuning rows, and every listed run has a valid config."""

from pathlib import Path

from benchmarks import study
from vigneron.recipe import load_config
from vigneron.run_store.folder import RunFolder


def test_sft_is_chosen_by_the_best_tuning_accuracy_then_the_earliest(tmp_path: Path) -> None:
    for name, recipe, *changes in study.sft_tuning():
        config = load_config(recipe, changes)
        assert config.data.held_out == "tuning"
        folder = RunFolder.create(tmp_path, name, exact_name=True)
        folder.write_config(config)
        task, _, rate = name.removeprefix("sft-").partition("-")
        for step in (0, 10, 20, 30):
            best = 0.9 if (task, rate) == ("sentiment", "2e-5") and step in (10, 30) else 0.5
            folder.append("metrics.jsonl", {"step": step, "eval/accuracy": 1.0 if step == 0 else best})
    chosen = {name: load_config(recipe, changes) for name, recipe, *changes in study.sft_chosen(tmp_path)}
    assert len(chosen) == 5 * 3
    sentiment = chosen["sft-sentiment-chosen-seed-2"]
    assert (sentiment.optimizer.actor_lr, sentiment.steps, sentiment.seed) == (2e-5, 10, 2)
    assert sentiment.data.held_out is None, "the held-out rows"
    tied = chosen["sft-colors-chosen-seed-0"]
    assert (tied.optimizer.actor_lr, tied.steps) == (2e-6, 10)
