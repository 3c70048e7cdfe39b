//! Frames to packets and back, pure bytes and values. Does no I/O.
//! Never grows past one frame of `MAX_FRAME_BYTES`, whatever the peer sends.
//! Invariant: `Assembler` gives back exactly the frames that `packets` split.

use crate::model::json_depth::is_deeper_than;

pub const MAX_FRAME_BYTES: usize = 1024 * 1024;
pub const MAX_PAYLOAD_BYTES: usize = 61_440;
pub const MAX_DEPTH: usize = 64;
pub const MAX_PACKET_BYTES: usize = MAX_PAYLOAD_BYTES + 1;

const WHOLE: u8 = 0;
const MORE: u8 = 1;
const LAST: u8 = 2;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("an empty packet")]
    Empty,
    #[error("a packet longer than {MAX_PACKET_BYTES} bytes")]
    PacketTooLong,
    #[error("an unknown packet kind {0}")]
    UnknownKind(u8),
    #[error("the last part of a frame that never began")]
    NoBeginning,
    #[error("a frame nested deeper than {MAX_DEPTH}")]
    TooDeep,
    #[error("a frame longer than {MAX_FRAME_BYTES} bytes")]
    FrameTooLong,
}

/// Splits one frame into the packets that carry it.
pub fn packets(frame: &[u8]) -> Result<Vec<Vec<u8>>, FrameError> {
    if frame.len() > MAX_FRAME_BYTES {
        return Err(FrameError::FrameTooLong);
    }
    if frame.len() <= MAX_PAYLOAD_BYTES {
        return Ok(vec![packet(WHOLE, frame)]);
    }
    let parts = frame.len().div_ceil(MAX_PAYLOAD_BYTES);
    Ok(frame
        .chunks(MAX_PAYLOAD_BYTES)
        .enumerate()
        .map(|(index, part)| packet(if index + 1 == parts { LAST } else { MORE }, part))
        .collect())
}

fn packet(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = Vec::with_capacity(payload.len() + 1);
    packet.push(kind);
    packet.extend_from_slice(payload);
    packet
}

/// Puts frames together again. One per direction of a link.
#[derive(Debug, Default)]
pub struct Assembler {
    parts: Vec<u8>,
}

impl Assembler {
    /// Takes one packet; gives a frame if the packet completes one.
    pub fn push(&mut self, packet: &[u8]) -> Result<Option<Vec<u8>>, FrameError> {
        let (kind, payload) = packet.split_first().ok_or(FrameError::Empty)?;
        if payload.len() > MAX_PAYLOAD_BYTES {
            return Err(FrameError::PacketTooLong);
        }
        match *kind {
            WHOLE => checked(payload.to_vec()).map(Some),
            MORE => {
                self.append(payload)?;
                Ok(None)
            }
            LAST if self.parts.is_empty() => Err(FrameError::NoBeginning),
            LAST => {
                self.append(payload)?;
                checked(std::mem::take(&mut self.parts)).map(Some)
            }
            other => Err(FrameError::UnknownKind(other)),
        }
    }

    fn append(&mut self, payload: &[u8]) -> Result<(), FrameError> {
        if self.parts.len() + payload.len() > MAX_FRAME_BYTES {
            return Err(FrameError::FrameTooLong);
        }
        self.parts.extend_from_slice(payload);
        Ok(())
    }
}

/// Refuses nesting that no frame of the protocol has, before anybody parses it.
fn checked(frame: Vec<u8>) -> Result<Vec<u8>, FrameError> {
    if is_deeper_than(MAX_DEPTH, &frame) {
        return Err(FrameError::TooDeep);
    }
    Ok(frame)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn broken_packets_are_named() {
        let mut assembler = Assembler::default();
        assert_eq!(assembler.push(&[]), Err(FrameError::Empty));
        assert_eq!(assembler.push(&[9, 1]), Err(FrameError::UnknownKind(9)));
        assert_eq!(assembler.push(&[2, 1]), Err(FrameError::NoBeginning));
        let long = vec![0; MAX_PACKET_BYTES + 1];
        assert_eq!(assembler.push(&long), Err(FrameError::PacketTooLong));
    }

    /// One packet of the fixtures: hex, or hex around a run of one byte.
    fn fixture_packet(packet: &serde_json::Value) -> Vec<u8> {
        if let Some(text) = packet.as_str() {
            return hex::decode(text).unwrap();
        }
        let bytes = |name: &str| hex::decode(packet[name].as_str().unwrap_or_default()).unwrap();
        let count = packet["count"].as_u64().unwrap() as usize;
        [bytes("start"), bytes("fill").repeat(count), bytes("end")].concat()
    }

    /// In the fixtures `{repeat, count}` stands for a long text.
    fn expanded(value: &serde_json::Value) -> serde_json::Value {
        match value {
            serde_json::Value::Object(fields) if fields.contains_key("repeat") => {
                let count = fields["count"].as_u64().unwrap() as usize;
                fields["repeat"].as_str().unwrap().repeat(count).into()
            }
            serde_json::Value::Object(fields) => fields
                .iter()
                .map(|(name, value)| (name.clone(), expanded(value)))
                .collect(),
            other => other.clone(),
        }
    }

    #[test]
    fn the_wire_examples_read_the_same_on_both_sides() {
        let fixtures: serde_json::Value =
            serde_json::from_str(include_str!("../../tests/fixtures/packets.json")).unwrap();
        for case in fixtures["cases"].as_array().unwrap() {
            let mut assembler = Assembler::default();
            let mut frames = Vec::new();
            let mut refused = false;
            for packet in case["packets"].as_array().unwrap() {
                match assembler.push(&fixture_packet(packet)) {
                    Ok(frame) => frames.extend(frame),
                    Err(_) => refused = true,
                }
            }
            let frames: Result<Vec<serde_json::Map<String, serde_json::Value>>, _> = frames
                .iter()
                .map(|frame| serde_json::from_slice(frame))
                .collect();
            let valid = case["valid"].as_bool().unwrap();
            match frames {
                Ok(frames) if valid => {
                    let expected: Vec<_> = case["frames"]
                        .as_array()
                        .unwrap()
                        .iter()
                        .map(expanded)
                        .collect();
                    assert!(!refused, "{}", case["name"]);
                    assert_eq!(
                        serde_json::json!(frames),
                        serde_json::json!(expected),
                        "{}",
                        case["name"]
                    );
                }
                Ok(_) => assert!(refused, "{} was accepted", case["name"]),
                Err(_) => assert!(!valid, "{} was refused", case["name"]),
            }
        }
        for split in fixtures["splits"].as_array().unwrap() {
            let sizes: Vec<usize> = packets(&vec![b'x'; split[0].as_u64().unwrap() as usize])
                .unwrap()
                .iter()
                .map(Vec::len)
                .collect();
            assert_eq!(serde_json::json!(sizes), split[1]);
        }
    }

    #[test]
    fn an_endless_frame_is_refused_before_it_fills_memory() {
        let mut assembler = Assembler::default();
        let part = packet(MORE, &[b'x'; MAX_PAYLOAD_BYTES]);
        let refused = (0..100).find_map(|_| assembler.push(&part).err());
        assert_eq!(refused, Some(FrameError::FrameTooLong));
        assert!(assembler.parts.len() <= MAX_FRAME_BYTES);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn every_frame_comes_back_as_it_was(frame in prop::collection::vec(b'a'..=b'z', 0..200_000)) {
            let mut assembler = Assembler::default();
            let mut frames = Vec::new();
            for packet in packets(&frame).unwrap() {
                prop_assert!(packet.len() <= MAX_PACKET_BYTES);
                frames.extend(assembler.push(&packet).unwrap());
            }
            prop_assert_eq!(frames, vec![frame]);
        }

        #[test]
        fn a_whole_packet_may_stand_between_the_parts_of_another_frame(frame in prop::collection::vec(b'a'..=b'z', 70_000..150_000), between in prop::collection::vec(b'a'..=b'z', 0..100)) {
            let mut assembler = Assembler::default();
            let mut frames = Vec::new();
            for packet in packets(&frame).unwrap() {
                frames.extend(assembler.push(&packet).unwrap());
                if frames.is_empty() {
                    prop_assert_eq!(assembler.push(&super::packet(WHOLE, &between)).unwrap(), Some(between.clone()));
                }
            }
            prop_assert_eq!(frames, vec![frame]);
        }

        #[test]
        fn arbitrary_packets_never_panic_and_never_exceed_the_bound(packets in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..50)) {
            let mut assembler = Assembler::default();
            for packet in packets {
                if let Ok(Some(frame)) = assembler.push(&packet) {
                    prop_assert!(frame.len() <= MAX_FRAME_BYTES);
                }
            }
        }
    }
}
