"""Export and import of snapshots over connections that break, and watching."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from fake_server import fake_server

import gdpcache
from gdpcache import EventType, SnapshotEvent, SnapshotResult, _frames, _snapshots
from gdpcache.v1 import snapshot_pb2

KEY = b"k" * 16
FILE = bytes(range(256)) * 20


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_snapshots, "_FIRST_PAUSE", 0.0)


class Storage:
    """Sends and takes FILE, and hangs up after as many bytes as `breaks` says, call by call."""

    def __init__(self, *breaks: int) -> None:
        self.breaks = list(breaks)
        self.offsets: list[int] = []
        self.received = bytearray()
        self.uploads: set[str] = set()
        self.forget = False

    def handlers(self) -> dict[str, Any]:
        return {"ReadSnapshot": self._read, "WriteSnapshot": self._write, "QueryWriteStatus": self._status}

    def _read(
        self, request: snapshot_pb2.ReadSnapshotRequest, context: grpc.ServicerContext
    ) -> Iterator[snapshot_pb2.ReadSnapshotResponse]:
        assert request.key == KEY
        self.offsets.append(request.offset)
        end = self.breaks.pop(0) if self.breaks else len(FILE)
        first = {"size": len(FILE), "position": 128}
        for offset in range(request.offset, end, 1000):
            payload = FILE[offset : min(end, offset + 1000)]
            yield snapshot_pb2.ReadSnapshotResponse(offset=offset, payload=payload, **first)
            first = {}
        if end < len(FILE):
            context.abort(grpc.StatusCode.UNAVAILABLE, "the line is cut")

    def _write(
        self, requests: Iterator[snapshot_pb2.WriteSnapshotRequest], context: grpc.ServicerContext
    ) -> snapshot_pb2.WriteSnapshotResponse:
        header = next(requests).header
        assert header.size == len(FILE)
        assert header.offset == len(self.received)
        self.offsets.append(header.offset)
        self.uploads.add(header.upload)
        end = self.breaks.pop(0) if self.breaks else len(FILE)
        for request in requests:
            self.received += request.payload
            if len(self.received) > end:
                del self.received[end:]
                context.abort(grpc.StatusCode.UNAVAILABLE, "the line is cut")
        assert self.received == FILE
        return snapshot_pb2.WriteSnapshotResponse(outcome={"result": SnapshotResult.STORED.value, "position": 128})

    def _status(
        self, request: snapshot_pb2.QueryWriteStatusRequest, context: grpc.ServicerContext
    ) -> snapshot_pb2.QueryWriteStatusResponse:
        assert request.upload in self.uploads
        if self.forget:
            self.received.clear()
            context.abort(grpc.StatusCode.NOT_FOUND, "it was given up")
        return snapshot_pb2.QueryWriteStatusResponse(received=len(self.received), size=len(FILE))


def test_an_export_goes_on_where_it_broke(tmp_path: Path) -> None:
    storage = Storage(2500, 2500, 4000)
    with fake_server(storage.handlers()) as address, gdpcache.Client(address) as client:
        exported = client.export_snapshot("fake", KEY, str(tmp_path / "snapshot"))
    assert exported == (128, len(FILE))
    assert (tmp_path / "snapshot").read_bytes() == FILE
    assert storage.offsets == [0, 2500, 2500, 4000]
    assert [path.name for path in tmp_path.iterdir()] == ["snapshot"]


def test_an_export_that_gets_nowhere_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "snapshot").write_bytes(b"the one before")
    storage = Storage(*[1000] * 50)
    with fake_server(storage.handlers()) as address, gdpcache.Client(address) as client:
        with pytest.raises(gdpcache.UnavailableError, match="the line is cut"):
            client.export_snapshot("fake", KEY, str(tmp_path / "snapshot"))
        assert len(storage.offsets) == 10
    assert [path.name for path in tmp_path.iterdir()] == ["snapshot"]
    assert (tmp_path / "snapshot").read_bytes() == b"the one before"


@pytest.mark.parametrize(
    "answer",
    [
        {"size": 5, "payload": b"abc"},
        {"size": 5, "offset": 1, "payload": b"abc"},
        {"size": 5, "payload": b"abcdefg"},
        {},
    ],
)
def test_an_export_that_is_not_whole_is_an_error(tmp_path: Path, answer: dict[str, Any]) -> None:
    handlers = {"ReadSnapshot": lambda request, context: iter([snapshot_pb2.ReadSnapshotResponse(**answer)])}
    with (
        fake_server(handlers) as address,
        gdpcache.Client(address) as client,
        pytest.raises(gdpcache.InternalError, match="breaks the protocol"),
    ):
        client.export_snapshot("fake", KEY, str(tmp_path / "snapshot"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("forget", [False, True])
def test_an_import_goes_on_where_it_broke(tmp_path: Path, forget: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_frames, "MAX_PAYLOAD", 1000)
    path = tmp_path / "snapshot"
    path.write_bytes(FILE)
    storage = Storage(2500, 3500)
    storage.forget = forget
    with fake_server(storage.handlers()) as address, gdpcache.Client(address) as client:
        outcome = client.import_snapshot("fake", str(path))
    assert outcome.result is SnapshotResult.STORED
    assert storage.offsets == ([0, 0, 0] if forget else [0, 2500, 3500])
    assert len(storage.uploads) == 1


def test_the_asyncio_client_transfers_too(tmp_path: Path) -> None:
    storage = Storage(2500)
    path = tmp_path / "snapshot"

    async def main(address: str) -> None:
        async with gdpcache.AsyncClient(address) as client:
            await client.export_snapshot("fake", KEY, str(path))
            storage.breaks = [0]
            await client.import_snapshot("fake", str(path))

    with fake_server(storage.handlers()) as address:
        asyncio.run(main(address))
    assert path.read_bytes() == FILE


def events(
    request: snapshot_pb2.WatchSnapshotsRequest, context: grpc.ServicerContext
) -> Iterator[snapshot_pb2.WatchSnapshotsResponse]:
    assert request.existing
    yield snapshot_pb2.WatchSnapshotsResponse(events=[{"type": 1, "key": KEY, "position": 64}, {"type": 4}])
    yield snapshot_pb2.WatchSnapshotsResponse(events=[{"type": 99, "key": KEY}])
    stopped = threading.Event()
    context.add_callback(stopped.set)
    stopped.wait(60)


EXPECTED = [
    SnapshotEvent(EventType.STORED, KEY, 64),
    SnapshotEvent(EventType.SYNCED, b"", 0),
    SnapshotEvent(EventType.UNKNOWN, KEY, 0),  # of a newer server
]


def test_watching_ends_when_it_is_closed() -> None:
    with fake_server({"WatchSnapshots": events}) as address, gdpcache.Client(address) as client:
        with client.watch_snapshots("fake", existing=True) as watch:
            assert [next(watch) for _ in range(3)] == EXPECTED
        assert list(watch) == []


def test_watching_with_asyncio() -> None:
    async def main(address: str) -> None:
        async with gdpcache.AsyncClient(address) as client:
            async with client.watch_snapshots("fake", existing=True) as watch:
                assert [await watch.__anext__() for _ in range(3)] == EXPECTED
            assert [event async for event in watch] == []

    with fake_server({"WatchSnapshots": events}) as address:
        asyncio.run(asyncio.wait_for(main(address), 60))


def test_a_watcher_that_was_too_slow_is_told() -> None:
    def slow(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        yield snapshot_pb2.WatchSnapshotsResponse(events=[{"type": 3, "key": KEY}])
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too slow")

    with fake_server({"WatchSnapshots": slow}) as address, gdpcache.Client(address) as client:
        watch = client.watch_snapshots("fake")
        assert next(watch).type is EventType.DELETED
        with pytest.raises(gdpcache.ResourceExhaustedError, match="too slow"):
            next(watch)
