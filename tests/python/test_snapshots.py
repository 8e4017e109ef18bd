"""The prefix cache of a real server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from conftest import Server
from problems import random_call

import gdpcache
from gdpcache import EventType, SnapshotDirective, SnapshotResult

KEYS = [bytes([n]) * 16 for n in range(10)]
AUXILIARY = bytes(range(6))


def save(session: gdpcache.Session, slot: int, key: bytes, tokens: int = 32) -> None:
    """A snapshot after so many tokens, in both layers."""
    session.reset_slots([slot])
    for layer in range(2):
        session.prefill(random_call(layer, tokens, layer=layer, state_indices=[slot]))
    (outcome,) = session.save_snapshots({slot: key})
    assert outcome == gdpcache.SnapshotOutcome(SnapshotResult.STORED, tokens)


def test_a_saved_slot_is_found_and_restored(client: gdpcache.Client, cache: str) -> None:
    with client.open_session(cache) as session:
        source, *targets = session.acquire_slots(3)
        assert session.lookup_prefix(KEYS) is None
        save(session, source, KEYS[1])
        match = client.lookup_prefix(cache, KEYS[:3], lease=5)
        assert match is not None
        assert (match.index, match.key, match.position) == (1, KEYS[1], 32)
        assert match.snapshot.size == 2 * (2 * 16 * 24 * 4 + 6)
        assert match.snapshot.pinned
        assert session.restore_snapshots({KEYS[1]: targets}, pin=match.pin) == [32]
        contents = session.read_slots([source, *targets])
        assert (contents.state == contents.state[0]).all()
        assert contents.positions.tolist() == [[32, 32]] * 3
        with pytest.raises(gdpcache.NotFoundError):
            session.restore_snapshots({KEYS[2]: targets})
        client.delete_snapshots(cache, KEYS)


def test_boundaries_of_a_prefill_are_kept_when_every_layer_has_brought_them(
    client: gdpcache.Client, cache: str
) -> None:
    directives = [SnapshotDirective(0, 2, KEYS[0], AUXILIARY), SnapshotDirective(0, 3, KEYS[1], AUXILIARY)]
    with client.open_session(cache) as session:
        one, two = session.acquire_slots(2)
        results = []
        for layer, expected in enumerate((SnapshotResult.PENDING, SnapshotResult.STORED)):
            assert session.lookup_prefix(KEYS) is None
            call = random_call(layer, 40, layer=layer, state_indices=[one], snapshots=directives)
            results.append(session.prefill(call))
            outcomes = results[-1].snapshots
            assert [(outcome.result, outcome.position) for outcome in outcomes] == [(expected, 32), (expected, 40)]
        match = session.lookup_prefix(KEYS)
        assert match is not None
        assert (match.index, match.position) == (1, 40)
        # Continuing from the boundary gives the bits of the uninterrupted call.
        session.restore_snapshots({KEYS[0]: two})
        contents = session.read_slots([two])
        assert contents.auxiliary is not None
        assert contents.auxiliary.reshape(2, 6).tolist() == [list(AUXILIARY)] * 2
        for layer in range(2):
            rest = random_call(layer, 40, layer=layer, state_indices=[two])
            for name in ("k", "w", "u", "g"):
                setattr(rest, name, getattr(rest, name)[32:])
            assert (session.prefill(rest).v_new == results[layer].v_new[32:]).all()
        contents = session.read_slots([one, two])
        assert (contents.state[0] == contents.state[1]).all()
        client.delete_snapshots(cache, KEYS)


def test_snapshots_are_listed_pinned_and_deleted(client: gdpcache.Client, cache: str) -> None:
    with client.open_session(cache) as session:
        (slot,) = session.acquire_slots()
        for key in KEYS[:5]:
            save(session, slot, key)
        assert [snapshot.key for snapshot in client.list_snapshots(cache, page_size=2)] == KEYS[:5]
        pin = client.pin_snapshots(cache, KEYS[:2], ttl=30)
        assert 0 < pin.ttl <= 30
        with pytest.raises(gdpcache.FailedPreconditionError):
            client.delete_snapshots(cache, KEYS)
        client.unpin_snapshots(cache, pin)
        with pytest.raises(gdpcache.NotFoundError):
            client.unpin_snapshots(cache, pin)
        with pytest.raises(gdpcache.NotFoundError):
            client.pin_snapshots(cache, KEYS)
        assert client.delete_snapshots(cache, KEYS) == 5
        assert list(client.list_snapshots(cache)) == []


def test_snapshots_outlive_the_session_as_files(client: gdpcache.Client, cache: str, tmp_path: Path) -> None:
    path = tmp_path / "snapshot.safetensors"
    with client.open_session(cache) as session:
        one, two = session.acquire_slots(2)
        save(session, one, KEYS[0])
        exported = client.export_snapshot(cache, KEYS[0], str(path))
        assert exported == (32, path.stat().st_size)
        client.delete_snapshots(cache, KEYS)
        assert client.import_snapshot(cache, str(path)).result is SnapshotResult.STORED
        assert client.import_snapshot(cache, str(path), key=KEYS[1]).result is SnapshotResult.STORED
        assert client.import_snapshot(cache, str(path)).result is SnapshotResult.PRESENT
        session.restore_snapshots({KEYS[1]: two})
        state = session.read_slots([one, two]).state
        assert (state[0] == state[1]).all()
        damaged = bytearray(path.read_bytes())
        damaged[-1] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(gdpcache.DataLossError):
            client.import_snapshot(cache, str(path), key=KEYS[2])
        client.delete_snapshots(cache, KEYS)


def test_watchers_are_told(server: Server, client: gdpcache.Client, cache: str) -> None:
    with client.open_session(cache) as session:
        (slot,) = session.acquire_slots()
        save(session, slot, KEYS[0])
        with client.watch_snapshots(cache, existing=True) as watch:
            told = [next(watch), next(watch)]
            save(session, slot, KEYS[1], tokens=48)
            client.delete_snapshots(cache, KEYS)
            told += [next(watch) for _ in range(3)]
    assert [(event.type, event.key, event.position) for event in told[:3]] == [
        (EventType.STORED, KEYS[0], 32),
        (EventType.SYNCED, b"", 0),
        (EventType.STORED, KEYS[1], 48),
    ]
    assert {(event.type, event.key) for event in told[3:]} == {
        (EventType.DELETED, KEYS[0]),
        (EventType.DELETED, KEYS[1]),
    }


def test_the_asyncio_client_does_the_same(server: Server, cache: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with gdpcache.AsyncClient(server.unix) as client, await client.open_session(cache) as session:
            one, two = await session.acquire_slots(2)
            state = np.random.default_rng(1).standard_normal((1, 2, 2, 16, 24)).astype(np.float32)
            await session.write_slots([one], state, positions=[[7, 7]])
            await session.save_snapshots({one: KEYS[0]})
            match = await session.lookup_prefix(KEYS)
            assert match is not None
            assert await session.restore_snapshots({KEYS[0]: [two]}) == [7]
            assert ((await session.read_slots([two])).state == state).all()
            assert [snapshot.position async for snapshot in client.list_snapshots(cache)] == [7]
            await client.export_snapshot(cache, KEYS[0], str(tmp_path / "snapshot"))
            assert await client.delete_snapshots(cache, KEYS) == 1

    asyncio.run(main())
