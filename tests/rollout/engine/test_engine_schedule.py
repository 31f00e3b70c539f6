"""The schedule with a fake decoder: every sample is completed once, behind its own prompt, whatever ends when."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vigneron.core.draws import Sampling
from vigneron.rollout.engine import key_value_cache
from vigneron.rollout.engine.decode_state import DecodeState
from vigneron.rollout.engine.key_value_cache import EXPECTED_SHARE, Room, paged_room, pages_for
from vigneron.rollout.engine.request import Completions, Request
from vigneron.rollout.engine.schedule import AHEAD, CHECK_EVERY, Schedule

END = 0
SIZE = 64
"""Of the vocabulary."""
NEW, PROMPT, PAGE = 12, 9, 4
"""The longest completion and prompt, and the tokens of a page."""


@pytest.fixture(autouse=True, scope="module")
def small_pages() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_value_cache, "PAGE", PAGE)
        yield


@dataclass
class FakeDecoder:
    """A row's tokens are its prompt's number again and again, read where the cache has the prompt, and then END.

    `cache` has for each page, or row, what was written there last: the number of a prompt, or the draw key of a sample.
    `lengths` are the tokens of each draw key.
    """

    room: Room
    graphed: bool
    lengths: dict[int, int]
    device = torch.device("cpu")
    pad_id = -1
    reads_chunks = False
    ends: Tensor = field(default_factory=lambda: torch.tensor([END]))
    cache: dict[int, int] = field(default_factory=dict)
    steps: int = 0
    prefilled: list[int] = field(default_factory=list)
    """The number of prompts in each prefill."""

    def __post_init__(self) -> None:
        rows = self.rows_for(self.room.rows)
        self.state = DecodeState.empty(rows, NEW, self.device, torch.float32, pages=self.room.row_pages)

    def rows_for(self, count: int) -> int:
        return -(-count // 4) * 4 if self.graphed else count

    def position_offset(self, prompt: int) -> int:
        return 0

    def prefill(self, prompts: Sequence[Sequence[int]], places: Sequence[Sequence[int]]) -> Tensor:
        self.prefilled.append(len(prompts))
        written = [place for some in places for place in some]
        assert len(set(written)) == len(written)
        live = self.state.running.nonzero().flatten().tolist()
        in_use = set(self.state.pages[live].flatten().tolist()) - {self.room.spare} if self.room.pages else set(live)
        assert not in_use & set(written), "a place is written while a row reads it"
        for some, prompt in zip(places, prompts, strict=True):
            self.cache |= dict.fromkeys(some, prompt[-1])
        return torch.tensor([[float(prompt[-1])] for prompt in prompts])

    def share_prompt(self, sources: Sequence[int], targets: Sequence[int], width: int) -> None:
        assert not self.room.pages
        assert not any(self.state.running[row] for row in targets)
        self.cache |= {target: self.cache[source] for source, target in zip(sources, targets, strict=True)}

    def logits(self, hidden_NH: Tensor) -> Tensor:
        return 100.0 * torch.nn.functional.one_hot(hidden_NH[:, 0].long(), SIZE)

    def decode(self, count: int, sampling: Sampling | None) -> None:
        self.steps += 1
        state, tokens = self.state, []
        for row in range(count):
            last = int(state.written[row]) + 1 == self.lengths.get(int(state.key[row]), -1)
            place = self._attend(row) if self.room.pages else row
            tokens.append(END if last else self.cache.get(place, 1))
        state.write(slice(0, count), torch.tensor(tokens), torch.zeros(count), self.ends)

    def _attend(self, row: int) -> int:
        """Write a row's last token, and check that its earlier ones are there; returns the page of its prompt."""
        state, pages = self.state, self.state.pages[row].tolist()
        own = int(state.slot[row] - state.start[row])
        of_row = pages[pages_for(int(state.start[row])) :][: own // PAGE + 1]
        if state.running[row]:
            assert self.room.spare not in of_row
            assert all(self.cache[page] == int(state.key[row]) for page in of_row[: pages_for(own)])
        self.cache[of_row[-1]] = int(state.key[row])
        return pages[0]

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        assert len(set(sources)) == len(set(targets)) == len(sources)
        self.state.move(torch.tensor(sources, dtype=torch.long), torch.tensor(targets, dtype=torch.long))
        if not self.room.pages:
            before = dict(self.cache)
            self.cache |= {target: before[source] for source, target in zip(sources, targets, strict=True)}


@dataclass(frozen=True)
class Case:
    groups: tuple[tuple[int, ...], ...]
    """For each group, the tokens of its samples."""
    widths: tuple[int, ...]
    rows: int
    pages: int | None
    """The most pages; None: the cache is not paged."""
    graphed: bool
    microbatch_tokens: int
    check_every: int

    def room(self) -> Room:
        if self.pages is None:
            return Room(self.rows, NEW + PROMPT, new_tokens=NEW)
        groups = [(width, len(group)) for group, width in zip(self.groups, self.widths, strict=True)]
        return paged_room(groups, NEW, self.pages, whole=False)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    sizes = st.lists(st.integers(2, 14), min_size=1, max_size=6).map(tuple)
    groups = tuple(draw(st.lists(sizes, min_size=1, max_size=8)))
    widths = tuple(draw(st.integers(1, PROMPT)) for _ in groups)
    return Case(
        groups,
        widths,
        draw(st.integers(1, 12)),
        draw(st.none() | st.integers(1, 60)),
        draw(st.booleans()),
        draw(st.integers(1, 30)),
        draw(st.integers(1, 8)),
    )


@pytest.mark.slow
@given(cases())
@settings(max_examples=80, deadline=None)
def test_every_sample_is_completed_once_behind_its_own_prompt(case: Case) -> None:
    """Where there are too few pages, samples begin again: what they read is theirs all the same."""
    tokens = [count for group in case.groups for count in group]
    prompts = [
        tuple([1] * (width - 1) + [number + 2])
        for number, (group, width) in enumerate(zip(case.groups, case.widths, strict=True))
        for _ in group
    ]
    request = Request(prompts, NEW, None, 3, 1, list(range(len(prompts))), case.microbatch_tokens)
    decoder = FakeDecoder(case.room(), case.graphed, {})
    done = Completions(torch.full((len(prompts), NEW), -1), *_blank(len(prompts), NEW))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(CHECK_EVERY, "cpu", case.check_every)
        schedule = Schedule(decoder, request, decoder.room, done)
        decoder.lengths |= dict(zip(schedule.keys.tolist(), tokens, strict=True))
        collected: list[int] = []
        _watch(schedule, collected)
        schedule.run()
    assert sorted(collected) == list(range(len(prompts)))
    for sample, (prompt, count) in enumerate(zip(prompts, tokens, strict=True)):
        cut = count > NEW
        expected = [prompt[-1]] * NEW if cut else [prompt[-1]] * (count - 1) + [END] + [-1] * (NEW - count)
        assert done.ids_BT[sample].tolist() == expected
        assert done.lengths_B[sample] == min(count, NEW)
        assert bool(done.truncated_B[sample]) is cut
        assert done.prompt_hidden_BH[sample, 0] == prompt[-1]
    if schedule.pages is not None:
        assert sorted(schedule.pages.free) == list(range(decoder.room.pages))
        assert not schedule.pages.held


def test_pages_hold_more_samples_at_a_time_than_slots_for_the_longest() -> None:
    """40 samples of 3 tokens and at most 12, in 16 pages of 4: with the pages of the longest completion from the start,
    five run at a time, in eight rounds of two steps."""
    steps = {}
    for whole in (True, False):
        request = Request([(1, 2)] * 40, NEW, None, 3, 1, list(range(40)), 30)
        decoder = FakeDecoder(paged_room([(2, 40)], NEW, 16, whole=whole), False, {})
        schedule = Schedule(decoder, request, decoder.room, Completions(torch.full((40, NEW), -1), *_blank(40, NEW)))
        assert schedule.pages is not None
        schedule.pages.whole = whole
        decoder.lengths |= dict.fromkeys(schedule.keys.tolist(), 3)
        assert schedule.run().lengths_B.tolist() == [3] * 40
        steps[whole] = decoder.steps
    assert steps == {True: 8 * 2, False: 3 * 2}


def test_a_sample_begins_as_soon_as_others_have_left_their_pages() -> None:
    """Eight of nine samples at a time, each with the pages of the longest completion from the start: the ninth, of 3
    tokens, begins behind two of 3, and is done before the six of 12."""
    request = Request([(1, 2 + number) for number in range(9)], NEW, None, 3, 1, list(range(9)), 30)
    decoder = FakeDecoder(paged_room([(2, 1)] * 9, NEW, 32, whole=True), True, {})
    schedule = Schedule(decoder, request, decoder.room, Completions(torch.full((9, NEW), -1), *_blank(9, NEW)))
    assert schedule.pages is not None
    schedule.pages.whole = True
    lengths = [3, 3, 3, *[NEW] * 6]  # the last ones begin first
    decoder.lengths |= dict(zip(schedule.keys.tolist(), lengths, strict=True))
    assert schedule.run().lengths_B.tolist() == lengths
    assert (schedule.capacity, decoder.steps) == (8, NEW - 1)


def run(prompts: Sequence[Sequence[int]], lengths: Sequence[int], room: Room, *, whole: bool = True) -> FakeDecoder:
    """The decoder after samples of these lengths."""
    count = len(prompts)
    request = Request(prompts, NEW, None, 3, 1, list(range(count)), 30)
    decoder = FakeDecoder(room, False, {})
    schedule = Schedule(decoder, request, room, Completions(torch.full((count, NEW), -1), *_blank(count, NEW)))
    if schedule.pages is not None:
        schedule.pages.whole = whole
    decoder.lengths |= dict(zip(schedule.keys.tolist(), lengths, strict=True))
    assert schedule.run().lengths_B.tolist() == list(lengths)
    return decoder


@pytest.mark.parametrize("paged", [False, True])
def test_a_row_that_is_free_takes_the_next_sample_of_a_group(paged: bool) -> None:
    """Four samples of one prompt in two rows: the second one's 6 tokens are 5 steps after the first token, in which the
    other row has 1 + 2 + 2. The prompt is prefilled once."""
    room = paged_room([(2, 4)], NEW, 7, whole=True) if paged else Room(2, 21, new_tokens=NEW)
    assert room.rows == 2
    decoder = run([(1, 2)] * 4, [2, 6, 3, 3], room)
    assert (decoder.steps, decoder.prefilled) == (5, [1])


@pytest.mark.parametrize("paged", [False, True])
def test_a_prompt_that_no_row_has_any_more_is_prefilled_again(paged: bool) -> None:
    """Three groups of two in three rows, two steps each: one group and a half at a time."""
    room = paged_room([(2, 2)] * 3, NEW, 11, whole=True) if paged else Room(3, 21, new_tokens=NEW)
    assert room.rows == 3
    decoder = run([(1, 2 + i // 2) for i in range(6)], [3] * 6, room)
    assert (decoder.steps, decoder.prefilled) == (2 + 2, [2, 2])


def test_a_page_that_is_free_takes_the_next_sample_of_a_group() -> None:
    """A prompt has a page of four; samples of up to 5 tokens, of which the cache has 4, have one each. Three begin, and
    the last one's 3 steps after the first one's end are over with the others' 4."""
    room = paged_room([(2, 4)], NEW, 4, whole=False)
    assert (room.rows, room.pages) == (3, 4)
    decoder = run([(1, 2)] * 4, [2, 5, 5, 4], room, whole=False)
    assert (decoder.steps, decoder.prefilled) == (4, [1])


def test_samples_that_began_last_give_up_their_pages() -> None:
    """Four samples of 12 tokens in 7 pages of 4, of which the prompt has one: two are finished, then the others."""
    request = Request([(1, 2)] * 4, NEW, None, 3, 1, list(range(4)), 30)
    decoder = FakeDecoder(paged_room([(2, 4)], NEW, 7, whole=False), False, {})
    schedule = Schedule(decoder, request, decoder.room, Completions(torch.full((4, NEW), -1), *_blank(4, NEW)))
    collected: list[int] = []
    _watch(schedule, collected)
    assert schedule.run().ids_BT.tolist() == [[2] * NEW] * 4
    assert (schedule.capacity, collected[:2], sorted(collected[2:])) == (4, [0, 1], [2, 3])
    assert decoder.steps == 2 * (NEW - 1)
    assert schedule.pages is not None
    assert schedule.pages._sampled == EXPECTED_SHARE * NEW + 4 * (NEW - 1)  # what was dropped is not counted


def test_soon_after_all_rows_have_ended_no_more_steps_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three samples of 5, 3 and 4 tokens, the first of which come from the prompt: 4 steps, and those under way."""
    monkeypatch.setitem(CHECK_EVERY, "cpu", 8)
    request = Request([(1, 2)] * 3, NEW, None, 3, 1, [0, 1, 2], 30)
    decoder = FakeDecoder(Room(3, 21, new_tokens=NEW), False, {})
    schedule = Schedule(decoder, request, decoder.room, Completions(torch.full((3, NEW), -1), *_blank(3, NEW)))
    decoder.lengths |= dict(zip(schedule.keys.tolist(), (5, 3, 4), strict=True))
    assert schedule.run().lengths_B.tolist() == [5, 3, 4]
    assert decoder.steps == 4 + AHEAD


def _blank(count: int, new: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    lengths, truncated = torch.zeros(count, dtype=torch.long), torch.zeros(count, dtype=torch.bool)
    return lengths, torch.zeros(count, new), truncated, torch.zeros(count, 1)


def _watch(schedule: Schedule, collected: list[int]) -> None:
    """Note the samples that are collected, and check each time that the host knows the pages of each row."""
    collect = schedule._collect_ended

    def watched(ended: list[int]) -> None:
        collected.extend(owner for row in ended if (owner := schedule.owner[row]) is not None)
        if schedule.pages is not None:
            pages, spare, width = schedule.pages, schedule.spare, schedule.state.pages.shape[1]
            live = {owner: row for row, owner in enumerate(schedule.owner) if owner is not None}
            assert live.keys() == pages.held.keys()
            for sample, held in pages.held.items():
                assert schedule.state.pages[live[sample]].tolist() == held.row(width, spare)
            prompts = {id(held.prompt): held.prompt for held in pages.held.values()}.values()
            assert sum(prompt.users for prompt in prompts) == len(pages.held)
            taken = [page for prompt in prompts for page in prompt.pages]
            taken += [page for held in pages.held.values() for page in held.own]
            assert sorted(taken + pages.free) == list(range(spare))
        collect(ended)

    schedule._collect_ended = watched  # type: ignore[method-assign]
