"""Samples completions in a background thread while the first ones are being labelled."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any, Literal

from vigneron.api import load_run
from vigneron.config import GameConfig
from vigneron.core.draws import Sampling
from vigneron.data.dataset import check_rows
from vigneron.data.formats import with_prompts_and_answers
from vigneron.data.prompts import Row, as_messages, prompt_text
from vigneron.data.sources import read_rows
from vigneron.errors import UserError
from vigneron.labels.items import Comparison, digest, distinct, make_comparisons, reference_answer
from vigneron.labels.session import Session
from vigneron.policy.load import load_policy
from vigneron.rollout.build import Rollout, sampling_rollout
from vigneron.rollout.conversations import CONVERSATION, ERROR
from vigneron.rollout.on_policy import OnPolicy
from vigneron.run_store.folder import RunFolder, run_path

Drawn = tuple[Row, list[Any]]
"""A prompt with its tools, and completions in TRL's format: texts, or messages."""
Sampler = Callable[[Row, int, int], Drawn]
"""`sampler(row, count, seed)`"""

TRIES = 4
NEW_TOKENS = 128
PROMPTS_TOGETHER = 64


def rows_of(path: Path) -> list[Row]:
    """The rows of a file, the last of each prompt."""
    rows = with_prompts_and_answers(read_rows(path), f"'{path}'")
    check_rows(rows, ["prompt"], f"'{path}'")
    return list({prompt_text(row["prompt"]): row for row in rows}.values())


def load_sampler(name: str, *, temperature: float, max_new_tokens: int | None) -> Sampler:
    """Samples from a run's trained model, or from a model by name. A run with an environment talks with it."""
    rollout_of = _rollouts(name, temperature, max_new_tokens)

    def sample(row: Row, count: int, seed: int) -> Drawn:
        (drawn,) = _drawn(rollout_of(count, seed), [row], count)
        return drawn

    return sample


def sample_groups(
    name: str, rows: Sequence[Row], *, count: int, temperature: float, max_new_tokens: int | None, seed: int
) -> list[Drawn]:
    """`count` completions of each prompt, from a run's trained model or a model by name, many prompts together."""
    rollout = _rollouts(name, temperature, max_new_tokens)(count, seed)
    parts = (rows[start : start + PROMPTS_TOGETHER] for start in range(0, len(rows), PROMPTS_TOGETHER))
    return [drawn for n, part in enumerate(parts) for drawn in _drawn(rollout, part, count, n * PROMPTS_TOGETHER)]


def refuse_environment(name: str, does: str) -> None:
    """Of a run whose samples are conversations."""
    if _is_run(name) and RunFolder.open(name).config().environment is not None:
        raise UserError(f"'{name}' was trained with an `environment`: its samples are conversations, and this {does}")


def _drawn(rollout: Rollout, rows: Sequence[Row], count: int, first: int = 0) -> list[Drawn]:
    samples = rollout(rows, first=first).samples
    talks = samples.extras.get(CONVERSATION, samples.completions)
    failed = samples.extras.get(ERROR, (None,) * len(samples))
    tools = samples.columns.get("tools", (None,) * len(samples))
    groups = []
    for at in range(0, len(samples), count):
        texts = [talks[n] for n in range(at, at + count) if failed[n] is None]
        groups.append(({"prompt": samples.prompts[at], "tools": tools[at]}, texts))
    return groups


def _rollouts(name: str, temperature: float, max_new_tokens: int | None) -> Callable[[int, int], Rollout]:
    """Makes a rollout of (samples of a prompt, seed), of a run's model as the run samples, or of a model by name."""
    if not _is_run(name):
        policy, sampling = load_policy(name, trained=False), Sampling(temperature=temperature)
        return lambda count, seed: OnPolicy(policy, sampling, max_new_tokens or NEW_TOKENS, count, seed)
    trained = load_run(name)
    if trained.config.method.trains == "scorer":
        raise UserError(f"'{name}' trained a reward model, which cannot generate text")
    if isinstance(trained.config.environment, GameConfig):
        raise UserError(f"'{name}' was trained by a game: label the samples that it has, `vigneron label {name}`")
    if trained.config.environment is None:
        tokens, stop = max_new_tokens or trained.config.max_new_tokens, tuple(trained.config.sampling.stop)
        sampling = Sampling(temperature=temperature)
        return lambda count, seed: OnPolicy(trained.policy, sampling, tokens, count, seed, stop=stop)
    config = trained.config.model_copy(
        update={
            "sampling": trained.config.sampling.model_copy(update={"temperature": temperature}),
            "max_new_tokens": max_new_tokens or trained.config.max_new_tokens,
        }
    )
    return lambda count, seed: sampling_rollout(config, trained.policy, group_size=count, seed=seed)


def _is_run(name: str) -> bool:
    return (run_path(name) / "config.yaml").is_file()


def sample_for(
    session: Session,
    load: Callable[[], Sampler],
    rows: Sequence[Row],
    *,
    kind: Literal["pairs", "best"],
    count: int,
) -> Thread:
    """Fills the session. Prompts that an earlier session sampled are not sampled again."""
    done = {prompt_text(item.prompt) for item in session.offered() if isinstance(item, Comparison)}
    wanted = [row for row in rows if done.isdisjoint(map(prompt_text, (row["prompt"], as_messages(row["prompt"]))))]
    session.more, session.note = bool(wanted), "loading the model …" if wanted else None

    def work() -> None:
        note, skipped = None, 0
        try:
            sampler = load()
            for row in wanted:
                if session.full:
                    break
                session.note = "sampling …"
                items = sample_comparisons(sampler, row, kind=kind, count=count, seed=session.seed)
                skipped += not items
                session.offer(items, keep=True)
            if skipped:
                note = f"{skipped} prompts got no two different completions: try a higher --temperature"
        except UserError as error:
            note = str(error)
        except Exception as error:  # top of the thread: shown on the page
            note = f"sampling failed: {type(error).__name__}: {error}"
        finally:
            session.more, session.note = False, note

    thread = Thread(target=work if wanted else lambda: None, name="sampling", daemon=True)
    thread.start()
    return thread


def sample_comparisons(
    sampler: Sampler, row: Row, *, kind: Literal["pairs", "best"], count: int, seed: int
) -> list[Comparison]:
    """Samples until there are `count` different completions, at most TRIES times."""
    prompt, completions = row, list[Any]()
    for attempt in range(TRIES):
        key = int(digest(seed, row["prompt"], attempt)[:8], 16)
        prompt, drawn = sampler(row, count, key)
        completions = distinct([*completions, *drawn])[:count]
        if len(completions) == count:
            break
    items = make_comparisons(prompt["prompt"], completions, kind, seed, prompt.get("tools"))
    return [replace(item, answer=reference_answer(row.get("answer"))) for item in items]
