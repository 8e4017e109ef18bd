"""The prefill, by whichever transport."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from gdpcache import _frames, _wire
from gdpcache._operations import SERVICE, Operation, Stream, Unary, parse
from gdpcache._prepared import Prepared, Result, encoded_inline, finish, prepare, transport_of
from gdpcache._session import SessionState
from gdpcache._shared import run_cuda, run_shared
from gdpcache._sharing import SharingUnavailableError
from gdpcache.errors import UnavailableError, protocol_error
from gdpcache.prefill import PrefillCall
from gdpcache.types import PrefillResult, TensorLike, Transport
from gdpcache.v1 import prefill_pb2

# Where the choice is free, calls whose inputs and whose results have at most this many bytes go as one message.
_MAX_UNARY = 1 << 20
_MAX_UNARY_WITH_SHARED_MEMORY = 32 << 10
_MAX_PROTOBUF = (1 << 31) - (1 << 20)  # no server can decode more
_FRAME_OVERHEAD = 64  # bytes of a frame around its payload, at most


def prefill(
    session: SessionState, call: PrefillCall, *, is_batched: bool = False, prepared: Prepared | None = None
) -> Operation[PrefillResult]:
    """`is_batched`: h has u's batch dimension, and its boundaries in a second one. `prepared`: the same call, of one
    who has had to look into it."""
    if prepared is None:
        prepared = prepare(session, call, is_batched)
    wanted = transport_of(session, call)
    if wanted is not Transport.AUTO:
        try:
            return (yield from _RUN[wanted](session, prepared))
        except SharingUnavailableError as error:
            raise UnavailableError(f"transport {wanted.value} was asked for: {error}") from error
    for transport in _candidates(session, prepared):
        try:
            return (yield from _RUN[transport](session, prepared))
        except SharingUnavailableError:
            continue
    raise AssertionError("the last candidate needs no shared memory")


def _candidates(session: SessionState, prepared: Prepared) -> Iterator[Transport]:
    """In the order in which they are to be tried; the last one always serves."""
    plan = prepared.plan
    largest = max(plan.input_bytes, plan.output_bytes)
    if session.cuda.available and plan.is_complete and any(view.data is None for view in prepared.views):
        yield Transport.CUDA_IPC
    if session.arena.available and plan.is_complete and largest > _MAX_UNARY_WITH_SHARED_MEMORY:
        yield Transport.SHARED_MEMORY
    limit = min(_MAX_UNARY, session.server.limits.max_message_bytes * 3 // 4)
    yield Transport.UNARY if largest <= limit else Transport.STREAM


# --- one message each way ---


def _run_unary(session: SessionState, prepared: Prepared) -> Operation[PrefillResult]:
    plan = prepared.plan
    if plan.input_bytes > _MAX_PROTOBUF:
        raise ValueError(f"the tensors have {plan.input_bytes} bytes; a unary call takes at most {_MAX_PROTOBUF}")
    parts: list[bytes | memoryview] = [prepared.encoded]
    for tensor, view in zip(plan.inputs, prepared.views, strict=True):
        parts.extend(encoded_inline(tensor, view))
    message = b"".join(parts)
    response = parse(prefill_pb2.PrefillResponse, (yield Unary(SERVICE + "Prefill", message)))
    return finish(session, prepared, response, Transport.UNARY, lambda _, result: _inline(response, result))


def _inline(response: prefill_pb2.PrefillResponse, result: Result) -> TensorLike:
    output = result.output
    inline = np.frombuffer(getattr(response, output.name).inline, np.uint8)
    if inline.nbytes != output.size:
        raise protocol_error(f"{inline.nbytes} bytes of {output.name}; expected {output.size}")
    memory = result.memory()
    memory[:] = inline
    return result.deliver(memory)


# --- a stream ---


def _run_stream(session: SessionState, prepared: Prepared) -> Operation[PrefillResult]:
    memories = {result.output.id: result.memory() for result in prepared.results}
    incoming = _frames.Incoming(memories)
    response: prefill_pb2.PrefillResponse | None = None

    def receive(frame: bytes) -> None:
        nonlocal response
        if response is not None:
            raise protocol_error("a frame after the response")
        data = _frames.data_of(frame)
        if data is not None:
            incoming.add(*data)
            return
        message = parse(prefill_pb2.PrefillFrame, frame)
        if not message.HasField("response"):
            raise protocol_error("a frame with neither data nor response")
        response = message.response

    yield Stream(SERVICE + "PrefillStream", _frames_of(session, prepared), receive)
    if response is None:
        raise protocol_error("the stream ended without a response")
    incoming.check_complete()
    return finish(
        session, prepared, response, Transport.STREAM, lambda _, result: result.deliver(memories[result.output.id])
    )


def _frames_of(session: SessionState, prepared: Prepared) -> Iterator[bytes]:
    plan = prepared.plan
    headers = (_wire.message(tensor.field, tensor.header) for tensor in plan.inputs)
    yield _wire.message(prefill_pb2.PrefillFrame.REQUEST_FIELD_NUMBER, prepared.encoded, *headers)
    lanes = []
    for (operand, _, _), view in zip(plan.inputs, prepared.views, strict=True):
        row = view.shape[len(view.shape) - operand.row_rank :]
        sequences = plan.begins if operand.name == "initial_state" else None
        has_rows = operand.counts_rows or sequences is not None
        row_bytes = math.prod(row) * view.dtype.size if has_rows else 0
        lanes.append(_frames.Lane(operand.id, view.bytes_on_host(), row_bytes, sequences))
    limit = max(1, min(_frames.MAX_PAYLOAD, session.server.limits.max_message_bytes - _FRAME_OVERHEAD))
    yield from _frames.interleave(lanes, plan.rows, limit)


_RUN = {
    Transport.UNARY: _run_unary,
    Transport.STREAM: _run_stream,
    Transport.SHARED_MEMORY: run_shared,
    Transport.CUDA_IPC: run_cuda,
}
