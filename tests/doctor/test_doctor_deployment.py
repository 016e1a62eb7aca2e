"""What the doctor finds at a deployment: the embedded engine where it can show it, a proxy's answers where not."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from tests.doctor.examining import environment, errors, examine, found, one
from tests.support.engine import Engine
from tests.support.proxy import EngineProxy, Fault

IMAGES = {"enabled": True}
PER_TENANT = """
tenant: {{claim: tenant, database: "{database}_{{tenant}}"}}
collections:
  "*": {{}}
"""


@pytest.fixture
def proxy(engine: Engine) -> Iterator[EngineProxy]:
    with EngineProxy(engine.port) as proxy:
        yield proxy


@pytest.fixture
def shop(engine: Engine, fresh_database: str) -> str:
    """A database whose `orders` keep images."""
    engine.client[fresh_database].create_collection("orders", changeStreamPreAndPostImages=IMAGES)
    return fresh_database


async def test_a_good_deployment(mongodb_uri: str, fresh_database: str, tmp_path: Path) -> None:
    """No error, exit code 0, and each thing that the service will do has been done. Runs on a real replica set too."""
    with MongoClient[dict[str, Any]](mongodb_uri) as client:
        client[fresh_database].create_collection("orders", changeStreamPreAndPostImages=IMAGES)
        report = await examine(environment(tmp_path, mongodb_uri, fresh_database), oplog_hours=0)
        client.drop_database(fresh_database)
    assert report.exit_code == 0 and report.status == "ok"
    for name in ("change_stream", "find", "images"):
        assert one(report, name).subject == f"{fresh_database}.orders"
    statuses = {finding.id: finding.status for finding in report.findings}
    assert statuses.pop("jwks") == "skipped"
    # The engine has no parameters of a cluster.
    assert statuses.pop("image_expiry") in ("ok", "skipped")
    assert set(statuses.values()) == {"ok"}


async def test_motor_asks_the_same(engine: Engine, shop: str, tmp_path: Path) -> None:
    """The configured driver is the one that is tried."""
    report = await examine(environment(tmp_path, engine.uri, shop, mongo_driver="motor"), oplog_hours=0)
    assert report.exit_code == 0
    assert "motor" in one(report, "service").found
    assert one(report, "change_stream").status == one(report, "find").status == "ok"


async def test_no_replica_set(tmp_path: Path) -> None:
    engine = Engine(standalone=True, sync_on_commit=False).start()
    try:
        report = await examine(environment(tmp_path, engine.uri))
    finally:
        engine.stop()
    assert report.exit_code == 1 and errors(report) == {"replica_set"}
    assert "rs.initiate()" in one(report, "replica_set").remedy
    for name in ("change_stream", "find", "oplog_window", "image_expiry"):
        assert one(report, name).status == "skipped"


async def test_streams_are_refused_by_a_standalone_that_says_it_is_none(
    proxy: EngineProxy, shop: str, tmp_path: Path
) -> None:
    """MongoDB's own answer to a change stream there, 40573."""
    proxy.faults = [Fault("aggregate", 40573, collection="orders")]
    report = await examine(environment(tmp_path, proxy.uri, shop))
    assert errors(report) == {"change_stream"} and "40573" in one(report, "change_stream").found


async def test_another_replica_set_than_the_uri_names(engine: Engine, tmp_path: Path) -> None:
    """The driver then knows no server at all; the reason is not the network."""
    uri = f"mongodb://127.0.0.1:{engine.port}/?replicaSet=another"
    report = await examine(environment(tmp_path, uri), answer_s=2.0)
    assert errors(report) == {"mongodb_answers"} and "replicaSet" in one(report, "mongodb_answers").remedy


@pytest.mark.parametrize(
    ("faults", "wrong"),
    [
        ([Fault("aggregate", 13, collection="orders")], {"change_stream"}),
        ([Fault("getMore", 13, collection="orders")], {"change_stream"}),
        ([Fault("find", 13, collection="orders")], {"find"}),
        ([Fault("listCollections", 13)], {"list_collections"}),
        ([Fault("aggregate", 166, collection="orders")], {"change_stream"}),
    ],
    ids=["changeStream", "getMore", "find", "listCollections", "a view"],
)
async def test_a_missing_privilege_is_the_finding_that_names_it(
    proxy: EngineProxy, shop: str, tmp_path: Path, faults: list[Fault], wrong: set[str]
) -> None:
    """One refusal hides no other finding, and the role for this policy is there."""
    proxy.faults = faults
    report = await examine(environment(tmp_path, proxy.uri, shop), oplog_hours=0)
    assert report.exit_code == 1 and errors(report) == wrong
    (finding,) = (finding for finding in report.findings if finding.status == "error")
    assert finding.remedy and finding.subject.startswith(shop)
    assert report.role is not None and f'db: "{shop}", collection: "orders"' in report.role
    assert one(report, "oplog_window").status == "ok"


async def test_rights_that_the_service_can_do_without_are_warnings(
    proxy: EngineProxy, shop: str, tmp_path: Path
) -> None:
    proxy.faults = [
        Fault("find", 13, collection="oplog.rs"),
        Fault("getClusterParameter", 13),
        Fault("serverStatus", 13),
        Fault("buildInfo", 13),
    ]
    report = await examine(environment(tmp_path, proxy.uri, shop))
    assert report.exit_code == 0
    for name in ("oplog_window", "image_expiry"):
        assert one(report, name).status == "warning" and "role" in one(report, name).remedy
    assert one(report, "server_version").status == "warning"
    assert one(report, "connection_pool").status == "ok"
    strict = await examine(environment(tmp_path, proxy.uri, shop), strict=True)
    assert strict.exit_code == 1 and strict.status == "warning"


async def test_a_user_that_is_refused(proxy: EngineProxy, shop: str, tmp_path: Path) -> None:
    """The password is in no part of the report; what to look at is."""
    proxy.faults = [Fault("saslStart", 18)]
    uri = proxy.uri.replace("mongodb://", "mongodb://feed:hush@") + "&authMechanism=SCRAM-SHA-256"
    report = await examine(environment(tmp_path, uri, shop))
    finding = one(report, "mongodb_answers")
    assert finding.status == "error" and "does not take the user" in finding.found
    assert "authSource" in finding.remedy
    assert one(report, "change_stream").status == "skipped"


async def test_images_that_are_off(engine: Engine, fresh_database: str, tmp_path: Path) -> None:
    """An error only where topics are refused, and then the very command that switches them on."""
    engine.client[fresh_database].create_collection("orders")
    engine.client[fresh_database].create_collection("parts")
    engine.client[fresh_database].create_collection("notes")
    text = """
tenant: {{claim: tenant, database: {database}}}
collections:
  orders: {{filter: {{t: "{{tenant}}"}}}}
  parts: {{filter: {{t: "{{tenant}}"}}, allowPartial: true}}
  later: {{filter: {{t: "{{tenant}}"}}}}
  "*": {{}}
"""
    environ = environment(tmp_path, engine.uri, fresh_database, text)
    report = await examine(environ)
    images = {finding.subject.rpartition(".")[2]: finding for finding in found(report, "images")}
    assert {name: finding.status for name, finding in images.items()} == {
        "orders": "error",
        "parts": "warning",
        "later": "warning",
        "notes": "ok",
    }
    assert "createCollection" in images["later"].remedy and "collMod" in images["parts"].remedy
    assert report.exit_code == 1 and errors(report) == {"images"}
    command = re.search(
        r"runCommand\(\{collMod: \"(.*?)\", changeStreamPreAndPostImages", images["orders"].remedy
    )
    assert command is not None
    engine.client[fresh_database].command("collMod", command[1], changeStreamPreAndPostImages=IMAGES)
    assert not errors(await examine(environ))


def oplog(size: int, largest: int) -> Fault:
    """MongoDB's answer to `$collStats` on the oplog."""
    stats = {"storageStats": {"size": size, "maxSize": largest, "capped": True}}
    cursor = {"id": 0, "ns": "local.oplog.rs", "firstBatch": [stats]}
    return Fault("aggregate", None, collection="oplog.rs", answer={"cursor": cursor})


async def test_a_tiny_oplog(proxy: EngineProxy, shop: str, tmp_path: Path) -> None:
    """The engine's oplog reaches back some minutes at the most: an error where it is known to be full."""
    environ = environment(tmp_path, proxy.uri, shop)
    unknown = one(await examine(environ), "oplog_window")
    assert unknown.status == "warning" and "resync" in unknown.found
    proxy.faults = [oplog(99, 100)]
    report = await examine(environ)
    assert report.exit_code == 1 and errors(report) == {"oplog_window"}
    assert "replSetResizeOplog" in one(report, "oplog_window").remedy
    assert one(await examine(environ, oplog_hours=0), "oplog_window").status == "ok"


async def test_images_that_expire_before_the_oplog(proxy: EngineProxy, shop: str, tmp_path: Path) -> None:
    options = {"_id": "changeStreamOptions", "preAndPostImages": {"expireAfterSeconds": 3600}}
    proxy.faults = [Fault("getClusterParameter", None, answer={"clusterParameters": [options]})]
    report = await examine(environment(tmp_path, proxy.uri, shop))
    finding = one(report, "image_expiry")
    assert finding.status == "warning" and "60 minutes" in finding.found


def hello(**fields: Any) -> Fault:
    now = datetime.datetime.now(datetime.UTC)
    answer = {
        "isWritablePrimary": True,
        "setName": "rs0",
        "maxWireVersion": 21,
        "minWireVersion": 0,
        "localTime": now,
    }
    return Fault("hello", None, answer={**answer, **fields})


async def test_clocks_that_differ(proxy: EngineProxy, shop: str, tmp_path: Path) -> None:
    """The cluster's time, which the engine tells, is then ahead of the server's clock too."""
    server = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=60)
    proxy.faults = [hello(localTime=server)]
    report = await examine(environment(tmp_path, proxy.uri, shop))
    clocks = {finding.subject: finding for finding in found(report, "clock")}
    assert clocks[""].status == "error" and "ahead of" in clocks[""].found
    assert clocks["cluster time"].status == "warning"


async def test_a_sharded_cluster_has_its_oplogs_elsewhere(
    proxy: EngineProxy, shop: str, tmp_path: Path
) -> None:
    proxy.faults = [hello(msg="isdbgrid", setName=None), Fault("find", 13, collection="oplog.rs")]
    report = await examine(environment(tmp_path, proxy.uri, shop))
    assert one(report, "replica_set").found == "a sharded cluster"
    assert one(report, "oplog_window").status == "skipped"


async def test_a_server_that_is_too_old(proxy: EngineProxy, shop: str, tmp_path: Path) -> None:
    proxy.faults = [Fault("buildInfo", None, answer={"version": "5.0.31"})]
    report = await examine(environment(tmp_path, proxy.uri, shop))
    assert errors(report) == {"server_version"} and "5.0.31" in one(report, "server_version").found


async def test_an_answer_that_nobody_expects_is_a_finding(
    proxy: EngineProxy, shop: str, tmp_path: Path
) -> None:
    """No traceback: what was found until then is told."""
    proxy.faults = [Fault("buildInfo", None, answer={"version": "8.0.1"}), hello(localTime="late")]
    report = await examine(environment(tmp_path, proxy.uri, shop))
    assert report.exit_code == 1
    assert one(report, "server_version").found == "MongoDB 8.0.1"
    assert found(report, "mongodb_answers")[1].found.startswith("an answer was not understood")


async def test_a_server_that_goes_in_the_middle_ends_it(
    proxy: EngineProxy, shop: str, tmp_path: Path
) -> None:
    """What was found stays, the rest is skipped with the reason."""
    proxy.faults = [Fault("listCollections", None)]
    report = await examine(environment(tmp_path, proxy.uri, shop))
    assert report.exit_code == 1 and errors(report) == {"mongodb_answers"}
    assert one(report, "change_stream").status == "ok"
    assert one(report, "images").status == one(report, "oplog_window").status == "skipped"


async def test_databases_of_tenants(engine: Engine, fresh_database: str, tmp_path: Path) -> None:
    """One stream for all; the databases that exist are looked at, or those of `--tenant`."""
    environ = environment(tmp_path, engine.uri, fresh_database, PER_TENANT)
    alone = await examine(environ)
    assert one(alone, "change_stream").subject == "deployment"
    assert "--tenant" in one(alone, "find").found
    engine.client[f"{fresh_database}_acme"].create_collection("orders", changeStreamPreAndPostImages=IMAGES)
    for options in ({}, {"tenants": ("acme",)}):
        report = await examine(environ, **options)
        assert one(report, "images").subject == f"{fresh_database}_acme.orders"
        assert one(report, "find").status == "ok" and report.exit_code == 0
        assert report.role is not None and re.search(r'db: "", collection: "".*changeStream', report.role)
    wrong = await examine(environ, tenants=("no/tenant",))
    assert wrong.exit_code == 2 and errors(wrong) == {"policy"}


async def test_more_collections_than_streams(engine: Engine, fresh_database: str, tmp_path: Path) -> None:
    text = "tenant: {{claim: tenant, database: {database}}}\ncollections: {{a: {{}}, b: {{}}}}\n"
    uri = engine.uri + "&maxPoolSize=5"
    report = await examine(environment(tmp_path, uri, fresh_database, text, max_tails="1"))
    pools = {finding.subject: finding.status for finding in found(report, "connection_pool")}
    assert pools == {"streams": "warning", "uri": "warning", "": "ok"}
    assert [finding.subject for finding in found(report, "change_stream")] == [
        f"{fresh_database}.a",
        f"{fresh_database}.b",
    ]
    wider = environment(tmp_path, uri, fresh_database, text, max_tails="1", tail_scope="database")
    report = await examine(wider)
    assert one(report, "change_stream").subject == fresh_database
    assert "streams" not in {finding.subject for finding in found(report, "connection_pool")}
