"""What the doctor says of configuration, keys and machine, and that one wrong part hides no other."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from feedsvc.core.limits import Limits
from feedsvc.doctor.findings import Findings
from feedsvc.doctor.key_server import key_server_findings
from feedsvc.settings import read_settings
from tests.doctor.examining import environment, errors, examine, found, one
from tests.support.engine import Engine
from tests.support.key_server import Answer, IssuerKey, KeyServer

NOWHERE = "mongodb://127.0.0.1:1/"
SEARCH_S = 1.0
"""How long the driver looks for a server that is not there."""


async def test_no_configuration_at_all() -> None:
    """Each required variable has its finding with what to set, and nobody is asked."""
    report = await examine({})
    assert report.exit_code == 2 and report.role is None
    assert errors(report) == {"policy", "jwt_keys", "token_keys", "mongodb_uri"}
    for name in errors(report):
        remedy = next(finding.remedy for finding in found(report, name) if finding.status == "error")
        assert "FEEDSVC_" in remedy
    for name in ("jwks", "mongodb_answers", "change_stream", "connection_pool"):
        assert one(report, name).status == "skipped"


async def test_a_bad_policy_does_not_hide_the_deployment(engine: Engine, tmp_path: Path) -> None:
    """Each problem is a finding with its line; what needs no policy is looked at all the same."""
    text = (
        "tenant: {{claim: tenant, database: {database}}}\n"
        "collections:\n"
        "  orders:\n"
        "    filter: {{a: {{$where: x}}}}\n"
        "    filtre: {{}}\n"
    )
    report = await examine(environment(tmp_path, engine.uri, "shop", text))
    assert report.exit_code == 2 and errors(report) == {"policy"} and report.role is None
    assert [finding.found.split(": ")[1] for finding in found(report, "policy")] == ["line 3", "line 4"]
    assert one(report, "replica_set").status == "ok"
    assert one(report, "oplog_window").status in ("ok", "warning")
    assert one(report, "change_stream").found == one(report, "images").found == "the policy cannot be read"


async def test_a_policy_that_is_not_there_or_no_yaml(tmp_path: Path) -> None:
    environ = environment(tmp_path, NOWHERE, policy="tenant: [\n\nx: }}")
    report = await examine(environ, answer_s=0.1)
    assert "line 3" in one(report, "policy").found
    missing = await examine({**environ, "FEEDSVC_POLICY": str(tmp_path / "x.yaml")}, answer_s=0.1)
    assert "No such file" in one(missing, "policy").found and missing.exit_code == 2


async def test_a_server_that_is_not_there_is_named_with_the_reason(tmp_path: Path) -> None:
    report = await examine(environment(tmp_path, NOWHERE), answer_s=SEARCH_S)
    assert report.exit_code == 1 and errors(report) == {"mongodb_answers"}
    assert one(report, "mongodb_answers").found == "127.0.0.1:1: connection refused"
    assert one(report, "clock").found == "MongoDB could not be asked"


@pytest.mark.parametrize(
    ("variables", "name", "status", "says"),
    [
        ({"jwt_secret": "short"}, "jwt_keys", "error", "shorter than 32"),
        ({"jwt_secret": "abc" * 20}, "jwt_keys", "warning", "guessed"),
        ({"jwt_issuer": ""}, "jwt_keys", "warning", "FEEDSVC_JWT_ISSUER"),
        ({"jwt_algorithms": "RS256"}, "jwt_keys", "error", "does not fit"),
        ({"token_keys": "c2hvcnQ="}, "token_keys", "error", "32 bytes"),
        ({"token_keys": "A" * 42 + "E," + "A" * 43}, "token_keys", "warning", "one byte repeated"),
        ({"prot": "1"}, "service", "warning", "FEEDSVC_PORT"),
        ({"port": "x"}, "service", "error", "FEEDSVC_PORT"),
        ({"mongodb_uri": "mongodb://u:hu/sh@h"}, "mongodb_uri", "error", "%XX"),
        ({"mongodb_uri": "localhost"}, "mongodb_uri", "error", "mongodb://"),
    ],
)
async def test_what_check_says_is_a_finding(
    tmp_path: Path, variables: dict[str, str], name: str, status: str, says: str
) -> None:
    """Under the id of its part; an error of the configuration is exit code 2."""
    environ = environment(tmp_path, "", **variables)
    report = await examine(environ)
    matching = [finding for finding in found(report, name) if finding.status == status]
    assert len(matching) == 1 and says in matching[0].found and matching[0].remedy
    assert report.exit_code == 2


async def test_an_option_that_the_driver_passes_over_is_a_warning(tmp_path: Path) -> None:
    """Named, and its value not: `retryWrite` is a slip, and a value may be anything."""
    uri = NOWHERE + "?replicaSet=rs0&retryWrite=true&readPreference=hush&maxPoolSize=5&ssl=false"
    report = await examine(environment(tmp_path, uri), answer_s=0.1)
    warned = [finding.found for finding in found(report, "mongodb_uri") if finding.status == "warning"]
    assert [text.split(" option ")[1].split(",")[0] for text in warned] == ["retryWrite", "readPreference"]


async def test_the_key_server(tmp_path: Path) -> None:
    """One request; keys that cannot be used are warnings, none that can is an error."""
    good, private, weak = IssuerKey("a"), IssuerKey("b"), IssuerKey("c", "ES384")
    private.published["d"] = "x"
    with KeyServer() as server:
        environ = environment(tmp_path, "", jwt_secret="", jwks_url=server.url, jwt_algorithms="ES256")
        server.publish(good, private, weak)
        report = await examine(environ)
        assert [finding.status for finding in found(report, "jwks")] == ["warning", "warning", "ok"]
        assert "private" in found(report, "jwks")[0].found and "ES256" in found(report, "jwks")[2].found
        assert len(server.requests) == 1
        for answer, says in (
            (Answer(status=500), "status 500"),
            (Answer(body=b"<html>"), "not JSON"),
            (Answer(body=b"{}"), "not a JWK set"),
            (Answer(body=b'{"keys": []}'), "no usable key"),
        ):
            server.answer = answer
            finding = one(await examine(environ), "jwks")
            assert finding.status == "error" and says in finding.found and finding.remedy
        server.hold()
        findings = Findings()
        await key_server_findings(findings, read_settings(environ).jwt, Limits(jwks_timeout_s=0.1))
        held = one(findings.report("0", None, strict=False), "jwks")
        assert held.status == "error" and "no answer within 0.1 s" in held.found
    gone = one(await examine(environ), "jwks")
    assert gone.status == "error" and "ConnectionRefusedError" in gone.found


async def test_the_time_of_all_questions_is_bounded(tmp_path: Path) -> None:
    """Who takes a connection and says nothing costs the time that was given; what was found before is told."""
    with KeyServer() as server, socket.create_server(("127.0.0.1", 0)) as silent:
        server.hold()
        uri = f"mongodb://127.0.0.1:{silent.getsockname()[1]}/"
        environ = environment(tmp_path, uri, jwt_secret="", jwks_url=server.url, jwt_algorithms="ES256")
        began = time.monotonic()
        report = await examine(environ, timeout_s=0.2)
    # Closing asks a server that hangs three times for a second at the most.
    assert time.monotonic() - began < 20
    assert report.exit_code == 1 and errors(report) == {"jwks", "mongodb_answers"}
    assert one(report, "clock").status == "skipped"
    assert one(report, "jwks").status == "error" and "--timeout" in one(report, "jwks").found
    assert one(report, "policy").status == "ok"
