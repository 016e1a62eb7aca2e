"""Adapters: the implementations of the ports, one package for each third-party library. None imports another."""
