"""The loop. Every method is these four lines with the slots filled differently."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from vigneron.batch import Batch
from vigneron.data.prompts import Row
from vigneron.distributed import ranks
from vigneron.errors import NonFinite, UserError
from vigneron.files import full_disk_errors
from vigneron.policy.rank_batches import assign_ranks
from vigneron.run_store.code_version import code_version
from vigneron.run_store.curves import CurveIndex
from vigneron.run_store.outcome import outcome_json, outcome_of
from vigneron.run_store.speed import speed_of
from vigneron.run_store.status import State, status_of, write_status
from vigneron.timing import end_timed_step, phase, start_timing, take_start
from vigneron.training.callbacks import View, show_evaluation
from vigneron.training.checkpoint.read import checkpoint_step, checkpoints
from vigneron.training.conversation_alerts import conversation_warnings
from vigneron.training.garbage import unwatched_objects
from vigneron.training.method import Metrics
from vigneron.training.metrics import batch_metrics
from vigneron.training.out_of_memory import explained_memory
from vigneron.training.peak_memory import GpuUse, PeakMemory, memory_now
from vigneron.training.run import Run
from vigneron.training.signals import Stopped, StopRequest


def one_step(run: Run) -> tuple[Batch, Metrics]:
    """One turn of the loop. Async rollouts, overlapped rewards and importance weights wrap the slots
    (`wrap_method` in training/setup/build.py)."""
    method = run.method
    with run.saved_if_it_fails():
        rows = run.curriculum.at(run.step)  # may measure losses of all rows, with their rewards
    with run.saved_if_it_fails():
        with phase("rollout"):
            batch = method.rollout(rows, run.step)  # y ~ π(·|x), or a demonstration, or a preference pair
        with phase("reward"):
            batch = check_and_observe(run, rows, method.reward(batch))  # R(x, y)
    with phase("advantage"):
        batch = method.advantage(assign_ranks(batch))  # A
    with phase("update"):
        try:
            return batch, batch_metrics(batch) | method.update(batch)  # θ ← θ'
        except NonFinite as error:
            error.batch = batch
            raise


def check_and_observe(run: Run, rows: Sequence[Row], batch: Batch) -> Batch:
    """Adds the checker's verdicts and the curriculum's metrics; the curriculum observes the rewards."""
    batch = batch.with_metrics(run.curriculum.describe(rows))
    if batch.signals.rewards_B is None:
        return batch
    batch = run.check(batch)
    return batch.with_metrics(run.curriculum.observe(batch))


def evaluation_is_due(run: Run) -> bool:
    last = run.step == run.config.steps
    return bool(run.config.eval_every and run.data.held_out and (last or run.step % run.config.eval_every == 0))


def evaluated(run: Run, metrics: Metrics) -> Metrics:
    """Metrics of the held-out part after a step. If that fails, the step is logged without them, and saved; a resume
    evaluates it again."""
    with run.saved_if_it_fails():
        try:
            with phase("evaluate"):
                return run.evaluate()
        except Exception:
            run.output.log(run.step, metrics)
            raise


def train(run: Run, view: View) -> None:
    """Train until the last step, or until a stop is requested: then the step is finished and saved.

    However it ends, a checkpoint that is being written is waited for, unless it is to stop immediately.
    """
    folder, saver = run.folder, run.output.saver
    code = code_version()
    write_status(folder, "running", began=time.time(), ended=None, error=None, outcome=None, code=code)
    state: State = "failed"
    reason: str | None = "it ended unexpectedly"
    try:
        memory, disk = explained_memory(run.config), full_disk_errors(folder.path)
        objects = unwatched_objects(collect=run.policy.device.type == "cuda")
        with memory, disk, objects as after_step, CurveIndex(folder, view.notice) as curves:
            _train(run, view, curves, after_step)
        state, reason = "finished", None
    except Stopped as stopped:
        state, reason = ("finished" if run.step == run.config.steps else "stopped"), None
        stopped.finished = folder.path if state == "finished" else None
        raise
    except KeyboardInterrupt:
        saver.abandon()
        run.output.stop_immediately = True
        state, reason = "stopped", f"stopped immediately, in step {run.step + 1}"
        raise
    except UserError as error:
        reason = str(error)
        if saved := checkpoints(folder.path / "checkpoints"):
            view.notice(f"saved after step {checkpoint_step(saved[-1])}: resume with `{run.resume_command}`")
        raise
    except RuntimeError as error:
        if not ranks.is_connection_lost(error):
            raise
        lost = ranks.connection_lost(error)
        reason = str(lost)
        raise lost from error
    finally:
        saver.wait_ignoring_errors()
        write_status(folder, state, ended=time.time(), error=reason)
        if state in ("finished", "stopped") and not run.output.stop_immediately:
            with suppress(UserError, OSError):  # files that cannot be read: the run has ended as it has
                write_status(folder, state, outcome=outcome_json(outcome_of(status_of(folder.path))))


def _train(run: Run, view: View, curves: CurveIndex, after_step: Callable[[], None]) -> None:
    config, output = run.config, run.output
    with StopRequest(view.notice) as stop:
        if evaluation_is_due(run) and not output.is_evaluated(run.step):  # step 0, or one whose evaluation failed
            with phase("evaluate"):
                metrics = run.evaluate()
            if run.step:  # before the log says that it is evaluated
                run.save(metrics)
                ranks.run_on_rank0(output.saver.wait)
            output.log_evaluation(run.step, metrics)
            curves.add({"step": run.step, **metrics})
            show_evaluation(view, run, metrics)
        start_timing()
        peaks, use = PeakMemory(run.policy.device), GpuUse(run.policy.device)
        while run.step < config.steps:
            began = time.perf_counter()
            output.begin_step(run.step + 1)
            try:
                batch, metrics = one_step(run)
            except NonFinite as error:
                batch, metrics = run.skip_step(error, view)
            if config.skip_nonfinite:
                metrics["steps_skipped"] = run.skipped

            run.step += 1
            run.policy.version = run.step
            last = run.step == config.steps
            seconds = time.perf_counter() - began
            use_of_step = use.now()  # before evaluating
            with phase("keep samples"):
                output.keep_samples(batch, run.step, "train")
            if evaluation_is_due(run):
                metrics |= evaluated(run, metrics)
            output.log(run.step, metrics)
            record: dict[str, Any] = {
                "step": run.step,
                "seconds": round(seconds, 4),
                "tokens": sum(batch.samples.widths),
            }
            record |= {**_start_seconds(), **memory_now(run.policy.device), **peaks.risen(), **use_of_step}
            run.folder.append("timings.jsonl", record)
            curves.add({"step": run.step, **metrics, **speed_of(record)})
            view.step(run, metrics, batch, seconds)
            output.alert(run.step, metrics, run.warnings(metrics), view, conversation_warnings(batch, config))
            output.saver.check()
            stopping = ranks.any_rank(stop.signal_number)
            if stopping and run.async_rollout is not None:
                run.async_rollout.close(timeout_s=60.0)  # the tokenizer is used by one thread at a time
            if last or stopping or (config.save_every and run.step % config.save_every == 0):
                with phase("save"):
                    run.save(metrics)
            end_timed_step()
            after_step()
            if stopping or last:
                ranks.run_on_rank0(output.saver.wait)
            if stopping:
                how = "it was the last step" if last else f"resume with `{run.resume_command}`"
                view.notice(f"saved after step {run.step}: {how}")
                stop.leave(stopping)


def _start_seconds() -> dict[str, dict[str, float]]:
    """With the first step of a process: the seconds until its end, by phase."""
    start = take_start()
    return {} if start is None else {"start": {name: round(value, 2) for name, value in start.items()}}
