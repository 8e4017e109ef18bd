"""A server of the build under test. ``GDPCACHED`` names its program."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

import gdpcache

START_SECONDS = 120.0  # at most; under a tool that watches it the server takes its time


@dataclass(frozen=True)
class Server:
    tcp: str
    unix: str
    metrics: str  # empty: none
    process: subprocess.Popen[bytes]  # the wrapper's, where there is one


def start_server(folder: Path, *flags: str, wrapper: Sequence[str] = ()) -> Server:
    """A server on a free port and a socket in `folder`, in a session of its own; all that it says goes to `log` there.
    A `wrapper` is a command that runs it."""
    program = [os.environ["GDPCACHED"], "--listen=127.0.0.1:0", f"--unix={folder}/socket", "--backend=cpu", *flags]
    log = folder / "log"
    with open(log, "w") as written:
        process = subprocess.Popen(
            [*wrapper, *program], stdout=written, stderr=subprocess.STDOUT, start_new_session=True
        )
    end = time.monotonic() + START_SECONDS
    while (ready := re.search(r"^ready (.*)\n", log.read_text(), re.MULTILINE)) is None:
        if process.poll() is not None or time.monotonic() > end:
            kill_server(process)
            raise RuntimeError(f"the server did not start: {log.read_text()}")
        time.sleep(0.01)
    fields = dict(word.split("=", 1) for word in ready[1].split())
    return Server(fields["address"], f"unix:{fields['unix']}", fields.get("metrics", ""), process)


def stop_server(server: Server) -> None:
    server.process.terminate()
    assert server.process.wait(60) == 0


def kill_server(process: subprocess.Popen[bytes]) -> None:
    """With its wrapper, unless it has ended."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = start_server(tmp_path_factory.mktemp("server"))
    yield running
    stop_server(running)


@pytest.fixture
def client(server: Server) -> Iterator[gdpcache.Client]:
    with gdpcache.Client(server.unix) as opened:
        yield opened


@pytest.fixture
def cache(client: gdpcache.Client, request: pytest.FixtureRequest) -> Iterator[str]:
    """A small cache: two layers, M = 1, auxiliary bytes."""
    name = request.node.name.translate(str.maketrans("[]", "__"))[:100]
    client.create_cache(
        name,
        gdpcache.CacheGeometry(layers=2, slots=8, heads=2, key_dim=16, value_dim=24, auxiliary_bytes=6),
        fingerprint=name,
    )
    yield name
    client.delete_cache(name, force=True)
