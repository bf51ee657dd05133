"""Calls: read the user's arguments, launch a plan, return an array of the caller's library."""
