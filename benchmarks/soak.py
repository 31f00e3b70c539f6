"""`python -m benchmarks.soak`: runs of every method, with LoRA and without, killed at random and resumed many times.

SIGKILL comes at the start, in a step, or while a checkpoint is written. A kill may lose only the steps since the last
checkpoint, and the final state must be bit-identical to that of an uninterrupted run. Processes are forked from one
that has imported everything.
"""

import argparse
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vigneron.policy.bundled import quiet_transformers
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.status import status_of
from vigneron.training.checkpoint.read import checkpoint_step, checkpoints, fault_of

TESTS = Path(__file__).parent.parent / "tests"
SAVE_EVERY = 3
# While a checkpoint is written, training continues until the next one is due.
MOST_LOST = 2 * SAVE_EVERY
# Steps after the last place of a kill: a tiny run makes many of them before the signal arrives.
SPARE = 30
WHOLE_MODELS = ("reward_model", "preference_model", "score_model", "process_model")
"""Methods that refuse LoRA."""
WHERE = {"start": "soon after its start", "step": "in a step", "save": "after a save"}
LONGEST_S = {"start": 0.3, "step": 0.05, "save": 0.03}


@dataclass(frozen=True)
class Kill:
    where: str
    reached: int
    """The last logged step."""
    saved: int
    """The newest complete checkpoint afterwards."""

    @property
    def lost(self) -> int:
        return self.reached - self.saved


class Paced:
    """A view that reports where the run is and can kill it there: at a step, or some time after a save began."""

    def __init__(self, folder: Path, mode: str, at: int, delay: float) -> None:
        self.folder, self.mode, self.at, self.delay = folder, mode, at, delay

    def notice(self, text: str) -> None: ...

    def step(self, run: Any, *_: Any) -> None:
        if self.mode == "save" and run.step >= self.at and run.step % SAVE_EVERY == 0:
            threading.Thread(target=self._die_in_save, daemon=True).start()
        if self.mode == "step" and run.step >= self.at:
            threading.Thread(target=self.die, daemon=True).start()

    def _die_in_save(self) -> None:
        while not list((self.folder / "checkpoints").glob(".step-*.draft")):
            time.sleep(0.0002)
        self.die()

    def die(self) -> None:
        time.sleep(self.delay)
        os.kill(os.getpid(), signal.SIGKILL)


def train(recipe: str, runs: str, name: str, mode: str = "", at: int = 0, delay: float = 0.0) -> None:
    from vigneron import api

    folder = Path(runs) / name
    view = Paced(folder, mode, at, delay)
    if mode == "start":
        threading.Thread(target=view.die, daemon=True).start()
    if (folder / "config.yaml").is_file():
        api.resume(folder, view=view)
    else:
        api.train(recipe, name=name, runs=runs, view=view)


def ended(*arguments: Any) -> int:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["vigneron.api", "peft", "support.fault_runs"])
    process = context.Process(target=train, args=arguments, daemon=True)
    process.start()
    process.join(300)
    if process.exitcode is None:
        process.kill()
        raise SystemExit("a run hangs")
    return process.exitcode


def killed_once(recipe: Path, runs: Path, draws: random.Random, *, steps: int, left: int) -> Kill:
    """The next kill, placed so that steps are left for the remaining kills."""
    folder = runs / "killed"
    done = newest_step(folder)
    last = steps - SPARE
    ahead = max(1, round((last - done) / max(1, left)))
    mode = draws.choice(tuple(LONGEST_S)) if (folder / "config.yaml").is_file() else "step"
    at = min(last, done + draws.randint(1, max(2, 2 * ahead)))
    code = ended(str(recipe), str(runs), "killed", mode, at, draws.uniform(0, LONGEST_S[mode]))
    if code != -signal.SIGKILL:
        raise SystemExit(f"the run exited with {code} before it was killed")
    if status_of(folder).state != "killed":
        raise SystemExit(f"the run was killed, and its state is '{status_of(folder).state}'")
    damaged = [path.name for path in checkpoints(folder / "checkpoints") if fault_of(path) is not None]
    if damaged:
        raise SystemExit(f"a kill left damaged checkpoints: {damaged}")
    records = RunFolder.open(folder).metrics()
    drafts = list((folder / "checkpoints").glob(".step-*.draft"))
    return Kill("in a save" if drafts else WHERE[mode], records[-1]["step"] if records else 0, newest_step(folder))


def newest_step(folder: Path) -> int:
    saved = checkpoints(folder / "checkpoints")
    return checkpoint_step(saved[-1]) if saved else 0


def soak(method: str, lora: bool, kills: int, seed: int, place: Path) -> list[Kill]:
    from support import fault_runs
    from support.tiny_models import byte_tokenizer, tiny_model
    from support.tiny_runs import final_state

    model = place / "model"
    with quiet_transformers():
        tiny_model("llama").save_pretrained(model)
    byte_tokenizer().save_pretrained(model)
    steps = kills * 3 + SPARE
    changes = {"steps": steps, "save_every": SAVE_EVERY, "eval_every": 10}
    recipe = fault_runs.write_recipe(place / "recipe", model, method, lora=lora, **changes)
    if ended(str(recipe), str(place), "whole"):
        raise SystemExit("the uninterrupted run failed")
    draws = random.Random(f"{method} {lora} {seed}")
    done = []
    for number in range(kills):
        kill = killed_once(recipe, place, draws, steps=steps, left=kills - number)
        done.append(kill)
        if kill.lost > MOST_LOST:
            raise SystemExit(f"a kill lost {kill.lost} steps, with a checkpoint every {SAVE_EVERY}")
    if ended(str(recipe), str(place), "killed"):
        raise SystemExit("the run could not be finished")
    if final_state(place / "killed") != final_state(place / "whole"):
        raise SystemExit("the killed and resumed run differs from the uninterrupted run")
    return done


def main() -> None:
    from support.fault_runs import METHODS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=5, help="kills of each run")
    parser.add_argument("--method", action="append", choices=METHODS, help="only this one; may be repeated")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    began = time.monotonic()
    done: list[Kill] = []
    cases = [
        (method, lora)
        for method in given.method or METHODS
        for lora in ((False,) if method in WHOLE_MODELS else (False, True))
    ]
    for method, lora in cases:
        name = f"{method}, LoRA" if lora else method
        with tempfile.TemporaryDirectory() as place:
            try:
                kills = soak(method, lora, given.kills, given.seed, Path(place))
            except SystemExit as error:
                raise SystemExit(f"{name}: {error}") from None
        done += kills
        print(f"{name:32} {len(kills)} kills, at most {max(kill.lost for kill in kills)} steps repeated", flush=True)
    where = Counter(kill.where for kill in done)
    print(f"\n| kills of {len(cases)} runs | {len(done)} |\n|---|---|")
    for place, count in sorted(where.items()):
        print(f"| {place} | {count} |")
    most = max(kill.lost for kill in done)
    print(f"| most steps repeated after a kill (a checkpoint every {SAVE_EVERY}) | {most} |")
    print("| damaged checkpoints | 0 |\n| the end equals the uninterrupted run, bit for bit | yes |")
    print(f"| seconds | {time.monotonic() - began:.0f} |")


sys.path.insert(0, str(TESTS))

if __name__ == "__main__":
    main()
