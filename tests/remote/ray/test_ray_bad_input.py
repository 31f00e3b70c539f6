"""What is wrong with a cluster, or with what is asked of it: a clear line each, and soon."""

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.minimal_recipe import line_of
from support.ray_clusters import local_cluster, ray_config, write_data
from support.servers import chat, serving
from support.tiny_runs import run_python
from vigneron import api
from vigneron.errors import UserError
from vigneron.remote.ray import cluster as clusters
from vigneron.remote.ray.cluster import Cluster

pytest.importorskip("ray", reason="the extra `ray` is not installed")

RAY = {"sampling": {"kind": "ray"}}
DPO = {"method": {"name": "dpo"}, "data": {"train": "pairs.jsonl"}, "reward": None}
ENDPOINT = {"kind": "rubric", "file": "r.yaml", "judge": {"kind": "endpoint", "model": "gpt-4o-mini"}}


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({**DPO, "scale": RAY}, "`scale.sampling` has no effect with `method: dpo`, which samples nothing"),
        ({"scale": {"embedding": {}}}, "`scale.embedding` has no effect: this reward uses no local embedder"),
        (
            {"scale": {"embedding": {}}, "reward": {"kind": "semantic", "embedder": "text-embedding-3-small"}},
            "`scale.embedding` has no effect: this reward uses no local embedder",
        ),
        (
            {"scale": {"judging": {}}, "reward": ENDPOINT},
            "`scale.judging` has no effect: this reward uses no local judge",
        ),
        ({"scale": {"ray_address": "auto"}}, "`ray_address` has no effect: no part of this config uses Ray"),
    ],
)
def test_a_pool_without_work_is_refused_with_the_recipe(changes: dict[str, Any], line: str) -> None:
    assert line in line_of(**changes)


@pytest.mark.parametrize(
    ("address", "line"),
    [
        ("127.0.0.1:1", "scale.ray_address: no Ray cluster answers at '127.0.0.1:1': "),
        ("http://head", "scale.ray_address: 'http://head' is not a cluster address: "),
        ("head:port", "scale.ray_address: 'head:port' is not a cluster address: "),
    ],
)
def test_an_address_where_nobody_answers_is_said_at_once(address: str, line: str) -> None:
    began = time.monotonic()
    with pytest.raises(UserError) as caught:
        Cluster(address)
    assert str(caught.value).startswith(line)
    assert time.monotonic() - began < 60


def test_a_server_of_something_else_is_said_at_once() -> None:
    """The dashboard's port, say: Ray itself would try for minutes."""
    with serving(lambda seen, n: chat("hello")) as server:
        address = server.url.removeprefix("http://").removesuffix("/v1")
        with pytest.raises(UserError, match=rf"the server at '{address}' is not a Ray cluster"):
            Cluster(address)


def test_without_ray_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])  # nothing is installed there
    monkeypatch.setattr(sys, "meta_path", [])
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    with pytest.raises(UserError, match=r"scale: Ray is not installed: run `pip install ray`"):
        clusters.check_installed()


@pytest.fixture
def config(tmp_path: Path, tiny_folder: Path) -> Any:
    return ray_config(tiny_folder, write_data(tmp_path), scale={}, steps=1)


def start(config: Any, tmp_path: Path) -> str:
    with pytest.raises(UserError) as caught:
        api.train(config, name="run", runs=tmp_path)
    assert not (tmp_path / "run").exists()
    return str(caught.value)


@pytest.mark.cluster
@pytest.mark.slow
def test_nodes_that_differ_and_too_little_room(tmp_path: Path, config: Any, tiny_folder: Path) -> None:
    other = tmp_path / "other" / "transformers-9.9.9.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: transformers\nVersion: 9.9.9\n")
    with local_cluster(2) as cluster:
        too_many = ray_config(tiny_folder, write_data(tmp_path), actors=3, steps=1)
        line = start(too_many, tmp_path)
        assert line.startswith("scale.sampling.actors: 3 with 1 CPUs each, but the Ray cluster has room for 2 ('")
        rubric = tmp_path / "rubric.yaml"
        items = [{"name": "short", "description": "is it short?", "flow": "length", "at_most": 10}]
        rubric.write_text(yaml.safe_dump({"category_column": None, "categories": {"words": {"items": items}}}))
        reward = {"kind": "rubric", "file": str(rubric)}
        pools = {"actors": 1, "scale": {"embedding": {}}}
        idle = ray_config(tiny_folder, write_data(tmp_path), reward=reward, steps=1, **pools)
        line = start(idle, tmp_path)
        assert line == "scale.embedding: has no effect, because this reward uses no local embedder: leave it out"
        path = os.pathsep.join([str(other.parent), os.environ.get("PYTHONPATH", "")])
        cluster.add_node(num_cpus=1, env_vars={"PYTHONPATH": path})
        line = start(config, tmp_path)
        assert line.startswith("scale: the Ray node '")
        assert "has transformers 9.9.9 instead of 5." in line
        assert line.endswith(": install the same version on every node")


@pytest.mark.cluster
@pytest.mark.slow
def test_a_node_without_the_models_files(tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub's model that is in this node's cache, and not in the other's; neither reaches the hub."""
    snapshot = tmp_path / "hub" / "models--vine--tiny" / "snapshots" / ("0" * 40)
    snapshot.parent.mkdir(parents=True)
    snapshot.symlink_to(tiny_folder)
    (snapshot.parent.parent / "refs").mkdir()
    (snapshot.parent.parent / "refs" / "main").write_text("0" * 40)
    code = """
import sys
from pathlib import Path
from support.ray_clusters import local_cluster, ray_config, write_data
from vigneron import api
from vigneron.errors import UserError
with local_cluster(0) as cluster:
    cluster.add_node(num_cpus=1, env_vars={"HF_HOME": sys.argv[1] + "/empty"})
    folder = Path(sys.argv[1])
    config = ray_config(Path("vine/tiny"), write_data(folder), actors=1, steps=1)
    try:
        api.train(config, name="run", runs=folder)
    except UserError as error:
        print("LINE", error)
"""
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    said = run_python(code, str(tmp_path)).stdout
    line = next(line for line in said.splitlines() if line.startswith("LINE"))
    assert "model: cannot load 'vine/tiny': " in line
    assert "(on the Ray node " in line
