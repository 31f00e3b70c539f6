"""The Python API: train, resume, load a run."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from vigneron.batch import Batch
from vigneron.config import Config
from vigneron.config.custom import is_user_path
from vigneron.core.draws import Sampling
from vigneron.data.prompts import Row, completion_text
from vigneron.distributed import ranks
from vigneron.environments.build import build_environments
from vigneron.errors import UserError
from vigneron.files import default_runs_folder
from vigneron.methods import build_method
from vigneron.policy.from_config import policy_from_config
from vigneron.policy.model import Policy
from vigneron.policy.reference import Reference
from vigneron.recipe import changed_config, load_config
from vigneron.rewards.apply import ApplyReward
from vigneron.rewards.build import attach_models, build_reward, reads_rows
from vigneron.rewards.checkers import Check, build_check, load_checker
from vigneron.rollout.build import evaluation_rollout, sampling_rollout
from vigneron.rollout.on_policy import OnPolicy, sampling_of
from vigneron.rollout.value_search import ValueSearch, beam_search, best_by_value, samples_of_each
from vigneron.run_data.readers import checker_name
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.samples import Sample
from vigneron.timing import reporting_phases
from vigneron.training import loop
from vigneron.training.callbacks import AnyView, View, as_view
from vigneron.training.checkpoint.read import checkpoint_step, checkpoint_to_load, load_critic, load_weights
from vigneron.training.method import Method, unchanged
from vigneron.training.metrics import batch_metrics, evaluate, evaluate_levels
from vigneron.training.output import samples_of
from vigneron.training.parts import Parts
from vigneron.training.pass_at_k import PassAtK, measure_pass_at_k
from vigneron.training.record_samples import Recording
from vigneron.training.record_samples import record_samples as write_samples
from vigneron.training.run import Run
from vigneron.training.setup.resolve import newest_weights
from vigneron.training.setup.resume import resume_run
from vigneron.training.setup.start import start_run


@dataclass
class Trained:
    """A run with its model before (`reference`) and after training (`policy`)."""

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
        """One completion per prompt; greedy at temperature 0. Of a run with an environment, the model's next turn, to
        which nothing replies: `converse` has whole conversations."""
        return _sample(self.policy, self.config, prompts, temperature, max_new_tokens, seed)

    def sample_before(
        self,
        prompts: Sequence[Any],
        *,
        temperature: float = 0.0,
        max_new_tokens: int | None = None,
        seed: int = 0,
    ) -> list[str]:
        """One completion per prompt from the model before training."""
        with self.reference.active() as policy:
            return _sample(policy, self.config, prompts, temperature, max_new_tokens, seed)

    def converse(
        self,
        rows: Sequence[Row],
        *,
        temperature: float = 0.0,
        max_new_tokens: int | None = None,
        seed: int = 0,
        before: bool = False,
    ) -> list[Sample]:
        """Conversations with the run's environment, one for each row (of a game, one for each role); greedy at
        temperature 0. Their turns, with rewards, are in `extras["conversation"]`. `before`: with the model before
        training."""
        if self.config.environment is None:
            raise UserError(f"'{self.folder}' was trained without an `environment` to talk with")
        limit = max_new_tokens or self.config.max_new_tokens
        config = self.config.model_copy(update={"max_new_tokens": limit})
        with self.reference.active() if before else nullcontext(self.policy) as policy:
            if temperature > 0:
                sampling = config.sampling.model_copy(update={"temperature": temperature})
                config = config.model_copy(update={"sampling": sampling})
                rollout = sampling_rollout(config, policy, group_size=1, seed=seed)
            else:
                rollout = evaluation_rollout(config, policy)
            return samples_of(rollout(rows), 0 if before else self.step, "eval")

    def evaluate(self, rows: Sequence[Row] | None = None) -> dict[str, float]:
        """Metrics of greedy completions of the held-out rows, or of `rows`."""
        return self.evaluate_samples(rows)[0]

    def evaluate_samples(self, rows: Sequence[Row] | None = None) -> tuple[dict[str, float], list[Sample]]:
        """The metrics of `evaluate`, and the completions."""
        rows = RunFolder(self.folder).data(self.config).held_out if rows is None else rows
        if not rows:
            raise UserError("no rows to evaluate on: set data.held_out, or give --file")
        method = self._method_that_evaluates()
        if method is not None and method.evaluate is not None:
            return evaluate_levels(self.config, method.evaluate, rows), []
        with self._scoring() as (reward, check):
            batch, metrics = evaluate(self.config, self.policy, reward, check, rows)
        if method is not None and method.evaluate_beside is not None:
            metrics |= method.evaluate_beside(rows)
        return metrics, samples_of(batch, self.step, "eval")

    def evaluate_by_value(
        self,
        rows: Sequence[Row] | None = None,
        *,
        best_of: int | None = None,
        beam: int | None = None,
        expand: int = 4,
        separator: str = "\n",
        seed: int = 0,
    ) -> dict[str, float]:
        """Metrics of answers that the run's critic chooses, as `best_of_N/accuracy` and `beam_B/accuracy`: the best of
        N samples by its value (`sampled/accuracy` is the mean of all N), or a beam search over steps."""
        rows = RunFolder(self.folder).data(self.config).held_out if rows is None else rows
        if not rows:
            raise UserError("no rows to evaluate on: set data.held_out, or give --file")
        search, config = self._value_search(seed), self.config
        metrics: dict[str, float] = {}
        with self._scoring() as (reward, check):
            if best_of is not None:
                drawn = samples_of_each(search, rows, best_of)
                batches = {"sampled": drawn, f"best_of_{best_of}": best_by_value(search, drawn, best_of)}
                for name, batch in batches.items():
                    metrics |= {
                        f"{name}/{key}": value for key, value in _quality(check(reward.evaluate(batch))).items()
                    }
            if beam is not None:
                batch = beam_search(search, rows, beams=beam, expand=expand, separator=separator)
                metrics |= {
                    f"beam_{beam}/{key}": value for key, value in _quality(check(reward.evaluate(batch))).items()
                }
        if not metrics:
            raise UserError(f"`method: {config.method.name}`: give best_of or beam, how many answers to choose from")
        return metrics

    def _value_search(self, seed: int) -> ValueSearch:
        if self.config.environment is not None:
            raise UserError("answers cannot be chosen by value in conversations with an `environment`")
        method = self._method() if self.config.method.has_critic else None
        if method is None or method.critic is None:
            raise UserError(
                f"`method: {self.config.method.name}` trains no value to choose answers by: name a run that trained a "
                "reward or process model with --by, or use a run of `method: oreo`"
            )
        weights = {name: w for name, w in method.update.weights().items() if name.startswith("critic.")}
        load_critic(checkpoint_to_load(self.folder, self.step), weights)
        return ValueSearch(
            self.policy,
            method.critic,
            sampling_of(self.config),
            self.config.max_new_tokens,
            seed,
            self.config.resolved_microbatch_tokens,
            tuple(self.config.sampling.stop),
        )

    @contextmanager
    def _scoring(self) -> Iterator[tuple[ApplyReward, Check]]:
        """The run's reward and checker."""
        name = checker_name(self.config)
        built = build_reward(
            self.config.reward,
            load_checker(name, optional=self.config.answers_are_optional),
            device=str(self.policy.device),
            rubric=RunFolder(self.folder).rubric,
            weights=partial(newest_weights, key="reward.file"),
            rows=RunFolder(self.folder).data(self.config).train if reads_rows(self.config.reward) else (),
        )
        attach_models(built, self.policy, self.reference)
        reward = ApplyReward.of(self.config, built)
        try:
            yield reward, build_check(name)
        finally:
            reward.close()

    def pass_at_k(
        self, k: Sequence[int], *, samples: int, rows: Sequence[Row] | None = None, seed: int | None = None
    ) -> list[PassAtK]:
        """pass@k of the held-out rows, or of `rows`: `samples` completions of each prompt at the run's temperature, by
        the unbiased estimator, each with a 95 % interval over prompts. `seed` keys the draws; the run's by default."""
        rows = RunFolder(self.folder).data(self.config).held_out if rows is None else rows
        return measure_pass_at_k(self.config, self.policy, rows, k, samples, seed)

    def _method_that_evaluates(self) -> Method | None:
        """The run's method, where it measures held-out rows by itself; no built-in one on samples does."""
        if self.config.method.reads in ("prompts", "recorded") and not is_user_path(self.config.method.name):
            return None
        return self._method()

    def _method(self) -> Method:
        """The run's method, at the model's weights; a critic of it is new."""
        config = self.config.model_copy(update={"curriculum": None})
        return build_method(Parts.of(config, self.policy, self.reference, unchanged))


def train(
    recipe: str | Config,
    *overrides: str,
    name: str | None = None,
    runs: str | Path | None = None,
    view: AnyView = None,
    **keys: Any,
) -> Trained:
    """Train a recipe (a name, a file, or a `Config`) in a new folder under `runs`.

    Overrides are `key=value` strings; top-level keys can also be keywords: `train("demo", steps=5)`.
    `view` is a function that is called with a `Progress` after every step, or a `View`.
    """
    if isinstance(recipe, Config) and (overrides or keys):
        raise UserError("overrides cannot be combined with a Config: give the name or file of a recipe")
    config = recipe if isinstance(recipe, Config) else load_config(recipe, overrides, keys)
    runs_folder = Path(runs) if runs is not None else default_runs_folder()
    watching = as_view(view)
    with reporting_phases(getattr(watching, "phase", None)):
        return _finish(start_run(config, runs_folder, build_method, name=name, view=watching), watching)


def resume(
    folder: str | Path,
    *overrides: str,
    device: str | None = None,
    rubric: str | None = None,
    weights_only: bool = False,
    allow_changes: bool = False,
    view: AnyView = None,
) -> Trained:
    """Resume a run from its newest complete checkpoint, with another rubric if one is given.

    Overrides are `key=value` strings, as in `resume(run, "steps=400")`. Changes that would change the results are
    errors unless `allow_changes`. `weights_only` starts with new optimizer states.
    """
    run_folder = RunFolder.open(folder)
    watching, config = as_view(view), run_folder.config(user_code=True)
    new = changed_config(config, overrides, str(run_folder.path)) if overrides else None
    with reporting_phases(getattr(watching, "phase", None)):
        run = resume_run(
            run_folder,
            build_method,
            config=new,
            device=device,
            rubric=rubric,
            weights_only=weights_only,
            allow_changes=allow_changes,
            view=watching,
        )
        return _finish(run, watching)


def load_run(folder: str | Path, *, step: int | None = None, device: str = "auto") -> Trained:
    """Load a run's model from its newest checkpoint, or from the one of `step`, on this machine's device or on another
    one, whatever the run was trained on."""
    run_folder = RunFolder.open(folder)
    config = run_folder.config(user_code=True)
    checkpoint = checkpoint_to_load(run_folder.path, step)
    here = config.model.model_copy(update={"device": device, "dtype": "auto"})
    load = partial(policy_from_config, config.model_copy(update={"model": here}))
    policy = load()
    reference = Reference.loaded_later(policy, load)
    load_weights(checkpoint, policy)
    return Trained(run_folder.path, config, checkpoint_step(checkpoint), policy, reference)


def record_samples(
    recipe: str | Config,
    *overrides: str,
    out: str | Path,
    samples: int = 16,
    notice: Callable[[str], None] = lambda text: None,
    **keys: Any,
) -> Recording:
    """Draw samples from a recipe's model for each training prompt, score them by its reward, and write them to `out`.

    `method: topr` and `method: oreo` train on such a file. The held-out rows are written to `NAME.held_out.jsonl`.
    """
    config = recipe if isinstance(recipe, Config) else load_config(recipe, overrides, keys)
    return write_samples(config, Path(out), samples, notice)


def _finish(run: Run, view: View) -> Trained:
    try:
        loop.train(run, view)
    finally:
        run.close()
    ranks.leave()
    return Trained(run.folder.path, run.config, run.step, run.policy, run.reference)


def _quality(batch: Batch) -> dict[str, float]:
    """Reward and accuracy of a batch that was rewarded and checked."""
    return {name: value for name, value in batch_metrics(batch).items() if name in ("accuracy", "reward")}


def _sample(
    policy: Policy,
    config: Config,
    prompts: Sequence[Any],
    temperature: float,
    max_new_tokens: int | None,
    seed: int,
) -> list[str]:
    if config.method.trains == "scorer":
        raise UserError(f"`method: {config.method.name}` trains a reward model, which cannot generate text")
    if not prompts:
        return []
    sampling = Sampling(temperature=temperature) if temperature > 0 else None
    stop = tuple(config.sampling.stop)
    rollout = OnPolicy(policy, sampling, max_new_tokens or config.max_new_tokens, seed=seed, stop=stop)
    rows: list[Row] = [{"prompt": prompt} for prompt in prompts]
    environments = build_environments(config.environment, policy.tokenizer)
    if environments is not None:
        rows = [environments.prepared(row) for row in rows]
    return [completion_text(c) for c in rollout(rows).samples.completions]
