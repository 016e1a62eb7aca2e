from __future__ import annotations

import base64
import pickle
from collections.abc import Sequence
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519
from hypothesis import given
from hypothesis import strategies as st

from feedsvc.adapters.jwt import jwt_key_problems
from feedsvc.core.limits import LIMITS
from feedsvc.settings import (
    Secret,
    Settings,
    SettingsError,
    check_report,
    load_settings,
    read_settings,
    variables_table,
)
from feedsvc.settings.variables import VARIABLES

DOCUMENT = Path(__file__).parents[1] / "docs" / "configuration.md"
POLICY = """
tenant: {claim: tenant, database: "app_{tenant}"}
collections: {orders: {fields: {cost: 0}}}
limits: {topicsPerTenant: 7}
"""
SHARED_POLICY = "tenant: {claim: t, database: shop}\ncollections: {orders: {}}\n"
SECRET = "hush-hush-hush-hush-hush-hush-hush-hush"
URI = "mongodb://user:hush@127.0.0.1:27017/?replicaSet=rs0"
KEYS = [base64.urlsafe_b64encode(bytes(range(n, n + 32))).decode() for n in range(3)]
PEM = (
    ed25519.Ed25519PrivateKey.generate()
    .public_key()
    .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    .decode()
)
GOOD = {
    "FEEDSVC_MONGODB_URI": URI,
    "FEEDSVC_POLICY": "policy.yaml",
    "FEEDSVC_JWT_SECRET": SECRET,
    "FEEDSVC_TOKEN_KEYS": KEYS[0],
    "PATH": "/bin",
}
FILES = {
    "policy.yaml": POLICY.encode(),
    "shared.yaml": SHARED_POLICY.encode(),
    "uri": URI.encode() + b"\n",
    "secret": SECRET.encode() + b"\r\n",
    "keys": f"{KEYS[0]},\n{KEYS[1]}\n".encode(),
    "public.pem": PEM.encode(),
    "empty": b"\n",
    "binary": b"\xff\xfe",
}


def read_file(path: str) -> bytes:
    if path not in FILES:
        raise FileNotFoundError(2, "No such file or directory", path)
    return FILES[path]


def load(*without: str, **variables: str) -> Settings:
    environ = {name: value for name, value in GOOD.items() if name not in without} | variables
    return load_settings(environ, read_file=read_file, key_problems=jwt_key_problems)


def problems(*without: str, **variables: str) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load(*without, **variables)
    return caught.value.problems


def policy_problems(content: bytes) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load_settings(GOOD, read_file=lambda path: content)
    assert all(problem.startswith("FEEDSVC_POLICY: ") for problem in caught.value.problems)
    return [problem.removeprefix("FEEDSVC_POLICY: ") for problem in caught.value.problems]


def test_defaults() -> None:
    """The required variables are enough; the rest has the defaults of protocol.md section 11."""
    settings = load()
    assert settings.mongodb_uri.reveal() == URI
    assert (settings.host, settings.port) == ("127.0.0.1", 8080)
    assert settings.jwt.secret == Secret(SECRET)
    assert settings.jwt.public_key is None
    assert [key.reveal() for key in settings.token_keys] == [bytes(range(32))]
    assert (settings.source_epoch, settings.allowed_origins) == ("", frozenset())
    assert (settings.ready_needs_source, settings.mongo_driver) == (False, "pymongo")
    assert settings.limits.checkpoint_interval_s == 15
    assert settings.policy.database_for("t1") == "app_t1"


def test_everything_set() -> None:
    """Each variable reaches its field."""
    settings = load(
        FEEDSVC_HOST="0.0.0.0",
        FEEDSVC_PORT="0",
        FEEDSVC_JWT_ISSUER="https://issuer.example",
        FEEDSVC_JWT_AUDIENCE="a, b",
        FEEDSVC_JWT_ALGORITHMS="HS256",
        FEEDSVC_TOKEN_KEYS=f"{KEYS[1].rstrip('=')}, {KEYS[0]}",
        FEEDSVC_SOURCE_EPOCH="2",
        FEEDSVC_ALLOWED_ORIGINS="https://app.example, http://localhost:3000",
        FEEDSVC_READY_NEEDS_SOURCE="true",
        FEEDSVC_MONGO_DRIVER="motor",
        FEEDSVC_CHECKPOINT_INTERVAL="0.5",
        FEEDSVC_LOG_BYTES="1000",
        FEEDSVC_DRAIN="0",
    )
    assert (settings.host, settings.port) == ("0.0.0.0", 0)
    assert settings.jwt.issuer == "https://issuer.example"
    assert settings.jwt.audiences == ("a", "b")
    assert settings.jwt.algorithms == ("HS256",)
    assert [key.reveal()[0] for key in settings.token_keys] == [1, 0]
    assert settings.source_epoch == "2"
    assert settings.allowed_origins == {"https://app.example", "http://localhost:3000"}
    assert settings.ready_needs_source
    assert settings.mongo_driver == "motor"
    assert (settings.limits.checkpoint_interval_s, settings.limits.log_bytes) == (0.5, 1000)
    assert settings.limits.drain_s == 0
    assert settings.warnings == ()


def test_secrets_from_files() -> None:
    """`NAME_FILE` gives the content of a file without the line break at its end."""
    settings = load(
        *GOOD,
        FEEDSVC_POLICY="policy.yaml",
        FEEDSVC_MONGODB_URI_FILE="uri",
        FEEDSVC_JWT_SECRET_FILE="secret",
        FEEDSVC_TOKEN_KEYS_FILE="keys",
    )
    assert settings.mongodb_uri.reveal() == URI
    assert settings.jwt.secret == Secret(SECRET)
    assert len(settings.token_keys) == 2
    public = load("FEEDSVC_JWT_SECRET", FEEDSVC_JWT_PUBLIC_KEY_FILE="public.pem").jwt
    assert public.secret is None
    assert public.public_key == Secret(PEM.rstrip())


@pytest.mark.parametrize(
    "name", ["FEEDSVC_MONGODB_URI", "FEEDSVC_JWT_SECRET", "FEEDSVC_JWT_PUBLIC_KEY", "FEEDSVC_TOKEN_KEYS"]
)
def test_secret_files_go_wrong(name: str) -> None:
    """A file that is missing, empty or not text is a problem, and so is a secret that is given twice."""
    without = () if name in GOOD else ("FEEDSVC_JWT_SECRET",)
    for path, reason in (("nowhere", "No such file"), ("empty", "empty file"), ("binary", "UTF-8")):
        (problem,) = problems(name, *without, **{f"{name}_FILE": path})
        assert problem.startswith(f"{name}_FILE: ")
        assert reason in problem
    twice = problems(*without, **{name: GOOD.get(name, PEM), f"{name}_FILE": "uri"})
    assert any("given twice" in problem and name in problem for problem in twice)


def test_nothing_set() -> None:
    """All that is required is named at once."""
    found = problems(*GOOD)
    for name in ("FEEDSVC_MONGODB_URI", "FEEDSVC_POLICY", "FEEDSVC_JWT_SECRET", "FEEDSVC_TOKEN_KEYS"):
        assert any(problem.startswith(f"{name}: ") for problem in found), name
    assert len(found) == 4
    assert problems(*GOOD, **dict.fromkeys(GOOD, "")) == found


def test_all_problems_at_once() -> None:
    """One wrong value does not hide another, in the environment, in the key or in the policy file."""
    wrong = {
        "FEEDSVC_MONGODB_URI": "localhost",
        "FEEDSVC_PORT": "65536",
        "FEEDSVC_POLICY": "nowhere",
        "FEEDSVC_JWT_SECRET": "short",
        "FEEDSVC_TOKEN_KEYS": "short",
        "FEEDSVC_SOURCE_EPOCH": "a b",
        "FEEDSVC_ALLOWED_ORIGINS": "*",
        "FEEDSVC_READY_NEEDS_SOURCE": "maybe",
        "FEEDSVC_TAIL_SCOPE": "cluster",
        "FEEDSVC_MONGO_DRIVER": "mongoengine",
        "FEEDSVC_MAX_TAILS": "0",
    }
    found = problems(**wrong)
    for name in wrong:
        assert any(name in problem for problem in found) or name == "FEEDSVC_JWT_SECRET", name
    assert any("JWT secret is shorter" in problem for problem in found)
    assert len(found) == len(wrong)


@given(st.sampled_from([variable.name for variable in VARIABLES]), st.text(min_size=4).filter(str.strip))
def test_values_are_never_shown(name: str, value: str) -> None:
    """What stands in a wrong variable may be a secret: no problem or warning repeats it."""
    marked = f"hush~{value}~hush"
    found, warnings = check_report(GOOD | {name: marked}, read_file=read_file, key_problems=jwt_key_problems)
    assert not any("hush" in line for line in [*found, *warnings])


@pytest.mark.parametrize(
    "given_names",
    [
        ["FEEDSVC_JWT_SECRET", "FEEDSVC_JWT_PUBLIC_KEY"],
        ["FEEDSVC_JWT_SECRET", "FEEDSVC_JWKS_URL"],
        ["FEEDSVC_JWT_SECRET_FILE", "FEEDSVC_JWT_PUBLIC_KEY_FILE"],
        [],
    ],
)
def test_exactly_one_jwt_key(given_names: Sequence[str]) -> None:
    """A secret and a public key beside each other would mix algorithms; one of them is needed."""
    values = {
        "FEEDSVC_JWT_SECRET": SECRET,
        "FEEDSVC_JWT_PUBLIC_KEY": PEM,
        "FEEDSVC_JWKS_URL": "https://i.example",
    }
    values |= {"FEEDSVC_JWT_SECRET_FILE": "secret", "FEEDSVC_JWT_PUBLIC_KEY_FILE": "public.pem"}
    found = problems("FEEDSVC_JWT_SECRET", **{name: values[name] for name in given_names})
    assert any("exactly one of" in problem for problem in found)


@pytest.mark.parametrize(
    "url",
    [
        "https://issuer.example/.well-known/jwks.json?v=1",
        "https://issuer.example:8443",
        "http://localhost:8081/keys",
        "http://127.0.0.2/keys",
        "http://[::1]:8081/keys",
    ],
)
def test_key_servers(url: str) -> None:
    """A key server is named by an https address, on this machine also by http."""
    jwt = load("FEEDSVC_JWT_SECRET", FEEDSVC_JWKS_URL=url, FEEDSVC_JWT_ALGORITHMS="RS256,ES256").jwt
    assert (jwt.jwks_url, jwt.secret, jwt.public_key) == (url, None, None)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://issuer.example/keys", "https"),
        ("http://10.0.0.1/keys", "https"),
        ("http://localhost.example/keys", "https"),
        ("http://0.0.0.0/keys", "https"),
        ("file:///keys", "https"),
        ("issuer.example/keys", "https"),
        ("https://", "https"),
        ("https:///keys", "https"),
        ("https://issuer.example/a b", "https"),
        ("https://issuer.example/\u00fc", "https"),
        ("https://issuer.example:0/keys", "https"),
        ("https://issuer.example:70000/keys", "address"),
        ("https://[::1/keys", "address"),
        ("https://user@issuer.example/keys", "user"),
        ("https://user:hush@issuer.example/keys", "user"),
        ("http://localhost@issuer.example/keys", "user"),
        ("https://issuer.example/keys#k1", "fragment"),
    ],
)
def test_unfit_key_servers(url: str, reason: str) -> None:
    """Keys do not come over an open network, and an address holds no secret."""
    (problem,) = problems("FEEDSVC_JWT_SECRET", FEEDSVC_JWKS_URL=url)
    assert problem.startswith("FEEDSVC_JWKS_URL: ") and reason in problem and "hush" not in problem


def test_a_key_server_is_no_secret() -> None:
    """`FEEDSVC_JWKS_URL_FILE` does not exist, so it configures nothing."""
    (problem,) = problems("FEEDSVC_JWT_SECRET", FEEDSVC_JWKS_URL_FILE="uri")
    assert "found none" in problem


@pytest.mark.parametrize("algorithms", ["HS256", "RS256,none", "RS256,hush"])
def test_algorithms_of_a_key_server_are_public(algorithms: str) -> None:
    """A key server publishes public keys: an HMAC algorithm beside them is a mistake."""
    (problem,) = problems(
        "FEEDSVC_JWT_SECRET", FEEDSVC_JWKS_URL="https://issuer.example", FEEDSVC_JWT_ALGORITHMS=algorithms
    )
    assert "does not fit the keys of a key server" in problem and "hush" not in problem


def test_algorithms_fit_the_key() -> None:
    """The configured algorithms are checked against the key."""
    assert problems(FEEDSVC_JWT_ALGORITHMS="HS256,RS256")
    assert problems("FEEDSVC_JWT_SECRET", FEEDSVC_JWT_PUBLIC_KEY=PEM, FEEDSVC_JWT_ALGORITHMS="HS256")
    settings = load("FEEDSVC_JWT_SECRET", FEEDSVC_JWT_PUBLIC_KEY=PEM, FEEDSVC_JWT_ALGORITHMS="EdDSA")
    assert settings.jwt.algorithms == ("EdDSA",)


@pytest.mark.parametrize(
    "keys",
    [
        "short",
        KEYS[0][:-2],
        KEYS[0] + "=",
        "A" + KEYS[0],
        KEYS[0].replace("A", "+", 1),
        f"{KEYS[0]},{KEYS[0].rstrip('=')}",
        f"{KEYS[0]},",
        f"{KEYS[0]},,{KEYS[1]}",
        ",",
    ],
)
def test_unfit_token_keys(keys: str) -> None:
    """A key is 32 bytes in base64url; none is empty or there twice."""
    found = problems(FEEDSVC_TOKEN_KEYS=keys)
    assert all(problem.startswith("FEEDSVC_TOKEN_KEYS: ") for problem in found)


@pytest.mark.parametrize("port", ["-1", "65536", "80.0", "http", "８０", "+80", "1_0", "0x50"])
def test_unfit_ports(port: str) -> None:
    """A port is a whole number from 0 to 65535 in plain digits."""
    (problem,) = problems(FEEDSVC_PORT=port)
    assert problem.startswith("FEEDSVC_PORT: ")


def test_kubernetes_service_links() -> None:
    """A Service named feedsvc sets FEEDSVC_PORT to an address: the problem says what to do, the rest is one warning."""
    links = {"FEEDSVC_SERVICE_HOST": "10.0.0.1", "FEEDSVC_PORT_80_TCP": "tcp://10.0.0.1:80"}
    (problem,) = problems(FEEDSVC_PORT="tcp://10.0.0.1:80", **links)
    assert "enableServiceLinks" in problem
    assert len([line for line in load(**links).warnings if "enableServiceLinks" in line]) == 1


@pytest.mark.parametrize(
    "origin",
    ["*", "null", "https://", "https://app.example/", "https://app.example/x", "https://App.example", "app.example",
     "https://*.example", "https://u@app.example", "https://app.example:443", "http://app.example:80",
     "https://app.example:", "https://app.example:99999", "https://app.example?x", "https://a b", "https://app.example,"],
)  # fmt: skip
def test_unfit_origins(origin: str) -> None:
    """AUT-09: an origin is exactly what a browser sends; `null` and patterns are refused."""
    found = problems(FEEDSVC_ALLOWED_ORIGINS=origin)
    assert all(problem.startswith("FEEDSVC_ALLOWED_ORIGINS: ") for problem in found)


def test_origins() -> None:
    """Ports, IPv6 and the schemes of apps are possible."""
    origins = {
        "https://app.example:8443",
        "http://[::1]:3000",
        "capacitor://localhost",
        "https://app.example",
    }
    assert load(FEEDSVC_ALLOWED_ORIGINS=",".join(origins)).allowed_origins == origins


@pytest.mark.parametrize("limit", [limit for limit in LIMITS.values() if limit.environment_variable])
@pytest.mark.parametrize(
    "value", ["-1", "nan", "inf", "1e3", "1_000", "text", "99999999999999999999", "15s", "1 MiB"]
)
def test_unfit_numbers(limit: object, value: str) -> None:
    """Numbers are plain and within the bounds of the table."""
    name = getattr(limit, "environment_variable")  # noqa: B009 - Optional in the type, filtered above
    (problem,) = problems(**{name: value})
    assert problem.startswith(f"{name}: must be ")


@pytest.mark.parametrize("limit", [limit for limit in LIMITS.values() if limit.environment_variable])
def test_numbers(limit: object) -> None:
    """Each configurable limit reaches its field; the policy's limits do too."""
    name, field = getattr(limit, "environment_variable"), getattr(limit, "name")  # noqa: B009
    settings = load(**{name: "77"})
    assert getattr(settings.limits, field) == 77
    assert settings.limits.topics_per_tenant == 7


@pytest.mark.parametrize(
    ("value", "expected"), [("TRUE", True), ("1", True), ("no", False), ("0", False), (" ", False)]
)
def test_flags(value: str, expected: bool) -> None:
    """Flags in their usual spellings."""
    assert load(FEEDSVC_READY_NEEDS_SOURCE=value).ready_needs_source is expected


def test_tail_scope() -> None:
    """The default scope follows the policy: one stream in all where each tenant has a database."""
    assert load().tail_scope == "deployment"
    assert load(FEEDSVC_POLICY="shared.yaml").tail_scope == "collection"
    chosen = load(FEEDSVC_TAIL_SCOPE="collection")
    assert chosen.tail_scope == "collection"
    assert any("FEEDSVC_TAIL_SCOPE" in warning for warning in chosen.warnings)


def test_motor_must_be_installed() -> None:
    """Only the driver that is chosen is asked for."""

    def found(driver: str) -> list[str]:
        environ = GOOD | {"FEEDSVC_MONGO_DRIVER": driver}
        return check_report(environ, read_file=read_file, is_installed=lambda package: False)[0]

    assert found("pymongo") == []
    (problem,) = found("motor")
    assert problem.startswith("FEEDSVC_MONGO_DRIVER: motor is not installed")


def test_warnings() -> None:
    """Unchecked issuers and audiences, open collections and misspelt names are told, and start nevertheless."""
    variables = {"FEEDSVC_PORTT": "1", "FEEDSVC_JWT_AUDIENCE_FILE": "x", "FEEDSVC_TEST_MONGODB_URI": "x"}
    warnings = "\n".join(load(FEEDSVC_POLICY="shared.yaml", **variables).warnings)
    for expected in (
        "FEEDSVC_JWT_ISSUER is not set",
        "FEEDSVC_JWT_AUDIENCE is not set",
        "FEEDSVC_JWT_ALGORITHMS is not set",
        "policy: collections.orders: no filter",
        "FEEDSVC_PORTT is not a setting; did you mean FEEDSVC_PORT?",
        "FEEDSVC_JWT_AUDIENCE_FILE is not a setting",
    ):
        assert expected in warnings
    assert "FEEDSVC_TEST" not in warnings
    repeated = base64.urlsafe_b64encode(bytes(32)).decode()
    assert any("one byte repeated" in line for line in load(FEEDSVC_TOKEN_KEYS=repeated).warnings)


def test_check_report() -> None:
    """`check` gets problems and warnings, also where there are problems."""
    found, warnings = check_report(GOOD, read_file=read_file)
    assert found == []
    assert warnings
    found, with_problems = check_report(GOOD | {"FEEDSVC_PORT": "x"}, read_file=read_file)
    assert (len(found), with_problems) == (1, warnings)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "policy: is missing"),
        (b"text", "must be a mapping"),
        (b"a: b: c", "line 1: "),
        (b"tenant: {}\ntenant: {}\n", "line 2: the key 'tenant' is given twice"),
        (POLICY.replace("fields: {cost: 0}", "fields: {cost: 0, cost: 1}").encode(), "'cost' is given twice"),
        (b"a: !!python/object/apply:os.system [ls]", "line 1: "),
        (b"a: 1\n---\nb: 2\n", "line "),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"a: \x00", "not YAML"),
        (b"[" * 100_000, "nested too deeply"),
        (b"#" * 300_000, "larger than"),
        (b"tenant: &t {claim: *t, database: d}\ncollections: {a: {}}", "tenant.claim"),
        (b"tenant: {claim: t, database: d}\ncollections: {a: {filter: &f {b: *f}}}", "nested too deeply"),
        (b"tenant: {claim: t, database: d}\ncollections: {a: {filter: {b: 2020-01-01}}}", "is not JSON"),
        (
            b"tenant: {claim: t, database: d}\ncollections: {a: {filter: {on: 1}}}",
            "is not a string; quote it",
        ),
        (b"tenant: {claim: t, database: d}\ncollections: {a: {filter: {? [1] : 1}}}", "line 2: "),
    ],
)
def test_unfit_policy_files(content: bytes, reason: str) -> None:
    """Whatever the file holds, there is a problem that says why, and no traceback."""
    assert any(reason in problem for problem in policy_problems(content))


def test_a_problem_of_the_policy_names_its_line() -> None:
    """Also where a key has dots in it, in a list, and where the place is the file itself."""
    content = b"""
tenant: {claim: t, database: shop}
collections:
  orders: {filter: {a.b: {$where: 1}}}
  a.b:
    fields: {x: 1, y: 0}
    allowPartial: perhaps
  lines:
    filter:
      $or:
        - {a: 1}
        - {b: {$near: 1}}
limit: {}
"""
    found = sorted(policy_problems(content))
    lines = {
        problem.split(": ")[1] if problem.startswith("line ") else problem.split(": ")[0]: problem
        for problem in found
    }
    assert {place: problem.split(":")[0] for place, problem in lines.items()} == {
        "collections.orders.filter.a.b.$where": "line 4",
        "collections.a.b.fields": "line 6",
        "collections.a.b.allowPartial": "line 7",
        "collections.lines.filter.$or.1.b.$near": "line 12",
        "policy": "policy",
    }, found


def test_a_part_with_a_problem_does_not_take_the_others_away() -> None:
    """What `doctor` goes on with where something else is wrong."""
    wrong = {"FEEDSVC_POLICY": "shared.yaml", "FEEDSVC_TOKEN_KEYS": "x", "FEEDSVC_PORT": "x"}
    reading = read_settings(GOOD | wrong, read_file=read_file)
    assert reading.settings is None and reading.token_keys is None
    assert reading.mongodb_uri == Secret(URI) and reading.policy is not None and reading.jwt is not None
    assert [part for part, _ in reading.problems] == ["service", "token_keys"]
    assert {part for part, _ in reading.warnings} == {"policy", "jwt"}
    empty = read_settings({}, read_file=read_file)
    assert [empty.mongodb_uri, empty.policy, empty.jwt, empty.token_keys] == [None] * 4


def test_files_are_read_from_disk(tmp_path: Path) -> None:
    """Without a reader of its own, paths are those of the file system, and reading is bounded."""
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    assert load_settings(GOOD | {"FEEDSVC_POLICY": str(path)}).policy.limits.topics_per_tenant == 7
    found, _ = check_report(GOOD | {"FEEDSVC_POLICY": str(tmp_path)})
    assert found == ["FEEDSVC_POLICY: cannot be read: Is a directory"]
    found, _ = check_report(GOOD | {"FEEDSVC_POLICY": "/dev/zero"})
    assert "larger than" in found[0]


def test_secrets_do_not_show() -> None:
    """No text form of the settings holds a secret, and a secret does not pickle."""
    settings = load()
    shown = (
        f"{settings!r} {settings} {settings.jwt.secret} {settings.mongodb_uri!r} {settings.token_keys[0]:>5}"
    )
    for secret in (SECRET, "hush", KEYS[0][:43], repr(bytes(range(32)))):
        assert secret not in shown
    assert "***" in shown
    with pytest.raises(TypeError):
        pickle.dumps(settings.jwt.secret)


def test_secrets_compare_by_value() -> None:
    """Equal secrets are equal and hash alike, so that a rotation can be noticed."""
    assert Secret("a") == Secret("a") != Secret("b")
    assert Secret(b"a") == Secret(b"a")
    assert Secret("a") != "a"
    assert len({Secret("a"), Secret("a")}) == 1


def test_document_contains_the_table() -> None:
    """docs/configuration.md shows exactly the generated table, which names every variable once."""
    assert f"\n{variables_table()}\n" in DOCUMENT.read_text(encoding="utf-8")
    names = [variable.name for variable in VARIABLES]
    assert len(set(names)) == len(names)
