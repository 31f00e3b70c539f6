"""The shape of PGSRM's released loop, rebuilt from the paper's appendix A.4: one prompt at a time, then one update.

Fifty episodes a step: each prompt is tokenised, answered by `generate` and rewarded by itself; the embeddings of texts
seen before are cached. Then the batch takes Algorithm 1's step: reference logits, actor logits and last hidden states,
log-probs over the whole sequence, the value of the last answer token, entropy, KL, and a clipped step of each of two
AdamW. `released-shape` computes in float32; `released-shape-bf16` in bfloat16, as ours does.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.algorithm_1 import ALPHA, CRITIC_LEARNING_RATE, ENTROPY_COEFFICIENT, VALUE_COEFFICIENT
from benchmarks.arguments import contestant_arguments
from benchmarks.frozen import Frozen
from benchmarks.measure import Measurement, Recorder
from benchmarks.models import model_folder
from benchmarks.parity import Verdict
from benchmarks.prompts import prompt_rows
from benchmarks.work import Work
from vigneron.rewards.semantic import similarity_reward
from vigneron.sources.embedders import Embedder, load_embedder
from vigneron.text import letters_only


@dataclass(frozen=True)
class Episode:
    prompt_ids: list[int]
    answer_ids: list[int]
    reward: float


@dataclass
class Loop:
    """The state of the loop: actor, frozen reference, value head, their optimizers, cached embeddings."""

    work: Work
    actor: Any
    tokenizer: Any
    embedder: Embedder
    use_bf16: bool
    embeddings: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.reference = deepcopy(self.actor).requires_grad_(False)
        self.critic = nn.Linear(self.actor.config.hidden_size, 1).to(self.actor.device)
        fused: dict[str, Any] = {"fused": True, "weight_decay": 0.0}
        self.actor_optimizer = torch.optim.AdamW(self.actor.parameters(), lr=self.work.learning_rate, **fused)
        self.critic_optimizer = torch.optim.AdamW(self.critic.parameters(), lr=CRITIC_LEARNING_RATE, **fused)

    def precision(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.work.device, torch.bfloat16) if self.use_bf16 else nullcontext()

    @torch.no_grad()
    def answer(self, prompt: str) -> tuple[list[int], list[int]]:
        """One prompt, one call of `generate`."""
        ids = self.tokenizer(prompt, return_tensors="pt").to(self.actor.device)
        with self.precision():
            whole = self.actor.generate(
                **ids,
                do_sample=True,
                temperature=self.work.temperature,
                top_k=0,
                min_new_tokens=self.work.new_tokens,
                max_new_tokens=self.work.new_tokens,
                pad_token_id=self.tokenizer.pad_token_id,
            )[0].tolist()
        prompt_ids = ids["input_ids"][0].tolist()
        return prompt_ids, whole[len(prompt_ids) :]

    def reward(self, parent: str, answer_ids: Sequence[int]) -> float:
        texts = [letters_only(parent), letters_only(self.tokenizer.decode(answer_ids, skip_special_tokens=True))]
        for text in texts:
            if text not in self.embeddings:
                self.embeddings[text] = self.embedder.embed([text])[0]
        parent_D, child_D = (self.embeddings[text] for text in texts)
        return float(similarity_reward(parent_D[None], child_D[None], alpha=ALPHA))

    def step(self, rows: Sequence[dict[str, str]], recorder: Recorder) -> None:
        episodes = []
        for row in rows:
            with recorder.phase("sampling"):
                prompt_ids, answer_ids = self.answer(row["prompt"])
            with recorder.phase("reference+reward"):
                episodes.append(Episode(prompt_ids, answer_ids, self.reward(row["answer"], answer_ids)))
        self.update(episodes, recorder)

    def update(self, episodes: Sequence[Episode], recorder: Recorder) -> None:
        ids_BS, answer_BS = pad_right(episodes, self.tokenizer.pad_token_id, self.actor.device)
        attention_BS = (torch.arange(ids_BS.shape[1], device=ids_BS.device) <= last_of(answer_BS)[:, None]).long()
        rewards_B = torch.tensor([episode.reward for episode in episodes], device=ids_BS.device)
        with recorder.phase("reference+reward"), torch.no_grad(), self.precision():
            logits_BSV = self.reference(ids_BS, attention_mask=attention_BS).logits
            reference_BS = next_logprobs(logits_BSV, ids_BS).gather(-1, ids_BS[:, 1:, None]).squeeze(-1)
        losses = self.losses(ids_BS, attention_BS, answer_BS, rewards_B, reference_BS)
        for loss, optimizer, module in zip(
            losses, (self.actor_optimizer, self.critic_optimizer), (self.actor, self.critic), strict=True
        ):
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()

    def losses(
        self, ids_BS: Tensor, attention_BS: Tensor, answer_BS: Tensor, rewards_B: Tensor, reference_BS: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Algorithm 1, lines 5-17: the actor's loss and the critic's. `answer_BS` is true on answer tokens."""
        with self.precision():
            out = self.actor(ids_BS, attention_mask=attention_BS, output_hidden_states=True)
        logprobs_BSV = next_logprobs(out.logits, ids_BS)
        chosen_BS = logprobs_BSV.gather(-1, ids_BS[:, 1:, None]).squeeze(-1)
        entropy_BS = -(logprobs_BSV.exp() * logprobs_BSV).sum(-1)
        last_B = last_of(answer_BS)
        hidden_BH = out.hidden_states[-1][torch.arange(len(ids_BS), device=ids_BS.device), last_B].detach().float()
        values_B = self.critic(hidden_BH).squeeze(-1)
        advantages_B1 = (rewards_B - values_B.detach())[:, None]
        mask_BS = answer_BS[:, 1:].float()

        def masked_mean(values_BS: Tensor) -> Tensor:
            return (values_BS * mask_BS).sum() / mask_BS.sum()

        actor_loss = (
            -masked_mean(chosen_BS * advantages_B1)
            - ENTROPY_COEFFICIENT * masked_mean(entropy_BS)
            + self.work.kl_beta * masked_mean(chosen_BS - reference_BS)
        )
        return actor_loss, VALUE_COEFFICIENT * nn.functional.mse_loss(values_B, rewards_B)


def next_logprobs(logits_BSV: Tensor, ids_BS: Tensor) -> Tensor:
    """Log-probs of every next token, over the whole sequence and vocabulary."""
    return logits_BSV[:, : ids_BS.shape[1] - 1].float().log_softmax(-1)


def last_of(answer_BS: Tensor) -> Tensor:
    """The position of each row's last answer token."""
    return (answer_BS.long() * torch.arange(answer_BS.shape[1], device=answer_BS.device)).argmax(1)


def pad_right(episodes: Sequence[Episode], pad_id: int, device: Any) -> tuple[Tensor, Tensor]:
    """Prompt and answer in one row, and where the answer is."""
    width = max(len(e.prompt_ids) + len(e.answer_ids) for e in episodes)
    ids = torch.full((len(episodes), width), pad_id)
    answer = torch.zeros(len(episodes), width, dtype=torch.bool)
    for row, episode in enumerate(episodes):
        start, stop = len(episode.prompt_ids), len(episode.prompt_ids) + len(episode.answer_ids)
        ids[row, :stop] = torch.tensor(episode.prompt_ids + episode.answer_ids)
        answer[row, start:stop] = True
    return ids.to(device), answer.to(device)


def make_loop(work: Work, contestant: str) -> Loop:
    folder = model_folder(work.model)
    torch.manual_seed(0)
    actor: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return Loop(
        work,
        actor.to(work.device).eval(),
        AutoTokenizer.from_pretrained(folder),
        load_embedder("lexical"),
        use_bf16=contestant == "released-shape-bf16",
    )


def measure(work: Work, contestant: str) -> Measurement:
    loop = make_loop(work, contestant)
    rows = prompt_rows(work, loop.tokenizer)
    recorder = Recorder(work)
    step, done = 0, False
    while not done:
        loop.step([rows[(step * work.prompts + i) % len(rows)] for i in range(work.prompts)], recorder)
        done, step = recorder.end_step(), step + 1
    return recorder.finish(contestant, {"compute": "bfloat16" if loop.use_bf16 else "float32", "prompts_at_once": 1})


def parity(work: Work, frozen: Frozen) -> Verdict:
    """Algorithm 1's actor loss on the frozen batch; the value is 0, so that the rewards are the advantages."""
    loop = make_loop(work, "released-shape")
    for parameter in loop.critic.parameters():
        nn.init.zeros_(parameter)
    device, prompt_tokens = loop.actor.device, frozen.prompt_BP.shape[1]
    rows = zip(frozen.prompt_BP, frozen.completion_BT, frozen.lengths_B, frozen.advantages_B, strict=True)
    episodes = [Episode(p.tolist(), c[:n].tolist(), float(a)) for p, c, n, a in rows]
    ids_BS, answer_BS = pad_right(episodes, 0, device)
    attention_BS = (torch.arange(ids_BS.shape[1], device=device) <= last_of(answer_BS)[:, None]).long()
    # The frozen batch has log-probs of completions only; Algorithm 1's tensors begin at the second prompt token.
    reference_BS = torch.zeros(len(ids_BS), ids_BS.shape[1] - 1, device=device)
    reference_BS[:, prompt_tokens - 1 :] = torch.from_numpy(frozen.reference_BT).to(device)
    rewards_B = torch.from_numpy(frozen.advantages_B).to(device)
    loss, _ = loop.losses(ids_BS, attention_BS, answer_BS, rewards_B, reference_BS)
    loss.backward()
    norm = nn.utils.get_total_norm([p.grad for p in loop.actor.parameters() if p.grad is not None])
    with torch.no_grad():
        logits_BSV = loop.actor(ids_BS, attention_mask=attention_BS).logits
        chosen_BS = next_logprobs(logits_BSV, ids_BS).gather(-1, ids_BS[:, 1:, None]).squeeze(-1)
    return Verdict(chosen_BS[:, prompt_tokens - 1 :].cpu().numpy(), float(loss.detach()), float(norm))


if __name__ == "__main__":
    arguments = contestant_arguments(__doc__)
    if arguments.frozen is not None:
        parity(arguments.work, Frozen.load(arguments.frozen)).save(arguments.out)
    else:
        measure(arguments.work, arguments.contestant).save(arguments.out)
