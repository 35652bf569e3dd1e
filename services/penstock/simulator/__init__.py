"""Discrete-event simulator: the real ticket book, dispatcher and batch under virtual time, joined by one event queue.

Owns arrivals, clients, link delays and engine time, and records the results. Makes no decision of a tier: effects of
the cores become events. A run is a function of its scenario and seed alone.
"""
