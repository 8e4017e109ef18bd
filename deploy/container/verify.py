#!/usr/bin/env python3
"""Starts the image and checks that it does what it is for; see run.py for what this needs.

usage: verify.py [--tag NAME]
"""

from __future__ import annotations

import argparse
import pathlib
import subprocess
import sys
import tempfile
import threading
import unittest
from typing import IO

import run

SOURCE = pathlib.Path(__file__).resolve().parents[2]
SOCKET = "unix:/run/gdpcache/gdpcache.sock"
BATCHES = "/tmp/golden"
tag = run.TAG


class ImageTest(unittest.TestCase):
    def setUp(self) -> None:
        self.log: IO[str] = self.enterContext(tempfile.TemporaryFile("w+"))

    def start(self, *arguments: str, mounts: tuple[str, ...] = ()) -> run.Container:
        """Serving."""
        mounts = (f"{SOURCE}/tests/golden:{BATCHES}", *mounts)
        arguments = ("--listen=127.0.0.1:0", *arguments)
        container = run.Container(tag, arguments, mounts, stdout=subprocess.PIPE, stderr=self.log, text=True)
        self.enterContext(container)
        assert container.process.stdout is not None
        self.addCleanup(container.process.stdout.close)
        ready = container.process.stdout.readline()
        self.assertRegex(ready, r"^ready address=127\.0\.0\.1:\d+ unix=/run/gdpcache/gdpcache\.sock", self.written())
        return container

    def written(self) -> str:
        self.log.seek(0)
        return self.log.read()

    def assert_stops(self, container: run.Container) -> None:
        container.stop()
        self.assertEqual(container.process.wait(timeout=90), 0, self.written())

    def replay(self, container: run.Container, batch: str, *more: str) -> subprocess.CompletedProcess[str]:
        batch = f"{BATCHES}/{batch}"
        return container.run("/usr/bin/gdpcache", "replay", "--server", SOCKET, "--input", batch, "--check", *more)

    def test_labels_are_those_of_the_build(self) -> None:
        container = self.start()
        labels = container.configuration["Labels"]
        version = container.run("/usr/bin/gdpcached", "--version").stdout.splitlines()
        self.assertEqual(version[0], "gdpcached " + labels["org.opencontainers.image.version"])
        self.assertEqual(version[1], "commit " + labels["org.opencontainers.image.revision"])
        if (SOURCE / ".git").exists():
            self.assertRegex(version[1], r"^commit [0-9a-f]{12,}(-dirty)?$")
        info = container.run("/usr/bin/gdpcache", "info", "--server", SOCKET)
        self.assertIn(labels["org.opencontainers.image.version"], info.stdout, info.stderr)

    def test_the_server_is_the_first_process_without_privileges(self) -> None:
        container = self.start()
        status = container.run("cat", "/proc/1/status").stdout
        self.assertRegex(status, r"Name:\s+gdpcached\n")
        self.assertRegex(status, r"Uid:\s+10001\s+10001\s+10001\s+10001\n")
        self.assertRegex(status, r"CapEff:\s+0+\n")
        self.assertRegex(status, r"CapBnd:\s+0+\n")
        self.assertRegex(status, r"NoNewPrivs:\s+1\n")

    def test_the_root_is_read_only_and_the_volumes_are_not(self) -> None:
        container = self.start("--snapshot-directory=/var/lib/gdpcache/snapshots")
        for path in ("/x", "/etc/gdpcache/x", "/usr/bin/x"):
            self.assertIn("Read-only file system", container.run("touch", path).stderr)
        for path in ("/run/gdpcache/x", "/var/lib/gdpcache/x", "/tmp/x"):
            self.assertEqual(container.run("touch", path).returncode, 0, path)
        self.assertEqual(container.run("test", "-d", "/var/lib/gdpcache/snapshots").returncode, 0)

    def test_the_health_check_tells_a_server_from_none(self) -> None:
        container = self.start()
        kind, *command = container.configuration["Healthcheck"]["Test"]
        self.assertEqual((kind, command[-1]), ("CMD", SOCKET))
        healthy = container.run(*command)
        self.assertEqual(healthy.returncode, 0, healthy.stdout + healthy.stderr)
        self.assertEqual(container.run(*command[:-1], SOCKET + ".absent").returncode, 1)

    def test_recorded_batches_give_the_recorded_results(self) -> None:
        container = self.start()
        for batch in sorted((SOURCE / "tests/golden").glob("*.safetensors")):
            for transport in ("unary", "stream"):
                with self.subTest(batch=batch.name, transport=transport):
                    replayed = self.replay(container, batch.name, "--transport", transport)
                    self.assertEqual(replayed.returncode, 0, replayed.stdout + replayed.stderr)

    def test_a_stop_under_load_is_clean_and_the_next_takes_the_directory_over(self) -> None:
        directory = self.enterContext(tempfile.TemporaryDirectory())
        pathlib.Path(directory).chmod(0o777)
        volume = f"{directory}:/var/lib/gdpcache"
        flags = "--snapshot-directory=/var/lib/gdpcache/snapshots"
        container = self.start(flags, mounts=(volume,))
        right = threading.Event()
        last = []

        def work() -> None:
            while True:
                replayed = self.replay(container, "m2_ragged_lengths.safetensors")
                if replayed.returncode != 0:
                    last.append(replayed.stdout + replayed.stderr)
                    return
                right.set()

        client = threading.Thread(target=work)
        client.start()
        self.assertTrue(right.wait(60))
        self.assert_stops(container)
        client.join()
        # Refused, cut off, ended with the container, or too late for it: no wrong result.
        self.assertRegex(last[0], "UNAVAILABLE|^$|not running|does not exist|No such file")
        self.assert_stops(self.start(flags, mounts=(volume,)))

    def test_a_mistake_in_the_flags_ends_it_with_2(self) -> None:
        with run.Container(tag, ["--listen=nonsense"], stderr=self.log) as container:
            self.assertEqual(container.process.wait(timeout=60), 2)
        self.assertIn("nonsense", self.written())


def main() -> None:
    global tag
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tag", default=run.TAG)
    tag = parser.parse_args().tag
    unittest.main(argv=sys.argv[:1], verbosity=2)


if __name__ == "__main__":
    main()
