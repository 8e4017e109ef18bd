"""The report on the CUDA kernels' registers and spills, from what ptxas prints."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parent.parent / "gpu/resources.py"

REPORT = """ptxas info    : 3 bytes gmem
ptxas info    : Compiling entry function '_Z3oneiPf' for 'sm_80'
ptxas info    : Function properties for _Z3oneiPf
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 121 registers, used 1 barriers, 1024 bytes smem, 368 bytes cmem[0]
ptxas info    : Compile time = 12.3 ms
ptxas info    : Compiling entry function '_Z3twoiPf' for 'sm_90a'
ptxas info    : Function properties for _Z3twoiPf
    32 bytes stack frame, 16 bytes spill stores, 24 bytes spill loads
ptxas info    : Used 168 registers, used 9 barriers
"""


@pytest.fixture
def resources() -> Any:
    specification = importlib.util.spec_from_file_location("resources", PROGRAM)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_every_kernel_is_counted(resources: Any) -> None:
    one, two = resources.kernels_in(REPORT)
    assert one == ("sm_80", "_Z3oneiPf", 121, 1024, 0, 0)
    assert two == ("sm_90a", "_Z3twoiPf", 168, 0, 32, 40)
    with pytest.raises(ValueError, match="expected"):
        resources.kernels_in("Compiling entry function 'x' for 'sm_80' and nothing else")


@pytest.mark.parametrize(("spills", "status"), [(0, 0), (8, 1)])
def test_spills_fail_the_run(
    spills: int, status: int, resources: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "report").write_text(REPORT.replace("16 bytes spill", f"{spills} bytes spill").replace(
        "24 bytes spill", "0 bytes spill"))  # fmt: skip
    compiler = tmp_path / "nvcc"
    compiler.write_text(f'#!/bin/sh\n[ "$2" != object ] && [ "$4 $5" = "-Xptxas -v" ] && cat {tmp_path}/report\n')
    compiler.chmod(0o755)
    commands = [
        {"directory": str(tmp_path), "command": f"ccache {compiler} -o object x.cu", "file": "x.cu"},
        {"directory": str(tmp_path), "command": "false", "file": "x.cc"},
    ]
    (tmp_path / "compile_commands.json").write_text(json.dumps(commands))
    assert resources.main(tmp_path) == status
    printed = capsys.readouterr().out
    assert "x.cu: 2 kernels" in printed
    assert ("no kernel spills" in printed) == (status == 0)


def test_a_build_without_cuda_is_told(resources: Any, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="configure"):
        resources.main(tmp_path)
    (tmp_path / "compile_commands.json").write_text("[]")
    with pytest.raises(SystemExit, match="without CUDA"):
        resources.main(tmp_path)
