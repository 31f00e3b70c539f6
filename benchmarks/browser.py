"""A real browser and an app served to it, for measurements and screenshots: the same as the tests'."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "tests"))


from support.browser import chromium, reason_to_skip, served

__all__ = ["chromium", "reason_to_skip", "served"]
