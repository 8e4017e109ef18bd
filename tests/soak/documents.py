"""What the soak's clients prefill: documents that share beginnings, one-token steps behind them, and their results."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from problems import HEADS, KEY_DIM, VALUE_DIM, close, exact, random_call

import gdpcache

Floats = npt.NDArray[np.float32]
Rows = dict[str, Any]  # k, w, u and g, as arguments of a PrefillCall

LAYERS = 2
CHUNK = 16
AUXILIARY_BYTES = 32
STEPS = 4
COUNT = 24  # documents
FAMILIES = 6
SHARED_TOKENS = 96  # of a family, a multiple of CHUNK

GEOMETRY = gdpcache.CacheGeometry(
    layers=LAYERS, slots=96, heads=HEADS, key_dim=KEY_DIM, value_dim=VALUE_DIM, auxiliary_bytes=AUXILIARY_BYTES
)


def auxiliary(key: bytes, layer: int) -> bytes:
    """What is kept beside a layer's state in the snapshot of this key."""
    return hashlib.blake2b(key, digest_size=AUXILIARY_BYTES, salt=bytes([layer])).digest()


@dataclass(frozen=True)
class Document:
    """The inputs of every layer. Documents of one family begin alike."""

    tokens: npt.NDArray[np.int64]
    layers: tuple[Rows, ...]
    steps: tuple[Rows, ...]

    @staticmethod
    def create(number: int) -> Document:
        family = number % FAMILIES
        random = np.random.default_rng(number)
        own = int(random.integers(1, 300))
        tokens = np.concatenate([np.arange(SHARED_TOKENS) + family * 1000, np.arange(own) + (number + 10) * 10_000])
        layers, steps = [], []
        for layer in range(LAYERS):
            shared = rows(random_call(family * LAYERS + layer, SHARED_TOKENS))
            rest = rows(random_call(1000 + number * LAYERS + layer, own))
            layers.append({name: np.concatenate([shared[name], rest[name]]) for name in shared})
            steps.append(rows(random_call(2000 + number * LAYERS + layer, STEPS)))
        return Document(tokens, tuple(layers), tuple(steps))

    def __len__(self) -> int:
        return len(self.tokens)

    def keys(self, generation: int) -> dict[int, bytes]:
        """By position. Those of different generations never meet, so that there is always something new to keep."""
        positions = range(CHUNK, len(self), CHUNK)
        return gdpcache.prefix_keys(self.tokens, positions, salt=generation.to_bytes(8, "little"))


@dataclass(frozen=True)
class Results:
    """Bit for bit what a document's prefill gives, however it is split, and its steps after it."""

    values: tuple[Floats, ...]  # per layer, [tokens, H, V]
    states: tuple[Floats, ...]  # per layer, [boundaries + 1, H, K, V]: at each chunk's beginning, and at the end
    step_values: tuple[Floats, ...]  # per layer, [STEPS, H, V]
    last_states: tuple[Floats, ...]  # per layer, after the steps

    def state(self, layer: int, position: int, tokens: int) -> Floats:
        state: Floats = self.states[layer][-1 if position == tokens else position // CHUNK]
        return state


def rows(call: gdpcache.PrefillCall) -> Rows:
    return {name: getattr(call, name) for name in ("k", "w", "u", "g")}


def measure(session: gdpcache.Session, document: Document) -> Results:
    """By calls that are not split and share their launches with nothing; AssertionError unless they are as close to
    float64 arithmetic as results have to be."""
    (slot,) = session.acquire_slots()
    results = Results((), (), (), ())
    for layer in range(LAYERS):
        call = gdpcache.PrefillCall(
            layer=layer,
            **document.layers[layer],
            chunk_size=CHUNK,
            state_indices=[slot],
            states=gdpcache.States.ALL,
            output_final_state=True,
        )
        result = session.prefill(call)
        expected = exact(call)
        assert close(result.v_new, expected["v_new"])
        assert close(result.h, expected["h"])
        assert close(result.final_state, expected["final_state"])
        values = []
        state = expected["final_state"][0]
        for step in range(STEPS):
            call = gdpcache.PrefillCall(
                layer=layer,
                **{name: array[step : step + 1] for name, array in document.steps[layer].items()},
                chunk_size=CHUNK,
                state_indices=[slot],
                output_final_state=True,
            )
            stepped = session.prefill(call)
            expected = exact(call, state)
            state = expected["final_state"][0]
            assert close(stepped.v_new, expected["v_new"])
            assert close(stepped.final_state, expected["final_state"])
            values.append(stepped.v_new)
        results = dataclasses.replace(
            results,
            values=(*results.values, result.v_new),
            states=(*results.states, np.concatenate([result.h, result.final_state])),
            step_values=(*results.step_values, np.concatenate(values)),
            last_states=(*results.last_states, stepped.final_state[0]),
        )
    session.release_slots([slot])
    return results
