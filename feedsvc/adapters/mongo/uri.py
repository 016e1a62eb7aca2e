"""Whether a MongoDB URI can be used, without asking anybody."""

from __future__ import annotations

import re
import warnings

from pymongo.errors import PyMongoError
from pymongo.uri_parser import parse_uri

_SRV = "mongodb+srv://"


def uri_problems(uri: str) -> list[str]:
    """What is wrong with a URI as it is written; nothing of it is repeated, for it may hold a password.

    One that starts with `mongodb+srv://` is asked for in the DNS before it can be read, and is not judged here.
    """
    if uri.startswith(_SRV):
        return []
    try:
        with warnings.catch_warnings():
            # The client passes over options that it does not know, and says so in the log.
            warnings.simplefilter("ignore")
            parse_uri(uri, warn=True)
    except OSError:
        return ["names a file for TLS that cannot be read (tlsCAFile or tlsCertificateKeyFile)"]
    except (PyMongoError, ValueError):
        return [
            "is not a MongoDB URI: check hosts, ports and options; in user and password write : / ? # [ ] @ % as %XX"
        ]
    return []


def ignored_options(uri: str) -> list[str]:
    """Names of the options of a URI that the driver passes over: unknown ones, and those with a value that it does not
    take. In their order; for the operator, so what is no name is left out."""
    return [
        name for name, value in _options(uri) if re.fullmatch("[A-Za-z]{1,40}", name) and _warns(name, value)
    ]


def _warns(name: str, value: str) -> bool:
    """Each option is read alone, since the driver's warnings name some and not others."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            parse_uri(f"mongodb://host/?{name}={value}", warn=True)
        except (PyMongoError, ValueError, OSError):
            return False  # a problem of its own, or it makes sense only beside another
    return any(not issubclass(warning.category, DeprecationWarning) for warning in caught)


def _options(uri: str) -> list[tuple[str, str]]:
    pairs = re.split("[&;]", uri.partition("?")[2])
    return [(name, value) for name, _, value in (pair.partition("=") for pair in pairs)]


def sets_option(uri: str, option: str) -> bool:
    """Whether a URI sets an option, whose name ignores case. The driver prefers what is given beside the URI."""
    return any(name.lower() == option.lower() for name, _ in _options(uri))
