"""Arrays and tensors of other libraries."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from problems import HEADS, KEY_DIM, VALUE_DIM, random_call

import gdpcache
from gdpcache import InitialState, Outputs, PrefillCall, States
from gdpcache.bfloat16 import bits, from_float32, to_float32


class DlpackOnly:
    """A tensor that shows nothing but DLPack, as other libraries' do."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array

    def __dlpack__(self, **arguments: Any) -> Any:
        return self._array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def as_bfloat16(call: PrefillCall) -> PrefillCall:
    for name in ("k", "w", "u"):
        setattr(call, name, bits(from_float32(getattr(call, name))))
    return call


def test_bfloat16_rounds_to_the_nearest_even() -> None:
    values = np.array([1.0, 1.00390625, 1.01171875, -2.0, np.inf, 3.4e38, 1e-40], np.float32)
    expected = [0x3F80, 0x3F80, 0x3F82, 0xC000, 0x7F80, 0x7F80, 0x0001]
    assert bits(from_float32(values)).tolist() == expected
    assert np.isnan(to_float32(from_float32(np.array([np.nan], np.float32)))).all()
    every = np.arange(1 << 16, dtype=np.uint16)
    finite = every[np.isfinite(to_float32(every))]
    assert (bits(from_float32(to_float32(finite))) == finite).all()


def test_bits_in_give_bits_back(client: gdpcache.Client, cache: str) -> None:
    call = as_bfloat16(random_call(1, 40, states=States.ALL, initial_state=InitialState.ZERO))
    with client.open_session(cache) as session:
        result = session.prefill(call)
        assert result.v_new.dtype == result.h.dtype == np.uint16
        call.states_dtype = np.float32
        wide = session.prefill(call).h
        assert wide.dtype == np.float32
        assert (bits(from_float32(wide)) == result.h).all()


def test_ml_dtypes_in_gives_ml_dtypes_back(client: gdpcache.Client, cache: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    call = as_bfloat16(random_call(1, 40, states=States.ALL, initial_state=InitialState.ZERO))
    with client.open_session(cache) as session:
        expected = session.prefill(call)
        for name in ("k", "w", "u"):
            setattr(call, name, getattr(call, name).view(ml_dtypes.bfloat16))
        result = session.prefill(call)
        assert result.v_new.dtype == result.h.dtype == ml_dtypes.bfloat16
        assert (bits(result.v_new) == expected.v_new).all()
        assert (bits(result.h) == expected.h).all()


def test_float16_and_strides(client: gdpcache.Client, cache: str) -> None:
    call = random_call(2, 40, states=States.ALL, initial_state=InitialState.ZERO)
    for name in ("k", "w", "u"):
        setattr(call, name, getattr(call, name).astype(np.float16))
    with client.open_session(cache) as session:
        expected = session.prefill(call)
        assert expected.v_new.dtype == np.float16
        call.u = np.asfortranarray(call.u)
        call.k = np.repeat(call.k, 2, axis=0)[::2]
        result = session.prefill(call)
        assert (result.v_new == expected.v_new).all()
        assert (result.h == expected.h).all()


def test_dlpack_tensors(client: gdpcache.Client, cache: str) -> None:
    call = random_call(3, 40, states=States.ALL, initial_state=InitialState.ZERO, cu_seqlens=[0, 10, 40])
    with client.open_session(cache) as session:
        expected = session.prefill(call)
        for name in ("k", "w", "u", "g"):
            setattr(call, name, DlpackOnly(getattr(call, name)))
        call.cu_seqlens = DlpackOnly(np.array([0, 10, 40], np.int32))
        h = np.zeros(expected.h.shape, np.float32)
        call.out = Outputs(h=DlpackOnly(h))
        result = session.prefill(call)
        assert result.h is call.out.h
        assert (h == expected.h).all()
        assert (result.v_new == expected.v_new).all()
        call.w = DlpackOnly(np.zeros((KEY_DIM, HEADS, 40), np.float32).T)
        with pytest.raises(ValueError, match="w is not contiguous"):
            session.prefill(call)
        call.w = DlpackOnly(np.zeros((40, HEADS, KEY_DIM), np.complex64))
        with pytest.raises(TypeError, match="type code 5"):
            session.prefill(call)


def test_memory_of_a_dlpack_tensor_is_given_back() -> None:
    import gc
    import weakref

    from gdpcache import _tensors

    class Owner(np.ndarray[Any, Any]):
        pass

    array = np.zeros(4, np.float32).view(Owner)
    gone = weakref.ref(array)
    seen = _tensors.view("x", DlpackOnly(array))
    data = seen.data
    assert data is not None
    del array, seen
    gc.collect()
    assert data.tolist() == [0] * 16  # the view keeps it
    del data
    gc.collect()
    assert gone() is None


def test_a_cuda_array_without_a_driver_is_told(client: gdpcache.Client, cache: str) -> None:
    try:
        ctypes.CDLL("libcuda.so.1")
        pytest.skip("there is a CUDA driver")
    except OSError:
        pass

    class CudaArray:
        @property
        def __cuda_array_interface__(self) -> dict[str, Any]:
            return {"shape": (16, 2, 16), "typestr": "<f4", "data": (4096, False), "version": 3}

    with client.open_session(cache) as session, pytest.raises(RuntimeError, match="no CUDA driver"):
        session.prefill(random_call(4, 16, k=CudaArray(), initial_state=InitialState.ZERO))


def test_torch_tensors(client: gdpcache.Client, cache: str) -> None:
    torch = pytest.importorskip("torch")
    call = as_bfloat16(random_call(5, 40, states=States.ALL, output_final_state=True, cu_seqlens=[0, 10, 40]))
    with client.open_session(cache) as session:
        slots = session.acquire_slots(2)
        call.state_indices, call.initial_state = slots, InitialState.ZERO
        expected = session.prefill(call)
        for name in ("k", "w", "u"):
            setattr(call, name, torch.from_numpy(getattr(call, name).view(np.int16)).view(torch.bfloat16))
        call.g = torch.from_numpy(call.g).requires_grad_()
        call.cu_seqlens = torch.tensor([0, 10, 40], dtype=torch.int32)
        call.state_indices = torch.tensor(slots)
        result = session.prefill(call)
        assert result.h.dtype == result.v_new.dtype == torch.bfloat16
        assert result.final_state.dtype == torch.float32
        assert (result.v_new.view(torch.int16).numpy() == expected.v_new.view(np.int16)).all()
        assert (result.final_state.numpy() == expected.final_state).all()
        call.states_dtype = torch.float32
        h = torch.zeros(result.h.shape)
        call.out = Outputs(h=h)
        assert session.prefill(call).h is h
        assert (h.to(torch.bfloat16) == result.h).all()
        assert h.shape[1:] == (HEADS, KEY_DIM, VALUE_DIM)
