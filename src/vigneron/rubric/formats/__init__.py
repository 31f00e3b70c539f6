"""Rubrics as other people write them: OpenAI's graders, HealthBench's rows, the criteria of verifiers."""
