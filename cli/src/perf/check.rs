//! Check rounds: fresh inputs, poisoned outputs, one operation on each slice back to back, then every element against the host's own result.

use super::Result;
use super::expected::{Segment, Source, fill_expected, fill_inputs};
use super::inputs::{Inputs, mix};
use super::run::Case;
use super::worker::{GUARD, Worker, slices, stride};
use std::ops::Range;

/// What output buffers hold before an operation.
const POISON: u8 = 0xa5;
/// Outputs up to this size are checked in full.
const FULL_BYTES: usize = 16 << 20;
/// Host memory for one piece of a buffer.
const PIECE_BYTES: usize = 4 << 20;
/// Wrong elements that a rank tells in detail over a whole run.
const TOLD_AT_MOST: u32 = 3;

/// The elements of a buffer that are checked.
fn checked_ranges(elements: usize, element: usize, all: bool, seed: u64) -> Vec<Range<usize>> {
    const MIB: usize = 1 << 20;
    const STRIPE: usize = 64 << 10;
    if all || elements * element <= FULL_BYTES {
        return std::iter::once(0..elements).collect();
    }
    let (mib, stripe) = (MIB / element, STRIPE / element);
    let mut ranges = vec![0..mib, elements - mib..elements];
    // Stripes may overlap each other; then an element is compared twice.
    let room = (elements - 2 * mib - stripe) as u64;
    ranges.extend((0..16).map(|i| mib + (mix(seed ^ mix(i)) % room) as usize).map(|start| start..start + stripe));
    ranges
}

/// Cuts a range into pieces of at most `most` elements.
fn pieces(range: Range<usize>, most: usize) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.step_by(most).map(move |start| start..(start + most).min(end))
}

/// Elements that differ, and the first of them.
fn differences(actual: &[u8], expected: &[u8], element: usize) -> (u64, Option<usize>) {
    if actual == expected {
        return (0, None);
    }
    let differs = |pair: &(usize, (&[u8], &[u8]))| pair.1.0 != pair.1.1;
    let mut different = actual.chunks(element).zip(expected.chunks(element)).enumerate().filter(differs);
    let first = different.next().map(|(i, _)| i);
    (u64::from(first.is_some()) + different.count() as u64, first)
}

impl Worker<'_> {
    /// Runs the check rounds of a row; returns this rank's wrong elements.
    pub fn check(&mut self, case: &Case, operator: i32, in_place: bool) -> Result<u64> {
        let options = self.options();
        let slices = slices(self.layout(case).span() * case.dtype.size());
        let graph = if options.check > 0 && options.graph_launches > 0 {
            self.progress(case, in_place, "capture for the check");
            Some(self.capture_burst(case, operator, in_place, slices)?)
        } else {
            None
        };
        // A graph must also be right when it is launched again, on other data.
        let rounds = if graph.is_some() { options.check.max(2) } else { options.check };
        let mut wrong = 0;
        for round in 0..rounds {
            self.progress(case, in_place, "inputs of a check round");
            let inputs_of = |slice: usize| {
                let number = (u64::from(round) * slices as u64 + slice as u64) * 2 + u64::from(in_place);
                case.inputs.fresh(number)
            };
            for slice in 0..slices {
                self.prepare(case, &inputs_of(slice), in_place, slice)?;
            }
            self.progress(case, in_place, "operations of a check round");
            match &graph {
                Some(graph) => graph.launch(&self.stream)?,
                None => (0..slices).try_for_each(|slice| self.enqueue(case, operator, in_place, slice))?,
            }
            self.wait()?;
            self.progress(case, in_place, "comparison of a check round");
            for slice in 0..slices {
                wrong += self.compare(case, &inputs_of(slice), in_place, slice)?;
            }
        }
        Ok(wrong)
    }

    /// Poisons the output slice and writes this rank's inputs.
    fn prepare(&self, case: &Case, inputs: &Inputs, in_place: bool, slice: usize) -> Result<()> {
        let element = case.dtype.size();
        let layout = self.layout(case);
        let (send, _, output) = self.addresses(case, in_place, slice);
        // SAFETY: each slice has room for its stride.
        unsafe { self.stream.fill(output, POISON, stride(layout.span() * element))? };
        let mut bytes = Vec::new();
        for piece in pieces(0..layout.send, PIECE_BYTES / element) {
            bytes.resize(piece.len() * element, 0);
            fill_inputs(case.dtype, inputs, self.rank(), piece.start, &mut bytes);
            // SAFETY: the piece lies in the send part of the slice, and `bytes` is left alone until the stream has passed.
            unsafe { self.stream.upload(send + (piece.start * element) as u64, &bytes)? };
            self.wait()?;
        }
        Ok(())
    }

    /// Counts the wrong elements of one slice: the output, the guard zone behind it, and out of place the input, which must be as before.
    fn compare(&mut self, case: &Case, inputs: &Inputs, in_place: bool, slice: usize) -> Result<u64> {
        let element = case.dtype.size();
        let (rank, ranks) = (self.rank(), self.ranks());
        let layout = self.layout(case);
        let (send, recv, output) = self.addresses(case, in_place, slice);
        let sources = case.operation.sources(&layout, rank, ranks, case.root);
        // Where the operation writes nothing, an in-place buffer still holds this rank's inputs.
        let kept = sources.iter().any(|segment| segment.source == Source::Untouched) && in_place;
        let own = [Segment { start: layout.send_offset, length: layout.send, source: Source::Copy { rank, from: 0 } }];
        let mut wrong = 0;
        for range in checked_ranges(layout.recv, element, self.options().check_all, inputs.salt()) {
            wrong += self.compare_range(case, "output", recv, range, |piece, bytes| {
                if kept {
                    fill_expected(case.dtype, case.redop, inputs, ranks, &own, piece.clone(), bytes);
                }
                fill_expected(case.dtype, case.redop, inputs, ranks, &sources, piece, bytes);
            })?;
        }
        if !in_place {
            for range in checked_ranges(layout.send, element, self.options().check_all, inputs.salt()) {
                wrong += self.compare_range(case, "unchanged input", send, range, |piece, bytes| {
                    fill_inputs(case.dtype, inputs, rank, piece.start, bytes);
                })?;
            }
        }
        let end = if in_place { layout.span() } else { layout.recv } * element;
        wrong += self.compare_range(case, "guard behind the output", output + end as u64, 0..GUARD / element, |_, _| {})?;
        Ok(wrong)
    }

    /// Counts the wrong elements in a range of a device buffer. `fill` writes what is expected over poison.
    fn compare_range(
        &mut self,
        case: &Case,
        what: &str,
        base: u64,
        range: Range<usize>,
        fill: impl Fn(Range<usize>, &mut [u8]),
    ) -> Result<u64> {
        let element = case.dtype.size();
        let (mut actual, mut expected) = (Vec::new(), Vec::new());
        let mut wrong = 0;
        for piece in pieces(range, PIECE_BYTES / element) {
            let bytes = piece.len() * element;
            actual.resize(bytes, 0);
            // SAFETY: the piece lies in the slice, and `actual` is left alone until the stream has passed.
            unsafe { self.stream.download(base + (piece.start * element) as u64, &mut actual)? };
            self.wait()?;
            expected.clear();
            expected.resize(bytes, POISON);
            fill(piece.clone(), &mut expected);
            let (count, first) = differences(&actual, &expected, element);
            wrong += count;
            if let Some(first) = first {
                let at = first * element..(first + 1) * element;
                self.tell(case, what, piece.start + first, &actual[at.clone()], &expected[at]);
            }
        }
        Ok(wrong)
    }

    /// Describes a wrong element, unless enough have been told.
    fn tell(&mut self, case: &Case, what: &str, index: usize, actual: &[u8], expected: &[u8]) {
        let hex = |bytes: &[u8]| bytes.iter().rev().map(|byte| format!("{byte:02x}")).collect::<String>();
        self.told += 1;
        if self.told <= TOLD_AT_MOST {
            let (rank, row) = (self.rank(), case.describe());
            eprintln!("mkernel perf: rank {rank}, {row}: {what}: element {index} is 0x{}, expected 0x{}", hex(actual), hex(expected));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_outputs_are_checked_in_full_and_large_ones_sampled() {
        let full = |n: usize| -> Vec<Range<usize>> { std::iter::once(0..n).collect() };
        assert_eq!(checked_ranges(4 << 20, 4, false, 1), full(4 << 20));
        assert_eq!(checked_ranges((4 << 20) + 1, 4, true, 1), full((4 << 20) + 1));
        let sampled = checked_ranges((4 << 20) + 1, 4, false, 1);
        assert_eq!(sampled.len(), 18);
        assert_eq!((sampled[0].clone(), sampled[1].end), (0..1 << 18, (4 << 20) + 1));
        assert!(sampled.iter().all(|range| range.start < range.end && range.end <= (4 << 20) + 1));
        assert_ne!(sampled, checked_ranges((4 << 20) + 1, 4, false, 2));
    }

    #[test]
    fn pieces_cover_the_range() {
        assert_eq!(pieces(3..10, 4).collect::<Vec<_>>(), [3..7, 7..10]);
        assert_eq!(pieces(3..3, 4).count(), 0);
    }

    #[test]
    fn differing_elements_are_counted_once_each() {
        assert_eq!(differences(&[1, 2, 3, 4], &[1, 2, 3, 4], 2), (0, None));
        assert_eq!(differences(&[1, 2, 9, 9, 5, 6], &[1, 2, 3, 4, 5, 7], 2), (2, Some(1)));
    }
}
