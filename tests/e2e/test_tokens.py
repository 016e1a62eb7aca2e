"""Resume tokens that do not open, and those that open but belong elsewhere (protocol.md sections 5 and 6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.conftest import Documents, StartService
from tests.support.service import Client, Service, client_of, token_key

ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

DAMAGED: dict[str, Callable[[str], str]] = {
    "empty": lambda token: "",
    "hand-made": lambda token: "not-a-token",
    "an upstream token": lambda token: "8264F1A2B3000000012B022C0100296E5A1004",
    "spaces": lambda token: f" {token}",
    "padded": lambda token: token + "=",
    "not ASCII": lambda token: token[:-1] + "\u00e9",
    "half": lambda token: token[: len(token) // 2],
    "one character less": lambda token: token[:-1],
    "one character more": lambda token: token + "A",
    "twice": lambda token: token + token,
    "other case": lambda token: token.swapcase(),
    "over-long": lambda token: token + "A" * 1024,
    "almost a whole frame": lambda token: "A" * 60_000,
}


@pytest.fixture(scope="module")
def service(start_for_module: StartService) -> Service:
    return start_for_module()


@pytest.fixture
async def held(service: Service, database: Documents, fresh_database: str) -> str:
    """A good resume token of the topic `orders` with a missed insert of `_id` 2 behind it."""
    async with client_of(service, fresh_database) as client:
        topic = (await client.subscribe("orders"))["topic"]
        database["orders"].insert_one({"_id": 1})
        await client.events(1)
        token = client.tokens[topic]
    database["orders"].insert_one({"_id": 2})
    return token


async def refused(client: Client, token: Any, code: str = "token_invalid") -> None:
    await client.send(
        {"type": "subscribe", "id": "bad", "topic": {"collection": "orders"}, "resumeAfter": token}
    )
    answer = await client.until(lambda frame: frame.get("id") == "bad")
    assert (answer["type"], answer["code"], answer["retryable"]) == ("error", code, False), token


async def still_serves(client: Client, database: Documents, number: int) -> None:
    """The connection answers and its other subscription goes on."""
    await client.send({"type": "ping"})
    await client.until("pong")
    database["others"].insert_one({"_id": number})
    assert (await client.events(1))[0]["documentKey"] == {"_id": number}


async def test_a_damaged_token_is_token_invalid_and_disturbs_nothing(
    service: Service, database: Documents, fresh_database: str, held: str
) -> None:
    async with client_of(service, fresh_database) as client:
        await client.subscribe("others")
        for number, damage in enumerate(DAMAGED.values()):
            await refused(client, damage(held))
            await still_serves(client, database, number)
        await client.subscribe("orders", resumeAfter=held)
        assert [frame["event"]["documentKey"] for frame in client.seen if frame["type"] == "event"][-1] == {
            "_id": 2
        }


async def test_every_flipped_character_makes_a_token_invalid(
    service: Service, database: Documents, fresh_database: str, held: str
) -> None:
    for start in range(0, len(held), 90):  # below the 100 errors after which a connection is closed
        async with client_of(service, fresh_database) as client:
            for place in range(start, min(start + 90, len(held))):
                flipped = ALPHABET[ALPHABET.index(held[place]) ^ 1]
                await refused(client, held[:place] + flipped + held[place + 1 :])


@pytest.mark.parametrize("value", [None, 7, ["a"], {}])
async def test_a_token_that_is_no_string_is_a_bad_request(
    service: Service, fresh_database: str, value: object
) -> None:
    async with client_of(service, fresh_database) as client:
        await refused(client, value, "bad_request")
        await client.subscribe("orders")


async def test_a_token_of_another_tenant_does_not_open(
    service: Service, database: Documents, fresh_database: str, held: str
) -> None:
    async with client_of(service, f"{fresh_database}x") as client:
        await refused(client, held)
        await client.subscribe("orders")
        assert "event" not in {frame["type"] for frame in client.seen}


async def test_a_token_of_a_key_that_is_not_configured_does_not_open(
    start_service: StartService, fresh_database: str, held: str
) -> None:
    async with client_of(start_service(token_keys=token_key()), fresh_database) as client:
        await refused(client, held)


@pytest.mark.parametrize("way", ["resumeAfter", "startAfter"])
@pytest.mark.parametrize(
    ("collection", "topic"),
    [
        ("orders", {"filter": {"n": 1}}),
        ("orders", {"fields": {"n": 1}}),
        ("orders", {"operations": ["insert"]}),
        ("invoices", {}),
    ],
    ids=["filter", "fields", "operations", "collection"],
)
async def test_a_token_of_another_topic_gets_topic_changed_and_a_token_that_resumes(
    service: Service,
    database: Documents,
    fresh_database: str,
    held: str,
    collection: str,
    topic: dict[str, Any],
    way: str,
) -> None:
    async with client_of(service, fresh_database) as client:
        subscribed = await client.subscribe(collection, expect="", **topic, **{way: held})
        assert subscribed["resumed"] is False
        assert "token" not in subscribed
        resync = await client.receive()
        assert (resync["type"], resync["reason"]) == ("resync", "topic_changed")
        assert resync["topic"] == subscribed["topic"]
        assert (await client.receive())["type"] == "live"
    database[collection].insert_one({"_id": 3, "n": 1})
    async with client_of(service, fresh_database) as client:
        subscribed = await client.subscribe(collection, resumeAfter=resync["token"], **topic)
        assert subscribed["resumed"] is True
        keys: list[int] = []
        while 3 not in keys:
            keys = [event["documentKey"]["_id"] for event in await client.replayed(len(keys) + 1)]
        assert keys in ([3], [2, 3])  # the head that the resync told may have stood before the insert of 2


@pytest.mark.parametrize("change", [{"source_epoch": "restored"}, {"tail_scope": "collection"}], ids=str)
async def test_a_token_of_another_source_gets_source_changed(
    start_service: StartService,
    service: Service,
    database: Documents,
    fresh_database: str,
    held: str,
    change: dict[str, str],
) -> None:
    other = start_service(token_keys=service.token_keys, **change)
    async with client_of(other, fresh_database) as client:
        subscribed = await client.subscribe("orders", resumeAfter=held, expect="")
        resync = await client.receive()
        assert (subscribed["resumed"], resync["type"], resync["reason"]) == (
            False,
            "resync",
            "source_changed",
        )
    database["orders"].insert_one({"_id": 3})
    async with client_of(other, fresh_database) as client:
        assert (await client.subscribe("orders", resumeAfter=resync["token"]))["resumed"] is True
