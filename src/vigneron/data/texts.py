"""Prompts and completions as readable text. Does not import torch."""

from typing import Any

Row = dict[str, Any]


def prompt_text(prompt: Any) -> str:
    """A prompt as text, a conversation with one line per message."""
    if isinstance(prompt, str):
        return prompt
    return "\n".join(f"{message['role']}: {message['content']}" for message in prompt)


def completion_text(completion: Any) -> str:
    """A completion or answer as text: given as text, number, or TRL's list of messages."""
    if isinstance(completion, list) and all(isinstance(m, dict) and "content" in m for m in completion):
        return "\n".join(str(message["content"]) for message in completion)
    return str(completion)
