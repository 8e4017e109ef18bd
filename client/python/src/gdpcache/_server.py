"""Operations on a server and its caches."""

from __future__ import annotations

from dataclasses import dataclass

from gdpcache import _convert, _wire
from gdpcache._operations import Operation, Unary, unary
from gdpcache.types import CacheGeometry, CacheInfo, CreatedCache, ServerInfo, SlotList
from gdpcache.v1 import cache_pb2, session_pb2

DEFAULT_ADDRESS = "127.0.0.1:7411"

_SERVING = 1


@dataclass(frozen=True)
class Address:
    """Where a server is: "host:port" (an IPv6 host in brackets) or "unix:PATH"."""

    text: str

    def __post_init__(self) -> None:
        if self.text.startswith("unix:"):
            if len(self.text) == len("unix:"):
                raise ValueError("the address 'unix:' has no path")
            return
        host, colon, port = self.text.rpartition(":")
        if not colon or not host or not port.isdecimal() or int(port) > 65535 or (":" in host and host[0] != "["):
            raise ValueError(f"address {self.text!r} is neither host:port nor unix:PATH")


def server_info(*, wait_for_ready: bool = False) -> Operation[ServerInfo]:
    answer = yield from unary(
        "GetServerInfo",
        cache_pb2.GetServerInfoRequest(),
        cache_pb2.GetServerInfoResponse,
        wait_for_ready=wait_for_ready,
    )
    return _convert.server_info(answer)


def is_serving() -> Operation[bool]:
    """grpc.health.v1's answer; its messages have the service, and the status, as field 1."""
    answer = yield Unary("/grpc.health.v1.Health/Check", _wire.message(1, b"gdpcache.v1.StateCache"))
    return dict(_wire.fields(memoryview(answer))).get(1) == _SERVING


def create_cache(name: str, geometry: CacheGeometry, fingerprint: str, ephemeral: bool) -> Operation[CreatedCache]:
    request = cache_pb2.CreateCacheRequest(
        name=name, geometry=_convert.geometry_to_wire(geometry), fingerprint=fingerprint, ephemeral=ephemeral
    )
    answer = yield from unary("CreateCache", request, cache_pb2.CreateCacheResponse)
    return CreatedCache(_convert.cache(answer.cache), answer.created)


def delete_cache(name: str, force: bool) -> Operation[None]:
    request = cache_pb2.DeleteCacheRequest(name=name, force=force)
    yield from unary("DeleteCache", request, cache_pb2.DeleteCacheResponse)


def list_caches() -> Operation[list[CacheInfo]]:
    answer = yield from unary("ListCaches", cache_pb2.ListCachesRequest(), cache_pb2.ListCachesResponse)
    return [_convert.cache(entry) for entry in answer.caches]


def list_slots(cache: str) -> Operation[SlotList]:
    answer = yield from unary("ListSlots", session_pb2.ListSlotsRequest(cache=cache), session_pb2.ListSlotsResponse)
    return _convert.slot_list(answer)
