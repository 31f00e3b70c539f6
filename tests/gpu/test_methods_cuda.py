"""Every method on a CUDA device: CUDA graphs do not change the metrics."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from support.tiny_models import byte_tokenizer, tiny_model
from support.tiny_runs import tiny_recipe, write_data
from vigneron import api
from vigneron.recipe import check_config

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

METHODS: dict[str, dict[str, Any]] = {
    "actor_critic": {"name": "actor_critic"},
    "grape": {"name": "grape", "updates_per_step": 2, "mix": {"fresh": 0.4, "revised": 0.4, "demonstrated": 0.2}},
    "grape, whole texts": {"name": "grape", "level": "sequence", "aggregation": "sum_over_samples"},
    "grape, off policy": {
        "name": "grape",
        "mix": {"fresh": 0.4, "revised": 0.4, "demonstrated": 0.2},
        "correction": "topr",
        "baseline": "origin",
        "revise": "failures",
        "demonstration_gamma": 0.1,
        "scaffold": {"half_at": 0.5, "steepness": 10.0},
    },
    "grape, on policy": {"name": "grape", "self_distillation": {"sees": "feedback"}},
    "grpo": {"name": "grpo", "updates_per_step": 2},
    "ppo": {"name": "ppo", "updates_per_step": 2, "minibatches": 2},
    "reinforce": {"name": "reinforce"},
    "reinforce, own network": {"name": "reinforce", "critic": {"network": "own"}},
    "trpo, penalty": {"name": "trpo"},
    "trpo, constraint": {"name": "trpo", "form": "constraint"},
    "dpo": {"name": "dpo", "pairs": "sampled"},
    "rejection_sampling": {"name": "rejection_sampling"},
    "topr": {"name": "topr", "samples": "sampled", "rewards": "signed"},
    "a_star_po": {"name": "a_star_po", "reference_samples": 2},
    "distill": {"name": "distill", "beta": 0.5},
    "distill, top-k": {"name": "distill", "top_k": 8},
    "distill, sampled": {"name": "distill", "loss": "sampled"},
    "gad": {"name": "gad"},
    "sft": {"name": "sft"},
    "sft, packed": {"name": "sft", "packing": True},
}
RUBRIC = {
    "category_column": None,
    "categories": {
        "words": {
            "generate": "Be brief.",
            "items": [
                {"name": "short", "description": "It is short.", "flow": "length", "at_most": 1, "unit": "characters"},
                {"name": "near", "description": "It is near.", "flow": "text_similarity"},
            ],
        }
    },
}


@pytest.mark.parametrize("name", METHODS)
def test_graphs_change_no_metric(tmp_path: Path, roomy_folder: Path, name: str) -> None:
    method = METHODS[name]
    rubric = tmp_path / "rubric.yaml"
    rubric.write_text(yaml.safe_dump(RUBRIC))
    records = {}
    for graphs in (False, True):
        given = tiny_recipe(roomy_folder, write_data(tmp_path), method=method, steps=4, save_every=0)
        given["model"] = {"name": str(roomy_folder), "device": "cuda", "dtype": "float32", "graphs": graphs}
        given["reward"] = {"kind": "rubric", "file": str(rubric)}
        if method["name"] == "distill":
            for part in (tiny_model("qwen", seed=9), byte_tokenizer()):
                part.save_pretrained(tmp_path / "parent")
            given["method"] = {**method, "parent": str(tmp_path / "parent")}
        given["optimizer"] = {} if method.get("form") == "constraint" else {"actor_lr": 1e-3}
        if method["name"] == "sft":
            del given["group_size"]
        run = api.train(check_config(given, "tiny"), name=f"graphs-{graphs}", runs=tmp_path)
        records[graphs] = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    for plain, fast in zip(records[False], records[True], strict=True):
        assert plain.keys() == fast.keys()
        for key, value in plain.items():
            if isinstance(value, float) and key != "logprob_mismatch":
                assert fast[key] == pytest.approx(value, rel=2e-2, abs=2e-3), f"{key} at step {plain['step']}"
