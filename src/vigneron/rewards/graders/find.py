"""Which sandbox there is on this machine."""

import os
import shutil
import sys
from functools import cache
from pathlib import Path

from vigneron.errors import UserError
from vigneron.rewards.graders.sandbox import IMAGE, Bubblewrap, Container, Sandbox
from vigneron.rewards.graders.trial import probe


@cache
def find_sandbox() -> Sandbox:
    """The first that runs a trivial program. Refused in one line where none does."""
    found = []
    for sandbox in candidates():
        why = probe(sandbox)
        if why is None:
            return sandbox
        found.append(f"{sandbox.name} does not work here ({why})")
    raise UserError(
        "the answer's code is run in a sandbox only, and there is none: "
        f"{'; '.join(found) or 'neither bubblewrap nor a container program is installed'}. Install bubblewrap 0.8 or "
        f"newer (`apt install bubblewrap`), or podman or docker with the image {IMAGE} pulled"
    )


def candidates() -> list[Sandbox]:
    found: list[Sandbox] = []
    if bwrap := shutil.which("bwrap"):
        own = os.path.realpath(sys.executable)
        prefix = None if Path(sys.base_prefix).is_relative_to("/usr") else sys.base_prefix
        found.append(Bubblewrap(bwrap, own, prefix))
        if (system := os.path.realpath("/usr/bin/python3")) != own and os.path.exists(system):
            found.append(Bubblewrap(bwrap, system, None))
    found += [Container(program) for name in ("podman", "docker") if (program := shutil.which(name))]
    return found
