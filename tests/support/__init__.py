"""What several test files share: tiny models and runs, servers, a browser, processes to kill."""

from pathlib import Path

TESTS = Path(__file__).parent.parent
ROOT = TESTS.parent
SUPPORT = TESTS / "support"
