"""Operations on sessions and their slots."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from gdpcache import _convert, _frames, _server, _tensors
from gdpcache._arena import Arena
from gdpcache._cuda_regions import CudaRegions
from gdpcache._operations import SERVICE, Detached, Operation, Stream, parse, unary
from gdpcache._recent import Recent
from gdpcache._sharing import Unsettled
from gdpcache._tensors import TensorView, indices
from gdpcache.errors import GdpCacheError, NotFoundError, Resource, protocol_error
from gdpcache.types import (
    Array,
    CacheGeometry,
    Region,
    ServerInfo,
    SlotContents,
    SlotCopies,
    TensorLike,
    Transport,
)
from gdpcache.v1 import memory_pb2, session_pb2, tensor_pb2

if TYPE_CHECKING:
    from gdpcache._prepared import Plan

_GIVING_BACK = 10.0  # seconds
_PLANS = 64  # layers of one step share one


class SessionState:
    """What a session knows of itself, whichever client drives it."""

    def __init__(
        self, session: str, cache: str, geometry: CacheGeometry, ttl: float, server: ServerInfo, transport: Transport
    ) -> None:
        self.id = session
        self.cache = cache
        self.geometry = geometry
        self.ttl = ttl
        self.server = server
        self.transport = transport
        self.transports_used: Counter[Transport] = Counter()
        self.error: GdpCacheError | None = None  # why the renewal has given up
        self.closed = False
        self.plans: Recent[Plan] = Recent(_PLANS)
        self.unsettled = Unsettled()
        self.arena = Arena(session, server, self.unsettled)
        self.cuda = CudaRegions(session, server, self.unsettled)

    @property
    def renewal_interval(self) -> float:
        """Seconds; bounded, whatever a server says."""
        return min(max(self.ttl / 3, 0.01), 3600.0)


class SessionProperties:
    """What both clients' sessions tell of themselves."""

    def __init__(self, state: SessionState) -> None:
        self._state = state

    @property
    def id(self) -> str:
        """Whoever knows it may use the session's slots."""
        return self._state.id

    @property
    def cache(self) -> str:
        return self._state.cache

    @property
    def geometry(self) -> CacheGeometry:
        return self._state.geometry

    @property
    def ttl(self) -> float:
        """Seconds, as granted by the server."""
        return self._state.ttl

    @property
    def error(self) -> GdpCacheError | None:
        """Why the background renewal has given up: NotFoundError when the session has expired or was ended."""
        return self._state.error

    @property
    def transports_used(self) -> dict[Transport, int]:
        """How many prefills went by which transport."""
        return dict(self._state.transports_used)


def open_session(cache: str, ttl: float, client_name: str, transport: Transport | str) -> Operation[SessionState]:
    chosen = Transport(transport)
    request = session_pb2.OpenSessionRequest(cache=cache, ttl_ms=_convert.milliseconds(ttl), client_name=client_name)
    answer = yield from unary("OpenSession", request, session_pb2.OpenSessionResponse)
    server = yield from _server.server_info()
    geometry = next((entry.geometry for entry in server.caches if entry.name == cache), None)
    if geometry is None:
        raise NotFoundError(f"cache {cache!r} was deleted", resource=Resource("cache", cache))
    return SessionState(answer.session, cache, geometry, answer.ttl_ms / 1000, server, chosen)


def keep_alive(session: SessionState) -> Operation[float]:
    answer = yield from unary(
        "KeepAlive", session_pb2.KeepAliveRequest(session=session.id), session_pb2.KeepAliveResponse
    )
    return float(answer.ttl_ms / 1000)


def renew(session: SessionState) -> Operation[bool]:
    """One turn of the background renewal: whether there is anything left to renew. A server that cannot be reached is
    asked again."""
    try:
        yield from keep_alive(session)
    except NotFoundError as error:
        session.error = error
        return False
    except GdpCacheError:
        pass
    return True


def close(session: SessionState) -> Operation[None]:
    """A session that is gone already counts as closed."""
    if session.closed:
        return
    session.closed = True
    with suppress(NotFoundError):
        yield from unary(
            "CloseSession", session_pb2.CloseSessionRequest(session=session.id), session_pb2.CloseSessionResponse
        )
    session.cuda.close()


def acquire_slots(session: SessionState, count: int) -> Operation[list[int]]:
    request = session_pb2.AcquireSlotsRequest(session=session.id, count=count)
    answer = yield from unary("AcquireSlots", request, session_pb2.AcquireSlotsResponse)
    return list(answer.slots)


def release_slots(session: SessionState, slots: TensorLike | Sequence[int]) -> Operation[None]:
    request = session_pb2.ReleaseSlotsRequest(session=session.id, slots=indices("slots", slots))
    yield from unary("ReleaseSlots", request, session_pb2.ReleaseSlotsResponse)


def reset_slots(session: SessionState, slots: TensorLike | Sequence[int]) -> Operation[None]:
    request = session_pb2.ResetSlotsRequest(session=session.id, slots=indices("slots", slots))
    yield from unary("ResetSlots", request, session_pb2.ResetSlotsResponse)


def copy_slots(session: SessionState, copies: SlotCopies | Mapping[int, Sequence[int]]) -> Operation[None]:
    pairs = copies.items() if isinstance(copies, Mapping) else copies
    request = session_pb2.CopySlotsRequest(
        session=session.id,
        copies=[
            session_pb2.SlotCopy(source=source, destinations=indices("destinations", destinations))
            for source, destinations in pairs
        ],
    )
    yield from unary("CopySlots", request, session_pb2.CopySlotsResponse)


def fork_slot(session: SessionState, source: int, count: int) -> Operation[list[int]]:
    """If the copy fails, the new slots are given back; where that fails too, the session's end does it."""
    forks = yield from acquire_slots(session, count)
    try:
        yield from copy_slots(session, [(source, forks)])
    except BaseException:
        yield Detached(release_slots(session, forks), _GIVING_BACK, None)
        raise
    return forks


def read_slots(
    session: SessionState, slots: TensorLike | Sequence[int], layers: TensorLike | Sequence[int] | None
) -> Operation[SlotContents]:
    request = session_pb2.ReadSlotsRequest(
        session=session.id, slots=indices("slots", slots), layers=indices("layers", layers)
    )
    reader = _SlotReader(session.geometry)
    yield Stream(SERVICE + "ReadSlots", iter([request.SerializeToString()]), reader.receive)
    return reader.contents()


class _SlotReader:
    """Puts together what ReadSlots sends."""

    def __init__(self, geometry: CacheGeometry) -> None:
        self._geometry = geometry
        self._header: Any = None
        self._incoming: _frames.Incoming
        self._state: Array
        self._auxiliary: Array | None = None

    def receive(self, frame: bytes) -> None:
        data = _frames.data_of(frame)
        if data is not None:
            if self._header is None:
                raise protocol_error("bytes before the contents' header")
            self._incoming.add(*data)
            return
        header = parse(session_pb2.ReadSlotsFrame, frame).contents
        count = len(header.slots) * len(header.layers)
        geometry = self._geometry
        elements = count * geometry.heads * geometry.key_dim * geometry.value_dim
        if math.prod(header.state.shape) != elements or len(header.positions) != count:
            raise protocol_error(f"a state of shape {list(header.state.shape)} for {count} slots and layers")
        self._header = header
        self._state = np.empty(elements * geometry.state_dtype.size, np.uint8)
        tensors = {int(tensor_pb2.TENSOR_ID_STATE): self._state}
        if geometry.auxiliary_bytes > 0:
            self._auxiliary = np.empty(count * geometry.auxiliary_bytes, np.uint8)
            tensors[int(tensor_pb2.TENSOR_ID_AUXILIARY)] = self._auxiliary
        self._incoming = _frames.Incoming(tensors)

    def contents(self) -> SlotContents:
        if self._header is None:
            raise protocol_error("the stream ended without contents")
        self._incoming.check_complete()
        shape = (len(self._header.slots), len(self._header.layers))
        geometry = self._geometry
        state = self._state.view(_tensors.numpy_dtype(geometry.state_dtype))
        return SlotContents(
            slots=tuple(self._header.slots),
            layers=tuple(self._header.layers),
            positions=np.array(self._header.positions, np.int64).reshape(shape),
            state=state.reshape(*shape, geometry.heads, geometry.key_dim, geometry.value_dim),
            auxiliary=None if self._auxiliary is None else self._auxiliary.reshape(*shape, geometry.auxiliary_bytes),
        )


def write_slots(
    session: SessionState,
    slots: TensorLike | Sequence[int],
    state: TensorLike,
    layers: TensorLike | Sequence[int] | None,
    positions: TensorLike | Sequence[int] | None,
    auxiliary: TensorLike | None,
) -> Operation[None]:
    state_view = _tensors.view("state", state)
    auxiliary_view = None if auxiliary is None else _tensors.view("auxiliary", auxiliary)
    contents = session_pb2.SlotContents(
        slots=indices("slots", slots),
        layers=indices("layers", layers),
        positions=indices("positions", positions),
        state=_convert.tensor_header(state_view.dtype, state_view.shape),
    )
    if auxiliary_view is not None:
        contents.auxiliary.CopyFrom(_convert.tensor_header(auxiliary_view.dtype, auxiliary_view.shape))
    header = session_pb2.WriteSlotsFrame(header=session_pb2.WriteSlotsHeader(session=session.id, contents=contents))

    def frames() -> Iterator[bytes]:
        yield header.SerializeToString()
        for tensor, tensor_view in (
            (tensor_pb2.TENSOR_ID_STATE, state_view),
            (tensor_pb2.TENSOR_ID_AUXILIARY, auxiliary_view),
        ):
            if tensor_view is not None:
                yield from _pieces(int(tensor), tensor_view)

    yield Stream(SERVICE + "WriteSlots", frames(), lambda answer: None)


def _pieces(tensor: int, tensor_view: TensorView) -> Iterator[bytes]:
    data = tensor_view.bytes_on_host()
    for offset in range(0, data.nbytes, _frames.MAX_PAYLOAD):
        yield _frames.encode_data(tensor, offset, data[offset : offset + _frames.MAX_PAYLOAD])


def list_shared_memory(session: SessionState) -> Operation[list[Region]]:
    answer = yield from unary(
        "ListSharedMemory",
        memory_pb2.ListSharedMemoryRequest(session=session.id),
        memory_pb2.ListSharedMemoryResponse,
    )
    kinds = {
        memory_pb2.SHARED_MEMORY_KIND_SYSTEM: "system",
        memory_pb2.SHARED_MEMORY_KIND_CUDA: "cuda",
        memory_pb2.SHARED_MEMORY_KIND_CUDA_EVENT: "cuda_event",
    }
    return [
        Region(region.name, kinds.get(region.kind, "unknown"), region.size, region.uses) for region in answer.regions
    ]
