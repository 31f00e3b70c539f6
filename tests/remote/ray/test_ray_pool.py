"""The pool itself, with actors that need no model: a real Ray on this machine, real deaths."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from vigneron.config import PoolConfig, SemanticRewardConfig
from vigneron.errors import UserError
from vigneron.remote.ray import pool as pools
from vigneron.remote.ray.cluster import FREE_PERIOD, FREE_PERIOD_MS, Cluster, PoolSpec
from vigneron.remote.ray.embedding import EmbedderPool
from vigneron.remote.ray.pool import Pool
from vigneron.remote.ray.sampler import pieces, sample_pieces
from vigneron.rewards.build import build_reward
from vigneron.rewards.final_number import final_number_reward
from vigneron.sources.placement import ModelPlacement

pytestmark = pytest.mark.slow

ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    before = signal.getsignal(signal.SIGTERM)
    found = Cluster(None)
    assert signal.getsignal(signal.SIGTERM) is before
    yield found
    found.close()
    assert not ray.is_initialized()


def test_a_cluster_of_ours_frees_old_weights_at_once(cluster: Cluster) -> None:
    """Whether Ray was told: a worker has the environment of the process that keeps its node's objects."""
    told = cluster.ray.remote(lambda name: os.environ.get(name))
    assert ray.get(told.remote(FREE_PERIOD)) == FREE_PERIOD_MS


def pool_of(cluster: Cluster, actors: int, **options: Any) -> Pool:
    class Worker:  # within a function: it is sent as it stands, and its process imports nothing
        def __init__(self, info: dict[str, Any]) -> None:
            self.info = info

        def node_info(self) -> dict[str, Any]:
            return {**self.info, "pid": str(os.getpid()), "node": ray.get_runtime_context().get_node_id()}

        def setup(self) -> None: ...

        def double(self, number: int, dies_once: str | None) -> tuple[int, int]:
            if dies_once is not None and not os.path.exists(dies_once):
                with suppress(FileNotFoundError):  # in a folder that is not there: it dies every time
                    open(dies_once, "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
            return 2 * number, os.getpid()

    size = PoolConfig(actors=actors, cpus=options.pop("cpus", 0.5))
    made = cluster.ray.remote(Worker).options(num_cpus=size.cpus, max_restarts=0)
    return Pool(cluster, PoolSpec("scale.embedding", size), lambda: made.remote(cluster.node_info), **options)


def test_pieces_come_back_in_order_whoever_dies(
    cluster: Cluster, tmp_path: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    pool = pool_of(cluster, 2)
    pool.start()
    deaths = {3: str(tmp_path / "first"), 7: str(tmp_path / "second")}
    work = pool.work("double", [(n, deaths.get(n)) for n in range(10)])
    assert [double for double, _ in work.results] == [2 * n for n in range(10)]
    assert work.replaced == 2
    assert {3, 7} <= work.retried
    assert [" was lost (" in line for line in cluster.warnings] == [True, True]
    assert [name.split("/")[-1] for name in work.by] == [str(pid) for _, pid in work.results]
    again = pool.work("double", [(1, None)])
    assert (again.results[0][0], again.replaced) == (2, 0)
    with pytest.raises(UserError, match=r"scale.embedding: 5 actors were lost in one request, the last one on "):
        pool.work("double", [(1, None), (2, str(tmp_path / "no" / "folder"))])
    pool.close()
    time.sleep(2.0)  # Ray itself would speak of them by now
    assert "raylet" not in capfd.readouterr().out


def test_embedders_in_a_pool_say_which_answers_they_cannot_read(cluster: Cluster) -> None:
    embedders = EmbedderPool(cluster, PoolConfig(actors=1, cpus=0.5))
    placement = ModelPlacement(embedders.embedder)
    rows = [{"prompt": "the capital of France", "answer": answer} for answer in ("巴黎", "Paris")]
    notices: list[str] = []
    for embedder in ("minilm", "lexical"):  # the second cannot say
        reward = SemanticRewardConfig(kind="semantic", embedder=embedder)
        build_reward(reward, final_number_reward, notice=notices.append, placement=placement, rows=rows)
    embedders.pool.close()
    (notice,) = notices
    assert notice.startswith(
        "reward.embedder: 50% of the first 2 answers contain characters that 'minilm' does not know"
    )


def test_no_room_is_said_and_never_waited_for(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = PoolSpec("scale.judging", PoolConfig(actors=9999))
    with pytest.raises(UserError, match=r"scale.judging.actors: 9999 with 1 CPUs each, but .* has room for \d+ \('"):
        cluster.check([wanted])
    monkeypatch.setattr(pools, "PLACEMENT_TIMEOUT_S", 2.0)
    pool = pool_of(cluster, 1, cpus=9999)
    with pytest.raises(UserError, match=r"after 2 s 1 of 1 actors are not placed, with 9999 CPUs each: .* cluster has"):
        pool.start()
    pool.close()


def test_a_cut_keeps_every_row_once_and_groups_together() -> None:
    prompts = [[g] for g in range(5) for _ in range(4)]
    for actors in (1, 2, 3, 5):
        found = sample_pieces(prompts, actors, smallest=4)
        assert [row for piece in found for row in piece] == list(range(20))
        assert all(piece.start % 4 == 0 and len(piece) % 4 == 0 for piece in found)
        assert len(found) >= actors
    assert [len(piece) for piece in sample_pieces([[1]] * 6, 3, smallest=4)] == [2, 2, 2]
    assert len(pieces([1] * 1000, 2, smallest=32)) == 8
    assert len(pieces([1] * 3, 8, smallest=32)) == 3
