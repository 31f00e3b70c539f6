"""The cost model's formulas, on numbers worked by hand."""

import pytest
from benchmarks.simulator import costs
from benchmarks.simulator.costs import Decoder, Work
from benchmarks.simulator.timing import Rates, decode_s, sampling_s, update_s

# 2 layers of 100 weights, 10 words of width 4, one key head of size 3.
SMALL = Decoder("small", layers=2, matrices=200, width=4, vocabulary=10, key_heads=1, head_size=3)
# 2 prompts of 3 tokens, 5 samples each, of 7 tokens.
WORK = Work(prompts=2, group=5, prompt_tokens=3, new_tokens=7)


def test_weights_are_counted() -> None:
    assert SMALL.table == 40
    assert SMALL.replicated == 2 * 40 + 4 * 5
    assert SMALL.parameters == 300
    assert SMALL.used == 240
    assert Decoder("tied", 2, 200, 4, 10, 1, 3, tied=True).parameters == 260


def test_tokens_are_counted() -> None:
    assert WORK.samples == 10
    assert WORK.sampled_tokens == 70
    assert WORK.once == 6 + 70


def test_operations() -> None:
    assert costs.forward_flops(SMALL, 5) == 2 * 240 * 5
    assert costs.update_flops(SMALL, 5) == 6 * 240 * 5


def test_bytes_that_move() -> None:
    assert costs.weight_bytes(SMALL) == 600
    assert costs.cache_bytes(SMALL, tokens=10) == 2 * 2 * 1 * 3 * 10 * 2
    assert costs.all_reduce_bytes(100, 4) == 150
    assert costs.gather_bytes(100, 4) == 75
    assert costs.all_reduce_bytes(100, 1) == 0
    # Two gathers of 400 bytes and a scatter of 800, three quarters of each; 100 replicated weights all-reduced.
    assert costs.sharded_step_bytes(SMALL, 4) == 2 * 300 + 600 + 600
    assert costs.sharded_step_bytes(SMALL, 4, passes=2) == 2 * 1200 + 600
    assert costs.replicated_step_bytes(SMALL, 4) == 300 * 4 * 1.5


def test_memory_of_a_rank() -> None:
    found = costs.rank_memory(SMALL, 2, samples_here=True, rows=5, tokens=10, microbatch=8)
    assert found.sharded_state == 200 * 16 // 2
    assert found.replicated_state == 100 * 16
    assert found.reference == (100 + 100) * 4
    assert found.sampling_copy == 400
    assert found.cache == 2 * 2 * 1 * 3 * 50 * 2
    assert found.activations == 8 * 4 * 2 * 2 + 17 * 8 * 4 * 2
    assert found.total == 1600 + 1600 + 800 + 400 + 1200 + 128 + 1088
    assert found.largest == "sharded_state"
    elsewhere = costs.rank_memory(SMALL, 2, samples_here=False, rows=5, tokens=10, microbatch=8)
    assert elsewhere.sampling_copy == elsewhere.cache == 0


def test_seconds() -> None:
    """1,000 operations a second at half of it, 100 bytes a second."""
    rates = Rates("toy", 1000.0, 100.0, update=0.5, forward=0.25, layer_s=1.0, logit_s=0.1)
    assert update_s(SMALL, rates, WORK) == pytest.approx(6 * 240 * 76 / 500)
    assert update_s(SMALL, rates, WORK, ranks=4) == pytest.approx(6 * 240 * 76 / 500 / 4)
    # 5 rows: 480 bytes of weights and 24 a token for 5 · (3 + 3.5) tokens; 2 layers; 50 logits.
    reading = (480 + 24 * 32.5) / 100
    assert reading > 2 * 240 * 5 / 1000
    assert decode_s(SMALL, rates, WORK, rows=5) == pytest.approx(7 * (reading + 2.0 + 5.0))
    assert sampling_s(SMALL, rates, WORK, rows=5) == pytest.approx(7 * (reading + 7.0) + 2 * 240 * 3 / 250)
