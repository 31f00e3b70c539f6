"""The tables of docs/results/scale.md: predictions of the cost model and the simulator, and measurements.

python -m benchmarks.scale_plan [--write]     prints them; --write puts them into the page
"""

import argparse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from benchmarks import staleness
from benchmarks.simulator.costs import Work, weight_bytes
from benchmarks.simulator.measured import (
    H200,
    ON_H200,
    ON_TWO_CORES,
    TWO_CORES,
    kept_points,
    llama,
    predicted,
    simulated_here,
)
from benchmarks.simulator.predict import (
    GPU_BYTES,
    SETTINGS,
    Setting,
    fitting,
    memory_of,
    plant_of,
    sending_s,
    trace_of,
)

PAGE = Path(__file__).parent.parent / "docs" / "results" / "scale.md"
GB = 1e9


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _pair(measured: float, predicted: float) -> tuple[str, str, str]:
    return f"{measured:.3g}", f"{predicted:.3g}", f"{100 * (predicted / measured - 1):+.1f} %"


def gpu() -> str:
    rows = []
    for name, (decoder, work, parts, whole) in ON_H200.items():
        found = predicted(decoder, H200, work)
        cells = (f"{a:.3g} / {b:.3g}" for a, b in zip(vars(parts).values(), vars(found).values(), strict=True))
        rows.append((name, *cells, *_pair(whole, found.whole)))
    return table(("work", "sampling", "reference", "update", "s/step measured", "predicted", "error"), rows)


def cpu() -> str:
    rows = []
    for (layers, width, prompts, group, tokens), (parameters, seconds) in ON_TWO_CORES.items():
        decoder, work = llama(layers, width, parameters), Work(prompts, group, 32, tokens)
        found = predicted(decoder, TWO_CORES, work)
        rows.append((decoder.name, f"{prompts} × {group} × {tokens}", *_pair(seconds, found.whole)))
    return table(("model", "P × G × T", "s/step measured", "predicted", "error"), rows)


def here() -> str:
    points = kept_points()
    rows = [(name, *_pair(*pair)) for name, pair in simulated_here(points).items()]
    return table(("run", "s/step measured", "simulated", "error"), rows)


def processes() -> str:
    found = kept_points()["processes"]
    if not found:
        return "Not measured yet: `python -m benchmarks.scale_points` adds them where `vigneron train` knows `--nproc`."
    one = found.get("1")
    rows = [(n, f"{s:.3g}", f"{one / s:.2f}" if one else "") for n, s in found.items()]
    return table(("processes", "s/step measured", "speed-up over one"), rows)


def _named(setting: Setting) -> tuple[str, str, str]:
    sent = ", by network" if setting.by_network else ", by file"
    sampled = f"vLLM on {setting.serving}{sent}" if setting.vllm else "own, on each"
    return setting.decoder.name, str(setting.gpus), sampled


def memory() -> str:
    rows = []
    for setting in SETTINGS:
        found = memory_of(setting)
        fits = "fits" if found.total < GPU_BYTES else f"no: {found.largest.replace('_', ' ')}"
        cells = (f"{size / GB:.0f}" for size in vars(found).values())
        rows.append((*_named(setting), str(setting.shard), *cells, f"{found.total / GB:.0f}", fits))
    header = ("model", "GPUs", "sampler", "shard", "sharded state", "replicated state", "reference", "sampling copy")
    return table((*header, "KV cache", "activations", "total GB", "of 141"), rows)


def steps() -> str:
    rows = []
    for setting in fitting():
        plant, trace = plant_of(setting), trace_of(setting, 0)
        drawing = plant.sampling.per_unit_s * setting.rows
        parts = (drawing, plant.update_s - sending_s(setting), sending_s(setting), plant.sync_s, trace.step_s)
        moved = weight_bytes(setting.decoder) / GB
        rate = setting.work.sampled_tokens / trace.step_s
        rows.append((*_named(setting), *(f"{s:.1f}" for s in parts), f"{moved:.0f}", f"{rate:,.0f}"))
    header = ("model", "GPUs", "sampler", "sampling", "reference + update", "between ranks", "weight sync", "s/step")
    return table((*header, "weights GB", "tokens/s"), rows)


def idle() -> str:
    rows = []
    for setting in fitting():
        if not setting.vllm:
            trace = trace_of(setting, 0)
            rows.append(
                (*_named(setting), "0", f"{trace.step_s:.1f}", *["–"] * 2, f"{100 * trace.device_idle:.0f} %", "")
            )
            continue
        for behind_by in (0, 1):  # a vLLM server holds one version
            trace = trace_of(setting, behind_by)
            shares = (trace.sampler_idle, trace.trainer_idle)
            counted = sum(trace.staleness.values())
            behind = ", ".join(f"{k}: {100 * n / counted:.0f} %" for k, n in trace.staleness.items())
            cells = (f"{100 * share:.0f} %" for share in shares)
            rows.append((*_named(setting), str(behind_by), f"{trace.step_s:.1f}", *cells, "–", behind))
    header = ("model", "GPUs", "sampler", "staleness", "s/step", "samplers idle", "trainers idle", "GPUs idle")
    return table((*header, "samples by versions behind"), rows)


TABLES: dict[str, Callable[[], str]] = {
    "staleness": staleness.kept_table,
    "gpu": gpu,
    "cpu": cpu,
    "here": here,
    "processes": processes,
    "memory": memory,
    "steps": steps,
    "idle": idle,
}


def filled(page: str) -> str:
    """The page with every table up to date. Each table is between its own two marks."""
    for name, made in TABLES.items():
        before, opening, rest = page.partition(f"<!-- {name} -->\n")
        _, closing, after = rest.partition(f"\n<!-- end of {name} -->")
        if not opening or not closing:
            raise SystemExit(f"the page has no place for the table '{name}'")
        page = before + opening + made() + closing + after
    return page


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale_plan")
    parser.add_argument("--write", action="store_true")
    if parser.parse_args().write:
        PAGE.write_text(filled(PAGE.read_text()))
        return
    for name, made in TABLES.items():
        print(f"{name}\n\n{made()}\n")


if __name__ == "__main__":
    main()
