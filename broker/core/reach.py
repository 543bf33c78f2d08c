"""Whether a model's instances can use the GPU memory that a request names.

A process of a GPU sees that GPU alone, so memory of another one is out of its reach; workers of the
CPU see what the server sees. Where a model's instances do not all see the same, requests with GPU
memory wait apart from the others, for an instance there.
"""

from __future__ import annotations

from naiad.broker.core.job import ANYWHERE, Job
from naiad.broker.core.models import ModelVersion
from naiad.protocol.errors import RequestError
from naiad.protocol.messages import Region
from naiad.shm.cuda.key import parsed


def use_gpu_memory(region: Region, job: Job, what: str) -> None:
    """Note where the job must run. Raises RequestError where no instance of its model could."""
    model, gpu = job.model, region.device
    name = parsed(region.key).name
    if not sees(model, gpu):
        numbers = ", ".join(map(str, sorted({one.gpu for one in model.instances})))
        raise RequestError(
            f"{what}: CUDA shared memory region '{name}' is on GPU {gpu}, and '{model.name}' has"
            f" instances on GPU {numbers}, which do not see it; send the tensor otherwise, or place"
            " the model by instance_group.gpus"
        )
    if job.gpu not in (gpu, ANYWHERE) and any(one.gpu != ANYWHERE for one in model.instances):
        raise RequestError(
            f"{what}: CUDA shared memory region '{name}' is on GPU {gpu}, and other tensors of this"
            f" request are on GPU {job.gpu}; an instance sees one GPU: send one of them otherwise"
        )
    job.gpu = gpu


def sees(model: ModelVersion, gpu: int) -> bool:
    """Whether some instance, whatever its state, could execute a request with memory there."""
    return gpu == ANYWHERE or any(one.sees(gpu) for one in model.instances)


def only_on(model: ModelVersion, gpu: int) -> int:
    """On which GPU alone a request with memory there can be executed; ANYWHERE: all see it."""
    return gpu if model.spans_gpus else ANYWHERE
