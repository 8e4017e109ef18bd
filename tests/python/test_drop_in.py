"""The function with Megatron-LM's signature."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
from golden import NAMES, Batch
from problems import HEADS, KEY_DIM, VALUE_DIM, close, exact, random_call
from test_golden import dtype_of, relative_error

import gdpcache
from gdpcache import chunk_gated_delta_product_fwd_h

# As the function is documented where it comes from.
SIGNATURE = {
    "k": inspect.Parameter.empty,
    "w": inspect.Parameter.empty,
    "u": inspect.Parameter.empty,
    "g": None,
    "initial_state": None,
    "output_final_state": False,
    "chunk_size": 64,
    "save_new_value": True,
    "cu_seqlens": None,
    "num_householder": 1,
    "chunk_indices": None,
    "chunk_offsets": None,
    "state": None,
    "state_indices": None,
    "states_dtype": None,
}


def test_the_signature_is_the_original_one() -> None:
    parameters = inspect.signature(chunk_gated_delta_product_fwd_h).parameters
    assert {name: parameter.default for name, parameter in parameters.items()} == SIGNATURE
    assert list(parameters) == list(SIGNATURE)


def arguments(seed: int, batch: int, tokens: int) -> dict[str, Any]:
    call = random_call(seed, batch * tokens)
    return {name: getattr(call, name).reshape(batch, tokens, HEADS, -1) for name in ("k", "w", "u")} | {
        "g": np.asarray(call.g).reshape(batch, tokens, HEADS),
        "chunk_size": 16,
    }


def test_dense_batches_have_a_dimension_of_their_own(client: gdpcache.Client, cache: str) -> None:
    with client.open_session(cache) as session:
        gdpcache.set_default_session(session)
        inputs = arguments(1, 3, 32)
        initial = np.random.default_rng(1).standard_normal((3, HEADS, KEY_DIM, VALUE_DIM)).astype(np.float32)
        h, v_new, final_state = chunk_gated_delta_product_fwd_h(
            **inputs, initial_state=initial, output_final_state=True
        )
        assert h.shape == (3, 2, HEADS, KEY_DIM, VALUE_DIM)
        assert v_new.shape == (3, 32, HEADS, VALUE_DIM)
        assert final_state.shape == (3, HEADS, KEY_DIM, VALUE_DIM)
        for n in range(3):
            alone = random_call(1, 96)
            for name in ("k", "w", "u", "g"):
                setattr(alone, name, getattr(alone, name)[32 * n : 32 * n + 32])
            expected = exact(alone, initial[n].astype(np.float64))
            assert close(h[n], expected["h"])
            assert close(v_new[n], expected["v_new"])
            assert close(final_state[n : n + 1], expected["final_state"])
        gdpcache.set_default_session(None)


def test_what_was_not_asked_for_is_none(client: gdpcache.Client, cache: str) -> None:
    with client.open_session(cache) as session:
        (slot,) = session.acquire_slots()
        h, v_new, final_state = chunk_gated_delta_product_fwd_h(
            **arguments(2, 1, 40), save_new_value=False, state=session.layer(1), state_indices=[slot]
        )
        assert h.shape == (1, 3, HEADS, KEY_DIM, VALUE_DIM)
        assert v_new is None
        assert final_state is None
        assert session.read_slots([slot]).positions.tolist() == [[0, 40]]


def test_slots_are_continued_without_fetching_them(client: gdpcache.Client, cache: str) -> None:
    inputs = arguments(3, 1, 64)
    halves = [{**inputs, **{name: inputs[name][:, rows] for name in ("k", "w", "u", "g")}} for rows in
              (slice(0, 32), slice(32, 64))]  # fmt: skip
    with client.open_session(cache) as session:
        one, two, three = ([slot] for slot in session.acquire_slots(3))
        state = session.layer(0)
        assert state.shape == (8, HEADS, KEY_DIM, VALUE_DIM)
        assert state.dtype is gdpcache.DataType.FLOAT32
        _, whole, _ = chunk_gated_delta_product_fwd_h(**inputs, state=state, state_indices=one)
        for slots, handle in ((two, state), (three, state[three])):
            chunk_gated_delta_product_fwd_h(**halves[0], state=state, state_indices=slots)
            _, rest, _ = chunk_gated_delta_product_fwd_h(
                **halves[1], initial_state=handle, state=state, state_indices=slots
            )
            assert (rest == whole[:, 32:]).all()
        contents = session.read_slots([*one, *two, *three], [0]).state
        assert (contents == contents[0]).all()
        # None means zeros, as in the original.
        _, again, _ = chunk_gated_delta_product_fwd_h(**inputs, state=state, state_indices=one)
        assert (again == whole).all()


def test_mistakes_are_told(client: gdpcache.Client, cache: str) -> None:
    inputs = arguments(4, 1, 16)
    with pytest.raises(ValueError, match="set_default_session"):
        chunk_gated_delta_product_fwd_h(**inputs)
    with client.open_session(cache) as session:
        (slot,) = session.acquire_slots()
        state = session.layer(0)
        with pytest.raises(ValueError, match="state and state_indices go together"):
            chunk_gated_delta_product_fwd_h(**inputs, state=state)
        with pytest.raises(ValueError, match="another layer"):
            chunk_gated_delta_product_fwd_h(**inputs, state=state, state_indices=[slot], initial_state=session.layer(1))
        with pytest.raises(ValueError, match=r"initial_state is of slots \[5\]; state_indices are \[0\]"):
            chunk_gated_delta_product_fwd_h(**inputs, state=state, state_indices=[slot], initial_state=state[[5]])
        with pytest.raises(ValueError, match="expected \\[B, T, H, V\\]"):
            chunk_gated_delta_product_fwd_h(**{**inputs, "u": inputs["u"][0]}, state=state, state_indices=[slot])
        with pytest.raises(gdpcache.InvalidArgumentError, match="chunk_offsets"):
            chunk_gated_delta_product_fwd_h(**inputs, state=state, state_indices=[slot], chunk_offsets=[0, 2])


def test_chunks_may_be_told_and_are_checked(client: gdpcache.Client, cache: str) -> None:
    inputs = arguments(6, 1, 48)
    cu_seqlens = np.array([0, 20, 48], np.int32)
    chunks: dict[str, Any] = {
        "chunk_indices": np.array([[0, 0], [0, 1], [1, 0], [1, 1]], np.int32),
        "chunk_offsets": np.array([0, 2, 4]),
    }
    with client.open_session(cache) as session:
        gdpcache.set_default_session(session)
        options: dict[str, Any] = {"cu_seqlens": cu_seqlens, "output_final_state": True}
        derived = chunk_gated_delta_product_fwd_h(**inputs, **options)
        told = chunk_gated_delta_product_fwd_h(**inputs, **options, **chunks)
        assert told[0].shape == (1, 4, HEADS, KEY_DIM, VALUE_DIM)
        assert all((one == other).all() for one, other in zip(derived, told, strict=True))
        for name in chunks:
            wrong = chunks[name].copy()
            wrong.reshape(-1)[-1] += 1
            with pytest.raises(gdpcache.InvalidArgumentError, match=name):
                chunk_gated_delta_product_fwd_h(**inputs, **options, **{**chunks, name: wrong})
        gdpcache.set_default_session(None)


@pytest.mark.parametrize("name", NAMES)
def test_recorded_batches(client: gdpcache.Client, name: str) -> None:
    batch = Batch(name)
    metadata, before = batch.metadata, batch.get("state.before")
    heads, key_dim = batch["k"].shape[-2:]
    count = int(metadata["batch"]) if batch.get("cu_seqlens") is None else 1
    client.create_cache(
        f"drop-in-{name}",
        gdpcache.CacheGeometry(
            layers=1,
            slots=1 if before is None else len(before),
            heads=heads,
            key_dim=key_dim,
            value_dim=batch["u"].shape[-1],
            state_dtype=gdpcache.DataType.FLOAT32 if before is None else dtype_of(before),
        ),
        ephemeral=True,
    )
    with client.open_session(f"drop-in-{name}") as session:
        gdpcache.set_default_session(session)
        state = state_indices = None
        if before is not None and batch.get("state_indices") is not None:
            session.write_slots(session.acquire_slots(len(before)), before[:, None])
            state, state_indices = session.layer(0), batch["state_indices"]
        initial: Any = {"slot": state, "zero": None}.get(metadata["initial_state"], batch.get("initial_state"))

        def batched(array: Any) -> Any:
            return None if array is None else array.reshape(count, -1, *array.shape[1:])

        h, v_new, final_state = chunk_gated_delta_product_fwd_h(
            k=batched(batch["k"]),
            w=batched(batch["w"]),
            u=batched(batch["u"]),
            g=batched(batch.get("g")),
            initial_state=initial,
            output_final_state=metadata["output_final_state"] == "true",
            chunk_size=int(metadata["chunk_size"]),
            save_new_value=metadata["save_new_value"] == "true",
            cu_seqlens=batch.get("cu_seqlens"),
            num_householder=int(metadata["num_householder"]),
            state=state,
            state_indices=state_indices,
            states_dtype=metadata["states_dtype"],
        )
        results = {"h": h.reshape(batch["out.h"].shape), "v_new": v_new, "final_state": final_state}
        if state is not None:
            assert before is not None
            results["state"] = session.read_slots(range(len(before))).state[:, 0]
        for output, array in results.items():
            recorded = batch.get(f"out.{output}")
            if recorded is not None:
                error = float(metadata[f"triton_err_{'state' if output == 'final_state' else output}"])
                assert relative_error(array.reshape(recorded.shape), recorded) <= error + max(1.1 * error, 1e-5)
        gdpcache.set_default_session(None)


def test_torch_in_gives_torch_back(client: gdpcache.Client, cache: str) -> None:
    torch = pytest.importorskip("torch")
    inputs = arguments(5, 1, 48)
    tensors = {
        name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value for name, value in inputs.items()
    }
    with client.open_session(cache) as session:
        (slot,) = session.acquire_slots()
        state = session.layer(0)
        expected = chunk_gated_delta_product_fwd_h(**inputs, state=state, state_indices=[slot])
        h, v_new, final_state = chunk_gated_delta_product_fwd_h(
            **tensors,
            output_final_state=True,
            cu_seqlens=torch.tensor([0, 48], dtype=torch.int32),
            chunk_indices=torch.tensor([[0, 0], [0, 1], [0, 2]]),
            chunk_offsets=torch.tensor([0, 3]),
            state=state,
            state_indices=torch.tensor([slot]),
            states_dtype=torch.bfloat16,
        )
        assert h.dtype == torch.bfloat16
        assert (h == torch.from_numpy(expected[0]).to(torch.bfloat16)).all()
        assert (v_new == torch.from_numpy(expected[1])).all()
        assert final_state.shape == (1, HEADS, KEY_DIM, VALUE_DIM)
