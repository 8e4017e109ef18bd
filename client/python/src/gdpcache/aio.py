"""The asyncio client: the same calls, awaited."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, TypeVar

import grpc
import grpc.aio

from gdpcache import _channel, _prefill, _server, _session, _shared, _snapshots, client, errors
from gdpcache._channel import Deadline, TimeIsUpError
from gdpcache._operations import Blocking, Detached, Operation, Request, Sleep, Stream, Unary
from gdpcache.credentials import Access, Credentials
from gdpcache.prefill import PrefillCall
from gdpcache.types import (
    Array,
    CacheGeometry,
    CacheInfo,
    CreatedCache,
    ExportedSnapshot,
    Pin,
    PrefillResult,
    PrefixMatch,
    Region,
    ServerInfo,
    SlotContents,
    SlotCopies,
    SlotList,
    Snapshot,
    SnapshotEvent,
    SnapshotOutcome,
    TensorLike,
    Transport,
)

T = TypeVar("T")

# What newer releases of grpcio tell in the place of the server's reason when that comes while a message is being sent.
_SENDING_FAILED = "Internal error from Core"


def _reason_lost(deadline: Deadline) -> errors.GdpCacheError:
    if deadline.is_over():
        return errors.DeadlineExceededError("Deadline Exceeded")
    return errors.UnavailableError(
        "the call ended before all of it was sent; this release of grpcio does not tell why the server ended it"
    )


class _Driver:
    """Performs what operations ask for."""

    def __init__(self, address: str, timeout: float, credentials: Credentials | None) -> None:
        self._address = address
        self._access = Access(address, credentials or Credentials.from_environment())
        self.metadata = self._access.metadata  # what goes with a call
        self.timeout = timeout
        self._channel: grpc.aio.Channel | None = None
        self._unary: dict[str, Callable[..., Any]] = {}
        self._detached: set[asyncio.Task[None]] = set()  # the event loop keeps no task alive

    @property
    def channel(self) -> grpc.aio.Channel:
        """Made by the first call, for it belongs to the event loop that runs then."""
        if self._channel is None:
            self._channel = self._access.open_channel(grpc.aio, self._address, _channel.OPTIONS)
        return self._channel

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close()
        if self._detached:  # they end now
            await asyncio.wait(self._detached)

    async def run(self, operation: Operation[T], timeout: float | None = None) -> T:
        deadline = Deadline.after(self.timeout if timeout is None else timeout)
        try:
            request = next(operation)
            while True:
                try:
                    result = await self._perform(request, deadline)
                except grpc.RpcError as error:
                    request = operation.throw(errors.from_rpc(error))
                except BaseException as error:
                    request = operation.throw(error)
                else:
                    request = operation.send(result)
        except StopIteration as stop:
            value: T = stop.value
            return value

    async def _perform(self, request: Request, deadline: Deadline) -> Any:
        if isinstance(request, Unary):
            call = self._unary.get(request.path)
            if call is None:
                call = self._unary[request.path] = self.channel.unary_unary(request.path)
            return await call(
                request.request,
                timeout=deadline.remaining(),
                wait_for_ready=request.wait_for_ready,
                metadata=self.metadata(),
            )
        if isinstance(request, Stream):
            answers = self.channel.stream_stream(request.path)(
                request.requests, timeout=deadline.remaining(), metadata=self.metadata()
            )
            try:
                async for answer in answers:
                    request.receive(answer)
            except grpc.aio.AioRpcError as error:
                if error.details() == _SENDING_FAILED:
                    raise _reason_lost(deadline) from error
                raise
            finally:
                answers.cancel()
            return None
        if isinstance(request, Sleep):
            return await asyncio.sleep(deadline.sleep(request.seconds))
        if isinstance(request, Blocking):
            return await _on_another_thread(request.function, deadline.remaining())
        assert isinstance(request, Detached)
        task = asyncio.create_task(self._run_detached(request))
        self._detached.add(task)
        task.add_done_callback(self._detached.discard)
        await asyncio.wait({task}, timeout=deadline.detached(request.wait))
        return None

    async def _run_detached(self, request: Detached) -> None:
        with suppress(errors.GdpCacheError, grpc.aio.UsageError):  # the latter once the client is closed
            await self.run(request.operation, request.timeout)


async def _on_another_thread(function: Callable[[], T], timeout: float | None) -> T:
    future = asyncio.get_running_loop().run_in_executor(None, function)
    try:
        await asyncio.wait({future}, timeout=timeout)
        if not future.done():
            raise TimeIsUpError
        return future.result()
    finally:
        future.cancel()  # nobody takes its result any more; none if it is there


class AsyncClient:
    """The same as :class:`gdpcache.Client`, for one event loop; its methods are documented there. Use it as
    ``async with AsyncClient(address) as client``."""

    def __init__(
        self, address: str | None = None, *, timeout: float = 60.0, credentials: Credentials | None = None
    ) -> None:
        self.address = _channel.address(address)
        self._driver = _Driver(self.address, timeout, credentials)

    async def close(self) -> None:
        await self._driver.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    # --- the server and its caches ---

    async def server_info(self, *, timeout: float | None = None) -> ServerInfo:
        return await self._driver.run(_server.server_info(), timeout)

    async def wait_for_server(self, *, timeout: float | None = None) -> ServerInfo:
        return await self._driver.run(_server.server_info(wait_for_ready=True), timeout)

    async def is_serving(self, *, timeout: float | None = None) -> bool:
        return await self._driver.run(_server.is_serving(), timeout)

    async def create_cache(
        self,
        name: str,
        geometry: CacheGeometry,
        *,
        fingerprint: str = "",
        ephemeral: bool = False,
        timeout: float | None = None,
    ) -> CreatedCache:
        return await self._driver.run(_server.create_cache(name, geometry, fingerprint, ephemeral), timeout)

    async def delete_cache(self, name: str, *, force: bool = False, timeout: float | None = None) -> None:
        await self._driver.run(_server.delete_cache(name, force), timeout)

    async def list_caches(self, *, timeout: float | None = None) -> list[CacheInfo]:
        return await self._driver.run(_server.list_caches(), timeout)

    async def list_slots(self, cache: str, *, timeout: float | None = None) -> SlotList:
        return await self._driver.run(_server.list_slots(cache), timeout)

    async def open_session(
        self,
        cache: str,
        *,
        ttl: float = 60.0,
        client_name: str = "",
        keep_alive: bool = True,
        transport: Transport | str = Transport.AUTO,
        timeout: float | None = None,
    ) -> AsyncSession:
        state = await self._driver.run(_session.open_session(cache, ttl, client_name, transport), timeout)
        return AsyncSession(self._driver, state, keep_alive)

    # --- the prefix cache ---

    async def lookup_prefix(
        self, cache: str, keys: Sequence[bytes], *, lease: float = 0.0, timeout: float | None = None
    ) -> PrefixMatch | None:
        return await self._driver.run(_snapshots.lookup(cache, keys, lease), timeout)

    async def pin_snapshots(
        self, cache: str, keys: Iterable[bytes], *, ttl: float = 0.0, timeout: float | None = None
    ) -> Pin:
        return await self._driver.run(_snapshots.pin(cache, keys, ttl), timeout)

    async def unpin_snapshots(self, cache: str, pin: Pin | str, *, timeout: float | None = None) -> None:
        await self._driver.run(_snapshots.unpin(cache, pin), timeout)

    async def delete_snapshots(
        self, cache: str, keys: Iterable[bytes], *, force: bool = False, timeout: float | None = None
    ) -> int:
        return await self._driver.run(_snapshots.delete(cache, keys, force), timeout)

    async def list_snapshots(
        self, cache: str, *, page_size: int = 0, timeout: float | None = None
    ) -> AsyncIterator[Snapshot]:
        token = ""
        while True:
            snapshots, token = await self._driver.run(_snapshots.list_page(cache, page_size, token), timeout)
            for snapshot in snapshots:
                yield snapshot
            if not token:
                return

    def watch_snapshots(
        self, cache: str, *, existing: bool = False, timeout: float | None = None
    ) -> AsyncSnapshotWatch:
        return AsyncSnapshotWatch(self._driver, _snapshots.watch_request(cache, existing), timeout)

    async def export_snapshot(
        self, cache: str, key: bytes, path: str | os.PathLike[str], *, timeout: float | None = None
    ) -> ExportedSnapshot:
        return await self._driver.run(_snapshots.export(cache, key, path), timeout)

    async def import_snapshot(
        self, cache: str, path: str | os.PathLike[str], *, key: bytes = b"", timeout: float | None = None
    ) -> SnapshotOutcome:
        return await self._driver.run(_snapshots.import_(cache, path, key), timeout)


class AsyncSnapshotWatch:
    """An asynchronous iterator over events. Closing it ends the watching."""

    def __init__(self, driver: _Driver, request: bytes, timeout: float | None) -> None:
        self._closed = False
        self._call = driver.channel.unary_stream(_snapshots.WATCH)(request, timeout=timeout, metadata=driver.metadata())
        self._events: Iterator[SnapshotEvent] = iter(())

    def __aiter__(self) -> AsyncIterator[SnapshotEvent]:
        return self

    async def __anext__(self) -> SnapshotEvent:
        while True:
            for event in self._events:
                return event
            try:
                answer = await self._call.read()
            except (grpc.RpcError, asyncio.CancelledError) as error:
                if self._closed:
                    raise StopAsyncIteration from None
                if isinstance(error, grpc.RpcError):
                    raise errors.from_rpc(error) from None
                raise
            if answer is grpc.aio.EOF:
                raise StopAsyncIteration
            self._events = iter(_snapshots.watch_events(answer))

    def close(self) -> None:
        self._closed = True
        self._call.cancel()

    async def __aenter__(self) -> AsyncSnapshotWatch:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()


async def _keep_alive(driver: _Driver, state: _session.SessionState) -> None:
    while True:
        await asyncio.sleep(state.renewal_interval)
        if not await driver.run(_session.renew(state), state.renewal_interval):
            return


def _cancel(task: asyncio.Task[None] | None) -> None:
    with suppress(RuntimeError):  # the loop has been closed, and the task with it
        if task is not None:
            task.cancel()


class AsyncSession(_session.SessionProperties):
    """The same as :class:`gdpcache.Session`, with the same methods."""

    def __init__(self, driver: _Driver, state: _session.SessionState, keep_alive: bool) -> None:
        super().__init__(state)
        self._driver = driver
        renewal = asyncio.create_task(_keep_alive(driver, state)) if keep_alive else None
        # Also when the object is dropped without having been closed: then the server frees the slots after the ttl.
        self._stop_renewal = weakref.finalize(self, _cancel, renewal)
        self._stop_renewal.atexit = False

    async def close(self, *, timeout: float | None = None) -> None:
        self._stop_renewal()
        await self._driver.run(_session.close(self._state), timeout)

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except errors.GdpCacheError:
            if error is None:
                raise

    async def keep_alive(self, *, timeout: float | None = None) -> float:
        return await self._driver.run(_session.keep_alive(self._state), timeout)

    # --- slots ---

    async def acquire_slots(self, count: int = 1, *, timeout: float | None = None) -> list[int]:
        return await self._driver.run(_session.acquire_slots(self._state, count), timeout)

    async def release_slots(self, slots: TensorLike | Sequence[int], *, timeout: float | None = None) -> None:
        await self._driver.run(_session.release_slots(self._state, slots), timeout)

    async def reset_slots(self, slots: TensorLike | Sequence[int], *, timeout: float | None = None) -> None:
        await self._driver.run(_session.reset_slots(self._state, slots), timeout)

    async def copy_slots(
        self, copies: SlotCopies | Mapping[int, Sequence[int]], *, timeout: float | None = None
    ) -> None:
        await self._driver.run(_session.copy_slots(self._state, copies), timeout)

    async def fork_slot(self, source: int, count: int = 1, *, timeout: float | None = None) -> list[int]:
        return await self._driver.run(_session.fork_slot(self._state, source, count), timeout)

    async def read_slots(
        self,
        slots: TensorLike | Sequence[int],
        layers: TensorLike | Sequence[int] | None = None,
        *,
        timeout: float | None = None,
    ) -> SlotContents:
        return await self._driver.run(_session.read_slots(self._state, slots, layers), timeout)

    async def write_slots(
        self,
        slots: TensorLike | Sequence[int],
        state: TensorLike,
        layers: TensorLike | Sequence[int] | None = None,
        *,
        positions: TensorLike | Sequence[int] | None = None,
        auxiliary: TensorLike | None = None,
        timeout: float | None = None,
    ) -> None:
        await self._driver.run(_session.write_slots(self._state, slots, state, layers, positions, auxiliary), timeout)

    # --- the recurrence ---

    async def prefill(self, call: PrefillCall, *, timeout: float | None = None) -> PrefillResult:
        return await self._driver.run(_prefill.prefill(self._state, call), timeout)

    async def shared_empty(
        self, shape: int | Sequence[int], dtype: Any = "float32", *, timeout: float | None = None
    ) -> Array:
        return await self._driver.run(_shared.shared_empty(self._state, shape, dtype), timeout)

    async def settle(self, *, timeout: float | None = None) -> None:
        await self._driver.run(self._state.unsettled.wait(), timeout)

    async def list_shared_memory(self, *, timeout: float | None = None) -> list[Region]:
        return await self._driver.run(_session.list_shared_memory(self._state), timeout)

    # --- the prefix cache ---

    async def lookup_prefix(
        self, keys: Sequence[bytes], *, lease: float = 0.0, timeout: float | None = None
    ) -> PrefixMatch | None:
        return await self._driver.run(_snapshots.lookup(self._state.cache, keys, lease), timeout)

    async def save_snapshots(
        self, saves: Mapping[int, bytes], *, timeout: float | None = None
    ) -> list[SnapshotOutcome]:
        return await self._driver.run(_snapshots.save(self._state, saves), timeout)

    async def restore_snapshots(
        self,
        restores: Mapping[bytes, int | Sequence[int]],
        *,
        pin: str = "",
        timeout: float | None = None,
    ) -> list[int]:
        return await self._driver.run(_snapshots.restore(self._state, restores, pin), timeout)


def _document(theirs: type, ours: type) -> None:
    for name, member in vars(theirs).items():
        if name in vars(ours) and member.__doc__ and not name.startswith("_"):
            getattr(ours, name).__doc__ = member.__doc__


_document(client.Client, AsyncClient)
_document(client.Session, AsyncSession)
