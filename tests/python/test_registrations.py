"""Registering and unregistering memory, many times."""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest
from conftest import start_server, stop_server
from problems import HEADS, KEY_DIM, VALUE_DIM

import gdpcache
from gdpcache.v1 import memory_pb2

ROUNDS = 10_000
WARM = 1_000  # rounds until memory that is kept for the next call has been taken


class Use(NamedTuple):
    """What a process holds."""

    descriptors: int
    mappings: int
    reserved: int  # bytes of address space
    resident: int  # bytes of memory

    @classmethod
    def of(cls, process: int) -> Use:
        folder = Path(f"/proc/{process}")
        reserved, resident = (int(pages) * mmap.PAGESIZE for pages in (folder / "statm").read_text().split()[:2])
        return cls(
            len(list((folder / "fd").iterdir())),
            len((folder / "maps").read_text().splitlines()),
            reserved,
            resident,
        )


def test_ten_thousand_registrations_leave_nothing(tmp_path: Path) -> None:
    server = start_server(tmp_path)
    with gdpcache.Client(server.unix) as client:
        geometry = gdpcache.CacheGeometry(layers=1, slots=1, heads=HEADS, key_dim=KEY_DIM, value_dim=VALUE_DIM)
        client.create_cache("small", geometry)
        with client.open_session("small") as session, grpc.insecure_channel(server.unix) as channel:
            register = channel.unary_unary("/gdpcache.v1.StateCache/RegisterSystemMemory")
            unregister = channel.unary_unary("/gdpcache.v1.StateCache/UnregisterMemory")
            memory = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(memory, 1 << 20)
            fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as handover:
                handover.connect(client.server_info().descriptor_socket)
                for turn in range(ROUNDS):
                    if turn == WARM:
                        before, own = Use.of(server.process.pid), Use.of(os.getpid())
                    socket.send_fds(handover, [b"M"], [memory])
                    request = memory_pb2.RegisterSystemMemoryRequest(
                        session=session.id, name="region", token=handover.recv(64).decode(), size=1 << 20
                    )
                    register(request.SerializeToString(), timeout=60)
                    if turn % 100 == 0:  # a name that is taken: refused, and the descriptor goes
                        socket.send_fds(handover, [b"M"], [memory])
                        request.token = handover.recv(64).decode()
                        with pytest.raises(grpc.RpcError, match="ALREADY_EXISTS"):
                            register(request.SerializeToString(), timeout=60)
                    gone = memory_pb2.UnregisterMemoryRequest(session=session.id, name="region")
                    unregister(gone.SerializeToString(), timeout=60)
            os.close(memory)
            assert session.list_shared_memory() == []
            after = Use.of(server.process.pid)
            assert after.descriptors <= before.descriptors
            assert after.mappings <= before.mappings + ROUNDS // 100  # threads and their heaps come and go
            if after.reserved < 1 << 40:  # else it is a sanitizer's, which keeps what was freed for a while
                assert after.resident <= before.resident + (4 << 20)
            assert Use.of(os.getpid()).resident <= own.resident + (4 << 20)
    stop_server(server)
