"""Values that calls take and return. ``proto/gdpcache/v1`` documents every field with its unit, default and limit."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# A numpy array, a torch tensor, or anything with __dlpack__ or __cuda_array_interface__.
TensorLike = Any


class DataType(enum.Enum):
    """Element types, by their names."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    UINT8 = "uint8"  # auxiliary bytes only

    size: int  # bytes of an element

    __hash__ = object.__hash__  # members are equal only to themselves; Enum's own is a Python function

    def __init__(self, name: str) -> None:
        self.size = {"float32": 4, "uint8": 1}.get(name, 2)


class Transport(str, enum.Enum):
    """How the tensors of a call travel."""

    AUTO = "auto"  # the fastest that server and tensors allow
    UNARY = "unary"  # in one message each way; refused beyond the server's message limit
    STREAM = "stream"  # in frames both ways at once; any size
    SHARED_MEMORY = "shared_memory"  # in memory shared with a server on this host
    CUDA_IPC = "cuda_ipc"  # where they are, on the GPU that the server works on

    __hash__ = str.__hash__  # members equal their values


class _Open(enum.Enum):
    """Values of a server that may be newer: those without a name here are UNKNOWN."""

    @classmethod
    def _missing_(cls, value: object) -> _Open:
        return cls(0)


class Tier(_Open):
    """Where a snapshot is kept, fastest first."""

    UNKNOWN = 0
    DEVICE = 1
    HOST = 2
    DISK = 3


@dataclass(frozen=True)
class CacheGeometry:
    """The fixed shape of one model's recurrent state."""

    layers: int
    slots: int
    heads: int
    key_dim: int
    value_dim: int
    num_householder: int = 1
    state_dtype: DataType = DataType.FLOAT32  # or its name, or a dtype of numpy or torch
    auxiliary_bytes: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.state_dtype, DataType):
            from gdpcache._tensors import data_type  # which imports this module

            object.__setattr__(self, "state_dtype", data_type(self.state_dtype, "state_dtype"))


@dataclass(frozen=True)
class CacheInfo:
    """A cache that exists."""

    name: str
    geometry: CacheGeometry
    fingerprint: str
    ephemeral: bool
    free_slots: int
    held_slots: int
    sessions: int
    memory_bytes: int


class CreatedCache(NamedTuple):
    """What ``create_cache`` came to."""

    cache: CacheInfo
    created: bool  # False: it existed with the same geometry and fingerprint and is shared


@dataclass(frozen=True)
class ServerLimits:
    """What a server allows."""

    max_message_bytes: int
    state_memory_bytes: int
    staging_bytes: int
    max_caches: int
    max_sessions: int
    max_sequences_per_call: int
    max_session_ttl: float  # seconds
    shared_memory_bytes: int  # registered system memory, all sessions together
    max_regions: int  # registered regions and events, all sessions together
    max_calls: int  # under way at a time; one session may have half of them
    max_queue_wait: float  # seconds; a call that would have to wait longer for its turn is ResourceExhaustedError
    max_connection_calls: int  # at a time on one connection
    max_tenant_sessions: int  # at a time; 0: no limit of its own
    max_tenant_slots: int  # held by one tenant's sessions; 0: no limit of its own


@dataclass(frozen=True)
class TierInfo:
    """Room for snapshots."""

    tier: Tier
    capacity_bytes: int
    used_bytes: int
    snapshots: int


@dataclass(frozen=True)
class BuildInfo:
    """What a server was made of, for people."""

    commit: str  # of the source; "unknown" where it was not built from a git checkout
    compiler: str
    libraries: tuple[str, ...]


@dataclass(frozen=True)
class ServerInfo:
    """A server, its memory and its caches."""

    version: str
    backend: str  # "cpu" or "cuda"
    device: str
    device_memory_bytes: int
    state_memory_used_bytes: int
    staging_used_bytes: int
    limits: ServerLimits
    addresses: tuple[str, ...]
    transports: tuple[str, ...]  # what it offers to this client
    caches: tuple[CacheInfo, ...]
    uptime: float  # seconds
    snapshot_tiers: tuple[TierInfo, ...]
    descriptor_socket: str  # see memory.proto; empty: no shared memory
    device_uuid: str  # of the GPU; empty on the CPU
    done_flags: bool  # whether prefills take them: see prefill.proto
    build: BuildInfo
    expected_wait: float  # seconds, of a call that came now, as far as can be told


@dataclass(frozen=True)
class SlotInfo:
    """A slot that some session holds."""

    slot: int
    client_name: str
    min_position: int  # tokens absorbed by the layer furthest behind
    max_position: int  # and furthest ahead
    session_expires_in: float  # seconds


@dataclass(frozen=True)
class SlotList:
    """The slots of one cache."""

    slots: tuple[SlotInfo, ...]  # held ones, ascending
    free_slots: int


@dataclass(frozen=True)
class SlotContents:
    """The contents of slots, all of one moment."""

    slots: tuple[int, ...]
    layers: tuple[int, ...]
    positions: npt.NDArray[np.int64]  # [slots, layers] tokens absorbed
    state: Array  # [slots, layers, H, K, V] in the cache's state dtype
    auxiliary: npt.NDArray[np.uint8] | None  # [slots, layers, auxiliary_bytes]; None where the cache keeps none


@dataclass(frozen=True)
class SnapshotDirective:
    """A boundary of a prefill's sequence to be kept: the state after min(boundary * chunk_size, length) tokens of
    it."""

    sequence: int
    boundary: int
    key: bytes  # 16 to 64 bytes
    auxiliary: bytes = b""  # this layer's auxiliary bytes at that position


class SnapshotResult(_Open):
    """What became of a snapshot that a call was to keep."""

    UNKNOWN = 0
    PENDING = 1  # this layer's part is kept; other layers have yet to bring theirs
    STORED = 2  # complete: it can be found
    PRESENT = 3  # the key was there already
    NO_SPACE = 4  # not kept


@dataclass(frozen=True)
class SnapshotOutcome:
    """One per snapshot that a call was to keep."""

    result: SnapshotResult
    position: int
    message: str = ""  # with NO_SPACE: which budget, its size and use


@dataclass(frozen=True)
class Snapshot:
    """The state of all layers of one slot at one position."""

    key: bytes
    position: int
    size: int  # bytes of its states and auxiliary bytes
    tiers: tuple[Tier, ...]
    pinned: bool
    age: float  # seconds since it was stored
    idle: float  # seconds since it was last used


@dataclass(frozen=True)
class PrefixMatch:
    """The longest prefix that was found."""

    index: int  # into the keys asked for
    snapshot: Snapshot
    pin: str  # of the lease; empty without

    @property
    def position(self) -> int:
        return self.snapshot.position

    @property
    def key(self) -> bytes:
        return self.snapshot.key


class Pin(NamedTuple):
    """Keeps snapshots from being evicted, for ``ttl`` seconds unless it is released before."""

    id: str
    ttl: float


class ExportedSnapshot(NamedTuple):
    """What ``export_snapshot`` has written."""

    position: int  # tokens
    size: int  # bytes of the file


class EventType(_Open):
    """What happened to a snapshot."""

    UNKNOWN = 0
    STORED = 1
    EVICTED = 2
    DELETED = 3
    SYNCED = 4  # all that existed has been told


@dataclass(frozen=True)
class SnapshotEvent:
    """One piece of news of ``watch_snapshots``."""

    type: EventType
    key: bytes
    position: int


@dataclass(frozen=True)
class PrefillTiming:
    """Seconds spent in the server."""

    queue: float
    stage_in: float
    compute: float
    stage_out: float
    total: float


@dataclass(frozen=True)
class Outputs:
    """Where results go: contiguous and of the result's dtype and shape. What is left out is allocated."""

    h: TensorLike | None = None  # [boundaries, H, K, V] in states_dtype
    v_new: TensorLike | None = None  # shaped like u, in the input dtype
    final_state: TensorLike | None = None  # [N, H, K, V] float32


class PrefillDetails(NamedTuple):
    """What an answer says besides the results."""

    positions: tuple[int, ...]
    snapshots: tuple[SnapshotOutcome, ...]
    timing: PrefillTiming


@dataclass(slots=True, eq=False)
class PrefillResult:
    """What a successful prefill returns. Results that were not asked for are None, the others what the inputs were:
    torch tensors on their device, else numpy arrays; or the caller's own from ``out``."""

    h: TensorLike
    v_new: TensorLike
    final_state: TensorLike
    chunk_offsets: tuple[int, ...]  # [N + 1] prefix sums of boundaries per sequence
    transport: Transport  # the one used
    _details: Callable[[], PrefillDetails] = field(repr=False)  # read when they are asked for: few callers want them

    @property
    def positions(self) -> tuple[int, ...]:
        """[N] tokens the slots have absorbed; -1 for slot -1."""
        return self._details().positions

    @property
    def snapshots(self) -> tuple[SnapshotOutcome, ...]:
        """One per directive."""
        return self._details().snapshots

    @property
    def timing(self) -> PrefillTiming:
        """The server's."""
        return self._details().timing


@dataclass(frozen=True)
class Region:
    """Memory or an event that a session shares with the server."""

    name: str
    kind: str  # "system", "cuda" or "cuda_event"
    size: int
    uses: int  # by calls in flight


SlotCopies = Sequence[tuple[int, Sequence[int]]]
