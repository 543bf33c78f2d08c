"""Whether a model's instances can use the GPU memory that a request names.

A process of a GPU sees that GPU alone, so memory of another one is out of its reach; workers of the
CPU see what the server sees. Reads only.
"""

from __future__ import annotations

from naiad.broker.core.models import ModelVersion
from naiad.protocol.errors import RequestError
from naiad.protocol.messages import Region
from naiad.shm.cuda.key import parsed


def check_reach(region: Region, model: ModelVersion, what: str) -> None:
    """Raises RequestError where an instance, any of which may get the request, cannot use it."""
    beyond = {
        one.device_id
        for one in model.instances
        if one.kind == "KIND_GPU" and one.device_id != region.device
    }
    if beyond:
        numbers = ", ".join(map(str, sorted(beyond)))
        raise RequestError(
            f"{what}: CUDA shared memory region '{parsed(region.key).name}' is on GPU"
            f" {region.device}, and '{model.name}' has instances on GPU {numbers}, which do not"
            " see it; send the tensor otherwise, or place the model by instance_group.gpus"
        )
