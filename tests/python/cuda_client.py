"""A client process of its own for test_cuda.py: prefills tensors of a device again and again, bit for bit the same.

    cuda_client.py ADDRESS CACHE ROUNDS DEVICE [WAY]

With the way "ahead" the rounds are calls of chunk_gated_delta_product_fwd_h that it runs ahead of, looked at in every
twentieth. Prints a line once the first prefill is done: the handle of its memory, if it has one, and a digest of the
results. Then it waits for a line of input before it goes on; 0 rounds have no end. At last it prints the transports it
used.
"""

from __future__ import annotations

import hashlib
import itertools
import sys
from collections.abc import Iterable
from typing import Any

import torch
from problems import random_call

import gdpcache
from gdpcache import InitialState, States, _cuda


def digest(*tensors: Any) -> str:
    hashed = hashlib.sha256()
    for tensor in tensors:
        hashed.update(tensor.cpu().numpy().tobytes())
    return hashed.hexdigest()


def digest_of(result: gdpcache.PrefillResult) -> str:
    return digest(result.h, result.v_new, result.final_state)


def main(address: str, cache: str, rounds: int, device: str, way: str = "") -> None:
    call = random_call(1, 3000, states=States.ALL, output_final_state=True, initial_state=InitialState.ZERO)
    for name in ("k", "w", "u", "g"):
        setattr(call, name, torch.from_numpy(getattr(call, name)).to(device))
    with gdpcache.Client(address) as client, client.open_session(cache, ttl=2, client_name="cuda_client") as session:
        call.state_indices = session.acquire_slots()
        first = digest_of(session.prefill(call))
        on_gpu = device != "cpu"
        print(_cuda.memory_handle(_cuda.allocation(call.k.data_ptr())[0]).hex() if on_gpu else "-", first, flush=True)
        sys.stdin.readline()
        endless = range(rounds) if rounds else itertools.count()
        if way == "ahead":
            with session.run_ahead():
                run_ahead(session, call, first, endless)
        else:
            for _ in endless:
                again = digest_of(session.prefill(call))
                assert again == first, f"{again} after {first}"
        print(*(transport.value for transport in session.transports_used), flush=True)


def run_ahead(session: gdpcache.Session, call: gdpcache.PrefillCall, first: str, rounds: Iterable[int]) -> None:
    k, w, u, g = (getattr(call, name)[None] for name in ("k", "w", "u", "g"))
    for turn in rounds:
        results = gdpcache.chunk_gated_delta_product_fwd_h(
            k,
            w,
            u,
            g,
            chunk_size=call.chunk_size,
            output_final_state=True,
            state=session.layer(0),
            state_indices=call.state_indices,
        )
        if turn % 20 == 19:
            again = digest(*results)
            assert again == first, f"{again} after {first}"


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
