"""Random BSON documents, filters and updates, small enough to collide with each other often."""

from __future__ import annotations

from typing import Any

from bson import Binary, Decimal128, Int64, MaxKey, MinKey, ObjectId, Timestamp
from bson.datetime_ms import DatetimeMS
from hypothesis import strategies as st

NAMES = ("a", "b", "c", "0", "1")
DATES = (DatetimeMS(0), DatetimeMS(1704067200123), DatetimeMS(-1))
OBJECT_IDS = tuple(ObjectId(f"{i:024x}") for i in range(3))

SCALARS: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 3),
    st.sampled_from([Int64(1), Int64(2**53 + 1), Int64(2**53), 2.0**53, 0.5, -0.0, 1.0, float("inf")]),
    st.sampled_from(["", "a", "b", "10", "é", "😀"]),
    # Decimals here are integers or halves: the engine calls decimal 0.1 equal to double 0.1, where MongoDB compares
    # exactly (mongo/base/compare_numbers.h), so such pairs have vectors of their own instead.
    st.sampled_from([Decimal128("1"), Decimal128("0.5"), Decimal128("2.0"), Decimal128("-1E+1")]),
    st.sampled_from(OBJECT_IDS),
    st.sampled_from(DATES),
    st.sampled_from([Timestamp(1, 1), Timestamp(1, 2)]),
    st.sampled_from([b"", b"x", Binary(b"x", 128)]),
)
EDGES: st.SearchStrategy[Any] = st.sampled_from([MinKey(), MaxKey(), float("nan"), Decimal128("NaN")])


def documents(values: st.SearchStrategy[Any], max_size: int = 3) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(NAMES), values, max_size=max_size)


VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS, lambda inner: st.one_of(st.lists(inner, max_size=3), documents(inner)), max_leaves=6
)
DOCUMENTS = documents(VALUES, 4)
PATHS: st.SearchStrategy[str] = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map(".".join)


def _condition(operand: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    comparison = st.one_of(
        *(st.fixed_dictionaries({name: operand}) for name in ("$eq", "$ne", "$gt", "$gte", "$lt", "$lte")),
        st.fixed_dictionaries({"$in": st.lists(operand, max_size=3)}),
        st.fixed_dictionaries({"$nin": st.lists(operand, max_size=3)}),
        st.fixed_dictionaries({"$exists": st.booleans()}),
    )
    return st.one_of(comparison, st.fixed_dictionaries({"$not": comparison}), operand)


def _leaves_missing_fields_out(operand: Any) -> bool:
    return operand is not None and not isinstance(operand, (MinKey, MaxKey))


@st.composite
def _clause(draw: st.DrawFn, operand: st.SearchStrategy[Any]) -> dict[str, Any]:
    """One or two fields with a condition each.

    A path that can go through an array by index gets no operand that a missing field can match: behind an index that
    is not there MongoDB has no element at all, so `{"a.1": null}` does not match `{a: []}` (last lines of `more()` in
    mongo/db/matcher/path.cpp), where the engine sees a missing field. `test_filters_compile.py` holds these cases.
    """
    clause: dict[str, Any] = {}
    for _ in range(draw(st.integers(1, 2))):
        path = draw(PATHS)
        indexed = any(part.isdigit() for part in path.split(".")[1:])
        values = operand.filter(_leaves_missing_fields_out) if indexed else operand
        clause[path] = draw(_condition(values))
    return clause


@st.composite
def filters(draw: st.DrawFn, operand: st.SearchStrategy[Any] = VALUES) -> dict[str, Any]:
    """A query document of the supported subset."""
    depth = draw(st.sampled_from((0, 0, 0, 1, 1, 2)))
    return draw(_nested(operand, depth))


@st.composite
def _nested(draw: st.DrawFn, operand: st.SearchStrategy[Any], depth: int) -> dict[str, Any]:
    if not depth:
        return draw(_clause(operand))
    below = draw(st.lists(_nested(operand, depth - 1), min_size=1, max_size=3))
    return {draw(st.sampled_from(["$and", "$or", "$nor"])): below}
