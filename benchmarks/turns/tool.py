"""The tool of the comparison: one function for every contestant, which waits and counts its own calls."""

import asyncio

WAIT_S = 0.05


class Calls:
    """How long a call takes in this process, and how many were made."""

    wait_s = WAIT_S
    made = 0


async def lookup(n: int) -> int:
    """Look up the value of a number.

    Args:
        n: The number.
    """
    Calls.made += 1
    if Calls.wait_s:
        await asyncio.sleep(Calls.wait_s)
    return value(n)


def value(n: int) -> int:
    return n * 7919 % 1000
