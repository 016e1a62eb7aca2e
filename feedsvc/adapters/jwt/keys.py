"""Keys, and the algorithms that each kind of key may verify.

The key decides, never the JWT: an HMAC secret allows HS256, HS384 and HS512, an RSA key RS and PS, an elliptic curve
the one algorithm of that curve, an Edwards key EdDSA. A configured list can only narrow that family or choose
inside it. A secret that reads as a public key in any usual encoding is refused, since whoever knows the
public key could then sign (algorithm confusion, CVE-2022-29217).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence

import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key
from jwt.algorithms import AllowedPrivateKeys, AllowedPublicKeys, HMACAlgorithm
from jwt.exceptions import InvalidKeyError

SECRET_MIN_BYTES = {"HS256": 32, "HS384": 48, "HS512": 64}
"""RFC 7518 section 3.2: a secret at least as long as the hash."""
_RSA_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_RSA_MIN_BITS = 2048
_CURVE_ALGORITHMS = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512", "secp256k1": "ES256K"}

PUBLIC_ALGORITHMS = (*_RSA_ALGORITHMS, *_CURVE_ALGORITHMS.values(), "EdDSA")
_ALL_ALGORITHMS = frozenset({*SECRET_MIN_BYTES, *PUBLIC_ALGORITHMS, "none"})


class JwtKeyError(ValueError):
    """The key or the list of algorithms cannot be used. `problems` are for the operator and hold no key."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class JwtKey(msgspec.Struct, frozen=True):
    """A usable verification key with the algorithms it is pinned to. Not shown by `repr`."""

    material: bytes | AllowedPublicKeys
    algorithms: tuple[str, ...]

    def __repr__(self) -> str:
        return f"JwtKey({', '.join(self.algorithms)})"

    @classmethod
    def from_secret(cls, secret: str, algorithms: Sequence[str] = ()) -> JwtKey:
        """An HMAC key; HS256 unless `algorithms` says otherwise. Raises `JwtKeyError`."""
        if _reads_as_public_key(secret):
            raise JwtKeyError(
                ["the JWT secret is a public key; give it as the public key, not as the secret"]
            )
        chosen = _choose(tuple(SECRET_MIN_BYTES), algorithms, "a secret")
        key_bytes = _bytes_of(secret)
        needed_bytes = max(SECRET_MIN_BYTES[algorithm] for algorithm in chosen)
        if len(key_bytes) < needed_bytes:
            raise JwtKeyError(
                [f"the JWT secret is shorter than {needed_bytes} bytes, as {max(chosen)} needs it"]
            )
        return cls(key_bytes, chosen)

    @classmethod
    def from_public_key(cls, pem: str, algorithms: Sequence[str] = ()) -> JwtKey:
        """A public key in PEM (SubjectPublicKeyInfo). RS256, the curve's algorithm or EdDSA. Raises `JwtKeyError`."""
        text = unescaped_pem(pem)
        if "PRIVATE KEY-----" in text:
            raise JwtKeyError(["the JWT public key is a private key; keep that at the issuer"])
        try:
            key = load_pem_public_key(text.encode())
        except (ValueError, UnsupportedAlgorithm):
            raise JwtKeyError(["the JWT public key is not a PEM public key (BEGIN PUBLIC KEY)"]) from None
        material, family, kind = algorithm_family(key)
        return cls(material, _choose(family, algorithms, kind))


def algorithm_family(key: object) -> tuple[AllowedPublicKeys, tuple[str, ...], str]:
    """A public key of `cryptography`, the algorithms that it may verify (the default first), and a name for its kind.

    Raises `JwtKeyError` where it is not usable.
    """
    if isinstance(key, rsa.RSAPublicKey):
        if key.key_size < _RSA_MIN_BITS:
            raise JwtKeyError([f"the JWT public key has fewer than {_RSA_MIN_BITS} bits"])
        return key, _RSA_ALGORITHMS, "an RSA key"
    if isinstance(key, ec.EllipticCurvePublicKey):
        return key, _curve_family(key.curve), f"a key on {key.curve.name}"
    if isinstance(key, (ed25519.Ed25519PublicKey, ed448.Ed448PublicKey)):
        return key, ("EdDSA",), "an Edwards key"
    raise JwtKeyError(["the JWT public key is of a kind that no JWT algorithm uses"])


def jwt_key_problems(secret: str | None, public_key: str | None, algorithms: Sequence[str]) -> list[str]:
    """All that is wrong with the configured key; empty if a verifier can be made.

    At most one of the two is given; with neither, the keys come from a key server and may be of any public kind.
    """
    try:
        if secret is not None:
            JwtKey.from_secret(secret, algorithms)
        elif public_key is not None:
            JwtKey.from_public_key(public_key, algorithms)
        else:
            _choose(PUBLIC_ALGORITHMS, algorithms, "the keys of a key server")
    except JwtKeyError as error:
        return error.problems
    return []


def load_signing_key(key: str) -> tuple[bytes | AllowedPrivateKeys, str]:
    """A secret or a PEM private key, with its default algorithm. Raises `JwtKeyError`."""
    text = unescaped_pem(key)
    if "PRIVATE KEY-----" not in text:
        return _bytes_of(key), JwtKey.from_secret(key).algorithms[0]
    try:
        private_key = load_pem_private_key(text.encode(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise JwtKeyError(["the private key is not a PEM private key without a password"]) from None
    if isinstance(private_key, rsa.RSAPrivateKey):
        return private_key, _RSA_ALGORITHMS[0]
    if isinstance(private_key, ec.EllipticCurvePrivateKey):
        return private_key, _choose(_curve_family(private_key.curve), (), "a private key")[0]
    if isinstance(private_key, (ed25519.Ed25519PrivateKey, ed448.Ed448PrivateKey)):
        return private_key, "EdDSA"
    raise JwtKeyError(["the private key is of a kind that no JWT algorithm uses"])


def unescaped_pem(text: str) -> str:
    r"""A PEM as environment files carry it: line breaks may be written `\n`."""
    return text.strip().replace("\\n", "\n")


def _bytes_of(secret: str) -> bytes:
    """The bytes that the environment held, where they are not UTF-8 too (`os.environ` escapes those)."""
    return secret.encode("utf-8", "surrogateescape")


def _curve_family(curve: ec.EllipticCurve) -> tuple[str, ...]:
    algorithm = _CURVE_ALGORITHMS.get(curve.name)
    return () if algorithm is None else (algorithm,)


def _choose(family: tuple[str, ...], wanted: Sequence[str], kind: str) -> tuple[str, ...]:
    """The algorithms of a key: the first of its family, or those configured if all are in it."""
    if not family:
        raise JwtKeyError([f"{kind} has no JWT algorithm"])
    foreign = [algorithm for algorithm in wanted if algorithm not in family]
    if foreign:
        # An unknown name is not repeated: it may be a secret that stands in the wrong variable.
        names = [name if name in _ALL_ALGORITHMS else "unknown" for name in foreign]
        raise JwtKeyError(
            [f"JWT algorithm {name} does not fit {kind}: {', '.join(family)}" for name in names]
        )
    return tuple(dict.fromkeys(wanted)) or family[:1]


def _reads_as_public_key(secret: str) -> bool:
    """Whether a secret is PEM, SSH, DER, DER in base64, or a JWK (set) in JSON, of a key or certificate."""
    text = unescaped_pem(secret)
    candidates = [_bytes_of(secret), _bytes_of(text), secret.encode("latin-1", "replace")]
    try:
        candidates.append(base64.b64decode("".join(text.split()), validate=True))
    except (binascii.Error, ValueError):
        pass  # not base64, so not DER in base64
    hmac = HMACAlgorithm(HMACAlgorithm.SHA256)
    for candidate in candidates:
        try:
            if candidate:
                hmac.prepare_key(candidate)
        except InvalidKeyError:
            return True
    return False
