"""Loaded by schemathesis: each request has an operator's JWT of another tenant, so that no quota ends the questions."""

from __future__ import annotations

import itertools
from typing import Any

import schemathesis

from tests.support.service import make_jwt

_TENANTS = 500
_number = itertools.count()


@schemathesis.auth(refresh_interval=None)
class Operators:
    """`feedsvc:admin` for `/v1/status`; the check for ignored credentials asks again without any."""

    def get(self, case: Any, context: Any) -> str:
        return make_jwt(f"asked_{next(_number) % _TENANTS}", scope="feedsvc:admin")

    def set(self, case: Any, data: str, context: Any) -> None:
        case.headers = {**(case.headers or {}), "Authorization": f"Bearer {data}"}
