"""What a scrape gathers: equal to what is there, and bounded where tenants are named."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from feedsvc.adapters.telemetry.metrics import PrometheusMetrics
from feedsvc.core.limits import Limits
from feedsvc.ports import OplogWindow
from feedsvc.runtime.admission import TenantLoad
from feedsvc.runtime.lifecycle import Lifecycle
from feedsvc.runtime.measure import REST, Measure, bounded
from feedsvc.testing import START, MemoryConnection, MemoryVerifier
from tests.runtime.world import World, claims, running, until

TENANTS = [f"tenant-{number}" for number in range(6)]
VERIFIER = MemoryVerifier({name: claims(name) for name in TENANTS})
LIMITS = msgspec.structs.replace(
    Limits(), metric_tenants=2, connections_per_tenant=4, topics_per_tenant=10, max_tails=7, waiting_sockets=9
)


class Scraped:
    """The metrics of a world, as they come off the page."""

    def __init__(self, world: World) -> None:
        self._metrics = PrometheusMetrics("1", strict=True)
        self.lifecycle = Lifecycle()
        self._metrics.on_scrape(Measure(world.hub, self.lifecycle))

    def page(self) -> Mapping[str, float]:
        lines = self._metrics.render()[0].decode().splitlines()
        return {
            name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")
        }


async def test_sizes_are_those_of_what_is_there() -> None:
    async with running(LIMITS, check=VERIFIER, level="collection") as world:
        scraped = Scraped(world)
        one, two = await world.signed_in(TENANTS[0]), await world.signed_in(TENANTS[1])
        for topic in ({}, {"filter": {"n": 1}}):
            await one.subscribed("orders", topic=topic)
        await two.subscribed("users")
        world.peer().client.start(None)
        page = scraped.page()
        assert page["feedsvc_connections"] == 2 and page["feedsvc_waiting_sockets"] == 1
        assert page["feedsvc_subscriptions"] == page["feedsvc_topics"] == 3
        assert (page["feedsvc_tails"], page["feedsvc_tails_limit"]) == (2, 7)
        assert page["feedsvc_waiting_sockets_limit"] == 9
        assert page["feedsvc_fullest_tenant_connections_ratio"] == 1 / 4
        assert page["feedsvc_fullest_tenant_topics_ratio"] == 2 / 10
        assert page["feedsvc_catch_up_tails"] == page["feedsvc_catch_ups_waiting"] == 0


async def test_whether_mongodb_answers() -> None:
    async with running() as world:
        await until(lambda: world.hub.deployment.answers)
        scraped = Scraped(world)
        assert scraped.page()["feedsvc_source_up"] == 1
        world.hub.deployment.answers = False
        assert scraped.page()["feedsvc_source_up"] == 0


async def test_the_oldest_position_is_told_as_age_and_share() -> None:
    async with running() as world:
        scraped, second = Scraped(world), 1 << 32
        peer = await world.signed_in()
        await peer.subscribed("orders")
        world.hub.deployment.pulse.window = OplogWindow(START - 60 * second, START + 40 * second)
        page = scraped.page()
        assert page["feedsvc_oldest_position_age_seconds"] == 40
        assert page["feedsvc_oldest_position_used_ratio"] == 0.4
        assert page["feedsvc_oplog_window_seconds"] == 100
        world.hub.deployment.pulse.window = None
        page = scraped.page()
        assert math.isnan(page["feedsvc_oldest_position_used_ratio"])
        assert math.isnan(page["feedsvc_oplog_window_seconds"])
        assert page["feedsvc_oldest_position_age_seconds"] == 0


async def test_few_tenants_are_named_and_those_that_leave_go_from_the_page() -> None:
    async with running(LIMITS, check=VERIFIER) as world:
        scraped = Scraped(world)
        peers = [await world.signed_in(name) for name in (*TENANTS, TENANTS[4], TENANTS[5], TENANTS[5])]
        await peers[5].subscribed("users")
        await peers[0].subscribed("users")
        assert tenants(scraped.page()) == {
            "connections": {TENANTS[5]: 3, TENANTS[4]: 2, REST: 4},
            "subscriptions": {TENANTS[5]: 1, TENANTS[4]: 0, REST: 1},
            "topics": {TENANTS[5]: 1, TENANTS[4]: 0, REST: 1},
        }
        for peer in peers[4:]:
            peer.client.transport_closed()
        assert set(tenants(scraped.page())["connections"]) == {TENANTS[0], TENANTS[1], REST}


async def test_nobody_is_named_by_default() -> None:
    """/metrics asks for no credentials."""
    async with running(check=VERIFIER) as world:
        scraped = Scraped(world)
        await world.signed_in(TENANTS[0])
        assert tenants(scraped.page())["connections"] == {REST: 1}


def tenants(page: Mapping[str, float]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {"connections": {}, "subscriptions": {}, "topics": {}}
    for name, value in page.items():
        family, _, labels = name.partition("{")
        if family.startswith("feedsvc_tenant_"):
            found[family.removeprefix("feedsvc_tenant_")][labels.split('"')[1]] = value
    return found


@given(
    st.dictionaries(st.text("abc", min_size=1), st.builds(TenantLoad, *[st.integers(0, 9)] * 3)),
    st.integers(0, 5),
)
def test_the_sum_over_tenants_is_that_of_all_and_the_largest_are_named(
    loads: dict[str, TenantLoad], most: int
) -> None:
    named = bounded(loads, most)
    assert len(named) == min(most, len(loads)) + 1
    for field in TenantLoad.__struct_fields__:
        assert sum(getattr(load, field) for load in named.values()) == sum(
            getattr(load, field) for load in loads.values()
        )
    rest = [load.connections for name, load in loads.items() if name not in named]
    shown = [load.connections for name, load in named.items() if name != REST]
    assert not rest or not shown or max(rest) <= min(shown)


async def test_what_was_sent_counts_while_connections_live_and_after() -> None:
    """A connection may live for a day: its bytes must not wait for its end."""
    async with running() as world:
        scraped = Scraped(world)
        peer = await world.signed_in()
        scraped.lifecycle.add(peer.client)
        sent = [len(frame) for frame in peer.connection.frames]
        for _ in range(2):
            page = scraped.page()
            assert page["feedsvc_frames_sent_total"] == len(sent) == 1
            assert page["feedsvc_sent_bytes_total"] == sum(sent)
        await peer.subscribed("orders")
        scraped.lifecycle.remove(peer.client)
        scraped.lifecycle.remove(peer.client)
        page = scraped.page()
        assert page["feedsvc_frames_sent_total"] == 3
        assert page["feedsvc_sent_bytes_total"] == sum(map(len, peer.connection.frames))
        assert isinstance(peer.connection, MemoryConnection)
