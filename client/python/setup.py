"""Generates the protobuf modules of gdpcache.v1 while the package is built; pyproject.toml holds everything else."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = Path(__file__).resolve().parent
CONTRACT = "gdpcache/v1"


def proto_root() -> Path:
    """The contract: beside this file in a source distribution, else the repository's."""
    for root in (HERE / "proto", HERE.parent.parent / "proto"):
        if (root / CONTRACT).is_dir():
            return root
    raise SystemExit("gdpcache: no proto/gdpcache/v1 beside setup.py or in the repository")


def protoc() -> list[str]:
    """$PROTOC, the installed compiler, or the one inside grpcio-tools."""
    program = os.environ.get("PROTOC") or shutil.which("protoc")
    return [program] if program else [sys.executable, "-m", "grpc_tools.protoc"]


def generate(into: Path) -> None:
    into.mkdir(parents=True, exist_ok=True)
    root = proto_root()
    files = sorted(str(path.relative_to(root)) for path in (root / CONTRACT).glob("*.proto"))
    subprocess.run([*protoc(), f"-I{root}", f"--python_out={into}", f"--pyi_out={into}", *files], check=True)
    (into / CONTRACT / "__init__.py").write_text(
        '"""The messages of the contract, generated from proto/gdpcache/v1."""\n'
    )


def runtime_requirement() -> str:
    """Compilers of protobuf 26 and later write into their code the oldest runtime that it accepts."""
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        code = (Path(folder) / CONTRACT / "tensor_pb2.py").read_text()
    version = re.search(r"^# Protobuf Python Version: ([0-9.]+)$", code, re.MULTILINE)
    return f"protobuf>={version[1] if version else '3.20'}"


class BuildPython(build_py):
    """Adds the generated modules to what is built; an editable installation gets them in the source folder."""

    def run(self) -> None:
        super().run()
        generate(HERE / "src" if getattr(self, "editable_mode", False) else Path(self.build_lib))


class SourceDistribution(sdist):
    """Takes the contract along."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        shutil.copytree(proto_root() / CONTRACT, Path(base_dir) / "proto" / CONTRACT, dirs_exist_ok=True)


def version() -> str:
    text = (HERE / "src/gdpcache/_version.py").read_text()
    found = re.search(r'"(.+)"', text)
    assert found is not None
    return found[1]


setup(
    version=version(),
    package_dir={"": "src"},
    packages=["gdpcache"],
    package_data={"gdpcache": ["py.typed"]},
    cmdclass={"build_py": BuildPython, "sdist": SourceDistribution},
    install_requires=["grpcio>=1.51", "numpy>=1.22", runtime_requirement()],
)
