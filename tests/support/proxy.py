"""A TCP proxy between service and engine that reads along: which change streams are opened, and which still run.

It understands just enough of MongoDB's wire protocol (OP_MSG, kind 0 sections) to see commands and cursor ids.
"""

from __future__ import annotations

import socket
import struct
import threading
from typing import Any

import bson

_HEADER = struct.Struct("<iiii")
_OP_MSG = 2013


class EngineProxy:
    """Listens on a port of its own while in context. `opened`: every `$changeStream` aggregate that was sent."""

    def __init__(self, port: int) -> None:
        self.opened: list[dict[str, Any]] = []
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
                if operation == _OP_MSG and body[4] == 0:
                    size = int.from_bytes(body[5:9], "little")
                    see(number, request_id, response_to, bson.decode(body[5 : 5 + size]))
                sink.sendall(header + body)
        except (OSError, EOFError):
            _shut(source)
            _shut(sink)

    def _request(self, number: int, request_id: int, _: int, command: dict[str, Any]) -> None:
        with self._lock:
            pipeline = command.get("pipeline")
            if "aggregate" in command and pipeline and "$changeStream" in pipeline[0]:
                self.opened.append(command)
                self._asked.add((number, request_id))
            if "killCursors" in command:
                self._open_cursors.difference_update(command["cursors"])

    def _reply(self, number: int, _: int, response_to: int, answer: dict[str, Any]) -> None:
        with self._lock:
            if (number, response_to) in self._asked:
                self._asked.discard((number, response_to))
                if "cursor" in answer:
                    self._open_cursors.add(answer["cursor"]["id"])


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
