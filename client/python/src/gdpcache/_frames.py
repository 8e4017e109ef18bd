"""Frames of tensor bytes in streaming calls: TensorData inside PrefillFrame, ReadSlotsFrame and WriteSlotsFrame, where
it has the same number."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from gdpcache import _wire
from gdpcache.errors import protocol_error
from gdpcache.types import Array

MAX_PAYLOAD = 1 << 20  # the largest of the sizes that are fastest
_ROW_ALIGNMENT = 128  # groups of rows end at multiples of the longest chunk where they are long enough

_DATA_FIELD = 2
_TENSOR = _wire.key(1, _wire.VARINT)
_OFFSET = _wire.key(2, _wire.VARINT)


def encode_data(tensor: int, offset: int, payload: Array) -> bytes:
    """The frame with these bytes."""
    head = b"".join((_TENSOR, _wire.varint(tensor), _OFFSET, _wire.varint(offset), _wire.length_key(3, payload.nbytes)))
    return b"".join((_wire.length_key(_DATA_FIELD, len(head) + payload.nbytes), head, payload.data))


def data_of(frame: bytes) -> tuple[int, int, memoryview] | None:
    """Tensor, offset and bytes of a frame of data; None when the frame is of another kind."""
    try:
        for number, content in _wire.fields(memoryview(frame)):
            if number == _DATA_FIELD and isinstance(content, memoryview):
                parts = dict(_wire.fields(content))
                tensor, offset, payload = parts.get(1, 0), parts.get(2, 0), parts.get(3, memoryview(b""))
                if isinstance(tensor, int) and isinstance(offset, int) and isinstance(payload, memoryview):
                    return tensor, offset, payload
    except ValueError as error:
        raise protocol_error(str(error)) from None
    return None


@dataclass
class Lane:
    """A tensor on its way out."""

    tensor: int
    data: Array  # flat uint8
    row_bytes: int = 0  # of a token, or of a sequence; 0: the tensor has no rows and goes last
    sequences: list[int] | None = None  # of initial_state: where each sequence begins, in rows
    _sent: int = field(default=0, init=False)

    def piece_until(self, end: int, payload: int) -> bytes | None:
        if self._sent >= min(end, self.data.nbytes):
            return None
        piece = self.data[self._sent : min(end, self._sent + payload)]
        frame = encode_data(self.tensor, self._sent, piece)
        self._sent += piece.nbytes
        return frame


def interleave(lanes: list[Lane], rows: int, max_payload: int = MAX_PAYLOAD) -> Iterator[bytes]:
    """The frames of all lanes, token by token: a group of rows of each lane after the other, each sequence's initial
    state before its first token, lanes without rows at the end. So the server can compute while it receives."""
    longest_row = max((lane.row_bytes for lane in lanes if lane.sequences is None), default=0) or 1
    group = max(1, max_payload // longest_row)
    if group > _ROW_ALIGNMENT:
        group -= group % _ROW_ALIGNMENT
    end = 0
    while True:
        end = min(end + group, rows)
        last = end == rows
        for lane in lanes:
            if last:
                target = lane.data.nbytes
            elif lane.sequences is not None:
                target = bisect_left(lane.sequences, end) * lane.row_bytes
            else:
                target = end * lane.row_bytes
            while (frame := lane.piece_until(target, max_payload)) is not None:
                yield frame
        if last:
            return


class Incoming:
    """Tensors on their way in: checks that each one's bytes come in order and whole."""

    def __init__(self, tensors: dict[int, Array]) -> None:
        self._tensors = tensors  # flat uint8 by id
        self._received = dict.fromkeys(tensors, 0)

    def add(self, tensor: int, offset: int, payload: memoryview) -> None:
        memory = self._tensors.get(tensor)
        if memory is None:
            raise protocol_error(f"bytes of tensor {tensor}, which was not asked for")
        if offset != self._received[tensor] or offset + len(payload) > memory.nbytes:
            raise protocol_error(
                f"{len(payload)} bytes of tensor {tensor} at offset {offset}; "
                f"{self._received[tensor]} of {memory.nbytes} had come"
            )
        memory[offset : offset + len(payload)] = np.frombuffer(payload, np.uint8)
        self._received[tensor] += len(payload)

    def check_complete(self) -> None:
        for tensor, memory in self._tensors.items():
            if self._received[tensor] != memory.nbytes:
                raise protocol_error(f"{self._received[tensor]} of {memory.nbytes} bytes of tensor {tensor} came")
