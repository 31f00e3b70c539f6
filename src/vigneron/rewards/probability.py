"""RLPR's reward (Yu et al. 2025, arXiv 2506.18254): how likely the model in training finds the parent's answer after
its own text."""

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, Literal

import torch

from vigneron.core.draws import Sampling
from vigneron.core.masked import masked_sum
from vigneron.data.prompts import Row, completion_text, continuation
from vigneron.policy.chat import Conversation
from vigneron.policy.device import on_device
from vigneron.policy.logprobs import score
from vigneron.policy.model import Policy
from vigneron.policy.rank_batches import map_microbatches
from vigneron.policy.reference import Reference
from vigneron.policy.token_boundaries import ids_with_cuts, plain_ids
from vigneron.rollout.demonstrations import Demonstration, batch_of_texts

# Tokens in one forward pass, without gradients.
MICROBATCH_TOKENS = 16384


def before_answer(text: str, answer_after: str | None) -> str | None:
    """What a completion says before its own answer: up to the last `answer_after`, None if it does not occur; or all
    lines but the last one that is not blank."""
    if answer_after is not None:
        head, mark, _ = text.rpartition(answer_after)
        return head + mark if mark else None
    body = text.rstrip()
    return body[: body.rfind("\n") + 1]


class ProbabilityReward:
    """R = (1/|y*|) Σᵢ π(y*ᵢ ∣ x, z, y*₍<ᵢ₎), the mean probability of the tokens of the parent's answer y* after the
    prompt x and the completion's text z before its own answer   (RLPR).

    With `debias`, max(0, R − R′), R′ being the same without z, by the same model (in the paper: by the one at the
    start). A completion without a place for an answer gets 0; one without a reference, or too long for the model's
    context with it, has no reward.
    """

    __name__ = "probability"

    def __init__(
        self, answer_after: str | None = None, by: Literal["policy", "reference"] = "policy", *, debias: bool = True
    ) -> None:
        self._answer_after, self._by, self._debias = answer_after, by, debias
        self._policy: Policy | None = None
        self._reference: Reference | None = None

    def attach(self, policy: Policy, reference: Reference | None) -> None:
        """The models that it asks, which are loaded after the reward. Without a reference, the policy is one."""
        self._policy, self._reference = policy, reference

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        *,
        answer: Sequence[Any],
        tools: Sequence[Any] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        given: list[tuple[Any, Any, str, str] | None] = []
        rewards: list[float | None] = [None] * len(completions)
        for i, completion in enumerate(completions):
            text = before_answer(completion_text(completion), self._answer_after)
            if answer[i] is not None and text is None:
                rewards[i] = 0.0
            tool = None if tools is None else tools[i]
            known = answer[i] is not None and text is not None
            given.append((prompts[i], tool, text or "", completion_text(answer[i])) if known else None)
        bare = [None if each is None else (each[0], each[1], "", each[3]) for each in given]
        asked = [each for each in (*given, *(bare if self._debias else ())) if each is not None]
        found = iter(self._mean_probabilities(asked))
        after = [None if each is None else next(found) for each in given]
        before = [0.0 if each is None or not self._debias else next(found) for each in bare]
        for i, (own, base) in enumerate(zip(after, before, strict=True)):
            if given[i] is not None:
                rewards[i] = None if own is None or base is None else max(0.0, own - base)
        return rewards

    def _mean_probabilities(self, asked: Sequence[tuple[Any, Any, str, str]]) -> list[float | None]:
        """Of (prompt, tools, text before the answer, answer); equal ones are passed once. None: it does not fit."""
        if self._policy is None:
            raise RuntimeError("`kind: probability` has no model yet: call `attach`")
        keys = [repr(each) for each in asked]
        distinct = dict(zip(keys, asked, strict=True))
        texts = {key: _tokens(self._policy, *each) for key, each in distinct.items()}
        limit = self._policy.context_length
        fitting = [key for key, text in texts.items() if limit is None or len(text.ids) <= limit]
        found: dict[str, float | None] = dict.fromkeys(distinct)
        if fitting:
            rows: list[Row] = [{"prompt": ""} for _ in fitting]
            batch = batch_of_texts(self._policy, rows, [texts[key] for key in fitting], [""] * len(fitting))
            reference = self._reference if self._by == "reference" else None
            model = nullcontext(self._policy) if reference is None else reference.active()
            with torch.no_grad(), on_device(self._policy.device), model as policy:
                logprobs_BT = map_microbatches(
                    batch,
                    MICROBATCH_TOKENS,
                    lambda part: {"logprobs_BT": score(policy, part, Sampling()).logprobs_BT},
                )["logprobs_BT"]
            means_B = masked_sum(logprobs_BT.double().exp(), batch.samples.mask_BT) / batch.samples.lengths_B
            found.update(zip(fitting, means_B.tolist(), strict=True))
        return [found[key] for key in keys]


def _tokens(policy: Policy, prompt: Any, tools: Any, text: str, answer: str) -> Demonstration:
    """Prompt, text and answer as tokens; the span is the answer's."""
    talk = None if isinstance(prompt, str) else Conversation.of(policy.tokenizer, prompt, tools)
    head = prompt if talk is None else talk.before(len(prompt))
    whole, cuts = head + text + continuation(head + text, answer), sorted({len(head), len(head + text)})
    if talk is None:
        ids, at = ids_with_cuts(partial(plain_ids, policy.tokenizer), whole, cuts)
    else:
        ids, at = talk.cut_ids(whole, cuts)
    return Demonstration(tuple(ids), ((at[-1], len(ids)),))
