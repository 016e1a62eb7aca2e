"""The verbs of the command line, their output and their exit codes."""

from __future__ import annotations

import base64
import subprocess
import sys
import time
from pathlib import Path

import pytest

from feedsvc import __version__
from feedsvc.adapters.jwt import JwtKey, JwtVerifier
from feedsvc.cli import main
from feedsvc.ports import Claims

SECRET = "a-secret-of-more-than-thirty-two-bytes!"
POLICY = "tenant: {claim: tenant, database: shop}\ncollections: {orders: {filter: {tenantId: '{tenant}'}}}\n"
HEAVY = (
    "pymongo",
    "starlette",
    "uvicorn",
    "jwt",
    "cryptography",
    "yaml",
    "structlog",
    "prometheus_client",
    "msgspec",
)


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the developer's shell has set does not count."""
    import os

    for name in list(os.environ):
        if name.startswith("FEEDSVC_"):
            monkeypatch.delenv(name)


@pytest.fixture
def usable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An environment without problems."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    monkeypatch.setenv("FEEDSVC_MONGODB_URI", "mongodb://127.0.0.1:1/")
    monkeypatch.setenv("FEEDSVC_POLICY", str(policy))
    monkeypatch.setenv("FEEDSVC_JWT_SECRET", SECRET)
    monkeypatch.setenv("FEEDSVC_TOKEN_KEYS", base64.urlsafe_b64encode(bytes(32)).decode())


async def verified(jwt: str, **options: object) -> Claims:
    verifier = JwtVerifier(
        JwtKey.from_secret(SECRET),
        issuer=options.get("issuer"),  # type: ignore[arg-type]
        audiences=options.get("audiences", ()),  # type: ignore[arg-type]
        leeway_s=0,
        clock_wall=time.time,
        max_bytes=8192,
    )
    return await verifier.verify(jwt)


def test_version_is_printed_without_importing_what_it_does_not_need() -> None:
    """Also a bare `feedsvc --help` in a terminal must not take a second."""
    program = (
        "import sys\nfrom feedsvc.cli import main\ntry: main(['--version'])\nexcept SystemExit: pass\n"
        f"print(sorted(set({HEAVY!r}) & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.splitlines() == [f"feedsvc {__version__}", "[]"]


def test_help_lists_the_verbs_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    text = capsys.readouterr().out
    assert ended.value.code == 0
    assert all(f"\n    {verb} " in text for verb in ("serve", "check", "doctor", "jwt", "demo"))


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["doctor", "x"],
        ["doctor", "--oplog-hours", "nan"],
        ["doctor", "--timeout", "0"],
        ["jwt", "--claim", "x"],
        ["jwt", "--ttl", "0"],
        ["demo", "--seconds", "nan"],
    ],
)
def test_wrong_arguments_exit_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: feedsvc" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["serve", "check"])
def test_all_problems_are_printed_at_once_with_exit_code_2(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEEDSVC_PORT", "many")
    monkeypatch.setenv("FEEDSVC_PROT", "1")
    assert main([verb]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    for name in ("MONGODB_URI", "POLICY", "JWT_SECRET", "TOKEN_KEYS", "PORT"):
        assert any(line.startswith("problem: ") and f"FEEDSVC_{name}" in line for line in err.splitlines()), (
            name
        )
    assert "warning: FEEDSVC_PROT" in err


@pytest.mark.usefixtures("usable")
def test_serve_finds_a_bad_jwt_key_before_it_starts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEEDSVC_JWT_SECRET", "hunter22")
    assert main(["serve"]) == 2
    err = capsys.readouterr().err
    assert "problem: the JWT secret is shorter" in err and "hunter22" not in err


@pytest.mark.usefixtures("usable")
@pytest.mark.parametrize("verb", ["serve", "check"])
@pytest.mark.parametrize("uri", ["mongodb://u:hunter22@h:999999", "mongodb://u:hunt/er22@h", "mongodb://"])
def test_a_uri_that_cannot_be_read_is_a_problem_and_not_repeated(
    verb: str, uri: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEEDSVC_MONGODB_URI", uri)
    assert main([verb]) == 2
    err = capsys.readouterr().err
    assert "problem: FEEDSVC_MONGODB_URI: is not a MongoDB URI" in err
    assert "hunt" not in err and "999999" not in err


@pytest.mark.usefixtures("usable")
def test_check_of_a_usable_configuration_prints_the_warnings_and_exits_with_0(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["check"]) == 0
    out, err = capsys.readouterr()
    assert "usable" in out
    assert all(line.startswith("warning: ") for line in err.splitlines())
    assert "FEEDSVC_JWT_AUDIENCE" in err


@pytest.mark.usefixtures("usable")
@pytest.mark.parametrize("verb", ["serve", "check"])
def test_motor_that_is_not_installed_is_a_problem(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEEDSVC_MONGO_DRIVER", "motor")
    monkeypatch.setitem(sys.modules, "motor", None)
    assert main([verb]) == 2
    assert "problem: FEEDSVC_MONGO_DRIVER: motor is not installed" in capsys.readouterr().err


async def test_jwt_prints_a_valid_jwt_and_nothing_else(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEEDSVC_JWT_SECRET", SECRET)
    options = ["--tenant", "acme", "--sub", "alice", "--scope", "orders:read x", "--ttl", "60"]
    assert main(["jwt", *options, "--claim", "org=7", "--claim", "team=red=1"]) == 0
    out, err = capsys.readouterr()
    claims = await verified(out.strip())
    assert err == "" and out.count("\n") == 1
    assert claims.subject == "alice" and claims.scopes == {"orders:read", "x"}
    assert (
        claims.claims["tenant"] == "acme" and claims.claims["org"] == 7 and claims.claims["team"] == "red=1"
    )
    assert 0 < claims.expires_at - time.time() <= 61


async def test_jwt_fits_the_configured_verifier(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issuer and audience come from the same variables that the service reads."""
    monkeypatch.setenv("FEEDSVC_JWT_SECRET", SECRET)
    monkeypatch.setenv("FEEDSVC_JWT_ISSUER", "https://issuer.example")
    monkeypatch.setenv("FEEDSVC_JWT_AUDIENCE", "feedsvc, other")
    assert main(["jwt", "--tenant", "acme", "--tenant-claim", "org"]) == 0
    jwt = capsys.readouterr().out.strip()
    claims = await verified(jwt, issuer="https://issuer.example", audiences=("feedsvc",))
    assert claims.claims["org"] == "acme"


@pytest.mark.parametrize("way", ["option", "variable"])
async def test_jwt_takes_the_secret_from_a_file(
    way: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "secret"
    path.write_text(SECRET + "\n")
    if way == "variable":
        monkeypatch.setenv("FEEDSVC_JWT_SECRET_FILE", str(path))
    options = ["--secret-file", str(path)] if way == "option" else []
    assert main(["jwt", "--tenant", "acme", *options]) == 0
    await verified(capsys.readouterr().out.strip())


@pytest.mark.parametrize(
    ("environment", "options"),
    [
        ({}, []),
        ({"FEEDSVC_JWT_SECRET": "hunter22"}, []),
        ({}, ["--secret-file", "/no/such/hunter22"]),
        ({"FEEDSVC_JWT_SECRET": SECRET, "FEEDSVC_JWT_ALGORITHMS": "hunter22"}, []),
    ],
)
def test_jwt_without_a_usable_secret_exits_with_2_and_does_not_repeat_it(
    environment: dict[str, str],
    options: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert main(["jwt", "--tenant", "acme", *options]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("problem: ") and "hunter22" not in err


def test_a_closed_pipe_is_no_traceback() -> None:
    """`feedsvc jwt | head -c0`"""
    command = f"{sys.executable} -m feedsvc jwt --tenant acme | true"
    done = subprocess.run(
        command,
        shell=True,
        env={"FEEDSVC_JWT_SECRET": SECRET, "PYTHONUNBUFFERED": "1"},
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr
