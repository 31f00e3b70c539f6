"""Prompts and completions as a person reads them. Light on purpose: whoever only looks loads no torch."""

from typing import Any

Row = dict[str, Any]


def prompt_text(prompt: Any) -> str:
    """A prompt as a person reads it."""
    if isinstance(prompt, str):
        return prompt
    return "\n".join(f"{message['role']}: {message['content']}" for message in prompt)


def completion_text(completion: Any) -> str:
    """A completion or an answer as text: plain, a number, or TRL's conversational form."""
    if isinstance(completion, list) and all(isinstance(m, dict) and "content" in m for m in completion):
        return "\n".join(str(message["content"]) for message in completion)
    return str(completion)
