"""Sampling by a vLLM server, against its protocol: vLLM itself does not run here.

The server is a real one, in a process of its own, with a tiny real model behind vLLM's endpoints.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from support.rewards import with_reward
from support.scripted_turns import Scripted
from support.servers import hurry_only, port_of_nobody
from support.tiny_runs import tiny_config, write_data
from support.vllm_server import Served, serving_model, well_behaved
from vigneron.config.scale import VllmSamplingConfig
from vigneron.core.draws import Sampling, chosen_logprobs, sampled_logprobs
from vigneron.errors import UserError
from vigneron.methods import build_method
from vigneron.policy.load import load_policy
from vigneron.policy.model import Policy
from vigneron.remote.vllm.completion import mean_gap
from vigneron.remote.vllm.sampler import CHANGED, VllmSampler, request_seeds
from vigneron.remote.vllm.server import ServerEngine
from vigneron.remote.vllm.server_api import VllmServer, connect
from vigneron.rewards.apply import ApplyReward
from vigneron.rollout.engine.request import Completions, Request
from vigneron.rollout.engine.sample import sample
from vigneron.training.callbacks import Silent
from vigneron.training.loop import train
from vigneron.training.run import Run
from vigneron.training.setup.start import start_run

pytestmark = pytest.mark.slow

PROMPTS = [[20, 30, 40], [50], [60, 70], [20, 30, 40]]
NARROW = Sampling(0.7, top_k=20, top_p=0.8)


@pytest.fixture(scope="module")
def running(tiny_folder: Path) -> Iterator[Served]:
    with serving_model(tiny_folder) as served:
        yield served


@pytest.fixture
def served(running: Served, monkeypatch: pytest.MonkeyPatch) -> Served:
    return well_behaved(running, monkeypatch)


def settings(url: str, **keys: Any) -> VllmSamplingConfig:
    return VllmSamplingConfig(kind="vllm", url=url, **keys)


def child(folder: Path) -> Policy:
    return load_policy(str(folder), device="cpu")


def sampler_for(policy: Policy, served: Served, folder: Path, **keys: Any) -> VllmSampler:
    config = settings(served.url, **keys)
    policy.sampler = VllmSampler(policy, ServerEngine(policy, connect(config), config, folder), config.probe_limit)
    return policy.sampler


def request(sampling: Sampling | None, prompts: list[list[int]] = PROMPTS, step: int = 3, tokens: int = 8) -> Request:
    return Request(prompts, tokens, sampling, 11, step, list(range(len(prompts))), 4096)


@torch.no_grad()
def own_logprobs(policy: Policy, prompt: list[int], completion: list[int], sampling: Sampling) -> torch.Tensor:
    ids = torch.tensor([[*prompt, *completion]])
    logits = policy.logits(policy.hidden(ids, torch.arange(ids.shape[1])[None]))[0, len(prompt) - 1 : -1]
    chosen = torch.tensor(completion)
    return chosen_logprobs(sampled_logprobs(logits, sampling, chosen), chosen)


def check_logprobs(policy: Policy, done: Completions, sampling: Sampling) -> None:
    for row, prompt in enumerate(PROMPTS):
        completion = done.ids_BT[row, : int(done.lengths_B[row])].tolist()
        expected = own_logprobs(policy, prompt, completion, sampling)
        torch.testing.assert_close(done.behaviour_BT[row, : len(completion)], expected, atol=1e-4, rtol=0)


def test_greedy_completions_are_the_engines(tiny_folder: Path, served: Served, tmp_path: Path) -> None:
    policy = child(tiny_folder)
    ours = sample(policy, PROMPTS, max_new_tokens=8)
    sampler = sampler_for(policy, served, tmp_path)
    theirs = sample(policy, PROMPTS, max_new_tokens=8)
    assert not sampler.exact
    assert torch.equal(ours.ids_BT, theirs.ids_BT)
    assert torch.equal(ours.lengths_B, theirs.lengths_B)
    assert torch.equal(ours.truncated_B, theirs.truncated_B)
    torch.testing.assert_close(ours.behaviour_BT, theirs.behaviour_BT, atol=1e-4, rtol=0)
    assert theirs.prompt_hidden_BH is None
    assert theirs.metrics["vllm/probe_gap"] < 1e-4


def test_greedy_conversations_are_the_engines(tiny_folder: Path, served: Served, tmp_path: Path) -> None:
    policy = child(tiny_folder)
    policy.eos_ids = frozenset(range(0, 256, 3))
    lengths, options = [[2, 3], [4], []], {"max_new_tokens": 6, "max_tokens": 24}
    scripts = [Scripted(lengths, 24) for _ in range(2)]
    ours = sample(policy, PROMPTS[:3], replies=scripts[0], **options)
    sampler_for(policy, served, tmp_path)
    theirs = sample(policy, PROMPTS[:3], replies=scripts[1], **options)
    assert scripts[0].turns == scripts[1].turns
    assert max(map(len, scripts[0].turns.values())) > 1
    assert torch.equal(ours.ids_BT, theirs.ids_BT)
    torch.testing.assert_close(ours.behaviour_BT, theirs.behaviour_BT, atol=1e-4, rtol=0)


@pytest.mark.parametrize("sampling", [Sampling(), NARROW])
def test_log_probs_are_of_what_was_sampled_from(
    tiny_folder: Path, served: Served, tmp_path: Path, sampling: Sampling
) -> None:
    policy = child(tiny_folder)
    sampler = sampler_for(policy, served, tmp_path)
    done = sampler.sample(request(sampling))
    check_logprobs(policy, done, sampling)
    assert torch.equal(done.ids_BT, sampler.sample(request(sampling)).ids_BT)
    assert not torch.equal(done.ids_BT, sampler.sample(request(sampling, step=4)).ids_BT)


def test_draws_follow_the_distribution(tiny_folder: Path, served: Served, tmp_path: Path) -> None:
    policy = child(tiny_folder)
    sampling = Sampling(2.0, top_k=4)
    done = sampler_for(policy, served, tmp_path).sample(request(sampling, [[20, 30, 40]] * 400, tokens=1))
    drawn = done.ids_BT[:, 0].bincount(minlength=260) / 400
    chances = sum(
        own_logprobs(policy, [20, 30, 40], [one], sampling).exp() * torch.eye(260)[one]
        for one in set(done.ids_BT[:, 0].tolist())
    )
    assert len(drawn.nonzero()) == 4
    assert (drawn - chances).abs().max() < 0.1  # four standard deviations of a half


def test_every_end_ends_a_completion_and_is_kept(tiny_folder: Path, served: Served, tmp_path: Path) -> None:
    policy = child(tiny_folder)
    policy.eos_ids = frozenset(range(100, 180))
    done = sampler_for(policy, served, tmp_path).sample(request(Sampling(), PROMPTS * 4, tokens=4))
    ended = 0
    for row, length in enumerate(done.lengths_B.tolist()):
        ids = done.ids_BT[row, :length].tolist()
        assert not any(one in policy.eos_ids for one in ids[:-1])
        assert bool(done.truncated_B[row]) == (ids[-1] not in policy.eos_ids)
        assert length == 4 or ids[-1] in policy.eos_ids
        ended += ids[-1] in policy.eos_ids
    assert 0 < ended < 16


@pytest.mark.parametrize("how", ["", "looks late"])
def test_a_stop_string_ends_a_completion_and_is_kept(
    tiny_folder: Path, served: Served, tmp_path: Path, how: str
) -> None:
    """The same samples as without, up to the token that completes it; also from a server that samples several tokens
    before it looks."""
    policy = child(tiny_folder)
    served.misbehave(how)
    sampler = sampler_for(policy, served, tmp_path)
    stops = (*tuple("abcdefghijklmnopqrstuvwxyz0123456789"), " é")
    whole = sampler.sample(request(Sampling(), PROMPTS * 4))
    done = sampler.sample(replace(request(Sampling(), PROMPTS * 4), stop=stops))
    assert served.requests()[-1]["stop"] == list(stops)
    ended = 0
    for row in range(16):
        ids = whole.ids_BT[row, : int(whole.lengths_B[row])].tolist()
        texts = [policy.tokenizer.decode(ids[: n + 1]) for n in range(len(ids))]
        end = next((n + 1 for n, text in enumerate(texts) if any(stop in text for stop in stops)), None)
        length = int(done.lengths_B[row])
        assert length == (end or len(ids))
        assert done.ids_BT[row, :length].tolist() == ids[:length]
        assert torch.equal(done.behaviour_BT[row, :length], whole.behaviour_BT[row, :length])
        assert bool(done.truncated_B[row]) == (end is None and bool(whole.truncated_B[row]))
        ended += end is not None
    assert 0 < ended < 16


def test_seeds_are_of_63_bits_and_by_sample() -> None:
    seeds = request_seeds(1, 2, range(1000))
    assert len(set(seeds)) == 1000
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert max(seeds) > 2**62
    assert request_seeds(1, 2, [7]) == [seeds[7]]


@pytest.mark.parametrize("lora", [None, {"rank": 2}])
def test_it_takes_the_weights_as_they_become(
    tiny_folder: Path, served: Served, tmp_path: Path, lora: dict[str, int] | None
) -> None:
    policy = child(tiny_folder) if lora is None else with_adapter(tiny_folder)
    sampler = sampler_for(policy, served, tmp_path)
    sampler.sample(request(Sampling()))
    with torch.no_grad():
        for _, weight in policy.trainable():
            weight.add_(0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(5)))
    policy.version = 1
    done = sampler.sample(request(Sampling()))
    check_logprobs(policy, done, Sampling())
    assert done.metrics["vllm/probe_gap"] < 1e-4
    assert sampler.version == 1
    assert [path.name for path in (tmp_path / "vllm").iterdir()] == ["step-1"]
    sampler.close()
    assert not (tmp_path / "vllm").exists()


def with_adapter(folder: Path) -> Policy:
    from vigneron.policy.lora import Lora

    return load_policy(str(folder), device="cpu", lora=Lora(rank=2, alpha=4))


def test_weights_are_not_taken_where_somebody_else_says_when(tiny_folder: Path, served: Served, tmp_path: Path) -> None:
    policy = child(tiny_folder)
    sampler = sampler_for(policy, served, tmp_path)
    sampler.use(sampler.publish())
    policy.version = 1
    sampler.sample(request(None))
    assert sampler.version == 0
    sampler.use(None)
    sampler.sample(request(None))
    assert sampler.version == 1


def test_none_is_lost_and_none_counted_twice(tiny_folder: Path, served: Served, tmp_path: Path) -> None:
    policy = child(tiny_folder)
    sampler = sampler_for(policy, served, tmp_path, concurrency=3)
    whole = sampler.sample(request(Sampling(), PROMPTS * 3))
    for how in ("drop", "broken"):
        served.misbehave(how, times=4)
        again = sampler.sample(request(Sampling(), PROMPTS * 3))
        assert torch.equal(whole.ids_BT, again.ids_BT)
        assert len(served.requests()) == 12 + 4
        assert len({body["seed"] for body in served.requests()}) == 12


def start(tmp_path: Path, folder: Path, url: str, **changes: Any) -> Run:
    options: dict[str, Any] = {
        "steps": 3,
        "eval_every": 3,
        "save_every": 0,
        "scale": {"sampling": {"kind": "vllm", "url": url}},
    }
    config = tiny_config(folder, write_data(tmp_path), **(options | changes))
    run = start_run(config, tmp_path, build_method, name="run", view=Silent())
    run.method = with_reward(run.method, ApplyReward(lengths_reward, missing_limit=1.0))
    run.reward = ApplyReward(lengths_reward, missing_limit=1.0)
    return run


def lengths_reward(completions: list[str], **columns: Any) -> list[float]:
    return [float(sum(character in "aeiou" for character in text)) for text in completions]


@pytest.mark.parametrize(
    "changes",
    [
        {"method": {"name": "actor_critic", "value_position": "last_prompt"}},
        {"method": {"name": "grpo"}, "optimizer": {"actor_lr": 1e-2}, "lora": True},
    ],
)
def test_a_run_samples_by_it(tmp_path: Path, tiny_folder: Path, served: Served, changes: dict[str, Any]) -> None:
    changes = dict(changes)
    if changes.pop("lora", False):
        changes["model"] = {"name": str(tiny_folder), "device": "cpu", "lora": {"rank": 2}}
    run = start(tmp_path, tiny_folder, served.url, **changes)
    train(run, Silent())
    records = [record for record in run.folder.metrics() if record["step"]]
    assert [record["step"] for record in records] == [1, 2, 3]
    assert all(0 <= record["vllm/probe_gap"] < 1e-3 for record in records)
    sampler = run.policy.sampler
    assert isinstance(sampler, VllmSampler)
    assert sampler.version == 3  # what was evaluated at the end
    sampled = [body for body in served.requests() if body.get("return_token_ids") and body["temperature"] > 0]
    assert len({body["seed"] for body in sampled if body["max_tokens"] > 1}) == 3 * 8
    run.close()
    assert not (run.folder.path / "vllm").exists()


LINES = {
    "old": "runs vLLM 0.11.2: 0.20 or newer is required",
    "no dev mode": "start it with VLLM_SERVER_DEV_MODE=1",
    "two models": "serves child, other: set `model` to one of them",
    "raw": "start it with --logprobs-mode processed_logprobs",
    "no logprobs": "returned an unexpected response",
    "too few logprobs": "tokens and . log-probs",
    "no token ids": "returned an unexpected response",
    "no end": "without the end token or stop string that ended it",
    "refuse update": "did not load new weights: /collective_rpc answered 500",
    "broken": "answered 500 .'EngineCore encountered an issue'.*vigneron resume",
    "drop": "lost the connection.*vigneron resume",
}


@pytest.mark.parametrize("how", LINES)
def test_a_server_that_misbehaves_is_a_clear_line(tiny_folder: Path, served: Served, tmp_path: Path, how: str) -> None:
    policy = child(tiny_folder)
    policy.eos_ids = frozenset(range(60, 260))
    served.misbehave(how, times=1000)
    with pytest.raises(UserError, match=LINES[how]) as caught:
        sampler_for(policy, served, tmp_path).sample(request(Sampling()))
    assert "\n" not in str(caught.value)
    assert "scale.sampling" in str(caught.value)


def test_a_server_that_ignored_an_update_is_refused(tiny_folder: Path, served: Served, tmp_path: Path) -> None:
    """Small ones too, of which each might have rounded away, and which no tolerance would find."""
    policy = child(tiny_folder)
    sampler = sampler_for(policy, served, tmp_path, probe_limit=0.15)  # as in bfloat16
    sampler.update_weights()
    first = sampler._own_logprobs()
    served.misbehave("ignore update", times=100)
    torch.manual_seed(0)
    direction = torch.randn(policy.causal.lm_head.weight.shape)

    def changed() -> float:
        policy.version += 1
        with torch.no_grad():
            policy.causal.lm_head.weight.add_(5e-4 * direction)
        return mean_gap(sampler._own_logprobs(), first)

    while changed() <= CHANGED:
        sampler.update_weights()  # it goes on while it cannot know
    with pytest.raises(UserError, match=r"not have the weights of version \d+.*did not change, while the policy"):
        sampler.update_weights()
    assert policy.version > 2
    assert CHANGED < mean_gap(sampler._own_logprobs(), first) < sampler.probe_limit
    served.misbehave("ignore update")
    with torch.no_grad():
        policy.causal.lm_head.weight.mul_(20)
    with pytest.raises(UserError, match=r"does not have the weights of version \d+.*differ from the policy's by"):
        sampler.update_weights()


def test_a_server_with_another_model_is_refused_and_left_alone(
    tiny_folder: Path, served: Served, tmp_path: Path
) -> None:
    other = child(tiny_folder).causal
    with torch.no_grad():
        other.lm_head.weight.mul_(50)
    other.save_pretrained(tmp_path / "other")
    served.misbehave(folder=tmp_path / "other")
    with pytest.raises(UserError, match=r"serves 'child', which is not the recipe's model"):
        sampler_for(child(tiny_folder), served, tmp_path).sample(request(Sampling()))
    assert not (tmp_path / "vllm").exists()
    with pytest.raises(UserError, match=r"does not serve 'chidl' .did you mean 'child'"):
        connect(settings(served.url, model="chidl"))


def test_what_does_not_fit_is_said_before_it_is_asked(tiny_folder: Path, served: Served, tmp_path: Path) -> None:
    sampler = sampler_for(child(tiny_folder), served, tmp_path)
    with pytest.raises(UserError, match=r"allows 64 tokens.*--max-model-len 103"):
        sampler.sample(request(None, tokens=100))


def test_a_server_left_paused_is_woken(tiny_folder: Path, served: Served, tmp_path: Path) -> None:
    served.http.request("/pause", {})
    assert isinstance(connect(settings(f"{served.url}/v1/")), VllmServer)
    assert served.http.request("/is_paused") == {"is_paused": False}


def test_nobody_at_the_address(tmp_path: Path, tiny_folder: Path) -> None:
    url = f"http://127.0.0.1:{port_of_nobody()}"
    with pytest.raises(
        UserError, match=r"scale.sampling.url: no vLLM server at .*Connection refused.*docs/guides/vllm.md"
    ):
        start(tmp_path, tiny_folder, url)
    assert not (tmp_path / "run").exists()


def test_a_server_that_is_too_slow_is_not_waited_for(
    tiny_folder: Path, served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry_only(monkeypatch, lambda body: "prompt" in (body or {}))
    sampler = sampler_for(child(tiny_folder), served, tmp_path, timeout_s=3.0)
    sampler.update_weights()
    served.misbehave("slow", times=len(PROMPTS))
    with pytest.raises(UserError, match=r"did not answer within 3 s"):
        sampler.sample(request(Sampling()))
    served.misbehave()  # it still waits with them


def test_a_server_that_dies_ends_the_run_with_a_clear_line(tmp_path: Path, tiny_folder: Path, served: Served) -> None:
    """The last one: it does not come back."""
    run = start(tmp_path, tiny_folder, served.url, save_every=1, eval_every=0)
    view = Dying(served)
    with pytest.raises(UserError, match=r"vLLM at .* (lost the connection|cannot be reached).*vigneron resume"):
        train(run, view)
    run.close()
    assert (run.folder.path / "checkpoints" / "step-1" / "manifest.json").exists()


class Dying(Silent):
    def __init__(self, served: Served) -> None:
        self.served = served

    def step(self, *_: Any) -> None:
        self.served.process.kill()
        self.served.process.join()
