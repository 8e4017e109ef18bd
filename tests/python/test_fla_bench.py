"""What the comparison with the public Triton kernel does before it needs a GPU."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

BENCHMARKS = Path(__file__).parent.parent / "bench"
sys.path.insert(0, str(BENCHMARKS))

import fla_bench  # noqa: E402
import fla_kernel  # noqa: E402


def kernel_with(warps: list[int], stages: list[int]) -> SimpleNamespace:
    configs = [
        SimpleNamespace(num_warps=w, num_stages=s, kwargs={"BV": tile})
        for w, s, tile in itertools.product(warps, stages, [32, 64])
    ]
    return SimpleNamespace(configs=configs)


def test_few_of_the_choices_of_the_kernel_are_tried() -> None:
    kernel = kernel_with([2, 4], [2, 3, 4])
    fla_kernel.restrict_autotuning(SimpleNamespace(fn=SimpleNamespace(fn=kernel)))
    assert sorted((c.num_warps, c.num_stages, c.kwargs["BV"]) for c in kernel.configs) == [
        (4, 2, 32), (4, 2, 64), (4, 3, 32), (4, 3, 64),
    ]  # fmt: skip
    with pytest.raises(RuntimeError, match="4 warps"):
        fla_kernel.restrict_autotuning(kernel_with([8], [2]))


def test_the_times_of_the_program_are_read() -> None:
    output = """NVIDIA H200 (device 0)
A f32        140.9 us  floor   126.1  ratio  1.12  per step  1.101 us  Triton    179  speed-up  1.27  error 2.9e-03
A bf16       111.2 us  floor    95.0  ratio  1.17  per step  0.869 us  Triton    162  speed-up  1.46  error 2.9e-03
F 3 f32       75.7 us  floor    17.1  ratio  4.43  per step  0.591 us  bar    76.8 met
F bf16        84.0 us  floor    23.7  ratio  3.54  per step  0.656 us  Triton    156  speed-up  1.86  error 2.7e-03
"""
    assert fla_bench.times_of(output) == {"A": 111.2, "F": 84.0}


def test_the_shapes_are_those_of_the_kernel_s_benchmark() -> None:
    source = (BENCHMARKS / "cuda_bench.cc").read_text()
    for name, shape in fla_bench.SHAPES.items():
        first, count = shape.sequences[0], len(shape.sequences)
        equal = len(set(shape.sequences)) == 1
        tokens = f"Equal({count}, {first})" if equal else "{" + ", ".join(map(str, shape.sequences)) + "}"
        rest = ", ".join(map(str, shape[1:]))
        assert f"{{'{name}', {tokens}, {rest}, " in source, name
    assert source.count("Kind::k") >= len(fla_bench.SHAPES)


@pytest.mark.parametrize("program", ["fla_bench.py", "drop_in_bench.py"])
def test_what_is_missing_is_told(program: str, tmp_path: Path) -> None:
    for name in ("torch", "fla"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('not here')\n")
    done = subprocess.run(
        [sys.executable, BENCHMARKS / program],
        env={"PYTHONPATH": f"{tmp_path}:{':'.join(sys.path)}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr.strip().endswith(f"{program.removesuffix('.py')}: torch is not installed"), done.stderr
