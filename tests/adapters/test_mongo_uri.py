"""URIs that the driver can read are no problem, whatever else is wrong with them."""

from __future__ import annotations

import pytest

from feedsvc.adapters.mongo.uri import uri_problems


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
    ],
)
def test_what_the_driver_cannot_read_is_a_problem(uri: str, usable: bool) -> None:
    """One that must be asked for in the DNS is judged at start; unknown options are the driver's to warn of."""
    problems = uri_problems(uri)
    assert (problems == []) is usable
    assert not any("ss" in problem.replace("password", "") for problem in problems)
