//! Frames on their way to a member. A frame for all members exists once, however many wait for it.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Write};
use std::sync::Arc;

#[derive(Default)]
pub struct Outbox {
    frames: VecDeque<Arc<[u8]>>,
    /// Bytes of the first frame that are gone already.
    sent: usize,
    /// Bytes of all frames that are not gone.
    waiting: usize,
}

impl Outbox {
    pub fn push(&mut self, frame: Arc<[u8]>) {
        self.waiting += frame.len();
        self.frames.push_back(frame);
    }

    pub fn waiting(&self) -> usize {
        self.waiting
    }

    pub fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Writes until all is gone, or the stream takes no more for now.
    pub fn flush(&mut self, stream: &mut impl Write) -> io::Result<()> {
        while let Some(frame) = self.frames.front() {
            match stream.write(&frame[self.sent..]) {
                Ok(0) if self.sent < frame.len() => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => {
                    self.sent += n;
                    self.waiting -= n;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) => return Err(e),
            }
            if self.sent == frame.len() {
                self.frames.pop_front();
                self.sent = 0;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes so many bytes, then blocks.
    struct Narrow(Vec<u8>, usize);

    impl Write for Narrow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.1 == 0 {
                return Err(ErrorKind::WouldBlock.into());
            }
            let n = bytes.len().min(self.1);
            self.0.extend(&bytes[..n]);
            self.1 -= n;
            Ok(n)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn bytes_leave_in_order_whatever_the_stream_takes() {
        for step in 1..12 {
            let mut outbox = Outbox::default();
            outbox.push(b"hello ".to_vec().into());
            outbox.push(b"world".to_vec().into());
            let mut stream = Narrow(Vec::new(), 0);
            while !outbox.is_empty() {
                stream.1 = step;
                outbox.flush(&mut stream).unwrap();
                assert_eq!(outbox.waiting() + stream.0.len(), 11);
            }
            assert_eq!(stream.0, b"hello world");
        }
    }
}
