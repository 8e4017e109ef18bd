"""One client of the soak: does at random what serving engines do, and compares every bit that comes back.

usage: traffic.py ADDRESS RESULTS SEED PACE [cuda_ipc]

With cuda_ipc half of its sessions have their tensors on the server's GPU, and share them with it.

Prints, once a second, what it has done since the line before, as JSON. Ends only with an error, or when it is killed.
"""

from __future__ import annotations

import collections
import json
import os
import pickle
import random
import sys
import tempfile
import time
from dataclasses import dataclass, field

import numpy as np
from device_memory import DeviceArray, Gpu, Memory
from documents import CHUNK, COUNT, LAYERS, STEPS, Document, Floats, Results, Rows, auxiliary

import gdpcache

CACHE = "soak"
SESSION_TTL = 15.0  # seconds: what a killed client held comes back then
GENERATION_SECONDS = 5.0
PATIENCE = 60.0  # seconds, of the server to let go of what killed clients and calls that were given up had


class WrongResultError(Exception):
    pass


def expect_same(what: str, actual: object, expected: Floats) -> None:
    if np.asarray(actual).tobytes() != expected.tobytes():
        raise WrongResultError(f"{what} differs")


def generation_at(now: float) -> int:
    return int(now / GENERATION_SECONDS)


@dataclass
class Reading:
    """A document on its way through a slot."""

    document: Document
    results: Results
    slot: int
    keys: dict[int, bytes] = field(default_factory=dict)
    position: int = 0

    @property
    def left(self) -> int:
        return len(self.document) - self.position

    def check(self, contents: gdpcache.SlotContents, index: int) -> None:
        for layer in range(LAYERS):
            expected = self.results.state(layer, self.position, len(self.document))
            expect_same(f"the state at {self.position}", contents.state[index, layer], expected)


class Traffic:
    def __init__(self, address: str, results: list[Results], seed: int, gpu: Gpu | None) -> None:
        self.gpu = gpu
        self.memory: Memory | None = None  # on the GPU
        self.random = random.Random(seed)
        self.client = gdpcache.Client(address)
        self.transports = [gdpcache.Transport.UNARY, gdpcache.Transport.STREAM]
        if "shared_memory" in self.client.server_info().transports:
            self.transports.append(gdpcache.Transport.SHARED_MEMORY)
        self.works = [(Document.create(number), results[number]) for number in range(COUNT)]
        self.counts: collections.Counter[str] = collections.Counter()
        self.session = self.open_session()

    def open_session(self) -> gdpcache.Session:
        transport = self.random.choice(self.transports)
        self.tensors_on: Gpu | None = None  # None: the host
        if self.gpu is not None and self.random.random() < 0.5:
            transport = gdpcache.Transport.CUDA_IPC
            self.tensors_on = self.gpu
        self.counts[f"sessions by {transport.value}"] += 1
        return self.client.open_session(CACHE, ttl=SESSION_TTL, client_name="soak", transport=transport)

    def do_something(self) -> None:
        action = self.random.choices((self.serve, self.look, self.move, self.watch, self.reopen), (70, 15, 5, 5, 5))[0]
        try:
            action()
        except gdpcache.ResourceExhaustedError as error:
            self.counts["refused"] += 1
            time.sleep(error.retry_delay or 0.1)

    def look(self) -> None:
        document, _ = self.random.choice(self.works)
        keys = document.keys(generation_at(time.time()) - self.random.randrange(3))
        match = self.session.lookup_prefix(list(keys.values()))
        if match is not None and keys.get(match.position) != match.key:
            raise WrongResultError(f"a lookup found {match.key.hex()} at {match.position}")
        self.counts["lookups"] += 1

    def reopen(self) -> None:
        if self.random.random() < 0.5:
            self.session.close()
            self.session = self.open_session()
            return
        # One that nobody closes or renews: it ends by itself, and lets go of its slots.
        forgotten = self.client.open_session(CACHE, ttl=SESSION_TTL, client_name="forgotten", keep_alive=False)
        forgotten.acquire_slots()
        self.counts["sessions forgotten"] += 1

    def watch(self) -> None:
        with self.client.watch_snapshots(CACHE, existing=True) as watch:
            for event in watch:
                if event.type == gdpcache.EventType.SYNCED:
                    break
        self.counts["watches"] += 1

    def move(self) -> None:
        """A snapshot goes to a file and comes back."""
        (slot,) = self.session.acquire_slots()
        try:
            reading = Reading(*self.random.choice(self.works), slot)
            while reading.left > 0:
                self.advance([reading])
            key = os.urandom(16)
            (saved,) = self.session.save_snapshots({slot: key})
            if saved.result != gdpcache.SnapshotResult.STORED:
                return
            self.session.reset_slots([slot])
            with tempfile.TemporaryDirectory() as folder:
                file = f"{folder}/snapshot"
                try:
                    self.client.export_snapshot(CACHE, key, file)
                except gdpcache.NotFoundError:
                    self.counts["evicted before they were used"] += 1
                    return
                self.client.delete_snapshots(CACHE, [key])
                self.client.import_snapshot(CACHE, file)
            try:
                self.session.restore_snapshots({key: slot})
            except gdpcache.NotFoundError:
                self.counts["evicted before they were used"] += 1
                return
            reading.check(self.session.read_slots([slot]), 0)
            self.client.delete_snapshots(CACHE, [key])
            self.counts["snapshots moved"] += 1
        finally:
            self.session.release_slots([slot])

    def serve(self) -> None:
        """Several documents at once: what is cached of them is restored, the rest prefilled, then come steps."""
        slots = self.session.acquire_slots(self.random.randint(1, 4))
        try:
            generation = generation_at(time.time())
            readings = []
            for slot in slots:
                document, results = self.random.choice(self.works)
                readings.append(Reading(document, results, slot, document.keys(generation)))
            for reading in readings:
                self.resume(reading)
            while left := [reading for reading in readings if reading.left > 0]:
                self.advance(left)
            contents = self.session.read_slots(slots)
            for index, reading in enumerate(readings):
                reading.check(contents, index)
            self.counts["documents"] += len(readings)
            self.decode(readings)
        finally:
            self.session.release_slots(slots)

    def resume(self, reading: Reading) -> None:
        lease = self.random.choice((0.0, 5.0))
        keys = list(reading.keys.values())
        match = self.session.lookup_prefix(keys, lease=lease)
        self.counts["lookups"] += 1
        if match is None:
            return
        try:
            (reading.position,) = self.session.restore_snapshots({match.key: reading.slot}, pin=match.pin)
        except gdpcache.NotFoundError:
            if match.pin:
                raise WrongResultError(f"a leased snapshot at {match.position} is gone") from None
            self.counts["evicted before they were used"] += 1
            return
        contents = self.session.read_slots([reading.slot])
        reading.check(contents, 0)
        assert contents.auxiliary is not None
        for layer in range(LAYERS):
            if contents.auxiliary[0, layer].tobytes() != auxiliary(match.key, layer):
                raise WrongResultError(f"the auxiliary bytes at {match.position} differ")
        self.counts["restores"] += 1

    def advance(self, readings: list[Reading]) -> None:
        """A piece of each, through all layers, keeping some of the boundaries."""
        pieces = [min(reading.left, CHUNK * self.random.randint(1, 12)) for reading in readings]
        kept = [  # the same key more than once where documents are still alike
            (sequence, boundary, reading.keys[reading.position + CHUNK * boundary])
            for sequence, (reading, piece) in enumerate(zip(readings, pieces, strict=True))
            for boundary in range(1, piece // CHUNK + 1)
            if reading.position + CHUNK * boundary in reading.keys and self.random.random() < 0.4
        ]
        for layer in range(LAYERS):
            slices = [
                {name: array[reading.position : reading.position + piece] for name, array in inputs.items()}
                for reading, piece in zip(readings, pieces, strict=True)
                for inputs in (reading.document.layers[layer],)
            ]
            call = self.call(layer, slices, [reading.slot for reading in readings])
            call.snapshots = [
                gdpcache.SnapshotDirective(sequence, boundary, key, auxiliary(key, layer))
                for sequence, boundary, key in kept
            ]
            call.expected_positions = [reading.position for reading in readings]
            values = self.prefill(call)
            begin = 0
            for reading, piece in zip(readings, pieces, strict=True):
                if values is not None:
                    expected = reading.results.values[layer][reading.position : reading.position + piece]
                    expect_same(f"v_new from {reading.position} on", values[begin : begin + piece], expected)
                begin += piece
        for reading, piece in zip(readings, pieces, strict=True):
            reading.position += piece

    def decode(self, readings: list[Reading]) -> None:
        """One-token steps of every document and of a fork of it."""
        forks = [self.session.fork_slot(reading.slot)[0] for reading in readings]
        try:
            slots = [reading.slot for reading in readings] + forks
            works = [*readings, *readings]
            for step in range(STEPS):
                for layer in range(LAYERS):
                    slices = [
                        {name: array[step : step + 1] for name, array in reading.document.steps[layer].items()}
                        for reading in works
                    ]
                    call = self.call(layer, slices, slots)
                    call.expected_positions = [len(reading.document) + step for reading in works]
                    values = self.prefill(call)
                    if values is None:
                        continue
                    for value, reading in zip(values, works, strict=True):
                        expect_same(f"v_new of step {step}", value, reading.results.step_values[layer][step])
            contents = self.session.read_slots(slots)
            for index, reading in enumerate(works):
                for layer in range(LAYERS):
                    expected = reading.results.last_states[layer]
                    expect_same("the state after the steps", contents.state[index, layer], expected)
            self.counts["steps"] += STEPS * len(works)
        finally:
            self.session.release_slots(forks)

    def call(self, layer: int, slices: list[Rows], slots: list[int]) -> gdpcache.PrefillCall:
        inputs = {name: np.concatenate([one[name] for one in slices]) for name in slices[0]}
        lengths = [len(one["k"]) for one in slices]
        self.counts["tokens"] += sum(lengths)
        return gdpcache.PrefillCall(
            layer=layer,
            **inputs,
            chunk_size=CHUNK,
            cu_seqlens=np.concatenate([[0], np.cumsum(lengths)]),
            state_indices=slots,
        )

    def prefill(self, call: gdpcache.PrefillCall) -> Floats | None:
        """v_new. Now and then the client loses patience; None if the answer was lost and the work done nevertheless."""
        self.counts["prefills"] += 1
        if self.tensors_on is not None:
            self.move_to(self.tensors_on, call)
        if self.random.random() < 0.1:
            try:
                return self.values(self.session.prefill(call, timeout=self.random.uniform(0.0003, 0.01)))
            except gdpcache.DeadlineExceededError:
                self.counts["given up"] += 1
                if self.tensors_on is not None:
                    self.forget_or_settle()
        while True:
            try:
                return self.values(self.session.prefill(call))
            except gdpcache.PositionMismatchError as error:
                after = np.diff(np.asarray(call.cu_seqlens)) + np.asarray(call.expected_positions)
                if [one.actual for one in error.position_mismatches] != after.tolist():
                    raise
                return None
            except gdpcache.ResourceExhaustedError as error:
                self.counts["refused"] += 1
                time.sleep(error.retry_delay or 0.1)

    def values(self, result: gdpcache.PrefillResult) -> Floats:
        self.counts[f"prefills by {result.transport.value}"] += 1
        if self.tensors_on is not None and isinstance(result.v_new, DeviceArray):
            return self.tensors_on.fetch(result.v_new)
        return np.asarray(result.v_new)

    def move_to(self, gpu: Gpu, call: gdpcache.PrefillCall) -> None:
        """Tensors anywhere in memory that is often another one, which has to be registered, the old one being freed;
        some stay on the host."""
        if self.memory is None or self.random.random() < 0.1:
            # As large as others allocate it: parts of what the driver takes at a time cannot be shared.
            self.memory = gpu.allocate(self.random.choice((2, 4)) << 20)
            self.counts["GPU memory allocated"] += 1
        self.memory.clear()
        on_host = self.random.choice(("", "", "g", "v_new"))
        for name in ("k", "w", "u", "g"):
            if name != on_host:
                setattr(call, name, gpu.put(self.memory, getattr(call, name), self.random.randrange(64)))
        if on_host != "v_new":
            call.out = gdpcache.Outputs(v_new=gpu.empty(self.memory, call.u.shape, self.random.randrange(64)))

    def forget_or_settle(self) -> None:
        """After a call that was given up, in whose memory the server may still be at work."""
        if self.random.random() < 0.5:
            self.memory = None
        else:
            self.session.settle(timeout=PATIENCE)


def main() -> None:
    address, file, seed, pace, *options = sys.argv[1:]
    with open(file, "rb") as written:
        results = pickle.load(written)
    traffic = Traffic(address, results, int(seed), Gpu() if options else None)
    told = time.monotonic()
    while True:
        traffic.do_something()
        time.sleep(traffic.random.uniform(0, 2 * float(pace)))
        if time.monotonic() - told > 1:
            told = time.monotonic()
            print(json.dumps(traffic.counts), flush=True)
            traffic.counts.clear()


if __name__ == "__main__":
    main()
