"""The compose files without Docker: what they start, mount and tell each other exists and fits together.

usage: compose_test.py GDPCACHED SOURCE-DIRECTORY

Needs the package python3-yaml; exits with 77 (skipped) without it.
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

try:
    import yaml
except ImportError as error:
    print(f"skipped: {error}; ./dev setup installs what is missing")
    sys.exit(77)

from command_line import default_of, mistakes, seconds

GDPCACHED, SOURCE = sys.argv[1], pathlib.Path(sys.argv[2])
COMPOSE = SOURCE / "deploy/compose"
ACCESS = "/etc/gdpcache/access"  # where secure.yaml mounts what the operator makes


def load(name):
    return yaml.safe_load((COMPOSE / name).read_text())


def image_config(directory):
    """The image's configuration file as the image has it: of the user who runs the server, whoever owns the source."""
    return shutil.copy(SOURCE / "deploy/container/gdpcached.textproto", directory)


class ComposeTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.base = load("compose.yaml")
        cls.services = cls.base["services"]
        cls.dockerfile = (SOURCE / "Dockerfile").read_text()

    def mistakes(self, service):
        """Of the flags, with the image's configuration file in front of them as the entry point has it, and with the
        files of secure.yaml as its head describes them."""
        with tempfile.TemporaryDirectory() as access, tempfile.TemporaryDirectory() as etc:
            identities = 'identities { name: "chat-engine" tenant: "chat" permissions: DATA }\n'
            pathlib.Path(access, "gdpcached.textproto").write_text(identities)
            flags = [flag.replace(ACCESS, access) for flag in service["command"]]
            image = [f"--config={image_config(etc)}"]
            if any(flag.startswith("--config=") for flag in flags):
                image = []  # the last one counts
            return mistakes(GDPCACHED, *image, *flags)

    def test_every_file_is_of_the_same_services(self):
        for name in ("cuda.yaml", "secure.yaml"):
            with self.subTest(file=name):
                self.assertLessEqual(set(load(name)["services"]), set(self.services))

    def test_the_server_takes_its_flags(self):
        for name in ("compose.yaml", "secure.yaml"):
            with self.subTest(file=name):
                self.assertEqual(self.mistakes(load(name)["services"]["gdpcached"]), [])

    def test_a_mistake_in_the_flags_would_be_found(self):
        broken = {"command": [*self.services["gdpcached"]["command"], "--listen=nowhere", "--no-flag-of-ours"]}
        self.assertEqual(len(self.mistakes(broken)), 2)

    def test_what_is_mounted_is_there(self):
        mounted = {}
        for name in ("compose.yaml", "secure.yaml"):
            for service in load(name)["services"].values():
                for volume in service.get("volumes", []):
                    source, target = volume.split(":")[:2]
                    mounted[target] = source
                    if source == "./access":
                        self.assertIn("deploy/compose/access must hold", (COMPOSE / name).read_text())
                    elif source.startswith("."):
                        self.assertTrue((COMPOSE / source).exists(), source)
                    else:
                        self.assertIn(source, self.base["volumes"])
        self.assertEqual(set(self.base["volumes"]), {source for source in mounted.values() if source[0] != "."})

    def test_the_image_can_be_built(self):
        defined = set(re.findall(r"^ARG (\w+)", self.dockerfile, re.MULTILINE))
        build = self.services["gdpcached"]["build"]
        self.assertEqual((COMPOSE / build["context"]).resolve(), SOURCE.resolve())
        for name in ("compose.yaml", "cuda.yaml"):
            arguments = load(name)["services"]["gdpcached"]["build"]["args"]
            self.assertLessEqual(set(arguments), defined)
        # The commands at the head of the Dockerfile and these files are of the same bases.
        for image in (arguments["BUILD_IMAGE"], arguments["RUNTIME_IMAGE"]):
            self.assertIn(image, self.dockerfile)

    def test_the_server_is_confined_and_can_write_where_it_must(self):
        service = self.services["gdpcached"]
        self.assertTrue(service["read_only"])
        self.assertEqual(service["cap_drop"], ["ALL"])
        self.assertEqual(service["security_opt"], ["no-new-privileges:true"])
        volumes = json.loads(re.search(r"^VOLUME (.*)$", self.dockerfile, re.MULTILINE).group(1))
        user, group = re.search(r"^USER (\d+):(\d+)$", self.dockerfile, re.MULTILINE).groups()
        writable = dict(entry.partition(":")[::2] for entry in service["tmpfs"])
        self.assertEqual(writable["/run/gdpcache"], f"uid={user},gid={group},mode=700")
        writable.update({volume.split(":")[1]: "" for volume in service["volumes"]})
        self.assertLessEqual(set(volumes), set(writable))
        for flag in service["command"]:
            if flag.startswith("--snapshot-directory="):
                directory = pathlib.PurePosixPath(flag.partition("=")[2])
                self.assertTrue(any(directory.is_relative_to(path) for path in writable))

    def test_the_host_publishes_on_loopback_only_and_what_is_served(self):
        for name, service in self.services.items():
            for port in service.get("ports", []):
                self.assertRegex(port, r"^127\.0\.0\.1:\d+:\d+$", name)
        (published,) = self.services["gdpcached"]["ports"]
        self.assertIn(f"--listen=0.0.0.0:{published.split(':')[2]}", self.services["gdpcached"]["command"])

    def test_the_server_has_the_time_to_drain(self):
        needed = sum(seconds(default_of(GDPCACHED, flag)) for flag in ("--drain-timeout", "--snapshot-flush-timeout"))
        self.assertGreater(seconds(self.services["gdpcached"]["stop_grace_period"]), needed)

    def test_other_images_are_pinned(self):
        for name in ("prometheus", "grafana"):
            self.assertRegex(self.services[name]["image"], r":\$\{\w+_VERSION:-v?\d+\.\d+\.\d+\}$")

    def test_prometheus_scrapes_the_server(self):
        configuration = load("prometheus.yaml")
        (job,) = configuration["scrape_configs"]
        (target,) = job["static_configs"][0]["targets"]
        service, port = target.split(":")
        for name in ("compose.yaml", "secure.yaml"):
            self.assertIn(f"--metrics=0.0.0.0:{port}", load(name)["services"][service]["command"])
        inside = self.services["prometheus"]["command"][0].removeprefix("--config.file=")
        self.assertIn(f"./prometheus.yaml:{inside}:ro", self.services["prometheus"]["volumes"])

    @unittest.skipUnless(shutil.which("promtool"), "the package prometheus is not installed")
    def test_prometheus_takes_its_configuration(self):
        command = ["promtool", "check", "config", str(COMPOSE / "prometheus.yaml")]
        checked = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)

    def test_grafana_finds_its_data_and_its_dashboard(self):
        provisioning = COMPOSE / "grafana/provisioning"
        (source,) = yaml.safe_load((provisioning / "datasources/prometheus.yaml").read_text())["datasources"]
        self.assertEqual(source["type"], "prometheus")
        self.assertTrue(source["isDefault"])
        self.assertIn(re.fullmatch(r"http://(\w+):9090", source["url"]).group(1), self.services)
        (provider,) = yaml.safe_load((provisioning / "dashboards/gdpcache.yaml").read_text())["providers"]
        mounts = [volume.split(":") for volume in self.services["grafana"]["volumes"]]
        self.assertIn(["./grafana/provisioning", "/etc/grafana/provisioning", "ro"], mounts)
        dashboards = [source for source, target, *_ in mounts if target.startswith(provider["options"]["path"] + "/")]
        self.assertEqual(len(dashboards), 1)
        dashboard = json.loads((COMPOSE / dashboards[0]).read_text())
        self.assertTrue(dashboard["title"])
        kinds = {p["datasource"]["type"] for p in dashboard["panels"] if "datasource" in p}
        self.assertEqual(kinds, {source["type"]})


class DockerfileTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.text = (SOURCE / "Dockerfile").read_text()
        cls.defaults = dict(re.findall(r"^ARG (\w+)=(\S*)$", cls.text, re.MULTILINE))

    def test_its_version_is_the_projects_and_the_charts(self):
        project = re.search(r"^project\(gdpcache VERSION (\S+) ", (SOURCE / "CMakeLists.txt").read_text(), re.MULTILINE)
        chart = yaml.safe_load((SOURCE / "deploy/helm/gdpcache/Chart.yaml").read_text())
        self.assertEqual({*re.findall(r"^ARG VERSION=(.*)$", self.text, re.MULTILINE)}, {project.group(1)})
        self.assertEqual(chart["appVersion"], project.group(1))

    def test_the_bases_are_arguments_with_versions(self):
        self.assertEqual(re.findall(r"^FROM (\S+)", self.text, re.MULTILINE), ["${BUILD_IMAGE}", "${RUNTIME_IMAGE}"])
        for name in ("BUILD_IMAGE", "RUNTIME_IMAGE"):
            self.assertRegex(self.defaults[name], r"^docker\.io/library/\w+:\d+\.\d+-slim$")

    def test_it_has_the_labels_that_registries_show(self):
        labels = set(re.findall(r"org\.opencontainers\.image\.([a-z.]+)=", self.text))
        self.assertLessEqual({"title", "description", "version", "revision", "source", "licenses"}, labels)

    def test_a_container_that_drains_is_healthy(self):
        command = json.loads(re.search(r"^HEALTHCHECK .* CMD (\[.*\])$", self.text, re.MULTILINE)[1])
        self.assertEqual(command[:2], ["/usr/bin/gdpcache", "health"])
        self.assertIn("--alive", command)

    def test_its_own_configuration_is_valid(self):
        with tempfile.TemporaryDirectory() as etc:
            self.assertEqual(mistakes(GDPCACHED, f"--config={image_config(etc)}"), [])

    def test_the_context_has_all_that_is_built(self):
        rules = (SOURCE / ".dockerignore").read_text().splitlines()
        rules = [rule for rule in rules if rule and rule[0] != "#"]
        self.assertEqual(rules.pop(0), "*")
        kept = [rule.removeprefix("!/") for rule in rules if rule[0] == "!"]
        left_out = [SOURCE / rule.removeprefix("/") for rule in rules if rule[0] != "!"]
        ignore = shutil.ignore_patterns("__pycache__")
        with tempfile.TemporaryDirectory() as context:
            for path in kept:
                if (SOURCE / path).is_dir():
                    shutil.copytree(
                        SOURCE / path,
                        pathlib.Path(context, path),
                        ignore=lambda folder, names: {
                            *(name for name in names if pathlib.Path(folder, name) in left_out),
                            *ignore(folder, names),
                        },
                    )
                else:
                    shutil.copy(SOURCE / path, context)
            for word in re.findall(r"(?:\s|^)(?:\./)?(dev|deploy/\S+)", self.text):
                self.assertTrue(pathlib.Path(context, word).exists(), word)
            # With the options of the Dockerfile.
            options = re.search(r"cmake --preset release (.*?) && ", self.text, re.DOTALL).group(1)
            options = re.findall(r"-D \S+", options.replace("${CUDA}", "OFF").replace("${COMMIT}", "0123456789ab"))
            command = ["cmake", "--preset", "release", *options]
            configured = subprocess.run(command, cwd=context, capture_output=True, text=True, check=False)
            self.assertEqual(configured.returncode, 0, configured.stdout + configured.stderr)
            self.assertIn("0123456789ab", pathlib.Path(context, "build/release/CMakeCache.txt").read_text())


unittest.main(argv=sys.argv[:1], verbosity=2)
