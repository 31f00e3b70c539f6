"""The table of metrics: what each is called, which direction is better, where it is shown, what it means.

The terminal, reports, lists of runs, the viewer and docs/reference/metrics.md are made from it. The order of the table
is the order in which metrics are shown.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

Direction = Literal["up", "down"]

TRAINING, LOSSES, PAIRS, COMPLETIONS = "Training", "Losses", "Preference pairs", "Completions"
HELD_OUT, CANARIES, COMPONENTS, RUBRIC = "Held out", "Canaries", "Reward components", "Rubric"
REJECTION, GRAPE, OFF_POLICY = "Rejection sampling", "GRAPE responses", "Off-policy sampling"
TRUST_REGION, OPTIMIZER, CURRICULUM, TURNS = "Trust region", "Optimizer", "Curriculum", "Conversations"
STABILITY, SIZE, SPEED = "Stability", "Size", "Speed and memory"
SECTIONS = (
    HELD_OUT,
    TRAINING,
    COMPLETIONS,
    TURNS,
    LOSSES,
    PAIRS,
    COMPONENTS,
    CURRICULUM,
    OPTIMIZER,
    SPEED,
    REJECTION,
    GRAPE,
    OFF_POLICY,
    TRUST_REGION,
    CANARIES,
    RUBRIC,
    STABILITY,
    SIZE,
)


@dataclass(frozen=True)
class Metric:
    key: str
    """Its name in metrics.jsonl. A part in capitals stands for any name: `reward/CATEGORY/reward`."""
    label: str
    direction: Direction | None
    """Which way is better; None where neither is."""
    panel: str
    """Title of its plot in a report; empty: not plotted there."""
    section: str
    meaning: str


# fmt: off
METRICS = (
    Metric("reward", "reward", "up", "reward (training)", TRAINING,
           "Mean reward of the step's samples; missing rewards are left out."),
    Metric("accuracy", "accuracy", "up", "accuracy", TRAINING,
           "Share of samples that the checker accepts; for a reward or preference model, share of pairs ranked right."),
    Metric("loss/nll", "NLL", "down", "negative log-likelihood", LOSSES,
           "Negative log-likelihood per token of the demonstrations, or of the samples kept."),
    Metric("loss/dpo", "DPO loss", "down", "DPO loss", LOSSES, "DPO loss per pair; log 2 at the first step."),
    Metric("loss/ipo", "IPO loss", "down", "IPO loss", LOSSES, "(margin of mean log-ratios − 1/2β)², per pair."),
    Metric("loss/simpo", "SimPO loss", "down", "SimPO loss", LOSSES,
           "−log σ(β · margin of mean log-probs − γ), per pair."),
    Metric("loss/orpo", "ORPO loss", "down", "ORPO loss", LOSSES,
           "−log σ(log odds of chosen − log odds of rejected), per pair, before its coefficient β."),
    Metric("loss/distill", "distillation loss", "down", "distillation loss", LOSSES,
           "Divergence to the parent per token, over the samples; with `loss: sampled` −A log π, which says nothing."),
    Metric("loss/discriminator", "discriminator's loss", None, "discriminator's loss", LOSSES,
           "−log σ(score of the parent's answer − score of the child's sample), per sample; log 2 if it cannot tell."),
    Metric("discriminator/accuracy", "discriminator's accuracy", None, "discriminator's accuracy", LOSSES,
           "Share of samples that score below the parent's answer; ½ if the discriminator cannot tell."),
    Metric("discriminator/margin", "discriminator's margin", None, "", LOSSES,
           "Score of the parent's answer minus that of the child's sample."),
    Metric("loss/flow", "flow balance", "down", "flow balance", LOSSES,
           "(log π − log-share of the flow)², per token: 0 where answers are as likely as their share of the scores."),
    Metric("loss/kto", "KTO loss", "down", "KTO loss", LOSSES, "KTO loss per text; about ½ at the first step."),
    Metric("kto/baseline", "KTO's z₀", None, "", LOSSES,
           "Estimate of KL(π ‖ reference) from completions behind other prompts, summed over tokens."),
    Metric("loss/sppo", "SPPO loss", "down", "SPPO loss", LOSSES,
           "½ [log π/π₀ − η (win rate − ½)]², per sample."),
    Metric("loss/topr", "TOPR loss", None, "TOPR loss", LOSSES, "−w R log π, per sample; it has no bound."),
    Metric("loss/oreo", "OREO loss", "down", "OREO loss", LOSSES,
           "(V + β Σ log π/π_ref − R)² of the tokens that follow, per token."),
    Metric("loss/a_star", "A*-PO loss", "down", "A*-PO loss", LOSSES, "(β log π/π_ref + V* − R)², per sample."),
    Metric("loss/bradley_terry", "Bradley-Terry loss", "down", "Bradley-Terry loss", LOSSES,
           "−log σ(score of chosen − score of rejected), per pair."),
    Metric("loss/preference", "cross-entropy", "down", "cross-entropy", LOSSES,
           "Binary cross-entropy of which text of a pair is preferred."),
    Metric("loss/score", "cross-entropy", "down", "cross-entropy", LOSSES,
           "Binary cross-entropy against the recorded scores, or the labels of steps."),
    Metric("margin", "margin", "up", "margin", PAIRS, "Score of the chosen text minus score of the rejected one."),
    Metric("rewards/margins", "reward margin", "up", "reward margin", PAIRS,
           "`rewards/chosen` − `rewards/rejected`, per pair."),
    Metric("rewards/accuracies", "implicit accuracy", "up", "implicit accuracy", PAIRS,
           "Share of pairs whose chosen text has the higher implicit reward; with KTO, of texts on the right side of "
           "z₀."),
    Metric("score_error", "score error", "down", "score error", PAIRS,
           "Mean |predicted score − recorded score|."),
    Metric("entropy", "entropy", None, "entropy (nats per token)", TRAINING,
           "Entropy of the policy over the vocabulary at the sampled tokens, in nats per token. This and other means "
           "over tokens leave out groups of equal rewards where these need no pass through the model. Of a step's "
           "several updates this, `kl` and `logprob_mismatch` are of the first: with minibatches, this and "
           "`logprob_mismatch` are of a random part of the batch."),
    Metric("kl", "KL", "down", "KL to the reference (nats per token)", TRAINING,
           "KL(π₀ ‖ reference): over the vocabulary where GRPO or GRAPE penalise the exact KL; else by k1, the mean of "
           "log π₀ − log π_ref over the sampled tokens, which is unbiased and may be negative."),
    Metric("kl_previous", "KL between steps", "down", "KL between steps (nats per token)", TRAINING,
           "KL(π₀ ‖ π₁): how far the step's updates moved the policy, in nats per token."),
    Metric("kl_parent", "KL to the parent", "down", "KL to the parent (nats per token)", TRAINING,
           "KL(child ‖ parent) on the step's samples by k1: the mean of log child − log parent over sampled tokens."),
    Metric("kept/reward", "kept reward", "up", "reward of the samples kept", REJECTION,
           "Mean reward of the samples that are trained on."),
    Metric("frac_reward_zero_std", "zero-std groups", "down", "share of groups with equal rewards", TRAINING,
           "Share of groups whose rewards are all equal: their advantages are 0."),
    Metric("critic/explained_variance", "explained variance", "up", "variance explained by the critic", TRAINING,
           "1 − Var(R − V) / Var(R) over the tokens: 1 for a perfect critic, 0 for a constant one."),
    Metric("completions/mean_length", "mean length", None, "tokens per completion", COMPLETIONS,
           "Mean number of tokens of a completion; of a conversation, of the model's own."),

    Metric("reward_std", "reward std", None, "", TRAINING, "Standard deviation of the step's rewards."),
    Metric("reward_missing", "missing rewards", "down", "", TRAINING,
           "Samples without a reward: the judge, the parent or the function returned none."),
    Metric("exact_match", "exact match", "up", "", TRAINING, "Share of completions equal to the answer."),
    Metric("answer_included", "answer included", "up", "", TRAINING, "Share of completions that contain the answer."),
    Metric("kl_previous/max", "largest KL of a token", "down", "", TRAINING,
           "Largest KL(π₀ ‖ π₁) of any token of the step."),
    Metric("entropy/demonstrated", "entropy of demonstrations", None, "", TRAINING,
           "Entropy of the policy at the tokens of given texts, in nats per token."),
    Metric("logprob_mismatch", "log-prob mismatch", "down", "", OFF_POLICY,
           "Mean |log π when scored − log π when sampled|; some 1e-5 is rounding in float32, more in bfloat16. "
           "About 0 with importance weights: `importance/gap` is then the difference."),
    Metric("groups_replaced", "groups replaced", None, "", TRAINING,
           "Groups of equal rewards that `method.resample` replaced by other prompts. What rewards and environments "
           "log is then a mean over all samples drawn."),
    Metric("value", "V* of the prompts", None, "", TRAINING,
           "A*-PO: mean V* of the step's prompts, from the reference's samples."),
    Metric("baseline", "baseline", None, "", TRAINING, "REINFORCE's baseline, where it is one number."),
    Metric("steps_skipped", "steps skipped", "down", "", TRAINING,
           "Steps so far that ended before all their updates, because a value was not finite (`skip_nonfinite`)."),

    Metric("loss/policy", "policy loss", "down", "", LOSSES, "The policy-gradient term of the loss."),
    Metric("loss/kl", "KL penalty", "down", "", LOSSES,
           "The KL penalty by its own estimator, before its coefficient."),
    Metric("loss/value", "value loss", "down", "", LOSSES, "The critic's squared error, before its coefficient."),
    Metric("loss/entropy", "entropy term", None, "", LOSSES, "The entropy in the loss, before its coefficient."),
    Metric("loss/NAME", "NAME loss", "down", "", LOSSES, "A term of the loss."),
    Metric("clip_ratio/region_mean", "clip ratio", "down", "", LOSSES,
           "Share of tokens (or sequences) whose ratio is clipped."),

    Metric("rewards/chosen", "reward of chosen", "up", "", PAIRS,
           "DPO: β (log π − log π_ref) of the chosen text. Reward model: its score."),
    Metric("rewards/rejected", "reward of rejected", "down", "", PAIRS, "The same of the rejected text."),
    Metric("logps/chosen", "log-prob of chosen", None, "", PAIRS, "Summed log-probability of the chosen text."),
    Metric("logps/rejected", "log-prob of rejected", None, "", PAIRS, "Summed log-probability of the rejected text."),
    Metric("first_preferred", "first preferred", None, "", PAIRS,
           "Mean probability that the first text of a pair is preferred."),
    Metric("pairs", "pairs", "up", "", PAIRS, "Pairs made from the step's samples (`pairs: sampled`)."),
    Metric("groups_without_pair", "groups without a pair", "down", "", PAIRS,
           "Groups whose rewards are all equal, so that they give no pair."),

    Metric("completions/clipped_ratio", "truncated", "down", "", COMPLETIONS,
           "Share of completions cut at `max_new_tokens`."),
    Metric("completions/echo", "echo of the input", "down", "", COMPLETIONS,
           "Share of a completion's words that occur in the input (the column `input`, or the prompt)."),
    Metric("completions/repetition", "repetition", "down", "", COMPLETIONS,
           "Share of a completion's words that it has used before."),
    Metric("completions/distinct", "distinct completions", None, "", COMPLETIONS,
           "Distinct completions per distinct answer (or input); near 0: the same completion for every prompt."),
    Metric("completions/answered", "answered", "up", "", COMPLETIONS,
           "Share of completions with the `delimiter`, with `reward.sees: answer`."),
    Metric("completions/length_ratio", "length ratio", None, "", COMPLETIONS,
           "Words of the completion per word of the answer."),

    Metric("turns/mean", "turns", None, "turns of a conversation", TURNS,
           "Turns of the model in a conversation with the environment, on average."),
    Metric("turns/cut", "cut by turns", "down", "", TURNS,
           "Share of conversations that `environment.max_turns` ended before the environment did."),
    Metric("turns/failed", "environment failed", "down", "", TURNS,
           "Share of conversations whose environment raised, hung or gave no usable reply; they have no reward."),
    Metric("turns/tool_calls", "tool calls", None, "", TURNS, "Tool calls of a conversation, on average."),
    Metric("turns/tool_errors", "tool errors", "down", "tool errors of a conversation", TURNS,
           "Tool calls of a conversation that came back as an error, on average."),
    Metric("turns/reward/TURN", "reward, turn TURN", "up", "reward by turn", TURNS,
           "What the environment gave for this turn, averaged over the conversations that have it."),
    Metric("turns/judge_right", "judge right", "up", "judge right", TURNS,
           "Share of debates in which the judge decides right (`SumDebate`, `SumConsultancy`). Without those of equal "
           "sums."),
    Metric("turns/judge_probability", "judge's probability of the right side", "up", "", TURNS,
           "Mean probability that the judge of a debate gives to the right side."),
    Metric("turns/NAME", "NAME", None, "", TURNS,
           "A number that the environment logged: its sum over a conversation, on average. Without conversations whose "
           "environment failed, and those that logged None."),
    Metric("roles/ROLE/reward", "reward, ROLE", "up", "reward by role", TURNS,
           "Mean reward of the role's samples in a game of several roles."),
    Metric("reward/overlong", "overlong penalty", "up", "", COMPONENTS,
           "Mean soft penalty of long completions (`reward.overlong`)."),
    Metric("reward/score", "rubric score", "up", "", COMPONENTS,
           "Weighted sum of the rubric's scores without confidences: compare runs by it."),
    Metric("reward/annealed", "rewarded by the check", None, "", COMPONENTS,
           "Share of samples whose prompt has been hit, with `reward.combine: annealed`: the check rewards them."),
    Metric("reward/input_similarity", "similarity to the input", "down", "", COMPONENTS,
           "Reward that the completion would get if the input were the answer."),
    Metric("reward/judge/tokens_in", "judge tokens in", None, "", COMPONENTS, "Prompt tokens sent to the judge."),
    Metric("reward/judge/tokens_out", "judge tokens out", None, "", COMPONENTS, "Tokens generated by the judge."),
    Metric("reward/steps", "steps", None, "steps of a completion", COMPONENTS,
           "Mean number of steps of a completion, with `reward.kind: process`."),
    Metric("reward/NAME", "NAME", None, "", COMPONENTS, "Logged by the reward function through `log_metric`."),

    Metric("reward/CATEGORY/reward", "reward, CATEGORY", "up", "", RUBRIC,
           "Mean reward of the samples of one category."),
    Metric("reward/CATEGORY/ITEM/score", "ITEM, score", "up", "mean score", RUBRIC, "Mean score of one item, 0 to 1."),
    Metric("reward/CATEGORY/ITEM/spread", "ITEM, spread", None, "", RUBRIC, "Standard deviation of the item's scores."),
    Metric("reward/CATEGORY/ITEM/confidence", "ITEM, confidence", "up", "mean confidence", RUBRIC,
           "Mean confidence of the item's scores."),
    Metric("reward/CATEGORY/ITEM/failed", "ITEM, failed", "down", "", RUBRIC, "Samples without a score by this item."),
    Metric("reward/CATEGORY/ITEM/share", "ITEM, share", None, "share of the advantage", RUBRIC,
           "Share of the advantages' variance that the item explains."),

    Metric("curriculum/level/LEVEL", "level LEVEL", None, "share of each level in the step's rows", CURRICULUM,
           "Share of the step's rows that have this level (`curriculum.by: level`), before dynamic sampling."),
    Metric("curriculum/success/STATE", "STATE", None, "solved, hopeless and other prompts of the step", CURRICULUM,
           "Share of the step's prompts that were `solved`, `hopeless`, in `between` or `unseen` before it "
           "(`curriculum.by: success`)."),
    Metric("curriculum/share", "share of the rows", None, "share of the rows that are drawn from", CURRICULUM,
           "Share of the training rows, those with the lowest losses, that are drawn from (`curriculum.by: loss`)."),
    Metric("curriculum/threshold", "loss threshold", None, "loss threshold λ", CURRICULUM,
           "The largest loss among the rows that are drawn from."),

    Metric("kept/share", "share kept", None, "", REJECTION, "Share of the samples that are trained on."),
    Metric("kept/distinct", "distinct kept", None, "", REJECTION, "Different texts kept per prompt."),
    Metric("kept/groups_rejected", "groups rejected", "down", "", REJECTION,
           "Prompts of which no sample reaches `min_reward`."),

    Metric("origin/ORIGIN", "share, ORIGIN", None, "share of each origin", GRAPE,
           "Share of responses that are `fresh`, `revised` or `demonstrated` (the dataset's answer)."),
    Metric("origin/reward/ORIGIN", "reward, ORIGIN", "up", "reward by origin", GRAPE,
           "Mean reward of the responses of one origin."),
    Metric("origin/advantage/ORIGIN", "advantage, ORIGIN", None, "advantage by origin", GRAPE,
           "Mean advantage of the trained tokens of one origin, after `baseline` and `correction`."),
    Metric("drawn/helped", "sampled with help", None, "", GRAPE,
           "Share of responses sampled with more than the bare question: a generation or revision prompt, or items."),
    Metric("drawn/too_long", "too long to revise", "down", "", GRAPE,
           "Share of responses sampled fresh because the revision prompt would be too long."),
    Metric("drawn/gap", "gap between prompts", "down", "", GRAPE,
           "Mean |log π₀ under the prompt sampled with − log π₀ under the prompt trained with|, in nats per token."),
    Metric("drawn/mismatch", "log-prob mismatch, sampled prompt", "down", "", GRAPE,
           "`logprob_mismatch` of a few samples, scored under the prompt that they were sampled with."),
    Metric("drawn/weight", "correction weight", None, "", GRAPE,
           "Mean weight of a token with `correction: truncated` or `topr`."),
    Metric("hindsight/mean", "signal in hindsight", None, "", GRAPE,
           "`self_distillation`: mean of log π₀(token | seen, question) − log π₀(token | question), clipped, in nats."),
    Metric("hindsight/size", "size of the signal in hindsight", None, "", GRAPE,
           "Mean absolute value of the same: near 0, what was seen tells the policy nothing."),
    Metric("hindsight/share", "responses with hindsight", None, "", GRAPE,
           "Share of responses that have this signal: with `sees: best`, those below the best of their group."),
    Metric("hindsight/too_long", "too long for hindsight", "down", "", GRAPE,
           "Share of responses without it because the prompt would be too long."),

    Metric("topr/weight", "TOPR weight", None, "TOPR weight", OFF_POLICY,
           "Mean weight of a sample: 1 where its reward is not negative, else min(1, π / behaviour policy)."),
    Metric("topr/negative", "negative rewards", None, "", OFF_POLICY, "Share of samples with a negative reward."),
    Metric("importance/mean", "importance weight", None, "", OFF_POLICY,
           "Mean π₀ / behaviour policy over the trained tokens, before truncation."),
    Metric("importance/max", "largest importance weight", None, "", OFF_POLICY,
           "Largest π₀ / behaviour policy of a token."),
    Metric("importance/limited", "truncated weights", "down", "", OFF_POLICY,
           "Share of tokens whose importance weight is truncated."),
    Metric("importance/gap", "importance gap", "down", "", OFF_POLICY,
           "Mean |log π₀ − log behaviour policy|, in nats per token."),
    Metric("staleness", "staleness", "down", "", OFF_POLICY,
           "Steps between the weights that sampled and the weights that are updated."),
    Metric("version", "weight version", None, "", OFF_POLICY, "Step of the weights that sampled."),
    Metric("vllm/probe_gap", "vLLM probe gap", "down", "", OFF_POLICY,
           "Mean |log π − vLLM's log-prob| on a fixed text."),

    Metric("trust/share", "step size", None, "", TRUST_REGION, "Share of the longest step that the line search took."),
    Metric("trust/refused", "steps refused", "down", "", TRUST_REGION, "1 where the line search found no step."),
    Metric("trust/improvement", "improvement", "up", "", TRUST_REGION, "Decrease of the surrogate loss by the step."),

    Metric("grad_norm/NAME", "gradient norm, NAME", None, "", OPTIMIZER, "Norm of the gradient before clipping."),
    Metric("learning_rate", "learning rate", None, "", OPTIMIZER, "The actor's learning rate."),
    Metric("kl_coefficient", "KL coefficient", None, "", OPTIMIZER, "Coefficient of the KL penalty in this step."),

    Metric("eval/accuracy", "held-out accuracy", "up", "", HELD_OUT,
           "Share of held-out prompts whose greedy completion the checker accepts, of held-out pairs ranked right, or "
           "of held-out labels predicted right."),
    Metric("eval/accuracy/level/LEVEL", "held-out accuracy, level LEVEL", "up", "accuracy by level (held out)",
           HELD_OUT, "`eval/accuracy` of the held-out rows of one level (`curriculum.by: level`)."),
    Metric("eval/rewards/accuracies/level/LEVEL", "held-out implicit accuracy, level LEVEL", "up",
           "implicit accuracy by level (held out)", HELD_OUT,
           "`eval/rewards/accuracies` of the held-out rows of one level (`curriculum.by: level`)."),
    Metric("eval/rewards/accuracies", "held-out implicit accuracy", "up", "", HELD_OUT,
           "Share of held-out pairs whose chosen text has the higher implicit reward; with KTO, of held-out texts on "
           "the right side of z₀."),
    Metric("eval/reward", "held-out reward", "up", "reward (held out, greedy)", HELD_OUT,
           "Mean reward of greedy completions of the held-out prompts."),
    Metric("eval/loss", "held-out loss", "down", "", HELD_OUT, "Loss of a reward or preference model."),
    Metric("eval/loss/nll", "held-out NLL", "down", "", HELD_OUT, "Negative log-likelihood of demonstrations."),
    Metric("eval/kl_parent", "held-out KL to the parent", "down", "", HELD_OUT,
           "KL(child ‖ parent) per token on the child's samples for held-out prompts: exact over the vocabulary, by k1 "
           "where the parent is on a server."),
    Metric("eval/loss/dpo", "held-out DPO loss", "down", "", HELD_OUT, "DPO loss of held-out pairs."),
    Metric("eval/loss/ipo", "held-out IPO loss", "down", "", HELD_OUT, "IPO loss of held-out pairs."),
    Metric("eval/loss/simpo", "held-out SimPO loss", "down", "", HELD_OUT, "SimPO loss of held-out pairs."),
    Metric("eval/loss/orpo", "held-out ORPO loss", "down", "", HELD_OUT, "Odds ratio of held-out pairs."),
    Metric("eval/loss/kto", "held-out KTO loss", "down", "", HELD_OUT, "KTO loss of held-out texts."),
    Metric("eval/loss/flow", "held-out flow balance", "down", "", HELD_OUT, "Flow balance of held-out answers."),
    Metric("eval/margin", "held-out margin", "up", "", HELD_OUT, "Score margin of held-out pairs."),
    Metric("eval/rewards/margins", "held-out reward margin", "up", "", HELD_OUT, "Reward margin of held-out pairs."),
    Metric("eval/score_error", "held-out score error", "down", "", HELD_OUT, "Mean |predicted − recorded score|."),
    Metric("eval/calibration_error", "calibration error", "down", "", HELD_OUT,
           "Expected calibration error of the predicted preferences."),
    Metric("eval/answer_included", "answer included", "up", "", HELD_OUT,
           "Share of greedy completions that contain the answer."),
    Metric("eval/held_out_rubric/reward", "reward, held-out rubric", "up", "", HELD_OUT,
           "Reward of the held-out completions by `held_out_file` or `held_out_judge`, which are not trained on."),
    Metric("eval/canary/largest", "largest canary reward", "down", "", CANARIES,
           "Most that a canary (an answer that deserves nothing) gets, as a share of a perfect answer's reward."),
    Metric("eval/canary/CATEGORY", "canaries, CATEGORY", "down", "", CANARIES,
           "Mean reward of one category's canaries, as a share of a perfect answer's reward."),

    Metric("entropy_collapses", "entropy collapses", "down", "", STABILITY,
           "How often entropy fell below a tenth of its first value (or 0.05 nats where that is more)."),
    Metric("entropy_recoveries", "entropy recoveries", "up", "", STABILITY,
           "How often it then came back to twice that value."),
    Metric("kl_largest_rise", "largest rise of KL in a step", "down", "", STABILITY,
           "Largest rise of `kl` from one step to the next, of the smoothed curve."),
    Metric("kl_previous_largest", "largest KL between steps", "down", "", STABILITY, "Maximum of `kl_previous`."),
    Metric("reward_drop", "drop from the best reward", "down", "", STABILITY,
           "Best mean reward over as many steps as the final value is a mean of, minus the final value."),
    Metric("steps_without_reward", "steps without reward", "down", "", STABILITY,
           "Share of steps whose mean reward is not above 0."),
    Metric("speed/step_seconds", "seconds per step", "down", "", SPEED,
           "Seconds of the step, without evaluating and saving. This section is in timings.jsonl."),
    Metric("speed/tokens_per_second", "tokens per second", "up", "", SPEED,
           "Tokens of the step's completions per second of the whole step."),
    Metric("speed/gpu_percent", "GPU use", "up", "", SPEED,
           "Percent of the step's last second, or less, in which the GPU was busy. Needs nvidia-ml-py."),
    Metric("memory/host_gb", "host memory", None, "", SPEED, "Memory of the training process after the step, in GB."),
    Metric("memory/gpu_gb", "GPU memory", None, "", SPEED,
           "GPU memory that torch and the sampler's cache hold after the step, in GB."),
    Metric("memory/peak_allocated_gb", "peak allocated", None, "", SPEED,
           "The most GPU memory allocated so far, in GB; logged when it has risen."),
    Metric("memory/peak_reserved_gb", "peak reserved", None, "", SPEED,
           "The most GPU memory reserved so far, in GB; logged when it has risen."),
    Metric("steps", "steps", None, "", SIZE, "Steps of the run."),
    Metric("episodes", "episodes", None, "", SIZE, "Samples seen: step × `prompts_per_step` × `group_size`."),
    Metric("seconds", "seconds in steps", None, "", SIZE,
           "Time of the training steps, without loading, evaluating and saving."),
)
# fmt: on
BY_KEY = {one.key: one for one in METRICS}
FAMILIES = tuple(one for one in METRICS if any(part.isupper() for part in one.key.split("/")))
PLACES = {one.key: place for place, one in enumerate(METRICS)}
# What is measured on held-out data, under the name of the training metric.
HELD_OUT_PREFIXES = {"eval/held_out_rubric/": "reward/", "eval/": ""}


def metric(key: str) -> Metric:
    """The entry of the table. Held-out metrics without one are made from the training metric's; a user's own metric
    gets an entry without a meaning."""
    if key in BY_KEY:
        return BY_KEY[key]
    for family in FAMILIES:
        if (member := _member(family, key)) is not None:
            return member
    for prefix, of in HELD_OUT_PREFIXES.items():
        if key.startswith(prefix):
            return _held_out(key, metric(of + key.removeprefix(prefix)))
    head, _, rest = key.partition("/")
    section = next((one.section for one in METRICS if one.key.startswith(f"{head}/")), head) if rest else TRAINING
    lower = "loss" in key.split("/") or key.endswith("_error")
    return Metric(key, key, "down" if lower else None, "", section, "")


def in_order(keys: Iterable[str]) -> list[str]:
    """Keys in the order of the table; unknown ones last."""
    return sorted(keys, key=lambda key: PLACES.get(key, len(PLACES)))


def lower_is_better(key: str) -> bool:
    return metric(key).direction == "down"


def _member(family: Metric, key: str) -> Metric | None:
    """The family's entry with the names of this key in place of the capitals."""
    pattern, parts = family.key.split("/"), key.split("/")
    if len(parts) != len(pattern):
        return None
    names = {name: part for name, part in zip(pattern, parts, strict=True) if name.isupper()}
    if any(name != part for name, part in zip(pattern, parts, strict=True) if name not in names):
        return None
    label = family.label
    for name, part in names.items():
        label = label.replace(name, part, 1)
    return replace(family, key=key, label=label)


def _held_out(key: str, base: Metric) -> Metric:
    section = base.section if base.section == RUBRIC else HELD_OUT
    meaning = f"{base.meaning} On held-out rows." if base.meaning else ""
    return replace(base, key=key, label=f"held-out {base.label}", panel="", section=section, meaning=meaning)
