"""A consumer as protocol.md section 9 wants it, and the judge of every frame that it is sent.

It keeps for each topic the last token that it has processed. Frames that were written but not processed when the
connection is cut are gone. Each processed frame is compared with the model at once: an event must be exactly the next
expected one behind the consumer's mark (P1, P2, P3, P4), a checkpoint must pass nothing, a resync needs a cause.

Some consumers hold the documents, too: they take snapshots, apply what follows, and keep both together with the token.
What they hold once everything is quiet is compared with the database (`checks.views`).
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from feedsvc.core.changes import DATA_OPERATIONS
from feedsvc.core.positions import boundary
from feedsvc.runtime.client import Client
from feedsvc.testing import MemoryConnection
from tests.simulation.holding import apply, unexplained
from tests.simulation.memory import Memory, Stream
from tests.simulation.model import FILTERS, Expectations, TopicSpec
from tests.simulation.world import CLAIMS, Instance, Violation, World
from tests.support.frames import received

HISTORY_REASONS = ("token_expired", "overflow", "history_lost")


class Consumer:
    def __init__(
        self, world: World, name: str, tenant: str, topics: list[TopicSpec], snapshots: bool
    ) -> None:
        self.world = world
        self.name = name
        self.tenant = tenant
        self.streams = [
            Stream(topic, snapshots and set(topic.operations) == set(DATA_OPERATIONS)) for topic in topics
        ]
        self.instance: Instance | None = None
        self.connection: MemoryConnection | None = None
        self.client: Client | None = None
        self.room: int | None = None
        self.stalled = False
        self.may_be_slow = False
        self.switched = False
        """Whether a topic ended because its collection's images were switched."""
        self._asked = 0
        self._connects = 0
        self._full_since: float | None = None
        """By the clock of its instance, on which work takes time: a moment may be longer there than it is patient."""
        self._asking: dict[str, Stream] = {}

    # -- connecting ---------------------------------------------------------------------------------------

    def connect(self, instance: Instance, room: int | None) -> None:
        self.instance, self.room = instance, room
        self.stalled = False
        self.may_be_slow = room is not None
        self._full_since = None
        # Every fourth time there is none, as with streams of server-sent events: another way to every frame.
        self._connects += 1
        self.connection = MemoryConnection(room=room, direct=self._connects % 4 != 2)
        self.client = Client(instance.context, self.connection, self.name, lambda client: None)
        self.client.start(CLAIMS[self.tenant])
        for stream in self.streams:
            self.ask(stream)

    def ask(self, stream: Stream) -> None:
        """Subscribe, from where the consumer stands."""
        assert self.client is not None and self.instance is not None
        self._asked += 1
        frame: dict[str, Any] = {
            "type": "subscribe",
            "id": f"s{self._asked}",
            "topic": {
                "collection": stream.topic.collection,
                "filter": FILTERS[stream.topic.filter][0],
                "operations": list(stream.topic.operations),
            },
        }
        memory = stream.memory
        if memory is not None and memory.resume_token is not None:
            frame["resumeAfter" if self._asked % 2 else "startAfter"] = memory.resume_token
        elif memory is not None:
            time = memory.position.cluster_time
            frame["startAtOperationTime"] = {"$timestamp": {"t": time >> 32, "i": time & 0xFFFFFFFF}}
        stream.mode = self._mode(stream)
        if stream.mode != "never":
            frame["snapshot"] = stream.mode
        stream.view = None if memory is None or memory.view is None else dict(memory.view)
        stream.asked = memory
        stream.state = "asked"
        stream.topic_id = ""
        stream.leaving = False
        stream.losses_before = self.instance.losses_over
        self._asking[frame["id"]] = stream
        self.client.receive(msgspec.json.encode(frame))

    def _mode(self, stream: Stream) -> str:
        """Who holds nothing asks for everything, usually; who holds something, only where that is of no use."""
        if not stream.snapshots:
            return "never"
        holds = stream.memory is not None and stream.memory.view is not None
        return "onResync" if (self.world.rng.random() < 0.7) == holds else "always"

    def leave(self, stream: Stream) -> None:
        """Unsubscribe from a topic that was answered."""
        assert self.client is not None
        if stream.topic_id and not stream.leaving:
            stream.leaving = True
            self.client.receive(msgspec.json.encode({"type": "unsubscribe", "topic": stream.topic_id}))

    def cut(self) -> None:
        """The connection is gone, with everything in it that was not processed."""
        if self.client is not None:
            self.client.transport_closed()
        self.client = self.connection = self.instance = None
        self._asking.clear()
        for stream in self.streams:
            stream.state = "unasked"
            stream.topic_id = ""

    # -- reading ------------------------------------------------------------------------------------------

    def read(self, limit: int | None = None) -> None:
        """Process up to `limit` frames, and make room for as many."""
        connection = self.connection
        if connection is None:
            return
        taken = connection.frames[:limit]
        del connection.frames[: len(taken)]
        for frame in taken:
            self._process(received(frame))
        if connection.closed is not None and not connection.frames:
            self._closed(connection.closed)
        elif self.room is not None and self.connection is connection:
            connection.set_room(max(0, self.room - len(connection.frames)))

    def unlimited(self) -> None:
        """Read as fast as the service writes from now on."""
        self.room = None
        self.stalled = False
        if self.connection is not None:
            self.connection.set_room(None)

    def fill_for_a_moment(self) -> None:
        connection = self.connection
        assert connection is not None and self.instance is not None
        if self._full_since is None:
            self._full_since = self.instance.clock.now

        def room_again() -> None:
            if connection is self.connection:
                self._note_patience()
                self._full_since = None
                connection.set_writable(True)

        connection.set_writable(False)
        asyncio.get_running_loop().call_later(0.01, room_again)

    def _note_patience(self) -> None:
        if self._full_since is not None and self.instance is not None:
            full_s = self.instance.clock.now - self._full_since
            self.may_be_slow |= full_s >= self.world.limits.slow_after_s

    def _closed(self, closed: tuple[int, str]) -> None:
        self._note_patience()
        if closed[0] != 4201 or not self.may_be_slow:
            raise Violation(f"{self.name} was closed with {closed}")
        self.cut()

    def _process(self, frame: dict[str, Any]) -> None:
        kind = frame["type"]
        if kind in ("welcome", "heartbeat", "pong"):
            return
        if kind == "checkpoint":
            for topic_id, resume_token in frame["tokens"].items():
                self._checkpoint(self._stream(topic_id, frame), resume_token)
            return
        if kind == "error" and frame["code"] == "not_subscribed" and (self._spoilt or self.switched):
            return  # it asked to leave what ended by itself meanwhile
        if kind in ("subscribed", "error"):
            stream = self._asking.pop(frame["id"], None)
            if stream is None or stream.state != "asked":
                raise Violation(f"{self.name} was sent an answer that it did not ask for: {frame}")
        else:
            stream = self._stream(frame["topic"], frame)
        self.world.note(
            f"  {self.name} {stream.topic.collection}/{stream.topic.filter} reads {_short(frame)}"
        )
        getattr(self, f"_{kind}")(stream, frame)

    @property
    def _spoilt(self) -> bool:
        """Whether a find failed for good on this instance."""
        return self.instance is not None and self.instance.source.spoilt_finds > 0

    def _stream(self, topic_id: str, frame: dict[str, Any]) -> Stream:
        for stream in self.streams:
            if stream.topic_id == topic_id:
                return stream
        raise Violation(f"{self.name} was sent a frame of a topic that it does not hold: {frame}")

    def _memory(self, stream: Stream, resume_token: str) -> Memory:
        position = self.world.position(stream.topic.tenant, resume_token)
        view = None if stream.view is None else dict(stream.view)
        return Memory(resume_token, position, self.world.history.mark(position), view)

    def _expected(self, stream: Stream) -> Expectations:
        return self.world.history.of(stream.topic, stream.exact, self.world.level)

    def _broken(self, stream: Stream, text: str) -> Violation:
        where = None if stream.memory is None else (stream.memory.mark, stream.memory.position.kind.name)
        return Violation(f"{self.name} {stream.topic}, {stream.state} at {where}: {text}")

    # -- one method for each type of frame -----------------------------------------------------------------

    def _error(self, stream: Stream, frame: dict[str, Any]) -> None:
        stream.state = "unasked"
        at_time = stream.asked is not None and stream.asked.resume_token is None
        if frame["code"] == "bad_request" and at_time and "ahead" in frame["message"]:
            stream.memory = None
        elif frame["code"] != "source_unavailable":
            raise self._broken(stream, f"refused: {frame}")

    def _subscribed(self, stream: Stream, frame: dict[str, Any]) -> None:
        stream.topic_id = frame["topic"]
        stream.exact = frame["fidelity"]["membership"] == "exact"
        if frame["resumed"] and stream.asked is not None and stream.asked.refused:
            raise self._broken(stream, "resumed from what is not there")
        given = self._memory(stream, frame["token"]) if "token" in frame else None
        if stream.mode == "always":
            if frame["resumed"] or given is not None:
                raise self._broken(stream, "a position in spite of the snapshot that was asked for")
            self._owed_snapshot(stream, frame)
        elif frame["resumed"]:
            self._resumed(stream, given)
        elif given is not None:
            if stream.asked is not None:
                raise self._broken(stream, "subscribed as fresh in spite of its position")
            stream.state = "fresh"
            stream.remember(given)
        else:
            if stream.asked is None:
                raise self._broken(stream, "a fresh subscription without a token")
            stream.state = "owed resync"

    def _owed_snapshot(self, stream: Stream, frame: dict[str, Any]) -> None:
        parts = frame["clusterTime"]["$timestamp"]
        stream.unread_from = boundary(parts["t"] << 32 | parts["i"])
        stream.state = "snapshot"
        stream.next_page = 0

    def _snapshot(self, stream: Stream, frame: dict[str, Any]) -> None:
        page = frame["page"]
        if stream.state != "snapshot" or page not in (0, stream.next_page):
            raise self._broken(stream, f"page {page} here is against the grammar")
        if page == 0:
            self.world.figures.snapshots_anew += stream.next_page > 0
            stream.pages = {}
        stream.next_page = page + 1
        matches = FILTERS[stream.topic.filter][1]
        for document in frame["documents"]:
            if not matches(document):
                raise self._broken(stream, f"a snapshot shows {document}")
            stream.pages[document["_id"]] = document

    def _snapshotEnd(self, stream: Stream, frame: dict[str, Any]) -> None:  # noqa: N802 - the frame's type
        if stream.state != "snapshot" or not stream.next_page:
            raise self._broken(stream, "snapshotEnd here is against the grammar")
        stream.view = stream.pages
        memory = self._memory(stream, frame["token"])
        wrong = unexplained(stream.view, self.world.history, stream.topic, memory.mark)
        if wrong:
            raise self._broken(stream, f"a snapshot at {memory.mark} is wrong about {wrong}")
        stream.remember(memory)
        stream.state = "fresh"
        self.world.figures.snapshots += 1

    def _resumed(self, stream: Stream, given: Memory | None) -> None:
        asked = stream.asked
        if asked is None or given is None:
            raise self._broken(stream, "resumed from nothing")
        if asked.resume_token is None:
            if not given.position.same_as(asked.position):
                raise self._broken(stream, "resumed at another time than the one asked for")
            stream.remember(given)
        elif given.resume_token != asked.resume_token:
            raise self._broken(stream, "resumed with another token than the one given")
        stream.state = "replay"
        self.world.figures.resumed += 1

    def _event(self, stream: Stream, frame: dict[str, Any]) -> None:
        if stream.state not in ("replay", "live"):
            raise self._broken(stream, "an event here is against the grammar")
        assert stream.memory is not None
        event = frame["event"]
        memory = self._memory(stream, event["_id"])
        expected = self._expected(stream).after(stream.memory.mark)
        if expected is None or expected.mark != memory.mark or expected.loss is not None:
            raise self._broken(stream, f"event {memory.mark} {event['operationType']}, expected {expected}")
        if event["operationType"] != expected.operation:
            raise self._broken(stream, f"{event} instead of {expected}")
        if expected.document_id is not None and event["documentKey"] != {"_id": expected.document_id}:
            raise self._broken(stream, f"{event} instead of {expected}")
        if expected.membership is not None and event.get("membership") != expected.membership:
            raise self._broken(stream, f"{event} instead of {expected}")
        if self.world.event_ids.setdefault((stream.topic, memory.mark), event["_id"]) != event["_id"]:
            raise self._broken(stream, "the same event with another _id")
        self.world.figures.events += 1
        if stream.view is not None:
            apply(stream.view, event)
            memory = msgspec.structs.replace(memory, view=dict(stream.view))
        stream.remember(memory)

    def _checkpoint(self, stream: Stream, resume_token: str) -> None:
        memory = self._memory(stream, resume_token)
        self.world.note(
            f"  {self.name} {stream.topic.collection}/{stream.topic.filter} checkpoint {memory.mark}"
        )
        if stream.state not in ("fresh", "replay", "live"):
            raise self._broken(stream, "a checkpoint here is against the grammar")
        assert stream.memory is not None
        if memory.mark < stream.memory.mark:
            raise self._broken(stream, f"a checkpoint went back to {memory.mark}")
        owed = self._expected(stream).after(stream.memory.mark)
        if owed is not None and owed.mark <= memory.mark:
            raise self._broken(stream, f"a checkpoint at {memory.mark} is ahead of {owed}")
        stream.remember(memory)

    def _live(self, stream: Stream, frame: dict[str, Any]) -> None:
        if stream.state not in ("fresh", "replay"):
            raise self._broken(stream, "live here is against the grammar")
        stream.state = "live"

    def _resync(self, stream: Stream, frame: dict[str, Any]) -> None:
        reason = frame["reason"]
        if stream.state not in ("owed resync", "fresh", "replay", "live", "snapshot"):
            raise self._broken(stream, "resync here is against the grammar")
        if not self._has_cause(stream, reason):
            raise self._broken(stream, f"needless resync: {reason}")
        self.world.figures.resyncs += 1
        stream.view = None
        if stream.mode == "never":
            stream.remember(self._memory(stream, frame["token"]))
            stream.state = "fresh"
        elif "token" in frame:
            raise self._broken(stream, "a position in spite of the snapshot that follows")
        else:
            self.world.figures.snapshots_lost += stream.state == "snapshot"
            self._owed_snapshot(stream, frame)

    def _has_cause(self, stream: Stream, reason: str) -> bool:
        memory, instance = stream.memory, self.instance
        assert instance is not None
        if stream.state == "snapshot":
            if reason == "history_lost" and self.world.history.is_gone(stream.unread_from):
                return True
            lost = reason in ("history_lost", "event_unavailable")
            return (lost and instance.source.losses > stream.losses_before) or self._loses(stream, reason)
        assert memory is not None
        if reason in memory.refused:
            return True
        if memory.refused and memory.refused != HISTORY_REASONS:
            return False  # told before anything is opened, so no fault upstream can come first
        owed = self._expected(stream).after(memory.mark)
        if owed is not None and owed.loss == reason:
            return True
        if reason == "replay_too_large":
            return self.world.limits.max_replay_bytes < 1 << 20
        if reason not in (*HISTORY_REASONS, "event_unavailable"):
            return False
        if instance.source.losses > stream.losses_before:
            return True
        return reason != "event_unavailable" and self.world.history.is_gone(memory.position)

    def _loses(self, stream: Stream, reason: str) -> bool:
        """Whether something behind the beginning of a snapshot ends the continuity for this reason."""
        expected = self._expected(stream)
        item = expected.after(self.world.history.mark(stream.unread_from))
        while item is not None and item.loss != reason:
            item = expected.after(item.mark)
        return item is not None

    def _unsubscribed(self, stream: Stream, frame: dict[str, Any]) -> None:
        spoilt = frame["code"] == "snapshot_too_large" and stream.state == "snapshot" and self._spoilt
        switched = frame["code"] == "topic_changed" and frame["resubscribe"]
        if frame["code"] != "requested" and not spoilt and not switched:
            raise self._broken(stream, f"ended: {frame}")
        leaving = stream.leaving
        stream.state = "left"
        stream.topic_id = ""
        if switched:
            self.switched = True
            self.world.figures.switches += 1
            if not leaving:
                self.ask(stream)


def _short(frame: dict[str, Any]) -> str:
    event = frame.get("event")
    if event is not None:
        return f"event {event['operationType']} {event['clusterTime']} {event.get('documentKey')}"
    return " ".join(
        str(frame[key])
        for key in ("type", "resumed", "reason", "code", "message", "page", "documents")
        if key in frame
    )
