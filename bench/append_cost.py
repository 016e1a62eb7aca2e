"""CPU of the pure path of one change, `Tail.append` with `FrameBuilder`, in one process and without any I/O.

The floor is `orjson.dumps` of the same event as a tree of plain JSON values: what a server would pay that wrote each
change once and did nothing else. The 100 topics compare one field with 100 values, so each change belongs to one
of them. `decode` is what comes before: envelope and body from the bytes of the driver.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import bson
import orjson
from bson import Int64, ObjectId, Timestamp
from bson.datetime_ms import DatetimeMS

from bench.results import Benchmark, Options, Sample
from feedsvc.adapters.mongo.decode import decode
from feedsvc.adapters.mongo.extjson import encode_json
from feedsvc.core.changes import Change
from feedsvc.core.frames import FrameBuilder
from feedsvc.core.messages import TopicRequest
from feedsvc.core.policy import Grant
from feedsvc.core.positions import boundary
from feedsvc.core.tail import LoggedTopic, Tail
from feedsvc.core.tokens import TokenSealer
from feedsvc.core.topics import Topic, effective_topic

NAME = "append_cost"
CHANGES = 10_000
TOPICS = 100
_BATCH = 500
_RING_RECORDS = 10_000
_LOG_BYTES = 64 << 20
_EVENT_BYTES = 1 << 20
_SOURCE = b"8 bytes."
_KEY = bytes(range(32))
_SECONDS = 1_780_000_000
_GRANT = Grant("bench", "bench", "changes", {}, {}, False)

FLOOR = "orjson.dumps of the event"


def run(options: Options) -> Iterator[Sample]:
    count = CHANGES // 10 if options.quick else CHANGES
    raws = [_raw_event(number) for number in range(count)]
    changes = [decode(raw, "collection")[0] for raw in raws]
    for change in changes:
        change.body()
    frame = _builder().build(_topic({}), changes[0])
    assert isinstance(frame, bytes)
    event = orjson.loads(frame)
    one, many = [_topic({})], [_topic({"zone": zone}) for zone in range(TOPICS)]
    cases: dict[str, Callable[[], None]] = {
        FLOOR: lambda: _times(count, lambda: orjson.dumps(event)),
        "decode": lambda: _decode(raws),
        "append, 1 topic": lambda: _append(changes, one),
        f"append, {TOPICS} topics of one field": lambda: _append(changes, many),
    }
    for number in range(1, options.rounds + 1):
        for case, work in cases.items():
            before = time.process_time()
            work()
            used_s = time.process_time() - before
            yield Sample(NAME, case, number, {"cpu_us_per_change": used_s / count * 1e6})


def _times(count: int, call: Callable[[], object]) -> None:
    for _ in itertools.repeat(None, count):
        call()


def _decode(raws: Sequence[bytes]) -> None:
    for raw in raws:
        decode(raw, "collection")[0].body()


def _append(changes: Sequence[Change], topics: Sequence[Topic]) -> None:
    """Batches as the runtime feeds them: append all, trim last."""
    tail = Tail(boundary(0), _builder().build, live=True)
    for topic in topics:
        tail.hold(topic)
    for first in range(0, len(changes), _BATCH):
        touched: dict[LoggedTopic, None] = {}
        for change in changes[first : first + _BATCH]:
            for _ in tail.append(change, touched):
                pass
        if not touched:
            raise RuntimeError("no topic saw these changes")
        tail.trim(_RING_RECORDS, _LOG_BYTES)


def _builder() -> FrameBuilder:
    def failed(topic: Topic, error: Exception) -> None:
        raise error

    return FrameBuilder(TokenSealer([_KEY]), _SOURCE, encode_json, _EVENT_BYTES, failed)


def _topic(wanted: dict[str, Any]) -> Topic:
    return effective_topic(_GRANT, TopicRequest("changes", filter=wanted), images=False)


def _raw_event(number: int) -> bytes:
    """An insert as SecantusDB sends it: a document of about 320 bytes."""
    document_id = ObjectId(number.to_bytes(12, "big"))
    time = Timestamp(_SECONDS, number + 1)
    token = bson.encode({"t": time, "s": Int64(number), "k": {"_id": document_id}}).hex()
    return bson.encode(
        {
            "_id": {"_data": token},
            "operationType": "insert",
            "clusterTime": time,
            "wallTime": DatetimeMS(_SECONDS * 1000 + number),
            "fullDocument": {
                "_id": document_id,
                "zone": number % TOPICS,
                "status": "open",
                "placed": DatetimeMS(_SECONDS * 1000),
                "customer": {"id": "c-1047", "name": "Jane Example", "city": "Tromsø"},
                "lines": [{"sku": f"sku-{line}", "quantity": line, "price": 12.5} for line in range(3)],
                "total": 75.0,
            },
            "ns": {"db": "bench", "coll": "changes"},
            "documentKey": {"_id": document_id},
        }
    )


BENCHMARK = Benchmark(
    name=NAME,
    about="CPU of the pure path for each change, without I/O",
    floors={
        "decode": FLOOR,
        "append, 1 topic": FLOOR,
        f"append, {TOPICS} topics of one field": FLOOR,
    },
    run=run,
)
