"""The few pieces of protobuf's wire format that tensors need, so that their bytes are copied once on the way out and
once on the way in instead of through every layer of the protobuf runtime."""

from __future__ import annotations

import functools
from collections.abc import Iterator

VARINT = 0
FIXED64 = 1
LENGTH = 2
FIXED32 = 5


@functools.lru_cache(maxsize=4096)
def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


@functools.cache
def key(field: int, wire_type: int) -> bytes:
    return varint(field << 3 | wire_type)


def length_key(field: int, size: int) -> bytes:
    """What stands before the `size` bytes of a string, bytes or message field."""
    return key(field, LENGTH) + varint(size)


def message(field: int, *parts: bytes) -> bytes:
    """A string, bytes or message field with this content."""
    content = b"".join(parts)
    return length_key(field, len(content)) + content


def read_varint(data: memoryview, at: int) -> tuple[int, int]:
    """The number at `at` and where it ends."""
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("truncated or oversized varint")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Numbers and values of a message's fields, without copying: ints for scalars, views for everything with a
    length."""
    at = 0
    while at < len(data):
        tag, at = read_varint(data, at)
        wire_type = tag & 7
        if wire_type == VARINT:
            value, at = read_varint(data, at)
            yield tag >> 3, value
            continue
        if wire_type == LENGTH:
            size, at = read_varint(data, at)
        elif wire_type in (FIXED64, FIXED32):
            size = 8 if wire_type == FIXED64 else 4
        else:
            raise ValueError(f"unknown wire type {wire_type}")
        if size > len(data) - at:
            raise ValueError("truncated field")
        yield tag >> 3, data[at : at + size]
        at += size
