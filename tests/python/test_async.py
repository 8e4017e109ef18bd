"""The asyncio client: the same core, so the tests look at what differs."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import grpc.aio
import pytest
from conftest import Server
from problems import random_call

import gdpcache
from gdpcache import InitialState, States, Transport


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(coroutine, 60))


@pytest.mark.parametrize("transport", [Transport.UNARY, Transport.STREAM, Transport.SHARED_MEMORY])
def test_both_clients_get_the_same_bits(server: Server, cache: str, transport: Transport) -> None:
    call = random_call(1, 3000, states=States.ALL, output_final_state=True, transport=transport)

    async def main() -> None:
        async with gdpcache.AsyncClient(server.unix) as client, await client.open_session(cache) as session:
            (slot,) = await session.acquire_slots()
            call.state_indices = [slot]
            result = await session.prefill(call)
            contents = await session.read_slots([slot])
            assert result.transport is transport
            assert session.transports_used == {transport: 1}
            await session.reset_slots([slot])
            with gdpcache.Client(server.unix) as blocking, blocking.open_session(cache) as other:
                (call.state_indices,) = (other.acquire_slots(),)
                expected = other.prefill(call)
                assert (result.h == expected.h).all()
                assert (result.v_new == expected.v_new).all()
                assert (contents.state == other.read_slots(call.state_indices).state).all()
            await session.write_slots([slot], contents.state, positions=contents.positions)
            assert (await session.fork_slot(slot)) == [slot + 1]

    run(main())


def test_calls_run_side_by_side(server: Server, cache: str) -> None:
    async def main() -> None:
        async with gdpcache.AsyncClient(server.tcp) as client, await client.open_session(cache) as session:
            slots = await session.acquire_slots(4)
            results = await asyncio.gather(
                *(session.prefill(random_call(slot, 64, state_indices=[slot])) for slot in slots)
            )
            assert [result.positions for result in results] == [(64,)] * 4
            listed = await client.list_slots(cache)
            assert [slot.max_position for slot in listed.slots] == [64] * 4

    run(main())


def test_errors_are_the_same_classes(server: Server, cache: str) -> None:
    async def main() -> None:
        async with gdpcache.AsyncClient(server.unix) as client:
            with pytest.raises(gdpcache.NotFoundError) as raised:
                await client.open_session("nothing")
            assert raised.value.resource == gdpcache.Resource("cache", "nothing")
            async with await client.open_session(cache) as session:
                with pytest.raises(gdpcache.InvalidArgumentError, match="layer"):
                    await session.prefill(random_call(1, 16, layer=2, initial_state=InitialState.ZERO))
                with pytest.raises(gdpcache.DeadlineExceededError):
                    await session.prefill(
                        random_call(1, 1 << 13, initial_state=InitialState.ZERO, transport="stream"), timeout=1e-4
                    )

    run(main())


@pytest.mark.parametrize(("timeout", "expected"), [(0.05, "DeadlineExceededError"), (60.0, "UnavailableError")])
def test_a_reason_that_grpcio_loses_is_not_an_internal_error(cache: str, server: Server, timeout: float,
                                                             expected: str) -> None:  # fmt: skip
    class Answers:
        def __aiter__(self) -> Answers:
            return self

        async def __anext__(self) -> bytes:
            await asyncio.sleep(0.05)
            nothing = grpc.aio.Metadata()
            raise grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, nothing, nothing, "Internal error from Core")

        def cancel(self) -> None:
            pass

    async def main() -> None:
        async with gdpcache.AsyncClient(server.unix) as client, await client.open_session(cache) as session:
            driver: Any = client._driver
            real = driver._channel
            driver._channel = SimpleNamespace(stream_stream=lambda path: lambda *arguments, **options: Answers())
            with pytest.raises(getattr(gdpcache, expected)):
                await session.prefill(random_call(1, 8, initial_state=InitialState.ZERO, transport="stream"),
                                      timeout=timeout)  # fmt: skip
            driver._channel = real

    run(main())


def test_a_cancelled_call_leaves_the_session_usable(server: Server, cache: str) -> None:
    async def main() -> None:
        async with gdpcache.AsyncClient(server.unix) as client, await client.open_session(cache) as session:
            call = random_call(1, 1 << 14, initial_state=InitialState.ZERO, transport="stream")
            task = asyncio.create_task(session.prefill(call))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await session.prefill(call)

    run(main())


def test_a_session_is_renewed_and_its_end_noticed(server: Server) -> None:
    async def main() -> None:
        async with gdpcache.AsyncClient(server.unix) as client:
            geometry = gdpcache.CacheGeometry(layers=1, slots=1, heads=1, key_dim=1, value_dim=1)
            await client.create_cache("async-doomed", geometry)
            session = await client.open_session("async-doomed", ttl=0.1)
            await client.delete_cache("async-doomed", force=True)
            while session.error is None:
                await asyncio.sleep(0.01)
            assert isinstance(session.error, gdpcache.NotFoundError)
            await session.close()

    run(main())


def test_both_clients_have_the_same_calls() -> None:
    pairs: list[tuple[type, type, set[str]]] = [
        (gdpcache.Client, gdpcache.AsyncClient, set()),
        (gdpcache.Session, gdpcache.AsyncSession, {"layer", "run_ahead"}),
        (gdpcache.SnapshotWatch, gdpcache.AsyncSnapshotWatch, set()),
    ]
    for blocking, asynchronous, apart in pairs:
        names = {name for name in vars(blocking) if not name.startswith("_")}
        assert names - apart == {name for name in vars(asynchronous) if not name.startswith("_")}
        for name in names - apart:
            assert getattr(blocking, name).__doc__ == getattr(asynchronous, name).__doc__
