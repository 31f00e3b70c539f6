"""A transformers model as a parent or a judge, run by Vigneron's sampling engine with the model's chat template."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from vigneron.core.draws import Sampling
from vigneron.data.prompts import prompts_token_ids, texts_of
from vigneron.errors import UserError, first_line
from vigneron.files import sha256_of, user_path
from vigneron.policy.bundled import BUNDLED_MODELS, CONVERSION, bundled_weights, quiet_transformers
from vigneron.policy.chat import stop_at_turn_end
from vigneron.policy.device import on_device, resolve_compute_dtype, resolve_device
from vigneron.policy.hub import check_on_hub
from vigneron.policy.load import load_policy
from vigneron.policy.model import Policy
from vigneron.policy.model_names import check_model_name, model_source
from vigneron.rollout.engine.request import Completions
from vigneron.rollout.engine.sample import sample
from vigneron.sources.client import ChatReply, Failure, Message

# Prompt tokens in one forward pass.
PREFILL_TOKENS = {"cpu": 4096, "mps": 4096, "cuda": 65536}


class LocalModel:
    """Loaded at the first request and freed with this object. `where` is the config key that errors name."""

    batch_size = 16
    workers = 1

    def __init__(self, name: str, source: str, max_tokens: int, device: str, where: str = "parent") -> None:
        self.source = source
        self._name, self._max_tokens, self._device, self._where = name, max_tokens, device, where
        self._policy: Policy | None = None
        self.notices: list[str] = []
        """Notices of loading the model."""

    def check(self) -> None:
        with _error_prefix(self._where):
            check_model_name(self._name)

    def stop(self) -> None: ...

    @property
    def policy(self) -> Policy:
        if self._policy is None:
            with _error_prefix(self._where), on_device(resolve_device(self._device)):
                half = resolve_compute_dtype("auto", resolve_device(self._device)) == torch.bfloat16
                self._policy = load_policy(
                    self._name,
                    device=self._device,
                    weights="bfloat16" if half else "auto",  # once: in float32 the engine would have its own copies
                    trained=False,
                    notice=self.notices.append,
                )
        return self._policy

    def replies(self, conversations: Sequence[list[Message]], *, first: bool) -> list[ChatReply | Failure]:
        """Greedy. A conversation that exceeds the model's context is an error."""
        return [*self.generate(self.prompts(conversations))]

    def prompts(self, conversations: Sequence[list[Message]]) -> list[tuple[int, ...]]:
        """Token ids of the prompts, generation prompt included."""
        policy = self.policy
        with _error_prefix(self._where):
            stop_at_turn_end(policy, conversations)
            return prompts_token_ids(policy.tokenizer, conversations)

    def generate(
        self,
        prompt_ids: Sequence[Sequence[int]],
        *,
        sampling: Sampling | None = None,
        sample_ids: Sequence[int] | None = None,
        logprobs: bool = False,
    ) -> list[ChatReply]:
        """Greedy without `sampling`, else with random draws keyed by `sample_ids`. `logprobs`: also the tokens'
        log-probs."""
        with _error_prefix(self._where):
            completions = self.sample(prompt_ids, self._max_tokens, sampling=sampling, sample_ids=sample_ids)
        tokenizer, lengths = self.policy.tokenizer, completions.lengths_B.tolist()
        ids = [row[:length] for row, length in zip(completions.ids_BT.tolist(), lengths, strict=True)]
        texts, truncated = texts_of(tokenizer, ids), completions.truncated_B.tolist()
        replies = [
            ChatReply(text, is_truncated, len(prompt), length)
            for text, is_truncated, prompt, length in zip(texts, truncated, prompt_ids, lengths, strict=True)
        ]
        if not logprobs:
            return replies
        return [
            replace(reply, token_logprobs=tuple(zip(_token_bytes(tokenizer, reply.text, row), of_row, strict=False)))
            for reply, row, of_row in zip(replies, ids, completions.behaviour_BT.tolist(), strict=True)
        ]

    def sample(
        self,
        prompt_ids: Sequence[Sequence[int]],
        max_tokens: int,
        *,
        sampling: Sampling | None = None,
        sample_ids: Sequence[int] | None = None,
    ) -> Completions:
        policy = self.policy
        with on_device(policy.device):
            return sample(
                policy,
                prompt_ids,
                max_new_tokens=max_tokens,
                sampling=sampling,
                sample_ids=sample_ids,
                microbatch_tokens=PREFILL_TOKENS[policy.device.type],
            )


def _token_bytes(tokenizer: Any, text: str, ids: Sequence[int]) -> list[bytes]:
    """What each token adds to the text; a character of several tokens belongs to the last of them."""
    prefixes = [
        text_so_far.rstrip("\ufffd") for text_so_far in texts_of(tokenizer, [ids[: i + 1] for i in range(len(ids))])
    ]
    ends = [min(len(each), len(text)) for each in prefixes[:-1]] + [len(text)] * bool(ids)
    return [text[start:end].encode() for start, end in zip([0, *ends], ends, strict=False)]


def weights_name(name: str, where: str = "parent") -> str:
    """The identity of a model's weights: a hash of its folder's files, or the hub commit. Loads no weights."""
    with _error_prefix(where):
        check_model_name(name)
        if name in BUNDLED_MODELS:
            return f"{name}-{CONVERSION}@{sha256_of(bundled_weights(name))}"
        path = user_path(name)
        return f"sha256:{_folder_hash(path)}" if path.is_dir() else f"commit:{_hub_commit(name)}"


def _folder_hash(folder: Path) -> str:
    """Of all files at the folder's top level: weights, tokenizer, chat template, generation config."""
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.iterdir() if p.is_file() and not p.name.startswith(".")):
        digest.update(f"{path.name}\0{sha256_of(path)}\n".encode())
    return digest.hexdigest()


def _hub_commit(name: str) -> str:
    from transformers import AutoConfig

    check_on_hub(model_source(name), f"model: cannot load '{name}'")
    try:
        with quiet_transformers():
            commit = getattr(AutoConfig.from_pretrained(model_source(name)), "_commit_hash", None)
    except Exception as error:  # the network or the model's files can fail in any way
        raise UserError(f"model: cannot load '{name}': {first_line(error)}") from error
    if commit is None:
        raise UserError(f"model: '{name}' has no commit hash to identify its answers: give a local folder")
    return str(commit)


@contextmanager
def _error_prefix(where: str) -> Iterator[None]:
    """Loading errors name the config key `model`; here they name `where.model`."""
    try:
        yield
    except UserError as error:
        line = str(error)
        raise UserError(f"{where}.{line}" if line.startswith("model") else f"{where}.model: {line}") from error
