"""A server that answers as a test tells it, for what a real one does only when something breaks."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import numpy as np

import gdpcache
from gdpcache.v1 import cache_pb2, memory_pb2, prefill_pb2, session_pb2, state_cache_pb2, tensor_pb2

Handler = Callable[[Any, grpc.ServicerContext], Any]

_METHODS = {method.name: method for method in state_cache_pb2.DESCRIPTOR.services_by_name["StateCache"].methods}
_STREAMS_BACK = {"ReadSnapshot", "WatchSnapshots", "ReadSlots", "PrefillStream"}
_STREAMS_THERE = {"WriteSnapshot", "WriteSlots", "PrefillStream"}


def message_class(descriptor: Any) -> Any:
    return descriptor._concrete_class


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, handlers: dict[str, Handler]) -> None:
        self._handlers = handlers

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        name = details.method.rpartition("/")[2]
        handler = self._handlers.get(name)
        if handler is None:
            return None
        kind = (
            f"{'stream' if name in _STREAMS_THERE else 'unary'}_{'stream' if name in _STREAMS_BACK else 'unary'}"
            "_rpc_method_handler"
        )
        return getattr(grpc, kind)(
            handler,
            message_class(_METHODS[name].input_type).FromString,
            message_class(_METHODS[name].output_type).SerializeToString,
        )


def server_info(**fields: Any) -> cache_pb2.GetServerInfoResponse:
    """With a cache "fake" of 1 layer, 1 head, 4 x 4."""
    geometry = cache_pb2.CacheGeometry(layers=1, slots=1, heads=1, key_dim=4, value_dim=4)
    limits = cache_pb2.ServerLimits(max_message_bytes=1 << 24, shared_memory_bytes=64 << 20)
    return cache_pb2.GetServerInfoResponse(
        caches=[cache_pb2.Cache(name="fake", geometry=geometry)], limits=limits, **fields
    )


@contextlib.contextmanager
def fake_server(handlers: dict[str, Handler]) -> Iterator[str]:
    """Its address. Sessions can be opened."""
    info = server_info()
    defaults: dict[str, Handler] = {
        "GetServerInfo": lambda request, context: info,
        "OpenSession": lambda request, context: session_pb2.OpenSessionResponse(session="s", ttl_ms=60_000),
        "CloseSession": lambda request, context: session_pb2.CloseSessionResponse(),
    }
    server = grpc.server(futures.ThreadPoolExecutor(16))
    server.add_generic_rpc_handlers((_Handlers({**defaults, **handlers}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(0).wait()


@contextlib.contextmanager
def fake_session(handlers: dict[str, Handler]) -> Iterator[gdpcache.Session]:
    """A session on the cache of such a server."""
    with (
        fake_server(handlers) as address,
        gdpcache.Client(address) as client,
        client.open_session("fake") as session,
    ):
        yield session


class SharingServer:
    """The part of a server that maps clients' memory. Its prefill returns u as v_new, through shared memory alone."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "descriptors")
        self.regions: dict[str, np.ndarray[Any, np.dtype[np.uint8]]] = {}
        self.refuse = ""  # why descriptors are refused
        self.before_answering: Callable[[], Any] = lambda: None
        self.after_registering: Callable[[], Any] = lambda: None
        self.fail: Callable[[grpc.ServicerContext], Any] = lambda context: None
        self.requests: list[prefill_pb2.PrefillRequest] = []
        self.unregistered: list[str] = []
        self.passes: set[str] = set()  # tokens without a descriptor that have not been used
        self._tokens: dict[str, int] = {}
        self._given = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind(self.path)
        self._socket.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):  # closed already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                with connection:
                    message, descriptors, _, _ = socket.recv_fds(connection, 16, 1)
                    self._given += 1
                    token = f"{self._given:032x}"
                    if descriptors:
                        assert message == b"M"
                        assert fcntl.fcntl(descriptors[0], fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
                        self._tokens[token] = descriptors[0]
                    else:
                        assert message == b"C"
                        self.passes.add(token)
                    self.before_answering()
                    connection.send(b"!" + self.refuse.encode() if self.refuse else token.encode())

    def handlers(self) -> dict[str, Handler]:
        info = server_info(transports=["inline", "stream", "shared_memory"], descriptor_socket=self.path)
        return {
            "GetServerInfo": lambda request, context: info,
            "RegisterSystemMemory": self._register,
            "UnregisterMemory": self._unregister,
            "Prefill": self._prefill,
        }

    def _register(
        self, request: memory_pb2.RegisterSystemMemoryRequest, context: grpc.ServicerContext
    ) -> memory_pb2.RegisterSystemMemoryResponse:
        memory = mmap.mmap(self._tokens.pop(request.token), request.size)
        self.regions[request.name] = np.frombuffer(memory, np.uint8)
        self.after_registering()
        return memory_pb2.RegisterSystemMemoryResponse()

    def _unregister(
        self, request: memory_pb2.UnregisterMemoryRequest, context: grpc.ServicerContext
    ) -> memory_pb2.UnregisterMemoryResponse:
        self.unregistered.append(request.name)
        del self.regions[request.name]
        return memory_pb2.UnregisterMemoryResponse()

    def _prefill(
        self, request: prefill_pb2.PrefillRequest, context: grpc.ServicerContext
    ) -> prefill_pb2.PrefillResponse:
        self.requests.append(request)
        self.fail(context)
        size = int(np.prod(request.u.shape)) * 4
        source, target = request.u.shared_memory, request.outputs.v_new
        self.regions[target.region][target.offset : target.offset + size] = self.regions[source.region][
            source.offset : source.offset + size
        ]
        v_new = tensor_pb2.Tensor(dtype=request.u.dtype, shape=request.u.shape, shared_memory=target)
        return prefill_pb2.PrefillResponse(v_new=v_new, chunk_offsets=[0, 1], positions=[-1])
