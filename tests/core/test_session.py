"""The session against a naive model, under random frames, answers and time; then rule by rule."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from feedsvc.core import messages
from feedsvc.core.errors import REGISTRY
from feedsvc.core.limits import Limits
from feedsvc.core.session import (
    CheckpointDue,
    Close,
    Drop,
    Effect,
    HeartbeatDue,
    Open,
    Principal,
    Send,
    Session,
    State,
    Verify,
)

Shape = tuple[Any, ...]
WALL = 1_800_000_000.0


def shape(effect: Effect) -> Shape:
    """An effect without what the model does not predict."""
    match effect:
        case Send(messages.Error() as frame):
            return ("error", frame.code)
        case Send(messages.Unsubscribed() as frame):
            return ("unsubscribed", frame.topic)
        case Send(frame):
            return (type(frame).__name__.lower(),)
        case Verify(jwt):
            return ("verify", jwt)
        case Open(frame):
            return ("open", frame.id)
        case Drop(topic):
            return ("drop", topic)
        case Close(code, _):
            return ("close", code)
        case _:
            return (type(effect).__name__.lower(),)


def text(type: str, **fields: Any) -> str:
    return json.dumps({"type": type, **fields})


def subscribe(id: str, **fields: Any) -> str:
    return text("subscribe", id=id, topic={"collection": "c"}, **fields)


# Frames beside what they mean to the model: (kind, argument).
GOOD: list[tuple[str | bytes, Shape]] = [
    (text("auth", jwt="j1"), ("auth", "j1")),
    (text("auth", jwt="j2", extra=1), ("auth", "j2")),
    (text("ping"), ("ping",)),
    (text("ping").encode(), ("ping",)),
    *((subscribe(name), ("subscribe", name)) for name in "abcde"),
    *((text("unsubscribe", topic=f"t-{name}"), ("unsubscribe", f"t-{name}")) for name in "abc"),
]
BAD: list[str | bytes] = [
    "",
    "{}",
    "[]",
    "null",
    '{"type":"nope"}',
    '{"type":"auth"}',
    '{"type":"auth","jwt":5}',
    '{"type":"subscribe","id":""}',
    subscribe("a", resumeAfter="x", startAfter="y"),
    "\ud800",
    b"\xff\xfe",
    b"\x00" * 50,
    "[" * 4000,
    '{"a":' * 800,
]
frames = st.one_of(
    st.sampled_from(GOOD),
    st.sampled_from(GOOD),
    st.sampled_from([(bad, ("bad",)) for bad in BAD]),
    st.binary(max_size=40).map(lambda junk: (b"\xff" + junk, ("bad",))),
    st.sampled_from(
        [(text("ping", pad="x" * 5_000), ("ping",)), (text("ping", pad="x" * 70_000), ("ping",))]
    ),
)
LIMITS = Limits(errors_per_minute=6, pending_frames=4, subscriptions_per_connection=3, max_age_s=900)


class Model:
    """What protocol.md says, without a thought for speed."""

    def __init__(self, jitter: float) -> None:
        self.state = "waiting"
        self.topics: set[str] = set()
        self.outstanding: Shape | None = None
        self.queue: list[Shape] = []
        self.errors: list[float] = []
        self.expiry: float | None = None
        self.max_age = LIMITS.max_age_s * (0.9 + 0.1 * jitter)
        self.heard: dict[str, float] = {}

    def close(self, code: int) -> list[Shape]:
        self.state = "closed"
        return [("close", code)]

    def error(self, code: str, now: float) -> list[Shape]:
        self.errors = [*(when for when in self.errors if when > now - 60), now]
        told: list[Shape] = [("error", code)]
        return told + self.close(4009) if len(self.errors) > LIMITS.errors_per_minute else told

    def receive(self, meaning: Shape, size: int, now: float) -> list[Shape]:
        if size > (LIMITS.frame_bytes if self.state == "open" else 4096):
            return self.close(1009)
        if self.outstanding is None:
            return self.handle(meaning, now)
        if len(self.queue) == LIMITS.pending_frames:
            return self.close(4301)
        self.queue.append(meaning)
        return []

    def handle(self, meaning: Shape, now: float) -> list[Shape]:
        kind, argument = meaning[0], meaning[-1]
        if kind == "auth":
            self.outstanding = ("verify", argument)
            if self.state == "waiting":
                self.state = "verifying"
            return [self.outstanding]
        if self.state == "waiting":
            return self.close(4000)
        if kind == "bad":
            return self.error("bad_request", now)
        if kind == "ping":
            return [("pong",)]
        if kind == "unsubscribe":
            if argument not in self.topics:
                return self.error("not_subscribed", now)
            self.topics.remove(argument)
            return [("drop", argument), ("unsubscribed", argument)]
        if len(self.topics) >= LIMITS.subscriptions_per_connection:
            return self.error("subscription_limit", now)
        self.outstanding = ("open", argument)
        return [self.outstanding]

    def settled(self, now: float) -> list[Shape]:
        self.outstanding = None
        out: list[Shape] = []
        while self.queue and self.outstanding is None and self.state != "closed":
            out += self.handle(self.queue.pop(0), now)
        return out


class SessionMachine(RuleBasedStateMachine):
    """Plays the shell: answers in any order of time, ticks late or not at all."""

    @initialize(jitter=st.floats(0, 0.999), upgrade=st.booleans())
    def begin(self, jitter: float, upgrade: bool) -> None:
        self.now = 1000.0
        self.start = self.now
        self.session = Session("c1", "feedsvc", LIMITS, now=self.now, jitter=jitter)
        self.model = Model(jitter)
        self.principal: Principal | None = None
        self.ended = False
        if upgrade:
            self.session.verifying()
            self.model.state = "verifying"
            self.model.outstanding = ("verify", "upgrade")

    def same(self, effects: Sequence[Effect], expected: list[Shape]) -> None:
        found = [shape(effect) for effect in effects]
        assert found == (expected if not self.ended else [])
        for effect in effects:
            assert not self.ended, "an effect behind a close"
            self.ended = isinstance(effect, Close)
            if isinstance(effect, Close):
                assert len(effect.reason.encode()) <= 123
        self.ended = self.ended or self.model.state == "closed"

    @rule(frame=frames)
    def receive(self, frame: tuple[str | bytes, Shape]) -> None:
        content, meaning = frame
        size = len(content) if isinstance(content, bytes) else len(content.encode("utf-8", "surrogatepass"))
        expected = [] if self.ended else self.model.receive(meaning, size, self.now)
        self.same(self.session.receive(content, self.now), expected)

    def outstanding(self, kind: str) -> bool:
        return self.model.outstanding is not None and self.model.outstanding[0] == kind

    @precondition(lambda self: self.outstanding("verify"))
    @rule(
        tenant=st.sampled_from(["acme", "acme", "acme", "other"]),
        subject=st.sampled_from(["u", "u", None]),
        left=st.sampled_from([5, 300, 10_000]),
    )
    def answer_valid(self, tenant: str, subject: str | None, left: int) -> None:
        principal = Principal(tenant, subject, frozenset(), {}, WALL + left)
        model, known = self.model, self.principal
        expected: list[Shape] = []
        if not self.ended:
            if known is None:
                model.state = "open"
                model.heard = {"heartbeatdue": self.now, "checkpointdue": self.now}
                expected = [("welcome",)]
            elif (known.tenant, known.subject) != (tenant, subject):
                expected = model.error("auth_invalid", self.now)
            else:
                expected = [("reauthorize",), ("authenticated",)]
            if expected[-1] in [("welcome",), ("authenticated",)]:
                self.principal, model.expiry = principal, self.now + left
        self.same(self.session.verified(principal, now=self.now, wall=WALL), expected)
        assert self.session.principal == self.principal
        self.settle()

    @precondition(lambda self: self.outstanding("verify"))
    @rule(code=st.sampled_from(["auth_invalid", "auth_expired", "source_unavailable"]))
    def answer_refused(self, code: str) -> None:
        expected: list[Shape] = []
        if not self.ended:
            told = "auth_invalid" if code != "source_unavailable" else code
            if self.principal is None:
                expected = self.model.close(REGISTRY[told].close_code or 0)
            else:
                expected = self.model.error(told, self.now)
        self.same(self.session.refused_auth(code, "é" * 100, now=self.now), expected)
        self.settle()

    @precondition(lambda self: self.outstanding("open"))
    @rule(accepted=st.booleans())
    def answer_open(self, accepted: bool) -> None:
        assert self.model.outstanding is not None
        name = f"t-{self.model.outstanding[1]}"
        if accepted and not self.ended and name not in self.model.topics:
            self.model.topics.add(name)
            self.session.topics.add(name)
        elif not self.ended:
            expected = self.model.error("forbidden", self.now)
            self.same(self.session.error("forbidden", "no", self.now), expected)
        self.settle()

    def settle(self) -> None:
        expected = [] if self.ended else self.model.settled(self.now)
        if self.ended:
            self.model.outstanding = None
        self.same(self.session.settled(self.now), expected)

    @rule(seconds=st.sampled_from([0.0, 0.1, 1.0, 4.9, 9.9, 10.0, 14.0, 20.0, 59.9, 400.0]))
    def let_time_pass(self, seconds: float) -> None:
        """No tick: the loop was late."""
        self.now += seconds

    @rule(seconds=st.sampled_from([0.0, 0.1, 4.9, 5.0, 7.0, 9.0, 10.0, 16.0]))
    def tick(self, seconds: float) -> None:
        self.now += seconds
        effects = self.session.tick(self.now)
        model = self.model
        if self.ended:
            assert effects == ()
        elif model.state != "open" and self.now >= self.start + LIMITS.auth_timeout_s:
            self.same(effects, model.close(4100))
        elif model.expiry is not None and self.now >= model.expiry:
            self.same(effects, model.close(4101))
        elif self.now >= self.start + model.max_age:
            announced: list[Shape] = [("goaway",)] if model.state == "open" else []
            self.same(effects, announced + model.close(4205))
        else:
            found = [shape(effect)[0] for effect in effects]
            assert set(found) <= set(model.heard)
            assert len(set(found)) == len(found)
            for name, interval_s in (("heartbeatdue", 20.0), ("checkpointdue", 15.0)):
                if name in model.heard:
                    since_s = self.now - model.heard[name]
                    assert name in found or since_s < interval_s
                    early = 0.25 if name == "heartbeatdue" else 0.0  # to leave together with a checkpoint
                    assert name not in found or since_s >= (0.5 - early) * interval_s
            model.heard |= dict.fromkeys(found, self.now)

    @rule()
    def announce(self) -> None:
        expected: list[Shape] = [("goaway",)] if self.model.state == "open" and not self.ended else []
        self.same(self.session.goaway(500), expected)

    @rule(code=st.sampled_from(["going_away", "slow_consumer", "tenant_quota"]), chance=st.integers(0, 9))
    def close(self, code: str, chance: int) -> None:
        if chance == 0:
            expected = [] if self.ended else self.model.close(REGISTRY[code].close_code or 0)
            self.same(self.session.close(code, retry_after_ms=10), expected)

    @rule(chance=st.integers(0, 19))
    def transport_closed(self, chance: int) -> None:
        if chance == 0:
            self.session.closed()
            self.model.state = "closed"
            self.ended = True

    @invariant()
    def the_states_agree(self) -> None:
        assert (self.session.state is State.CLOSED) == self.ended
        if not self.ended:
            assert self.session.state.value == self.model.state
            assert self.session.topics == self.model.topics

    @invariant()
    def the_next_deadline_is_never_too_late(self) -> None:
        deadline = self.session.next_deadline()
        if self.ended:
            assert deadline is None
            return
        bounds = [self.start + self.model.max_age]
        if self.model.state != "open":
            bounds.append(self.start + LIMITS.auth_timeout_s)
        if self.model.expiry is not None:
            bounds.append(self.model.expiry)
        if self.model.heard:
            bounds += [self.model.heard["heartbeatdue"] + 20, self.model.heard["checkpointdue"] + 15]
        assert deadline is not None
        assert deadline <= min(bounds)


TestSession = SessionMachine.TestCase
TestSession.settings = settings(max_examples=150, stateful_step_count=40)


# -- rule by rule ---------------------------------------------------------------------------------------------


def opened(limits: Limits = LIMITS, *, left: float = 10_000, jitter: float = 0.5) -> Session:
    session = Session("c1", "feedsvc 1", limits, now=0, jitter=jitter)
    assert shapes(session.receive(text("auth", jwt="j"), 0)) == [("verify", "j")]
    assert shapes(session.verified(principal(left), now=0, wall=WALL)) == [("welcome",)]
    assert session.settled(0) == []
    return session


def principal(left: float = 10_000, tenant: str = "acme", subject: str = "u") -> Principal:
    return Principal(tenant, subject, frozenset(), {}, WALL + left)


def shapes(effects: Sequence[Effect]) -> list[Shape]:
    return [shape(effect) for effect in effects]


def test_welcome() -> None:
    """It names connection, heartbeat, expiry and the limits that a client can run into."""
    session = Session("c1", "feedsvc 1", LIMITS, now=0, jitter=0.5)
    session.receive(text("auth", jwt="j"), 0)
    (sent,) = session.verified(principal(60), now=0, wall=WALL)
    assert isinstance(sent, Send)
    assert msgspec.to_builtins(sent.frame) == {
        "type": "welcome",
        "connection": "c1",
        "heartbeatMs": 20_000,
        "authExpiresAt": int((WALL + 60) * 1000),
        "limits": {"frameBytes": 65_536, "eventBytes": 1 << 20, "filterBytes": 4096, "subscriptions": 3},
        "server": "feedsvc 1",
    }


def test_ten_seconds_are_absolute() -> None:
    """No traffic keeps a socket without credentials alive, nor does a verifier that does not answer."""
    session = Session("c1", "s", Limits(), now=0, jitter=0)
    session.receive(text("auth", jwt="j"), 0)
    for second in range(1, 10):
        assert session.receive(text("ping"), second) == []
        assert session.tick(second) == ()
    assert session.next_deadline() == 10
    assert shapes(session.tick(10)) == [("close", 4100)]
    assert session.verified(principal(), now=10, wall=WALL) == []


@pytest.mark.parametrize(
    "first", [subscribe("a"), text("ping"), "junk", "[]", text("unsubscribe", topic="t")]
)
def test_the_first_frame_is_auth(first: str) -> None:
    """Anything else closes with 4000."""
    session = Session("c1", "s", Limits(), now=0, jitter=0)
    assert shapes(session.receive(first, 0)) == [("close", 4000)]


@pytest.mark.parametrize("size, closes", [(4096, False), (4097, True)])
def test_frames_before_welcome_are_bounded(size: int, closes: bool) -> None:
    """4 KiB, counted in bytes of UTF-8, and also behind an auth that is being verified."""
    frame = text("auth", jwt="j" * (size - len(text("auth", jwt=""))))
    assert len(frame) == size
    session = Session("c1", "s", Limits(), now=0, jitter=0)
    assert (shapes(session.receive(frame, 0)) == [("close", 1009)]) is closes
    waiting = Session("c1", "s", Limits(), now=0, jitter=0)
    waiting.receive(text("auth", jwt="j"), 0)
    assert (shapes(waiting.receive(frame, 0)) == [("close", 1009)]) is closes
    wide = Session("c1", "s", Limits(), now=0, jitter=0)
    assert shapes(wide.receive('{"type":"auth","jwt":"' + "é" * 2040 + '"}', 0)) == [("close", 1009)]


def test_frames_behind_the_first_auth_keep_their_order() -> None:
    """They are processed after `welcome`, one `Open` at a time."""
    session = Session("c1", "s", Limits(), now=0, jitter=0)
    session.receive(text("auth", jwt="j"), 0)
    for frame in (subscribe("a"), text("ping"), subscribe("b"), text("unsubscribe", topic="t-a")):
        assert session.receive(frame, 0) == []
    assert shapes(session.verified(principal(), now=0, wall=WALL)) == [("welcome",)]
    assert shapes(session.settled(0)) == [("open", "a")]
    session.topics.add("t-a")
    assert shapes(session.settled(0)) == [("pong",), ("open", "b")]
    assert shapes(session.settled(0)) == [("drop", "t-a"), ("unsubscribed", "t-a")]


def test_the_hundred_and_first_error_closes() -> None:
    """The budget of the protocol, with the numbers of the protocol."""
    session = opened(Limits())
    for number in range(100):
        assert shapes(session.receive("junk", number * 0.5)) == [("error", "bad_request")]
    assert shapes(session.receive("junk", 50)) == [("error", "bad_request"), ("close", 4009)]


def test_errors_are_forgotten_after_a_minute() -> None:
    """A client that is wrong now and then is never closed."""
    session = opened(Limits())
    for number in range(1000):
        assert shapes(session.receive("junk", number * 0.61)) == [("error", "bad_request")]


def test_an_error_names_the_request() -> None:
    """A refused subscribe is answered with its id, as far as it has a usable one."""
    session = opened()
    for frame, id in (
        (subscribe("a", snapshot="maybe"), "a"),
        (subscribe("x" * 65), msgspec.UNSET),
        ("[", msgspec.UNSET),
    ):
        (sent,) = session.receive(frame, 1)
        assert isinstance(sent, Send)
        assert isinstance(sent.frame, messages.Error)
        assert (sent.frame.code, sent.frame.id, sent.frame.retryable) == ("bad_request", id, False)


def test_a_refresh_moves_the_expiry() -> None:
    """The subscriptions are authorised anew before the client hears that it is authenticated."""
    session = opened(left=100)
    session.receive(text("auth", jwt="j2"), 50)
    assert shapes(session.verified(principal(300), now=50, wall=WALL)) == [
        ("reauthorize",),
        ("authenticated",),
    ]
    session.settled(50)
    assert ("close", 4101) not in shapes(session.tick(349))
    assert shapes(session.tick(350)) == [("close", 4101)]


def test_refreshes_are_bounded() -> None:
    """Each of them costs work on every subscription. What is refused is not counted, and the old JWT stays in force."""
    session = opened(left=1000)
    for moment in range(1, 11):
        assert shapes(session.receive(text("auth", jwt="j"), moment)) == [("verify", "j")]
        session.verified(principal(1000), now=moment, wall=WALL)
        session.settled(moment)
    for _ in range(5):
        (refused,) = session.receive(text("auth", jwt="j"), 60)
        assert isinstance(refused, Send) and isinstance(refused.frame, messages.Error)
        assert (refused.frame.code, refused.frame.retry_after_ms) == ("rate_limited", 5000)
    assert shapes(session.receive(text("ping"), 60)) == [("pong",)]
    assert shapes(session.receive(text("auth", jwt="j"), 61)) == [("verify", "j")]


def flood(session: Session, frames: Sequence[str], now: float) -> list[messages.Error]:
    """The error frames that these frames get, of which none closes."""
    sent = [effect for each in frames for effect in session.receive(each, now)]
    assert not any(isinstance(effect, Close) for effect in sent)
    return [
        effect.frame
        for effect in sent
        if isinstance(effect, Send) and isinstance(effect.frame, messages.Error)
    ]


def test_a_flood_is_answered_frame_by_frame_and_does_not_close() -> None:
    """Each is told by its id or topic when to come again, also behind a subscribe that is not answered yet."""
    session = opened(Limits())
    errors = flood(session, [subscribe(f"s{number}") for number in range(5_000)], 1)
    assert len(errors) == 5_000 - 178
    assert {error.code for error in errors} == {"rate_limited"}
    assert [error.id for error in errors[:2]] == ["s178", "s179"]
    assert all(error.retryable and error.retry_after_ms == 50 for error in errors)
    (unsubscribing,) = flood(session, [text("unsubscribe", topic="t")], 1)
    assert (unsubscribing.topic, unsubscribing.id) == ("t", msgspec.UNSET)
    session.settled(1)
    (told,) = flood(session, [text("ping")], 1)
    assert (told.code, told.retry_after_ms) == ("rate_limited", 5)
    assert shapes(session.receive(text("unsubscribe", topic="t"), 2)) == []  # waits behind the others


def test_who_heeds_the_wait_is_served() -> None:
    session = opened(Limits())
    now = 1.0
    for number in range(500):
        frame = text("unsubscribe", topic=f"t{number}")
        session.topics.add(f"t{number}")
        effects = session.receive(frame, now)
        if shapes(effects) == [("error", "rate_limited")]:
            (sent,) = effects
            assert isinstance(sent, Send) and isinstance(sent.frame, messages.Error)
            assert isinstance(sent.frame.retry_after_ms, int)
            now += sent.frame.retry_after_ms / 1000
            effects = session.receive(frame, now)
        assert shapes(effects) == [("drop", f"t{number}"), ("unsubscribed", f"t{number}")]


def test_a_flood_without_end_closes_with_4301() -> None:
    session = opened(Limits())
    flood(session, [text("ping")] * (1_780 + 10_000), 1)
    (close,) = session.receive(text("ping"), 1)
    assert close == Close(4301, '{"retryAfterMs":5000}')


def test_what_is_malformed_still_counts_as_an_error_in_its_order() -> None:
    """Behind a flood and behind what waits; 4009 is for mistakes."""
    session = opened(Limits())
    flood(session, [text("ping")] * 3_000, 1)
    effects = [shape for _ in range(101) for shape in shapes(session.receive("{}", 1))]
    assert effects == [("error", "bad_request")] * 101 + [("close", 4009)]


def test_a_malformed_first_frame_is_named() -> None:
    """A newcomer who writes `token` for `jwt` learns which field is missing."""
    session = Session("c1", "s", Limits(), now=0, jitter=0)
    (close,) = session.receive(text("auth", token="j"), 0)
    assert isinstance(close, Close)
    assert "`jwt`" in close.reason


def test_frames_behind_a_refresh_meet_the_new_rights() -> None:
    """An unsubscribe behind a refresh that ended the same topic finds it gone."""
    session = opened()
    session.topics |= {"t", "u"}
    session.receive(text("auth", jwt="j2"), 1)
    session.receive(text("unsubscribe", topic="t"), 1)
    assert shapes(session.verified(principal(), now=1, wall=WALL)) == [("reauthorize",), ("authenticated",)]
    session.topics.discard("t")
    assert shapes(session.settled(1)) == [("error", "not_subscribed")]


@pytest.mark.parametrize("other", [principal(999, tenant="other"), principal(999, subject="other")])
def test_a_refresh_for_somebody_else_leaves_the_old_expiry(other: Principal) -> None:
    """`auth_invalid`, the connection stays whose it was, and ends when it would have."""
    session = opened(left=100)
    session.receive(text("auth", jwt="j2"), 50)
    assert shapes(session.verified(other, now=50, wall=WALL)) == [("error", "auth_invalid")]
    session.settled(50)
    assert session.principal == principal(100)
    assert shapes(session.tick(100)) == [("close", 4101)]


@pytest.mark.parametrize("code, told", [("auth_expired", "auth_invalid"), ("source_unavailable",) * 2])
def test_a_refused_refresh_leaves_the_old_expiry(code: str, told: str) -> None:
    """An invalid JWT is `auth_invalid`; a key server that is away is not the JWT's fault."""
    session = opened(left=100)
    session.receive(text("auth", jwt="j2"), 50)
    assert shapes(session.refused_auth(code, "no", now=50)) == [("error", told)]
    assert session.settled(50) == []
    assert shapes(session.tick(100)) == [("close", 4101)]


def test_the_maximum_age_is_announced() -> None:
    """`goaway`, then 4205: the client reconnects elsewhere with its tokens."""
    session = opened(left=10**6)
    effects = session.tick(900)
    assert shapes(effects) == [("goaway",), ("close", 4205)]
    assert isinstance(effects[0], Send)
    assert isinstance(effects[0].frame, messages.Goaway)
    assert 0 <= effects[0].frame.reconnect_after_ms <= 1000


@pytest.mark.parametrize("jitter", [0.0, 0.5, 0.999])
def test_heartbeats_and_checkpoints_keep_their_intervals(jitter: float) -> None:
    """Driven by `next_deadline` alone, no gap is longer than the interval, and none is less than a third of it; a
    heartbeat comes early rather than alone."""
    session = opened(Limits(max_age_s=10**5), left=10**6, jitter=jitter)
    times: dict[type, list[float]] = {HeartbeatDue: [0.0], CheckpointDue: [0.0]}
    now = 0.0
    while now < 600:
        deadline = session.next_deadline()
        assert deadline is not None
        assert deadline > now
        now = deadline
        for effect in session.tick(now):
            times[type(effect)].append(now)
    for kind, interval_s in ((HeartbeatDue, 20), (CheckpointDue, 15)):
        gaps = [later - earlier for earlier, later in zip(times[kind], times[kind][1:], strict=False)]
        assert len(gaps) >= 600 / interval_s
        assert interval_s / 3 <= min(gaps) <= max(gaps) <= interval_s
    assert set(times[HeartbeatDue]) <= set(times[CheckpointDue])


def test_a_close_that_asks_to_wait_has_a_json_reason() -> None:
    """4300 to 4399 carry `{"retryAfterMs": n}`; other reasons are text that fits a close frame."""
    (waits,) = opened().close("tenant_quota", retry_after_ms=1234)
    assert waits == Close(4302, '{"retryAfterMs":1234}')
    (long,) = opened().close("auth_invalid", "é" * 200)
    assert isinstance(long, Close)
    assert long.reason == "é" * 61
    assert opened().close("going_away") == [Close(4200, "going_away")]


def test_nothing_is_said_after_a_close() -> None:
    """Whatever comes in."""
    session = opened()
    session.receive(subscribe("a"), 1)
    session.receive(text("ping"), 1)
    session.close("internal")
    assert session.settled(1) == session.receive(text("ping"), 1) == []
    assert session.tick(10**6) == ()
    assert session.error("internal", "x", 1) == session.goaway(5) == session.close("going_away") == []
    assert (
        session.verified(principal(), now=1, wall=WALL)
        == session.refused_auth("auth_invalid", "x", now=1)
        == []
    )
    assert session.next_deadline() is None


def test_frames_that_wait_are_bounded_by_their_size_together() -> None:
    """256 frames of 64 KiB behind one unanswered request would be 16 MiB of a client's choosing."""
    limits = Limits(pending_bytes=100, pending_frames=50)
    session = Session("c", "feedsvc/test", limits, now=0.0, jitter=0.5)
    session.verifying()
    ping = '{"type":"ping"}'
    for _ in range(100 // len(ping)):
        assert session.receive(ping, 0.0) == []
    (close,) = session.receive(ping, 0.0)
    assert isinstance(close, Close)
    assert (close.code, close.reason) == (4301, '{"retryAfterMs":5000}')


def test_frames_that_wait_are_bounded_by_their_number() -> None:
    """Those of the table: 256 wait, the next closes with a time to come back."""
    session = Session("c", "feedsvc/test", Limits(), now=0.0, jitter=0.5)
    session.verifying()
    for _ in range(256):
        assert session.receive("{}", 0.0) == []
    assert session.receive("{}", 0.0) == [Close(4301, '{"retryAfterMs":5000}')]


def test_frames_that_were_handled_no_longer_count_as_waiting() -> None:
    """The bound is on what waits now, not on what ever waited."""
    limits = Limits(pending_bytes=40)
    session = Session("c", "feedsvc/test", limits, now=0.0, jitter=0.5)
    principal = Principal("acme", "alice", frozenset(), {}, 1_000.0)
    session.verifying()
    for _ in range(5):
        assert session.receive('{"type":"ping"}', 0.0) == []
        session.verified(principal, now=0.0, wall=0.0)
        assert [type(effect) for effect in session.settled(0.0)] == [Send]
        session.receive('{"type":"auth","jwt":"again"}', 0.0)
