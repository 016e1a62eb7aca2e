"""Explain: the client's topic in words, and nothing of the policy but that it is there."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from feedsvc import openapi
from feedsvc.core.errors import Refusal
from feedsvc.core.explain import explained, refused
from feedsvc.core.messages import TopicRequest
from feedsvc.core.policy import Grant
from feedsvc.core.topics import effective_topic

POLICY: dict[str, Any] = {"tenantId": "SECRET-1", "zone": {"$in": ["SECRET-2", "SECRET-3"]}, "n": {"$gt": 41}}


def answer(
    *,
    policy: dict[str, Any] | None = None,
    hidden: dict[str, Any] | None = None,
    images: bool = True,
    snapshot: Refusal | None = None,
    **topic: Any,
) -> dict[str, Any]:
    request = TopicRequest("orders", **topic)
    grant = Grant("acme", "app", "orders", policy or {}, hidden or {}, True)
    one = effective_topic(grant, request, images=images)
    found = explained(one, request, snapshot)
    assert found.topic == one.topic_id
    built: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(found))
    return built


def test_the_example_of_the_documentation_is_a_real_answer() -> None:
    """`openapi.yaml` shows what this topic gets behind such a policy."""
    route = openapi.document()["paths"]["/v1/topics/explain"]["post"]
    body = route["requestBody"]["content"]["application/json"]["example"]
    examples = route["responses"]["200"]["content"]["application/json"]["examples"]
    shown = dict(examples["explained"]["value"])
    topic = {name: value for name, value in body.items() if name != "collection"}
    found = answer(policy={"tenantId": "acme"}, **topic)
    del shown["topic"], found["topic"]
    assert found == shown
    with pytest.raises(Refusal) as caught:
        answer(filter={"note": {"$text": "x"}})
    assert msgspec.to_builtins(refused(caught.value)) == examples["refused"]["value"]


def test_a_bare_topic() -> None:
    """Everything of a collection, with and without images."""
    found = answer()
    assert found["canonical"] == {
        "collection": "orders",
        "filter": {},
        "policyFilter": False,
        "operations": ["insert", "update", "replace", "delete"],
        "fields": {},
        "membership": "exact",
    }
    assert found["index"] == {"lookups": [], "residual": False, "scanned": True, "cost": 0}
    assert found["fidelity"] == {"membership": "exact", "deletes": True}
    assert found["snapshot"] == {"available": True}
    assert answer(images=False)["fidelity"] == {"membership": "partial", "deletes": True}
    assert answer(images=False, policy=POLICY)["fidelity"] == {"membership": "partial", "deletes": False}


def test_equal_topics_get_equal_answers() -> None:
    """However they are spelt."""
    spellings: list[dict[str, Any]] = [
        {
            "filter": {"b": {"$in": [2, 1]}, "a": "x"},
            "fields": {"x": 1, "a": True},
            "operations": ["delete", "insert"],
        },
        {
            "filter": {"$and": [{"a": {"$eq": "x"}}, {"b": {"$in": [1, 2, 1]}}]},
            "fields": {"a": 1.0, "x": {"$numberInt": "1"}, "_id": 1},
            "operations": ["insert", "delete", "insert"],
        },
    ]
    first, second = (answer(**each) for each in spellings)
    assert first == second
    assert first["canonical"]["fields"] == {"a": 1, "x": 1}
    assert first["canonical"]["operations"] == ["insert", "delete"]
    assert first["index"]["lookups"] == [["a", "b"]]


def test_values_are_extended_json() -> None:
    written = {"at": {"$gt": {"$date": "2026-01-01T00:00:00Z"}}, "n": {"$numberLong": "9007199254740993"}}
    assert answer(filter=written)["canonical"]["filter"] == {
        "n": {"$numberLong": "9007199254740993"},
        "at": {"$gt": {"$date": "2026-01-01T00:00:00Z"}},
    }


@pytest.mark.parametrize("images", [True, False])
@pytest.mark.parametrize(
    "topic",
    [{}, {"filter": {"status": "open"}}, {"filter": {"status": {"$gt": 1}}}, {"fields": {"price": 0}}],
)
def test_nothing_of_the_policy_is_shown(topic: dict[str, Any], images: bool) -> None:
    """No path, constant or hidden field that the client did not name itself."""
    found = answer(policy=POLICY, hidden={"margin": 0, "price": 0}, images=images, **topic)
    text = msgspec.json.encode(found).decode()
    for word in ("SECRET", "tenantId", "zone", "41", "margin", *([] if "fields" in topic else ["price"])):
        assert word not in text
    assert found["canonical"]["policyFilter"] is True
    assert found["canonical"]["fields"] == topic.get("fields", {})


SHAPES: list[dict[str, Any]] = [
    {"filter": {"@": 1}},
    {"filter": {"@": {"$in": [1, 2]}, "s": 1}},
    {"filter": {"@": None}},
    {"filter": {"@.x": {"$gt": 1}}},
    {"filter": {"$or": [{"@": 1}, {"@": {"$exists": False}}]}},
    {"filter": {"@": {"$elemMatch": {"x": 1}}}},
    {"fields": {"@": 1}},
    {"fields": {"@": 0}},
    {"fields": {"@.x": 0, "s": 0}},
]


def named(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return {key.replace("@", name): named(item, name) for key, item in value.items()}
    return [named(item, name) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("hidden", [{"price": 0}, {"price": 0, "s": 0}, {"price.x": 0}, {"s": 1}])
@pytest.mark.parametrize("policy", [{}, POLICY])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_hidden_field_is_answered_as_one_that_no_document_has(
    shape: dict[str, Any], policy: dict[str, Any], hidden: dict[str, Any]
) -> None:
    """The two answers differ in the name that the client gave, and in the id that is made of it."""
    found = []
    for name in ("price", "other"):
        each = answer(policy=policy, hidden=hidden, **named(shape, name))
        del each["topic"]
        found.append(msgspec.json.encode(each).decode().replace(name, "@"))
    assert found[0] == found[1]


def test_why_there_is_no_snapshot() -> None:
    """The code and the message that a subscribe would get."""
    refusal = Refusal("snapshot_unavailable", "a snapshot needs all operations: leave topic.operations out")
    found = answer(operations=["insert"], snapshot=refusal)
    assert found["snapshot"] == {"available": False, "code": refusal.code, "message": refusal.message}
