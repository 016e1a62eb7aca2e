"""Reads the environment, one variable at a time.

Reading goes on after a problem, so that an operator sees all of them in one run. Problems and warnings name the
variable and the rule and never show a value: what stands in the wrong variable may be a secret. An empty
variable counts as absent, as compose files and charts write it.
"""

from __future__ import annotations

import base64
import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from feedsvc.core.limit_table import Limit
from feedsvc.core.limits import LIMITS, Limits
from feedsvc.core.policy import Policy, PolicyError
from feedsvc.settings.policy_file import MAX_BYTES, parse_policy_file
from feedsvc.settings.secret import Secret
from feedsvc.settings.variables import FILE_SUFFIX

ReadFile = Callable[[str], bytes]
KeyProblems = Callable[[str | None, str | None, Sequence[str]], Sequence[str]]
"""(secret, public key, algorithms) to problems: `feedsvc.adapters.jwt.jwt_key_problems`, given by the caller."""

_TOKEN_KEY = re.compile(r"[A-Za-z0-9_-]{43}=?")
_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([1-9][0-9]{0,4}))?")
_DEFAULT_PORTS = {"http": "80", "https": "443"}
_FLAGS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_Choice = TypeVar("_Choice", bound=str)


class JwtSettings(msgspec.Struct, frozen=True):
    """Exactly one of the first three. Empty `algorithms` mean the key's own, empty `audiences` any."""

    secret: Secret[str] | None
    public_key: Secret[str] | None
    jwks_url: str | None
    issuer: str | None
    audiences: tuple[str, ...]
    algorithms: tuple[str, ...]


def read_limited(path: str) -> bytes:
    """At most one byte more than a policy file may have. Raises OSError."""
    with Path(path).open("rb") as file:
        return file.read(MAX_BYTES + 1)


class Environment:
    """Each method notes what is wrong with a variable and returns a harmless value in its place."""

    def __init__(self, environ: Mapping[str, str], read_file: ReadFile) -> None:
        self.problems: list[str] = []
        self.warnings: list[str] = []
        self._environ = environ
        self._read_file = read_file

    def problem(self, name: str, rule: str) -> None:
        self.problems.append(f"{name}: {rule}")

    def text(self, name: str, *, required: bool = False) -> str | None:
        value = self._environ.get(name, "").strip()
        if not value and required:
            self.problem(name, "is required")
        return value or None

    def secret(self, name: str, *, required: bool = False) -> str:
        """The value of NAME or the content of NAME_FILE; "" where neither is given."""
        value = self._environ.get(name, "")
        path = self.text(name + FILE_SUFFIX)
        if value and path:
            self.problem(name, f"is given twice, also as {name}{FILE_SUFFIX}")
        elif path:
            content = self._content(name + FILE_SUFFIX, path)
            if content is None:
                return ""
            try:
                value = content.decode().rstrip("\r\n")
            except UnicodeDecodeError:
                self.problem(name + FILE_SUFFIX, "is not UTF-8 text")
                return ""
            if not value:
                self.problem(name + FILE_SUFFIX, "is an empty file")
        elif not value and required:
            self.problem(name, f"is required (or {name}{FILE_SUFFIX})")
        return value

    def items(self, name: str, value: str | None) -> list[str]:
        """A comma-separated list; an empty item is a problem, for it is most often a lost value."""
        if not value:
            return []
        items = [item.strip() for item in value.split(",")]
        if "" in items:
            self.problem(name, "has an empty item; check the commas")
        return [item for item in items if item]

    def flag(self, name: str) -> bool:
        value = self.text(name)
        if value is None:
            return False
        if value.lower() not in _FLAGS:
            self.problem(name, "must be true or false")
        return _FLAGS.get(value.lower(), False)

    def choice(self, name: str, choices: Sequence[_Choice], default: _Choice) -> _Choice:
        value = self.text(name)
        if value is None:
            return default
        for candidate in choices:
            if value == candidate:
                return candidate
        self.problem(name, f"must be one of {', '.join(choices)}")
        return default

    def port(self, name: str, default: int) -> int:
        value = self.text(name)
        if value is None:
            return default
        if re.fullmatch(r"[0-9]{1,5}", value) and int(value) <= 65535:
            return int(value)
        hint = "; this is a Kubernetes service link, set enableServiceLinks: false" if "://" in value else ""
        self.problem(name, f"must be a whole number from 0 to 65535{hint}")
        return default

    def limits(self) -> Limits:
        chosen: dict[str, Any] = {}
        for limit in LIMITS.values():
            if limit.environment_variable is not None:
                value = self.text(limit.environment_variable)
                if value is not None:
                    chosen[limit.name] = self._number(limit, limit.environment_variable, value)
        return Limits(**chosen)

    def _number(self, limit: Limit, name: str, value: str) -> int | float:
        whole = limit.unit != "seconds"
        if re.fullmatch(r"[0-9]{1,16}" if whole else r"[0-9]{1,9}(\.[0-9]{1,9})?", value):
            number = int(value) if whole else float(value)
            if limit.minimum <= number <= limit.maximum:
                return number
        kind = "a whole number" if whole else "a number of seconds"
        self.problem(name, f"must be {kind} from {limit.minimum} to {limit.maximum}")
        return limit.default

    def policy(self) -> Policy | None:
        path = self.text("FEEDSVC_POLICY", required=True)
        content = self._content("FEEDSVC_POLICY", path) if path else None
        if content is None:
            return None
        try:
            policy = parse_policy_file(content)
        except PolicyError as error:
            self.problems += [f"FEEDSVC_POLICY: {problem}" for problem in error.problems]
            return None
        self.warnings += [f"policy: {warning}" for warning in policy.warnings]
        return policy

    def jwt(self, key_problems: KeyProblems | None) -> JwtSettings:
        secret = self.secret("FEEDSVC_JWT_SECRET")
        public_key = self.secret("FEEDSVC_JWT_PUBLIC_KEY")
        before = len(self.problems)
        names = ("FEEDSVC_JWT_SECRET", "FEEDSVC_JWT_PUBLIC_KEY", "FEEDSVC_JWKS_URL")
        files = names[:2]
        tried = [
            name
            for name in names
            if self._environ.get(name) or (name in files and self._environ.get(name + FILE_SUFFIX))
        ]
        if len(tried) != 1:
            found = f"found {', '.join(tried)}" if tried else "found none"
            self.problem("FEEDSVC_JWT_SECRET", f"exactly one of {', '.join(names)} is required, {found}")
        jwks_url = self._jwks_url("FEEDSVC_JWKS_URL")
        algorithms = self.items("FEEDSVC_JWT_ALGORITHMS", self.text("FEEDSVC_JWT_ALGORITHMS"))
        audiences = self.items("FEEDSVC_JWT_AUDIENCE", self.text("FEEDSVC_JWT_AUDIENCE"))
        issuer = self.text("FEEDSVC_JWT_ISSUER")
        if key_problems is not None and (secret or public_key or jwks_url) and len(self.problems) == before:
            self.problems += key_problems(secret or None, public_key or None, algorithms)
        self._warn_about_jwt(issuer, audiences, algorithms)
        return JwtSettings(
            Secret(secret) if secret else None,
            Secret(public_key) if public_key else None,
            jwks_url,
            issuer,
            tuple(audiences),
            tuple(algorithms),
        )

    def _jwks_url(self, name: str) -> str | None:
        """The keys decide who is let in, so they come over TLS, or from this machine."""
        value = self.text(name)
        if value is None:
            return None
        try:
            url = urlsplit(value)
            host, port = url.hostname, url.port
        except ValueError:
            self.problem(name, "is not an address")
            return None
        if not re.fullmatch(r"[!-~]+", value) or not host or port == 0 or url.scheme not in _DEFAULT_PORTS:
            self.problem(name, "must be an https:// address")
        elif "@" in url.netloc:
            self.problem(name, "must not hold a user or a password")
        elif "#" in value:
            self.problem(name, "must not have a fragment (#)")
        elif url.scheme == "http" and not _is_loopback(host):
            self.problem(name, "must be an https:// address; http:// is for this machine (localhost) only")
        return value

    def _warn_about_jwt(
        self, issuer: str | None, audiences: Iterable[str], algorithms: Iterable[str]
    ) -> None:
        if issuer is None:
            self.warnings.append(
                "FEEDSVC_JWT_ISSUER is not set: JWTs of any issuer that has the key are accepted"
            )
        if not audiences:
            self.warnings.append("FEEDSVC_JWT_AUDIENCE is not set: JWTs for other services are accepted too")
        if not algorithms:
            self.warnings.append(
                "FEEDSVC_JWT_ALGORITHMS is not set: a key's own algorithm or the first of its family is used"
            )

    def token_keys(self, name: str) -> tuple[Secret[bytes], ...]:
        items = self.items(name, self.secret(name, required=True))
        keys: list[bytes] = []
        for number, item in enumerate(items, start=1):
            if not _TOKEN_KEY.fullmatch(item):
                self.problem(name, f"key {number} is not 32 bytes in base64url")
                continue
            key = base64.urlsafe_b64decode(item.rstrip("=") + "=")
            if key in keys:
                self.problem(name, f"key {number} is there before")
            if len(set(key)) == 1:
                self.warnings.append(
                    f"{name}: key {number} is one byte repeated; make it with a random generator"
                )
            keys.append(key)
        return tuple(Secret(key) for key in keys)

    def origins(self, name: str) -> frozenset[str]:
        origins = self.items(name, self.text(name))
        for number, origin in enumerate(origins, start=1):
            match = _ORIGIN.fullmatch(origin)
            if origin in ("*", "null"):
                self.problem(name, f"{origin} would allow every page; name the origins")
            elif match is None or (match[3] and int(match[3]) > 65535):
                self.problem(
                    name, f"origin {number} is not scheme://host or scheme://host:port in lower case"
                )
            elif match[3] == _DEFAULT_PORTS.get(match[1], ""):
                self.problem(name, f"origin {number} has the default port, which browsers leave out")
        return frozenset(origins)

    def _content(self, name: str, path: str) -> bytes | None:
        try:
            return self._read_file(path)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else "not a usable path"
            self.problem(name, f"cannot be read: {reason}")
            return None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
