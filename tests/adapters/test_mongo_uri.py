"""URIs that the driver can read are no problem, whatever else is wrong with them."""

from __future__ import annotations

import pytest

from feedsvc.adapters.mongo.uri import ignored_options, sets_option, uri_problems


@pytest.mark.parametrize(
    ("uri", "usable"),
    [
        ("mongodb://h", True),
        ("mongodb://u:p%40ss@a:1,b:2/db?replicaSet=r&tls=true", True),
        ("mongodb://[::1]:27017/?directConnection=true", True),
        ("mongodb://h/?notAnOption=1", True),
        ("mongodb+srv://not.asked.for.invalid", True),
        ("mongodb://h:0x1", False),
        ("mongodb://u:p@ss@h", False),
        ("mongodb://u:p/ss@h", False),
        ("mongodb://a,b/?directConnection=true", False),
        ("mongodb://", False),
        ("mongodb://h/?tls=true&tlsCAFile=/nowhere/ca.pem", False),
    ],
)
def test_what_the_driver_cannot_read_is_a_problem(uri: str, usable: bool) -> None:
    """One that must be asked for in the DNS is judged at start; unknown options are the driver's to warn of."""
    problems = uri_problems(uri)
    assert (problems == []) is usable
    assert not any("ss" in problem.replace("password", "") for problem in problems)


@pytest.mark.parametrize(
    ("uri", "ignored"),
    [
        ("mongodb://h", []),
        ("mongodb://h/?w=majority&ssl=true&authMechanism=PLAIN&tlsCAFile=/nowhere&loadBalanced=true", []),
        ("mongodb://h/?RetryWrite=true&appName=x&wtimeout=5", ["RetryWrite", "wtimeout"]),
        ("mongodb+srv://h.invalid/?readPreference=nearer;x=1", ["readPreference", "x"]),
        ("mongodb://u:p%3Fa%3D1@h/?a%20b=1&=2&", []),
    ],
)
def test_options_that_the_driver_passes_over(uri: str, ignored: list[str]) -> None:
    """Names as they are written; deprecated options count, and so do those that need another."""
    assert ignored_options(uri) == ignored


def test_an_option_is_set_whatever_its_case() -> None:
    assert sets_option("mongodb://h/?w=1;maxpoolsize=5", "maxPoolSize")
    assert not sets_option("mongodb://maxPoolSize:x@h/maxPoolSize", "maxPoolSize")
