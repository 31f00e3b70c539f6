"""Build a run from its config: reward, models, method."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import torch

from vigneron.config import Config
from vigneron.data.curricula import ByLoss
from vigneron.data.prompts import Row, in_row, numbered, prompts_token_ids
from vigneron.data.rows import Subset, longest_of
from vigneron.distributed import ranks
from vigneron.errors import UserError
from vigneron.policy.architecture import NO_ENCODERS, leaves_out_encoders
from vigneron.policy.chat import stop_at_turn_end
from vigneron.policy.chat_template import set_date, today, writes_date
from vigneron.policy.from_config import policy_from_config, seed_everything
from vigneron.policy.load import local_config, resolve_device, speed_up
from vigneron.policy.model import Policy, Reference
from vigneron.policy.sharding import shard_policy
from vigneron.policy.weight_files import readable_weights
from vigneron.remote.setup import RemoteWorkers
from vigneron.rewards.apply import ApplyReward
from vigneron.rewards.build import build_reward
from vigneron.rewards.checkers import build_check, load_checker
from vigneron.rewards.rank0_reward import Rank0Reward
from vigneron.rollout.demonstrations import demonstrations
from vigneron.rollout.engine.sample import check_lengths, sampler_of
from vigneron.rollout.guided import guided_prompts
from vigneron.rollout.pairs import sequences_of
from vigneron.rollout.recorded import recorded_texts
from vigneron.rollout.trained_text_notes import trained_text_notes
from vigneron.rubric.prompts import generation_prompt
from vigneron.rubric.rows import category_of
from vigneron.run_data.load import Data, check_rubric_data
from vigneron.run_data.readers import checker_name, measured_columns
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.notices import Notice, keep_notice, kept_notices
from vigneron.run_store.samples import SampleStore
from vigneron.timing import phase
from vigneron.training.async_rollout import AsyncRollout
from vigneron.training.callbacks import View
from vigneron.training.checkpoint.base_identity import Identity, begin_identity
from vigneron.training.checkpoint.write import Retention, Saver
from vigneron.training.collect import collecting, rewarding
from vigneron.training.importance_weights import WeightedAdvantage
from vigneron.training.memory import MOST_TOKENS, explained_memory, find_sizes, limit_memory
from vigneron.training.method import Method, unchanged
from vigneron.training.mismatch import mismatch_limits
from vigneron.training.output import RunOutput
from vigneron.training.parts import Parts
from vigneron.training.row_losses import row_losses
from vigneron.training.rubric_audit import RubricAudit, build_rubric_audit
from vigneron.training.run import Origin, Run
from vigneron.training.setup.resolve import newest_weights
from vigneron.training.setup.resume_checks import data_record
from vigneron.training.training_prompt import score_after_training_prompt


def check_data_lengths(config: Config, policy: Policy, data: Data, reward: Any = None) -> tuple[int, str | None]:
    """The longest sequence in tokens, and a notice if demonstrations are truncated.

    Raises for a prompt that does not fit into the context, before training starts. Of many rows the longest are
    tokenized: the others are checked in the step that draws them.
    """
    longest, truncation = 1, None
    for part, of in (("train", "the training data"), ("held_out", "the held-out part")):
        whole: Sequence[Row] = getattr(data, part)
        if not whole:
            continue
        indices = longest_of(whole, measured_columns(config, part))
        rows = whole if len(indices) == len(whole) else Subset(whole, indices)
        if config.method.reads == "pairs":
            ids = sequences_of(policy, rows, of, joined=config.method.joins_pairs)
        elif config.method.reads in ("demonstrations", "recorded") and part == "train":
            texts = (recorded_texts if config.method.reads == "recorded" else demonstrations)(policy, rows, of=of)
            ids = [text.ids for text in texts]
            numbers = [number for number, text in zip(indices + 1, texts, strict=True) if text.cut]
            if numbers:
                named = "demonstrations" if config.method.reads == "demonstrations" else "recorded samples"
                least = "at least " if len(rows) < len(whole) else ""
                truncation = (
                    f"{least}{len(numbers)} of {len(whole)} {named} are longer than the model's context of "
                    f"{policy.context_length} tokens and are truncated, the first in row {numbers[0]} of {of}"
                )
        else:
            template = config.sampling.prompt if part == "train" else None  # evaluation uses the row's own prompt
            for prompts, what in sampling_prompts(config, template, rows, reward):
                ids = prompts_token_ids(policy.tokenizer, prompts, of + what, rows)
                check_lengths(policy, ids, config.max_new_tokens, of + what, rows)
                longest = max(longest, config.max_new_tokens + max(map(len, ids)))
            if config.method.shows_answers and part == "train":
                texts = demonstrations(policy, [row for row in rows if row.get("answer")], of=of)
                longest = max(longest, *(len(text.ids) for text in texts))
        longest = max(longest, *map(len, ids))
    return longest, truncation


def sampling_prompts(
    config: Config, template: str | None, rows: Sequence[Row], reward: Any
) -> Iterator[tuple[list[Any], str]]:
    """The prompts that are sampled from: the rows' own, and with the template or a rubric's generation prompts."""
    yield [row["prompt"] for row in rows], ""
    if template is not None:
        yield guided_prompts(rows, template, "the data"), ", with `sampling.prompt`"
    if config.method.needs_rubric:
        rubric = reward.live_rubric.rubric
        categories = [rubric.categories[category_of(rubric, row, n, "the data")] for n, row in enumerate(rows, start=1)]
        prompts = [generation_prompt(category, row["prompt"]) for category, row in zip(categories, rows, strict=True)]
        yield prompts, ", with its category's `generate` prompt"


Build = Callable[[Parts], Method]

NOTED_ROWS = 100
"""Rows whose trained text is compared with their answers."""


def build_run(
    config: Config, folder: RunFolder, data: Data, build: Build, view: View, recorded: Identity | None = None
) -> Run:
    """`recorded`: the base model of the checkpoint to resume."""
    with explained_memory(config):
        remote = ranks.run_on_all_ranks(lambda: RemoteWorkers(config, here=ranks.is_rank0()))
        try:
            return _build(config, folder, data, build, view, remote, recorded)
        except BaseException:  # Ctrl-C too
            remote.close()
            raise


def _build(
    config: Config,
    folder: RunFolder,
    data: Data,
    build: Build,
    view: View,
    remote: RemoteWorkers,
    recorded: Identity | None,
) -> Run:
    function, audit, policy = ranks.run_on_all_ranks(lambda: _load(config, folder, data, view, remote))
    stop_at_turn_end(policy, [row["prompt"] for row in data.train[:1]])
    config = _with_chat_date(config, policy, folder)
    local_reward = ApplyReward.of(config, function)
    reward = local_reward if ranks.world_size() == 1 else Rank0Reward(local_reward)
    has_weights = config.scale.shard == 1 or ranks.is_rank0()
    identity = begin_identity(config.model.name, policy, recorded) if has_weights else None
    shard_policy(policy, config.scale.shard)
    # Rank 0 alone may have drawn initial weights.
    torch.set_rng_state(ranks.run_on_rank0(torch.get_rng_state))
    with phase("copy the reference"):
        reference = Reference.of(policy)
    # Sharded weights are gathered at changing addresses during a pass, which a CUDA graph cannot follow.
    unsharded = config.scale.shard == 1
    graphs, compiled = config.model.graphs and unsharded, config.model.compile is True and unsharded
    with phase("prepare the model"):
        slower = speed_up(policy, reference, graphs=graphs, compiled=compiled)
    remote.attach_sampler(policy, folder)
    with phase("check the data"):
        longest, truncation = check_data_lengths(config, policy, data, function)
    config = _with_sizes(config, policy, reference, folder, longest)
    parts = Parts.of(config, policy, reference, reward, data.train, folder.path)
    built = build(parts)
    if isinstance(parts.curriculum, ByLoss):
        parts.curriculum.measure = row_losses(parts, built)
    samples = config.method.trains == "policy" and config.method.reads != "pairs"
    if samples:
        with phase("prepare the sampler"):
            sampler_of(policy)
    method, async_rollout = wrap_method(built, parts)
    known = {notice.key for notice in kept_notices(folder.path)}
    notices = (
        truncation,
        slower,
        *method.notices,
        *model_notices(config, policy),
        *template_notices(config, policy, data),
    )
    for text in (*notices, sampler_of(policy).notice if samples else None):
        if text is not None:
            view.notice(text)
            if text not in known:
                keep_notice(folder, Notice(0, text))
    saver = Saver(folder.checkpoints, policy, Retention(config.keep_last, config.keep_best))
    return Run(
        config=config,
        data=data,
        policy=policy,
        reference=reference,
        curriculum=parts.curriculum,
        method=method,
        reward=reward,
        check=build_check(checker_name(config)),
        output=RunOutput(folder, config, SampleStore(folder.path), saver, mismatch=mismatch_limits(config, policy)),
        origin=Origin(_base_identity(config, identity), data_record(data)),
        audit=audit,
        remote=remote,
        async_rollout=async_rollout,
    )


def model_notices(config: Config, policy: Policy) -> Iterator[str]:
    if leaves_out_encoders(type(policy.causal), local_config(config.model.name)):
        yield f"model {config.model.name}: {NO_ENCODERS}"
    if config.optimizer.offload and policy.device.type != "cuda":
        yield f"optimizer.offload has no effect on '{policy.device}': the moments are in its memory already"


def template_notices(config: Config, policy: Policy, data: Data) -> Iterator[str]:
    """About the first of the rows whose answers the chat template does not write whole."""
    if config.method.reads not in ("demonstrations", "pairs"):
        return
    for number, row in enumerate(islice(data.train, NOTED_ROWS), start=1):
        if isinstance(row["prompt"], str):
            continue
        place = numbered(row, number, "the training data")
        if notes := in_row(*place, trained_text_notes, policy.tokenizer, row):
            yield f"row {number} of the training data: {'; '.join(notes)}"
            return


def _with_chat_date(config: Config, policy: Policy, folder: RunFolder) -> Config:
    """With today's date, if the chat template writes one and the config has none: a resumed run keeps it."""
    if config.model.chat_date is not None or not writes_date(policy.tokenizer):
        return config
    day = ranks.run_on_rank0(today)
    set_date(day)
    config = config.model_copy(update={"model": config.model.model_copy(update={"chat_date": day})})
    folder.write_config(config)
    return config


def _with_sizes(config: Config, policy: Policy, reference: Reference, folder: RunFolder, longest: int) -> Config:
    """With the sizes that fit into memory, where they are not given: a resumed run keeps them."""
    model = config.model
    auto = config.microbatch_tokens == "auto"
    if auto or (model.cache_gb is None and policy.device.type == "cuda"):
        wanted = MOST_TOKENS if auto else config.resolved_microbatch_tokens
        may_checkpoint = model.activation_checkpointing == "auto"
        with phase("see what fits into memory"):
            sizes = find_sizes(policy, longest, config.optimizer, wanted=wanted, may_checkpoint=may_checkpoint)
        changes: dict[str, Any] = {"microbatch_tokens": sizes.microbatch_tokens} if auto else {}
        held: dict[str, Any] = {}
        if model.cache_gb is None and sizes.cache_bytes is not None:
            held["cache_gb"] = round(sizes.cache_bytes / 2**30, 3)
        if may_checkpoint:
            held["activation_checkpointing"] = sizes.checkpointing
        if sizes.tight:
            held["graphs"] = False
        config = config.model_copy(update={**changes, "model": model.model_copy(update=held)})
        folder.write_config(config)
    reference.policy.graphed = policy.graphed
    if config.model.cache_gb is not None:
        policy.cache_bytes = int(config.model.cache_gb * 2**30)
    return config


def wrap_method(method: Method, parts: Parts) -> tuple[Method, AsyncRollout | None]:
    """Add reward overlap, importance weights and asynchronous rollout to the method, as the config asks."""
    config, policy = parts.config, parts.policy
    method = collecting(method, parts.curriculum)
    if config.sampling.prompt is not None:
        advantage = method.advantage
        method = replace(method, advantage=lambda batch: advantage(score_after_training_prompt(batch, parts)))
    weighted = config.method.reads == "prompts" and not config.method.weighs_samples
    if weighted and (config.scale.staleness or not sampler_of(policy).exact):
        method = replace(method, advantage=WeightedAdvantage(method.advantage, parts))
    if not config.scale.staleness:
        return method, None
    rollout = method.rollout if method.reward is unchanged else rewarding(method)
    async_rollout = AsyncRollout(rollout, parts.curriculum, config, policy)
    return replace(method, rollout=async_rollout, reward=unchanged), async_rollout


def _load(
    config: Config, folder: RunFolder, data: Data, view: View, remote: RemoteWorkers
) -> tuple[Any, RubricAudit | None, Policy]:
    """Reward, audit and policy: everything read from files, which may be missing on some node."""
    reward = build_reward(
        config.reward,
        load_checker(checker_name(config)),
        cache=folder.path / "embeddings.sqlite",
        device=config.model.device,
        rubric=folder.rubric,
        notice=view.notice,
        weights=partial(newest_weights, key="reward.file"),
        check=partial(check_rubric_data, data=data),
        placement=remote.placement,
    )
    audit = build_rubric_audit(config, reward, data, folder, notice=view.notice, placement=remote.placement)
    remote.check_used()
    seed_everything(config.seed)
    limit_memory(config, resolve_device(config.model.device))
    with phase("load the model", readable_weights(config.model.name)):
        return reward, audit, policy_from_config(config, shared=config.scale.shard > 1, notice=view.notice)


def _base_identity(config: Config, identity: Callable[[], Identity] | None) -> Identity:
    """Name and hash of the base weights. Raises if they differ between ranks."""
    own = ranks.run_on_all_ranks(identity or (lambda: None))
    first = ranks.run_on_rank0(lambda: own)
    assert first is not None

    def compare() -> None:
        if own not in (None, first):
            raise UserError(
                f"model: '{config.model.name}' has other weights than on rank 0: copy the same files to every node"
            )

    ranks.run_on_all_ranks(compare)
    return first
