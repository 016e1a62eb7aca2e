"""A live view of one topic, kept by nothing but snapshot pages and events.

`View` is the whole of what a consumer has to do (protocol sections 4 to 6): a state, the last resume token that is
finished, and what is saved of both. It also holds the server to its word: frames come in the protocol's sequences,
a resumed subscription carries the client's own token, and in `exact` fidelity `entered`, `stayed` and `left` agree with
what is held, and an update's delta, applied to what is held, gives the document that came with it.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from tests.support.service import Frame

Document = dict[str, Any]
Documents = dict[str, Document]
"""By the JSON text of `_id`; values are relaxed Extended JSON as it came."""
_GONE = ("drop", "rename", "dropDatabase", "invalidate")
_FOLLOWS: dict[str, frozenset[str]] = {
    "asked": frozenset({"subscribed"}),
    "resumed": frozenset({"event", "checkpoint", "live", "resync", "unsubscribed"}),
    "complete": frozenset({"checkpoint", "live", "resync", "unsubscribed"}),
    "incomplete": frozenset({"resync", "snapshot", "snapshotEnd", "unsubscribed"}),
    "live": frozenset({"event", "checkpoint", "resync", "unsubscribed"}),
    "ended": frozenset(),
}
"""What may come when (protocol section 4). `complete`: a new state stands, `incomplete`: a snapshot is due."""


def key_of(identity: object) -> str:
    return json.dumps(identity, sort_keys=True)


class _Saved(NamedTuple):
    documents: Documents
    token: str | None
    certain: set[str]


class View:
    """One topic's documents. `token` stands for `documents`; None while there is no state.

    `strict`: what `exact` says is checked; not where a collection's images come and go, whose changes are told late.
    """

    def __init__(self, *, strict: bool = True) -> None:
        self.documents: Documents = {}
        self.token: str | None = None
        self.figures: Counter[str] = Counter()
        self.event_keys: set[str] = set()
        """Of events since the state began."""
        self._strict = strict
        self._exact = False
        self._phase = "asked"
        self._certain: set[str] = set()
        """Keys of which is held exactly what was there at `token`; a fetched state may be ahead of it."""
        self._paged: set[str] = set()
        self._page = 0
        self._resumed_with: str | None = None
        self._saved = _Saved({}, None, set())

    def __repr__(self) -> str:
        return f"<View {self._phase}, events of {sorted(self.event_keys)}, {dict(self.figures)}>"

    def save(self) -> None:
        """What a crash leaves: state and token together."""
        self._saved = _Saved(dict(self.documents), self.token, set(self._certain))

    def crash(self) -> None:
        saved = self._saved
        self.documents, self.token, self._certain = dict(saved.documents), saved.token, set(saved.certain)

    def asked(self, resume_token: str | None) -> None:
        """A new subscription begins."""
        self._phase, self._resumed_with = "asked", resume_token

    @property
    def ended(self) -> bool:
        """Whether the subscription is over: subscribe again, with the token."""
        return self._phase == "ended"

    @property
    def live(self) -> bool:
        """Whether replay and snapshot are done."""
        return self._phase == "live"

    def apply(self, frame: Frame) -> bool:
        """Take in a frame of the topic. True where the client has to fetch the state itself: then call `fetched`."""
        kind = frame["type"]
        assert kind in _FOLLOWS[self._phase], f"{kind} while {self._phase}"
        match kind:
            case "subscribed":
                self._exact = self._strict and frame["fidelity"]["membership"] == "exact"
                if not frame["resumed"]:
                    return self._lost(frame)
                assert frame["token"] == self._resumed_with
                self._phase = "resumed"
            case "resync":
                self.figures[f"resync {frame['reason']}"] += 1
                return self._lost(frame)
            case "event":
                self._event(frame["event"])
            case "checkpoint":
                (self.token,) = frame["tokens"].values()
                self.figures["checkpoints"] += 1
            case "snapshot":
                self._snapshot_page(frame)
            case "snapshotEnd":
                self._begin({key: self.documents[key] for key in self._paged}, frame["token"])
                self._phase = "complete"
                self.figures["snapshots"] += 1
            case "live":
                self._phase = "live"
            case "unsubscribed":
                assert frame["code"] == "topic_changed" and frame["resubscribe"]
                self._phase = "ended"
                self.figures["images switched"] += 1
        return False

    def fetched(self, documents: Documents, token: str) -> None:
        """The client's own state, as of the `clusterTime` of the frame that asked for it, or later."""
        self._begin(documents, token)
        self.figures["fetches"] += 1

    def _lost(self, frame: Frame) -> bool:
        """With a token the state is the client's own to fetch, without one a snapshot follows."""
        fetches = "token" in frame
        self._phase = "complete" if fetches else "incomplete"
        self._paged, self._page = set(), 0
        return fetches

    def _begin(self, documents: Documents, token: str) -> None:
        self.documents, self.token, self._certain, self.event_keys = documents, token, set(), set()

    def _snapshot_page(self, frame: Frame) -> None:
        if frame["page"] == 0:
            self._paged, self._page = set(), 0
        assert frame["page"] == self._page
        self._page += 1
        self.figures["pages"] += 1
        for document in frame["documents"]:
            key = key_of(document["_id"])
            self.documents[key] = document
            self._paged.add(key)
            self._certain.discard(key)

    def _event(self, event: Mapping[str, Any]) -> None:
        self.figures["events"] += 1
        self.token = event["_id"]
        assert "truncated" not in event
        if event["operationType"] in _GONE:
            self.documents, self._certain = {}, set()
            return
        key = key_of(event["documentKey"]["_id"])
        self.event_keys.add(key)
        membership, update = event.get("membership"), event.get("updateDescription")
        held = self.documents.get(key)
        if self._exact and key in self._certain:
            assert (held is None) == (membership == "entered"), (
                f"{membership} of what is held: {held is not None}"
            )
            self.figures["memberships"] += 1
        if membership == "left" or event["operationType"] == "delete":
            assert "fullDocument" not in event and update is None
            self.documents.pop(key, None)
        elif "fullDocument" in event:
            if self._exact and held is not None and update is not None and key in self._certain:
                self._compare_delta(held, update, event["fullDocument"])
            self.documents[key] = event["fullDocument"]
        elif held is not None and update is not None:
            self.documents[key] = apply_delta(held, update)
        self._certain.add(key)

    def _compare_delta(self, held: Document, update: Mapping[str, Any], after: Document) -> None:
        assert apply_delta(held, update) == after, f"{held} with {update} is not {after}"
        self.figures["deltas"] += 1


def documents_of(frame: Frame) -> list[Document]:
    """What a frame shows of documents."""
    documents: list[Document] = frame.get("documents", [])
    event = frame.get("event", {})
    return [*documents, event["fullDocument"]] if "fullDocument" in event else documents


def apply_delta(document: Document, update: Mapping[str, Any]) -> Document:
    """A document with an `updateDescription`, where no name has a dot or is a number: paths name what is held."""
    after = copy.deepcopy(document)
    for path in update.get("removedFields", ()):
        container, last = _place(after, path)
        del container[last]
    for entry in update.get("truncatedArrays", ()):
        container, last = _place(after, entry["field"])
        del container[last][entry["newSize"] :]
    for path, value in update.get("updatedFields", {}).items():
        container, last = _place(after, path)
        if isinstance(container, list):
            container.extend([None] * (last + 1 - len(container)))
        container[last] = value
    return after


def _place(document: Document, path: str) -> tuple[Any, Any]:
    """The container that a path leads into, and the name or index in it."""
    container: Any = document
    *parents, last = path.split(".")
    for part in parents:
        container = container[int(part) if isinstance(container, list) else part]
    return container, int(last) if isinstance(container, list) else last
