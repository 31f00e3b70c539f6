"""The schedule with a fake decoder: every sample is completed once, behind its own prompt, whatever ends when."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vigneron.core.draws import Sampling
from vigneron.rollout.engine.decode_state import DecodeState
from vigneron.rollout.engine.key_value_cache import Room
from vigneron.rollout.engine.request import Completions, Request
from vigneron.rollout.engine.schedule import AHEAD, CHECK_EVERY, Schedule

END = 0
SIZE = 64
"""Of the vocabulary."""


@dataclass
class FakeDecoder:
    """A row's tokens are its prompt's number again and again, read where the cache has the prompt, and then END.

    `cache` has for each place, or row, the prompt that was written there last; `lengths` the tokens of each draw key.
    """

    rows: int
    prompts: int
    graphed: bool
    lengths: dict[int, int]
    device = torch.device("cpu")
    pad_id = -1
    ends: Tensor = field(default_factory=lambda: torch.tensor([END]))
    cache: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.state = DecodeState.empty(self.rows_for(self.rows), 12, self.device, torch.float32)

    def rows_for(self, count: int) -> int:
        return -(-count // 4) * 4 if self.graphed else count

    def position_offset(self, prompt: int) -> int:
        return 0

    def prefill(self, prompts: Sequence[Sequence[int]], places: Sequence[int]) -> Tensor:
        assert len(set(places)) == len(places)
        live = self.state.running.nonzero().flatten().tolist()
        in_use = {int(self.state.prompt[row]) for row in live} if self.prompts else set(live)
        assert not in_use & set(places), "a place is written while a row reads it"
        self.cache |= {place: prompt[-1] for place, prompt in zip(places, prompts, strict=True)}
        return torch.tensor([[float(prompt[-1])] for prompt in prompts])

    def share_prompt(self, sources: Sequence[int], targets: Sequence[int], width: int) -> None:
        assert not self.prompts
        assert not any(self.state.running[row] for row in targets)
        self.cache |= {target: self.cache[source] for source, target in zip(sources, targets, strict=True)}

    def logits(self, hidden_NH: Tensor) -> Tensor:
        return 100.0 * torch.nn.functional.one_hot(hidden_NH[:, 0].long(), SIZE)

    def decode(self, count: int, sampling: Sampling | None) -> None:
        state, tokens = self.state, []
        for row in range(count):
            last = int(state.written[row]) + 1 == self.lengths.get(int(state.key[row]), -1)
            place = int(state.prompt[row]) if self.prompts else row
            tokens.append(END if last else self.cache.get(place, 1))
        state.write(slice(0, count), torch.tensor(tokens), torch.zeros(count), self.ends)

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        assert len(set(sources)) == len(set(targets)) == len(sources)
        self.state.move(torch.tensor(sources, dtype=torch.long), torch.tensor(targets, dtype=torch.long))
        if not self.prompts:
            before = dict(self.cache)
            self.cache |= {target: before[source] for source, target in zip(sources, targets, strict=True)}


@dataclass(frozen=True)
class Case:
    groups: tuple[tuple[int, ...], ...]
    """For each group, the tokens of its samples."""
    widths: tuple[int, ...]
    rows: int
    prompts: int
    graphed: bool
    microbatch_tokens: int
    check_every: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    sizes = st.lists(st.integers(2, 14), min_size=1, max_size=6).map(tuple)
    groups = tuple(draw(st.lists(sizes, min_size=1, max_size=8)))
    widths = tuple(draw(st.integers(1, 9)) for _ in groups)
    return Case(
        groups,
        widths,
        draw(st.integers(1, 12)),
        draw(st.integers(0, 5)),
        draw(st.booleans()),
        draw(st.integers(1, 30)),
        draw(st.integers(1, 8)),
    )


@pytest.mark.slow
@given(cases())
@settings(max_examples=40, deadline=None)
def test_every_sample_is_completed_once_behind_its_own_prompt(case: Case) -> None:
    new, tokens = 12, [count for group in case.groups for count in group]
    prompts = [
        tuple([1] * (width - 1) + [number + 2])
        for number, (group, width) in enumerate(zip(case.groups, case.widths, strict=True))
        for _ in group
    ]
    request = Request(prompts, new, None, 3, 1, list(range(len(prompts))), case.microbatch_tokens)
    decoder = FakeDecoder(case.rows, case.prompts, case.graphed, {})
    blank = torch.full((len(prompts), new), -1)
    done = Completions(blank, *_blank(len(prompts), new))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(CHECK_EVERY, "cpu", case.check_every)
        room = Room(case.rows, new + 9, case.prompts, 9, new)
        schedule = Schedule(decoder, request, room, done)
        decoder.lengths |= dict(zip(schedule.keys.tolist(), tokens, strict=True))
        collected: list[int] = []
        _watch(schedule, collected)
        schedule.run()
    assert sorted(collected) == list(range(len(prompts)))
    for sample, (prompt, count) in enumerate(zip(prompts, tokens, strict=True)):
        cut = count > new
        expected = [prompt[-1]] * new if cut else [prompt[-1]] * (count - 1) + [END] + [-1] * (new - count)
        assert done.ids_BT[sample].tolist() == expected
        assert done.lengths_B[sample] == min(count, new)
        assert bool(done.truncated_B[sample]) is cut
        assert done.prompt_hidden_BH[sample, 0] == prompt[-1]
    assert sorted(schedule.unused) == list(range(case.prompts))
    assert not any(schedule.users)


def test_soon_after_all_rows_have_ended_no_more_steps_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three samples of 5, 3 and 4 tokens, the first of which come from the prompt: 4 steps, and those under way."""
    monkeypatch.setitem(CHECK_EVERY, "cpu", 8)
    request = Request([(1, 2)] * 3, 12, None, 3, 1, [0, 1, 2], 30)
    decoder = FakeDecoder(3, 0, False, {})
    schedule = Schedule(decoder, request, Room(3, 21, 0, 9, 12), Completions(torch.full((3, 12), -1), *_blank(3, 12)))
    decoder.lengths |= dict(zip(schedule.keys.tolist(), (5, 3, 4), strict=True))
    steps: list[int] = []
    decode = decoder.decode
    monkeypatch.setattr(decoder, "decode", lambda *given: (steps.append(1), decode(*given)))
    assert schedule.run().lengths_B.tolist() == [5, 3, 4]
    assert len(steps) == 4 + AHEAD


def _blank(count: int, new: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    lengths, truncated = torch.zeros(count, dtype=torch.long), torch.zeros(count, dtype=torch.bool)
    return lengths, torch.zeros(count, new), truncated, torch.zeros(count, 1)


def _watch(schedule: Schedule, collected: list[int]) -> None:
    """Note the samples that are collected, and check each time that the host knows the place of each row's prompt."""
    collect = schedule._collect_ended

    def watched(ended: list[int]) -> None:
        collected.extend(owner for row in ended if (owner := schedule.owner[row]) is not None)
        live = [row for row, owner in enumerate(schedule.owner) if owner is not None]
        if schedule.shares:
            assert [schedule.prompt[row] for row in live] == schedule.state.prompt[live].tolist()
            counts = [sum(schedule.prompt[row] == place for row in live) for place in range(len(schedule.users))]
            assert counts == schedule.users
            assert sorted(schedule.unused) == [place for place, count in enumerate(counts) if not count]
        collect(ended)

    schedule._collect_ended = watched  # type: ignore[method-assign]
