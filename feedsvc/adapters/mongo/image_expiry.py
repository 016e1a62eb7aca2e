"""How long MongoDB keeps pre-images: `changeStreamOptions.preAndPostImages.expireAfterSeconds`.

A parameter of the whole cluster, "off" by default, which means as long as the change's oplog entry. It can be asked for
with the action `getClusterParameter` on the cluster only, which `clusterManager` has and `clusterMonitor` has not, and
some deployments do not know the command. So a refusal is no failure: it is taken for "off", and the question is put
again seldom, since each refusal is a line in MongoDB's own log.

Sources: manual, changeStreamOptions; mongo/db/commands/get_cluster_parameter_command.cpp,
mongo/db/auth/builtin_roles.cpp; jstests, change_stream_options.js (the shape of the reply).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from pymongo.errors import OperationFailure

from feedsvc.adapters.mongo.clients import Reads
from feedsvc.adapters.mongo.errors import classify
from feedsvc.ports import SourceRefused

ASK_EVERY_S = 30.0
ASK_REFUSED_EVERY_S = 600.0


class ImageExpiry:
    """The expiry, asked for now and then. `now` is a monotonic time in seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._ask_at = float("-inf")
        self._seconds: int | None = None

    async def seconds(self, client: Reads) -> int | None:
        """Seconds, or None where pre-images last as long as the oplog or nothing can be learned. Raises the driver's
        exceptions where MongoDB is away; whatever else it answers costs nobody the oplog's window."""
        now = self._now()
        if now < self._ask_at:
            return self._seconds
        try:
            reply = await client.admin.command({"getClusterParameter": "changeStreamOptions"})
        except OperationFailure as error:
            if isinstance(classify(error), SourceRefused):
                self._seconds, self._ask_at = None, now + ASK_REFUSED_EVERY_S
            else:
                self._ask_at = now + ASK_EVERY_S
        else:
            self._seconds, self._ask_at = expire_after(reply), now + ASK_EVERY_S
        return self._seconds


def expire_after(reply: dict[str, Any]) -> int | None:
    """The seconds in a reply to `getClusterParameter`; None for "off"."""
    for parameter in reply.get("clusterParameters", ()):
        seconds = parameter.get("preAndPostImages", {}).get("expireAfterSeconds")
        if isinstance(seconds, int) and seconds > 0:
            return int(seconds)
    return None
