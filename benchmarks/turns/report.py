"""Tables and ratios of the results, for the terminal and for docs/results/performance.md."""

from collections.abc import Iterator, Mapping, Sequence

from benchmarks.comparison import table
from benchmarks.measure import PHASES
from benchmarks.records import Records
from benchmarks.report import between_marks
from benchmarks.turns.result import Result
from benchmarks.turns.tool import WAIT_S
from benchmarks.turns.work import NO_WAIT, TURNS, WORKS, Contestant, TurnsWork

MARKS = "turns"
"""Name of the marks of the page."""
ALIKE = 0.05
"""The largest difference of turns and of sampled tokens per sample with which two contestants are compared."""
ORDER: tuple[Contestant, ...] = ("ours", "single-turn", "trl-tuned", "ours-no-wait", "trl-tuned-no-wait")
HEADER = (
    "contestant",
    "s/step",
    *PHASES,
    "turns",
    "calls",
    "all turns",
    "sampled",
    "replies",
    "prompt",
    "sampled/s",
    "peak GB",
    "steps",
)
MUST: tuple[tuple[str, str, str], ...] = (
    ("whole step, sampled tokens per second, over TRL", "trl-tuned", "at least 4"),
    ("the same with a tool that answers at once", "trl-tuned-no-wait", ""),
    ("whole step, over a single turn of as many tokens", "single-turn", "at most 1.3"),
    ("what the tool's wait adds: the step with it over the step without", "wait", ""),
)


def results_of(work: TurnsWork, records: Records) -> dict[str, Result]:
    found = {name: Result.of(value) for name, value in records.of("measurement", work.name)}
    return {name: found[name] for name in ORDER if name in found}


def ratios(work: TurnsWork, results: Mapping[str, Result]) -> Iterator[tuple[str, float]]:
    """Speeds against TRL by sampled tokens; times against a single turn by all tokens behind the prompt."""
    for ending in ("", NO_WAIT):
        ours, peer = results.get(f"ours{ending}"), results.get(f"trl-tuned{ending}")
        if ours is None or peer is None or unlike(ours, peer) is not None:
            continue
        yield f"{work.name}/{peer.name}", peer.seconds_per_token() / ours.seconds_per_token()
        for phase in PHASES:
            quotient = peer.seconds_per_token(phase=phase) / ours.seconds_per_token(phase=phase)
            yield f"{work.name}/{phase}/{peer.name}", quotient
    ours, single, instant = (results.get(name) for name in ("ours", "single-turn", "ours-no-wait"))
    if ours is not None and single is not None:
        yield f"{work.name}/single-turn", ours.seconds_per_token(replies=True) / single.seconds_per_token()
        for phase in PHASES:
            quotient = ours.seconds_per_token(phase=phase, replies=True) / single.seconds_per_token(phase=phase)
            yield f"{work.name}/{phase}/single-turn", quotient
    if ours is not None and instant is not None:
        yield f"{work.name}/wait", ours.seconds_per_token() / instant.seconds_per_token()


def unlike(ours: Result, peer: Result) -> str | None:
    """Why two contestants did not do the same work."""
    for what in ("turns", "sampled"):
        a, b = ours.per_sample(what), peer.per_sample(what)
        if abs(a - b) > ALIKE * max(a, b):
            return f"{ours.name} and {peer.name} differ in {what} per sample, {a:.2f} and {b:.2f}: not compared"
    return None


def faults(results: Mapping[str, Result]) -> list[str]:
    """Why results that are there cannot be compared."""
    pairs = ((results.get(f"ours{ending}"), results.get(f"trl-tuned{ending}")) for ending in ("", NO_WAIT))
    found = [unlike(ours, peer) for ours, peer in pairs if ours is not None and peer is not None]
    return [fault for fault in found if fault is not None]


def inside_sampling(results: Mapping[str, Result]) -> list[str]:
    """Where the time of our sampling goes."""
    return [
        f"{name}: of its sampling, " + ", ".join(f"{part} {seconds:.3f} s" for part, seconds in inside)
        for name, result in results.items()
        if (inside := [(n.removeprefix("rollout/"), s) for n, s in result.measurement.phases().items() if "/" in n])
    ]


def lines(work: TurnsWork, results: Mapping[str, Result]) -> list[str]:
    return [
        *table(HEADER, [_row(result) for result in results.values()]),
        *inside_sampling(results),
        *(f"ratio {name} {value:.2f}" for name, value in ratios(work, results)),
    ]


def _row(result: Result) -> tuple[str, ...]:
    measured, phases = result.measurement, result.measurement.phases()
    return (
        result.name,
        f"{measured.seconds:.4g}",
        *(f"{phases[name]:.4g}" for name in PHASES),
        f"{result.per_sample('turns'):.2f}",
        f"{result.per_sample('calls'):.2f}",
        f"{result.per_sample('full'):.1%}",
        *(f"{result.per_sample(what):.1f}" for what in ("sampled", "replies", "prompts")),
        f"{1 / result.seconds_per_token():.4g}",
        f"{measured.peak_bytes / 1e9:.2f}",
        str(len(measured.step_seconds)),
    )


def section(work: TurnsWork, records: Records) -> str:
    results = results_of(work, records)
    found = dict(ratios(work, results))
    goals = [
        (
            label,
            f"`{work.name}/{name}`",
            must,
            f"{value:.2f}" if (value := found.get(f"{work.name}/{name}")) else "not measured yet",
        )
        for label, name, must in MUST
    ]
    parts = [_markdown(("", "ratio", "must", "measured"), goals)]
    if results:
        first = next(iter(results.values()))
        versions = {name: number for r in results.values() for name, number in r.measurement.versions.items()}
        commits = ", ".join(dict.fromkeys(r.measurement.commit for r in results.values()))
        step = work.step
        parts += [
            f"{step.model} after SFT, {step.prompts} × {step.group} samples of up to {TURNS} turns × {step.new_tokens} "
            f"tokens, {step.dtype}, a tool of {1000 * WAIT_S:.0f} ms; {first.machine}; "
            + ", ".join(f"{name} {number}" for name, number in versions.items() if name != "vigneron")
            + f"; commit {commits}. Seconds are medians of steps; turns, calls and tokens are per sample.",
            _markdown(HEADER, [_row(result) for result in results.values()]),
            *inside_sampling(results),
            "\n".join(["```", *(f"ratio {name} {value:.2f}" for name, value in found.items()), "```"]),
        ]
    return "\n\n".join(parts)


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *rows))


def filled(page: str, records: Records) -> str:
    """The page with the text between its marks replaced."""
    return between_marks(page, MARKS, section(WORKS["turns"], records))
