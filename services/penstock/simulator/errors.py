"""What is wrong with a scenario."""


class ScenarioError(ValueError):
    """A scenario cannot be run as it stands; `field` is the path of what is to be mended, as `tenants[0].rate`."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field
