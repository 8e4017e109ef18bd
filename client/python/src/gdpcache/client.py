"""The blocking client."""

from __future__ import annotations

import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from types import TracebackType
from typing import Any, TypeVar, cast

import grpc

from gdpcache import _channel, _prefill, _server, _session, _shared, _snapshots, errors
from gdpcache._ahead import Results, RunAhead
from gdpcache._channel import Deadline, TimeIsUpError
from gdpcache._operations import Blocking, Detached, Operation, Request, Sleep, Stream, Unary
from gdpcache.credentials import Access, Credentials
from gdpcache.layer_state import LayerState
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


class _Driver:
    """Performs what operations ask for."""

    def __init__(self, address: str, timeout: float, credentials: Credentials | None) -> None:
        self.timeout = timeout
        access = Access(address, credentials or Credentials.from_environment())
        self.metadata = access.metadata  # what goes with a call
        self.channel = access.open_channel(grpc, address, _channel.OPTIONS)
        self._unary: dict[str, Any] = {}

    def run(self, operation: Operation[T], timeout: float | None = None) -> T:
        deadline = Deadline.after(self.timeout if timeout is None else timeout)
        try:
            request = next(operation)
            while True:
                try:
                    result = self._perform(request, deadline)
                except grpc.RpcError as error:
                    request = operation.throw(errors.from_rpc(error))
                except BaseException as error:
                    request = operation.throw(error)
                else:
                    request = operation.send(result)
        except StopIteration as stop:
            value: T = stop.value
            return value

    def _perform(self, request: Request, deadline: Deadline) -> Any:
        if isinstance(request, Unary):
            return self._callable(request.path)(
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
                for answer in answers:
                    request.receive(answer)
            finally:
                answers.cancel()
            return None
        if isinstance(request, Sleep):
            return time.sleep(deadline.sleep(request.seconds))
        if isinstance(request, Blocking):
            return _on_another_thread(request.function, deadline.remaining())
        assert isinstance(request, Detached)
        thread = threading.Thread(target=self._run_detached, args=(request,), name="gdpcache-detached", daemon=True)
        thread.start()
        return thread.join(deadline.detached(request.wait))

    def send(self, path: str, request: bytes) -> Any:
        """Sends a message; the grpc.Future of the answer."""
        timeout = Deadline.after(self.timeout).remaining()
        return self._callable(path).future(request, timeout=timeout, metadata=self.metadata())

    def _callable(self, path: str) -> Any:
        call = self._unary.get(path)
        if call is None:
            call = self._unary[path] = self.channel.unary_unary(path)
        return call

    def _run_detached(self, request: Detached) -> None:
        with suppress(errors.GdpCacheError, ValueError):  # the latter is what gRPC raises once the client is closed
            self.run(request.operation, request.timeout)


def _on_another_thread(function: Callable[[], T], timeout: float | None) -> T:
    outcome: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            outcome.put((function(), None))
        except BaseException as error:
            outcome.put((None, error))

    threading.Thread(target=run, name="gdpcache-blocking", daemon=True).start()
    try:
        result, error = outcome.get(timeout=timeout)
    except queue.Empty:
        raise TimeIsUpError from None
    if error is not None:
        raise error
    return cast(T, result)


class Client:
    """A connection to one server, renewed by itself when it breaks. Safe for several threads.

    ``address`` is "host:port" or "unix:PATH"; without one, ``$GDPCACHE_SERVER`` or 127.0.0.1:7411. Nothing is sent
    before the first call. ``timeout`` (seconds) holds for calls that give none; ``math.inf`` means no limit.
    ``credentials`` are for servers with TLS or tokens; without them, what the environment says (see
    :meth:`Credentials.from_environment`). Calls fail with the classes of :mod:`gdpcache.errors`; a socket that another
    user may have put into a directory like /tmp is a ``PermissionError``.
    """

    def __init__(
        self, address: str | None = None, *, timeout: float = 60.0, credentials: Credentials | None = None
    ) -> None:
        self.address = _channel.address(address)
        self._driver = _Driver(self.address, timeout, credentials)

    def close(self) -> None:
        """Ends the connection; calls under way are cancelled. Sessions should be closed before."""
        self._driver.channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # --- the server and its caches ---

    def server_info(self, *, timeout: float | None = None) -> ServerInfo:
        """Version, backend, limits, transports, caches, memory."""
        return self._driver.run(_server.server_info(), timeout)

    def wait_for_server(self, *, timeout: float | None = None) -> ServerInfo:
        """The same, as soon as there is a server: for clients that start before it."""
        return self._driver.run(_server.server_info(wait_for_ready=True), timeout)

    def is_serving(self, *, timeout: float | None = None) -> bool:
        """What grpc.health.v1 says."""
        return self._driver.run(_server.is_serving(), timeout)

    def create_cache(
        self,
        name: str,
        geometry: CacheGeometry,
        *,
        fingerprint: str = "",
        ephemeral: bool = False,
        timeout: float | None = None,
    ) -> CreatedCache:
        """A cache that exists with the same geometry and fingerprint is returned; with others: AlreadyExistsError.
        ``fingerprint`` names the model, its revision and whatever else makes states incompatible. An ``ephemeral``
        cache goes with its last session."""
        return self._driver.run(_server.create_cache(name, geometry, fingerprint, ephemeral), timeout)

    def delete_cache(self, name: str, *, force: bool = False, timeout: float | None = None) -> None:
        """``force`` ends the cache's sessions first; without it open sessions are FailedPreconditionError."""
        self._driver.run(_server.delete_cache(name, force), timeout)

    def list_caches(self, *, timeout: float | None = None) -> list[CacheInfo]:
        return self._driver.run(_server.list_caches(), timeout)

    def list_slots(self, cache: str, *, timeout: float | None = None) -> SlotList:
        """Who holds what, at which positions."""
        return self._driver.run(_server.list_slots(cache), timeout)

    def open_session(
        self,
        cache: str,
        *,
        ttl: float = 60.0,
        client_name: str = "",
        keep_alive: bool = True,
        transport: Transport | str = Transport.AUTO,
        timeout: float | None = None,
    ) -> Session:
        """A lease on slots of a cache. The server frees them when it has heard nothing for ``ttl`` seconds;
        ``keep_alive`` renews it from a background thread. ``transport`` is that of prefills which do not say."""
        state = self._driver.run(_session.open_session(cache, ttl, client_name, transport), timeout)
        return Session(self._driver, state, keep_alive)

    # --- the prefix cache ---

    def lookup_prefix(
        self, cache: str, keys: Sequence[bytes], *, lease: float = 0.0, timeout: float | None = None
    ) -> PrefixMatch | None:
        """The longest of one prompt's prefixes that is there; ``keys`` shortest first. With a ``lease`` (seconds) it
        stays until then, or until it is restored with the match's pin."""
        return self._driver.run(_snapshots.lookup(cache, keys, lease), timeout)

    def pin_snapshots(
        self, cache: str, keys: Iterable[bytes], *, ttl: float = 0.0, timeout: float | None = None
    ) -> Pin:
        """Keeps snapshots from being evicted and deleted, for ``ttl`` seconds; 0: as long as the server allows."""
        return self._driver.run(_snapshots.pin(cache, keys, ttl), timeout)

    def unpin_snapshots(self, cache: str, pin: Pin | str, *, timeout: float | None = None) -> None:
        self._driver.run(_snapshots.unpin(cache, pin), timeout)

    def delete_snapshots(
        self, cache: str, keys: Iterable[bytes], *, force: bool = False, timeout: float | None = None
    ) -> int:
        """How many there were. ``force``: also pinned ones, which are FailedPreconditionError without it."""
        return self._driver.run(_snapshots.delete(cache, keys, force), timeout)

    def list_snapshots(self, cache: str, *, page_size: int = 0, timeout: float | None = None) -> Iterator[Snapshot]:
        """All of them in the keys' order, fetched page by page; ``timeout`` is that of a page."""
        token = ""
        while True:
            snapshots, token = self._driver.run(_snapshots.list_page(cache, page_size, token), timeout)
            yield from snapshots
            if not token:
                return

    def watch_snapshots(self, cache: str, *, existing: bool = False, timeout: float | None = None) -> SnapshotWatch:
        """What happens to snapshots from here on; with ``existing`` first what there is, then SYNCED. ``timeout`` (none
        unless given) ends the watching. A watcher that does not keep up gets ResourceExhaustedError."""
        return SnapshotWatch(self._driver, _snapshots.watch_request(cache, existing), timeout)

    def export_snapshot(
        self, cache: str, key: bytes, path: str | os.PathLike[str], *, timeout: float | None = None
    ) -> ExportedSnapshot:
        """Into a safetensors file. A transfer that breaks goes on where it stood, as often as it takes within the
        timeout, which is that of the whole transfer. The file takes its name when it is complete."""
        return self._driver.run(_snapshots.export(cache, key, path), timeout)

    def import_snapshot(
        self, cache: str, path: str | os.PathLike[str], *, key: bytes = b"", timeout: float | None = None
    ) -> SnapshotOutcome:
        """From a safetensors file, under the file's own key unless one is given. Goes on as ``export_snapshot``
        does."""
        return self._driver.run(_snapshots.import_(cache, path, key), timeout)


class SnapshotWatch:
    """An iterator over events. Closing it, also from another thread, ends the watching."""

    def __init__(self, driver: _Driver, request: bytes, timeout: float | None) -> None:
        self._closed = False
        self._answers = driver.channel.unary_stream(_snapshots.WATCH)(
            request, timeout=timeout, metadata=driver.metadata()
        )
        self._events: Iterator[SnapshotEvent] = iter(())

    def __iter__(self) -> Iterator[SnapshotEvent]:
        return self

    def __next__(self) -> SnapshotEvent:
        while True:
            for event in self._events:
                return event
            try:
                self._events = iter(_snapshots.watch_events(next(self._answers)))
            except grpc.RpcError as error:
                if self._closed:
                    raise StopIteration from None
                raise errors.from_rpc(error) from None

    def close(self) -> None:
        self._closed = True
        self._answers.cancel()

    def __enter__(self) -> SnapshotWatch:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _keep_alive(driver: _Driver, state: _session.SessionState, stop: threading.Event) -> None:
    while not stop.wait(state.renewal_interval):
        try:
            if not driver.run(_session.renew(state), state.renewal_interval):
                return
        except ValueError:  # what gRPC raises once the client is closed
            return


class Session(_session.SessionProperties):
    """A lease on slots of one cache, opened by :meth:`Client.open_session`. Closing it frees its slots: use it in a
    ``with`` statement. Safe for several threads."""

    def __init__(self, driver: _Driver, state: _session.SessionState, keep_alive: bool) -> None:
        super().__init__(state)
        self._driver = driver
        self._ahead = RunAhead(state, driver)
        stop = threading.Event()
        # Also when the object is dropped without having been closed: then the server frees the slots after the ttl.
        self._stop_renewal = weakref.finalize(self, stop.set)
        if keep_alive:
            threading.Thread(
                target=_keep_alive, args=(driver, state, stop), name="gdpcache-keep-alive", daemon=True
            ).start()

    def close(self, *, timeout: float | None = None) -> None:
        """Ends the session and frees its slots; again, or when it has expired, it does nothing."""
        self._stop_renewal()
        try:
            self._ahead.settle()
        finally:
            try:
                self._driver.run(_session.close(self._state), timeout)
            finally:
                self._ahead.close()

    def _run(self, operation: Operation[T], timeout: float | None) -> T:
        self._ahead.settle()
        return self._driver.run(operation, timeout)

    def _prefill_batched(self, call: PrefillCall) -> Results:
        """What chunk_gated_delta_product_fwd_h does."""
        results, prepared = self._ahead.prefill(call, is_batched=True)
        if results is not None:
            return results
        result = self._run(_prefill.prefill(self._state, call, is_batched=True, prepared=prepared), None)
        return result.h, result.v_new, result.final_state

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self.close()
        except errors.GdpCacheError:
            if error is None:
                raise

    def keep_alive(self, *, timeout: float | None = None) -> float:
        """Renews the session by hand; seconds to its expiry."""
        return self._driver.run(_session.keep_alive(self._state), timeout)

    # --- slots ---

    def acquire_slots(self, count: int = 1, *, timeout: float | None = None) -> list[int]:
        """Slots at position 0 with zero in every layer: ``count`` of them, or ResourceExhaustedError and none."""
        return self._run(_session.acquire_slots(self._state, count), timeout)

    def release_slots(self, slots: TensorLike | Sequence[int], *, timeout: float | None = None) -> None:
        self._run(_session.release_slots(self._state, slots), timeout)

    def reset_slots(self, slots: TensorLike | Sequence[int], *, timeout: float | None = None) -> None:
        """Back to zero and position 0 in every layer, all in one step."""
        self._run(_session.reset_slots(self._state, slots), timeout)

    def copy_slots(self, copies: SlotCopies | Mapping[int, Sequence[int]], *, timeout: float | None = None) -> None:
        """{source: destinations}, or pairs in the order in which they take effect: all layers, positions and auxiliary
        bytes. Other calls see all of them or none."""
        self._run(_session.copy_slots(self._state, copies), timeout)

    def fork_slot(self, source: int, count: int = 1, *, timeout: float | None = None) -> list[int]:
        """New slots that continue where ``source`` stands: for parallel sampling and beams."""
        return self._run(_session.fork_slot(self._state, source, count), timeout)

    def read_slots(
        self,
        slots: TensorLike | Sequence[int],
        layers: TensorLike | Sequence[int] | None = None,
        *,
        timeout: float | None = None,
    ) -> SlotContents:
        """The contents of slots, all of one moment. No ``layers``: all."""
        return self._run(_session.read_slots(self._state, slots, layers), timeout)

    def write_slots(
        self,
        slots: TensorLike | Sequence[int],
        state: TensorLike,
        layers: TensorLike | Sequence[int] | None = None,
        *,
        positions: TensorLike | Sequence[int] | None = None,
        auxiliary: TensorLike | None = None,
        timeout: float | None = None,
    ) -> None:
        """Stores ``state`` [slots, layers, H, K, V] in the cache's state dtype, ``positions`` [slots, layers] (none:
        all zero) and ``auxiliary`` bytes (none: left as they are) in one step."""
        self._run(_session.write_slots(self._state, slots, state, layers, positions, auxiliary), timeout)

    # --- the recurrence ---

    def prefill(self, call: PrefillCall, *, timeout: float | None = None) -> PrefillResult:
        """Runs the recurrence. Nothing changes in the cache unless the call succeeds, with one exception: when the
        answer is lost (UnavailableError, DeadlineExceededError) it may have been applied; see
        PrefillCall.expected_positions."""
        return self._run(_prefill.prefill(self._state, call), timeout)

    def run_ahead(self, limit: int = 64) -> AbstractContextManager[None]:
        """Within it :func:`gdpcache.chunk_gated_delta_product_fwd_h` does not wait for the server where all of a call's
        tensors, results included, are on the server's GPU: it returns when the call has been sent, and the current
        stream waits for the results. Other calls do as ever.

        A call's error is raised by the next call on the session, or at the end, which waits for all answers, as does
        every other operation of the session. Results since the failed call are void. Up to ``limit`` calls, at
        most 256, are under way, whose tensors are kept so long; the next one waits for the oldest's answer. On the
        server a call waits at most 10 s for its inputs."""
        return self._ahead.block(limit)

    def layer(self, layer: int) -> LayerState:
        """One layer of the cache as the ``state`` of :func:`gdpcache.chunk_gated_delta_product_fwd_h`."""
        return LayerState(self, layer)

    def shared_empty(
        self, shape: int | Sequence[int], dtype: Any = "float32", *, timeout: float | None = None
    ) -> Array:
        """An array in memory shared with the server, not initialised. Prefills need not copy it, neither as input nor
        as ``out``. UnavailableError where the server shares no memory with this client."""
        return self._run(_shared.shared_empty(self._state, shape, dtype), timeout)

    def settle(self, *, timeout: float | None = None) -> None:
        """After a call that ended without the server's answer, as by a timeout: waits until the server has let go of
        the memory that it shared. Before that it may still read such a call's arrays of ``shared_empty`` and tensors on
        the GPU, and write its results; after that the slots' positions tell whether it was applied."""
        self._run(self._state.unsettled.wait(), timeout)

    def list_shared_memory(self, *, timeout: float | None = None) -> list[Region]:
        """What the session shares with the server."""
        return self._run(_session.list_shared_memory(self._state), timeout)

    # --- the prefix cache ---

    def lookup_prefix(
        self, keys: Sequence[bytes], *, lease: float = 0.0, timeout: float | None = None
    ) -> PrefixMatch | None:
        """See :meth:`Client.lookup_prefix`."""
        return self._run(_snapshots.lookup(self._state.cache, keys, lease), timeout)

    def save_snapshots(self, saves: Mapping[int, bytes], *, timeout: float | None = None) -> list[SnapshotOutcome]:
        """{slot: key}: whole slots as they stand, all at one moment; every layer of a slot at one position."""
        return self._run(_snapshots.save(self._state, saves), timeout)

    def restore_snapshots(
        self,
        restores: Mapping[bytes, int | Sequence[int]],
        *,
        pin: str = "",
        timeout: float | None = None,
    ) -> list[int]:
        """{key: slot or slots}: states, positions and auxiliary bytes of all layers, in one step. The positions, one
        per key. A ``pin`` is released when it has succeeded."""
        return self._run(_snapshots.restore(self._state, restores, pin), timeout)
