"""The documentation's site: built in strict mode, opened from disk in a browser, with no request to the network."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
KEPT = {"docs", "src", "examples", "mkdocs.yml", "README.md", "CONTRIBUTING.md", "CHANGELOG.md"}
"""What the site is made of."""


def built(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(site)]
    return subprocess.run(command, cwd=root, capture_output=True, text=True)


@pytest.mark.slow
def test_the_site_opens_from_disk_and_its_search_finds(tmp_path: Path, browser_page: Any) -> None:
    site = tmp_path / "site"
    done = built(ROOT, site)
    assert done.returncode == 0, done.stderr
    page = browser_page
    page.complaints.allowed = f"file://{site}/"
    page.goto(f"file://{site}/index.html")
    assert page.locator("h1").first.inner_text().startswith("Vigneron")
    assert page.locator("img").first.evaluate("image => image.naturalWidth") > 100

    # From a page in a folder, as paths are relative.
    page.goto(f"file://{site}/guides/extend.html")
    page.keyboard.press("/")
    page.keyboard.type("stop string")
    page.locator(".md-search-result__link", has_text="Where a completion ends").first.click()
    page.wait_for_url("**/start/your-own-task.html*")
    # A file outside docs/ that a page links to is part of the site.
    assert (site / "files" / "examples" / "grpo.py").read_text() == (ROOT / "examples" / "grpo.py").read_text()


@pytest.mark.slow
def test_a_link_that_leads_nowhere_fails(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(ROOT, copy, ignore=lambda folder, names: [] if Path(folder) != ROOT else set(names) - KEPT)
    page = copy / "docs" / "guides" / "sft.md"
    page.write_text(page.read_text(encoding="utf-8") + "\n[gone](no-such-page.md)\n", encoding="utf-8")
    done = built(copy, tmp_path / "site")
    assert done.returncode != 0
    assert "no-such-page.md" in done.stderr
