"""Reads DLPack capsules. numpy's own reader refuses bfloat16 and memory of a GPU."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

CPU = 1
CUDA = 2
CUDA_HOST = 3
CUDA_MANAGED = 13

_INT, _UINT, _FLOAT, _BFLOAT = 0, 1, 2, 4


class _Device(ctypes.Structure):
    _fields_ = [("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


class _DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


# DLManagedTensor begins with its DLTensor.
_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype = ctypes.c_void_p
_get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]

_NAMES = {
    (_FLOAT, 32): "float32",
    (_FLOAT, 16): "float16",
    (_BFLOAT, 16): "bfloat16",
    (_UINT, 16): "bfloat16",  # the bits, as everywhere in this package
    (_UINT, 8): "uint8",
    (_INT, 32): "int32",
    (_INT, 64): "int64",
}


@dataclass(frozen=True)
class View:
    """Memory of a tensor that another library owns."""

    device_type: int
    device_id: int
    pointer: int
    dtype: str
    shape: tuple[int, ...]
    contiguous: bool
    owner: object  # keeps the memory


def read(tensor: Any, stream: int | None) -> View:
    """What `tensor` shows of itself. `stream` is the CUDA stream that will read it, None for memory of the host.
    The capsule is never consumed: its own destructor gives the memory back when the view is dropped."""
    capsule = tensor.__dlpack__() if stream is None else tensor.__dlpack__(stream=stream)
    pointer = _get_pointer(capsule, b"dltensor")
    view = ctypes.cast(pointer, ctypes.POINTER(_Tensor)).contents
    shape = tuple(view.shape[i] for i in range(view.ndim))
    name = _NAMES.get((view.dtype.code, view.dtype.bits)) if view.dtype.lanes == 1 else None
    if name is None:
        raise TypeError(f"a DLPack tensor of type code {view.dtype.code} with {view.dtype.bits} bits has no place here")
    strides = tuple(view.strides[i] for i in range(view.ndim)) if view.strides else None
    return View(
        view.device.device_type,
        view.device.device_id,
        (view.data or 0) + view.byte_offset,
        name,
        shape,
        strides is None or is_contiguous(shape, strides),
        capsule,
    )


def is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether elements in row-major order, with strides counted in elements, leave no gaps."""
    if 0 in shape:
        return True
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True
