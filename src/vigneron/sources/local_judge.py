"""A transformers model as a judge: it writes JSON, or is scored by the probability of `yes` against `no`."""

from collections.abc import Sequence
from typing import Any

import torch

from vigneron.config.judges import LocalJudgeConfig
from vigneron.core.draws import Sampling
from vigneron.errors import UserError
from vigneron.policy.load import resolve_device
from vigneron.sources.answer_cache import answer_key
from vigneron.sources.client import ChatReply, Failure
from vigneron.sources.judge_client import JudgeCall
from vigneron.sources.local_model import LocalModel

# A batch is cached when it is complete. Its size affects rounding: see `JudgeClient._send_batch`.
BATCH_SIZE = {"cpu": 32, "mps": 64, "cuda": 512}

WORDS = ("yes", "no")


class LocalBackend:
    """A local model behind a judge, loaded at the first call."""

    notice: str | None = None

    def __init__(self, config: LocalJudgeConfig, source: str, device: str, where: str) -> None:
        self.source, self.batch_size = source, BATCH_SIZE[resolve_device(device).type]
        self._config, self._where = config, where
        self._model = LocalModel(config.model, source, config.max_tokens, device, where)
        self._token_ids: tuple[list[int], list[int]] | None = None

    def check(self) -> list[ChatReply]:
        """Load the model and render its chat template once; generates nothing."""
        self._model.prompts([[{"role": role, "content": "vine"} for role in ("system", "user")]])
        if self._config.reads == "yes_no":
            self._yes_and_no()
        return []

    def stop(self) -> None: ...

    def replies(self, calls: Sequence[JudgeCall]) -> list[ChatReply | Failure]:
        """A prompt that exceeds the model's context is a failure of that call only."""
        yes_no = calls[0].request.reply_format == "yes_no"
        prompts = self._model.prompts([call.messages for call in calls])
        limit, needed = self._model.policy.context_length, 1 if yes_no else self._config.max_tokens
        fits = [limit is None or len(ids) + needed <= limit for ids in prompts]
        fitting = [i for i, fit in enumerate(fits) if fit]
        reply = self._yes_probabilities if yes_no else self._generated
        replies = iter(reply([calls[i] for i in fitting], [prompts[i] for i in fitting]) if fitting else [])
        return [
            next(replies)
            if fit
            else Failure(
                f"does not fit: {len(ids)} prompt tokens and {needed} for the reply exceed the context of {limit}",
                refused=True,
            )
            for fit, ids in zip(fits, prompts, strict=True)
        ]

    def _generated(self, calls: Sequence[JudgeCall], prompts: Sequence[Sequence[int]]) -> list[ChatReply]:
        request = calls[0].request
        return self._model.generate(
            prompts,
            sampling=Sampling(temperature=request.temperature) if request.temperature else None,
            sample_ids=[sample_id(call) for call in calls],
            logprobs=self._config.confidence == "logprob" and request.reply_format == "score",
        )

    @torch.no_grad()
    def _yes_probabilities(self, calls: Sequence[JudgeCall], prompts: Sequence[Sequence[int]]) -> list[ChatReply]:
        """P(yes) / (P(yes) + P(no)) for the first token of the answer, over all spellings of each."""
        completions = self._model.sample(prompts, 1)
        yes, no = self._yes_and_no()
        probabilities: list[float] = []
        for hidden_NH in completions.prompt_hidden_BH.split(64):  # bounds the memory of the logits
            logits_NV = self._model.policy.logits(hidden_NH).double()
            odds_N = logits_NV[:, yes].logsumexp(-1) - logits_NV[:, no].logsumexp(-1)
            probabilities += odds_N.sigmoid().tolist()
        return [ChatReply(repr(p), False, len(ids), 1) for p, ids in zip(probabilities, prompts, strict=True)]

    def _yes_and_no(self) -> tuple[list[int], list[int]]:
        if self._token_ids is None:
            yes, no = (one_token_ids(self._model.policy.tokenizer, word) for word in WORDS)
            if not yes or not no:
                raise UserError(
                    f"{self._where}.reads: '{self._config.model}' has no single token for `{'no' if yes else 'yes'}`: "
                    "set `reads: json`"
                )
            self._token_ids = yes, no
        return self._token_ids


def one_token_ids(tokenizer: Any, word: str) -> list[int]:
    """The spellings of a word that are one token: `yes`, `Yes`, `YES`, with or without a leading space."""
    spellings = [space + each for each in (word, word.capitalize(), word.upper()) for space in ("", " ")]
    ids = [tokenizer(each, add_special_tokens=False)["input_ids"] for each in spellings]
    return sorted({each[0] for each in ids if len(each) == 1})


def sample_id(call: JudgeCall) -> int:
    """Keys the random draws by the messages and the sample's index, not by the batch."""
    return int(answer_key("", "", call.messages, {"sample": call.request.sample})[:15], 16)
