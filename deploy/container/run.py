#!/usr/bin/env python3
"""Runs the image where no container engine is at hand, with the OCI runtime crun: its entry point as its user, in
namespaces of its own, on a read-only root with memory file systems for its volumes, without privileges, with the host's
network. ARGUMENTs go to the server; SIGTERM and SIGINT stop it.

usage: run.py [--tag NAME] [--mount SOURCE:DESTINATION]... [ARGUMENT...]

Needs root, buildah and crun. DESTINATION is below one of the image's volumes or /tmp, or a volume itself.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Sequence
from typing import Any

TAG = "localhost/gdpcache"
# No control groups: they differ between hosts, and nothing is limited.
CRUN = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /sys/fs/cgroup && exec crun "$@"', "crun"]
PRIVATE = ["nosuid", "nodev", "noexec"]

os.environ.setdefault("STORAGE_DRIVER", "vfs")


def buildah(*arguments: str) -> str:
    return subprocess.run(["buildah", *arguments], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


class Container:
    """One of the image, from its start until the block ends."""

    def __init__(self, tag: str, arguments: Sequence[str], mounts: Sequence[str] = (), **options: Any) -> None:
        image = json.loads(buildah("inspect", "--type", "image", tag))
        self.configuration: dict[str, Any] = image["Docker"]["config"]
        self._tag, self._arguments, self._mounts, self._options = tag, arguments, mounts, options
        self._name = f"gdpcache-{uuid.uuid4()}"

    def __enter__(self) -> Container:
        self._bundle = tempfile.TemporaryDirectory()
        self._copy = buildah("from", "--pull-never", self._tag)
        specification = pathlib.Path(self._bundle.name, "config.json")
        specification.write_text(json.dumps(self._specification(buildah("mount", self._copy))))
        self.process = subprocess.Popen(self._crun("run", "--bundle", self._bundle.name, self._name), **self._options)
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            subprocess.run(self._crun("kill", self._name, "KILL"), stderr=subprocess.DEVNULL, check=False)
        self.process.wait()
        buildah("umount", self._copy)
        buildah("rm", self._copy)
        self._bundle.cleanup()

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Another program in the container, as its user."""
        inside = self._crun("exec", "--user", self.configuration["User"], self._name, *command)
        return subprocess.run(inside, capture_output=True, text=True, check=False)

    def stop(self) -> None:
        """Asks it to stop, as a container engine does."""
        number = signal.Signals[self.configuration.get("StopSignal") or "SIGTERM"].value
        subprocess.run(self._crun("kill", self._name, str(number)), check=True)

    def _crun(self, command: str, *arguments: str) -> list[str]:
        return [*CRUN, "--cgroup-manager=disabled", f"--root={self._bundle.name}/state", command, *arguments]

    def _specification(self, root: str) -> dict[str, Any]:
        uid, gid = map(int, self.configuration["User"].split(":"))

        def memory(path: str, mode: str, *more: str) -> dict[str, Any]:
            return {
                "destination": path,
                "type": "tmpfs",
                "source": "tmpfs",
                "options": [*PRIVATE, f"mode={mode}", *more],
            }

        mounts = [
            {"destination": "/proc", "type": "proc", "source": "proc", "options": PRIVATE},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "noexec", "mode=755"]},
            memory("/dev/shm", "1777"),
            memory("/tmp", "1777"),
            *(memory(path, "700", f"uid={uid}", f"gid={gid}") for path in self.configuration.get("Volumes") or {}),
        ]
        for mount in self._mounts:
            source, _, destination = mount.partition(":")
            mounts.append({"destination": destination, "source": source, "options": ["bind", *PRIVATE]})
        return {
            "ociVersion": "1.0.0",
            "root": {"path": root, "readonly": True},
            "process": {
                "user": {"uid": uid, "gid": gid},
                "args": [*self.configuration["Entrypoint"], *self._arguments],
                "env": self.configuration["Env"],
                "cwd": self.configuration.get("WorkingDir") or "/",
                "capabilities": {},
                "noNewPrivileges": True,
            },
            "mounts": mounts,
            "linux": {
                "namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")],
                "maskedPaths": ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware"],
                "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
            },
        }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--tag", default=TAG)
    parser.add_argument("--mount", action="append", default=[], metavar="SOURCE:DESTINATION")
    options, arguments = parser.parse_known_args()
    with Container(options.tag, arguments, options.mount, start_new_session=True) as container:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: container.stop())
        return container.process.wait()


if __name__ == "__main__":
    sys.exit(main())
