"""Routes: names of models that operators point at other models."""
