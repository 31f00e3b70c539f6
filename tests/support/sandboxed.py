"""Tests that run code need a sandbox: bubblewrap, podman or docker."""

import pytest

from vigneron.errors import UserError
from vigneron.rewards.graders.runner import find_sandbox

try:
    find_sandbox()
    WHY_NOT = ""
except UserError as error:
    WHY_NOT = str(error)
needs_sandbox = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
