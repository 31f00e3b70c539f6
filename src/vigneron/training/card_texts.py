"""What a model card says of methods, rewards and limits, in plain words."""

RLMT = "R. Patel (2025): *Understanding Reinforcement Learning for Model Training, and future directions with GRAPE*."
PGSRM = "*Parent-Guided Semantic Reward Model (PGSRM)*: embedding similarity to a parent's answer as the reward."

ABOUT_METHOD = {
    "actor_critic": "Actor-critic, by PGSRM's Algorithm 1: the policy gradient with a value for each prompt.",
    "dpo": "Direct preference optimization: the preferred text of a pair is made likelier than the other.",
    "grape": "GRAPE: groups of answers, some of them revised, scored by a rubric and compared within their group.",
    "grpo": "GRPO: groups of samples, each compared with the mean of its group, with a clipped ratio.",
    "ppo": "PPO: a clipped ratio, with a critic and the KL to the base model in the reward.",
    "preference_model": "A preference model: of two texts, the probability that the first is better.",
    "reinforce": "REINFORCE: the reward-weighted log-likelihood of samples, less a baseline.",
    "rejection_sampling": "Rejection sampling: fine-tuning on the best of each prompt's samples.",
    "reward_model": "A reward model: of two texts, the preferred one is to score higher (Bradley-Terry).",
    "score_model": "A reward model of people's scores: a score is the share of people who would accept a text.",
    "sft": "Supervised fine-tuning: the negative log-likelihood of demonstrations.",
    "trpo": "TRPO: the importance ratio, kept near the policy that sampled by their KL.",
}

ABOUT_REWARD = {
    "semantic": "The reward is the similarity between the embeddings of the answer and of a parent's answer (PGSRM).",
    "binary": "The reward is 1 for an answer that counts as right, and 0 for any other.",
    "python": "The reward is a function of the trainer's own.",
    "model": "The reward is what a reward model gives the text.",
    "preference": "The reward is how often a preference model prefers the text to the others of its group.",
    "rubric": "The reward is a rubric's: items with weights, scored by programs or by a judge.",
}

LIMITS = {
    "narrow": "It learned from {rows} rows of one kind. What it says to anything else was not looked at, and may be "
    "worse than the base model.",
    "rewarded": "It was trained to earn a reward. A high reward is no proof of quality: look at its answers.",
    "semantic": "Nearness of embeddings is not truth: opposites can lie near each other, and a wrong answer near a "
    "right one.",
    "model": "A reward model has its own errors, and a policy that is trained on it finds them.",
    "preference": "A preference model has its own errors, and a policy that is trained on it finds them.",
    "rubric": "Where a judge scored, its errors and tastes are in the model.",
    "scorer": "Its scores compare texts of the kind it was trained on. Elsewhere, and for texts that were written to "
    "please it, they mean little.",
    "not evaluated": "Nothing was held out: no figure here says how it does on what it has not seen.",
    "unsafe": "It was not tested for safety, and has at least the faults of its base model.",
}
