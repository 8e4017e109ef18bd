"""A prefill taken apart: its request, its tensors, and the results that a valid one brings."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from gdpcache import _convert, _tensors, _wire
from gdpcache._operations import parse
from gdpcache._session import SessionState
from gdpcache._tensors import TensorView, fingerprint, indices
from gdpcache.errors import protocol_error
from gdpcache.prefill import NOWHERE, DecayBase, InitialState, Precision, PrefillCall, States
from gdpcache.types import Array, DataType, PrefillDetails, PrefillResult, TensorLike, Transport
from gdpcache.v1 import prefill_pb2, snapshot_pb2, tensor_pb2

_MAX_KEPT_BYTES = 16 << 10  # of a request whose plan is kept
_INLINE = tensor_pb2.Tensor.INLINE_FIELD_NUMBER
FIELDS = {field.name: field.number for field in prefill_pb2.PrefillRequest.DESCRIPTOR.fields}
_OUTPUT_FIELDS = {field.name: field.number for field in prefill_pb2.OutputDestinations.DESCRIPTOR.fields}
_ANSWER_FIELDS = {field.name: field.number for field in prefill_pb2.PrefillResponse.DESCRIPTOR.fields}


@functools.lru_cache(maxsize=1024)
def _header(dtype: DataType, shape: tuple[int, ...]) -> bytes:
    """A Tensor without data."""
    header: bytes = _convert.tensor_header(dtype, shape).SerializeToString()
    return header


class Operand(NamedTuple):
    """A tensor that calls bring."""

    name: str
    id: int
    row_rank: int  # dimensions of a row
    counts_rows: bool  # whether its rows are expanded tokens

    @property
    def field(self) -> int:
        """Of the request."""
        number: int = FIELDS[self.name]
        return number


_INITIAL_STATE = Operand("initial_state", tensor_pb2.TENSOR_ID_INITIAL_STATE, 3, False)
_K = Operand("k", tensor_pb2.TENSOR_ID_K, 2, True)
_W = Operand("w", tensor_pb2.TENSOR_ID_W, 2, True)
_U = Operand("u", tensor_pb2.TENSOR_ID_U, 2, True)
_G = Operand("g", tensor_pb2.TENSOR_ID_G, 1, True)
_AUXILIARY_STATE = Operand("auxiliary_state", tensor_pb2.TENSOR_ID_AUXILIARY, 1, False)


class Input(NamedTuple):
    operand: Operand
    field: int  # of the request
    header: bytes  # a Tensor without data


class Output(NamedTuple):
    """A result that a valid call brings."""

    name: str
    id: int
    dtype: DataType
    shape: tuple[int, ...]
    given_shape: tuple[int, ...]  # as the caller gets it
    size: int  # in bytes
    header: bytes  # a Tensor without data
    destination_field: int  # of OutputDestinations
    answer_field: int  # of the response


@dataclass(slots=True)
class Plan:
    """What calls of one session with the same shapes, sequences and options have in common."""

    encoded: bytes  # the request without tensors and without what `_rest` adds
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    is_complete: bool  # else the request is so malformed that its results have no size: the server tells what is wrong
    rows: int  # of the longest of k, w, u, g
    begins: list[int]  # of the sequences, in rows
    chunk_offsets: tuple[int, ...]
    encoded_chunk_offsets: bytes  # as the answer should have them
    input_bytes: int
    output_bytes: int


class Result:
    """A result of one call."""

    __slots__ = ("like", "out", "output")

    def __init__(self, output: Output, like: TensorLike, out: TensorView | None) -> None:
        self.output = output
        self.like = like  # what it should be like
        self.out = out  # where the caller wants it

    def memory(self) -> Array:
        """Where its bytes go when they come as bytes."""
        if self.out is not None and self.out.data is not None:
            return self.out.data
        return np.empty(self.output.size, np.uint8)

    def deliver(self, data: Array) -> TensorLike:
        """What the caller gets, from the bytes."""
        if self.out is None:
            return _tensors.wrap(data, self.output.dtype, self.output.given_shape, self.like)
        self.out.store(data)
        return self.out.source


class Prepared(NamedTuple):
    """A call taken apart."""

    plan: Plan
    encoded: bytes  # the request without tensors
    views: list[TensorView]  # of the plan's inputs
    results: list[Result]  # of the plan's outputs


def encoded_inline(tensor: Input, view: TensorView) -> tuple[bytes, memoryview]:
    """The request's field with the tensor's bytes, in two parts."""
    data = view.bytes_on_host()
    head = tensor.header + _wire.length_key(_INLINE, data.nbytes)
    return _wire.length_key(tensor.field, len(head) + data.nbytes) + head, data.data


def _named(call: PrefillCall) -> PrefillCall:
    """With options in the place of their names."""
    states, initial_state = call.states, call.initial_state
    return replace(
        call,
        states=States(states) if isinstance(states, str) else states,
        initial_state=InitialState(initial_state) if isinstance(initial_state, str) else initial_state,
    )


def transport_of(session: SessionState, call: PrefillCall) -> Transport:
    """The one asked for; AUTO where the choice is free."""
    wanted = call.transport if isinstance(call.transport, Transport) else Transport(call.transport)
    return session.transport if wanted is Transport.AUTO else wanted


def prepare(session: SessionState, call: PrefillCall, is_batched: bool) -> Prepared:
    if isinstance(call.states, str) or isinstance(call.initial_state, str):
        call = _named(call)
    k, w, u = _tensors.view("k", call.k), _tensors.view("w", call.w), _tensors.view("u", call.u)
    operands, views = [_K, _W, _U], [k, w, u]
    if call.g is not None:
        operands.append(_G)
        views.append(_tensors.view("g", call.g))
    if not isinstance(call.initial_state, InitialState):
        operands.insert(0, _INITIAL_STATE)
        views.insert(0, _tensors.view("initial_state", call.initial_state))
    if call.auxiliary_state is not None:
        operands.append(_AUXILIARY_STATE)
        views.append(_tensors.view("auxiliary_state", call.auxiliary_state))
    key = _key(call, views, is_batched)
    plan = session.plans.get(key)
    if plan is None:
        plan = _plan(session, call, list(zip(operands, views, strict=True)), k, u, is_batched)
        if len(plan.encoded) <= _MAX_KEPT_BYTES:
            session.plans.put(key, plan)
    if call.out is NOWHERE:
        results = [Result(output, call.u, None) for output in plan.outputs]
    else:
        results = [Result(output, call.u, _out(call, output)) for output in plan.outputs]
        for name in ("h", "v_new", "final_state"):
            if getattr(call.out, name) is not None and not _is_wanted(call, name):
                raise ValueError(f"out.{name} is given, but the call does not ask for {name}")
    return Prepared(plan, plan.encoded + _rest(call), views, results)


def _key(call: PrefillCall, views: list[TensorView], is_batched: bool) -> object:
    """Equal for calls that have a plan in common."""
    states: Any = call.states
    return (
        None if call.cu_seqlens is None else fingerprint("cu_seqlens", call.cu_seqlens),
        None if call.state_indices is None else fingerprint("state_indices", call.state_indices),
        call.batch,
        call.chunk_size,
        call.num_householder,
        call.save_new_value,
        call.output_final_state,
        states if isinstance(states, States) else tuple([(n, j) for n, j in states]),
        call.states_dtype,
        call.initial_state if isinstance(call.initial_state, InitialState) else None,
        call.g_base,
        call.precision,
        call.check_finite,
        None if call.chunk_offsets is None else fingerprint("chunk_offsets", call.chunk_offsets),
        None if call.chunk_indices is None else fingerprint("chunk_indices", call.chunk_indices),
        call.g is None,
        call.auxiliary_state is None,
        is_batched,
        *[view.dtype for view in views],
        *[view.shape for view in views],
    )


def _plan(
    session: SessionState,
    call: PrefillCall,
    inputs: list[tuple[Operand, TensorView]],
    k: TensorView,
    u: TensorView,
    is_batched: bool,
) -> Plan:
    request = _request(session, call)
    sequences = _sequences(session, call, u, list(request.cu_seqlens))
    outputs: tuple[Output, ...] = ()
    offsets: tuple[int, ...] = ()
    if sequences is not None:
        householder = call.num_householder or session.geometry.num_householder
        chunk = call.chunk_size or 64
        offsets = tuple(accumulate((-(-(n // householder) // chunk) for _, n in sequences), initial=0))
        outputs = tuple(_outputs(session, call, k, u, offsets, is_batched))
    return Plan(
        encoded=request.SerializeToString(),
        inputs=tuple(Input(operand, operand.field, _header(v.dtype, v.shape)) for operand, v in inputs),
        outputs=outputs,
        is_complete=sequences is not None,
        rows=max(math.prod(v.shape[: -operand.row_rank]) for operand, v in inputs if operand.counts_rows),
        begins=[begin for begin, _ in sequences or ()],
        chunk_offsets=offsets,
        encoded_chunk_offsets=prefill_pb2.PrefillResponse(chunk_offsets=offsets).SerializeToString(),
        input_bytes=sum(view.size for _, view in inputs),
        output_bytes=sum(output.size for output in outputs),
    )


def _request(session: SessionState, call: PrefillCall) -> prefill_pb2.PrefillRequest:
    source = {
        InitialState.SLOT: prefill_pb2.INITIAL_STATE_SOURCE_SLOT,
        InitialState.ZERO: prefill_pb2.INITIAL_STATE_SOURCE_ZERO,
    }
    request = prefill_pb2.PrefillRequest(
        session=session.id,
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
        check_finite=call.check_finite,
        precision=prefill_pb2.PRECISION_HIGH
        if Precision(call.precision) is Precision.HIGH
        else prefill_pb2.PRECISION_DEFAULT,
    )
    if call.states_dtype is not None:
        request.states_dtype = _convert.dtype_to_wire(_tensors.data_type(call.states_dtype, "states_dtype"))
    return request


def _states(call: PrefillCall) -> prefill_pb2.StateSelection:
    selection = prefill_pb2.StateSelection
    states: Any = call.states
    if isinstance(states, States):
        return selection(mode=selection.MODE_ALL if states is States.ALL else selection.MODE_NONE)
    return selection(
        mode=selection.MODE_SELECTED,
        selected=[prefill_pb2.BoundaryRef(sequence=n, boundary=j) for n, j in states],
    )


@functools.lru_cache(maxsize=1024)
def _layer(layer: int) -> bytes:
    encoded: bytes = prefill_pb2.PrefillRequest(layer=layer).SerializeToString()
    return encoded


def _rest(call: PrefillCall) -> bytes:
    """What of a request differs between calls with the same plan."""
    if not call.snapshots and call.expected_positions is None and not call.request_id:
        return _layer(call.layer)
    request = prefill_pb2.PrefillRequest(
        layer=call.layer,
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
        request_id=call.request_id,
    )
    encoded: bytes = request.SerializeToString()
    return encoded


def _sequences(
    session: SessionState, call: PrefillCall, u: TensorView, ends: list[int]
) -> list[tuple[int, int]] | None:
    """Beginnings and lengths of the sequences. The server alone judges requests, so that there is one set of rules and
    of messages: where they have none, None."""
    tokens = math.prod(u.shape[:-2])
    householder = call.num_householder or session.geometry.num_householder
    if len(u.shape) not in (3, 4) or householder < 1 or (call.chunk_size or 64) < 1:
        return None
    if ends:
        if ends[0] < 0 or ends[-1] > tokens or any(end < begin for begin, end in pairwise(ends)):
            return None
        return [(begin, end - begin) for begin, end in pairwise(ends)]
    count = call.batch or 1
    if count < 1:
        return None
    return [(tokens // count * n, tokens // count) for n in range(count)]


def _is_wanted(call: PrefillCall, name: str) -> bool:
    return bool(
        {
            "h": call.states is not States.NONE,
            "v_new": call.save_new_value,
            "final_state": call.output_final_state,
        }[name]
    )


def _outputs(
    session: SessionState,
    call: PrefillCall,
    k: TensorView,
    u: TensorView,
    offsets: tuple[int, ...],
    is_batched: bool,
) -> Iterable[Output]:
    boundaries = offsets[-1] if isinstance(call.states, States) else len(call.states)
    states = (session.geometry.heads, session.geometry.key_dim, session.geometry.value_dim)
    h_dtype = k.dtype if call.states_dtype is None else _tensors.data_type(call.states_dtype, "states_dtype")
    shapes = (
        ("h", tensor_pb2.TENSOR_ID_H, h_dtype, (boundaries, *states)),
        ("v_new", tensor_pb2.TENSOR_ID_V_NEW, u.dtype, u.shape),
        ("final_state", tensor_pb2.TENSOR_ID_FINAL_STATE, DataType.FLOAT32, (len(offsets) - 1, *states)),
    )
    for name, tensor, dtype, shape in shapes:
        if _is_wanted(call, name):
            size = math.prod(shape) * dtype.size
            given = (u.shape[0], shape[0] // max(u.shape[0], 1), *states) if is_batched and name == "h" else shape
            fields = _OUTPUT_FIELDS[name], _ANSWER_FIELDS[name]
            yield Output(name, int(tensor), dtype, shape, given, size, _header(dtype, shape), *fields)


def _out(call: PrefillCall, output: Output) -> TensorView | None:
    """Where the caller wants a result."""
    value = getattr(call.out, output.name)
    if value is None:
        return None
    name = f"out.{output.name}"
    out = _tensors.view(name, value, writable=True)
    if out.dtype is not output.dtype or math.prod(out.shape) != math.prod(output.shape):
        raise ValueError(
            f"{name} is {out.dtype.value} {list(out.shape)}; the result is {output.dtype.value} {list(output.shape)}"
        )
    return out


def finish(
    session: SessionState,
    prepared: Prepared,
    response: prefill_pb2.PrefillResponse,
    transport: Transport,
    deliver: Callable[[int, Result], TensorLike],
) -> PrefillResult:
    """Checks the answer's headers and hands out the results, of which `deliver` gets the index, too."""
    expected = {output.name: output for output in prepared.plan.outputs}
    for name in ("h", "v_new", "final_state"):
        if response.HasField(name) != (name in expected):
            raise protocol_error(f"{name} is {'there unasked' if name not in expected else 'missing'}")
    for name, output in expected.items():
        header = getattr(response, name)
        if _convert.dtype_to_wire(output.dtype) != header.dtype or tuple(header.shape) != output.shape:
            raise protocol_error(f"{name} has shape {list(header.shape)}; expected {list(output.shape)}")
    details = functools.partial(_convert.details, response)
    return _hand_out(session, prepared, tuple(response.chunk_offsets), transport, deliver, details)


def finish_expected(
    session: SessionState,
    prepared: Prepared,
    answer: bytes,
    tensors: bytes,
    transport: Transport,
    deliver: Callable[[int, Result], TensorLike],
) -> PrefillResult:
    """The same from the answer's bytes, `tensors` being those that it should begin with. One that does not may still
    be right: the order of fields is the server's choice."""
    plan = prepared.plan
    start = tensors + plan.encoded_chunk_offsets
    if not answer.startswith(start):
        return finish(session, prepared, parse(prefill_pb2.PrefillResponse, answer), transport, deliver)
    details = functools.partial(_read_details, answer[len(start) :])
    return _hand_out(session, prepared, plan.chunk_offsets, transport, deliver, details)


def _read_details(answer: bytes) -> PrefillDetails:
    return _convert.details(parse(prefill_pb2.PrefillResponse, answer))


def _hand_out(
    session: SessionState,
    prepared: Prepared,
    chunk_offsets: tuple[int, ...],
    transport: Transport,
    deliver: Callable[[int, Result], TensorLike],
    details: Callable[[], PrefillDetails],
) -> PrefillResult:
    tensors = {result.output.name: deliver(i, result) for i, result in enumerate(prepared.results)}
    session.transports_used[transport] += 1
    return PrefillResult(
        tensors.get("h"),
        tensors.get("v_new"),
        tensors.get("final_state"),
        chunk_offsets,
        transport,
        details,
    )
