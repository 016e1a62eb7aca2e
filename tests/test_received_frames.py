"""Every frame that a test receives is held against openapi.yaml, and one that is wrong fails the test."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve

from feedsvc.openapi import document
from tests.support.frames import CheckedConnection, received, received_status
from tests.support.service import Client
from tests.support.sse import Stream

TESTS = Path(__file__).parent

EVENT: dict[str, Any] = {
    "type": "event",
    "topic": "Yk3v",
    "event": {
        "_id": "token",
        "operationType": "update",
        "clusterTime": {"$timestamp": {"t": 1, "i": 2}},
        "ns": {"coll": "orders"},
        "documentKey": {"_id": 1},
        "fullDocument": {"_id": 1, "anything": [None, {"of": "the user"}]},
        "membership": "stayed",
    },
}


def changed(**event: Any) -> str:
    return json.dumps({**EVENT, "event": {**EVENT["event"], **event}})


WRONG = {
    "another type": json.dumps({"type": "subscribe", "id": "a", "topic": {"collection": "c"}}),
    "a field that is missing": json.dumps({"type": "event", "topic": "Yk3v"}),
    "a field that nobody knows": json.dumps({**EVENT, "shard": 1}),
    "an inner field that nobody knows": changed(shard=1),
    "a value that is not of the list": changed(operationType="modify"),
    "null for what is absent": changed(fullDocument=None),
    "a value of another type": changed(truncated="yes"),
    "a number below its bound": changed(clusterTime={"$timestamp": {"t": -1, "i": 2}}),
    "a code that is not in the registry": json.dumps(
        {"type": "error", "code": "oops", "message": "m", "retryable": False}
    ),
}


def test_a_frame_of_the_service_passes() -> None:
    assert received(changed()) == EVENT
    assert received(b'{"type":"pong"}', event="pong") == {"type": "pong"}


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_frame_does_not(text: str) -> None:
    with pytest.raises(AssertionError):
        received(text)


def test_a_status_is_held_against_its_schema_too() -> None:
    example = document()["paths"]["/v1/status"]["get"]["responses"]["200"]["content"]["application/json"][
        "example"
    ]
    assert received_status(json.dumps(example), event="status") == example
    for wrong in ({**example, "state": "tired"}, {**example, "secret": 1}, {"state": "serving"}):
        with pytest.raises(AssertionError):
            received_status(json.dumps(wrong), event="status")


def test_an_event_has_the_name_of_its_frame() -> None:
    with pytest.raises(AssertionError):
        received('{"type":"pong"}', event="event")


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG.keys())
async def test_a_client_that_is_sent_a_wrong_frame_fails_its_test(text: str) -> None:
    """Over a WebSocket, and behind a right frame."""

    async def wrong(socket: ServerConnection) -> None:
        await socket.send(changed())
        await socket.send(text)
        await socket.wait_closed()

    async with serve(wrong, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        async with connect(f"ws://127.0.0.1:{port}", proxy=None) as socket:
            client = Client(socket)
            assert await client.receive() == EVENT
            with pytest.raises(AssertionError):
                await client.receive()


async def test_a_stream_that_carries_a_wrong_frame_fails_its_test() -> None:
    """Behind a right one; and one whose event has another name."""
    right, wrong = changed(), WRONG["null for what is absent"]
    for last in (f"event: event\ndata: {wrong}\n\n", f"event: snapshot\ndata: {right}\n\n"):
        stream = Stream(httpx.Response(200, text=f"event: event\ndata: {right}\n\n{last}"))
        assert await stream.receive() == EVENT
        with pytest.raises(AssertionError):
            await stream.receive()


def test_a_connection_in_memory_that_is_written_a_wrong_frame_fails_its_test() -> None:
    connection = CheckedConnection()
    connection.write([changed().encode()])
    assert connection.messages() == [EVENT]
    connection.write([WRONG["a field that nobody knows"].encode()])
    with pytest.raises(AssertionError):
        connection.messages()


_READS = re.compile(r"json\.(?:loads|decode)\((.*)")
_GIVES = re.compile(r"\.(?:recv|frame)\(|\.frames\b")
_NAMES = re.compile(r"^ *(\w+)(?:: [^=\n]+)? = .*\.recv\(", re.MULTILINE)


def _unchecked(text: str) -> Iterator[str]:
    """Lines where JSON is read of what a socket gave: on the spot, or from the name that it was given."""
    names = set(_NAMES.findall(text))
    for line in text.splitlines():
        found = _READS.search(line)
        if found is not None and (_GIVES.search(found[1]) or found[1].partition(")")[0] in names):
            yield line.strip()


def test_nothing_in_the_tests_reads_frames_in_another_way() -> None:
    assert {
        f"{path.relative_to(TESTS)}: {line}"
        for path in TESTS.rglob("*.py")
        if path != Path(__file__)
        for line in _unchecked(path.read_text(encoding="utf-8"))
    } == set()
    for reading in (
        "a = json.loads(await wait_for(socket.recv(), 1))",
        "text = socket.recv()\njson.loads(text)",
    ):
        assert list(_unchecked(reading)) == reading.splitlines()[-1:]
