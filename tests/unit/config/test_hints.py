"""Each mistake people make in config.pbtxt: where naiad points, what it says, what it advises."""

from __future__ import annotations

import pytest

from naiad.config.pbtxt import parse

# text, line:column, words of the message, words of the remedy
TEMPLATES = {
    "${x}": ("max_batch_size: ${x}", "1:17", "unreplaced template variable ${x}", "envsubst"),
    "$X": ("max_batch_size: $X", "1:17", "unreplaced template variable $X", "envsubst"),
    "{{ x }}": ("max_batch_size: {{ x }}", "1:17", "template variable {{ x }}", "Jinja2"),
    "bare word": ("max_batch_size: MAX_BATCH", "1:17", "template word MAX_BATCH", "script"),
    "INSERT_X": ("max_batch_size: INSERT_SIZE", "1:17", "word INSERT_SIZE", "sed"),
    "#DTYPE": ("input { data_type: #DTYPE\n dims: 1 }", "1:20", "word #DTYPE as", "script"),
    "bare enum": ("input { data_type: DTYPE }", "1:20", "word DTYPE as the value of", "script"),
    "in a list": ("input { dims: [1, NUM_HEAD] }", "1:19", "value of dims", "script"),
    "{% for %}": ("input [\n{% for i in x %}\n]", "2:1", "{% for i in x %}", "Jinja2"),
    "others are listed": (
        'name: "${n}" max_batch_size: ${x}\ninput { dims: [ ${d}, SIZE_X ] }',
        "1:30",
        "also ${n} at 1:8, ${d} at 2:17, SIZE_X at 2:23",
        "",
    ),
}
VALUES = {
    "no value before }": ("input {\n dims :\n}", "2:2", 'field "dims" has no value', "write dims"),
    "no value before a field": ("input { name:\n data_type: 1 }", "1:9", '"name" has no', ""),
    "no value before a block": ("max_batch_size:\ninput { }", "1:1", '"max_batch_size" has', ""),
    "no value at the end": ("max_batch_size:", "1:1", '"max_batch_size" has no value', ""),
    "several without value": ("input { name:\n dims:\n }", "1:9", "(nor have dims at 2:2)", ""),
    "float": ("max_batch_size: 8.0", "1:17", "whole number, got 8.0", "write 8"),
    "quoted number": ('max_batch_size: "8"', "1:17", 'got "8"', "write 8 without quotes"),
    "leading zero": ("max_batch_size: 08", "1:17", "got 08", "write 8"),
    "out of range": ("max_batch_size: 99999999999", "1:17", "out of range", ""),
    "negative": ("version_policy { latest { num_versions: -1 } }", "1:41", "out of range", ""),
    "word": ("max_batch_size: eight", "1:17", "whole number, got eight", ""),
    "gpu_uuid": ('instance_group { gpus: [ { gpu_uuid: "x" } ] }', "1:26", "GPU numbers", "[ 0 ]"),
    "unquoted string": ("name: resnet", "1:7", "string in quotes", 'name: "resnet"'),
    "unquoted path": ("runtime: a/b.so # c", "1:10", "got a/b.so", 'runtime: "a/b.so"'),
    "unquoted capitals": ("name: RESNET50", "1:7", "string in quotes", 'name: "RESNET50"'),
    "quoted enum": ('instance_group { kind: "KIND_GPU" }', "1:24", "no Kind", "without quotes"),
    "own priority": (
        "optimization { priority: PRIORITY_HIGH }",
        "1:26",
        "no ModelPriority",
        "MAX?",
    ),
    "low priority": ("optimization { priority: LOW }", "1:26", "no ModelPriority", "PRIORITY_MIN?"),
    "short priority": (
        "optimization { priority: MAX }",
        "1:26",
        "no ModelPriority",
        "PRIORITY_MAX?",
    ),
    "near field": ("optimization { cuda { graph: true } }", "1:23", "no field", 'mean "graphs"?'),
    "short enum": ("instance_group { kind: GPU }", "1:24", "no Kind named GPU", "KIND_GPU?"),
    "TYPE_BYTES": ("input { data_type: TYPE_BYTES }", "1:20", "TYPE_BYTES", "TYPE_STRING?"),
    "BYTES": ("input { data_type: BYTES }", "1:20", "named BYTES", "TYPE_STRING?"),
    "FP32": ("input { data_type: FP32 }", "1:20", "named FP32", "mean TYPE_FP32?"),
    "float32": ("input { data_type: float32 }", "1:20", "named float32", "mean TYPE_FP32?"),
    "TYPE_FLOAT32": ("input { data_type: TYPE_FLOAT32 }", "1:20", "FLOAT32", "mean TYPE_FP32?"),
    "yes": ("model_transaction_policy { decoupled: yes }", "1:39", "got yes", "write true"),
    "off": ("response_cache { enable: off }", "1:26", "got off", "write false"),
    "TRUE": ("response_cache { enable: TRUE }", "1:26", "got TRUE", "write true"),
}
MARKS = {
    "trailing comma": ("input { dims: [1, 2,] }", "1:20", "trailing comma before ]", "remove"),
    "trailing comma of blocks": ("input [ { dims: 1 }, ]", "1:20", "trailing comma", "remove"),
    "missing comma": ("input { dims: [1 2] }", "1:18", "missing comma", "comma before 2"),
    "missing comma of blocks": ("input [ { }\n { } ]", "2:2", "missing comma", "the list input"),
    "//": ('name: "x" // c', "1:11", "// is no comment", "#"),
    "/*": ("/* c */", "1:1", "/* is no comment", "#"),
    "--": ("-- c", "1:1", "unexpected --", "#"),
    "smart quotes": ("name: “x”", "1:7", "typographic quote “", 'write " or'),
    "open string": ('name: "x\nbackend: "y"', "1:7", 'without a closing "', "same line"),
    "=": ('name = "x"', "1:6", '"=" after name', "write name:"),
    "no colon": ('name "x"', "1:6", '":" is missing', 'name: "x"'),
    "unclosed at the end": ("input [ {\n name: 'x'\n", "3:1", "opened at 1:9 is not closed", '"}"'),
    "unclosed before ]": ("input [ { name: 'x' ]", "1:21", '"{" opened at 1:9', '"}"'),
    "one } too many": ("input { }\n}", "2:1", '"}" without an opening', "remove"),
    "value for a block": ("dynamic_batching: true", "1:19", "is a block", "{ ... }"),
    "block for a value": ("max_batch_size { }", "1:16", "takes a value, not a block", ""),
    "parameter's value": (
        'parameters { key: "a" value: "b" }',
        "1:30",
        "a parameter's value is a block",
        'value { string_value: "b" }',
    ),
}
FIELDS = {
    "scalar twice": ('name: "x"\nname: "y"', "2:1", "name is set twice (first at 1:1)", "keep one"),
    "block twice": (
        'dynamic_batching { }\nname: "x"\ndynamic_batching { }',
        "3:1",
        "dynamic_batching is set twice (first at 1:1)",
        "",
    ),
    "twice counts per block": ('name: "a" input { name: "b" name: "c" }', "1:29", "at 1:19", ""),
    "exclusive": (
        "dynamic_batching { }\nsequence_batching { }",
        "2:1",
        "exclude each other (dynamic_batching is at 1:1)",
        "keep one",
    ),
    "unknown": ("max_batch_sise: 1", "1:1", '"max_batch_sise"', '"max_batch_size"?'),
    "synonym": ("input { dtype: TYPE_FP32 }", "1:9", '"dtype" in "input"', 'mean "data_type"?'),
    "plural": ("inputs { }", "1:1", 'no field named "inputs"', 'mean "input"?'),
    "belongs deeper": ("preferred_batch_size: [4]", "1:1", "no field", "inside dynamic_batching"),
    "belongs outside": ("input { name: 'x'\noutput { } }", "2:1", "no field", '"{" at 1:7?'),
    "like nothing": ("xyzzy: 1", "1:1", 'no field named "xyzzy"', "known fields: name, "),
}
OTHER_FILES = {
    "JSON": ('{\n  "name": "x"\n}', "1:1", "looks like JSON", "text format"),
    "JSON list": ('[{"name": "x"}]', "1:1", "looks like JSON", ""),
    "YAML": ("name: x\ninput:\n  - name: y\n", "1:1", "looks like YAML", ""),
    "YAML document": ("---\nname: x\n", "1:1", "looks like YAML", ""),
    "Python": ("import os\n", "1:1", "looks like a Python script", ""),
    "Python script": ("#!/usr/bin/env python3\nx = 1\n", "2:1", "a Python script", ""),
    "HTML": ("<!DOCTYPE html>", "1:1", "a web page", "text format"),
}
CASES = {**TEMPLATES, **VALUES, **MARKS, **FIELDS, **OTHER_FILES}


@pytest.mark.parametrize(("text", "place", "message", "remedy"), CASES.values(), ids=CASES.keys())
def test_hint(text: str, place: str, message: str, remedy: str) -> None:
    parsed = parse(text.encode())

    assert parsed.json is None
    (fault,) = parsed.faults
    assert fault.where == f"config.pbtxt:{place}"
    assert message in fault.message
    assert remedy in fault.message + fault.remedy
    assert fault.remedy


def test_the_fifth_list_of_templates_is_cut() -> None:
    text = "max_batch_size: ${a0} " + " ".join(f"input {{ dims: ${{a{i}}} }}" for i in range(1, 9))

    (fault,) = parse(text.encode()).faults

    assert "${a5}" in fault.message
    assert "and 3 more" in fault.message


def test_what_a_terminal_would_act_on_is_escaped_and_long_quotes_are_cut() -> None:
    (escape,) = parse(b"name: \x1b[31m").faults
    (long,) = parse(b"x" * 5000 + b": 1").faults

    assert "\x1b" not in str(escape)
    assert len(long.message) < 1000


def test_values_that_protobuf_accepts_on_the_next_line_are_no_fault() -> None:
    assert parse(b"max_batch_size:\n8 dynamic_batching:\n{ }").faults == []
