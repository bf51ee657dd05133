"""Many images: read, uploaded, filtered, downloaded and written in parallel, a bounded number of them at a time.

`flow` moves items through threads, `lanes` moves pixels through a device, `recipe` filters an image for the command;
`many` (arrays) and `folder` (files) combine them.
"""

from convforge.imaging.pipeline.many import filter_many

__all__ = ["filter_many"]
