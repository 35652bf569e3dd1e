"""Predictions of waiting time and time to first token, from the statistics that schedulers report.

Pure arithmetic.
"""
