"""What a stream says to proxies, and what they make of it: TRA-09, beside `test_quiet.py`."""

from __future__ import annotations

import asyncio
import ssl
import time
from pathlib import Path

import httpx
import pytest
from websockets.asyncio.client import connect

from tests.faults.numbers import COLLECTION
from tests.proxies.fronts import FRONTS, Front, Nginx, running
from tests.support.certificates import self_signed
from tests.support.engine import Engine
from tests.support.service import Address, Client, Service, make_jwt
from tests.support.sse import Parser, Stream, arguments, opened, sse_url

pytestmark = pytest.mark.verify
HOP_BY_HOP = {"connection", "keep-alive", "proxy-connection", "upgrade", "te", "trailer"}
"""RFC 9110 section 7.6.1: none of them may be in an answer over HTTP/2."""


class BareNginx(Nginx):
    """Nobody has read docs/proxies.md: nothing but `proxy_pass`, and compression of everything."""

    def _site(self, text: str) -> str:
        (service,) = self._services
        return f"""
            gzip_types *;
            server {{
                listen 127.0.0.1:{self.port};
                location / {{ proxy_pass http://127.0.0.1:{service.port}; }}
            }}"""


async def test_a_stream_says_what_keeps_proxies_from_storing_and_holding_it(
    engine_of_its_own: Engine, fresh_database: str, tmp_path: Path
) -> None:
    """Directly, and behind HAProxy, which passes all of it on; nginx keeps `X-Accel-Buffering` for itself."""
    with Service(engine_of_its_own.uri, tmp_path) as service:
        fronts = [kind(tmp_path, [service]) for kind in FRONTS]
        given = arguments(fresh_database, COLLECTION)
        given["headers"]["Accept-Encoding"] = "gzip"
        with running(*fronts):
            places: list[Address] = [service, *fronts]
            for place in places:
                async with opened(place, "GET", **given) as stream:
                    await stream.live()
                headers = stream.response.headers
                assert headers["content-type"] == "text/event-stream; charset=utf-8"
                assert headers["cache-control"] == "no-store"
                assert headers.get("x-accel-buffering") == (None if isinstance(place, Nginx) else "no")
                assert "content-encoding" not in headers
                if not isinstance(place, Nginx):
                    assert HOP_BY_HOP.isdisjoint(headers)


async def test_even_an_nginx_that_was_told_nothing_keeps_no_event_back(
    engine_of_its_own: Engine, fresh_database: str, tmp_path: Path
) -> None:
    """HTTP/1.0 to the service, buffering on, `gzip_types *`: each event leaves at once, compressed or not."""
    numbers = engine_of_its_own.client[fresh_database][COLLECTION]
    with Service(engine_of_its_own.uri, tmp_path) as service:
        front = BareNginx(tmp_path, [service])
        given = arguments(fresh_database, COLLECTION)
        given["headers"]["Accept-Encoding"] = "gzip"
        with running(front):
            async with opened(front, "GET", **given) as stream:
                await stream.live()
                latencies = []
                for number in range(10):
                    began = time.monotonic()
                    numbers.insert_one({"_id": number})
                    await stream.events(number + 1)
                    latencies.append(time.monotonic() - began)
    assert max(latencies) < 0.5, latencies
    print(
        f"\nbare nginx: 10 events one after the other, each at most {1000 * max(latencies):.0f} ms; "
        f"content-encoding {stream.response.headers.get('content-encoding')}"
    )


async def test_a_stream_ends_whole_over_each_version_of_http(
    engine_of_its_own: Engine, fresh_database: str, tmp_path: Path
) -> None:
    """A drain is no cut: neither a missing last chunk nor a stream error of HTTP/2, which curl would exit with."""
    numbers = engine_of_its_own.client[fresh_database][COLLECTION]
    pem = self_signed(tmp_path)
    with Service(engine_of_its_own.uri, tmp_path, drain="2") as service:
        fronts = [kind(tmp_path, [service], certificate=pem) for kind in FRONTS]
        with running(*fronts):
            transfers = {
                (type(front).__name__, version): await asyncio.create_subprocess_exec(
                    *(
                        "curl",
                        "--silent",
                        "--show-error",
                        "--no-buffer",
                        "--include",
                        "--get",
                        "--noproxy",
                        "*",
                    ),
                    *(f"--http{version}", "--compressed", "--cacert", str(pem), "--max-time", "60"),
                    *("--header", f"Authorization: Bearer {make_jwt(fresh_database)}"),
                    *("--data-urlencode", f'topic={{"collection":"{COLLECTION}"}}'),
                    sse_url(front).replace("http:", "https:"),
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                )
                for front in fronts
                for version in ("1.1", "2")
            }
            await asyncio.to_thread(service.wait_for, "/metrics", 200, f"subscriptions {len(transfers)}.0\n")
            numbers.insert_one({"_id": 1})
            await asyncio.to_thread(
                service.wait_for, "/metrics", 200, 'feedsvc_changes_read_total{level="deployment"} 1.0\n'
            )
            await asyncio.to_thread(service.stop)
            for (front_name, version), transfer in transfers.items():
                found, complaint = await transfer.communicate()
                assert transfer.returncode == 0, (front_name, version, complaint)
                head, _, body = found.decode().replace("\r\n", "\n").partition("\n\n")
                assert head.startswith(f"HTTP/{version} 200")
                kinds = [kind for kind, _, _ in Parser().feed(body)]
                assert kinds[-1] == "close"
                assert (kinds.count("goaway"), kinds.count("event")) == (1, 1)


@pytest.mark.parametrize("kind", FRONTS)
async def test_the_blocks_of_the_page_serve_both_transports_over_tls(
    kind: type[Front], engine_of_its_own: Engine, fresh_database: str, tmp_path: Path
) -> None:
    """As they stand on the page; the certificate is verified."""
    numbers = engine_of_its_own.client[fresh_database][COLLECTION]
    pem = self_signed(tmp_path)
    trusted = ssl.create_default_context(cafile=str(pem))
    with Service(engine_of_its_own.uri, tmp_path) as service:
        front = kind(tmp_path, [service], certificate=pem)
        bearer = {"Authorization": f"Bearer {make_jwt(fresh_database)}"}
        with running(front):
            async with (
                connect(
                    front.url.replace("ws:", "wss:"), ssl=trusted, additional_headers=bearer, proxy=None
                ) as socket,
                httpx.AsyncClient(trust_env=False, verify=trusted, timeout=30) as http,
                http.stream(
                    "GET",
                    sse_url(front).replace("http:", "https:"),
                    **arguments(fresh_database, COLLECTION),
                ) as response,
            ):
                client, stream = Client(socket), Stream(response)
                await client.subscribe(COLLECTION)
                await stream.live()
                numbers.insert_one({"_id": 1})
                (by_socket,) = await client.events(1)
                (by_stream,) = await stream.events(1)
                assert by_socket == by_stream
