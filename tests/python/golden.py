"""The recorded batches of tests/golden."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

FOLDER = Path(os.environ.get("GDPCACHE_GOLDEN_DIRECTORY") or Path(__file__).parent.parent / "golden")
NAMES = sorted(path.stem for path in FOLDER.glob("*.safetensors"))

Array = npt.NDArray[Any]


class Batch:
    """Tensors and metadata of one file; bfloat16 as uint16."""

    def __init__(self, name: str) -> None:
        data = (FOLDER / f"{name}.safetensors").read_bytes()
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size])
        self.metadata: dict[str, str] = header.pop("__metadata__")
        types = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "I32": np.int32, "I64": np.int64}
        self.tensors: dict[str, Array] = {}
        for key, entry in header.items():
            begin, end = entry["data_offsets"]
            raw = data[8 + size + begin : 8 + size + end]
            self.tensors[key] = np.frombuffer(raw, types[entry["dtype"]]).reshape(entry["shape"])

    def __getitem__(self, name: str) -> Array:
        return self.tensors[name]

    def get(self, name: str) -> Array | None:
        return self.tensors.get(name)
