"""A question to MongoDB: answered, refused, or never answered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from feedsvc.ports import SourceError, SourceRefused

ANSWER_S = 5.0
"""The usual time for a question. The driver looks for a server as long as that by itself."""

AT_ONCE = 4
UNAUTHORIZED = 13

T = TypeVar("T")


class Silent(Exception):
    """MongoDB does not answer any more."""


class Questions:
    """`answer_s`: what each question may take."""

    def __init__(self, answer_s: float) -> None:
        self.answer_s = answer_s

    async def answer(self, question: Awaitable[T]) -> T:
        """The answer. Raises `SourceRefused` where it is an error of whatever kind, and `Silent` where none comes."""
        try:
            async with asyncio.timeout(self.answer_s):
                return await question
        except TimeoutError:
            raise Silent(f"MongoDB did not answer within {self.answer_s:g} s") from None
        except SourceError as error:
            if isinstance(error, SourceRefused) or error.code is not None:
                raise SourceRefused(str(error), error.code) from None
            raise Silent(str(error)) from None


async def for_each(things: Iterable[T], ask: Callable[[T], Awaitable[None]]) -> None:
    """`ask` about each thing, `AT_ONCE` at a time. After the first that nobody answers no other is asked; raises that
    one's `Silent`."""
    room = asyncio.Semaphore(AT_ONCE)
    silent: list[Silent] = []

    async def ask_one(thing: T) -> None:
        async with room:
            if silent:
                return
            try:
                await ask(thing)
            except Silent as error:
                silent.append(error)

    await asyncio.gather(*(ask_one(thing) for thing in things))
    if silent:
        raise silent[0]
