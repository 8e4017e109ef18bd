"""Answers that break the protocol are errors, and never more than that."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fake_server import fake_server, fake_session, server_info

import gdpcache
from gdpcache import InitialState, PrefillCall
from gdpcache.v1 import prefill_pb2, session_pb2, tensor_pb2

ROWS = np.arange(8 * 4, dtype=np.float32).reshape(8, 1, 4)
V_NEW: dict[str, Any] = {"dtype": 1, "shape": [8, 1, 4]}
INLINE: dict[str, Any] = {**V_NEW, "inline": ROWS.tobytes()}


def call(transport: str) -> PrefillCall:
    return PrefillCall(k=ROWS, w=ROWS, u=ROWS, initial_state=InitialState.ZERO, transport=transport)


def piece(offset: int, payload: bytes, tensor: Any = tensor_pb2.TENSOR_ID_V_NEW) -> prefill_pb2.PrefillFrame:
    return prefill_pb2.PrefillFrame(data=tensor_pb2.TensorData(tensor=tensor, offset=offset, payload=payload))


def answer(**fields: Any) -> prefill_pb2.PrefillFrame:
    return prefill_pb2.PrefillFrame(response=prefill_pb2.PrefillResponse(**fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "v_new is missing"),
        ({"v_new": {**INLINE, "shape": [8, 4]}}, r"v_new has shape \[8, 4\]"),
        ({"v_new": {**INLINE, "dtype": 3}}, "v_new has"),
        ({"v_new": {**V_NEW, "inline": b"short"}}, "5 bytes of v_new; expected 128"),
        ({"v_new": INLINE, "h": INLINE}, "h is there unasked"),
    ],
)
def test_unary_answers(fields: dict[str, Any], message: str) -> None:
    response = prefill_pb2.PrefillResponse(**fields)
    with (
        fake_session({"Prefill": lambda request, context: response}) as session,
        pytest.raises(gdpcache.InternalError, match=message),
    ):
        session.prefill(call("unary"))


DATA = ROWS.tobytes()


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        ([], "ended without a response"),
        ([piece(0, DATA)], "ended without a response"),
        ([answer(v_new=V_NEW)], "0 of 128 bytes"),
        ([piece(0, DATA[:64]), answer(v_new=V_NEW)], "64 of 128 bytes"),
        ([piece(4, DATA[:64]), answer(v_new=V_NEW)], "64 bytes of tensor 17 at offset 4; 0 of 128"),
        ([piece(0, DATA + b"x"), answer(v_new=V_NEW)], "129 bytes of tensor 17"),
        ([piece(0, DATA, tensor_pb2.TENSOR_ID_H), answer(v_new=V_NEW)], "tensor 16, which was not asked for"),
        ([piece(0, DATA), answer(v_new=V_NEW), piece(128, b"")], "a frame after the response"),
        ([piece(0, DATA), answer(v_new=V_NEW), answer(v_new=V_NEW)], "a frame after the response"),
        ([prefill_pb2.PrefillFrame()], "neither data nor response"),
    ],
)
def test_streamed_answers(frames: list[Any], message: str) -> None:
    def prefill(requests: Iterator[Any], context: Any) -> Iterator[Any]:
        for _ in requests:
            pass
        yield from frames

    with (
        fake_session({"PrefillStream": prefill}) as session,
        pytest.raises(gdpcache.InternalError, match=message),
    ):
        session.prefill(call("stream"))


def test_a_right_answer_is_taken() -> None:
    frames = [piece(0, DATA[:64]), piece(64, DATA[64:]), answer(v_new=V_NEW, chunk_offsets=[0, 1], positions=[-1])]

    def prefill(requests: Iterator[Any], context: Any) -> Iterator[Any]:
        received = list(requests)
        assert received[0].request.k.shape == [8, 1, 4]
        assert b"".join(frame.data.payload for frame in received[1:]) == DATA * 3
        yield from frames

    with fake_session({"PrefillStream": prefill}) as session:
        assert (session.prefill(call("stream")).v_new == ROWS).all()


STATE: dict[str, Any] = {"dtype": 1, "shape": [1, 1, 1, 4, 4]}
CONTENTS: dict[str, Any] = {"slots": [0], "layers": [0], "positions": [5], "state": STATE}


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        ([], "ended without contents"),
        ([{"data": {"tensor": 32, "payload": b"abc"}}], "before the contents"),
        ([{"contents": {**CONTENTS, "positions": []}}], "for 1 slots and layers"),
        ([{"contents": {**CONTENTS, "state": {"dtype": 1, "shape": [9]}}}], "for 1 slots and layers"),
        ([{"contents": CONTENTS}, {"data": {"tensor": 32, "payload": b"abc"}}], "3 of 64 bytes"),
        ([{"contents": CONTENTS}, {"data": {"tensor": 33, "payload": b"abc"}}], "not asked for"),
    ],
)
def test_contents_of_slots(frames: list[dict[str, Any]], message: str) -> None:
    def read(request: Any, context: Any) -> Iterator[Any]:
        for frame in frames:
            yield session_pb2.ReadSlotsFrame(**frame)

    with (
        fake_session({"ReadSlots": read}) as session,
        pytest.raises(gdpcache.InternalError, match=message),
    ):
        session.read_slots([0])


def test_an_answer_larger_than_any_that_a_server_needs_is_not_taken_in() -> None:
    huge = server_info(device="x" * (65 << 20))
    with fake_server({"GetServerInfo": lambda _request, _context: huge}) as address, gdpcache.Client(address) as client:
        with pytest.raises(gdpcache.ResourceExhaustedError, match="larger than max"):
            client.server_info()

        async def ask() -> None:
            async with gdpcache.AsyncClient(address) as client:
                await client.server_info()

        with pytest.raises(gdpcache.ResourceExhaustedError, match="larger than max"):
            asyncio.run(ask())
