"""Client of gdpcached, the server that owns the recurrent state of Gated Delta Product models.

    with gdpcache.Client("127.0.0.1:7411") as client:
        client.create_cache("demo", gdpcache.CacheGeometry(layers=1, slots=16, heads=2, key_dim=64, value_dim=64))
        with client.open_session("demo") as session:
            slots = session.acquire_slots(2)
            result = session.prefill(gdpcache.PrefillCall(layer=0, k=k, w=w, u=u, g=g, state_indices=slots, batch=2))

``AsyncClient`` has the same calls, awaited; ``chunk_gated_delta_product_fwd_h`` stands in for Megatron-LM's function
of this name. The messages of the contract, whose comments are the reference, are in ``gdpcache.v1``.
"""

from gdpcache._version import __version__
from gdpcache.aio import AsyncClient, AsyncSession, AsyncSnapshotWatch
from gdpcache.boundaries import BoundaryPolicy, call_boundaries, prefix_keys, snapshot_directives
from gdpcache.client import Client, Session, SnapshotWatch
from gdpcache.credentials import Credentials
from gdpcache.drop_in import chunk_gated_delta_product_fwd_h, set_default_session
from gdpcache.errors import (
    AlreadyExistsError,
    CallCancelledError,
    DataLossError,
    DeadlineExceededError,
    FailedPreconditionError,
    FieldViolation,
    GdpCacheError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    PositionMismatch,
    PositionMismatchError,
    Resource,
    ResourceExhaustedError,
    StatusCode,
    UnauthenticatedError,
    UnavailableError,
    UnimplementedError,
)
from gdpcache.layer_state import LayerState, SlotStates
from gdpcache.prefill import DecayBase, InitialState, Precision, PrefillCall, States
from gdpcache.types import (
    BuildInfo,
    CacheGeometry,
    CacheInfo,
    CreatedCache,
    DataType,
    EventType,
    ExportedSnapshot,
    Outputs,
    Pin,
    PrefillResult,
    PrefillTiming,
    PrefixMatch,
    Region,
    ServerInfo,
    ServerLimits,
    SlotContents,
    SlotInfo,
    SlotList,
    Snapshot,
    SnapshotDirective,
    SnapshotEvent,
    SnapshotOutcome,
    SnapshotResult,
    Tier,
    TierInfo,
    Transport,
)

__all__ = [
    "AlreadyExistsError",
    "AsyncClient",
    "AsyncSession",
    "AsyncSnapshotWatch",
    "BoundaryPolicy",
    "BuildInfo",
    "CacheGeometry",
    "CacheInfo",
    "CallCancelledError",
    "Client",
    "CreatedCache",
    "Credentials",
    "DataLossError",
    "DataType",
    "DeadlineExceededError",
    "DecayBase",
    "EventType",
    "ExportedSnapshot",
    "FailedPreconditionError",
    "FieldViolation",
    "GdpCacheError",
    "InitialState",
    "InternalError",
    "InvalidArgumentError",
    "LayerState",
    "NotFoundError",
    "Outputs",
    "PermissionDeniedError",
    "Pin",
    "PositionMismatch",
    "PositionMismatchError",
    "Precision",
    "PrefillCall",
    "PrefillResult",
    "PrefillTiming",
    "PrefixMatch",
    "Region",
    "Resource",
    "ResourceExhaustedError",
    "ServerInfo",
    "ServerLimits",
    "Session",
    "SlotContents",
    "SlotInfo",
    "SlotList",
    "SlotStates",
    "Snapshot",
    "SnapshotDirective",
    "SnapshotEvent",
    "SnapshotOutcome",
    "SnapshotResult",
    "SnapshotWatch",
    "States",
    "StatusCode",
    "Tier",
    "TierInfo",
    "Transport",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
    "__version__",
    "call_boundaries",
    "chunk_gated_delta_product_fwd_h",
    "prefix_keys",
    "set_default_session",
    "snapshot_directives",
]
