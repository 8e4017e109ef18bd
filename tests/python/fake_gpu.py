"""A GPU's driver and a server on it that only take notes: CUDA IPC for machines without a GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from fake_server import SharingServer, fake_server, fake_session, server_info

import gdpcache
from gdpcache import InitialState, Outputs, PrefillCall, _cuda
from gdpcache.v1 import memory_pb2, prefill_pb2, tensor_pb2

MEBIBYTE = 1 << 20
STREAM, OTHER_STREAM = 21, 22
ON_DEVICE = 1 << 40  # distance of the addresses of pinned memory


class Driver:
    """Of a GPU whose memory nobody reads. Events are numbers from 1 on."""

    def __init__(self) -> None:
        self.allocations: dict[int, tuple[int, int]] = {}  # size and buffer by address
        self.notes: list[str] = []
        self.looks = 0  # at events until they have happened
        self.pinned = 0  # address of memory that streams wait for words of
        self.pins = self.waits = self.handles = 0  # results of the driver
        self._contexts = threading.local()
        self._buffers = 0
        self._events = 0

    def allocate(self, base: int) -> None:
        self._buffers += 1
        self.allocations[base] = MEBIBYTE, self._buffers

    def _base(self, pointer: int) -> int:
        return pointer // MEBIBYTE * MEBIBYTE

    def cuPointerGetAttribute(self, value: Any, attribute: int, pointer: int) -> int:  # noqa: N802
        known = self.allocations.get(self._base(pointer))
        if known is None:
            return 1
        value._obj.value = {1: 77, 7: known[1], 9: 0}[attribute]
        return 0

    def cuMemGetAddressRange_v2(self, base: Any, size: Any, pointer: int) -> int:  # noqa: N802
        base._obj.value, size._obj.value = self._base(pointer), MEBIBYTE
        return 0

    def cuIpcGetMemHandle(self, handle: Any, base: int) -> int:  # noqa: N802
        handle._obj.reserved = f"memory {base // MEBIBYTE}".encode()
        return 0

    def cuEventCreate(self, event: Any, flags: int) -> int:  # noqa: N802
        self._events += 1
        event._obj.value = self._events
        return 0

    def cuIpcGetEventHandle(self, handle: Any, event: Any) -> int:  # noqa: N802
        handle._obj.reserved = f"event {event.value}".encode()
        return self.handles

    def cuEventRecord(self, event: Any, stream: int) -> int:  # noqa: N802
        self.notes.append(f"{stream} records {event.value}")
        return 0

    def cuStreamWaitEvent(self, stream: int, event: Any, flags: int) -> int:  # noqa: N802
        self.notes.append(f"{stream} waits for {event.value}")
        return 0

    def cuEventQuery(self, event: Any) -> int:  # noqa: N802
        self.notes.append(f"host looks at {event.value}")
        self.looks -= 1
        return 600 if self.looks > 0 else 0

    def cuEventDestroy_v2(self, event: Any) -> int:  # noqa: N802
        if getattr(self._contexts, "depth", 0) == 0:
            return 201  # and the event is still there
        self.notes.append(f"{event.value} is gone")
        return 0

    def cuMemHostRegister_v2(self, address: int, size: int, flags: int) -> int:  # noqa: N802
        self.pinned = address
        return self.pins

    def cuMemHostGetDevicePointer_v2(self, pointer: Any, address: int, flags: int) -> int:  # noqa: N802
        pointer._obj.value = address + ON_DEVICE
        return 0

    def cuMemHostUnregister(self, address: int) -> int:  # noqa: N802
        assert address == self.pinned
        self.notes.append("unpinned")
        return 0

    def cuStreamWaitValue32_v2(self, stream: int, pointer: int, value: int, flags: int) -> int:  # noqa: N802
        if self.waits != 0:
            return self.waits
        assert flags == 0
        self.notes.append(f"{stream} waits for {value}@{pointer - ON_DEVICE - self.pinned}")
        return 0

    def cuCtxSynchronize(self) -> int:  # noqa: N802
        self.notes.append("host waits for all")
        return 0

    def cuGetErrorString(self, result: int, text: Any) -> int:  # noqa: N802
        text._obj.value = b"refused"
        return 0

    def cuCtxGetCurrent(self, context: Any) -> int:  # noqa: N802
        return 0

    def cuCtxPushCurrent_v2(self, context: int) -> int:  # noqa: N802
        assert context == 77
        self._contexts.depth = getattr(self._contexts, "depth", 0) + 1
        return 0

    def cuCtxPopCurrent_v2(self, context: Any) -> int:  # noqa: N802
        self._contexts.depth -= 1
        return 0


class Server:
    """Notes what it is asked for; its prefill says that v_new is where it was wanted."""

    def __init__(self, driver: Driver, sharing: SharingServer) -> None:
        self.driver = driver
        self.sharing = sharing
        self.regions: dict[str, str] = {}  # handles by name
        self.requests: list[prefill_pb2.PrefillRequest] = []
        self.fail: Callable[[grpc.ServicerContext], Any] = lambda context: None
        self.after_registering: Callable[[Any], Any] = lambda request: None
        self.before_unregistering: Callable[[], Any] = lambda: None

    def handlers(self) -> dict[str, Any]:
        info = server_info(transports=["inline", "cuda_ipc"], descriptor_socket=self.sharing.path)
        return {
            "GetServerInfo": lambda request, context: info,
            "RegisterCudaMemory": self._register,
            "RegisterCudaEvent": self._register,
            "UnregisterMemory": self._unregister,
            "Prefill": self._prefill,
        }

    def _register(self, request: Any, context: grpc.ServicerContext) -> Any:
        assert request.name not in self.regions
        self.sharing.passes.remove(request.token)
        self.regions[request.name] = request.handle.rstrip(b"\0").decode()
        self.after_registering(request)
        is_event = isinstance(request, memory_pb2.RegisterCudaEventRequest)
        return memory_pb2.RegisterCudaEventResponse() if is_event else memory_pb2.RegisterCudaMemoryResponse()

    def _unregister(self, request: Any, context: grpc.ServicerContext) -> Any:
        self.before_unregistering()
        if self.regions.pop(request.name, None) is None:
            context.abort(grpc.StatusCode.NOT_FOUND, request.name)
        return memory_pb2.UnregisterMemoryResponse()

    def _prefill(self, request: Any, context: grpc.ServicerContext) -> Any:
        self.driver.notes.append("prefill")
        self.requests.append(request)
        self.fail(context)
        if request.HasField("done_flag"):
            place = request.done_flag.place
            word = self.sharing.regions[place.region][place.offset : place.offset + 4]
            word.view("<u4")[0] = request.done_flag.value
        v_new = tensor_pb2.Tensor(dtype=request.u.dtype, shape=request.u.shape, shared_memory=request.outputs.v_new)
        return prefill_pb2.PrefillResponse(v_new=v_new, chunk_offsets=[0, 1], positions=[-1])

    def place(self, reference: Any) -> tuple[str, int]:
        return self.regions[reference.region], reference.offset


class GpuArray:
    """[16, 1, 4] float32 somewhere."""

    def __init__(self, pointer: int, stream: int = STREAM) -> None:
        self.__cuda_array_interface__ = {
            "shape": (16, 1, 4),
            "typestr": "<f4",
            "data": (pointer, False),
            "version": 3,
            "stream": stream,
        }


def call_of(driver: Driver, first: int, second: int, **fields: Any) -> PrefillCall:
    """k and u in one allocation, w and v_new in another."""
    for base in (first, second):
        if base not in driver.allocations:
            driver.allocate(base)
    tensors: dict[str, Any] = {"k": GpuArray(first), "u": GpuArray(first + 512), "w": GpuArray(second + 4096)}
    tensors |= {name: fields.pop(name) for name in list(fields) if name in tensors}
    out = Outputs(v_new=GpuArray(second))
    return PrefillCall(**tensors, out=out, initial_state=InitialState.ZERO, **fields)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    fake = Driver()
    monkeypatch.setattr(_cuda, "_driver", lambda: fake)
    return fake


@pytest.fixture
def server(driver: Driver, tmp_path: Path) -> Iterator[Server]:
    sharing = SharingServer(tmp_path)
    yield Server(driver, sharing)
    sharing.close()


@pytest.fixture
def session(server: Server) -> Iterator[gdpcache.Session]:
    with fake_session(server.handlers()) as opened:
        yield opened


@pytest.fixture
def mixing(driver: Driver, server: Server) -> Iterator[gdpcache.Client]:
    """A client whose sessions share memory of both kinds."""
    sharing = server.sharing
    info = server_info(transports=["cuda_ipc", "shared_memory"], descriptor_socket=sharing.path, done_flags=True)

    def unregister(request: Any, context: grpc.ServicerContext) -> Any:
        owner: Any = server if request.name in server.regions else sharing
        return owner._unregister(request, context)

    handlers = {**sharing.handlers(), **server.handlers()}
    handlers |= {"GetServerInfo": lambda request, context: info, "UnregisterMemory": unregister}
    with fake_server(handlers) as address, gdpcache.Client(address) as client:
        yield client


@pytest.fixture
def mixed(mixing: gdpcache.Client) -> Iterator[gdpcache.Session]:
    with mixing.open_session("fake") as opened:
        yield opened
