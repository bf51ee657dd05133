"""The host side that several families share."""
