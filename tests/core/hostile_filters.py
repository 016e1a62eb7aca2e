"""Filters that clients must not send, each with the error it gets: for the tests and for `bench/refusal.py`.

`hostile_filters` are parsed JSON, as they stand in a `subscribe` frame that was read; `HOSTILE_TEXTS` are the JSON of
a filter where it matters how it is written. A frame has at most 64 KiB, so what is larger here meets code that
must not rely on that.
"""

from __future__ import annotations

from typing import Any, NamedTuple

INVALID = "filter_invalid"
UNSUPPORTED = "filter_unsupported"


class Hostile(NamedTuple):
    name: str
    filter: dict[str, Any]
    code: str
    path: str
    """Where the error is told, behind `topic.filter`."""


class HostileText(NamedTuple):
    name: str
    text: str
    code: str
    path: str


def hostile_filters() -> list[Hostile]:
    """Made anew at each call: some take 16 MB."""
    return [*_deep(), *_large(), *_outside(), *_misplaced(), *_keys(), *_extended_json(), *_expressions()]


def _nested(levels: int, operator: str, inner: Any) -> Any:
    for _ in range(levels):
        inner = {operator: [inner]} if operator in ("$and", "$or", "$nor") else {operator: inner}
    return inner


def _elem_matches_in_all(levels: int) -> dict[str, Any]:
    return {"$all": [{"$elemMatch": _elem_matches_in_all(levels - 1)}]} if levels else {}


def _array(levels: int) -> Any:
    inner: Any = []
    for _ in range(levels):
        inner = [inner]
    return inner


def _deep() -> list[Hostile]:
    return [
        Hostile("$and nine levels deep", _nested(9, "$and", {"a": 1}), INVALID, "$and.0" + ".$and.0" * 7),
        Hostile("$nor 90 levels deep", _nested(90, "$nor", {"a": 1}), INVALID, "$nor.0" + ".$nor.0" * 7),
        Hostile("$or 450 levels deep", _nested(450, "$or", {"a": 1}), INVALID, ""),
        Hostile("$not 150 levels deep", {"a": _nested(150, "$not", {"$gt": 1})}, INVALID, "a" + ".$not" * 7),
        Hostile(
            "$elemMatch 150 levels deep",
            {"a": _nested(150, "$elemMatch", {"$gt": 1})},
            INVALID,
            "a" + ".$elemMatch" * 7,
        ),
        Hostile(
            "$all and $elemMatch in turn",
            {"a": _elem_matches_in_all(4)},
            INVALID,
            "a" + ".$all.0.$elemMatch" * 3 + ".$all.0.$elemMatch",
        ),
        Hostile("a literal array 190 levels deep", {"a": _array(190)}, INVALID, "a" + ".0" * 9),
        Hostile("a literal array 900 levels deep", {"a": _array(900)}, INVALID, ""),
        Hostile("a literal document 150 levels deep", {"a": _nested(150, "b", 1)}, INVALID, "a" + ".b" * 9),
    ]


def _large() -> list[Hostile]:
    size = 16 * 2**20
    return [
        Hostile("a string of 16 MB", {"a": "x" * size}, INVALID, ""),
        Hostile("a key of 16 MB", {"x" * size: 1}, INVALID, ""),
        Hostile("an operator of 16 MB", {"a": {"$" + "x" * size: 1}}, INVALID, ""),
        Hostile("an array of 16 MB", {"a": {"$in": [1] * (size // 2)}}, INVALID, ""),
        Hostile("a document of 16 MB", {"a": {str(i): 1 for i in range(size // 12)}}, INVALID, ""),
        Hostile("arrays of arrays of 16 MB", {"a": [[1] * 1000] * (size // 2000)}, INVALID, ""),
        Hostile("a path of 64 KiB", {"a." * 2**15 + "a": 1}, INVALID, ""),
        Hostile("201 values in $in", {"a": {"$in": [1] * 201}}, INVALID, "a.$in"),
        Hostile("201 values in $all", {"a": {"$all": ["x"] * 201}}, INVALID, "a.$all"),
        Hostile("600 clauses", {"$or": [{"a": i} for i in range(600)]}, INVALID, ""),
        Hostile("more than 64 parts of a path", {"a." * 64 + "a": 1}, INVALID, "a." * 64 + "a"),
        Hostile("nine numeric parts of a path", {"0." * 8 + "0": 1}, INVALID, "0." * 8 + "0"),
        Hostile(
            "nine numeric parts around $elemMatch",
            {"0.0.0": {"$elemMatch": {"0.0.0": {"$elemMatch": {"0.0.0": 1}}}}},
            INVALID,
            "0.0.0",
        ),
        Hostile("numeric parts in many paths", {f"{'0.' * 8}{name}": 1 for name in "abcde"}, INVALID, ""),
        Hostile("a number of 4,000 digits", {"a": 10**4000}, INVALID, "a"),
    ]


def _outside() -> list[Hostile]:
    return [
        Hostile("$where", {"$where": "sleep(1e9)"}, UNSUPPORTED, "$where"),
        Hostile("$where under a field", {"a": {"$where": "1"}}, UNSUPPORTED, "a.$where"),
        Hostile(
            "$where in $elemMatch", {"a": {"$elemMatch": {"$where": "1"}}}, UNSUPPORTED, "a.$elemMatch.$where"
        ),
        Hostile(
            "$where behind a field in $elemMatch",
            {"a": {"$elemMatch": {"b": 1, "$where": "1"}}},
            UNSUPPORTED,
            "a.$elemMatch.$where",
        ),
        Hostile(
            "$where behind an operator in $elemMatch",
            {"a": {"$elemMatch": {"$gt": 1, "$where": "1"}}},
            UNSUPPORTED,
            "a.$elemMatch.$where",
        ),
        Hostile(
            "$where in $elemMatch in $all",
            {"a": {"$all": [{"$elemMatch": {"$or": [{"$where": "1"}]}}]}},
            UNSUPPORTED,
            "a.$all.0.$elemMatch.$or.0.$where",
        ),
        Hostile("$where in $not", {"a": {"$not": {"$where": "1"}}}, UNSUPPORTED, "a.$not.$where"),
        Hostile("$where in a literal", {"a": {"b": [{"$where": "1"}]}}, UNSUPPORTED, "a.b.0.$where"),
        Hostile(
            "$expr", {"$expr": {"$function": {"body": "f", "args": [], "lang": "js"}}}, UNSUPPORTED, "$expr"
        ),
        Hostile(
            "$function three levels down",
            {"$and": [{"$or": [{"$nor": [{"$function": {}}]}]}]},
            UNSUPPORTED,
            "$and.0.$or.0.$nor.0.$function",
        ),
        Hostile("$jsonSchema", {"$jsonSchema": {"required": ["a"]}}, UNSUPPORTED, "$jsonSchema"),
        Hostile("$text", {"$text": {"$search": "x"}}, UNSUPPORTED, "$text"),
        Hostile("$near", {"a": {"$near": [0, 0], "$maxDistance": 1}}, UNSUPPORTED, "a.$near"),
        Hostile("$bitsAllSet", {"a": {"$bitsAllSet": 1}}, UNSUPPORTED, "a.$bitsAllSet"),
        Hostile("$comment", {"$comment": "x"}, UNSUPPORTED, "$comment"),
    ]


def _misplaced() -> list[Hostile]:
    return [
        Hostile("an array-like $or", {"$or": {"0": {"a": 1}, "length": 1}}, INVALID, "$or"),
        Hostile("an array-like $and", {"$and": {"0": {"$where": "1"}, "length": 1}}, INVALID, "$and"),
        Hostile(
            "an array-like $nor", {"$and": [{"$nor": {"0": {"a": 1}, "length": 1}}]}, INVALID, "$and.0.$nor"
        ),
        Hostile("an array-like $in", {"a": {"$in": {"0": 1, "length": 1}}}, INVALID, "a.$in"),
        Hostile("an array-like $all", {"a": {"$all": {"0": 1, "length": 1}}}, INVALID, "a.$all"),
        Hostile("an array-like $mod", {"a": {"$mod": {"0": 2, "1": 0, "length": 2}}}, INVALID, "a.$mod"),
        Hostile("an array of $elemMatch", {"a": {"$elemMatch": [{"b": 1}]}}, INVALID, "a.$elemMatch"),
        Hostile("a string as $elemMatch", {"r": {"$elemMatch": "P"}}, INVALID, "r.$elemMatch"),
        Hostile("an array of $not", {"a": {"$not": [{"$gt": 1}]}}, INVALID, "a.$not"),
        Hostile("an array of $size", {"a": {"$size": [1]}}, INVALID, "a.$size"),
        Hostile("an array of $exists", {"a": {"$exists": []}}, INVALID, "a.$exists"),
        Hostile("an array of $regex", {"a": {"$regex": ["x"]}}, INVALID, "a.$regex"),
        Hostile("an array of $options", {"a": {"$regex": "x", "$options": ["i"]}}, INVALID, "a.$options"),
        Hostile("an array of arrays of types", {"a": {"$type": [["int"]]}}, INVALID, "a.$type.0"),
        Hostile("an array in $and", {"$and": [[{"a": 1}]]}, INVALID, "$and.0"),
        Hostile("an operator in $in", {"a": {"$in": [{"$gt": 1}]}}, INVALID, "a.$in.0.$gt"),
        Hostile("an operator in $eq", {"a": {"$eq": {"$ne": None}}}, INVALID, "a.$eq.$ne"),
        Hostile("an operator in an array", {"a": [{"$ne": None}]}, INVALID, "a.0.$ne"),
        Hostile("a field beside an operator", {"a": {"$gt": 1, "b": 2}}, INVALID, "a.b"),
        Hostile("a field's operator at the top", {"$elemMatch": {"a": 1}}, INVALID, "$elemMatch"),
    ]


def _keys() -> list[Hostile]:
    keys = ("", ".", "a.", ".a", "a..b", "a.$b", "a.$where", "a\0", "a.b\0.c", "a.\0")
    return [
        *(Hostile(f"the key {key!r}", {key: 1}, INVALID, "" if "\0" in key else key) for key in keys),
        Hostile("the key '$'", {"$": 1}, UNSUPPORTED, "$"),
        Hostile("the key '$' under a field", {"a": {"$": 1}}, UNSUPPORTED, "a.$"),
        Hostile("the key '$$where'", {"$$where": 1}, UNSUPPORTED, "$$where"),
        Hostile("an operator that ends in NUL", {"$where\0": "1"}, INVALID, ""),
        Hostile("a NUL in a literal's key", {"a": {"b\0": 1}}, INVALID, "a"),
        Hostile("a NUL in $elemMatch", {"a": {"$elemMatch": {"b\0": 1}}}, INVALID, "a.$elemMatch"),
        Hostile("half a surrogate pair in a key", {"a\ud800": 1}, INVALID, ""),
        Hostile("half a surrogate pair in a value", {"a": "\udc00"}, INVALID, ""),
    ]


def _extended_json() -> list[Hostile]:
    return [
        Hostile("a value at the top", {"$oid": "0" * 24}, INVALID, ""),
        Hostile("an ObjectId that is none", {"_id": {"$oid": "xyz"}}, INVALID, "_id.$oid"),
        Hostile("a value beside an operator", {"a": {"$numberInt": "1", "$gt": 1}}, INVALID, "a"),
        Hostile("an operator beside a value", {"a": {"$gt": 1, "$numberInt": "1"}}, INVALID, "a"),
        Hostile("an operator inside a value", {"a": {"$date": {"$gt": 1}}}, INVALID, "a.$date"),
        Hostile("a value as $and", {"$and": {"$numberInt": "1"}}, INVALID, "$and"),
        Hostile("a value as $in", {"a": {"$in": {"$numberLong": "1"}}}, INVALID, "a.$in"),
        Hostile(
            "a value as $elemMatch", {"a": {"$elemMatch": {"$numberLong": "1"}}}, INVALID, "a.$elemMatch"
        ),
        Hostile("a value as a clause", {"$or": [{"$numberLong": "1"}]}, INVALID, "$or.0"),
        Hostile("the old form of binary", {"a": {"$type": "00", "$binary": "eA=="}}, INVALID, "a"),
        Hostile("undefined", {"a": {"$undefined": True}}, INVALID, "a.$undefined"),
        Hostile("a symbol", {"a": {"$in": [{"$symbol": "x"}]}}, INVALID, "a.$in.0.$symbol"),
        Hostile("a DBRef", {"a": {"$ref": "c", "$id": 1}}, UNSUPPORTED, "a.$ref"),
        Hostile(
            "a key too many in a regular expression",
            {"a": {"$regularExpression": {"pattern": "x", "options": "", "$where": "1"}}},
            INVALID,
            "a.$regularExpression",
        ),
        Hostile(
            "a regular expression beside $options",
            {"a": {"$regularExpression": {"pattern": "x", "options": ""}, "$options": "i"}},
            INVALID,
            "a",
        ),
        Hostile("infinity as a number", {"a": float("inf")}, INVALID, ""),
    ]


def _expressions() -> list[Hostile]:
    return [
        Hostile("a back-reference", {"a": {"$regex": r"(a)\1"}}, UNSUPPORTED, "a.$regex"),
        Hostile("a look-ahead", {"a": {"$regex": "(?=a)" * 700}}, UNSUPPORTED, "a.$regex"),
        Hostile("an unknown option", {"a": {"$regex": "a", "$options": "g"}}, INVALID, "a.$regex"),
        Hostile("$options alone", {"a": {"$options": "i"}}, INVALID, "a.$options"),
        Hostile(
            "options twice",
            {"a": {"$regex": {"$regularExpression": {"pattern": "x", "options": "i"}}, "$options": "m"}},
            INVALID,
            "a.$options",
        ),
        Hostile("a NUL in a pattern", {"a": {"$regex": "a\0b"}}, INVALID, "a.$regex"),
        Hostile(
            "1,900 groups in groups", {"a": {"$regex": "(" * 1900 + ")" * 1900}}, UNSUPPORTED, "a.$regex"
        ),
        Hostile("3,800 open groups", {"a": {"$regex": "(" * 3800}}, UNSUPPORTED, "a.$regex"),
        Hostile(
            "repetitions of repetitions", {"a": {"$regex": "((((a{99}){99}){99}){99})"}}, INVALID, "a.$regex"
        ),
        Hostile("many long repetitions", {"a": {"$regex": r"[^x]{900}" * 400}}, INVALID, "a.$regex"),
        Hostile("17 regular expressions", _alternatives(["a"] * 17), INVALID, "$or.16.a.$regex"),
        Hostile(
            "a bad regular expression behind 15 others",
            _alternatives([f"[^a]{{60}}{i}" for i in range(15)] + ["(?=a)"]),
            UNSUPPORTED,
            "$or.15.a.$regex",
        ),
        Hostile(
            "two of the largest regular expressions",
            _alternatives(["[é-\uffff]{416}", r"[\x{800}-\x{fffe}\x{10010}-\x{10ffee}]{312}"]),
            INVALID,
            "$or.1.a.$regex",
        ),
    ]


def _alternatives(patterns: list[str]) -> dict[str, Any]:
    return {"$or": [{"a": {"$regex": pattern}} for pattern in patterns]}


HOSTILE_TEXTS = (
    HostileText("a duplicate key, refused last", '{"a": 1, "a": {"$where": "1"}}', UNSUPPORTED, "a.$where"),
    HostileText("a duplicate operator", '{"$and": [{"a": 1}], "$and": {"0": {}}}', INVALID, "$and"),
    HostileText("an escaped $where", r'{"\u0024where": "1"}', UNSUPPORTED, "$where"),
    HostileText(
        "an escaped $where below",
        r'{"a": {"$elemMatch": {"\u0024\u0077here": "1"}}}',
        UNSUPPORTED,
        "a.$elemMatch.$where",
    ),
    HostileText("an escaped NUL", r'{"a\u0000": 1}', INVALID, ""),
    HostileText("depth 200", '{"$and":[' * 200 + '{"a":1}' + "]}" * 200, INVALID, ""),
)
