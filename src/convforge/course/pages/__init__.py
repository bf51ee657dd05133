"""The machinery of pages: charts, the looks of methods, pictures, and HTML files that need no network."""
