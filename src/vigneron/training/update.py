"""The update slot by gradient: K updates a step, microbatches whose sum is the whole, clipped optimizer steps."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from vigneron.batch import Batch
from vigneron.config import DEFAULT_MICROBATCH_TOKENS
from vigneron.core.draws import keyed_permutation
from vigneron.core.losses import AggregateMode, aggregate, aggregate_denominator
from vigneron.core.masked import masked_sum
from vigneron.core.schedule import Shape, learning_rate_factor
from vigneron.distributed import ranks
from vigneron.errors import NonFinite
from vigneron.policy.rank_batches import assign_ranks, map_microbatches, rank_microbatches
from vigneron.timing import phase
from vigneron.training.gradient_sums import gradient_sums
from vigneron.training.method import Metrics
from vigneron.training.optimizers import Optimized

# Keeps these draws apart from those of the prompts' order.
MINIBATCHES = 2**40


@dataclass(frozen=True)
class Term:
    """One summand of the loss (`coefficient` ≠ 0), or a metric to log (0), as a value per token or per sample."""

    name: str
    values: Float[Tensor, "B T"] | Float[Tensor, " B"]
    coefficient: float = 0.0
    mode: AggregateMode = "tokens"
    first_update_only: bool = False
    """A metric of the policy that sampled: of a step's several updates, the first one's. With minibatches that is
    measured on a random part of the batch."""
    weights: Float[Tensor, " B"] | None = None
    """What each sample's value is multiplied by, if not by 1: its own loss is the value without it."""


class TermValue(NamedTuple):
    """A term over the whole batch."""

    name: str
    value: float
    first_update_only: bool = False


@dataclass
class GradientUpdate:
    """`update(batch)`: `score` and `loss` are the method's, and `loss` is given what `score` returns. `after_update` is
    a metric of the policy after the step's updates.

    Several updates are passes over the batch, each of them cut into `minibatches` of samples, drawn by (seed, updates
    done).
    """

    score: Callable[[Batch], Any]
    loss: Callable[[Batch, Any], list[Term]]
    optimized: Sequence[Optimized]
    total_updates: int
    updates_per_step: int = 1
    minibatches: int = 1
    seed: int = 0
    microbatch_tokens: int = DEFAULT_MICROBATCH_TOKENS
    schedule: Shape = "constant"
    warmup_updates: int = 0
    after_update: Callable[[Batch], Term] | None = None
    after_update_every: int = 1
    controller: Any = None
    idle: Callable[[Batch], Tensor] | None = None
    """1 on samples that no term has a gradient for: they count, and are not passed through the model. A step of only
    such samples passes nothing: it logs the loss and the gradient's norm, both 0, and no entropy."""
    observe: Callable[[Batch, Any], None] = lambda batch, scores: None
    """Called with each microbatch of an update and its scores."""
    done: int = 0

    def __call__(self, batch: Batch, applied: str = "") -> Metrics:
        """K updates. A step without a trainable token changes nothing and logs no loss.

        `applied` is what an error says of another model's update before these in the step.
        """
        a_step = self.updates_per_step * self.minibatches
        if not batch.trained_BT.any():
            self.done += a_step
            return {}
        updates: list[list[TermValue]] = []
        for _ in range(self.updates_per_step):
            for part in self._cut(batch):
                before = f", after {len(updates)} of {a_step} updates of this step, which stay" if updates else applied
                updates.append(self._one_update(part, before))
        metrics = _mean_over_updates(updates)
        step = self.done // a_step
        due = self.after_update_every and step % self.after_update_every == 0
        if self.after_update is not None and due and not self._is_flat(batch):
            after_update = self.after_update
            with torch.no_grad(), phase("successive KL"):
                metrics |= {name: value for name, value, _ in self.accumulate(batch, lambda p: [after_update(p)])}
        if self.controller is not None:
            metrics |= self.controller.observe(batch.signals.metrics | metrics)
        return metrics

    def _cut(self, batch: Batch) -> Iterator[Batch]:
        """One pass over the batch, in minibatches. One without a token to train on is passed over, and counted."""
        if self.minibatches == 1:
            yield batch
            return
        order = keyed_permutation(self.seed, MINIBATCHES + self.done, len(batch))
        for number in range(self.minibatches):
            part = batch.rows(sorted(order[number :: self.minibatches])) if number < len(batch) else None
            if part is not None and part.trained_BT.any():
                yield part
            else:
                self.done += 1

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> Metrics:
        """The terms of the loss and the metrics beside them, without an update."""
        batch = assign_ranks(batch) if batch.packing.owners is None else batch
        return {name: value for name, value, _ in self.accumulate(batch, lambda p: self.loss(p, self.score(p)))}

    @torch.no_grad()
    def sample_losses(self, batch: Batch) -> Float[Tensor, " B"]:
        """The loss of each sample under the policy as it is now: the mean over its tokens where each has one."""

        def losses(part: Batch) -> dict[str, Tensor]:
            terms = [term for term in self.loss(part, self.score(part)) if term.coefficient]
            return {"loss_B": sum((t.coefficient * _per_sample(t, part) for t in terms), torch.zeros(()))}

        batch = assign_ranks(batch) if batch.packing.owners is None else batch
        return map_microbatches(batch, self.microbatch_tokens, losses)["loss_B"]

    def _one_update(self, batch: Batch, applied: str) -> list[TermValue]:
        """The gradient of the whole batch, part by part, then one clipped step of each optimizer.

        `applied` is what an error says of the step's updates before this one.
        """
        with phase("gradient"):
            if self._is_flat(batch):
                values = self._zero_gradient()
            else:
                values = self.accumulate(batch, self._observed_terms)
                if batch.packing.owners is not None:
                    ranks.sum_gradients(weight for each in self.optimized for _, weight in each.parameters)
        try:
            check_finite(values, applied)
            with phase("optimizer"):
                return [*values, *self._step(applied)]
        except NonFinite:
            for each in self.optimized:
                each.optimizer.zero_grad(set_to_none=True)  # the next step's gradient begins at 0
            raise

    def _observed_terms(self, part: Batch) -> list[Term]:
        scores = self.score(part)
        self.observe(part, scores)
        return self.loss(part, scores)

    def _is_flat(self, batch: Batch) -> bool:
        """Whether no sample has a gradient, as in a step whose groups all have equal rewards."""
        return self.idle is not None and not bool((batch.trained_BT.any(1) & ~self.idle(batch)).any())

    def _zero_gradient(self) -> list[TermValue]:
        """What the passes of a flat batch would compute: AdamW then steps by its moments alone."""
        for each in self.optimized:
            for _, weight in each.parameters:
                weight.grad = torch.zeros_like(weight)
        return [TermValue("loss/policy", 0.0)]

    def accumulate(self, batch: Batch, terms_of: Callable[[Batch], list[Term]]) -> list[TermValue]:
        """Each term over the whole batch; what has a coefficient is differentiated on the way.

        Samples that are not trained on, and idle ones, need no pass.
        """
        whole = _denominators(batch)
        passed = self._to_pass(batch)
        of_passed = whole if passed is batch else _denominators(passed)
        sums: dict[tuple[str, bool], Any] = defaultdict(float)
        trained = [(f"{each.name}.{name}", weight) for each in self.optimized for name, weight in each.parameters]
        with gradient_sums(trained, seed=self.seed, update=self.done) as gradients:
            for part in rank_microbatches(passed, self.microbatch_tokens):
                objective = torch.zeros((), device=batch.samples.completion_BT.device)
                for term in terms_of(part):
                    values, mask = term.values, part.trained_BT
                    if values.dim() == 1:
                        values, mask = values[:, None], mask.any(1, keepdim=True)
                    denominator = (whole if term.coefficient else of_passed)[term.mode]
                    value = aggregate(values, mask, mode=term.mode, denominator=denominator)
                    sums[term.name, term.first_update_only] += value.detach()
                    if term.coefficient:
                        objective = objective + term.coefficient * value
                if objective.requires_grad:
                    gradients.before_backward()
                    objective.backward()
        on_host = _on_host(list(sums.values()), over_ranks=batch.packing.owners is not None)
        return [TermValue(name, value, sampler) for (name, sampler), value in zip(sums, on_host, strict=True)]

    def _to_pass(self, batch: Batch) -> Batch:
        """The samples that have a gradient; those that are trained on where none has, for the metrics."""
        trained_B = batch.trained_BT.any(1)
        wanted_B = trained_B if self.idle is None else trained_B & ~self.idle(batch)
        for chosen_B in (wanted_B.cpu(), trained_B.cpu()):
            if chosen_B.all():
                return batch
            if chosen_B.any():
                return batch.rows(chosen_B.nonzero()[:, 0].tolist())
        return batch

    def _step(self, applied: str = "") -> list[TermValue]:
        factor = learning_rate_factor(self.done, self.total_updates, shape=self.schedule, warmup=self.warmup_updates)
        values = _on_host([each.clip() for each in self.optimized])
        norms = [TermValue(f"grad_norm/{p.name}", value) for p, value in zip(self.optimized, values, strict=True)]
        check_finite(norms, applied)
        for each in self.optimized:
            each.step(factor)
        self.done += 1
        return [*norms, TermValue("learning_rate", self.optimized[0].learning_rate * factor)]

    def begin_at(self, step: int) -> None:
        """As if the steps before it had made all of their updates: the learning rate goes by them."""
        self.done = step * self.updates_per_step * self.minibatches

    def tensors(self) -> dict[str, Tensor]:
        return {name: tensor for each in self.optimized for name, tensor in each.tensors().items()}

    def weights(self) -> dict[str, Tensor]:
        return {f"{each.name}.{name}": weight for each in self.optimized for name, weight in each.parameters}

    def scalars(self) -> dict[str, Any]:
        controller = self.controller.scalars() if self.controller is not None else {}
        return {"updates_done": self.done, "controller": controller}

    def load(self, tensors: dict[str, Tensor], scalars: dict[str, Any]) -> None:
        for each in self.optimized:
            each.load(tensors)
        self.done = int(scalars["updates_done"])
        if self.controller is not None:
            self.controller.load(scalars["controller"])


def _per_sample(term: Term, batch: Batch) -> Float[Tensor, " B"]:
    if term.values.dim() == 1:
        return term.values if term.weights is None else term.values / term.weights
    return masked_sum(term.values, batch.trained_BT) / batch.trained_BT.sum(1).clamp(min=1)


def _denominators(batch: Batch) -> dict[AggregateMode, int]:
    trained_BT = batch.trained_BT.cpu()  # one wait for the device, not one for each number
    modes: tuple[AggregateMode, ...] = ("tokens", "samples", "sum_over_samples")
    return {mode: aggregate_denominator(trained_BT, mode) for mode in modes}


def _on_host(values: Sequence[Tensor], *, over_ranks: bool = False) -> list[float]:
    """One wait for the device instead of one for each."""
    if not values:
        return []
    device = values[0].device
    stacked = torch.stack([v.detach().to(device) for v in values])
    return [float(value) for value in (ranks.all_reduce_sum(stacked) if over_ranks else stacked).tolist()]


def _mean_over_updates(updates: Sequence[Sequence[TermValue]]) -> Metrics:
    """Means. Metrics of the policy that sampled are the first update's alone, where π₁ is still π₀, or if that had no
    gradient, and so no pass, the next one's."""
    values: dict[str, list[float]] = defaultdict(list)
    for update in updates:
        for one in update:
            if one.name not in values or not one.first_update_only:
                values[one.name].append(one.value)
    return {name: sum(some) / len(some) for name, some in values.items()}


def check_finite(values: Sequence[TermValue], applied: str = "") -> None:
    broken = [one.name for one in values if not math.isfinite(one.value)]
    if broken:
        raise NonFinite(
            f"{', '.join(broken)}: not finite{applied}. The update was not applied, and earlier checkpoints are "
            "intact: try a lower learning rate or temperature"
        )
