"""Words in memory that the client, the server and the GPU share: a stream waits for one until the server has set it
behind a call, so that no host waits."""

from __future__ import annotations

import atexit
import os
import weakref
from collections import deque
from contextlib import suppress

import numpy as np

from gdpcache import _cuda, _wire
from gdpcache._arena import ALIGNMENT, SystemRegion
from gdpcache.v1 import prefill_pb2, tensor_pb2

COUNT = 256  # of a session's flags
SIZE = COUNT * ALIGNMENT  # of their region: each has a cache line of its own
_FIELD = prefill_pb2.PrefillRequest.DONE_FLAG_FIELD_NUMBER
_VALUE = _wire.key(prefill_pb2.DoneFlag.VALUE_FIELD_NUMBER, _wire.VARINT)
_open: weakref.WeakSet[Flags] = weakref.WeakSet()
# What is left of those whose sessions were never closed. Giving it back waits for the device, which is nothing for the
# collector: it comes at any time, also while a stream is captured.
_left: deque[tuple[_cuda.PinnedMemory, SystemRegion]] = deque()


class Flag:
    """A word that counts up call by call, of which it has one at a time."""

    def __init__(self, flags: Flags, index: int) -> None:
        self._flags = flags
        self._word = index * ALIGNMENT // 4
        self._value = 0
        place = tensor_pb2.SharedMemoryRef(region=flags.region.name, offset=index * ALIGNMENT)
        self._place: bytes = prefill_pb2.DoneFlag(place=place).SerializeToString()

    def next(self) -> bytes:
        """For one more call, as a field of its request."""
        self._value = (self._value + 1) % (1 << 32)
        return _wire.message(_FIELD, self._place, _VALUE, _wire.varint(self._value))

    def let_wait(self, stream: int) -> None:
        self._flags.pinned.let_wait(stream, 4 * self._word, self._value)

    def set(self) -> None:
        """Once nobody else will, or has."""
        self._flags.words[self._word] = self._value


class Flags:
    """A session's. A call under way keeps its flag, and that these: its stream may be waiting."""

    def __init__(self, region: SystemRegion, context: _cuda.Context) -> None:
        _give_back()
        self.region = region
        self.pinned = _cuda.PinnedMemory(context, region.address, region.size)
        self.words = region.memory.view(np.uint32)
        self._taken = 0
        self._flags: weakref.WeakSet[Flag] = weakref.WeakSet()
        self._leave = weakref.finalize(self, _left.append, (self.pinned, region))
        self._leave.atexit = False
        _open.add(self)

    def take(self) -> Flag | None:
        """One that no call has had; None if there is none left. Those of lost calls, which the server may set at any
        time, are never given back."""
        if self._taken == COUNT:
            return None
        flag = Flag(self, self._taken)
        self._taken += 1
        self._flags.add(flag)
        return flag

    def set_all(self) -> None:
        for flag in list(self._flags):
            flag.set()

    def close(self) -> None:
        """When all calls are over."""
        self._leave.detach()
        _open.discard(self)
        self.pinned.close()
        _give_back()


def _give_back() -> None:
    while _left:
        with suppress(_cuda.CudaError, IndexError):  # the latter where another thread was quicker
            kept = _left.popleft()
            kept[0].close()


def _let_all_go_on() -> None:
    """No stream must wait for answers that nobody takes any more."""
    for flags in list(_open):
        flags.set_all()


atexit.register(_let_all_go_on)
# The end of a child is not that of the process whose streams wait.
os.register_at_fork(after_in_child=_open.clear)
os.register_at_fork(after_in_child=_left.clear)
