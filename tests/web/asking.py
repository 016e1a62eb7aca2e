"""How the routes of a world authenticate."""

from __future__ import annotations

from feedsvc.adapters.web.authentication import Authentication
from feedsvc.core.tickets import TicketSealer
from tests.runtime.world import World

KEY = b"k" * 32


def sealer(world: World, *keys: bytes) -> TicketSealer:
    limits = world.hub.limits
    return TicketSealer(keys or (KEY,), lifetime_s=limits.ticket_lifetime_s, max_chars=limits.ticket_chars)


def authentication(world: World, *origins: str, tickets: TicketSealer | None = None) -> Authentication:
    return Authentication(
        world.context.verifier,
        world.hub.policy,
        tickets or sealer(world),
        world.clock,
        frozenset(origins),
    )
