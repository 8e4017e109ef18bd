"""Which states of a prompt are worth keeping, which boundaries of its prefill calls they are, and keys for them. Pure
arithmetic, the same as the C++ library's."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gdpcache._tensors import indices
from gdpcache.types import SnapshotDirective, TensorLike


def _require(condition: bool, name: str, value: int, rule: str) -> None:
    if not condition:
        raise ValueError(f"{name} is {value}; it must {rule}")


@dataclass(frozen=True, kw_only=True)
class BoundaryPolicy:
    """All that is asked for is kept; what falls together is kept once. The default are the last aligned position, the
    one before, and where the prompt leaves what is known. Positions are rounded down to ``alignment``, but for the end
    of the prompt itself."""

    alignment: int = 64  # tokens; a multiple of the prefills' chunk_size, which alone has boundaries there

    # The last multiple of `alignment` in the prompt: what a longer prompt continues from.
    last_aligned: bool = True
    # The one before: what the same prompt continues from when its length is aligned, for the last token's output has to
    # be computed anew.
    penultimate: bool = True
    # Where the prompt leaves what is known from others: what a third prompt will share with both.
    divergence: bool = True

    interval: int = 0  # every so many tokens; 0: none
    from_start: Sequence[int] = ()  # tokens behind the start, e.g. the length of a system prompt
    from_end: Sequence[int] = ()  # tokens before the end; 0: the end, what the next turn continues from

    def __post_init__(self) -> None:
        _require(self.alignment >= 1, "alignment", self.alignment, "be positive")
        _require(
            self.interval >= 0 and self.interval % self.alignment == 0,
            "interval",
            self.interval,
            f"be a multiple of the alignment, {self.alignment}, or 0",
        )
        for name in ("from_start", "from_end"):
            for offset in getattr(self, name):
                _require(offset >= 0, name, offset, "not be negative")

    def positions(self, tokens: int, *, known: int = 0, resumed: int = 0) -> list[int]:
        """The positions to keep of a prompt of so many ``tokens``: ascending, distinct, behind ``resumed`` and up to
        the end. ``known``: how many of its first tokens it shares with an earlier prompt, whether or not a snapshot is
        there. ``resumed``: the position of the snapshot that was restored. Offsets that leave the prompt are passed
        over."""
        _require(tokens >= 0, "tokens", tokens, "not be negative")
        for name, value in (("known", known), ("resumed", resumed)):
            _require(0 <= value <= tokens, name, value, f"be from 0 to the prompt's {tokens} tokens")

        def aligned(position: int) -> int:
            return position - position % self.alignment

        kept: set[int] = set()
        if self.last_aligned:
            kept.add(aligned(tokens))
        if self.penultimate:
            kept.add(aligned(tokens) - self.alignment)
        if self.divergence:
            kept.add(aligned(known))
        if self.interval > 0:
            kept.update(range(resumed - resumed % self.interval + self.interval, tokens + 1, self.interval))
        for position in (*self.from_start, *(tokens - offset for offset in self.from_end)):
            kept.add(position if position == tokens else aligned(position))
        return sorted(position for position in kept if resumed < position <= tokens)


def call_boundaries(positions: Iterable[int], begin: int, end: int, chunk_size: int = 64) -> list[tuple[int, int]]:
    """(boundary, position) of those ``positions`` that a call reaches which takes the prompt's tokens [begin, end): the
    ones in it that lie a multiple of ``chunk_size`` behind its begin, and its end. For a prompt prefilled in several
    calls: each reaches all of its aligned positions when the calls before ended at multiples of the chunk size."""
    _require(chunk_size >= 1, "chunk_size", chunk_size, "be positive")
    _require(begin >= 0, "begin", begin, "not be negative")
    _require(end >= begin, "end", end, f"not come before the begin, {begin}")
    return [
        (-(-(position - begin) // chunk_size), position)
        for position in positions
        if begin < position <= end and ((position - begin) % chunk_size == 0 or position == end)
    ]


def snapshot_directives(
    keys: Mapping[int, bytes],
    begin: int,
    end: int,
    *,
    chunk_size: int = 64,
    sequence: int = 0,
    auxiliary: Mapping[int, bytes] | None = None,
) -> list[SnapshotDirective]:
    """What a call that takes the tokens [begin, end) of a prompt as its ``sequence`` has to keep. ``keys`` and
    ``auxiliary``, this layer's auxiliary bytes, are by position."""
    return [
        SnapshotDirective(sequence, boundary, keys[position], (auxiliary or {}).get(position, b""))
        for boundary, position in call_boundaries(sorted(keys), begin, end, chunk_size)
    ]


def prefix_keys(tokens: TensorLike | Sequence[int], positions: Iterable[int], salt: bytes = b"") -> dict[int, bytes]:
    """A key for each position: a digest of all tokens before it, 32 bytes. ``salt`` keeps apart what must not be
    shared, for instance prompts with other images or adapters behind the same tokens."""
    data = np.asarray(indices("tokens", tokens), "<i8").tobytes()
    digest = hashlib.blake2b(salt, digest_size=32)
    keys: dict[int, bytes] = {}
    done = 0
    for position in sorted(set(positions)):
        _require(
            0 <= position <= len(data) // 8, "position", position, f"be from 0 to {len(data) // 8}, the tokens' number"
        )
        digest.update(data[done * 8 : position * 8])
        done = position
        keys[position] = digest.copy().digest()
    return keys
