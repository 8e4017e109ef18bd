"""Whether golden files are of this chart, where nothing can render it."""

import hashlib
import pathlib


def chart_digest(chart):
    """Of all that they are rendered from."""
    chart = pathlib.Path(chart)
    files = [chart / "Chart.yaml", chart / "values.yaml", chart / "files/rules.yaml"]
    digest = hashlib.sha256()
    for file in [*files, *sorted((chart / "templates").iterdir()), pathlib.Path(__file__).parent / "chart_values.py"]:
        digest.update(f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest() + "\n"
