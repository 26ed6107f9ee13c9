"""What holdfast's own tests use, for people who test their tools and agents: start with `VirtualClock`."""

from holdfast.testing.clock import VirtualClock, VirtualDeadlock

__all__ = ["VirtualClock", "VirtualDeadlock"]
