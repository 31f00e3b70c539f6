"""Completions that are sampled while somebody already judges the first ones, by a thread of its own."""

from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Thread
from typing import Any, Literal

from vigneron.data.dataset import check_rows, read_rows
from vigneron.data.formats import with_prompts_and_answers
from vigneron.data.texts import prompt_text
from vigneron.errors import UserError
from vigneron.labels.items import Comparison, compared, different, digest
from vigneron.labels.session import Session

Sampler = Callable[[Any, int, int], list[str]]
"""`sampler(prompt, count, seed)`"""

TRIES = 4
NEW_TOKENS = 128


def prompts_of(path: Path) -> list[Any]:
    rows = with_prompts_and_answers(read_rows(path), f"'{path}'")
    check_rows(rows, ["prompt"], f"'{path}'")
    prompts = {prompt_text(row["prompt"]): row["prompt"] for row in rows}
    return list(prompts.values())


def load_sampler(name: str, *, temperature: float, max_new_tokens: int | None) -> Sampler:
    """Of a run's child as trained, or of a model."""
    if (Path(name).expanduser() / "config.yaml").is_file():
        from vigneron.api import load_run

        trained = load_run(name)
        options: dict[str, Any] = {"temperature": temperature, "max_new_tokens": max_new_tokens}
        return lambda prompt, count, seed: trained.sample([prompt] * count, seed=seed, **options)
    from vigneron.core.draws import Sampling
    from vigneron.data.texts import completion_text
    from vigneron.policy.load import load_policy
    from vigneron.rollout.on_policy import OnPolicy

    policy = load_policy(name)

    def sample(prompt: Any, count: int, seed: int) -> list[str]:
        rollout = OnPolicy(policy, Sampling(temperature=temperature), max_new_tokens or NEW_TOKENS, count, seed)
        return [completion_text(completion) for completion in rollout([{"prompt": prompt}]).samples.completions]

    return sample


def sample_for(
    session: Session,
    load: Callable[[], Sampler],
    prompts: Sequence[Any],
    *,
    kind: Literal["pairs", "best"],
    count: int,
) -> Thread:
    """Fills the session; what a session before has sampled is not sampled again."""
    have = {prompt_text(item.prompt) for item in session.offered() if isinstance(item, Comparison)}
    wanted = [prompt for prompt in prompts if prompt_text(prompt) not in have]
    session.more, session.note = bool(wanted), "loading the model …" if wanted else None

    def work() -> None:
        said, alike = None, 0
        try:
            sampler = load()
            for prompt in wanted:
                if session.full:
                    break
                session.note = "sampling …"
                items = sampled(sampler, prompt, kind=kind, count=count, seed=session.seed)
                alike += not items
                session.offer(items, keep=True)
            if alike:
                said = f"{alike} prompts got no two different completions: a higher --temperature may help"
        except UserError as error:
            said = str(error)
        except Exception as error:  # a thread's end: whoever waits at the page is told
            said = f"sampling failed: {type(error).__name__}: {error}"
        finally:
            session.more, session.note = False, said

    thread = Thread(target=work if wanted else lambda: None, name="sampling", daemon=True)
    thread.start()
    return thread


def sampled(
    sampler: Sampler, prompt: Any, *, kind: Literal["pairs", "best"], count: int, seed: int
) -> list[Comparison]:
    """Until there are as many different ones as wanted, within a few tries."""
    texts: list[str] = []
    for attempt in range(TRIES):
        key = int(digest(seed, prompt, attempt)[:8], 16)
        texts = different([*texts, *sampler(prompt, count, key)])[:count]
        if len(texts) == count:
            break
    given = texts if isinstance(prompt, str) else [[{"role": "assistant", "content": text}] for text in texts]
    return compared(prompt, given, kind, seed)
