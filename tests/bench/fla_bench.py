"""The public Triton kernel (fla-core) on the shapes of gdpcache_cuda_bench, beside that program's times in one run.

    python3 fla_bench.py --program .../gdpcache_cuda_bench [--shapes ADFGIMN] [--repeats N] [--json FILE]

Needs torch with CUDA and fla-core; without the program only Triton is timed. All inputs and h are bfloat16, states
float32; all boundary states and v_new are written. Times are microseconds on the GPU, by events, medians over rotating
sets of tensors that together are several times the L2 cache; the host's part is hidden behind other work. The two
programs take turns on the GPU: Triton, gdpcache, Triton; `triton` has both times.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import re
import statistics
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import fla_kernel

CHUNK = 64
MIN_ROTATION_BYTES = 400 << 20
WARM_UP = 5


class Shape(NamedTuple):
    sequences: tuple[int, ...]  # tokens of each, before expansion
    householder: int
    heads: int
    key_dim: int
    value_dim: int


SHAPES = {
    "A": Shape((8192,), 1, 32, 128, 128),
    "B": Shape((32768,), 1, 32, 128, 128),
    "C": Shape((1024,) * 32, 1, 32, 128, 128),
    "D": Shape((1024,) * 8, 2, 32, 128, 128),
    "E": Shape((2048,) * 4, 4, 32, 128, 128),
    "F": Shape((8192,), 1, 8, 128, 128),
    "G": Shape((128,) * 64, 1, 16, 128, 128),
    "H": Shape((8192,), 1, 8, 256, 256),
    "I": Shape((512,) * 16, 1, 64, 64, 64),
    "J": Shape((4096, 17, 1000, 64, 2049, 1, 777, 513), 2, 32, 128, 128),
    "K": Shape((131072,), 1, 4, 128, 128),
    "L": Shape((1,) * 256, 1, 32, 128, 128),
    "M": Shape((2048,) * 16, 1, 32, 128, 128),
    "N": Shape((4096,), 3, 32, 128, 64),
    "O": Shape((1024,) * 8, 3, 32, 128, 64),
    "P": Shape((1,) * 256, 3, 32, 128, 64),
    "Q": Shape((4096,), 3, 8, 128, 64),
}


def bytes_of(shape: Shape) -> int:
    """All that a call reads and writes, each once."""
    state = shape.heads * shape.key_dim * shape.value_dim
    rows = sum(shape.sequences) * shape.householder
    boundaries = sum(-(-tokens // CHUNK) for tokens in shape.sequences)
    return (
        rows * shape.heads * (4 * shape.key_dim + 4 * shape.value_dim + 4)
        + boundaries * state * 2
        + len(shape.sequences) * state * 8
    )


def arguments(torch: Any, shape: Shape) -> dict[str, Any]:
    """Equal sequences as a dense batch, which spares the kernel's caller work with sequence boundaries."""
    count, householder = len(shape.sequences), shape.householder
    ragged = len(set(shape.sequences)) > 1
    rows = sum(shape.sequences) * householder
    lead = (1, rows) if ragged else (count, rows // count)

    def normal(width: int, scale: float) -> Any:
        return torch.randn(*lead, shape.heads, width, device="cuda").mul_(scale).bfloat16()

    ends = [0]
    for tokens in shape.sequences:
        ends.append(ends[-1] + tokens * householder)
    decays = torch.cat([torch.arange(end - begin) % CHUNK for begin, end in itertools.pairwise(ends)])
    g = (-0.02 * (decays + 1)).float().view(*lead, 1).expand(*lead, shape.heads).contiguous().cuda()
    given = {
        "k": normal(shape.key_dim, 1 / math.sqrt(128)),
        "w": normal(shape.key_dim, 0.3 / math.sqrt(128)),
        "u": normal(shape.value_dim, 1.0),
        "g": g,
        "initial_state": torch.zeros(count, shape.heads, shape.key_dim, shape.value_dim, device="cuda"),
        "output_final_state": True,
        "num_householder": householder,
    }
    if ragged:
        chunks = [(n, c) for n, tokens in enumerate(shape.sequences) for c in range(-(-tokens // CHUNK))]
        given |= {
            "cu_seqlens": torch.tensor(ends, device="cuda"),
            "chunk_indices": torch.tensor(chunks, device="cuda"),
        }
    return given


def time_triton(torch: Any, kernel: Any, shape: Shape, repeats: int) -> float:
    count = min(max(-(-MIN_ROTATION_BYTES // bytes_of(shape)), 2), 16)
    sets = [arguments(torch, shape) for _ in range(count)]
    results: list[Any] = [None] * count  # kept, so that they rotate, too
    busy = torch.zeros(8192, 8192, device="cuda", dtype=torch.bfloat16)
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    for turn in range(max(WARM_UP, count)):
        results[turn % count] = kernel(**sets[turn % count])
    torch.cuda.synchronize()
    for turn, (begin, end) in enumerate(events):
        if turn % 10 == 0:
            for _ in range(5):  # some 8 ms on an H200, in which the host queues the next ten
                torch.matmul(busy, busy)
        begin.record()
        results[turn % count] = kernel(**sets[turn % count])
        end.record()
        if turn % 10 == 9:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    return statistics.median(float(begin.elapsed_time(end)) * 1e3 for begin, end in events)


def times_of(output: str) -> dict[str, float]:
    """Microseconds by shape, h in bfloat16, from what gdpcache_cuda_bench prints."""
    return {name: float(time) for name, time in re.findall(r"^([A-Z]) +bf16 +([0-9.]+) us", output, re.MULTILINE)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", help="gdpcache_cuda_bench of a build with CUDA")
    parser.add_argument("--shapes", default="ADFGIMN", help=f"of {''.join(SHAPES)}; default: ADFGIMN")
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    unknown = sorted(set(options.shapes) - set(SHAPES))
    if unknown:
        parser.error(f"no shapes {unknown}; there are {''.join(SHAPES)}")
    try:
        import torch
    except ImportError:
        raise SystemExit("fla_bench: torch is not installed") from None
    kernel = fla_kernel.find()
    if kernel is None:
        raise SystemExit("fla_bench: fla-core is not installed")
    if not torch.cuda.is_available():
        raise SystemExit("fla_bench: torch finds no GPU")

    print(torch.cuda.get_device_name(), "torch", torch.__version__, flush=True)
    triton: dict[str, list[float]] = {name: [] for name in options.shapes}
    ours: dict[str, float] = {}
    for turn in range(2):
        for name, times in triton.items():
            times.append(time_triton(torch, kernel, SHAPES[name], options.repeats))
            torch.cuda.empty_cache()
        if turn == 0 and options.program:
            command = [options.program, f"--shapes={options.shapes}"]
            ours = times_of(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    rows = []
    print(f"{'shape':<6}{'triton us':>18}{'gdpcache us':>14}{'speed-up':>10}")
    for name, times in triton.items():
        own = ours.get(name)
        rows.append({"shape": name, "triton_us": times, "gdpcache_us": own})
        both = " / ".join(f"{time:.0f}" for time in times)
        more = f"{own:>14.0f}{min(times) / own:>10.2f}" if own else ""
        print(f"{name:<6}{both:>18}{more}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
