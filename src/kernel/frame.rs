//! Frames to packets and back, pure bytes and values. Does no I/O.
//! Never grows past one frame of `MAX_FRAME_BYTES`, whatever the peer sends.
//! Invariant: `Assembler` gives back exactly the frames that `packets` split.

pub const MAX_FRAME_BYTES: usize = 1024 * 1024;
pub const MAX_PAYLOAD_BYTES: usize = 61_440;
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
            WHOLE => Ok(Some(payload.to_vec())),
            MORE => {
                self.append(payload)?;
                Ok(None)
            }
            LAST if self.parts.is_empty() => Err(FrameError::NoBeginning),
            LAST => {
                self.append(payload)?;
                Ok(Some(std::mem::take(&mut self.parts)))
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
        fn every_frame_comes_back_as_it_was(frame in prop::collection::vec(any::<u8>(), 0..200_000)) {
            let mut assembler = Assembler::default();
            let mut frames = Vec::new();
            for packet in packets(&frame).unwrap() {
                prop_assert!(packet.len() <= MAX_PACKET_BYTES);
                frames.extend(assembler.push(&packet).unwrap());
            }
            prop_assert_eq!(frames, vec![frame]);
        }

        #[test]
        fn a_whole_packet_may_stand_between_the_parts_of_another_frame(frame in prop::collection::vec(any::<u8>(), 70_000..150_000), between in prop::collection::vec(any::<u8>(), 0..100)) {
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
