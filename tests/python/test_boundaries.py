"""Which states to keep, where they are, and under which keys."""

from __future__ import annotations

from typing import Any

import pytest

from gdpcache import BoundaryPolicy, SnapshotDirective, call_boundaries, prefix_keys, snapshot_directives

NOTHING: dict[str, Any] = {"last_aligned": False, "penultimate": False, "divergence": False}


def test_the_default_keeps_the_last_two_aligned_positions_and_the_divergence() -> None:
    assert BoundaryPolicy().positions(300, known=70) == [64, 192, 256]
    assert BoundaryPolicy().positions(256) == [192, 256]
    assert BoundaryPolicy().positions(63) == []
    assert BoundaryPolicy(alignment=16).positions(63, known=33) == [32, 48]


def test_what_was_restored_is_not_kept_again() -> None:
    assert BoundaryPolicy().positions(300, known=70, resumed=192) == [256]


def test_offsets_and_intervals() -> None:
    policy = BoundaryPolicy(**NOTHING, interval=128, from_start=[100, 5000], from_end=[0, 10, 5000])
    assert policy.positions(400) == [64, 128, 256, 384, 400]
    assert BoundaryPolicy(**NOTHING, interval=128).positions(400, resumed=130) == [256, 384]
    assert BoundaryPolicy(**NOTHING, interval=128).positions(256) == [128, 256]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"alignment": 0}, "alignment is 0; it must be positive"),
        ({"interval": 100}, "interval is 100; it must be a multiple of the alignment, 64, or 0"),
        ({"from_start": [-1]}, "from_start is -1"),
        ({"from_end": [3, -2]}, "from_end is -2"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BoundaryPolicy(**fields)


def test_an_extent_that_makes_no_sense_is_refused() -> None:
    for arguments, message in [
        ({"tokens": -1}, "tokens is -1"),
        ({"tokens": 5, "known": 6}, "known is 6; it must be from 0 to the prompt's 5 tokens"),
        ({"tokens": 5, "resumed": -1}, "resumed is -1"),
    ]:
        with pytest.raises(ValueError, match=message):
            BoundaryPolicy().positions(**arguments)


def test_positions_become_boundaries_of_the_calls_that_reach_them() -> None:
    positions = [64, 100, 128, 256, 300]
    assert call_boundaries(positions, 0, 128) == [(1, 64), (2, 128)]
    assert call_boundaries(positions, 128, 300) == [(2, 256), (3, 300)]
    assert call_boundaries(positions, 10, 100) == [(2, 100)]
    assert call_boundaries([64], 64, 64) == []
    assert call_boundaries([48], 0, 50, chunk_size=16) == [(3, 48)]
    for begin, end, chunk in [(-1, 0, 64), (2, 1, 64), (0, 1, 0)]:
        with pytest.raises(ValueError, match="must"):
            call_boundaries([], begin, end, chunk)


def test_directives_carry_keys_and_auxiliary_bytes() -> None:
    keys = {64: b"a" * 16, 128: b"b" * 16, 256: b"c" * 16}
    assert snapshot_directives(keys, 64, 256, sequence=3, auxiliary={256: b"x"}) == [
        SnapshotDirective(3, 1, b"b" * 16),
        SnapshotDirective(3, 3, b"c" * 16, b"x"),
    ]


def test_keys_depend_on_every_token_before_the_position() -> None:
    tokens = list(range(1, 200))
    keys = prefix_keys(tokens, [64, 128, 0])
    assert sorted(keys) == [0, 64, 128]
    assert {len(key) for key in keys.values()} == {32}
    assert len(set(keys.values())) == 3
    assert prefix_keys(tokens[:128], [128])[128] == keys[128]
    assert prefix_keys([9, *tokens[1:]], [128])[128] != keys[128]
    assert prefix_keys([*tokens[:128], 7], [128])[128] == keys[128]
    assert prefix_keys(tokens, [64], salt=b"adapter")[64] != keys[64]
    with pytest.raises(ValueError, match="position is 200"):
        prefix_keys(tokens, [200])
