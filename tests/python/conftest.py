"""A server of the build under test. ``GDPCACHED`` names its program."""

from __future__ import annotations

import os
import select
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import gdpcache


@dataclass(frozen=True)
class Server:
    tcp: str
    unix: str
    process: subprocess.Popen[str]


def start_server(folder: Path, *flags: str) -> Server:
    """A server on a free port and a socket in `folder`."""
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(
            [os.environ["GDPCACHED"], "--listen=127.0.0.1:0", f"--unix={folder}/socket", "--backend=cpu", *flags],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], 60)
    line = process.stdout.readline() if ready else ""
    if not line.startswith("ready "):
        process.kill()
        process.wait()
        raise RuntimeError(f"the server did not start: {line!r} {(folder / 'log').read_text()}")
    fields = dict(word.split("=", 1) for word in line.split()[1:])
    return Server(fields["address"], f"unix:{fields['unix']}", process)


def stop_server(server: Server) -> None:
    server.process.terminate()
    assert server.process.stdout is not None
    server.process.stdout.close()
    assert server.process.wait(60) == 0


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
