"""`vigneron eval --samples N --k 1,4,8`: which k, and the table."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from vigneron.errors import UserError

if TYPE_CHECKING:
    from vigneron.training.pass_at_k import PassAtK


def chosen_k(text: str | None, samples: int | None) -> list[int]:
    """The k of `--k`, checked before a model is loaded; by default the powers of 2 up to the number of samples."""
    if samples is None:
        if text is not None:
            raise UserError("--k has no effect without --samples: give the number of samples of each prompt")
        return []
    if text is None:
        return [2**power for power in range(samples.bit_length())]
    parts = text.replace(",", " ").split()
    wrong = next((part for part in parts if not (part.isascii() and part.isdigit() and len(part) < 10)), None)
    if wrong is not None or not parts:
        raise UserError(f"--k: expected whole numbers such as 1,4,8, not '{wrong or text}'")
    ks = sorted({int(part) for part in parts})
    for k in (ks[0], ks[-1]):
        if not 1 <= k <= samples:
            raise UserError(f"--k: {k} does not lie between 1 and the {samples} samples of each prompt")
    return ks


def pass_table(measured: Sequence["PassAtK"]) -> Table:
    first = measured[0]
    prompts = first.prompts + first.left_out
    notes = [f"{prompts} prompts, {first.samples} samples each", "interval: bootstrap over prompts"]
    if first.missing:
        notes.append(f"{first.missing} samples have no verdict and are ignored")
    notes += [
        f"pass@{one.k} leaves out {one.left_out} prompts with fewer than {one.k} verdicts"
        for one in measured
        if one.left_out
    ]
    table = Table(
        box=None,
        padding=(0, 2),
        header_style="dim",
        caption="; ".join(notes),
        caption_justify="left",
    )
    for heading in ("", "mean", "95 % interval"):
        table.add_column(heading)
    for one in measured:
        interval = f"{one.low:.4f} – {one.high:.4f}" if one.prompts else ""
        table.add_row(f"pass@{one.k}", f"{one.value:.4f}" if one.prompts else "none", interval)
    return table
