"""Contents of files, behind one small interface: a folder, or object storage."""
