"""Seconds of a step's parts from its costs, at rates that were measured or are assumed."""

from dataclasses import dataclass

from benchmarks.simulator.costs import BF16, Decoder, Work, cache_bytes, forward_flops, update_flops


@dataclass(frozen=True)
class Rates:
    """A device. `update` and `forward` are shares of the peak that training and plain passes reach."""

    name: str
    flops_per_s: float
    bytes_per_s: float
    update: float
    forward: float
    decode: float = 1.0
    """The share of the peak that the small products of decoding reach."""
    number_bytes: int = BF16
    layer_s: float = 0.0
    """Overhead of a layer in one decoding step: launches and small kernels."""
    logit_s: float = 0.0
    """One number of the vocabulary in one row: sampling reads it several times."""


def decode_s(decoder: Decoder, rates: Rates, work: Work, rows: int) -> float:
    """Completions of `rows` samples side by side: in each step the weights and every row's cache are read, or the
    products done, whichever takes longer; besides, each layer's overhead and the sampling over the vocabulary."""
    filled = rows * (work.prompt_tokens + work.new_tokens / 2)
    each = rates.number_bytes
    reading = (decoder.used * each + cache_bytes(decoder, 1, each) * filled) / rates.bytes_per_s
    products = forward_flops(decoder, rows) / (rates.flops_per_s * rates.decode)
    step = max(reading, products) + decoder.layers * rates.layer_s + rows * decoder.vocabulary * rates.logit_s
    return work.new_tokens * step


def prefill_s(decoder: Decoder, rates: Rates, tokens: int) -> float:
    return forward_flops(decoder, tokens) / (rates.flops_per_s * rates.forward)


def sampling_s(decoder: Decoder, rates: Rates, work: Work, rows: int) -> float:
    """Of one sampler's rows: its prompts once a group, then its completions."""
    prompts = rows // work.group
    return prefill_s(decoder, rates, prompts * work.prompt_tokens) + decode_s(decoder, rates, work, rows)


def reference_s(decoder: Decoder, rates: Rates, work: Work, ranks: int = 1) -> float:
    return prefill_s(decoder, rates, work.once) / ranks


def update_s(decoder: Decoder, rates: Rates, work: Work, ranks: int = 1) -> float:
    """Without communication between ranks."""
    return update_flops(decoder, work.once) / (rates.flops_per_s * rates.update) / ranks
