"""`vigneron validate RECIPE --probe` of a game: what each role earns, and what that suggests."""

import math
from pathlib import Path

import pytest
import torch

from support.games import game_config
from support.small_batch import make_batch
from support.talking import talking_folder
from vigneron.commands.probe import game_lines
from vigneron.run_data.load import load_data
from vigneron.training.game_probe import GameProbe, RoleProbe, _of_role, probe_game


def test_a_role_is_compared_within_its_groups() -> None:
    """Standard deviations of (1, 0), (2 and a missing one) and (0.5, 0.5): 0.5, none and 0. Only the first trains."""
    rewards_B = torch.tensor([1.0, 0.0, math.nan, 2.0, 0.5, 0.5])
    truncated_B = torch.tensor([True, False, True, False, False, True])
    role = _of_role(make_batch([1] * 6, [2] * 6, rewards_B=rewards_B, truncated_B=truncated_B))
    assert (role.samples, role.reward, role.spread, role.cut) == (6, pytest.approx(0.8), 0.25, 0.5)
    assert role.flat == pytest.approx(2 / 3)


def test_the_untrained_model_plays(tmp_path: Path) -> None:
    config = game_config(talking_folder(tmp_path / "model"), tmp_path)
    found = probe_game(config, load_data(config), 24)
    assert (found.rows, found.episodes, found.failed) == (6, 24, 0.0)
    ann, bob = found.roles["ann"], found.roles["bob"]
    assert ann is not None
    assert bob is not None
    assert ann.samples == bob.samples == 24
    assert ann.reward == pytest.approx(-bob.reward)
    assert ann.spread == pytest.approx(bob.spread)
    assert ann.spread > 0


def test_what_is_said_of_it(tmp_path: Path) -> None:
    config = game_config(tmp_path, tmp_path)
    good = RoleProbe(samples=16, reward=0.25, spread=0.5, flat=0.1, cut=0.0)
    flat = RoleProbe(samples=15, reward=0.0, spread=0.01, flat=0.75, cut=0.2)
    lines = [
        *game_lines(
            GameProbe(rows=4, episodes=16, failed=0.0625, endless=0.0, roles={"ann": good, "bob": None}), config
        )
    ]
    assert lines == [
        "probe: 16 games of the untrained model (4 rows × 4)",
        "  failed 6%, ended by max_turns 0%",
        "  ann: 16 samples",
        "    mean reward                   0.250",
        "    spread of rewards in a group  0.500   all equal in 10% of groups",
        "    cut                           0%",
        "  bob: no samples, it never had a turn",
        "  suggests: nothing to change",
    ]
    both = GameProbe(rows=4, episodes=16, failed=0.0, endless=0.5, roles={"ann": good, "bob": flat})
    suggested = [line for line in game_lines(both, config) if line.startswith("  suggests: ")]
    assert [line.count("'bob'") for line in suggested] == [1, 1, 0]
    assert "75% of the groups of 'bob' all rewards are equal" in suggested[0]
    assert "20% of the samples of 'bob' are cut" in suggested[1]
    assert "a larger `environment.max_turns`: it ends 50%" in suggested[2]
