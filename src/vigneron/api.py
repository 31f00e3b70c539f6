"""What a script calls: the same things the command line does."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from vigneron.config import Config
from vigneron.core.draws import Sampling
from vigneron.data.prompts import Row, completion_text
from vigneron.distributed import ranks
from vigneron.errors import UserError
from vigneron.methods import build_method
from vigneron.policy.from_config import policy_from_config
from vigneron.policy.model import Policy, Reference
from vigneron.recipe import changed_config, load_config
from vigneron.rewards.apply import ApplyReward
from vigneron.rewards.build import build_reward
from vigneron.rewards.checkers import build_check, load_checker
from vigneron.rollout.on_policy import OnPolicy
from vigneron.run_data.load import checker_name
from vigneron.run_store.folder import RunFolder, default_runs_folder
from vigneron.run_store.samples import Sample
from vigneron.timing import reporting_phases
from vigneron.training import loop
from vigneron.training.callbacks import AnyView, View, as_view
from vigneron.training.checkpoint.read import checkpoint_step, load_weights
from vigneron.training.checkpoint.select import checkpoint_to_look_at
from vigneron.training.evaluate import evaluate
from vigneron.training.method import Method, unchanged
from vigneron.training.parts import Parts
from vigneron.training.run import Run
from vigneron.training.sample_records import samples_of
from vigneron.training.setup.resolve import newest_weights
from vigneron.training.setup.start import resume_run, start_run


@dataclass
class Trained:
    """A run's child, before (`reference`) and after (`policy`)."""

    folder: Path
    config: Config
    step: int
    policy: Policy
    reference: Reference

    def sample(
        self,
        prompts: Sequence[Any],
        *,
        temperature: float = 0.0,
        max_new_tokens: int | None = None,
        seed: int = 0,
    ) -> list[str]:
        """A completion of each prompt, greedy unless a temperature is given."""
        return _sample(self.policy, self.config, prompts, temperature, max_new_tokens, seed)

    def sample_before(self, prompts: Sequence[Any], *, temperature: float = 0.0, seed: int = 0) -> list[str]:
        """The same from the child as it was before training."""
        with self.reference.active() as policy:
            return _sample(policy, self.config, prompts, temperature, None, seed)

    def evaluate(self, rows: Sequence[Row] | None = None) -> dict[str, float]:
        """Greedy figures on the held-out part, or on given rows."""
        return self.evaluate_samples(rows)[0]

    def evaluate_samples(self, rows: Sequence[Row] | None = None) -> tuple[dict[str, float], list[Sample]]:
        rows = RunFolder(self.folder).data().held_out if rows is None else rows
        if not rows:
            raise UserError("there is no held-out part to evaluate on: give data.held_out, or --file")
        if self.config.method.trains == "scorer" or self.config.method.reads == "pairs":
            method = self._method()
            assert method.evaluate is not None
            return method.evaluate(rows), []
        name = checker_name(self.config)
        built = build_reward(
            self.config.reward,
            load_checker(name),
            device=str(self.policy.device),
            rubric=RunFolder(self.folder).rubric,
            weights=partial(newest_weights, key="reward.file"),
        )
        reward = ApplyReward(built, missing_limit=self.config.reward.missing_limit)
        try:
            batch, metrics = evaluate(self.config, self.policy, reward, build_check(name), rows)
        finally:
            reward.close()
        if self.config.method.reads == "demonstrations":
            method = self._method()
            metrics |= method.evaluate_beside(rows) if method.evaluate_beside is not None else {}
        return metrics, samples_of(batch, self.step, "eval")

    def _method(self) -> Method:
        """The run's method, for what it measures by itself."""
        return build_method(Parts.of(self.config, self.policy, self.reference, unchanged))


def train(
    recipe: str | Config,
    *overrides: str,
    name: str | None = None,
    runs: str | Path | None = None,
    view: AnyView = None,
    **keys: Any,
) -> Trained:
    """Train a recipe (a name, a file, or a config) to its end, in a new folder under `runs`.

    Overrides are `key=value` texts; a top-level key may also be given as a keyword: `train("demo", steps=5)`.
    `view`: a function that is told of every step (a `Progress`), or a `View`.
    """
    if isinstance(recipe, Config) and (overrides or keys):
        raise UserError("a config is whole: overrides go with a recipe's name or file")
    config = recipe if isinstance(recipe, Config) else load_config(recipe, overrides, keys)
    where = Path(runs) if runs is not None else default_runs_folder()
    watching = as_view(view)
    with reporting_phases(getattr(watching, "phase", None)):
        return _finish(start_run(config, where, build_method, name=name, view=watching), watching)


def resume(
    folder: str | Path,
    *overrides: str,
    device: str | None = None,
    rubric: str | None = None,
    weights_only: bool = False,
    allow_changes: bool = False,
    view: AnyView = None,
) -> Trained:
    """Go on with a run that was stopped or killed, from its newest whole checkpoint; by another rubric if one is given.

    Overrides are `key=value` texts, as in `resume(run, "steps=400")`. What would make another run of it is refused
    unless `allow_changes`. `weights_only` goes on without the optimizers' state.
    """
    found = RunFolder.open(folder)
    watching, config = as_view(view), found.config(user_code=True)
    new = changed_config(config, overrides, str(found.path)) if overrides else None
    with reporting_phases(getattr(watching, "phase", None)):
        run = resume_run(
            found,
            build_method,
            config=new,
            device=device,
            rubric=rubric,
            weights_only=weights_only,
            allow_changes=allow_changes,
            view=watching,
        )
        return _finish(run, watching)


def load_run(folder: str | Path, *, step: int | None = None) -> Trained:
    """The child of a run, at its newest checkpoint or at the one after `step`."""
    found = RunFolder.open(folder)
    config = found.config(user_code=True)
    chosen = checkpoint_to_look_at(found.path, step)
    # Wherever it was trained, it is looked at here.
    here = config.model.model_copy(update={"device": "auto", "dtype": "auto"})
    policy = policy_from_config(config.model_copy(update={"model": here}))
    reference = Reference.of(policy)
    load_weights(chosen, policy)
    return Trained(found.path, config, checkpoint_step(chosen), policy, reference)


def _finish(run: Run, view: View) -> Trained:
    try:
        loop.train(run, view)
    finally:
        run.close()
    ranks.leave()
    return Trained(run.folder.path, run.config, run.step, run.policy, run.reference)


def _sample(
    policy: Policy,
    config: Config,
    prompts: Sequence[Any],
    temperature: float,
    max_new_tokens: int | None,
    seed: int,
) -> list[str]:
    if config.method.trains == "scorer":
        raise UserError(f"`method: {config.method.name}` trains a model that scores texts: it writes none")
    if not prompts:
        return []
    sampling = Sampling(temperature=temperature) if temperature > 0 else None
    rollout = OnPolicy(policy, sampling, max_new_tokens or config.max_new_tokens, seed=seed)
    return [completion_text(c) for c in rollout([{"prompt": prompt} for prompt in prompts]).samples.completions]
