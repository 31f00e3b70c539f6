"""From the JSON of comparisons: a Markdown table and a figure for the documentation.

python -m benchmarks.report [FOLDER]              writes performance.md and performance.svg into it
python -m benchmarks.report --resume RESULTS --page FILE
                                                  puts the works of real sizes, from a file of results, between that
                                                  page's marks
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.comparison import HEADER, SAMPLING_HEADER, Comparison, compared
from benchmarks.measure import GB
from benchmarks.records import Records
from benchmarks.start_time import start_ratios
from benchmarks.work import WORKS

if TYPE_CHECKING:
    from benchmarks.scaling import Point

COLOURS = {"ours": "#7b1e3b"}
OTHERS = ("#5b7f95", "#a9b8c2", "#d9c9a3")


def load_comparisons(folder: Path) -> list[Comparison]:
    """The saved comparisons, in the order of WORKS."""
    return [_load(path) for name in WORKS if (path := folder / f"{name}.json").is_file()]


def _load(path: Path) -> Comparison:
    try:
        return Comparison.load(path)
    except (ValueError, KeyError, TypeError) as error:
        raise SystemExit(f"'{path}' is not a comparison: {error}") from error


def markdown(comparisons: Sequence[Comparison]) -> str:
    return "\n".join(line for comparison in comparisons for line in _section(comparison))


def _section(found: Comparison) -> Iterator[str]:
    work, parity = found.work, found.parity
    prompt = "the task's prompts" if work.prompt_tokens is None else f"prompts of {work.prompt_tokens} tokens"
    yield f"### {work.name}\n"
    yield (
        f"{work.model}, {work.prompts} × {work.group} × {work.new_tokens} tokens forced, {prompt}, {work.dtype}, "
        f"KL {work.kl_beta:g}; {found.machine}; {_versions(found)}; commit {found.commit}.\n"
    )
    for header, rows in ((HEADER, found.rows()), (SAMPLING_HEADER, found.sampling_rows())):
        if rows:
            yield from (_markdown_row(row) for row in (header, ["---"] * len(header), *rows))
            yield ""
    yield from (f"Failed: {name}, {why}.\n" for name, why in found.failures.items())
    yield (
        f"Ceilings: {found.ceilings.bytes_per_s / 1e12:.3g} TB/s, {found.ceilings.flops_per_s / 1e12:.3g} TFLOP/s."
        + ("\n" if parity is None else "")
    )
    if parity is not None:
        yield (
            f"Parity with {parity.peer}: max |Δ log p| {parity.logprob_gap:.1e}, loss {parity.ours_loss:.6f} and "
            f"{parity.peer_loss:.6f}, gradient norm {parity.ours_grad_norm:.5f} and {parity.peer_grad_norm:.5f}.\n"
        )
    yield "\n".join(["```", *(f"ratio {name} {value:.2f}" for name, value in found.ratios()), "```", ""])


REAL = "real sizes"
"""Name of the marks of the page."""

MUST_AND_AIM: tuple[tuple[str, str, str, str], ...] = (
    ("whole step, 1.5B, over TRL with vLLM", "gpu-1.5b-32x8x256/trl-vllm", "2", ""),
    ("the same, share of the floor's speed", "gpu-1.5b-32x8x256/floor", "", "0.5"),
    ("whole step, 8B LoRA, over TRL with vLLM", "gpu-8b-lora-16x8x256/trl-vllm", "1.5", ""),
    ("the same, share of the floor's speed", "gpu-8b-lora-16x8x256/floor", "", "0.5"),
    ("sampling, 8B, 16 × 8 × 256, over vLLM", "gpu-8b-lora-16x8x256/sampling/vllm-sampling", "1", "1.5"),
    ("sampling, 1.5B, 16 × 8 × 2,048, over vLLM", "gpu-1.5b-16x8x2048/sampling/vllm-sampling", "1", "1.5"),
    ("update, 1.5B, over TRL's", "gpu-1.5b-32x8x256/update/trl-vllm", "1.4", "2"),
    ("seconds to the end of the first step, 1.5B, warm caches", "gpu-1.5b-32x8x256/start-warm-s", "30", ""),
    ("GB reserved, 8B LoRA", "mem-8b-lora-16x8x256/reserved-gb", "32", ""),
    ("the same with 22 GB as the limit", "mem-8b-lora-16x8x256-aim/reserved-gb", "", "22"),
    ("GB reserved, 1.5B, all weights, 8-bit AdamW", "mem-1.5b-full-8bit-32x8x256/reserved-gb", "30", ""),
    (
        "the same with weights in bfloat16 and 20 GB as the limit",
        "mem-1.5b-full-8bit-32x8x256-aim/reserved-gb",
        "",
        "20",
    ),
    ("GB reserved, 8B QLoRA, 8 × 8 × 256", "mem-8b-qlora-8x8x256/reserved-gb", "16", ""),
    ("the same with 10 GB as the limit", "mem-8b-qlora-8x8x256-aim/reserved-gb", "", "10"),
    ("GB reserved, 8B, all weights, bfloat16, 8-bit AdamW", "mem-8b-full-16x8x256/reserved-gb", "149", ""),
    ("the same with 80 GB as the limit", "mem-8b-full-16x8x256-aim/reserved-gb", "", "80"),
)
"""Label, ratio, must, aim."""


WITHIN = (
    ("8B, LoRA", "mem-8b-lora-16x8x256-aim", "ours, within 22 GB", "gpu-8b-lora-16x8x256"),
    (
        "1.5B, all weights",
        "mem-1.5b-full-8bit-32x8x256-aim",
        "ours, within 20 GB: weights in bfloat16, 8-bit AdamW",
        "gpu-1.5b-32x8x256",
    ),
)
"""Label, a work of ours in a limited process, what it is, and the work of the peers."""
PEERS = {
    "trl-vllm": "TRL with vLLM, without a limit",
    "trl-tuned": "TRL with `generate`, without a limit",
}
ABOUT_LITTLE_MEMORY = """\
Each row is the speed and the memory of one run. TRL trains float32 weights, or an adapter on a base in bfloat16, with
AdamW. What others took is what the driver counted above `reserved` and a CUDA context while the run was measured.
`none` is a run that had the GPU to itself, but for processes that had been there before and did nothing new."""
CONTEXT_GB = 1.2
"""Of `process`, the most that a CUDA context and what libraries hold beside torch take."""


def little_memory(comparisons: Sequence[Comparison]) -> list[str]:
    """Speed and memory of ours in little memory beside the peers without a limit, each from one run."""
    by_name = {comparison.work.name: comparison for comparison in comparisons}
    header = ("", "", "samples/s", "ours over it", "GB reserved", "ours of it", "others took meanwhile")
    lines = [_markdown_row(header), _markdown_row(["---"] * len(header))]
    for label, limited, what, unlimited in WITHIN:
        ours = by_name[limited].of("ours") if limited in by_name else None
        peers = [(text, by_name[unlimited].of(name)) for name, text in PEERS.items() if unlimited in by_name]
        for text, found in [(what, ours), *peers]:
            if ours is None or found is None:
                continue
            speed, memory = ours.samples_per_s / found.samples_per_s, ours.memory["reserved"] / found.memory["reserved"]
            others = (found.memory["device"] - found.memory["reserved"]) / GB - CONTEXT_GB
            compared = ("", "") if found is ours else (f"{speed:.2f}", f"{memory:.2f}")
            cells = (f"{found.samples_per_s:.1f}", compared[0], f"{found.memory['reserved'] / GB:.1f}", compared[1])
            lines.append(_markdown_row((label, text, *cells, "none" if others <= 0 else f"{others:.1f} GB or more")))
    return [*lines, "", ABOUT_LITTLE_MEMORY]


def real_sizes(comparisons: Sequence[Comparison], records: Records) -> str:
    """The tables of what must and should hold and of little memory, then the section of each work of real size that was
    run."""
    found = {name: value for comparison in comparisons for name, value in comparison.ratios()}
    found |= {name: value for work in WORKS for name, value in start_ratios(work, records)}
    rows = [
        (label, f"`{name}`", must, aim, f"{found[name]:.2f}" if name in found else "not measured")
        for label, name, must, aim in MUST_AND_AIM
    ]
    header = ("", "ratio", "must", "aim", "measured")
    lines = [_markdown_row(row) for row in (header, ["---"] * len(header), *rows)]
    lines += ["", *little_memory(comparisons)]
    return "\n".join(lines) + "\n\n" + markdown([c for c in comparisons if c.work.real_size]).rstrip()


def filled(page: str, records: Records) -> str:
    """The page with the text between its marks replaced."""
    comparisons = [found for work in WORKS.values() if (found := compared(work, records)) is not None]
    return between_marks(page, REAL, real_sizes(comparisons, records))


def between_marks(page: str, name: str, text: str) -> str:
    before, opening, rest = page.partition(f"<!-- {name} -->\n")
    _, closing, after = rest.partition(f"\n<!-- end of {name} -->")
    if not opening or not closing:
        raise SystemExit(f"the page has no marks '{name}'")
    return before + opening + text.rstrip() + closing + after


def _versions(found: Comparison) -> str:
    """Of all contestants together."""
    versions = {name: number for m in found.measurements for name, number in m.versions.items()}
    return ", ".join(f"{name} {number}" for name, number in versions.items() if name != "vigneron")


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def comparison_figure(comparisons: Sequence[Comparison], path: Path) -> None:
    """A column of two panels for each work, both from 0: samples per second above, peak memory below."""
    from matplotlib.figure import Figure

    comparisons = [comparison for comparison in comparisons if comparison.steps]
    figure = Figure(figsize=(1 + 2.6 * len(comparisons), 5.5), layout="constrained")
    panels = figure.subplots(2, len(comparisons), squeeze=False)
    for column, comparison in enumerate(comparisons):
        speed, memory = panels[0][column], panels[1][column]
        for place, found in enumerate(comparison.steps):
            colour = COLOURS.get(found.contestant, OTHERS[(place - 1) % len(OTHERS)])
            slowest, fastest = found.spread
            error = [[found.samples_per_s - slowest], [fastest - found.samples_per_s]]
            speed.bar(found.contestant, found.samples_per_s, yerr=error, capsize=3, color=colour)
            speed.annotate(f"{found.samples_per_s:.3g}", (place, fastest), ha="center", va="bottom", fontsize=8)
            memory.bar(found.contestant, found.peak_bytes / GB, color=colour)
            memory.annotate(
                f"{found.peak_bytes / GB:.3g}", (place, found.peak_bytes / GB), ha="center", va="bottom", fontsize=8
            )
        speed.set_title(comparison.work.name, fontsize=10)
        for panel in (speed, memory):
            panel.margins(y=0.12)
            panel.tick_params(axis="x", labelsize=7, rotation=15)
    panels[0][0].set_ylabel("samples/s")
    panels[1][0].set_ylabel("peak memory, GB")
    figure.suptitle(", ".join(dict.fromkeys(c.machine for c in comparisons)), fontsize=9)
    figure.savefig(path)


def scaling_figure(points: Sequence["Point"], machine: str, path: Path) -> None:
    """A column of two panels for each axis: seconds per step above, peak memory below."""
    from matplotlib.figure import Figure

    axes = list(dict.fromkeys(point.axis for point in points))
    figure = Figure(figsize=(1 + 2.8 * len(axes), 5), layout="constrained")
    panels = figure.subplots(2, len(axes), squeeze=False)
    for column, axis in enumerate(axes):
        along = [point for point in points if point.axis == axis]
        places = [point.size.at(axis) for point in along]
        panels[0][column].plot(places, [p.measurement.seconds for p in along], "o-", color=COLOURS["ours"])
        panels[1][column].plot(places, [p.measurement.peak_bytes / GB for p in along], "o-", color=COLOURS["ours"])
        panels[0][column].set_title(axis)
        for row in (0, 1):
            panels[row][column].set_ylim(bottom=0)
    panels[0][0].set_ylabel("seconds a step")
    panels[1][0].set_ylabel("peak memory, GB")
    figure.suptitle(machine, fontsize=9)
    figure.savefig(path)


def main(folder: Path) -> int:
    comparisons = load_comparisons(folder)
    if not comparisons:
        print(f"no comparison in '{folder}': run `python -m benchmarks NAME` first", file=sys.stderr)
        return 1
    (folder / "performance.md").write_text(markdown(comparisons))
    if any(comparison.steps for comparison in comparisons):
        comparison_figure(comparisons, folder / "performance.svg")
    print(f"wrote {folder / 'performance.md'} and {folder / 'performance.svg'}")
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("runs/benchmarks"))
    parser.add_argument("--page", type=Path, help="page with marks to fill, as docs/results/performance.md")
    parser.add_argument("--resume", type=Path, help="file of results, with --page")
    given = parser.parse_args()
    if (given.page is None) != (given.resume is None):
        parser.error("--page and --resume belong together")
    if given.page is None:
        sys.exit(main(given.folder))
    given.page.write_text(filled(given.page.read_text(), Records(given.resume)))
    print(f"wrote {given.page}")
