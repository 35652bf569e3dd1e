"""Errors of scenario files."""


class ScenarioError(ValueError):
    """A scenario is invalid; `field` is the path of the invalid field, such as `tenants[0].rate`."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field
        self.message = message
