"""bfloat16 in numpy, which has no such type.

Arrays of ``ml_dtypes.bfloat16`` are taken and given where that package is installed. Arrays of ``uint16`` are taken as
the values' bits (the upper half of a float32), and results of calls with such inputs come as ``uint16`` as well; so do
all bfloat16 results where ``ml_dtypes`` is not installed.
"""

from __future__ import annotations

import functools
import importlib.util
from typing import Any

import numpy as np
import numpy.typing as npt

from gdpcache.types import Array


@functools.cache
def numpy_bfloat16() -> np.dtype[Any]:
    """The dtype of bfloat16 results: ml_dtypes' where it is installed, else uint16."""
    if importlib.util.find_spec("ml_dtypes") is None:
        return np.dtype(np.uint16)
    import ml_dtypes

    dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return dtype


def bits(array: Array) -> npt.NDArray[np.uint16]:
    """The bits of bfloat16 values."""
    return array.view(np.uint16)


def to_float32(array: Array) -> npt.NDArray[np.float32]:
    """bfloat16 values, of either kind, in float32; exact."""
    result: npt.NDArray[np.float32] = (bits(array).astype(np.uint32) << np.uint32(16)).view(np.float32)
    return result


def from_float32(array: npt.NDArray[np.float32]) -> Array:
    """float32 values rounded to the nearest bfloat16, to the even one of two; NaN stays NaN."""
    wide = np.ascontiguousarray(array, dtype=np.float32).view(np.uint32)
    rounded = (wide + np.uint32(0x7FFF) + ((wide >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet = (wide >> np.uint32(16)) | np.uint32(0x40)
    is_nan = (wide & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    result: Array = np.where(is_nan, quiet, rounded).astype(np.uint16).view(numpy_bfloat16())
    return result
