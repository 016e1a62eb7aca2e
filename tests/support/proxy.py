"""A TCP proxy between service and engine that reads along: which change streams are opened, and which still run.

It understands just enough of MongoDB's wire protocol (OP_MSG, kind 0 sections) to see commands and cursor ids. It can
answer in the engine's place: unlike a fail point, which all clients and all collections share, a fault of this proxy
is for one command of one collection. It can speak zlib to clients that offer it, which the engine does not.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import bson

_HEADER = struct.Struct("<iiii")
_OP_MSG = 2013
_OP_COMPRESSED = 2012
_COMPRESSED = struct.Struct("<iiB")
_ZLIB = 2


class Fault:
    """Answers `command` of `collection` (any if None) with an error code, with `answer`, by closing the connection, or
    not at all (`silent`), `times` times; only one with the fields of `having`. The empty command is any.

    `getMore` means those of change streams only if it names a collection that nobody else reads.
    """

    def __init__(
        self,
        command: str,
        code: int | None,
        *,
        collection: str | None = None,
        times: int | None = None,
        labels: Sequence[str] = (),
        stage: str | None = None,
        answer: Mapping[str, Any] | None = None,
        silent: bool = False,
        having: Mapping[str, Any] | None = None,
    ) -> None:
        self.hits = 0
        self._having = having or {}
        self.silent = silent
        self._command = command
        self._collection = collection
        self._code = code
        self._times = times
        self._labels = list(labels)
        self._stage = stage
        self._answer = answer

    def takes(self, command: Mapping[str, Any]) -> bool:
        if self._times == self.hits or (self._command and not self._means(command)):
            return False
        self.hits += 1
        return True

    def _means(self, command: Mapping[str, Any]) -> bool:
        if self._command not in command or not self._having.items() <= command.items():
            return False
        name = command["collection"] if self._command == "getMore" else command[self._command]
        if self._collection not in (None, name):
            return False
        return self._stage is None or any(self._stage in stage for stage in command["pipeline"])

    @property
    def reply(self) -> dict[str, Any] | None:
        """None closes the connection."""
        if self._answer is not None:
            return {"ok": 1.0, **self._answer}
        if self._code is None:
            return None
        return {"ok": 0.0, "code": self._code, "errmsg": "the proxy says so", "errorLabels": self._labels}


class EngineProxy:
    """Listens on a port of its own while in context. `opened`: every `$changeStream` aggregate that was sent;
    `commands`: the number of the connection and the name of every command; `compressed`: how many came so."""

    def __init__(self, port: int, *, speaks_zlib: bool = False) -> None:
        self.commands: list[tuple[int, str]] = []
        self.compressed = 0
        self._speaks_zlib = speaks_zlib
        self._owed_compressed: set[tuple[int, int]] = set()
        self.opened: list[dict[str, Any]] = []
        self.opened_at: list[float] = []
        """When each of `opened` came, in monotonic seconds."""
        self.faults: list[Fault] = []
        """Asked in order; the first that takes a command answers it. Assign to change them."""
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open_cursors: set[int] = set()
        self._asked: set[tuple[int, int]] = set()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    @property
    def uri(self) -> str:
        return f"mongodb://127.0.0.1:{self._listener.getsockname()[1]}/?directConnection=true"

    @property
    def running(self) -> int:
        """Change streams that are open at the engine now."""
        with self._lock:
            return len(self._open_cursors)

    def __enter__(self) -> EngineProxy:
        self._spawn(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in self._sockets:
            _shut(each)
        for thread in self._threads:
            thread.join()
        for each in self._sockets:
            each.close()

    def _spawn(self, target: Any, *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._target)
            self._sockets += (client, server)
            number = len(self._sockets)
            self._spawn(self._pump, client, server, number, self._request)
            self._spawn(self._pump, server, client, number, self._reply)

    def _pump(self, source: socket.socket, sink: socket.socket, number: int, see: Any) -> None:
        try:
            while True:
                header = _read(source, _HEADER.size)
                length, request_id, response_to, operation = _HEADER.unpack(header)
                body = _read(source, length - _HEADER.size)
                if operation == _OP_COMPRESSED:
                    operation, _, _ = _COMPRESSED.unpack_from(body)
                    body = zlib.decompress(body[_COMPRESSED.size :])
                    header = _HEADER.pack(_HEADER.size + len(body), request_id, response_to, operation)
                    self.compressed += 1
                    self._owed_compressed.add((number, request_id))
                if operation == _OP_MSG and body[4] == 0:
                    size = int.from_bytes(body[5:9], "little")
                    fault = see(number, request_id, response_to, bson.decode(body[5 : 5 + size]))
                    if fault is not None:
                        if not fault.silent:
                            _answer(source, request_id, fault)
                        continue
                if self._speaks_zlib and see == self._reply:
                    header, body = self._in_zlib(number, request_id, response_to, body)
                sink.sendall(header + body)
        except (OSError, EOFError):
            _shut(source)
            _shut(sink)

    def _in_zlib(self, number: int, request_id: int, response_to: int, body: bytes) -> tuple[bytes, bytes]:
        """A reply as a server with zlib sends it: the one to `hello` offers it, and it answers as it was asked."""
        answer = bson.decode(body[5:])
        operation = _OP_MSG
        if "maxWireVersion" in answer:
            body = body[:5] + bson.encode({**answer, "compression": ["zlib"]})
        elif (number, response_to) in self._owed_compressed:
            self._owed_compressed.discard((number, response_to))
            body, operation = (
                _COMPRESSED.pack(_OP_MSG, len(body), _ZLIB) + zlib.compress(body),
                _OP_COMPRESSED,
            )
        return _HEADER.pack(_HEADER.size + len(body), request_id, response_to, operation), body

    def _request(self, number: int, request_id: int, _: int, command: dict[str, Any]) -> Fault | None:
        with self._lock:
            self.commands.append((number, next(iter(command))))
            fault = next((fault for fault in self.faults if fault.takes(command)), None)
            pipeline = command.get("pipeline")
            if "aggregate" in command and pipeline and "$changeStream" in pipeline[0]:
                self.opened.append(command)
                self.opened_at.append(time.monotonic())
                if fault is None:
                    self._asked.add((number, request_id))
            if "killCursors" in command:
                self._open_cursors.difference_update(command["cursors"])
        return fault

    def _reply(self, number: int, _: int, response_to: int, answer: dict[str, Any]) -> None:
        with self._lock:
            if (number, response_to) in self._asked:
                self._asked.discard((number, response_to))
                if "cursor" in answer:
                    self._open_cursors.add(answer["cursor"]["id"])


def _answer(client: socket.socket, request_id: int, fault: Fault) -> None:
    reply = fault.reply
    if reply is None:
        raise EOFError
    body = b"\0\0\0\0\0" + bson.encode(reply)
    client.sendall(_HEADER.pack(_HEADER.size + len(body), 0, request_id, _OP_MSG) + body)


def _read(source: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = source.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return bytes(data)


def _shut(each: socket.socket) -> None:
    try:
        each.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # the peer was first
