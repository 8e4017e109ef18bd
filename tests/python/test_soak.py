"""The soak's judgement, and its client with its tensors on a GPU, for which a driver that has memory of the host is
mistaken."""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Server

import gdpcache
from gdpcache import _cuda

sys.path.append(str(Path(__file__).parent.parent / "soak"))
import device_memory
import documents
import soak
import traffic

CONTEXT = 77


class HostDriver:
    """CUDA's, without a GPU: every operation is done at once."""

    def __init__(self) -> None:
        self.allocations: dict[int, Any] = {}  # arrays by address
        self.allocated = 0

    def cuInit(self, flags: int) -> int:  # noqa: N802
        return 0

    def cuDeviceGet(self, device: Any, ordinal: int) -> int:  # noqa: N802
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, device: Any) -> int:  # noqa: N802
        context._obj.value = CONTEXT
        return 0

    def cuCtxSetCurrent(self, context: Any) -> int:  # noqa: N802
        assert context.value == CONTEXT
        return 0

    def cuStreamCreate(self, stream: Any, flags: int) -> int:  # noqa: N802
        stream._obj.value = 5
        return 0

    def cuMemAlloc_v2(self, address: Any, size: int) -> int:  # noqa: N802
        memory = np.zeros(size, np.uint8)
        address._obj.value = memory.ctypes.data
        self.allocations[memory.ctypes.data] = memory
        self.allocated += 1
        return 0

    def cuMemFree_v2(self, address: int) -> int:  # noqa: N802
        del self.allocations[address]
        return 0

    def _holds(self, address: int, size: int) -> bool:
        return any(
            begin <= address and address + size <= begin + memory.nbytes for begin, memory in self.allocations.items()
        )

    def cuMemsetD8Async(self, address: int, value: int, size: int, stream: int) -> int:  # noqa: N802
        assert self._holds(address, size)
        ctypes.memset(address, value, size)
        return 0

    def cuMemcpyHtoDAsync_v2(self, address: int, source: int, size: int, stream: int) -> int:  # noqa: N802
        assert self._holds(address, size)
        ctypes.memmove(address, source, size)
        return 0

    def cuMemcpyDtoHAsync_v2(self, target: int, address: int, size: int, stream: int) -> int:  # noqa: N802
        assert self._holds(address, size)
        ctypes.memmove(target, address, size)
        return 0

    def cuStreamSynchronize(self, stream: int) -> int:  # noqa: N802
        assert stream == 5
        return 0

    def cuPointerGetAttribute(self, value: Any, attribute: int, pointer: int) -> int:  # noqa: N802
        assert self._holds(pointer, 4)
        value._obj.value = CONTEXT
        return 0

    def cuCtxGetCurrent(self, context: Any) -> int:  # noqa: N802
        context._obj.value = CONTEXT
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> HostDriver:
    fake = HostDriver()
    monkeypatch.setattr(_cuda, "_driver", lambda: fake)
    monkeypatch.setattr(device_memory, "_driver", lambda: fake)
    return fake


class Copying:
    """A session whose tensors are copied, though they are on the GPU."""

    def __init__(self, session: gdpcache.Session) -> None:
        self._session = session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def prefill(self, call: gdpcache.PrefillCall, **options: Any) -> gdpcache.PrefillResult:
        call.transport = gdpcache.Transport.UNARY
        return self._session.prefill(call, **options)


@pytest.fixture
def at_work(
    driver: HostDriver, server: Server, client: gdpcache.Client, monkeypatch: pytest.MonkeyPatch
) -> Iterator[traffic.Traffic]:
    """With two documents and a session whose tensors are on the GPU."""
    monkeypatch.setattr(traffic, "COUNT", 2)
    client.create_cache(traffic.CACHE, documents.GEOMETRY, fingerprint="soak")
    with client.open_session(traffic.CACHE) as session:
        results = [documents.measure(session, documents.Document.create(number)) for number in range(2)]
    opened = traffic.Traffic(server.unix, results, 1, device_memory.Gpu())
    while opened.tensors_on is None:
        opened.session.close()
        opened.session = opened.open_session()
    opened.session = Copying(opened.session)  # type: ignore[assignment]
    yield opened
    opened.session.close()
    opened.client.close()
    client.delete_cache(traffic.CACHE, force=True)


def test_arrays_lie_where_they_are_put(driver: HostDriver) -> None:
    gpu = device_memory.Gpu()
    memory = gpu.allocate(4096)
    contents = np.arange(6, dtype=np.float32).reshape(2, 3)
    first, second = gpu.put(memory, contents, gap=5), gpu.empty(memory, (2,), gap=3)
    (base,) = driver.allocations
    assert first.__cuda_array_interface__["data"] == (base + 4 * 5, False)
    assert second.__cuda_array_interface__["data"] == (base + 4 * (5 + 6 + 3), False)
    assert (gpu.fetch(first) == contents).all()
    assert np.isnan(gpu.fetch(second)).all()
    with pytest.raises(device_memory.GpuError, match="of 4096"):
        gpu.empty(memory, (1024,), gap=0)
    memory.clear()
    assert gpu.empty(memory, (1024,), gap=0).address == base
    del memory, first
    gc.collect()
    assert driver.allocations, "the second array is still there"
    del second
    gc.collect()
    assert not driver.allocations


def test_what_the_driver_refuses_is_told(driver: HostDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "cuMemAlloc_v2", lambda address, size: 2)
    with pytest.raises(device_memory.GpuError, match="cuMemAlloc_v2: error 2"):
        device_memory.Gpu().allocate(4096)


def test_documents_and_steps_go_through_memory_that_comes_and_goes(
    driver: HostDriver, at_work: traffic.Traffic
) -> None:
    for _ in range(10):
        at_work.serve()
    # Chance decides both; they are about 100 and 15.
    assert at_work.counts["prefills by unary"] > 10
    assert at_work.counts["steps"] >= 10 * 2 * documents.STEPS
    assert driver.allocated == at_work.counts["GPU memory allocated"] > 1
    gc.collect()
    assert len(driver.allocations) <= 1


def test_results_that_never_came_are_noticed(
    driver: HostDriver, at_work: traffic.Traffic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_cuda, "copy_to_device", lambda pointer, data, stream: None)
    with pytest.raises(traffic.WrongResultError, match="v_new"):
        for _ in range(10):
            at_work.serve()


def sample(**fields: float) -> soak.Sample:
    values = {field.name: 1 for field in dataclasses.fields(soak.Sample)} | fields
    return soak.Sample(**values)  # type: ignore[arg-type]


def test_what_grows_is_told_but_for_what_the_driver_keeps_of_clients() -> None:
    def grown(backend: str, heap_mb_per_sample: float, kills_per_sample: int) -> list[str]:
        samples = [
            sample(heap_mb=40 + heap_mb_per_sample * index, kills=kills_per_sample * index) for index in range(40)
        ]
        return list(soak.judge(samples, backend))

    assert grown("cuda", heap_mb_per_sample=0.1, kills_per_sample=0) == []
    assert grown("cuda", heap_mb_per_sample=1.0, kills_per_sample=20) == []
    assert grown("cuda", heap_mb_per_sample=1.0, kills_per_sample=1) == ["heap_mb grew from 54.5 to 74.5"]
    assert grown("cpu", heap_mb_per_sample=1.0, kills_per_sample=20) == ["heap_mb grew from 54.5 to 74.5"]
