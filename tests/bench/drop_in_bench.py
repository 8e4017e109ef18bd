"""gdpcache.chunk_gated_delta_product_fwd_h, and where its time goes. On a GPU beside the public Triton kernel
(fla-core, where it is installed) with the same torch tensors; on the CPU with numpy arrays. GDPCACHED names the server.

    GDPCACHED=.../gdpcached PYTHONPATH=.../client/python/package python3 drop_in_bench.py [cuda|cpu] [FILE.json]

Times are wall-clock microseconds, medians; rounds of what is compared take turns. `empty` is an RPC of the same client
that does next to nothing (a session's renewal), one behind the other; `empty between` the same with a call of the
function before each, so that neither processor has it in its caches. `alone` is a call that is waited for, of which
`before`, `rpc`, `after` and `wait` are this package's work, the RPC, this package's work again, and waiting for the
GPU, if there is one; `in a row` is one of many that are waited for together. `compute` is the recurrence alone, as the
server tells it, `ratio` (alone - compute) / empty, `ratio between` the same with the other empty RPC: on the CPU, for a
server on a GPU answers before it knows. There `behind work` is what the caller's stream sees of a call that is queued
behind other work: from when its inputs are ready to its results, the server's noticing and launching included. Columns
that begin with `ahead` are of calls within `session.run_ahead()`.
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
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import fla_kernel
import numpy as np

import gdpcache

CHUNK = 64
ROUNDS, REPEATS, ROW = 10, 30, 20

# Name, sequences, tokens of each, M, H, K, V.
Shape = tuple[str, int, int, int, int, int, int]
SHAPES: dict[str, list[Shape]] = {
    "cuda": [
        ("A", 1, 8192, 1, 32, 128, 128),
        ("C", 32, 1024, 1, 32, 128, 128),
        ("G", 64, 128, 1, 16, 128, 128),
        ("L", 256, 1, 1, 32, 128, 128),
        ("N", 1, 4096, 3, 32, 128, 64),
        ("tiny", 1, 1, 1, 8, 64, 64),
    ],
    "cpu": [
        ("1x1", 1, 1, 1, 8, 64, 64),
        ("1x64", 1, 64, 1, 8, 64, 64),
        ("16x1", 16, 1, 1, 8, 64, 64),
        ("1x1024", 1, 1024, 1, 8, 64, 64),
    ],
}


class Watch:
    """When a session's calls enter and leave the RPC."""

    def __init__(self, session: gdpcache.Session) -> None:
        self.entered = self.left = 0.0
        driver: Any = session._driver
        perform = driver._perform

        def watched(*arguments: Any) -> Any:
            self.entered = time.perf_counter()
            try:
                return perform(*arguments)
            finally:
                self.left = time.perf_counter()

        driver._perform = watched


def inputs(
    library: Any, sequences: int, tokens: int, m: int, heads: int, key_dim: int, value_dim: int
) -> dict[str, Any]:
    """Unit keys, and decays that keep the state bounded over many calls."""
    random = np.random.default_rng(1)
    total = sequences * tokens * m
    some = min(total, 4096)
    k = random.standard_normal((some, heads, key_dim), np.float32)
    k = np.resize(k / np.linalg.norm(k, axis=-1, keepdims=True), (1, total, heads, key_dim))
    u = np.resize(random.standard_normal((some, heads, value_dim), np.float32), (1, total, heads, value_dim))
    rows = np.arange(tokens * m, dtype=np.float32) % CHUNK + 1
    g = np.broadcast_to(np.tile(-0.02 * rows, sequences)[None, :, None], (1, total, heads))
    arrays = {"k": k, "w": k * 0.5, "u": u}
    cu_seqlens = np.arange(0, total + 1, tokens * m, dtype=np.int64)
    if library is np:
        return {
            **{name: array.astype(np.float16) for name, array in arrays.items()},
            "g": np.ascontiguousarray(g),
            "cu_seqlens": cu_seqlens,
        }
    return {
        **{name: library.from_numpy(array).cuda().bfloat16() for name, array in arrays.items()},
        "g": library.from_numpy(np.ascontiguousarray(g)).cuda(),
        "cu_seqlens": library.from_numpy(cu_seqlens),
    }


def difference(actual: Any, expected: Any) -> float:
    return float((actual.float() - expected.float()).norm() / expected.float().norm().clamp(min=1e-30))


def triton_call(torch: Any, shape: Shape, arguments: dict[str, Any]) -> Callable[[], Any] | None:
    """The public kernel on the same tensors."""
    found = fla_kernel.find()
    if found is None:
        return None
    kernel = found
    _, sequences, tokens, m, heads, key_dim, value_dim = shape
    initial = torch.zeros(sequences, heads, key_dim, value_dim, device="cuda")
    on_gpu = {**arguments, "cu_seqlens": arguments["cu_seqlens"].cuda()}
    chunks = [torch.arange(-(-tokens // CHUNK), device="cuda") for _ in range(sequences)]
    indices = torch.cat([torch.stack([torch.full_like(c, n), c], 1) for n, c in enumerate(chunks)])
    return lambda: kernel(
        **on_gpu, initial_state=initial, output_final_state=True, num_householder=m, chunk_indices=indices
    )


def median_us(values: list[float]) -> float:
    return statistics.median(values) * 1e6


def run(client: gdpcache.Client, library: Any, shape: Shape) -> dict[str, Any]:
    name, sequences, _, m, heads, key_dim, value_dim = shape
    on_gpu = library is not np
    arguments = inputs(library, *shape[1:])
    geometry = gdpcache.CacheGeometry(
        layers=1, slots=sequences, heads=heads, key_dim=key_dim, value_dim=value_dim, num_householder=m
    )
    client.create_cache(name, geometry, ephemeral=True)
    synchronize: Callable[[], Any] = library.cuda.synchronize if on_gpu else lambda: None
    row: dict[str, Any] = {"shape": name}
    with client.open_session(name) as session:
        slots = session.acquire_slots(sequences)
        state = session.layer(0)

        def ours() -> Any:
            return gdpcache.chunk_gated_delta_product_fwd_h(
                **arguments, initial_state=state, num_householder=m, state=state, state_indices=slots
            )

        h, v_new, _ = ours()
        row["transport"] = next(iter(session.transports_used)).value
        theirs = triton_call(library, shape, arguments) if on_gpu else None
        if theirs is not None:
            expected_h, expected_v_new, _ = theirs()
            row["h difference"] = difference(h, expected_h)
            row["v_new difference"] = difference(v_new, expected_v_new)
        del h, v_new
        watch = Watch(session)
        times: dict[str, list[float]] = {}

        def note(column: str, seconds: float) -> None:
            times.setdefault(column, []).append(seconds)

        calls: dict[str, Callable[[], Any]] = {"empty": session.keep_alive}
        if theirs is not None:
            calls["Triton"] = theirs
        calls["drop-in"] = ours
        if on_gpu:
            calls["ahead"] = ours
        for turn in range(ROUNDS + 1):
            for call_name, call in calls.items():
                with session.run_ahead() if call_name == "ahead" else nullcontext():
                    for _ in range(REPEATS):
                        begin = time.perf_counter()
                        call()
                        returned = time.perf_counter()
                        synchronize()
                        end = time.perf_counter()
                        if turn == 0:  # warm
                            continue
                        note(f"{call_name} alone", end - begin)
                        if call_name == "ahead":
                            note("ahead returned", returned - begin)
                        if call_name == "drop-in":
                            note("before", watch.entered - begin)
                            note("rpc", watch.left - watch.entered)
                            note("after", returned - watch.left)
                            note("wait", end - returned)
                            begin = time.perf_counter()
                            session.keep_alive()
                            note("empty between", time.perf_counter() - begin)
                    if call_name == "empty" or turn == 0:
                        continue
                    begin = time.perf_counter()
                    for _ in range(ROW):
                        call()
                    synchronize()
                    note(f"{call_name} in a row", (time.perf_counter() - begin) / ROW)
        row |= {column: median_us(values) for column, values in times.items()}
        if on_gpu:
            row["behind work"] = behind_work_us(library, ours)
            with session.run_ahead():
                row["ahead behind work"] = behind_work_us(library, ours)
        else:
            prefill = gdpcache.PrefillCall(
                **arguments, state_indices=slots, states=gdpcache.States.ALL, num_householder=m
            )
            row["compute"] = compute = (
                statistics.median(session.prefill(prefill).timing.compute for _ in range(300)) * 1e6
            )
            overhead = row["drop-in alone"] - compute
            row["ratio"], row["ratio between"] = overhead / row["empty alone"], overhead / row["empty between"]
        assert len(session.transports_used) == 1
    return row


def behind_work_us(torch: Any, call: Callable[[], Any]) -> float:
    """The call waits behind something longer than all that the host has to do before it, so that events before and
    behind it see nothing of that."""
    busy = torch.zeros(8192, 8192, device="cuda", dtype=torch.bfloat16)
    before, behind = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times: list[float] = []
    for _ in range(ROW):
        for _ in range(10):  # some 15 ms
            torch.matmul(busy, busy)
        before.record()
        call()
        behind.record()
        torch.cuda.synchronize()
        times.append(before.elapsed_time(behind) * 1e3)
    return statistics.median(times)


def main() -> None:
    backend = sys.argv[1] if len(sys.argv) > 1 else "cuda"
    library: Any = np
    if backend == "cuda":
        try:
            import torch
        except ImportError:
            raise SystemExit("drop_in_bench: torch is not installed") from None
        library = torch
    with tempfile.TemporaryDirectory() as folder:
        server = subprocess.Popen(
            [os.environ["GDPCACHED"], "--listen=", f"--unix={folder}/socket", f"--backend={backend}"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert server.stdout is not None
        try:
            if not server.stdout.readline().startswith("ready "):
                raise SystemExit("the server did not start")
            rows = []
            for shape in SHAPES[backend]:
                with gdpcache.Client(f"unix:{folder}/socket") as client:
                    rows.append(run(client, library, shape))
        finally:
            server.terminate()
            server.wait()
    columns = list(dict.fromkeys(column for row in rows for column in row))
    for row in [dict(zip(columns, columns, strict=True)), *rows]:
        print("  ".join(_cell(row.get(column, "")).rjust(max(len(column), 9)) for column in columns))
    if len(sys.argv) > 2:
        Path(sys.argv[2]).write_text(json.dumps(rows, indent=1))


def _cell(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.1f}" if value >= 1 else f"{value:.1e}"


if __name__ == "__main__":
    main()
