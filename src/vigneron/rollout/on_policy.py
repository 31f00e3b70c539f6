"""The rollout of methods that sample: y ~ π(·|x), G samples per prompt."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from vigneron.batch import Batch, Samples, Signals, to_device
from vigneron.config import Config
from vigneron.core.draws import Sampling
from vigneron.data.prompts import Row, columns_of, row_prompts_token_ids, texts_of
from vigneron.environments.build import Environments, build_environments
from vigneron.policy.chat import stop_at_turn_end
from vigneron.policy.model import Policy
from vigneron.rollout.conversations import Transcript, converse, transcript_extras, turn_sums
from vigneron.rollout.engine.request import Completions
from vigneron.rollout.engine.sample import check_lengths, sample, sample_on_all_ranks
from vigneron.timing import phase


@dataclass(frozen=True)
class OnPolicy:
    """`rollout(rows, step, first)`: G samples for each row; greedy if `sampling` is None."""

    policy: Policy
    sampling: Sampling | None
    max_new_tokens: int
    group_size: int = 1
    seed: int = 0
    microbatch_tokens: int = 65536
    mask_truncated: bool = False
    together: bool = False
    """Whether all ranks call it and each samples a part."""
    stop: tuple[str, ...] = ()
    """Strings that end a completion, or a turn."""
    environments: Environments | None = None
    """What the model talks with; None: it answers once."""

    @classmethod
    def of(cls, config: Config, policy: Policy, sampling: Sampling | None) -> "OnPolicy":
        return cls(
            policy,
            sampling,
            config.max_new_tokens,
            config.group_size,
            config.seed,
            config.resolved_microbatch_tokens,
            config.sampling.mask_truncated,
            together=True,
            stop=tuple(config.sampling.stop),
            environments=build_environments(config.environment, policy.tokenizer),
        )

    @classmethod
    def greedy(cls, config: Config, policy: Policy) -> "OnPolicy":
        return replace(cls.of(config, policy, None), group_size=1, seed=0, mask_truncated=False)

    def __call__(self, rows: Sequence[Row], step: int = 0, first: int = 0) -> Batch:
        if self.environments is not None:
            rows = [self.environments.prepared(row) for row in rows]
        repeated = [row for row in rows for _ in range(self.group_size)]
        with phase("tokenize"):
            tokenized = row_prompts_token_ids(self.policy.tokenizer, rows)
        check_lengths(self.policy, tokenized, self.max_new_tokens, rows=rows)
        prompt_ids = [ids for ids in tokenized for _ in range(self.group_size)]
        names = range(first * self.group_size, (first + len(rows)) * self.group_size)
        return self.of_samples(repeated, prompt_ids, step, names)

    def of_samples(
        self, rows: Sequence[Row], prompt_ids: Sequence[tuple[int, ...]], step: int, names: Sequence[int]
    ) -> Batch:
        """One sample for each row, from the given prompt. `names` are the sample numbers: they key the random draws and
        give the groups."""
        stop_at_turn_end(self.policy, (row["prompt"] for row in rows))
        options: dict[str, Any] = {
            "max_new_tokens": self.max_new_tokens,
            "sampling": self.sampling,
            "seed": self.seed,
            "step": step,
            "sample_ids": names,
            "microbatch_tokens": self.microbatch_tokens,
            "stop": self.stop,
        }
        if self.environments is not None:
            done, transcripts = converse(
                self.environments, self.policy, rows, prompt_ids, together=self.together, **options
            )
            return self._with_transcripts(self._batch(rows, prompt_ids, names, done), transcripts)
        draw = sample_on_all_ranks if self.together else sample
        return self._batch(rows, prompt_ids, names, draw(self.policy, prompt_ids, **options))

    def _batch(
        self, rows: Sequence[Row], prompt_ids: Sequence[tuple[int, ...]], names: Sequence[int], done: Completions
    ) -> Batch:
        lengths = done.lengths_B.tolist()
        completion_ids = [tuple(ids[:length]) for ids, length in zip(done.ids_BT.tolist(), lengths, strict=True)]
        with phase("detokenize"):
            texts = texts_of(self.policy.tokenizer, completion_ids)
        device = self.policy.device
        return Batch(
            Samples(
                prompt_ids=tuple(prompt_ids),
                completion_BT=done.ids_BT,
                completion_ids=tuple(completion_ids),
                spans=tuple(((len(ids), len(ids) + length),) for ids, length in zip(prompt_ids, lengths, strict=True)),
                behaviour_BT=done.behaviour_BT,
                truncated_B=done.truncated_B,
                prompt_hidden_BH=done.prompt_hidden_BH,
                group_B=to_device([name // self.group_size for name in names], device),
                sample_B=to_device(list(names), device),
                prompts=tuple(row["prompt"] for row in rows),
                completions=tuple(as_completion(row["prompt"], text) for row, text in zip(rows, texts, strict=True)),
                columns=columns_of(rows),
            ),
            signals=Signals(excluded_B=done.truncated_B if self.mask_truncated else None, metrics=done.metrics),
            packing=self.policy.packing(),
        )

    def _with_transcripts(self, batch: Batch, transcripts: Sequence[Transcript]) -> Batch:
        """The batch with its completions as conversations, of which the policy's own turns are trained."""
        samples = batch.samples
        spans = tuple(
            tuple((len(ids) + start, len(ids) + stop) for start, stop in transcript.spans)
            for ids, transcript in zip(samples.prompt_ids, transcripts, strict=True)
        )
        no_room_B = torch.tensor([transcript.cut == "context" for transcript in transcripts], device=self.policy.device)
        truncated_B = samples.truncated_B | no_room_B
        return (
            batch.with_samples(
                spans=spans,
                completions=tuple(list(transcript.messages) for transcript in transcripts),
                truncated_B=truncated_B,
                extras=samples.extras | transcript_extras(transcripts),
            )
            .with_signals(excluded_B=truncated_B if self.mask_truncated else None)
            .with_turns(turn_sums(transcripts))
        )


def sampling_of(config: Config) -> Sampling:
    return Sampling(**config.sampling.model_dump(include={"temperature", "top_k", "top_p"}))


def as_completion(prompt: Any, text: str) -> Any:
    """A completion in TRL's format: a string for a plain prompt, messages for a conversation."""
    return text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]
