"""Three questions with three answers, the figures, and a configuration that is wrong (protocol.md sections 10, 11)."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.e2e.conftest import Documents, StartService
from tests.support.engine import Engine
from tests.support.ports import free_port
from tests.support.service import JWT_SECRET, Service, client_of


def status(service: Service, question: str) -> tuple[int, str]:
    code, body = service.get(f"/healthz/{question}")
    return code, json.loads(body)["status"]


async def test_a_started_service_is_live_started_and_ready(
    start_service: StartService, fresh_database: str
) -> None:
    service = start_service()
    assert [status(service, question) for question in ("live", "startup", "ready")] == [(200, "ok")] * 3
    async with client_of(service, fresh_database) as client:
        await client.subscribe("orders")
        assert status(service, "ready") == (200, "ok")


def test_without_mongodb_a_service_is_live_but_neither_started_nor_ready(tmp_path: Path) -> None:
    service = Service(f"mongodb://127.0.0.1:{free_port()}/?directConnection=true", tmp_path)
    service.launch()
    try:
        service.wait_for("/healthz/live", 200)
        assert status(service, "startup") == (503, "starting")
        assert status(service, "ready") == (503, "starting")
        assert service.get("/v1/nothing")[0] == 404
    finally:
        service.kill()


@pytest.mark.parametrize(("needs_source", "code"), [("false", 200), ("true", 503)])
async def test_readiness_during_an_outage_of_mongodb_is_the_operators_choice(
    start_service: StartService, fresh_database: str, needs_source: str, code: int
) -> None:
    engine = Engine().start()
    try:
        service = start_service(uri=engine.uri, stall_after="0.5", ready_needs_source=needs_source)
        async with client_of(service, fresh_database) as client:
            await client.subscribe("orders")
            engine.kill()
            await client.until(lambda frame: frame["type"] == "heartbeat" and frame["stalled"])
            service.wait_for("/healthz/ready", code, "degraded")
            assert status(service, "live") == (200, "ok")
            engine.restart()
            service.wait_for("/healthz/ready", 200, "ok")
    finally:
        engine.stop()


async def test_the_figures_are_prometheus_text_and_count_what_happened(
    start_service: StartService, database: Documents, fresh_database: str
) -> None:
    service = start_service()
    async with client_of(service, fresh_database) as client:
        await client.subscribe("orders")
        database["orders"].insert_many([{"_id": number} for number in range(5)])
        await client.events(5)
        figures = {
            (sample.name, *sorted(sample.labels.values())): sample.value
            for family in text_string_to_metric_families(service.get("/metrics")[1])
            for sample in family.samples
        }
    assert figures["feedsvc_connections",] == 1
    assert figures["feedsvc_subscriptions",] == 1
    assert figures["feedsvc_topics",] == 1
    assert figures["feedsvc_tails",] == 1
    assert figures["feedsvc_changes_read_total", "deployment"] >= 5
    assert figures["feedsvc_metric_mistakes_total",] == 0
    assert not any(fresh_database in str(key) for key in figures)


def serve_with(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "feedsvc", "serve"],
        env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_a_wrong_configuration_shows_all_problems_at_once_and_exits_with_2(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("tenant: {database: '{tenant}'}\ncollections: {orders: {filtre: {}}}\n")
    ended = serve_with(
        {
            "FEEDSVC_POLICY": str(policy),
            "FEEDSVC_PORT": "eighty",
            "FEEDSVC_JWT_SECRET": "short-secret",
            "FEEDSVC_TOKEN_KEYS": "not-a-key-at-all",
            "FEEDSVC_TAIL_SCOPE": "cluster",
            "FEEDSVC_ALLOWED_ORIGINS": "*",
            "FEEDSVC_HEARTBEAT_INTERVAL": "-1",
        }
    )
    assert ended.returncode == 2
    output = ended.stdout + ended.stderr
    for named in (
        "FEEDSVC_MONGODB_URI",
        "FEEDSVC_PORT",
        "FEEDSVC_TOKEN_KEYS",
        "FEEDSVC_TAIL_SCOPE",
        "FEEDSVC_ALLOWED_ORIGINS",
        "FEEDSVC_HEARTBEAT_INTERVAL",
        "filtre",
    ):
        assert named in output, named
    for value in ("short-secret", "not-a-key-at-all"):
        assert value not in output
    assert "Traceback" not in output


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"FEEDSVC_TOKEN_KEYS": ""}, "FEEDSVC_TOKEN_KEYS"),
        ({"FEEDSVC_JWT_SECRET": "short"}, "JWT secret"),
        ({"FEEDSVC_POLICY": "/nowhere.yaml"}, "FEEDSVC_POLICY"),
    ],
    ids=["no token keys", "a weak secret", "no policy file"],
)
def test_one_wrong_setting_exits_with_2_and_is_named(
    tmp_path: Path, change: dict[str, str], named: str
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("tenant: {claim: tenant, database: '{tenant}'}\ncollections: {'*': {}}\n")
    environment = {
        "FEEDSVC_MONGODB_URI": "mongodb://127.0.0.1:1",
        "FEEDSVC_POLICY": str(policy),
        "FEEDSVC_JWT_SECRET": JWT_SECRET,
        "FEEDSVC_TOKEN_KEYS": "A" * 42 + "E",
    }
    ended = serve_with({**environment, **change})
    assert ended.returncode == 2
    assert named in ended.stderr
    assert "Traceback" not in ended.stdout + ended.stderr


def test_a_standalone_is_named_as_the_reason(tmp_path: Path) -> None:
    """SRC-09: a configuration that cannot work is one clear message, and neither started nor ready."""
    engine = Engine(standalone=True).start()
    service = Service(engine.uri, tmp_path)
    service.launch()
    try:
        service.wait_for("/healthz/startup", 503, "replica set")
        assert status(service, "ready") == (503, "starting")
        assert status(service, "live") == (200, "ok")
        assert len(service.log().splitlines()) < 10
    finally:
        service.kill()
        engine.stop()


def test_a_port_that_is_taken_ends_the_process_with_1_and_one_reason(tmp_path: Path) -> None:
    """No traceback: a newcomer reads the log."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        service = Service(f"mongodb://127.0.0.1:{free_port()}/?directConnection=true", tmp_path)
        service.environment["FEEDSVC_PORT"] = str(taken.getsockname()[1])
        service.launch()
        assert service.wait() == 1
    log = service.log()
    assert "address already in use" in log and "service.failed" in log and "service.stopped" in log
    assert "Traceback" not in log


async def test_the_log_says_where_it_listens_and_nothing_of_refused_requests(
    start_service: StartService, fresh_database: str
) -> None:
    """Anybody can send a bad upgrade or open the address in a browser; that is no error of the service."""
    service = start_service()
    for _ in range(2):
        with pytest.raises(InvalidStatus) as refused:
            await connect(service.url, additional_headers={"Authorization": "Bearer junk"}, proxy=None)
        assert refused.value.response.status_code == 401
    with pytest.raises(InvalidStatus) as refused:
        await connect(service.url.removesuffix("/v1/ws"), proxy=None)
    elsewhere = json.loads(refused.value.response.body or b"")
    assert (refused.value.response.status_code, elsewhere["code"]) == (404, "not_found")
    assert elsewhere["detail"] == "WebSockets are at /v1/ws"
    code, body = service.get("/v1/ws")
    assert (code, json.loads(body)["code"]) == (400, "bad_request")
    async with client_of(service, fresh_database) as client:
        await client.subscribe("orders")
    entries = [json.loads(line) for line in service.log().splitlines()]
    assert [entry["port"] for entry in entries if entry["event"] == "service.listening"] == [service.port]
    assert not [entry for entry in entries if entry["level"] in ("error", "critical")]
