"""Memory of the first GPU for the soak's clients, through nothing but the CUDA driver: torch need not be there."""

from __future__ import annotations

import ctypes
import functools
import math
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

_NON_BLOCKING = 1  # a stream that does not wait for the default one
_NAN = 0xFF  # in every byte of a float


class GpuError(RuntimeError):
    pass


@functools.cache
def _driver() -> Any:
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise GpuError(f"no CUDA driver: {error}") from None
    pointer, address, size = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t
    library.cuCtxSetCurrent.argtypes = [pointer]
    library.cuMemAlloc_v2.argtypes = [pointer, size]
    library.cuMemFree_v2.argtypes = [address]
    library.cuMemsetD8Async.argtypes = [address, ctypes.c_ubyte, size, pointer]
    library.cuMemcpyHtoDAsync_v2.argtypes = [address, pointer, size, pointer]
    library.cuMemcpyDtoHAsync_v2.argtypes = [pointer, address, size, pointer]
    library.cuStreamSynchronize.argtypes = [pointer]
    return library


class Gpu:
    """With a stream, which orders all that is done to arrays. For one thread, but memory may be dropped on any."""

    def __init__(self) -> None:
        self._driver = _driver()
        device = ctypes.c_int()
        self._context = ctypes.c_void_p()
        stream = ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), device)
        self._call("cuCtxSetCurrent", self._context)
        self._call("cuStreamCreate", ctypes.byref(stream), _NON_BLOCKING)
        self.stream = stream.value or 0

    def _call(self, function: str, *arguments: Any) -> None:
        result = getattr(self._driver, function)(*arguments)
        if result != 0:
            raise GpuError(f"{function}: error {result}")

    def allocate(self, size: int) -> Memory:
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), size)
        memory = Memory(address.value, size)
        weakref.finalize(memory, self._free, address.value).atexit = False
        return memory

    def _free(self, address: int) -> None:
        self._call("cuCtxSetCurrent", self._context)
        self._call("cuMemFree_v2", address)

    def empty(self, memory: Memory, shape: tuple[int, ...], gap: int) -> DeviceArray:
        """An array of NaN, `gap` elements behind those that the memory has already."""
        array = DeviceArray(memory, memory.take(math.prod(shape), gap), shape, self.stream)
        self._call("cuMemsetD8Async", array.address, _NAN, array.size, self.stream)
        return array

    def put(self, memory: Memory, contents: Floats, gap: int) -> DeviceArray:
        """The copy may still be on its way."""
        array = self.empty(memory, contents.shape, gap)
        self._call("cuMemcpyHtoDAsync_v2", array.address, contents.ctypes.data, array.size, self.stream)
        return array

    def fetch(self, array: DeviceArray) -> Floats:
        contents = np.empty(array.shape, np.float32)
        self._call("cuMemcpyDtoHAsync_v2", contents.ctypes.data, array.address, array.size, self.stream)
        self._call("cuStreamSynchronize", self.stream)
        return contents


class Memory:
    """An allocation of its own. It is freed when nobody holds it or one of its arrays any more."""

    def __init__(self, address: int, size: int) -> None:
        self._address = address
        self._size = size
        self._used = 0

    def clear(self) -> None:
        """Its arrays must not be in use any more."""
        self._used = 0

    def take(self, elements: int, gap: int) -> int:
        """The address of some more of it."""
        begin = self._used + 4 * gap
        self._used = begin + 4 * elements
        if self._used > self._size:
            raise GpuError(f"{self._used} bytes in memory of {self._size}")
        return self._address + begin


@dataclass(frozen=True)
class DeviceArray:
    """float32, contiguous."""

    memory: Memory
    address: int
    shape: tuple[int, ...]
    stream: int

    @property
    def size(self) -> int:
        """In bytes."""
        return 4 * math.prod(self.shape)

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        data = (self.address, False)
        return {"shape": self.shape, "typestr": "<f4", "data": data, "stream": self.stream, "version": 3}
