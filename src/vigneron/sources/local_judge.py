"""A transformers model as a judge: it writes JSON, or is scored by the probability of `yes` against `no`, or of 1 to
10."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vigneron.config.judges import LocalJudgeConfig
from vigneron.core.draws import Sampling
from vigneron.errors import UserError
from vigneron.policy.device import resolve_device
from vigneron.sources.answer_cache import answer_key
from vigneron.sources.client import ChatReply, Failure
from vigneron.sources.judge_client import JudgeCall
from vigneron.sources.local_model import LocalModel

# A batch is cached when it is complete. Its size affects rounding: see `JudgeClient._send_batch`.
BATCH_SIZE = {"cpu": 32, "mps": 64, "cuda": 512}

WORDS = ("yes", "no")


class LocalBackend:
    """A local model behind a judge, loaded at the first call."""

    def __init__(self, config: LocalJudgeConfig, source: str, device: str, where: str) -> None:
        self.source, self.batch_size = source, BATCH_SIZE[resolve_device(device).type]
        self._config, self._where = config, where
        self._model = LocalModel(config.model, source, config.max_tokens, device, where)
        self._token_ids: tuple[list[int], list[int]] | None = None
        self._digit_ids: DigitTokens | None = None

    @property
    def notice(self) -> str | None:
        """Of loading the model."""
        return "; ".join(f"{self._where}.{text}" for text in self._model.notices) or None

    def check(self) -> list[ChatReply]:
        """Load the model and render its chat template once; generates nothing."""
        self._model.prompts([[{"role": role, "content": "vine"} for role in ("system", "user")]])
        if self._config.reads == "yes_no":
            self._yes_and_no()
        if self._config.reads == "digits":
            self._digits()
        return []

    def stop(self) -> None: ...

    def replies(self, calls: Sequence[JudgeCall]) -> list[ChatReply | Failure]:
        """A prompt that exceeds the model's context is a failure of that call only."""
        reply = {"yes_no": self._yes_probabilities, "digits": self._digit_probabilities}.get(
            calls[0].request.reply_format, self._generated
        )
        prompts = self._model.prompts([call.messages for call in calls])
        tokens = {"yes_no": 1, "digits": 2}
        limit = self._model.policy.context_length
        needed = tokens.get(calls[0].request.reply_format, self._config.max_tokens)
        fits = [limit is None or len(ids) + needed <= limit for ids in prompts]
        fitting = [i for i, fit in enumerate(fits) if fit]
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
        yes, no = self._yes_and_no()
        logs_NK = self._next_logs(prompts, [yes, no])
        probabilities = (logs_NK[:, 0] - logs_NK[:, 1]).sigmoid().tolist()
        return [ChatReply(repr(p), False, len(ids), 1) for p, ids in zip(probabilities, prompts, strict=True)]

    @torch.no_grad()
    def _digit_probabilities(self, calls: Sequence[JudgeCall], prompts: Sequence[Sequence[int]]) -> list[ChatReply]:
        """P(1) … P(10) as the reply's text. Where the tokenizer writes 10 as 1 and 0, a second pass after the 1 gives
        P(10) = P(1 first) · P(0 next), which is taken from P(1)."""
        ids = self._digits()
        found_NK = self._next_logs(prompts, [*ids.digits, *([ids.ten] if ids.ten else [])]).exp()
        ten_N = found_NK[:, 9] if ids.ten else torch.zeros_like(found_NK[:, 0])
        one_N = found_NK[:, 0]
        if ids.zero:
            after_one = [[*prompt, ids.one] for prompt in prompts]
            split_N = one_N * self._next_logs(after_one, [ids.zero])[:, 0].exp()
            one_N, ten_N = one_N - split_N, ten_N + split_N
        rows = torch.stack([one_N, *found_NK[:, 1:9].T, ten_N], dim=1).clamp(min=0.0).tolist()
        return [ChatReply(json.dumps(row), False, len(p), 1) for row, p in zip(rows, prompts, strict=True)]

    def _next_logs(self, prompts: Sequence[Sequence[int]], sets: Sequence[list[int]]) -> torch.Tensor:
        """log P that the next token is in each set of tokens, as N prompts × K sets."""
        hidden_NH = self._model.sample(prompts, 1).prompt_hidden_BH
        parts = []
        for part_NH in hidden_NH.split(64):  # bounds the memory of the logits
            logs_NV = self._model.policy.logits(part_NH).double().log_softmax(-1)
            parts.append(torch.stack([logs_NV[:, ids].logsumexp(-1) for ids in sets], dim=1))
        return torch.cat(parts).cpu()

    def _digits(self) -> "DigitTokens":
        if self._digit_ids is None:
            self._digit_ids = digit_tokens(self._model.policy.tokenizer)
            if self._digit_ids is None:
                raise UserError(
                    f"{self._where}.reads: '{self._config.model}' has no single tokens for the digits 1 to 9: "
                    "set `reads: json` or `reads: yes_no`"
                )
        return self._digit_ids

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


@dataclass(frozen=True)
class DigitTokens:
    """The tokens that write 1 to 9, with and without a leading space; those of 10 as one token, if there are any; and
    how 10 is written otherwise: `zero` after `one`."""

    digits: list[list[int]]
    ten: list[int]
    one: int
    zero: list[int]


def digit_tokens(tokenizer: Any) -> DigitTokens | None:
    """None if a digit is not one token."""
    vocabulary = tokenizer.get_vocab()

    def ids_of(digit: str) -> list[int]:
        """Without tokens of what is left of an unknown character."""
        ids = {*one_token_ids(tokenizer, digit), *([vocabulary[digit]] if digit in vocabulary else [])}
        return sorted(each for each in ids if tokenizer.decode([each]).strip() == digit)

    digits = [ids_of(str(digit)) for digit in range(1, 10)]
    if not all(digits):
        return None
    ten = one_token_ids(tokenizer, "10")
    zero = [vocabulary["0"]] if "0" in vocabulary and not ten else []
    return DigitTokens(digits, ten, vocabulary.get("1", digits[0][0]), zero)


def one_token_ids(tokenizer: Any, word: str) -> list[int]:
    """The spellings of a word that are one token: `yes`, `Yes`, `YES`, with or without a leading space."""
    spellings = [space + each for each in (word, word.capitalize(), word.upper()) for space in ("", " ")]
    ids = [tokenizer(each, add_special_tokens=False)["input_ids"] for each in spellings]
    return sorted({each[0] for each in ids if len(each) == 1})


def sample_id(call: JudgeCall) -> int:
    """Keys the random draws by the messages and the sample's index, not by the batch."""
    return int(answer_key("", "", call.messages, {"sample": call.request.sample})[:15], 16)
