"""`prepare`: a request made once. Here because users call it: what is compiled trusts types."""

from __future__ import annotations

from typing import Unpack

from naiad.client.arguments import Inputs, Options, Outputs, parts_of
from naiad.client.requests import Prepared


def prepare(
    model: str, inputs: Inputs, outputs: Outputs | None = None, **options: Unpack[Options]
) -> Prepared:
    """A request, converted and checked once, to be sent many times: `client.submit(prepared)`.

    Arguments as for `Client.infer`; arrays travel inline, those of a ClientRegion by place. Raises
    RequestError for what cannot be sent.
    """
    return parts_of(model, inputs, outputs, options)
