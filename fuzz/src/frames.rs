//! The frame decoder: any packets at all are taken or refused within the protocol's bounds, and frames come out as they went in.

use cellblock::kernel::CellFrame;
use cellblock::kernel::frame::{self, Assembler};

/// From docs/PROTOCOL.md, not from the code.
const PROTOCOL_DEPTH: usize = 64;
const PROTOCOL_FRAME_BYTES: usize = 1_048_576;

pub fn check(input: &[u8]) {
    take_any_packets(input);
    come_out_as_they_went_in(input);
}

fn take_any_packets(input: &[u8]) {
    let mut assembler = Assembler::default();
    for (times, packet) in packets_in(input) {
        for _ in 0..times {
            let taken = match assembler.push(packet) {
                Err(_) => return,
                Ok(None) => continue,
                Ok(Some(taken)) => taken,
            };
            assert!(taken.len() <= PROTOCOL_FRAME_BYTES);
            if let Ok(value) = serde_json::from_slice(&taken) {
                assert!(depth_of(&value) <= PROTOCOL_DEPTH);
            }
            let _typed = serde_json::from_slice::<CellFrame>(&taken);
        }
    }
}

/// Packets as `times, length (2 bytes), bytes`, so that a short input can be a long conversation.
fn packets_in(mut input: &[u8]) -> Vec<(usize, &[u8])> {
    let mut packets = Vec::new();
    while let [times, high, low, rest @ ..] = input {
        let length = (usize::from(*high) << 8 | usize::from(*low)).min(rest.len());
        packets.push((usize::from(*times).max(1), &rest[..length]));
        input = &rest[length..];
    }
    packets
}

fn depth_of(value: &serde_json::Value) -> usize {
    match value {
        serde_json::Value::Array(items) => 1 + items.iter().map(depth_of).max().unwrap_or(0),
        serde_json::Value::Object(items) => 1 + items.values().map(depth_of).max().unwrap_or(0),
        _ => 0,
    }
}

fn come_out_as_they_went_in(input: &[u8]) {
    let long = input.repeat(1 + 70_000 / input.len().max(1));
    let opening = long.iter().filter(|byte| b"[{".contains(byte)).count();
    for sent in [input, &long] {
        let mut assembler = Assembler::default();
        let mut received = Vec::new();
        for packet in frame::packets(sent).unwrap() {
            match assembler.push(&packet) {
                Ok(frame) => received.extend(frame),
                Err(error) => {
                    assert!(opening > frame::MAX_DEPTH, "{error}");
                    return;
                }
            }
        }
        assert_eq!(received, [sent.to_vec()]);
    }
}
