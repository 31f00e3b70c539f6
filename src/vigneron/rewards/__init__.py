"""Rewards with TRL's signature: `reward(prompts, completions, **columns) -> list[float | None]`."""
