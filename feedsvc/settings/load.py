"""From the environment to `Settings`.

This is the list of what is read and what is checked across variables; how one variable is read, and what is
never shown, is `environment.py`. Each problem belongs to a part of the configuration, so that `feedsvc doctor` can go
on with the parts that are whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Literal, TypedDict, TypeVar, Unpack

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

Part = Literal["mongodb", "policy", "jwt", "token_keys", "service"]
"""What a problem or a warning is about; `service` is everything else."""

T = TypeVar("T")

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


class Reading(msgspec.Struct, frozen=True):
    """What an environment holds. `settings` is None where anything is wrong; each of the others that may be None is so
    where that part is. Problems and warnings are in the order in which they were found."""

    settings: Settings | None
    mongodb_uri: Secret[str] | None
    policy: Policy | None
    jwt: JwtSettings | None
    token_keys: tuple[Secret[bytes], ...] | None
    tail_scope: ScopeLevel
    mongo_driver: MongoDriver
    limits: Limits
    problems: tuple[tuple[Part, str], ...]
    warnings: tuple[tuple[Part, str], ...]


class _Notes:
    """Puts what an environment has noted down to the part that was read."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self.problems: list[tuple[Part, str]] = []
        self.warnings: list[tuple[Part, str]] = []

    def of(self, part: Part, value: T) -> T:
        """The value, which has just been read."""
        noted = self._environment
        self.problems += [(part, text) for text in noted.problems[len(self.problems) :]]
        self.warnings += [(part, text) for text in noted.warnings[len(self.warnings) :]]
        return value

    def whole(self, part: Part) -> bool:
        return all(other != part for other, _ in self.problems)


class Looks(TypedDict, total=False):
    """How the machine around an environment is looked at: the keyword arguments of `read_settings`."""

    read_file: ReadFile
    key_problems: KeyProblems | None
    uri_problems: UriProblems | None
    is_installed: IsInstalled


def read_settings(
    environ: Mapping[str, str],
    *,
    read_file: ReadFile = read_limited,
    key_problems: KeyProblems | None = None,
    uri_problems: UriProblems | None = None,
    is_installed: IsInstalled = is_installed,
) -> Reading:
    """Everything that an environment says, with all problems and warnings. Raises nothing.

    `key_problems` looks into the JWT key itself; without it a bad key is found only when the verifier is made.
    `uri_problems` does the same for the URI of MongoDB.
    """
    environment = Environment(environ, read_file)
    notes = _Notes(environment)
    limits = notes.of("service", environment.limits())
    policy = notes.of("policy", environment.policy())
    uri = notes.of("mongodb", _uri(environment, uri_problems))
    host = environment.text("FEEDSVC_HOST") or "127.0.0.1"
    port = notes.of("service", environment.port("FEEDSVC_PORT", 8080))
    jwt = notes.of("jwt", environment.jwt(key_problems))
    token_keys = notes.of("token_keys", environment.token_keys("FEEDSVC_TOKEN_KEYS"))
    source_epoch = environment.text("FEEDSVC_SOURCE_EPOCH") or ""
    if not re.fullmatch(r"[A-Za-z0-9._:-]{0,64}", source_epoch):
        environment.problem(
            "FEEDSVC_SOURCE_EPOCH", "must be at most 64 of the characters A-Z a-z 0-9 . _ : -"
        )
    origins = environment.origins("FEEDSVC_ALLOWED_ORIGINS")
    ready_needs_source = environment.flag("FEEDSVC_READY_NEEDS_SOURCE")
    tail_scope = _tail_scope(environment, policy)
    driver = environment.choice("FEEDSVC_MONGO_DRIVER", _DRIVERS, _DRIVERS[0])
    if driver == "motor" and not is_installed(driver):
        environment.problem(
            "FEEDSVC_MONGO_DRIVER", "motor is not installed: it is the optional extra `motor` of feedsvc"
        )
        driver = _DRIVERS[0]
    environment.warnings += unknown_name_warnings(environ)
    notes.of("service", None)
    settings = None
    if not notes.problems and policy is not None:
        settings = Settings(
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
    return Reading(
        settings=settings,
        mongodb_uri=Secret(uri) if notes.whole("mongodb") else None,
        policy=policy,
        jwt=jwt if notes.whole("jwt") else None,
        token_keys=token_keys if notes.whole("token_keys") else None,
        tail_scope=tail_scope,
        mongo_driver=driver,
        limits=limits if settings is None else settings.limits,
        problems=tuple(notes.problems),
        warnings=tuple(notes.warnings),
    )


def _uri(environment: Environment, uri_problems: UriProblems | None) -> str:
    uri = environment.secret("FEEDSVC_MONGODB_URI", required=True).strip()
    if uri and not uri.startswith(("mongodb://", "mongodb+srv://")):
        environment.problem("FEEDSVC_MONGODB_URI", "must start with mongodb:// or mongodb+srv://")
    elif uri and uri_problems is not None:
        for problem in uri_problems(uri):
            environment.problem("FEEDSVC_MONGODB_URI", problem)
    return uri


def _tail_scope(environment: Environment, policy: Policy | None) -> ScopeLevel:
    tenant_in_database = policy is not None and policy.tenant_in_database
    scope: ScopeLevel = environment.choice(
        "FEEDSVC_TAIL_SCOPE",
        _SCOPES,
        "deployment" if tenant_in_database else _SCOPES[0],
    )
    if tenant_in_database and scope != "deployment":
        environment.warnings.append(
            f"FEEDSVC_TAIL_SCOPE: {scope} with one database per tenant takes tails per tenant (FEEDSVC_MAX_TAILS)"
        )
    return scope


def load_settings(environ: Mapping[str, str], **looks: Unpack[Looks]) -> Settings:
    """The settings of an environment. Raises `SettingsError`. Arguments as for `read_settings`."""
    reading = read_settings(environ, **looks)
    if reading.settings is None:
        raise SettingsError([text for _, text in reading.problems], [text for _, text in reading.warnings])
    return reading.settings


def check_report(environ: Mapping[str, str], **looks: Unpack[Looks]) -> tuple[list[str], list[str]]:
    """(problems, warnings) of a configuration, for `feedsvc check`. Arguments as for `read_settings`."""
    reading = read_settings(environ, **looks)
    return [text for _, text in reading.problems], [text for _, text in reading.warnings]
