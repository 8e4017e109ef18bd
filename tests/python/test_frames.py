"""The hand-written pieces of the wire format agree with protobuf, and the order of frames."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gdpcache import InternalError, _frames, _wire
from gdpcache.v1 import prefill_pb2, session_pb2, tensor_pb2


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 2**32, 2**63 - 1, 2**64 - 1])
def test_varints(value: int) -> None:
    encoded = _wire.varint(value)
    assert tensor_pb2.TensorData.FromString(b"\x10" + encoded).offset == value
    assert _wire.read_varint(memoryview(encoded), 0) == (value, len(encoded))


@pytest.mark.parametrize("size", [0, 1, 127, 128, 1 << 20])
def test_a_data_frame_is_what_protobuf_makes(size: int) -> None:
    payload = np.arange(size, dtype=np.uint32).astype(np.uint8)
    frame = _frames.encode_data(tensor_pb2.TENSOR_ID_V_NEW, 1 << 40, payload)
    classes: list[Any] = [prefill_pb2.PrefillFrame, session_pb2.WriteSlotsFrame, session_pb2.ReadSlotsFrame]
    for message_class in classes:
        data = message_class.FromString(frame).data
        assert (data.tensor, data.offset, data.payload) == (tensor_pb2.TENSOR_ID_V_NEW, 1 << 40, payload.tobytes())
    encoded = prefill_pb2.PrefillFrame(data=data).SerializeToString()
    seen = _frames.data_of(encoded)
    assert seen is not None
    assert (seen[0], seen[1], bytes(seen[2])) == (tensor_pb2.TENSOR_ID_V_NEW, 1 << 40, payload.tobytes())
    assert _frames.data_of(prefill_pb2.PrefillFrame(response={}).SerializeToString()) is None


@pytest.mark.parametrize("frame", [b"\x12\x05\x08", b"\x12", b"\xff" * 11, b"\x13"])
def test_a_broken_frame_is_an_error(frame: bytes) -> None:
    with pytest.raises(InternalError, match="breaks the protocol"):
        _frames.data_of(frame)


def test_tensors_are_interleaved_by_token() -> None:
    k, g, auxiliary = (np.full(size, value, np.uint8) for size, value in [(1000, 1), (400, 2), (7, 3)])
    initial = np.repeat(np.arange(3, dtype=np.uint8), 10)
    lanes = [
        _frames.Lane(5, initial, 10, [0, 2, 90]),
        _frames.Lane(1, k, 10),
        _frames.Lane(4, g, 4),
        _frames.Lane(33, auxiliary),
    ]
    pieces = [_frames.data_of(frame) for frame in _frames.interleave(lanes, 100, 450)]
    order = [(piece[0], piece[1], len(piece[2])) for piece in pieces if piece is not None]
    # 45 rows a group.
    assert order == [
        *[(5, 0, 20), (1, 0, 450), (4, 0, 180)],
        *[(1, 450, 450), (4, 180, 180)],
        *[(5, 20, 10), (1, 900, 100), (4, 360, 40), (33, 0, 7)],
    ]


def test_incoming_bytes_come_in_order_and_whole() -> None:
    memory = np.zeros(4, np.uint8)
    incoming = _frames.Incoming({1: memory})
    incoming.add(1, 0, memoryview(b"ab"))
    for tensor, offset, payload in [(2, 0, b""), (1, 0, b"a"), (1, 3, b"a"), (1, 2, b"abc")]:
        with pytest.raises(InternalError):
            incoming.add(tensor, offset, memoryview(payload))
    with pytest.raises(InternalError, match="2 of 4 bytes"):
        incoming.check_complete()
    incoming.add(1, 2, memoryview(b"cd"))
    incoming.check_complete()
    assert memory.tobytes() == b"abcd"
