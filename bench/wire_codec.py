"""What one PARTIAL_RESULT costs: encoded by the server's machine, decoded by the client's.

    python -m bench.wire_codec [--json] [--rounds N]

Prints the median nanoseconds of one packet with a 130-byte body, next to a bare `struct` pack and
unpack of the same bytes as the unit. Rounds are interleaved, so that a slow moment of the machine
meets all four alike.
"""

import argparse
import json
import statistics
import struct
import time
from collections.abc import Callable

from nnrp_sched.wire import ClientConnection, Reply, ServerConnection, SessionOpenReceived

BODY = (b'{"type":"response.output_text.delta","index":0,"delta":"' + b"x" * 72 + b'"}').ljust(130)
PACKET = struct.Struct("<4sBBBBIIIIIHHQQQQQII130s")
PACKETS = 2000


def connected() -> tuple[ServerConnection, ClientConnection, int, int]:
    """Both machines with one operation in flight: server, client, session id, frame id."""
    server, client = ServerConnection(), ClientConnection()
    for event in server.receive(client.hello()):
        if isinstance(event, Reply):
            client.receive(event.data)
    (request,) = server.receive(client.open_session())
    assert isinstance(request, SessionOpenReceived)
    client.receive(server.accept_session(request, 7, max_in_flight=8, operation_credit=8))
    frame_id, data = client.submit(7, b"{}", operation_id=901)
    server.receive(data)
    return server, client, 7, frame_id


def nanoseconds_each(work: Callable[[], object]) -> float:
    """The time of `work`, which handles PACKETS packets, for one of them."""
    start = time.perf_counter_ns()
    work()
    return (time.perf_counter_ns() - start) / PACKETS


def measure(rounds: int) -> dict[str, float]:
    """Median nanoseconds a packet, by name."""
    server, client, session_id, frame_id = connected()
    fields = PACKET.unpack(server.partial_result(session_id, frame_id, BODY))
    packed = PACKET.pack(*fields)
    client.receive(packed)
    waiting: list[bytes] = []

    def encode() -> None:
        partial_result = server.partial_result
        waiting.extend([partial_result(session_id, frame_id, BODY) for _ in range(PACKETS)])

    def decode() -> None:
        receive = client.receive
        for data in waiting:
            receive(data)
        waiting.clear()

    def decode_burst() -> None:
        client.receive(burst)

    def pack() -> None:
        struct_pack = PACKET.pack
        for _ in range(PACKETS):
            struct_pack(*fields)

    def unpack() -> None:
        struct_unpack = PACKET.unpack
        for _ in range(PACKETS):
            struct_unpack(packed)

    times: dict[str, list[float]] = {}
    for _ in range(rounds):
        for work in (pack, encode, unpack, decode):
            times.setdefault(work.__name__, []).append(nanoseconds_each(work))
        encode()
        burst = b"".join(waiting)
        waiting.clear()
        times.setdefault("decode_burst", []).append(nanoseconds_each(decode_burst))
    medians = {name: statistics.median(values) for name, values in times.items()}
    medians["encode_per_pack"] = medians["encode"] / medians["pack"]
    medians["decode_per_unpack"] = medians["decode"] / medians["unpack"]
    return {name: round(value, 2) for name, value in medians.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=50, help="interleaved rounds (50)")
    arguments = parser.parse_args()
    result = measure(arguments.rounds)
    if arguments.json:
        print(json.dumps(result))
        return
    for name, unit, label in (
        ("encode", "pack", "encode (ServerConnection.partial_result)"),
        ("decode", "unpack", "decode (ClientConnection.receive)"),
        ("decode_burst", "unpack", "decode, many packets in one piece"),
    ):
        ratio = result[name] / result[unit]
        print(
            f"{label:44} {result[name]:7.0f} ns  {ratio:5.2f} x struct.{unit} {result[unit]:.0f} ns"
        )


if __name__ == "__main__":
    main()
