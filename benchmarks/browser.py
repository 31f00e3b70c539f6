"""A real browser and a served app for measurements and screenshots, shared with the tests."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "tests"))


from support.browser import chromium, reason_to_skip, served

__all__ = ["chromium", "reason_to_skip", "served"]
