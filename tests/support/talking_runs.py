"""A small run whose model talks with an environment, for what looks at such runs and samples from them."""

from pathlib import Path
from typing import Any

from support.labelling import write_rows
from support.talking import Counting, conversing, talking_folder
from support.tiny_runs import held_out_of, tiny_config
from vigneron import api
from vigneron.config import Config
from vigneron.environments.reply import Reply


class Asked(Counting):
    """Counts how often all of them were asked; fails where the row says so."""

    count = 0

    def reply(self, messages: list[dict[str, Any]]) -> Reply:
        Asked.count += 1
        if self.row.get("breaks"):
            raise ValueError("out of order")
        return super().reply(messages)


def talking_rows(texts: str, wanted: int = 2, **columns: Any) -> list[dict[str, Any]]:
    return [{"prompt": [{"role": "user", "content": text}], "wanted": wanted, **columns} for text in texts]


def talking_config(place: Path, **changes: Any) -> Config:
    """Of a GRPO recipe of two steps; rows have an answer, which no model gives."""
    model = talking_folder(place / "model")
    data = write_rows(place / "rows.jsonl", talking_rows("abcd", 3, answer="~", topic="one"))
    write_rows(held_out_of(data), talking_rows("xyz", answer="~", topic="two"))
    recipe = {"method": {"name": "grpo"}, "steps": 2, "eval_every": 1, **changes}
    recipe["environment"] = {"class": "support.talking_runs:Asked", **changes.get("environment", {})}
    return tiny_config(model, data, **conversing(model, **recipe))


def talking_run(place: Path, **changes: Any) -> Path:
    """Its folder."""
    return api.train(talking_config(place, **changes), name="talk", runs=place / "runs").folder


class Strict(Counting):
    def __init__(self, row: dict[str, Any], seed: int) -> None:
        super().__init__({"wanted": row["wanted"]}, seed)
