"""The load client and what is measured with it, small: what it counts is what was sent. No figure is judged here."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from bench.delivery import Shape, of_peer, of_service
from bench.fleet import FLOOR, Peer, apart, load, peer
from bench.rig import rig

pytestmark = [
    pytest.mark.xdist_group("bench"),
    pytest.mark.skipif(
        shutil.which("cc") is None, reason="the load client is C, and there is no compiler (cc)"
    ),
]


@pytest.fixture
def server() -> Iterator[Peer]:
    """The floor: it writes what it is told to everybody."""
    with apart(), peer(FLOOR) as made:
        yield made


@pytest.mark.parametrize("frame_bytes", [60, 125, 126, 4_000, 70_000, 300_000])
def test_frames_of_every_length_are_counted_once_each(server: Peer, frame_bytes: int) -> None:
    with load(server.port, "/", 7) as clients:
        assert (clients.ready().live, clients.ask("reset").events) == (7, 0)
        server.tell(f"send 30 10 0 {frame_bytes}")
        said = clients.arrived(7 * 30)
    header = 2 if frame_bytes < 126 else 4 if frame_bytes < 1 << 16 else 10
    assert said.bytes == 7 * 30 * (frame_bytes + header)
    assert (said.open, said.closed) == (7, 0)


def test_a_connection_that_stops_gets_nothing_and_then_everything(server: Peer) -> None:
    with load(server.port, "/", 3) as others, load(server.port, "/", 1, "-s") as one:
        others.ready()
        one.ready()
        one.ask("stop 0")
        server.tell("send 40 10 0 50000")
        assert others.arrived(3 * 40).events == 120
        assert one.ask("say").events == 0
        one.ask("go 0")
        assert one.arrived(40).bytes > 40 * 50_000


def test_a_server_that_goes_is_counted_as_closed(server: Peer) -> None:
    with load(server.port, "/", 5) as clients:
        clients.ready()
        server.end()
        said = clients.ask("say")
        while said.closed < 5:
            said = clients.ask("say")
        assert said.open == 0


def test_the_floor_writes_one_event_at_a_time() -> None:
    with apart():
        cost = of_peer(FLOOR, Shape(subscribers=20, events=10), 200)
    assert cost.deliveries_per_write == pytest.approx(1, abs=0.02)
    assert cost.cpu_us_per_delivery > 0 < cost.load_cpu_us_per_delivery


def test_the_service_delivers_real_inserts_to_each_subscriber_of_their_topic() -> None:
    """Four connections on two topics, of which each insert concerns one: more or fewer deliveries end the run."""
    topics = [{"filter": {"zone": zone}} for zone in range(2)]
    shape = Shape(subscribers=4, events=12, burst=6, topics=topics, zones=2, reached=2, document_bytes=300)
    with apart(), rig() as made:
        cost = of_service(made, shape)
    assert 300 < cost.frame_bytes < 1_500
    assert cost.cpu_us_per_delivery > 0 < cost.load_cpu_us_per_delivery
