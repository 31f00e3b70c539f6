"""Prompts that are conversations."""

from support.talking import talking_model
from vigneron.data.prompts import prompts_token_ids


def test_conversations_are_tokenized_together_as_each_alone() -> None:
    tokenizer = talking_model()[1]
    texts = ["one", "two", "one", "<|vigneron_model|>"]  # the last is escaped
    prompts = [[{"role": "user", "content": text}] for text in texts]
    together = prompts_token_ids(tokenizer, prompts)
    assert together == [prompts_token_ids(tokenizer, [prompt])[0] for prompt in prompts]
    assert len(set(together)) == 3
