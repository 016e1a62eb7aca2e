"""The numbers of docs/proxies.md against those of the program and of the manifests."""

from __future__ import annotations

import re

import yaml

from feedsvc.core.limits import Limits
from tests.proxies.page import blocks
from tests.support.node_ids import ROOT

PAGE = (ROOT / "docs" / "proxies.md").read_text()
LIMITS = Limits()


def test_default_time_outs_are_more_than_two_heartbeats() -> None:
    """Of nginx and of Debian's HAProxy, as the page has them; pings of a WebSocket come as often."""
    idle_s = [
        int(found)
        for name in ("proxy_read_timeout", "timeout server", "timeout client", "proxy-read-timeout")
        for found in re.findall(rf"`{name}` \| (\d+) s", PAGE)
    ]
    assert len(idle_s) == 4
    assert min(idle_s) > 2 * LIMITS.heartbeat_interval_s
    assert min(idle_s) > 2 * LIMITS.peer_timeout_s / 3


def test_old_workers_stay_longer_than_any_connection() -> None:
    given_m = re.search(r"worker_shutdown_timeout (\d+)m;", blocks("nginx")[1])
    stop_m = re.search(r"hard-stop-after (\d+)m", blocks("haproxy")[0])
    ingress_s = re.search(r"worker-shutdown-timeout: (\d+)s", blocks("yaml")[1])
    assert given_m and stop_m and ingress_s
    assert int(given_m[1]) * 60 == int(stop_m[1]) * 60 == int(ingress_s[1]) > LIMITS.max_age_s


def test_the_annotations_are_those_of_the_ingress() -> None:
    ingress = yaml.safe_load((ROOT / "k8s" / "overlays" / "prod" / "ingress.yaml").read_text())
    told = yaml.safe_load(blocks("yaml")[0])
    assert told.items() <= ingress["metadata"]["annotations"].items()


def test_the_announcement_of_the_page_outlasts_its_health_check() -> None:
    check = re.search(r"check inter (\d+)s fall (\d+)", blocks("haproxy")[1])
    announced = re.search(r"FEEDSVC_ANNOUNCE=(\d+)", PAGE)
    assert check and announced
    assert int(announced[1]) > int(check[1]) * int(check[2])


def test_the_tests_that_the_page_names_are_there() -> None:
    named = re.findall(r"`(proxies/test_\w+\.py)`", PAGE)
    assert sorted(named) == sorted(
        f"proxies/{path.name}" for path in (ROOT / "tests/proxies").glob("test_*.py")
    )
