"""The client knows every field of the contract: one that proto/gdpcache/v1 gains, and the package does not pass on,
fails here. Whoever adds a field adds it to the package, or to what is left out below."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_server import message_class, server_info

import gdpcache
from gdpcache import (
    DataType,
    PrefillCall,
    SnapshotDirective,
    Transport,
    _convert,
    _prefill,
    _server,
    _session,
    _sharing,
    _snapshots,
)
from gdpcache._operations import Operation, Stream, Unary
from gdpcache.v1 import cache_pb2, prefill_pb2, session_pb2, snapshot_pb2, state_cache_pb2

GEOMETRY = gdpcache.CacheGeometry(1, 2, 3, 4, 5, 6, DataType.FLOAT16, 7)


def session() -> _session.SessionState:
    geometry = gdpcache.CacheGeometry(1, 1, 1, 4, 4, auxiliary_bytes=6)
    return _session.SessionState(
        "session", "cache", geometry, 60.0, _convert.server_info(server_info()), Transport.AUTO
    )


SESSION = session()
ROWS = np.zeros((32, 1, 4), np.float32)
KEY = b"0123456789abcdef"

PREFILL = PrefillCall(
    layer=1, k=ROWS, w=ROWS, u=ROWS, g=ROWS[..., 0], g_base=gdpcache.DecayBase.NATURAL, cu_seqlens=[0, 32], batch=1,
    chunk_size=16, num_householder=1, chunk_offsets=[0, 2], chunk_indices=[1], state_indices=[5],
    initial_state=np.zeros((1, 1, 4, 4), np.float32), output_final_state=True, states=[(1, 1)], states_dtype="float16",
    snapshots=[SnapshotDirective(1, 1, KEY, b"window")], expected_positions=[3], check_finite=True,
    auxiliary_state=np.zeros((1, 6), np.uint8), request_id="request", precision=gdpcache.Precision.HIGH,
    transport="unary",
)  # fmt: skip

# What the package asks for, with every argument it takes.
OPERATIONS: dict[str, Callable[[], Operation[Any]]] = {
    "GetServerInfo": _server.server_info,
    "CreateCache": lambda: _server.create_cache("cache", GEOMETRY, "fingerprint", True),
    "DeleteCache": lambda: _server.delete_cache("cache", True),
    "ListCaches": _server.list_caches,
    "ListSlots": lambda: _server.list_slots("cache"),
    "OpenSession": lambda: _session.open_session("cache", 60.0, "engine", Transport.AUTO),
    "KeepAlive": lambda: _session.keep_alive(SESSION),
    "CloseSession": lambda: _session.close(session()),
    "AcquireSlots": lambda: _session.acquire_slots(SESSION, 3),
    "ReleaseSlots": lambda: _session.release_slots(SESSION, [1]),
    "ResetSlots": lambda: _session.reset_slots(SESSION, [1]),
    "CopySlots": lambda: _session.copy_slots(SESSION, {1: [2]}),
    "ReadSlots": lambda: _session.read_slots(SESSION, [1], [1]),
    "WriteSlots": lambda: _session.write_slots(SESSION, [1], ROWS, [1], [1], np.zeros(6, np.uint8)),
    "Prefill": lambda: _prefill.prefill(SESSION, PREFILL),
    "UnregisterMemory": lambda: _sharing.unregister("session", "region"),
    "ListSharedMemory": lambda: _session.list_shared_memory(SESSION),
    "SaveSnapshots": lambda: _snapshots.save(SESSION, {1: KEY}),
    "LookupPrefix": lambda: _snapshots.lookup("cache", [KEY] * 3, 1.0),
    "RestoreSnapshots": lambda: _snapshots.restore(SESSION, {KEY: 1}, "pin"),
    "PinSnapshots": lambda: _snapshots.pin("cache", [KEY], 1.0),
    "UnpinSnapshots": lambda: _snapshots.unpin("cache", "pin"),
    "DeleteSnapshots": lambda: _snapshots.delete("cache", [KEY], True),
    "ListSnapshots": lambda: _snapshots.list_page("cache", 10, "token"),
    "QueryWriteStatus": lambda: _snapshots._received("cache", "upload"),
}

# RPCs that are tested elsewhere, with more than their first message, and the one that the package does not have.
ELSEWHERE = {
    "PrefillStream", "ReadSnapshot", "WriteSnapshot", "WatchSnapshots",
    "RegisterSystemMemory", "RegisterCudaMemory", "RegisterCudaEvent",
}  # fmt: skip
NOT_OFFERED = {"GetServerStats"}  # `gdpcache top` and Prometheus have it

# Fields whose bytes are looked at elsewhere, and those of shared memory, which a call in one message does not have.
TENSORS = {"k", "w", "u", "g", "initial_state", "auxiliary_state", "state", "auxiliary", "h", "v_new", "final_state"}
SHARED = {"outputs", "ready_event", "done_event", "done_flag"}

METHODS = {method.name: method for method in state_cache_pb2.DESCRIPTOR.services_by_name["StateCache"].methods}


def test_every_rpc_is_known() -> None:
    assert set(METHODS) == {*OPERATIONS, *ELSEWHERE, *NOT_OFFERED}
    source = Path(gdpcache.__file__).parent
    texts = "".join(path.read_text() for path in source.glob("*.py"))
    assert [name for name in METHODS if f'"{name}"' not in texts] == list(NOT_OFFERED)


def is_repeated(field: Any) -> bool:
    own = getattr(field, "is_repeated", None)  # which newer releases have in the place of the other
    return bool(field.label == field.LABEL_REPEATED if own is None else own)


def unset(message: Any, path: str = "") -> Iterator[str]:
    """Fields that a message does not have."""
    for field in message.DESCRIPTOR.fields:
        name, value = path + field.name, getattr(message, field.name)
        present = len(value) > 0 if is_repeated(field) else any(known == field for known, _ in message.ListFields())
        if not present:
            yield name
        elif field.message_type is not None and field.name not in TENSORS:
            for part in value if is_repeated(field) else [value]:
                yield from unset(part, f"{name}.")


def first_message(name: str) -> Any:
    request = next(OPERATIONS[name]())
    if isinstance(request, Unary):
        data = request.request
    else:
        assert isinstance(request, Stream)
        data = next(request.requests)
    return message_class(METHODS[name].input_type).FromString(data)


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_field_of_a_request_is_sent(name: str) -> None:
    expected = {"Prefill": SHARED, "WriteSlots": {"data"}}.get(name, set())
    assert set(unset(first_message(name))) == expected


def filled(kind: Any, value: int = 1) -> Any:
    """A message of a class with every field set, of each oneof the last."""
    message = kind()
    for field in message.DESCRIPTOR.fields:
        put(message, field, value)
    return message


def put(message: Any, field: Any, value: int) -> None:
    if field.message_type is not None:
        content = filled(message_class(field.message_type), value)
        target = getattr(message, field.name)
        (target.add() if is_repeated(field) else target).CopyFrom(content)
        return
    if field.enum_type is not None:
        content = field.enum_type.values[value].number
    elif field.cpp_type == field.CPPTYPE_STRING:
        content = b"%d" % value if field.type == field.TYPE_BYTES else str(value)
    else:
        content = value % 2 == 1 if field.cpp_type == field.CPPTYPE_BOOL else value
    if is_repeated(field):
        getattr(message, field.name).append(content)
    else:
        setattr(message, field.name, content)


def variations(kind: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Filled messages that differ from `filled` in one field each."""
    for field in kind.DESCRIPTOR.fields:
        if field.name in TENSORS:
            continue
        if field.message_type is not None:
            for name, content in variations(message_class(field.message_type), f"{path}{field.name}."):
                message = filled(kind)
                target = getattr(message, field.name)
                (target[0] if is_repeated(field) else target).CopyFrom(content)
                yield name, message
            continue
        message = filled(kind)
        message.ClearField(field.name)
        put(message, field, 2)
        yield path + field.name, message


def result_of(name: str, answer: Any) -> Any:
    operation = OPERATIONS[name]()
    next(operation)
    try:
        operation.send(answer.SerializeToString())
    except StopIteration as stop:
        return stop.value
    raise AssertionError("one call is not enough")


ANSWERED = [
    name
    for name in OPERATIONS
    if name not in ("OpenSession", "ReadSlots", "WriteSlots", "Prefill")  # more than one message
]


@pytest.mark.parametrize("name", ANSWERED)
def test_every_field_of_an_answer_is_passed_on(name: str) -> None:
    kind = message_class(METHODS[name].output_type)
    usual = result_of(name, filled(kind))
    ignored = [path for path, answer in variations(kind) if result_of(name, answer) == usual]
    assert ignored == (["size"] if name == "QueryWriteStatus" else [])  # the upload knows its size


def test_every_field_of_a_prefill_s_answer_is_passed_on() -> None:
    usual = _convert.details(filled(prefill_pb2.PrefillResponse))
    ignored = [path for path, answer in variations(prefill_pb2.PrefillResponse) if _convert.details(answer) == usual]
    assert ignored == ["chunk_offsets"]  # PrefillResult has them from elsewhere


def test_the_enumerations_have_the_contract_s_values() -> None:
    pairs: list[tuple[Any, Any]] = [
        (gdpcache.Tier, snapshot_pb2.SnapshotTier),
        (gdpcache.SnapshotResult, snapshot_pb2.SnapshotResult),
        (gdpcache.EventType, snapshot_pb2.SnapshotEvent.Type),
    ]
    for own, theirs in pairs:
        values = dict(theirs.items())
        assert [member.value for member in own] == list(values.values()), values
        for member, name in zip(list(own)[1:], list(values)[1:], strict=True):
            assert name.endswith(f"_{member.name}")
    assert len(DataType) == len(cache_pb2.CacheGeometry.DESCRIPTOR.fields_by_name["state_dtype"].enum_type.values) - 1


def test_opening_a_session_passes_on_what_it_is_told() -> None:
    assert [field.name for field in session_pb2.OpenSessionResponse.DESCRIPTOR.fields] == ["session", "ttl_ms"]
