"""Every flag of Triton's command line, and what becomes of it here. Values only; pure.

The names, their spellings and the forms of their values are Triton's. What a flag does is one of a
few fates; `tritonserver_arguments` carries them out.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

Kind = Literal["text", "integer", "number", "boolean", "none"]
"""Of a flag's value. "none": it has no value."""


class To(NamedTuple):
    """An option of `naiad serve` with the same value."""

    option: str


class Switch(NamedTuple):
    """An option of `naiad serve` that has no value, given when the value is `when`."""

    option: str
    when: bool = True


class Off(NamedTuple):
    """With the value false this port is not opened."""

    option: str


class Repository(NamedTuple):
    """One more model repository."""


class NoEffect(NamedTuple):
    """Accepted, with one line that says why it changes nothing."""

    why: str


class Absent(NamedTuple):
    """Refused with one sentence, unless the value is one that asks for nothing."""

    what: str
    harmless: tuple[str, ...] = ()


class Setting(NamedTuple):
    """SCOPE,KEY=VALUE or KEY=VALUE, judged by what it sets."""

    what: Literal["backend", "metrics", "trace", "cache"]


Fate = To | Switch | Off | Repository | NoEffect | Absent | Setting


class Flag(NamedTuple):
    """One flag of Triton's: what its value looks like, and what becomes of it here."""

    kind: Kind
    fate: Fate
    advice: str = ""
    """For an old spelling: what to write instead."""


_FALSE: Final = ("false",)
_NOT_HERE: Final = "is not in this release"
_ONE_LOOP: Final = "a gateway translates in one loop; --gateways N starts more of them"
_KEEPALIVE: Final = (
    "clients may ping as they like, and a dead link is found by the server's own pings"
)
_PYTHON_PACKAGES: Final = "backends are Python packages of the server's own environment"
_NO_POOL: Final = "there is no such pool; tensors lie in shared memory that grows as needed"
_ONLY_TRACING: Final = "nothing is traced"
_TRACE_ADVICE: Final = "--trace-config"
_CLOUD: Final = "the servers of SageMaker and Vertex AI are not in this release"

FLAGS: Final[dict[str, Flag]] = {
    # Server
    "--id": Flag("text", To("--id")),
    "--exit-timeout-secs": Flag("integer", To("--drain-seconds")),
    # Logging
    "--log-verbose": Flag("integer", To("--log-verbose")),
    "--log-info": Flag("boolean", To("--log-info")),
    "--log-warning": Flag("boolean", To("--log-warning")),
    "--log-error": Flag("boolean", To("--log-error")),
    "--log-format": Flag("text", To("--log-format")),
    "--log-file": Flag("text", To("--log-file")),
    # Model repository
    "--model-repository": Flag("text", Repository()),
    "--exit-on-error": Flag("boolean", Switch("--exit-on-error")),
    "--disable-auto-complete-config": Flag("none", Switch("--disable-auto-complete-config")),
    "--strict-readiness": Flag("boolean", To("--strict-readiness")),
    "--model-control-mode": Flag("text", To("--control-mode")),
    "--repository-poll-secs": Flag("integer", NoEffect("nothing polls the repository")),
    "--load-model": Flag("text", To("--load-model")),
    "--model-config-name": Flag("text", To("--model-config-name")),
    "--model-load-thread-count": Flag(
        "integer", NoEffect("every model loads in processes of its own, all at once")
    ),
    "--model-load-retry-count": Flag(
        "integer", NoEffect("a model that died is tried again by itself, ever more rarely")
    ),
    "--model-namespacing": Flag("boolean", Absent(f"namespacing {_NOT_HERE}", _FALSE)),
    "--enable-peer-access": Flag("boolean", NoEffect("no process uses two GPUs")),
    "--allow-client-shm": Flag("boolean", To("--allow-client-shm")),
    # HTTP
    "--allow-http": Flag("boolean", Off("--http-port")),
    "--http-address": Flag("text", To("--http-address")),
    "--http-port": Flag("integer", To("--http-port")),
    "--reuse-http-port": Flag("boolean", Switch("--reuse-http-port")),
    "--http-header-forward-pattern": Flag("text", To("--http-header-forward-pattern")),
    "--http-thread-count": Flag("integer", NoEffect(_ONE_LOOP)),
    "--http-max-input-size": Flag("integer", To("--http-max-input-size")),
    "--http-restricted-api": Flag("text", To("--http-restricted-api")),
    # gRPC
    "--allow-grpc": Flag("boolean", Off("--grpc-port")),
    "--grpc-address": Flag("text", To("--grpc-address")),
    "--grpc-port": Flag("integer", To("--grpc-port")),
    "--reuse-grpc-port": Flag("boolean", Switch("--reuse-grpc-port")),
    "--grpc-header-forward-pattern": Flag("text", To("--grpc-header-forward-pattern")),
    "--grpc-infer-thread-count": Flag("integer", NoEffect(_ONE_LOOP)),
    "--grpc-infer-allocation-pool-size": Flag("integer", NoEffect("there is no such pool")),
    "--grpc-max-response-pool-size": Flag("integer", NoEffect("there is no such pool")),
    "--grpc-use-ssl": Flag("boolean", Switch("--grpc-use-ssl")),
    "--grpc-use-ssl-mutual": Flag("boolean", Switch("--grpc-use-ssl-mutual")),
    "--grpc-server-cert": Flag("text", To("--grpc-server-cert")),
    "--grpc-server-key": Flag("text", To("--grpc-server-key")),
    "--grpc-root-cert": Flag("text", To("--grpc-root-cert")),
    "--grpc-infer-response-compression-level": Flag(
        "text", NoEffect("answers are never compressed: tensors are dense")
    ),
    "--grpc-keepalive-time": Flag("integer", NoEffect(_KEEPALIVE)),
    "--grpc-keepalive-timeout": Flag("integer", NoEffect(_KEEPALIVE)),
    "--grpc-keepalive-permit-without-calls": Flag("boolean", NoEffect(_KEEPALIVE)),
    "--grpc-http2-max-pings-without-data": Flag("integer", NoEffect(_KEEPALIVE)),
    "--grpc-http2-min-recv-ping-interval-without-data": Flag("integer", NoEffect(_KEEPALIVE)),
    "--grpc-http2-max-ping-strikes": Flag("integer", NoEffect(_KEEPALIVE)),
    "--grpc-max-connection-age": Flag(
        "integer", Absent(f"closing connections for their age {_NOT_HERE}")
    ),
    "--grpc-max-connection-age-grace": Flag(
        "integer", NoEffect("no connection is closed for its age")
    ),
    "--grpc-restricted-protocol": Flag("text", To("--grpc-restricted-protocol")),
    # SageMaker and Vertex AI
    "--allow-sagemaker": Flag("boolean", Absent(_CLOUD, _FALSE)),
    "--sagemaker-port": Flag("integer", NoEffect(_CLOUD)),
    "--sagemaker-safe-port-range": Flag("text", NoEffect(_CLOUD)),
    "--sagemaker-thread-count": Flag("integer", NoEffect(_CLOUD)),
    "--allow-vertex-ai": Flag("boolean", Absent(_CLOUD, _FALSE)),
    "--vertex-ai-port": Flag("integer", NoEffect(_CLOUD)),
    "--vertex-ai-thread-count": Flag("integer", NoEffect(_CLOUD)),
    "--vertex-ai-default-model": Flag("text", NoEffect(_CLOUD)),
    # Metrics
    "--allow-metrics": Flag("boolean", Off("--metrics-port")),
    "--allow-gpu-metrics": Flag("boolean", To("--allow-gpu-metrics")),
    "--allow-cpu-metrics": Flag(
        "boolean", NoEffect("the machine's figures are read only when somebody asks for the page")
    ),
    "--metrics-address": Flag("text", To("--metrics-address")),
    "--metrics-port": Flag("integer", To("--metrics-port")),
    "--metrics-interval-ms": Flag(
        "number", NoEffect("the page is made anew each time somebody asks for it")
    ),
    "--metrics-config": Flag("text", Setting("metrics")),
    # Tracing
    "--trace-config": Flag("text", Setting("trace")),
    # Backends, agents, caches
    "--backend-directory": Flag("text", NoEffect(_PYTHON_PACKAGES)),
    "--backend-config": Flag("text", Setting("backend")),
    "--repoagent-directory": Flag(
        "text", NoEffect("there are no repository agents in this release")
    ),
    "--cache-config": Flag("text", Setting("cache")),
    "--cache-directory": Flag("text", NoEffect("there is no response cache in this release")),
    # Rate limiter
    "--rate-limit": Flag("text", Absent(f"the rate limiter {_NOT_HERE}", ("off",))),
    "--rate-limit-resource": Flag("text", NoEffect("the rate limiter is off")),
    # Memory and devices
    "--pinned-memory-pool-byte-size": Flag("integer", NoEffect(_NO_POOL)),
    "--cuda-memory-pool-byte-size": Flag("text", NoEffect(_NO_POOL)),
    "--cuda-virtual-address-size": Flag("text", NoEffect(_NO_POOL)),
    "--min-supported-compute-capability": Flag(
        "number", NoEffect("the engine of each model decides which GPUs it runs on")
    ),
    "--buffer-manager-thread-count": Flag("integer", NoEffect(_NO_POOL)),
    "--host-policy": Flag("text", Absent(f"placing instances by NUMA node or core {_NOT_HERE}")),
    "--model-load-gpu-limit": Flag("text", Absent(f"a limit of GPU memory for loads {_NOT_HERE}")),
    # Old spellings
    "--model-store": Flag("text", Repository(), "--model-repository"),
    "--strict-model-config": Flag(
        "boolean", Switch("--disable-auto-complete-config"), "--disable-auto-complete-config"
    ),
    "--response-cache-byte-size": Flag(
        "integer", Absent(f"the response cache {_NOT_HERE}", ("0",)), "--cache-config"
    ),
    "--trace-file": Flag("text", NoEffect(_ONLY_TRACING), _TRACE_ADVICE),
    "--trace-level": Flag("text", Absent(f"tracing {_NOT_HERE}", ("OFF", "off")), _TRACE_ADVICE),
    "--trace-rate": Flag("integer", NoEffect(_ONLY_TRACING), _TRACE_ADVICE),
    "--trace-count": Flag("integer", NoEffect(_ONLY_TRACING), _TRACE_ADVICE),
    "--trace-log-frequency": Flag("integer", NoEffect(_ONLY_TRACING), _TRACE_ADVICE),
    "--allow-poll-model-repository": Flag(
        "boolean", Absent(f'control mode "poll" {_NOT_HERE}', _FALSE), "--model-control-mode"
    ),
    "--allow-model-control": Flag(
        "boolean",
        Absent("say it with --model-control-mode=explicit", _FALSE),
        "--model-control-mode",
    ),
    "--tf-allow-soft-placement": Flag("boolean", NoEffect("there is no TensorFlow backend")),
    "--tf-gpu-memory-fraction": Flag("number", NoEffect("there is no TensorFlow backend")),
    "--tf-add-vgpu": Flag("text", NoEffect("there is no TensorFlow backend")),
}

BACKEND_SETTINGS: Final[dict[str, str]] = {
    "python,shm-default-byte-size": "tensors lie in naiad's own shared memory",
    "python,shm-growth-byte-size": "tensors lie in naiad's own shared memory",
    "python,shm-region-prefix-name": "tensors lie in naiad's own shared memory",
    "python,stub-timeout-seconds": "the time is naiad.load_timeout_s of the model's configuration",
    "python,stub-timeout-milliseconds": "the time is naiad.load_timeout_s of the model's"
    " configuration",
    "python,python-runtime": "models run in the server's own environment",
    "tensorrt,coalesce-request-input": "inputs are copied to their places one by one",
    "tensorrt,execution-policy": "every instance is a process of its own",
    "onnxruntime,enable-global-threadpool": "every instance has threads of its own (naiad.threads)",
    "min-compute-capability": "the engine of each model decides which GPUs it runs on",
    "backend-directory": _PYTHON_PACKAGES,
}
"""Settings of backends that are accepted, and why they change nothing."""

_OWN_PARAMETER: Final = "is set for each model that needs it, by the parameter"
_BATCH_SIZE: Final = Absent(
    "models that leave their batch size open have 4; write max_batch_size into their config.pbtxt",
    ("4",),
)
BACKEND_ABSENT: Final[dict[str, Absent]] = {
    "tensorrt,plugins": Absent(
        f'{_OWN_PARAMETER} "plugins", with paths inside its directory (docs/backends.md)'
    ),
    "tensorrt,version-compatible": Absent(
        f'{_OWN_PARAMETER} "version-compatible" (docs/backends.md)', _FALSE
    ),
    "default-max-batch-size": _BATCH_SIZE,
    "onnxruntime,default-max-batch-size": _BATCH_SIZE,
    "tensorrt,default-max-batch-size": _BATCH_SIZE,
}
"""Settings of backends that would change answers, and where they are set instead."""

AUTO_COMPLETE_SETTING: Final = "auto-complete-config"

METRICS_HARMLESS: Final = {
    "counter_latencies": "true",
    "histogram_latencies": "false",
    "summary_latencies": "false",
}
"""Values that say what is so anyway. Any other is refused."""
METRICS_NO_EFFECT: Final = frozenset({"summary_quantiles"})
TRACE_NO_EFFECT: Final = frozenset({"rate", "count", "file", "log-frequency"})
