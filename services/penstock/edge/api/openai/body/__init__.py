"""Parts of JSON bodies that several endpoints share, and their checks."""
