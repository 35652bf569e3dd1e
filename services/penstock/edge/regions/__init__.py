"""Requests that leave their region because it cannot serve them in time, and guests from other regions."""
