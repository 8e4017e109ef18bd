"""System memory that a session shares with the server: tensors are copied into it, or made there."""

from __future__ import annotations

import fcntl
import functools
import mmap
import os
import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

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
from gdpcache.errors import PermissionDeniedError, ResourceExhaustedError, UnimplementedError
from gdpcache.types import Array, ServerInfo
from gdpcache.v1 import memory_pb2

ALIGNMENT = 64  # bytes; of a cache line, and more than any element needs
_SMALLEST_REGION = 16 << 20


def aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


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
                yield Detached(unregister(self._session, name), LETTING_GO, GRACE)
            if isinstance(error, ResourceExhaustedError):
                raise SharingUnavailableError(str(error)) from error
            raise
        return region

    def _hand_over(self, memory: Descriptor) -> str:
        try:
            return ask(self._socket, b"M", [memory.number])
        except UnreachableError:
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
        yield Detached(let_go(self._session, names, keep, self._unsettled.begin()), LETTING_GO, GRACE)
