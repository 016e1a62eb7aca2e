"""What the demo tells the person at the terminal: what to type, and what to look at."""

from __future__ import annotations

import json
import sys
from pathlib import Path

TOPIC = {"collection": "orders", "filter": {"status": {"$in": ["open", "paid"]}}}


def guide(port: int, jwt: str, lifetime: str) -> str:
    """The text for the terminal. Every line that starts with a brace is a frame to paste."""
    auth = _frame({"type": "auth", "jwt": jwt})
    subscribe = _frame({"type": "subscribe", "id": "a", "topic": TOPIC})
    resume = _frame({"type": "subscribe", "id": "a", "topic": TOPIC, "resumeAfter": "TOKEN"})
    return f"""
feedsvc runs on http://127.0.0.1:{port}, an order changes every second. {lifetime}

1. In another terminal, connect:

{_python()} -m websockets ws://127.0.0.1:{port}/v1/ws

2. Paste these two lines, one after the other:

{auth}
{subscribe}

   Events arrive: orders of the tenant acme that are open or paid. `membership` is `left` when one is shipped or
   deleted. Orders of the other tenant and the field `cost` are not for you, the policy sees to it.

3. See it resume. End the client with Ctrl-C, wait as long as you like, connect again, paste the first line, and then
   this one with the `_id` of the last event (or the token of a later checkpoint) in the place of TOKEN:

{resume}

   What you missed comes first, in order, then `live`.

Health and metrics: http://127.0.0.1:{port}/healthz/ready and /metrics. The JWT is valid for a day, on this demo only.
"""


def _frame(frame: object) -> str:
    return json.dumps(frame, separators=(",", ":"))


def _python() -> str:
    """This interpreter as one would type it here."""
    executable = Path(sys.executable)
    if executable.is_relative_to(Path.cwd()):
        return str(executable.relative_to(Path.cwd()))
    return str(executable)
