"""The loop. Every method is these four lines with the slots filled differently."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from vigneron.batch import Batch, concatenated, shared_out
from vigneron.core.advantages import without_variance
from vigneron.data.prompts import PromptOrder, Row
from vigneron.distributed import ranks
from vigneron.distributed.checks import resume_command
from vigneron.errors import NonFinite, UserError
from vigneron.files import full_disk_errors
from vigneron.run_store.curves import CurveIndex
from vigneron.run_store.status import State, write_status
from vigneron.timing import end_timed_step, phase, start_timing
from vigneron.training.callbacks import View
from vigneron.training.memory import explained_memory
from vigneron.training.method import Method, Metrics
from vigneron.training.metrics import batch_metrics
from vigneron.training.run import Run
from vigneron.training.signals import Stopped, StopRequest

# Fewer and larger parts sample faster, more and smaller ones hide more of the reward's waiting.
PARTS = 4


def rewarded(method: Method, prompts: PromptOrder, step: int) -> Batch:
    """A step's samples with their rewards. Groups that teach nothing are replaced, as often as the method says."""
    batch = drawn(method, prompts.at(step), step, 0)
    replaced = 0
    for attempt in range(1, method.resamples + 1):
        idle_B = without_variance(batch.teaching_B, batch.group_B)
        lacking = len(batch.group_B[idle_B].unique())
        if not lacking:
            break
        first = attempt * prompts.prompts_per_step
        more = drawn(method, prompts.more(step, attempt)[:lacking], step, first)
        kept = [i for i, idle in enumerate(idle_B.tolist()) if not idle]
        batch = concatenated([batch.rows(kept), more]) if kept else more
        replaced += lacking
    return replace(batch, figures={**batch.figures, "groups_replaced": replaced}) if method.resamples else batch


def drawn(method: Method, rows: Sequence[Row], step: int, first: int = 0) -> Batch:
    """The same batch with and without overlap: a sample's draws do not depend on its part, and no group is split."""
    some = {"whole_step": False} if first else {}
    if not getattr(method.reward, "overlaps", False):
        with phase("rollout"):
            batch = method.rollout(rows, step, first)
        with phase("reward"):
            return method.reward(batch, **some)
    return method.reward.of_parts(_sampled_in_parts(method, rows, step, first), **some)  # type: ignore[attr-defined]


def _sampled_in_parts(method: Method, rows: Sequence[Row], step: int, first: int) -> Iterator[Batch]:
    size = -(-len(rows) // PARTS)
    for start in range(0, len(rows), size):
        with phase("rollout"):
            part = method.rollout(rows[start : start + size], step, first + start)
        yield part


def train(run: Run, view: View) -> None:
    """Train until the last step, or until asked to stop: then the step is finished and saved.

    However it ends, a checkpoint that is being written is waited for, unless it was asked to end at once.
    """
    write_status(run.folder, "running", began=time.time(), ended=None, error=None)
    state: State = "failed"
    said: str | None = "it ended unexpectedly"
    try:
        watched = explained_memory(run.config), full_disk_errors(run.folder.path)
        with watched[0], watched[1], CurveIndex(run.folder, view.notice) as curves:
            _train(run, view, curves)
        state, said = "finished", None
    except Stopped as stopped:
        state, said = ("finished" if run.step == run.config.steps else "stopped"), None
        stopped.finished = run.folder.path if state == "finished" else None
        raise
    except KeyboardInterrupt:
        run.saver.abandon()
        run.hurried = True
        state, said = "stopped", f"stopped at once, in step {run.step + 1}"
        raise
    except UserError as error:
        said = str(error)
        raise
    except RuntimeError as error:
        if not ranks.is_connection_lost(error):
            raise
        lost = ranks.connection_lost(error)
        said = str(lost)
        raise lost from error
    finally:
        run.saver.settle()
        write_status(run.folder, state, ended=time.time(), error=said)


def one_step(run: Run) -> tuple[Batch, Metrics]:
    method = run.method
    batch = sampled_ahead(run) if run.ahead is not None else rewarded(method, run.prompts, run.step)
    if batch.rewards_B is not None:
        batch = run.check(batch)
    with phase("advantage"):
        batch = shared_out(batch)
        batch = method.advantage(batch) if run.correction is None else run.correction(batch, method.advantage)
    with phase("update"):
        try:
            return batch, batch_metrics(batch) | method.update(batch)
        except NonFinite as error:
            error.batch = batch
            raise


def sampled_ahead(run: Run) -> Batch:
    """The step's samples with their rewards, of a version of the weights that may be a few behind."""

    def make(step: int, weights: Any) -> Batch:
        run.policy.sampler.use(weights)
        batch = rewarded(run.method, run.prompts, step)
        return replace(batch, figures={**batch.figures, "version": weights.version})

    assert run.ahead is not None
    with phase("wait for samples"):
        batch = run.ahead.batch_of(run.step, make)
    return replace(batch, figures={**batch.figures, "staleness": run.step - batch.figures["version"]})


def _train(run: Run, view: View, curves: CurveIndex) -> None:
    config = run.config
    with StopRequest(view.notice) as stop:
        if run.step == 0 and config.eval_every and run.data.held_out:
            with phase("evaluate"):
                metrics = run.evaluate_and_keep()
            run.log(metrics)
            curves.add({"step": 0, **metrics})
        start_timing()
        while run.step < config.steps:
            began = time.perf_counter()
            try:
                batch, metrics = one_step(run)
            except NonFinite as error:
                batch, metrics = run.pass_over(error, view)
            if config.skip_nonfinite:
                metrics["steps_skipped"] = run.skipped

            run.step += 1
            run.policy.version = run.step
            last = run.step == config.steps
            seconds = time.perf_counter() - began
            with phase("keep samples"):
                run.keep(batch, "train")
            if config.eval_every and run.data.held_out and (last or run.step % config.eval_every == 0):
                with phase("evaluate"):
                    metrics |= run.evaluate_and_keep()
            run.log(metrics)
            curves.add({"step": run.step, **metrics})
            run.folder.append("timings.jsonl", {"step": run.step, "seconds": round(seconds, 4)})
            view.step(run, metrics, batch, seconds)
            run.explain(metrics, view)
            run.saver.check()
            asked = ranks.any_rank(stop.asked)
            if asked and run.ahead is not None:
                run.ahead.close(patience_s=60.0)  # the tokenizer is used by one thread at a time
            if last or asked or (config.save_every and run.step % config.save_every == 0):
                with phase("save"):
                    run.save(metrics)
            end_timed_step()
            if asked or last:
                ranks.run_on_rank0(run.saver.wait)
            if asked:
                resume = resume_command(run.folder.path, config.scale.shard)
                goes_on = "it was the last" if last else f"`{resume}` goes on"
                view.notice(f"saved after step {run.step}: {goes_on}")
                stop.leave(asked)
