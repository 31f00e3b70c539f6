"""The loop. Every method is these four lines with the slots filled differently."""

import time

from vigneron.errors import UserError
from vigneron.folder.status import State, write_status
from vigneron.timing import first_lap, next_lap, phase
from vigneron.training.memory import explained_memory
from vigneron.training.metrics import batch_metrics
from vigneron.training.overlap import rewarded
from vigneron.training.run import Run
from vigneron.training.samples import samples_of
from vigneron.training.signals import Stopped, StopRequest
from vigneron.training.view import View


def train(run: Run, view: View) -> None:
    """Train until the last step, or until asked to stop: then the step is finished and saved."""
    write_status(run.folder, "running", began=time.time(), ended=None, error=None)
    state: State = "failed"
    said: str | None = "it ended unexpectedly"
    try:
        with explained_memory(run.config):
            _train(run, view)
        state, said = "finished", None
    except (Stopped, KeyboardInterrupt):
        state, said = "stopped", None
        raise
    except UserError as error:
        said = str(error)
        raise
    finally:
        write_status(run.folder, state, ended=time.time(), error=said)


def _train(run: Run, view: View) -> None:
    config, method = run.config, run.method
    with StopRequest(view.notice) as stop:
        if run.step == 0 and config.eval_every and run.data.held_out:
            with phase("evaluate"):
                run.log(run.evaluate_and_keep())
        first_lap()
        while run.step < config.steps:
            began = time.perf_counter()

            batch = rewarded(method, run.prompts, run.step)
            if batch.rewards_B is not None:
                batch = run.check(batch)
            with phase("advantage"):
                batch = method.advantage(batch)
            with phase("update"):
                metrics = batch_metrics(batch) | method.update(batch)

            run.step += 1
            last = run.step == config.steps
            seconds = time.perf_counter() - began
            with phase("keep samples"):
                run.samples.add(samples_of(batch, run.step, "train"))
            if config.eval_every and run.data.held_out and (last or run.step % config.eval_every == 0):
                with phase("evaluate"):
                    metrics |= run.evaluate_and_keep()
            run.log(metrics)
            run.folder.append("timings.jsonl", {"step": run.step, "seconds": round(seconds, 4)})
            view.step(run, metrics, batch, seconds)
            run.explain(metrics, view)
            if last or stop.asked or (config.save_every and run.step % config.save_every == 0):
                with phase("save"):
                    run.save()
            next_lap()
            if stop.asked:
                goes_on = "it was the last" if last else f"`vigneron resume {run.folder.path}` goes on"
                view.notice(f"saved after step {run.step}: {goes_on}")
                stop.leave()
