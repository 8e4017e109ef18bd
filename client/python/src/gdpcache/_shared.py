"""The prefill whose tensors do not travel: they are in memory shared with the server, of the host and of the GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gdpcache import _tensors, _wire
from gdpcache._memory import Block, EventPair, Place, SharingUnavailableError, aligned
from gdpcache._operations import SERVICE, Operation, Unary, parse
from gdpcache._prepared import FIELDS, OUTPUT_FIELDS, Input, Prepared, Result, finish
from gdpcache._session import SessionState
from gdpcache._tensors import TensorView
from gdpcache.errors import CallCancelledError, DeadlineExceededError, GdpCacheError, UnavailableError
from gdpcache.types import Array, PrefillResult, TensorLike, Transport
from gdpcache.v1 import prefill_pb2


class _Places:
    """Where the server finds a call's inputs and puts its results."""

    def __init__(self, session: SessionState, on_gpu: bool) -> None:
        self._session = session
        self._on_gpu = on_gpu  # tensors on the GPU stay there
        self._blocks: list[Block] = []  # keeps them until the call is over
        self.on_host: set[str] = set()  # names of the regions in use
        self.on_device: set[str] = set()
        self._allocations: dict[int, str] = {}  # on the GPU, that the call has come across
        self.inputs: dict[str, Place] = {}
        self.outputs: dict[str, Place] = {}
        self._memories: dict[str, Array] = {}  # of results that come to the host
        self._tensors: dict[str, TensorLike] = {}  # of those that are complete as they are

    def place_inputs(self, inputs: list[Input]) -> Operation[None]:
        """Where they are if that is shared already, else copies, all in one block. Empty ones are nowhere."""
        copied: list[tuple[Input, int]] = []
        total = 0
        for tensor in inputs:
            view = tensor.view
            if view.size == 0:
                continue
            place = yield from self._find(view)
            if place is not None:
                self.inputs[tensor.name] = place
            else:
                copied.append((tensor, total))
                total += aligned(view.size)
        if copied:
            block = yield from self._allocate(total)
            memory = block.array()
            for tensor, offset in copied:
                memory[offset : offset + tensor.view.size] = tensor.view.bytes_on_host()
                self.inputs[tensor.name] = Place(block.region.name, block.offset + offset)

    def place_results(self, results: list[Result]) -> Operation[None]:
        """In the caller's memory if it is shared already, else beside inputs on the GPU, else in blocks that the
        results will keep."""
        for result in results:
            if result.size == 0:
                self._memories[result.name] = np.empty(0, np.uint8)
                continue
            out = result.out
            if out is None and self._on_gpu:
                out = _tensors.allocate_on_gpu(result.dtype, result.shape, result.like)
            place = None if out is None else (yield from self._find(out))
            if place is None or out is None:
                block = yield from self._allocate(result.size)
                self._memories[result.name] = block.array()[: result.size]
                place = block.place
            elif out.data is not None:
                self._memories[result.name] = out.data
            else:
                self._tensors[result.name] = out.source
            self.outputs[result.name] = place

    def _find(self, view: TensorView) -> Operation[Place | None]:
        if view.on_host:
            place = self._session.arena.find(view.pointer, view.size)
            if place is not None:
                self.on_host.add(place.region)
            return place
        if not self._on_gpu:
            return None
        found = yield from self._session.cuda.place(view.pointer, self._allocations)
        self.on_device.add(found.region)
        return found

    def _allocate(self, size: int) -> Operation[Block]:
        block = yield from self._session.arena.allocate(size)
        self._blocks.append(block)
        self.on_host.add(block.region.name)
        return block

    def encode(self, prepared: Prepared) -> list[bytes]:
        parts = [prepared.encoded]
        for tensor in prepared.inputs:
            place = self.inputs.get(tensor.name)
            parts.append(tensor.encoded() if place is None else tensor.encoded_shared(place))
        outputs = (_wire.message(OUTPUT_FIELDS[name], place.encoded()) for name, place in self.outputs.items())
        parts.append(_wire.message(FIELDS["outputs"], *outputs))
        return parts

    def deliver(self, result: Result) -> TensorLike:
        if result.name in self._tensors:
            return self._tensors[result.name]
        return result.deliver(self._memories[result.name])


def _may_be_at_work(error: BaseException) -> bool:
    """Whether the server may still use the call's memory: not when it has answered."""
    return not isinstance(error, GdpCacheError) or isinstance(
        error, (DeadlineExceededError, CallCancelledError, UnavailableError)
    )


def run_shared(session: SessionState, prepared: Prepared) -> Operation[PrefillResult]:
    """Through memory of the host; what is on a GPU is copied."""
    places = _Places(session, on_gpu=False)
    yield from places.place_inputs(prepared.inputs)
    yield from places.place_results(prepared.results)
    try:
        answer = yield Unary(SERVICE + "Prefill", b"".join(places.encode(prepared)))
    except BaseException as error:
        if _may_be_at_work(error):
            yield from session.arena.retire(places.on_host)
        raise
    response = parse(prefill_pb2.PrefillResponse, answer)
    return finish(session, prepared, response, Transport.SHARED_MEMORY, places.deliver)


def _streams(on_gpu: list[TensorView]) -> list[int]:
    """Those that order the tensors' contents, each once: more than one where tensors are of several libraries."""
    of_torch = next((view for view in on_gpu if _tensors.torch_of(view.owner) is not None), None)
    streams = {view.raw_stream for view in on_gpu if _tensors.torch_of(view.owner) is None}
    return list(streams | ({of_torch.stream} if of_torch is not None else set()))


def run_cuda(session: SessionState, prepared: Prepared) -> Operation[PrefillResult]:
    """On memory of the GPU where it is; what is on the host goes through shared memory. The caller's stream is made to
    wait for the server's work, and nobody waits for the caller's."""
    views = [tensor.view for tensor in prepared.inputs] + [result.out for result in prepared.results if result.out]
    on_gpu = [view for view in views if not view.on_host and view.size > 0]
    if not on_gpu:
        raise SharingUnavailableError("no tensor is on a GPU")
    streams = _streams(on_gpu)

    places = _Places(session, on_gpu=True)
    yield from places.place_inputs(prepared.inputs)
    yield from places.place_results(prepared.results)
    pair: EventPair = yield from session.cuda.take_events(on_gpu[0].pointer)
    parts = places.encode(prepared)
    parts += (_wire.message(FIELDS[name], getattr(pair, name).encode()) for name in ("ready_event", "done_event"))
    try:
        with pair.context:
            for other in streams[1:]:
                pair.ready.record(other)
                pair.ready.let_wait(streams[0])
            pair.ready.record(streams[0])
        answer = yield Unary(SERVICE + "Prefill", b"".join(parts))
    except BaseException as error:
        if _may_be_at_work(error):
            yield from session.cuda.retire(places.on_device, pair)
            yield from session.arena.retire(places.on_host)
        else:
            session.cuda.give_events(pair)
        raise
    with pair.context:
        for stream in streams:
            pair.done.let_wait(stream)
        if places.on_host:  # read or written by work that the answer does not wait for
            pair.done.wait()
    session.cuda.give_events(pair)
    response = parse(prefill_pb2.PrefillResponse, answer)
    return finish(session, prepared, response, Transport.CUDA_IPC, places.deliver)


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
