"""Every relative link on a documentation page leads to a file, and every anchor to a heading."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "src" / "vigneron").rglob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
    ]
)
LINK = re.compile(r"\]\(([^)\s]+)\)")
NAMED = re.compile(r"docs/[\w./-]+\.(?:md|json|svg|png|tar\.xz)")
"""A page named in code, a recipe or a comment."""


def text_of(page: Path) -> str:
    """Without code blocks."""
    return re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)


def anchors(page: Path) -> set[str]:
    """As GitHub makes them: lower case, punctuation dropped, spaces to hyphens."""
    headings = re.findall(r"^#+ (.+)$", text_of(page), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links(page: Path) -> None:
    for link in LINK.findall(text_of(page)):
        if re.match(r"https?://|mailto:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{page.name}: {link}"
        if anchor:
            assert anchor in anchors(target), f"{page.name}: {link}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tests_that_it_names(page: Path) -> None:
    """As `tests/faults/test_kills.py`, or without `tests/`."""
    for name in re.findall(r"`(?:tests/)?((?:\w+/)*test_\w+\.py)", page.read_text(encoding="utf-8")):
        assert (ROOT / "tests" / name).exists(), f"{page.name}: {name}"


def test_every_page_is_in_the_index() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / link.partition("#")[0]).resolve() for link in LINK.findall(text_of(index))}
    pages = set((ROOT / "docs").rglob("*.md")) - {index}
    assert {str(page.relative_to(ROOT)) for page in pages - linked} == set()


def test_pages_named_in_code_exist() -> None:
    missing = []
    for folder in ("src", "benchmarks", "tests", "examples"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".yaml", ".sh") and path != Path(__file__):
                named = NAMED.findall(path.read_text(encoding="utf-8"))
                missing += [f"{path.relative_to(ROOT)}: {name}" for name in named if not (ROOT / name).exists()]
    assert missing == []
