"""Conversations with a tool that takes 50 ms: ours against TRL, and against a single turn of as many tokens."""
