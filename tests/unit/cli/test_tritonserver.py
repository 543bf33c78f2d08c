"""Triton's command line: what each flag becomes for `naiad serve`, is told, or is refused with."""

from __future__ import annotations

import re

import pytest

from naiad.cli.exit_codes import ExitCode
from naiad.cli.main import main
from naiad.cli.tritonserver import own_options, usage
from naiad.cli.tritonserver_arguments import Translated, WrongFlag, translated
from naiad.cli.tritonserver_flags import BACKEND_SETTINGS, FLAGS, NoEffect, Off, Switch, To

OWN = own_options()
TRITON_2_51 = """
    help id exit-timeout-secs log-verbose log-info log-warning log-error log-format
    log-file model-store model-repository exit-on-error disable-auto-complete-config
    strict-readiness model-control-mode repository-poll-secs load-model model-config-name
    model-load-thread-count model-load-retry-count model-namespacing enable-peer-access
    allow-http http-address http-port reuse-http-port http-header-forward-pattern
    http-thread-count http-restricted-api allow-grpc grpc-address grpc-port
    reuse-grpc-port grpc-header-forward-pattern grpc-infer-allocation-pool-size
    grpc-use-ssl grpc-use-ssl-mutual grpc-server-cert grpc-server-key grpc-root-cert
    grpc-infer-response-compression-level grpc-keepalive-time grpc-keepalive-timeout
    grpc-keepalive-permit-without-calls grpc-http2-max-pings-without-data
    grpc-http2-min-recv-ping-interval-without-data grpc-http2-max-ping-strikes
    grpc-max-connection-age grpc-max-connection-age-grace grpc-restricted-protocol
    allow-sagemaker sagemaker-port sagemaker-safe-port-range sagemaker-thread-count
    allow-vertex-ai vertex-ai-port vertex-ai-thread-count vertex-ai-default-model
    allow-metrics allow-gpu-metrics allow-cpu-metrics metrics-address metrics-port
    metrics-interval-ms metrics-config trace-config backend-directory backend-config
    repoagent-directory cache-config cache-directory rate-limit rate-limit-resource
    pinned-memory-pool-byte-size cuda-memory-pool-byte-size cuda-virtual-address-size
    min-supported-compute-capability buffer-manager-thread-count host-policy
    model-load-gpu-limit strict-model-config response-cache-byte-size trace-file
    trace-level trace-rate trace-count trace-log-frequency
"""
"""What Triton 2.51 lists under --help."""
NEWER = "grpc-infer-thread-count grpc-max-response-pool-size http-max-input-size allow-client-shm"


def given(*flags: str) -> Translated:
    return translated(["--model-repository=/m", *flags], OWN)


def options(*flags: str) -> list[str]:
    """What `naiad serve` is given beyond what it is given without these flags."""
    usual = given().arguments
    return [one for one in given(*flags).arguments if one not in usual]


def test_every_flag_of_triton_is_known() -> None:
    for name in f"{TRITON_2_51} {NEWER}".split():
        assert name == "help" or f"--{name}" in FLAGS


@pytest.mark.parametrize(
    ("flags", "becomes"),
    [
        (["--id=me"], ["--id=me"]),
        (["--exit-timeout-secs", "5"], ["--drain-seconds=5"]),
        (["--log-verbose=2"], ["--log-verbose=2"]),
        (["--log-info", "0"], ["--log-info=false"]),
        (["--log-warning=FALSE", "--log-error=off"], ["--log-warning=false", "--log-error=false"]),
        (["--log-format=ISO8601"], ["--log-format=ISO8601"]),
        (["--log-file", "/tmp/l"], ["--log-file=/tmp/l"]),
        (["--disable-auto-complete-config"], ["--disable-auto-complete-config"]),
        (["--strict-model-config=1"], ["--disable-auto-complete-config"]),
        (["--strict-model-config=0"], []),
        (["--backend-config=auto-complete-config=false"], ["--disable-auto-complete-config"]),
        (["--model-config-name=h100"], ["--model-config-name=h100"]),
        (["--strict-readiness=0"], ["--strict-readiness=false"]),
        (
            ["--model-control-mode=explicit", "--load-model=a", "--load-model", "*"],
            ["--control-mode=explicit", "--load-model=a", "--load-model=*"],
        ),
        (["--allow-http=false", "--http-port=80"], ["--http-port=off"]),
        (["--http-port=1", "--http-port=2"], ["--http-port=2"]),
        (["--http-address=127.0.0.1"], ["--http-address=127.0.0.1"]),
        (["--allow-grpc", "0"], ["--grpc-port=off"]),
        (["--allow-metrics=0"], ["--metrics-port=off"]),
        (["--allow-metrics=1", "--metrics-port=7"], ["--metrics-port=7"]),
        (
            ["--reuse-http-port=true", "--reuse-grpc-port=1"],
            ["--reuse-http-port", "--reuse-grpc-port"],
        ),
        (
            ["--grpc-use-ssl=true", "--grpc-server-cert=c"],
            ["--grpc-server-cert=c", "--grpc-use-ssl"],
        ),
        (["--grpc-use-ssl=false"], []),
        (["--http-max-input-size=5"], ["--http-max-input-size=5"]),
        (["--allow-client-shm=true"], ["--allow-client-shm=true"]),
        (["--gateways", "3", "--run-dir=/r"], ["--gateways=3", "--run-dir=/r"]),
        (["--allow-file-override"], ["--allow-file-override"]),
    ],
)
def test_what_means_something_reaches_serve(flags: list[str], becomes: list[str] | None) -> None:
    assert options(*flags) == (
        becomes or (["--reuse-http-port", "--reuse-grpc-port"] if becomes is None else [])
    )


def test_defaults_are_those_of_triton() -> None:
    arguments = given().arguments
    for one in ("--http-address=0.0.0.0", "--id=triton", "--log-format=default", "--exit-on-error"):
        assert one in arguments
    assert arguments[-2:] == ["--", "/m"]
    assert "--exit-on-error" not in given("--exit-on-error=false").arguments


def test_repositories_may_be_several_and_in_both_spellings() -> None:
    found = translated(["--model-store", "/a", "--model-repository=/b"], OWN)
    assert found.repositories == ["/a", "/b"]
    assert found.notes == {
        "--model-store": "--model-store is an old spelling; use --model-repository"
    }


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            ["--strict-readines=1"],
            "unrecognized option '--strict-readines'; did you mean \"--strict-readiness\"?",
        ),
        (["--model-repo=/m"], 'did you mean "--model-repository"?'),
        (["--bogus"], "unrecognized option '--bogus'"),
        (["stray"], "Unexpected argument: stray"),
        (["--http-port"], "--http-port requires a value: --http-port=NUMBER"),
        (["--http-port", "--id=x"], "--http-port requires a value"),
        (["--http-port=abc"], "--http-port: Invalid option value. Got abc"),
        (["--exit-on-error=maybe"], "--exit-on-error: invalid value for bool option: maybe"),
        (["--disable-auto-complete-config=true"], "takes no value"),
        (["--trace-config=level=TIMESTAMPS"], "tracing is not in this release"),
        (["--trace-config=mode=opentelemetry"], "tracing is not in this release"),
        (["--trace-config=opentelemetry,url=x"], "tracing is not in this release"),
        (["--trace-config=level"], "expected SETTING=VALUE"),
        (["--trace-level=TENSORS"], "tracing is not in this release"),
        (["--cache-config=local,size=1048576"], "the response cache is not in this release"),
        (["--response-cache-byte-size=1"], "the response cache is not in this release"),
        (["--rate-limit=execution_count"], "the rate limiter is not in this release"),
        (["--allow-sagemaker=1"], "SageMaker"),
        (["--allow-vertex-ai=true"], "Vertex AI"),
        (["--model-namespacing=true"], "namespacing is not in this release"),
        (["--host-policy=p,numa-node=0"], "is not in this release"),
        (["--metrics-config=summary_latencies=true"], "not in this release"),
        (["--backend-config=python,stub-timeout=5"], "no backend of this release has this setting"),
        (
            ["--backend-config=python,shm-default-byte-sise=5"],
            'did you mean "python,shm-default-byte-size"?',
        ),
        (["--backend-config=tensorrt,plugins=/a.so;/b.so"], 'by the parameter "plugins", with'),
        (
            ["--backend-config=tensorrt,version-compatible=true"],
            'is set for each model that needs it, by the parameter "version-compatible"',
        ),
        (["--backend-config=default-max-batch-size=8"], "write max_batch_size into their"),
        (["--backend-config=nonsense"], "expected BACKEND,SETTING=VALUE"),
    ],
)
def test_what_is_wrong_or_not_there_is_one_sentence(flags: list[str], said: str) -> None:
    with pytest.raises(WrongFlag, match=re.escape(said)):
        given(*flags)


@pytest.mark.parametrize(
    "flag",
    [
        "--trace-config=level=OFF",
        "--rate-limit=off",
        "--backend-config=tensorrt,version-compatible=false",
        "--backend-config=tensorrt,default-max-batch-size=4",
        "--cache-config=local,size=0",
        "--allow-sagemaker=false",
        "--allow-vertex-ai=0",
        "--model-namespacing=false",
        "--metrics-config=counter_latencies=true",
    ],
)
def test_a_value_that_asks_for_nothing_is_accepted_in_silence(flag: str) -> None:
    found = given(flag)
    assert options(flag) == []
    assert found.notes == {}


def test_what_has_no_effect_is_told_once_with_the_reason() -> None:
    values = {"text": "a=1", "integer": "1", "number": "1", "boolean": "true"}
    for name, flag in FLAGS.items():
        if isinstance(flag.fate, NoEffect):
            found = given(f"{name}={values[flag.kind]}", name, values[flag.kind])
            assert options(f"{name}={values[flag.kind]}") == []
            (note,) = found.notes.values()
            assert note.startswith(f"{name} has no effect: {flag.fate.why}")
            assert "\n" not in note


def test_settings_of_backends_without_effect_are_told() -> None:
    for setting in BACKEND_SETTINGS:
        (note,) = given(f"--backend-config={setting}=1").notes.values()
        assert note.startswith(f"--backend-config={setting} has no effect: ")


def test_settings_of_backends_that_are_not_there_are_told_in_one_line_each() -> None:
    found = given(
        "--backend-config=tensorflow,version=2",
        "--backend-config=tensorflow,default-max-batch-size=8",
        "--backend-config=onnxruntim,plugins=/a.so",
    )
    assert list(found.notes.values()) == [
        "--backend-config=tensorflow,... has no effect: there is no such backend in this release",
        "--backend-config=onnxruntim,... has no effect: there is no such backend in this release; "
        'did you mean "onnxruntime"?',
    ]
    for wrong in ("python,x=1", "tensorrt,x=1", "onnxruntime,x=1", "identity,x=1", "version=2"):
        with pytest.raises(WrongFlag, match="no backend of this release has this setting"):
            given(f"--backend-config={wrong}")
    for wrong in (",version=2", "tensorflow,=2"):
        with pytest.raises(WrongFlag, match="expected BACKEND,SETTING=VALUE"):
            given(f"--backend-config={wrong}")


def test_every_flag_that_means_something_is_an_option_of_serve() -> None:
    later = {"--http-restricted-api", "--grpc-restricted-protocol"}
    for name, flag in FLAGS.items():
        if isinstance(flag.fate, To | Switch | Off) and name not in later:
            assert flag.fate.option in OWN, name


def test_help_lists_what_is_heeded_and_what_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tritonserver", "--help"]) == ExitCode.DONE
    assert capsys.readouterr().out == usage()
    assert "  --model-repository <text>\n" in usage()
    assert "  --http-thread-count\n" in usage()
    assert "--rate-limit <text>" not in usage()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--model-repository must be specified"),
        (["--bogus=1"], "unrecognized option '--bogus'"),
        (["--model-repository=/m/nowhere"], "there is no /m/nowhere"),
        (["--model-repository=.", "--model-control-mode=poll"], "not in this release"),
        (["--model-repository=.", "--load-model=m"], 'use "explicit"'),
        (["--model-repository=.", "--log-format=xml"], "--log-format"),
        (["--model-repository=.", "--model-config-name=a/b"], "--model-config-name"),
    ],
)
def test_every_failure_at_the_start_is_a_sentence_and_exit_code_1(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tritonserver", *arguments]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
