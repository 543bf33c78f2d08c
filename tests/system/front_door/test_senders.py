"""An ordinary model that answers by a response sender, asked over HTTP, gRPC and in a stream."""

from __future__ import annotations

from struct import pack

import pytest

from support.front_door import Door, Given, GrpcDoor, Refused, grpc_request

RIGHT = ("together", "apart", "later", "after_the_flag", "twice")
WRONG = {
    "flag_alone": "sent the final flag without a response",
    "nothing": "let go of the response sender before it sent the final flag",
}


def asking(how: str) -> Given:
    return Given("INPUT0", "BYTES", [1], pack("<I", len(how)) + how.encode())


@pytest.mark.parametrize("how", RIGHT)
def test_one_response_is_the_answer_however_it_is_sent(door: Door, how: str) -> None:
    given = asking(how)
    assert door.infer("sender", [given])["OUTPUT0"].data == given.data


@pytest.mark.parametrize(("how", "said"), WRONG.items())
def test_no_response_is_an_error_that_says_what_the_model_did(
    door: Door, how: str, said: str
) -> None:
    with pytest.raises(Refused, match=said) as caught:
        door.infer("sender", [asking(how)])
    assert caught.value.code == "INTERNAL"
    given = asking("together")
    assert door.infer("sender", [given])["OUTPUT0"].data == given.data


def test_a_stream_has_one_final_item_for_each_request(grpc_door: GrpcDoor) -> None:
    ways = [*RIGHT, *WRONG, *RIGHT]
    messages = [grpc_request("sender", [asking(how)]) for how in ways]
    answers = list(grpc_door.stub.ModelStreamInfer(iter(messages), timeout=20))
    assert len(answers) == len(ways)
    for how, answer in zip(ways, answers, strict=True):
        if how in WRONG:
            assert WRONG[how] in answer.error_message
        else:
            assert answer.infer_response.raw_output_contents == [asking(how).data]
            assert answer.infer_response.parameters["triton_final_response"].bool_param
