"""A prefill taken apart: its request, its tensors, and the results that a valid one brings."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from gdpcache import _convert, _tensors, _wire
from gdpcache._memory import Place
from gdpcache._session import SessionState
from gdpcache._tensors import TensorView, indices
from gdpcache.errors import protocol_error
from gdpcache.prefill import DecayBase, InitialState, Precision, PrefillCall, States
from gdpcache.types import Array, DataType, PrefillResult, TensorLike, Transport
from gdpcache.v1 import prefill_pb2, snapshot_pb2, tensor_pb2

_INLINE = tensor_pb2.Tensor.INLINE_FIELD_NUMBER
_SHARED_MEMORY = tensor_pb2.Tensor.SHARED_MEMORY_FIELD_NUMBER
FIELDS = {field.name: field.number for field in prefill_pb2.PrefillRequest.DESCRIPTOR.fields}
OUTPUT_FIELDS = {field.name: field.number for field in prefill_pb2.OutputDestinations.DESCRIPTOR.fields}


@functools.lru_cache(maxsize=1024)
def _header(dtype: DataType, shape: tuple[int, ...]) -> bytes:
    """A Tensor without data."""
    header: bytes = _convert.tensor_header(dtype, shape).SerializeToString()
    return header


@dataclass
class Input:
    name: str
    id: int
    view: TensorView
    row_rank: int  # dimensions of a row

    @property
    def is_token_lane(self) -> bool:
        return self.name in ("k", "w", "u", "g")

    def encoded(self, data: bytes = b"") -> bytes:
        """The request's field; `data` is what the message has beside the header."""
        return _wire.message(FIELDS[self.name], _header(self.view.dtype, self.view.shape), data)

    def encoded_inline(self) -> tuple[bytes, memoryview]:
        """The same with the tensor's bytes, in two parts."""
        data = self.view.bytes_on_host()
        head = _header(self.view.dtype, self.view.shape) + _wire.length_key(_INLINE, data.nbytes)
        return _wire.length_key(FIELDS[self.name], len(head) + data.nbytes) + head, data.data

    def encoded_shared(self, place: Place) -> bytes:
        """The same with the place of the tensor's bytes."""
        return self.encoded(_wire.message(_SHARED_MEMORY, place.encoded()))


@dataclass
class Result:
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
class Prepared:
    """A call taken apart."""

    request: prefill_pb2.PrefillRequest  # without tensors
    encoded: bytes  # the same, serialized
    inputs: list[Input]
    results: list[
        Result
    ]  # none where the request is so malformed that they have no size: the server tells what is wrong
    rows: int  # of the longest of k, w, u, g
    begins: list[int] = field(default_factory=list)  # of the sequences, in rows

    @property
    def input_bytes(self) -> int:
        return sum(tensor.view.size for tensor in self.inputs)

    @property
    def result_bytes(self) -> int:
        return sum(result.size for result in self.results)


def prepare(session: SessionState, call: PrefillCall) -> Prepared:
    k, w, u = (_tensors.view(name, getattr(call, name)) for name in ("k", "w", "u"))
    inputs = [
        Input("k", tensor_pb2.TENSOR_ID_K, k, 2),
        Input("w", tensor_pb2.TENSOR_ID_W, w, 2),
        Input("u", tensor_pb2.TENSOR_ID_U, u, 2),
    ]
    if call.g is not None:
        inputs.append(Input("g", tensor_pb2.TENSOR_ID_G, _tensors.view("g", call.g), 1))
    if not isinstance(call.initial_state, InitialState):
        initial = _tensors.view("initial_state", call.initial_state)
        inputs.insert(0, Input("initial_state", tensor_pb2.TENSOR_ID_INITIAL_STATE, initial, 3))
    if call.auxiliary_state is not None:
        auxiliary = _tensors.view("auxiliary_state", call.auxiliary_state)
        inputs.append(Input("auxiliary_state", tensor_pb2.TENSOR_ID_AUXILIARY, auxiliary, 1))
    request = _request(session, call)
    rows = max(math.prod(tensor.view.shape[: -tensor.row_rank]) for tensor in inputs if tensor.is_token_lane)
    prepared = Prepared(request, request.SerializeToString(), inputs, [], rows)
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


def _lay_out(session: SessionState, call: PrefillCall, k: TensorView, u: TensorView, prepared: Prepared) -> None:
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
            prepared.results.append(Result(name, tensor, dtype, shape, call.u, out))


def _output(name: str, value: TensorLike | None, dtype: DataType, shape: tuple[int, ...]) -> TensorView | None:
    if value is None:
        return None
    out = _tensors.view(name, value, writable=True)
    if out.dtype is not dtype or math.prod(out.shape) != math.prod(shape):
        raise ValueError(f"{name} is {out.dtype.value} {list(out.shape)}; the result is {dtype.value} {list(shape)}")
    return out


def finish(
    session: SessionState,
    prepared: Prepared,
    response: prefill_pb2.PrefillResponse,
    transport: Transport,
    deliver: Callable[[Result], TensorLike],
) -> PrefillResult:
    """Checks the answer's headers and hands out the results."""
    expected = {result.name for result in prepared.results}
    for name in ("h", "v_new", "final_state"):
        if response.HasField(name) != (name in expected):
            raise protocol_error(f"{name} is {'there unasked' if name not in expected else 'missing'}")
    for result in prepared.results:
        result.check(getattr(response, result.name))
    tensors = {result.name: deliver(result) for result in prepared.results}
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
