"""Memory of the GPU that a session shares with the server, where tensors already are, and the events that order both
sides' work on it."""

from __future__ import annotations

import threading
from bisect import bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from gdpcache import _cuda
from gdpcache._operations import Blocking, Detached, Operation, unary
from gdpcache._sharing import (
    GRACE,
    LETTING_GO,
    Place,
    SharingUnavailableError,
    UnreachableError,
    Unsettled,
    ask,
    let_go,
    may_have_been_done,
    unregister,
)
from gdpcache.errors import InvalidArgumentError, PermissionDeniedError, ResourceExhaustedError, UnimplementedError
from gdpcache.types import ServerInfo
from gdpcache.v1 import memory_pb2, prefill_pb2

if TYPE_CHECKING:
    from gdpcache._flags import Flag


class Allocation(NamedTuple):
    """Memory of the GPU that is registered as a whole."""

    base: int
    end: int
    name: str
    buffer: int  # tells it from a later one at the same address


_base = attrgetter("base")


class EventPair:
    """What orders the server's work on the GPU behind the caller's, and the caller's behind the server's."""

    def __init__(self, pointer: int, number: int) -> None:
        self.context = _cuda.Context(pointer)
        self.ready = _cuda.Event(self.context)
        self.done = _cuda.Event(self.context)
        self.ready_event = f"ready-{number}"
        self.done_event = f"done-{number}"
        # As fields of a request.
        self.encoded_ready: bytes = prefill_pb2.PrefillRequest(ready_event=self.ready_event).SerializeToString()
        done: bytes = prefill_pb2.PrefillRequest(done_event=self.done_event).SerializeToString()
        self.encoded = self.encoded_ready + done
        self.flag: Flag | None = None  # for calls that are run ahead of

    def is_done(self) -> bool:
        """Whether the server's work is."""
        with self.context:
            return self.done.has_happened()

    def close(self) -> None:
        self.ready.close()
        self.done.close()


# What keeps memory of a GPU from being shared, but not the call from going another way.
_NO_SHARING = (
    _cuda.CudaError,  # memory without a handle, as of expandable segments
    InvalidArgumentError,  # memory that the server cannot open, as of a part of an allocation
    PermissionDeniedError,
    UnimplementedError,
    ResourceExhaustedError,
)


class CudaRegions:
    """Allocations on the server's GPU that a session has registered, and its events. Safe for several threads."""

    def __init__(self, session: str, server: ServerInfo, unsettled: Unsettled) -> None:
        self._session = session
        self._unsettled = unsettled
        self._device = server.device_uuid
        self._socket = server.descriptor_socket
        self.available = "cuda_ipc" in server.transports and bool(self._socket)
        self._lock = threading.Lock()
        self._allocations: list[Allocation] = []  # by address, ascending; replaced when it changes
        self._pairs: list[EventPair] = []  # those not in use
        self._closed = False
        self._names = 0

    def _number(self) -> int:
        with self._lock:
            self._names += 1
            return self._names

    def _token(self) -> str:
        try:
            return ask(self._socket, b"C")
        except UnreachableError:
            self.available = False
            raise

    def find(self, pointer: int, seen: list[Allocation]) -> Place | None:
        """The place of device memory whose allocation is registered. `seen` has the allocations that the call has come
        across: they exist."""
        for known in seen:
            if known.base <= pointer < known.end:
                return Place(known.name, pointer - known.base)
        allocations = self._allocations
        index = bisect_right(allocations, pointer, key=_base) - 1
        if index < 0 or pointer >= allocations[index].end:
            return None
        known = allocations[index]
        if not _cuda.is_allocation(known.base, known.buffer):
            return None
        seen.append(known)
        return Place(known.name, pointer - known.base)

    def register(self, pointer: int, seen: list[Allocation]) -> Operation[Place]:
        """The place of other device memory, whose whole allocation is registered."""
        if not self.available:
            raise SharingUnavailableError("the server shares no GPU memory with this client")
        try:
            known = yield from self._register(pointer)
        except _NO_SHARING as error:
            raise SharingUnavailableError(str(error)) from error
        seen.append(known)
        return Place(known.name, pointer - known.base)

    def _register(self, pointer: int) -> Operation[Allocation]:
        if self._device and _cuda.device_uuid(pointer) != self._device:
            raise SharingUnavailableError(f"the tensors are on another GPU than the server's, {self._device}")
        for known in self._allocations:
            # What the caller has freed the GPU cannot use again for as long as the server has it open.
            if not _cuda.is_allocation(known.base, known.buffer):
                self._forget({known.name})
                yield Detached(unregister(self._session, known.name), LETTING_GO, None)
        base, size, buffer = _cuda.allocation(pointer)
        name = f"cuda-{self._number()}"
        handle = _cuda.memory_handle(base)
        token = yield Blocking(self._token)
        request = memory_pb2.RegisterCudaMemoryRequest(
            session=self._session, name=name, handle=handle, size=size, token=token
        )
        try:
            yield from unary("RegisterCudaMemory", request, memory_pb2.RegisterCudaMemoryResponse)
        except BaseException as error:
            if may_have_been_done(error):
                yield Detached(unregister(self._session, name), LETTING_GO, GRACE)
            raise
        allocation = Allocation(base, base + size, name, buffer)
        with self._lock:
            others = [known for known in self._allocations if known.base != base]
            self._allocations = sorted([*others, allocation], key=_base)
        return allocation

    def _forget(self, names: set[str]) -> None:
        with self._lock:
            self._allocations = [known for known in self._allocations if known.name not in names]

    def take_events(self, pointer: int) -> Operation[EventPair]:
        with self._lock:
            if self._pairs:
                return self._pairs.pop()
        try:
            pair = EventPair(pointer, self._number())
        except _cuda.CudaError as error:
            raise SharingUnavailableError(str(error)) from error
        try:
            for name, event in ((pair.ready_event, pair.ready), (pair.done_event, pair.done)):
                token = yield Blocking(self._token)
                request = memory_pb2.RegisterCudaEventRequest(
                    session=self._session, name=name, handle=event.handle, token=token
                )
                yield from unary("RegisterCudaEvent", request, memory_pb2.RegisterCudaEventResponse)
        except BaseException as error:
            names = (pair.ready_event, pair.done_event)
            yield Detached(let_go(self._session, names, None, self._unsettled.begin(), pair), LETTING_GO, GRACE)
            if isinstance(error, _NO_SHARING):
                raise SharingUnavailableError(str(error)) from error
            raise
        return pair

    def give_events(self, pair: EventPair) -> None:
        with self._lock:
            if not self._closed:
                self._pairs.append(pair)
                return
        pair.close()

    def retire(self, names: set[str], pair: EventPair, keep: object) -> Operation[None]:
        """After a call whose end is not known: the memory is registered anew when it is used again, and `keep` is kept
        until the server has let go of the memory and the events."""
        self._forget(names)
        names = {*names, pair.ready_event, pair.done_event}
        yield Detached(let_go(self._session, names, keep, self._unsettled.begin(), pair), LETTING_GO, GRACE)

    def close(self) -> None:
        """When the session has ended, and with it what the server knew of these events. Those of calls that are not
        over here yet go with them."""
        with self._lock:
            self._closed = True
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            pair.close()
