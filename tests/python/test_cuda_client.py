"""The client's side of CUDA IPC, against a driver and a server that only take notes: for machines without a GPU."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from fake_server import SharingServer, fake_server, server_info
from waiting import wait_until

import gdpcache
from gdpcache import InitialState, Outputs, PrefillCall, Transport, _cuda, _flags
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
        self.pins = self.waits = 0  # results of the driver
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
        return 0

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
        return 0

    def cuCtxPopCurrent_v2(self, context: Any) -> int:  # noqa: N802
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
    with (
        fake_server(server.handlers()) as address,
        gdpcache.Client(address) as client,
        client.open_session("fake") as opened,
    ):
        yield opened


def call_of(driver: Driver, first: int, second: int, **fields: Any) -> PrefillCall:
    """k and u in one allocation, w and v_new in another."""
    for base in (first, second):
        if base not in driver.allocations:
            driver.allocate(base)
    tensors: dict[str, Any] = {"k": GpuArray(first), "u": GpuArray(first + 512), "w": GpuArray(second + 4096)}
    tensors |= {name: fields.pop(name) for name in list(fields) if name in tensors}
    out = Outputs(v_new=GpuArray(second))
    return PrefillCall(**tensors, out=out, initial_state=InitialState.ZERO, **fields)


def test_tensors_are_named_by_their_allocations(driver: Driver, server: Server, session: gdpcache.Session) -> None:
    call = call_of(driver, 5 * MEBIBYTE, 9 * MEBIBYTE)
    for _ in range(3):
        result = session.prefill(call)
        assert result.transport is Transport.CUDA_IPC
        assert result.v_new is call.out.v_new
        assert result.positions == (-1,)
        request = server.requests.pop()
        assert server.place(request.k.shared_memory) == ("memory 5", 0)
        assert server.place(request.u.shared_memory) == ("memory 5", 512)
        assert server.place(request.w.shared_memory) == ("memory 9", 4096)
        assert server.place(request.outputs.v_new) == ("memory 9", 0)
        assert server.regions[request.ready_event] == "event 1"
        assert server.regions[request.done_event] == "event 2"
    assert len(server.regions) == 4
    assert driver.notes == [f"{STREAM} records 1", "prefill", f"{STREAM} waits for 2"] * 3


def test_all_streams_are_ordered(driver: Driver, session: gdpcache.Session) -> None:
    session.prefill(call_of(driver, MEBIBYTE, 2 * MEBIBYTE, k=GpuArray(MEBIBYTE, OTHER_STREAM)))
    second, first = (int(note.split()[0]) for note in driver.notes[:2])
    assert {first, second} == {STREAM, OTHER_STREAM}
    assert driver.notes == [
        f"{second} records 1",
        f"{first} waits for 1",
        f"{first} records 1",
        "prefill",
        f"{first} waits for 2",
        f"{second} waits for 2",
    ]


def test_memory_that_was_freed_is_given_up(driver: Driver, server: Server, session: gdpcache.Session) -> None:
    call = call_of(driver, MEBIBYTE, 2 * MEBIBYTE)
    session.prefill(call)
    old = set(server.regions)
    driver.allocate(MEBIBYTE)  # another one at the same address
    session.prefill(call)
    assert server.place(server.requests[-1].k.shared_memory) == ("memory 1", 0)
    assert server.requests[-1].k.shared_memory.region != server.requests[0].k.shared_memory.region
    assert len(server.regions) == len(old)
    del driver.allocations[2 * MEBIBYTE]
    call = call_of(driver, MEBIBYTE, 3 * MEBIBYTE)
    session.prefill(call)
    assert sorted(handle for handle in server.regions.values() if "memory" in handle) == ["memory 1", "memory 3"]


def test_a_call_without_an_answer_gives_its_memory_up(
    driver: Driver, server: Server, session: gdpcache.Session
) -> None:
    call = call_of(driver, MEBIBYTE, 2 * MEBIBYTE)
    session.prefill(call)
    given_up = threading.Event()
    server.fail = lambda context: given_up.wait(60)
    with pytest.raises(gdpcache.DeadlineExceededError):
        session.prefill(call, timeout=0.5)
    given_up.set()
    wait_until(lambda: driver.notes[-2:] == ["1 is gone", "2 is gone"])
    assert server.regions == {}
    server.fail = lambda context: None
    session.prefill(call)
    assert len(server.regions) == 4
    server.fail = lambda context: context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no")
    with pytest.raises(gdpcache.InvalidArgumentError):
        session.prefill(call)
    assert len(server.regions) == 4


def test_tensors_are_kept_until_the_server_has_let_go_of_them(
    driver: Driver, server: Server, session: gdpcache.Session
) -> None:
    at_work = threading.Event()
    lets_go = threading.Event()
    server.before_unregistering = lambda: lets_go.wait(60)
    call = call_of(driver, MEBIBYTE, 2 * MEBIBYTE)
    session.prefill(call)
    server.fail = lambda context: at_work.wait(60)
    kept = [weakref.ref(call.k), weakref.ref(call.out.v_new)]
    with pytest.raises(gdpcache.DeadlineExceededError):
        session.prefill(call, timeout=0.5)
    del call
    gc.collect()
    assert all(tensor() is not None for tensor in kept)
    assert not [note for note in driver.notes if "gone" in note]
    lets_go.set()
    at_work.set()
    wait_until(lambda: driver.notes[-2:] == ["1 is gone", "2 is gone"])

    def all_are_gone() -> bool:
        gc.collect()
        return all(tensor() is None for tensor in kept)

    wait_until(all_are_gone)


def test_registrations_without_an_answer_are_taken_back(
    driver: Driver, server: Server, session: gdpcache.Session
) -> None:
    for kind in (memory_pb2.RegisterCudaMemoryRequest, memory_pb2.RegisterCudaEventRequest):
        hanging = threading.Event()

        def hang(request: Any, kind: type = kind, hanging: threading.Event = hanging) -> None:
            if type(request) is kind:
                hanging.wait(60)

        server.after_registering = hang
        with pytest.raises(gdpcache.DeadlineExceededError):
            session.prefill(call_of(driver, MEBIBYTE, 2 * MEBIBYTE), timeout=1.0)
        server.after_registering = lambda request: None
        hanging.set()
        # What was answered stays for the next call; the rest is given up.
        wait_until(lambda: set(server.regions) == {known.name for known in session._state.cuda._allocations})
    wait_until(lambda: driver.notes == ["1 is gone", "2 is gone"])
    assert session.prefill(call_of(driver, MEBIBYTE, 2 * MEBIBYTE)).transport is Transport.CUDA_IPC


def test_events_that_the_server_has_no_room_for_leave_the_other_transports(
    driver: Driver, server: Server, session: gdpcache.Session
) -> None:
    def refuse(request: Any, context: grpc.ServicerContext) -> None:
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "10,000 regions and events")

    with fake_server({**server.handlers(), "RegisterCudaEvent": refuse}) as address, gdpcache.Client(address) as client:
        other = client.open_session("fake")
        with pytest.raises(gdpcache.UnavailableError, match=r"cuda_ipc was asked for: .*10,000 regions"):
            other.prefill(call_of(driver, MEBIBYTE, 2 * MEBIBYTE, transport="cuda_ipc"))
        wait_until(lambda: driver.notes == ["1 is gone", "2 is gone"])


def test_memory_of_the_gpu_needs_a_server_that_says_who_is_there(driver: Driver, server: Server) -> None:
    with fake_server(server.handlers()) as address, gdpcache.Client(address) as client:
        session = client.open_session("fake")
        server.sharing.refuse = "come again later"
        with pytest.raises(gdpcache.UnavailableError, match=r"cuda_ipc was asked for: .*come again later"):
            session.prefill(call_of(driver, MEBIBYTE, 2 * MEBIBYTE, transport="cuda_ipc"))
        server.sharing.refuse = ""
        result = session.prefill(call_of(driver, MEBIBYTE, 2 * MEBIBYTE, transport="cuda_ipc"))
        assert result.transport is Transport.CUDA_IPC
        server.sharing.close()
        with pytest.raises(gdpcache.UnavailableError, match=f"cuda_ipc was asked for: {server.sharing.path}"):
            session.prefill(call_of(driver, 3 * MEBIBYTE, 4 * MEBIBYTE, transport="cuda_ipc"))
        assert len(server.requests) == 1


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


def test_memory_of_the_host_is_waited_for(driver: Driver, mixed: gdpcache.Session) -> None:
    call = call_of(driver, MEBIBYTE, 2 * MEBIBYTE, g=np.zeros((16, 1), np.float32))
    driver.looks = 4
    assert mixed.prefill(call).transport is Transport.CUDA_IPC
    assert driver.notes[-5:] == [f"{STREAM} waits for 2", *["host looks at 2"] * 4]


def test_a_gpu_that_hangs_ends_the_wait_in_time(driver: Driver, server: Server, mixed: gdpcache.Session) -> None:
    call = call_of(driver, MEBIBYTE, 2 * MEBIBYTE, g=np.zeros((16, 1), np.float32))
    mixed.prefill(call)
    driver.looks = 1 << 60
    with pytest.raises(gdpcache.DeadlineExceededError):
        mixed.prefill(call, timeout=0.5)
    wait_until(lambda: server.regions == {})
    wait_until(lambda: driver.notes[-2:] == ["1 is gone", "2 is gone"])


def test_what_cannot_be_shared_is_told(driver: Driver, session: gdpcache.Session) -> None:
    call = call_of(driver, MEBIBYTE, 2 * MEBIBYTE, transport="cuda_ipc")
    call.w = GpuArray(50 * MEBIBYTE)  # nobody's
    with pytest.raises(gdpcache.UnavailableError, match=r"cuda_ipc was asked for: .*refused"):
        session.prefill(call)
    rows = np.zeros((16, 1, 4), np.float32)
    with pytest.raises(ValueError, match="transport is cuda_ipc, but none of k, w, u is on a GPU"):
        session.prefill(PrefillCall(k=rows, w=rows, u=rows, initial_state=InitialState.ZERO, transport="cuda_ipc"))


def ahead(session: gdpcache.Session, call: PrefillCall) -> Any:
    """As chunk_gated_delta_product_fwd_h does it, but for results of its own, which only torch has."""
    return session._ahead.prefill(call, is_batched=False)


def flag_of(server: Server, request: Any) -> int:
    """What its flag is."""
    place = request.done_flag.place
    return int(server.sharing.regions[place.region][place.offset : place.offset + 4].view("<u4")[0])


@pytest.fixture
def gate(server: Server) -> Iterator[threading.Event]:
    """Prefills wait for it in the server."""
    opened = threading.Event()

    def wait(context: grpc.ServicerContext) -> None:
        assert opened.wait(60)

    server.fail = wait
    yield opened
    opened.set()


def test_calls_that_are_run_ahead_of_return_before_they_are_answered(
    driver: Driver, server: Server, mixed: gdpcache.Session, gate: threading.Event
) -> None:
    call = call_of(driver, MEBIBYTE, 2 * MEBIBYTE)
    with mixed.run_ahead():
        assert ahead(mixed, call) == (None, call.out.v_new, None)
        assert ahead(mixed, call) == (None, call.out.v_new, None)
        wait_until(lambda: len(server.requests) == 2)
        assert [flag_of(server, request) for request in server.requests] == [0, 0]
        gate.set()
    notes = [note for note in driver.notes if note != "prefill"]
    expected = ["records 1", "waits for 1@0", "records 3", "waits for 1@64"]
    assert notes == [f"{STREAM} {note}" for note in expected]
    for request in server.requests:
        assert server.place(request.u.shared_memory) == ("memory 1", 512)
        assert request.done_flag.value == 1
        assert request.done_event == ""
    assert {server.regions[request.ready_event] for request in server.requests} == {"event 1", "event 3"}
    assert mixed.transports_used == {Transport.CUDA_IPC: 2}
    with mixed.run_ahead():
        for _ in range(5):  # the pairs and their flags are used again
            ahead(mixed, call)
    assert len(server.regions) <= 2 + 2 * 5
    assert max(request.done_flag.value for request in server.requests) > 1
    assert ahead(mixed, call) is None, "not outside of the block"


def test_all_streams_wait_for_the_flag(driver: Driver, mixed: gdpcache.Session) -> None:
    with mixed.run_ahead():
        ahead(mixed, call_of(driver, MEBIBYTE, 2 * MEBIBYTE, k=GpuArray(MEBIBYTE, OTHER_STREAM)))
    waits = [note for note in driver.notes if "@" in note]
    assert sorted(waits) == [f"{STREAM} waits for 1@0", f"{OTHER_STREAM} waits for 1@0"]


ANSWERED = {"x-request-id": "1"}  # as servers mark their errors


@pytest.mark.parametrize(
    ("code", "trailing", "lost"),
    [
        ("INVALID_ARGUMENT", {}, False),
        ("RESOURCE_EXHAUSTED", ANSWERED, False),
        ("RESOURCE_EXHAUSTED", {}, True),
        ("UNAVAILABLE", {}, True),
        ("UNKNOWN", {}, True),
        ("INTERNAL", {}, True),
        ("INTERNAL", ANSWERED, True),
    ],
)
def test_a_failure_sets_the_flag_and_is_told_by_the_next_call(
    code: str,
    trailing: dict[str, str],
    lost: bool,
    driver: Driver,
    server: Server,
    mixed: gdpcache.Session,
    gate: threading.Event,
) -> None:
    call = call_of(driver, MEBIBYTE, 2 * MEBIBYTE)

    def fail(context: grpc.ServicerContext) -> None:
        assert gate.wait(60)
        context.set_trailing_metadata(tuple(trailing.items()))
        context.abort(grpc.StatusCode[code], "no")

    server.fail = fail
    raises_no = pytest.raises(gdpcache.GdpCacheError, match=f"{code}: no")
    with mixed.run_ahead():
        ahead(mixed, call)
        wait_until(lambda: len(server.requests) == 1)
        assert flag_of(server, server.requests[0]) == 0
        gate.set()
        # Although this thread does not come by.
        wait_until(lambda: flag_of(server, server.requests[0]) == 1)
        wait_until(mixed._ahead._outstanding[0].is_over)
        with raises_no:
            ahead(mixed, call)
        assert len(server.requests) == 1, "it was not sent"
        server.fail = lambda context: None
        ahead(mixed, call)
    # What the server may still use is not used again.
    first, second = server.requests
    assert (second.ready_event != first.ready_event) == lost
    assert (second.done_flag.place.offset != first.done_flag.place.offset) == lost
    if lost:
        wait_until(lambda: "2 is gone" in driver.notes)
    server.fail = fail
    with raises_no, mixed.run_ahead():
        ahead(mixed, call)
    with mixed.run_ahead():
        ahead(mixed, call)
        with raises_no:
            mixed.list_shared_memory()


def test_an_error_of_the_block_itself_comes_through(driver: Driver, server: Server, mixed: gdpcache.Session) -> None:
    server.fail = lambda context: context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no")
    with pytest.raises(KeyError), mixed.run_ahead():
        ahead(mixed, call_of(driver, MEBIBYTE, 2 * MEBIBYTE))
        raise KeyError
    server.fail = lambda context: None
    assert mixed.prefill(call_of(driver, MEBIBYTE, 2 * MEBIBYTE)).transport is Transport.CUDA_IPC


def test_tensors_are_kept_until_the_answer(
    driver: Driver, mixed: gdpcache.Session, gate: threading.Event
) -> None:
    call = call_of(driver, MEBIBYTE, 2 * MEBIBYTE)
    kept = [weakref.ref(call.k), weakref.ref(call.out.v_new)]
    with mixed.run_ahead():
        ahead(mixed, call)
        del call
        gc.collect()
        assert all(tensor() is not None for tensor in kept)
        gate.set()
    gc.collect()
    assert all(tensor() is None for tensor in kept)


def test_no_more_than_the_limit_are_under_way(
    driver: Driver, server: Server, mixed: gdpcache.Session, gate: threading.Event
) -> None:
    call = call_of(driver, MEBIBYTE, 2 * MEBIBYTE)
    for limit in (0, 257):
        refused = pytest.raises(ValueError, match=f"limit is {limit}; it must be from 1 to 256")
        with refused, mixed.run_ahead(limit):
            pass
    with mixed.run_ahead(limit=3):
        for _ in range(3):
            ahead(mixed, call)
        fourth = threading.Thread(target=ahead, args=(mixed, call))
        fourth.start()
        wait_until(lambda: len(server.requests) == 3)
        fourth.join(0.05)
        assert fourth.is_alive()
        assert len(server.requests) == 3
        gate.set()
        fourth.join()
    assert len(server.requests) == 4


def test_blocks_of_several_threads_end_in_any_order(driver: Driver, mixed: gdpcache.Session) -> None:
    call = call_of(driver, MEBIBYTE, 2 * MEBIBYTE)
    first, second = mixed.run_ahead(), mixed.run_ahead()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert ahead(mixed, call) is not None, "the second one is still open"
    second.__exit__(None, None, None)
    assert ahead(mixed, call) is None


def test_other_operations_wait_for_the_answers(
    driver: Driver, server: Server, mixed: gdpcache.Session, gate: threading.Event
) -> None:
    call = call_of(driver, MEBIBYTE, 2 * MEBIBYTE)
    with mixed.run_ahead():
        ahead(mixed, call)
        done = threading.Thread(target=mixed.prefill, args=(call,))
        done.start()
        wait_until(lambda: len(server.requests) == 1)
        done.join(0.05)
        assert done.is_alive()
        gate.set()
        done.join()
        assert server.requests[1].done_event != ""


def test_calls_that_touch_memory_of_the_host_are_waited_for(
    driver: Driver, server: Server, mixed: gdpcache.Session
) -> None:
    rows = np.zeros((16, 1), np.float32)
    with mixed.run_ahead():
        assert ahead(mixed, call_of(driver, MEBIBYTE, 2 * MEBIBYTE, g=rows)) is None
        call = call_of(driver, MEBIBYTE, 2 * MEBIBYTE)
        call.out = Outputs(v_new=np.zeros((16, 1, 4), np.float32))
        assert ahead(mixed, call) is None
        call.out = Outputs()  # numpy's
        assert ahead(mixed, call) is None
        assert ahead(mixed, call_of(driver, MEBIBYTE, 2 * MEBIBYTE, transport="shared_memory")) is None
    assert server.requests == []


def test_servers_and_drivers_without_flags_are_waited_for(
    driver: Driver, server: Server, session: gdpcache.Session, mixed: gdpcache.Session
) -> None:
    call = call_of(driver, MEBIBYTE, 2 * MEBIBYTE)
    with session.run_ahead():
        assert ahead(session, call) is None
    driver.pins = 801
    with mixed.run_ahead():
        assert ahead(mixed, call) is None
        driver.pins = 0
        assert ahead(mixed, call) is None, "it is tried once"
    assert mixed.prefill(call).transport is Transport.CUDA_IPC
    assert len(server.requests) == 1


def test_flags_without_an_answer_to_their_registration_are_shared_anew(
    driver: Driver, server: Server, mixed: gdpcache.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = call_of(driver, MEBIBYTE, 2 * MEBIBYTE)
    mixed.prefill(call)  # has all but the flags registered
    hanging = threading.Event()
    server.sharing.after_registering = lambda: hanging.wait(60)
    with mixed.run_ahead():
        with monkeypatch.context() as patch, pytest.raises(gdpcache.DeadlineExceededError):
            patch.setattr(mixed._driver, "timeout", 0.5)
            ahead(mixed, call)
        server.sharing.after_registering = lambda: None
        ahead(mixed, call)
        hanging.set()
    first, second = server.requests
    assert second.ready_event == first.ready_event, "the pair of events was given back"
    assert second.done_flag.place.region == "flags-2"


def test_streams_that_cannot_wait_are_waited_for(driver: Driver, server: Server, mixed: gdpcache.Session) -> None:
    call = call_of(driver, MEBIBYTE, 2 * MEBIBYTE)
    driver.waits = 801
    with mixed.run_ahead():
        assert ahead(mixed, call) == (None, call.out.v_new, None)
        assert not mixed._ahead._outstanding
        assert len(server.requests) == 1
        driver.waits = 0
        assert ahead(mixed, call) is None


def test_the_end_of_a_connection_lets_the_streams_go_on(
    driver: Driver, server: Server, gate: threading.Event, mixed: gdpcache.Session
) -> None:
    call = call_of(driver, MEBIBYTE, 2 * MEBIBYTE)
    with pytest.raises(gdpcache.CallCancelledError), mixed.run_ahead():
        ahead(mixed, call)
        wait_until(lambda: len(server.requests) == 1)
        mixed._driver.channel.close()
        mixed._state.closed = True  # as the server will find
        wait_until(lambda: flag_of(server, server.requests[0]) == 1)


def test_the_end_of_the_session_waits_and_the_end_of_the_process_does_not(
    driver: Driver, server: Server, mixed: gdpcache.Session, gate: threading.Event
) -> None:
    call = call_of(driver, MEBIBYTE, 2 * MEBIBYTE)
    with mixed.run_ahead():
        ahead(mixed, call)
        wait_until(lambda: len(server.requests) == 1)
        _flags._let_all_go_on()
        assert flag_of(server, server.requests[0]) == 1
        gate.set()
        mixed.close()
    assert driver.notes[-2:] == ["host waits for all", "unpinned"]
    assert not _flags._open


def test_flags_of_a_session_that_is_never_closed_are_given_back_with_the_next(
    driver: Driver, server: Server, mixing: gdpcache.Client, gate: threading.Event
) -> None:
    call = call_of(driver, MEBIBYTE, 2 * MEBIBYTE)
    first = mixing.open_session("fake")
    first._ahead._limits.append(2)  # a block that is never left
    ahead(first, call)
    wait_until(lambda: len(server.requests) == 1)
    kept = weakref.ref(first._ahead._flags)
    del first
    gc.collect()
    assert kept() is not None, "a stream is waiting"
    gate.set()

    def are_gone() -> bool:
        gc.collect()
        return kept() is None

    wait_until(are_gone)
    assert flag_of(server, server.requests[0]) == 1
    assert not [note for note in driver.notes if note in ("host waits for all", "unpinned")], "by the collector"
    server.regions.clear()
    with mixing.open_session("fake") as second, second.run_ahead():
        ahead(second, call)
        assert driver.notes.count("unpinned") == 1
    assert driver.notes.count("unpinned") == 2
    assert not _flags._left


def test_the_end_of_a_forked_process_sets_no_flag(
    driver: Driver, server: Server, mixed: gdpcache.Session, gate: threading.Event
) -> None:
    with mixed.run_ahead():
        ahead(mixed, call_of(driver, MEBIBYTE, 2 * MEBIBYTE))
        wait_until(lambda: len(server.requests) == 1)
        child = os.fork()
        if child == 0:
            try:
                _flags._let_all_go_on()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert flag_of(server, server.requests[0]) == 0
        gate.set()


def test_an_interrupted_call_is_not_waited_for_and_its_events_are_used_no_more(
    driver: Driver, server: Server, mixed: gdpcache.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = call_of(driver, MEBIBYTE, 2 * MEBIBYTE)
    send = mixed._driver.send

    class Interrupted:
        def __init__(self, path: str, request: bytes) -> None:
            self.future = send(path, request)

        def add_done_callback(self, callback: Any) -> None:
            raise KeyboardInterrupt

    with mixed.run_ahead():
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(mixed._driver, "send", Interrupted)
            ahead(mixed, call)
        outstanding = list(mixed._ahead._outstanding)
        mixed._ahead._outstanding.clear()
        assert not outstanding
        wait_until(lambda: "1 is gone" in driver.notes)
        ahead(mixed, call)
    assert server.regions[server.requests[-1].ready_event] == "event 3"
    assert server.requests[-1].done_flag.place.offset != 0
