"""Calls that the client runs ahead of, against a driver and a server that only take notes: for machines without a
GPU."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import fake_gpu
import grpc
import numpy as np
import pytest
from fake_gpu import MEBIBYTE, OTHER_STREAM, STREAM, Driver, GpuArray, Server, call_of
from waiting import wait_until

import gdpcache
from gdpcache import Outputs, PrefillCall, Transport, _flags, _tensors

driver, server, session = fake_gpu.driver, fake_gpu.server, fake_gpu.session
mixing, mixed = fake_gpu.mixing, fake_gpu.mixed

ANSWERED = {"x-request-id": "1"}  # as servers mark their errors


def ahead(session: gdpcache.Session, call: PrefillCall) -> Any:
    """As chunk_gated_delta_product_fwd_h does it, but for results of its own, which only torch has."""
    return session._ahead.prefill(call, is_batched=False)[0]


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


def test_a_call_that_goes_the_ordinary_way_is_looked_into_once(
    driver: Driver, server: Server, mixed: gdpcache.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_into: list[str] = []
    view = _tensors.view

    def noting(name: str, *arguments: Any, **options: Any) -> Any:
        looked_into.append(name)
        return view(name, *arguments, **options)

    monkeypatch.setattr(_tensors, "view", noting)
    call = call_of(driver, MEBIBYTE, 2 * MEBIBYTE)
    call.out = Outputs(v_new=np.zeros((16, 1, 4), np.float32))
    with mixed.run_ahead():
        assert mixed._prefill_batched(call) == (None, call.out.v_new, None)
    assert sorted(looked_into) == ["k", "out.v_new", "u", "w"]
    assert len(server.requests) == 1


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
