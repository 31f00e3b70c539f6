"""Samples completions in a background thread while the first ones are being labelled."""

from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Thread
from typing import Any, Literal

from vigneron.api import load_run
from vigneron.core.draws import Sampling
from vigneron.data.dataset import check_rows
from vigneron.data.formats import with_prompts_and_answers
from vigneron.data.prompts import Row, completion_text, prompt_text
from vigneron.data.sources import read_rows
from vigneron.errors import UserError
from vigneron.labels.items import Comparison, digest, distinct, in_format_of, make_comparisons
from vigneron.labels.session import Session
from vigneron.policy.load import load_policy
from vigneron.policy.model import Policy
from vigneron.rollout.on_policy import OnPolicy

Sampler = Callable[[Any, int, int], list[str]]
"""`sampler(prompt, count, seed)` returns completions."""

TRIES = 4
NEW_TOKENS = 128
PROMPTS_TOGETHER = 64


def prompts_of(path: Path) -> list[Any]:
    return [row["prompt"] for row in rows_of(path)]


def rows_of(path: Path) -> list[Row]:
    """The rows of a file, the last of each prompt."""
    rows = with_prompts_and_answers(read_rows(path), f"'{path}'")
    check_rows(rows, ["prompt"], f"'{path}'")
    return list({prompt_text(row["prompt"]): row for row in rows}.values())


def load_sampler(name: str, *, temperature: float, max_new_tokens: int | None) -> Sampler:
    """Samples from a run's trained model, or from a model by name."""
    policy, tokens, stop = _policy_of(name)

    def sample(prompt: Any, count: int, seed: int) -> list[str]:
        sampling = Sampling(temperature=temperature)
        rollout = OnPolicy(policy, sampling, max_new_tokens or tokens, count, seed, stop=stop)
        return _texts(rollout, [prompt])

    return sample


def sample_groups(
    name: str, prompts: Sequence[Any], *, count: int, temperature: float, max_new_tokens: int | None, seed: int
) -> list[list[str]]:
    """`count` completions of each prompt, from a run's trained model or a model by name, many prompts together."""
    policy, tokens, stop = _policy_of(name)
    rollout = OnPolicy(policy, Sampling(temperature=temperature), max_new_tokens or tokens, count, seed, stop=stop)
    groups: list[list[str]] = []
    for start in range(0, len(prompts), PROMPTS_TOGETHER):
        texts = _texts(rollout, prompts[start : start + PROMPTS_TOGETHER], start)
        groups += [texts[at : at + count] for at in range(0, len(texts), count)]
    return groups


def _texts(rollout: OnPolicy, prompts: Sequence[Any], first: int = 0) -> list[str]:
    batch = rollout([{"prompt": prompt} for prompt in prompts], first=first)
    return [completion_text(completion) for completion in batch.samples.completions]


def _policy_of(name: str) -> tuple[Policy, int, tuple[str, ...]]:
    """The model of a run or by name, the length limit of its completions, and its stop strings."""
    if not (Path(name).expanduser() / "config.yaml").is_file():
        return load_policy(name, trained=False), NEW_TOKENS, ()
    trained = load_run(name)
    if trained.config.method.trains == "scorer":
        raise UserError(f"'{name}' trained a reward model, which cannot generate text")
    return trained.policy, trained.config.max_new_tokens, tuple(trained.config.sampling.stop)


def sample_for(
    session: Session,
    load: Callable[[], Sampler],
    prompts: Sequence[Any],
    *,
    kind: Literal["pairs", "best"],
    count: int,
) -> Thread:
    """Fills the session. Prompts that an earlier session sampled are not sampled again."""
    done = {prompt_text(item.prompt) for item in session.offered() if isinstance(item, Comparison)}
    wanted = [prompt for prompt in prompts if prompt_text(prompt) not in done]
    session.more, session.note = bool(wanted), "loading the model …" if wanted else None

    def work() -> None:
        note, skipped = None, 0
        try:
            sampler = load()
            for prompt in wanted:
                if session.full:
                    break
                session.note = "sampling …"
                items = sample_comparisons(sampler, prompt, kind=kind, count=count, seed=session.seed)
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
    sampler: Sampler, prompt: Any, *, kind: Literal["pairs", "best"], count: int, seed: int
) -> list[Comparison]:
    """Samples until there are `count` different completions, at most TRIES times."""
    texts: list[str] = []
    for attempt in range(TRIES):
        key = int(digest(seed, prompt, attempt)[:8], 16)
        texts = distinct([*texts, *sampler(prompt, count, key)])[:count]
        if len(texts) == count:
            break
    return make_comparisons(prompt, in_format_of(prompt, texts), kind, seed)
