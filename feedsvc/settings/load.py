"""From the environment to `Settings`.

This is the list of what is read and what is checked across variables; how one variable is read, and what is
never shown, is `environment.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Literal

import msgspec

from feedsvc.core.changes import ScopeLevel
from feedsvc.core.limits import Limits
from feedsvc.core.policy import Policy
from feedsvc.settings.environment import Environment, JwtSettings, KeyProblems, ReadFile, read_limited
from feedsvc.settings.secret import Secret
from feedsvc.settings.variables import unknown_name_warnings

MongoDriver = Literal["pymongo", "motor"]

_DRIVERS: tuple[MongoDriver, ...] = ("pymongo", "motor")
_SCOPES: tuple[ScopeLevel, ...] = ("collection", "database", "deployment")

IsInstalled = Callable[[str], bool]
"""Whether a package can be imported."""
UriProblems = Callable[[str], Sequence[str]]
"""A MongoDB URI to problems: `feedsvc.adapters.mongo.uri.uri_problems`, given by the caller."""


def is_installed(package: str) -> bool:
    return find_spec(package) is not None


class SettingsError(ValueError):
    """The configuration cannot be used. `problems` are all there are; `warnings` as in `Settings`."""

    def __init__(self, problems: list[str], warnings: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems
        self.warnings = warnings


class Settings(msgspec.Struct, frozen=True):
    """The checked configuration. `limits` hold the environment's and the policy's numbers."""

    mongodb_uri: Secret[str]
    host: str
    port: int
    policy: Policy
    jwt: JwtSettings
    token_keys: tuple[Secret[bytes], ...]
    source_epoch: str
    allowed_origins: frozenset[str]
    ready_needs_source: bool
    tail_scope: ScopeLevel
    mongo_driver: MongoDriver
    limits: Limits
    warnings: tuple[str, ...]


def load_settings(
    environ: Mapping[str, str],
    *,
    read_file: ReadFile = read_limited,
    key_problems: KeyProblems | None = None,
    uri_problems: UriProblems | None = None,
    is_installed: IsInstalled = is_installed,
) -> Settings:
    """The settings of an environment. Raises `SettingsError`.

    `key_problems` looks into the JWT key itself; without it a bad key is found only when the verifier is made.
    `uri_problems` does the same for the URI of MongoDB.
    """
    environment = Environment(environ, read_file)
    limits = environment.limits()
    policy = environment.policy()
    uri = environment.secret("FEEDSVC_MONGODB_URI", required=True).strip()
    if uri and not uri.startswith(("mongodb://", "mongodb+srv://")):
        environment.problem("FEEDSVC_MONGODB_URI", "must start with mongodb:// or mongodb+srv://")
    elif uri and uri_problems is not None:
        for problem in uri_problems(uri):
            environment.problem("FEEDSVC_MONGODB_URI", problem)
    host = environment.text("FEEDSVC_HOST") or "127.0.0.1"
    port = environment.port("FEEDSVC_PORT", 8080)
    jwt = environment.jwt(key_problems)
    token_keys = environment.token_keys("FEEDSVC_TOKEN_KEYS")
    source_epoch = environment.text("FEEDSVC_SOURCE_EPOCH") or ""
    if not re.fullmatch(r"[A-Za-z0-9._:-]{0,64}", source_epoch):
        environment.problem(
            "FEEDSVC_SOURCE_EPOCH", "must be at most 64 of the characters A-Z a-z 0-9 . _ : -"
        )
    origins = environment.origins("FEEDSVC_ALLOWED_ORIGINS")
    ready_needs_source = environment.flag("FEEDSVC_READY_NEEDS_SOURCE")
    tenant_in_database = policy is not None and policy.tenant_in_database
    tail_scope: ScopeLevel = environment.choice(
        "FEEDSVC_TAIL_SCOPE",
        _SCOPES,
        "deployment" if tenant_in_database else _SCOPES[0],
    )
    if tenant_in_database and tail_scope != "deployment":
        environment.warnings.append(
            f"FEEDSVC_TAIL_SCOPE: {tail_scope} with one database per tenant takes tails per tenant (FEEDSVC_MAX_TAILS)"
        )
    driver = environment.choice("FEEDSVC_MONGO_DRIVER", _DRIVERS, _DRIVERS[0])
    if driver == "motor" and not is_installed(driver):
        environment.problem(
            "FEEDSVC_MONGO_DRIVER", "motor is not installed: it is the optional extra `motor` of feedsvc"
        )
    environment.warnings += unknown_name_warnings(environ)
    if environment.problems or policy is None:
        raise SettingsError(environment.problems, environment.warnings)
    return Settings(
        mongodb_uri=Secret(uri),
        host=host,
        port=port,
        policy=policy,
        jwt=jwt,
        token_keys=token_keys,
        source_epoch=source_epoch,
        allowed_origins=origins,
        ready_needs_source=ready_needs_source,
        tail_scope=tail_scope,
        mongo_driver=driver,
        limits=msgspec.structs.replace(limits, **msgspec.structs.asdict(policy.limits)),
        warnings=tuple(environment.warnings),
    )


def check_report(
    environ: Mapping[str, str],
    *,
    read_file: ReadFile = read_limited,
    key_problems: KeyProblems | None = None,
    uri_problems: UriProblems | None = None,
    is_installed: IsInstalled = is_installed,
) -> tuple[list[str], list[str]]:
    """(problems, warnings) of a configuration, for `feedsvc check`. Arguments as for `load_settings`."""
    try:
        settings = load_settings(
            environ,
            read_file=read_file,
            key_problems=key_problems,
            uri_problems=uri_problems,
            is_installed=is_installed,
        )
    except SettingsError as error:
        return error.problems, error.warnings
    return [], list(settings.warnings)
