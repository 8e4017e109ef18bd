"""The prefill whose tensors do not travel: they are in memory shared with the server, of the host and of the GPU."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gdpcache import _tensors, _wire
from gdpcache._arena import Block, aligned
from gdpcache._cuda_regions import Allocation, EventPair
from gdpcache._operations import SERVICE, Operation, Sleep, Unary
from gdpcache._prepared import FIELDS, Prepared, Result, finish_expected
from gdpcache._session import SessionState
from gdpcache._sharing import Place, SharingUnavailableError, may_have_been_done
from gdpcache._tensors import TensorView
from gdpcache.errors import UnavailableError
from gdpcache.types import Array, PrefillResult, TensorLike, Transport
from gdpcache.v1 import tensor_pb2

PREFILL = SERVICE + "Prefill"
_PIECE = 8 << 20  # bytes that are copied at a time
_POLL = 5e-5  # seconds between looks at an event
_SHARED_MEMORY = tensor_pb2.Tensor.SHARED_MEMORY_FIELD_NUMBER


def _reference(place: Place) -> bytes:
    """A SharedMemoryRef."""
    return _wire.message(1, place.region.encode()) + _wire.key(2, _wire.VARINT) + _wire.varint(place.offset)


# Most calls find their tensors where an earlier one had them.
@functools.lru_cache(maxsize=4096)
def _tensor(field: int, header: bytes, place: Place | None) -> bytes:
    """A field with a Tensor, of a request or of an answer."""
    if place is None:
        return _wire.message(field, header)
    return _wire.message(field, header, _wire.message(_SHARED_MEMORY, _reference(place)))


@functools.lru_cache(maxsize=4096)
def _destination(field: int, place: Place) -> bytes:
    """A field of OutputDestinations."""
    return _wire.message(field, _reference(place))


class Places:
    """Where the server finds a call's inputs and puts its results. Empty tensors are nowhere."""

    def __init__(self, session: SessionState, prepared: Prepared, on_gpu: bool) -> None:
        self._session = session
        self._prepared = prepared
        self._on_gpu = on_gpu  # tensors on the GPU stay there
        self._blocks: list[Block] = []  # keeps them until the call is over
        self.on_host: set[str] = set()  # names of the regions in use
        self.on_device: set[str] = set()
        self._allocations: list[Allocation] = []  # on the GPU, that the call has come across
        self._inputs: list[Place | None] = [None] * len(prepared.views)
        self._outputs: list[Place | None] = [None] * len(prepared.results)
        self._memories: list[Array | None] = [None] * len(prepared.results)  # of results that come to the host
        self._tensors: list[TensorLike] = [None] * len(prepared.results)  # those that are complete as they are

    def assign(self) -> Operation[None]:
        """Inputs are where they are if that is shared already; the others are copied, all into one block. Results go to
        the caller's memory if it is shared, else beside inputs on the GPU, else into blocks that they will keep."""
        copied: list[tuple[int, int]] = []  # inputs, and where in their block they begin
        total = 0
        for i, view in enumerate(self._prepared.views):
            if view.size == 0:
                continue
            place = self._find(view)
            if place is None and view.data is None and self._on_gpu:
                place = yield from self._register(view)
            if place is not None:
                self._inputs[i] = place
            else:
                copied.append((i, total))
                total += aligned(view.size)
        sizes = [total] if copied else []
        made: list[int] = []  # results that need a block
        for i, result in enumerate(self._prepared.results):
            size = result.output.size
            if size == 0:
                self._memories[i] = np.empty(0, np.uint8)
                continue
            out = result.out
            if out is None and self._on_gpu:
                out = _tensors.allocate_on_gpu(result.output.dtype, result.output.given_shape, result.like)
            place = None if out is None else self._find(out)
            if place is None and out is not None and out.data is None and self._on_gpu:
                place = yield from self._register(out)
            if place is None or out is None:
                made.append(i)
                sizes.append(size)
                continue
            self._outputs[i] = place
            if out.data is not None:
                self._memories[i] = out.data
            else:
                self._tensors[i] = out.source
        if sizes:
            self._blocks = yield from self._session.arena.allocate(sizes)
            yield from self._fill(copied, made)

    def _fill(self, copied: list[tuple[int, int]], made: list[int]) -> Operation[None]:
        blocks = iter(self._blocks)
        if copied:
            block = next(blocks)
            name, start = block.place
            self.on_host.add(name)
            for i, offset in copied:
                data = self._prepared.views[i].bytes_on_host()
                self._inputs[i] = Place(name, start + offset)
                for at in range(0, data.nbytes, _PIECE):
                    piece = data[at : at + _PIECE]
                    begin = start + offset + at
                    block.memory[begin : begin + piece.nbytes] = piece
                    if piece.nbytes == _PIECE:
                        yield Sleep(0)
        for i, block in zip(made, blocks, strict=True):
            self._outputs[i] = place = block.place
            self.on_host.add(place.region)
            self._memories[i] = np.ndarray((self._prepared.results[i].output.size,), np.uint8, block)

    def _find(self, view: TensorView) -> Place | None:
        """In memory that is shared already."""
        if view.data is None:
            place = self._session.cuda.find(view.pointer, self._allocations) if self._on_gpu else None
            if place is not None:
                self.on_device.add(place.region)
            return place
        if view.pointer == 0:
            return None
        place = self._session.arena.find(view.pointer, view.size)
        if place is not None:
            self.on_host.add(place.region)
        return place

    def _register(self, view: TensorView) -> Operation[Place]:
        place = yield from self._session.cuda.register(view.pointer, self._allocations)
        self.on_device.add(place.region)
        return place

    def encode(self, *events: bytes) -> tuple[bytes, bytes]:
        """The request, and the tensors with which the answer should begin."""
        plan = self._prepared.plan
        parts = [self._prepared.encoded]
        for tensor, place in zip(plan.inputs, self._inputs, strict=True):
            parts.append(_tensor(tensor.field, tensor.header, place))
        destinations, answers = [], []
        for output, place in zip(plan.outputs, self._outputs, strict=True):
            answers.append(_tensor(output.answer_field, output.header, place))
            if place is not None:
                destinations.append(_destination(output.destination_field, place))
        parts.append(_wire.message(FIELDS["outputs"], *destinations))
        parts.extend(events)
        return b"".join(parts), b"".join(answers)

    def deliver(self, index: int, result: Result) -> TensorLike:
        memory = self._memories[index]
        return self._tensors[index] if memory is None else result.deliver(memory)


def run_shared(session: SessionState, prepared: Prepared) -> Operation[PrefillResult]:
    """Through memory of the host; what is on a GPU is copied."""
    places = Places(session, prepared, on_gpu=False)
    yield from places.assign()
    request, expected = places.encode()
    try:
        answer = yield Unary(PREFILL, request)
    except BaseException as error:
        if may_have_been_done(error):
            yield from session.arena.retire(places.on_host, places)
        raise
    return finish_expected(session, prepared, answer, expected, Transport.SHARED_MEMORY, places.deliver)


def _streams(on_gpu: list[TensorView]) -> list[int]:
    """Those that order the tensors' contents, each once: more than one where tensors are of several libraries."""
    streams = {view.raw_stream: view for view in on_gpu}
    return list({view.stream for view in streams.values()})


class CudaCall(NamedTuple):
    """A call on memory of the GPU that is ready to be sent."""

    prepared: Prepared
    places: Places
    pair: EventPair
    streams: list[int]  # of the caller

    def record_inputs(self) -> None:
        """The ready event, behind what the streams have been given so far."""
        first, *others = self.streams
        with self.pair.context:
            for other in others:
                self.pair.ready.record(other)
                self.pair.ready.let_wait(first)
            self.pair.ready.record(first)

    def results(self) -> tuple[TensorLike, TensorLike, TensorLike]:
        """h, v_new and final_state, all of them on the GPU: complete when the server is done."""
        tensors = {
            result.output.name: self.places.deliver(i, result) for i, result in enumerate(self.prepared.results)
        }
        return tensors.get("h"), tensors.get("v_new"), tensors.get("final_state")


def begin_cuda(session: SessionState, prepared: Prepared) -> Operation[CudaCall]:
    """What is on the host goes through shared memory."""
    views = prepared.views + [result.out for result in prepared.results if result.out]
    on_gpu = [view for view in views if view.data is None and view.size > 0]
    if not on_gpu:
        raise ValueError(f"transport is cuda_ipc, but none of {_names(prepared)} is on a GPU")
    streams = _streams(on_gpu)

    places = Places(session, prepared, on_gpu=True)
    yield from places.assign()
    pair = yield from session.cuda.take_events(on_gpu[0].pointer)
    return CudaCall(prepared, places, pair, streams)


def begin_ahead(session: SessionState, prepared: Prepared) -> Operation[CudaCall | None]:
    """A call that touches nothing but memory of the GPU; None for others."""
    views = prepared.views
    if not prepared.plan.is_complete or any(view.data is not None for view in views) or not any(v.size for v in views):
        return None
    for result in prepared.results:
        stays = _tensors.has_memory_on_gpu(result.like) if result.out is None else result.out.data is None
        if not stays:
            return None
    try:
        return (yield from begin_cuda(session, prepared))
    except SharingUnavailableError:
        return None


def retire(session: SessionState, call: CudaCall) -> Operation[None]:
    """After a call whose end is not known."""
    yield from session.arena.retire(call.places.on_host, call.places)
    yield from session.cuda.retire(call.places.on_device, call.pair, call.places)


def run_cuda(session: SessionState, prepared: Prepared) -> Operation[PrefillResult]:
    """On memory of the GPU where it is. The caller's stream is made to wait for the server's work, and nobody waits for
    the caller's."""
    call = yield from begin_cuda(session, prepared)
    places, pair = call.places, call.pair
    request, expected = places.encode(pair.encoded)
    answered = False
    try:
        call.record_inputs()
        answer = yield Unary(PREFILL, request)
        answered = True
        with pair.context:
            for stream in call.streams:
                pair.done.let_wait(stream)
        if places.on_host:  # read or written by work that the answer does not wait for
            while not pair.is_done():
                yield Sleep(_POLL)
    except BaseException as error:
        if answered or may_have_been_done(error):
            yield from retire(session, call)
        else:
            session.cuda.give_events(pair)
        raise
    session.cuda.give_events(pair)
    return finish_expected(session, prepared, answer, expected, Transport.CUDA_IPC, places.deliver)


def _names(prepared: Prepared) -> str:
    """Of the call's tensors, as its fields are called."""
    inputs = [tensor.operand.name for tensor in prepared.plan.inputs]
    return ", ".join(inputs + [f"out.{result.output.name}" for result in prepared.results if result.out is not None])


def shared_empty(session: SessionState, shape: int | Sequence[int], dtype: object) -> Operation[Array]:
    """An array in the arena."""
    dimensions = (shape,) if isinstance(shape, int) else tuple(shape)
    numpy_type = _tensors.numpy_dtype(_tensors.data_type(dtype))
    size = math.prod(dimensions) * numpy_type.itemsize
    try:
        (block,) = yield from session.arena.allocate([size])
    except SharingUnavailableError as error:
        raise UnavailableError(str(error)) from error
    return np.ndarray(dimensions, numpy_type, block)
