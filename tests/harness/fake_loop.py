"""Time for units that take a loop and use its timers alone."""


class FakeLoop:
    """A loop that only knows timers, and whose time passes when it is told to."""

    def __init__(self):
        self.now = 0.0
        self.timers = []

    def call_later(self, delay, call):
        timer = FakeTimer(self.now + delay, call)
        self.timers.append(timer)
        return timer

    def fire_next(self):
        """Make the next timer's call; False when there is none."""
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
