"""A transformers model as a judge: by the JSON that it writes, or by the probability of `yes` against `no`."""

from collections.abc import Sequence
from typing import Any

import torch

from vigneron.config.judges import LocalJudgeConfig
from vigneron.core.draws import Sampling
from vigneron.errors import UserError
from vigneron.policy.load import resolve_device
from vigneron.sources.answer_cache import answer_key
from vigneron.sources.client import Failure, Reply
from vigneron.sources.judge_questions import Turn
from vigneron.sources.local_model import LocalModel

# Kept on disk so many at a time. Batches are part of what is computed: see `Answering._batch`.
AT_ONCE = {"cpu": 32, "mps": 64, "cuda": 512}

WORDS = ("yes", "no")


class LocalVoice:
    notice: str | None = None

    def __init__(self, config: LocalJudgeConfig, source: str, device: str, where: str) -> None:
        self.source, self.at_once = source, AT_ONCE[resolve_device(device).type]
        self._config, self._where = config, where
        self._model = LocalModel(config.model, source, config.max_tokens, device, where)
        self._token_ids: tuple[list[int], list[int]] | None = None

    def check(self) -> list[Reply]:
        """Loads it, and tries its template; answers nothing."""
        self._model.prompts([[{"role": role, "content": "vine"} for role in ("system", "user")]])
        if self._config.reads == "yes_no":
            self._yes_and_no()
        return []

    def stop(self) -> None: ...

    def replies(self, turns: Sequence[Turn]) -> list[Reply | Failure]:
        """What does not fit into the model's context is a failure of its own, and stops nobody else."""
        yes_no = turns[0].question.reads == "yes_no"
        prompts = self._model.prompts([turn.messages for turn in turns])
        limit, needed = self._model.policy.context_length, 1 if yes_no else self._config.max_tokens
        fits = [limit is None or len(ids) + needed <= limit for ids in prompts]
        kept = [i for i, fit in enumerate(fits) if fit]
        answer = self._probabilities if yes_no else self._written
        found = iter(answer([turns[i] for i in kept], [prompts[i] for i in kept]) if kept else [])
        return [
            next(found)
            if fit
            else Failure(
                f"does not fit: {len(ids)} tokens and {needed} for the reply, into a context of {limit}", refused=True
            )
            for fit, ids in zip(fits, prompts, strict=True)
        ]

    def _written(self, turns: Sequence[Turn], prompts: Sequence[Sequence[int]]) -> list[Reply]:
        question = turns[0].question
        return self._model.written(
            prompts,
            sampling=Sampling(temperature=question.temperature) if question.temperature else None,
            draws=[draw_of(turn) for turn in turns],
            pieces=self._config.confidence == "logprob" and question.reads == "score",
        )

    @torch.no_grad()
    def _probabilities(self, turns: Sequence[Turn], prompts: Sequence[Sequence[int]]) -> list[Reply]:
        """Of yes against no as the first token of the answer, over all ways to write each."""
        done = self._model.sampled(prompts, 1)
        yes, no = self._yes_and_no()
        found: list[float] = []
        for hidden_NH in done.prompt_hidden_BH.split(64):  # a vocabulary's worth of numbers each
            logits_NV = self._model.policy.logits(hidden_NH).double()
            odds_N = logits_NV[:, yes].logsumexp(-1) - logits_NV[:, no].logsumexp(-1)
            found += odds_N.sigmoid().tolist()
        return [Reply(repr(p), False, len(ids), 1) for p, ids in zip(found, prompts, strict=True)]

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
    """Of the ways to write a word, those that are one token: `yes`, `Yes`, `YES`, with a space before it or not."""
    written = [space + each for each in (word, word.capitalize(), word.upper()) for space in ("", " ")]
    ids = [tokenizer(each, add_special_tokens=False)["input_ids"] for each in written]
    return sorted({each[0] for each in ids if len(each) == 1})


def draw_of(turn: Turn) -> int:
    """Draws depend on what is asked and on which sample it is, not on who is beside it."""
    return int(answer_key("", "", turn.messages, {"sample": turn.question.sample})[:15], 16)
