"""Where a GRAPE run's responses came from. Pure: a run's logged values in, rows of a table out."""

from dataclasses import dataclass
from statistics import fmean

from vigneron.report.curves import Records, series


@dataclass(frozen=True)
class OriginRow:
    when: str
    fresh: int
    revised: int
    demonstrated: int
    gap: float | None
    """Nats a token between the text that a response was drawn under and the one it is trained under."""


def origin_rows(records: Records, responses_per_step: int) -> list[OriginRow]:
    """The first step, the last and all of them; nothing for a run that did not mix."""
    steps = [record for record in records if record.get("origin/revised") is not None]
    if not steps:
        return []
    several = {"last step": steps[-1:], f"all {len(steps):,} steps": steps} if len(steps) > 1 else {}
    parts = {"first step": steps[:1], **several}
    return [_row(when, some, responses_per_step) for when, some in parts.items()]


def _row(when: str, steps: Records, size: int) -> OriginRow:
    revised, demonstrated = (
        sum(round(share * size) for share in series(steps, f"origin/{origin}")[1])
        for origin in ("revised", "demonstrated")
    )
    gaps = series(steps, "drawn/gap")[1]
    return OriginRow(
        when, len(steps) * size - revised - demonstrated, revised, demonstrated, fmean(gaps) if gaps else None
    )
