"""Conversations on a GPU: CUDA graphs, prompts that groups share, rows that wait behind those that are decoded."""

import pytest
import torch

from support.scripted_turns import Scripted, check
from support.tiny_models import byte_tokenizer, tiny_model
from vigneron.core.draws import Sampling
from vigneron.policy.load import make_policy
from vigneron.rollout.engine import reply_chunks
from vigneron.rollout.engine.engine import Engine
from vigneron.rollout.engine.sample import sample, sampler_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("kind", ["llama", "qwen", "mistral"])
@pytest.mark.parametrize("patience", [0, 16])
@pytest.mark.parametrize("rows", [8, 40, 160])
@pytest.mark.parametrize("chunks_from", [1, 8], ids=["most replies in chunks", "few"])
def test_every_turn_is_what_a_plain_model_draws(
    kind: str, patience: int, rows: int, chunks_from: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reply_chunks, "READ_FROM", chunks_from)
    policy = make_policy(tiny_model(kind).eval(), byte_tokenizer(), device=torch.device("cuda"))
    policy.model.to("cuda")
    policy.eos_ids = frozenset(range(0, 256, 9))
    engine = sampler_of(policy)
    assert isinstance(engine, Engine)
    lengths = [[(3 * i + k) % 7 + 1 for k in range(i % 4)] for i in range(160)]
    prompts = [[1 + i // 8, 2, 3] for i in range(160)]
    cache = engine._cache
    cache._limit = rows * cache.token_bytes * 53
    script = Scripted(lengths, 50, patience)
    options = {"max_new_tokens": 12, "max_tokens": 50, "sampling": Sampling(), "seed": 3, "step": 2}
    done = sample(policy, prompts, replies=script, **options)
    check(policy, prompts, done, script, Sampling(), tolerance=2e-3)
    assert engine.reads_chunks
    again = Scripted(lengths, 50, patience)
    same = sample(policy, prompts, replies=again, **options)
    assert again.turns == script.turns
    assert torch.equal(same.behaviour_BT, done.behaviour_BT)
