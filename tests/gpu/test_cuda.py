"""What exists on a CUDA device only: graphs, the decode kernel, compiled layers, the search for a microbatch."""

from pathlib import Path
from typing import Any

import pytest
import torch

from support.tiny_models import tiny_model
from support.tiny_runs import tiny_config, write_data
from vigneron import api
from vigneron.config import OptimizerConfig
from vigneron.core.draws import Sampling
from vigneron.errors import UserError
from vigneron.policy.compiling import set_compiling
from vigneron.policy.load import make_policy, speed_up
from vigneron.policy.logprobs import reference_view, score
from vigneron.policy.lora import Lora, add_lora
from vigneron.policy.microbatches import microbatches
from vigneron.policy.model import Policy
from vigneron.policy.reference import Reference
from vigneron.rollout.engine.sample import sample
from vigneron.rollout.on_policy import OnPolicy
from vigneron.run_store.status import status_of
from vigneron.training.memory import find_sizes

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
CUDA = torch.device("cuda")
PROMPTS = [[5, 6, 7]] * 4 + [[8, 9]] * 4


def cuda_policy(kind: str, *, lora: bool = False, dtype: torch.dtype = torch.float32) -> Policy:
    from support.tiny_models import byte_tokenizer

    model = tiny_model(kind)
    if lora:
        model = add_lora(model, Lora(rank=2))
    return make_policy(model.to(CUDA).eval(), byte_tokenizer(), device=CUDA, dtype=dtype)


def test_stop_strings_end_rows_though_the_host_looks_every_few_tokens() -> None:
    """Tokens that were sampled behind one are dropped; those before are the same as without."""
    policy, stops = cuda_policy("llama"), tuple("abcdefghijklmnopqrstuvwxyz")
    keys: dict[str, Any] = {"max_new_tokens": 30, "sampling": Sampling(), "seed": 1}
    whole, done = sample(policy, PROMPTS * 8, **keys), sample(policy, PROMPTS * 8, **keys, stop=stops)
    ended = 0
    for row, ids in enumerate(whole.ids_BT.tolist()):
        ids = ids[: int(whole.lengths_B[row])]
        texts = [policy.tokenizer.decode(ids[: count + 1]) for count in range(len(ids))]
        end = next((n + 1 for n, text in enumerate(texts) if any(stop in text for stop in stops)), None)
        length = int(done.lengths_B[row])
        assert done.ids_BT[row, :length].tolist() == ids[: end or len(ids)]
        assert bool(done.truncated_B[row]) == (end is None and bool(whole.truncated_B[row]))
        torch.testing.assert_close(done.behaviour_BT[row, :length], whole.behaviour_BT[row, :length], atol=1e-5, rtol=0)
        ended += end is not None
    assert 0 < ended < len(done.lengths_B)


@pytest.mark.parametrize(
    ("kind", "lora", "compiled"),
    [
        *((kind, lora, False) for kind in ("gpt2", "llama", "qwen") for lora in (False, True)),
        ("gpt2", False, True),  # compilation takes a minute
        ("llama", True, True),
    ],
)
def test_replayed_passes_are_the_plain_ones_after_every_update(kind: str, lora: bool, compiled: bool) -> None:
    """Four steps of sampling, scoring, gradients and a change of the weights: graphs are captured in the second."""
    plain, fast = (cuda_policy(kind, lora=lora) for _ in range(2))
    fast_reference = Reference.of(fast)
    speed_up(fast, fast_reference, graphs=True, compiled=compiled)
    plain_reference = Reference.of(plain)
    try:
        for step in range(4):
            batch = OnPolicy(plain, Sampling(), max_new_tokens=6, group_size=4, seed=3)(
                [{"prompt": "hot"}, {"prompt": "a longer one"}], step
            )
            sampled = sample(fast, PROMPTS, max_new_tokens=6, sampling=Sampling(), seed=1, step=step)
            expected = sample(plain, PROMPTS, max_new_tokens=6, sampling=Sampling(), seed=1, step=step)
            assert sampled.ids_BT.tolist() == expected.ids_BT.tolist()
            torch.testing.assert_close(sampled.behaviour_BT, expected.behaviour_BT, atol=1e-4, rtol=0)
            for part in microbatches(batch, 64):
                for one in (plain, fast):
                    now = score(one, part, Sampling())
                    (now.logprobs_BT.sum() + 0.1 * now.entropy_BT.sum()).backward()
                views = [
                    reference_view(r, part, Sampling(), keep_hidden=False) for r in (plain_reference, fast_reference)
                ]
                torch.testing.assert_close(views[0]["reference_BT"], views[1]["reference_BT"], atol=1e-4, rtol=0)
            with torch.no_grad():
                for (_, a), (_, b) in zip(plain.trainable(), fast.trainable(), strict=True):
                    torch.testing.assert_close(a.grad, b.grad, atol=1e-3, rtol=1e-3)
                    change = 0.1 * torch.randn_like(a)
                    a += change
                    b += change
                    a.grad = b.grad = None
    finally:
        set_compiling(False)


def test_the_microbatch_that_is_found_fits() -> None:
    policy = cuda_policy("llama")
    tokens = find_sizes(policy, 16, OptimizerConfig()).microbatch_tokens
    assert tokens >= 16
    assert all(weight.grad is None for _, weight in policy.trainable())


class Narrow:
    """After the first checkpoint the device has no memory left to give, nor has the allocator."""

    def __init__(self) -> None:
        self.taken: list[torch.Tensor] = []

    def notice(self, text: str) -> None: ...

    def step(self, run: Any, *_: Any) -> None:
        if run.step != 3:
            return
        torch.cuda.set_per_process_memory_fraction(1e-9)
        size = 2**30
        while size >= 512:
            try:
                self.taken.append(torch.empty(size, dtype=torch.uint8, device=CUDA))
            except torch.OutOfMemoryError:
                size //= 2


def test_row_26_out_of_memory_names_the_settings_and_leaves_the_checkpoint(tmp_path: Path, tiny_folder: Path) -> None:
    model = {"name": str(tiny_folder), "device": "cuda", "graphs": False}
    config = tiny_config(
        tiny_folder, write_data(tmp_path), model=model, reward={"kind": "binary"}, save_every=2, eval_every=0
    )
    view = Narrow()
    try:
        with pytest.raises(UserError, match=r"out of memory; .*microbatch_tokens"):
            api.train(config, name="run", runs=tmp_path, view=view)
    finally:
        view.taken.clear()
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert status_of(tmp_path / "run").state == "failed"
    assert api.resume(tmp_path / "run").step == 12
