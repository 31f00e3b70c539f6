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
    CASES = [*CASES[1:3], (4, 2, 8, 200)]  # the last one has prompts of several pages


@pytest.mark.parametrize(("heads", "key_heads", "size", "slots"), CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_decode_kernel_is_attention_over_the_pages_of_prompt_and_row(
    heads: int, key_heads: int, size: int, slots: int, dtype: torch.dtype
) -> None:
    """Rows of different lengths behind prompts of different lengths, two of which several rows share. A row's pages lie
    anywhere, and what no row wrote is NaN."""
    from vigneron.rollout.engine.cached_attention import Layer, kernel_tiles
    from vigneron.rollout.engine.decode_kernel import decode_attention
    from vigneron.rollout.engine.decode_tiles import PAGE, Slots

    torch.manual_seed(0)
    query = 3 * torch.randn(7, heads, size, device=DEVICE, dtype=dtype)
    new_key, new_value = torch.randn(2, 7, key_heads, size, device=DEVICE, dtype=dtype)
    full = torch.randn(2, 7, key_heads, slots, size, device=DEVICE, dtype=dtype)
    lengths = [min(count, slots // 2) for count in (0, 5, 64, 65, 6)]
    prompt_of = [4, 1, 1, 2, 3, 1, 2]
    starts = [lengths[prompt] for prompt in prompt_of]
    at = [max(slot, start) for slot, start in zip((0, slots - 1, 3, 4, 5, slots // 2, 1), starts, strict=True)]
    count = -(-slots // PAGE)
    places = iter(torch.randperm(12 * (count + 1)).tolist())
    caches = torch.full((2, 12 * (count + 1), key_heads, PAGE, size), torch.nan, device=DEVICE, dtype=dtype)
    prompt_pages = [[next(places) for _ in range(-(-length // PAGE))] for length in lengths]
    prompts = torch.randn(2, 5, key_heads, slots, size, device=DEVICE, dtype=dtype)
    table = torch.full((7, 2 * count), 12 * (count + 1) - 1, device=DEVICE)
    own_place = []
    for row, (prompt, start, slot) in enumerate(zip(prompt_of, starts, at, strict=True)):
        pages = prompt_pages[prompt] + [next(places) for _ in range((slot - start) // PAGE + 1)]
        table[row, : len(pages)] = torch.tensor(pages)
        full[:, row, :, :start] = prompts[:, prompt, :, :start]
        for position in range(slot):
            where = position if position < start else len(prompt_pages[prompt]) * PAGE + position - start
            caches[:, pages[where // PAGE], :, where % PAGE] = full[:, row, :, position]
        own_place.append((pages[len(prompt_pages[prompt]) + (slot - start) // PAGE], (slot - start) % PAGE))
        full[0, row, :, slot], full[1, row, :, slot] = new_key[row], new_value[row]
    at_R = torch.tensor(at, device=DEVICE)
    slots_of_rows = Slots(at_R, torch.tensor(starts, device=DEVICE), table)
    tiles = kernel_tiles(query, Layer(None, key_heads, size, size, heads // key_heads))
    assert tiles is not None
    slot_S = torch.arange(slots, device=DEVICE)
    for softcap, window, with_sinks in product((None, 2.0), (None, 5, 100), (False, True)):
        sinks = torch.randn(heads, device=DEVICE) if with_sinks else None
        first = (at_R - window + 1).clamp(min=0) if window else None
        cache = caches[0].clone(), caches[1].clone()
        got = decode_attention(
            query, new_key, new_value, cache, slots_of_rows, size**-0.5, tiles, first, softcap, sinks
        )
        seen = (slot_S <= at_R[:, None]) & (slot_S >= (first[:, None] if first is not None else 0))
        inputs = (query[:, :, None].double(), full[0].double(), full[1].double(), seen[:, None, None])
        wanted = capped_attention(*inputs, size**-0.5, softcap, sinks.double() if sinks is not None else None)[:, :, 0]
        error = (got.double() - wanted).norm() / wanted.norm()
        assert error < (1e-2 if dtype == torch.bfloat16 else 1e-5), (softcap, window, with_sinks)
        for part, new in zip(cache, (new_key, new_value), strict=True):
            assert all(torch.equal(part[page, :, slot], new[row]) for row, (page, slot) in enumerate(own_place))


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
