"""The surge proof, and the rejection floor, its standard for the cost of a rejection."""
