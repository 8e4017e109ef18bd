"""gdpcache.chunk_gated_delta_product_fwd_h beside the public Triton kernel (fla-core), with the same torch tensors on
one GPU. Needs torch, and fla-core for the comparison; GDPCACHED names a server built with CUDA.

    GDPCACHED=.../gdpcached PYTHONPATH=.../client/python/package python3 drop_in_bench.py [FILE.json]

Times are wall-clock microseconds, medians: of one call waited for, and of one in a row of calls waited for together.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch

import gdpcache

try:
    from fla.ops.gated_delta_product.chunk_deltaproduct_h import chunk_gated_delta_product_fwd_h as triton_kernel
except ImportError:
    triton_kernel = None

CHUNK = 64
REPEATS, ROW = 30, 20

# Name, sequences, tokens of each, M, H, K, V.
SHAPES = [
    ("A", 1, 8192, 1, 32, 128, 128),
    ("C", 32, 1024, 1, 32, 128, 128),
    ("G", 64, 128, 1, 16, 128, 128),
    ("L", 256, 1, 1, 32, 128, 128),
    ("N", 1, 4096, 3, 32, 128, 64),
]


def median_us(call: Callable[[], Any]) -> tuple[float, float]:
    """Of one call alone, and of one in a row."""
    for _ in range(5):
        call()
    torch.cuda.synchronize()
    alone, in_row = [], []
    for _ in range(REPEATS):
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        alone.append(time.perf_counter() - start)
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(ROW):
            call()
        torch.cuda.synchronize()
        in_row.append((time.perf_counter() - start) / ROW)
    return statistics.median(alone) * 1e6, statistics.median(in_row) * 1e6


def inputs(sequences: int, tokens: int, m: int, heads: int, key_dim: int, value_dim: int) -> dict[str, Any]:
    """Unit keys, and decays that keep the state bounded over many calls."""
    generator = torch.Generator("cuda").manual_seed(1)
    total = sequences * tokens * m
    k = torch.randn(1, total, heads, key_dim, device="cuda", generator=generator)
    k = k / k.norm(dim=-1, keepdim=True)
    u = torch.randn(1, total, heads, value_dim, device="cuda", generator=generator)
    rows = torch.arange(tokens * m, device="cuda") % CHUNK + 1
    g = (-0.02 * rows.float()).repeat(sequences)[None, :, None].expand(1, total, heads).contiguous()
    return {
        "k": k.bfloat16(),
        "w": (k * 0.5).bfloat16(),
        "u": u.bfloat16(),
        "g": g,
        "cu_seqlens": torch.arange(0, total + 1, tokens * m, dtype=torch.int64),
    }


def difference(actual: Any, expected: Any) -> float:
    return float((actual.float() - expected.float()).norm() / expected.float().norm().clamp(min=1e-30))


def run(client: gdpcache.Client, shape: tuple[str, int, int, int, int, int, int]) -> dict[str, Any]:
    name, sequences, tokens, m, heads, key_dim, value_dim = shape
    arguments = inputs(sequences, tokens, m, heads, key_dim, value_dim)
    geometry = gdpcache.CacheGeometry(
        layers=1, slots=sequences, heads=heads, key_dim=key_dim, value_dim=value_dim, num_householder=m
    )
    client.create_cache(name, geometry, ephemeral=True)
    row: dict[str, Any] = {"shape": name}
    with client.open_session(name) as session:
        slots = session.acquire_slots(sequences)
        state = session.layer(0)

        def ours() -> Any:
            return gdpcache.chunk_gated_delta_product_fwd_h(
                **arguments, initial_state=state[slots], num_householder=m, state=state, state_indices=slots
            )

        h, v_new, _ = ours()
        row["transport"] = next(iter(session.transports_used)).value
        if triton_kernel is not None:
            initial = torch.zeros(sequences, heads, key_dim, value_dim, device="cuda")
            on_gpu = {**arguments, "cu_seqlens": arguments["cu_seqlens"].cuda()}
            tokens_only = on_gpu["cu_seqlens"] // m
            chunks = [torch.arange(-(-tokens // CHUNK), device="cuda") for _ in range(sequences)]
            indices = torch.cat([torch.stack([torch.full_like(c, n), c], 1) for n, c in enumerate(chunks)])
            assert int(tokens_only[-1]) == sequences * tokens

            def theirs() -> Any:
                return triton_kernel(
                    **on_gpu, initial_state=initial, output_final_state=True, num_householder=m, chunk_indices=indices
                )

            expected_h, expected_v_new, _ = theirs()
            row["h difference"] = difference(h, expected_h)
            row["v_new difference"] = difference(v_new, expected_v_new)
            row["triton alone us"], row["triton in a row us"] = median_us(theirs)
        row["drop-in alone us"], row["drop-in in a row us"] = median_us(ours)
        row["tiny RPC us"] = median_us(session.keep_alive)[0]
        assert len(session.transports_used) == 1
    return row


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        server = subprocess.Popen(
            [os.environ["GDPCACHED"], "--listen=", f"--unix={folder}/socket", "--backend=cuda"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert server.stdout is not None
        try:
            if not server.stdout.readline().startswith("ready "):
                raise SystemExit("the server did not start")
            with gdpcache.Client(f"unix:{folder}/socket") as client:
                rows = [run(client, shape) for shape in SHAPES]
        finally:
            server.terminate()
            server.wait()
    columns = list(dict.fromkeys(column for row in rows for column in row))
    for row in [dict(zip(columns, columns, strict=True)), *rows]:
        print("  ".join(_cell(row.get(column, "")).rjust(max(len(column), 9)) for column in columns))
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w") as file:
            json.dump({"device": torch.cuda.get_device_name(), "rows": rows}, file, indent=1)


def _cell(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.1f}" if value >= 1 else f"{value:.1e}"


if __name__ == "__main__":
    main()
