"""Conversations by samplers that only know single completions, such as vLLM: every turn is a request of its own."""

from dataclasses import replace

import torch

from vigneron.policy.model import Policy
from vigneron.rollout.engine.request import Completions, Request, Sampler, Turn, blank_completions
from vigneron.timing import phase


def sample_by_turns(policy: Policy, sampler: Sampler, request: Request) -> Completions:
    """The conversations that the engine would sample, its prompts read again at every turn."""
    replies = request.replies
    assert replies is not None
    done = blank_completions(request, policy)
    ids: list[tuple[int, ...]] = [() for _ in request.prompt_ids]
    open_samples, turn = list(range(len(ids))), 0
    while open_samples:
        turns: list[Turn] = []
        budgets = {s: min(request.max_new_tokens, request.room(s) - len(ids[s])) for s in open_samples}
        for budget in sorted(set(budgets.values())):
            samples = [sample for sample in open_samples if budgets[sample] == budget]
            part = replace(
                request,
                prompt_ids=[(*request.prompt_ids[sample], *ids[sample]) for sample in samples],
                sample_ids=[request.sample_ids[sample] for sample in samples],
                max_new_tokens=budget,
                replies=None,
                max_tokens=None,
                turn=turn,
            )
            new = sampler.sample(part)
            done = replace(done, metrics=new.metrics)
            if new.prompt_hidden_BH is None:
                done = replace(done, prompt_hidden_BH=None)
            turns += _written(done, new, samples, [len(ids[sample]) for sample in samples])
        replies.ask(turns)
        with phase("replies"):
            answers = replies.take([each.sample for each in turns])
        for each, answer in zip(turns, answers, strict=True):
            ids[each.sample] += each.ids + answer
            done.ids_BT[each.sample, : len(ids[each.sample])] = torch.tensor(ids[each.sample], device=policy.device)
        open_samples = sorted(each.sample for each, answer in zip(turns, answers, strict=True) if answer)
        turn += 1
    return done


def _written(done: Completions, new: Completions, samples: list[int], starts: list[int]) -> list[Turn]:
    """Write a turn of these samples into their completions."""
    turns = []
    rows = zip(new.ids_BT.tolist(), new.lengths_B.tolist(), new.truncated_B.tolist(), strict=True)
    for at, (sample, start, (ids, length, truncated)) in enumerate(zip(samples, starts, rows, strict=True)):
        turns.append(Turn(sample, start, tuple(ids[:length]), not truncated))
        done.behaviour_BT[sample, start : start + length] = new.behaviour_BT[at, :length]
        done.lengths_B[sample] = start + length
        done.truncated_B[sample] = truncated
        if start == 0 and new.prompt_hidden_BH is not None:
            done.prompt_hidden_BH[sample] = new.prompt_hidden_BH[at]
    return turns
