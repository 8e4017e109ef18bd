"""Calls on a GPU whose answers nobody waits for: they are over for the caller when they have been sent."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from gdpcache import _shared, errors
from gdpcache._cuda import CudaError
from gdpcache._flags import COUNT, SIZE, Flag, Flags
from gdpcache._prepared import Prepared, finish_expected, prepare, transport_of
from gdpcache._session import SessionState
from gdpcache._sharing import SharingUnavailableError, may_have_been_done
from gdpcache.errors import GdpCacheError
from gdpcache.prefill import PrefillCall
from gdpcache.types import TensorLike, Transport

if TYPE_CHECKING:
    from gdpcache.client import _Driver

Results = tuple[TensorLike, TensorLike, TensorLike]


class _Outstanding:
    """A call under way. Keeps its tensors."""

    def __init__(self, call: _shared.CudaCall, flag: Flag, expected: bytes, future: Any) -> None:
        self.call = call
        self.expected = expected  # what the answer should begin with
        self.future = future
        self._flag = flag
        self._under_way = threading.Lock()
        self._under_way.acquire()

    def end(self, future: object) -> None:
        """Runs on gRPC's thread when there is an answer, or there will be none. Where the server has not set the flag,
        nobody else lets the stream go on: the caller may be waiting for it."""
        self._flag.set()
        self._under_way.release()

    def is_over(self) -> bool:
        return not self._under_way.locked()

    def wait(self) -> None:
        with self._under_way:
            pass


class RunAhead:
    """Those of a session, in the order in which they were sent. Safe for several threads."""

    def __init__(self, session: SessionState, driver: _Driver) -> None:
        self._session = session
        self._driver = driver
        server = session.server
        self._possible = server.done_flags and session.arena.available and session.cuda.available
        self._lock = threading.Lock()
        self._limits: list[int] = []  # of outstanding calls, by the blocks that are open: each holds
        self._outstanding: deque[_Outstanding] = deque()
        self._errors: list[GdpCacheError] = []  # that nobody has heard of
        self._flags: Flags | None = None
        self._names = (f"flags-{number}" for number in itertools.count(1))  # each once: one may be lost

    @contextmanager
    def block(self, limit: int) -> Iterator[None]:
        if not 1 <= limit <= COUNT:
            raise ValueError(f"limit is {limit}; it must be from 1 to {COUNT}, one for each flag of a session")
        self._limits.append(limit)
        try:
            yield
        except BaseException:
            self._limits.remove(limit)
            with suppress(GdpCacheError):
                self.settle()
            raise
        self._limits.remove(limit)
        self.settle()

    def settle(self) -> None:
        """Waits for all answers; raises the first error."""
        if not self._outstanding and not self._errors:
            return
        with self._lock:
            self._settle()

    def close(self) -> None:
        """When the session has ended; all calls are over."""
        flags, self._flags = self._flags, None
        if flags is not None:
            flags.close()

    def prefill(self, call: PrefillCall, *, is_batched: bool) -> tuple[Results | None, Prepared | None]:
        """Sends the call and lets the caller's streams wait for its end. No results for one that has to go another way,
        but what it was taken apart into, if that was needed to find out. Raises what earlier calls have failed with."""
        limit = min(self._limits, default=0)
        if limit == 0 or not self._possible:
            return None, None
        with self._lock:
            while self._outstanding and (self._outstanding[0].is_over() or len(self._outstanding) >= limit):
                self._end_oldest()
            self._raise()
            if transport_of(self._session, call) not in (Transport.AUTO, Transport.CUDA_IPC):
                return None, None
            prepared = prepare(self._session, call, is_batched)
            return self._prefill(prepared), prepared

    def _prefill(self, prepared: Prepared) -> Results | None:
        begun = self._driver.run(_shared.begin_ahead(self._session, prepared))
        if begun is None:
            return None
        flag = None
        try:
            flag = self._flag_for(begun)
        finally:
            if flag is None:
                self._session.cuda.give_events(begun.pair)
        if flag is None:
            return None
        self._send(begun, flag)
        return begun.results()

    def _flag_for(self, call: _shared.CudaCall) -> Flag | None:
        if call.pair.flag is not None:
            return call.pair.flag
        if self._flags is None:
            try:
                region = self._driver.run(self._session.arena.share(next(self._names), SIZE))
                self._flags = Flags(region, call.pair.context)
            except (SharingUnavailableError, CudaError):
                self._possible = False
                return None
        call.pair.flag = self._flags.take()
        return call.pair.flag

    def _send(self, call: _shared.CudaCall, flag: Flag) -> None:
        request, expected = call.places.encode(call.pair.encoded_ready, flag.next())
        try:
            call.record_inputs()
            future = self._driver.send(_shared.PREFILL, request)
            outstanding = _Outstanding(call, flag, expected, future)
            future.add_done_callback(outstanding.end)
        except Exception:  # the server knows nothing of it
            self._session.cuda.give_events(call.pair)
            raise
        except BaseException:  # as when the user interrupts: maybe it does
            self._driver.run(_shared.retire(self._session, call))
            raise
        self._outstanding.append(outstanding)
        try:
            with call.pair.context:
                for stream in call.streams:
                    flag.let_wait(stream)
        except CudaError:  # streams that cannot wait: then this thread does
            self._possible = False
            self._settle()

    def _settle(self) -> None:
        while self._outstanding:
            self._end_oldest()
        self._raise()

    def _end_oldest(self) -> None:
        self._outstanding[0].wait()
        outstanding = self._outstanding.popleft()
        session, call = self._session, outstanding.call
        failure = outstanding.future.exception()
        if failure is None:
            session.cuda.give_events(call.pair)
            answer = outstanding.future.result()
            try:
                finish_expected(
                    session, call.prepared, answer, outstanding.expected, Transport.CUDA_IPC, call.places.deliver
                )
            except GdpCacheError as broken:
                self._errors.append(broken)
            return
        error = errors.from_rpc(failure)
        self._errors.append(error)
        if may_have_been_done(error):
            self._driver.run(_shared.retire(session, call))
        else:
            session.cuda.give_events(call.pair)

    def _raise(self) -> None:
        if self._errors:
            error = self._errors[0]
            self._errors.clear()
            raise error
