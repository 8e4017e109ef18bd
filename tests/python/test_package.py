"""The wheel holds everything, and one pip command installs it into a fresh virtual environment."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from conftest import Server

REPOSITORY = Path(__file__).parent.parent.parent


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """The package as in a checkout, for others may be building it in theirs."""
    ignored = shutil.ignore_patterns("build", "dist", "*.egg-info", "__pycache__")
    shutil.copytree(REPOSITORY / "proto", tmp_path / "checkout/proto")
    copy: Path = shutil.copytree(REPOSITORY / "client/python", tmp_path / "checkout/client/python", ignore=ignored)
    return copy


def run(*command: str | Path, **variables: str) -> str:
    """Without what the tests themselves run with."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PIP_"))}
    done = subprocess.run(
        command, cwd="/", env=environment | variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_the_wheel_holds_generated_modules_and_types(tmp_path: Path, source: Path) -> None:
    pytest.importorskip("wheel")
    subprocess.run(
        [
            *(sys.executable, "setup.py", "--quiet"),
            *("bdist_wheel", f"--dist-dir={tmp_path}/dist"),
        ],
        cwd=source,
        check=True,
        capture_output=True,
    )
    (wheel,) = (tmp_path / "dist").glob("gdpcache-*-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        contract = list((REPOSITORY / "proto/gdpcache/v1").glob("*.proto"))
        assert contract
        for path in contract:
            assert f"gdpcache/v1/{path.stem}_pb2.py" in names
            assert f"gdpcache/v1/{path.stem}_pb2.pyi" in names
        for path in (REPOSITORY / "client/python/src/gdpcache").glob("*.py"):
            assert f"gdpcache/{path.name}" in names
        assert "gdpcache/py.typed" in names
        metadata = archive.read(next(name for name in names if name.endswith("METADATA"))).decode()
        for requirement in ("Requires-Dist: grpcio", "Requires-Dist: numpy", "Requires-Dist: protobuf"):
            assert requirement in metadata


CLIENT = """
import sys
import numpy as np
import gdpcache

assert gdpcache.__file__.startswith(sys.prefix), gdpcache.__file__
with gdpcache.Client() as client:
    geometry = gdpcache.CacheGeometry(layers=1, slots=1, heads=1, key_dim=4, value_dim=4)
    client.create_cache("venv", geometry, ephemeral=True)
    with client.open_session("venv") as session:
        rows = np.ones((5, 1, 4), np.float32)
        result = session.prefill(gdpcache.PrefillCall(k=rows, w=rows, u=rows, state_indices=session.acquire_slots()))
        print(result.positions)
"""


def test_one_command_installs_it_into_a_fresh_environment(tmp_path: Path, source: Path, server: Server) -> None:
    """With the distribution's modules in the place of those of an index: no network is needed, nor used."""
    for module, package in (("ensurepip", "python3-venv"), ("wheel", "python3-wheel")):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{sys.executable} has no module {module}; {package} brings it")
    fresh = tmp_path / "environment"
    run(sys.executable, "-m", "venv", "--system-site-packages", fresh)
    run(fresh / "bin/pip", "install", "--no-index", "--no-build-isolation", source)
    assert "Version: " in run(fresh / "bin/pip", "show", "gdpcache")
    assert run(fresh / "bin/python", "-c", CLIENT, GDPCACHE_SERVER=server.unix) == "(5,)\n"
