"""One run that uses every secret in every way that a client or an operator has, right and wrong: none is in the log.

The log is read as a whole at the end, also as what it promises to be: one JSON object for each line, with stable keys.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Origin, Subprotocol

from feedsvc.adapters.telemetry.log_table import LOG_EVENTS
from tests.e2e.conftest import Documents
from tests.support.ports import free_port
from tests.support.service import JWT_SECRET, Client, Frame, Service, make_jwt
from tests.support.sse import refused, stream_of

PASSWORD = "hunter2-of-the-database"
ALWAYS = {"event", "level", "logger", "timestamp"}


class Run:
    """A service, and the secrets that were shown to it."""

    def __init__(self, service: Service, tenant: str) -> None:
        self.service = service
        self.tenant = tenant
        self.secrets: list[str] = [JWT_SECRET, *service.token_keys.split(",")]

    def jwt(self, **claims: Any) -> str:
        """A new one; in a log each of its parts would be too much."""
        found = make_jwt(self.tenant, **claims)
        self.secrets += found.split(".")
        return found

    def keep(self, secret: str) -> str:
        self.secrets.append(secret)
        return secret

    async def http(self, method: str, path: str, **given: Any) -> httpx.Response:
        async with httpx.AsyncClient(trust_env=False) as client:
            return await client.request(method, f"http://127.0.0.1:{self.service.port}{path}", **given)

    async def ticket(self) -> str:
        answer = await self.http("POST", "/v1/tickets", headers={"Authorization": f"Bearer {self.jwt()}"})
        return self.keep(answer.json()["ticket"])

    @contextlib.asynccontextmanager
    async def socket(self, query: str = "", **given: Any) -> AsyncIterator[ClientConnection]:
        with contextlib.suppress(InvalidStatus):
            async with connect(f"{self.service.url}{query}", proxy=None, **given) as opened:
                yield opened
                return
        yield None  # type: ignore[misc]


async def credentials(run: Run) -> None:
    """Each way in, with what is right, what is over and what is cut."""
    expired = run.jwt(ttl_s=-100)
    for jwt in (run.jwt(), expired, run.jwt()[:-5], run.jwt(key="another secret of more than 32 bytes")):
        async with run.socket(additional_headers={"Authorization": f"Bearer {jwt}"}):
            pass
        protocols = [Subprotocol("feedsvc.v1"), Subprotocol(f"bearer.{jwt}")]
        async with run.socket(subprotocols=protocols):
            pass
        async with run.socket(f"?jwt={jwt}&access_token={jwt}"):
            pass
        async with run.socket() as opened:
            await opened.send(json.dumps({"type": "auth", "jwt": jwt}))
            with contextlib.suppress(Exception):
                await asyncio.wait_for(opened.recv(), 5)
    for ticket in (await run.ticket(), (await run.ticket())[:-4], run.keep("Zm9vYmFyLWJhei1hLXRpY2tldA")):
        async with run.socket(f"?ticket={ticket}", origin=Origin("https://elsewhere.example")):
            pass
        async with run.socket(f"?ticket={ticket}"):
            pass
        await refused(run.service, run.tenant, ticket=ticket)


async def frames(run: Run) -> str:
    """Subscriptions with tokens that are good, cut, and in the wrong places; returns a good one."""
    headers = {"Authorization": f"Bearer {run.jwt()}"}
    async with run.socket(additional_headers=headers) as opened:
        client = Client(opened)
        token = run.keep((await client.subscribe("orders"))["token"])
        for number, (wrong, where) in enumerate(
            [(token[:-3], "resumeAfter"), (token + "AAAA", "resumeAfter"), (token, "resumeToken")]
        ):
            await client.send(
                {"type": "subscribe", "id": str(number), "topic": {"collection": "users"}, where: wrong}
            )
            await client.until(partial(_answers, str(number)))
        await opened.send('{"type":"auth","jwt":"' + run.jwt())
        await client.until("error")
        await client.send({"type": "auth", "jwt": run.jwt(sub="somebody else")})
        await client.until("error")
        await opened.close(4000, f"bye {token}"[:120])
    async with run.socket(additional_headers=headers) as opened:
        await opened.send(token.encode())
        await opened.wait_closed()
    async with run.socket(additional_headers=headers) as opened:
        await opened.close(4001, f"jwt {run.jwt()}"[:120])
    return token


def _answers(request_id: str, frame: Frame) -> bool:
    return frame.get("id") == request_id


async def requests(run: Run, token: str) -> None:
    """Streams, and requests that put secrets where they do not belong; also what is no HTTP at all."""
    async with stream_of(run.service, run.tenant, "orders") as stream:
        await stream.live()
        last = run.keep(stream.last_event_id)
    async with stream_of(run.service, run.tenant, "orders", last_event_id=last) as stream:
        await stream.live()
    async with stream_of(run.service, run.tenant, "orders", resumeAfter=last) as stream:
        await stream.live()
    await refused(run.service, run.tenant, "orders", last_event_id=last[:-3])
    await refused(run.service, run.tenant, "users", resumeAfter=token[:-3])
    jwt, ticket = run.jwt(), await run.ticket()
    for method, path in (
        ("GET", f"/v1/status?jwt={jwt}"),
        ("POST", f"/v1/topics/explain?ticket={ticket}"),
        ("GET", f"/v1/nothing/{jwt}/{token}?token={token}"),
        ("DELETE", f"/v1/tickets?ticket={ticket}"),
    ):
        for authorization in (f"Bearer {jwt}", jwt, f"Basic {jwt}", f"Bearer {token}"):
            await run.http(method, path, headers={"Authorization": authorization}, content=f'{{"jwt":"{jwt}"')
    for raw in (
        f"GET /v1/ws?ticket={ticket} HTTP/9\r\nAuthorization: Bearer {jwt}\r\n\r\n",
        f"{jwt}\r\n\r\n",
    ):
        await asyncio.to_thread(_said, run.service.port, raw)


def _said(port: int, raw: str) -> None:
    with socket.create_connection(("127.0.0.1", port), 5) as peer:
        peer.sendall(raw.encode())
        with contextlib.suppress(OSError):
            peer.recv(4096)


def assert_clean(service: Service, secrets: list[str]) -> list[dict[str, Any]]:
    """The lines of the log."""
    log = service.log()
    for secret in secrets:
        assert len(secret) >= 8
        for start in range(0, len(secret) - 15, 16):
            assert secret[start : start + 16] not in log, f"a part of {secret}"
        assert secret not in log
    lines: list[dict[str, Any]] = [json.loads(line) for line in log.splitlines()]
    for line in lines:
        assert line.keys() >= ALWAYS
        if line["logger"] == "feedsvc":
            assert line.keys() <= ALWAYS | set(LOG_EVENTS[line["event"]].fields)
    return lines


@pytest.mark.verify
async def test_a_run_that_uses_all_of_them(
    mongodb_uri: str, database: Documents, fresh_database: str, tmp_path: Path
) -> None:
    service = Service(mongodb_uri, tmp_path, drain="0")
    try:
        run = Run(service.start(), fresh_database)
        await credentials(run)
        token = await frames(run)
        await requests(run, token)
        assert service.stop() == 0
        lines = assert_clean(service, run.secrets)
        reasons = {line.get("reason") for line in lines}
        assert {"bye ***", "jwt ***"} <= reasons, "they were there, and were cut out"
        events = {line["event"] for line in lines}
        assert {"service.started", "connection.opened", "connection.closed", "service.stopped"} <= events
        print(f"\n{len(set(run.secrets))} secrets, {len(service.log().splitlines())} lines")
    finally:
        service.kill()


@pytest.mark.verify
@pytest.mark.parametrize("wrong", ["nobody listens", "it needs no password", "it is no URI"])
def test_the_password_of_mongodb(mongodb_uri: str, tmp_path: Path, wrong: str) -> None:
    """In a URI that cannot be reached, at a MongoDB that refuses it, and in one that nobody can read."""
    server = mongodb_uri.removeprefix("mongodb://")
    uri = {
        "nobody listens": f"mongodb://app:{PASSWORD}@127.0.0.1:{free_port()}/?serverSelectionTimeoutMS=500",
        "it needs no password": f"mongodb://app:{PASSWORD}@{server}",
        "it is no URI": f"mongodb://app:{PASSWORD}@127.0.0.1:none/",
    }[wrong]
    service = Service(uri, tmp_path)
    try:
        service.launch()
        if wrong == "it is no URI":
            assert service.wait() == 2
            assert PASSWORD not in service.log()
            return
        service.wait_for("/healthz/live", 200)
        service.wait_for("/healthz/startup", 503, "starting")
        service.wait_for("/healthz/startup", 503, "Source")
        assert PASSWORD not in service.get("/healthz/startup")[1]
        service.stop()
        lines = assert_clean(service, [PASSWORD, base64.b64encode(PASSWORD.encode()).decode()])
        assert "source.failed" in {line["event"] for line in lines}
    finally:
        service.kill()
