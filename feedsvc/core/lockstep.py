"""Lockstep: the subscriptions of a topic that stand alike and have room, kept as a list of their sockets.

To give them all a burst is one write each. What each was given is noted once, for all of them, and a subscription takes
it over when somebody asks for it (`settle`) or when it leaves; so a delivery touches the socket and nothing of ours.

Everybody in it has read its topic's log to the end of what was given last. Members leave at any time, even in the
middle of their own write; they come only between two bursts.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from feedsvc.core.burst import Burst
from feedsvc.core.positions import Position

if TYPE_CHECKING:
    from feedsvc.core.subscription import Subscription

WriteEach = Callable[[Sequence[int], bytes], Sequence[tuple[int, memoryview]]]
"""Writes the same bytes to each of many descriptors and waits for none. Returns who did not take all of them, by place,
with the rest, for `Direct.write_rest`. Must not raise, nor run anything of ours."""


class Direct:
    """The socket of a connection, for those that are written to past its transport: its `members`.

    `write_rest` takes what the socket did not, before anything else is written. `deflates`: its peer is to get
    `Burst.deflated`.
    """

    __slots__ = ("deflates", "descriptor", "members", "write_rest")

    def __init__(
        self, descriptor: int, write_rest: Callable[[memoryview], object], *, deflates: bool = False
    ) -> None:
        self.descriptor = descriptor
        self.write_rest = write_rest
        self.deflates = deflates
        self.members: list[Subscription] = []

    def full(self) -> None:
        """Nobody writes to it from now on. For the connection: at once when it takes nothing, in the middle of a write
        too, and before its descriptor is closed, whatever else fails: the number may be another tenant's next."""
        for member in tuple(self.members):
            member.full()


_YIELD_EVERY = 256
"""Writes between two yields: two or three milliseconds. Each yield costs as much as one."""
_NOWHERE = -1
"""No descriptor."""


class Given(NamedTuple):
    """Where everybody stands who got a burst: `cursor` and `at` as of the tail's head, `told` by its last event."""

    cursor: int
    at: Position | None
    told: Position | None


class Lockstep:
    """`apart`: the other readers of the topic on the live tail, each of which is dealt with by itself."""

    __slots__ = ("_descriptors", "_directs", "_giving", "_left", "_members", "_reached", "apart", "given")

    def __init__(self) -> None:
        self.apart: dict[Subscription, None] = {}
        self.given: Given | None = None
        """What everybody got last, or where the first one stood when it came; None while nobody is here."""
        self._members: list[Subscription | None] = []
        self._directs: list[Direct] = []
        self._descriptors: list[int] = []
        """By place, as `_members`; of one that left while a burst was being given `_NOWHERE`."""
        self._giving: Given | None = None
        self._reached = 0
        """The places below it have got the burst that is being given."""
        self._left = 0

    def __len__(self) -> int:
        return len(self._members) - self._left

    def __iter__(self) -> Iterator[Subscription]:
        return (member for member in self._members if member is not None)

    def join(self, subscription: Subscription, direct: Direct) -> None:
        """Take one in who has read its log to the end, as all others here have. Not while a burst is being given."""
        assert self._giving is None
        if self.given is None:
            self.given = Given(subscription.cursor, subscription.at, subscription.told)
        del self.apart[subscription]
        subscription.lockstep, subscription.step = self, len(self._members)
        self._members.append(subscription)
        self._directs.append(direct)
        self._descriptors.append(direct.descriptor)
        direct.members.append(subscription)

    def leave(self, subscription: Subscription) -> None:
        """At once. It stands behind a burst that is being given if that was written to it, or is this moment."""
        step = subscription.step
        self._directs[step].members.remove(subscription)
        self.settle(subscription)
        subscription.lockstep = None
        self.apart[subscription] = None
        if self._giving is not None:
            self._members[step], self._descriptors[step] = None, _NOWHERE
            self._left += 1
            return
        last, direct, descriptor = self._members.pop(), self._directs.pop(), self._descriptors.pop()
        if last is not None and last is not subscription:
            last.step = step
            self._members[step], self._directs[step], self._descriptors[step] = last, direct, descriptor
        if not self._members:
            self.given = None

    def settle(self, subscription: Subscription) -> None:
        """Let a member take over what it was given."""
        given = self._giving if subscription.step < self._reached else self.given
        if given is not None and given.cursor > subscription.cursor:
            subscription.cursor, subscription.at, subscription.told = given

    def give(self, write_each: WriteEach, burst: Burst, given: Given) -> Generator[None, None, int]:
        """Write to everybody, in slices with a yield between them, and return to how many. Exhaust it."""
        # All of it is made before the first write: what can fail must not fail between two slices.
        deflates = burst.deflates and any(direct.deflates for direct in self._directs)
        forms = (burst.websocket, burst.deflated) if deflates else (burst.websocket,)
        self._giving = given
        given_to = 0
        try:
            for first in range(0, len(self._members), _YIELD_EVERY):
                if first:
                    yield
                places: Sequence[int] = range(first, min(first + _YIELD_EVERY, len(self._members)))
                if self._left:
                    places = [place for place in places if self._members[place] is not None]
                self._reached = first + _YIELD_EVERY
                given_to += len(places)
                # All are written to before a rest runs anything of ours, which may close a socket.
                rests = [
                    (those[index], rest)
                    for those, data in self._by_form(places, forms)
                    for index, rest in write_each(self._descriptors_at(those), data)
                ]
                for place, rest in rests:
                    self._directs[place].write_rest(rest)
            self.given = given
            return given_to
        finally:
            self._giving, self._reached = None, 0
            if self._left:
                self._close_up()

    def _by_form(
        self, places: Sequence[int], forms: Sequence[bytes]
    ) -> Iterable[tuple[Sequence[int], bytes]]:
        """Which of these places get which bytes: the second form, where there is one, is for those who deflate."""
        if len(forms) == 1:
            return ((places, forms[0]),)
        directs = self._directs
        kinds = ([place for place in places if directs[place].deflates is kind] for kind in (False, True))
        return zip(kinds, forms, strict=True)

    def _descriptors_at(self, places: Sequence[int]) -> Sequence[int]:
        if isinstance(places, range):
            return self._descriptors[places.start : places.stop]
        return [self._descriptors[place] for place in places]

    def dissolve(self) -> list[Subscription]:
        """Let everybody leave; who they were."""
        members = list(self)
        for subscription in members:
            self.leave(subscription)
        return members

    def _close_up(self) -> None:
        kept = [
            (member, direct)
            for member, direct in zip(self._members, self._directs, strict=True)
            if member is not None
        ]
        self._members = [member for member, _ in kept]
        self._directs = [direct for _, direct in kept]
        self._descriptors = [direct.descriptor for direct in self._directs]
        self._left = 0
        if not kept:
            self.given = None
        for step, (member, _) in enumerate(kept):
            member.step = step
