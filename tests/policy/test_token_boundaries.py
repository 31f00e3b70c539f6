"""Prompts and what follows them are tokenized as the whole text is, and prompts keep the tokens of sampling."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.processors import TemplateProcessing

from support.real_templates import plain_llama2, policy_of
from support.tiny_models import byte_tokenizer, smollm2_tokenizer, tiny_policy
from vigneron.data.prompts import prompts_token_ids
from vigneron.policy.model import Policy
from vigneron.policy.token_boundaries import ids_with_cuts, plain_ids
from vigneron.rollout.demonstrations import demonstrations


def trained(policy: Policy, **row: str) -> tuple[list[str], list[str]]:
    """The tokens of the prompt and those that are learned."""
    (found,) = demonstrations(policy, [row])
    tokens = policy.tokenizer.convert_ids_to_tokens
    return tokens(found.prompt_ids), tokens(found.completion_ids)


LLAMA2_ROWS = [
    # The answer follows after a space, and the completion as it is: both are the whole text's tokens.
    ({"prompt": "The capital is", "answer": "Paris"}, ["▁Paris", "</s>"]),
    ({"prompt": "The capital is", "completion": " Paris", "answer": " Paris"}, ["▁Paris", "</s>"]),
    ({"prompt": "2+2=", "completion": "4", "answer": "4"}, ["4", "</s>"]),
    ({"prompt": "Q: why?\nA:", "completion": "\nSo", "answer": "\nSo"}, ["<0x0A>", "So", "</s>"]),
    # A prompt that ends in a space keeps its last token: no second space is learned.
    ({"prompt": "The capital is ", "completion": "Paris", "answer": "Paris"}, ["Par", "is", "</s>"]),
    # A word that is cut into two: the prompt's own tokens, then the rest.
    ({"prompt": "un", "completion": "likely", "answer": "likely"}, ["likely", "</s>"]),
]


@pytest.mark.parametrize(("row", "learned"), LLAMA2_ROWS)
def test_sentencepiece_learns_no_space_of_its_own(row: dict[str, str], learned: list[str]) -> None:
    policy = policy_of(plain_llama2())
    prompt, completion = trained(policy, **row)
    assert completion == learned
    (asked,) = prompts_token_ids(policy.tokenizer, [row["prompt"]])
    assert prompt == policy.tokenizer.convert_ids_to_tokens(asked)
    (found,) = demonstrations(policy, [row])
    space = "" if "completion" in row else " "
    text = policy.tokenizer.decode(found.ids, skip_special_tokens=True)
    assert text == f"{row['prompt']}{space}{row['answer']}"


def encoder(tokenizer: Any) -> Any:
    return lambda texts: plain_ids(tokenizer, texts)


words = st.text(st.sampled_from("ab \n.<é1"), max_size=12)


@settings(max_examples=150, deadline=None)
@given(pieces=st.lists(words, min_size=1, max_size=4), bpe=st.booleans())
def test_every_cut_is_between_two_tokens_and_nothing_is_lost(pieces: list[str], bpe: bool) -> None:
    tokenizer = smollm2_tokenizer() if bpe else LLAMA2
    text, encode = "x" + "".join(pieces), encoder(tokenizer)
    cuts = [1 + len("".join(pieces[:n])) for n in range(len(pieces))]
    ids, at = ids_with_cuts(encode, text, cuts)

    def decode(part: list[int]) -> str:
        return tokenizer.decode(part, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    assert decode(ids) == decode(encode([text])[0])
    assert at == sorted(at)
    # The first cut is where a prompt ends: its tokens are its own.
    assert ids[: at[0]] == encode([text[: cuts[0]]])[0]
    for cut, place in zip(cuts, at, strict=True):
        assert decode(ids[:place]).rstrip("\ufffd") == decode(encode([text[:cut]])[0])


LLAMA2 = plain_llama2()


def test_a_tokenizer_that_appends_its_end_token_does_not_end_prompts() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"bos_token": "<begin>"})
    begin = tokenizer.bos_token_id
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<begin> $A <end>", special_tokens=[("<begin>", begin), ("<end>", 0)]
    )
    assert tokenizer("a")["input_ids"][-1] == 0
    (a, b) = tokenizer("ab", add_special_tokens=False)["input_ids"]
    assert prompts_token_ids(tokenizer, ["a", "ab"]) == [(begin, a), (begin, a, b)]
    policy = tiny_policy("llama")
    policy.tokenizer = tokenizer
    (found,) = demonstrations(policy, [{"prompt": "a", "completion": "b", "answer": "b"}])
    assert found.ids == (begin, a, b, 0)
    assert found.spans == ((2, 4),)
