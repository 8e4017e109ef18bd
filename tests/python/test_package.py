"""The wheel holds everything."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent.parent / "client/python"


def test_the_wheel_holds_generated_modules_and_types(tmp_path: Path) -> None:
    pytest.importorskip("wheel")
    subprocess.run(
        [
            *(sys.executable, "setup.py", "--quiet"),
            *("egg_info", f"--egg-base={tmp_path}"),
            *("build", f"--build-base={tmp_path}/build"),
            *("bdist_wheel", f"--dist-dir={tmp_path}/dist", f"--bdist-dir={tmp_path}/bdist"),
        ],
        cwd=SOURCE,
        check=True,
        capture_output=True,
    )
    (wheel,) = (tmp_path / "dist").glob("gdpcache-*-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        contract = Path(SOURCE / "../../proto/gdpcache/v1").glob("*.proto")
        for path in contract:
            assert f"gdpcache/v1/{path.stem}_pb2.py" in names
            assert f"gdpcache/v1/{path.stem}_pb2.pyi" in names
        assert "gdpcache/py.typed" in names
        metadata = archive.read(next(name for name in names if name.endswith("METADATA"))).decode()
        for requirement in ("Requires-Dist: grpcio", "Requires-Dist: numpy", "Requires-Dist: protobuf"):
            assert requirement in metadata
