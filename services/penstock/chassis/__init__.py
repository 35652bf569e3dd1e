"""What every service is bolted to: lifecycle, config, errors, telemetry, channels, streams, server and admin.

It owns how a process starts, listens, is observed, fails and drains. It holds no word of the domain: nothing here
knows what a request, a ticket or a model is.
"""
