"""The Helm chart: what it renders is what the golden files say, and what Kubernetes accepts.

usage: chart_test.py CHART-DIRECTORY GOLDEN-DIRECTORY [--update]

Needs the PyPI packages helm-python-sdk, kubernetes-validate and PyYAML; exits with 77 (skipped) without them.
"""

import json
import pathlib
import sys

try:
    import kubernetes_validate
    import yaml
    from helm_python import Chart
except ImportError as error:
    print(f"skipped: {error}; pip install helm-python-sdk kubernetes-validate PyYAML")
    sys.exit(77)

from chart_digest import chart_digest
from chart_values import CONTRADICTIONS, REFUSED, VALUES

KUBERNETES = "1.31"


def main():
    chart = Chart.load(sys.argv[1])
    golden = pathlib.Path(sys.argv[2])
    failures = []
    for name, values in VALUES.items():
        rendered = chart.render(values, name="test", namespace="serving")
        manifests = ((path, manifest.strip()) for path, manifest in sorted(rendered.items()))
        text = "".join(f"# {path}\n{manifest}\n" for path, manifest in manifests if manifest)
        for document in yaml.safe_load_all("\n---\n".join(rendered.values())):
            if document is None or document["apiVersion"].startswith("monitoring.coreos.com/"):
                continue  # not of Kubernetes's own schemas
            try:
                kubernetes_validate.validate(document, KUBERNETES, strict=True)
            except kubernetes_validate.ValidationError as error:
                failures.append(f"{name}: {document['kind']}: {error.message}")
        path = golden / f"{name}.yaml"
        if "--update" in sys.argv:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            failures.append(f"{name}: differs from {path}; see the change with --update and git diff")
    if "--update" in sys.argv:
        (golden / "chart.sha256").write_text(chart_digest(sys.argv[1]))
    for what, values in REFUSED.items():
        try:
            chart.render(values, name="test", namespace="serving")
            failures.append(f"{what} is not refused")
        except Exception as error:  # the package's own kinds differ between versions
            if "schema" not in str(error).lower() and "validat" not in str(error).lower():
                failures.append(f"{what} is refused for another reason: {error}")
    for why, values in CONTRADICTIONS.items():
        try:
            chart.render(values, name="test", namespace="serving")
            failures.append(f"not refused: {why}")
        except Exception as error:
            if why not in str(error):
                failures.append(f"refused for another reason than {why!r}: {error}")
    dashboard = chart.render({"metrics": {"dashboard": {"enabled": True}}}, name="test", namespace="serving")
    documents = yaml.safe_load_all("\n---\n".join(dashboard.values()))
    shown = [d["data"]["gdpcache.json"] for d in documents if d and "gdpcache.json" in d.get("data", {})]
    file = pathlib.Path(sys.argv[1], "files", "dashboard.json").read_text()
    if [json.loads(text) for text in shown] != [json.loads(file)]:
        failures.append("the dashboard's ConfigMap does not hold the dashboard")
    print("\n".join(failures) or f"{len(VALUES)} value sets rendered and validated, {len(REFUSED)} refused")
    return 1 if failures else 0


sys.exit(main())
