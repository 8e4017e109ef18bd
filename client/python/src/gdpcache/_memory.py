"""Memory that a session shares with a server on the same host: system memory that the client allocates and tensors are
copied into, and allocations on the GPU where tensors already are."""

from __future__ import annotations

import fcntl
import functools
import mmap
import os
import socket
import threading
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gdpcache import _cuda
from gdpcache._channel import TimeIsUpError
from gdpcache._operations import Blocking, Detached, Operation, Sleep, unary
from gdpcache.errors import (
    GdpCacheError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    ResourceExhaustedError,
    StatusCode,
    UnimplementedError,
)
from gdpcache.types import Array, ServerInfo
from gdpcache.v1 import memory_pb2, prefill_pb2

if TYPE_CHECKING:
    from gdpcache._flags import Flag

ALIGNMENT = 64  # bytes; of a cache line, and more than any element needs
_SMALLEST_REGION = 16 << 20
_LETTING_GO = 60.0  # seconds for a server to let go of memory that a call without an answer used
_GRACE = 0.02  # seconds that such a call waits for it
_LOOK = 0.005  # seconds between looks whether it has
_HANDOVER_TIMEOUT = 5.0  # seconds for a server on this host to take a descriptor


class SharingUnavailableError(Exception):
    """Memory cannot be shared with this server, or no more of it. Nothing was sent yet: another transport may serve."""


class _UnreachableError(SharingUnavailableError):
    """Nor will it be with the next call."""


# What gRPC also says of calls that are lost or whose streams break, whatever the server has made of them. A server that
# says so of itself has failed, or given the call up: what it has begun may go on.
_LOST = (
    StatusCode.CANCELLED,
    StatusCode.UNKNOWN,
    StatusCode.DEADLINE_EXCEEDED,
    StatusCode.INTERNAL,
    StatusCode.UNAVAILABLE,
)


def may_have_been_done(error: BaseException) -> bool:
    """Whether the server may be doing, or have done, what a call asked for: not when it has answered, nor when the call
    has never begun."""
    if not isinstance(error, GdpCacheError):
        return True
    if error.code is StatusCode.RESOURCE_EXHAUSTED:  # gRPC's, too, of an answer that is too large
        return not error._is_answer
    return error.code in _LOST and not isinstance(error, TimeIsUpError)


def aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


class Place(NamedTuple):
    """Where bytes are."""

    region: str
    offset: int


def unregister(session: str, name: str) -> Operation[bool]:
    """Returns when the server has let go of the region: so it has if it does not know it, or the session, any more.
    False if that is not known: a server that cannot be reached will when the session expires."""
    request = memory_pb2.UnregisterMemoryRequest(session=session, name=name)
    try:
        yield from unary("UnregisterMemory", request, memory_pb2.UnregisterMemoryResponse)
    except NotFoundError:
        return True
    except GdpCacheError:
        return False
    return True


class Unsettled:
    """What the server may still use after calls without an answer. Safe for several threads."""

    def __init__(self) -> None:
        self._uses: set[object] = set()

    def begin(self) -> Callable[[], None]:
        """Returns what tells the end."""
        use = object()
        self._uses.add(use)
        return functools.partial(self._uses.discard, use)

    def wait(self) -> Operation[None]:
        while self._uses:
            yield Sleep(_LOOK)


def _let_go(
    session: str, names: Iterable[str], keep: object, ended: Callable[[], None], pair: EventPair | None = None
) -> Operation[None]:
    """After a call whose end is not known: until the server has let go of these regions and events it may be at work
    in `keep`, which this holds for so long, and with the pair. `ended` is called when it is known to have."""
    try:
        done = True
        for name in names:
            done = (yield from unregister(session, name)) and done
        if done:
            ended()
    finally:
        if pair is not None:
            pair.close()


def _ask(path: str, message: bytes, descriptors: Sequence[int] = ()) -> str:
    """A server's token for one registration, as memory.proto says. SharingUnavailableError where there is none."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.settimeout(_HANDOVER_TIMEOUT)
            connection.connect(path)
            socket.send_fds(connection, [message], list(descriptors))
            answer = connection.recv(4096).decode("utf-8", "replace")
    except OSError as error:  # as where server and client are containers with folders of their own
        raise _UnreachableError(f"{path}: {error}") from error
    if not answer or answer[0] == "!":
        raise SharingUnavailableError(f"the server refused the memory: {answer[1:] or 'it hung up'}")
    return answer


class Descriptor:
    """A file's, closed with the object: so that a thread that nobody waits for any more has one of its own."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


class SystemRegion:
    """One memfd, mapped here and by the server, and which parts of it are free."""

    def __init__(self, name: str, size: int, descriptor: int) -> None:
        self.name = name
        self.size = size
        os.ftruncate(descriptor, size)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        self.mapping = mmap.mmap(descriptor, size)
        self.memory = np.frombuffer(self.mapping, np.uint8)
        self.address = self.memory.ctypes.data
        self._free = [(0, size)]  # offset and size, ascending, never adjacent

    def take(self, size: int) -> int | None:
        for index, (offset, room) in enumerate(self._free):
            if room >= size:
                self._free[index : index + 1] = [(offset + size, room - size)] if room > size else []
                return offset
        return None

    def give(self, offset: int, size: int) -> None:
        index = bisect_left(self._free, (offset, 0))
        self._free.insert(index, (offset, size))
        for left in (index, index - 1):  # join with the one behind, then with the one before
            if 0 <= left < len(self._free) - 1:
                start, room = self._free[left]
                following, more = self._free[left + 1]
                if start + room == following:
                    self._free[left : left + 2] = [(start, room + more)]


class _Part(NamedTuple):
    """A part of a region that is nobody's."""

    region: SystemRegion
    offset: int
    size: int


class Block(np.ndarray[Any, np.dtype[np.uint8]]):
    """A part of a region, as the flat array that others are made of: it is given back when the last of them is gone."""

    place: Place
    memory: Array  # the whole region
    _part: _Part
    _returned: deque[_Part] | None = None  # views of the type have none

    @classmethod
    def of(cls, part: _Part, returned: deque[_Part]) -> Block:
        region, offset, size = part
        block = cls((size,), np.uint8, region.mapping, offset)
        block.place = Place(region.name, offset)
        block.memory = region.memory
        block._part = part
        block._returned = returned
        return block

    def __del__(self) -> None:
        # The collector may come here anywhere, also while the arena's lock is held: so it is only noted.
        if self._returned is not None:
            self._returned.append(self._part)


class Arena:
    """System memory of one session, registered region by region as it is needed. Safe for several threads."""

    def __init__(self, session: str, server: ServerInfo, unsettled: Unsettled) -> None:
        self._session = session
        self._unsettled = unsettled
        self._socket = server.descriptor_socket
        self._limit = server.limits.shared_memory_bytes
        self.available = "shared_memory" in server.transports and bool(self._socket)
        self._lock = threading.Lock()
        self._regions: list[SystemRegion] = []
        self._returned: deque[_Part] = deque()
        # Parts that were given back, by size: the next call is likely to want the same. Free to their regions only once
        # something else finds no room.
        self._ready: dict[int, list[_Part]] = {}
        self._names = 0

    def find(self, pointer: int, size: int) -> Place | None:
        """The place of memory that already lies in the arena."""
        for region in self._regions:
            offset = pointer - region.address
            if offset >= 0 and offset + size <= region.size:
                return Place(region.name, offset)
        return None

    def allocate(self, sizes: Sequence[int]) -> Operation[list[Block]]:
        """Blocks of at least one byte each, maybe larger than asked for. SharingUnavailableError when there can be
        none."""
        if not self.available:
            raise SharingUnavailableError("the server shares no memory with this client")
        blocks: list[Block] = []
        while True:
            lacking = self._take(sizes, blocks)
            if lacking == 0:
                return blocks
            yield from self._grow(lacking)  # unless other calls are quicker, the next turn finds room

    def _take(self, sizes: Sequence[int], blocks: list[Block]) -> int:
        """Adds a block for each size that has none yet; the first size for which there is no room, or 0."""
        with self._lock:
            while self._returned:
                part = self._returned.popleft()
                if part.region in self._regions:
                    self._ready.setdefault(part.size, []).append(part)
            for wanted in sizes[len(blocks) :]:
                size = aligned(max(wanted, 1))
                ready = self._ready.get(size)
                taken = ready.pop() if ready else self._find_room(size)
                if taken is None:
                    return size
                blocks.append(Block.of(taken, self._returned))
        return 0

    def _find_room(self, size: int) -> _Part | None:
        for _ in range(2):
            for region in self._regions:
                offset = region.take(size)
                if offset is not None:
                    return _Part(region, offset, size)
            for parts in self._ready.values():
                for part in parts:
                    part.region.give(part.offset, part.size)
            self._ready.clear()
        return None

    def _grow(self, size: int) -> Operation[None]:
        with self._lock:
            self._names += 1
            name = f"arena-{self._names}"
            total = sum(region.size for region in self._regions)
        # Each as large as all before: few regions, whatever comes.
        wanted = max(_SMALLEST_REGION, total, size)
        if self._limit > 0 and wanted > self._limit - total:
            wanted = size
        region = yield from self.share(name, wanted)
        with self._lock:
            self._regions = [*self._regions, region]  # `find` may be looking at the list before

    def share(self, name: str, size: int) -> Operation[SystemRegion]:
        """A region of at least `size` bytes that is none of the arena's. SharingUnavailableError when there can be
        none."""
        page = mmap.PAGESIZE
        memory = Descriptor(os.memfd_create("gdpcache", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
        region = SystemRegion(name, -(-size // page) * page, memory.number)
        token = yield Blocking(functools.partial(self._hand_over, memory))
        del memory
        request = memory_pb2.RegisterSystemMemoryRequest(
            session=self._session, name=name, token=token, size=region.size
        )
        try:
            yield from unary("RegisterSystemMemory", request, memory_pb2.RegisterSystemMemoryResponse)
        except (PermissionDeniedError, UnimplementedError) as error:
            self.available = False
            raise SharingUnavailableError(str(error)) from error
        except BaseException as error:
            if may_have_been_done(error):
                yield Detached(unregister(self._session, name), _LETTING_GO, _GRACE)
            if isinstance(error, ResourceExhaustedError):
                raise SharingUnavailableError(str(error)) from error
            raise
        return region

    def _hand_over(self, memory: Descriptor) -> str:
        try:
            return _ask(self._socket, b"M", [memory.number])
        except _UnreachableError:
            self.available = False
            raise

    def retire(self, names: set[str], keep: object) -> Operation[None]:
        """After a call whose end is not known: the server may still be at work in these regions, so they are used no
        more, and `keep` is kept until it has let go of them."""
        if not names:
            return
        with self._lock:
            self._regions = [region for region in self._regions if region.name not in names]
            for size, parts in self._ready.items():
                self._ready[size] = [part for part in parts if part.region.name not in names]
        yield Detached(_let_go(self._session, names, keep, self._unsettled.begin()), _LETTING_GO, _GRACE)


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
        self._names = 0

    def _number(self) -> int:
        with self._lock:
            self._names += 1
            return self._names

    def _token(self) -> str:
        try:
            return _ask(self._socket, b"C")
        except _UnreachableError:
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
                yield Detached(unregister(self._session, known.name), _LETTING_GO, None)
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
                yield Detached(unregister(self._session, name), _LETTING_GO, _GRACE)
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
        pair = EventPair(pointer, self._number())
        try:
            for name, event in ((pair.ready_event, pair.ready), (pair.done_event, pair.done)):
                token = yield Blocking(self._token)
                request = memory_pb2.RegisterCudaEventRequest(
                    session=self._session, name=name, handle=event.handle, token=token
                )
                yield from unary("RegisterCudaEvent", request, memory_pb2.RegisterCudaEventResponse)
        except BaseException as error:
            names = (pair.ready_event, pair.done_event)
            yield Detached(_let_go(self._session, names, None, self._unsettled.begin(), pair), _LETTING_GO, _GRACE)
            if isinstance(error, _NO_SHARING):
                raise SharingUnavailableError(str(error)) from error
            raise
        return pair

    def give_events(self, pair: EventPair) -> None:
        with self._lock:
            self._pairs.append(pair)

    def retire(self, names: set[str], pair: EventPair, keep: object) -> Operation[None]:
        """After a call whose end is not known: the memory is registered anew when it is used again, and `keep` is kept
        until the server has let go of the memory and the events."""
        self._forget(names)
        names = {*names, pair.ready_event, pair.done_event}
        yield Detached(_let_go(self._session, names, keep, self._unsettled.begin(), pair), _LETTING_GO, _GRACE)

    def close(self) -> None:
        """When the session has ended, and with it what the server knew of these events."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            pair.close()
