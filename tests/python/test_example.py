"""The worked example runs and finds itself right."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from conftest import Server

EXAMPLE = Path(__file__).parent.parent.parent / "client/python/examples/engine_loop.py"


def test_the_engine_loop(server: Server) -> None:
    for _ in range(2):  # the second run finds what the first one has left
        run = subprocess.run([sys.executable, str(EXAMPLE), server.unix], capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr
        assert "the cached path gives what the uncached one gives" in run.stdout
