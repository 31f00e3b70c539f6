"""Cases of damaged folders: checkpoints, whole runs, and models."""

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from tempfile import mkdtemp
from typing import Any

from benchmarks.fuzzing.kinds import Case
from benchmarks.fuzzing.mutations import changed_bytes, changed_json, changed_safetensors, changed_text, garbage
from benchmarks.fuzzing.tiny import make_runs
from vigneron.files import sha256_of
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.samples import SampleStore
from vigneron.run_store.status import last_records, status_of

TRICKS = ("../../outside", "/proc/version", "/dev/zero", "state/../../../x", "", ".", "a\x00b", "x" * 5000, "state")


@cache
def runs() -> list[Path]:
    """Created once per process, and removed at its end."""
    import atexit

    place = Path(mkdtemp(prefix="vigneron-fuzz-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return make_runs(place)


def damaged(path: Path, random: Random) -> None:
    """Mutate one file's content, delete it, or replace it by something that is not a file."""
    kind = random.randrange(12)
    if kind == 0:
        path.unlink()
    elif kind == 1:
        path.unlink()
        path.mkdir()
    elif kind == 2:
        path.unlink()
        path.symlink_to(random.choice((_precious(path), "/dev/zero", "nowhere", path.name)))
    else:
        content = path.read_bytes()
        changes: dict[str, Callable[[bytes, Random], bytes]] = {
            ".json": changed_json,
            ".safetensors": changed_safetensors,
            ".jsonl": _changed_lines,
            ".yaml": _changed_lines,
        }
        path.write_bytes(changes.get(path.suffix, changed_bytes)(content, random))


def _precious(path: Path) -> Path:
    """A file of this case outside its folder."""
    folder = next(parent for parent in path.parents if parent.name == "case")
    return folder.parent / "precious"


def _changed_lines(content: bytes, random: Random) -> bytes:
    if random.random() < 0.3:
        return changed_bytes(content, random)
    lines = content.splitlines(keepends=True)
    if lines and random.random() < 0.6:
        at = random.randrange(len(lines))
        lines[at] = changed_json(lines[at], random) + b"\n"
        return b"".join(lines)
    return changed_text(content.decode(), random).encode("utf-8", "surrogatepass")


def refitted(checkpoint: Path) -> None:
    """Write a manifest that matches the damaged files, as an attacker would."""
    files = [p for p in checkpoint.rglob("*") if p.is_file() and not p.is_symlink() and p.name != "manifest.json"]
    hashes = {str(p.relative_to(checkpoint)): sha256_of(p) for p in files}
    manifest = checkpoint / "manifest.json"
    if not manifest.is_dir():
        manifest.unlink(missing_ok=True)
        manifest.write_text(json.dumps(hashes), encoding="utf-8")


def damage_checkpoint(checkpoint: Path, random: Random) -> None:
    files = sorted(p for p in checkpoint.rglob("*") if p.is_file())
    heavy = [p for p in files if p.parent.name == "state" or p.suffix == ".safetensors" or p.name == "manifest.json"]
    for path in {random.choice(random.choice((files, heavy, heavy))) for _ in range(random.choice((1, 1, 2)))}:
        damaged(path, random)
    kind = random.randrange(4)
    if kind < 2:
        refitted(checkpoint)
    elif kind == 2 and not (checkpoint / "manifest.json").is_dir():
        refitted(checkpoint)
        tricky = json.loads((checkpoint / "manifest.json").read_text(encoding="utf-8"))
        tricky[random.choice(TRICKS)] = random.choice(("0" * 64, None, 5, [], next(iter(tricky.values()), "")))
        (checkpoint / "manifest.json").write_text(json.dumps(tricky), encoding="utf-8")


@cache
def loaded(run: Path) -> tuple[Any, dict[str, str]]:
    """The run's policy and its base, loaded once and overwritten by every case."""
    from vigneron.policy.from_config import policy_from_config
    from vigneron.training.checkpoint.read import weights_identity

    config = RunFolder.open(run).config()
    policy = policy_from_config(config)
    return policy, weights_identity(config.model.name, policy)


def checkpoint_case(random: Random, folder: Path) -> Case:
    """The state of a checkpoint, read as `resume` does."""
    run = random.choice(runs())
    policy, base = loaded(run)
    checkpoint = folder / "step-2"
    shutil.copytree(run / "checkpoints" / "step-2", checkpoint)
    damage_checkpoint(checkpoint, random)

    def case() -> None:
        from vigneron.training.checkpoint.read import check_manifest, checkpoints, load_checkpoint

        for path in checkpoints(folder):
            check_manifest(path, weights_only=True)
            load_checkpoint(path, policy, base=base, places={})

    return case


def run_case(random: Random, folder: Path) -> Case:
    """Read a run's other files as the list of runs, the report and `resume` do."""
    run = folder / "run"
    shutil.copytree(random.choice(runs()), run, ignore=shutil.ignore_patterns("checkpoints"))
    files = sorted(p for p in run.rglob("*") if p.is_file() and p.name != ".lock")
    for path in {random.choice(files) for _ in range(random.choice((1, 1, 2)))}:
        damaged(path, random)
    if random.random() < 0.1:
        extra = run / random.choice(("samples.sqlite-wal", "samples.sqlite-shm", ".lock"))
        if not extra.is_symlink():
            extra.write_bytes(garbage(random))
    step = random.choice((-1, 0, 1))

    def case() -> None:
        status_of(run)
        last_records(run / "timings.jsonl")
        found = RunFolder.open(run)
        found.config()
        found.metrics()
        found.data(found.config())
        _use_samples(run)
        found.forget_after(step)

    return case


def _use_samples(run: Path) -> None:
    if not (run / "samples.sqlite").is_file():
        return
    for read_only in (True, False):
        store = SampleStore(run, read_only=read_only)
        try:
            for at in store.steps("eval"):
                store.page(step=at, kind="eval")
            store.judged_counts()
            if not read_only:
                store.forget_after(0)
        finally:
            store.close()


class _Nobody:
    def notice(self, text: str) -> None: ...
    def step(self, *_: Any) -> None: ...


def resume_case(random: Random, folder: Path) -> Case:
    """`vigneron resume` without the training steps: reads everything in the folder."""
    run = folder / "run"
    shutil.copytree(random.choice(runs()), run)
    last = run / "checkpoints" / "step-2"
    if random.random() < 0.6:
        damage_checkpoint(last, random)
    else:
        files = sorted(p for p in run.glob("*") if p.is_file() and p.name != ".lock") + sorted((run / "data").glob("*"))
        damaged(random.choice(files), random)

    def case() -> None:
        from vigneron.methods import build_method
        from vigneron.training.setup.resume import resume_run

        found = RunFolder.open(run)
        try:
            going_on = resume_run(found, build_method, view=_Nobody())
            going_on.close()
        finally:
            found.unlock()

    return case


def model_case(random: Random, folder: Path) -> Case:
    """Load a model folder of unknown origin."""
    model = folder / "model"
    shutil.copytree(runs()[0].parent.parent / "model", model)
    files = sorted(p for p in model.iterdir() if p.is_file())
    for path in {random.choice(files) for _ in range(random.choice((1, 1, 2)))}:
        damaged(path, random)
    if random.random() < 0.1 and (model / "model.safetensors").is_file():
        (model / "model.safetensors").rename(model / "pytorch_model.bin")

    def case() -> None:
        from vigneron.data.prompts import prompts_token_ids
        from vigneron.policy.load import load_policy

        policy = load_policy(str(model), device="cpu")
        prompts_token_ids(policy.tokenizer, ["hello", [{"role": "user", "content": "hello"}]])

    return case
