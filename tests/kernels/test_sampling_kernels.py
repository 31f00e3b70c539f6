"""The kernels of sampling, attention over cached keys and values and the draw of a token, against torch in double
precision."""

from itertools import product

import pytest
import torch

from support.kernels import DEVICE, INTERPRETED
from vigneron.core.draws import Sampling, chosen_logprobs, draw, draw_keys, sampled_logprobs, uniform_at
from vigneron.policy.attention import capped_attention

pytestmark = pytest.mark.slow

# The last two need smaller blocks: Gemma 4's global layers have heads of 512 numbers.
CASES = [(9, 3, 64, 200), (4, 2, 8, 7), (8, 4, 256, 90), (8, 2, 512, 90)]
if INTERPRETED:
    CASES = CASES[1:3]


@pytest.mark.parametrize(("heads", "key_heads", "size", "slots"), CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shared", [False, True])
def test_the_decode_kernel_is_attention_over_prompt_and_row(
    heads: int, key_heads: int, size: int, slots: int, dtype: torch.dtype, shared: bool
) -> None:
    from vigneron.rollout.engine.cached_attention import Layer, kernel_tiles
    from vigneron.rollout.engine.decode_kernel import decode_attention
    from vigneron.rollout.engine.decode_tiles import Slots

    torch.manual_seed(0)
    query = 3 * torch.randn(7, heads, size, device=DEVICE, dtype=dtype)
    new_key, new_value = torch.randn(2, 7, key_heads, size, device=DEVICE, dtype=dtype)
    keys, values = torch.randn(2, 8, key_heads, slots, size, device=DEVICE, dtype=dtype)
    at = torch.tensor([0, slots - 1, 3, 4, 5, slots // 2, 1], device=DEVICE)
    full_keys, full_values = keys.clone(), values.clone()
    row_slots = Slots(at)
    prompt_cache = None
    if shared:  # the first slots of rows, in a cache of prompts: two of its five are used by several rows
        prompt = torch.tensor([4, 1, 1, 2, 3, 1, 2], device=DEVICE)
        start = torch.minimum(at, torch.tensor([0, 5, 3, 4, 2, 5, 1], device=DEVICE))
        prompt_cache = tuple(torch.randn(2, 5, key_heads, 6, size, device=DEVICE, dtype=dtype))
        for row in range(7):
            n, own = int(start[row]), int(at[row] - start[row])
            for full, part, shared_part in zip((full_keys, full_values), (keys, values), prompt_cache, strict=True):
                full[row, :, :n] = shared_part[prompt[row], :, :n]
                full[row, :, n : n + own] = part[row, :, :own]
        row_slots = Slots(at, prompt, start)
    for row in range(7):
        full_keys[row, :, at[row]], full_values[row, :, at[row]] = new_key[row], new_value[row]
    tiles = kernel_tiles(query, Layer(None, key_heads, size, size, heads // key_heads))
    assert tiles is not None
    slot = torch.arange(slots, device=DEVICE)
    for softcap, window, with_sinks in product((None, 2.0), (None, 5, 100), (False, True)):
        sinks = torch.randn(heads, device=DEVICE) if with_sinks else None
        first = (at - window + 1).clamp(min=0) if window else None
        cache = keys.clone(), values.clone()
        got = decode_attention(
            query, new_key, new_value, cache, prompt_cache, row_slots, size**-0.5, tiles, first, softcap, sinks
        )
        seen = (slot <= at[:, None]) & (slot >= (first[:, None] if first is not None else 0))
        inputs = (query[:, :, None].double(), full_keys[:7].double(), full_values[:7].double(), seen[:, None, None])
        wanted = capped_attention(*inputs, size**-0.5, softcap, sinks.double() if sinks is not None else None)[:, :, 0]
        error = (got.double() - wanted).norm() / wanted.norm()
        assert error < (1e-2 if dtype == torch.bfloat16 else 1e-5), (softcap, window, with_sinks)
        own = at - row_slots.start_R if row_slots.start_R is not None else at
        assert torch.equal(cache[0][torch.arange(7, device=DEVICE), :, own], new_key)


@pytest.mark.parametrize("vocabulary", [17, 256, 300, 49152] + [151936] * (not INTERPRETED))
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_draw_kernel_is_its_formulas(vocabulary: int, temperature: float) -> None:
    """In double precision; a draw may differ where rounding decides."""
    from vigneron.rollout.engine.draw_kernel import draw_tokens

    torch.manual_seed(0)
    rows = 20 if INTERPRETED else 500
    logits = 4 * torch.randn(rows, vocabulary, device=DEVICE)
    logits[3], logits[3, -1] = -30, 40  # one token has all of the probability
    logits[4, ::2] = -torch.inf
    logits[5] = 0
    key, written = draw_keys(2**40, 5, torch.arange(rows, device=DEVICE)), torch.arange(rows, device=DEVICE)
    exact = sampled_logprobs(logits.double(), Sampling(temperature))
    token, logprob = draw_tokens(logits, key, written, temperature)
    assert float((token == draw(exact.exp(), uniform_at(key, written))).double().mean()) >= 0.998
    torch.testing.assert_close(logprob, chosen_logprobs(exact, token).float(), atol=1e-5, rtol=1e-5)
    assert token[3] == vocabulary - 1
    assert token[4] % 2 == 1
    logits[6], logits[7, 3], logits[8] = torch.nan, torch.nan, -torch.inf
    token, logprob = draw_tokens(logits, key, written, temperature)
    assert logprob[6:9].isnan().all()
    assert logprob[9:].isfinite().all()
    assert 0 <= int(token.min()) <= int(token.max()) < vocabulary
