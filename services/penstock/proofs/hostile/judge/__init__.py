"""The honest load beside an attack, and the figures of the mesh before, during and after it."""
