#!/usr/bin/env python3
"""Compiles the CUDA kernels once more and prints what each takes: registers, static shared memory, stack and spills;
and for each file the number of kernels and nvcc's time. Needs no GPU.

    tests/gpu/resources.py [BUILD_DIRECTORY]      default: build/release-cuda, which has to be configured

Exits with 1 when a kernel spills registers. Shared memory that is asked for at launch is not in it.
"""

from __future__ import annotations

import json
import re
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple


class Kernel(NamedTuple):
    architecture: str
    name: str
    registers: int
    shared: int  # bytes, as are the following
    stack: int
    spills: int


def kernels_in(report: str) -> list[Kernel]:
    """From what ptxas says with -v."""
    kernels = []
    for part in re.split(r"Compiling entry function ", report)[1:]:
        head = re.match(r"'(\S+)' for '(\S+)'", part)
        registers = re.search(r"Used (\d+) registers", part)
        if head is None or registers is None:
            raise ValueError(f"ptxas says something else than expected: {part[:200]}")

        def number(pattern: str, text: str = part) -> int:
            found = re.search(pattern, text)
            return int(found[1]) if found else 0

        spills = number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads")
        stack = number(r"(\d+) bytes stack frame")
        kernels.append(Kernel(head[2], head[1], int(registers[1]), number(r"(\d+) bytes smem"), stack, spills))
    return kernels


def readable(names: list[str]) -> list[str]:
    """Demangled where there is a c++filt."""
    try:
        done = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return names
    return done.stdout.splitlines()


def compile_again(entry: dict[str, str], output: Path) -> tuple[str, float, float]:
    """The report of a compilation, its time by the clock and that of the processor."""
    command = shlex.split(entry["command"])
    if Path(command[0]).name == "ccache":
        del command[0]
    command[command.index("-o") + 1] = str(output)
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(
        [*command, "-Xptxas", "-v"], cwd=entry["directory"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    elapsed, after = time.monotonic() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        raise SystemExit(done.stdout)
    return done.stdout, elapsed, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(build: Path) -> int:
    database = build / "compile_commands.json"
    if not database.is_file():
        raise SystemExit(f"{database} is not there; configure with: cmake --preset release-cuda")
    entries = [entry for entry in json.loads(database.read_text()) if entry["file"].endswith(".cu")]
    if not entries:
        raise SystemExit(f"{build} is a build without CUDA")
    spilling = 0
    for entry in entries:
        with tempfile.TemporaryDirectory() as folder:
            report, elapsed, used = compile_again(entry, Path(folder) / "object")
        kernels = sorted(kernels_in(report))
        name = Path(entry["file"]).name
        print(f"\n{name}: {len(kernels)} kernels, nvcc {elapsed:.1f} s, {used:.1f} s of processor time")
        for architecture, count in sorted(Counter(kernel.architecture for kernel in kernels).items()):
            print(f"  {architecture}: {count}")
        print(f"{'':10} {'registers':>9} {'shared':>7} {'stack':>6} {'spills':>6}")
        for kernel, title in zip(kernels, readable([kernel.name for kernel in kernels]), strict=True):
            columns = f"{kernel.registers:>9} {kernel.shared:>7} {kernel.stack:>6} {kernel.spills:>6}"
            print(f"{kernel.architecture:10} {columns}  {title}")
            spilling += kernel.spills > 0
    print(f"\n{spilling} kernels spill" if spilling else "\nno kernel spills")
    return 1 if spilling else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "build/release-cuda")))
