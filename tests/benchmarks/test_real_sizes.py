"""The benchmarks of real model sizes: shapes, recipes, the floor, ratios, and results that come in pieces."""

import pstats
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from benchmarks.__main__ import main, possible, run_contestants
from benchmarks.comparison import Comparison
from benchmarks.floor import Ceilings, Shape, adamw_bytes, floor_seconds
from benchmarks.measure import Measurement
from benchmarks.models import model_folder, shape_config, word_tokenizer
from benchmarks.ours import folder_in_memory, measure, measure_sampling, recipe
from benchmarks.parity import Parity
from benchmarks.processes import Budget, environment
from benchmarks.prompts import prompt_token_ids
from benchmarks.records import Records
from benchmarks.report import filled, little_memory
from benchmarks.work import REAL_SIZES, TINY, WORKS, Work

from benchmarks import start_time
from vigneron.recipe import check_config

Capture = pytest.CaptureFixture[str]
LORA = WORKS["smoke-lora"]
PAGE = Path(__file__).parents[2] / "docs" / "results" / "performance.md"


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("qwen2.5-0.5b-shape", 494_032_768),
        ("qwen2.5-1.5b-shape", 1_543_714_304),
        ("llama-3.1-8b-shape", 8_030_261_248),
    ],
)
def test_shapes_have_the_published_number_of_parameters(name: str, published: int) -> None:
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        assert AutoModelForCausalLM.from_config(shape_config(name)).num_parameters() == published


@pytest.mark.slow
def test_every_id_of_a_shape_has_a_text_and_prompts_are_exact() -> None:
    tokenizer = word_tokenizer(4096)
    assert len(tokenizer) == 4096
    assert all(tokenizer.decode([number]) for number in range(1, 4096))
    assert len({tokenizer.decode([number]).count("e") for number in range(1, 4096)}) > 2
    work = WORKS["gpu-1.5b-32x8x256"]
    prompts = prompt_token_ids(work, tokenizer)
    assert {len(ids) for ids in prompts} == {128}
    assert len({tuple(ids) for ids in prompts}) == 4 * work.prompts


@pytest.mark.parametrize("work", REAL_SIZES, ids=lambda work: work.name)
def test_recipes_are_accepted(work: Work, tmp_path: Path) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text('{"prompt": "a"}\n')
    config = check_config({**recipe(work, tmp_path, data)}, work.name)
    assert (config.model.lora is None) == (work.lora_rank is None)
    assert (config.model.weights, config.optimizer.kind) == (work.weights, work.optimizer)


def test_memory_limits_are_in_gb_of_a_billion_bytes(tmp_path: Path) -> None:
    limit = recipe(WORKS["mem-8b-lora-16x8x256"], tmp_path, tmp_path)["model"]["memory_gb"]
    assert limit * 2**30 == pytest.approx(32e9, rel=1e-4)
    assert "memory_gb" not in recipe(WORKS["mem-8b-full-16x8x256"], tmp_path, tmp_path)["model"]


def test_the_floor_of_an_adapter_counts_its_own_parameters() -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    config = shape_config("tiny-shape")
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
        adapted = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"))
    shape = Shape.of(config)
    trained = sum(p.numel() for p in adapted.parameters() if p.requires_grad)
    assert 4 * shape.layers * shape.adapter_width == trained

    # So slow a memory that AdamW's traffic is all there is to see beside one reading of the weights a pass.
    ceilings = Ceilings(bytes_per_s=1.0, flops_per_s=1e30)
    assert floor_seconds(LORA, shape, ceilings, 8)["update"] == 2 * 4 * shape.weights + 28 * trained
    whole = floor_seconds(TINY, shape, ceilings, 8)["update"]
    assert whole == 3 * 4 * shape.weights + 28 * shape.weights
    assert adamw_bytes(replace(TINY, weights="bfloat16", optimizer="adamw_8bit")) == 10


def _measured(contestant: str, seconds: float, update: float, **memory: int) -> Measurement:
    phases = {"sampling": (seconds - update,), "reference+reward": (0.0,), "update": (update,)}
    return Measurement("w", contestant, 256, 65536, (seconds,), phases, 10**9, {}, memory)


PARITY = Parity("TRL", 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0)


def _compared(work: Work, *found: Measurement, parity: Parity | None = PARITY) -> Comparison:
    floor = {"sampling": 0.2, "reference+reward": 0.1, "update": 0.7}
    return Comparison(work, "H200", Ceilings(1.0, 1.0), floor, parity, 1000, found, {})


def test_ratios_of_whole_steps_and_of_sampling_alone() -> None:
    work = WORKS["gpu-1.5b-32x8x256"]
    found = _compared(
        work,
        _measured("ours", 4.0, 2.0, reserved=30 * 10**9, device=32 * 10**9),
        _measured("trl-vllm", 10.0, 3.0, reserved=50 * 10**9, device=96 * 10**9),
        _measured("ours-sampling", 1.0, 0.0),
        _measured("vllm-sampling", 3.0, 0.0),
        _measured("vllm-sampling-logprobs", 4.0, 0.0),
    )
    ratios = {name.removeprefix("gpu-1.5b-32x8x256/"): value for name, value in found.ratios()}
    assert ratios == pytest.approx(
        {
            "trl-vllm": 2.5,
            "update/trl-vllm": 1.5,
            "memory": 30.0,
            "reserved-memory": 0.6,
            "process-memory": 1 / 3,
            "floor": 0.25,
            "sampling/vllm-sampling": 3.0,
            "sampling/vllm-sampling-logprobs": 4.0,
            "sampling/floor": 0.2,
        }
    )
    assert [row[0] for row in found.rows()] == ["ours", "trl-vllm"]
    without = _compared(work, *found.measurements, parity=None)
    assert not any("trl" in name for name, _ in without.ratios())  # no speed is compared without parity


def test_memory_works_are_held_against_their_bars(tmp_path: Path) -> None:
    work = WORKS["mem-8b-qlora-8x8x256"]
    found = _compared(work, _measured("ours", 4.0, 2.0, reserved=12 * 10**9), parity=None)
    ratios = dict(found.ratios())
    assert ratios[f"{work.name}/reserved-gb"] == 12.0
    assert ratios[f"{work.name}/reserved-over-must"] == 0.75
    assert ratios[f"{work.name}/reserved-over-aim"] == 1.2
    found.save(tmp_path / "kept.json")
    assert Comparison.load(tmp_path / "kept.json") == found

    records = Records()
    records.add("ceilings", work.device, work.dtype, {"machine": "H200", "bytes_per_s": 1.0, "flops_per_s": 1.0})
    records.add("measurement", work.name, "ours", asdict(found.measurements[0]))
    page = filled(PAGE.read_text(), records)
    assert f"`{work.name}/reserved-gb` | 16 |  | 12.00 |" in page
    assert f"### {work.name}" in page
    assert filled(page, records) == page


def test_speed_and_memory_of_one_run_beside_those_of_peers() -> None:
    within = _compared(
        WORKS["mem-8b-lora-16x8x256-aim"], _measured("ours", 8.0, 2.0, reserved=20 * 10**9, device=21 * 10**9)
    )
    peers = [
        _measured("trl-vllm", 10.0, 3.0, reserved=100 * 10**9, device=101 * 10**9),
        _measured("trl-tuned", 16.0, 3.0, reserved=50 * 10**9, device=60 * 10**9),
    ]
    _, _, ours, *others, _, _ = little_memory([within, _compared(WORKS["gpu-8b-lora-16x8x256"], *peers)])
    assert ours == "| 8B, LoRA | ours, within 22 GB | 32.0 |  | 20.0 |  | none |"
    assert others == [
        "| 8B, LoRA | TRL with vLLM, without a limit | 25.6 | 1.25 | 100.0 | 0.20 | none |",
        "| 8B, LoRA | TRL with `generate`, without a limit | 16.0 | 2.00 | 50.0 | 0.40 | 8.8 GB or more |",
    ]


def test_the_page_has_the_recorded_figures() -> None:
    kept = Records(PAGE.parent / "logs" / "real-sizes.jsonl")
    assert filled(PAGE.read_text(), kept) == PAGE.read_text()


def test_records_survive_a_cut_line_and_a_later_success(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    first = Records(path)
    first.add("measurement", "w", "ours", {"x": 1})
    first.add("failure", "w", "trl-vllm", {"why": "slow"})
    with path.open("a") as file:
        file.write('{"kind": "measurement", "work": "w", "na')

    second = Records(path)
    assert second.get("measurement", "w", "ours") == {"x": 1}
    second.add("measurement", "w", "trl-vllm", {"x": 2})
    third = Records(path)
    assert dict(third.of("measurement", "w")) == {"ours": {"x": 1}, "trl-vllm": {"x": 2}}
    assert third.get("failure", "w", "trl-vllm") is None


def test_a_slow_contestant_is_a_failure_but_not_if_all_time_is_over() -> None:
    records = Records()
    run_contestants(TINY, ["ours"], records, Budget(each_s=0.1))
    failure = records.get("failure", TINY.name, "ours")
    assert failure is not None
    assert failure["why"].startswith("not done after")

    records = Records()
    run_contestants(TINY, ["ours", "ours-sampling"], records, Budget(all_s=0.1))
    assert not list(records.of("failure", TINY.name))


def test_recorded_results_are_not_run_again() -> None:
    records = Records()
    records.add("measurement", TINY.name, "ours", {"kept": 1})
    records.add("failure", TINY.name, "ours-sampling", {"why": "kept"})
    run_contestants(TINY, ["ours", "ours-sampling"], records, Budget(each_s=0.0))
    assert records.get("measurement", TINY.name, "ours") == {"kept": 1}
    assert records.get("failure", TINY.name, "ours-sampling") == {"why": "kept"}


def test_recorded_starts_are_not_measured_again(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(start_time, "start", lambda *given, **options: pytest.fail("measured"))
    records = Records()
    for caches, seconds in (("cold", 100.0), ("warm", 30.0)):
        records.add("start", "gpu-1.5b-32x8x256", caches, {"imported": 13.0, "first step": seconds})
    assert start_time.run_both("gpu-1.5b-32x8x256", records, 1.0) == 0
    assert "ratio gpu-1.5b-32x8x256/start-warm-s 30.00" in capsys.readouterr().out


def test_parity_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Capture) -> None:
    results = tmp_path / "results.jsonl"
    records = Records(results)
    records.add("parity", ", ".join(TINY.parity_key), "", asdict(PARITY))
    records.add("ceilings", TINY.device, TINY.dtype, {"machine": "CPU", "bytes_per_s": 1.0, "flops_per_s": 1.0})
    model_folder(TINY.model)
    monkeypatch.setattr("benchmarks.__main__.run_contestants", lambda *given, **options: pytest.fail("measured"))
    given = ["benchmarks", TINY.name, "--parity", "--resume", str(results), "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [*given, "--only", "trl-tuned"])
    assert main() == 0
    assert f"{TINY.name}: parity holds" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", [*given, "--only", "ours"])
    with pytest.raises(SystemExit):
        main()
    assert "has no peer to be equal to" in capsys.readouterr().err


@pytest.mark.slow
def test_a_start_is_measured_and_profiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIGNERON_CACHE", str(tmp_path / "cache"))
    profile = tmp_path / "start.prof"
    marks = start_time.measure(TINY, time.time(), profile)
    assert 0 < marks["imported"] < marks["set up"] < marks["first step"]
    called = {name for _, _, name in pstats.Stats(str(profile)).stats}  # type: ignore[attr-defined]
    assert {"start_run", "one_step"} <= called


def test_what_disturbs_a_measurement_is_left_out_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton finds the compiler by itself, and Python keeps its bytecode."""
    monkeypatch.setenv("CC", "g++")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("HOME", "here")
    assert not {"CC", "PYTHONDONTWRITEBYTECODE"} & set(environment())
    assert environment()["HOME"] == "here"


def test_weights_for_a_server_go_into_memory_where_they_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=100))
    assert folder_in_memory(90, tmp_path) == tmp_path
    assert folder_in_memory(91, tmp_path) is None
    assert folder_in_memory(1, tmp_path / "not there") is None


def test_unknown_and_uninstalled_contestants() -> None:
    with pytest.raises(SystemExit, match="has no contestant released-shape"):
        possible(TINY, ["released-shape"])
    with pytest.raises(SystemExit, match=r"needs a CUDA device|vllm is not installed"):
        possible(WORKS["smoke-gpu"], ["vllm-sampling"])


@pytest.mark.slow
@pytest.mark.parametrize("work", [TINY, LORA], ids=lambda work: work.name)
def test_ours_and_its_engine_alone(work: Work) -> None:
    model_folder("tiny-shape")
    for found in (measure(work), measure_sampling(work)):
        assert len(found.step_seconds) == work.steps
        assert min(found.step_seconds) > 0 < sum(found.phase_seconds["sampling"])


@pytest.mark.slow
def test_trl_accepts_the_settings_of_each_variant(tmp_path: Path) -> None:
    from benchmarks.peer_trl import VARIANTS, settings
    from trl import GRPOConfig

    for work in (TINY, LORA):
        for variant in VARIANTS:
            config = GRPOConfig(output_dir=str(tmp_path), **settings(work, variant))
            assert config.use_vllm == variant.startswith("trl-vllm")
            assert config.vllm_enable_sleep_mode == (variant == "trl-vllm-sleep")


def recorded(section: str, contestant: str) -> float:
    """The first figure of a contestant on the page of performance."""
    part = PAGE.read_text(encoding="utf-8").partition(section)[2]
    return float(part.partition(f"\n| {contestant} | ")[2].partition(" |")[0])


def test_the_comparison_and_the_readme_have_the_recorded_figures() -> None:
    docs = PAGE.parents[1]
    lines = (docs / "comparison.md").read_text(encoding="utf-8").splitlines()
    readme = " ".join((docs.parent / "README.md").read_text(encoding="utf-8").split())
    for model, section in (
        ("Qwen2.5-1.5B", "### gpu-1.5b-32x8x256\n"),
        ("Llama-3.1-8B", "### gpu-8b-lora-16x8x256\n"),
    ):
        ours, peer = recorded(section, "ours"), recorded(section, "trl-vllm")
        (row,) = (line for line in lines if line.startswith(f"| {model}'s shape"))
        assert row.endswith(f" | {ours:.1f} samples/s | {peer:.1f} samples/s | {ours / peer:.1f} |")
        assert f"{ours / peer:.1f} times for {model}'s" in readme
    turns = "\n## Conversations with a tool"
    ours, peer = (recorded(turns, contestant) for contestant in ("ours-no-wait", "trl-tuned-no-wait"))
    (row,) = (line for line in lines if line.startswith("| SmolLM2-135M, tools"))
    assert row.endswith(f" | {ours:.1f} s a step | {peer:.1f} s | {peer / ours:.1f} |")
    assert f"over four turns, {peer / ours:.1f} times as fast" in readme
