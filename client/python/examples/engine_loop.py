"""A serving engine in small, on a server-side state cache.

    gdpcached &
    python3 engine_loop.py [ADDRESS]

The model is a toy with random weights, but whole: gated delta rule layers (M = 1) with a short convolution in front,
so that a prefix can be resumed only with the auxiliary bytes that the cache keeps beside each state. Everything an
engine does is here: it looks up the longest cached prefix of a prompt, restores it into a slot, prefills the rest in
pieces over all layers for several requests at once, keeps the boundaries worth keeping, takes one-token steps, forks a
request, and releases its slots. At the end it checks that the cached path gives what the uncached one gives.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

import gdpcache

Floats = npt.NDArray[np.float32]

LAYERS, HEADS, KEY_DIM, VALUE_DIM = 3, 2, 16, 24
WIDTH, VOCABULARY = 32, 100
WINDOW = 3  # tokens before the current one that the convolution sees
CHUNK = 16
PIECE = 64  # tokens of a request in one call at most; a multiple of CHUNK, so that boundaries stay aligned
POLICY = gdpcache.BoundaryPolicy(alignment=CHUNK)


# --- the model: what happens on the engine's side ---


class Layer:
    """Weights of one layer, and the arithmetic around the recurrence."""

    def __init__(self, random: np.random.Generator) -> None:
        def matrix(*shape: int) -> Floats:
            weights: Floats = (random.standard_normal(shape) / np.sqrt(WIDTH)).astype(np.float32)
            return weights

        self.convolution = matrix(WINDOW + 1, WIDTH)
        self.q, self.k = matrix(WIDTH, HEADS, KEY_DIM), matrix(WIDTH, HEADS, KEY_DIM)
        self.v = matrix(WIDTH, HEADS, VALUE_DIM)
        self.beta, self.decay = matrix(WIDTH, HEADS), matrix(WIDTH, HEADS)
        self.output = matrix(HEADS, VALUE_DIM, WIDTH)

    def project(self, padded: Floats) -> dict[str, Floats]:
        """Everything that depends on one token and its window; `padded` has WINDOW rows more than there are tokens."""
        tokens = len(padded) - WINDOW
        x = sum(padded[i : i + tokens] * self.convolution[i] for i in range(WINDOW + 1))
        k = np.einsum("tw,whk->thk", x, self.k)
        return {
            "q": np.einsum("tw,whk->thk", x, self.q),
            "k": k / np.linalg.norm(k, axis=-1, keepdims=True),
            "v": np.einsum("tw,whv->thv", x, self.v),
            "beta": 1 / (1 + np.exp(-np.einsum("tw,wh->th", x, self.beta))),
            "decay": -np.logaddexp2(0, np.einsum("tw,wh->th", x, self.decay)) / 8,  # log2
        }


def wy_factors(part: dict[str, Floats]) -> dict[str, Floats]:
    """k, w, u and g of the recurrence, chunk by chunk."""
    k, v, beta = part["k"], part["v"], part["beta"]
    w, u, g = np.empty_like(k), np.empty_like(v), np.empty_like(beta)
    for begin in range(0, len(k), CHUNK):
        rows = slice(begin, begin + CHUNK)
        g[rows] = np.cumsum(part["decay"][rows], axis=0)
        for head in range(HEADS):
            kc, bc, gc = k[rows, head], beta[rows, head, None], g[rows, head]
            decays = np.exp2(np.minimum(gc[:, None] - gc[None, :], 0))
            system = np.eye(len(kc)) + np.tril(bc * (kc @ kc.T) * decays, -1)
            u[rows, head] = np.linalg.solve(system, bc * v[rows, head])
            w[rows, head] = np.linalg.solve(system, bc * kc * np.exp2(gc)[:, None])
    return {"k": k, "w": w, "u": u, "g": g}


def attend(part: dict[str, Floats], factors: dict[str, Floats], h: Floats, v_new: Floats) -> Floats:
    """The layer's output from the states at the chunks' beginnings and the corrected values: [tokens, H, V]."""
    out = np.empty_like(v_new)
    for chunk, begin in enumerate(range(0, len(v_new), CHUNK)):
        rows = slice(begin, begin + CHUNK)
        for head in range(HEADS):
            q, k, g = part["q"][rows, head], factors["k"][rows, head], factors["g"][rows, head]
            inside = np.tril((q @ k.T) * np.exp2(np.minimum(g[:, None] - g[None, :], 0)))
            out[rows, head] = np.exp2(g)[:, None] * (q @ h[chunk, head]) + inside @ v_new[rows, head]
    return out


class Model:
    def __init__(self) -> None:
        random = np.random.default_rng(7)
        self.embedding = random.standard_normal((VOCABULARY, WIDTH)).astype(np.float32)
        self.layers = [Layer(random) for _ in range(LAYERS)]


# --- the engine ---


@dataclass
class Request:
    tokens: list[int]
    slot: int
    position: int = 0  # tokens absorbed
    known: int = 0  # first tokens shared with an earlier prompt
    resumed: int = 0  # where the restored snapshot stood
    windows: list[Floats] = field(default_factory=list)  # one per layer: [WINDOW, WIDTH]
    logits: Floats = field(default_factory=lambda: np.empty(0, np.float32))

    def next_token(self) -> int:
        return int(np.argmax(self.logits))


class Engine:
    def __init__(self, client: gdpcache.Client, cache: str) -> None:
        self.model = Model()
        client.create_cache(
            cache,
            gdpcache.CacheGeometry(
                layers=LAYERS,
                slots=8,
                heads=HEADS,
                key_dim=KEY_DIM,
                value_dim=VALUE_DIM,
                auxiliary_bytes=WINDOW * WIDTH * 4,
            ),
            fingerprint="engine_loop.py/1",
            ephemeral=True,
        )
        self.session = client.open_session(cache, client_name="engine_loop")
        self.prompts: list[list[int]] = []  # a real engine has a radix tree of them
        self.prefilled = 0  # tokens

    def admit(self, tokens: list[int], use_cache: bool = True) -> Request:
        """A slot that stands as far into the prompt as any snapshot does."""
        (slot,) = self.session.acquire_slots()
        request = Request(tokens, slot, windows=[np.zeros((WINDOW, WIDTH), np.float32) for _ in range(LAYERS)])
        if not use_cache:
            return request
        request.known = max((common_prefix(tokens, prompt) for prompt in self.prompts), default=0)
        self.prompts.append(tokens)
        # The last token's output has to be computed, so at least that one is left over.
        positions = range(CHUNK, len(tokens), CHUNK)
        keys = gdpcache.prefix_keys(tokens, positions)
        match = self.session.lookup_prefix([keys[position] for position in positions], lease=10) if keys else None
        if match is not None:
            (request.position,) = self.session.restore_snapshots({match.key: slot}, pin=match.pin)
            request.resumed = request.position
            contents = self.session.read_slots([slot])
            assert contents.auxiliary is not None
            request.windows = list(contents.auxiliary[0].view(np.float32).reshape(LAYERS, WINDOW, WIDTH))
        return request

    def prefill(self, requests: list[Request], keep: bool = True) -> None:
        """The rest of several prompts, a piece of each per turn."""
        while any(request.position < len(request.tokens) for request in requests):
            batch = [request for request in requests if request.position < len(request.tokens)]
            pieces = [request.tokens[request.position : request.position + PIECE] for request in batch]
            self.forward(batch, pieces, keep)

    def step(self, requests: list[Request]) -> None:
        """One token more for each request."""
        tokens = [request.next_token() for request in requests]
        for request, token in zip(requests, tokens, strict=True):
            request.tokens = [*request.tokens, token]
        self.forward(requests, [[token] for token in tokens], keep=False)

    def forward(self, batch: list[Request], pieces: list[list[int]], keep: bool) -> None:
        """All layers over the next tokens of each request."""
        lengths = [len(piece) for piece in pieces]
        cu_seqlens = np.concatenate([[0], np.cumsum(lengths)])
        hidden = [self.model.embedding[piece] for piece in pieces]
        kept = [
            self.kept_boundaries(request, length) if keep else {}
            for request, length in zip(batch, lengths, strict=True)
        ]
        for index, layer in enumerate(self.model.layers):
            padded = [np.concatenate([request.windows[index], x]) for request, x in zip(batch, hidden, strict=True)]
            parts = [layer.project(x) for x in padded]
            factors = [wy_factors(part) for part in parts]
            inputs: dict[str, Any] = {
                name: np.concatenate([factor[name] for factor in factors]) for name in ("k", "w", "u", "g")
            }
            directives = []
            for n, request in enumerate(batch):
                auxiliary = {  # the window as it is at each boundary
                    position: padded[n][position - request.position :][:WINDOW].tobytes() for position in kept[n]
                }
                end = request.position + lengths[n]
                directives += gdpcache.snapshot_directives(
                    kept[n], request.position, end, chunk_size=CHUNK, sequence=n, auxiliary=auxiliary
                )
            windows = [x[-WINDOW:] for x in padded]
            result = self.session.prefill(
                gdpcache.PrefillCall(
                    layer=index,
                    **inputs,
                    chunk_size=CHUNK,
                    cu_seqlens=cu_seqlens,
                    state_indices=[request.slot for request in batch],
                    expected_positions=[request.position for request in batch],
                    states=gdpcache.States.ALL,
                    snapshots=directives,
                    auxiliary_state=np.stack(windows).reshape(len(batch), -1).view(np.uint8),
                )
            )
            for n, request in enumerate(batch):
                request.windows[index] = windows[n]
                h = result.h[result.chunk_offsets[n] : result.chunk_offsets[n + 1]]
                out = attend(parts[n], factors[n], h, result.v_new[cu_seqlens[n] : cu_seqlens[n + 1]])
                hidden[n] = hidden[n] + np.einsum("thv,hvw->tw", out, layer.output)
        for request, x in zip(batch, hidden, strict=True):
            request.position += len(x)
            request.logits = self.model.embedding @ x[-1]
        self.prefilled += sum(lengths)

    def kept_boundaries(self, request: Request, length: int) -> dict[int, bytes]:
        """Keys of the positions worth keeping that the next `length` tokens reach."""
        positions = POLICY.positions(len(request.tokens), known=request.known, resumed=request.resumed)
        end = request.position + length
        return gdpcache.prefix_keys(
            request.tokens, (position for position in positions if request.position < position <= end)
        )

    def fork(self, request: Request) -> Request:
        """A copy that goes its own way from here: states and auxiliary bytes are copied by the server."""
        (slot,) = self.session.fork_slot(request.slot)
        return Request(request.tokens, slot, request.position, windows=list(request.windows), logits=request.logits)

    def release(self, *requests: Request) -> None:
        self.session.release_slots([request.slot for request in requests])

    def close(self) -> None:
        self.session.close()


def common_prefix(left: list[int], right: list[int]) -> int:
    return next((n for n, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


# --- the check ---


def main() -> None:
    random = np.random.default_rng(1)
    system, first, second = (random.integers(0, VOCABULARY, size).tolist() for size in (100, 70, 25))
    prompts = [system + first, system + second]

    with gdpcache.Client(sys.argv[1] if len(sys.argv) > 1 else None) as client:
        engine = Engine(client, "engine_loop")
        # What an earlier run has kept outlived its cache. The check begins without it.
        client.delete_snapshots("engine_loop", [kept.key for kept in client.list_snapshots("engine_loop")])

        # The first prompt is new. The second one leaves it after 100 tokens, and the boundary there, at 96, becomes one
        # worth keeping: the third time the system prompt comes, it is found.
        one = engine.admit(prompts[0])
        engine.prefill([one])
        two = engine.admit(prompts[1])
        engine.prefill([two])
        assert (one.resumed, two.resumed) == (0, 0)
        three = engine.admit(system + second[:20] + first[:7])
        again = engine.admit(prompts[0])
        assert (three.resumed, again.resumed) == (112, 160), (three.resumed, again.resumed)
        before = engine.prefilled
        engine.prefill([three, again])  # both in the same calls
        print(f"of {127 + 170} tokens in two prompts, {engine.prefilled - before} had to be computed")
        fourth = engine.admit([*system, 1, 2, 3])
        assert fourth.resumed == 96, fourth.resumed
        engine.prefill([fourth])

        # The same without any cache.
        for cached in (three, again, fourth):
            plain = engine.admit(cached.tokens, use_cache=False)
            engine.prefill([plain], keep=False)
            difference = float(np.abs(plain.logits - cached.logits).max())
            assert difference < 1e-3 * float(np.abs(plain.logits).max()), difference
            engine.release(plain)

        # Decode, then go two ways from one point.
        for _ in range(5):
            engine.step([one, again])
        assert one.tokens == again.tokens
        other = engine.fork(one)
        other.logits = -other.logits  # takes another token
        engine.step([one, other])
        engine.step([one, other])
        assert one.tokens[:-2] == other.tokens[:-2]
        assert one.tokens[-2] != other.tokens[-2]
        plain = engine.admit(other.tokens, use_cache=False)
        engine.prefill([plain], keep=False)
        assert plain.next_token() == other.next_token()

        print(f"transports: { ({t.value: n for t, n in engine.session.transports_used.items()}) }")
        engine.release(one, two, three, again, fourth, other, plain)
        assert client.list_slots("engine_loop").free_slots == 8
        engine.close()
    print("the cached path gives what the uncached one gives")


if __name__ == "__main__":
    main()
