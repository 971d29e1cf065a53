//! What is printed, and the count of what passed.

use crate::ranks::Report;
use std::time::Instant;

/// Lines of the ranks' own output that a failure shows.
const OUTPUT_LINES: usize = 12;

#[derive(Debug, Default)]
pub struct Tally {
    pub passed: usize,
    pub failed: usize,
    pub skipped: usize,
}

impl Tally {
    /// Adds another tally.
    pub fn add(&mut self, other: &Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }

    /// The line that ends a group of checks.
    pub fn line(&self, group: &str, begin: Instant) {
        println!("{group}: {} ({:.1} s)", self.words(), begin.elapsed().as_secs_f64());
    }

    /// The count in the form that ends a run.
    pub fn words(&self) -> String {
        let skipped = if self.skipped > 0 { format!(", {} skipped", self.skipped) } else { String::new() };
        format!("{} passed, {} failed{skipped}", self.passed, self.failed)
    }
}

/// Prints a failure: a headline, each rank's text, how to run it again.
pub fn failure(headline: &str, texts: &[String], again: &str) {
    println!("FAILED {headline}");
    for text in texts {
        println!("    {text}");
    }
    println!("    again: {again}");
}

/// Prints the end of what the ranks wrote.
pub fn output(report: &Report, all: bool) {
    let lines: Vec<&str> = report.output.lines().filter(|line| !line.trim().is_empty()).collect();
    let shown = if all { &lines[..] } else { &lines[lines.len().saturating_sub(OUTPUT_LINES)..] };
    for line in shown {
        println!("    | {line}");
    }
}
