"""Soft labels of preference pairs: the column `preferred`, in the losses, in rows, and in three methods."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from support.resuming import TrainedOnce, check_third_arm, lose_nothing
from support.tiny_models import tiny_policy
from vigneron.api import train
from vigneron.config import Config
from vigneron.core.losses import bradley_terry, dpo
from vigneron.data.pairs import read_pairs
from vigneron.errors import UserError
from vigneron.methods.dpo import soft, turned
from vigneron.methods.preference_model import hp
from vigneron.methods.terms import pair_term, sides
from vigneron.recipe import check_config
from vigneron.rollout.pairs import OrderedPairs, Pairs, soft_labels
from vigneron.run_store.folder import RunFolder
from vigneron.training.update import Term


def test_a_label_below_one_half_exchanges_the_texts() -> None:
    (pair,) = read_pairs([row("a", "b", preferred=0.2)], "'file'")[0]
    assert (pair["chosen"], pair["rejected"], pair["preferred"]) == ("b", "a", 0.8)


def test_the_loss_of_a_soft_label_by_hand() -> None:
    """hp = 0.8, a margin of 2 − 0.5 = 1.5: −0.8 log σ(1.5) − 0.2 log σ(−1.5) = 0.5014."""
    chosen, rejected, label = (torch.tensor([x], dtype=torch.float64) for x in (2.0, 0.5, 0.8))
    wanted = -0.8 * math.log(1 / (1 + math.exp(-1.5))) - 0.2 * math.log(1 / (1 + math.exp(1.5)))
    assert wanted == pytest.approx(0.5014, abs=1e-4)
    assert float(bradley_terry(chosen, rejected, label)) == pytest.approx(wanted)
    # β = 0.5 and a reference that moves both: the margin is 0.5 · ((2 − 1) − (0.5 − 1.5)) = 1.
    reference = torch.tensor([1.0], dtype=torch.float64), torch.tensor([1.5], dtype=torch.float64)
    both = torch.stack([chosen, rejected], 1).reshape(-1), torch.stack(reference, 1).reshape(-1)

    def terms(logps_B: torch.Tensor, before_B: torch.Tensor) -> list[Term]:
        return [pair_term("loss/dpo", dpo(*sides(logps_B), *sides(before_B), beta=0.5), 1.0)]

    (term,) = soft(terms(*both), terms(*map(turned, both)), label.expand(2))
    wanted = 0.8 * math.log(1 + math.exp(-1)) + 0.2 * math.log(1 + math.exp(1))
    torch.testing.assert_close(term.values, torch.full((2,), wanted, dtype=torch.float64))


@given(st.floats(-20, 20), st.floats(-20, 20), st.floats(0, 1))
def test_a_soft_label_is_the_mix_of_both_orders(one: float, other: float, label: float) -> None:
    first, second, p = (torch.tensor([x], dtype=torch.float64) for x in (one, other, label))
    mix = label * bradley_terry(first, second) + (1 - label) * bradley_terry(second, first)
    torch.testing.assert_close(bradley_terry(first, second, p), mix)
    torch.testing.assert_close(bradley_terry(first, second, p), bradley_terry(second, first, 1 - p))
    torch.testing.assert_close(bradley_terry(first, second, torch.ones_like(p)), bradley_terry(first, second))


def test_a_tie_pulls_two_texts_together() -> None:
    margin = torch.tensor([1.5], requires_grad=True)
    bradley_terry(margin, torch.zeros(1), torch.tensor([0.5])).backward()
    assert float(margin.grad) > 0, "descending it makes the margin smaller"
    torch.testing.assert_close(margin.grad, torch.sigmoid(torch.tensor([1.5])) - 0.5)


def test_the_first_texts_probability() -> None:
    first = hp(torch.tensor([0.8, 0.8]), torch.tensor([True, False]))
    torch.testing.assert_close(first, torch.tensor([0.8, 0.2]))


def row(chosen: str, rejected: str, **more: Any) -> dict[str, Any]:
    return {"prompt": "p", "chosen": chosen, "rejected": rejected, **more}


def test_labels_are_read_from_rows_and_text_cells() -> None:
    rows, _ = read_pairs([row("a", "b", preferred="0.75"), row("c", "d", preferred=""), row("e", "f")], "'file'")
    assert [each.get("preferred") for each in rows] == [0.75, None, None]
    policy = tiny_policy("gpt2")
    for rollout in (Pairs(policy), OrderedPairs(policy)):
        labels = soft_labels(rollout(rows))
        assert labels is not None
        torch.testing.assert_close(labels, torch.tensor([0.75, 0.75, 1, 1, 1, 1]))
        assert soft_labels(rollout(rows[1:])) is None


@pytest.mark.parametrize("label", [1.01, -0.1, "much", True, [0.5]])
def test_a_label_out_of_range_is_refused_with_its_row(label: Any) -> None:
    with pytest.raises(UserError) as caught:
        read_pairs([row("a", "b"), row("c", "d", preferred=label)], "'file'")
    assert str(caught.value) == (
        f"data: 'file', row 2: preferred is {label!r}, not a number from 0 to 1: "
        "the probability that `chosen` is better"
    )


def test_pairs_that_are_ties_only_are_refused() -> None:
    with pytest.raises(UserError) as caught:
        read_pairs([row("a", "b", preferred=0.5), row("c", "d", preferred=0.5)], "'file'")
    assert str(caught.value) == "data: 'file': all 2 pairs are ties (`preferred` is 0.5): nothing can be learned"


TEXTS = [("x", "yy"), ("abc", "d"), ("up", "down"), ("to", "from")]


def soft_config(place: Path, model: Path, rows: list[dict[str, Any]], name: str = "soft", **keys: Any) -> Config:
    file = place / f"{name}.jsonl"
    file.write_text("".join(json.dumps(each) + "\n" for each in rows))
    recipe = {
        "recipe": "soft",
        "model": {"name": str(model), "device": "cpu"},
        "data": {"train": str(file), "held_out": str(file)},
        "optimizer": {"actor_lr": 1e-3},
        "prompts_per_step": 4,
    }
    return check_config(recipe | keys, "soft")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "loss"),
    [
        ({"name": "dpo"}, "loss/dpo"),
        ({"name": "dpo", "loss": "ipo"}, "loss/ipo"),
        ({"name": "reward_model"}, "loss/bradley_terry"),
        ({"name": "preference_model"}, "loss/preference"),
    ],
    ids=["dpo", "ipo", "reward_model", "preference_model"],
)
def test_a_method_trains_on_them(method: dict[str, str], loss: str, tmp_path: Path, tiny_folder: Path) -> None:
    """A pair the other way round with 1 − p is the same pair; p = 1 is a pair without a label."""

    def losses(name: str, rows: list[dict[str, Any]]) -> list[float]:
        config = soft_config(tmp_path, tiny_folder, rows, name, method=method, steps=2, eval_every=0)
        folder = train(config, name=name, runs=tmp_path / "runs").folder
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        return [line[loss] for line in lines if loss in line]

    soft = losses("soft", [row(a, b, preferred=0.7) for a, b in TEXTS])
    turned = losses("turned", [row(b, a, preferred=0.3) for a, b in TEXTS])
    assert soft == pytest.approx(turned, rel=1e-4)
    plain = losses("plain", [row(a, b) for a, b in TEXTS])
    assert losses("certain", [row(a, b, preferred=1) for a, b in TEXTS]) == pytest.approx(plain, rel=1e-6)
    assert soft[1:] != pytest.approx(plain[1:], rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dpo", "reward_model", "preference_model"])
def test_they_go_on_bit_by_bit_and_in_microbatches(
    tmp_path: Path, tiny_folder: Path, trained_once: TrainedOnce, name: str
) -> None:
    """Every pair has another label, so that one beside the wrong pair would be seen."""
    rows = [row(a, b, preferred=0.6 + number / 10) for number, (a, b) in enumerate(TEXTS)]
    keys = {"method": {"name": name}, "steps": 4, "prompts_per_step": 3, "eval_every": 4, "save_every": 2}
    whole = trained_once(name, lambda place: soft_config(place, tiny_folder, rows, **keys))
    check_third_arm(whole, tmp_path, lose_nothing)
    parts = soft_config(tmp_path, tiny_folder, rows, **keys, microbatch_tokens=20)
    split = RunFolder(train(parts, name="parts", runs=tmp_path).folder).metrics()
    assert split[-1] == pytest.approx(RunFolder(whole).metrics()[-1], rel=1e-3, abs=1e-5)
