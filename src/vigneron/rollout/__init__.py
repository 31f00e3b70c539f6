"""Where samples come from: prompts, and completions sampled from the policy."""
