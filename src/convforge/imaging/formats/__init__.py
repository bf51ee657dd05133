"""Readers and writers, one module per image format."""
