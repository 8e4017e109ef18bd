"""The recorded batches through every transport: the same bits as the unary call, and close to the reference kernel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from conftest import Server
from golden import NAMES, Array, Batch

import gdpcache
from gdpcache import DataType, InitialState, PrefillCall, States, Transport
from gdpcache.bfloat16 import to_float32

_DTYPES = {np.dtype(np.float32): DataType.FLOAT32, np.dtype(np.float16): DataType.FLOAT16}


def dtype_of(array: Array) -> DataType:
    return _DTYPES.get(array.dtype, DataType.BFLOAT16)


@dataclass(frozen=True)
class Outcome:
    h: Array
    v_new: Array | None
    final_state: Array | None
    slots: Array | None


def same_bits(left: Array | None, right: Array | None) -> bool:
    if left is None or right is None:
        return left is right
    return left.shape == right.shape and left.dtype == right.dtype and left.tobytes() == right.tobytes()


def call_of(batch: Batch, slots: dict[int, int]) -> PrefillCall:
    metadata = batch.metadata
    states: Any = {"slot": InitialState.SLOT, "zero": InitialState.ZERO}.get(metadata["initial_state"])
    return PrefillCall(
        k=batch["k"],
        w=batch["w"],
        u=batch["u"],
        g=batch.get("g"),
        cu_seqlens=batch.get("cu_seqlens"),
        batch=int(metadata["batch"]) if batch.get("cu_seqlens") is None else 0,
        chunk_size=int(metadata["chunk_size"]),
        num_householder=int(metadata["num_householder"]),
        state_indices=None
        if batch.get("state_indices") is None
        else [slots.get(int(slot), -1) for slot in batch["state_indices"]],
        initial_state=batch["initial_state"] if states is None else states,
        save_new_value=metadata["save_new_value"] == "true",
        output_final_state=metadata["output_final_state"] == "true",
        states=States.ALL,
        states_dtype=metadata["states_dtype"],
    )


def run(client: gdpcache.Client, batch: Batch, transport: Transport) -> Outcome:
    before = batch.get("state.before")
    heads, key_dim = batch["k"].shape[-2:]
    geometry = gdpcache.CacheGeometry(
        layers=1,
        slots=1 if before is None else len(before),
        heads=heads,
        key_dim=key_dim,
        value_dim=batch["u"].shape[-1],
        num_householder=int(batch.metadata["num_householder"]),
        state_dtype=DataType.FLOAT32 if before is None else dtype_of(before),
    )
    name = f"golden-{batch.metadata['name']}"
    client.create_cache(name, geometry, ephemeral=True)
    with client.open_session(name) as session:
        slots = {} if before is None else dict(enumerate(session.acquire_slots(len(before))))
        if before is not None:
            session.write_slots(list(slots.values()), before[:, None])
        call = call_of(batch, slots)
        call.transport = transport
        result = session.prefill(call)
        assert result.transport is transport
        assert session.transports_used == {transport: 1}
        contents = None if before is None else session.read_slots(list(slots.values())).state[:, 0]
        assert result.h is not None
        return Outcome(result.h, result.v_new, result.final_state, contents)


@pytest.fixture(scope="module", params=["tcp", "unix"])
def golden_client(server: Server, request: pytest.FixtureRequest) -> Iterator[gdpcache.Client]:
    with gdpcache.Client(getattr(server, request.param)) as client:
        yield client


def widen(array: Array) -> Array:
    return to_float32(array) if dtype_of(array) is DataType.BFLOAT16 else array.astype(np.float64)


def relative_error(actual: Array, expected: Array) -> float:
    difference = widen(actual).astype(np.float64) - widen(expected)
    return float(np.linalg.norm(difference) / max(float(np.linalg.norm(widen(expected))), 1e-30))


@pytest.mark.parametrize("name", NAMES)
def test_every_transport_gives_the_recorded_results(golden_client: gdpcache.Client, name: str) -> None:
    batch = Batch(name)
    unary = run(golden_client, batch, Transport.UNARY)
    for output, array in (("h", unary.h), ("v_new", unary.v_new), ("state", unary.slots)):
        recorded = batch.get(f"out.{output}")
        if recorded is None or array is None:
            assert recorded is None
            continue
        error = float(batch.metadata.get(f"triton_err_{output}", "0"))
        # Each side is so far from the exact result.
        assert relative_error(array, recorded) <= error + max(1.1 * error, 1e-5), output
    if unary.final_state is not None and batch.get("out.final_state") is not None:
        error = float(batch.metadata["triton_err_state"])
        assert relative_error(unary.final_state, batch["out.final_state"]) <= error + max(1.1 * error, 1e-5)

    for transport in (Transport.STREAM, Transport.SHARED_MEMORY):
        other = run(golden_client, batch, transport)
        assert same_bits(unary.h, other.h), transport
        assert same_bits(unary.v_new, other.v_new), transport
        assert same_bits(unary.final_state, other.final_state), transport
        assert same_bits(unary.slots, other.slots), transport
