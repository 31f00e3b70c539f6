"""The page on scale says what its command prints, and its measured points are those of the other pages."""

import pytest
from benchmarks.scale_plan import PAGE, filled
from benchmarks.simulator.measured import ON_H200, ON_TWO_CORES, kept_points, simulated_here
from benchmarks.simulator.predict import SETTINGS, SEVEN, SEVENTY, Setting, memory_of, plant_of, trace_of


@pytest.mark.slow
def test_the_page_has_the_tables_that_the_command_prints() -> None:
    page = PAGE.read_text()
    assert page == filled(page), "run `python -m benchmarks.scale_plan --write`"


def test_measured_points_are_those_of_the_performance_page() -> None:
    page = PAGE.with_name("performance.md").read_text()
    for name, (_, _, parts, whole) in ON_H200.items():
        ours = next(line for line in page.split(f"### {name}\n")[1].splitlines() if line.startswith("| ours"))
        cells = [cell.strip() for cell in ours.split("|")]
        assert [float(cell) for cell in cells[5:9]] == [whole, *vars(parts).values()]
    for (layers, width, prompts, group, tokens), (parameters, seconds) in ON_TWO_CORES.items():
        row = f"| {prompts * group} | {group} | {tokens} | {parameters / 1e6:.1f}M | {seconds} |"
        assert row in page, f"{layers}x{width}"


def test_the_simulator_reproduces_the_runs_measured() -> None:
    for name, (measured, simulated) in simulated_here(kept_points()).items():
        assert simulated == pytest.approx(measured, rel=0.05), name


def test_where_it_breaks_first() -> None:
    """What the page says in words."""
    own = memory_of(Setting(SEVENTY, 64))
    assert own.largest == "sampling_copy"
    assert own.sampling_copy == pytest.approx(137e9, rel=0.01)
    assert memory_of(Setting(SEVENTY, 8)).sharded_state == pytest.approx(137e9, rel=0.01)
    assert own.replicated_state == pytest.approx(34e9, rel=0.02)
    served = plant_of(Setting(SEVEN, 64, vllm=True))
    assert served.sync_s > served.update_s
    assert served.rows * served.judging.fixed_s / served.judges == 32.0


def test_staleness_is_never_slower_in_the_plans() -> None:
    for setting in SETTINGS[:2]:
        times = [trace_of(setting, staleness).step_s for staleness in (0, 1, 2)]
        assert times == sorted(times, reverse=True)
