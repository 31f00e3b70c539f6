"""Which pages of a paged cache are free, and which samples and prompts have the others.

A sample gets pages as it grows, and others begin while those that they and the running ones are expected to need are
free. Where that was too few, the schedule preempts the samples that began last: they begin again later.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from vigneron.rollout.engine.key_value_cache import EXPECTED_SHARE, pages_for
from vigneron.rollout.engine.prompt_groups import Group


@dataclass
class SharedPrompt:
    """The pages of a prompt, and the number of samples that read them."""

    pages: list[int]
    users: int = 0


@dataclass(frozen=True)
class SamplePages:
    """The pages of a sample: those of its prompt, and then its own."""

    prompt: SharedPrompt
    own: list[int]

    def row(self, width: int, spare: int) -> list[int]:
        """`width` pages; those that it does not have are the spare one."""
        pages = [*self.prompt.pages, *self.own]
        return pages + [spare] * (width - len(pages))


class Pages:
    """The pages of one request, whose completions have at most `new_tokens`. `whole`: a sample has the pages of the
    longest one from the start, so that it never needs more."""

    def __init__(self, count: int, new_tokens: int, *, whole: bool) -> None:
        self.free = list(range(count))
        self.held: dict[int, SamplePages] = {}  # by sample; the last one began last
        self._new_tokens, self.whole = new_tokens, whole
        self._sampled = EXPECTED_SHARE * new_tokens  # as if one sample of the expected length had ended
        self._ended = 1

    @property
    def expected(self) -> int:
        """The pages that a completion is expected to have: by the tokens that were sampled for each one that has
        ended, which is their mean if an end is always as likely."""
        return pages_for(self._new_tokens if self.whole else min(self._new_tokens, int(self._sampled / self._ended)))

    def note(self, sampled: int, ended: int = 0) -> None:
        """Count tokens that were sampled, less those that were dropped, and samples that have ended."""
        self._sampled += sampled
        self._ended += ended

    def room_for(self, prompt: int, *, shared: bool) -> int:
        """For how many samples there are pages beside those that run, behind a prompt of so many tokens; `shared`: one
        that has pages already. Alone at least one sample has room."""
        each = max(1, self.expected)
        growth = 0 if self.whole else sum(max(0, each - len(held.own)) for held in self.held.values())
        left = len(self.free) - growth - (0 if shared else pages_for(prompt))
        return max(left // each, 0 if self.held else 1)

    def begin(self, group: Group, beside: int | None = None) -> None:
        """Give samples of a prompt their first pages. They share the prompt's with the sample `beside`; without one the
        prompt gets pages too."""
        prompt = SharedPrompt(self._take(pages_for(len(group.prompt)))) if beside is None else self.held[beside].prompt
        prompt.users += len(group.samples)
        for sample in group.samples:
            self.held[sample] = SamplePages(prompt, self._take(self.expected if self.whole else 1))

    def missing(self, sample: int, tokens: int) -> int:
        """The pages that a sample lacks for so many tokens of its completion."""
        return max(0, pages_for(min(tokens, self._new_tokens)) - len(self.held[sample].own))

    def grow(self, sample: int, count: int) -> list[tuple[int, int]]:
        """Give a sample so many pages more; returns each one's place among its pages, and the page."""
        held = self.held[sample]
        first = len(held.prompt.pages) + len(held.own)
        taken = self._take(count)
        held.own.extend(taken)
        return list(enumerate(taken, first))

    def end(self, samples: Sequence[int]) -> None:
        """Take back the pages of samples, and those of prompts that no sample reads any more."""
        for sample in samples:
            held = self.held.pop(sample)
            self.free += held.own
            held.prompt.users -= 1
            if not held.prompt.users:
                self.free += held.prompt.pages

    def _take(self, count: int) -> list[int]:
        taken = self.free[len(self.free) - count :]
        assert len(taken) == count
        del self.free[len(self.free) - count :]
        return taken
