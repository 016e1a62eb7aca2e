"""Each server code and driver exception means one thing to the runtime, and no message carries a secret."""

from __future__ import annotations

from typing import Any

import pytest
from bson.errors import InvalidBSON
from pymongo.errors import (
    AutoReconnect,
    ConfigurationError,
    CursorNotFound,
    InvalidOperation,
    InvalidURI,
    NetworkTimeout,
    NotPrimaryError,
    OperationFailure,
    ServerSelectionTimeoutError,
    WaitQueueTimeoutError,
)

from feedsvc.adapters.mongo.errors import EVENT_CODES, POSITION_CODES, REFUSED_CODES, classify
from feedsvc.ports import EventUnavailable, PositionLost, SourceError, SourceRefused, SourceUnavailable

SECRET = "mongodb://user:hunter2@db.internal:27017"


def reply(code: int | None, message: str = SECRET, **details: Any) -> OperationFailure:
    return OperationFailure(message, code, {"errmsg": message, "code": code, **details})


@pytest.mark.parametrize(
    "error, expected",
    [
        (reply(286), PositionLost),
        (reply(280), PositionLost),
        (reply(260), PositionLost),
        (reply(136), PositionLost),
        (reply(40585), PositionLost),
        (reply(50811), PositionLost),
        (reply(6189503), PositionLost),
        (reply(9, "resume token string was not a valid hex string"), PositionLost),
        (reply(9, "Invalid resume token"), PositionLost),
        (reply(9, "unknown operator"), SourceRefused),
        (reply(13, "Resume token namespace does not match the change-stream watch scope"), PositionLost),
        (reply(13, "not authorized on app to execute command"), SourceRefused),
        (reply(99999, errorLabels=["NonResumableChangeStreamError"]), PositionLost),
        (reply(47), EventUnavailable),
        (reply(10334), EventUnavailable),
        (InvalidBSON(SECRET), EventUnavailable),
        (reply(18), SourceRefused),
        (reply(40573), SourceRefused),
        (reply(166), SourceRefused),
        (ConfigurationError(SECRET), SourceRefused),
        (InvalidURI(SECRET), SourceRefused),
        (reply(11601), SourceUnavailable),
        (reply(234, errorLabels=["ResumableChangeStreamError"]), SourceUnavailable),
        (reply(None), SourceUnavailable),
        (CursorNotFound(SECRET, 43), SourceUnavailable),
        (AutoReconnect(SECRET), SourceUnavailable),
        (NotPrimaryError(SECRET, {"code": 10107, "errmsg": SECRET}), SourceUnavailable),
        (NetworkTimeout(SECRET), SourceUnavailable),
        (ServerSelectionTimeoutError(SECRET), SourceUnavailable),
        (InvalidOperation(SECRET), SourceUnavailable),
        (OSError(SECRET), SourceUnavailable),
        (RuntimeError(SECRET), SourceUnavailable),
    ],
)
def test_the_table(error: Exception, expected: type[SourceError]) -> None:
    """The class is exact, and nothing of the original text is repeated."""
    found = classify(error)
    assert type(found) is expected
    assert "hunter2" not in str(found)
    assert "mongodb://" not in str(found)


def test_only_286_loses_history() -> None:
    lost = [classify(reply(code)) for code in (286, *sorted(POSITION_CODES))]
    assert [isinstance(error, PositionLost) and error.history for error in lost] == [True] + [False] * (
        len(lost) - 1
    )


def test_the_code_and_its_name_are_kept() -> None:
    """An operator looks them up; they are MongoDB's own words and hold nothing else."""
    found = classify(reply(13, codeName="Unauthorized"))
    assert found.code == 13
    assert "Unauthorized (code 13)" in str(found)
    found = classify(NotPrimaryError("", {"code": 189, "codeName": "PrimarySteppedDown"}))
    assert found.code == 189
    assert "PrimarySteppedDown (code 189)" in str(found)


@pytest.mark.parametrize(
    "error, reached",
    [
        (ServerSelectionTimeoutError(SECRET), False),
        (WaitQueueTimeoutError(SECRET), False),
        (AutoReconnect("127.0.0.1:27017: connection pool paused (configured timeouts: ...)"), False),
        (AutoReconnect(SECRET), True),
        (NetworkTimeout(SECRET), True),
        (CursorNotFound(SECRET, 43), True),
    ],
)
def test_only_where_no_server_was_found_none_was_asked(error: Exception, reached: bool) -> None:
    """What may have reached a server counts as an open."""
    found = classify(error)
    assert isinstance(found, SourceUnavailable)
    assert found.reached == reached


def test_no_code_means_two_things() -> None:
    assert not (POSITION_CODES & EVENT_CODES | POSITION_CODES & REFUSED_CODES | EVENT_CODES & REFUSED_CODES)


def test_our_own_errors_pass_unchanged() -> None:
    own = PositionLost("mine", 5, history=True)
    assert classify(own) is own
