//! A check other than a case of the matrix: a body that all ranks run, in one or more line-ups.

use crate::options::Options;
use crate::outcome::Outcome;
use crate::ranks::{How, Job, Place, Rank, Report, run};
use crate::report::{self, Tally};
use std::time::{Duration, Instant};

type Body = Box<dyn Fn(&Rank) -> Outcome + Sync>;

/// Number and kind of ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LineUp {
    pub ranks: usize,
    pub how: How,
}

/// Line-ups of `ranks` ranks, as threads and as processes.
pub fn both(ranks: &[usize]) -> Vec<LineUp> {
    ranks.iter().flat_map(|ranks| How::ALL.map(|how| LineUp { ranks: *ranks, how })).collect()
}

pub fn processes(ranks: usize) -> Vec<LineUp> {
    vec![LineUp { ranks, how: How::Processes }]
}

/// One group of checks: the same body in several line-ups.
pub struct Check {
    pub part: &'static str,
    pub name: &'static str,
    line_ups: Vec<LineUp>,
    environment: Vec<(&'static str, String)>,
    limit: Duration,
    nodes: Option<usize>,
    body: Body,
}

impl Check {
    pub fn new(part: &'static str, name: &'static str, line_ups: Vec<LineUp>, body: impl Fn(&Rank) -> Outcome + Sync + 'static) -> Self {
        Self { part, name, line_ups, environment: Vec::new(), limit: Duration::from_secs(30), nodes: None, body: Box::new(body) }
    }

    /// Sets an environment variable for the ranks.
    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.environment.push((name, value.into()));
        self
    }

    pub fn limit(mut self, seconds: u64) -> Self {
        self.limit = Duration::from_secs(seconds);
        self
    }

    /// Lets the ranks pretend to be on this many hosts, whatever the command line says.
    pub fn nodes(mut self, nodes: usize) -> Self {
        self.nodes = Some(nodes);
        self
    }

    /// Runs all line-ups and prints a line.
    pub fn run(&self, place: &Place, options: &Options) -> Tally {
        let begin = Instant::now();
        let mut tally = Tally::default();
        for line_up in self.line_ups.iter().filter(|line_up| options.how.is_none_or(|how| how == line_up.how)) {
            self.run_one(*line_up, place, options, &mut tally);
        }
        tally.line(&format!("{}: {}", self.part, self.name), begin);
        tally
    }

    fn run_one(&self, line_up: LineUp, place: &Place, options: &Options, tally: &mut Tally) {
        let job = Job { ranks: line_up.ranks, how: line_up.how, environment: &self.environment, limit: self.limit, body: &*self.body };
        let mut place = place.clone();
        if let Some(nodes) = self.nodes {
            place.hosts.count = nodes;
            place.hosts.uneven = false;
        }
        let report = run(&place, &job);
        let title = format!("{}: {}, {} ranks as {}", self.part, self.name, line_up.ranks, line_up.how.name());
        if let Some(reason) = report.skipped.as_ref().filter(|_| report.failures.is_empty()) {
            println!("skipped {title}: {reason}");
            tally.skipped += 1;
            return;
        }
        if report.failures.is_empty() {
            tally.passed += 1;
            if options.verbose {
                report::output(&report, true);
            }
            return;
        }
        tally.failed += 1;
        let texts = texts(&report);
        report::failure(&title, &texts, &format!("conformance --only '{}/{}' --how {}", self.part, self.name, line_up.how.name()));
        report::output(&report, options.verbose);
    }
}

/// The failures of a report, one line each, no more than can be read.
fn texts(report: &Report) -> Vec<String> {
    report.failures.iter().take(8).map(|record| format!("rank {}: {}", record.rank, record.text)).collect()
}
