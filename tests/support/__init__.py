"""What several test files share: tiny models and runs, servers, a browser, processes to kill."""

import os
from pathlib import Path

TESTS = Path(__file__).parent.parent
ROOT = TESTS.parent


def importing_support() -> dict[str, str]:
    """What a process needs in its environment to import this package: pytest puts it on its own path alone."""
    return {"PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])}
