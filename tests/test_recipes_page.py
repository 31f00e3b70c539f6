"""The gallery of recipes lists each one, as it describes itself, and no value that is not on the page it links to."""

import re
from pathlib import Path

from vigneron.recipe import load_config, recipe_names

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "recipes.md"
ROW = re.compile(r"^\| `([\w-]+)` \| (.+) \| `(\w+)` \| (.+) \|$", flags=re.M)


def test_every_recipe_is_listed_as_it_describes_itself() -> None:
    rows = [(name, about, method) for name, about, method, _ in ROW.findall(PAGE.read_text(encoding="utf-8"))]
    configs = {name: load_config(name) for name in recipe_names()}
    assert sorted(rows) == sorted((name, config.about, config.method.name) for name, config in configs.items())


def test_every_value_is_on_the_page_it_links_to() -> None:
    for name, _, _, reached in ROW.findall(PAGE.read_text(encoding="utf-8")):
        if reached == "not measured":
            continue
        (link,) = re.findall(r"\(\[\w+\]\(([^)#]+)[^)]*\)\)$", reached)
        source = (PAGE.parent / link).resolve().read_text(encoding="utf-8")
        values = re.findall(r"\d+\.\d+", reached)
        assert values, f"{name}: {reached}"
        assert [value for value in values if value not in source] == [], name
