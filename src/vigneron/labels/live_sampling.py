"""Samples completions in a background thread while the first ones are being labelled."""

from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Thread
from typing import Any, Literal

from vigneron.data.dataset import check_rows, read_rows
from vigneron.data.formats import with_prompts_and_answers
from vigneron.data.prompts import prompt_text
from vigneron.errors import UserError
from vigneron.labels.items import Comparison, digest, distinct, in_format_of, make_comparisons
from vigneron.labels.session import Session

Sampler = Callable[[Any, int, int], list[str]]
"""`sampler(prompt, count, seed)` returns completions."""

TRIES = 4
NEW_TOKENS = 128
PROMPTS_TOGETHER = 64


def prompts_of(path: Path) -> list[Any]:
    rows = with_prompts_and_answers(read_rows(path), f"'{path}'")
    check_rows(rows, ["prompt"], f"'{path}'")
    prompts = {prompt_text(row["prompt"]): row["prompt"] for row in rows}
    return list(prompts.values())


def load_sampler(name: str, *, temperature: float, max_new_tokens: int | None) -> Sampler:
    """Samples from a run's trained model, or from a model by name."""
    if (Path(name).expanduser() / "config.yaml").is_file():
        from vigneron.api import load_run

        trained = load_run(name)
        options: dict[str, Any] = {"temperature": temperature, "max_new_tokens": max_new_tokens}
        return lambda prompt, count, seed: trained.sample([prompt] * count, seed=seed, **options)
    from vigneron.core.draws import Sampling
    from vigneron.data.prompts import completion_text
    from vigneron.policy.load import load_policy
    from vigneron.rollout.on_policy import OnPolicy

    policy = load_policy(name)

    def sample(prompt: Any, count: int, seed: int) -> list[str]:
        rollout = OnPolicy(policy, Sampling(temperature=temperature), max_new_tokens or NEW_TOKENS, count, seed)
        return [completion_text(completion) for completion in rollout([{"prompt": prompt}]).samples.completions]

    return sample


def sample_groups(
    name: str, prompts: Sequence[Any], *, count: int, temperature: float, max_new_tokens: int | None, seed: int
) -> list[list[str]]:
    """`count` completions of each prompt, from a run's trained model or a model by name, many prompts together."""
    from vigneron.core.draws import Sampling
    from vigneron.data.prompts import completion_text
    from vigneron.policy.load import load_policy
    from vigneron.rollout.on_policy import OnPolicy

    tokens = max_new_tokens
    if (Path(name).expanduser() / "config.yaml").is_file():
        from vigneron.api import load_run

        trained = load_run(name)
        policy, tokens = trained.policy, tokens or trained.config.max_new_tokens
    else:
        policy = load_policy(name)
    rollout = OnPolicy(policy, Sampling(temperature=temperature), tokens or NEW_TOKENS, count, seed)
    groups: list[list[str]] = []
    for start in range(0, len(prompts), PROMPTS_TOGETHER):
        rows = [{"prompt": prompt} for prompt in prompts[start : start + PROMPTS_TOGETHER]]
        texts = [completion_text(text) for text in rollout(rows, first=start).samples.completions]
        groups += [texts[at : at + count] for at in range(0, len(texts), count)]
    return groups


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
