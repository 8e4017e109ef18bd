"""The client's side of CUDA IPC, against a driver and a server that only take notes: for machines without a GPU."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import fake_gpu
import grpc
import numpy as np
import pytest
from fake_gpu import MEBIBYTE, OTHER_STREAM, STREAM, Driver, GpuArray, Server, call_of
from fake_server import fake_server
from waiting import wait_until

import gdpcache
from gdpcache import InitialState, PrefillCall, Transport, _cuda
from gdpcache.v1 import memory_pb2

driver, server, session = fake_gpu.driver, fake_gpu.server, fake_gpu.session
mixing, mixed = fake_gpu.mixing, fake_gpu.mixed


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


def test_events_that_other_processes_cannot_open_leave_the_other_transports_and_no_event(
    driver: Driver, session: gdpcache.Session
) -> None:
    driver.handles = 801
    call = call_of(driver, MEBIBYTE, 2 * MEBIBYTE, transport="cuda_ipc")
    with pytest.raises(gdpcache.UnavailableError, match=r"cuda_ipc was asked for: cuIpcGetEventHandle: refused"):
        session.prefill(call)
    gc.collect()
    driver.handles = 0
    assert session.prefill(call).transport is Transport.CUDA_IPC
    assert driver.notes == ["1 is gone", f"{STREAM} records 2", "prefill", f"{STREAM} waits for 3"]


def test_the_end_of_a_session_destroys_its_events(driver: Driver, server: Server) -> None:
    with fake_server(server.handlers()) as address, gdpcache.Client(address) as client:
        session = client.open_session("fake")
        session.prefill(call_of(driver, MEBIBYTE, 2 * MEBIBYTE))
        assert not [note for note in driver.notes if "gone" in note]
        session.close()
        assert driver.notes[-2:] == ["1 is gone", "2 is gone"]
        del session
        gc.collect()
        assert not _cuda._left


def test_the_end_of_a_session_during_its_call_destroys_the_calls_events_too(
    driver: Driver, server: Server
) -> None:
    answers = threading.Event()
    server.fail = lambda context: answers.wait(60)
    with fake_server(server.handlers()) as address, gdpcache.Client(address) as client:
        session = client.open_session("fake")
        call = threading.Thread(target=session.prefill, args=(call_of(driver, MEBIBYTE, 2 * MEBIBYTE),))
        call.start()
        wait_until(lambda: len(server.requests) == 1)
        session.close()
        assert not [note for note in driver.notes if "gone" in note]
        answers.set()
        call.join()
        assert driver.notes[-2:] == ["1 is gone", "2 is gone"]


def test_events_of_a_session_that_is_never_closed_are_destroyed_with_the_next(
    driver: Driver, server: Server
) -> None:
    call = call_of(driver, MEBIBYTE, 2 * MEBIBYTE)
    with fake_server(server.handlers()) as address, gdpcache.Client(address) as client:
        first = client.open_session("fake")
        first.prefill(call)
        state = weakref.ref(first._state)
        del first

        def is_gone() -> bool:
            gc.collect()
            return state() is None

        wait_until(is_gone)  # its thread, which renews it, has to hear of it
        assert not [note for note in driver.notes if "gone" in note], "by the collector"
        server.regions.clear()
        with client.open_session("fake") as second:
            second.prefill(call)
            gone = [note for note in driver.notes if "gone" in note]
            assert sorted(gone) == ["1 is gone", "2 is gone"]
        assert driver.notes[-2:] == ["3 is gone", "4 is gone"]
    assert not _cuda._left


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
