"""The update slot by gradient: K updates a step, microbatches whose sum is the whole, a clipped step per player."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vigneron.batch import Batch, passes, shared_out
from vigneron.config import DEFAULT_MICROBATCH_TOKENS, Config, OptimizerConfig
from vigneron.core.draws import keyed_permutation
from vigneron.core.losses import AggregateMode, aggregate, aggregate_denominator
from vigneron.core.schedule import Shape, learning_rate_factor
from vigneron.distributed import ranks
from vigneron.errors import NonFinite
from vigneron.timing import phase
from vigneron.training.checkpoint.shards import placed
from vigneron.training.method import Metrics

# Keeps these draws apart from those of the prompts' order.
MINIBATCHES = 2**40


@dataclass(frozen=True)
class Term:
    """One summand of the loss (`coefficient` ≠ 0), or a figure to log (0), as a value per token or per sample."""

    name: str
    values: Float[Tensor, "B T"] | Float[Tensor, " B"]
    coefficient: float = 0.0
    mode: AggregateMode = "tokens"
    of_sampler: bool = False
    """A figure of the policy that sampled: of a step's several updates, the first's."""


class Figure(NamedTuple):
    name: str
    value: float
    of_sampler: bool = False


@dataclass
class Player:
    """Parameters with their own AdamW and their own clipping: the actor, the critic."""

    name: Literal["actor", "critic"]
    parameters: Sequence[tuple[str, nn.Parameter]]
    learning_rate: float
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    optimizer: torch.optim.AdamW = field(init=False)

    def __post_init__(self) -> None:
        weights = [parameter for _, parameter in self.parameters]
        sharded, whole = _apart(weights)
        self.optimizer = torch.optim.AdamW(
            [{"params": some} for some in (whole, sharded) if some],
            lr=self.learning_rate,
            weight_decay=self.weight_decay,
            fused=all(p.is_cuda or p.device.type == "cpu" for p in weights),
        )

    def clip(self) -> Tensor:
        """Scale the gradient to at most `max_grad_norm`; its norm before."""
        weights = [parameter for _, parameter in self.parameters]
        sharded, whole = _apart(weights)
        if not sharded:
            return torch.nn.utils.clip_grad_norm_(weights, self.max_grad_norm)
        norm = torch.stack([_norm(some) for some in (whole, sharded) if some]).norm()
        for some in (whole, sharded):
            torch.nn.utils.clip_grads_with_norm_(some, self.max_grad_norm, norm)
        return norm

    def step(self, factor: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate * factor
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def tensors(self) -> dict[str, Tensor]:
        state = self.optimizer.state
        return {
            f"{self.name}.{name}.{key}": value
            for name, parameter in self.parameters
            for key, value in state.get(parameter, {}).items()
        }

    def load(self, tensors: dict[str, Tensor]) -> None:
        for name, parameter in self.parameters:
            prefix = f"{self.name}.{name}."
            found = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
            # Only a fused optimizer counts its steps on the parameter's device.
            counter = parameter.device if self.optimizer.defaults["fused"] else torch.device("cpu")
            self.optimizer.state[parameter] = {
                key: value.to(counter).clone() if key == "step" else placed(value, parameter)
                for key, value in found.items()
            }


def players_of(
    options: OptimizerConfig,
    actor: Sequence[tuple[str, nn.Parameter]],
    critic: Sequence[tuple[str, nn.Parameter]] = (),
) -> list[Player]:
    """The actor, and the critic where there is one."""
    shared = {"weight_decay": options.weight_decay, "max_grad_norm": options.max_grad_norm}
    players = [Player("actor", actor, options.actor_lr, **shared)]
    return [*players, Player("critic", critic, options.critic_lr, **shared)] if critic else players


@dataclass
class GradientUpdate:
    """`update(batch)`: `score` and `loss` are the method's, and `loss` is given what `score` returns; `measure` looks
    at the policy after the step's updates.

    Several updates are passes over the batch, each of them cut into `minibatches` of samples, drawn by (seed, updates
    done).
    """

    score: Callable[[Batch], Any]
    loss: Callable[[Batch, Any], list[Term]]
    players: Sequence[Player]
    total_updates: int
    updates_per_step: int = 1
    minibatches: int = 1
    seed: int = 0
    microbatch_tokens: int = DEFAULT_MICROBATCH_TOKENS
    schedule: Shape = "constant"
    warmup_updates: int = 0
    measure: Callable[[Batch], Term] | None = None
    measure_every: int = 1
    controller: Any = None
    idle: Callable[[Batch], Tensor] | None = None
    """1 on samples that no term has a gradient for: they count, and are not passed through the model."""
    done: int = 0

    @classmethod
    def of(
        cls,
        config: Config,
        updates_per_step: int,
        score: Callable[[Batch], Any],
        loss: Callable[[Batch, Any], list[Term]],
        players: Sequence[Player],
        measure: Callable[[Batch], Term] | None = None,
        controller: Any = None,
        *,
        minibatches: int = 1,
        idle: Callable[[Batch], Tensor] | None = None,
    ) -> "GradientUpdate":
        return cls(
            score,
            loss,
            players,
            total_updates=config.steps * updates_per_step * minibatches,
            updates_per_step=updates_per_step,
            minibatches=minibatches,
            seed=config.seed,
            microbatch_tokens=config.tokens_at_once,
            schedule=config.optimizer.schedule,
            warmup_updates=config.optimizer.warmup_steps * updates_per_step * minibatches,
            measure=measure,
            measure_every=config.successive_kl_every,
            controller=controller,
            idle=idle,
        )

    def __call__(self, batch: Batch) -> Metrics:
        """K updates. A step on which nothing can be trained passes, and says nothing of losses or KL."""
        a_step = self.updates_per_step * self.minibatches
        if not batch.trained_BT.any():
            self.done += a_step
            return {}
        updates = [self._one_update(part) for _ in range(self.updates_per_step) for part in self._cut(batch)]
        metrics = _mean_over_updates(updates, self.minibatches)
        step = self.done // a_step
        if self.measure is not None and self.measure_every and step % self.measure_every == 0:
            measure = self.measure
            with torch.no_grad(), phase("successive KL"):
                metrics |= {name: value for name, value, _ in self.accumulate(batch, lambda p: [measure(p)])}
        if self.controller is not None:
            metrics |= self.controller.observe(metrics)
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
    def figures(self, batch: Batch) -> Metrics:
        """The terms of the loss and what is logged beside them, without an update."""
        batch = shared_out(batch) if batch.owners is None else batch
        return {name: value for name, value, _ in self.accumulate(batch, lambda p: self.loss(p, self.score(p)))}

    def _one_update(self, batch: Batch) -> list[Figure]:
        """The gradient of the whole batch, part by part, then one clipped step of each player."""
        with phase("gradient"):
            figures = self.accumulate(batch, lambda part: self.loss(part, self.score(part)))
            if batch.owners is not None:
                ranks.sum_gradients(weight for player in self.players for _, weight in player.parameters)
        try:
            check_finite(figures)
            with phase("optimizer"):
                return [*figures, *self._step()]
        except NonFinite:
            for player in self.players:
                player.optimizer.zero_grad(set_to_none=True)  # the next step's gradient begins at 0
            raise

    def accumulate(self, batch: Batch, terms_of: Callable[[Batch], list[Term]]) -> list[Figure]:
        """Each term over the whole batch; what has a coefficient is differentiated on the way.

        Samples that are not trained on, and idle ones, need no pass.
        """
        whole = _denominators(batch)
        passed = self._to_pass(batch)
        looked_at = whole if passed is batch else _denominators(passed)
        sums: dict[tuple[str, bool], Any] = defaultdict(float)
        for part in passes(passed, self.microbatch_tokens):
            objective = torch.zeros((), device=batch.completion_BT.device)
            for term in terms_of(part):
                values, mask = term.values, part.trained_BT
                if values.dim() == 1:
                    values, mask = values[:, None], mask.any(1, keepdim=True)
                denominator = (whole if term.coefficient else looked_at)[term.mode]
                value = aggregate(values, mask, mode=term.mode, denominator=denominator)
                sums[term.name, term.of_sampler] += value.detach()
                if term.coefficient:
                    objective = objective + term.coefficient * value
            if objective.requires_grad:
                objective.backward()
        on_host = _on_host(list(sums.values()), over_ranks=batch.owners is not None)
        return [Figure(name, value, sampler) for (name, sampler), value in zip(sums, on_host, strict=True)]

    def _to_pass(self, batch: Batch) -> Batch:
        """The samples that have a gradient; those that are trained on where none has, for the figures."""
        trained_B = batch.trained_BT.any(1)
        wanted_B = trained_B if self.idle is None else trained_B & ~self.idle(batch)
        for chosen_B in (wanted_B.cpu(), trained_B.cpu()):
            if chosen_B.all():
                return batch
            if chosen_B.any():
                return batch.rows(chosen_B.nonzero()[:, 0].tolist())
        return batch

    def _step(self) -> list[Figure]:
        factor = learning_rate_factor(self.done, self.total_updates, shape=self.schedule, warmup=self.warmup_updates)
        values = _on_host([player.clip() for player in self.players])
        norms = [Figure(f"grad_norm/{p.name}", value) for p, value in zip(self.players, values, strict=True)]
        check_finite(norms)
        for player in self.players:
            player.step(factor)
        self.done += 1
        return [*norms, Figure("learning_rate", self.players[0].learning_rate * factor)]

    def begin_at(self, step: int) -> None:
        """As if the steps before it had made all of their updates: the learning rate goes by them."""
        self.done = step * self.updates_per_step * self.minibatches

    def tensors(self) -> dict[str, Tensor]:
        return {name: tensor for player in self.players for name, tensor in player.tensors().items()}

    def places(self) -> dict[str, Tensor]:
        return {f"{player.name}.{name}": weight for player in self.players for name, weight in player.parameters}

    def scalars(self) -> dict[str, Any]:
        controller = self.controller.scalars() if self.controller is not None else {}
        return {"updates_done": self.done, "controller": controller}

    def load(self, tensors: dict[str, Tensor], scalars: dict[str, Any]) -> None:
        for player in self.players:
            player.load(tensors)
        self.done = int(scalars["updates_done"])
        if self.controller is not None:
            self.controller.load(scalars["controller"])


def _apart(weights: Sequence[nn.Parameter]) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Those of which ranks have parts, and those that every rank has whole: one operation never takes both."""
    return [w for w in weights if ranks.is_sharded(w)], [w for w in weights if not ranks.is_sharded(w)]


def _norm(weights: Sequence[nn.Parameter]) -> Tensor:
    grads = [weight.grad for weight in weights if weight.grad is not None]
    return (
        ranks.full_tensor(torch.nn.utils.get_total_norm(grads)) if grads else torch.zeros((), device=weights[0].device)
    )


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


def _mean_over_updates(updates: Sequence[Sequence[Figure]], in_first_pass: int) -> Metrics:
    """Means. Figures of the policy that sampled are the first pass's, where π₁ is, or is nearly, still π₀."""

    def mean(figure: Figure) -> float:
        some = updates[:in_first_pass] if figure.of_sampler else updates
        values = [other.value for update in some for other in update if other.name == figure.name]
        return sum(values) / len(values)

    return {figure.name: mean(figure) for figure in updates[0]}


def check_finite(figures: Sequence[Figure]) -> None:
    broken = [figure.name for figure in figures if not math.isfinite(figure.value)]
    if broken:
        raise NonFinite(
            f"{', '.join(broken)}: not finite. This update was not made, and the last checkpoint stands; "
            "a lower learning rate or temperature usually helps"
        )
