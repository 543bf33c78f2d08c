"""Messages that no honest peer sends: mutations of good ones, good ones in the wrong place, noise.

Pure: a seed gives the same messages again. `Garbage.next` makes one multipart message; half of them
are near misses, which reach far deeper than noise does.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

import msgpack

from naiad.protocol import messages as m
from naiad.protocol.codec import encode

OPERATIONS: Final = (
    "live", "ready", "model_ready", "server_metadata", "model_metadata", "model_config",
    "statistics", "index", "status", "load", "region_register", "region_status",
    "region_unregister", "no_such_thing",
)  # fmt: skip
"""Not `unload`: whoever may load may unload, and the good client's model should stay."""

SLOT_HELLO_SHARE: Final = 0.02
"""Few, because whoever is taken for a worker is killed when its connection ends."""
HUGE: Final = 2**40
ODD_VALUES: Final[tuple[Any, ...]] = (
    None, True, False, -1, 0, 1, 7, 2**31, 2**62, 2**63 - 1, 2**63, 2**64 - 1, -(2**63), 0.5,
    float("nan"), float("inf"), "", "x" * 2_000, "x" * 20_000, "\0", "..",
    b"\xed\xa0\x80", b"", b"\xff" * 16, b"\0" * 300, (), [[]], {}, {"": None}, {1: 2},
    {"a": {"a": {"a": {}}}}, [0] * 5_000, msgpack.ExtType(5, b"abc"), msgpack.Timestamp(1, 2),
)  # fmt: skip
KEYS: Final = (
    "", "/", "//", ".", "/..", "/../../etc/passwd", "/dev/null", "/naiad.", "/naiad.x.client.1.a",
    "/" + "a" * 300, "/a/b", "/a\0b", "no-slash", "/\xe4", "/.", "/sem.x", "/x" * 200,
)  # fmt: skip


class Garbage:
    """An endless supply for one socket, of one seed.

    Args:
        seed: the same seed, the same messages.
        to_workers: for workers.sock, whose peers speak other messages.
        model: one that is served, with input INPUT0 FP32 [-1, 16].
    """

    def __init__(self, seed: int, *, to_workers: bool, model: str) -> None:
        self._random = random.Random(seed)
        self._to_workers = to_workers
        self._model = model
        self._makers: list[Callable[[], list[bytes]]] = [
            self._noise,
            self._flipped,
            self._cut,
            self._twisted,
            self._twisted,
            self._twisted,
            self._nested,
            self._other_version,
            self._many_frames,
            self._misplaced,
        ]
        if not to_workers:
            self._makers += [self._odd_request, self._odd_request, self._odd_control]
            self._makers += [self._odd_region, self._odd_ids]

    def hello(self) -> list[bytes]:
        """A good HELLO of somebody new; without one, everything else is refused unread."""
        return [encode(m.Hello(self._random.randbytes(16), "garbage", "0", 1, 0))]

    def next(self) -> list[bytes]:
        return self._random.choice(self._makers)()

    # --- good messages, as a start -----------------------------------------------------------

    def _good(self) -> tuple[m.Message, list[bytes]]:
        """Any message a peer of this socket may send, and most that it may not."""
        rng = self._random
        tensor = m.Tensor("INPUT0", "FP32", (1, 16), int(m.Place.INLINE), 0, 0, 64)
        request = m.InferRequest(rng.randrange(1 << 40), 1, self._model, -1, "", (tensor,), ())
        place = m.Tensor("OUTPUT0", "FP32", (1, 16), int(m.Place.INLINE), 0, 0, 64)
        region = m.Region(1, "/x", 1, 2, 4096)
        secret = rng.randbytes(16)
        body = [b"\0" * 64]
        clients: list[tuple[m.Message, list[bytes]]] = [
            (m.Infer((request,)), body),
            (m.Infer((request, request._replace(id=request.id + 1))), body),
            (m.Hello(secret, "garbage", "0", 1, 0, ((1, 2),)), []),
            (m.Cancel((1, 2, 3)), []),
            (m.Release(((1, 2), (2**61 + 5, 3))), []),
            (m.RegisterRegion(1, region), []),
            (m.ForgetRegion(2, 1), []),
            (m.Control(3, "status", {}), []),
            (m.Control(4, "model_config", {"model": self._model, "version": 1}), []),
            (m.Bye(), []),
        ]
        workers: list[tuple[m.Message, list[bytes]]] = [
            (m.Results(rng.randrange(1 << 50), (m.BatchResult(None, (place,)),),
                       m.Durations(1, 2, 3), 0, (region,)), body),
            (m.Loaded(rng.randrange(1 << 50), None, 5), [b"{}"]),
            (m.Loaded(rng.randrange(1 << 50), ("load_failed", "no", False), 5), [b"no"]),
            (m.Forgotten((1, 2)), []),
            (m.Spawned("cpu-0", 1), []),
            (m.Exited("cpu-0", 1, -9), []),
        ]  # fmt: skip
        broker: list[tuple[m.Message, list[bytes]]] = [
            (m.Welcome(1, "naiad", "0", 1, 1, 1, False), []),
            (m.Answers(1, (m.InferAnswer(1, None, 1, (place,)),)), body),
            (m.Stop(0), []),
            (m.Refused("internal", "no"), []),
            (m.Want("cpu", 1000, ()), []),
        ]
        if self._to_workers and rng.random() < SLOT_HELLO_SHARE:
            device = rng.choice(("gpu:none", "cpu"))
            return m.SlotHello(
                secret, "garbage", device, 1, "0", ("identity",), 0, rng.choice((0, 5)), "", 0,
                (m.HeldBatch(7, ((1, 2),), True),), (region,), ((1, 2),),
            ), []  # fmt: skip
        usual = workers if self._to_workers else clients
        return rng.choice(usual if rng.random() < 0.85 else [*clients, *workers, *broker])

    def _good_frames(self) -> list[bytes]:
        message, payload = self._good()
        return [encode(message), *payload]

    # --- what is done to them ------------------------------------------------------------------

    def _noise(self) -> list[bytes]:
        rng = self._random
        return [rng.randbytes(rng.choice((0, 1, 2, 9, 200))) for _ in range(rng.randint(1, 4))]

    def _flipped(self) -> list[bytes]:
        header, *payload = self._good_frames()
        broken = bytearray(header)
        for _ in range(self._random.randint(1, 4)):
            broken[self._random.randrange(len(broken))] ^= 1 << self._random.randrange(8)
        return [bytes(broken), *payload]

    def _cut(self) -> list[bytes]:
        header, *payload = self._good_frames()
        if self._random.random() < 0.5:
            return [header[: self._random.randrange(len(header))], *payload]
        if payload and self._random.random() < 0.5:
            return [header, payload[0][: self._random.randrange(len(payload[0]))]]
        return [header + self._random.randbytes(self._random.randint(1, 40)), *payload]

    def _twisted(self) -> list[bytes]:
        """Valid msgpack with a few parts that are something else, missing, or too many."""
        header, *payload = self._good_frames()
        tree = msgpack.unpackb(header, use_list=True, strict_map_key=False)
        for _ in range(self._random.randint(1, 3)):
            self._twist(tree)
        return [_packed(tree), *payload]

    def _twist(self, tree: Any) -> None:
        """Change one random place of nested lists."""
        rng = self._random
        spot = tree
        while True:
            inner = [item for item in spot if isinstance(item, list) and item]
            if not inner or rng.random() < 0.3:
                break
            spot = rng.choice(inner)
        index = rng.randrange(len(spot))
        match rng.randrange(6):
            case 0:
                del spot[index]
            case 1:
                spot.insert(index, rng.choice(ODD_VALUES))
            case 2:
                spot[index : index + 1] = [spot[index]] * rng.choice((2, 3, 100, 1_500))
            case _:
                spot[index] = rng.choice(ODD_VALUES)
        if not tree:
            tree.append(1)

    def _nested(self) -> list[bytes]:
        """Deep arrays or maps, complete or not, and lengths that promise more than there is."""
        rng = self._random
        depth = rng.choice((10, 500, 1_100, 30_000, 64_000))
        return [
            rng.choice(
                (
                    b"\x91" * depth,
                    b"\x91" * depth + b"\xc0",
                    b"\x81\xc0" * (depth // 2),
                    b"\x92\x01" * (depth // 2) + b"\xc0",
                    b"\x80" * depth,
                    b"\xdd\xff\xff\xff\xff" + b"\x01" * 40,
                    b"\xdf\xff\xff\xff\xff" + b"\x01" * 40,
                    b"\xdb\xff\xff\xff\xff" + b"a" * 40,
                    b"\xc9\xff\xff\xff\xff\x01",
                    b"\xdc\x10\x00" + b"\xc0" * 4096,
                    b"\x93\x01\x02" + b"\xdc\x0f\xff" + b"\x80" * 4095,
                )
            )
        ]

    def _other_version(self) -> list[bytes]:
        header, *payload = self._good_frames()
        tree = msgpack.unpackb(header, use_list=True, strict_map_key=False)
        tree[0] = self._random.choice((0, 2, 3, 255, 2**40, -1, "1", 1.0, True))
        return [_packed(tree), *payload]

    def _many_frames(self) -> list[bytes]:
        header, *_ = self._good_frames()
        rng = self._random
        count, size = rng.choice(
            ((0, 0), (1, 0), (5_000, 0), (4_097, 1), (100, 10), (1, 2_000_000))
        )
        if rng.random() < 0.2:
            header += b"\xc0" * rng.choice((70_000, 1_200_000))
        return [header, *[b"\0" * size] * count]

    def _misplaced(self) -> list[bytes]:
        """A good message to which something else is appended or which is sent bare."""
        header, *payload = self._good_frames()
        return [header, *payload, *payload] if self._random.random() < 0.5 else [header]

    # --- well-formed, but senseless ------------------------------------------------------------

    def _odd_request(self) -> list[bytes]:
        rng = self._random
        shape = rng.choice(
            ((), (0,), (-1, 16), (1, -16), (HUGE, 16), (HUGE, HUGE, HUGE), (2**63 - 1, 2), (1, 15),
             (1,) * 32, (0, 16), (65, 16), (1, 16))
        )  # fmt: skip
        datatype = rng.choice(("FP32", "INT64", "BYTES", "FP16", "", "TYPE_FP32", "NO"))
        place = rng.choice((0, 0, 1))
        offset = rng.choice((0, 1, 60, 2**62, 2**63 - 1, HUGE))
        size = rng.choice((64, 0, 1, 63, HUGE, 2**63 - 1))
        if place == 0:
            offset, size = rng.choice(((0, 64), (0, 0), (64, 0), (1, 63)))
        frame = 0 if place == 0 else rng.choice((0, 1, 2**61, 2**62, 2**62 + 1, 2**63 - 1))
        name = rng.choice(("INPUT0", "INPUT0", "INPUT1", ""))
        tensor = m.Tensor(name, datatype, shape, place, frame, offset, size)
        wanted = rng.choice(("OUTPUT0", "NO", ""))
        output = m.OutputRequest(wanted, rng.choice((1, 2)), frame, 0, HUGE)
        sequences = (None, None, m.Sequence(1, True, False), m.Sequence("a", True, True))
        odd: tuple[m.Parameters, ...] = ({}, {}, {"x": 1}, {"": float("nan")}, {"raise": "x"})
        request = m.InferRequest(
            id=rng.choice((1, 2, rng.randrange(1 << 60))),
            attempt=rng.choice((1, 1, 2, 2**40)),
            model=rng.choice((self._model, self._model, "", "no", "../x")),
            version=rng.choice((-1, 1, 0, 2**40)),
            label=rng.choice(("", "x" * 1_000)),
            inputs=rng.choice(((tensor,), (tensor, tensor), ())),
            outputs=rng.choice(((), (output,), (output, output))),
            priority=rng.choice((0, 1, 2**40)),
            timeout_us=rng.choice((0, 1, 10**6)),
            sequence=rng.choice(sequences),
            parameters=rng.choice(odd),
        )
        return [encode(m.Infer((request,) * rng.choice((1, 1, 2, 50)))), b"\0" * 64]

    def _odd_control(self) -> list[bytes]:
        rng = self._random
        names = ("model", "version", "name", "key", "byte_size", "offset", "ready", "other")
        values: tuple[Any, ...] = (
            "", "no", self._model, "../../etc", "x" * 5_000, "*", -1, 0, 1, 2**63 - 1, 2**64 - 1,
            True, 1.5, "/naiad.x.client.1.a", "/x", float("nan"),
        )  # fmt: skip
        arguments = {rng.choice(names): rng.choice(values) for _ in range(rng.randint(0, 5))}
        body = rng.choice(
            ([], [b""], [b"\xff\xfe"], [b"{"], [b"[" * 50_000], [b'{"name": 5}'], [b"{}", b"{}"])
        )
        call = rng.randrange(1 << 40)
        return [encode(m.Control(call, rng.choice(OPERATIONS), arguments)), *body]

    def _odd_region(self) -> list[bytes]:
        rng = self._random
        region = m.Region(
            rng.choice((0, 1, 2, 2**62, 2**63 - 1, 2**64 - 1, rng.randrange(1 << 40))),
            rng.choice(KEYS), rng.choice((0, 1, 2**60)), rng.choice((0, 5, 2**60)),
            rng.choice((0, 1, HUGE, 2**64 - 1)),
        )  # fmt: skip
        if rng.random() < 0.3:
            return [encode(m.ForgetRegion(1, region.id))]
        return [encode(m.RegisterRegion(1, region))]

    def _odd_ids(self) -> list[bytes]:
        rng = self._random
        known = (1, 2**62, rng.randrange(1 << 60))
        ids = tuple(rng.choices(known, k=rng.choice((0, 1, 4_000))))
        if rng.random() < 0.5:
            return [encode(m.Cancel(ids))]
        return [encode(m.Release(tuple((ident, ident) for ident in ids)))]


def _packed(tree: Any) -> bytes:
    """msgpack of anything; what cannot be packed at all becomes noise."""
    try:
        packed: bytes = msgpack.packb(tree, use_bin_type=True)
    except (TypeError, ValueError, OverflowError):
        return b"\xc1"
    return packed
