"""Who passes which sample: all of them once, pairs by one rank, and about as many tokens each."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from support.small_batch import make_batch
from vigneron.batch import Batch
from vigneron.cli.training import without_option
from vigneron.config import Config, RewardConfig
from vigneron.distributed import ranks
from vigneron.distributed.launch import check_ranks, resume_command
from vigneron.errors import UserError
from vigneron.policy.rank_batches import assign_ranks, balanced_owners
from vigneron.recipe import changed_config, check_config, load_config
from vigneron.rewards.build import build_reward
from vigneron.sources.placement import NOT_LOADED
from vigneron.training.setup.rank_files import join_ranks

sizes = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=2, max_size=24)


def tokens(batch: Batch, row: int) -> int:
    return batch.samples.spans[row][-1][1]


@given(sizes, st.integers(2, 5))
def test_every_sample_has_one_owner_and_loads_are_even(lengths: list[tuple[int, int]], hands: int) -> None:
    batch = make_batch([p for p, _ in lengths], [c for _, c in lengths])
    owners = balanced_owners(batch, hands)
    assert len(owners) == len(batch)
    assert set(owners) <= set(range(hands))
    loads = [sum(tokens(batch, i) for i, owner in enumerate(owners) if owner == hand) for hand in range(hands)]
    alike = {
        prompt: [i for i, p in enumerate(batch.samples.prompt_ids) if p == prompt]
        for prompt in batch.samples.prompt_ids
    }
    if len(alike) >= 2 * hands:
        assert all(len({owners[i] for i in rows}) == 1 for rows in alike.values()), "one copy of a prompt is passed"
    else:
        assert max(loads) - min(loads) <= max(tokens(batch, i) for i in range(len(batch)))


@given(sizes, st.integers(2, 5))
def test_a_pair_is_with_one_rank(lengths: list[tuple[int, int]], hands: int) -> None:
    twice = [each for each in lengths for _ in range(2)]
    owners = balanced_owners(make_batch([p for p, _ in twice], [c for _, c in twice], paired=True), hands)
    assert owners[0::2] == owners[1::2]


def test_owners_go_with_their_samples() -> None:
    batch = make_batch([2, 2, 3], [1, 2, 3])
    assert assign_ranks(batch) is batch, "one process shares with nobody"
    assert batch.with_packing(owners=(0, 1, 2)).rows([2, 0]).packing.owners == (2, 0)


def test_the_command_without_its_option() -> None:
    given = ["train", "r.yaml", "--nproc", "2", "steps=2", "--name", "a"]
    assert without_option(given, "--nproc") == ["train", "r.yaml", "steps=2", "--name", "a"]
    assert without_option(["resume", "--nproc=4", "runs/x"], "--nproc") == ["resume", "runs/x"]


def config(tmp_path: Path, **keys: object) -> Config:
    return check_config(
        {"method": {"name": "sft"}, "data": {"train": "rows.jsonl"}, "prompts_per_step": 4, **keys}, "test"
    )


def test_ranks_that_do_not_fit(tmp_path: Path) -> None:
    check_ranks(config(tmp_path, scale={"shard": 2}), 4)
    with pytest.raises(UserError, match="5 ranks have only 4 samples per step"):
        check_ranks(config(tmp_path), 5)
    with pytest.raises(UserError, match=r"4 ranks are not a multiple of 3,.*: start 3 or a multiple"):
        check_ranks(config(tmp_path, scale={"shard": 3}), 4)
    with pytest.raises(UserError, match=r"1 rank is not a multiple of 2,.*--nproc 2\), or set scale.shard=1"):
        check_ranks(config(tmp_path, scale={"shard": 2}), 1)
    assert resume_command(tmp_path, 2) == f"vigneron resume {tmp_path} --nproc 2"
    assert resume_command(tmp_path, 1) == f"vigneron resume {tmp_path}"


def test_a_lost_rank_is_said_in_words_of_ours() -> None:
    gloo = "[/a/b/pair.cc:553] Connection closed by peer [127.0.0.1]:40098. Check the logs. GLHF!"
    assert "GLHF" not in str(ranks.connection_lost(RuntimeError(gloo)))
    assert "NCCL timed out" in str(ranks.connection_lost(RuntimeError("NCCL timed out\nand more")))


@pytest.mark.parametrize("rank", ["0", "1"])
def test_what_every_rank_finds_is_said_by_the_first(rank: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "5")
    monkeypatch.setenv("RANK", rank)
    with pytest.raises(UserError, match="5 ranks have only 4 samples per step") as caught:
        join_ranks(config(tmp_path))
    assert caught.value.reported_elsewhere is (rank != "0")


def test_another_kind_leaves_the_old_ones_keys_behind(tmp_path: Path) -> None:
    """Of a config that is spelled out, as a run's is: nobody wrote them."""
    before = load_config("grpo-antonyms", ["scale.sampling.kind=ray", "scale.sampling.actors=3"])
    after = changed_config(before, ["steps=7", "scale.sampling.kind=here"], "run")
    assert (after.scale.sampling.kind, after.steps) == ("here", 7)
    assert changed_config(before, ["scale.sampling.kind=ray"], "run") == before
    again = changed_config(after, ["scale.sampling.actors=2", "scale.sampling.kind=ray"], "run")
    assert again.scale.sampling == before.scale.sampling.model_copy(update={"actors": 2})
    with pytest.raises(UserError, match=r"scale\.sampling\.actors"):
        changed_config(after, ["scale.sampling.actors=2"], "run")


@pytest.mark.parametrize("kind", ["model", "preference", "semantic"])
def test_a_rank_that_asks_nobody_loads_no_model_of_a_reward(kind: str, tmp_path: Path) -> None:
    """Whose name nothing answers to: looked for, it would be an error."""
    named = {"embedder": "minilm"} if kind == "semantic" else {"model": str(tmp_path / "nowhere")}
    found = TypeAdapter[RewardConfig](RewardConfig).validate_python({"kind": kind, **named})
    if kind != "semantic":
        with pytest.raises(UserError, match="nowhere"):
            build_reward(found, lambda **columns: [])
    build_reward(found, lambda **columns: [], placement=NOT_LOADED)
