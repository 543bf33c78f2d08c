"""Every metric there is: name, type, labels, meaning. docs/metrics.md shows this table.

`nv_` names, labels and meanings are Triton's, with no `_total` at the end of counters; dashboards
made for it work unchanged. What Triton does not have is called `naiad_`, with the endings that
Prometheus recommends: base units, and `_total` for counters.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Family(NamedTuple):
    """One metric. `labels` in the order in which they are written; `unit` is for people."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    unit: str
    help: str


_MODEL: Final = ("model", "version")
_INSTANCE: Final = ("instance", "model", "version")
_C, _G, _H = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM

# fmt: off
# Triton's, of a model.
REQUEST_SUCCESS: Final = Family(
    "nv_inference_request_success", _C, _MODEL, "requests",
    "Requests answered with a result",
)
REQUEST_FAILURE: Final = Family(
    "nv_inference_request_failure", _C, ("model", "reason", "version"), "requests",
    "Requests answered with an error after they were accepted, or rejected by a full queue",
)
INFERENCE_COUNT: Final = Family(
    "nv_inference_count", _C, _MODEL, "rows",
    "Inferences done: a request of batch size n counts n times",
)
EXEC_COUNT: Final = Family(
    "nv_inference_exec_count", _C, _MODEL, "executions",
    "Executions of the model: one for each batch with at least one result",
)
REQUEST_DURATION: Final = Family(
    "nv_inference_request_duration_us", _C, _MODEL, "microseconds",
    "Sum of the times from arrival to answer of all successful requests",
)
QUEUE_DURATION: Final = Family(
    "nv_inference_queue_duration_us", _C, _MODEL, "microseconds",
    "Sum of the times that successful requests waited in the queue",
)
COMPUTE_INPUT_DURATION: Final = Family(
    "nv_inference_compute_input_duration_us", _C, _MODEL, "microseconds",
    "Sum over requests of the time their batch took to prepare its inputs",
)
COMPUTE_INFER_DURATION: Final = Family(
    "nv_inference_compute_infer_duration_us", _C, _MODEL, "microseconds",
    "Sum over requests of the time their batch took in the model",
)
COMPUTE_OUTPUT_DURATION: Final = Family(
    "nv_inference_compute_output_duration_us", _C, _MODEL, "microseconds",
    "Sum over requests of the time their batch took to hand over its outputs",
)
PENDING_REQUESTS: Final = Family(
    "nv_inference_pending_request_count", _G, _MODEL, "requests",
    "Requests that wait for an execution now",
)
LOAD_DURATION: Final = Family(
    "nv_model_load_duration_secs", _G, _MODEL, "seconds",
    "How long the model took to load, the slowest of its instances",
)

# Triton's, of the machine.
CPU_UTILIZATION: Final = Family(
    "nv_cpu_utilization", _G, (), "0 to 1",
    "Share of the machine's processor time in use since the last scrape",
)
CPU_MEMORY_TOTAL: Final = Family(
    "nv_cpu_memory_total_bytes", _G, (), "bytes", "Memory of the machine",
)
CPU_MEMORY_USED: Final = Family(
    "nv_cpu_memory_used_bytes", _G, (), "bytes", "Memory of the machine that is not available",
)

# Triton's, of each GPU.
GPU_UTILIZATION: Final = Family(
    "nv_gpu_utilization", _G, ("gpu_uuid",), "0 to 1",
    "Share of the driver's last sampling period in which something ran on the GPU",
)
GPU_MEMORY_TOTAL: Final = Family(
    "nv_gpu_memory_total_bytes", _G, ("gpu_uuid",), "bytes", "Memory of the GPU",
)
GPU_MEMORY_USED: Final = Family(
    "nv_gpu_memory_used_bytes", _G, ("gpu_uuid",), "bytes",
    "Memory of the GPU in use, by whomever",
)
GPU_POWER_USAGE: Final = Family(
    "nv_gpu_power_usage", _G, ("gpu_uuid",), "watts", "Power that the GPU takes now",
)
GPU_POWER_LIMIT: Final = Family(
    "nv_gpu_power_limit", _G, ("gpu_uuid",), "watts", "Power that the GPU may take",
)
ENERGY_CONSUMPTION: Final = Family(
    "nv_energy_consumption", _C, ("gpu_uuid",), "joules",
    "Energy that the GPU has taken since its driver was loaded",
)

# Our own, of a model.
SATURATION: Final = Family(
    "naiad_saturation", _G, _MODEL, "1 is full",
    "Share of time in which instances were busy, over about 10 s, plus the full batches per"
    " instance that wait: scale on this",
)
MODEL_READY: Final = Family(
    "naiad_model_ready", _G, _MODEL, "0 or 1",
    "Whether at least one instance serves requests",
)
INSTANCES: Final = Family(
    "naiad_instances", _G, _MODEL, "instances", "Instances that are wanted",
)
INSTANCES_READY: Final = Family(
    "naiad_instances_ready", _G, _MODEL, "instances", "Instances that serve requests",
)
EXECUTING_REQUESTS: Final = Family(
    "naiad_executing_requests", _G, _MODEL, "requests", "Requests that are executed now",
)
OLDEST_PENDING: Final = Family(
    "naiad_oldest_pending_seconds", _G, _MODEL, "seconds",
    "How long the longest waiting request has waited so far, 0 for none",
)
REQUEST_SECONDS: Final = Family(
    "naiad_request_seconds", _H, _MODEL, "seconds",
    "Time from arrival to answer of successful requests",
)
QUEUE_SECONDS: Final = Family(
    "naiad_queue_seconds", _H, _MODEL, "seconds",
    "Time that successful requests waited before their batch was sent",
)
COMPUTE_SECONDS: Final = Family(
    "naiad_compute_seconds", _H, _MODEL, "seconds",
    "Time of one execution in the worker: inputs, model and outputs",
)
BATCH_ROWS: Final = Family(
    "naiad_batch_rows", _H, _MODEL, "rows", "Rows of executed batches",
)
EXECUTIONS_BY_ROWS: Final = Family(
    "naiad_executions_total", _C, ("model", "rows", "version"), "executions",
    "Executions by batch size; above 32 rows up to the next power of two together",
)
EXECUTION_SECONDS_BY_ROWS: Final = Family(
    "naiad_execution_seconds_total", _C, ("model", "rows", "version"), "seconds",
    "Time of executions by batch size, as above",
)
BATCHES: Final = Family(
    "naiad_batches_total", _C, ("model", "reason", "version"), "batches",
    "Executions by what closed their batch: full, preferred, delay, idle, early, alone",
)
REQUEST_FAILURES: Final = Family(
    "naiad_request_failures_total", _C, ("code", "model", "version"), "requests",
    "The same as nv_inference_request_failure, by naiad's error code",
)
WORKER_DEATHS: Final = Family(
    "naiad_worker_deaths_total", _C, ("model", "reason", "version"), "processes",
    "Worker processes of the model that ended unasked, by reason",
)

# Our own, of an instance and its worker process.
INSTANCE_BUSY: Final = Family(
    "naiad_instance_busy_seconds_total", _C, _INSTANCE, "seconds",
    "Time that the instance spent on batches",
)
INSTANCE_RESTARTS: Final = Family(
    "naiad_instance_restarts_total", _C, _INSTANCE, "restarts",
    "How often the instance was started again after its worker's death",
)
WORKER_CPU: Final = Family(
    "naiad_worker_cpu_seconds_total", _C, _INSTANCE, "seconds",
    "Processor time of the instance's worker process, since that started",
)
WORKER_MEMORY: Final = Family(
    "naiad_worker_resident_bytes", _G, _INSTANCE, "bytes",
    "Resident memory of the instance's worker process, shared memory included",
)
WORKER_GPU_MEMORY: Final = Family(
    "naiad_worker_gpu_memory_bytes", _G, ("gpu_uuid", *_INSTANCE), "bytes",
    "GPU memory of the instance's worker process, CUDA's own included, as the driver counts it",
)
INSTANCE_GPU_NEED: Final = Family(
    "naiad_instance_gpu_need_bytes", _G, _MODEL, "bytes",
    "GPU memory that an instance took when it was loaded, the most that was measured",
)

# Our own, of the server.
SERVER_INFO: Final = Family(
    "naiad_server_info", _G, ("name", "version"), "always 1",
    "The server's name and naiad's version",
)
SERVER_READY: Final = Family(
    "naiad_server_ready", _G, (), "0 or 1", "Whether every model that should serve does",
)
SERVER_START: Final = Family(
    "naiad_broker_start_time_seconds", _G, (), "Unix seconds",
    "When the broker started: from then on it has counted",
)
SESSIONS: Final = Family(
    "naiad_sessions", _G, (), "clients",
    "Clients, gateways and this metrics process, as the broker knows them",
)
WORKERS: Final = Family("naiad_workers", _G, (), "processes", "Worker processes")
SPARE_WORKERS: Final = Family(
    "naiad_spare_workers", _G, (), "processes", "Worker processes without a model",
)
WAITING_INSTANCES: Final = Family(
    "naiad_waiting_instances", _G, ("device",), "instances",
    "Instances that wait for a worker process on the device",
)
REFUSED_REQUESTS: Final = Family(
    "naiad_refused_requests_total", _C, ("code",), "requests",
    "Requests answered with an error before they were queued, full queues included, by error code",
)
REEXECUTIONS: Final = Family(
    "naiad_reexecutions_total", _C, ("reason",), "requests",
    "Requests that were executed again, by reason",
)
POISON_REQUESTS: Final = Family(
    "naiad_poison_requests_total", _C, (), "requests",
    "Requests that were refused because workers die of them",
)
JOINED_REQUESTS: Final = Family(
    "naiad_joined_requests_total", _C, (), "requests",
    "Requests sent again that found their first copy running or done",
)
LATE_RESULTS: Final = Family(
    "naiad_late_results_total", _C, (), "results", "Results that nobody waited for any more",
)
PROTOCOL_ERRORS: Final = Family(
    "naiad_protocol_errors_total", _C, (), "messages",
    "Messages of clients and workers that broke the protocol and were refused",
)
INTERNAL_FAULTS: Final = Family(
    "naiad_internal_faults_total", _C, (), "faults",
    "Calls and requests that failed, each alone, by a fault of the broker itself; its log has them",
)
DROPPED_SESSIONS: Final = Family(
    "naiad_dropped_sessions_total", _C, (), "clients",
    "Clients whose connection was ended because they did not read, or broke the protocol",
)
INLINE_FALLBACKS: Final = Family(
    "naiad_inline_fallbacks_total", _C, (), "outputs",
    "Outputs sent through the socket because shared memory had no room",
)
BROKER_CPU: Final = Family(
    "naiad_broker_cpu_seconds_total", _C, (), "seconds", "Processor time of the broker process",
)
BROKER_MEMORY: Final = Family(
    "naiad_broker_resident_bytes", _G, (), "bytes", "Resident memory of the broker process",
)
SHM_BYTES: Final = Family(
    "naiad_shm_bytes", _G, ("role",), "bytes",
    "Shared memory in use by this server's processes and clients, by the role of its owner",
)
SHM_SEGMENTS: Final = Family(
    "naiad_shm_segments", _G, ("role",), "segments", "Shared memory segments of this server",
)
SHM_FREE: Final = Family(
    "naiad_shm_free_bytes", _G, (), "bytes", "Room that is left in /dev/shm",
)
SCRAPE_SECONDS: Final = Family(
    "naiad_scrape_seconds", _G, (), "seconds",
    "How long it took to ask the broker for everything on this page",
)
# fmt: on

FAMILIES: Final = tuple(one for one in list(globals().values()) if isinstance(one, Family))
"""In the order of the page."""
