"""What a run keeps of its tokens is what its loss saw."""

import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.tiny_runs import tiny_config, write_data
from vigneron import api
from vigneron.run_store.sample_search import SampleSearch
from vigneron.run_store.token_values import NAMES, SAMPLES, TokenValues
from vigneron.training.token_recorder import decoder, pieces, values_of


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Path:
    """GRPO with a KL and two updates a step, so that the ratio moves; more samples than are recorded."""
    place = tmp_path_factory.mktemp("recorded")
    config = tiny_config(
        tiny_folder,
        write_data(place),
        method={"name": "grpo", "updates_per_step": 2, "kl": {"coefficient": 0.1}},
        optimizer={"actor_lr": 1e-2},
        steps=2,
        prompts_per_step=5,
        group_size=4,
        eval_every=0,
        save_every=0,
    )
    return api.train(config, name="run", runs=place).folder


def recorded(run: Path, step: int) -> list[TokenValues]:
    with SampleSearch(run) as search:
        found = [search.tokens(step, "train", number) for number in range(SAMPLES + 4)]
        assert [one is not None for one in found] == [True] * SAMPLES + [False] * 4
        texts = {sample.sample: sample.completion for sample in search.page(step=step)}
    joined = {number: "".join(one.pieces) for number, one in enumerate(found) if one is not None}
    plain = [number for number in joined if texts[number].isascii()]
    assert plain
    assert all(texts[number] in joined[number] for number in plain)
    return [one for one in found if one is not None]


@pytest.mark.slow
def test_every_value_is_there_and_agrees_with_the_others(run: Path) -> None:
    with SampleSearch(run) as search:
        advantages = [one.advantage for one in search.page(step=2)]
    first, second = recorded(run, 1), recorded(run, 2)
    for values, advantage in zip(second, advantages, strict=False):
        assert set(values.values) == set(NAMES)
        assert all(values.trained)
        assert {len(of) for of in values.values.values()} == {len(values.pieces)}
        assert all(value <= 0 for value in values.values["logprob"] if value is not None)
        assert all(value is not None and value >= 0 for value in values.values["entropy"])
        assert values.values["advantage"] == pytest.approx([advantage] * len(values.pieces), abs=1e-3)
    # The first step samples from the reference itself; the second one does not.
    assert all(abs(value or 0.0) < 1e-3 for values in first for value in values.values["kl"])
    assert any(abs(value or 0.0) > 1e-3 for values in second for value in values.values["kl"])
    # In the second of two updates the policy is no longer the one that sampled.
    assert any(abs((value or 1.0) - 1) > 1e-3 for values in first for value in values.values["ratio"])


def test_values_by_hand() -> None:
    own = {"behaviour": [-1.0, -2.0], "updated": [-1.0, -1.0], "reference": [-1.5, -2.0], "entropy": None}
    found = values_of({**own, "advantage": [0.5, 0.5]}, width=3)
    assert found["logprob"][:2] == [-1.0, -2.0]
    assert found["ratio"][:2] == [1.0, pytest.approx(math.e)]
    assert found["kl"][:2] == [0.5, 0.0]
    assert math.isnan(found["kl"][2])
    assert "entropy" not in found
    given = values_of({**own, "behaviour": [0.0, 0.0], "advantage": None}, width=2)
    assert given == {"logprob": [-1.0, -1.0], "kl": [0.5, 1.0]}


def test_a_character_of_several_tokens_is_written_once() -> None:
    def decode(ids: object) -> str:
        return bytes(ids).decode("utf-8", "replace")  # type: ignore[call-overload, no-any-return]

    assert pieces(list("aé€b".encode()), decode) == ["a", "", "é", "", "", "€", "b"]
    assert pieces([0xC3, 0x61], decode) == ["\ufffd", "a"]
    assert pieces([0xFF, *"€".encode(), 0x80], decode) == ["\ufffd", "", "", "€", "\ufffd"]


def test_bytes_that_are_no_text_take_little_time_and_memory() -> None:
    """A model that writes random bytes: the tokens of a sample are not joined with all before them."""
    longest, calls = 0, 0

    class Bytes:
        def decode(self, ids: Sequence[int], **how: bool) -> str:
            nonlocal longest, calls
            longest, calls = max(longest, len(ids)), calls + 1
            return bytes(ids).decode("utf-8", "replace")

    decode = decoder(Bytes())
    assert pieces([0xFF] * 500, decode) == ["\ufffd"] * 500
    assert longest == 4
    assert calls < 4 * 500
    single = calls
    pieces([0x61, 0xFF], decode)
    pieces([0x61], decode)
    assert calls <= single + 2, "single tokens are decoded once"
