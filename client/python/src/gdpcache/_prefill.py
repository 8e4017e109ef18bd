"""The prefill, by whichever transport."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from gdpcache import _convert, _cuda, _frames, _tensors, _wire
from gdpcache._memory import Block, EventPair, Place, SharingUnavailableError, aligned
from gdpcache._operations import SERVICE, Operation, Stream, Unary, parse
from gdpcache._session import SessionState
from gdpcache._tensors import TensorView, indices
from gdpcache.errors import (
    CallCancelledError,
    DeadlineExceededError,
    GdpCacheError,
    UnavailableError,
    protocol_error,
)
from gdpcache.prefill import DecayBase, InitialState, Precision, PrefillCall, States
from gdpcache.types import Array, DataType, PrefillResult, TensorLike, Transport
from gdpcache.v1 import prefill_pb2, snapshot_pb2, tensor_pb2

# Where the choice is free, calls whose inputs and whose results have at most this many bytes go as one message.
_MAX_UNARY = 1 << 20
_MAX_UNARY_WITH_SHARED_MEMORY = 32 << 10
_MAX_PROTOBUF = (1 << 31) - (1 << 20)  # no server can decode more
_FRAME_OVERHEAD = 64  # bytes of a frame around its payload, at most

_INLINE = tensor_pb2.Tensor.INLINE_FIELD_NUMBER
_SHARED_MEMORY = tensor_pb2.Tensor.SHARED_MEMORY_FIELD_NUMBER


_FIELDS = {field.name: field.number for field in prefill_pb2.PrefillRequest.DESCRIPTOR.fields}
_OUTPUT_FIELDS = {field.name: field.number for field in prefill_pb2.OutputDestinations.DESCRIPTOR.fields}


@functools.lru_cache(maxsize=1024)
def _header(dtype: DataType, shape: tuple[int, ...]) -> bytes:
    """A Tensor without data."""
    header: bytes = _convert.tensor_header(dtype, shape).SerializeToString()
    return header


@dataclass
class _Input:
    name: str
    id: int
    view: TensorView
    row_rank: int  # dimensions of a row

    @property
    def is_token_lane(self) -> bool:
        return self.name in ("k", "w", "u", "g")

    def encoded(self, data: bytes = b"") -> bytes:
        """The request's field; `data` is what the message has beside the header."""
        return _wire.message(_FIELDS[self.name], _header(self.view.dtype, self.view.shape), data)

    def encoded_inline(self) -> tuple[bytes, memoryview]:
        """The same with the tensor's bytes, in two parts."""
        data = self.view.bytes_on_host()
        head = _header(self.view.dtype, self.view.shape) + _wire.length_key(_INLINE, data.nbytes)
        return _wire.length_key(_FIELDS[self.name], len(head) + data.nbytes) + head, data.data

    def encoded_shared(self, place: Place) -> bytes:
        """The same with the place of the tensor's bytes."""
        return self.encoded(_wire.message(_SHARED_MEMORY, place.encoded()))


@dataclass
class _Result:
    """A result that a valid call brings."""

    name: str
    id: int
    dtype: DataType
    shape: tuple[int, ...]
    like: TensorLike
    out: TensorView | None

    @property
    def size(self) -> int:
        return math.prod(self.shape) * self.dtype.size

    def memory(self) -> Array:
        """Where its bytes go when they come as bytes."""
        if self.out is not None and self.out.data is not None:
            return self.out.data
        return np.empty(self.size, np.uint8)

    def deliver(self, data: Array) -> TensorLike:
        """What the caller gets, from the bytes."""
        if self.out is None:
            return _tensors.wrap(data, self.dtype, self.shape, self.like)
        self.out.store(data)
        return self.out.source

    def check(self, header: tensor_pb2.Tensor) -> None:
        if _convert.dtype_to_wire(self.dtype) != header.dtype or tuple(header.shape) != self.shape:
            raise protocol_error(f"{self.name} has shape {list(header.shape)}; expected {list(self.shape)}")


@dataclass
class _Prepared:
    """A call taken apart."""

    request: prefill_pb2.PrefillRequest  # without tensors
    encoded: bytes  # the same, serialized
    inputs: list[_Input]
    results: list[
        _Result
    ]  # none where the request is so malformed that they have no size: the server tells what is wrong
    rows: int  # of the longest of k, w, u, g
    begins: list[int] = field(default_factory=list)  # of the sequences, in rows

    @property
    def input_bytes(self) -> int:
        return sum(tensor.view.size for tensor in self.inputs)

    @property
    def result_bytes(self) -> int:
        return sum(result.size for result in self.results)


def prefill(session: SessionState, call: PrefillCall) -> Operation[PrefillResult]:
    prepared = _prepare(session, call)
    wanted = Transport(call.transport)
    if wanted is Transport.AUTO:
        wanted = session.transport
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


def _candidates(session: SessionState, prepared: _Prepared) -> Iterator[Transport]:
    """In the order in which they are to be tried; the last one always serves."""
    largest = max(prepared.input_bytes, prepared.result_bytes)
    on_gpu = any(not tensor.view.on_host for tensor in prepared.inputs)
    complete = bool(prepared.inputs) and bool(prepared.results or not _asks_for_results(prepared.request))
    if on_gpu and session.cuda.available and complete:
        yield Transport.CUDA_IPC
    if session.arena.available and complete and largest > _MAX_UNARY_WITH_SHARED_MEMORY:
        yield Transport.SHARED_MEMORY
    limit = min(_MAX_UNARY, session.server.limits.max_message_bytes * 3 // 4)
    yield Transport.UNARY if largest <= limit else Transport.STREAM


def _asks_for_results(request: prefill_pb2.PrefillRequest) -> bool:
    return bool(
        request.save_new_value
        or request.output_final_state
        or request.states.mode != prefill_pb2.StateSelection.MODE_NONE
    )


# --- taking a call apart ---


def _prepare(session: SessionState, call: PrefillCall) -> _Prepared:
    k, w, u = (_tensors.view(name, getattr(call, name)) for name in ("k", "w", "u"))
    inputs = [
        _Input("k", tensor_pb2.TENSOR_ID_K, k, 2),
        _Input("w", tensor_pb2.TENSOR_ID_W, w, 2),
        _Input("u", tensor_pb2.TENSOR_ID_U, u, 2),
    ]
    if call.g is not None:
        inputs.append(_Input("g", tensor_pb2.TENSOR_ID_G, _tensors.view("g", call.g), 1))
    if not isinstance(call.initial_state, InitialState):
        initial = _tensors.view("initial_state", call.initial_state)
        inputs.insert(0, _Input("initial_state", tensor_pb2.TENSOR_ID_INITIAL_STATE, initial, 3))
    if call.auxiliary_state is not None:
        auxiliary = _tensors.view("auxiliary_state", call.auxiliary_state)
        inputs.append(_Input("auxiliary_state", tensor_pb2.TENSOR_ID_AUXILIARY, auxiliary, 1))
    request = _request(session, call)
    rows = max(math.prod(tensor.view.shape[: -tensor.row_rank]) for tensor in inputs if tensor.is_token_lane)
    prepared = _Prepared(request, request.SerializeToString(), inputs, [], rows)
    _lay_out(session, call, k, u, prepared)
    return prepared


def _request(session: SessionState, call: PrefillCall) -> prefill_pb2.PrefillRequest:
    source = {
        InitialState.SLOT: prefill_pb2.INITIAL_STATE_SOURCE_SLOT,
        InitialState.ZERO: prefill_pb2.INITIAL_STATE_SOURCE_ZERO,
    }
    request = prefill_pb2.PrefillRequest(
        session=session.id,
        layer=call.layer,
        g_base=prefill_pb2.DECAY_BASE_NATURAL
        if DecayBase(call.g_base) is DecayBase.NATURAL
        else prefill_pb2.DECAY_BASE_LOG2,
        cu_seqlens=indices("cu_seqlens", call.cu_seqlens),
        batch=call.batch,
        chunk_size=call.chunk_size,
        num_householder=call.num_householder,
        chunk_offsets=indices("chunk_offsets", call.chunk_offsets),
        chunk_indices=indices("chunk_indices", call.chunk_indices),
        state_indices=indices("state_indices", call.state_indices),
        initial_state_source=source[call.initial_state]
        if isinstance(call.initial_state, InitialState)
        else prefill_pb2.INITIAL_STATE_SOURCE_TENSOR,
        save_new_value=call.save_new_value,
        output_final_state=call.output_final_state,
        states=_states(call),
        snapshots=[
            snapshot_pb2.SnapshotDirective(
                sequence=directive.sequence,
                boundary=directive.boundary,
                key=directive.key,
                auxiliary=directive.auxiliary,
            )
            for directive in call.snapshots
        ],
        expected_positions=indices("expected_positions", call.expected_positions),
        check_finite=call.check_finite,
        request_id=call.request_id,
        precision=prefill_pb2.PRECISION_HIGH
        if Precision(call.precision) is Precision.HIGH
        else prefill_pb2.PRECISION_DEFAULT,
    )
    if call.states_dtype is not None:
        request.states_dtype = _convert.dtype_to_wire(_tensors.data_type(call.states_dtype))
    return request


def _states(call: PrefillCall) -> prefill_pb2.StateSelection:
    selection = prefill_pb2.StateSelection
    if isinstance(call.states, States):
        return selection(mode=selection.MODE_ALL if call.states is States.ALL else selection.MODE_NONE)
    return selection(
        mode=selection.MODE_SELECTED,
        selected=[prefill_pb2.BoundaryRef(sequence=n, boundary=j) for n, j in call.states],
    )


def _lay_out(session: SessionState, call: PrefillCall, k: TensorView, u: TensorView, prepared: _Prepared) -> None:
    """Fills in the results and where sequences begin. The server alone judges requests, so that there is one set of
    rules and of messages: a malformed one gets no results here."""
    request, geometry = prepared.request, session.geometry
    wanted = {
        "h": request.states.mode != prefill_pb2.StateSelection.MODE_NONE,
        "v_new": call.save_new_value,
        "final_state": call.output_final_state,
    }
    for name, is_wanted in wanted.items():
        if getattr(call.out, name) is not None and not is_wanted:
            raise ValueError(f"out.{name} is given, but the call does not ask for {name}")
    householder = call.num_householder or geometry.num_householder
    chunk = call.chunk_size or 64
    tokens = math.prod(u.shape[:-2])
    if len(u.shape) not in (3, 4) or householder < 1 or chunk < 1:
        return
    if request.cu_seqlens:
        ends = list(request.cu_seqlens)
        if ends[0] < 0 or ends[-1] > tokens or any(end < begin for begin, end in pairwise(ends)):
            return
        lengths = [end - begin for begin, end in pairwise(ends)]
        prepared.begins = ends[:-1]
    else:
        count = call.batch or 1
        if count < 1:
            return
        lengths = [tokens // count] * count
        prepared.begins = [tokens // count * n for n in range(count)]
    boundaries = sum(-(-(length // householder) // chunk) for length in lengths)
    if request.states.mode == prefill_pb2.StateSelection.MODE_SELECTED:
        boundaries = len(request.states.selected)
    states = (geometry.heads, geometry.key_dim, geometry.value_dim)
    h_dtype = k.dtype if call.states_dtype is None else _tensors.data_type(call.states_dtype)
    shapes = {
        "h": (tensor_pb2.TENSOR_ID_H, h_dtype, (boundaries, *states)),
        "v_new": (tensor_pb2.TENSOR_ID_V_NEW, u.dtype, u.shape),
        "final_state": (tensor_pb2.TENSOR_ID_FINAL_STATE, DataType.FLOAT32, (len(lengths), *states)),
    }
    for name, (tensor, dtype, shape) in shapes.items():
        if wanted[name]:
            out = _output(f"out.{name}", getattr(call.out, name), dtype, shape)
            prepared.results.append(_Result(name, tensor, dtype, shape, call.u, out))


def _output(name: str, value: TensorLike | None, dtype: DataType, shape: tuple[int, ...]) -> TensorView | None:
    if value is None:
        return None
    out = _tensors.view(name, value, writable=True)
    if out.dtype is not dtype or math.prod(out.shape) != math.prod(shape):
        raise ValueError(f"{name} is {out.dtype.value} {list(out.shape)}; the result is {dtype.value} {list(shape)}")
    return out


# --- one message each way ---


def _run_unary(session: SessionState, prepared: _Prepared) -> Operation[PrefillResult]:
    if prepared.input_bytes > _MAX_PROTOBUF:
        raise ValueError(f"the tensors have {prepared.input_bytes} bytes; a unary call takes at most {_MAX_PROTOBUF}")
    message = b"".join([prepared.encoded, *(part for tensor in prepared.inputs for part in tensor.encoded_inline())])
    response = parse(prefill_pb2.PrefillResponse, (yield Unary(SERVICE + "Prefill", message)))
    return _finish(session, prepared, response, Transport.UNARY, lambda result: _inline_bytes(response, result))


def _inline_bytes(response: prefill_pb2.PrefillResponse, result: _Result) -> Array:
    inline = np.frombuffer(getattr(response, result.name).inline, np.uint8)
    if inline.nbytes != result.size:
        raise protocol_error(f"{inline.nbytes} bytes of {result.name}; expected {result.size}")
    memory = result.memory()
    memory[:] = inline
    return memory


def _finish(
    session: SessionState,
    prepared: _Prepared,
    response: prefill_pb2.PrefillResponse,
    transport: Transport,
    data_of: Callable[[_Result], Array],
) -> PrefillResult:
    """Checks the answer's headers and hands out the results."""
    expected = {result.name for result in prepared.results}
    for name in ("h", "v_new", "final_state"):
        if response.HasField(name) != (name in expected):
            raise protocol_error(f"{name} is {'there unasked' if name not in expected else 'missing'}")
    for result in prepared.results:
        result.check(getattr(response, result.name))
    tensors = {result.name: result.deliver(data_of(result)) for result in prepared.results}
    return _result(session, response, transport, tensors)


def _result(
    session: SessionState,
    response: prefill_pb2.PrefillResponse,
    transport: Transport,
    tensors: dict[str, TensorLike],
) -> PrefillResult:
    session.transports_used[transport] += 1
    return PrefillResult(
        h=tensors.get("h"),
        v_new=tensors.get("v_new"),
        final_state=tensors.get("final_state"),
        chunk_offsets=tuple(response.chunk_offsets),
        positions=tuple(response.positions),
        snapshots=tuple(_convert.outcome(outcome) for outcome in response.snapshots),
        timing=_convert.timing(response.timing),
        transport=transport,
    )


# --- a stream ---


def _run_stream(session: SessionState, prepared: _Prepared) -> Operation[PrefillResult]:
    memories = {result.id: result.memory() for result in prepared.results}
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
    return _finish(session, prepared, response, Transport.STREAM, lambda result: memories[result.id])


def _frames_of(session: SessionState, prepared: _Prepared) -> Iterator[bytes]:
    headers = (tensor.encoded() for tensor in prepared.inputs)
    yield _wire.message(prefill_pb2.PrefillFrame.REQUEST_FIELD_NUMBER, prepared.encoded, *headers)
    lanes = []
    for tensor in prepared.inputs:
        row = tensor.view.shape[len(tensor.view.shape) - tensor.row_rank :]
        sequences = prepared.begins if tensor.name == "initial_state" else None
        has_rows = tensor.is_token_lane or sequences is not None
        row_bytes = math.prod(row) * tensor.view.dtype.size if has_rows else 0
        lanes.append(_frames.Lane(tensor.id, tensor.view.bytes_on_host(), row_bytes, sequences))
    limit = max(1, min(_frames.MAX_PAYLOAD, session.server.limits.max_message_bytes - _FRAME_OVERHEAD))
    yield from _frames.interleave(lanes, prepared.rows, limit)


# --- shared system memory ---


def _run_shared(session: SessionState, prepared: _Prepared) -> Operation[PrefillResult]:
    blocks: list[Block] = []
    places = yield from _place_on_host(session, prepared.inputs, blocks)
    parts = [prepared.encoded]
    for tensor in prepared.inputs:
        place = places.get(tensor.name)
        parts.append(tensor.encoded() if place is None else tensor.encoded_shared(place))
    outputs: list[bytes] = []
    memories: dict[str, Array] = {}
    for result in prepared.results:
        if result.size == 0:
            memories[result.name] = np.empty(0, np.uint8)
            continue
        place = yield from _place_result(session, result, memories, blocks)
        outputs.append(_wire.message(_OUTPUT_FIELDS[result.name], place.encoded()))
    parts.append(_wire.message(_FIELDS["outputs"], *outputs))
    try:
        answer = yield Unary(SERVICE + "Prefill", b"".join(parts))
    except BaseException as error:
        if _may_be_at_work(error):
            yield from session.arena.retire(blocks)
        raise
    response = parse(prefill_pb2.PrefillResponse, answer)
    return _finish(session, prepared, response, Transport.SHARED_MEMORY, lambda result: memories[result.name])


def _place_on_host(session: SessionState, inputs: list[_Input], blocks: list[Block]) -> Operation[dict[str, Place]]:
    """Where the server finds inputs: where they are if that is in the arena, else copies, all in one block. Empty ones
    are nowhere."""
    places: dict[str, Place] = {}
    copied: list[tuple[_Input, int]] = []
    total = 0
    for tensor in inputs:
        view = tensor.view
        if view.size == 0:
            continue
        place = session.arena.find(view.pointer, view.size) if view.on_host else None
        if place is not None:
            places[tensor.name] = place
        else:
            copied.append((tensor, total))
            total += aligned(view.size)
    if copied:
        block = yield from session.arena.allocate(total)
        blocks.append(block)
        memory = block.array()
        for tensor, offset in copied:
            memory[offset : offset + tensor.view.size] = tensor.view.bytes_on_host()
            places[tensor.name] = Place(block.region.name, block.offset + offset)
    return places


def _place_result(
    session: SessionState, result: _Result, memories: dict[str, Array], blocks: list[Block]
) -> Operation[Place]:
    """Where the server puts a result: into the caller's memory if that is in the arena, else into a block that the
    result will keep."""
    out = result.out
    if out is not None and out.data is not None:
        place = session.arena.find(out.pointer, out.size)
        if place is not None:
            memories[result.name] = out.data
            return place
    block = yield from session.arena.allocate(result.size)
    blocks.append(block)
    memories[result.name] = block.array()[: result.size]
    return block.place


def _may_be_at_work(error: BaseException) -> bool:
    """Whether the server may still use the call's memory: not when it has answered."""
    return not isinstance(error, GdpCacheError) or isinstance(
        error, (DeadlineExceededError, CallCancelledError, UnavailableError)
    )


# --- memory of the GPU, where it is ---


def _run_cuda(session: SessionState, prepared: _Prepared) -> Operation[PrefillResult]:
    first = next((tensor.view for tensor in prepared.inputs if not tensor.view.on_host), None)
    if first is None:
        raise SharingUnavailableError("no tensor is on a GPU")
    names: list[str] = []
    blocks: list[Block] = []
    places = yield from _place_on_host(session, [each for each in prepared.inputs if each.view.on_host], blocks)
    for tensor in prepared.inputs:
        if tensor.view.size > 0 and not tensor.view.on_host:
            places[tensor.name] = yield from session.cuda.place(tensor.view.pointer)
            names.append(places[tensor.name].region)
    parts = [prepared.encoded]
    for tensor in prepared.inputs:
        found = places.get(tensor.name)
        parts.append(tensor.encoded() if found is None else tensor.encoded_shared(found))
    outputs: list[bytes] = []
    on_gpu: dict[str, TensorView] = {}
    memories: dict[str, Array] = {}  # of results that come to the host
    for result in prepared.results:
        if result.size == 0:
            memories[result.name] = np.empty(0, np.uint8)
            continue
        out = result.out or _tensors.allocate_on_gpu(result.dtype, result.shape, result.like)
        if out is not None and not out.on_host:
            on_gpu[result.name] = out
            place = yield from session.cuda.place(out.pointer)
            names.append(place.region)
        else:
            place = yield from _place_result(session, result, memories, blocks)
        outputs.append(_wire.message(_OUTPUT_FIELDS[result.name], place.encoded()))
    pair: EventPair = yield from session.cuda.take_events(first.pointer)
    parts += (
        _wire.message(_FIELDS["outputs"], *outputs),
        _wire.message(_FIELDS["ready_event"], pair.ready_name.encode()),
        _wire.message(_FIELDS["done_event"], pair.done_name.encode()),
    )
    try:
        with _cuda.context_of(first.pointer):
            pair.ready.record(first.stream)
        answer = yield Unary(SERVICE + "Prefill", b"".join(parts))
    except BaseException as error:
        if _may_be_at_work(error):
            yield from session.cuda.retire(names, pair)
            yield from session.arena.retire(blocks)
        else:
            session.cuda.give_events(pair)
        raise
    with _cuda.context_of(first.pointer):
        pair.done.let_wait(first.stream)
        if blocks:  # read or written by work that the answer does not wait for
            pair.done.wait()
    session.cuda.give_events(pair)
    response = parse(prefill_pb2.PrefillResponse, answer)
    tensors = {name: view.source for name, view in on_gpu.items()}
    for result in prepared.results:
        result.check(getattr(response, result.name))
        if result.name in memories:
            tensors[result.name] = result.deliver(memories[result.name])
    return _result(session, response, Transport.CUDA_IPC, tensors)


_RUN = {
    Transport.UNARY: _run_unary,
    Transport.STREAM: _run_stream,
    Transport.SHARED_MEMORY: _run_shared,
    Transport.CUDA_IPC: _run_cuda,
}


def shared_empty(session: SessionState, shape: int | Sequence[int], dtype: object) -> Operation[Array]:
    """An array in the arena."""
    dimensions = (shape,) if isinstance(shape, int) else tuple(shape)
    numpy_type = _tensors.numpy_dtype(_tensors.data_type(dtype))
    size = math.prod(dimensions) * numpy_type.itemsize
    try:
        block = yield from session.arena.allocate(size)
    except SharingUnavailableError as error:
        raise UnavailableError(str(error)) from error
    result: Array = block.array()[:size].view(numpy_type).reshape(dimensions)
    return result
