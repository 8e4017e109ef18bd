"""A server with work to do, watched by a real Prometheus (the distribution's package): for the programs beside it."""

import contextlib
import dataclasses
import json
import pathlib
import re
import socket
import subprocess
import tempfile
import threading
import time
import urllib.parse
import urllib.request


class ObservedServer:
    """Starts gdpcached with all tiers of snapshots and Prometheus, and keeps clients at work, until the block ends."""

    SCRAPE_SECONDS = 1

    def __init__(self, gdpcached, gdpcache, prefix_reuse, source):
        self._programs = gdpcached, gdpcache, prefix_reuse
        self._source = pathlib.Path(source)
        self._stopped = threading.Event()
        self.failed_calls = []  # what a client said that should have succeeded

    def __enter__(self):
        with contextlib.ExitStack() as cleanup:
            directory = pathlib.Path(cleanup.enter_context(tempfile.TemporaryDirectory()))
            log = cleanup.enter_context(open(directory / "log", "w", encoding="utf-8"))
            self._address = f"unix:{directory}/socket"
            server = self._start(
                cleanup,
                [
                    self._programs[0],
                    "--listen=",
                    f"--unix={directory}/socket",
                    "--metrics=127.0.0.1:0",
                    "--backend=cpu",
                    f"--snapshot-directory={directory}/snapshots",
                ],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
            ready = server.stdout.readline()
            target = re.search(r"metrics=(\S+)", ready)
            if not target:
                raise RuntimeError(f"gdpcached says {ready!r}: {(directory / 'log').read_text()}")
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            self.url = f"http://127.0.0.1:{port}"
            configuration = {
                "global": {"scrape_interval": f"{self.SCRAPE_SECONDS}s"},
                "scrape_configs": [{"job_name": "gdpcache", "static_configs": [{"targets": [target.group(1)]}]}],
            }
            (directory / "prometheus.json").write_text(json.dumps(configuration))  # JSON is YAML
            self._start(
                cleanup,
                [
                    "prometheus",
                    f"--config.file={directory}/prometheus.json",
                    f"--storage.tsdb.path={directory}/tsdb",
                    f"--web.listen-address=127.0.0.1:{port}",
                ],
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
            clients = [threading.Thread(target=self._work, args=(work,)) for work in (self._prefills, self._prefixes)]
            for client in clients:
                client.start()
                cleanup.callback(client.join)
            cleanup.callback(self._stopped.set)
            self._cleanup = cleanup.pop_all()
        return self

    def __exit__(self, *_):
        self._cleanup.close()

    @staticmethod
    def _start(cleanup, command, **options):
        process = cleanup.enter_context(subprocess.Popen(command, **options))
        cleanup.callback(process.terminate)  # leaving the block waits for its end
        return process

    def _work(self, work):
        while not self._stopped.is_set():
            work()

    def _run(self, *command, expect=0):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != expect:
            self.failed_calls.append(f"{' '.join(command)}: {done.stdout}{done.stderr}")
        return done.stdout

    def _prefills(self):
        _, gdpcache, _ = self._programs
        batch = self._source / "tests/golden/m2_ragged_lengths.safetensors"
        self._run(gdpcache, "replay", "--input", str(batch), "--server", self._address)
        self._run(gdpcache, "caches", "delete", "absent", "--server", self._address, expect=1)
        too_large = ["--slots=1000000", "--heads=32", "--key-dim=128", "--value-dim=128"]
        self._run(gdpcache, "caches", "create", "large", *too_large, "--server", self._address, expect=1)

    def _prefixes(self):
        _, gdpcache, prefix_reuse = self._programs
        for _ in range(5):  # the first finds nothing, the others all
            self._run(prefix_reuse, self._address)
        listed = self._run(gdpcache, "snapshots", "list", "prefix-reuse", "--json", "--server", self._address)
        keys = [snapshot["key"] for snapshot in json.loads(listed or "{}").get("snapshots", [])]
        if keys:
            self._run(gdpcache, "snapshots", "delete", "prefix-reuse", *keys, "--server", self._address)

    def query(self, expression, **parameters):
        """The result of an instant query, or of a range query where start, end and step are given."""
        path = "query_range" if parameters else "query"
        fields = urllib.parse.urlencode({"query": expression, **parameters})
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{fields}", timeout=30) as answer:
            return json.load(answer)["data"]["result"]

    def wait_for_samples(self, seconds):
        """Until the server has been scraped for so long."""
        deadline = time.monotonic() + seconds + 60
        wanted = seconds // self.SCRAPE_SECONDS
        while time.monotonic() < deadline:
            try:
                scraped = self.query(f'count_over_time(up{{job="gdpcache"}}[{seconds * 2}s])')
            except OSError:  # it is starting
                scraped = []
            if scraped and int(scraped[0]["value"][1]) >= wanted:
                return
            time.sleep(0.5)
        raise TimeoutError(f"Prometheus has not scraped the server {wanted} times")


@dataclasses.dataclass
class Query:
    panel: str  # title
    unit: str
    expression: str  # PromQL, the dashboard's variables filled in
    legend: str  # with {{label}} where a label's value goes


def dashboard_queries(source, window):
    """Every query of the dashboard; rates are taken over `window`."""
    dashboard = json.loads((pathlib.Path(source) / "deploy/helm/gdpcache/files/dashboard.json").read_text())
    return [
        Query(
            panel["title"],
            panel.get("fieldConfig", {}).get("defaults", {}).get("unit", ""),
            target["expr"].replace("$__rate_interval", window).replace("$job", "gdpcache"),
            target.get("legendFormat", ""),
        )
        for panel in dashboard["panels"]
        for target in panel.get("targets", [])
    ]
