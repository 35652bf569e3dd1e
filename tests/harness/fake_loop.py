"""A fake event loop for units that use only its timers."""


class FakeLoop:
    """A loop with timers only, whose time the test advances."""

    def __init__(self):
        self.now = 0.0
        self.timers = []

    def call_later(self, delay, call):
        timer = FakeTimer(self.now + delay, call)
        self.timers.append(timer)
        return timer

    def fire_next(self):
        """Run the next timer's callback; returns False if there is none."""
        self.timers = sorted((each for each in self.timers if not each.is_cancelled), key=lambda each: each.due)
        if not self.timers:
            return False
        timer = self.timers.pop(0)
        self.now = timer.due
        timer.call()
        return True


class FakeTimer:
    def __init__(self, due, call):
        self.due, self.call, self.is_cancelled = due, call, False

    def cancel(self):
        self.is_cancelled = True
