"""Accuracy and calibration of preferences, by hand."""

import pytest
import torch

from vigneron.core.preferences import expected_calibration_error, pair_accuracy


def test_accuracy_by_hand() -> None:
    assert pair_accuracy(torch.tensor([0.9, 0.2, 0.5, 0.51])) == pytest.approx((1 + 0 + 0.5 + 1) / 4)


def test_calibration_by_hand() -> None:
    # Confidences 0.92 and 0.93 in one bin, of which one is right; 0.62 in another, right; 1 in the last, right.
    p = torch.tensor([0.92, 0.07, 0.62, 1.0])
    wanted = 2 / 4 * abs(1 / 2 - (0.92 + 0.93) / 2) + 1 / 4 * (1 - 0.62) + 1 / 4 * 0.0
    assert expected_calibration_error(p) == pytest.approx(wanted, abs=1e-7)


def test_one_who_is_right_as_often_as_he_is_sure_has_none() -> None:
    p = torch.tensor([0.75] * 3 + [0.25])
    assert expected_calibration_error(p) == pytest.approx(0.0, abs=1e-7)
    assert expected_calibration_error(torch.full((5,), 0.5)) == 0.0
    assert expected_calibration_error(torch.zeros(3)) == 1.0
