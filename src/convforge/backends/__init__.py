"""Devices: their facts, the contract of their runtimes, and a package for each kind."""
