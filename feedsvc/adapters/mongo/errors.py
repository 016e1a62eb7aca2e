"""One table from what MongoDB and the driver raise to what the runtime has to do about it.

Codes are MongoDB's `error_codes.yml` and the parse errors of `resume_token.cpp`. Three rules are not plain codes:

* 9 (FailedToParse) and 13 (Unauthorized) blame the position only where their text speaks of the resume token:
  MongoDB answers 9 to any malformed request, SecantusDB answers 13 to a token of another scope;
* the label `NonResumableChangeStreamError` is a lost position whatever the code;
* a code that is not in the table is worth another try: the caller backs off.

Messages are made here. The server's own text may name documents, users or hosts, the driver's may hold the URI, and
both end in logs and in `/v1/status`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bson.errors import BSONError
from pymongo.errors import (
    ConfigurationError,
    ConnectionFailure,
    InvalidOperation,
    InvalidURI,
    NotPrimaryError,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
    WaitQueueTimeoutError,
)

from feedsvc.ports import EventUnavailable, PositionLost, SourceError, SourceRefused, SourceUnavailable

HISTORY_LOST = 286
POSITION_CODES = frozenset(
    {
        136,  # CappedPositionLost: the oplog rolled over under the cursor
        260,  # InvalidResumeToken
        280,  # ChangeStreamFatalError: the token was not found
        40585,  # 3.6 to 4.2: token not found
        40615,  # 3.6 to 4.2: the token's collection is gone
        40646,  # what follows are the parse errors of a token
        40647,
        40648,
        40649,
        50793,
        50794,
        50795,
        50796,
        50811,
        50854,
        50855,
        50870,
        50872,
        51055,
        51056,
        51057,
        *range(6189500, 6189506),
        7182501,
    }
)
EVENT_CODES = frozenset(
    {
        47,  # NoMatchingDocument: a required image is missing
        10334,  # BSONObjectTooLarge: the event exceeds 16 MiB
    }
)
REFUSED_CODES = frozenset(
    {
        9,  # FailedToParse, where it is not about the token
        13,  # Unauthorized
        18,  # AuthenticationFailed
        20,  # IllegalOperation
        59,  # CommandNotFound
        72,  # InvalidOptions
        73,  # InvalidNamespace: a system database
        115,  # CommandNotSupported
        166,  # CommandNotSupportedOnView
        303,  # FeatureNotSupported
        376,  # ChangeStreamNotEnabled
        8000,  # AtlasError: mostly credentials
        40324,  # unknown pipeline stage: no change streams here
        40415,  # unknown option: a server before 6.0
        40573,  # change streams need a replica set
    }
)
POOL_PAUSED = "connection pool paused"
NOT_RESUMABLE_LABEL = "NonResumableChangeStreamError"


def classify(error: Exception) -> SourceError:
    """The `SourceError` for an exception of the driver; one of ours passes unchanged.

    The caller raises it `from None`: the cause may hold the URI.
    """
    if isinstance(error, SourceError):
        return error
    if isinstance(error, OperationFailure):
        return _classify_reply(error)
    if isinstance(error, BSONError):
        return EventUnavailable("an event is not valid BSON")
    if isinstance(error, NotPrimaryError):
        details: Any = error.details
        return SourceUnavailable(f"MongoDB failed: {_shown(details)}", details.get("code"))
    if isinstance(error, ConnectionFailure):
        # Neither a server nor a connection was found, or the pool waits for the monitor's word after the failure of
        # another stream (the driver has no class for that); any other failure may have reached a server.
        unreached = isinstance(error, ServerSelectionTimeoutError | WaitQueueTimeoutError)
        reached = not (unreached or POOL_PAUSED in str(error))
        return SourceUnavailable(f"MongoDB does not answer ({type(error).__name__})", reached=reached)
    if isinstance(error, ConfigurationError | InvalidURI):
        return SourceRefused(
            "the MongoDB URI or its options are not valid, or its host name does not resolve"
        )
    if isinstance(error, InvalidOperation):
        return SourceUnavailable("the MongoDB client or stream is closed")
    if isinstance(error, PyMongoError | OSError):
        return SourceUnavailable(f"reading from MongoDB failed ({type(error).__name__})")
    return SourceUnavailable(f"reading from MongoDB failed unexpectedly ({type(error).__name__})")


def _classify_reply(error: OperationFailure) -> SourceError:
    code = error.code
    details = error.details or {}
    shown = _shown({**details, "code": code})
    if code == HISTORY_LOST:
        return PositionLost(f"the oplog no longer reaches the position: {shown}", code, history=True)
    if code in EVENT_CODES:
        return EventUnavailable(f"MongoDB cannot deliver an event: {shown}", code)
    speaks_of_token = "resume token" in str(details.get("errmsg", "")).lower()
    if (
        code in POSITION_CODES
        or (code in (9, 13) and speaks_of_token)
        or error.has_error_label(NOT_RESUMABLE_LABEL)
    ):
        return PositionLost(f"MongoDB does not know the position: {shown}", code)
    if code in REFUSED_CODES:
        return SourceRefused(f"MongoDB refused the request: {shown}", code)
    return SourceUnavailable(f"MongoDB failed: {shown}", code)


def _shown(details: Mapping[str, Any]) -> str:
    code = details.get("code")
    return f"{details.get('codeName') or 'error'} ({'no code' if code is None else f'code {code}'})"
