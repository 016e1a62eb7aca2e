"""Topics: canonical form, topic id, binding, and what a client's filter can see."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from feedsvc.core.errors import Refusal
from feedsvc.core.messages import Fidelity, TopicRequest
from feedsvc.core.policy import Grant
from feedsvc.core.tokens import BINDING_BYTES
from feedsvc.core.topics import Topic, _packed, effective_topic

GRANT = Grant("acme", "app_acme", "orders", {}, {}, False)


def grant(**changes: Any) -> Grant:
    values = {name: getattr(GRANT, name) for name in Grant.__struct_fields__} | changes
    return Grant(**values)


def topic(
    filter: dict[str, Any] | None = None,
    fields: dict[str, Any] | None = None,
    operations: list[Any] | None = None,
    *,
    images: bool = True,
    **changes: Any,
) -> Topic:
    request = TopicRequest(
        "orders",
        filter=filter or {},
        fields=fields or {},
        operations=UNSET if operations is None else operations,
    )
    return effective_topic(grant(**changes), request, images=images)


def refusal(*args: Any, **kwargs: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        topic(*args, **kwargs)
    return caught.value


CLAUSES: list[dict[str, Any]] = [
    {"status": "open"},
    {"total": {"$gte": 10, "$lt": 20}},
    {"$or": [{"a": 1}, {"b": {"$in": ["x", "y"]}}]},
    {"tags": {"$exists": True}},
]


@pytest.mark.parametrize("order", list(itertools.permutations(CLAUSES)))
def test_the_order_of_clauses_makes_no_other_topic(order: tuple[dict[str, Any], ...]) -> None:
    """The same query written in any order is one topic: equal, of one id, with one binding."""
    first, second = topic({"$and": CLAUSES}), topic({"$and": list(order)})
    assert first == second
    assert hash(first) == hash(second)
    assert (first.topic_id, first.binding, first.canonical) == (
        second.topic_id,
        second.binding,
        second.canonical,
    )


@pytest.mark.parametrize(
    "one, other",
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"a": 1}, {"a": {"$eq": 1}}),
        ({"a": 1}, {"a": {"$numberLong": "1"}}),
        ({"a": {"$in": [1, 2]}}, {"a": {"$in": [2, 1, 2]}}),
        ({"a": {"$gt": 1, "$lt": 5}}, {"$and": [{"a": {"$lt": 5}}, {"a": {"$gt": 1}}]}),
        ({}, {"$and": [{}]}),
    ],
)
def test_spellings_of_one_filter(one: dict[str, Any], other: dict[str, Any]) -> None:
    """What no query can tell apart shares a stream."""
    assert topic(one) == topic(other)


@pytest.mark.parametrize(
    "one, other",
    [
        ({"a": 1, "b": True}, {"b": 1, "a": 1}),
        ({"_id": 1, "a": 1}, {"a": 1}),
        ({"a": {"$numberInt": "1"}}, {"a": 1}),
        ({"a": 0, "b": 0}, {"b": False, "a": 0.0}),
    ],
)
def test_spellings_of_one_projection(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Order, the implied `_id`, and the type of 0 and 1 make no difference; canonical Extended JSON is read."""
    assert topic(fields=one) == topic(fields=other)


def test_spellings_of_the_operations() -> None:
    """Order and repetition make no difference, and all of them is the default."""
    assert topic(operations=["delete", "insert", "insert"]) == topic(operations=["insert", "delete"])
    assert topic(operations=["delete", "insert", "replace", "update"]) == topic()


def test_each_part_makes_another_topic() -> None:
    """Tenant, database, collection, both filters, both projections, operations and image mode are all in the id."""
    request = TopicRequest("orders")
    different = [
        topic(),
        topic(tenant="acme2"),
        topic(database="app_acme2"),
        topic(collection="orders2"),
        topic({"a": 1}),
        topic({"a": "1"}),
        topic(fields={"a": 1}),
        topic(fields={"a": 0}),
        topic(operations=["insert"]),
        topic(images=False),
        effective_topic(grant(filter={"a": 1}), request, images=True),
        effective_topic(grant(fields={"a": 0}), request, images=True),
    ]
    assert len({one.topic_id for one in different}) == len(different)
    assert len({one.canonical for one in different}) == len(different)


def test_the_policy_and_the_client_are_told_apart() -> None:
    """A clause of the policy is not the same clause of the client: the latter may not be enforced on a later day."""
    of_policy = effective_topic(grant(filter={"a": 1}), TopicRequest("orders"), images=True)
    of_client = effective_topic(GRANT, TopicRequest("orders", filter={"a": 1}), images=True)
    hidden = effective_topic(grant(fields={"a": 0}), TopicRequest("orders"), images=True)
    not_wanted = effective_topic(GRANT, TopicRequest("orders", fields={"a": 0}), images=True)
    assert len({one.topic_id for one in (of_policy, of_client, hidden, not_wanted)}) == 4
    assert of_policy.binding != of_client.binding
    assert not_wanted.binding != hidden.binding


def test_the_binding_leaves_out_the_policys_projection_and_the_image_mode() -> None:
    """Hiding one more field, or switching images on, makes another topic but resyncs nobody."""
    request = TopicRequest("orders", filter={"a": 1}, fields={"b": 0})
    topics = [
        effective_topic(grant(fields=fields), request, images=images)
        for fields in ({}, {"cost": 0}, {"a": 1, "b": 1})
        for images in (True, False)
    ]
    assert len({one.binding for one in topics}) == 1
    assert len({one.topic_id for one in topics}) == 6


def test_the_binding_differs_by_everything_else() -> None:
    """A token of another tenant, collection, filter, projection or operations is `topic_changed`."""
    different = [
        topic(),
        topic(tenant="acme2"),
        topic(database="app_acme2"),
        topic(collection="orders2"),
        effective_topic(grant(filter={"a": 1}), TopicRequest("orders"), images=True),
        topic({"a": 1}),
        topic(fields={"a": 1}),
        topic(operations=["insert"]),
    ]
    assert len({one.binding for one in different}) == len(different)
    assert {len(one.binding) for one in different} == {BINDING_BYTES}


def test_a_topic_id_is_short_and_url_safe() -> None:
    """It stands in every frame, and in URLs."""
    assert len(topic().topic_id) == 20
    assert topic().topic_id.replace("-", "a").replace("_", "a").isalnum()


def test_names_of_a_release_are_frozen() -> None:
    """Id and binding are the same on all instances of one configuration, and tokens outlive a release."""
    one = topic({"status": "open"}, {"total": 1}, ["insert", "update"])
    assert (one.topic_id, one.binding.hex()) == ("OAgGEFtgpM1KAZyM--cn", "2940261ed98ca1aefcc51ff68cb6463d")


@given(st.lists(st.binary(max_size=6), max_size=5), st.lists(st.binary(max_size=6), max_size=5))
def test_packing_is_injective(one: list[bytes], other: list[bytes]) -> None:
    """Wherever one part ends and the next begins, other parts give other bytes."""
    assert (_packed(*one) == _packed(*other)) == (one == other)


@pytest.mark.parametrize(
    "tenant, database, collection", [("a", "bc", "d"), ("ab", "c", "d"), ("a", "b", "cd"), ("", "abc", "d")]
)
def test_names_do_not_run_into_each_other(tenant: str, database: str, collection: str) -> None:
    """The boundary between two names is part of the topic."""
    one = topic(tenant=tenant, database=database, collection=collection)
    assert one.topic_id != topic(tenant="abc", database="", collection="d").topic_id


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("filter_unsupported", {"filter": {"$where": "1"}}),
    ("filter_unsupported", {"filter": {"a": {"$bitsAllSet": 1}}}),
    ("filter_invalid", {"filter": {"$and": {}}}),
    ("filter_invalid", {"filter": {"a": {"$in": 1}}}),
    ("filter_invalid", {"filter": {"a": {"$oid": "xyz"}}}),
    ("filter_invalid", {"filter": {"$numberInt": "1"}}),
    ("filter_invalid", {"filter": {"a": "x" * 5000}}),
    ("bad_request", {"fields": {"a": 1, "b": 0}}),
    ("bad_request", {"fields": {"a": 2}}),
    ("bad_request", {"fields": {"_id": 0}}),
    ("bad_request", {"fields": {"a.$": 1}}),
    ("bad_request", {"fields": {"$numberInt": "1"}}),
    ("bad_request", {"fields": {"a": {"$oid": "xyz"}}}),
    ("bad_request", {"operations": []}),
]


@pytest.mark.parametrize("code, request_", REFUSED, ids=[str(request)[:40] for _, request in REFUSED])
def test_a_bad_request_has_its_code_and_names_the_field(code: str, request_: dict[str, Any]) -> None:
    """Each mistake of a client is told with the registry's code and the field."""
    found = refusal(**request_)
    assert found.code == code
    assert f"topic.{next(iter(request_))}" in found.message


def test_deep_nesting_is_refused() -> None:
    """Also where JSON could still carry it."""
    deep: dict[str, Any] = {}
    for _ in range(500):
        deep = {"a": deep}
    assert refusal(deep).code == "filter_invalid"
    assert refusal(fields=deep).code == "bad_request"


def test_a_policy_filter_needs_images() -> None:
    """Deletes and moves away cannot be sent safely without them, so it is refused unless the policy allows it."""
    filtered = grant(filter={"tenantId": "acme"})
    with pytest.raises(Refusal) as caught:
        effective_topic(filtered, TopicRequest("orders"), images=False)
    assert caught.value.code == "images_required"
    assert effective_topic(filtered, TopicRequest("orders"), images=True).fidelity == Fidelity("exact", True)
    allowed = effective_topic(
        grant(filter={"tenantId": "acme"}, allow_partial=True), TopicRequest("orders"), images=False
    )
    assert allowed.fidelity == Fidelity("partial", False)
    assert topic(images=False).fidelity == Fidelity("partial", True)
    assert topic(images=True).fidelity == Fidelity("exact", True)


def test_a_hidden_field_cannot_be_probed() -> None:
    """The client's filter sees the document behind the policy's projection: whatever it asks, the field is missing."""
    cheap, dear = {"_id": 1, "a": 1, "cost": 1}, {"_id": 1, "a": 1, "cost": 1000}
    probes: list[dict[str, Any]] = [
        {"cost": 1},
        {"cost": {"$gt": 5}},
        {"cost": {"$in": [1, 1000]}},
        {"cost": {"$exists": True}},
        {"$nor": [{"cost": {"$lt": 5}}]},
        {"cost": {"$ne": 1}},
        {"$or": [{"cost": 1}, {"a": 2}]},
    ]
    for probe in probes:
        one = effective_topic(grant(fields={"cost": 0}), TopicRequest("orders", filter=probe), images=True)
        assert one.matches(cheap) == one.matches(dear) == one.matches({"_id": 1, "a": 1}), probe


def test_the_policys_filter_sees_the_whole_document() -> None:
    """It may use a field that it hides; the client's own projection hides nothing from the client's filter."""
    one = effective_topic(
        grant(filter={"cost": {"$lt": 5}}, fields={"cost": 0}),
        TopicRequest("orders", filter={"a": 1}, fields={"b": 1}),
        images=True,
    )
    assert one.matches({"_id": 1, "a": 1, "cost": 1})
    assert not one.matches({"_id": 1, "a": 1, "cost": 9})
    assert not one.matches({"_id": 1, "a": 2, "cost": 1})


def test_matches_all_only_where_both_filters_are_empty() -> None:
    """An empty filter matches everything; one clause anywhere is not everything."""
    assert topic().matches_all
    assert topic().matches({"_id": 1})
    assert not topic({"a": 1}).matches_all
    assert not effective_topic(grant(filter={"a": 1}), TopicRequest("orders"), images=True).matches_all


def test_the_projection_is_the_policys_first() -> None:
    """A client cannot ask back what the policy hides."""
    one = effective_topic(
        grant(fields={"cost": 0}), TopicRequest("orders", fields={"cost": 1, "a": 1}), images=True
    )
    assert one.projection.apply({"_id": 1, "a": 1, "b": 2, "cost": 3}) == {"_id": 1, "a": 1}


def test_what_a_client_writes_is_bounded_before_it_is_read() -> None:
    """4 KiB as sent: a filter that is short only in canonical form, and a projection, are kept and worked with for as
    long as the subscription lasts."""
    spelt_out = {"$and": [{"a": 1}] * 600}
    assert (refusal(spelt_out).code, refusal(spelt_out).message) == (
        "filter_invalid",
        "topic.filter: must not be longer than 4096 bytes",
    )
    assert topic({"$and": [{"a": 1}] * 400}).canonical == topic({"a": 1}).canonical
    many = {f"field{number}": 0 for number in range(400)}
    assert (refusal(fields=many).code, refusal(fields=many).message) == (
        "bad_request",
        "topic.fields: must not be longer than 4096 bytes",
    )
    assert topic(fields=dict(list(many.items())[:200])).projection.apply({"field1": 1, "x": 2}) == {"x": 2}
