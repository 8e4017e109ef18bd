"""Megatron-LM's function, with its own signature, on a server."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar

from gdpcache import _tensors
from gdpcache.client import Session
from gdpcache.layer_state import LayerState, SlotStates
from gdpcache.prefill import InitialState, PrefillCall, States
from gdpcache.types import DataType, TensorLike

_default: ContextVar[Session | None] = ContextVar("gdpcache_default_session", default=None)


def set_default_session(session: Session | None) -> None:
    """The session of calls of :func:`chunk_gated_delta_product_fwd_h` that name no ``state``, in this thread or
    task."""
    _default.set(session)


def chunk_gated_delta_product_fwd_h(
    k: TensorLike,
    w: TensorLike,
    u: TensorLike,
    g: TensorLike | None = None,
    initial_state: TensorLike | LayerState | SlotStates | None = None,
    output_final_state: bool = False,
    chunk_size: int = 64,
    save_new_value: bool = True,
    cu_seqlens: TensorLike | Sequence[int] | None = None,
    num_householder: int = 1,
    chunk_indices: TensorLike | Sequence[int] | None = None,
    chunk_offsets: TensorLike | Sequence[int] | None = None,
    state: LayerState | None = None,
    state_indices: TensorLike | Sequence[int] | None = None,
    states_dtype: DataType | str | object | None = None,
) -> tuple[TensorLike, TensorLike, TensorLike]:
    """Runs the inter-chunk state recurrence; ``(h, v_new, final_state)`` as Megatron-LM's function of this name returns
    them, in the library and on the device of the inputs.

    k, w: [B, T, H, K], u: [B, T, H, V] on the Householder-expanded token stream; g: [B, T, H] within-chunk cumulative
    log2 decays; cu_seqlens: [N + 1] with B = 1. h: [B, NT, H, K, V], the state at each unexpanded chunk boundary, in
    ``states_dtype`` or the input dtype; v_new like u; final_state: [N, H, K, V] float32. What was not asked for is
    None.

    ``state`` is a layer of a server's cache, ``session.layer(i)``, in the place of the tensor [S, H, K, V]; the new
    states go to its slots ``state_indices`` [N], -1 nowhere, and final_state is None unless ``output_final_state``.
    Sequences start from ``initial_state``: a tensor [N, H, K, V] float32, None for zeros, or ``state[state_indices]``
    (or just ``state``) for what the slots hold, which is neither fetched nor copied. Without ``state`` the call runs
    on the session of :func:`set_default_session` and changes nothing there.

    ``chunk_indices`` and ``chunk_offsets`` are derived by the server, which checks those that are given. Integers on a
    GPU have to be fetched, which waits for it: keep them on the host.
    """
    session = state.session if state is not None else _default.get()
    if session is None:
        raise ValueError("without state the function needs a server: call gdpcache.set_default_session(session) first")
    if (state is None) != (state_indices is None):
        raise ValueError("state and state_indices go together")
    if len(u.shape) != 4:
        raise ValueError(f"u has shape {list(u.shape)}; expected [B, T, H, V]")
    call = PrefillCall(
        layer=0 if state is None else state.layer,
        k=k,
        w=w,
        u=u,
        g=g,
        cu_seqlens=cu_seqlens,
        batch=0 if cu_seqlens is not None else u.shape[0],
        chunk_size=chunk_size,
        num_householder=num_householder,
        chunk_offsets=chunk_offsets,
        chunk_indices=chunk_indices,
        state_indices=state_indices,
        initial_state=_start(initial_state, state, state_indices),
        save_new_value=save_new_value,
        output_final_state=output_final_state,
        states=States.ALL,
        states_dtype=states_dtype,
    )
    return session._prefill_batched(call)


def _start(
    initial_state: TensorLike | LayerState | SlotStates | None,
    state: LayerState | None,
    state_indices: TensorLike | Sequence[int] | None,
) -> InitialState | TensorLike:
    if initial_state is None:
        return InitialState.ZERO
    if isinstance(initial_state, SlotStates):
        slots = tuple(_tensors.indices("state_indices", state_indices))
        if initial_state.slots != slots:
            raise ValueError(f"initial_state is of slots {list(initial_state.slots)}; state_indices are {list(slots)}")
        initial_state = initial_state.state
    if not isinstance(initial_state, LayerState):
        return initial_state
    if initial_state is not state and initial_state != state:
        raise ValueError("initial_state names another layer than state")
    return InitialState.SLOT
