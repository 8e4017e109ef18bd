"""TLS and bearer tokens against a server that asks for both."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import Server, start_server, stop_server
from fake_server import fake_server

import gdpcache
from gdpcache import Credentials

ENGINE = "token-of-engine-0123456789"
READER = "token-of-reader-0123456789"
GEOMETRY = gdpcache.CacheGeometry(layers=1, slots=2, heads=1, key_dim=8, value_dim=8)


def openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


def make_certificates(folder: Path) -> None:
    """An authority, and a server's and a client's certificate of it."""
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    authority = ("-keyout", folder / "ca.key", "-out", folder / "ca.crt", "-subj", "/CN=ca")
    openssl("req", "-x509", *key, *authority, "-days", "2")
    for name, alternative in (("server", "IP:127.0.0.1,DNS:gdpcache.test"), ("engine", "DNS:engine.test")):
        request, extension = folder / f"{name}.csr", folder / f"{name}.ext"
        extension.write_text(f"subjectAltName={alternative}\n")
        openssl("req", *key, "-keyout", folder / f"{name}.key", "-out", request, "-subj", f"/CN={name}")
        openssl("x509", "-req", "-in", request, "-CA", folder / "ca.crt", "-CAkey", folder / "ca.key",
                "-CAcreateserial", "-days", "2", "-out", folder / f"{name}.crt", "-extfile", extension)  # fmt: skip
    for path in folder.glob("*.key"):
        path.chmod(0o600)


@dataclass(frozen=True)
class Secured:
    server: Server
    folder: Path

    def credentials(self, token: str | None = None, **more: str) -> Credentials:
        return Credentials(ca_file=str(self.folder / "ca.crt"), token=token, **more)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    make_certificates(folder)
    (folder / "config").write_text(
        'identities { name: "engine" tenant: "chat" permissions: DATA }\n'
        'identities { name: "reader" tenant: "chat" permissions: READ }\n'
    )
    (folder / "tokens").write_text(f"{ENGINE} engine\n{READER} reader\n")
    (folder / "tokens").chmod(0o600)
    server = start_server(
        folder, f"--config={folder}/config", f"--token-file={folder}/tokens",
        f"--tls-certificate={folder}/server.crt", f"--tls-key={folder}/server.key",
    )  # fmt: skip
    yield Secured(server, folder)
    stop_server(server)
    assert "-0123456789" not in (folder / "log").read_text(), "a token"


def test_a_token_over_tls_says_who_calls(secured: Secured) -> None:
    with gdpcache.Client(secured.server.tcp, credentials=secured.credentials(ENGINE)) as client:
        client.create_cache("m", GEOMETRY)
        with client.open_session("m") as session:  # unary calls and streams
            slots = session.acquire_slots(1)
            session.write_slots(slots, session.read_slots(slots).state)
    with gdpcache.Client(secured.server.tcp, credentials=secured.credentials(READER)) as client:
        assert [cache.name for cache in client.list_caches()] == ["m"]
        with pytest.raises(gdpcache.PermissionDeniedError, match="needs the permission 'data'"):
            client.open_session("m")


def test_who_is_nobody_is_told_so(secured: Secured) -> None:
    for token in (None, ENGINE + "0"):
        with gdpcache.Client(secured.server.tcp, credentials=secured.credentials(token)) as client:
            assert client.is_serving(), "open to probes"
            with pytest.raises(gdpcache.UnauthenticatedError):
                client.list_caches()


def test_the_server_must_be_of_the_authority(secured: Secured) -> None:
    with (
        gdpcache.Client(secured.server.tcp, credentials=Credentials(tls=True)) as client,
        pytest.raises(gdpcache.UnavailableError),
    ):
        client.list_caches()
    with (
        gdpcache.Client(secured.server.tcp, credentials=Credentials()) as client,
        pytest.raises(gdpcache.UnavailableError),
    ):
        client.list_caches()
    for name, serves in (("gdpcache.test", True), ("other.test", False)):
        given = secured.credentials(ENGINE, server_name=name)
        with gdpcache.Client(secured.server.tcp, credentials=given) as client:
            if serves:
                client.list_caches()
            else:
                with pytest.raises(gdpcache.UnavailableError):
                    client.list_caches()


def test_watching_takes_the_token_along(secured: Secured) -> None:
    with gdpcache.Client(secured.server.tcp, credentials=secured.credentials(ENGINE)) as client:
        client.create_cache("m", GEOMETRY)
        with client.watch_snapshots("m", existing=True) as events:
            assert next(events).type is gdpcache.EventType.SYNCED


def test_the_asyncio_client_takes_the_same(secured: Secured) -> None:
    async def run() -> None:
        async with gdpcache.AsyncClient(secured.server.tcp, credentials=secured.credentials(ENGINE)) as client:
            await client.create_cache("m", GEOMETRY)
            async with client.watch_snapshots("m", existing=True) as events:
                assert (await anext(events)).type is gdpcache.EventType.SYNCED
            async with await client.open_session("m") as session:
                slots = await session.acquire_slots(1)
                await session.read_slots(slots)
        async with gdpcache.AsyncClient(secured.server.tcp, credentials=secured.credentials(None)) as client:
            with pytest.raises(gdpcache.UnauthenticatedError):
                await client.list_caches()

    asyncio.run(run())


def test_on_the_unix_socket_tls_is_not_used_and_tokens_count(secured: Secured) -> None:
    with (
        gdpcache.Client(secured.server.unix, credentials=secured.credentials(READER)) as client,
        pytest.raises(gdpcache.PermissionDeniedError),
    ):
        client.create_cache("n", GEOMETRY)
    with (
        gdpcache.Client(secured.server.unix) as client,  # the server's own user, who is nobody by that
        pytest.raises(gdpcache.UnauthenticatedError),
    ):
        client.list_caches()
    with gdpcache.Client(secured.server.unix, credentials=secured.credentials(ENGINE)) as client:
        client.create_cache("n", GEOMETRY)


def test_the_environment_says_it_where_the_caller_does_not(
    secured: Secured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text(ENGINE + "\n")
    monkeypatch.setenv("GDPCACHE_TLS_CA", str(secured.folder / "ca.crt"))
    monkeypatch.setenv("GDPCACHE_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("GDPCACHE_SERVER", secured.server.tcp)
    with gdpcache.Client() as client:
        client.create_cache("m", GEOMETRY)


def test_a_token_file_is_followed(secured: Secured, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(READER)
    given = Credentials(ca_file=str(secured.folder / "ca.crt"), token_file=str(path))
    with gdpcache.Client(secured.server.tcp, credentials=given) as client:
        with pytest.raises(gdpcache.PermissionDeniedError):
            client.create_cache("m", GEOMETRY)
        (tmp_path / "next").write_text(ENGINE)
        os.replace(tmp_path / "next", path)
        deadline = time.monotonic() + 60
        while True:
            try:
                client.create_cache("m", GEOMETRY)
                break
            except gdpcache.PermissionDeniedError:
                assert time.monotonic() < deadline
        path.unlink()
        client.list_caches()


def test_mistakes_are_told_at_once(tmp_path: Path) -> None:
    for address in ("example.org:7411", "127.example.org:7411", "127.1:7411", "[2001:db8::1]:7411", "10.0.0.1:7411"):
        with pytest.raises(ValueError, match="in clear text"):
            gdpcache.Client(address, credentials=Credentials(token=ENGINE))
    for address in ("localhost:7411", "127.0.0.2:7411", "[::1]:7411", "unix:/run/x"):
        gdpcache.Client(address, credentials=Credentials(token=ENGINE)).close()
    with pytest.raises(ValueError, match="belong together"):
        Credentials(certificate_file="a")
    with pytest.raises(ValueError, match="one of them"):
        Credentials(token=ENGINE, token_file="t")
    with pytest.raises(ValueError, match="printable") as caught:
        Credentials(token="two words")
    assert "two words" not in str(caught.value)
    with pytest.raises(FileNotFoundError):
        gdpcache.Client("127.0.0.1:1", credentials=Credentials(token_file=str(tmp_path / "none")))
    assert ENGINE not in repr(Credentials(token=ENGINE))


def test_no_web_proxy_sees_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as proxy, fake_server({}) as address:
        for name in ("grpc_proxy", "https_proxy", "http_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.getsockname()[1]}")
        for name in ("no_grpc_proxy", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        with gdpcache.Client(address, credentials=Credentials(token=ENGINE)) as client:
            client.server_info()

        async def ask() -> None:
            async with gdpcache.AsyncClient(address, credentials=Credentials(token=ENGINE)) as client:
                await client.server_info()

        asyncio.run(ask())
        proxy.setblocking(False)
        with pytest.raises(BlockingIOError):
            proxy.accept()
