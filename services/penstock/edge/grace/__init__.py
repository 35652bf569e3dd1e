"""What an edge may decide by itself while auth is away, and what it owes auth afterwards. No I/O; `now` comes in.

Owns who was admitted of late, what auth granted for such a time, and the requests let in that auth has not booked yet.
Decides nothing while auth answers, and nothing beyond what auth granted before it went.
"""
