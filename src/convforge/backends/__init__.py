"""Devices: what they are (facts), how work runs on them (runtime), and the makers of runtimes."""
