"""The client's side of shared memory, against a server that breaks on demand."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from fake_server import SharingServer, fake_server, fake_session
from waiting import wait_until

import gdpcache
from gdpcache import InitialState, Outputs, PrefillCall, Transport, _channel
from gdpcache.v1 import prefill_pb2, tensor_pb2


@pytest.fixture
def sharing(tmp_path: Path) -> Iterator[SharingServer]:
    server = SharingServer(tmp_path)
    yield server
    server.close()


@pytest.fixture
def session(sharing: SharingServer) -> Iterator[gdpcache.Session]:
    with fake_session(sharing.handlers()) as opened:
        yield opened


def call_of(tokens: int, **fields: Any) -> PrefillCall:
    rows = np.arange(tokens * 4, dtype=np.float32).reshape(tokens, 1, 4)
    return PrefillCall(k=rows, w=rows, u=rows, initial_state=InitialState.ZERO, **fields)


def test_large_calls_go_through_shared_memory(sharing: SharingServer, session: gdpcache.Session) -> None:
    call = call_of(4096)
    first, second = session.prefill(call), session.prefill(call)
    assert first.transport is second.transport is Transport.SHARED_MEMORY
    assert (first.v_new == call.u).all()
    assert (second.v_new == call.u).all()
    assert not np.shares_memory(first.v_new, second.v_new)
    assert list(sharing.regions) == ["arena-1"]
    with pytest.raises(gdpcache.UnimplementedError):  # by the stream, which this server lacks
        session.prefill(call_of(4096, transport="stream"))


def test_memory_of_dropped_results_is_used_again(sharing: SharingServer, session: gdpcache.Session) -> None:
    kept: list[Any] = []
    for _ in range(200):  # 64 MiB and more would not fit otherwise
        result = session.prefill(call_of(1 << 15))
        kept = [*kept[-3:], result.v_new]
        del result
    gc.collect()
    assert list(sharing.regions) == ["arena-1"]
    assert all((array == kept[0]).all() for array in kept)


def test_shared_arrays_are_not_copied(sharing: SharingServer, session: gdpcache.Session) -> None:
    call = call_of(4096)
    shared = session.shared_empty((4096, 1, 4))
    shared[:] = call.u
    out = session.shared_empty(call.u.shape, "float32")
    call.u = call.k = call.w = shared
    call.out = Outputs(v_new=out)
    result = session.prefill(call)
    assert result.v_new is out
    assert (out == shared).all()
    request = sharing.requests[-1]
    assert request.u.shared_memory == request.k.shared_memory == request.w.shared_memory
    region = sharing.regions[request.outputs.v_new.region]
    at = request.outputs.v_new.offset
    assert (region[at : at + out.nbytes].view(np.float32) == out.reshape(-1)).all()
    # A part of an array is in the shared memory, too.
    call.u, call.k, call.w, call.out = shared[1:], shared[1:], shared[1:], Outputs(v_new=out[1:])
    session.prefill(call)
    assert sharing.requests[-1].u.shared_memory.offset == request.u.shared_memory.offset + 16


def test_a_session_that_ends_leaves_its_arrays(sharing: SharingServer) -> None:
    with fake_server(sharing.handlers()) as address, gdpcache.Client(address) as client:
        with client.open_session("fake") as session:
            v_new = session.prefill(call_of(4096)).v_new
        del session
    gc.collect()
    assert v_new.reshape(-1).tolist() == list(range(4096 * 4))


def test_memory_of_a_call_without_an_answer_is_not_used_again(
    sharing: SharingServer, session: gdpcache.Session
) -> None:
    session.prefill(call_of(4096))
    given_up = threading.Event()
    sharing.fail = lambda context: given_up.wait(60)  # the server is still at work when the client gives up
    with pytest.raises(gdpcache.DeadlineExceededError):
        session.prefill(call_of(4096), timeout=0.5)
    wait_until(lambda: sharing.unregistered == ["arena-1"])
    sharing.fail = lambda context: None
    given_up.set()
    assert session.prefill(call_of(4096)).transport is Transport.SHARED_MEMORY
    assert list(sharing.regions) == ["arena-2"]


def test_shared_arrays_of_a_call_without_an_answer_are_shared_no_more(
    sharing: SharingServer, session: gdpcache.Session
) -> None:
    out = session.shared_empty((4096, 1, 4))
    given_up = threading.Event()
    sharing.fail = lambda context: given_up.wait(60)
    with pytest.raises(gdpcache.DeadlineExceededError):
        session.prefill(call_of(4096, out=Outputs(v_new=out)), timeout=0.5)
    wait_until(lambda: sharing.unregistered == ["arena-1"])
    sharing.fail = lambda context: None
    given_up.set()
    out[:] = 0
    result = session.prefill(call_of(4096, out=Outputs(v_new=out)))  # by a copy
    assert result.v_new is out
    assert (out == call_of(4096).u).all()


@pytest.mark.parametrize("code", ["INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"])
def test_memory_of_a_refused_call_is_used_again(
    code: str, sharing: SharingServer, session: gdpcache.Session
) -> None:
    def refuse(context: grpc.ServicerContext) -> None:
        context.set_trailing_metadata((("x-request-id", "1"),))  # as servers mark their errors
        context.abort(grpc.StatusCode[code], "no")

    sharing.fail = refuse
    for _ in range(3):
        with pytest.raises(gdpcache.GdpCacheError, match=f"{code}: no"):
            session.prefill(call_of(1 << 18))
    assert list(sharing.regions) == ["arena-1"]


def test_memory_of_a_call_whose_answer_cannot_be_taken_is_not_used_again(
    sharing: SharingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = prefill_pb2.PrefillResponse(v_new=tensor_pb2.Tensor(inline=bytes(1 << 16)))
    monkeypatch.setattr(_channel, "OPTIONS", (("grpc.max_receive_message_length", 1 << 12),))
    with fake_session({**sharing.handlers(), "Prefill": lambda request, context: large}) as session:
        with pytest.raises(gdpcache.ResourceExhaustedError):
            session.prefill(call_of(4096))
        wait_until(lambda: sharing.unregistered == ["arena-1"])


def test_a_refused_descriptor_leaves_the_other_transports(sharing: SharingServer, session: gdpcache.Session) -> None:
    sharing.refuse = "no seals"
    with pytest.raises(gdpcache.UnavailableError, match=r"shared_memory was asked for.*no seals"):
        session.prefill(call_of(4096, transport="shared_memory"))
    with pytest.raises(gdpcache.UnavailableError, match="no seals"):
        session.shared_empty(5)
    assert sharing.requests == []
    sharing.fail = lambda context: context.abort(grpc.StatusCode.INVALID_ARGUMENT, "inline")
    with pytest.raises(gdpcache.InvalidArgumentError, match="inline"):
        session.prefill(call_of(4096))
    assert len(sharing.requests[0].u.inline) == 4096 * 16


def test_a_socket_that_cannot_be_reached_is_tried_once(sharing: SharingServer) -> None:
    handlers = sharing.handlers()
    sharing.close()
    with fake_session(handlers) as session:
        with pytest.raises(gdpcache.UnavailableError, match="descriptors: "):
            session.shared_empty(5)
        with pytest.raises(gdpcache.UnavailableError, match="shares no memory"):
            session.shared_empty(5)


def test_more_than_the_server_allows_is_not_asked_for(sharing: SharingServer, session: gdpcache.Session) -> None:
    first = session.shared_empty(15 << 20, "uint8")
    second = session.shared_empty(15 << 20, "uint8")  # does not fit beside the first
    assert {name: region.size >> 20 for name, region in sharing.regions.items()} == {"arena-1": 16, "arena-2": 16}
    assert first.nbytes == second.nbytes
    third = session.shared_empty(20 << 20, "uint8")  # as large as all before, 32 MiB, is just allowed
    assert sharing.regions["arena-3"].size == 32 << 20
    assert third.nbytes == 20 << 20
