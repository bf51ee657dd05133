"""Image files, named kernels, `filter`, and `filter_many`. Heavy libraries are imported at their first use."""
