"""Distillation from a parent on a vLLM server, which has the HTTP API of `support.vllm_protocol`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from support.small_batch import batch_of
from support.tiny_models import byte_tokenizer, tiny_model, tiny_policy
from support.tiny_runs import tiny_config, write_data
from support.vllm_server import Served, serving_model, well_behaved
from vigneron import api
from vigneron.config import DistillConfig
from vigneron.core.draws import Sampling
from vigneron.errors import UserError
from vigneron.policy.load import load_policy
from vigneron.policy.parent import LocalParent
from vigneron.policy.reference import Reference
from vigneron.remote.vllm.parent import ServedParent, connect_parent

pytestmark = pytest.mark.slow

ROWS = [([5, 6, 7], [8, 9]), ([5, 6, 7], [10, 11, 12]), ([20], [3, 200, 4, 1])]


@pytest.fixture(scope="module")
def parent_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "parent"
    model = tiny_model("llama", seed=7)
    with torch.no_grad():
        model.lm_head.weight.mul_(30)
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def running(parent_folder: Path) -> Iterator[Served]:
    with serving_model(parent_folder) as served:
        yield served


@pytest.fixture
def served(running: Served, monkeypatch: pytest.MonkeyPatch) -> Served:
    return well_behaved(running, monkeypatch)


def parent_at(url: str, **options: Any) -> ServedParent:
    return connect_parent(DistillConfig(name="distill", url=url, **{"top_k": 5, **options}), tiny_policy())


def test_a_servers_view_is_the_models_own(served: Served, parent_folder: Path) -> None:
    served.misbehave("drop", times=2)  # lost requests are sent again
    there = parent_at(served.url).top(batch_of(ROWS), Sampling(), 5)
    policy = load_policy(str(parent_folder), device="cpu", dtype="float32", trained=False)
    here = LocalParent(Reference(policy, shares_weights=False)).top(batch_of(ROWS), Sampling(), 5)
    torch.testing.assert_close(there["parent_BT"], here["parent_BT"], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(there["parent_top_BTK"], here["parent_top_BTK"], atol=1e-5, rtol=1e-5)
    assert torch.equal(there["parent_ids_BTK"], here["parent_ids_BTK"])


@pytest.mark.parametrize("method", [{"top_k": 5}, {"loss": "sampled"}])
def test_a_run_learns_from_a_server_as_from_the_model_itself(
    served: Served, parent_folder: Path, tiny_folder: Path, tmp_path: Path, method: dict[str, Any]
) -> None:
    losses = {}
    for name, parent in (("served", {"url": served.url}), ("here", {"parent": str(parent_folder)})):
        config = tiny_config(
            tiny_folder,
            write_data(tmp_path),
            method={"name": "distill", **parent, **method},
            reward={"kind": "binary"},
            optimizer={"actor_lr": 1e-2},
            steps=3,
            eval_every=3,
            model={"name": str(tiny_folder), "device": "cpu", "dtype": "float32"},
        )
        folder = api.train(config, name=name, runs=tmp_path).folder
        losses[name] = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for one, other in zip(losses["served"][1:], losses["here"][1:], strict=True):
        for key in ("loss/distill", "kl_parent"):
            assert one[key] == pytest.approx(other[key], rel=1e-3, abs=1e-4)
    assert losses["served"][-1]["eval/kl_parent"] > 0


def test_a_servers_faults_are_one_line(served: Served) -> None:
    with pytest.raises(UserError, match=r"^method\.parent: .* does not serve 'other'"):
        parent_at(served.url, parent="other")
    with pytest.raises(UserError, match=r"^method\.url: no vLLM server at"):
        parent_at("http://127.0.0.1:9")
    long = [([5] * 60, [8, 9, 10, 11])]
    with pytest.raises(UserError, match="reads 64 tokens, but a sample with its prompt needs 65"):
        parent_at(served.url).top(batch_of(long), Sampling(), 5)
    swapped = tiny_policy()

    class Shifted:
        """The child's ids mean other bytes."""

        def __call__(self, text: str) -> dict[str, list[int]]:
            return {"input_ids": [one % 256 + 1 for one in byte_tokenizer()(text)["input_ids"]]}

        def decode(self, ids: list[int]) -> str:
            return byte_tokenizer().decode([(ids[0] - 2) % 256 + 1])

    swapped.tokenizer = Shifted()
    with pytest.raises(
        UserError, match=r"^method\.url: the parent 'child' .* has another tokenizer than the model: it reads"
    ):
        connect_parent(DistillConfig(name="distill", url=served.url, top_k=5), swapped)
