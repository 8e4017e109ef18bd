"""The metrics of a real server: they count what was done, and deploy/README.md and the dashboard know each of them.

usage: metrics_test.py GDPCACHED GDPCACHE SOURCE-DIRECTORY
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import urllib.request

GDPCACHED, GDPCACHE, SOURCE = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
SERVICE = 'rpc_service="gdpcache.v1.StateCache"'


class Server:
    """A gdpcached on the CPU, with files of its own."""

    def __init__(self, *flags, files=None):
        self.directory = tempfile.TemporaryDirectory()
        for name, text in (files or {}).items():
            path = pathlib.Path(self.directory.name, name)
            path.touch(mode=0o600)
            path.write_text(text)
        self.socket = f"unix:{self.directory.name}/socket"
        flags = [flag.replace("DIRECTORY", self.directory.name) for flag in flags]
        self.process = subprocess.Popen(
            [GDPCACHED, f"--unix={self.directory.name}/socket", "--metrics=127.0.0.1:0", "--backend=cpu", *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        ready = self.process.stdout.readline()
        self.url = "http://" + re.search(r"metrics=(\S+)", ready).group(1) + "/metrics"
        address = re.search(r" address=(\S+)", ready)
        self.address = address and address.group(1)

    def stop(self):
        self.process.terminate()
        self.process.wait(60)
        self.process.stdout.close()
        self.directory.cleanup()

    def scrape(self):
        with urllib.request.urlopen(self.url, timeout=10) as answer:
            text = answer.read().decode()
        return {
            sample: float(value)
            for sample, value in (line.rsplit(" ", 1) for line in text.splitlines() if line and line[0] != "#")
        }


def run(*arguments):
    return subprocess.run([GDPCACHE, *arguments], capture_output=True, text=True, check=False)


class MetricsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--listen=")

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def command(self, *arguments, expect=0):
        done = run(*arguments, "--server", self.server.socket)
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        return done.stdout

    def scrape(self):
        return self.server.scrape()

    def families(self):
        geometry = ["--layers=1", "--slots=8", "--heads=1", "--key-dim=8", "--value-dim=8"]
        self.command("caches", "create", "shown", *geometry)
        self.replay()
        names = {re.match(r"\w+", sample).group() for sample in self.scrape()}
        names = {re.sub(r"_(bucket|sum|count)$", "", name) for name in names}
        self.command("caches", "delete", "shown")
        return {name for name in names if not name.startswith("exposer_")}  # those are the endpoint's own

    def replay(self):
        self.command("replay", "--input", str(SOURCE / "tests/golden/m2_ragged_lengths.safetensors"))

    def test_counts_what_was_done(self):
        before = self.scrape()
        self.replay()
        after = self.scrape()

        def grown(sample):
            return after.get(sample, 0) - before.get(sample, 0)

        self.assertEqual(grown("gdpcache_prefill_sequences_total"), 6)
        self.assertGreater(grown("gdpcache_prefill_tokens_total"), 0)
        self.assertEqual(grown('gdpcache_prefill_phase_seconds_count{phase="compute"}'), 1)
        ok = f'rpc_server_duration_seconds_count{{rpc_grpc_status_code="0",rpc_method="CreateCache",{SERVICE}}}'
        self.assertEqual(grown(ok), 1)

    def test_failures_have_their_code(self):
        self.command("caches", "delete", "absent", expect=1)
        not_found = f'rpc_server_duration_seconds_count{{rpc_grpc_status_code="5",rpc_method="DeleteCache",{SERVICE}}}'
        self.assertGreaterEqual(self.scrape()[not_found], 1)

    def test_device_memory_is_the_hosts_on_the_cpu(self):
        samples = self.scrape()
        total = json.loads(self.command("info", "--json"))["device_memory_bytes"]
        self.assertEqual(samples["gdpcache_device_memory_total_bytes"], total)
        self.assertGreater(samples["gdpcache_device_memory_used_bytes"], 0)
        self.assertLessEqual(samples["gdpcache_device_memory_used_bytes"], total)

    def test_the_heap_is_told_by_what_it_is(self):
        samples = self.scrape()
        states = ("in_use", "free", "mapped")
        # A sanitizer has a heap of its own, and glibc's is empty.
        self.assertTrue(all(samples[f'gdpcache_heap_bytes{{state="{state}"}}'] >= 0 for state in states))

    def test_slots_of_a_cache_add_up_and_go_with_it(self):
        self.command("caches", "create", "m", "--layers=1", "--slots=8", "--heads=1", "--key-dim=8", "--value-dim=8")
        samples = self.scrape()
        self.assertEqual(samples['gdpcache_slots{cache="m",state="free"}'], 8)
        self.assertEqual(samples['gdpcache_slots{cache="m",state="held"}'], 0)
        self.assertEqual(samples['gdpcache_cache_memory_bytes{cache="m"}'], 8 * 8 * 8 * 4)
        self.command("caches", "delete", "m")
        self.assertNotIn('gdpcache_slots{cache="m",state="free"}', self.scrape())

    def test_every_metric_is_documented_and_no_other(self):
        readme = (SOURCE / "deploy/README.md").read_text()
        table = re.search(r"^## Metrics\n(.*?)^## ", readme, re.MULTILINE | re.DOTALL).group(1)
        documented = set(re.findall(r"^\| `(\w+)[`{]", table, re.MULTILINE))
        self.assertEqual(documented, self.families())

    def test_the_dashboard_shows_every_metric_and_no_other(self):
        dashboard = json.loads((SOURCE / "deploy/helm/gdpcache/files/dashboard.json").read_text())
        queries = " ".join(t["expr"] for panel in dashboard["panels"] for t in panel.get("targets", []))
        shown = set(re.findall(r"\b((?:gdpcache|rpc_server|process)_\w+?)(?:_bucket|_sum|_count)?\{", queries))
        self.assertEqual(shown, self.families())

    def test_the_alerts_use_metrics_that_there_are(self):
        rules = (SOURCE / "deploy/helm/gdpcache/files/rules.yaml").read_text()
        used = set(re.findall(r"\b((?:gdpcache|rpc_server|process)_\w+?)(?:_bucket|_sum|_count)?[\{\[]", rules))
        self.assertLessEqual(used, self.families())
        self.assertTrue(used)

    def test_a_taken_port_is_a_clear_error(self):
        address = self.server.url.split("/")[2]
        second = subprocess.run(
            [GDPCACHED, "--listen=127.0.0.1:0", "--unix=", f"--metrics={address}", "--backend=cpu"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        self.assertEqual(second.returncode, 1)
        self.assertIn(f"cannot serve metrics on {address}", second.stderr)


class RefusalsTest(unittest.TestCase):
    def setUp(self):
        config = 'identities { name: "%s" tenant: "t" permissions: %s }\n'
        self.server = Server(
            "--listen=127.0.0.1:0",
            "--config=DIRECTORY/config",
            "--token-file=DIRECTORY/tokens",
            "--max-caches=1",
            files={
                "config": config % ("reader", "READ") + config % ("engine", "DATA"),
                "tokens": "token-of-reader-0123 reader\ntoken-of-engine-0123 engine\n",
                "reader": "token-of-reader-0123",
                "engine": "token-of-engine-0123",
                "stranger": "token-of-stranger-0123",
            },
        )
        self.addCleanup(self.server.stop)

    def call(self, who, *arguments):
        files = pathlib.Path(self.server.directory.name)
        token = ["--token-file", str(files / who)] if who else []
        return run(*arguments, "--server", self.server.address, *token)

    def refused(self):
        samples = self.server.scrape()
        reasons = ("unauthenticated", "permission_denied", "overload", "limit", "unavailable")
        return {reason: samples[f'gdpcache_refused_calls_total{{reason="{reason}"}}'] for reason in reasons}

    def test_each_refused_call_is_counted_once_by_its_reason(self):
        expected = dict.fromkeys(self.refused(), 0)
        self.assertEqual(self.refused(), expected)

        self.assertIn("UNAUTHENTICATED", self.call(None, "info").stderr)
        self.assertIn("UNAUTHENTICATED", self.call("stranger", "info").stderr)
        expected["unauthenticated"] = 2
        self.assertEqual(self.refused(), expected)

        geometry = ["--slots=1", "--heads=1", "--key-dim=8", "--value-dim=8"]
        self.assertIn("PERMISSION_DENIED", self.call("reader", "caches", "create", "a", *geometry).stderr)
        expected["permission_denied"] = 1
        self.assertEqual(self.refused(), expected)

        self.assertEqual(self.call("engine", "caches", "create", "a", *geometry).returncode, 0)
        self.assertIn("RESOURCE_EXHAUSTED", self.call("engine", "caches", "create", "b", *geometry).stderr)
        expected["limit"] = 1
        self.assertEqual(self.call(None, "health").returncode, 0, "open to probes")
        self.assertEqual(self.refused(), expected)


unittest.main(argv=sys.argv[:1], verbosity=2)
