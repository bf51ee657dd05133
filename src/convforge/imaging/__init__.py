"""Image files, named kernels, `filter` and `filter_many`; large libraries are imported on first use."""
