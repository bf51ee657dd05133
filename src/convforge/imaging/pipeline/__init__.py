"""Filter many images: read, upload, filter, download and write them in parallel, with limited memory.

`flow` runs the stages on threads, `lanes` runs images on a device, `recipe` has the steps of the command for one image;
`many` (arrays), `folder` (files) and `large` (units of an image larger than memory) combine them.
"""

from convforge.imaging.pipeline.large_call import filter_large
from convforge.imaging.pipeline.many import filter_many

__all__ = ["filter_large", "filter_many"]
