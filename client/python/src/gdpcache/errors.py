"""What a call of the server can fail with.

Every error of the server is a :class:`GdpCacheError` of the class that belongs to its status code, with the details
that the server attached. Arguments that cannot be sent at all (an array of integers for ``k``) are ``TypeError`` and
``ValueError``, raised before anything is sent.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

import grpc

from gdpcache import _wire
from gdpcache.v1 import prefill_pb2


class StatusCode(enum.Enum):
    """gRPC's status codes."""

    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


@dataclass(frozen=True)
class FieldViolation:
    """A field of the request that was wrong."""

    field: str  # path in the request, for instance "state_indices[3]"
    description: str


@dataclass(frozen=True)
class PositionMismatch:
    """A slot that was not at the position its caller expected. If `actual` is the position that an earlier call without
    an answer would have reached, that call was applied."""

    sequence: int
    slot: int
    expected: int
    actual: int


@dataclass(frozen=True)
class Resource:
    """What the call was about."""

    type: str  # "cache", "session", "slot", ...
    name: str


class GdpCacheError(Exception):
    """A call that failed.

    ``code`` is the status, ``message`` the server's sentence, which names the field and both values.
    ``field_violations`` come with INVALID_ARGUMENT, ``retry_delay`` (seconds) with RESOURCE_EXHAUSTED,
    ``position_mismatches`` with FAILED_PRECONDITION, ``resource`` with NOT_FOUND, ALREADY_EXISTS and
    PERMISSION_DENIED; elsewhere they are empty.
    """

    code: StatusCode = StatusCode.UNKNOWN
    _is_answer = False  # the server's own, which gRPC surely has not made up

    def __init__(
        self,
        message: str,
        *,
        field_violations: Iterable[FieldViolation] = (),
        retry_delay: float | None = None,
        position_mismatches: Iterable[PositionMismatch] = (),
        resource: Resource | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.field_violations = tuple(field_violations)
        self.retry_delay = retry_delay
        self.position_mismatches = tuple(position_mismatches)
        self.resource = resource

    def __str__(self) -> str:
        return f"{self.code.name}: {self.message}"


class InvalidArgumentError(GdpCacheError):
    """A field is malformed or out of range."""

    code = StatusCode.INVALID_ARGUMENT


class NotFoundError(GdpCacheError):
    """No such cache, session, snapshot, pin or region."""

    code = StatusCode.NOT_FOUND


class AlreadyExistsError(GdpCacheError):
    """A cache of this name with another geometry or fingerprint; the message names the difference."""

    code = StatusCode.ALREADY_EXISTS


class PermissionDeniedError(GdpCacheError):
    """A slot that the session does not hold; shared memory asked for from another host."""

    code = StatusCode.PERMISSION_DENIED


class FailedPreconditionError(GdpCacheError):
    """Positions differ from those expected, layers disagree, sessions are open."""

    code = StatusCode.FAILED_PRECONDITION


class PositionMismatchError(FailedPreconditionError):
    """Positions differ from those expected: ``position_mismatches`` tells where the slots are."""


class DataLossError(GdpCacheError):
    """A snapshot's stored bytes are damaged."""

    code = StatusCode.DATA_LOSS


class ResourceExhaustedError(GdpCacheError):
    """Slots, memory, staging or another limit is used up; ``retry_delay`` says when to try again."""

    code = StatusCode.RESOURCE_EXHAUSTED


class UnavailableError(GdpCacheError):
    """Nobody answers, or the server is draining or lost its device."""

    code = StatusCode.UNAVAILABLE


class DeadlineExceededError(GdpCacheError):
    """No answer within the timeout. A prefill may have been applied: see its ``expected_positions``."""

    code = StatusCode.DEADLINE_EXCEEDED


class CallCancelledError(GdpCacheError):
    """The call was cancelled, for instance because its session ended."""

    code = StatusCode.CANCELLED


class UnimplementedError(GdpCacheError):
    """The server does not know this call: an older one, or something else."""

    code = StatusCode.UNIMPLEMENTED


class UnauthenticatedError(GdpCacheError):
    """The server does not know who is asking."""

    code = StatusCode.UNAUTHENTICATED


class InternalError(GdpCacheError):
    """The server failed, or its answer breaks the protocol."""

    code = StatusCode.INTERNAL


_CLASSES: dict[StatusCode, type[GdpCacheError]] = {
    cls.code: cls
    for cls in (
        InvalidArgumentError,
        NotFoundError,
        AlreadyExistsError,
        PermissionDeniedError,
        FailedPreconditionError,
        DataLossError,
        ResourceExhaustedError,
        UnavailableError,
        DeadlineExceededError,
        CallCancelledError,
        UnimplementedError,
        UnauthenticatedError,
        InternalError,
    )
}


def _text(value: int | memoryview) -> str:
    return bytes(value).decode("utf-8", "replace") if isinstance(value, memoryview) else ""


class _Details:
    """The google.rpc details of a status. They are read from the wire: their Python modules belong to another package,
    googleapis-common-protos, which this one neither needs nor may register twice."""

    def __init__(self, status: bytes) -> None:
        self.field_violations: list[FieldViolation] = []
        self.retry_delay: float | None = None
        self.position_mismatches: list[PositionMismatch] = []
        self.resource: Resource | None = None
        for field, value in _wire.fields(memoryview(status)):
            if field == 3 and isinstance(value, memoryview):
                any_message = dict(_wire.fields(value))
                content = any_message.get(2, memoryview(b""))
                if isinstance(content, memoryview):
                    self._add(_text(any_message.get(1, 0)).rpartition("/")[2], content)

    def _add(self, name: str, content: memoryview) -> None:
        if name == "google.rpc.BadRequest":
            for field, value in _wire.fields(content):
                if field == 1 and isinstance(value, memoryview):
                    violation = dict(_wire.fields(value))
                    self.field_violations.append(FieldViolation(_text(violation.get(1, 0)), _text(violation.get(2, 0))))
        elif name == "google.rpc.RetryInfo":
            for field, value in _wire.fields(content):
                if field == 1 and isinstance(value, memoryview):
                    duration = {number: part for number, part in _wire.fields(value) if isinstance(part, int)}
                    self.retry_delay = duration.get(1, 0) + duration.get(2, 0) * 1e-9
        elif name == "google.rpc.ResourceInfo":
            info = dict(_wire.fields(content))
            self.resource = Resource(_text(info.get(1, 0)), _text(info.get(2, 0)))
        elif name == "gdpcache.v1.PositionMismatch":
            self.position_mismatches.extend(
                PositionMismatch(slot.sequence, slot.slot, slot.expected, slot.actual)
                for slot in prefill_pb2.PositionMismatch.FromString(bytes(content)).slots
            )


_REQUEST_ID = "x-request-id"  # what the server sends with every error


def from_rpc(error: grpc.RpcError) -> GdpCacheError:
    """The exception for what gRPC raised."""
    code = StatusCode(error.code().value[0])
    message = error.details() or ""
    if code is StatusCode.CANCELLED and (message in ("", "CANCELLED") or "RST_STREAM" in message):
        # Neither this client's nor this server's: gRPC ends so what arrives when the server has just stopped.
        code, message = StatusCode.UNAVAILABLE, "the server ended the call, as when it stops"
    # Of pairs, for dict() takes aio's metadata for a mapping, which it is not quite.
    trailing = dict(iter(error.trailing_metadata() or ()))
    try:
        details = _Details(trailing.get("grpc-status-details-bin") or b"")
    except ValueError:  # not what the contract says: the code and the message still hold
        details = _Details(b"")
    cls: type[GdpCacheError] = _CLASSES.get(code, GdpCacheError)
    if details.position_mismatches:
        cls = PositionMismatchError
    result = cls(
        message,
        field_violations=details.field_violations,
        retry_delay=details.retry_delay,
        position_mismatches=details.position_mismatches,
        resource=details.resource,
    )
    result.code = code
    result._is_answer = _REQUEST_ID in trailing
    return result


def protocol_error(message: str) -> InternalError:
    return InternalError(f"the server's answer breaks the protocol: {message}")
