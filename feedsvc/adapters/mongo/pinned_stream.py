"""A change stream of PyMongo that keeps its connection and sends `getMore` on it.

The driver looks for a server and checks a connection out for each `getMore`, starts two tasks to read the reply and
counts half a dozen locks on the way: for a tail that reads one event at a time that is most of what an event costs
this process (docs/decisions/0014-a-stream-keeps-its-connection.md). A stream waits in `getMore` nearly all the time,
so nothing is won by giving its connection back in between.

Opening, killing the cursor and returning the connection stay the driver's: it pins cursors to connections behind a
load balancer, and the clients of streams are told to do so everywhere. What is here is `getMore` alone. All names
with an underscore are private to PyMongo, which is pinned exactly for them; the contract tests of the source and
`tests/adapters/test_mongo_pinned_stream.py` are to be run before that pin is raised.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from math import inf
from struct import Struct
from typing import Any

import bson
from bson.codec_options import DEFAULT_CODEC_OPTIONS
from bson.errors import InvalidBSON
from pymongo.asynchronous.mongo_client import _ClientCheckout
from pymongo.cursor_shared import _CURSOR_CLOSED_ERRORS
from pymongo.errors import AutoReconnect, ConnectionFailure, InvalidOperation, OperationFailure
from pymongo.helpers_shared import _check_command_response
from pymongo.message import _UNPACK_REPLY, _gen_get_more_command, _op_msg
from pymongo.pool_shared import _CancellationContext

from feedsvc.adapters.mongo.envelope import MALFORMED, Reply, read_reply

_INT32 = Struct("<i")
_MAX_REQUEST = 2**31 - 1


def pin_cursors(client: Any) -> None:
    """Have every cursor of an `AsyncMongoClient` keep the connection that it was opened on."""
    client._should_pin_cursor = lambda session: True


class PinnedStream:
    """`clients.Upstream` over an `AsyncChangeStream` of a client that pins its cursors.

    `resume_token` is the `postBatchResumeToken` of the last reply. Where a read fails or is cancelled the stream is of
    no more use, and `close()` is still owed. Raises what the driver raises.
    """

    def __init__(self, client: Any, stream: Any) -> None:
        self._client = client
        self._cursor = cursor = stream._cursor
        self._id: int = cursor._id
        self._events = deque(bytes(event.raw) for event in cursor._data)
        cursor._data.clear()  # each holds on to all of the first answer
        self._token = b""
        self._timer: asyncio.TimerHandle | None = None
        self._due = inf
        self._timed_out = False
        self._manager = manager = cursor._sock_mgr
        if manager is None:
            return  # the server closed the cursor in its first answer
        _close_once(manager)
        self._connection: Any = manager.conn
        database, collection = cursor._ns.split(".", 1)
        command = _gen_get_more_command(
            self._id, collection, cursor._batch_size, cursor._max_await_time_ms, None
        )
        if cursor._session is not None:
            command["lsid"] = cursor._session.session_id
        compression = self._connection.compression_context
        self._request, message, _, _ = _op_msg(
            0, command, database, None, DEFAULT_CODEC_OPTIONS, ctx=compression
        )
        self._message = bytearray(message)
        server = client._topology.get_server_by_address(self._connection.address)
        if server is None:
            raise AutoReconnect("the server of the stream is no longer part of the deployment")
        self._failures = _ClientCheckout.for_existing_conn(client, server, cursor._session, self._connection)
        _interrupt_at_once(self._connection)

    @property
    def alive(self) -> bool:
        return bool(self._events or self._id)

    @property
    def resume_token(self) -> Mapping[str, Any] | None:
        return bson.decode(self._token) if self._token else None

    async def try_next(self) -> bytes | None:
        if not self._events:
            await self._refill()
        return self._events.popleft() if self._events else None

    async def close(self) -> None:
        self._events.clear()
        if self._timer is not None:
            self._timer.cancel()
        try:
            await self._cursor.close()
        finally:
            if self._manager is not None:
                # Where saying goodbye was cut off, the driver forgets the connection that it was said on.
                await self._manager.close()

    async def _refill(self) -> None:
        if not self._id:
            raise AutoReconnect("the cursor of the stream is gone")
        try:
            reply = self._read(await self._get_more())
        except BaseException as error:
            if isinstance(error, ConnectionFailure) or (
                isinstance(error, OperationFailure) and error.code in _CURSOR_CLOSED_ERRORS
            ):
                self._cursor._killed = True  # there is nothing to kill
            # The driver's picture of the server: "not primary", for one, has it looked at again.
            await self._failures.handle(type(error), error)
            raise
        self._id, self._token = reply.cursor, reply.token
        if not self._id:
            self._cursor._id = 0  # there is nothing to kill
        self._events.extend(reply.events)

    def _read(self, body: bytes) -> Reply:
        try:
            reply = read_reply(body)
        except MALFORMED:
            raise InvalidBSON("the reply to a getMore is malformed") from None
        if reply is None:
            _check_command_response(bson.decode(body), self._connection.max_wire_version)
            raise InvalidBSON("the reply to a getMore is neither a batch nor an error")
        return reply

    async def _get_more(self) -> bytes:
        """The body of one reply."""
        if self._client._closed:
            raise InvalidOperation("the client is closed")
        connection = self._connection
        network = connection.conn.get_conn
        # The command is the same each time, so only its number is written anew: at offset 4, compressed or not.
        self._request = self._request % _MAX_REQUEST + 1
        _INT32.pack_into(self._message, 4, self._request)
        # Not that of the network: with `timeoutMS` in the URI that is what the opening has left.
        self._expect_within(connection.opts.socket_timeout)
        try:
            await network.write(self._message)
            data, operation = await network.read(self._request, connection.max_message_size)
            return bytes(_UNPACK_REPLY[operation](data).payload_document)
        except BaseException as error:
            failure = TimeoutError("timed out") if self._timed_out and isinstance(error, OSError) else error
            await connection._raise_connection_failure(failure)
            raise
        finally:
            self._due = inf

    def _expect_within(self, timeout_s: float | None) -> None:
        """Cut the connection off when that is over, unless the reply came. To make and cancel a timer costs as much as
        reading an event, so there is one that looks when it rings."""
        if timeout_s is None:
            return
        loop = asyncio.get_running_loop()
        self._due = loop.time() + timeout_s
        if self._timer is None:
            self._timer = loop.call_at(self._due, self._ring)

    def _ring(self) -> None:
        loop = asyncio.get_running_loop()
        if self._due <= loop.time():
            self._timed_out = True
            self._connection.conn.get_conn.transport.abort()
        elif self._due < inf:
            self._timer = loop.call_at(self._due, self._ring)
            return
        self._timer = None


class _Interruptible(_CancellationContext):
    """What the driver's monitor cancels on every connection to a server that hangs. The driver's own reader looks at
    it twice a second; this one cuts the connection off."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self._network = network

    def cancel(self) -> None:
        super().cancel()
        self._network.transport.abort()


def _close_once(manager: Any) -> None:
    """What returns a connection forgets it only when that is done, and does it again for the next who asks, where it
    was cancelled: the pool would count it twice and lend it to two."""

    async def close() -> None:
        connection, manager.conn = manager.conn, None
        if connection is not None:
            await connection.unpin()

    manager.close = close


def _interrupt_at_once(connection: Any) -> None:
    context, contexts = connection.cancel_context, connection.pool_ref().active_contexts
    connection.cancel_context = _Interruptible(connection.conn.get_conn)
    contexts.discard(context)
    contexts.add(connection.cancel_context)
    if context.cancelled:
        connection.cancel_context.cancel()
