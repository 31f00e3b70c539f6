"""What is typed in `vigneron chat`: messages of one line or several, and commands."""

import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from rich.console import Console

from vigneron.report.terminal import say

FENCE = '"""'
HELP, EXIT, NEW = "/help", "/exit", "/new"


class Command(str):
    """A command, and not a message with the same text."""


@dataclass
class ChatInput:
    """`about` says what a message is; `commands` are those beside /help and /exit, with what they do."""

    console: Console
    about: str
    commands: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if sys.stdin.isatty():
            with suppress(ImportError):
                import readline  # noqa: F401 - arrow keys, and a pasted text of several lines is one message
        say(self.console, f"{self.about}; {HELP} lists what you can type, {EXIT} ends the chat")

    def read(self) -> str | None:
        """The next message, or a `Command` of `commands`; None at /exit and at the end of the input."""
        while (line := self._line("> ")) is not None:
            word = line.strip()
            if word == EXIT:
                return None
            if word == HELP:
                self._help()
            elif word in self.commands:
                return Command(word)
            elif word.startswith("/") and word[1:].isalpha():
                say(self.console, f"unknown command '{word}': {HELP} lists them; as a message, write it in {FENCE}")
            elif word.startswith(FENCE):
                block = self._block(word.removeprefix(FENCE))
                if block is None or block.strip():
                    return block
            elif word:
                return line
        return None

    def _block(self, line: str | None) -> str | None:
        """The text up to the closing marks; None if the input ends before them."""
        lines = []
        while line is not None and not line.rstrip().endswith(FENCE):
            lines.append(line)
            line = self._line("… ")
        if line is None:
            return None
        lines.append(line.rstrip().removesuffix(FENCE))
        return "\n".join(lines).removeprefix("\n").removesuffix("\n")

    def _line(self, prompt: str) -> str | None:
        try:
            return input(prompt)
        except (EOFError, KeyboardInterrupt):
            if sys.stdin.isatty():
                say(self.console, "")  # ends the line of the prompt
            return None

    def _help(self) -> None:
        known = {
            "a text": self.about,
            f"{FENCE} … {FENCE}": "a message of several lines, between two triple quotes",
            **self.commands,
            HELP: "this list",
            EXIT: "end the chat (or Ctrl-D)",
        }
        for name, meaning in known.items():
            say(self.console, f"  {name:<12} {meaning}")
