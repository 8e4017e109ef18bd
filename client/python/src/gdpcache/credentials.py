"""How a client knows its server and shows who it is."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

_LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class Credentials:
    """TLS for connections over TCP, and the bearer token that goes with every call.

    The PEM files are read when the connection is made. TLS is used where ``tls`` says so or any of its files or
    ``server_name`` is given; a Unix socket needs none and takes none. ``token_file`` is read again when it changes; a
    token goes over TLS, a Unix socket or the loopback interface, nowhere else.
    """

    tls: bool = False
    ca_file: str | None = None  # who may have signed the server's certificate; else the system's authorities
    certificate_file: str | None = None  # the client's own, where the server asks for one, with
    key_file: str | None = None  # its private key
    server_name: str | None = None  # what the server's certificate must name, if not the address's host
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None  # instead of token

    def __post_init__(self) -> None:
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("a client's certificate and its key belong together; one of them is missing")
        if self.token is not None and self.token_file is not None:
            raise ValueError("a token and a token file are given; there may be one of them")
        if self.token is not None:
            _check_token(self.token)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Credentials:
        """What the ``gdpcache`` command takes from the environment: ``$GDPCACHE_TLS``, ``_TLS_CA``,
        ``_TLS_CERTIFICATE``, ``_TLS_KEY``, ``_TLS_SERVER_NAME``, ``_TOKEN_FILE``."""
        variables = os.environ if environment is None else environment

        def value(name: str) -> str | None:
            return variables.get(f"GDPCACHE_{name}") or None

        return cls(
            tls=(value("TLS") or "").lower() in ("1", "true", "yes", "on"),
            ca_file=value("TLS_CA"),
            certificate_file=value("TLS_CERTIFICATE"),
            key_file=value("TLS_KEY"),
            server_name=value("TLS_SERVER_NAME"),
            token_file=value("TOKEN_FILE"),
        )


def _is_this_host(host: str) -> bool:
    """Not for names like 127.example.org, which anybody's name server may say to be elsewhere."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False


def _check_token(token: str) -> None:
    if not token or not all("!" <= character <= "~" for character in token):
        raise ValueError("the token is empty or has something else than printable ASCII characters in it")


class Access:
    """The credentials as one connection uses them. Safe for several threads."""

    def __init__(self, address: str, credentials: Credentials) -> None:
        self._credentials = credentials
        self._lock = threading.Lock()
        self._looked = -_LOOK_SECONDS
        self._metadata: tuple[tuple[str, str], ...] | None = None
        local = address.startswith("unix:")
        self._tls = not local and (
            credentials.tls
            or any((credentials.ca_file, credentials.certificate_file, credentials.key_file, credentials.server_name))
        )
        has_token = credentials.token is not None or credentials.token_file is not None
        host = address.rpartition(":")[0]
        if has_token and not (self._tls or local or _is_this_host(host)):
            raise ValueError(f"the token would travel to {address!r} in clear text; use TLS")
        if credentials.token is not None:
            self._metadata = _bearer(credentials.token)
        elif credentials.token_file is not None:
            self._metadata = _bearer(_read_token(credentials.token_file))

    def metadata(self) -> tuple[tuple[str, str], ...] | None:
        """What goes with a call. While a token file cannot be read, what was read last stays."""
        path = self._credentials.token_file
        if path is None:
            return self._metadata
        with self._lock:
            now = time.monotonic()
            if now - self._looked >= _LOOK_SECONDS:
                self._looked = now
                with contextlib.suppress(OSError, ValueError):
                    self._metadata = _bearer(_read_token(path))
            return self._metadata

    def open_channel(self, module: Any, address: str, options: tuple[tuple[str, int], ...]) -> Any:
        """A channel of grpc or grpc.aio."""
        if not self._tls:
            return module.insecure_channel(address, options=options)
        given = self._credentials
        credentials = grpc.ssl_channel_credentials(
            root_certificates=_read(given.ca_file),
            private_key=_read(given.key_file),
            certificate_chain=_read(given.certificate_file),
        )
        more: tuple[tuple[str, int | str], ...] = options
        if given.server_name is not None:
            more = (*options, ("grpc.ssl_target_name_override", given.server_name))
        return module.secure_channel(address, credentials, options=more)


def _read(path: str | None) -> bytes | None:
    return None if path is None else Path(path).read_bytes()


def _read_token(path: str) -> str:
    token = Path(path).read_text(encoding="ascii").strip()
    try:
        _check_token(token)
    except ValueError as error:
        raise ValueError(f"token file {path!r}: {error}") from None
    return token


def _bearer(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)
