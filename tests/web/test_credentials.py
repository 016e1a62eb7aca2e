"""Where credentials may stand in an upgrade, and which origins may send one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedsvc.adapters.web.credentials import check_origin, upgrade_jwt, url_ticket
from feedsvc.core.errors import Refusal
from feedsvc.core.messages import SUBPROTOCOL

ALLOWED = frozenset({"https://app.example", "http://localhost:3000"})
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJ0ZW5hbnQiOiJhIn0.c2lnbmF0dXJl"


def code_of(call: object, *arguments: object) -> str:
    with pytest.raises(Refusal) as refused:
        call(*arguments)  # type: ignore[operator]
    assert JWT not in refused.value.message
    return refused.value.code


@pytest.mark.parametrize("origin", [*sorted(ALLOWED), None])
def test_an_allowed_origin_passes_and_so_does_none(origin: str | None) -> None:
    check_origin({} if origin is None else {"origin": origin}, ALLOWED)


@given(
    st.one_of(
        st.text(),
        st.sampled_from(sorted(ALLOWED)).flatmap(lambda each: st.text(min_size=1).map(each.__add__)),
    )
)
def test_every_other_origin_is_forbidden(origin: str) -> None:
    if origin not in ALLOWED:
        assert code_of(check_origin, {"origin": origin}, ALLOWED) == "forbidden"


def test_without_a_list_no_browser_is_allowed() -> None:
    assert code_of(check_origin, {"origin": "https://app.example"}, frozenset()) == "forbidden"


@pytest.mark.parametrize(
    "query",
    [
        f"jwt={JWT}",
        f"TOKEN={JWT}",
        "access_token=",
        "auth=x",
        f"anything={JWT}",
        f"a=1&b=x{JWT}",
        f"q=%65yJ{JWT[3:]}",
    ],
)
def test_a_jwt_in_the_query_is_refused(query: str) -> None:
    assert code_of(url_ticket, query) == "auth_in_url"


@pytest.mark.parametrize("query", ["", "v=1", "topic=%7B%7D", "x=eyJ", "y=a.b.c"])
def test_other_queries_pass(query: str) -> None:
    assert url_ticket(query) is None


def test_a_ticket_is_taken_once() -> None:
    assert url_ticket("v=1&ticket=a-_b&x=2") == "a-_b"
    assert url_ticket("ticket=") == ""
    assert code_of(url_ticket, "ticket=a&ticket=a") == "bad_request"
    assert code_of(url_ticket, f"ticket={JWT}") == "auth_in_url"


def test_the_jwt_comes_from_the_header_or_the_subprotocol() -> None:
    assert upgrade_jwt([f"Bearer {JWT}"], []) == JWT
    assert upgrade_jwt([f"bearer   {JWT} "], [SUBPROTOCOL]) == JWT
    assert upgrade_jwt([], [f"bearer.{JWT}", SUBPROTOCOL]) == JWT
    assert upgrade_jwt([], [SUBPROTOCOL]) is None
    assert upgrade_jwt([], []) is None


@pytest.mark.parametrize(
    ("authorization", "subprotocols", "code"),
    [
        (["Basic YTpi"], [], "auth_invalid"),
        (["Bearer"], [], "auth_invalid"),
        (["Bearer "], [], "auth_invalid"),
        ([JWT], [], "auth_invalid"),
        ([""], [], "auth_invalid"),
        ([f"Bearer {JWT}", f"Bearer {JWT}"], [], "bad_request"),
        ([f"Bearer {JWT}"], [SUBPROTOCOL, f"bearer.{JWT}"], "bad_request"),
        ([], ["graphql-ws"], "bad_request"),
        ([], [f"bearer.{JWT}"], "bad_request"),
    ],
)
def test_credentials_of_another_form_or_twice_are_refused(
    authorization: list[str], subprotocols: list[str], code: str
) -> None:
    assert code_of(upgrade_jwt, authorization, subprotocols) == code
