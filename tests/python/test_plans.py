"""What is kept between calls: the plans of those that are alike, and the answers that they lead to expect."""

from __future__ import annotations

import contextlib
import pickle
from typing import Any

import numpy as np
import pytest
from problems import random_call

import gdpcache
from gdpcache import InitialState, Outputs, PrefillCall, States, _prepared
from gdpcache._recent import Recent

TOKENS = 512  # more than goes as one message where memory is shared


@pytest.fixture
def session(client: gdpcache.Client, cache: str) -> Any:
    with client.open_session(cache) as opened:
        yield opened


def plans_of(session: gdpcache.Session) -> int:
    return len(session._state.plans._values)


def full_call(**fields: Any) -> PrefillCall:
    return random_call(
        1, TOKENS, **{"states": States.ALL, "output_final_state": True, "initial_state": InitialState.ZERO, **fields}
    )


def test_calls_that_are_alike_have_one_plan(session: gdpcache.Session) -> None:
    slots = session.acquire_slots(2)
    for layer in (0, 1):
        for cu_seqlens in ([0, 100, TOKENS], (0, 100, TOKENS), np.array([0, 100, TOKENS])):
            session.prefill(full_call(layer=layer, cu_seqlens=cu_seqlens, state_indices=slots, request_id=str(layer)))
    assert plans_of(session) == 2  # an array is not compared with a list
    assert session.read_slots(slots).positions.tolist() == [[100, 100], [TOKENS - 100] * 2]


def test_lists_that_change_in_place_are_seen(session: gdpcache.Session) -> None:
    lists: list[Any] = [np.array([0, 100, TOKENS]), [0, 100, TOKENS]]
    with contextlib.suppress(ImportError):
        import torch

        lists += [torch.tensor([0, 100, TOKENS]), torch.tensor([0, 7, 100, 7, TOKENS, 7])[::2]]
    for cu_seqlens in lists:
        call = full_call(cu_seqlens=cu_seqlens)
        assert session.prefill(call).chunk_offsets == (0, 7, 33)
        cu_seqlens[1] = 16
        assert session.prefill(call).chunk_offsets == (0, 1, 32)


@pytest.mark.parametrize(
    "fields",
    [
        {"chunk_size": 32},
        {"states": States.NONE},
        {"states": [(0, 1)]},
        {"states": [(0, 2)]},
        {"states_dtype": "bfloat16"},
        {"save_new_value": False},
        {"output_final_state": False},
        {"g": None},
        {"g_base": gdpcache.DecayBase.NATURAL},
        {"initial_state": InitialState.SLOT, "state_indices": [0]},
        {"initial_state": np.ones((1, 2, 16, 24), np.float32)},
        {"batch": 2},
        {"state_indices": [0]},
        {"state_indices": [-1]},
        {"check_finite": True},
        {"cu_seqlens": [0, TOKENS]},
        {"k": random_call(2, TOKENS).k.astype(np.float16)},  # refused: w and u are of another type
        {"chunk_offsets": [0, 33]},  # refused
    ],
)
def test_calls_that_differ_have_none_in_common(session: gdpcache.Session, fields: dict[str, Any]) -> None:
    """The second call gives what it gives in a session that knows no other."""
    session.acquire_slots()

    def outcome(call: PrefillCall) -> Any:
        try:
            result = session.prefill(call)
        except gdpcache.InvalidArgumentError as error:
            return str(error)
        return [None if array is None else (array.dtype, array.tobytes()) for array in
                (result.h, result.v_new, result.final_state)], result.positions, result.chunk_offsets  # fmt: skip

    first = outcome(full_call())
    known = outcome(full_call(**fields))
    session.reset_slots([0])
    session._state.plans = Recent(1)
    assert outcome(full_call(**fields)) == known
    assert outcome(full_call()) == first


def test_answers_come_as_they_are_expected(session: gdpcache.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that results in shared memory are taken without reading their headers."""

    def slowly(*arguments: object) -> None:
        raise AssertionError("the answer is not the one expected")

    call = full_call(cu_seqlens=[0, 100, 100, TOKENS])
    expected = session.prefill(full_call(cu_seqlens=[0, 100, 100, TOKENS], transport="unary"))
    monkeypatch.setattr(_prepared, "finish", slowly)
    choices: list[Any] = [States.ALL, States.NONE, [(0, 1), (2, 3)]]
    for states in choices:
        call.states = states
        result = pickle.loads(pickle.dumps(session.prefill(call)))
        assert result.chunk_offsets == expected.chunk_offsets == (0, 7, 7, 33)
        assert result.positions == expected.positions == (-1, -1, -1)
        assert (result.v_new == expected.v_new).all()


def test_results_go_where_they_are_wanted_in_every_call(session: gdpcache.Session) -> None:
    expected = session.prefill(full_call())
    for out in (np.zeros_like(expected.v_new), session.shared_empty(expected.v_new.shape), None):
        result = session.prefill(full_call(out=Outputs(v_new=out)))
        assert out is None or result.v_new is out
        assert (result.v_new == expected.v_new).all()
    with pytest.raises(ValueError, match=r"out\.v_new is given, but the call does not ask for v_new"):
        session.prefill(full_call(save_new_value=False, out=Outputs(v_new=np.zeros_like(expected.v_new))))


def test_the_oldest_are_forgotten() -> None:
    recent: Recent[int] = Recent(2)
    for value in range(3):
        recent.put(str(value), value)
    assert [recent.get(str(value)) for value in range(3)] == [None, 1, 2]
    recent.put("1", 5)
    assert recent.get("2") == 2
    assert recent.get("1") == 5
