"""Backends: facts of devices, the contract of their runtimes, and a package for each kind of device."""
