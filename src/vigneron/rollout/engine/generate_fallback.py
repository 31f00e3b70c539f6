"""Sampling by transformers' `generate`, for models that the engine does not support. The draws are the engine's."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

from vigneron.core.draws import Sampling, draw_keys
from vigneron.policy.logits import linear_logits
from vigneron.policy.longrope import long_sequences
from vigneron.policy.microbatches import length_buckets
from vigneron.policy.model import Policy
from vigneron.rollout.engine.decode_state import choose
from vigneron.rollout.engine.request import Completions, Request, blank_completions
from vigneron.rollout.engine.stop_strings import StopStrings, stop_strings
from vigneron.timing import phase


class GenerateSampler:
    """Implements the Sampler protocol by `generate`. `why` says what the engine does not support.

    The logits are those of training: transformers would round the head's products to bfloat16.
    """

    exact = True
    """Set to False if its log-probs are not those of a forward pass."""
    pads = True
    """Whether prompts of different lengths are sampled together, padded. Some recurrent layers read padding."""

    def __init__(self, policy: Policy, why: str) -> None:
        self._policy = policy
        self.notice = f"sampling by transformers' generate, which is slower than the engine: the model has {why}"

    @torch.no_grad()
    def sample(self, request: Request) -> Completions:
        completions = blank_completions(request, self._policy)
        lengths = [len(ids) + request.max_new_tokens for ids in request.prompt_ids]
        for part in length_buckets(lengths, request.microbatch_tokens):
            for offset, rows in self._groups(request, part):
                with phase("generate"), long_sequences() if offset else nullcontext():
                    self._sample_rows(request, rows, completions)
        return completions

    def _groups(self, request: Request, rows: Sequence[int]) -> list[tuple[int, list[int]]]:
        """Rows that are sampled together, with the offset of their positions: those with the same rotary frequencies,
        and without padding those of equal length."""
        groups: dict[tuple[int, int], list[int]] = {}
        for row in rows:
            length = len(request.prompt_ids[row])
            offset = self._policy.position_offset(length, request.max_new_tokens)
            groups.setdefault((offset, 0 if self.pads else length), []).append(row)
        return [(offset, group) for (offset, _), group in groups.items()]

    def _sample_rows(self, request: Request, rows: Sequence[int], into: Completions) -> None:
        policy = self._policy
        prompts = [request.prompt_ids[i] for i in rows]
        width = max(len(prompt) for prompt in prompts)
        ids_BS = torch.full((len(prompts), width), policy.pad_id)
        real_BS = torch.zeros_like(ids_BS)
        for i, prompt in enumerate(prompts):
            ids_BS[i, width - len(prompt) :] = torch.tensor(prompt)
            real_BS[i, width - len(prompt) :] = 1
        keys = draw_keys(request.seed, request.step, torch.tensor([request.sample_ids[i] for i in rows]), request.turn)
        drawn = _KeyedDraws(keys.to(policy.device), request.sampling)
        stops = stop_strings(policy.tokenizer, request.stop)
        stopping = [] if stops is None else [_AtStopStrings(stops, width, len(prompts))]
        settings = GenerationConfig(
            max_new_tokens=request.max_new_tokens,
            do_sample=False,
            eos_token_id=sorted(policy.eos_ids) or None,
            pad_token_id=policy.pad_id,
            return_dict_in_generate=True,
        )
        with policy._precision(), _only(settings, policy.causal), _training_head(policy):
            out = policy.causal.generate(
                ids_BS.to(policy.device),
                attention_mask=real_BS.to(policy.device),
                generation_config=settings,
                logits_processor=LogitsProcessorList([drawn]),
                stopping_criteria=StoppingCriteriaList(stopping),
            )
        new_BT = out.sequences[:, width:]
        ends = torch.tensor(sorted(policy.eos_ids), device=policy.device)
        at_end_BT = torch.isin(new_BT, ends)
        ended_B = at_end_BT.any(1)
        lengths_B = torch.where(ended_B, at_end_BT.int().argmax(1) + 1, new_BT.shape[1])
        for at_stop in stopping:
            stops_B = torch.tensor(at_stop.ends, device=policy.device)
            lengths_B = torch.where((stops_B > 0) & (stops_B < lengths_B), stops_B, lengths_B)
            ended_B = ended_B | (stops_B > 0)
        real_BT = torch.arange(new_BT.shape[1], device=policy.device) < lengths_B[:, None]
        behaviour_BT = torch.stack(drawn.logprobs, 1)
        into.ids_BT[rows, : new_BT.shape[1]] = torch.where(real_BT, new_BT, policy.pad_id)
        into.behaviour_BT[rows, : new_BT.shape[1]] = torch.where(real_BT, behaviour_BT, 0.0).to(into.behaviour_BT)
        into.lengths_B[rows] = lengths_B
        into.truncated_B[rows] = ~ended_B
        into.prompt_hidden_BH[rows] = self._prompt_states(prompts).to(into.prompt_hidden_BH.dtype)

    def _prompt_states(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        device = self._policy.device
        width = max(len(prompt) for prompt in prompts)
        ids_BS = torch.tensor([[*prompt, *[self._policy.pad_id] * (width - len(prompt))] for prompt in prompts])
        last_B = torch.tensor([len(prompt) - 1 for prompt in prompts], device=device)
        positions_BS = torch.minimum(torch.arange(width, device=device), last_B[:, None])
        hidden_BSH = self._policy.hidden(ids_BS.to(device), positions_BS)
        return hidden_BSH[torch.arange(len(prompts), device=device), last_B]


@contextmanager
def _only(settings: GenerationConfig, causal: Any) -> Iterator[None]:
    """Use only these settings. transformers would fill in others, such as penalties, from the model's own config."""
    own, causal.generation_config = causal.generation_config, settings
    try:
        yield
    finally:
        causal.generation_config = own


@contextmanager
def _training_head(policy: Policy) -> Iterator[None]:
    """Let the model's head compute as in training. Models scale or cap its result by themselves."""
    head: Any = policy.causal.get_output_embeddings()

    def forward(hidden_BSH: Tensor) -> Tensor:
        with torch.autocast(policy.device.type, enabled=False):
            return linear_logits(head, policy.compute_dtype, hidden_BSH)

    if type(head) is nn.Linear:
        vars(head)["forward"] = forward
    try:
        yield
    finally:
        vars(head).pop("forward", None)


class _KeyedDraws(LogitsProcessor):
    """Draws the token as the engine does, and leaves it as the only choice for greedy decoding."""

    def __init__(self, keys_B: Tensor, sampling: Sampling | None) -> None:
        self._keys_B, self._sampling = keys_B, sampling
        self.logprobs: list[Tensor] = []

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        written_B = torch.full_like(self._keys_B, len(self.logprobs))
        token_B, logprob_B = choose(scores.float(), self._keys_B, written_B, self._sampling)
        self.logprobs.append(logprob_B)
        return torch.full_like(scores, -torch.inf).scatter(1, token_B[:, None], 0.0)


class _AtStopStrings(StoppingCriteria):
    """Ends rows at stop strings. `ends` has the number of tokens up to the first one; 0: none yet."""

    def __init__(self, stops: StopStrings, width: int, rows: int) -> None:
        self._stops, self._width = stops, width
        self.ends = [0] * rows

    def __call__(self, input_ids: Any, scores: Any, **others: Any) -> Any:
        for row, can_end in enumerate(self._stops.can_end(input_ids[:, -1:])[:, 0].tolist()):
            if can_end and not self.ends[row]:
                ids = input_ids[row, self._width :].tolist()
                self.ends[row] = self._stops.end(ids, len(ids) - 1) or 0
        return torch.tensor(self.ends, device=input_ids.device) > 0
