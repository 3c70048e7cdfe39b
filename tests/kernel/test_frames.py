"""The codec against the wire examples that the Rust side reads too.

Never starts a kernel: the codec is pure.
"""

from __future__ import annotations

import json
import os
import sys
import unittest

from host import KERNEL_DIR, ROOT

sys.path.insert(0, KERNEL_DIR)
from cellblock_kernel import frames

with open(os.path.join(ROOT, "tests", "fixtures", "packets.json"), encoding="utf-8") as fixture:
    FIXTURE = json.load(fixture)


def packet_of(item: object) -> bytes:
    """The bytes of one packet of the fixture."""
    if isinstance(item, str):
        return bytes.fromhex(item)
    middle = bytes.fromhex(item["fill"]) * item["count"]
    return bytes.fromhex(item["start"]) + middle + bytes.fromhex(item["end"])


def expand(value: object) -> object:
    """A frame with its repeated texts written out."""
    if isinstance(value, dict) and set(value) == {"repeat", "count"}:
        return value["repeat"] * value["count"]
    if isinstance(value, dict):
        return {key: expand(item) for key, item in value.items()}
    return value


class TestFixture(unittest.TestCase):
    """Every case of tests/fixtures/packets.json."""

    def test_valid_packets_give_their_frames(self) -> None:
        for case in FIXTURE["cases"]:
            if case["valid"]:
                with self.subTest(case["name"]):
                    assembler = frames.Assembler()
                    found = [assembler.feed(packet_of(item)) for item in case["packets"]]
                    wanted = [expand(frame) for frame in case["frames"]]
                    self.assertEqual([frame for frame in found if frame is not None], wanted)

    def test_invalid_packets_are_refused(self) -> None:
        for case in FIXTURE["cases"]:
            if not case["valid"]:
                with self.subTest(case["name"]):
                    assembler = frames.Assembler()
                    *before, last = [packet_of(item) for item in case["packets"]]
                    for packet in before:
                        assembler.feed(packet)
                    with self.assertRaises(frames.ProtocolError):
                        assembler.feed(last)

    def test_frames_come_back_as_they_were_sent(self) -> None:
        for case in FIXTURE["cases"]:
            for frame in case.get("frames", ()):
                with self.subTest(case["name"]):
                    assembler = frames.Assembler()
                    wanted = expand(frame)
                    *parts, last = frames.packets(frames.encode(wanted))
                    self.assertTrue(all(assembler.feed(part) is None for part in parts))
                    self.assertEqual(assembler.feed(last), wanted)

    def test_frames_are_split_at_the_agreed_sizes(self) -> None:
        for size, sizes in FIXTURE["splits"]:
            payload = b"x" * size
            self.assertEqual([len(packet) for packet in frames.packets(payload)], sizes)


class TestEncoding(unittest.TestCase):
    """What the fixture cannot say."""

    def test_a_frame_over_the_limit_is_not_sent(self) -> None:
        with self.assertRaises(frames.ProtocolError):
            frames.packets(b"x" * 1_048_577)

    def test_the_worst_piece_of_text_fits_one_packet(self) -> None:
        for character in ("\x01", "\U0001f600", '"'):
            packet = frames.stream_packet(2**63 - 1, "stdout", character * frames.TEXT_PIECE)
            self.assertLessEqual(len(packet), frames.PACKET_LIMIT)

    def test_lone_surrogates_become_question_marks(self) -> None:
        self.assertEqual(frames.decode(frames.encode({"text": "a\ud800"})), {"text": "a?"})


if __name__ == "__main__":
    unittest.main()
