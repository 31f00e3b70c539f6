"""A rank of torchrun that is not like the first: `odd_rank.py PLACE WHAT RECIPE MODEL`."""

import os
import sys

place, what, recipe, model = sys.argv[1:]
os.chdir(place)
sys.path.insert(0, place)
# A machine of its own, as far as files go: in the model's folder is nothing, or another model.
other = ["--bind", f"{place}/other", model]
there = {"model": ["--tmpfs", model], "weights": other, "shapes": other}
if os.environ["RANK"] == "1" and what in there and "INSIDE" not in os.environ:
    os.environ["INSIDE"] = "1"
    os.execvp("bwrap", ["bwrap", "--dev-bind", "/", "/", *there[what], sys.executable, *sys.argv])

sys.argv = ["vigneron", "train", recipe, "--runs", "runs", "--name", "odd"]
from vigneron.cli.main import main  # noqa: E402

main()
