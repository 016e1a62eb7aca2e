"""Topics for the model test of the view: filters over all of the language, each with a document that it matches."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from bson import json_util
from bson.timestamp import Timestamp
from pymongo.read_concern import ReadConcern

from tests.support.random_writes import Rows
from tests.support.view import Documents, key_of

_RELAXED = json_util.RELAXED_JSON_OPTIONS


class Wanted(NamedTuple):
    """A filter, and fields of a document that matches it; both are Extended JSON."""

    filter: dict[str, Any]
    witness: dict[str, Any]


WANTED = [
    Wanted({}, {}),
    Wanted({"status": "open"}, {"status": "open"}),
    Wanted({"status": {"$in": ["open", "held"]}}, {"status": "held"}),
    Wanted({"status": {"$ne": "closed"}, "n": {"$lte": 6}}, {"status": "open", "n": 3}),
    Wanted({"n": {"$gte": 3, "$lt": 8}}, {"n": 5}),
    Wanted({"n": {"$not": {"$gt": 4}}}, {"n": 1}),
    Wanted({"n": {"$mod": [3, 1]}}, {"n": 4}),
    Wanted({"price": {"$gt": 2.5}}, {"price": 3.0}),
    Wanted({"maybe": None}, {}),
    Wanted({"maybe": {"$ne": None}}, {"maybe": 1}),
    Wanted({"maybe": {"$exists": False}}, {}),
    Wanted({"maybe": {"$type": ["string", "bool"]}}, {"maybe": "one"}),
    Wanted({"$or": [{"status": "closed"}, {"n": {"$gt": 6}}]}, {"status": "closed"}),
    Wanted({"$nor": [{"status": "open"}, {"tags": "a"}]}, {"status": "held"}),
    Wanted({"tags": "b"}, {"tags": ["b"]}),
    Wanted({"tags": {"$nin": ["a", "c"]}}, {"tags": ["d"]}),
    Wanted({"tags": {"$size": 2}}, {"tags": ["a", "b"]}),
    Wanted({"tags": {"$all": ["a", "b"]}}, {"tags": ["b", "a"]}),
    Wanted({"tags": {"$not": {"$size": 0}}}, {"tags": ["a"]}),
    Wanted({"tags.0": "a"}, {"tags": ["a"]}),
    Wanted({"scores": {"$gt": 3, "$lt": 6}}, {"scores": [9, 1, 4]}),
    Wanted({"scores": {"$elemMatch": {"$gt": 3, "$lt": 6}}}, {"scores": [4]}),
    Wanted({"items.k": "x", "items.q": {"$gte": 2}}, {"items": [{"k": "x", "q": 2}]}),
    Wanted({"items": {"$elemMatch": {"k": "x", "q": {"$gte": 2}}}}, {"items": [{"k": "x", "q": 2}]}),
    Wanted({"items.0.k": {"$ne": "y"}}, {"items": []}),
    Wanted({"items.cost": None}, {"items": [{"k": "x"}]}),
    Wanted({"deep.b.c": {"$lte": 3}}, {"deep": {"b": {"c": 1}}}),
    Wanted({"deep.secret": {"$exists": False}}, {"deep": {}}),
    Wanted({"secret": None}, {}),
    Wanted({"at": {"$gte": {"$date": "2026-01-05T00:00:00Z"}}}, {"at": {"$date": "2026-02-01T00:00:00Z"}}),
    Wanted({"name": {"$regex": "^an"}}, {"name": "ann"}),
    Wanted({"name": {"$not": {"$regex": "^A", "$options": "i"}}}, {"name": "bob"}),
    Wanted({"more.x.v": {"$in": [1, 2, 3, None]}}, {}),
]

_ALWAYS = {"tenantId": 1, "touched": 1, "pad": 1}
"""What ends a scenario, and what makes a snapshot long, is shown by every projection."""
FIELDS: list[dict[str, int]] = [
    {},
    {**_ALWAYS, "status": 1, "n": 1},
    {**_ALWAYS, "items.k": 1, "deep.b": 1, "tags": 1},
    {"tags": 0, "items.q": 0},
    {"deep": 0, "more.x": 0},
]


class Effective(NamedTuple):
    """What the topic shows, asked of MongoDB itself: `find` with the effective filter and projection.

    Behind a policy the client's filter sees documents without what the policy hides. So what the policy leaves is put
    into `scratch` and the client's query is asked there. (One aggregation would do, but the embedded engine's
    `$project` excludes nothing within arrays; its `find` does.)
    """

    rows: Rows
    scratch: Rows
    policy_filter: Mapping[str, Any]
    policy_fields: Mapping[str, int]
    client_filter: Mapping[str, Any]
    client_fields: Mapping[str, int]

    def find(self, after: Mapping[str, Any] | None = None) -> Documents:
        """As of a `clusterTime` or later; majority."""
        rows: Rows = self.rows.with_options(read_concern=ReadConcern("majority"))
        query = json_util.loads(json.dumps(self.client_filter))
        fields = self.client_fields or None
        with rows.database.client.start_session(causal_consistency=True) as session:
            if after is not None:
                parts = after["$timestamp"]
                session.advance_operation_time(Timestamp(parts["t"], parts["i"]))
            if self.policy_filter:
                allowed = list(rows.find(self.policy_filter, self.policy_fields, session=session))
                # Without the large field: what is written here is in the oplog, too.
                pads = {repr(document["_id"]): document.pop("pad", None) for document in allowed}
                self.scratch.delete_many({})
                if allowed:
                    self.scratch.insert_many(allowed)
                found = list(self.scratch.find(query, fields))
                for document in found:
                    if (pad := pads[repr(document["_id"])]) is not None:
                        document["pad"] = pad
            else:
                found = list(rows.find(query, fields, session=session))
        documents = [json.loads(json_util.dumps(document, json_options=_RELAXED)) for document in found]
        return {key_of(document["_id"]): document for document in documents}
