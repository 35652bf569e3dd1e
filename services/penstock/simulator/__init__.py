"""The mesh under virtual time: the real ticket book, dispatcher and batch, joined by one heap of events.

Owns arrivals, clients, link delays and engines' time, and keeps what happened. Decides nothing that a tier decides:
effects of the cores become events, and a seed and a scenario are all that a run is a function of.
"""
