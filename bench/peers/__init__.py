"""Servers to compare with: each accepts WebSockets and, told so on stdin, writes the same frame to all of them."""
