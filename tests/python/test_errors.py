"""What becomes of the errors that gRPC raises."""

import grpc
import pytest

import gdpcache
from gdpcache.errors import from_rpc


class RaisedError(grpc.RpcError):  # type: ignore[misc]
    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        self._code = code
        self._details = details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> tuple[tuple[str, bytes], ...]:
        return ()


@pytest.mark.parametrize("details", ["", "CANCELLED", "Received RST_STREAM with error code 8"])
def test_what_grpc_cancels_in_a_servers_last_moment_is_unavailable(details: str) -> None:
    error = from_rpc(RaisedError(grpc.StatusCode.CANCELLED, details))
    assert isinstance(error, gdpcache.UnavailableError)
    assert error.code is gdpcache.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("details", ["the session has ended", "Locally cancelled by application!"])
def test_what_somebody_has_cancelled_stays_cancelled(details: str) -> None:
    assert isinstance(from_rpc(RaisedError(grpc.StatusCode.CANCELLED, details)), gdpcache.CallCancelledError)
