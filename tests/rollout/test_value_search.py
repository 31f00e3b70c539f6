"""Best-of-N and beam search by a value that is known: more of one letter is better."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from support.tiny_models import tiny_policy
from vigneron.core.draws import Sampling
from vigneron.data.prompts import completion_text
from vigneron.errors import UserError
from vigneron.policy.logprobs import Critic
from vigneron.rollout.engine.sample import sample
from vigneron.rollout.value_search import ValueSearch, _first_step, beam_search, best_by_value, samples_of_each

ROWS = [{"prompt": "say hot:", "answer": "x"}, {"prompt": "say big one:", "answer": "y"}]


def searching(kind: str = "llama", **options: Any) -> ValueSearch:
    policy = tiny_policy(kind)
    critic = Critic.of(policy, "every_token")
    torch.manual_seed(3)
    with torch.no_grad():
        critic.head.linear.weight.normal_()
    return ValueSearch(policy, critic, **{"sampling": Sampling(), "max_new_tokens": 10, **options})


def value_by_hand(search: ValueSearch, prompt: tuple[int, ...], completion: tuple[int, ...]) -> float:
    """The head's output at the last token of the text, by transformers alone."""
    if completion and completion[-1] in search.policy.eos_ids:
        completion = completion[:-1]
    ids = torch.tensor([[*prompt, *completion]])
    with torch.no_grad():
        hidden = search.policy.causal(ids, output_hidden_states=True).hidden_states[-1]
        return float(search.critic.head(hidden[:, -1]))


def test_the_value_is_that_of_the_state_behind_the_text() -> None:
    search = searching()
    texts = [((5, 6), (7, 8, 9)), ((5, 6), (7, 8, 9, 0)), ((5, 6, 7), ()), ((9,), (3,))]
    found = search.values(texts)
    assert found == pytest.approx([value_by_hand(search, *text) for text in texts], abs=1e-5)
    assert found[0] == pytest.approx(found[1], abs=1e-6), "an end token is not counted"


def test_the_best_of_n_has_the_highest_value() -> None:
    search = searching()
    drawn = samples_of_each(search, ROWS, 5)
    best = best_by_value(search, drawn, 5)
    values = [
        value_by_hand(search, p, tuple(c))
        for p, c in zip(drawn.samples.prompt_ids, drawn.samples.completion_lists(), strict=True)
    ]
    assert len(best) == 2
    for at in range(2):
        own = values[5 * at : 5 * at + 5]
        wanted = drawn.samples.completions[5 * at + own.index(max(own))]
        assert best.samples.completions[at] == wanted
        assert best.samples.prompts[at] == ROWS[at]["prompt"]


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_beam_search_ends_within_its_budget_and_is_repeatable(kind: str) -> None:
    search = searching(kind, max_new_tokens=12)
    separator = written_letter(search)
    found = beam_search(search, ROWS, beams=2, expand=3, separator=separator)
    again = beam_search(search, ROWS, beams=2, expand=3, separator=separator)
    assert found.samples.completions == again.samples.completions
    assert [row["answer"] for row in ROWS] == list(found.samples.columns["answer"])
    for ids, cut in zip(found.samples.completion_lists(), found.samples.truncated_B.tolist(), strict=True):
        assert 1 <= len(ids) <= 12
        assert cut == (ids[-1] not in search.policy.eos_ids)


def test_a_search_of_one_step_is_best_of_n() -> None:
    """With a budget of one token nothing is continued: the same draws, the same choice."""
    search = searching(max_new_tokens=1)
    drawn = samples_of_each(search, ROWS[:1], 32)
    separator = next(text for text in drawn.samples.completions if text and text.isascii())
    found = beam_search(search, ROWS[:1], beams=4, expand=32, separator=separator)
    assert found.samples.completions == best_by_value(search, drawn, 32).samples.completions


def written_letter(search: ValueSearch) -> str:
    """A separator within the first texts that the search itself draws: its draws have the same keys."""
    drawn = samples_of_each(search, ROWS, 3)
    texts = [completion_text(completion)[1:4] for completion in drawn.samples.completions]
    return next(letter for text in texts for letter in text if letter.isascii())


def test_a_separator_that_never_occurs_is_refused() -> None:
    with pytest.raises(UserError, match="the separator 'no such text' occurs in none of 6 samples"):
        beam_search(searching(), ROWS, beams=2, expand=3, separator="no such text")


@given(st.lists(st.integers(1, 6), max_size=12), st.sampled_from(["a", "ab", "ba", "c"]))
def test_a_step_ends_with_the_token_that_completes_the_first_separator(letters: list[int], separator: str) -> None:
    """With one letter a token it is where Python finds the separator."""
    policy = tiny_policy()
    text = "".join("abcdef"[letter - 1] for letter in letters)
    ids = tuple(policy.tokenizer(text)["input_ids"])
    at = text.find(separator)
    assert _first_step(policy, ids, separator) == (ids if at < 0 else ids[: at + len(separator)])


def test_beams_end_at_stop_strings_that_begin_in_an_earlier_step() -> None:
    """The separator ends a step in the middle of the stop string."""
    search = searching(max_new_tokens=12)
    first = completion_text(samples_of_each(search, ROWS[:1], 1).samples.completions[0])
    separator = next(letter for letter in first if letter.isascii())
    keys: dict[str, Any] = {"beams": 1, "expand": 1, "separator": separator}
    text = completion_text(beam_search(search, ROWS[:1], **keys).samples.completions[0])
    end = text.index(separator) + 2
    assert len(text) > end, "something follows the separator"
    stopped = beam_search(replace(search, stop=(text[end - 2 : end],)), ROWS[:1], **keys).samples
    assert completion_text(stopped.completions[0]) == text[:end]
    assert not stopped.truncated_B.any()


@pytest.mark.slow
def test_a_search_with_one_beam_equals_a_plain_loop() -> None:
    """Draw four continuations, cut each behind its first separator, keep the one with the highest value; again."""
    often = Sampling(temperature=0.05)  # letters recur, so that there are several steps
    rounds = [one_beam_by_hand(searching(max_new_tokens=14, seed=seed, sampling=often)) for seed in range(4)]
    assert max(rounds) > 1, "more than one step is compared"


@pytest.mark.slow
def test_a_row_s_answer_does_not_depend_on_other_rows() -> None:
    """Neither on a prompt that fills the context of 64 tokens but for two, nor on how many beams of others are open."""
    often = Sampling(temperature=0.05)
    long = {"prompt": "a" * 62}
    for seed in range(3):
        search = searching(max_new_tokens=14, seed=seed, sampling=often)
        keys: dict[str, Any] = {"beams": 2, "expand": 3, "separator": written_letter(search)}
        alone = beam_search(search, ROWS[:1], **keys).samples
        beside = beam_search(search, [ROWS[0], long], **keys).samples
        assert beside.completion_lists()[0] == alone.completion_lists()[0]
        assert len(beside.completion_lists()[1]) <= 2
        last = [beam_search(search, [ROWS[0], other, ROWS[1]], **keys).samples for other in (*ROWS, long)]
        assert len({samples.completion_lists()[2] for samples in last}) == 1


def one_beam_by_hand(search: ValueSearch) -> int:
    policy, separator = search.policy, written_letter(search)
    prompt = tuple(policy.tokenizer(ROWS[0]["prompt"])["input_ids"])
    ids: tuple[int, ...] = ()
    done, number = False, 0
    while not done:
        keys = {"sampling": search.sampling, "seed": search.seed, "step": number}
        drawn = sample(policy, [prompt + ids] * 4, max_new_tokens=14 - len(ids), **keys)  # type: ignore[arg-type]
        candidates = []
        for row, length in zip(drawn.ids_BT.tolist(), drawn.lengths_B.tolist(), strict=True):
            piece: list[int] = []
            for token in row[:length]:
                piece.append(token)
                if separator in policy.tokenizer.decode(piece):
                    break
            ended = piece[-1] in policy.eos_ids or len(piece) == length
            candidates.append((value_by_hand(search, prompt, (*ids, *piece)), (*ids, *piece), ended))
        _, ids, done = max(candidates, key=lambda candidate: candidate[0])
        number += 1
    found = beam_search(search, ROWS[:1], beams=1, expand=4, separator=separator)
    assert found.samples.completion_ids == (ids,)
    return number
