"""Random calls, and the recurrence in float64."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gdpcache import PrefillCall

Floats = npt.NDArray[np.float32]

HEADS, KEY_DIM, VALUE_DIM = 2, 16, 24


def random_call(seed: int, tokens: int, **fields: object) -> PrefillCall:
    """float32, H = 2, K = 16, V = 24, M = 1, decays within chunks of 16."""
    random = np.random.default_rng(seed)
    k = random.standard_normal((tokens, HEADS, KEY_DIM)).astype(np.float32)
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    w = (k * random.uniform(0.2, 0.9, (tokens, HEADS, 1))).astype(np.float32)
    u = random.standard_normal((tokens, HEADS, VALUE_DIM)).astype(np.float32)
    g = -random.uniform(0.0, 0.1, (tokens, HEADS)).astype(np.float32)
    for begin in range(0, tokens, 16):
        g[begin : begin + 16] = np.cumsum(g[begin : begin + 16], axis=0)
    call = PrefillCall(k=k, w=w, u=u, g=g, chunk_size=16)
    for name, value in fields.items():
        assert hasattr(call, name)
        setattr(call, name, value)
    return call


def exact(call: PrefillCall, state: npt.NDArray[np.float64] | None = None) -> dict[str, npt.NDArray[np.float64]]:
    """h, v_new and final_state of a call with one sequence and M = 1."""
    k, w, u, g = (np.asarray(getattr(call, name), np.float64) for name in ("k", "w", "u", "g"))
    tokens, heads, key_dim = k.shape
    s = np.zeros((heads, key_dim, u.shape[-1])) if state is None else state.copy()
    boundaries, values = [], np.empty_like(u)
    for begin in range(0, tokens, call.chunk_size):
        rows = slice(begin, min(begin + call.chunk_size, tokens))
        boundaries.append(s.copy())
        x = u[rows] - np.einsum("thk,hkv->thv", w[rows], s)
        values[rows] = x
        last = g[rows][-1]
        s = s * np.exp2(last)[:, None, None] + np.einsum(
            "thk,thv->hkv", k[rows], x * np.exp2(last - g[rows])[..., None]
        )
    return {"h": np.array(boundaries), "v_new": values, "final_state": s[None]}


def close(actual: object, expected: npt.NDArray[np.float64]) -> bool:
    array = np.asarray(actual, np.float64)
    assert array.shape == expected.shape
    return bool(np.linalg.norm(array - expected) <= 1e-5 * max(float(np.linalg.norm(expected)), 1.0))
