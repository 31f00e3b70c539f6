"""A transformers model that answers, as a parent or a judge: our own sampling engine and the model's chat template."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from vigneron.core.draws import Sampling
from vigneron.data.prompts import prompts_token_ids, texts_of
from vigneron.errors import UserError, first_line
from vigneron.files import sha256_of, user_path
from vigneron.policy.bundled import BUNDLED_MODELS, CONVERSION, bundled_weights, quiet_transformers
from vigneron.policy.load import check_model_name, load_policy, model_source
from vigneron.policy.model import Policy
from vigneron.rollout.engine.request import Completions
from vigneron.rollout.engine.sample import sample
from vigneron.sources.client import Failure, Message, Reply

# Prompt tokens in one pass.
TOKENS_AT_ONCE = {"cpu": 4096, "mps": 4096, "cuda": 65536}


class LocalModel:
    """Loaded when it is first asked, and freed with this object. `where` is the config's key that errors name."""

    batch = 16
    workers = 1

    def __init__(self, name: str, source: str, max_tokens: int, device: str, where: str = "parent") -> None:
        self.source = source
        self._name, self._max_tokens, self._device, self._where = name, max_tokens, device, where
        self._policy: Policy | None = None

    def check(self) -> None:
        with _named(self._where):
            check_model_name(self._name)

    def stop(self) -> None: ...

    @property
    def policy(self) -> Policy:
        if self._policy is None:
            with _named(self._where):
                self._policy = load_policy(self._name, device=self._device)
        return self._policy

    def replies(self, conversations: Sequence[list[Message]], *, first: bool) -> list[Reply | Failure]:
        """Greedily. A conversation that is too long for the model is an error."""
        return [*self.written(self.prompts(conversations))]

    def prompts(self, conversations: Sequence[list[Message]]) -> list[tuple[int, ...]]:
        """Token ids up to where the answer begins."""
        policy = self.policy
        with _named(self._where):
            return prompts_token_ids(policy.tokenizer, conversations)

    def written(
        self,
        prompt_ids: Sequence[Sequence[int]],
        *,
        sampling: Sampling | None = None,
        draws: Sequence[int] | None = None,
        pieces: bool = False,
    ) -> list[Reply]:
        """Greedily without `sampling`, else with draws keyed by `draws`. `pieces`: with the tokens' log-probs."""
        with _named(self._where):
            done = self.sampled(prompt_ids, self._max_tokens, sampling=sampling, draws=draws)
        tokenizer, lengths = self.policy.tokenizer, done.lengths_B.tolist()
        ids = [row[:length] for row, length in zip(done.ids_BT.tolist(), lengths, strict=True)]
        texts, cut = texts_of(tokenizer, ids), done.truncated_B.tolist()
        found = [
            Reply(text, c, len(prompt), length)
            for text, c, prompt, length in zip(texts, cut, prompt_ids, lengths, strict=True)
        ]
        if not pieces:
            return found
        logprobs = done.behaviour_BT.tolist()
        return [
            replace(reply, pieces=tuple(zip(_pieces(tokenizer, reply.text, row), row_logprobs, strict=False)))
            for reply, row, row_logprobs in zip(found, ids, logprobs, strict=True)
        ]

    def sampled(
        self,
        prompt_ids: Sequence[Sequence[int]],
        max_tokens: int,
        *,
        sampling: Sampling | None = None,
        draws: Sequence[int] | None = None,
    ) -> Completions:
        return sample(
            self.policy,
            prompt_ids,
            max_new_tokens=max_tokens,
            sampling=sampling,
            sample_ids=draws,
            tokens_at_once=TOKENS_AT_ONCE[self.policy.device.type],
        )


def _pieces(tokenizer: Any, text: str, ids: Sequence[int]) -> list[bytes]:
    """What each token adds to the text; a character of several tokens counts as the last one's."""
    begun = [
        text_so_far.rstrip("\ufffd") for text_so_far in texts_of(tokenizer, [ids[: i + 1] for i in range(len(ids))])
    ]
    ends = [min(len(each), len(text)) for each in begun[:-1]] + [len(text)] * bool(ids)
    return [text[start:end].encode() for start, end in zip([0, *ends], ends, strict=False)]


def weights_name(name: str, where: str = "parent") -> str:
    """What identifies a model's answers: every file of its folder, or a hub's commit. Loads no weights."""
    with _named(where):
        check_model_name(name)
        if name in BUNDLED_MODELS:
            return f"{name}-{CONVERSION}@{sha256_of(bundled_weights(name))}"
        path = user_path(name)
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
        raise UserError(f"model: cannot load '{name}': {first_line(error)}") from error
    if commit is None:
        raise UserError(f"model: '{name}' has no commit to know it by: give its folder")
    return str(commit)


@contextmanager
def _named(where: str) -> Iterator[None]:
    """The same errors as a child's; here they are somebody else's."""
    try:
        yield
    except UserError as error:
        line = str(error)
        raise UserError(f"{where}.{line}" if line.startswith("model") else f"{where}.model: {line}") from error
