"""CPU of one event on a collection with many topics: match, encode, append (`Tail.append` with `Matcher`).

Every event is an update with both images, and matches one topic: the cases differ in what else hangs on the collection.
The floor of each case is the same work with that one topic alone. `range` topics have no look-up: each event
asks all of them, so their figures say what one such topic costs and that the growth is linear. That however many topics
share one upstream stream is tested (tests/e2e/test_one_stream.py).
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from typing import Any

from bson import ObjectId
from bson.datetime_ms import DatetimeMS

from bench.results import Benchmark, Options, Sample
from feedsvc.adapters.mongo.extjson import encode_json
from feedsvc.core.changes import Change, ChangeBody, Namespace
from feedsvc.core.frames import FrameBuilder
from feedsvc.core.matcher import Matcher
from feedsvc.core.messages import TopicRequest
from feedsvc.core.policy import Grant
from feedsvc.core.positions import PositionKind, boundary, record_position
from feedsvc.core.tail import LoggedTopic, Tail
from feedsvc.core.tokens import TokenSealer
from feedsvc.core.topics import Topic, effective_topic

NAME = "match"
TOPICS = 10_000
EVENTS = 2_000
_SCANNING_EVENTS = 20
_BATCH = 100
_RING_RECORDS = 10_000
_LOG_BYTES = 64 << 20
_EVENT_BYTES = 1 << 20
_GRANT = Grant("bench", "bench", "orders", {}, {}, False)
_NAMESPACE = Namespace("bench", "orders")
_SECONDS = 1_780_000_000

Filters = Sequence[dict[str, Any]]

_ONE = "1 topic"
_ONE_OF_TWO = "1 topic on two fields"
_ONE_RANGE = "1 range topic"


def _cases(topics: int) -> dict[str, tuple[str | None, Filters]]:
    """By name, the floor of a case and the wanted documents of its topics; the first of them wants every event."""
    many, numbers = f"{topics:,} topics on", range(topics)
    cases: dict[str, tuple[str | None, Filters]] = {
        _ONE: (None, [{"customer": 0}]),
        f"{many} one field": (_ONE, [{"customer": n} for n in numbers]),
        _ONE_OF_TWO: (None, [{"customer": 0, "state": "open"}]),
        f"{many} two fields, the second unique": (
            _ONE_OF_TWO,
            [{"customer": n, "state": "open"} for n in numbers],
        ),
        f"{many} two fields, a product of 100": (
            _ONE_OF_TWO,
            [{"column": n // 100, "row": n % 100} for n in numbers],
        ),
        f"{many} as many fields": (_ONE, [{"customer": 0}, *({f"field{n}": 1} for n in numbers[1:])]),
        _ONE_RANGE: (None, [{"total": {"$gte": 0, "$lt": 0.5}}]),
    }
    for count in (10, 100, 1_000, 10_000):
        if count <= topics:
            ranges = [{"total": {"$gte": n, "$lt": n + 0.5}} for n in range(count)]
            cases[f"{count:,} range topics"] = (_ONE_RANGE, ranges)
    return cases


_FLOORS = {
    case: floor
    for topics in (TOPICS, TOPICS // 10)
    for case, (floor, _) in _cases(topics).items()
    if floor is not None
}


def run(options: Options) -> Iterator[Sample]:
    cases = _cases(TOPICS // 10 if options.quick else TOPICS)
    tails = {case: _tail(filters) for case, (_, filters) in cases.items()}
    gc.collect()
    gc.freeze()
    number = 0
    for round_number in range(1, options.rounds + 1):
        for case, tail in tails.items():
            scans = case.endswith("range topics") and len(tail.topics) > 100
            count = (_SCANNING_EVENTS if scans else EVENTS) // (10 if options.quick else 1)
            changes = [_change(number + n + 1) for n in range(count)]
            number += count
            used_s = _append(tail, changes)
            yield Sample(NAME, case, round_number, {"cpu_us_per_event": used_s / count * 1e6})
    gc.unfreeze()


def _append(tail: Tail, changes: Sequence[Change]) -> float:
    """Seconds of CPU for these changes, in batches as the runtime feeds them: append all, trim last."""
    used_s = 0.0
    for first in range(0, len(changes), _BATCH):
        batch = changes[first : first + _BATCH]
        touched: dict[LoggedTopic, None] = {}
        before = time.process_time()
        for change in batch:
            for _ in tail.append(change, touched):
                pass
        tail.trim(_RING_RECORDS, _LOG_BYTES)
        used_s += time.process_time() - before
        (logged,) = touched
        if len(logged.log.after(0, 1 << 40)) < len(batch):
            raise RuntimeError("one topic sees every event of this benchmark")
    return used_s


def _tail(filters: Filters) -> Tail:
    def failed(topic: Topic, error: Exception) -> None:
        raise error

    builder = FrameBuilder(TokenSealer([bytes(32)]), b"8 bytes.", encode_json, _EVENT_BYTES, failed)
    tail = Tail(boundary(0), builder.build, live=True, router=lambda: Matcher(builder.view))
    for wanted in filters:
        tail.hold(effective_topic(_GRANT, TopicRequest("orders", filter=wanted), images=True))
    return tail


def _change(number: int) -> Change:
    """An update of the one document that each case's first topic wants, decoded: reading it is not measured here."""
    document_id = ObjectId(number.to_bytes(12, "big"))
    before = {
        "_id": document_id,
        "customer": 0,
        "state": "open",
        "column": 0,
        "row": 0,
        "total": 0.25,
        "placed": DatetimeMS(_SECONDS * 1000),
        "address": {"street": "Storgata 1", "city": "Tromsø"},
        "lines": [{"sku": f"sku-{line}", "quantity": line, "price": 12.5} for line in range(3)],
        "version": 1,
    }
    update = {"updatedFields": {"version": 2}, "removedFields": [], "truncatedArrays": []}
    body = ChangeBody({"_id": document_id}, before | {"version": 2}, before, update, _SECONDS * 1000)
    position = record_position(PositionKind.EVENT, (_SECONDS << 32) + number, f"82{number:010X}")
    return Change(position, "update", _NAMESPACE, lambda: body)


BENCHMARK = Benchmark(
    name=NAME, about="CPU of one event that matches one of many topics", floors=_FLOORS, run=run
)
