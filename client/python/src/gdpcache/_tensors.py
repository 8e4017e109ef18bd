"""One view of the arrays and tensors of many libraries. None of these libraries is imported here, numpy apart: a torch
tensor brings torch with it."""

from __future__ import annotations

import ctypes
import functools
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gdpcache import _cuda, _dlpack
from gdpcache.bfloat16 import numpy_bfloat16
from gdpcache.types import Array, DataType, TensorLike

_INTEGERS = {int}
_FLOATS = "float32, float16, bfloat16 (or its bits as uint16), or uint8 for auxiliary bytes"


@dataclass(slots=True, eq=False)
class TensorView:
    """A contiguous tensor: where its bytes are and what keeps them."""

    dtype: DataType
    shape: tuple[int, ...]
    size: int  # in bytes
    pointer: int  # 0 for memory of numpy's own, which is never shared
    owner: object
    source: TensorLike  # as the caller gave it
    data: Array | None  # flat uint8, in memory of the host; None on a GPU
    raw_stream: int | None = None  # see stream; None: torch knows

    @property
    def stream(self) -> int:
        """The CUDA stream that orders its contents: for torch the current one."""
        if self.raw_stream is not None:
            return self.raw_stream
        tensor: Any = self.owner
        return _current_stream()(tensor.get_device())

    def bytes_on_host(self) -> Array:
        """Flat uint8: the memory itself, or a copy of what is on the GPU."""
        if self.data is not None:
            return self.data
        torch = torch_of(self.owner)
        if torch is not None:
            tensor: Any = self.owner
            copy: Array = tensor.reshape(-1).view(torch.uint8).cpu().numpy()
            return copy
        return _cuda.copy_to_host(self.pointer, self.size, self.stream)

    def store(self, data: Array) -> None:
        """Takes over bytes from the host, unless they are its own memory."""
        if self.data is not None:
            if self.data is not data:
                self.data[:] = data
            return
        torch = torch_of(self.owner)
        if torch is not None:
            tensor: Any = self.owner
            tensor.reshape(-1).view(torch.uint8).copy_(torch.from_numpy(data))
        else:
            _cuda.copy_to_device(self.pointer, data, self.stream)


@functools.cache
def _current_stream() -> Callable[[int], int]:
    """Tells torch's current stream on the device of this number."""
    torch: Any = sys.modules["torch"]
    # What Triton uses, too: the public function makes an object of the stream, in ten times as long.
    quick: Callable[[int], int] | None = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return quick or (lambda device: int(torch.cuda.current_stream(device).cuda_stream))


def torch_of(value: object) -> Any | None:
    """The torch module if `value` is one of its tensors."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and isinstance(value, torch.Tensor) else None


def view(name: str, value: TensorLike, *, writable: bool = False) -> TensorView:
    """`value` as the wire has it. A strided input is copied together; an output must not need that."""
    if isinstance(value, np.ndarray):
        return _view_numpy(name, value, writable)
    torch = torch_of(value)
    if torch is not None:
        return _view_torch(name, value, torch, writable)
    if hasattr(value, "__cuda_array_interface__"):
        return _view_cuda_array(name, value, writable)
    if hasattr(value, "__dlpack__"):
        return _view_dlpack(name, value, writable)
    raise TypeError(
        f"{name} is a {type(value).__name__}; expected a numpy array, a torch tensor, or a DLPack or CUDA array"
    )


def _data_type(name: str, dtype: str) -> DataType:
    if dtype in ("uint16", "bfloat16"):
        return DataType.BFLOAT16
    try:
        return DataType(dtype)
    except ValueError:
        raise TypeError(f"{name} has dtype {dtype}; expected {_FLOATS}") from None


@functools.cache
def _of_numpy(dtype: np.dtype[Any]) -> DataType | None:
    if dtype == np.uint16:
        return DataType.BFLOAT16
    return next((own for own in DataType if dtype.isnative and dtype.name == own.value), None)


def _view_numpy(name: str, array: Array, writable: bool) -> TensorView:
    dtype = _of_numpy(array.dtype)
    if dtype is None:
        raise TypeError(f"{name} has dtype {array.dtype}; expected {_FLOATS}")
    contiguous = array if array.flags.c_contiguous else np.ascontiguousarray(array)
    if writable and (contiguous is not array or not array.flags.writeable):
        raise ValueError(f"{name} is not contiguous or not writable")
    pointer = 0 if contiguous.base is None else contiguous.__array_interface__["data"][0]
    data = contiguous.reshape(-1).view(np.uint8)
    return TensorView(dtype, array.shape, data.nbytes, pointer, contiguous, array, data)


@functools.cache
def _of_torch(dtype: Any) -> DataType | None:
    name = str(dtype).removeprefix("torch.")
    return next((own for own in DataType if own.value == name), None)


def _view_torch(name: str, tensor: Any, torch: Any, writable: bool) -> TensorView:
    dtype = _of_torch(tensor.dtype)
    if dtype is None:
        raise TypeError(f"{name} has dtype {tensor.dtype}; expected {_FLOATS}")
    contiguous = (tensor.detach() if tensor.requires_grad else tensor).contiguous()
    pointer = contiguous.data_ptr()
    if writable and pointer != tensor.data_ptr():
        raise ValueError(f"{name} is not contiguous")
    shape = tuple(contiguous.shape)
    size = math.prod(shape) * dtype.size
    if contiguous.is_cuda:
        return TensorView(dtype, shape, size, pointer, contiguous, tensor, None)
    if not contiguous.is_cpu:
        raise TypeError(f"{name} is on {contiguous.device}; expected cpu or cuda")
    data = contiguous.reshape(-1).view(torch.uint8).numpy()
    return TensorView(dtype, shape, size, pointer, contiguous, tensor, data)


def _view_cuda_array(name: str, array: Any, writable: bool) -> TensorView:
    interface = array.__cuda_array_interface__
    kinds = {"f4": "float32", "f2": "float16", "u2": "bfloat16", "V2": "bfloat16", "u1": "uint8"}
    typestr = interface["typestr"]
    dtype = _data_type(name, kinds.get(typestr[1:], typestr))
    shape = tuple(interface["shape"])
    pointer, read_only = interface["data"]
    strides = interface.get("strides")
    if strides is not None and not _dlpack.is_contiguous(shape, tuple(stride // dtype.size for stride in strides)):
        raise ValueError(f"{name} is not contiguous")
    if writable and read_only:
        raise ValueError(f"{name} is not writable")
    size = math.prod(shape) * dtype.size
    return TensorView(dtype, shape, size, pointer, array, array, None, interface.get("stream") or _cuda.LEGACY_STREAM)


def _view_dlpack(name: str, tensor: Any, writable: bool) -> TensorView:
    device_type = int(tensor.__dlpack_device__()[0])
    on_gpu = device_type in (_dlpack.CUDA, _dlpack.CUDA_MANAGED)
    if not on_gpu and device_type not in (_dlpack.CPU, _dlpack.CUDA_HOST):
        raise TypeError(f"{name} is on DLPack device {device_type}; expected memory of the host or of a CUDA device")
    stream = _cuda.LEGACY_STREAM if on_gpu else None
    shown = _dlpack.read(tensor, stream)
    if not shown.contiguous:
        raise ValueError(f"{name} is not contiguous")
    dtype = _data_type(name, shown.dtype)
    size = math.prod(shown.shape) * dtype.size
    if on_gpu:
        return TensorView(dtype, shown.shape, size, shown.pointer, shown.owner, tensor, None, stream or 0)
    data = _memory(shown.pointer, size, shown.owner)
    return TensorView(dtype, shown.shape, size, shown.pointer, shown.owner, tensor, data)


@dataclass(frozen=True)
class _Memory:
    """Bytes for numpy to look at, for as long as the owner keeps them."""

    pointer: int
    size: int
    owner: object

    @property
    def __array_interface__(self) -> dict[str, object]:
        return {"data": (self.pointer, False), "shape": (self.size,), "typestr": "|u1", "version": 3}


def _memory(pointer: int, size: int, owner: object) -> Array:
    if size == 0:
        return np.empty(0, np.uint8)
    return np.asarray(_Memory(pointer, size, owner))


def fingerprint(name: str, value: TensorLike) -> object:
    """What tells lists of integers apart: hashable, and different where `indices` gives something else."""
    if type(value) is list:
        return tuple(indices(name, value))
    torch = torch_of(value)
    if torch is not None and value.is_cpu and value.is_contiguous() and value.dtype in (torch.int32, torch.int64):
        return value.dtype, ctypes.string_at(value.data_ptr(), value.numel() * value.element_size())
    if type(value) is np.ndarray and value.dtype.kind in "iu":
        return value.dtype.char, value.dtype.isnative, value.tobytes()
    return tuple(indices(name, value))


def indices(name: str, value: TensorLike | None) -> list[int]:
    """Integers of any kind of list, array or tensor, flat. From a GPU they have to be fetched, which waits for it."""
    if value is None:
        return []
    if type(value) is list and {*map(type, value)} <= _INTEGERS:
        return value
    if torch_of(value) is not None:
        if value.is_floating_point() or value.is_complex():
            raise TypeError(f"{name} has dtype {value.dtype}; expected integers")
        value = value.detach().cpu().numpy()
    elif hasattr(value, "__cuda_array_interface__"):
        interface = value.__cuda_array_interface__
        dtype = np.dtype(interface["typestr"])
        raw = _cuda.copy_to_host(interface["data"][0], math.prod(interface["shape"]) * dtype.itemsize, 0)
        value = raw.view(dtype)
    elif not isinstance(value, (np.ndarray, list, tuple, range)) and hasattr(value, "__dlpack__"):
        value = np.from_dlpack(value)
    array = np.asarray(value)
    if array.size == 0:
        return []
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} has dtype {array.dtype}; expected integers")
    flat: list[int] = array.reshape(-1).tolist()
    return flat


def data_type(value: object, what: str = "dtype") -> DataType:
    """A dtype by any of its names: a DataType, "float32", numpy's, ml_dtypes' or torch's."""
    if isinstance(value, DataType):
        return value
    name = str(value).removeprefix("torch.")
    if name == str(value) and not isinstance(value, str):
        name = np.dtype(value).name  # type: ignore[call-overload]
    try:
        return DataType("bfloat16" if name == "uint16" else name)
    except ValueError:
        raise TypeError(f"{what} is {name}; expected float32, float16 or bfloat16") from None


_NUMPY: dict[DataType, np.dtype[Any]] = {
    dtype: np.dtype(dtype.value) for dtype in DataType if dtype is not DataType.BFLOAT16
}


def numpy_dtype(dtype: DataType, like: TensorLike | None = None) -> np.dtype[Any]:
    """numpy's type for results beside inputs like `like`, whose uint16 asks for bits."""
    if dtype is not DataType.BFLOAT16:
        return _NUMPY[dtype]
    if isinstance(like, np.ndarray) and like.dtype == np.uint16:
        return np.dtype(np.uint16)
    return numpy_bfloat16()


def wrap(data: Array, dtype: DataType, shape: tuple[int, ...], like: TensorLike) -> TensorLike:
    """Bytes on the host as what `like` is: a torch tensor on its device, else a numpy array."""
    torch = torch_of(like)
    if torch is None:
        return np.ndarray(shape, numpy_dtype(dtype, like), data)
    tensor = torch.from_numpy(data).view(getattr(torch, dtype.value)).reshape(shape)
    return tensor.to(like.device)


def has_memory_on_gpu(like: TensorLike) -> bool:
    """Whether `allocate_on_gpu` has memory beside it."""
    return torch_of(like) is not None and bool(like.is_cuda)


def allocate_on_gpu(dtype: DataType, shape: tuple[int, ...], like: TensorLike) -> TensorView | None:
    """Memory beside a torch tensor on a GPU; None for other tensors."""
    torch = torch_of(like)
    if torch is None or not like.is_cuda:
        return None
    tensor = like.new_empty(shape, dtype=getattr(torch, dtype.value))
    return TensorView(dtype, shape, math.prod(shape) * dtype.size, tensor.data_ptr(), tensor, tensor, None)
