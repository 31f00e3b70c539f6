"""A transformers model as a parent: greedy answers through our own sampling engine and the model's chat template."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vigneron.errors import UserError
from vigneron.files import sha256_of
from vigneron.policy.bundled import BUNDLED_MODELS, CONVERSION, bundled_weights
from vigneron.policy.load import check_model_name, load_policy, model_source
from vigneron.quiet import quiet_transformers
from vigneron.rollout.on_policy import OnPolicy
from vigneron.rollout.prompts import completion_text
from vigneron.sources.client import Failure, Message, Reply


class LocalModel:
    """Loaded when it is first asked, and freed with this object."""

    batch = 16
    workers = 1

    def __init__(self, name: str, source: str, max_tokens: int, device: str) -> None:
        self.source = source
        self._name, self._max_tokens, self._device = name, max_tokens, device
        self._rollout: OnPolicy | None = None

    def check(self) -> None:
        with _named_as_the_parents():
            check_model_name(self._name)

    def stop(self) -> None: ...

    def replies(self, conversations: Sequence[list[Message]], *, first: bool) -> list[Reply | Failure]:
        with _named_as_the_parents():
            if self._rollout is None:
                policy = load_policy(self._name, device=self._device)
                self._rollout = OnPolicy(policy, None, self._max_tokens, tokens_at_once=4096)
            rows: list[dict[str, Any]] = [{"prompt": messages} for messages in conversations]
            done = self._rollout(rows)
        texts, cut = [completion_text(c) for c in done.completions], done.truncated_B.tolist()
        tokens = [(span[0][0], span[-1][1] - span[0][0]) for span in done.spans]
        return [Reply(text, c, *used) for text, c, used in zip(texts, cut, tokens, strict=True)]


def weights_name(name: str) -> str:
    """What identifies a model's answers: every file of its folder, or a hub's commit. Loads no weights."""
    with _named_as_the_parents():
        check_model_name(name)
        if name in BUNDLED_MODELS:
            return f"{name}-{CONVERSION}@{sha256_of(bundled_weights(name))}"
        path = Path(name).expanduser()
        return f"sha256:{_folder_hash(path)}" if path.is_dir() else f"commit:{_hub_commit(name)}"


def _folder_hash(folder: Path) -> str:
    """Weights, tokenizer, chat template, end tokens: whatever lies at the folder's top."""
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.iterdir() if p.is_file() and not p.name.startswith(".")):
        digest.update(f"{path.name}\0{sha256_of(path)}\n".encode())
    return digest.hexdigest()


def _hub_commit(name: str) -> str:
    from transformers import AutoConfig

    try:
        with quiet_transformers():
            commit = getattr(AutoConfig.from_pretrained(model_source(name)), "_commit_hash", None)
    except Exception as error:  # the edge to the network and to somebody's files
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"model: cannot load '{name}': {first}") from error
    if commit is None:
        raise UserError(f"model: '{name}' has no commit to know it by: give its folder")
    return str(commit)


@contextmanager
def _named_as_the_parents() -> Iterator[None]:
    """The same errors as a child's; here they are the parent's."""
    try:
        yield
    except UserError as error:
        line = str(error)
        raise UserError(f"parent.{line}" if line.startswith("model") else f"parent.model: {line}") from error
