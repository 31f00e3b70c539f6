"""The decode kernel's blocks fit into shared memory: the numbers were reported by Triton on an H200."""

import pytest

from vigneron.rollout.engine.decode_tiles import Tiles, choose_tiles

H200, A10, SMALL = 232_448, 101_376, 65_536
BF16, FLOAT32 = 2, 4


@pytest.mark.parametrize(
    ("tiles", "itemsize", "reported"),
    [
        (Tiles(16, 64, 64, 3), BF16, 36_864),
        (Tiles(32, 128, 64, 3), BF16, 77_824),
        (Tiles(16, 256, 64, 3), FLOAT32, 282_688),
        (Tiles(16, 512, 64, 3), BF16, 280_576),
        (Tiles(32, 512, 32, 3), BF16, 165_888),
        (Tiles(16, 512, 16, 3), BF16, 82_432),
        (Tiles(16, 512, 16, 2), BF16, 49_664),
        (Tiles(16, 512, 16, 1), BF16, 33_280),
        (Tiles(32, 256, 16, 1), FLOAT32, 51_328),
    ],
)
def test_shared_memory_is_what_triton_reports(tiles: Tiles, itemsize: int, reported: int) -> None:
    assert reported <= tiles.shared_bytes(itemsize) <= 1.05 * reported + 512


@pytest.mark.parametrize(
    ("sharing", "size", "itemsize", "limit", "expected"),
    [
        (3, 64, BF16, H200, (16, 64, 64, 3)),
        (4, 128, BF16, A10, (16, 128, 64, 3)),
        (2, 256, BF16, H200, (16, 256, 64, 3)),
        (2, 256, FLOAT32, H200, (16, 256, 32, 3)),
        (4, 512, BF16, H200, (16, 512, 32, 3)),
        (4, 512, FLOAT32, H200, (16, 512, 16, 3)),
        (4, 512, BF16, A10, (16, 512, 16, 3)),
        (4, 512, FLOAT32, A10, (16, 512, 16, 2)),
        (71, 64, BF16, H200, (128, 64, 64, 3)),
        (1, 8, BF16, H200, (16, 16, 64, 3)),
        (4, 512, FLOAT32, SMALL, None),
    ],
)
def test_the_largest_block_that_fits_is_chosen(
    sharing: int, size: int, itemsize: int, limit: int, expected: tuple[int, ...] | None
) -> None:
    assert choose_tiles(sharing, size, itemsize, limit) == expected
