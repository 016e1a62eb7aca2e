"""The documents that a consumer holds: what an event changes in them, and what a snapshot may show at its end.

A find sees each document as it was at some moment between the position of its snapshot and its own end, and not all of
them at the same one. So a document that is held must be one of its states since that position, and one that is not
held must have been out of sight at some time since.
"""

from __future__ import annotations

from typing import Any

from feedsvc.testing import Entry
from tests.simulation.model import FILTERS, History, Mark, TopicSpec

View = dict[Any, dict[str, Any]]
"""By `_id`."""
_GONE = ("drop", "rename", "dropDatabase", "invalidate")


def apply(view: View, event: dict[str, Any]) -> None:
    """An event, by protocol.md section 4."""
    if event["operationType"] in _GONE:
        view.clear()
    elif event["operationType"] == "delete" or event.get("membership") == "left":
        view.pop(event["documentKey"]["_id"], None)
    elif "fullDocument" in event:
        view[event["documentKey"]["_id"]] = event["fullDocument"]


def unexplained(view: View, history: History, topic: TopicSpec, mark: Mark) -> list[Any]:
    """The `_id`s whose state in a snapshot was there at no time since its position. Linear in the history."""
    collections: dict[str, View] = {}
    number = next((at for at, entry in enumerate(history.entries) if (entry.number, 0) > mark), None)
    older = history.entries[:number]
    for entry in older:
        _write(collections, entry, topic.database)
    states = {key: [document] for key, document in collections.get(topic.collection, {}).items()}
    seen: dict[Any, list[dict[str, Any] | None]] = {key: [*found] for key, found in states.items()}
    for entry in history.entries[len(older) :]:
        before = dict(collections.get(topic.collection, {}))
        _write(collections, entry, topic.database)
        after = collections.get(topic.collection, {})
        for key in before.keys() | after.keys():
            if before.get(key) != after.get(key):
                seen.setdefault(key, [None]).append(after.get(key))
    matches = FILTERS[topic.filter][1]
    held = [key for key, document in view.items() if document not in seen.get(key, ())]
    hidden = {
        key
        for key, found in seen.items()
        if any(document is None or not matches(document) for document in found)
    }
    return held + [key for key in seen if key not in view and key not in hidden]


def _write(collections: dict[str, View], entry: Entry, database: str) -> None:
    if entry.namespace.database != database:
        return
    name = entry.namespace.collection
    if entry.operation == "drop":
        collections.pop(name, None)
    elif entry.renamed_to is not None:
        collections[entry.renamed_to.collection] = collections.pop(name, {})
    elif entry.operation == "delete":
        collections[name].pop(entry.document_id)
    elif entry.after is not None:
        collections.setdefault(name, {})[entry.document_id] = entry.after
