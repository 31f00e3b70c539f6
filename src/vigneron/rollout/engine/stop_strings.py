"""Stop strings: which token completes one, whatever the tokens' borders.

A completion ends with the first token after which its decoded text, special tokens included, contains a stop string.
The token may have characters behind the string; the tokens stay as they were sampled, and so does the text.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from vigneron.data.prompts import texts_of

BROKEN = "\ufffd"
"""What a part of a character decodes to."""
WINDOW = 16
"""Tokens that are decoded at first."""
MARGIN = 8
"""Characters before the longest stop string: the first token of a window may decode to another text than inside."""


class StopStrings:
    """The stop strings of a request, for one tokenizer."""

    def __init__(self, tokenizer: Any, strings: Sequence[str]) -> None:
        self._tokenizer, self._strings = tokenizer, tuple(strings)
        self._longest = max(map(len, self._strings))
        self._table = torch.tensor(self._can_complete())
        self._completing = frozenset(self._table.nonzero()[:, 0].tolist())

    def _can_complete(self) -> list[bool]:
        """For each token id whether a stop string can end in it: it has one's last character, or a part of one. The
        last entry stands for ids that the tokenizer does not have."""
        anchor = self._tokenizer("a", add_special_tokens=False)["input_ids"]
        before = self._text(anchor)
        ids = range(max(self._tokenizer.get_vocab().values()) + 1)
        ends = {BROKEN, *(string[-1] for string in self._strings)}
        texts = texts_of(self._tokenizer, [[*anchor, token] for token in ids], skip_special=False)
        return [not text.startswith(before) or not ends.isdisjoint(text[len(before) :]) for text in texts] + [False]

    def can_end(self, ids_RT: Int[Tensor, "R T"]) -> Bool[Tensor, "R T"]:
        """Whether a stop string can end in each token: few can, and only those need decoding."""
        if self._table.device != ids_RT.device:
            self._table = self._table.to(ids_RT.device)
        return self._table[ids_RT.clamp(max=len(self._table) - 1)]

    def end(self, ids: Sequence[int], start: int = 0) -> int | None:
        """The number of tokens up to the one that completes a stop string; None if there is none.

        The first `start` tokens are known to have none.
        """
        counts = (at + 1 for at in range(start, len(ids)) if ids[at] in self._completing)
        return next((count for count in counts if self._in_text(ids[:count])), None)

    def _in_text(self, ids: Sequence[int]) -> bool:
        """Whether the text contains a stop string that the last token completes. A few tokens before it can exclude
        that, unless they begin or break inside of a character; otherwise the whole text decides."""
        window = WINDOW
        while window < len(ids):
            text, before = self._text(ids[-window:]), self._text(ids[-window:-1])
            if len(before) >= self._longest + MARGIN and BROKEN not in text[:-3]:  # a character may be unfinished
                if not self._contained(text):
                    return False
                break
            window *= 2
        return self._contained(self._text(ids))

    def _contained(self, text: str) -> bool:
        return any(string in text for string in self._strings)

    def _text(self, ids: Sequence[int]) -> str:
        return texts_of(self._tokenizer, [ids], skip_special=False)[0]


@lru_cache(maxsize=4)
def stop_strings(tokenizer: Any, strings: tuple[str, ...]) -> StopStrings | None:
    """None without strings. Reading a vocabulary takes up to a second: it is done once."""
    return StopStrings(tokenizer, strings) if strings else None
