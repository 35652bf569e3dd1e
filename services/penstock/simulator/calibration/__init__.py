"""Calibration: measures the steps of the real engine and fits the step-time law that the simulator uses."""
