"""What keeps instances of a sound model from serving, in words for the status. Reads only."""

from __future__ import annotations

from naiad.broker.core.instances import InstanceState
from naiad.broker.core.models import ModelVersion
from naiad.broker.core.world import World


def why_not_whole(world: World, version: ModelVersion) -> str:
    """Room on a GPU, slots, or the turn to be loaded; empty: nothing is lacking."""
    without_room = [one for one in version.instances if one.no_room]
    if without_room:
        first = without_room[0]
        count = len(without_room)
        return f"{count} instances do not fit, such as {first.name}: {first.no_room}"
    waiting = [one for one in version.instances if one.state is InstanceState.WAITING]
    if not waiting:
        return ""
    devices = {one.device for one in waiting}
    lacking = devices - {slot.device for slot in world.slots.values() if slot.is_empty}
    if lacking:
        count = sum(one.device in lacking for one in waiting)
        return f"waiting for {count} slots on {', '.join(sorted(lacking))}"
    return f"waiting while another instance is loaded on {', '.join(sorted(devices))}"
