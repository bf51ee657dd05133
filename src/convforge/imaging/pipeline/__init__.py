"""Many images: read, uploaded, filtered, downloaded and written side by side, a bounded number of them at a time.

`flow` moves items through threads, `lanes` moves pixels through a device, `convolver` and `recipe` say what is done to
an image; `many` and `folder` put them together, for arrays and for files.
"""

from convforge.imaging.pipeline.many import filter_many

__all__ = ["filter_many"]
