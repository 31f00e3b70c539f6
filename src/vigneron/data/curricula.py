"""Built-in curricula: rows drawn by level (E2H), by loss (self-paced learning) or by measured success."""

import json
import math
from array import array
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import torch

from vigneron.batch import Batch
from vigneron.config import Config, LevelCurriculumConfig, LossCurriculumConfig, SuccessCurriculumConfig
from vigneron.core.curriculum import draw_levels, easiest, level_probabilities, weighted_order
from vigneron.core.draws import keyed_uniform
from vigneron.data.curriculum import Curriculum, CurriculumParts, order_of
from vigneron.data.levels import level_name, level_of, rows_by_level
from vigneron.data.prompts import Row, as_messages
from vigneron.data.rows import Subset
from vigneron.errors import UserError
from vigneron.user_code import python_function

# Positions of keyed draws, apart from those of tokens (0 …) and permutations (−1).
LEVEL_DRAW, TIES, SUCCESS_DRAW = -2, -3, -4
# Separate the permutations within levels and within self-paced rounds from those of the epochs' order.
WITHIN_LEVEL, WITHIN_ROUND = 2**42, 2**43
EPOCHS = 2**20


def build_curriculum(config: Config, rows: Sequence[Row]) -> Curriculum:
    """The curriculum that a config names, or shuffled epochs."""
    options, size, seed = config.curriculum, config.prompts_per_step, config.seed
    default = Curriculum(rows, size, seed)
    if options is None:
        return default
    if isinstance(options, LevelCurriculumConfig):
        return ByLevel(rows, size, seed, options, config.steps)
    if isinstance(options, LossCurriculumConfig):
        return ByLoss(rows, size, seed, options)
    if isinstance(options, SuccessCurriculumConfig):
        return BySuccess(rows, size, seed, options, config.scale.staleness)
    build = python_function(options.name, "curriculum.name")
    return build(CurriculumParts(config, rows, default), options)


class ByLevel(Curriculum):
    """E2H: each row's level is drawn with `level_probabilities` at progress t/T, then a row of the level, in shuffled
    order, without repeats until the level is used up.

    A function of (seed, T, step). T is the number of steps when the run started, and the checkpoint keeps it: a run
    that is resumed with more `steps` stays at the schedule's end.
    """

    def __init__(
        self, rows: Sequence[Row], prompts_per_step: int, seed: int, options: LevelCurriculumConfig, steps: int
    ) -> None:
        by_level = rows_by_level(rows, options, "the training data")
        super().__init__(rows, prompts_per_step, seed)
        self.options, self.steps = options, steps
        self.levels, self.members = list(by_level), [Subset(rows, indices) for indices in by_level.values()]
        self._drawn = [[0] * len(self.levels)]
        """How many rows of each level were drawn before step 0, 1, …"""

    def at(self, step: int) -> list[Row]:
        places = list(self._drawn_before(step))
        rows = []
        for level in self._draw(step):
            rows.append(self._row(level, places[level]))
            places[level] += 1
        return rows

    def more(self, rows: Sequence[Row], step: int, attempt: int) -> list[Row]:
        others = [self.others(members, rows, step, attempt) for members in self.members]
        places = [0] * len(self.levels)
        more = []
        for level in self._draw(step, attempt):
            more.append(others[level][places[level] % len(others[level])])
            places[level] += 1
        return more

    def describe(self, rows: Sequence[Row]) -> dict[str, float]:
        levels = [level_of(row, self.options.column) for row in rows]
        return {f"curriculum/level/{level_name(one)}": levels.count(one) / len(levels) for one in self.levels}

    def scalars(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load(self, scalars: dict[str, Any]) -> None:
        self.steps = int(scalars.get("steps", self.steps))
        del self._drawn[1:]

    def _draw(self, step: int, attempt: int = 0) -> list[int]:
        """The levels of a step's rows."""
        options, count = self.options, self.prompts_per_step
        progress = min(1.0, step / self.steps)
        probabilities_K = level_probabilities(options.schedule, progress, len(self.levels), sigma=options.sigma)
        places_N = torch.arange(attempt * count, (attempt + 1) * count)
        return draw_levels(probabilities_K, keyed_uniform(self.seed, step, places_N, LEVEL_DRAW)).tolist()

    def _drawn_before(self, step: int) -> list[int]:
        while len(self._drawn) <= step:
            drawn = self._draw(len(self._drawn) - 1)
            self._drawn.append([before + drawn.count(level) for level, before in enumerate(self._drawn[-1])])
        return self._drawn[step]

    def _row(self, level: int, place: int) -> Row:
        members = self.members[level]
        epoch, index = divmod(place, len(members))
        return members[int(order_of(self.seed, WITHIN_LEVEL + level * EPOCHS + epoch, len(members))[index])]


class ByLoss(Curriculum):
    """Self-paced learning: every few steps the losses of all rows are measured, and a growing share of the rows, those
    with the lowest losses, is drawn from in shuffled order.

    The run sets `measure`. The checkpoint keeps the losses that the current round draws by.
    """

    measure: Callable[[Sequence[Row]], Sequence[float]]

    def __init__(self, rows: Sequence[Row], prompts_per_step: int, seed: int, options: LossCurriculumConfig) -> None:
        super().__init__(rows, prompts_per_step, seed)
        self.options = options
        self.round = -1
        self.losses: list[float] = []
        self._pool: list[int] = []

    def at(self, step: int) -> list[Row]:
        round_ = step // self.options.every
        if round_ != self.round:
            self.losses = [float(loss) for loss in self.measure(self.rows)]
            self._begin(round_)
        size, first = len(self._pool), (step - round_ * self.options.every) * self.prompts_per_step
        places = [divmod(place, size) for place in range(first, first + self.prompts_per_step)]
        key = WITHIN_ROUND + round_ * EPOCHS
        return [self.rows[self._pool[int(order_of(self.seed, key + epoch, size)[index])]] for epoch, index in places]

    def more(self, rows: Sequence[Row], step: int, attempt: int) -> list[Row]:
        others = self.others(Subset(self.rows, np.array(self._pool)), rows, step, attempt)
        return [others[i % len(others)] for i in range(self.prompts_per_step)]

    def describe(self, rows: Sequence[Row]) -> dict[str, float]:
        threshold = max((loss for i in self._pool if math.isfinite(loss := self.losses[i])), default=math.nan)
        share = len(self._pool) / len(self.rows)
        return {"curriculum/share": share, "curriculum/threshold": threshold}

    def scalars(self) -> dict[str, Any]:
        losses = [loss if math.isfinite(loss) else None for loss in self.losses]
        return {"round": self.round, "losses": losses}

    def load(self, scalars: dict[str, Any]) -> None:
        losses = scalars.get("losses", [])
        if len(losses) == len(self.rows):  # other rows are measured anew
            self.losses = [math.nan if loss is None else loss for loss in losses]
            self._begin(int(scalars["round"]))

    def _begin(self, round_: int) -> None:
        options = self.options
        share = min(1.0, options.start * options.growth**round_)
        tie_N = keyed_uniform(self.seed, round_, torch.arange(len(self.rows)), TIES)
        self._pool = easiest(torch.tensor(self.losses, dtype=torch.float64), share, tie_N).tolist()
        self.round = round_


class BySuccess(Curriculum):
    """By each prompt's running mean of success. Rows with the same prompt share it.

    A step's order of all rows is fixed when its rows are first drawn, and dynamic sampling continues in it, so that
    the rows of asynchronous rollouts do not depend on timing. The checkpoint keeps the means by the rows' indices.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        prompts_per_step: int,
        seed: int,
        options: SuccessCurriculumConfig,
        staleness: int = 0,
    ) -> None:
        super().__init__(rows, prompts_per_step, seed)
        self.options, self.staleness = options, staleness
        self.mean_N = torch.full((len(rows),), math.nan, dtype=torch.float64)
        self.seen_N = torch.zeros(len(rows), dtype=torch.bool)
        """A prompt whose rewards are all missing is seen, and has no mean."""
        self._orders: dict[int, torch.Tensor] = {}
        self._waiting: dict[int, list[int]] = {}
        """The rows of steps whose rewards are not there yet."""
        self._replaced: dict[int, list[dict[str, list[float]]]] = {}
        self._prompts = PromptIndex(rows)

    def at(self, step: int) -> list[Row]:
        if step not in self._orders:
            first = step - self.staleness  # older steps are done
            self._waiting = {at: rows for at, rows in self._waiting.items() if first <= at}
            order = self._order(step)
            self._waiting[step] = order[: self.prompts_per_step].tolist()
            self._orders = {at: before for at, before in self._orders.items() if first <= at} | {step: order}
        return self._from(step, 0)

    def more(self, rows: Sequence[Row], step: int, attempt: int) -> list[Row]:
        return self._from(step, attempt)

    def describe(self, rows: Sequence[Row]) -> dict[str, float]:
        drawn = [self._prompts.find(_key(row["prompt"]))[0] for row in rows]  # one of those that share a mean
        kinds = {"solved": self._solved(), "hopeless": self._hopeless(), "unseen": ~self.seen_N}
        kinds["between"] = ~(kinds["solved"] | kinds["hopeless"] | kinds["unseen"])
        shares = {name: float(kind_N[drawn].double().mean()) for name, kind_N in kinds.items()}
        return {f"curriculum/success/{name}": share for name, share in shares.items()}

    def observe(self, batch: Batch) -> dict[str, float]:
        step = min(self._waiting, default=0)  # steps are observed in their order
        self._waiting.pop(step, None)
        for earlier in sorted(at for at in tuple(self._replaced) if at <= step):
            for values in self._replaced.pop(earlier):
                self._take(values)
        self._take(_by_prompt(batch, self._success(batch)))
        return {}

    def skipped(self, step: int) -> None:
        self._waiting.pop(step, None)
        self._replaced.pop(step, None)

    def replaced(self, batch: Batch, step: int) -> None:
        """Kept until the step is observed, in the training thread."""
        values = batch.signals.rewards_B.tolist() if self.options.measure == "reward" else [math.nan] * len(batch)
        self._replaced.setdefault(step, []).append(_by_prompt(batch, values))

    def _take(self, values: dict[str, list[float]]) -> None:
        for key, of_prompt in values.items():
            if not (indices := self._prompts.find(key)):
                raise UserError(
                    "curriculum.by: success finds a row by its prompt, and the samples have other prompts than the "
                    "rows, as those of games do: use `by: level`, or keep the prompts in `Samples.prompts` of your "
                    "own rollout"
                )
            self._update(indices, [value for value in of_prompt if not math.isnan(value)])

    def scalars(self) -> dict[str, Any]:
        means = self.mean_N.tolist()
        seen = self.seen_N.nonzero()[:, 0].tolist()
        return {"means": {str(i): None if math.isnan(means[i]) else means[i] for i in seen}}

    def load(self, scalars: dict[str, Any]) -> None:
        for index, mean in scalars.get("means", {}).items():
            if int(index) < len(self.rows):  # of data that was changed, the rows that are left
                self.seen_N[int(index)] = True
                self.mean_N[int(index)] = math.nan if mean is None else mean

    def _success(self, batch: Batch) -> list[float]:
        if self.options.measure == "reward":
            return batch.signals.rewards_B.tolist()
        verdicts = batch.signals.correct or ()
        if not any(verdict is not None for verdict in verdicts):
            raise UserError(
                "curriculum.measure: verdict: the checker gave no verdict in this step: give the rows an `answer`, or "
                "set `measure: reward`"
            )
        return [math.nan if verdict is None else float(verdict) for verdict in verdicts]

    def _update(self, indices: list[int], values: list[float]) -> None:
        self.seen_N[indices] = True
        if not values:
            return
        new, before = sum(values) / len(values), float(self.mean_N[indices[0]])
        decay = 0.0 if math.isnan(before) else self.options.decay
        self.mean_N[indices] = (1 - decay) * new + (decay * before if decay else 0.0)

    def _solved(self) -> torch.Tensor:
        return self.mean_N >= self.options.solved

    def _hopeless(self) -> torch.Tensor:
        return self.mean_N <= self.options.hopeless

    def _order(self, step: int) -> torch.Tensor:
        """All rows: unseen ones first, then by weighted draws. Rows that wait for rewards rest."""
        first_N, rests_N = ~self.seen_N, self._solved() | self._hopeless()
        waiting = [index for rows in self._waiting.values() for index in rows]
        first_N[waiting] = False
        rests_N[waiting] = True
        weight_N = torch.where(rests_N, self.options.rest, 1.0).double()
        uniform_N = keyed_uniform(self.seed, step, torch.arange(len(self.rows)), SUCCESS_DRAW)
        return weighted_order(weight_N, first_N, uniform_N)

    def _from(self, step: int, attempt: int) -> list[Row]:
        order, first = self._orders[step], attempt * self.prompts_per_step
        return [self.rows[int(order[i % len(order)])] for i in range(first, first + self.prompts_per_step)]


class PromptIndex:
    """The rows with a prompt, by 8 bytes of its hash for each row."""

    def __init__(self, rows: Sequence[Row]) -> None:
        hashes = array("Q", (_hash(_key(row["prompt"])) for row in rows))
        unsorted = np.frombuffer(hashes, dtype=np.uint64)
        self.rows, self.order = rows, np.argsort(unsorted, kind="stable")
        self.hashes = unsorted[self.order]

    def find(self, key: str) -> list[int]:
        """The indices of the rows whose prompt has this key, ascending."""
        first, last = (np.searchsorted(self.hashes, np.uint64(_hash(key)), side) for side in ("left", "right"))
        return [i for i in self.order[first:last].tolist() if _key(self.rows[i]["prompt"]) == key]


def _hash(key: str) -> int:
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest())


def _by_prompt(batch: Batch, values: Sequence[float]) -> dict[str, list[float]]:
    """The values of each prompt's samples, without demonstrations."""
    by_prompt: dict[str, list[float]] = {}
    origins = batch.samples.extras.get("origin", (None,) * len(batch))
    for prompt, value, origin in zip(batch.samples.prompts, values, origins, strict=True):
        if origin != "demonstrated":
            by_prompt.setdefault(_key(prompt), []).append(value)
    return by_prompt


def _key(prompt: Any) -> str:
    """Equal for a text and the message that an environment makes of it."""
    return json.dumps(as_messages(prompt), sort_keys=True)
