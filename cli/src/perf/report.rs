//! What a run prints: nccl-tests' columns and closing lines, and the same as JSON.

use super::emulated::Devices;
use super::inputs::Values;
use super::operation::{Operation, RedOp};
use super::options::Options;
use super::{Error, Result};
use serde_json::{Value, json};
use std::path::Path;

/// The figures of one row for one kind of buffer use.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figures {
    pub microseconds: f64,
    /// Bytes that the operation is credited with, per second, in units of 10^9.
    pub algorithm_bandwidth: f64,
    pub bus_bandwidth: f64,
    /// `None` if nothing was checked.
    pub wrong: Option<u64>,
}

impl Figures {
    pub fn new(operation: Operation, bytes: u64, ranks: usize, microseconds: f64, wrong: Option<u64>) -> Self {
        let algorithm_bandwidth = if microseconds > 0.0 { bytes as f64 / (microseconds * 1e3) } else { 0.0 };
        Self { microseconds, algorithm_bandwidth, bus_bandwidth: algorithm_bandwidth * operation.bus_factor(ranks), wrong }
    }

    fn json(&self) -> Value {
        json!({ "time_us": self.microseconds, "algbw_gbs": self.algorithm_bandwidth, "busbw_gbs": self.bus_bandwidth, "wrong": self.wrong })
    }
}

/// One line of the table. `in_place` is `None` for operations that cannot be in place.
#[derive(Debug, Clone)]
pub struct Row {
    pub operation: Operation,
    pub bytes: u64,
    pub count: usize,
    pub dtype: &'static str,
    pub redop: Option<RedOp>,
    pub root: Option<usize>,
    pub out_of_place: Figures,
    pub in_place: Option<Figures>,
}

impl Row {
    fn redop(&self) -> &'static str {
        self.redop.map_or("none", RedOp::name)
    }

    fn root(&self) -> i64 {
        self.root.map_or(-1, |root| root as i64)
    }

    fn text(&self) -> String {
        let (bytes, count) = (self.bytes, self.count);
        let start = format!("{bytes:>12}  {count:>12}  {:>8}  {:>6}  {:>6}", self.dtype, self.redop(), self.root());
        format!("{start}{}{}", columns(Some(&self.out_of_place)), columns(self.in_place.as_ref()))
    }

    fn json(&self) -> Value {
        json!({
            "operation": self.operation.name(),
            "size": self.bytes,
            "count": self.count,
            "type": self.dtype,
            "redop": self.redop(),
            "root": self.root(),
            "out_of_place": self.out_of_place.json(),
            "in_place": self.in_place.map(|figures| figures.json()),
        })
    }
}

/// The four columns of one kind of buffer use.
fn columns(figures: Option<&Figures>) -> String {
    let Some(figures) = figures else { return format!("  {:>8}  {:>6}  {:>6}  {:>6}", "N/A", "N/A", "N/A", "N/A") };
    let time = match figures.microseconds {
        t if t >= 10_000.0 => format!("{t:.0}"),
        t if t >= 100.0 => format!("{t:.1}"),
        t => format!("{t:.2}"),
    };
    let wrong = figures.wrong.map_or("N/A".to_owned(), |wrong| wrong.to_string());
    format!("  {time:>8}  {:>6.2}  {:>6.2}  {wrong:>6}", figures.algorithm_bandwidth, figures.bus_bandwidth)
}

const HEAD: &str = "\
#
#                                                              out-of-place                        in-place
#       size         count      type   redop    root      time   algbw   busbw  #wrong      time   algbw   busbw  #wrong
#        (B)    (elements)                                (us)  (GB/s)  (GB/s)              (us)  (GB/s)  (GB/s)";

/// Collects the rows of a run and prints them as they come.
pub struct Report {
    rows: Vec<Row>,
    head: Value,
    /// Sums were compared bit for bit with the exact rule.
    strict: bool,
}

impl Report {
    /// Prints what the run is, below the first line.
    pub fn begin(options: &Options, devices: &Devices, library: &Path, version: i32, ranks: usize) -> Self {
        let kind = if options.procs { "processes" } else { "threads" };
        let version = format!("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
        let gpus = devices.count.min(ranks);
        let mode =
            if options.graph_launches > 0 { format!(", in a graph launched {} times", options.graph_launches) } else { String::new() };
        println!("# library {}, NCCL {version}", library.display());
        let hosts = if options.hosts > 1 { format!(", playing {} hosts", options.hosts) } else { String::new() };
        println!("# {ranks} ranks as {kind} on {gpus} GPU{}{hosts}", if gpus == 1 { "" } else { "s" });
        println!(
            "# {} iterations of {} (warm-up {}){mode}, median of {}; {} check rounds, seed {}",
            options.iterations, options.aggregate, options.warmup, options.cycles, options.check, options.seed
        );
        let head = json!({
            "tool": concat!("mkernel perf ", env!("CARGO_PKG_VERSION")),
            "library": library.display().to_string(),
            "nccl_version": version,
            "device": devices.name,
            "emulated": devices.emulated,
            "gpus": gpus,
            "ranks": ranks,
            "ranks_are": kind,
            "iterations": options.iterations,
            "operations_per_iteration": options.aggregate,
            "warmup": options.warmup,
            "cycles": options.cycles,
            "graph_launches": options.graph_launches,
            "check_rounds": options.check,
            "seed": options.seed,
        });
        Self { rows: Vec::new(), head, strict: options.values == Values::Random }
    }

    /// Starts the table of one operation.
    pub fn operation(&self, operation: Operation) {
        println!("#\n# {}\n{HEAD}", operation.name());
    }

    pub fn row(&mut self, row: Row) {
        println!("{}", row.text());
        self.rows.push(row);
    }

    fn figures(&self) -> impl Iterator<Item = &Figures> {
        self.rows.iter().flat_map(|row| std::iter::once(&row.out_of_place).chain(row.in_place.as_ref()))
    }

    fn wrong(&self) -> u64 {
        self.figures().filter_map(|figures| figures.wrong).sum()
    }

    fn average_bus_bandwidth(&self) -> f64 {
        let count = self.figures().count();
        if count == 0 { 0.0 } else { self.figures().map(|figures| figures.bus_bandwidth).sum::<f64>() / count as f64 }
    }

    /// Prints the closing lines and writes the file, if one is wanted. Returns whether every checked element was right.
    pub fn end(self, file: Option<&Path>) -> Result<bool> {
        let (wrong, average) = (self.wrong(), self.average_bus_bandwidth());
        println!("#\n# Out of bounds values : {wrong} {}", if wrong == 0 { "OK" } else { "FAILED" });
        println!("# Avg bus bandwidth    : {average}");
        if wrong > 0 && self.strict && self.rows.iter().any(|row| row.redop.is_some()) {
            println!(
                "# (random floats must sum up in rank order; a library that adds or rounds in another way is right too: compare with --values exact)"
            );
        }
        if let Some(file) = file {
            let mut all = self.head.clone();
            all["rows"] = self.rows.iter().map(Row::json).collect();
            all["wrong"] = wrong.into();
            all["average_busbw_gbs"] = average.into();
            std::fs::write(file, format!("{all:#}\n")).map_err(|e| Error::failed(format!("cannot write {}: {e}", file.display())))?;
        }
        Ok(wrong == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(in_place: bool) -> Row {
        let figures = Figures::new(Operation::AllReduce, 1 << 20, 4, 50.0, Some(3));
        Row {
            operation: Operation::AllReduce,
            bytes: 1 << 20,
            count: 1 << 18,
            dtype: "float",
            redop: Some(RedOp::Sum),
            root: None,
            out_of_place: figures,
            in_place: in_place.then_some(Figures { microseconds: 12345.6, wrong: None, ..figures }),
        }
    }

    #[test]
    fn bandwidths() {
        let figures = row(false).out_of_place;
        // 1 MiB in 50 us.
        assert!((figures.algorithm_bandwidth - 20.97152).abs() < 1e-9);
        assert!((figures.bus_bandwidth - 31.45728).abs() < 1e-9);
        assert_eq!(Figures::new(Operation::AllReduce, 8, 2, 0.0, None).bus_bandwidth, 0.0);
    }

    #[test]
    fn rows_stand_under_their_heads() {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(
            words(&row(true).text()),
            ["1048576", "262144", "float", "sum", "-1", "50.00", "20.97", "31.46", "3", "12346", "20.97", "31.46", "N/A"]
        );
        assert_eq!(words(&row(false).text())[9..], ["N/A", "N/A", "N/A", "N/A"]);
        let columns = HEAD.lines().nth(2).unwrap();
        assert_eq!(columns.len(), row(true).text().len());
        assert_eq!(columns.find("#wrong").unwrap() + 6, row(true).text().find(" 3 ").unwrap() + 2);
    }

    #[test]
    fn wrong_elements_and_the_average_cover_both_kinds() {
        let report = Report { rows: vec![row(true), row(false)], head: Value::Null, strict: true };
        assert_eq!(report.wrong(), 6);
        assert!((report.average_bus_bandwidth() - 31.45728).abs() < 1e-9);
    }
}
