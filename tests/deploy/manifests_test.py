"""The Helm chart where nothing can render it: its values against their schema, and its golden manifests against the
programs they start, the image they start them in and each other. chart_test.py sees to it that they are what the chart
renders.

usage: manifests_test.py GDPCACHED GDPCACHE SOURCE-DIRECTORY

Needs the packages python3-yaml and python3-jsonschema; exits with 77 (skipped) without them.
"""

import copy
import json
import pathlib
import re
import sys
import tempfile
import unittest

try:
    import jsonschema
    import yaml
except ImportError as error:
    print(f"skipped: {error}; ./dev setup installs what is missing")
    sys.exit(77)

from chart_digest import chart_digest
from chart_values import CONTRADICTIONS, REFUSED, VALUES
from command_line import default_of, mistakes, options, seconds

GDPCACHED, GDPCACHE, SOURCE = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
CHART = SOURCE / "deploy/helm/gdpcache"
GOLDEN = SOURCE / "tests/deploy/golden"


def merged(base, more):
    """As Helm merges values."""
    result = copy.deepcopy(base)
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(result.get(key), dict):
            result[key] = merged(result[key], value)
        else:
            result[key] = value
    return result


class ValuesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.values = yaml.safe_load((CHART / "values.yaml").read_text())
        cls.schema = json.loads((CHART / "values.schema.json").read_text())
        cls.validator = jsonschema.Draft7Validator(cls.schema)

    def errors(self, values):
        found = self.validator.iter_errors(merged(self.values, values))
        return [f"{list(error.absolute_path)}: {error.message}" for error in found]

    def test_the_schema_is_one(self):
        jsonschema.Draft7Validator.check_schema(self.schema)

    def test_the_defaults_and_the_examples_are_valid(self):
        for name, values in {**VALUES, **CONTRADICTIONS}.items():
            with self.subTest(values=name):
                self.assertEqual(self.errors(values), [])

    def test_mistakes_are_refused(self):
        for what, values in REFUSED.items():
            with self.subTest(what):
                self.assertNotEqual(self.errors(values), [])

    def test_every_default_is_described_and_every_description_has_a_default(self):
        def compare(path, values, schema):
            known = schema.get("properties")
            if known is None or not isinstance(values, dict):
                self.assertTrue(schema.get("description"), f"{path} is not described")
                return
            self.assertEqual(set(values), set(known) - {"global"}, path)  # that is Helm's own
            for key, value in values.items():
                compare(f"{path}.{key}", value, known[key])

        compare("values", self.values, self.schema)

    def test_the_golden_files_are_of_this_chart(self):
        self.assertEqual(
            (GOLDEN / "chart.sha256").read_text(),
            chart_digest(CHART),
            "the chart has changed: render it anew with chart_test.py --update",
        )
        self.assertEqual({file.stem for file in GOLDEN.glob("*.yaml")}, set(VALUES))


class Manifests:
    """Of one golden file, by kind."""

    def __init__(self, name):
        text = re.sub(r"^# gdpcache/templates/", "---\n# ", (GOLDEN / f"{name}.yaml").read_text(), flags=re.MULTILINE)
        self.documents = [document for document in yaml.safe_load_all(text) if document]
        self.pod = self.one("StatefulSet")["spec"]["template"]["spec"]
        (self.container,) = self.pod["containers"]
        self.configuration = self.all("ConfigMap")[0]["data"]["gdpcached.textproto"]

    def all(self, kind):
        return [document for document in self.documents if document["kind"] == kind]

    def one(self, kind):
        (document,) = self.all(kind)
        return document


class ManifestsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.manifests = {name: Manifests(name) for name in VALUES}
        cls.dockerfile = (SOURCE / "Dockerfile").read_text()

    def test_the_server_takes_the_configuration(self):
        for name, manifests in self.manifests.items():
            with self.subTest(values=name), tempfile.NamedTemporaryFile("w", suffix=".textproto") as file:
                file.write(manifests.configuration)
                file.flush()
                self.assertEqual(mistakes(GDPCACHED, f"--config={file.name}"), [])

    def test_the_container_starts_as_the_image_does(self):
        user = re.search(r"^USER (\d+):(\d+)$", self.dockerfile, re.MULTILINE)
        entry = re.search(r"^ENTRYPOINT (.*)$", self.dockerfile, re.MULTILINE).group(1)
        version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
        for name, manifests in self.manifests.items():
            with self.subTest(values=name):
                security = manifests.pod["securityContext"]
                self.assertEqual((security["runAsUser"], security["runAsGroup"]), tuple(map(int, user.groups())))
                self.assertTrue(security["runAsNonRoot"])
                self.assertEqual(security["seccompProfile"], {"type": "RuntimeDefault"})
                own = manifests.container["securityContext"]
                self.assertTrue(own["readOnlyRootFilesystem"])
                self.assertFalse(own["allowPrivilegeEscalation"])
                self.assertEqual(own["capabilities"], {"drop": ["ALL"]})
                self.assertNotIn("command", manifests.container)
                self.assertEqual(manifests.container["image"].rpartition(":")[2], version)
                mounts = {mount["mountPath"]: mount["name"] for mount in manifests.container["volumeMounts"]}
                configuration = json.loads(entry)[-1].removeprefix("--config=")
                directory, file = configuration.rsplit("/", 1)
                self.assertEqual(mounts[directory], "config")
                self.assertIn(file, manifests.all("ConfigMap")[0]["data"])

    def test_every_path_of_the_configuration_is_mounted(self):
        for name, manifests in self.manifests.items():
            with self.subTest(values=name):
                mounts = [mount["mountPath"] for mount in manifests.container["volumeMounts"]]
                for path in re.findall(r'"(/[^"]*)"', manifests.configuration):
                    self.assertTrue(any(path.startswith(f"{mount}/") for mount in mounts), path)

    def test_every_volume_is_mounted_and_every_mount_has_one(self):
        for name, manifests in self.manifests.items():
            with self.subTest(values=name):
                claims = manifests.one("StatefulSet")["spec"].get("volumeClaimTemplates", [])
                volumes = [volume["name"] for volume in manifests.pod["volumes"]]
                volumes += [claim["metadata"]["name"] for claim in claims]
                mounted = [mount["name"] for mount in manifests.container["volumeMounts"]]
                self.assertEqual(sorted(volumes), sorted(mounted))

    def test_ports_are_those_of_the_configuration_and_all_names_are_known(self):
        for name, manifests in self.manifests.items():
            with self.subTest(values=name):
                ports = {port["name"]: port["containerPort"] for port in manifests.container["ports"]}
                listen = re.search(r'^listen: "0\.0\.0\.0:(\d+)"$', manifests.configuration, re.MULTILINE)
                metrics = re.search(r'^metrics: "0\.0\.0\.0:(\d+)"$', manifests.configuration, re.MULTILINE)
                self.assertEqual(ports, {"grpc": int(listen.group(1)), "metrics": int(metrics.group(1))})
                used = {port["targetPort"] for service in manifests.all("Service") for port in service["spec"]["ports"]}
                policy = manifests.one("NetworkPolicy")["spec"]
                used |= {port["port"] for rule in policy["ingress"] for port in rule["ports"]}
                self.assertEqual(used, set(ports))

    def test_every_selector_finds_the_pods(self):
        for name, manifests in self.manifests.items():
            with self.subTest(values=name):
                stateful_set = manifests.one("StatefulSet")["spec"]
                labels = stateful_set["template"]["metadata"]["labels"].items()
                selectors = [service["spec"]["selector"] for service in manifests.all("Service")]
                selectors.append(stateful_set["selector"]["matchLabels"])
                selectors.append(manifests.one("NetworkPolicy")["spec"]["podSelector"]["matchLabels"])
                selectors.append(manifests.one("PodDisruptionBudget")["spec"]["selector"]["matchLabels"])
                for selector in selectors:
                    self.assertLessEqual(selector.items(), labels)
                headless = [
                    s["metadata"]["name"] for s in manifests.all("Service") if s["spec"].get("clusterIP") == "None"
                ]
                self.assertEqual(headless, [stateful_set["serviceName"]])
                for monitor in manifests.all("ServiceMonitor"):
                    selector = monitor["spec"]["selector"]["matchLabels"].items()
                    found = [s for s in manifests.all("Service") if selector <= s["metadata"]["labels"].items()]
                    self.assertEqual([s["metadata"]["name"] for s in found], headless)
                    names = {port["name"] for port in found[0]["spec"]["ports"]}
                    self.assertLessEqual({endpoint["port"] for endpoint in monitor["spec"]["endpoints"]}, names)

    def test_probes_run_what_the_image_has(self):
        commands = 0
        for name, manifests in self.manifests.items():
            with self.subTest(values=name):
                ports = {port["name"]: port["containerPort"] for port in manifests.container["ports"]}
                for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                    action = manifests.container[probe]
                    if "exec" in action:
                        program, subcommand, *arguments = action["exec"]["command"]
                        self.assertEqual(program, "/usr/bin/gdpcache")
                        flags = {argument for argument in arguments if argument.startswith("--")}
                        self.assertLessEqual(flags, options(GDPCACHE, subcommand))
                        socket = re.search(r'^unix: "(.*)"$', manifests.configuration, re.MULTILINE).group(1)
                        self.assertIn(f"unix:{socket}", arguments)
                        commands += 1
                    else:
                        port = (action.get("grpc") or action.get("tcpSocket") or action.get("httpGet"))["port"]
                        self.assertIn(port, [*ports, *ports.values()])
        self.assertGreater(commands, 0)

    def test_pods_have_the_time_to_drain(self):
        flush = default_of(GDPCACHED, "--snapshot-flush-timeout")
        for name, manifests in self.manifests.items():
            with self.subTest(values=name):
                drain = re.search(r'^drain_timeout: "(.*)"$', manifests.configuration, re.MULTILINE).group(1)
                needed = seconds(drain) + seconds(flush)
                self.assertGreater(manifests.pod["terminationGracePeriodSeconds"], needed)

    def test_secrets_are_for_their_readers_only(self):
        found = 0
        for name, manifests in self.manifests.items():
            with self.subTest(values=name):
                for volume in manifests.pod["volumes"]:
                    if "secret" in volume:
                        self.assertEqual(volume["secret"]["defaultMode"], 0o440)
                        found += 1
        self.assertGreater(found, 0)

    def test_nothing_of_the_node_is_shared_unless_asked_for(self):
        for name, manifests in self.manifests.items():
            with self.subTest(values=name):
                of_the_node = [volume["name"] for volume in manifests.pod["volumes"] if "hostPath" in volume]
                same_host = VALUES[name].get("sameHost", {}).get("enabled", False)
                self.assertEqual(bool(of_the_node), same_host)
                self.assertEqual(manifests.pod["hostIPC"], VALUES[name].get("sameHost", {}).get("hostIPC", False))


unittest.main(argv=sys.argv[:1], verbosity=2)
