from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import pytest
from bson import Binary, DatetimeMS, Int64, ObjectId
from hypothesis import given
from hypothesis import strategies as st

from feedsvc.core.claim_templates import ClaimValues, Template, TemplateError, compile_template, find_claim
from feedsvc.core.errors import Refusal
from feedsvc.core.extjson import ExtendedJsonError, decode

OID = "0123456789abcdef01234567"
UUID = "12345678-1234-5678-1234-567812345678"

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(), children, max_size=3),
    max_leaves=5,
)


def compiled(source: Mapping[str, Any]) -> Template:
    return compile_template(source, decode)


def fill(source: Mapping[str, Any], subject: str | None = "u1", **claims: Any) -> dict[str, Any]:
    return compiled(source).fill(ClaimValues("t1", subject, claims))


@pytest.mark.parametrize(
    ("written", "claim", "expected"),
    [
        ("{claims.x}", "text", "text"),
        ("{claims.x}", 5, 5),
        ("{claims.x}", 1.5, 1.5),
        ("{claims.x}", False, False),
        ("{claims.x:string}", 5, "5"),
        ("{claims.x:string}", "5", "5"),
        ("{claims.x:int}", "-42", Int64(-42)),
        ("{claims.x:int}", 2**63 - 1, Int64(2**63 - 1)),
        ("{claims.x:oid}", OID, ObjectId(OID)),
        ("{claims.x:uuid}", UUID, Binary.from_uuid(uuid.UUID(UUID))),
        ("{claims.x:date}", 1.5, DatetimeMS(1500)),
        ("{claims.x:date}", "1970-01-01T01:00:00+01:00", DatetimeMS(0)),
        ("a-{claims.x}-{tenant}", 7, "a-7-t1"),
        ("{tenant}", None, "t1"),
        ("{sub}", None, "u1"),
    ],
)
def test_values(written: str, claim: object, expected: object) -> None:
    """A placeholder becomes the claim's value, of the written type."""
    value = fill({"f": written}, x=claim)["f"]
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    ("written", "claim"),
    [
        ("{claims.x}", None),
        ("{claims.x}", {"a": 1}),
        ("{claims.x}", {"$oid": OID}),
        ("{claims.x}", ["a"]),
        ("{claims.x}", []),
        ("{claims.x}", 2**63),
        ("{claims.x}", "\ud800"),
        ("{claims.x:string}", True),
        ("{claims.x:string}", 1.5),
        ("{claims.x:int}", True),
        ("{claims.x:int}", 1.0),
        ("{claims.x:int}", "1.0"),
        ("{claims.x:int}", "٣"),
        ("{claims.x:int}", "9223372036854775808"),
        ("{claims.x:oid}", OID[:-1]),
        ("{claims.x:oid}", 5),
        ("{claims.x:uuid}", "not one"),
        ("{claims.x:uuid}", 5),
        ("{claims.x:date}", "1970-01-01T00:00:00"),
        ("{claims.x:date}", "yesterday"),
        ("{claims.x:date}", True),
        ("{claims.x:date}", 1e300),
        ("a-{claims.x}", True),
        ("a-{claims.x}", ["a"]),
        ("{claims.absent}", "a"),
        ("{claims.x.y}", "a"),
    ],
)
def test_unfit_claims_are_refused(written: str, claim: object) -> None:
    """A claim that is missing, null, an object, an array or of another type refuses the topic, without its value."""
    with pytest.raises(Refusal) as caught:
        fill({"f": written}, x=claim)
    assert caught.value.code == "forbidden"
    assert "claims." in caught.value.message
    assert not isinstance(claim, str) or len(claim) < 3 or claim not in caught.value.message


def test_missing_subject() -> None:
    """A JWT without `sub` cannot use a filter that needs it."""
    with pytest.raises(Refusal, match="sub"):
        fill({"owner": "{sub}"}, subject=None)


@pytest.mark.parametrize("operator", ["$in", "$nin"])
def test_arrays(operator: str) -> None:
    """Behind `$in` and `$nin` an array is spliced, alone or among other values; a single value is a list of one."""
    assert fill({"f": {operator: "{claims.x}"}}, x=["a", 5]) == {"f": {operator: ["a", 5]}}
    assert fill({"f": {operator: ["p", "{claims.x:int}"]}}, x=["1", 2]) == {"f": {operator: ["p", 1, 2]}}
    assert fill({"f": {operator: "{claims.x}"}}, x="a") == {"f": {operator: ["a"]}}
    assert fill({"f": {operator: "{claims.x}"}}, x=[]) == {"f": {operator: []}}
    for unfit in ([None], [["a"]], [{"$gt": ""}], ["a", None], {"$gt": ""}):
        with pytest.raises(Refusal):
            fill({"f": {operator: "{claims.x}"}}, x=unfit)


@pytest.mark.parametrize(
    "source",
    [
        {"f": ["{claims.x}"]},
        {"f": {"$all": ["{claims.x}"]}},
        {"f": {"$eq": "{claims.x}"}},
        {"f": {"$in": [["{claims.x}"]]}},
        {"f": {"$not": {"$eq": "{claims.x}"}}},
        {"$and": [{"f": "{claims.x}"}]},
    ],
)
def test_arrays_elsewhere_are_refused(source: dict[str, Any]) -> None:
    """An array is one value nowhere else, while a scalar is fine there."""
    fill(source, x="a")
    with pytest.raises(Refusal):
        fill(source, x=["a"])


@pytest.mark.parametrize(
    "source",
    [
        {"{claims.x}": 1},
        {"f": {"{tenant}": 1}},
        {"a.{tenant}": 1},
        {"f": {"${tenant}": 1}},
        {"f": {"$regex": "{claims.x}"}},
        {"f": {"$regex": "^{tenant}"}},
        {"f": {"$regularExpression": {"pattern": "{tenant}", "options": ""}}},
        {"f": {"$regex": "a", "$options": "{claims.x}"}},
        {"f": {"$type": "{claims.x}"}},
        {"f": {"$exists": "{claims.x}"}},
        {"f": {"$size": "{claims.x}"}},
        {"f": {"$mod": ["{claims.x}", 1]}},
        {"$where": "{claims.x}"},
        {"$and": ["{claims.x}"]},
        {"$comment": "{tenant}"},
        {"f": "{tenat}"},
        {"f": "{claims.}"},
        {"f": "{claims}"},
        {"f": "{tenant:objectid}"},
        {"f": "a-{tenant:oid}"},
        {"f": "{ tenant }x{user}"},
        {"f": {"$code": "{tenant}"}},
        {1: "x"},
        {"f": {True: "x"}},
        {"f": {1, 2}},
    ],
)
def test_malformed_templates(source: dict[Any, Any]) -> None:
    """Placeholders stand for values only; a misspelt one, and what JSON cannot hold, is a problem at start."""
    with pytest.raises((TemplateError, ExtendedJsonError)):
        compiled(source)


def test_a_placeholder_in_a_wrapper_is_refused() -> None:
    """`{"$oid": "{tenant}"}` is not decoded with a claim inside; the typed placeholder is the way."""
    with pytest.raises(ExtendedJsonError):
        compiled({"f": {"$oid": "{tenant}"}})


def test_braces_that_are_not_placeholders() -> None:
    """Repetition in a regular expression is left alone."""
    assert fill({"f": {"$regex": "^[a-z]{3}{1,2}$"}}) == {"f": {"$regex": "^[a-z]{3}{1,2}$"}}


def test_extended_json_of_the_file_is_decoded() -> None:
    """What the operator wrote in Extended JSON is a BSON value."""
    assert fill({"f": {"$oid": OID}, "n": {"$numberLong": "5"}}) == {"f": ObjectId(OID), "n": Int64(5)}


def test_names() -> None:
    """A claim's exact name comes before the dotted path; names may be URLs."""
    claims: dict[str, Any] = {
        "a.b": 1,
        "a": {"b": 2, "c": {"d": 3}},
        "https://x.example/org": "o",
        "s": "text",
    }
    assert find_claim(claims, "a.b") == 1
    assert find_claim(claims, "a.c.d") == 3
    assert [find_claim(claims, name) for name in ("a.x", "s.t", "z", "a.b.c", "")] == [None] * 5
    assert fill({"f": "{claims.https://x.example/org}"}, **claims) == {"f": "o"}
    assert fill({"f": "{claims.https://x.example/org:string}"}, **claims) == {"f": "o"}


def test_examples_have_the_form_of_filled_documents() -> None:
    """The sample document, which the filter parser checks at start, differs from a filled one in values only."""
    template = compiled({"a": "{tenant:oid}", "b": {"$in": ["x", "{claims.g}"]}, "c": "t-{sub}"})
    assert template.placeholders == 3
    example = template.example()
    assert isinstance(example["a"], ObjectId)
    assert example["b"] == {"$in": ["x", "sample"]}
    assert example["c"] == "t-sample"


@given(json_values)
def test_a_claim_is_a_value_or_nothing(claim: Any) -> None:
    """Whatever a claim holds, the filter keeps its keys, and the claim's place holds a scalar equal to the claim."""
    source = {"owner": "{claims.x}", "$or": [{"g": {"$in": "{claims.x}"}}]}
    try:
        filled = fill(source, x=claim)
    except Refusal:
        # Integers beyond 64 bits and lone surrogates among them; booleans and floats always fit.
        assert not isinstance(claim, (bool, float))
        return
    assert filled == {"owner": claim, "$or": [{"g": {"$in": [claim]}}]}
    assert isinstance(claim, (str, int, float))


@given(st.text(min_size=1).filter(lambda text: text.isprintable()))
def test_operator_like_claims_stay_text(claim: str) -> None:
    """A claim such as `$gt` or `{tenant}` is text, and is not filled in again."""
    for value in (claim, "$" + claim, "{tenant}"):
        assert fill({"f": "{claims.x}", "g": "<{claims.x}>"}, x=value) == {"f": value, "g": f"<{value}>"}
