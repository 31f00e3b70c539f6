"""A seccomp filter for bubblewrap, which refuses system calls that code in the sandbox does not need.

It covers what namespaces and limits leave open: memory that no limit counts (System V, memfd), other processes' memory,
socket families that a network namespace does not cover (a virtual machine's vsock reaches its host), and parts of the
kernel with a history of vulnerabilities.
"""

import platform
import struct

# The architecture's AUDIT_ARCH number, and its index in the tuples of call numbers.
ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
REFUSED = {
    "shmget": (29, 194),
    "msgget": (68, 186),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "unshare": (272, 97),
    "setns": (308, 268),
}
SOCKET = (41, 198)
FAMILIES = (1, 2, 10)
"""Unix, IPv4, IPv6: confined by the sandbox's network namespace."""
# Calls of the x32 ABI have numbers from here on.
X32 = 0x40000000

LOAD, EQUAL, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
ALLOW, KILL, NOT_PERMITTED = 0x7FFF0000, 0x80000000, 0x00050001
NUMBER_AT, ARCHITECTURE_AT, FIRST_ARGUMENT_AT = 0, 4, 16


def seccomp_filter(machine: str | None = None) -> bytes | None:
    """A classic BPF program; None for an unknown architecture."""
    known = ARCHITECTURES.get(machine or platform.machine())
    if known is None:
        return None
    architecture, column = known
    steps: list[tuple[int, int, str, str]] = [
        (LOAD, ARCHITECTURE_AT, "next", "next"),
        (EQUAL, architecture, "next", "kill"),
        (LOAD, NUMBER_AT, "next", "next"),
        (AT_LEAST, X32, "refuse", "next"),
        *((EQUAL, numbers[column], "refuse", "next") for numbers in REFUSED.values()),
        (EQUAL, SOCKET[column], "next", "allow"),
        (LOAD, FIRST_ARGUMENT_AT, "next", "next"),
        *((EQUAL, family, "allow", "next") for family in FAMILIES),
    ]
    ends = {"refuse": NOT_PERMITTED, "allow": ALLOW, "kill": KILL}
    places = {name: len(steps) + i for i, name in enumerate(ends)}
    program = b""
    for at, (code, value, *ways) in enumerate(steps):
        # Jump offsets are relative to the next instruction.
        program += struct.pack("=HBBI", code, *(places.get(way, at + 1) - at - 1 for way in ways), value)
    return program + b"".join(struct.pack("=HBBI", RETURN, 0, 0, value) for value in ends.values())
