"""Messages of the contract from and to the values of `types`."""

from __future__ import annotations

from gdpcache.types import (
    BuildInfo,
    CacheGeometry,
    CacheInfo,
    DataType,
    EventType,
    PrefillDetails,
    PrefillTiming,
    ServerInfo,
    ServerLimits,
    SlotInfo,
    SlotList,
    Snapshot,
    SnapshotEvent,
    SnapshotOutcome,
    SnapshotResult,
    Tier,
    TierInfo,
)
from gdpcache.v1 import cache_pb2, prefill_pb2, session_pb2, snapshot_pb2, tensor_pb2

_TO_WIRE = {
    DataType.FLOAT32: tensor_pb2.DATA_TYPE_FLOAT32,
    DataType.BFLOAT16: tensor_pb2.DATA_TYPE_BFLOAT16,
    DataType.FLOAT16: tensor_pb2.DATA_TYPE_FLOAT16,
    DataType.UINT8: tensor_pb2.DATA_TYPE_UINT8,
}
_FROM_WIRE = {int(wire): dtype for dtype, wire in _TO_WIRE.items()}


def dtype_to_wire(dtype: DataType) -> tensor_pb2.DataType:
    return _TO_WIRE[dtype]


def dtype_from_wire(dtype: int) -> DataType:
    return _FROM_WIRE.get(dtype, DataType.FLOAT32)  # the contract's default


def tensor_header(dtype: DataType, shape: tuple[int, ...]) -> tensor_pb2.Tensor:
    return tensor_pb2.Tensor(dtype=dtype_to_wire(dtype), shape=shape)


def geometry_to_wire(geometry: CacheGeometry) -> cache_pb2.CacheGeometry:
    return cache_pb2.CacheGeometry(
        layers=geometry.layers,
        slots=geometry.slots,
        heads=geometry.heads,
        key_dim=geometry.key_dim,
        value_dim=geometry.value_dim,
        num_householder=geometry.num_householder,
        state_dtype=dtype_to_wire(geometry.state_dtype),
        auxiliary_bytes=geometry.auxiliary_bytes,
    )


def cache(message: cache_pb2.Cache) -> CacheInfo:
    geometry = message.geometry
    return CacheInfo(
        name=message.name,
        geometry=CacheGeometry(
            layers=geometry.layers,
            slots=geometry.slots,
            heads=geometry.heads,
            key_dim=geometry.key_dim,
            value_dim=geometry.value_dim,
            num_householder=geometry.num_householder or 1,
            state_dtype=dtype_from_wire(geometry.state_dtype),
            auxiliary_bytes=geometry.auxiliary_bytes,
        ),
        fingerprint=message.fingerprint,
        ephemeral=message.ephemeral,
        free_slots=message.free_slots,
        held_slots=message.held_slots,
        sessions=message.sessions,
        memory_bytes=message.memory_bytes,
    )


def server_info(message: cache_pb2.GetServerInfoResponse) -> ServerInfo:
    limits = message.limits
    return ServerInfo(
        version=message.version,
        backend=message.backend,
        device=message.device,
        device_memory_bytes=message.device_memory_bytes,
        state_memory_used_bytes=message.state_memory_used_bytes,
        staging_used_bytes=message.staging_used_bytes,
        limits=ServerLimits(
            max_message_bytes=limits.max_message_bytes,
            state_memory_bytes=limits.state_memory_bytes,
            staging_bytes=limits.staging_bytes,
            max_caches=limits.max_caches,
            max_sessions=limits.max_sessions,
            max_sequences_per_call=limits.max_sequences_per_call,
            max_session_ttl=limits.max_session_ttl_ms / 1000,
            shared_memory_bytes=limits.shared_memory_bytes,
            max_regions=limits.max_regions,
            max_calls=limits.max_calls,
            max_queue_wait=limits.max_queue_wait_ms / 1000,
            max_connection_calls=limits.max_connection_calls,
            max_tenant_sessions=limits.max_tenant_sessions,
            max_tenant_slots=limits.max_tenant_slots,
        ),
        addresses=tuple(message.addresses),
        transports=tuple(message.transports),
        caches=tuple(cache(entry) for entry in message.caches),
        uptime=message.uptime_ms / 1000,
        snapshot_tiers=tuple(
            TierInfo(Tier(tier.tier), tier.capacity_bytes, tier.used_bytes, tier.snapshots)
            for tier in message.snapshot_tiers
        ),
        descriptor_socket=message.descriptor_socket,
        device_uuid=message.device_uuid,
        done_flags=message.done_flags,
        build=BuildInfo(message.build.commit, message.build.compiler, tuple(message.build.libraries)),
        expected_wait=message.expected_wait_ms / 1000,
    )


def slot_list(message: session_pb2.ListSlotsResponse) -> SlotList:
    return SlotList(
        tuple(
            SlotInfo(
                slot.slot, slot.client_name, slot.min_position, slot.max_position, slot.session_expires_in_ms / 1000
            )
            for slot in message.slots
        ),
        message.free_slots,
    )


def details(message: prefill_pb2.PrefillResponse) -> PrefillDetails:
    timing = message.timing
    return PrefillDetails(
        tuple(message.positions),
        tuple(outcome(entry) for entry in message.snapshots),
        PrefillTiming(
            timing.queue_us / 1e6,
            timing.stage_in_us / 1e6,
            timing.compute_us / 1e6,
            timing.stage_out_us / 1e6,
            timing.total_us / 1e6,
        ),
    )


def snapshot(message: snapshot_pb2.Snapshot) -> Snapshot:
    return Snapshot(
        key=message.key,
        position=message.position,
        size=message.bytes,
        tiers=tuple(Tier(tier) for tier in message.tiers),
        pinned=message.pinned,
        age=message.age_ms / 1000,
        idle=message.idle_ms / 1000,
    )


def outcome(message: snapshot_pb2.SnapshotOutcome) -> SnapshotOutcome:
    return SnapshotOutcome(SnapshotResult(message.result), message.position, message.message)


def event(message: snapshot_pb2.SnapshotEvent) -> SnapshotEvent:
    return SnapshotEvent(EventType(message.type), message.key, message.position)


def milliseconds(seconds: float) -> int:
    """Rounded up, so that a short time is not none."""
    return -int(-seconds * 1000 // 1)
