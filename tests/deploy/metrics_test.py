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


class MetricsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory()
        cls.socket = f"{cls.directory.name}/socket"
        cls.server = subprocess.Popen(
            [GDPCACHED, "--listen=", f"--unix={cls.socket}", "--metrics=127.0.0.1:0", "--backend=cpu"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        ready = cls.server.stdout.readline()
        cls.url = "http://" + re.search(r"metrics=(\S+)", ready).group(1) + "/metrics"

    @classmethod
    def tearDownClass(cls):
        cls.server.terminate()
        cls.server.wait(60)
        cls.server.stdout.close()
        cls.directory.cleanup()

    def command(self, *arguments, expect=0):
        done = subprocess.run(
            [GDPCACHE, *arguments, "--server", f"unix:{self.socket}"], capture_output=True, text=True, check=False
        )
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)

    def scrape(self):
        with urllib.request.urlopen(self.url, timeout=10) as answer:
            text = answer.read().decode()
        return {
            sample: float(value)
            for sample, value in (line.rsplit(" ", 1) for line in text.splitlines() if line and line[0] != "#")
        }

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
        address = self.url.split("/")[2]
        second = subprocess.run(
            [GDPCACHED, "--listen=127.0.0.1:0", "--unix=", f"--metrics={address}", "--backend=cpu"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        self.assertEqual(second.returncode, 1)
        self.assertIn(f"cannot serve metrics on {address}", second.stderr)


unittest.main(argv=sys.argv[:1], verbosity=2)
