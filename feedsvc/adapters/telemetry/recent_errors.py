"""The last warnings and errors of the log, for `GET /v1/status`: bounded, redacted, and with no text of strangers.

It is a `report` in front of another. A text is kept where it is the service's own: that of a failure of MongoDB, which
`adapters.mongo.errors` words, and what the service says about itself. What nobody foresaw is told by its kind only, as
its text may quote a document or a filter.
"""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Callable, Mapping

from feedsvc.adapters.telemetry.logs import LEVELS
from feedsvc.adapters.telemetry.metric_kinds import OTHER, SOURCE_ERRORS
from feedsvc.adapters.telemetry.redaction import redacted_text
from feedsvc.core.changes import TailScope
from feedsvc.core.status import MOST_ERRORS, RecentError, ScopeStatus

_OWN_KINDS = frozenset(SOURCE_ERRORS) - {OTHER}
_OWN_TEXTS = ("reason", "warning")
"""Fields whose text the service wrote itself."""
_MOST_CHARS = 200
_KIND_AND_TEXT = re.compile(r"([A-Za-z_]{1,64})(?:: (.*))?", re.DOTALL)

Report = Callable[[str, Mapping[str, object]], None]


class RecentErrors:
    """`report` passes everything on to `onward`. `wall` returns epoch seconds."""

    def __init__(self, onward: Report, wall: Callable[[], float]) -> None:
        self._onward = onward
        self._wall = wall
        self._last: deque[RecentError] = deque(maxlen=MOST_ERRORS)

    def report(self, event: str, fields: Mapping[str, object]) -> None:
        if LEVELS.get(event, logging.WARNING) >= logging.WARNING:
            self._last.appendleft(_error(int(self._wall() * 1000), event, fields))
        self._onward(event, fields)

    def latest(self) -> list[RecentError]:
        """The last ones first."""
        return list(self._last)


def _error(at_ms: int, event: str, fields: Mapping[str, object]) -> RecentError:
    kind, text = None, ""
    found = _KIND_AND_TEXT.fullmatch(str(fields.get("error", "")))
    if found is not None:
        kind = found[1]
        text = (found[2] or "") if kind in _OWN_KINDS else ""
    for name in _OWN_TEXTS:
        text = text or str(fields.get(name, ""))
    return RecentError(at_ms, event, kind, _scope(fields), redacted_text(text)[:_MOST_CHARS])


def _scope(fields: Mapping[str, object]) -> ScopeStatus | None:
    scope = fields.get("scope")
    if isinstance(scope, TailScope):
        return ScopeStatus(scope.level, scope.database, scope.collection)
    database = fields.get("database")
    return ScopeStatus("database", database, "") if isinstance(database, str) else None
