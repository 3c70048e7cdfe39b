//! Small random changes to byte strings: flips, cuts, copies, splices, words of a dictionary.
//! Knows nothing of what the bytes mean. Invariant: the same seed and pool give the same inputs.

const MAX_INPUT_BYTES: usize = 8_192;
const ODD_BYTES: [u8; 16] = [
    0, 1, 2, b' ', b'"', b'%', b'\'', b'.', b'/', b'\\', b'{', b'}', b'\n', 0x7f, 0x80, 0xff,
];

pub struct Mutator<'d> {
    state: u64,
    dictionary: &'d [&'d str],
}

impl<'d> Mutator<'d> {
    pub fn new(seed: u64, dictionary: &'d [&'d str]) -> Self {
        // Zero would stay zero.
        Self {
            state: seed | 1,
            dictionary,
        }
    }

    /// One input of the pool, changed in one to eight places.
    pub fn mutate(&mut self, pool: &[Vec<u8>]) -> Vec<u8> {
        let mut input = pool[self.below(pool.len())].clone();
        for _ in 0..=self.below(8) {
            self.change(&mut input, pool);
        }
        input.truncate(MAX_INPUT_BYTES);
        input
    }

    fn change(&mut self, input: &mut Vec<u8>, pool: &[Vec<u8>]) {
        let at = self.below(input.len() + 1);
        let end = (at + 1 + self.below(16)).min(input.len());
        match self.below(8) {
            0 if at < input.len() => input[at] ^= 1 << self.below(8),
            1 if at < input.len() => input[at] = ODD_BYTES[self.below(ODD_BYTES.len())],
            2 if at < end => drop(input.drain(at..end)),
            3 if at < end => {
                let copy = input[at..end].repeat(1 + self.below(4));
                input.splice(at..at, copy);
            }
            4 => {
                let other = &pool[self.below(pool.len())];
                let from = self.below(other.len() + 1);
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
            5 | 6 if !self.dictionary.is_empty() => {
                let word = self.dictionary[self.below(self.dictionary.len())];
                input.splice(at..at, word.bytes());
            }
            _ => input.insert(at, self.below(256) as u8),
        }
    }

    /// A number below `limit`, by xorshift.
    fn below(&mut self, limit: usize) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        ((self.state >> 11) % limit.max(1) as u64) as usize
    }
}
