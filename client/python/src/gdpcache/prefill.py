"""The request of a prefill."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gdpcache.types import DataType, Outputs, SnapshotDirective, TensorLike, Transport

NOWHERE = Outputs()  # in particular: all results are allocated


class _Option(enum.Enum):
    __hash__ = object.__hash__  # members are equal only to themselves; Enum's own is a Python function


class InitialState(_Option):
    """Where each sequence starts from, unless a tensor says so."""

    SLOT = "slot"  # its slot's own content; a sequence of slot -1 starts from zero
    ZERO = "zero"


class States(_Option):
    """Which boundary states come back in h, unless a list of (sequence, boundary) says so."""

    NONE = "none"
    ALL = "all"


class DecayBase(_Option):
    """Base of the decays in g. Natural ones are converted by the server."""

    LOG2 = "log2"
    NATURAL = "natural"


class Precision(_Option):
    """How the recurrence multiplies bfloat16 and float16 inputs; sums are float32 always."""

    DEFAULT = "default"  # the state and x may be rounded to the input dtype for each product
    HIGH = "high"  # both keep twice its digits


@dataclass(kw_only=True)
class PrefillCall:
    """One call of the recurrence for one layer. T counts expanded tokens of all sequences, N sequences; H, K, V, M are
    the cache's heads, key_dim, value_dim and num_householder.

    Tensors may be numpy arrays, torch tensors, or whatever shows its memory by ``__dlpack__`` or
    ``__cuda_array_interface__``; bfloat16 in numpy: see :mod:`gdpcache.bfloat16`. They must not change until the call
    has returned, nor, after one without an answer, before ``session.settle()`` has. Lists of integers may be any
    sequence, array or tensor; on a GPU they have to be fetched first, which waits for it, so keep them on the host.
    Options may be given by their values, as ``states="all"``.
    """

    layer: int = 0

    # Rows on the expanded token stream: [T, H, K] for k and w, [T, H, V] for u, [T, H] for g, or the same with a
    # leading batch dimension. k, w and u share one dtype, the input dtype: float32, bfloat16 or float16.
    k: TensorLike
    w: TensorLike
    u: TensorLike
    g: TensorLike | None = None  # float32, cumulative decay within each chunk; None: no decay
    g_base: DecayBase | str = DecayBase.LOG2

    # How T splits into sequences: boundaries [N + 1] on the expanded stream, or `batch` equal sequences (0 means 1).
    cu_seqlens: TensorLike | Sequence[int] | None = None
    batch: int = 0

    chunk_size: int = 64  # expanded tokens: 16, 32, 64, 128
    num_householder: int = 0  # 0 means the cache's
    chunk_offsets: TensorLike | Sequence[int] | None = None  # checked by the server when given
    chunk_indices: TensorLike | Sequence[int] | None = None  # checked by the server when given

    state_indices: TensorLike | Sequence[int] | None = None  # [N] slots, -1 stores nowhere; None: no sequence has one
    initial_state: InitialState | str | TensorLike = InitialState.SLOT  # or a tensor, [N, H, K, V] float32

    save_new_value: bool = True  # return v_new
    output_final_state: bool = False  # return final_state
    states: States | str | Sequence[tuple[int, int]] = States.NONE  # or (sequence, boundary) pairs, ascending, distinct
    states_dtype: DataType | str | Any | None = None  # of h; None: the input dtype. float32 keeps full precision

    # Boundaries to keep for other requests. Each layer's call names them; the last one makes them findable.
    snapshots: Sequence[SnapshotDirective] = ()

    # [N] tokens each slot must have absorbed before the call; -1 is not checked. A mismatch is PositionMismatchError:
    # so a caller that lost an answer learns whether the call was applied.
    expected_positions: TensorLike | Sequence[int] | None = None

    check_finite: bool = False  # NaN or infinity in an input fails the call
    auxiliary_state: TensorLike | None = None  # [N, auxiliary_bytes] uint8: replaces the slots' auxiliary bytes
    request_id: str = ""  # for the server's logs; at most 128 bytes
    precision: Precision | str = Precision.DEFAULT

    out: Outputs = NOWHERE
    transport: Transport | str = Transport.AUTO  # AUTO: the session's choice
