"""A module for each image format: what it stores, read and written."""
