"""KEDA and the horizontal pod autoscaler (HPA), as far as they set the number of replicas. Pure.

KEDA moves between 0 and 1: up when the scaler reports activity, down after a cooldown without any. From 1 on, the HPA
sets the number from the metric. Both keep the number while the scaler returns an error.
Sources: kubernetes/kubernetes `pkg/controller/podautoscaler`, kedacore/keda `pkg/scaling/executor`.
"""

import math
from collections import deque
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class KedaSettings:
    """Settings of a ScaledObject; the defaults are those of `deploy/k8s/components/keda`. Times are in s."""

    max_replicas: int = 100
    sync_period: float = 15.0  # between two decisions of the HPA
    cooldown_period: float = 120.0  # without activity before the last replica stops
    scale_down_window: float = 60.0  # the highest number of this time counts
    tolerance: float = 0.1  # relative distance between metric and replicas that changes nothing


@dataclass(slots=True)
class KedaController:
    """The wanted replicas of one workload."""

    settings: KedaSettings = field(default_factory=KedaSettings)
    replicas: int = 0
    errors: int = 0  # calls of the scaler that failed
    _active_at: float = -math.inf  # s
    _recommended: deque[tuple[float, int]] = field(default_factory=deque)  # s and replicas, the highest first

    def on_activity(self, now: float, *, is_active: bool) -> int:
        """Apply an answer of IsActive or StreamIsActive. Return the wanted replicas."""
        if is_active:
            self._active_at = now
            self.replicas = max(1, self.replicas)
        elif self.replicas and now - self._active_at >= self.settings.cooldown_period:
            self.replicas = 0
            self._recommended.clear()
        return self.replicas

    def on_metric(self, workers: float, now: float) -> int:
        """Apply an answer of GetMetrics with a target of 1 per replica. Return the wanted replicas."""
        if not self.replicas:  # the HPA is off
            return 0
        wanted = self.replicas
        if abs(workers / self.replicas - 1) > self.settings.tolerance:
            wanted = math.ceil(workers)
        self.replicas = self._stabilized(min(self.settings.max_replicas, max(1, wanted)), now)
        return self.replicas

    def on_error(self) -> int:
        """The scaler did not answer. Return the wanted replicas, which stay."""
        self.errors += 1
        return self.replicas

    def _stabilized(self, wanted: int, now: float) -> int:
        """Return the highest number of the window, which is never above the present one unless `wanted` is."""
        recent = self._recommended
        while recent and recent[-1][1] <= wanted:
            recent.pop()
        recent.append((now, wanted))
        while recent[0][0] <= now - self.settings.scale_down_window:
            recent.popleft()
        return max(wanted, min(self.replicas, recent[0][1]))
