"""Prints what a snapshot file holds, as somebody reads it who knows safetensors and the names of the metadata.

usage: read_snapshot.py standard_library|safetensors_package FILE
Exits with 77 when the package is not there.
"""

import json
import struct
import sys
import urllib.parse


def read_header(file):
    (length,) = struct.unpack("<Q", file[:8])
    return json.loads(file[8 : 8 + length]), file[8 + length :]


def with_standard_library(file):
    header, data = read_header(file)
    for name, tensor in header.items():
        if name != "__metadata__":
            begin, end = tensor["data_offsets"]
            yield name, tensor["dtype"], tensor["shape"], data[begin:end]


def with_package(file):
    try:
        import safetensors
    except ImportError:
        print("the Python package safetensors is not installed")
        sys.exit(77)
    for name, tensor in safetensors.deserialize(file):
        yield name, tensor["dtype"], tensor["shape"], tensor["data"]


def main():
    reader = {"standard_library": with_standard_library, "safetensors_package": with_package}[sys.argv[1]]
    with open(sys.argv[2], "rb") as stream:
        file = stream.read()
    tensors = sorted(reader(file))
    metadata = read_header(file)[0]["__metadata__"]
    print("fingerprint", urllib.parse.unquote_to_bytes(metadata["fingerprint"]).hex())
    print("key", bytes.fromhex(metadata["key"]).hex())
    print("position", int(metadata["position"]))
    for name, dtype, shape, data in tensors:
        print(name, dtype, list(shape), bytes(data).hex())


main()
