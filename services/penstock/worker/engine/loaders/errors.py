"""Errors of loaders."""


class ModelUnsupported(ValueError):
    """The engine cannot run the model in these files; the message has the reason."""
