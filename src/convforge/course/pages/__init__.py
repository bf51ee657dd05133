"""Building blocks of pages: charts, the looks of methods, images, and HTML files that need no network."""
