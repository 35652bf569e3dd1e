"""A folder for PYTHONPATH: its `sitecustomize` shifts the Unix time of a process."""
