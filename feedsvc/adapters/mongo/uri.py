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
    except (PyMongoError, ValueError):
        return [
            "is not a MongoDB URI: check hosts, ports and options; in user and password write : / ? # [ ] @ % as %XX"
        ]
    return []


def sets_option(uri: str, option: str) -> bool:
    """Whether a URI sets an option, whose name ignores case. The driver prefers what is given beside the URI."""
    pairs = re.split("[&;]", uri.partition("?")[2])
    return any(pair.partition("=")[0].lower() == option.lower() for pair in pairs)
