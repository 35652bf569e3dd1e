class ModelUnsupported(ValueError):
    """These files do not hold a model that the engine can run. The message says what about them it is."""
