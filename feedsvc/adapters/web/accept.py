"""Which of two forms a request asks for (RFC 9110, section 12.5.1)."""

from __future__ import annotations

EVENT_STREAM = "text/event-stream"
JSON = "application/json"


def prefers_event_stream(accept: str) -> bool:
    """Whether an `Accept` would rather have a stream of events than JSON; where it has no opinion, JSON.

    Of equal weights the one that is named goes before one that a `*` covers. What is malformed counts as not there.
    """
    weight, closeness = _preference(accept, EVENT_STREAM)
    return weight > 0 and (weight, closeness) > _preference(accept, JSON)


def _preference(accept: str, media_type: str) -> tuple[float, int]:
    """Weight, 0 where it is not acceptable, and how closely the type is named: 2 in full, 0 by `*/*`."""
    names = ("*/*", f"{media_type.partition('/')[0]}/*", media_type)
    found: dict[int, float] = {}
    for entry in accept.split(","):
        name, *parameters = (part.strip().lower() for part in entry.split(";"))
        if name in names:
            closeness = names.index(name)
            found[closeness] = max(found.get(closeness, 0.0), _weight(parameters))
    if not found:
        return 0.0, 0
    closest = max(found)
    return found[closest], closest


def _weight(parameters: list[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                weight = float(value)
            except ValueError:
                return 0.0
            return weight if 0 <= weight <= 1 else 0.0
    return 1.0
