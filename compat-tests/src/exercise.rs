//! Small operations with known results for the checks that are about order, groups, graphs and lifecycle rather than arithmetic.
//!
//! The data are uint32 words that tell rank, round and place; sums wrap, so one word too old, too new or from the wrong rank gives another result.

use crate::cases::mix;
use crate::communicator::{Comm, SUM};
use crate::driver::{Buffer, Pinned, Span, Stream};
use crate::element::Type;
use crate::outcome::{Context, Outcome, fail};

/// Word `at` of a rank's data in a round.
pub fn word(rank: usize, round: usize, at: usize) -> u32 {
    mix((rank as u64) << 48 ^ (round as u64) << 32 ^ at as u64) as u32
}

/// Word `at` of the sum over all ranks.
pub fn sum(ranks: usize, round: usize, at: usize) -> u32 {
    (0..ranks).fold(0, |sum: u32, rank| sum.wrapping_add(word(rank, round, at)))
}

/// Compares words with what they should be.
pub fn expect(what: &str, words: &[u32], expected: impl Fn(usize) -> u32) -> Outcome {
    let wrong = words.iter().enumerate().filter(|(at, word)| **word != expected(*at)).count();
    match words.iter().enumerate().find(|(at, word)| **word != expected(*at)) {
        None => Ok(()),
        Some((at, word)) => {
            fail!("{what}: word {at} of {} is {word:#010x}, expected {:#010x}; {wrong} words are wrong", words.len(), expected(at))
        }
    }
}

/// Device memory of words.
pub struct Words {
    buffer: Buffer,
    count: usize,
}

impl Words {
    pub fn new(count: usize) -> Outcome<Self> {
        Ok(Self { buffer: Buffer::new(count * 4)?, count })
    }

    pub fn count(&self) -> usize {
        self.count
    }

    pub fn span(&self) -> Span {
        self.buffer.all()
    }

    pub fn part(&self, from: usize, count: usize) -> Span {
        self.buffer.span(from * 4, count * 4)
    }

    /// Writes words and waits for it.
    pub fn set(&self, stream: &Stream, word: impl Fn(usize) -> u32) -> Outcome {
        let bytes: Vec<u8> = (0..self.count).flat_map(|at| word(at).to_le_bytes()).collect();
        stream.upload(self.span(), &bytes)?;
        stream.synchronize()
    }

    /// Waits for the stream and reads the words.
    pub fn get(&self, stream: &Stream) -> Outcome<Vec<u32>> {
        let mut bytes = vec![0; self.count * 4];
        stream.download(self.span(), &mut bytes)?;
        Ok(bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect())
    }

    /// Waits for the stream and compares the words.
    pub fn check(&self, stream: &Stream, what: &str, expected: impl Fn(usize) -> u32) -> Outcome {
        expect(what, &self.get(stream)?, expected)
    }
}

/// Buffers of one rank for all-reduces on one communicator, and page-locked words through which data come and go without the host waiting.
pub struct Exchange {
    pub send: Words,
    pub recv: Words,
    source: Pinned,
    result: Pinned,
    rank: usize,
    ranks: usize,
}

impl Exchange {
    pub fn new(comm: &Comm, count: usize) -> Outcome<Self> {
        Ok(Self {
            send: Words::new(count)?,
            recv: Words::new(count)?,
            source: Pinned::new(count)?,
            result: Pinned::new(count)?,
            rank: comm.rank,
            ranks: comm.ranks,
        })
    }

    /// Sets the words that the next `upload` brings. The last upload must have passed.
    pub fn prepare(&mut self, round: usize) {
        let rank = self.rank;
        for (at, slot) in self.source.words().iter_mut().enumerate() {
            *slot = word(rank, round, at);
        }
    }

    pub fn upload(&self, stream: &Stream) -> Outcome {
        stream.upload_pinned(self.send.span(), &self.source)
    }

    pub fn all_reduce(&self, comm: &Comm, stream: &Stream) -> Outcome {
        comm.all_reduce(self.send.span(), self.recv.span(), self.send.count(), Type::Uint32, SUM, stream)
    }

    pub fn download(&self, stream: &Stream) -> Outcome {
        stream.download_pinned(self.recv.span(), &self.result)
    }

    /// Compares what the last `download` brought, which must have passed.
    pub fn check(&mut self, what: &str, round: usize) -> Outcome {
        let ranks = self.ranks;
        expect(what, self.result.words(), |at| sum(ranks, round, at)).context(|| format!("round {round}"))
    }

    /// All of it on one stream, and waits: for checks whose subject is something else.
    pub fn once(&mut self, comm: &Comm, stream: &Stream, round: usize) -> Outcome {
        self.prepare(round);
        self.upload(stream)?;
        self.all_reduce(comm, stream)?;
        self.download(stream)?;
        stream.synchronize()?;
        self.check("all-reduce", round)
    }
}

/// One all-reduce on a communicator, with buffers of its own.
pub fn works(comm: &Comm, round: usize) -> Outcome {
    let stream = Stream::new()?;
    Exchange::new(comm, 1000)?.once(comm, &stream, round)?;
    comm.healthy()
}
