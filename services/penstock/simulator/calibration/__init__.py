"""Calibration: measures the steps of the real engine and fits the step-time model of the simulator."""
