"""A real Prometheus scrapes a real server: every query of the dashboard finds something, and the alerts are valid.

Skipped (exit status 77) where the package `prometheus` is not installed.

usage: prometheus_test.py GDPCACHED GDPCACHE PREFIX_REUSE SOURCE-DIRECTORY
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest

from observed_server import ObservedServer, dashboard_queries

PROGRAMS, SOURCE = sys.argv[1:4], pathlib.Path(sys.argv[4])


class PrometheusTest(unittest.TestCase):
    def test_every_query_of_the_dashboard_finds_something(self):
        with ObservedServer(*PROGRAMS, SOURCE) as server:
            server.wait_for_samples(10)
            self.assertEqual(server.query("up")[0]["value"][1], "1")
            for query in dashboard_queries(SOURCE, "10s"):
                with self.subTest(panel=query.panel, query=query.expression):
                    result = server.query(query.expression)
                    self.assertTrue(result)
                    # A percentile of nothing is NaN; of these there is always something.
                    self.assertTrue(any(sample["value"][1] != "NaN" for sample in result))
        self.assertEqual(server.failed_calls, [])

    def test_the_alerts_are_valid(self):
        manifests = (SOURCE / "tests/deploy/golden/everything.yaml").read_text().split("\n---\n")
        (rule,) = [manifest for manifest in manifests if "\nkind: PrometheusRule\n" in manifest]
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(textwrap.dedent(re.split(r"^spec:\n", rule, flags=re.MULTILINE)[1]))
            file.flush()
            command = ["promtool", "check", "rules", file.name]
            checked = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)
        self.assertRegex(checked.stdout, r"SUCCESS: [1-9]\d* rules found")


if not shutil.which("prometheus"):
    print("skipped: the package prometheus is not installed")
    sys.exit(77)
unittest.main(argv=sys.argv[:1], verbosity=2)
