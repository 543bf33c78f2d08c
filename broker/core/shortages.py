"""What keeps instances of a sound model from serving, in words for the status. Reads only."""

from __future__ import annotations

from naiad.broker.core.instances import InstanceState
from naiad.broker.core.models import ModelState, ModelVersion
from naiad.broker.core.world import World


def why_not_whole(world: World, version: ModelVersion) -> str:
    """Room on a GPU, slots, the turn to be loaded, or the death of workers that were killed; empty:
    nothing is lacking."""
    without_room = [one for one in version.instances if one.no_room]
    if without_room:
        first = without_room[0]
        count = len(without_room)
        return f"{count} instances do not fit, such as {first.name}: {first.no_room}"
    held = [one for one in version.instances if one.state is InstanceState.FATAL]
    if held and version.state is ModelState.READY:
        return f"{held[0].name} does not serve: {too_many_lost(world)}"
    waiting = [one for one in version.instances if one.state is InstanceState.WAITING]
    if not waiting:
        return ""
    devices = {one.device for one in waiting}
    lacking = devices - {slot.device for slot in world.slots.values() if slot.is_empty}
    if lacking:
        count = sum(one.device in lacking for one in waiting)
        return f"waiting for {count} slots on {', '.join(sorted(lacking))}"
    return f"waiting while another instance is loaded on {', '.join(sorted(devices))}"


def too_many_lost(world: World) -> str:
    """Why an instance that has its share of workers that do not die gets no other."""
    count = world.limits.lost_workers_max
    return f"{count} of its workers were killed and do not die; it is loaded again when one is dead"
