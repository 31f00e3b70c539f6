"""Every method for two steps on a tiny model: its gradients and its metrics, in one process or in ranks.

Each rank runs `by_rank`, and rank 0 writes the results. Ranks on `cuda` share one GPU.
"""

import json
import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import yaml
from safetensors.torch import save_file
from torch import Tensor

from support.tiny_models import tiny_policy, tiny_scorer
from vigneron.config import Config
from vigneron.data.curricula import ByLoss
from vigneron.distributed import ranks
from vigneron.methods import build_method
from vigneron.methods.gad import AdversarialUpdate
from vigneron.policy.load import checkpoint_activations
from vigneron.policy.lora import Lora, add_lora
from vigneron.policy.model import Policy
from vigneron.policy.parent import LocalParent
from vigneron.policy.reference import Reference
from vigneron.policy.sharding import shard_policy
from vigneron.recipe import check_config
from vigneron.rewards.apply import ApplyReward
from vigneron.rewards.build import build_reward
from vigneron.rewards.combined import CombinedReward
from vigneron.rewards.rank0_reward import Rank0Reward
from vigneron.training.loop import one_step
from vigneron.training.optimizers import Optimized
from vigneron.training.parts import Parts
from vigneron.training.row_losses import row_losses
from vigneron.training.trust_region import TrustRegionUpdate

WORDS = ("hot", "a cold day", "x", "small", "upwards", "dry land", "q")
ROWS = [
    {"prompt": f"say {word}:", "answer": f"{word} it is", "score": i / 8, "labels": [i / 8 if i % 3 else None, i % 2]}
    for i, word in enumerate(WORDS)
]
RECORDED = [
    {**row, "completion": f" {row['answer']}", "logprobs": -9.0 if i % 2 else None, "truncated": i % 3 == 0}
    for i, row in enumerate(ROWS)
]
PAIRS = [{"prompt": f"say {word}:", "chosen": word, "rejected": "no"} for word in WORDS]
KL = {"coefficient": 0.05}

CASES: dict[str, dict[str, Any]] = {
    "actor_critic": {"name": "actor_critic"},
    "actor_critic, faithful": {"name": "actor_critic", "value_position": "last_completion"},
    "reinforce": {"name": "reinforce", "kl": KL},
    "reinforce, own network": {"name": "reinforce", "critic": {"network": "own"}},
    "reinforce, running mean": {"name": "reinforce", "baseline": "running_mean"},
    "ppo": {"name": "ppo", "updates_per_step": 2, "minibatches": 3, "kl": KL},
    "trpo, penalty": {"name": "trpo", "penalty": {"coefficient": 0.1}},
    "trpo, constraint": {"name": "trpo", "form": "constraint", "constraint": {"delta": 0.05, "iterations": 4}},
    "grpo": {"name": "grpo", "updates_per_step": 2, "kl": KL},
    "grpo, no KL, resampled": {"name": "grpo", "resample": 2, "kl": {"coefficient": 0.0}, "aggregation": "samples"},
    "grpo, LoRA": {"name": "grpo", "kl": KL},
    "reinforce, LoRA, own network": {"name": "reinforce", "critic": {"network": "own"}},
    "grpo, activations again": {"name": "grpo", "kl": KL},
    "grape": {"name": "grape", "mix": {"fresh": 0.5, "revised": 0.3, "demonstrated": 0.2}},
    "grape, on policy": {"name": "grape", "self_distillation": {"sees": "best"}},
    "rejection_sampling": {"name": "rejection_sampling"},
    "sft": {"name": "sft"},
    "sft, packed": {"name": "sft", "packing": True, "loss_on": "text"},
    "dpo": {"name": "dpo"},
    "dpo, sampled": {"name": "dpo", "pairs": "sampled"},
    "reward_model": {"name": "reward_model"},
    "preference_model": {"name": "preference_model"},
    "score_model": {"name": "score_model"},
    "process_model": {"name": "process_model", "separator": " it "},
    "topr": {"name": "topr", "reward_column": "score", "rewards": "signed"},
    "topr, sampled": {"name": "topr", "samples": "sampled", "rewards": "advantage", "updates_per_step": 2},
    "oreo": {"name": "oreo", "reward_column": "score", "critic": {"network": "head"}},
    "oreo, own network": {"name": "oreo", "reward_column": "score"},
    "a_star_po": {"name": "a_star_po", "reference_samples": 3, "unsolved": "drop"},
    "sft, by loss": {"name": "sft"},
    "reward_model, by loss": {"name": "reward_model"},
    "distill": {"name": "distill", "parent": "a model", "beta": 0.3},
    "distill, sampled": {"name": "distill", "parent": "a model", "loss": "sampled"},
    "distill, top-k": {"name": "distill", "parent": "a model", "top_k": 7},
    "gad": {"name": "gad", "kl": KL},
    "grpo, by loss": {"name": "grpo", "kl": KL},
    "grpo, annealed": {"name": "grpo", "kl": KL},
}
ALIKE = (
    *("actor_critic, faithful", "reinforce", "grpo, LoRA", "sft", "oreo"),
    *("reward_model, by loss", "distill, sampled"),
)
"""Cases that share nothing over ranks which another case does not share; `make test-cluster` has them."""
UNSHARDED = ("trpo, constraint", "gad")
"""Cases that refuse `scale.shard` above 1."""
PATHS = (
    "ppo",
    "trpo, penalty",
    "reinforce, own network",
    "reinforce, LoRA, own network",
    "grpo, activations again",
    "sft, packed",
    "reward_model",
    "distill",
    "sft, by loss",
)
"""Cases of every way through sharded weights: a critic's head and its own network, adapters, activations that are
computed again, packed rows, a head of scores, a second model, losses of all rows. The others differ in what they
sample, or in their advantages; `make test-cluster` has them all."""
IN_HALVES = ("sft", "sft, packed", "dpo", "reward_model")
"""Cases without sampling: in bfloat16 one token may differ, and then everything after it."""


def paid(completions: list[str], **columns: Any) -> list[float | None]:
    """By length and letters, in quarters. Some have none: they are missing."""
    return [None if len(text) % 5 == 4 else (sum(map(ord, text)) % 5) / 4 for text in completions]


def rarely(completions: list[str], **columns: Any) -> list[float | None]:
    return [float(sum(map(ord, text)) % 17 == 0) for text in completions]


def reward_of(case: str, config: Config) -> Any:
    if "annealed" in case:
        return CombinedReward([("check", rarely), ("paid", paid)], [1.0, 1.0], "annealed")
    return build_reward(config.reward, None) if config.reward.kind == "rubric" else paid


def config_of(case: str, place: Path, shard: int, device: str) -> Config:
    method = CASES[case]
    given_texts = ("sft", "reward_model", "preference_model", "score_model", "process_model", "oreo")
    sampled = method["name"] not in given_texts and case not in ("dpo", "topr")
    given: dict[str, Any] = {
        "method": method,
        "data": {"train": "rows.jsonl"},
        "prompts_per_step": 5,
        "steps": 4,
        "microbatch_tokens": 48,
        "scale": {"shard": shard},
    }
    if sampled:
        given |= {"group_size": 4, "max_new_tokens": 6, "reward": {"kind": "binary", "missing_limit": 1.0}}
    if "by loss" in case:
        given["curriculum"] = {"by": "loss", "start": 0.6, "every": 1}
    if method["name"] == "gad":
        # Its weights are made double below, which autocast to bfloat16, the default on a GPU, does not round.
        given["model"] = {"name": str(_discriminators_base(place)), "device": device, "dtype": "float32"}
    if method["name"] == "grape":
        item = {
            "name": "paid",
            "description": "what it is worth",
            "flow": "python",
            "function": "support.ranked_methods:paid",
        }
        rubric = place / f"rubric-{ranks.rank()}.yaml"  # one file per rank: another rank may read while one writes
        rubric.write_text(yaml.safe_dump({"category_column": None, "categories": {"words": {"items": [item]}}}))
        given["reward"] = {"kind": "rubric", "file": str(rubric), "missing_limit": 1.0}
    return check_config(given, case)


def measured(
    case: str, place: Path, shard: int = 1, device: str = "cpu", *, halves: bool = False
) -> tuple[dict[str, Tensor], list[dict[str, float]]]:
    """Gradients before clipping by step, optimizer and weight, and the metrics of the steps.

    In float64; with `halves` in float32, with matrix products in bfloat16.
    """
    config = config_of(case, place, shard, device)
    is_scorer = config.method.trains == "scorer"
    policy: Policy = (tiny_scorer if is_scorer else tiny_policy)(
        "llama", dtype=torch.float32 if halves else torch.float64
    )
    if halves:
        policy.compute_dtype = torch.bfloat16
    if "LoRA" in case:
        torch.manual_seed(0)
        policy = replace(policy, model=add_lora(policy.model, Lora(rank=2)).to(torch.float64))
        for name, weight in policy.trainable():
            if "lora_B" in name:
                torch.nn.init.normal_(weight, std=0.1)  # else their other half has no gradient
    if "activations" in case:
        checkpoint_activations(policy)
    policy.eos_ids = frozenset(range(60))  # so that completions have all lengths
    policy.device = torch.device(device)
    if shard == 1:
        policy.model.to(device)
    elif not ranks.is_rank0():  # rank 0's stay in host memory until they are sent
        _forget_values(policy.model)
    shard_policy(policy, shard)
    reference = Reference.of(policy)
    apply = ApplyReward(reward_of(case, config), missing_limit=1.0)
    reward = apply if ranks.world_size() == 1 else Rank0Reward(apply)
    rows = {"pairs": PAIRS, "recorded": RECORDED}.get(config.method.reads, ROWS)
    parent = _parent(policy.device) if config.method.parent_model is not None else None
    parts = Parts.of(config, policy, reference, reward, rows, parent=parent)
    method, curriculum = build_method(parts), parts.curriculum
    if isinstance(method.update, AdversarialUpdate):
        for _, weight in method.update.discriminator.optimized[0].parameters:
            weight.data = weight.data.double()
    if isinstance(curriculum, ByLoss):
        curriculum.measure = row_losses(parts, method)
    run: Any = SimpleNamespace(
        method=method, curriculum=curriculum, check=lambda batch: batch, step=0, saved_if_it_fails=nullcontext
    )
    tensors: dict[str, Tensor] = {}
    metrics = []
    with _RecordGradients(tensors, run):
        for run.step in range(2):
            metrics.append(one_step(run)[1])
            policy.version += 1
    tensors |= {f"weight.{name}": ranks.full_tensor(weight.detach()).clone() for name, weight in policy.trainable()}
    return {name: tensor.cpu() for name, tensor in tensors.items()}, metrics


def _discriminators_base(place: Path) -> Path:
    """The folder of a tiny model, which rank 0 writes."""
    folder = place / "model"
    if ranks.is_rank0():
        policy = tiny_policy("llama")
        policy.model.save_pretrained(folder)
        policy.tokenizer.save_pretrained(folder)
    if ranks.world_size() > 1:
        ranks.all_reduce_max(0)  # the others wait for it
    return folder


def _parent(device: torch.device) -> LocalParent:
    """Whole on every rank, also where the child is sharded."""
    policy = tiny_policy("qwen", seed=3, dtype=torch.float64)
    policy.model.requires_grad_(False).to(device)
    policy.device = device
    return LocalParent(Reference(policy, shares_weights=False))


def _forget_values(model: Any) -> None:
    """Put the weights on the meta device, as on ranks that receive them from rank 0."""
    blank = {id(weight): torch.nn.Parameter(weight.to("meta"), weight.requires_grad) for weight in model.parameters()}
    for module in model.modules():
        for held, empty in ((module._parameters, lambda w: blank[id(w)]), (module._buffers, lambda b: b.to("meta"))):
            held.update({name: empty(tensor) for name, tensor in held.items() if tensor is not None})


class _RecordGradients:
    def __init__(self, into: dict[str, Tensor], run: Any) -> None:
        self._into, self._run = into, run

    def __enter__(self) -> None:
        self._clip, self._take = Optimized.clip, TrustRegionUpdate._take_gradient
        into, run, clip, take = self._into, self._run, self._clip, self._take

        def keep(name: str, grad: Tensor) -> None:
            number = sum(key.startswith(f"{run.step}.{name}.") for key in into)
            into[f"{run.step}.{name}.{number}"] = ranks.full_tensor(grad).detach().clone()

        def clipped(player: Optimized) -> Tensor:
            for name, weight in player.parameters:
                if weight.grad is not None:
                    keep(f"{player.name}.{name}", weight.grad)
            return clip(player)

        def taken(update: TrustRegionUpdate) -> Tensor:
            gradient_P = take(update)
            keep("trust", gradient_P)
            return gradient_P

        Optimized.clip, TrustRegionUpdate._take_gradient = clipped, taken  # type: ignore[method-assign]

    def __exit__(self, *_: object) -> None:
        Optimized.clip, TrustRegionUpdate._take_gradient = self._clip, self._take  # type: ignore[method-assign]


def by_rank(place: Path, shard: int, device: str, halves: bool, cases: Sequence[str]) -> None:
    torch.set_num_threads(1)
    if device == "cuda":  # NCCL refuses two ranks of one host on one GPU, so each rank reports its own host id
        os.environ |= {"LOCAL_RANK": "0", "NCCL_HOSTID": os.environ["RANK"], "NCCL_SOCKET_IFNAME": "lo"}
    ranks.join(torch.device(device))
    for case in cases:
        if shard > 1 and case in UNSHARDED:
            continue
        tensors, metrics = measured(case, place, shard, device, halves=halves)
        if ranks.is_rank0():
            save_file(tensors, place / f"{case}.safetensors")
            (place / f"{case}.json").write_text(json.dumps(metrics))
    ranks.leave()
