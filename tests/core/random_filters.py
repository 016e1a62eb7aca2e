"""Random documents and filters of the whole language but regular expressions, from a `random.Random`.

Names are few, values collide often and arrays of documents are common; a filter mostly asks for what one of the given
documents holds somewhere, or hardly anything would match. A seed, not hypothesis: against a server shrinking costs
minutes, and thousands of filters have to be made in a second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from bson import Decimal128, Int64, MaxKey, MinKey

from feedsvc.core.filters.types import ALIASES, CODES, type_code
from tests.core.bson_strategies import DATES, NAMES, OBJECT_IDS

SCALARS: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        -2,
        -1,
        0,
        1,
        2,
        3,
        Int64(1),
        Int64(2**53),
        Int64(2**53 + 1),
        2.0**53,
        0.5,
        -0.0,
        1.0,
        2.5,
    ),
    *(2.0**63, 0.1, Decimal128("0.1"), Decimal128("1"), Decimal128("0.5"), Decimal128("-1E+1"), float("inf")),
    *(
        float("nan"),
        Decimal128("NaN"),
        "",
        "a",
        "b",
        "10",
        "é",
        OBJECT_IDS[0],
        *DATES,
        b"",
        b"x",
        MinKey(),
        MaxKey(),
    ),
)
_COMPARISONS = ("$eq", "$eq", "$ne", "$gt", "$gte", "$lt", "$lte")
_LOGICAL = ("$and", "$or", "$nor")


def random_document(rng: Random) -> dict[str, Any]:
    return {name: _value(rng, 3) for name in rng.sample(NAMES, rng.randint(1, 4))}


def _value(rng: Random, depth: int) -> Any:
    kind = rng.random()
    if not depth or kind < 0.35:
        return rng.choice(SCALARS)
    if kind < 0.55:
        return {name: _value(rng, depth - 1) for name in rng.sample(NAMES, rng.randint(0, 3))}
    if kind < 0.8:
        names = rng.sample(NAMES, 2)
        return [{name: _value(rng, depth // 2) for name in names} for _ in range(rng.randint(0, 3))]
    if kind < 0.9:
        return [_value(rng, depth - 1) for _ in range(rng.randint(0, 3))]
    return [[_value(rng, 0) for _ in range(rng.randint(0, 2))] for _ in range(rng.randint(1, 3))]


def random_filter(rng: Random, documents: Sequence[dict[str, Any]], depth: int = 2) -> dict[str, Any]:
    """A query document that is meant for these documents, of which there is at least one."""
    if depth and rng.random() < 0.3:
        clauses = [random_filter(rng, documents, depth - 1) for _ in range(rng.randint(1, 3))]
        return {rng.choice(_LOGICAL): clauses}
    query: dict[str, Any] = {}
    for _ in range(rng.choice((1, 1, 2))):
        path, value = _place(rng, rng.choice(documents))
        query[path] = value if rng.random() < 0.1 else _operators(rng, value, depth)
    return query


def _place(rng: Random, document: dict[str, Any]) -> tuple[str, Any]:
    """A path, and what stands there in some reading, or another value where nothing does."""
    if rng.random() < 0.2 or not document:
        return ".".join(rng.choices(NAMES, k=rng.choice((1, 2, 3)))), rng.choice(SCALARS)
    value: Any = document
    parts: list[str] = []
    while not parts or rng.random() < 0.6:
        if isinstance(value, list) and value:
            index = rng.randrange(len(value))
            value = value[index]
            if not isinstance(value, dict) or rng.random() < 0.3:
                parts.append(str(index))
        elif isinstance(value, dict) and value:
            name = rng.choice(list(value))
            value = value[name]
            parts.append(name)
        else:
            break
    return ".".join(parts), value


def _operators(rng: Random, value: Any, depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(rng.choice((1, 1, 1, 2))):
        operator = rng.choice(_FLAT if not depth else _FOR_ARRAYS if isinstance(value, list) else _FOR_ANY)
        found |= operator(rng, value, depth)
    return found


def _operand(rng: Random, value: Any) -> Any:
    """The value, one of its elements, or any."""
    if isinstance(value, list) and value and rng.random() < 0.5:
        value = rng.choice(value)
    return value if rng.random() < 0.7 else rng.choice(SCALARS)


def _compared(rng: Random, value: Any, depth: int) -> dict[str, Any]:
    return {rng.choice(_COMPARISONS): _operand(rng, value)}


def _among(rng: Random, value: Any, depth: int) -> dict[str, Any]:
    return {rng.choice(("$in", "$in", "$nin")): [_operand(rng, value) for _ in range(rng.randint(0, 3))]}


def _exists(rng: Random, value: Any, depth: int) -> dict[str, Any]:
    return {"$exists": rng.random() < 0.7}


def _type(rng: Random, value: Any, depth: int) -> dict[str, Any]:
    types: list[Any] = rng.choices((*ALIASES, *CODES), k=rng.randint(0, 4))
    if not types or rng.random() < 0.5:
        types.append(type_code(_operand(rng, value)))
    return {"$type": types if len(types) > 1 else types[0]}


def _mod(rng: Random, value: Any, depth: int) -> dict[str, Any]:
    return {"$mod": [rng.choice((2, 3, -2, 2.5, Int64(2**53))), rng.choice((0, 0, 1, -1, 2.0))]}


def _size(rng: Random, value: Any, depth: int) -> dict[str, Any]:
    return {"$size": len(value) if isinstance(value, list) and rng.random() < 0.7 else rng.randint(0, 3)}


def _not(rng: Random, value: Any, depth: int) -> dict[str, Any]:
    return {"$not": _operators(rng, value, depth - 1)}


def _all(rng: Random, value: Any, depth: int) -> dict[str, Any]:
    if rng.random() < 0.3:
        return {"$all": [_elem_match(rng, value, depth) for _ in range(rng.randint(1, 2))]}
    return {"$all": [_operand(rng, value) for _ in range(rng.randint(0, 2))]}


def _elem_match(rng: Random, value: Any, depth: int) -> dict[str, Any]:
    elements = value if isinstance(value, list) and value else [rng.choice(SCALARS)]
    arrays = [element for element in elements if isinstance(element, list)]
    if arrays and rng.random() < 0.5:
        elements = arrays
    documents = [element for element in elements if isinstance(element, dict)]
    if rng.random() < 0.05:
        return {"$elemMatch": {}}
    if rng.random() < (0.8 if documents else 0.1):
        return {"$elemMatch": random_filter(rng, documents or [{}], depth - 1)}
    return {"$elemMatch": _operators(rng, rng.choice(elements), depth - 1)}


_Operator = Callable[[Random, Any, int], dict[str, Any]]
_FLAT: tuple[_Operator, ...] = (_compared, _compared, _among, _exists, _type, _mod, _size)
_FOR_ANY: tuple[_Operator, ...] = (*_FLAT, _all, _not, _elem_match)
_FOR_ARRAYS: tuple[_Operator, ...] = (*_FOR_ANY, _size, _all, _elem_match, _elem_match, _elem_match)
