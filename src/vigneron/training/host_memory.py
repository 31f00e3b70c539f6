"""How much of this machine's memory is free."""

from pathlib import Path


def free_host_memory() -> float:
    """Bytes that can be allocated without swapping, in this machine and container; infinite if unknown."""
    return min(_free_of_machine(), _free_of_container(Path("/sys/fs/cgroup")))


def _free_of_machine() -> float:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return float("inf")


def _free_of_container(group: Path) -> float:
    """What the cgroup may still allocate. Cached files count as free: the kernel reclaims them first."""
    try:
        limit = int((group / "memory.max").read_text())
        used = int((group / "memory.current").read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return float(limit - used + int(stat["inactive_file"]))
    except (OSError, ValueError, KeyError):
        return float("inf")
