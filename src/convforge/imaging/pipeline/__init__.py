"""Many images: read, uploaded, filtered, downloaded and written side by side, a bounded number of them at a time.

`flow` moves items through threads, `lanes` moves pixels through a device, `recipe` is how the command filters an
image; `many` (arrays) and `folder` (files) put them together.
"""

from convforge.imaging.pipeline.many import filter_many

__all__ = ["filter_many"]
