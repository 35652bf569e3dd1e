"""Simulated edges and their clients, the attempts of requests, and the edges' admission filter."""
