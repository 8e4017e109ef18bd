"""The CUDA driver, as far as tensors on a GPU need it. The library is loaded when the first such tensor comes."""

from __future__ import annotations

import ctypes
import functools
import os
import weakref
from collections import deque
from typing import Any

import numpy as np

from gdpcache.types import Array

LEGACY_STREAM = 1  # cudaStreamLegacy, what other libraries call the default stream

_ATTRIBUTE_CONTEXT = 1
_ATTRIBUTE_BUFFER_ID = 7
_ATTRIBUTE_DEVICE_ORDINAL = 9
_EVENT_DISABLE_TIMING = 2
_EVENT_INTERPROCESS = 4
_NOT_READY = 600
_HOST_PORTABLE = 1
_HOST_DEVICE_MAP = 2
_WAIT_GEQ = 0


_WAIT_VALUE = "cuStreamWaitValue32_v2"  # which drivers before 11.7 lack

# Events that nobody has closed, each with its context: as those of a session that was never closed. To destroy them is
# nothing for the collector: it comes at any time, also while another thread keeps the driver to itself.
_left: deque[tuple[int, ctypes.c_void_p]] = deque()
os.register_at_fork(after_in_child=_left.clear)  # they are the parent's


class CudaError(RuntimeError):
    """The driver refused something."""


class _Handle(ctypes.Structure):
    """CUipcMemHandle and CUipcEventHandle."""

    _fields_ = [("reserved", ctypes.c_char * 64)]


@functools.cache
def _driver() -> Any:
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise CudaError(f"no CUDA driver: {error}") from None
    # A structure passed by value must be declared, as must every 64-bit argument.
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    library.cuMemGetAddressRange_v2.argtypes = [pointer, pointer, ctypes.c_uint64]
    library.cuPointerGetAttribute.argtypes = [pointer, ctypes.c_int, ctypes.c_uint64]
    library.cuIpcGetMemHandle.argtypes = [pointer, ctypes.c_uint64]
    library.cuIpcGetEventHandle.argtypes = [pointer, pointer]
    library.cuMemcpyDtoHAsync_v2.argtypes = [pointer, ctypes.c_uint64, size, pointer]
    library.cuMemcpyHtoDAsync_v2.argtypes = [ctypes.c_uint64, pointer, size, pointer]
    for name in ("cuStreamSynchronize", "cuEventQuery", "cuEventDestroy_v2", "cuCtxPushCurrent_v2"):
        getattr(library, name).argtypes = [pointer]
    library.cuEventRecord.argtypes = [pointer, pointer]
    library.cuStreamWaitEvent.argtypes = [pointer, pointer, ctypes.c_uint]
    library.cuMemHostRegister_v2.argtypes = [pointer, size, ctypes.c_uint]
    library.cuMemHostGetDevicePointer_v2.argtypes = [pointer, pointer, ctypes.c_uint]
    library.cuMemHostUnregister.argtypes = [pointer]
    if hasattr(library, _WAIT_VALUE):
        getattr(library, _WAIT_VALUE).argtypes = [pointer, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint]
    return library


def _check(result: int, what: str) -> None:
    if result == 0:
        return
    text = ctypes.c_char_p()
    _driver().cuGetErrorString(result, ctypes.byref(text))
    raise CudaError(f"{what}: {(text.value or b'unknown error').decode()}")


def _attribute(pointer: int, attribute: int, value: Any) -> Any:
    _check(_driver().cuPointerGetAttribute(ctypes.byref(value), attribute, pointer), "cuPointerGetAttribute")
    return value.value


class Context:
    """The context of some device memory, as a context manager: makes it the thread's, unless it is. Not for several
    threads at once."""

    def __init__(self, pointer: int) -> None:
        self.handle: int = _attribute(pointer, _ATTRIBUTE_CONTEXT, ctypes.c_void_p())
        self._pushed = False

    def __enter__(self) -> None:
        current = ctypes.c_void_p()
        _driver().cuCtxGetCurrent(ctypes.byref(current))
        self._pushed = current.value != self.handle
        if self._pushed:
            _check(_driver().cuCtxPushCurrent_v2(self.handle), "cuCtxPushCurrent")

    def __exit__(self, *error: object) -> None:
        if self._pushed:
            _driver().cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))


def device_uuid(pointer: int) -> str:
    """Of the GPU that holds the memory, as "GPU-01234567-...": of the MIG instance if it is one."""
    ordinal = _attribute(pointer, _ATTRIBUTE_DEVICE_ORDINAL, ctypes.c_int())
    device = ctypes.c_int()
    _check(_driver().cuDeviceGet(ctypes.byref(device), ordinal), "cuDeviceGet")
    uuid = (ctypes.c_ubyte * 16)()
    _check(_driver().cuDeviceGetUuid(ctypes.byref(uuid), device), "cuDeviceGetUuid")
    digits = bytes(uuid).hex()
    return f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def allocation(pointer: int) -> tuple[int, int, int]:
    """Address and size of the allocation that a pointer lies in, and a number that no other allocation ever has."""
    base, size = ctypes.c_uint64(), ctypes.c_size_t()
    with Context(pointer):
        _check(
            _driver().cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(size), pointer), "cuMemGetAddressRange"
        )
    return base.value, size.value, _attribute(pointer, _ATTRIBUTE_BUFFER_ID, ctypes.c_ulonglong())


def is_allocation(base: int, buffer: int) -> bool:
    """Whether the allocation of this address and number still exists."""
    try:
        return bool(_attribute(base, _ATTRIBUTE_BUFFER_ID, ctypes.c_ulonglong()) == buffer)
    except CudaError:
        return False


def memory_handle(base: int) -> bytes:
    """cudaIpcMemHandle_t of an allocation of cudaMalloc."""
    handle = _Handle()
    with Context(base):
        _check(_driver().cuIpcGetMemHandle(ctypes.byref(handle), base), "cuIpcGetMemHandle")
    return bytes(handle)


def _destroy(context: int, event: ctypes.c_void_p) -> None:
    """On whatever thread; not if the context is gone, and the event with it."""
    if _driver().cuCtxPushCurrent_v2(context) == 0:
        _driver().cuEventDestroy_v2(event)
        _driver().cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))


def _destroy_left() -> None:
    while True:
        try:
            context, event = _left.popleft()
        except IndexError:
            return
        _destroy(context, event)


class Event:
    """An event that the server can wait for and record. One that is not closed is destroyed with a later one."""

    def __init__(self, context: Context) -> None:
        _destroy_left()
        self._event = ctypes.c_void_p()
        with context:
            flags = _EVENT_DISABLE_TIMING | _EVENT_INTERPROCESS
            _check(_driver().cuEventCreate(ctypes.byref(self._event), flags), "cuEventCreate")
        self._context = context.handle
        self._leave = weakref.finalize(self, _left.append, (self._context, self._event))
        self._leave.atexit = False
        handle = _Handle()
        _check(_driver().cuIpcGetEventHandle(ctypes.byref(handle), self._event), "cuIpcGetEventHandle")
        self.handle = bytes(handle)

    def record(self, stream: int) -> None:
        _check(_driver().cuEventRecord(self._event, stream), "cuEventRecord")

    def let_wait(self, stream: int) -> None:
        """Makes `stream` wait for what the event was last recorded behind."""
        _check(_driver().cuStreamWaitEvent(stream, self._event, 0), "cuStreamWaitEvent")

    def has_happened(self) -> bool:
        """Whether what the event was last recorded behind is done."""
        result = _driver().cuEventQuery(self._event)
        if result == _NOT_READY:
            return False
        _check(result, "cuEventQuery")
        return True

    def close(self) -> None:
        if self._leave.detach() is not None:
            _destroy(self._context, self._event)
        _destroy_left()


class PinnedMemory:
    """Memory of the host with words that streams wait for."""

    def __init__(self, context: Context, address: int, size: int) -> None:
        if not hasattr(_driver(), _WAIT_VALUE):
            raise CudaError("this driver's streams wait for no values")
        self._context = context
        self._address = address
        on_device = ctypes.c_uint64()
        with context:
            flags = _HOST_PORTABLE | _HOST_DEVICE_MAP
            _check(_driver().cuMemHostRegister_v2(address, size, flags), "cuMemHostRegister")
            pointer = _driver().cuMemHostGetDevicePointer_v2(ctypes.byref(on_device), address, 0)
        self._on_device = on_device.value
        if pointer != 0:
            self.close()
        _check(pointer, "cuMemHostGetDevicePointer")

    def let_wait(self, stream: int, offset: int, value: int) -> None:
        """Makes `stream` wait until the word at `offset` has got as far as `value`: counters may overflow."""
        _check(
            getattr(_driver(), _WAIT_VALUE)(stream, self._on_device + offset, value, _WAIT_GEQ), "cuStreamWaitValue32"
        )

    def close(self) -> None:
        with self._context:
            _driver().cuCtxSynchronize()  # streams may still be on their way to a wait that is over
            _driver().cuMemHostUnregister(self._address)


def copy_to_host(pointer: int, size: int, stream: int) -> Array:
    """The bytes at `pointer` when `stream` has come so far."""
    result = np.empty(size, np.uint8)
    if size > 0:
        with Context(pointer):
            _check(_driver().cuMemcpyDtoHAsync_v2(result.ctypes.data, pointer, size, stream), "cuMemcpyDtoHAsync")
            _check(_driver().cuStreamSynchronize(stream), "cuStreamSynchronize")
    return result


def copy_to_device(pointer: int, data: Array, stream: int) -> None:
    """Puts bytes to `pointer`, behind what `stream` has to do."""
    if data.nbytes > 0:
        with Context(pointer):
            _check(_driver().cuMemcpyHtoDAsync_v2(pointer, data.ctypes.data, data.nbytes, stream), "cuMemcpyHtoDAsync")
            _check(_driver().cuStreamSynchronize(stream), "cuStreamSynchronize")
