"""The public Triton kernel of this operation, from the package fla-core."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Of what the kernel would try, what has been seen to win: each choice is compiled for every shape.
_WARPS = 4
_STAGES = (2, 3)


def restrict_autotuning(kernel: Any) -> None:
    """Leaves four warps, two or three stages, and every tile. `kernel` may be wrapped by other decorators."""
    while not hasattr(kernel, "configs"):
        kernel = kernel.fn
    kept = [config for config in kernel.configs if config.num_warps == _WARPS and config.num_stages in _STAGES]
    if not kept:
        raise RuntimeError(f"this release of fla-core tries nothing with {_WARPS} warps and {_STAGES} stages")
    kernel.configs = kept


def find() -> Callable[..., tuple[Any, Any, Any]] | None:
    """chunk_gated_delta_product_fwd_h of fla-core, or None where that is not installed. Returns h in the dtype of k,
    v_new and the final state."""
    try:
        from fla.ops.gated_delta_product import chunk_deltaproduct_h as module
    except ImportError:
        return None
    restrict_autotuning(module.chunk_gated_delta_product_fwd_kernel_h_blockdim64)
    function: Callable[..., tuple[Any, Any, Any]] = module.chunk_gated_delta_product_fwd_h
    return function
