"""Build a run from its config: reward, models, method."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from vigneron.config import Config
from vigneron.config.kl import needs_reference_head
from vigneron.config.phases import sampling_phase
from vigneron.config.rewards import asks_reference
from vigneron.data.curricula import ByLoss
from vigneron.distributed import ranks
from vigneron.errors import UserError
from vigneron.policy.architecture import NO_ENCODERS, leaves_out_encoders
from vigneron.policy.chat import stop_at_turn_end
from vigneron.policy.chat_template import set_date, today, writes_date
from vigneron.policy.device import is_emulated, quiet_emulation, resolve_device
from vigneron.policy.from_config import policy_from_config, seed_everything
from vigneron.policy.load import speed_up
from vigneron.policy.model import Policy
from vigneron.policy.model_names import local_config
from vigneron.policy.parent import Parent
from vigneron.policy.reference import Reference
from vigneron.policy.sharding import shard_policy
from vigneron.policy.weight_files import readable_weights
from vigneron.remote.setup import RemoteWorkers
from vigneron.rewards.apply import ApplyReward
from vigneron.rewards.build import attach_models, build_reward
from vigneron.rewards.checkers import build_check, load_checker
from vigneron.rewards.rank0_reward import Rank0Reward
from vigneron.rollout.engine.sample import sampler_of
from vigneron.run_data.load import Data, check_rubric_data
from vigneron.run_data.readers import checker_name
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
from vigneron.training.memory import grow_segments, limit_memory
from vigneron.training.method import Method, unchanged
from vigneron.training.mismatch import mismatch_limits
from vigneron.training.out_of_memory import explained_memory
from vigneron.training.output import RunOutput
from vigneron.training.parts import Parts
from vigneron.training.row_losses import row_losses
from vigneron.training.rubric_audit import RubricAudit, build_rubric_audit
from vigneron.training.run import Origin, Run
from vigneron.training.setup.data_lengths import check_data_lengths
from vigneron.training.setup.machine_checks import machine_notices
from vigneron.training.setup.parent import build_parent
from vigneron.training.setup.rendered_rows import template_notices
from vigneron.training.setup.resolve import newest_weights
from vigneron.training.setup.resume_checks import data_record
from vigneron.training.setup.sizes import crowded_notice, with_sizes
from vigneron.training.token_recorder import decoder
from vigneron.training.training_prompt import score_after_training_prompt

Build = Callable[[Parts], Method]


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
    function, audit, policy, parent = ranks.run_on_all_ranks(lambda: _load(config, folder, data, view, remote))
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
        reference = _reference(config, policy)
    attach_models(function, policy, reference)
    # Sharded weights are gathered at changing addresses during a pass, which a CUDA graph cannot follow.
    unsharded = config.scale.shard == 1
    graphs, compiled = config.model.graphs and unsharded, config.model.compile is True and unsharded
    with phase("prepare the model"):
        slower = speed_up(policy, reference, graphs=graphs, compiled=compiled)
    if config.model.offload_reference:
        reference.offload()
        if needs_reference_head(config.method):  # kept before the free memory is measured
            reference.keep_head()
    remote.attach_sampler(policy, folder)
    with phase("check the data"):
        longest, truncation = check_data_lengths(config, policy, data, function)
    held_out = len(data.held_out) > 0
    asked, config = config, with_sizes(config, policy, reference, parent, folder, longest, held_out=len(data.held_out))
    parts = Parts.of(config, policy, reference, reward, data.train, folder.path, parent)
    built = build(parts)
    if isinstance(parts.curriculum, ByLoss):
        parts.curriculum.measure = row_losses(parts, built)
    samples = sampling_phase(config, held_out=held_out) is not None
    if samples:
        with phase("prepare the sampler"):
            sampler_of(policy)
    method, async_rollout = wrap_method(built, parts)
    known = {notice.key for notice in kept_notices(folder.path)}
    notices = (
        truncation,
        slower,
        crowded_notice(asked, config),
        *method.notices,
        *(environments.notices if (environments := getattr(parts.rollout, "environments", None)) else ()),
        *model_notices(config, policy),
        *template_notices(config, data, policy.tokenizer),
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
        output=RunOutput(
            folder,
            config,
            SampleStore(folder.path),
            saver,
            mismatch=mismatch_limits(config, policy),
            tokens=parts.tokens,
            decode=decoder(policy.tokenizer),
        ),
        origin=Origin(_base_identity(config, identity), data_record(data)),
        audit=audit,
        remote=remote,
        async_rollout=async_rollout,
    )


def model_notices(config: Config, policy: Policy) -> Iterator[str]:
    if leaves_out_encoders(type(policy.causal), local_config(config.model.name)):
        yield f"model {config.model.name}: {NO_ENCODERS}"
    yield from machine_notices(config)


def _with_chat_date(config: Config, policy: Policy, folder: RunFolder) -> Config:
    """With today's date, if the chat template writes one and the config has none: a resumed run keeps it."""
    if config.model.chat_date is not None or not writes_date(policy.tokenizer):
        return config
    day = ranks.run_on_rank0(today)
    set_date(day)
    config = config.model_copy(update={"model": config.model.model_copy(update={"chat_date": day})})
    folder.write_config(config)
    return config


def _reference(config: Config, policy: Policy) -> Reference:
    if config.method.uses_reference or asks_reference(config.reward) or config.scale.shard > 1:
        return Reference.of(policy)
    return Reference.loaded_later(policy, partial(policy_from_config, config))


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
) -> tuple[Any, RubricAudit | None, Policy, Parent | None]:
    """Reward, audit, policy and parent: everything read from files, which may be missing on some node."""
    reward = build_reward(
        config.reward,
        load_checker(checker_name(config), optional=config.answers_are_optional),
        cache=folder.path / "embeddings.sqlite",
        device=config.model.device,
        rubric=folder.rubric,
        notice=view.notice,
        weights=partial(newest_weights, key="reward.file"),
        check=partial(check_rubric_data, data=data),
        placement=remote.placement,
        rows=data.train,
    )
    audit = build_rubric_audit(config, reward, data, folder, notice=view.notice, placement=remote.placement)
    remote.check_used()
    seed_everything(config.seed)
    device = resolve_device(config.model.device)
    if is_emulated(config.model.dtype, device):
        quiet_emulation()
    grow_segments(config, device)
    limit_memory(config, device)
    with phase("load the model", readable_weights(config.model.name)):
        policy = policy_from_config(config, shared=config.scale.shard > 1, notice=view.notice)
    return reward, audit, policy, build_parent(config, policy, view.notice)


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
