"""Hours of what serving engines do, on one server, with every result compared bit for bit; see ./dev soak.

Clients (traffic.py) share a small server: they prefill ragged batches in pieces, keep, find, move and restore snapshots
in three tiers that are always full, fork, take one-token steps, give up calls, forget sessions, and are killed. On a
GPU that this process can use, too, half of their sessions have their tensors there, in memory that comes and goes.
Meanwhile the server's memory, what of it is allocated, file descriptors, threads and the latency of a probe are
recorded.

The server must lose nothing: at the end all slots and sessions are back. After a quarter of the time memory, on a GPU
that of the device, too, file descriptors and threads must have stopped growing, but for what the driver keeps of every
client; in less than ten minutes they are recorded, not judged.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import itertools
import json
import os
import pickle
import random
import shlex
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from conftest import Server, kill_server, start_server
from device_memory import Gpu, GpuError
from documents import COUNT, GEOMETRY, LAYERS, Document, Results, measure
from traffic import CACHE, PATIENCE, SESSION_TTL

import gdpcache

JUDGED_SECONDS = 600

# What the CUDA driver keeps of the server's heap for every process whose events were opened, for good and although
# they are closed: see tests/README.md.
DRIVER_KEEPS_MB = 0.054


@dataclasses.dataclass(frozen=True)
class Sample:
    """What there was at one moment; latencies are those since the sample before."""

    seconds: float
    memory_mb: float  # anonymous, the server's
    heap_mb: float  # of that, what the server has allocated: what grows besides is in pieces, not lost
    shared_mb: float
    device_mb: float  # on the CPU the host's, whoever uses it
    descriptors: int
    threads: int
    probe_median_ms: float
    probe_p99_ms: float
    prefills: int  # so far
    kills: int


class Fleet:
    """The clients."""

    def __init__(
        self, addresses: Sequence[str], results: Path, pace: float, seed: int, options: Sequence[str], log: IO[str]
    ) -> None:
        self._addresses = itertools.cycle(addresses)
        self._results = results
        self._pace = pace
        self._options = options
        self._seeds = iter(range(seed, sys.maxsize))
        self._log = log
        self._lock = threading.Lock()
        self._clients: list[subprocess.Popen[str]] = []
        self.counts: collections.Counter[str] = collections.Counter()
        self.kills = 0

    def start_one(self) -> None:
        arguments = [next(self._addresses), str(self._results), str(next(self._seeds)), str(self._pace), *self._options]
        client = subprocess.Popen(
            [sys.executable, "-B", Path(__file__).parent / "traffic.py", *arguments],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self._clients.append(client)
        assert client.stdout is not None
        threading.Thread(target=self._count, args=(client.stdout,), daemon=True).start()

    def _count(self, lines: IO[str]) -> None:
        for line in lines:
            # The last line of one that was killed may be cut off.
            with contextlib.suppress(json.JSONDecodeError), self._lock:
                self.counts.update(json.loads(line))

    def kill_one(self, index: int) -> None:
        client = self._clients.pop(index)
        client.kill()
        client.wait()
        self.kills += 1

    def failed(self) -> bool:
        return any(client.poll() is not None for client in self._clients)

    def __len__(self) -> int:
        return len(self._clients)


def small_call(document: Document) -> gdpcache.PrefillCall:
    inputs = {name: array[:16] for name, array in document.layers[0].items()}
    return gdpcache.PrefillCall(**inputs, chunk_size=16, initial_state=gdpcache.InitialState.ZERO)


class Probe:
    """Small calls at a steady rate, and how long they take."""

    def __init__(self, client: gdpcache.Client, document: Document, results: Results) -> None:
        self._session = client.open_session(CACHE, client_name="probe")
        self._call = small_call(document)
        self._call.state_indices = self._session.acquire_slots()
        self._expected = results.values[0][:16].tobytes()
        self._times: list[float] = []

    def call(self) -> None:
        begin = time.perf_counter()
        result = self._session.prefill(self._call)
        self._times.append(1e3 * (time.perf_counter() - begin))
        if result.v_new.tobytes() != self._expected:
            raise RuntimeError("the probe's result differs")

    def take(self) -> tuple[float, float]:
        """Median and 99th percentile, in ms."""
        times, self._times = sorted(self._times), []
        return statistics.median(times), times[len(times) * 99 // 100]

    def close(self) -> None:
        self._session.close()


def status(pid: int) -> dict[str, int]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return {name: int(fields[name].split()[0]) for name in ("RssAnon", "RssShmem", "Threads")}


def pid_of(server: Server) -> int:
    """Of the server itself, whatever wraps it: of who listens."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(server.unix.removeprefix("unix:"))
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, _, _ = struct.unpack("3i", credentials)
    return int(pid)


@dataclasses.dataclass(frozen=True)
class Metrics:
    """Those of the server's that are recorded, in MB."""

    device: float  # memory in use
    heap: float  # blocks in use

    @classmethod
    def of(cls, server: Server) -> Metrics:
        with urllib.request.urlopen(f"http://{server.metrics}/metrics") as page:
            lines = page.read().decode().splitlines()
        values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))

        def sum_of(*names: str) -> float:
            return sum(float(values[name]) for name in names) / 1e6

        return cls(
            device=sum_of("gdpcache_device_memory_used_bytes"),
            heap=sum_of('gdpcache_heap_bytes{state="in_use"}', 'gdpcache_heap_bytes{state="mapped"}'),
        )


def missing_for_cuda_ipc(client: gdpcache.Client, document: Document) -> str:
    """Empty if clients can share memory of the GPU with the server."""
    if "cuda_ipc" not in client.server_info().transports:
        return "the server shares no memory of a GPU"
    try:
        gpu = Gpu()
        memory = gpu.allocate(2 << 20)
        call = small_call(document)
        for name in ("k", "w", "u", "g"):
            setattr(call, name, gpu.put(memory, getattr(call, name), gap=0))
        call.out = gdpcache.Outputs(v_new=gpu.empty(memory, call.u.shape, gap=0))
        call.transport = gdpcache.Transport.CUDA_IPC
        with client.open_session(CACHE) as session:
            gpu.fetch(session.prefill(call).v_new)
    except (GpuError, gdpcache.UnavailableError) as error:
        return str(error)
    return ""


def take_sample(server: Server, pid: int, seconds: float, probe: Probe, fleet: Fleet) -> Sample:
    fields = status(pid)
    metrics = Metrics.of(server)
    median, p99 = probe.take()
    return Sample(
        seconds=round(seconds, 1),
        memory_mb=fields["RssAnon"] / 1e3,
        heap_mb=round(metrics.heap, 3),
        shared_mb=fields["RssShmem"] / 1e3,
        device_mb=metrics.device,
        descriptors=len(os.listdir(f"/proc/{pid}/fd")),
        threads=fields["Threads"],
        probe_median_ms=round(median, 3),
        probe_p99_ms=round(p99, 3),
        prefills=fleet.counts["prefills"],
        kills=fleet.kills,
    )


def run(arguments: argparse.Namespace, server: Server, pid: int, probe: Probe, fleet: Fleet) -> list[Sample]:
    chance = random.Random(arguments.seed)
    samples: list[Sample] = []
    begin = time.monotonic()
    next_kill = chance.expovariate(1 / arguments.kill_every)
    while (now := time.monotonic() - begin) < arguments.seconds:
        probe.call()
        if fleet.failed():
            raise RuntimeError("a client has failed")
        if now > next_kill:
            fleet.kill_one(chance.randrange(len(fleet)))
            fleet.start_one()
            next_kill = now + chance.expovariate(1 / arguments.kill_every)
        if now > (len(samples) + 1) * arguments.interval:
            samples.append(take_sample(server, pid, now, probe, fleet))
            print(samples[-1], flush=True)
        time.sleep(0.1)
    return samples


def growth(samples: list[Sample], name: str) -> tuple[float, float]:
    """The medians of the second quarter of the time and of the last."""
    quarter = len(samples) // 4
    values = [float(getattr(sample, name)) for sample in samples]
    return statistics.median(values[quarter : 2 * quarter]), statistics.median(values[-quarter:])


def judge(samples: list[Sample], backend: str) -> Iterator[str]:
    """What has grown."""
    slacks = {"memory_mb": 4.0, "heap_mb": 4.0, "shared_mb": 4.0, "descriptors": 4.0, "threads": 2.0}
    if backend == "cuda":
        slacks["device_mb"] = 4.0
        kills_before, kills = growth(samples, "kills")
        for name in ("memory_mb", "heap_mb"):
            slacks[name] += DRIVER_KEEPS_MB * (kills - kills_before)
    for name, slack in slacks.items():
        before, after = growth(samples, name)
        if after > 1.05 * before + slack:
            yield f"{name} grew from {before:g} to {after:g}"


def wait_until_free(client: gdpcache.Client) -> None:
    end = time.monotonic() + SESSION_TTL + PATIENCE
    while (held := client.list_slots(CACHE).slots) or client.list_caches()[0].sessions:
        if time.monotonic() > end:
            raise RuntimeError(f"{len(held)} slots and {client.list_caches()[0].sessions} sessions are not given back")
        time.sleep(0.2)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=7200)
    parser.add_argument("--backend", default="cpu", help="the server's")
    parser.add_argument("--wrapper", type=shlex.split, default=[], help="a command that runs the server")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--pace", type=float, default=0.05, help="mean pause of a client between two things, seconds")
    parser.add_argument("--kill-every", type=float, default=5, help="mean seconds between two kills")
    parser.add_argument("--interval", type=float, default=10, help="seconds between two samples")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="where the samples go")
    arguments = parser.parse_args()

    with contextlib.ExitStack() as cleanup:
        folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="gdpcache-soak-")))
        server = start_server(
            folder,
            f"--backend={arguments.backend}",
            "--threads=1",
            "--metrics=127.0.0.1:0",
            "--snapshot-device-memory=4MiB",
            "--snapshot-host-memory=4MiB",
            f"--snapshot-directory={folder}/snapshots",
            "--snapshot-disk-size=16MiB",
            wrapper=arguments.wrapper,
        )
        cleanup.callback(kill_server, server.process)
        pid = pid_of(server)
        client = cleanup.enter_context(gdpcache.Client(server.unix))
        client.create_cache(CACHE, GEOMETRY, fingerprint="soak")
        documents = [Document.create(number) for number in range(COUNT)]
        with client.open_session(CACHE) as session:
            results = [measure(session, document) for document in documents]
        (folder / "results").write_bytes(pickle.dumps(results))
        missing = missing_for_cuda_ipc(client, documents[0])
        if missing:
            print(f"without cuda_ipc: {missing}", flush=True)
        device_before = Metrics.of(server).device
        probe = Probe(client, documents[0], results[0])
        log = cleanup.enter_context(open(folder / "clients", "w", encoding="utf-8"))
        options = [] if missing else ["cuda_ipc"]
        fleet = Fleet((server.unix, server.tcp), folder / "results", arguments.pace, arguments.seed, options, log)
        begin = time.monotonic()
        for _ in range(arguments.clients):
            fleet.start_one()
        try:
            samples = run(arguments, server, pid, probe, fleet)
            while len(fleet) > 0:
                fleet.kill_one(0)
            probe.close()
            wait_until_free(client)
            device_after = Metrics.of(server).device
        except BaseException:
            print((folder / "clients").read_text(), (folder / "log").read_text()[-4000:], file=sys.stderr)
            raise
        # It stops in order, having written what it keeps.
        os.kill(pid, signal.SIGTERM)
        if server.process.wait(PATIENCE) != 0:
            raise RuntimeError(f"the server ended with {server.process.returncode}: {(folder / 'log').read_text()}")

    report: dict[str, object] = {
        "seconds": round(time.monotonic() - begin),
        "backend": arguments.backend,
        "documents": COUNT,
        "layers": LAYERS,
        "kills": fleet.kills,
        "counts": dict(sorted(fleet.counts.items())),
        "samples": [dataclasses.asdict(sample) for sample in samples],
    }
    if arguments.backend == "cuda":
        report["device_mb_without_clients"] = {"before": round(device_before, 1), "after": round(device_after, 1)}
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1))
    print(json.dumps({name: value for name, value in report.items() if name != "samples"}, indent=1))
    memory = ("memory_mb", "heap_mb", "shared_mb", "device_mb")
    for name in (*memory, "descriptors", "threads", "probe_median_ms", "probe_p99_ms"):
        if len(samples) >= 4:
            print("{}: {:.4g} in the second quarter, {:.4g} in the last".format(name, *growth(samples, name)))
    grown = list(judge(samples, arguments.backend)) if arguments.seconds >= JUDGED_SECONDS else []
    for line in grown:
        print(line, file=sys.stderr)
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
