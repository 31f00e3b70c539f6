"""Flow-guided tuning (Flower, Gao et al. 2025; `rlmt-grape` §5.3): answers are sampled in proportion to their
scores, where the reward's maximum would be one of them.

All answers of a prompt in the dataset form a prefix tree. The flow into a prefix is the sum of the scores below it, and
every token's probability is moved towards its share of the flow. `nll_coefficient` adds the likelihood of the answers.
"""

import json
from collections.abc import Sequence

import torch

from vigneron.batch import Batch
from vigneron.config import FlowerConfig
from vigneron.core.flows import flow_balance, log_transition_flows
from vigneron.core.losses import nll
from vigneron.data.prompts import Row
from vigneron.policy.logprobs import Scores
from vigneron.rollout.demonstrations import demonstrations
from vigneron.training.method import Method, Metrics, unchanged
from vigneron.training.parts import Parts
from vigneron.training.update import Term

Tree = dict[tuple[tuple[int, ...], tuple[int, ...]], list[float]]


def build(parts: Parts, options: FlowerConfig) -> Method:
    policy, rollout = parts.policy, parts.rollout

    def tree_of(rows: Sequence[Row]) -> Tree:
        """log F(sₜ₊₁)/F(sₜ) of every prompt and answer among the rows."""
        groups: dict[str, list[Row]] = {}
        for row in rows:
            groups.setdefault(json.dumps(row["prompt"], sort_keys=True), []).append(row)
        tree: Tree = {}
        for group in groups.values():
            texts = demonstrations(policy, group)
            flows = log_transition_flows([t.completion_ids for t in texts], [row[options.score] for row in group])
            tree |= {(t.prompt_ids, t.completion_ids): flow for t, flow in zip(texts, flows, strict=True)}
        return tree

    training_tree = tree_of(parts.curriculum.rows)

    def with_flows(batch: Batch, tree: Tree) -> Batch:
        """No advantage: the log-share of the flow of every token, as its return."""
        returns_BT = torch.zeros(batch.samples.completion_BT.shape, dtype=torch.float64)
        for row, key in enumerate(zip(batch.samples.prompt_ids, batch.samples.completion_lists(), strict=True)):
            flow = tree[key[0], tuple(key[1])]
            returns_BT[row, : len(flow)] = torch.tensor(flow)
        dtype = torch.float64 if batch.samples.behaviour_BT.dtype == torch.float64 else torch.float32
        return batch.with_signals(returns_BT=returns_BT.to(batch.samples.completion_BT.device, dtype))

    def loss(batch: Batch, now: Scores) -> list[Term]:
        """L = (log π(aₜ|sₜ) − log F(sₜ₊₁) + log F(sₜ))² − λ log π."""
        balance_BT = flow_balance(now.logprobs_BT, batch.signals.returns_BT)
        return [
            Term("loss/flow", balance_BT, 1.0),
            Term("loss/nll", nll(now.logprobs_BT), options.nll_coefficient),
            Term("entropy/demonstrated", now.entropy_BT.detach()),
        ]

    def evaluate(rows: Sequence[Row]) -> Metrics:
        return update.evaluate(with_flows(rollout(rows), tree_of(rows)))

    update = parts.gradient_update(parts.score, loss)
    advantage = lambda batch: with_flows(batch, training_tree)  # noqa: E731
    return Method(rollout, unchanged, advantage, update, evaluate=evaluate)
