"""Operations on the prefix cache."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO

from gdpcache import _convert, _frames
from gdpcache._arena import Descriptor
from gdpcache._operations import SERVICE, Blocking, Operation, Sleep, Stream, parse, unary
from gdpcache._session import SessionState
from gdpcache._tensors import indices
from gdpcache.errors import GdpCacheError, NotFoundError, UnavailableError, protocol_error
from gdpcache.types import ExportedSnapshot, Pin, PrefixMatch, Snapshot, SnapshotEvent, SnapshotOutcome
from gdpcache.v1 import snapshot_pb2

# A transfer that broke goes on after a pause, which doubles; after so many breaks without a byte in between it has
# failed.
_FIRST_PAUSE = 0.1  # seconds
_LONGEST_PAUSE = 2.0
_MAX_FRUITLESS_ATTEMPTS = 10


def save(session: SessionState, saves: Mapping[int, bytes]) -> Operation[list[SnapshotOutcome]]:
    request = snapshot_pb2.SaveSnapshotsRequest(
        session=session.id, saves=[snapshot_pb2.SlotSave(slot=slot, key=key) for slot, key in saves.items()]
    )
    answer = yield from unary("SaveSnapshots", request, snapshot_pb2.SaveSnapshotsResponse)
    return [_convert.outcome(outcome) for outcome in answer.outcomes]


def lookup(cache: str, keys: Sequence[bytes], lease: float) -> Operation[PrefixMatch | None]:
    request = snapshot_pb2.LookupPrefixRequest(cache=cache, keys=keys, lease_ms=_convert.milliseconds(lease))
    answer = yield from unary("LookupPrefix", request, snapshot_pb2.LookupPrefixResponse)
    if answer.index < 0:
        return None
    if answer.index >= len(keys) or not answer.HasField("snapshot"):
        raise protocol_error(f"key {answer.index} of {len(keys)} was found")
    return PrefixMatch(answer.index, _convert.snapshot(answer.snapshot), answer.pin)


def restore(session: SessionState, restores: Mapping[bytes, int | Sequence[int]], pin: str) -> Operation[list[int]]:
    request = snapshot_pb2.RestoreSnapshotsRequest(
        session=session.id,
        restores=[
            snapshot_pb2.SlotRestore(key=key, slots=[slots] if isinstance(slots, int) else indices("slots", slots))
            for key, slots in restores.items()
        ],
        pin=pin,
    )
    answer = yield from unary("RestoreSnapshots", request, snapshot_pb2.RestoreSnapshotsResponse)
    return list(answer.positions)


def pin(cache: str, keys: Iterable[bytes], ttl: float) -> Operation[Pin]:
    request = snapshot_pb2.PinSnapshotsRequest(cache=cache, keys=keys, ttl_ms=_convert.milliseconds(ttl))
    answer = yield from unary("PinSnapshots", request, snapshot_pb2.PinSnapshotsResponse)
    return Pin(answer.pin, answer.ttl_ms / 1000)


def unpin(cache: str, pin: Pin | str) -> Operation[None]:
    request = snapshot_pb2.UnpinSnapshotsRequest(cache=cache, pin=pin if isinstance(pin, str) else pin.id)
    yield from unary("UnpinSnapshots", request, snapshot_pb2.UnpinSnapshotsResponse)


def delete(cache: str, keys: Iterable[bytes], force: bool) -> Operation[int]:
    request = snapshot_pb2.DeleteSnapshotsRequest(cache=cache, keys=keys, force=force)
    answer = yield from unary("DeleteSnapshots", request, snapshot_pb2.DeleteSnapshotsResponse)
    return int(answer.deleted)


def list_page(cache: str, page_size: int, page_token: str) -> Operation[tuple[list[Snapshot], str]]:
    """A page, and the token of the next one or nothing."""
    request = snapshot_pb2.ListSnapshotsRequest(cache=cache, page_size=page_size, page_token=page_token)
    answer = yield from unary("ListSnapshots", request, snapshot_pb2.ListSnapshotsResponse)
    return [_convert.snapshot(snapshot) for snapshot in answer.snapshots], answer.next_page_token


WATCH = SERVICE + "WatchSnapshots"


def watch_request(cache: str, existing: bool) -> bytes:
    request: bytes = snapshot_pb2.WatchSnapshotsRequest(cache=cache, existing=existing).SerializeToString()
    return request


def watch_events(answer: bytes) -> list[SnapshotEvent]:
    return [_convert.event(event) for event in parse(snapshot_pb2.WatchSnapshotsResponse, answer).events]


class _Transfer:
    """How often a transfer is taken up again."""

    def __init__(self) -> None:
        self._attempts = 0
        self._reached = 0

    def pause(self, error: GdpCacheError, reached: int) -> Operation[None]:
        """Waits after an interruption at this byte, or lets it end the transfer."""
        if reached > self._reached:
            self._attempts = 0
        self._reached = reached
        self._attempts += 1
        if self._attempts == _MAX_FRUITLESS_ATTEMPTS:
            raise error
        yield Sleep(min(_FIRST_PAUSE * 2 ** (self._attempts - 1), _LONGEST_PAUSE))


class _Download:
    """The file that ReadSnapshot sends, written where it breaks off and goes on."""

    def __init__(self, cache: str, key: bytes, file: BinaryIO) -> None:
        self._cache = cache
        self._key = key
        self._file = file
        self.offset = 0
        self.size: int | None = None
        self.position = 0

    def request(self) -> Stream:
        request = snapshot_pb2.ReadSnapshotRequest(cache=self._cache, key=self._key, offset=self.offset)
        return Stream(SERVICE + "ReadSnapshot", iter([request.SerializeToString()]), self._receive)

    def _receive(self, answer: bytes) -> None:
        message = parse(snapshot_pb2.ReadSnapshotResponse, answer)
        if message.size:
            if self.size not in (None, message.size):
                raise protocol_error(f"a file of {message.size} bytes that had {self.size}")
            self.size, self.position = message.size, message.position
        if message.payload:
            if message.offset != self.offset:
                raise protocol_error(f"bytes at offset {message.offset}; expected {self.offset}")
            self._file.write(message.payload)
            self.offset += len(message.payload)


def _synchronize(file: Descriptor) -> None:
    os.fsync(file.number)


def export(cache: str, key: bytes, path: str | os.PathLike[str]) -> Operation[ExportedSnapshot]:
    """Into a file beside `path` first, so that `path` is never half a snapshot."""
    target = Path(path)
    partial = target.with_name(f"{target.name}.{os.urandom(8).hex()}")
    transfer = _Transfer()
    with ExitStack() as stack:
        stack.callback(partial.unlink, missing_ok=True)
        with open(partial, "xb") as file:
            download = _Download(cache, key, file)
            while True:
                try:
                    yield download.request()
                    break
                except UnavailableError as error:
                    yield from transfer.pause(error, download.offset)
            if download.offset != download.size:
                raise protocol_error(f"{download.offset} of {download.size} bytes came")
            file.flush()
            yield Blocking(functools.partial(_synchronize, Descriptor(os.dup(file.fileno()))))
        os.replace(partial, target)
    return ExportedSnapshot(download.position, download.offset)


def import_(cache: str, path: str | os.PathLike[str], key: bytes) -> Operation[SnapshotOutcome]:
    transfer = _Transfer()
    upload = os.urandom(16).hex()
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        offset = 0
        while True:
            answers: list[bytes] = []
            frames = _upload_frames(file, cache, key, upload, size, offset)
            try:
                yield Stream(SERVICE + "WriteSnapshot", frames, answers.append)
                break
            except UnavailableError as error:
                yield from transfer.pause(error, offset)
                offset = yield from _received(cache, upload)
    if len(answers) != 1:
        raise protocol_error(f"{len(answers)} answers to an upload")
    return _convert.outcome(parse(snapshot_pb2.WriteSnapshotResponse, answers[0]).outcome)


def _received(cache: str, upload: str) -> Operation[int]:
    """How much of an upload the server has; all of it has to come again where it has given the upload up."""
    request = snapshot_pb2.QueryWriteStatusRequest(cache=cache, upload=upload)
    with suppress(NotFoundError, UnavailableError):
        answer = yield from unary("QueryWriteStatus", request, snapshot_pb2.QueryWriteStatusResponse)
        return int(answer.received)
    return 0


def _upload_frames(file: BinaryIO, cache: str, key: bytes, upload: str, size: int, offset: int) -> Iterator[bytes]:
    header = snapshot_pb2.WriteSnapshotHeader(cache=cache, key=key, upload=upload, size=size, offset=offset)
    yield snapshot_pb2.WriteSnapshotRequest(header=header).SerializeToString()
    file.seek(offset)
    while payload := file.read(_frames.MAX_PAYLOAD):
        yield snapshot_pb2.WriteSnapshotRequest(payload=payload).SerializeToString()
