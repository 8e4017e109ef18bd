"""The blocking client against a real server."""

from __future__ import annotations

import math
import threading
from concurrent import futures
from typing import Any

import numpy as np
import pytest
from conftest import Server
from problems import HEADS, KEY_DIM, VALUE_DIM, close, exact, random_call
from waiting import wait_until

import gdpcache
from gdpcache import InitialState, Outputs, States, Transport
from gdpcache._sharing import may_have_been_done


def test_the_server_tells_about_itself(server: Server, client: gdpcache.Client) -> None:
    info = client.server_info()
    assert info.version == gdpcache.__version__
    assert info.backend == "cpu"
    assert {server.tcp, server.unix} == set(info.addresses)
    assert info.limits.max_session_ttl == 24 * 3600
    assert info.limits.shared_memory_bytes > 0
    assert info.limits.max_queue_wait == 10
    assert info.limits.max_calls > 0
    assert info.build.compiler
    assert info.expected_wait >= 0
    assert client.is_serving()


@pytest.mark.parametrize("address", ["", "nothing", "host:", ":1", "host:99999", "::1:80", "unix:"])
def test_an_address_that_makes_no_sense_is_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDPCACHE_SERVER", address or "unix:")
    with pytest.raises(ValueError, match="address"):
        gdpcache.Client(address)


def test_the_environment_names_the_server(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDPCACHE_SERVER", server.tcp)
    with gdpcache.Client() as client:
        assert client.address == server.tcp
        assert client.is_serving()


def test_nobody_listening_is_unavailable(tmp_path: Any) -> None:
    with gdpcache.Client(f"unix:{tmp_path}/nobody") as client:
        with pytest.raises(gdpcache.UnavailableError):
            client.server_info()
        with pytest.raises(gdpcache.DeadlineExceededError):
            client.wait_for_server(timeout=0.05)


def test_caches_are_created_shared_and_deleted(client: gdpcache.Client) -> None:
    geometry = gdpcache.CacheGeometry(layers=3, slots=4, heads=1, key_dim=8, value_dim=8)
    created = client.create_cache("shared/cache", geometry, fingerprint="model-1")
    assert created.created
    assert created.cache.geometry == geometry
    assert not client.create_cache("shared/cache", geometry, fingerprint="model-1").created
    with pytest.raises(gdpcache.AlreadyExistsError, match="fingerprint") as raised:
        client.create_cache("shared/cache", geometry, fingerprint="model-2")
    assert raised.value.resource == gdpcache.Resource("cache", "shared/cache")
    assert "shared/cache" in [cache.name for cache in client.list_caches()]
    with client.open_session("shared/cache"), pytest.raises(gdpcache.FailedPreconditionError):
        client.delete_cache("shared/cache")
    client.delete_cache("shared/cache")
    with pytest.raises(gdpcache.NotFoundError):
        client.open_session("shared/cache")


def test_errors_name_the_field(client: gdpcache.Client) -> None:
    with pytest.raises(gdpcache.InvalidArgumentError) as raised:
        client.create_cache("wide", gdpcache.CacheGeometry(layers=1, slots=1, heads=1, key_dim=257, value_dim=1))
    assert [violation.field for violation in raised.value.field_violations] == ["geometry.key_dim"]
    assert "257" in raised.value.message
    assert raised.value.code is gdpcache.StatusCode.INVALID_ARGUMENT


def test_slots_are_acquired_forked_reset_and_released(client: gdpcache.Client, cache: str) -> None:
    with client.open_session(cache, client_name="engine") as session:
        first, second = session.acquire_slots(2)
        session.prefill(random_call(1, 20, state_indices=[first]))
        assert session.fork_slot(first) == [2]
        session.copy_slots({first: [second]})
        contents = session.read_slots([first, second, 2])
        assert contents.positions.tolist() == [[20, 0]] * 3
        assert contents.layers == (0, 1)
        assert contents.state.shape == (3, 2, HEADS, KEY_DIM, VALUE_DIM)
        assert contents.state[0].any()
        assert (contents.state == contents.state[0]).all()
        session.reset_slots([second])
        assert not session.read_slots([second], [0]).state.any()
        held = client.list_slots(cache)
        assert [(slot.slot, slot.max_position, slot.client_name) for slot in held.slots] == [
            (0, 20, "engine"),
            (1, 0, "engine"),
            (2, 20, "engine"),
        ]
        session.release_slots([first])
        with pytest.raises(gdpcache.ResourceExhaustedError) as raised:
            session.acquire_slots(7)
        assert raised.value.retry_delay is not None
        assert not may_have_been_done(raised.value), "gRPC would say so of an answer that it could not take"
        with pytest.raises(gdpcache.PermissionDeniedError):
            session.release_slots([first])
    assert client.list_slots(cache).free_slots == 8


def test_a_fork_that_finds_no_source_keeps_no_slot(client: gdpcache.Client, cache: str) -> None:
    with client.open_session(cache) as session:
        with pytest.raises(gdpcache.PermissionDeniedError):
            session.fork_slot(7)
        assert client.list_slots(cache).free_slots == 8


def test_written_slots_are_read_back(client: gdpcache.Client, cache: str) -> None:
    random = np.random.default_rng(5)
    state = random.standard_normal((2, 2, HEADS, KEY_DIM, VALUE_DIM)).astype(np.float32)
    auxiliary = random.integers(0, 256, (2, 2, 6), np.uint8)
    with client.open_session(cache) as session:
        slots = session.acquire_slots(2)
        session.write_slots(slots, state, positions=[[3, 4], [5, 6]], auxiliary=auxiliary)
        contents = session.read_slots(slots[::-1], [1])
        assert contents.positions.tolist() == [[6], [4]]
        assert (contents.state[:, 0] == state[::-1, 1]).all()
        assert contents.auxiliary is not None
        assert (contents.auxiliary[:, 0] == auxiliary[::-1, 1]).all()


def test_a_session_lives_as_long_as_it_is_renewed(client: gdpcache.Client, cache: str) -> None:
    with client.open_session(cache, ttl=1.5) as session:
        assert session.ttl == 1.5
        session.acquire_slots()

        def expires_in() -> float:
            return client.list_slots(cache).slots[0].session_expires_in

        wait_until(lambda: expires_in() < 1.2)
        wait_until(lambda: expires_in() > 1.2)  # renewed without any call of ours
        assert session.error is None
        assert session.keep_alive() <= 1.5


def test_an_ended_session_is_noticed(client: gdpcache.Client, cache: str) -> None:
    geometry = gdpcache.CacheGeometry(layers=1, slots=1, heads=1, key_dim=1, value_dim=1)
    client.create_cache("doomed", geometry)
    session = client.open_session("doomed", ttl=0.1)
    client.delete_cache("doomed", force=True)
    wait_until(lambda: session.error is not None)
    assert isinstance(session.error, gdpcache.NotFoundError)
    with pytest.raises(gdpcache.NotFoundError):
        session.acquire_slots()
    session.close()


def test_a_dropped_session_is_renewed_no_more(client: gdpcache.Client, cache: str) -> None:
    session = client.open_session(cache, ttl=0.2)
    session.acquire_slots()
    del session
    wait_until(lambda: client.list_slots(cache).free_slots == 8)


def test_a_prefill_computes_the_recurrence(client: gdpcache.Client, cache: str) -> None:
    call = random_call(2, 70, states=States.ALL, output_final_state=True)
    expected = exact(call)
    with client.open_session(cache) as session:
        (slot,) = session.acquire_slots()
        call.state_indices = [slot]
        result = session.prefill(call)
        for name, value in expected.items():
            assert close(getattr(result, name), value), name
        assert result.chunk_offsets == (0, 5)
        assert result.positions == (70,)
        assert result.timing.total > 0
        assert (session.read_slots([slot], [0]).state[0] == result.final_state).all()

        # It continues from the slot, and from a tensor.
        following = random_call(3, 30, state_indices=[slot], states=[(0, 1)])
        from_tensor = random_call(3, 30, initial_state=result.final_state, states=[(0, 1)])
        in_slot, in_tensor = session.prefill(following), session.prefill(from_tensor)
        assert in_slot.positions == (100,)
        assert in_tensor.positions == (-1,)
        assert in_slot.h.shape == (1, HEADS, KEY_DIM, VALUE_DIM)
        assert (in_slot.h == in_tensor.h).all()
        assert (in_slot.v_new == in_tensor.v_new).all()


@pytest.mark.parametrize("transport", [Transport.UNARY, Transport.STREAM, Transport.SHARED_MEMORY])
def test_results_go_where_the_caller_says(client: gdpcache.Client, cache: str, transport: Transport) -> None:
    call = random_call(4, 40, states=States.ALL, output_final_state=True, initial_state=InitialState.ZERO)
    with client.open_session(cache) as session:
        expected = session.prefill(call)
        h = np.empty((3, HEADS, KEY_DIM, VALUE_DIM), np.float32)
        v_new = np.empty((40, HEADS, VALUE_DIM), np.float32)
        call.out, call.transport = Outputs(h=h, v_new=v_new), transport
        result = session.prefill(call)
        assert result.h is h
        assert result.v_new is v_new
        assert (h == expected.h).all()
        assert (v_new == expected.v_new).all()
        assert (result.final_state == expected.final_state).all()

        call.out = Outputs(h=h[:2])
        with pytest.raises(ValueError, match=r"out\.h is float32 \[2, 2, 16, 24\]; the result is float32 \[3,"):
            session.prefill(call)
        call.out = Outputs(v_new=v_new[:, :, ::-1])
        with pytest.raises(ValueError, match="contiguous"):
            session.prefill(call)
        call.out, call.save_new_value = Outputs(v_new=v_new), False
        with pytest.raises(ValueError, match="does not ask for v_new"):
            session.prefill(call)


def test_positions_tell_whether_a_call_was_applied(client: gdpcache.Client, cache: str) -> None:
    with client.open_session(cache) as session:
        slots = session.acquire_slots(2)
        call = random_call(5, 32, batch=2, state_indices=slots, expected_positions=[0, -1])
        session.prefill(call)
        with pytest.raises(gdpcache.PositionMismatchError) as raised:
            session.prefill(call)
        assert raised.value.position_mismatches == (gdpcache.PositionMismatch(0, slots[0], 0, 16),)
        assert isinstance(raised.value, gdpcache.FailedPreconditionError)


@pytest.mark.parametrize("transport", [Transport.AUTO, Transport.UNARY, Transport.STREAM, Transport.SHARED_MEMORY])
def test_the_server_judges_requests(client: gdpcache.Client, cache: str, transport: Transport) -> None:
    bad: list[tuple[dict[str, Any], str]] = [
        ({"cu_seqlens": [0, 41]}, "cu_seqlens"),
        ({"cu_seqlens": [0, 30, 20]}, "cu_seqlens"),
        ({"batch": -1}, "batch"),
        ({"chunk_size": 17}, "chunk_size"),
        ({"layer": 2}, "layer"),
        ({"states": [(0, 9)]}, "states"),
        ({"chunk_offsets": [0, 7]}, "chunk_offsets"),
        ({"k": np.zeros((40, HEADS, 5), np.float32)}, "k"),
        ({"u": np.zeros(3, np.float32)}, "u"),
        ({"g": np.zeros((40, HEADS), np.float16)}, "g"),
        ({"initial_state": np.zeros((2, HEADS, KEY_DIM, VALUE_DIM), np.float32)}, "initial_state"),
    ]
    with client.open_session(cache, transport=transport) as session:
        for fields, name in bad:
            call = random_call(6, 40, **{"initial_state": InitialState.ZERO, **fields})
            with pytest.raises(gdpcache.InvalidArgumentError, match=name):
                session.prefill(call)
        assert session.transports_used == {}


def test_what_cannot_be_sent_is_refused_here(client: gdpcache.Client, cache: str) -> None:
    with client.open_session(cache) as session:
        unsendable: list[tuple[dict[str, Any], str]] = [
            ({"k": [[1.0]]}, "k is a list"),
            ({"k": np.zeros((4, 2, 16))}, "k has dtype float64"),
            ({"k": np.zeros((4, 2, 16), ">f4")}, "k has dtype >f4"),
            ({"state_indices": [0.5]}, "state_indices has dtype float64"),
        ]
        for fields, message in unsendable:
            with pytest.raises(TypeError, match=message):
                session.prefill(random_call(7, 4, **fields))


def test_the_transport_is_chosen_by_size(server: Server, cache: str) -> None:
    with gdpcache.Client(server.tcp) as client, client.open_session(cache) as session:
        small = session.prefill(random_call(8, 16, initial_state=InitialState.ZERO))
        assert small.transport is Transport.UNARY
        large = session.prefill(random_call(8, 1 << 13, initial_state=InitialState.ZERO))
        assert large.transport is Transport.SHARED_MEMORY
        assert session.transports_used == {Transport.UNARY: 1, large.transport: 1}
        with pytest.raises(ValueError, match=r"transport is cuda_ipc, but none of k, w, u, g, out\.v_new is on a GPU"):
            out = Outputs(v_new=np.empty_like(large.v_new))
            session.prefill(random_call(8, 1 << 13, initial_state=InitialState.ZERO, transport="cuda_ipc", out=out))


def test_a_call_has_to_be_over_in_time(client: gdpcache.Client, cache: str) -> None:
    with client.open_session(cache) as session:
        call = random_call(9, 1 << 13, initial_state=InitialState.ZERO, transport=Transport.STREAM)
        with pytest.raises(gdpcache.DeadlineExceededError):
            session.prefill(call, timeout=1e-4)
        with pytest.raises(gdpcache.DeadlineExceededError):
            session.prefill(call, timeout=-1)
        session.prefill(call, timeout=math.inf)


def test_auxiliary_bytes_travel_with_the_call(client: gdpcache.Client, cache: str) -> None:
    auxiliary = np.arange(6, dtype=np.uint8)[None]
    for transport in (Transport.UNARY, Transport.STREAM, Transport.SHARED_MEMORY):
        with client.open_session(cache) as session:
            (slot,) = session.acquire_slots()
            session.prefill(random_call(10, 16, state_indices=[slot], auxiliary_state=auxiliary, transport=transport))
            stored = session.read_slots([slot], [0]).auxiliary
            assert stored is not None
            assert (stored[0] == auxiliary).all()


def test_shared_memory_is_counted_and_goes_with_the_session(client: gdpcache.Client, cache: str) -> None:
    with client.open_session(cache) as session:
        call = random_call(11, 1 << 10, initial_state=InitialState.ZERO, states=States.ALL)
        expected = session.prefill(call)
        assert expected.transport is Transport.SHARED_MEMORY
        (region,) = session.list_shared_memory()
        assert (region.kind, region.size, region.uses) == ("system", 16 << 20, 0)
        # Nothing is copied: neither inputs nor results.
        for name in ("k", "w", "u", "g"):
            shared = session.shared_empty(getattr(call, name).shape)
            shared[:] = getattr(call, name)
            setattr(call, name, shared)
        h = session.shared_empty(expected.h.shape)
        call.out = Outputs(h=h)
        result = session.prefill(call)
        assert result.h is h
        assert (h == expected.h).all()
        assert (result.v_new == expected.v_new).all()
        assert len(session.list_shared_memory()) == 1
    assert (result.v_new == expected.v_new).all()  # still there


def test_threads_share_a_session(client: gdpcache.Client, cache: str) -> None:
    with client.open_session(cache) as session, futures.ThreadPoolExecutor(8) as pool:
        slots = session.acquire_slots(8)
        calls = [random_call(slot, 600 + slot, state_indices=[slot], states=States.ALL) for slot in slots]
        expected = [exact(call) for call in calls]

        def run(call: gdpcache.PrefillCall) -> list[Any]:
            call.initial_state = InitialState.ZERO
            return [session.prefill(call) for _ in range(10)]

        for results, value in zip(pool.map(run, calls), expected, strict=True):
            for result in results:
                assert result.transport is Transport.SHARED_MEMORY
                assert close(result.v_new, value["v_new"])
                assert (result.h == results[0].h).all()
        assert session.transports_used == {Transport.SHARED_MEMORY: 80}


def test_a_client_that_is_closed_stops_its_sessions(server: Server, cache: str) -> None:
    client = gdpcache.Client(server.unix)
    session = client.open_session(cache, ttl=0.1)
    client.close()
    wait_until(lambda: all(thread.name != "gdpcache-keep-alive" for thread in threading.enumerate()))
    with pytest.raises(ValueError, match="closed"):
        session.acquire_slots()


def test_options_and_dtypes_may_be_given_by_their_names(client: gdpcache.Client) -> None:
    sizes = {"layers": 1, "slots": 2, "heads": HEADS, "key_dim": KEY_DIM, "value_dim": VALUE_DIM}
    expected = gdpcache.CacheGeometry(**sizes, state_dtype=gdpcache.DataType.FLOAT16)
    for dtype in ("float16", np.float16, np.dtype(np.float16)):
        geometry = gdpcache.CacheGeometry(**sizes, state_dtype=dtype)  # type: ignore[arg-type]
        assert geometry == expected
    assert client.create_cache("names", geometry).cache.geometry == expected
    with pytest.raises(TypeError, match="state_dtype is float64; expected float32, float16 or bfloat16"):
        gdpcache.CacheGeometry(**sizes, state_dtype="float64")  # type: ignore[arg-type]
    with client.open_session("names") as session:
        call = random_call(1, 40, states=States.ALL, initial_state=InitialState.ZERO)
        result = session.prefill(call)
        call.states, call.initial_state, call.g_base, call.precision = "all", "zero", "log2", "default"
        named = session.prefill(call)
        assert (named.h == result.h).all()
        assert call.states == "all"
        for option in ("states", "initial_state"):
            call.states, call.initial_state = "all", "zero"
            setattr(call, option, "some")
            with pytest.raises(ValueError, match="'some' is not a valid"):
                session.prefill(call)
        with pytest.raises(TypeError, match="states_dtype is float64; expected"):
            session.prefill(random_call(1, 40, states="all", initial_state="zero", states_dtype="float64"))
    client.delete_cache("names")
