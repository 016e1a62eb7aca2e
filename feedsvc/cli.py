"""The command line. Everything is imported when its verb runs, so that `--version` and `--help` are quick.

Exit codes: 0 done, 1 failed, 2 wrong arguments or configuration; 130 where `doctor` is interrupted.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from feedsvc import __version__

_DONE, _WRONG, _INTERRUPTED = 0, 2, 130
_DAY_S = 86_400


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb; returns the exit code. argparse exits by itself with 2 for wrong arguments."""
    options = _parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        return run(options)
    except BrokenPipeError:
        # The reader of stdout went away (`feedsvc jwt | head -c0`); the interpreter must not write to it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="feedsvc", description="Change feeds from MongoDB to many WebSocket clients."
    )
    parser.add_argument("--version", action="version", version=f"feedsvc {__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)

    serve = verbs.add_parser("serve", help="run the service; configured by FEEDSVC_ variables")
    serve.set_defaults(run=_serve)

    check = verbs.add_parser("check", help="show every problem and warning of the configuration")
    check.set_defaults(run=_check)

    doctor = verbs.add_parser(
        "doctor",
        help="try what the service needs of MongoDB, keys and this machine, and say what to do",
        description="Look at the configuration, ask the key server and MongoDB what the service would ask them, and "
        "say of each thing what was found and what to do. Nothing is changed. Exit code 0: no error; 1: an error; 2: "
        "an error of the configuration, with which `serve` would not start.",
    )
    _doctor_arguments(doctor)
    doctor.set_defaults(run=_doctor)

    jwt = verbs.add_parser(
        "jwt",
        help="print a JWT for development",
        description="Print a JWT for development, signed with FEEDSVC_JWT_SECRET (or its _FILE) and with the first of "
        "FEEDSVC_JWT_ALGORITHMS, FEEDSVC_JWT_ISSUER and FEEDSVC_JWT_AUDIENCE where they are set.",
    )
    jwt.add_argument("--tenant", help="value of the claim that names the tenant")
    jwt.add_argument(
        "--tenant-claim",
        default="tenant",
        metavar="NAME",
        help="that claim, as in the policy (default: tenant)",
    )
    jwt.add_argument("--sub", help="subject")
    jwt.add_argument("--scope", help='scopes separated by spaces, for example "orders:read"')
    jwt.add_argument(
        "--ttl", type=_seconds, default=3600.0, metavar="SECONDS", help="lifetime (default: 3600)"
    )
    jwt.add_argument(
        "--claim",
        action="append",
        default=[],
        type=_claim,
        metavar="NAME=VALUE",
        help="another claim, JSON or text; can be repeated",
    )
    jwt.add_argument("--secret-file", type=Path, metavar="PATH", help="instead of FEEDSVC_JWT_SECRET")
    jwt.set_defaults(run=_jwt)

    demo = verbs.add_parser(
        "demo", help="an embedded database, sample orders and the service on this machine"
    )
    demo.add_argument(
        "--seconds", type=_seconds, metavar="N", help="end by itself after N seconds (default: until Ctrl-C)"
    )
    demo.set_defaults(run=_demo)
    return parser


def _doctor_arguments(doctor: argparse.ArgumentParser) -> None:
    doctor.add_argument("--json", action="store_true", help="print one JSON document (docs/doctor.md)")
    doctor.add_argument("--strict", action="store_true", help="exit with 1 for warnings too")
    doctor.add_argument(
        "--tenant",
        action="append",
        default=[],
        metavar="NAME",
        help="with one database per tenant: a tenant to look at; can be repeated (default: the first that exist)",
    )
    doctor.add_argument(
        "--oplog-hours",
        type=_hours,
        default=24.0,
        metavar="N",
        help="how long clients may be away, which the oplog has to reach back (default: 24)",
    )
    doctor.add_argument(
        "--timeout",
        type=_seconds,
        default=30.0,
        metavar="SECONDS",
        help="for all questions together (default: 30)",
    )


def _serve(_: argparse.Namespace) -> int:
    # The kernel drops a SIGTERM for PID 1 of a container unless it is caught; `app` catches it from its start on.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_DONE))
    from feedsvc.adapters.jwt import jwt_key_problems
    from feedsvc.adapters.mongo.uri import uri_problems
    from feedsvc.adapters.telemetry import configure, report
    from feedsvc.settings import SettingsError, load_settings

    try:
        settings = load_settings(os.environ, key_problems=jwt_key_problems, uri_problems=uri_problems)
    except SettingsError as error:
        _print_report(error.problems, error.warnings)
        return _WRONG
    configure()
    for warning in settings.warnings:
        report("configuration.warning", {"warning": warning})

    from feedsvc import app

    return app.serve(settings)


def _check(_: argparse.Namespace) -> int:
    from feedsvc.adapters.jwt import jwt_key_problems
    from feedsvc.adapters.mongo.uri import uri_problems
    from feedsvc.settings import check_report

    problems, warnings = check_report(os.environ, key_problems=jwt_key_problems, uri_problems=uri_problems)
    _print_report(problems, warnings)
    if problems:
        return _WRONG
    print(f"the configuration is usable, {len(warnings)} warnings")
    return _DONE


def _doctor(options: argparse.Namespace) -> int:
    # A name server that hangs holds up the end of the process too; glibc asks for half a minute by itself.
    os.environ.setdefault("RES_OPTIONS", "timeout:2 attempts:2")
    import asyncio
    import warnings

    from feedsvc.doctor import Options, diagnose
    from feedsvc.doctor.show import as_json, as_text

    # Options of the URI that it passes over: a finding says so.
    warnings.filterwarnings("ignore", category=UserWarning, module="pymongo")
    chosen = Options(tuple(options.tenant), options.oplog_hours, options.timeout, strict=options.strict)
    try:
        report = asyncio.run(diagnose(os.environ, chosen))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return _INTERRUPTED
    print(as_json(report) if options.json else as_text(report))
    return report.exit_code


def _jwt(options: argparse.Namespace) -> int:
    from feedsvc.adapters.jwt import JwtKeyError, sign_development_jwt

    try:
        secret = _jwt_secret(os.environ, options.secret_file)
    except (OSError, UnicodeDecodeError) as error:
        return _refused(f"the secret cannot be read: {type(error).__name__}")
    if not secret:
        return _refused("set FEEDSVC_JWT_SECRET or give --secret-file")
    algorithms = _listed(os.environ.get("FEEDSVC_JWT_ALGORITHMS", ""))
    try:
        jwt = sign_development_jwt(
            secret,
            _claims(options, os.environ),
            math.ceil(options.ttl),
            algorithm=algorithms[0] if algorithms else None,
        )
    except JwtKeyError as error:
        return _refused(*error.problems)
    except (NotImplementedError, TypeError, ValueError) as error:
        return _refused(f"the JWT cannot be made: {type(error).__name__}")
    print(jwt)
    return _DONE


def _demo(options: argparse.Namespace) -> int:
    from feedsvc.demo import run_demo

    return run_demo(os.environ, options.seconds)


def _print_report(problems: Sequence[str], warnings: Sequence[str]) -> None:
    for problem in problems:
        print(f"problem: {problem}", file=sys.stderr)
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)


def _refused(*problems: str) -> int:
    _print_report(problems, ())
    return _WRONG


def _jwt_secret(environ: Mapping[str, str], secret_file: Path | None) -> str:
    path = secret_file or environ.get("FEEDSVC_JWT_SECRET_FILE")
    if path:
        return Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    return environ.get("FEEDSVC_JWT_SECRET", "")


def _claims(options: argparse.Namespace, environ: Mapping[str, str]) -> dict[str, Any]:
    """The claims of the options, over those that the configured verifier asks for."""
    audiences = _listed(environ.get("FEEDSVC_JWT_AUDIENCE", ""))
    claims = {
        "iss": environ.get("FEEDSVC_JWT_ISSUER", "").strip() or None,
        "aud": audiences[0] if audiences else None,
        options.tenant_claim: options.tenant,
        "sub": options.sub,
        "scope": options.scope,
    }
    return {name: value for name, value in claims.items() if value is not None} | dict(options.claim)


def _listed(value: str) -> list[str]:
    return [item.strip() for item in value.split(",") if item.strip()]


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= 366 * _DAY_S:
        raise argparse.ArgumentTypeError("must be more than 0 and at most a year")
    return value


def _hours(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 24 * 366:
        raise argparse.ArgumentTypeError("must be from 0 to a year of hours")
    return value


def _claim(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError("must be NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
