"""Drivers: clients of one transport that send a request and record its transcript.

A driver retries nothing by itself and reports a failure in the transcript, never as an exception. Cancelling the task
that runs a driver cancels its request.
"""
