"""What a supervisor is to run. Values only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to run. The modules are a seam: tests run small ones of their own."""

    run_dir: str
    broker_arguments: Sequence[str]
    drain_seconds: float
    grace_seconds: float = 0.0
    """For gateways to serve on, not ready, before the broker is told to stop."""
    broker_module: str = "naiad.broker"
    worker_module: str = "naiad.worker"
    gateways_count: int = 0
    gateway_arguments: Sequence[str] = ()
    gateway_descriptors: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Listening sockets that every gateway inherits, by the option that tells it."""
    gateways_wait: bool = False
    """Until every model is ready or has failed: another server has the ports until then."""
    gateway_module: str = "naiad.gateway"
    metrics_descriptors: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Those of the metrics process, likewise; without any there is no such process."""
    metrics_arguments: Sequence[str] = ()
    metrics_module: str = "naiad.metrics"
