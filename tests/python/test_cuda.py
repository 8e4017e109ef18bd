"""Tensors on a GPU: skipped where there is none, or where the server was built without CUDA."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import kill_server, start_server, stop_server
from problems import HEADS, KEY_DIM, VALUE_DIM, random_call

import gdpcache
from gdpcache import InitialState, Outputs, PrefillCall, States, Transport
from gdpcache._operations import unary
from gdpcache._sharing import unregister
from gdpcache.v1 import memory_pb2

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("there is no GPU", allow_module_level=True)


@pytest.fixture(scope="module")
def gpu_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[gdpcache.Client]:
    folder = tmp_path_factory.mktemp("gpu")
    try:
        server = start_server(folder, "--backend=cuda")
    except RuntimeError as error:
        pytest.skip(str(error))
    with gdpcache.Client(server.unix) as client:
        geometry = gdpcache.CacheGeometry(layers=1, slots=8, heads=HEADS, key_dim=KEY_DIM, value_dim=VALUE_DIM)
        client.create_cache("gpu", geometry)
        yield client
    stop_server(server)


@pytest.fixture
def session(gpu_client: gdpcache.Client) -> Iterator[gdpcache.Session]:
    with gpu_client.open_session("gpu") as opened:
        yield opened


def on_gpu(call: PrefillCall, to: Any) -> PrefillCall:
    for name in ("k", "w", "u", "g"):
        setattr(call, name, to(getattr(call, name)))
    return call


def cuda(array: Any) -> Any:
    return torch.from_numpy(array).cuda()


def full_call(tokens: int = 3000, **fields: Any) -> PrefillCall:
    return random_call(1, tokens, states=States.ALL, output_final_state=True, initial_state=InitialState.ZERO, **fields)


def equal(tensor: Any, array: Any) -> bool:
    return bool((tensor.cpu().numpy() == array).all())


def test_torch_tensors_stay_where_they_are(session: gdpcache.Session) -> None:
    expected = session.prefill(full_call(transport="stream"))
    result = session.prefill(on_gpu(full_call(), cuda))
    assert result.transport is Transport.CUDA_IPC
    for name in ("h", "v_new", "final_state"):
        tensor = getattr(result, name)
        assert tensor.is_cuda
        assert equal(tensor, getattr(expected, name)), name


def test_the_streams_order_both_sides(session: gdpcache.Session) -> None:
    expected = session.prefill(full_call(transport="stream"))
    call = on_gpu(full_call(), cuda)
    source = call.u.clone()
    busy = torch.ones(4096, 4096, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(10):
            call.u.zero_()
            for _ in range(20):
                busy = busy @ busy * 1e-4
            call.u.copy_(source)  # behind all that
            doubled = session.prefill(call).v_new * 2  # no synchronisation in between
            call.u.zero_()
            assert equal(doubled, expected.v_new * 2)


def test_memory_that_was_freed_is_given_up(session: gdpcache.Session) -> None:
    session.prefill(on_gpu(full_call(1 << 16), cuda))
    for _ in range(20):
        torch.cuda.empty_cache()
        session.prefill(on_gpu(full_call(1 << 16), cuda))
    deadline = time.monotonic() + 10
    while any(region.uses for region in session.list_shared_memory()):  # the answer comes before the work is done
        assert time.monotonic() < deadline
    assert len([region for region in session.list_shared_memory() if region.kind == "cuda"]) <= 20


def test_inputs_and_results_on_both_sides(session: gdpcache.Session) -> None:
    expected = session.prefill(full_call(transport="stream"))
    call = on_gpu(full_call(), cuda)
    call.g = np.asarray(full_call().g)
    h = np.empty(expected.h.shape, np.float32)
    v_new = torch.empty(expected.v_new.shape, device="cuda")
    call.out = Outputs(h=h, v_new=v_new)
    result = session.prefill(call)
    assert result.transport is Transport.CUDA_IPC
    assert result.h is h
    assert result.v_new is v_new
    assert (h == expected.h).all()
    assert equal(v_new, expected.v_new)
    call.transport = Transport.SHARED_MEMORY
    h[:] = 0
    v_new.zero_()
    result = session.prefill(call)
    assert result.final_state.is_cuda
    assert (h == expected.h).all()
    assert equal(v_new, expected.v_new)
    assert equal(result.final_state, expected.final_state)


def test_cupy_arrays(session: gdpcache.Session) -> None:
    cupy = pytest.importorskip("cupy")
    expected = session.prefill(full_call(transport="stream"))
    call = on_gpu(full_call(), cupy.asarray)
    v_new = cupy.empty(expected.v_new.shape, cupy.float32)
    call.out = Outputs(v_new=v_new)
    call.cu_seqlens = cupy.asarray([0, 3000], cupy.int32)
    for transport in (Transport.AUTO, Transport.SHARED_MEMORY, Transport.STREAM):
        v_new[:] = 0
        call.transport = transport
        result = session.prefill(call)
        if transport is Transport.AUTO:
            assert result.transport is Transport.CUDA_IPC
        assert (v_new.get() == expected.v_new).all()
        assert isinstance(result.h, np.ndarray)  # not asked to be elsewhere
        assert (result.h == expected.h).all()


def test_a_server_without_the_gpu_gets_copies(client: gdpcache.Client, cache: str) -> None:
    with client.open_session(cache) as session:
        expected = session.prefill(full_call())
        result = session.prefill(on_gpu(full_call(), cuda))
        assert result.transport is expected.transport
        assert result.h.is_cuda
        assert equal(result.h, expected.h)
        assert equal(result.v_new, expected.v_new)


def test_the_drop_in_function(session: gdpcache.Session) -> None:
    call = on_gpu(full_call(96), cuda)
    expected = session.prefill(full_call(96, transport="unary"))
    (slot,) = session.acquire_slots()
    h, v_new, final_state = gdpcache.chunk_gated_delta_product_fwd_h(
        call.k[None],
        call.w[None],
        call.u[None],
        cuda(np.asarray(full_call(96).g))[None],
        chunk_size=16,
        state=session.layer(0),
        state_indices=torch.tensor([slot], device="cuda"),
        cu_seqlens=torch.tensor([0, 96], device="cuda", dtype=torch.int32),
        output_final_state=True,
    )
    assert equal(h[0], expected.h)
    assert equal(v_new[0], expected.v_new)
    assert equal(final_state, expected.final_state)
    assert session.transports_used[Transport.CUDA_IPC] == 1


def run_chain(session: gdpcache.Session, call: Any, slot: int, steps: int) -> list[Any]:
    """Each call on the same slot, its u what the one before gave; nothing of it waits for the GPU."""
    results, u = [], call.u[None]
    for step in range(steps):
        h, v_new, _ = gdpcache.chunk_gated_delta_product_fwd_h(
            call.k[None],
            call.w[None],
            u,
            call.g[None],
            chunk_size=16,
            initial_state=session.layer(0) if step > 0 else None,
            state=session.layer(0),
            state_indices=[slot],
        )
        u = v_new * 0.5
        results += [h, v_new]
    return results


def keep_busy(busy: Any) -> Any:
    """Gives the current stream some 300 ms to do."""
    for _ in range(100):
        busy = busy @ busy * 1e-4
    return busy


@pytest.mark.parametrize("stream", ["default", "own"])
def test_calls_that_are_run_ahead_of_give_the_same_bits(session: gdpcache.Session, stream: str) -> None:
    busy = torch.ones(4096, 4096, device="cuda")
    call = on_gpu(full_call(500), cuda)
    waited, ahead = session.acquire_slots(2)
    expected = run_chain(session, call, waited, 150)
    with torch.cuda.stream(torch.cuda.Stream() if stream == "own" else torch.cuda.default_stream()):
        torch.cuda.synchronize()
        with session.run_ahead():
            for _ in range(3):
                busy = keep_busy(busy)
                run_chain(session, call, ahead, 30)
                assert not torch.cuda.current_stream().query(), "all of them were sent before the GPU has begun"
            actual = run_chain(session, call, ahead, 150)  # more than may be under way
            total = sum(tensor.float().sum() for tensor in actual)  # without the results' having been waited for
            assert total.item() == sum(tensor.float().sum() for tensor in expected).item()
        torch.cuda.synchronize()
    assert all(bool((one == other).all()) for one, other in zip(actual, expected, strict=True))
    contents = session.read_slots([waited, ahead])
    assert (contents.state[0] == contents.state[1]).all()
    assert (contents.positions == contents.positions[0]).all()
    assert set(session.transports_used) == {Transport.CUDA_IPC}


def test_a_failure_of_a_call_that_was_run_ahead_of_lets_the_stream_go_on(session: gdpcache.Session) -> None:
    call = on_gpu(full_call(500), cuda)
    (slot,) = session.acquire_slots()
    expected = run_chain(session, call, slot, 3)
    foreign = slot + 1 if slot < 7 else 0  # nobody's
    with session.run_ahead():
        keep_busy(torch.ones(4096, 4096, device="cuda"))
        run_chain(session, call, foreign, 1)
        torch.cuda.synchronize()
        with pytest.raises(gdpcache.PermissionDeniedError):
            run_chain(session, call, slot, 1)
        actual = run_chain(session, call, slot, 3)
    assert all(bool((one == other).all()) for one, other in zip(actual, expected, strict=True))


def test_a_server_that_dies_lets_the_stream_go_on(tmp_path: Path) -> None:
    try:
        server = start_server(tmp_path, "--backend=cuda")
    except RuntimeError as error:
        pytest.skip(str(error))
    call = on_gpu(full_call(500), cuda)
    with gdpcache.Client(server.unix, timeout=20) as client:
        geometry = gdpcache.CacheGeometry(layers=1, slots=8, heads=HEADS, key_dim=KEY_DIM, value_dim=VALUE_DIM)
        client.create_cache("gpu", geometry)
        session = client.open_session("gpu")
        (slot,) = session.acquire_slots()
        with pytest.raises(gdpcache.UnavailableError), session.run_ahead():
            run_chain(session, call, slot, 10)
            keep_busy(torch.ones(4096, 4096, device="cuda"))
            run_chain(session, call, slot, 10)
            kill_server(server.process)
            torch.cuda.synchronize()
        with contextlib.suppress(gdpcache.GdpCacheError):
            session.close()


def test_memory_is_the_servers_until_its_answer(session: gdpcache.Session) -> None:
    """Tensors that are dropped at once: torch's allocator gives their memory to nobody before."""
    call = on_gpu(full_call(500), cuda)
    (slot,) = session.acquire_slots()
    source = call.u
    expected = run_chain(session, call, slot, 1)[1]
    with session.run_ahead(limit=8):
        for turn in range(200):
            call.u = source.clone()
            v_new = run_chain(session, call, slot, 1)[1]
            call.u = None
            torch.full_like(source, float("nan"))  # where the call's u was, if it is free
            if turn % 50 == 49:
                assert bool((v_new == expected).all())


def test_a_refused_call_leaves_everything_usable(session: gdpcache.Session) -> None:
    call = on_gpu(full_call(layer=1), cuda)
    with pytest.raises(gdpcache.InvalidArgumentError, match="layer"):
        session.prefill(call)
    with pytest.raises(gdpcache.DeadlineExceededError):
        session.prefill(on_gpu(full_call(), cuda), timeout=1e-5)
    call.layer = 0
    assert session.prefill(call).transport is Transport.CUDA_IPC


def test_cuda_ipc_needs_a_tensor_on_the_gpu(session: gdpcache.Session) -> None:
    with pytest.raises(ValueError, match="transport is cuda_ipc, but none of k, w, u, g is on a GPU"):
        session.prefill(full_call(transport="cuda_ipc"))


@contextlib.contextmanager
def another_process(address: str, rounds: int, way: str = "") -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """One that calls the server, once it is told to go on; the handle of its memory and the digest of its results."""
    process = subprocess.Popen(
        [sys.executable, Path(__file__).with_name("cuda_client.py"), address, "gpu", str(rounds), "cuda", way],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        handle, digest = process.stdout.readline().split()
        yield process, handle, digest
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def go_on(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_two_processes_at_once(gpu_client: gdpcache.Client, session: gdpcache.Session) -> None:
    expected = session.prefill(full_call(transport="stream"))
    call = on_gpu(full_call(), cuda)
    with another_process(gpu_client.address, 200) as (process, _, digest):
        go_on(process)
        calls = 0
        while process.poll() is None:
            result = session.prefill(call)
            calls += 1
            assert equal(result.v_new, expected.v_new)
            assert equal(result.h, expected.h)
        assert process.returncode == 0
        assert process.stdout is not None
        assert process.stdout.read().split() == ["cuda_ipc"]
    assert calls > 10
    from cuda_client import digest_of

    assert digest_of(session.prefill(call)) == digest
    assert session.transports_used[Transport.CUDA_IPC] == calls + 1


def test_a_killed_process_takes_only_itself_along(gpu_client: gdpcache.Client, session: gdpcache.Session) -> None:
    expected = session.prefill(full_call(transport="stream"))
    call = on_gpu(full_call(), cuda)
    for way in ("", "", "ahead", "ahead", "ahead"):
        with another_process(gpu_client.address, 0, way) as (process, handle, _):
            assert any(slot.client_name == "cuda_client" for slot in gpu_client.list_slots("gpu").slots)
            go_on(process)
            for _ in range(50):
                assert equal(session.prefill(call).v_new, expected.v_new)
            process.kill()  # in the middle of some call
            process.wait()
            for _ in range(50):
                assert equal(session.prefill(call).v_new, expected.v_new)
    deadline = time.monotonic() + 20
    while any(slot.client_name == "cuda_client" for slot in gpu_client.list_slots("gpu").slots):
        assert time.monotonic() < deadline, "the dead process's slots are not freed"
        time.sleep(0.05)
    # Its memory is nobody's any more.
    register = memory_pb2.RegisterCudaMemoryRequest(
        session=session.id, name="dead", handle=bytes.fromhex(handle), size=64, token=session._state.cuda._token()
    )
    with pytest.raises(gdpcache.InvalidArgumentError):
        session._driver.run(unary("RegisterCudaMemory", register, memory_pb2.RegisterCudaMemoryResponse))
    assert "dead" not in [region.name for region in session.list_shared_memory()]
    assert equal(session.prefill(call).v_new, expected.v_new)


def test_outputs_that_overlap_are_refused(session: gdpcache.Session) -> None:
    call = on_gpu(full_call(), cuda)
    call.out = Outputs(v_new=call.u)
    with pytest.raises(gdpcache.InvalidArgumentError, match="overlap"):
        session.prefill(call)
    both = torch.empty(call.u.numel() + (1 << 20), device="cuda")
    h = both[: 188 * HEADS * KEY_DIM * VALUE_DIM]
    call.out = Outputs(v_new=both[: call.u.numel()].view(call.u.shape), h=h)
    with pytest.raises(gdpcache.InvalidArgumentError, match="overlap"):
        session.prefill(call)
    call.out = Outputs(v_new=torch.empty_like(call.u))
    assert session.prefill(call).transport is Transport.CUDA_IPC


def test_registrations_without_end(session: gdpcache.Session) -> None:
    """An allocation is registered and given up 300 times; the GPU's free memory stays."""
    call = on_gpu(full_call(), cuda)
    session.prefill(call)
    state = session._state
    free = 0
    for turn in range(300):
        if turn == 20:
            free = torch.cuda.mem_get_info()[0]
        for region in session.list_shared_memory():
            if region.kind == "cuda":
                state.cuda._forget({region.name})
                session._driver.run(unregister(session.id, region.name))
        assert session.prefill(call).transport is Transport.CUDA_IPC
    assert torch.cuda.mem_get_info()[0] >= free - (64 << 20)
