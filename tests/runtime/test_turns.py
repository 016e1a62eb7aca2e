from __future__ import annotations

from feedsvc.runtime.turns import Turns


def test_tenants_take_turns() -> None:
    """Whoever came first with however many: the next slot goes to the next tenant."""
    turns: Turns[str] = Turns(slots=1, share=1)
    for item in ("a1", "a2", "a3", "b1", "c1", "c2"):
        turns.wait(item[0], item)
    order = []
    while (found := turns.next()) is not None:
        order.append(found)
        assert turns.next() is None
        turns.free(found[0])
    assert order == ["a1", "b1", "c1", "a2", "c2", "a3"]


def test_a_tenant_holds_no_more_than_its_share() -> None:
    """The rest stays for others, even while nobody else wants it."""
    turns: Turns[str] = Turns(slots=3, share=2)
    for item in ("a1", "a2", "a3"):
        turns.wait("a", item)
    assert [turns.next(), turns.next(), turns.next()] == ["a1", "a2", None]
    turns.wait("b", "b1")
    assert (turns.next(), turns.taken, turns.waiting) == ("b1", 3, 1)
    turns.free("a")
    assert turns.next() == "a3"


def test_who_left_gets_no_turn() -> None:
    """And who asks twice keeps the place of the first time."""
    turns: Turns[str] = Turns(slots=2, share=2)
    for item in ("a1", "a2", "a1"):
        turns.wait("a", item)
    turns.leave("a", "a2")
    turns.leave("b", "b1")
    assert (turns.next(), turns.next(), turns.waiting) == ("a1", None, 0)


def test_whether_a_slot_given_back_would_be_somebodys() -> None:
    """Of the same tenant, or of one that is not at its share where all slots are taken."""
    turns: Turns[str] = Turns(slots=3, share=2)
    for item in ("a1", "a2", "a3", "b1"):
        turns.wait(item[0], item)
    assert [turns.next(), turns.next(), turns.next()] == ["a1", "b1", "a2"]
    assert turns.wanted("a")
    assert not turns.wanted("b"), "a has its share"
    turns.wait("c", "c1")
    assert turns.wanted("b")
    turns.leave("a", "a3")
    turns.leave("c", "c1")
    assert not turns.wanted("a")
