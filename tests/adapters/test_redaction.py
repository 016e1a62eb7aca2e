"""No credential survives redaction, in whatever form it arrives."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedsvc.adapters.telemetry.redaction import REDACTED, is_telling, redacted, redacted_text

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJ0ZW5hbnQiOiJhY21lIn0.c2lnbmF0dXJl-_x"


@pytest.mark.parametrize(
    "text",
    [
        JWT,
        f"subprotocol feedsvc.v1, bearer.{JWT}",
        f"Authorization: Bearer {JWT}",
        f"GET /v1/ws?jwt={JWT}&x=1",
        f'{{"type":"auth","jwt":"{JWT}"}}',
        f"cut off: {JWT[:30]}",
    ],
)
def test_a_jwt_is_cut_out_of_any_text(text: str) -> None:
    clean = redacted_text(text)
    assert "eyJ" not in clean and JWT[10:20] not in clean
    assert REDACTED in clean


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("mongodb://app:hunter22@db1,db2/?replicaSet=rs0", "hunter22"),
        ("mongodb+srv://app:p@ss/word@db.example", "p@ss/word"),
        ("http://user@host/ failed", "user@"),
        ('"WebSocket /v1/ws?ticket=Zm9vYmFy" [accepted]', "Zm9vYmFy"),
        ("authorization: Basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
        ("bearer opaque-credential-1", "opaque-credential-1"),
        ("resume_token=AAECAwQF", "AAECAwQF"),
        ("FEEDSVC_JWT_SECRET=correct-horse", "correct-horse"),
        ('{"password": "hunter22"}', "hunter22"),
        ("closed: AbC3" + "dEf-6_hIj9" * 4, "dEf-6_hIj9"),
        ("key q83v" + "Zm9vYmFyCg0" * 4 + "==", "Zm9vYmFy"),
    ],
)
def test_other_credentials_are_cut_out_of_texts(text: str, secret: str) -> None:
    assert secret not in redacted_text(text)


@pytest.mark.parametrize(
    "text",
    [
        "connection closed: 4201 slow_consumer",
        "mongodb://db1:27017,db2:27017/?replicaSet=rs0",
        "the resume token does not open; drop it and start anew",
        "collection orders, topic Yk3vQ2",
        "topic Yk3vQ2Yk3vQ2Yk3vQ2Yk",
        "in test_one_that_fell_off_the_log_is_served_from_the_oplog",
        "sha256 " + "0123456789abcdef" * 4,
        "SOME_CONSTANT_WITH_A_VERY_LONG_NAME_OF_50_CHARACTERS",
    ],
)
def test_what_holds_no_credential_stays_as_it_is(text: str) -> None:
    assert redacted_text(text) == text


@pytest.mark.parametrize(
    "key",
    [
        "jwt",
        "ticket",
        "Authorization",
        "resumeToken",
        "resume_token",
        "FEEDSVC_JWT_SECRET",
        "tokenKeys",
        "apiKey",
    ],
)
def test_a_value_under_a_telling_name_is_replaced_whole(key: str) -> None:
    assert is_telling(key)
    assert redacted({"outer": [{key: "plain words"}]}) == {"outer": [{key: REDACTED}]}


@pytest.mark.parametrize(
    "key", ["code", "topic", "tokenizer", "scope", "tickets_sold_out".replace("tickets", "x")]
)
def test_other_names_keep_their_values(key: str) -> None:
    assert redacted({key: "plain words"}) == {key: "plain words"}


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner),
        max_leaves=20,
    ),
    st.integers(0, 12),
)
def test_anything_becomes_json_and_a_planted_jwt_is_never_in_it(value: object, depth: int) -> None:
    planted: object = {"x": value, "y": f"before {JWT} after"}
    for _ in range(depth):
        planted = [planted]
    assert "eyJ" not in json.dumps(redacted(planted))


@pytest.mark.parametrize(
    "unit", ["a-", "a", "://", "eyJ", "eyJ.", "token", "x://a", "bearer ", "@", "aB3-", "a" * 39 + " "]
)
def test_no_text_takes_long(unit: str) -> None:
    """A peer chooses some of what is logged; measured in CPU time, some 20 times the usual."""
    started = time.process_time()
    redacted_text(unit * 20_000)
    assert time.process_time() - started < 2.0
