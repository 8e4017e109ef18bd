"""Whose socket a client connects to."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import gdpcache

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """Like /tmp."""
    directory = tmp_path / "shared"
    directory.mkdir()
    directory.chmod(0o1777)
    return directory


@pytest.fixture
def bound() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as opened:
        yield opened


def connect(path: Path) -> None:
    gdpcache.Client(f"unix:{path}").close()


def test_a_directory_of_ones_own_may_be_below_a_shared_one(shared: Path) -> None:
    own = shared / "own"
    own.mkdir(mode=0o755)
    connect(own / "not-yet")


def test_a_socket_of_ones_own_may_lie_in_a_shared_directory(shared: Path, bound: socket.socket) -> None:
    bound.bind(str(shared / "own"))
    connect(shared / "own")


@pytest.mark.parametrize("client", [gdpcache.Client, gdpcache.AsyncClient])
def test_a_free_name_in_a_shared_directory_is_refused(shared: Path, client: type) -> None:
    with pytest.raises(PermissionError, match=r"shared/free is not there, and everybody may put it there"):
        client(f"unix:{shared}/free")
    with pytest.raises(PermissionError, match=r"shared/free is not there"):
        client(f"unix:{shared}/free/socket")


def test_a_directory_that_is_open_to_everybody_is_refused_below_a_shared_one(shared: Path) -> None:
    (shared / "open").mkdir()
    (shared / "open").chmod(0o777)
    with pytest.raises(PermissionError, match=r"everybody may write in .*shared/open"):
        connect(shared / "open" / "socket")
    (shared / "open").chmod(0o755)
    connect(shared / "open" / "socket")


@needs_root
def test_the_socket_or_directory_of_another_user_is_refused(shared: Path, bound: socket.socket) -> None:
    bound.bind(str(shared / "socket"))
    os.chown(shared / "socket", 54321, 54321)
    with pytest.raises(PermissionError, match=r"shared/socket belongs to the user 54321, not to this one \(0\)"):
        connect(shared / "socket")
    (shared / "directory").mkdir()
    os.chown(shared / "directory", 54321, 54321)
    with pytest.raises(PermissionError, match=r"shared/directory belongs to the user 54321"):
        connect(shared / "directory" / "socket")
    os.chown(shared, 54321, 54321)  # who may take away anything there in any case
    connect(shared / "socket")


@needs_root
def test_links_are_followed(shared: Path, tmp_path: Path) -> None:
    (shared / "theirs").mkdir()
    os.chown(shared / "theirs", 54321, 54321)
    (tmp_path / "link").symlink_to(shared / "theirs")
    with pytest.raises(PermissionError, match=r"shared/theirs belongs to the user 54321"):
        connect(tmp_path / "link" / "socket")
    (shared / "link").symlink_to(tmp_path)
    connect(shared / "link" / "socket")
    os.chown(shared / "link", 54321, 54321, follow_symlinks=False)
    with pytest.raises(PermissionError, match=r"shared/link belongs to the user 54321"):
        connect(shared / "link" / "socket")
