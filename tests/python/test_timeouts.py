"""Calls are over when their time is up, whatever hangs. What hangs here hangs until the test has ended, so that the
time a call takes tells whether it was its timeout that ended it: the bound is wide, for busy machines."""

from __future__ import annotations

import asyncio
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from fake_server import SharingServer, fake_server, fake_session
from waiting import wait_until

import gdpcache
from gdpcache import InitialState, PrefillCall, _channel, _shared
from gdpcache.v1 import session_pb2, snapshot_pb2

TIMEOUT = 0.2
BOUND = 4.0  # seconds
KEY = b"0123456789abcdef"


class Hanging:
    """Handlers and functions that do not return before the test has ended."""

    def __init__(self) -> None:
        self.over = threading.Event()

    def __call__(self, *arguments: Any) -> Any:
        self.over.wait(60)
        raise RuntimeError("the test has ended")

    def stream(self, *arguments: Any) -> Iterator[Any]:
        self()
        yield None


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    hangs = Hanging()
    yield hangs
    hangs.over.set()


@contextmanager
def ends_in_time() -> Iterator[None]:
    begin = time.monotonic()
    with pytest.raises(gdpcache.DeadlineExceededError):
        yield
    assert TIMEOUT * 0.9 < time.monotonic() - begin < BOUND


# One call on a session or client of either kind.
Call = Callable[[Any], Any]


def rows(tokens: int) -> PrefillCall:
    array = np.zeros((tokens, 1, 4), np.float32)
    return PrefillCall(k=array, w=array, u=array, initial_state=InitialState.ZERO)


def prefill(transport: str, tokens: int = 64) -> Call:
    call = rows(tokens)
    call.transport = transport
    return lambda session: session.prefill(call, timeout=TIMEOUT)


def on_a_session(handlers: dict[str, Any], call: Call, is_asynchronous: bool, release: Callable[[], None]) -> None:
    with fake_server(handlers) as address:
        try:
            if not is_asynchronous:
                with gdpcache.Client(address) as client, client.open_session("fake") as session:
                    with ends_in_time():
                        call(session)
                    release()
                return

            async def run() -> None:
                async with gdpcache.AsyncClient(address) as client, await client.open_session("fake") as session:
                    with ends_in_time():
                        await call(session)
                    release()

            asyncio.run(run())
        finally:
            release()


def acquired(request: Any, context: Any) -> Any:
    return session_pb2.AcquireSlotsResponse(slots=[0])


SESSION_CALLS: dict[str, tuple[list[str], Call]] = {
    "prefill, unary": (["Prefill"], prefill("unary")),
    "prefill, streamed": (["PrefillStream"], prefill("stream")),
    "prefill, a large stream that nobody reads": (["PrefillStream"], prefill("stream", 1 << 20)),
    "slots, read": (["ReadSlots"], lambda session: session.read_slots([0], timeout=TIMEOUT)),
    "slots, written": (
        ["WriteSlots"],
        lambda session: session.write_slots([0], np.zeros((1 << 20, 4), np.float32), timeout=TIMEOUT),
    ),
    "a slot, forked": (["CopySlots", "ReleaseSlots"], lambda session: session.fork_slot(0, timeout=TIMEOUT)),
    "keep alive": (["KeepAlive"], lambda session: session.keep_alive(timeout=TIMEOUT)),
}


@pytest.mark.parametrize("is_asynchronous", [False, True], ids=["blocking", "asyncio"])
@pytest.mark.parametrize("name", SESSION_CALLS)
def test_a_server_that_does_not_answer(name: str, is_asynchronous: bool, hanging: Hanging) -> None:
    methods, call = SESSION_CALLS[name]
    handlers = {method: hanging.stream if method in ("PrefillStream", "ReadSlots") else hanging for method in methods}
    on_a_session({"AcquireSlots": acquired, **handlers}, call, is_asynchronous, hanging.over.set)


@pytest.mark.parametrize("is_asynchronous", [False, True], ids=["blocking", "asyncio"])
@pytest.mark.parametrize("methods", [["RegisterSystemMemory"], ["RegisterSystemMemory", "UnregisterMemory"],
                                     ["Prefill"], ["Prefill", "UnregisterMemory"]], ids=", ".join)  # fmt: skip
def test_shared_memory_that_hangs(methods: list[str], is_asynchronous: bool, hanging: Hanging, tmp_path: Path) -> None:
    sharing = SharingServer(tmp_path)
    handlers: dict[str, Any] = {**sharing.handlers(), **dict.fromkeys(methods, hanging)}
    on_a_session(handlers, prefill("auto", 1 << 16), is_asynchronous, hanging.over.set)
    sharing.close()


@pytest.mark.parametrize("is_asynchronous", [False, True], ids=["blocking", "asyncio"])
def test_a_socket_for_descriptors_that_hangs(is_asynchronous: bool, hanging: Hanging, tmp_path: Path) -> None:
    sharing = SharingServer(tmp_path)
    sharing.before_answering = hanging.over.wait
    on_a_session(sharing.handlers(), prefill("auto", 1 << 16), is_asynchronous, hanging.over.set)
    sharing.close()


CLIENT_CALLS: dict[str, Call] = {
    "server information": lambda client: client.server_info(timeout=TIMEOUT),
    "waiting for the server": lambda client: client.wait_for_server(timeout=TIMEOUT),
    "a session": lambda client: client.open_session("fake", timeout=TIMEOUT),
    "export": lambda client: client.export_snapshot("fake", KEY, "nowhere", timeout=TIMEOUT),
    "import": lambda client: client.import_snapshot("fake", __file__, timeout=TIMEOUT),
}


@pytest.mark.parametrize("is_asynchronous", [False, True], ids=["blocking", "asyncio"])
@pytest.mark.parametrize("name", CLIENT_CALLS)
def test_a_port_where_nobody_speaks(
    name: str, is_asynchronous: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    call = CLIENT_CALLS[name]
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        if not is_asynchronous:
            with gdpcache.Client(address) as client, ends_in_time():
                call(client)
            return

        async def run() -> None:
            async with gdpcache.AsyncClient(address) as client:
                with ends_in_time():
                    await call(client)

        asyncio.run(run())


@pytest.mark.parametrize("timeout", [1e8, 1e10, 1e300, math.inf])
def test_a_timeout_of_centuries_has_not_passed(timeout: float) -> None:
    with fake_server({}) as address:
        with gdpcache.Client(address, timeout=timeout) as client:
            assert client.server_info().caches
            assert client.server_info(timeout=timeout).caches

        async def run() -> None:
            async with gdpcache.AsyncClient(address, timeout=timeout) as client:
                assert (await client.server_info()).caches

        asyncio.run(run())


@pytest.mark.parametrize("is_asynchronous", [False, True], ids=["blocking", "asyncio"])
def test_a_disk_that_hangs(
    is_asynchronous: bool, hanging: Hanging, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(request: Any, context: Any) -> Iterator[Any]:
        yield snapshot_pb2.ReadSnapshotResponse(size=4, position=1, payload=b"1234")

    monkeypatch.setattr(os, "fsync", lambda descriptor: hanging.over.wait(60))
    target = tmp_path / "snapshot"
    with fake_server({"ReadSnapshot": read}) as address:
        if not is_asynchronous:
            with gdpcache.Client(address) as client, ends_in_time():
                client.export_snapshot("fake", KEY, target, timeout=TIMEOUT)
        else:

            async def run() -> None:
                async with gdpcache.AsyncClient(address) as client:
                    with ends_in_time():
                        await client.export_snapshot("fake", KEY, target, timeout=TIMEOUT)
                    hanging.over.set()  # an event loop waits for its threads when it ends

            asyncio.run(run())
    assert list(tmp_path.iterdir()) == []


def test_copying_into_shared_memory_ends_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock:
        """A second later each time somebody looks."""

        now = 0.0

        def monotonic(self) -> float:
            self.now += 1
            return self.now

    sharing = SharingServer(tmp_path)
    call = rows(1 << 18)
    call.k[:] = 1  # and w and u, which are the same
    pieces = 3 * call.k.nbytes // (64 << 10)
    with (
        fake_server(sharing.handlers()) as address,
        gdpcache.Client(address) as client,
        client.open_session("fake", keep_alive=False) as session,
    ):
        session.prefill(call)
        session.prefill(call)
        kept = session._state.arena._regions
        for region in sharing.regions.values():
            region[:] = 0
        with monkeypatch.context() as patched:
            patched.setattr(_shared, "_PIECE", 64 << 10)
            patched.setattr(_channel, "time", Clock())
            with pytest.raises(gdpcache.DeadlineExceededError):
                session.prefill(call, timeout=pieces / 2)
        assert len(sharing.requests) == 2
        copied = sum(int(np.count_nonzero(region.view(np.float32))) for region in sharing.regions.values())
        assert 0 < copied * 4 < 2 * call.k.nbytes
        # Nothing was sent, so the memory is used on.
        assert session._state.arena._regions == kept
        assert (session.prefill(call).v_new == call.u).all()
    assert sharing.unregistered == []
    sharing.close()


@pytest.mark.parametrize("is_asynchronous", [False, True], ids=["blocking", "asyncio"])
def test_settling_waits_for_the_server(is_asynchronous: bool, hanging: Hanging, tmp_path: Path) -> None:
    sharing = SharingServer(tmp_path)
    lets_go = threading.Event()

    def unregister(request: Any, context: Any) -> Any:
        lets_go.wait(60)
        return sharing._unregister(request, context)

    async def call(session: Any) -> None:
        async def awaited(value: Any) -> None:
            if is_asynchronous:
                await value

        await awaited(session.prefill(rows(1 << 16)))
        await awaited(session.settle(timeout=TIMEOUT))  # nothing to wait for
        sharing.fail = hanging
        with pytest.raises(gdpcache.DeadlineExceededError):
            await awaited(prefill("shared_memory", 1 << 16)(session))
        with ends_in_time():
            await awaited(session.settle(timeout=TIMEOUT))
        assert sharing.unregistered == []
        threading.Timer(TIMEOUT, lets_go.set).start()
        await awaited(session.settle())
        assert len(sharing.unregistered) == 1

    async def run(address: str) -> None:
        if is_asynchronous:
            async with gdpcache.AsyncClient(address) as client, await client.open_session("fake") as session:
                await call(session)
            return
        with gdpcache.Client(address) as blocking, blocking.open_session("fake") as opened:
            await call(opened)

    handlers: dict[str, Any] = {**sharing.handlers(), "UnregisterMemory": unregister}
    with fake_server(handlers) as address:
        asyncio.run(run(address))
        hanging.over.set()
    sharing.close()


def test_what_is_not_known_is_not_settled(hanging: Hanging, tmp_path: Path) -> None:
    sharing = SharingServer(tmp_path)

    def unregister(request: Any, context: Any) -> Any:
        context.abort(grpc.StatusCode.UNAVAILABLE, "gone")

    with fake_session({**sharing.handlers(), "UnregisterMemory": unregister}) as session:
        session.prefill(rows(1 << 16))
        sharing.fail = hanging
        with pytest.raises(gdpcache.DeadlineExceededError):
            prefill("shared_memory", 1 << 16)(session)
        with ends_in_time():
            session.settle(timeout=TIMEOUT)
        hanging.over.set()
    sharing.close()


def test_slots_of_a_fork_that_took_too_long_are_given_back(hanging: Hanging) -> None:
    released: list[int] = []

    def release(request: Any, context: Any) -> Any:
        released.extend(request.slots)
        return session_pb2.ReleaseSlotsResponse()

    handlers: dict[str, Any] = {"AcquireSlots": acquired, "CopySlots": hanging, "ReleaseSlots": release}
    with fake_session(handlers) as session:
        with ends_in_time():
            session.fork_slot(0, timeout=5 * TIMEOUT)  # enough for the slots
        wait_until(lambda: released == [0])
        hanging.over.set()


def test_a_client_that_is_closed_leaves_nothing_running(hanging: Hanging, tmp_path: Path) -> None:
    """Memory that the server has not let go of does not keep a closed client's threads and tasks."""
    sharing = SharingServer(tmp_path)
    handlers: dict[str, Any] = {**sharing.handlers(), "Prefill": hanging, "UnregisterMemory": hanging}

    async def run(address: str) -> None:
        async with gdpcache.AsyncClient(address) as client:
            session = await client.open_session("fake", keep_alive=False)
            with ends_in_time():
                await prefill("auto", 1 << 16)(session)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with fake_server(handlers) as address:
        asyncio.run(run(address))
        with gdpcache.Client(address) as client:
            session = client.open_session("fake", keep_alive=False)
            with ends_in_time():
                prefill("auto", 1 << 16)(session)
        wait_until(lambda: not [thread for thread in threading.enumerate() if thread.name == "gdpcache-detached"])
        hanging.over.set()
    sharing.close()
