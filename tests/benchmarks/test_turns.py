"""The benchmark of conversations with a tool: its model, its contestants, its ratios and its page."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.measure import Measurement
from benchmarks.records import Records
from benchmarks.turns import __main__ as command
from benchmarks.turns.report import faults, filled, lines, ratios, results_of, unlike
from benchmarks.turns.result import Counts, Result, by_wait
from benchmarks.turns.tool import WAIT_S, Calls, lookup, value
from benchmarks.turns.work import CALLS, TURNS, WORKS, Pace, alternating, conversations, prompt_rows

PAGE = Path(__file__).parents[2] / "docs" / "results" / "performance.md"
WORK, SMOKE = WORKS["turns"], WORKS["smoke-turns"]


@pytest.fixture(autouse=True)
def _tool_as_it_was() -> Iterator[None]:
    yield
    Calls.wait_s = WAIT_S


def _measured(name: str, *seconds: float) -> Measurement:
    phases = {"sampling": tuple(0.5 * s for s in seconds), "reference+reward": tuple(0.1 * s for s in seconds)}
    phases["update"] = tuple(0.4 * s for s in seconds)
    return Measurement("turns", name, 512, 0, seconds, phases, 10**9)


STEP = Counts(samples=512, turns=2048, calls=1536, full=512, prompts=512 * 222, sampled=512 * 220, replies=512 * 75)


def _result(name: str, seconds: float, counts: Counts = STEP) -> Result:
    return Result(_measured(name, seconds), (counts,), "H200")


SINGLE = Counts(512, 512, 0, 0, 512 * 222, 512 * 295, 0)


def test_the_work_is_the_issues() -> None:
    assert (WORK.step.prompts, WORK.step.group, TURNS, WORK.step.new_tokens) == (64, 8, 4, 64)
    assert WAIT_S == 0.05
    rows, taught = prompt_rows(WORK), conversations(WORK)
    assert len({str(row) for row in rows}) == 4 * WORK.step.prompts
    for row in taught[:20]:
        roles = [message["role"] for message in row["messages"]]
        assert roles == ["system", "user", *["assistant", "tool"] * CALLS, "assistant"]
        called = [m["tool_calls"][0]["function"]["arguments"]["n"] for m in row["messages"] if "tool_calls" in m]
        answers = [message["content"] for message in row["messages"] if message["role"] == "tool"]
        assert answers == [str(value(n)) for n in called]
    assert alternating(rows[:4], rows[:4]) == [0.0, 1.0, 0.0, 1.0]


def test_a_turn_of_the_real_tokenizer_fits() -> None:
    from benchmarks.turns.model import chat_template
    from transformers import AutoTokenizer

    from vigneron.policy.bundled import SMOLLM2, bundled_model_folder

    tokenizer = AutoTokenizer.from_pretrained(bundled_model_folder(SMOLLM2))
    tokenizer.chat_template = chat_template()
    whole = conversations(WORK)[0]["messages"]

    def tokens(count: int, **more: bool) -> int:
        text = tokenizer.apply_chat_template(whole[:count], tokenize=False, **more)
        return len(tokenizer(text)["input_ids"])

    for at, message in enumerate(whole):
        if message["role"] == "assistant":  # behind it the template writes a line break
            assert 40 < tokens(at + 1) - tokens(at, add_generation_prompt=True) - 1 <= WORK.step.new_tokens
        if message["role"] == "tool":
            assert tokens(at + 1, add_generation_prompt=True) - tokens(at) + 1 <= 32


def test_the_tool_counts_its_calls() -> None:
    before, Calls.wait_s = Calls.made, 0.0
    assert asyncio.run(lookup(100)) == 900
    assert Calls.made == before + 1


def test_steps_are_split_by_the_tools_wait() -> None:
    pace = Pace(warmups=1, no_wait=2, waiting=1)
    assert [pace.waits(step) for step in range(4)] == [False, False, False, True]
    counts = [replace(STEP, turns=turns) for turns in (0, 1, 2, 3)]  # the first is the warm-up's
    no_wait, waiting = by_wait(_measured("ours", 1.0, 2.0, 9.0), counts, pace, "H200")
    assert (no_wait.name, waiting.name) == ("ours-no-wait", "ours")
    assert (no_wait.measurement.step_seconds, waiting.measurement.step_seconds) == ((1.0, 2.0), (9.0,))
    assert no_wait.measurement.phase_seconds["sampling"] == (0.5, 1.0)
    assert [step.turns for step in (*no_wait.counts, *waiting.counts)] == [1, 2, 3]
    assert Result.of(waiting.value()) == waiting


def test_ratios_by_token() -> None:
    longer = replace(STEP, sampled=512 * 225)
    results = {
        result.name: result
        for result in (
            _result("ours", 2.0),
            _result("single-turn", 1.6, SINGLE),
            _result("trl-tuned", 90.0, longer),
            _result("ours-no-wait", 1.9),
            _result("trl-tuned-no-wait", 12.0, longer),
        )
    }
    found = dict(ratios(WORK, results))
    assert found["turns/trl-tuned"] == pytest.approx((90 / 225) / (2 / 220))
    assert found["turns/trl-tuned-no-wait"] == pytest.approx((12 / 225) / (1.9 / 220))
    assert found["turns/sampling/trl-tuned"] == pytest.approx((45 / 225) / (1 / 220))
    assert found["turns/single-turn"] == pytest.approx(2 / 1.6)  # as many tokens: 220 + 75 = 295
    assert found["turns/wait"] == pytest.approx(2 / 1.9)
    assert "ratio turns/single-turn 1.25" in lines(WORK, results)


def test_unlike_work_is_not_compared(tmp_path: Path) -> None:
    ours, peer = _result("ours", 2.0), _result("trl-tuned", 90.0, replace(STEP, turns=1500))
    assert unlike(ours, ours) is None
    assert unlike(ours, peer) == "ours and trl-tuned differ in turns per sample, 4.00 and 2.93: not compared"
    both = {"ours": ours, "trl-tuned": peer}
    assert not dict(ratios(WORK, both))
    assert faults(both) == [unlike(ours, peer)]
    file = tmp_path / "turns.jsonl"
    for result in both.values():
        Records(file).add("measurement", "turns", result.name, result.value())
    assert command.main(["--only", "ours,trl-tuned", "--resume", str(file)]) == 1


def test_a_model_that_does_not_call_ends_the_comparison(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "turns.jsonl"
    records = Records(file)
    silent = replace(STEP, samples=4, turns=4, calls=0)
    records.add("measurement", "smoke-turns", "ours", _result("ours", 1.0, silent).value())
    assert command._not_calling(SMOKE, Records()) == "run ours first: the others are held against its turns and tokens"
    assert "1.00 turns and 0.00 of 3 calls" in str(command._not_calling(SMOKE, records))
    assert command.main(["smoke-turns", "--only", "ours", "--resume", str(file)]) == 0  # recorded: nothing is run
    assert "smoke" not in capsys.readouterr().err
    with pytest.raises(SystemExit):
        command.main(["smoke-turns", "--only", "vllm"])


def test_named_contestants_are_measured_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file, measured = tmp_path / "turns.jsonl", list[str]()
    for result in (_result("ours", 2.0), _result("single-turn", 1.6, SINGLE)):
        Records(file).add("measurement", "turns", result.name, result.value())

    def measure(work: object, name: str, place: object, records: Records, budget: object) -> None:
        measured.append(name)
        new = _result(name, 1.0, SINGLE if name == "single-turn" else STEP)
        records.add("measurement", "turns", name, new.value())

    monkeypatch.setattr(command, "_check_machine", lambda work: None)
    monkeypatch.setattr(command, "_make_model", lambda *given: None)
    monkeypatch.setattr(command, "_measure", measure)
    common = ["--resume", str(file), "--only", "ours,single-turn"]
    assert command.main(common) == 0
    assert not measured
    assert command.main([*common, "--again", "single-turn,ours"]) == 0
    assert measured == ["ours", "single-turn"]
    assert results_of(WORK, Records(file))["ours"].measurement.step_seconds == (1.0,)
    with pytest.raises(SystemExit):
        command.main([*common, "--again", "vllm"])


def test_the_page_has_the_recorded_figures(tmp_path: Path) -> None:
    page = PAGE.read_text()
    assert filled(page, Records(PAGE.parent / "logs" / "turns.jsonl")) == page
    records = Records()
    assert "`turns/trl-tuned` | at least 4 | not measured yet |" in filled(page, records)
    for result in (_result("ours", 2.0), _result("trl-tuned", 90.0)):
        records.add("measurement", "turns", result.name, result.value())
    text = filled(page, records)
    assert "`turns/trl-tuned` | at least 4 | 45.00 |" in text
    assert "`turns/single-turn` | at most 1.3 | not measured yet |" in text
    assert filled(text, records) == text


@pytest.mark.slow
def test_every_contestant_on_a_tiny_model(tmp_path: Path) -> None:
    """SFT, ours, a single turn and TRL: all make the three calls that the model was taught, of the same tokens."""
    from benchmarks.turns import ours, trl
    from benchmarks.turns.model import make_model

    model = tmp_path / "model"
    make_model(SMOKE, model)
    mine, theirs = ours.measure(SMOKE, model), trl.measure(SMOKE, model)
    tokens = round(mine[-1].per_sample("sampled") + mine[-1].per_sample("replies"))
    single = ours.measure_single(SMOKE, model, tokens)
    results = {result.name: result for result in (*mine, single, *theirs)}
    assert list(results) == ["ours-no-wait", "ours", "single-turn", "trl-tuned-no-wait", "trl-tuned"]
    for name in ("ours", "ours-no-wait", "trl-tuned", "trl-tuned-no-wait"):
        (step,) = results[name].counts
        assert (step.samples, step.turns, step.calls, step.full) == (4, 16, 12, 4)
        assert step.prompts == results["single-turn"].counts[0].prompts
    assert results["ours"].counts == results["trl-tuned"].counts
    assert single.counts[0].sampled == 4 * tokens
    # The calls of 4 samples overlap in ours; TRL makes them one after the other.
    assert results["trl-tuned"].measurement.phase_seconds["sampling"][0] > 12 * WAIT_S
    records = Records()
    for result in results.values():
        records.add("measurement", "smoke-turns", result.name, result.value())
    assert results_of(SMOKE, records) == results
    names = {name for name, _ in ratios(SMOKE, results)}
    assert {f"smoke-turns/{name}" for name in ("trl-tuned", "trl-tuned-no-wait", "single-turn", "wait")} <= names
