//! The residency policy: is an operation handed to the resident executor or launched inline, and how long does the executor linger.
//!
//! Pure: no clock, no I/O; the same calls give the same answers. The executor's host side calls [`Policy::place`] for every operation,
//! [`Policy::registered`] when the handshake accepted it, and [`Policy::report`] with what a generation says of its time.
//!
//! # What is weighed (figures of measured.md, one H200)
//!
//! - On a quiet GPU both ways cost the same: an inline launch adds 1.6 us to a stream, a gate and the resident answer 1.67 us. Residency pays
//!   when other kernels hold the SMs: an inline grid then waits at least for one of their blocks to end (tens of us for the tiles of a matrix
//!   product), or for a whole queue of them (119 ms for NCCL in the loaded benchmark); the executor is already there.
//!   An operation that finds the executor there is a *hit* and counts [`HIT_SAVES_US`]: the low end of this, a judgement and not a measurement,
//!   because nobody tells us whether other kernels run.
//! - A resident grid that idles slows a compute-bound kernel beside it by 8 % (one warp) to 30 % (16 x 512 threads), a memory-bound one not at
//!   all. Each idle microsecond counts [`IDLE_COSTS`]. So bridging a gap of more than 50 us costs more than a hit saves.
//! - Opening a generation is a launch ([`OPENING_COSTS_US`]).
//! - A large operation hides its launch, and wants more blocks than the executor has: inline.
//!
//! # How it decides (`auto`)
//!
//! 1. *Pace.* Gaps between small operations, as the host sees them, go into a histogram that forgets. For each possible linger time it tells the
//!    mean gain per operation; the best one is the linger time. No gain, no residency; to open a generation takes more gain than to use one
//!    that is there (hysteresis). A gap that no linger time can bridge ends the run: the next operation goes inline, whatever came before.
//! 2. *Proof.* Hosts run ahead: calls that follow each other within 3 us may lie 2 ms of matrix products apart on the device, and the executor
//!    stays while a registered operation is on its way. Only its own account tells. So at first only `FIRST_WINDOW` operations may be registered
//!    beyond those accounted for; a profit widens the window, and a loss ends the residency for [`PAYBACK`] times as long as was lost,
//!    longer each time, so that a trial costs at most 1 % of the time until the next.

use super::handshake::Times;

/// What a hit saves, see above. To be measured again with the fast path; everything else follows from the ratio of this and `IDLE_COSTS`.
pub const HIT_SAVES_US: f64 = 15.0;
/// Share of other kernels' speed that an idle executor takes.
pub const IDLE_COSTS: f64 = 0.30;
/// Launching a generation: 3.3 us of the host, and the blocks' start.
pub const OPENING_COSTS_US: f64 = 5.0;
/// Operations of this size and more go inline.
pub const LARGE_BYTES: u64 = 1 << 20;
/// Linger times that are considered. The longest one bounds how long the executor outlives the last operation: a product that is started 1 ms
/// later does not meet it.
const LINGERS_US: [u64; 5] = [8, 16, 32, 64, MAX_LINGER_US];
pub const MAX_LINGER_US: u64 = 100;
/// Bound of `MKERNEL_LINGER_US`: cudaDeviceSynchronize, cudaFree and first launches of kernels wait as long.
pub const MAX_FIXED_LINGER_US: u64 = 10_000;
/// Mean gain per operation from which a generation is opened. Down to 0 one that is there is used.
const GAIN_TO_OPEN_US: f64 = 3.0;
/// Small operations in close succession before the first generation; one is enough after a generation has earned its keep.
const RUN_TO_OPEN: u32 = 4;
/// What the histogram keeps at each operation: it remembers some twenty.
const KEEP: f64 = 0.95;

/// What a first trial may cost: sixteen gaps. Fewer are used up before the first account can be there when the host runs ahead.
const FIRST_WINDOW: u64 = 16;
/// How much further each hit of a profitable account lets the host run ahead.
const WIDER_PER_HIT: u64 = 8;
/// About as far ahead as CUDA's launch queue lets a host run, so that it is not met while the accounts are good and come in time.
const MAX_WINDOW: u64 = 1024;
/// The loss that is tolerated before residency ends; a few generations that met one operation only make no trend.
const TOLERATED_LOSS_US: f64 = 50.0;
/// Residency stays away this many times the loss; doubled for each loss in a row, up to `MAX_DOUBLINGS` times.
pub const PAYBACK: f64 = 100.0;
const MAX_DOUBLINGS: u32 = 6;

/// `MKERNEL_RESIDENCY`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    #[default]
    Auto,
    Always,
    Never,
}

impl std::str::FromStr for Mode {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "always" => Ok(Self::Always),
            "never" => Ok(Self::Never),
            other => Err(format!("MKERNEL_RESIDENCY is \"{other}\"; it must be auto, always or never")),
        }
    }
}

/// What does not change while the process runs.
#[derive(Debug, Clone, Copy, Default)]
pub struct Settings {
    pub mode: Mode,
    /// `MKERNEL_LINGER_US`; cut to `MAX_FIXED_LINGER_US`.
    pub linger_us: Option<u64>,
    /// `CUDA_LAUNCH_BLOCKING=1`, or a profiler that runs one kernel at a time: a gate could wait for ever.
    pub serialised: bool,
}

/// An operation (a whole group counts as one) that is about to be placed.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    /// The host's clock, any origin. A step back counts as no step.
    pub now_us: u64,
    /// Bytes that this rank moves, all operations of the group together.
    pub bytes: u64,
    pub captured: bool,
    /// When the last operation was finished, on the same clock, if the caller knows. It tells a long operation from a pause.
    pub last_finished_us: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    Inline,
    /// Register with the generation that is there. If there is none: open one if `open`, else go inline.
    Resident {
        open: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    pub placement: Placement,
    /// For the generation that is opened for this operation.
    pub linger_us: u64,
    /// A generation that is there should not linger any longer.
    pub leave: bool,
}

/// What a generation says of its time, from its launch on. To be given before every `place`, as far as the device has written it: it is only
/// by this account that the policy sees what lies between the operations on the device. Must be given when the generation has closed and
/// before the next one is opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Report {
    pub operations: u64,
    pub serving_us: u64,
    pub waiting_for_peers_us: u64,
    pub idle_us: u64,
    pub ended: bool,
}

impl Report {
    /// From the words of a generation; `ended` when it has closed.
    pub fn new(times: &Times, ended: bool) -> Self {
        Self {
            operations: times.served,
            serving_us: times.serving_ns / 1000,
            waiting_for_peers_us: times.waiting_ns / 1000,
            idle_us: times.idle_ns / 1000,
            ended,
        }
    }
}

/// The state of one executor's policy.
#[derive(Debug, Clone)]
pub struct Policy {
    settings: Settings,
    pace: Pace,
    last_us: Option<u64>,
    /// Small operations in close succession, this one included.
    run: u32,
    /// How many operations may be registered beyond those accounted for.
    window: u64,
    /// Operations registered with the present generation.
    registered: u64,
    /// Its last report.
    accounted: Report,
    /// Savings less costs since the last verdict.
    balance_us: f64,
    losses_in_a_row: u32,
    /// No residency before this time: a loss is being paid back.
    inline_until_us: u64,
}

impl Policy {
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            pace: Pace::default(),
            last_us: None,
            run: 0,
            window: FIRST_WINDOW,
            registered: 0,
            accounted: Report::default(),
            balance_us: 0.0,
            losses_in_a_row: 0,
            inline_until_us: 0,
        }
    }

    pub fn place(&mut self, request: &Request) -> Decision {
        let inline = |leave| Decision { placement: Placement::Inline, linger_us: 0, leave };
        // A captured operation runs when its graph does: it says nothing about the pace of now.
        if request.captured || self.settings.serialised || self.settings.mode == Mode::Never {
            return inline(false);
        }
        let fixed = self.settings.linger_us.map(|us| us.min(MAX_FIXED_LINGER_US));
        if self.settings.mode == Mode::Always {
            return Decision { placement: Placement::Resident { open: true }, linger_us: fixed.unwrap_or(MAX_LINGER_US), leave: false };
        }

        self.note_pace(request);
        let (linger_us, gain_us) = self.pace.best_linger();
        let proven = self.window > FIRST_WINDOW;
        let close = self.run >= if proven { 1 } else { RUN_TO_OPEN };
        let exhausted = self.registered.saturating_sub(self.accounted.operations) >= self.window;
        if request.bytes >= LARGE_BYTES || !close || gain_us < 0.0 || request.now_us < self.inline_until_us || exhausted {
            return inline(true);
        }
        Decision {
            placement: Placement::Resident { open: gain_us >= GAIN_TO_OPEN_US },
            linger_us: fixed.unwrap_or(linger_us),
            leave: false,
        }
    }

    /// The operation that was placed last is registered, with a generation `opened` for it or with the one that was there.
    pub fn registered(&mut self, opened: bool) {
        if opened {
            self.registered = 0;
            self.accounted = Report::default();
        }
        self.registered += 1;
    }

    pub fn report(&mut self, now_us: u64, report: &Report) {
        let before = std::mem::replace(&mut self.accounted, *report);
        // The operation that a generation was opened for found nobody there.
        let hits = report.operations.saturating_sub(before.operations.max(1));
        let idle_us = report.idle_us.saturating_sub(before.idle_us);
        let opening_us = if report.ended { OPENING_COSTS_US } else { 0.0 };
        self.balance_us += hits as f64 * HIT_SAVES_US - idle_us as f64 * IDLE_COSTS - opening_us;

        if self.balance_us < -TOLERATED_LOSS_US {
            let away_us = -self.balance_us * PAYBACK * f64::from(1 << self.losses_in_a_row);
            self.inline_until_us = now_us.saturating_add(away_us as u64);
            self.losses_in_a_row = (self.losses_in_a_row + 1).min(MAX_DOUBLINGS);
            self.window = FIRST_WINDOW;
            self.balance_us = 0.0;
        } else if self.balance_us > 0.0 && hits > 0 {
            // Savings widen the window but are not kept to set off later losses: times change.
            self.balance_us = 0.0;
            self.window = (self.window + WIDER_PER_HIT * hits).min(MAX_WINDOW);
            self.losses_in_a_row = 0;
        }
    }

    fn note_pace(&mut self, request: &Request) {
        let since = self.last_us.max(request.last_finished_us.filter(|t| *t <= request.now_us));
        self.last_us = self.last_us.max(Some(request.now_us));
        let Some(since) = since else { return };
        let gap_us = request.now_us.saturating_sub(since);
        self.pace.note(gap_us);
        if gap_us > MAX_LINGER_US || request.bytes >= LARGE_BYTES {
            self.run = 0;
        } else {
            self.run = self.run.saturating_add(1);
        }
    }
}

/// A histogram of gaps that forgets: weight of the gaps up to each linger time, and of the longer ones.
#[derive(Debug, Clone, Default)]
struct Pace {
    weights: [f64; LINGERS_US.len() + 1],
}

impl Pace {
    fn note(&mut self, gap_us: u64) {
        for weight in &mut self.weights {
            *weight *= KEEP;
        }
        let bucket = LINGERS_US.iter().position(|us| gap_us <= *us).unwrap_or(LINGERS_US.len());
        self.weights[bucket] += 1.0 - KEEP;
    }

    /// The linger time with the best mean gain per operation, and that gain. Gaps count as long as their bucket's upper end.
    fn best_linger(&self) -> (u64, f64) {
        let total: f64 = self.weights.iter().sum();
        let mut best = (LINGERS_US[0], -1.0);
        for (i, linger) in LINGERS_US.iter().enumerate() {
            let bridged = self.weights.iter().zip(LINGERS_US).take(i + 1);
            let gain: f64 = bridged.map(|(weight, gap)| weight * (HIT_SAVES_US - IDLE_COSTS * gap as f64)).sum();
            let missed: f64 = self.weights[i + 1..].iter().sum();
            let mean = (gain - missed * IDLE_COSTS * *linger as f64) / total.max(f64::MIN_POSITIVE);
            if mean > best.1 {
                best = (*linger, mean);
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn policy(mode: Mode) -> Policy {
        Policy::new(Settings { mode, ..Settings::default() })
    }

    fn request(now_us: u64) -> Request {
        Request { now_us, bytes: 4096, captured: false, last_finished_us: None }
    }

    /// How a program calls, for [`play`].
    #[derive(Clone, Copy)]
    struct Trace {
        steps: u64,
        /// Device work in the stream before each operation.
        work_us: fn(u64) -> u64,
        /// What the host does between two calls, or after it has waited.
        host_us: fn(u64) -> u64,
        /// The host waits after each so many operations; 0: never.
        sync_every: u64,
        /// Whether the executor gives account after each operation, or only when it has closed.
        live: bool,
    }

    #[derive(Debug, Default)]
    struct Outcome {
        hits: u64,
        opened: u64,
        idle_us: u64,
        total_us: u64,
    }

    impl Outcome {
        /// Speed lost by other kernels, as a share of the time.
        fn loss(&self) -> f64 {
            (self.idle_us as f64 * IDLE_COSTS + self.opened as f64 * OPENING_COSTS_US) / self.total_us as f64
        }
    }

    /// A GPU with one stream and an executor. Operations take 5 us.
    fn play(policy: &mut Policy, trace: Trace) -> Outcome {
        struct Resident {
            linger_us: u64,
            free_at: u64,
            report: Report,
            /// Reports to come, with the time of each.
            live: std::collections::VecDeque<(u64, Report)>,
        }
        const OPERATION_US: u64 = 5;
        // CUDA lets the host run some thousand launches ahead: here, a step has eleven.
        const AHEAD: usize = 93;
        let mut out = Outcome::default();
        let mut resident: Option<Resident> = None;
        let mut ends: Vec<u64> = vec![];
        let (mut now, mut stream_free) = (0, 0);
        for step in 0..trace.steps {
            now += (trace.host_us)(step);
            if ends.len() >= AHEAD {
                now = now.max(ends[ends.len() - AHEAD]);
            }
            if let Some(r) = resident.take_if(|r| r.free_at + r.linger_us < now) {
                out.idle_us += r.linger_us;
                let report = Report { idle_us: r.report.idle_us + r.linger_us, ended: true, ..r.report };
                policy.report(now, &report);
            }
            if let Some(r) = resident.as_mut().filter(|_| trace.live) {
                while let Some((_, report)) = r.live.pop_front_if(|(at, _)| *at <= now) {
                    policy.report(now, &report);
                }
            }
            let decision = policy.place(&Request { last_finished_us: ends.last().copied().filter(|e| *e <= now), ..request(now) });
            if let Some(r) = resident.as_mut().filter(|_| decision.leave) {
                r.linger_us = 2;
            }
            let starts = now.max(stream_free + (trace.work_us)(step));
            stream_free = starts + OPERATION_US;
            ends.push(stream_free);
            let open = match decision.placement {
                Placement::Inline => None,
                Placement::Resident { open } => (resident.is_some() || open).then_some(open),
            };
            if open.is_some() {
                let opened = resident.is_none();
                policy.registered(opened);
                out.opened += u64::from(opened);
                out.hits += u64::from(!opened);
                let r = resident.get_or_insert(Resident {
                    linger_us: decision.linger_us,
                    free_at: now,
                    report: Report::default(),
                    live: Default::default(),
                });
                let idle = starts.saturating_sub(r.free_at);
                out.idle_us += idle;
                r.report.idle_us += idle;
                r.report.operations += 1;
                r.free_at = stream_free;
                r.live.push_back((stream_free, r.report));
            }
            if trace.sync_every != 0 && (step + 1) % trace.sync_every == 0 {
                now = stream_free;
            }
        }
        out.total_us = stream_free.max(now);
        out
    }

    #[test]
    fn the_first_operations_are_inline_and_a_close_run_becomes_resident() {
        let mut p = policy(Mode::Auto);
        let at = |p: &mut Policy, now| p.place(&request(now)).placement;
        for i in 0..u64::from(RUN_TO_OPEN) {
            assert_eq!(at(&mut p, i * 10), Placement::Inline, "operation {i}");
        }
        let decision = p.place(&request(40));
        assert_eq!(decision.placement, Placement::Resident { open: true });
        assert_eq!(decision.linger_us, 16);
    }

    #[test]
    fn programs_get_what_pays() {
        let none: fn(u64) -> u64 = |_| 0;
        let ahead = |steps, work_us, host_us, live| Trace { steps, work_us, host_us, sync_every: 0, live };
        let waits = |steps, host_us| Trace { steps, work_us: none, host_us, sync_every: 1, live: false };
        // What the program does, hits per operation, largest loss of other kernels.
        let rows: [(&str, Trace, std::ops::RangeInclusive<f64>, f64); 14] = [
            ("back to back", ahead(2000, none, |_| 3, false), 0.8..=1.0, 0.05),
            ("back to back, live account", ahead(2000, none, |_| 3, true), 0.98..=1.0, 0.01),
            ("10 us of work between", ahead(2000, |_| 10, |_| 6, false), 0.8..=1.0, 0.25),
            ("10 us of work between, live account", ahead(2000, |_| 10, |_| 6, true), 0.98..=1.0, 0.25),
            ("host ahead, 200 us of products", ahead(9000, |_| 200, |_| 20, false), 0.0..=0.02, 0.01),
            ("host ahead, 2 ms of products", ahead(2000, |_| 2000, |_| 20, false), 0.0..=0.02, 0.01),
            ("host ahead, 2 ms of products, live account", ahead(2000, |_| 2000, |_| 20, true), 0.0..=0.02, 0.01),
            ("training, 2 ms of products", Trace { sync_every: 50, ..ahead(9000, |_| 2000, |_| 20, false) }, 0.0..=0.02, 0.01),
            ("training, 200 us of products", Trace { sync_every: 50, ..ahead(9000, |_| 200, |_| 20, true) }, 0.0..=0.05, 0.01),
            ("synchronised, 12 us", waits(2000, |_| 12), 0.98..=1.0, 0.25),
            ("synchronised, 30 us", waits(2000, |_| 30), 0.98..=1.0, 0.30),
            ("synchronised, 60 us", waits(2000, |_| 60), 0.0..=0.0, 0.0),
            ("synchronised, 2 ms", waits(2000, |_| 2000), 0.0..=0.0, 0.0),
            ("bursts of 16, then 10 ms", waits(4000, |s| if s % 16 == 0 { 10_000 } else { 6 }), 0.8..=1.0, 0.01),
        ];
        for (name, trace, hits, loss) in rows {
            let out = play(&mut policy(Mode::Auto), trace);
            let share = out.hits as f64 / trace.steps as f64;
            println!("{name}: {share:.3} hits per operation, {:.4} of the time lost", out.loss());
            assert!(hits.contains(&share), "{name}: {share} hits per operation, {out:?}");
            assert!(out.loss() <= loss, "{name}: {} of the time lost, {out:?}", out.loss());
        }
    }

    #[test]
    fn traffic_that_turns_bad_costs_little() {
        let mut p = policy(Mode::Auto);
        play(&mut p, Trace { steps: 2000, work_us: |_| 0, host_us: |_| 3, sync_every: 0, live: true });
        assert!(p.window == MAX_WINDOW);
        p.last_us = None; // `play` starts its clock anew.
        let out = play(&mut p, Trace { steps: 40_000, work_us: |_| 2000, host_us: |_| 20, sync_every: 0, live: false });
        assert!(out.loss() < 0.01, "{} of the time lost, {out:?}", out.loss());
    }

    #[test]
    fn a_pause_ends_residency_and_proof_shortens_the_way_back() {
        let mut p = policy(Mode::Auto);
        let out = play(&mut p, Trace { steps: 200, work_us: |_| 0, host_us: |_| 10, sync_every: 1, live: false });
        assert_eq!(p.place(&request(out.total_us + 1000)).placement, Placement::Inline);
        assert_ne!(p.place(&request(out.total_us + 1010)).placement, Placement::Inline);
    }

    #[test]
    fn a_new_pace_is_learnt_within_some_tens_of_operations() {
        let mut p = policy(Mode::Auto);
        let mut now = 0;
        let mut place = |gap, times| {
            (0..times).fold(Placement::Inline, |_, _| {
                now += gap;
                p.place(&request(now)).placement
            })
        };
        assert_eq!(place(60, 500), Placement::Inline);
        assert_eq!(place(10, 40), Placement::Resident { open: true });
        assert_eq!(place(60, 40), Placement::Inline);
    }

    #[test]
    fn opening_takes_more_than_staying() {
        // One gap in three cannot be bridged: a gain, but a small one.
        let mut p = policy(Mode::Auto);
        p.window = MAX_WINDOW;
        let mut now = 0;
        let mut decision = None;
        for i in 0..60 {
            now += if i % 3 == 0 { 5000 } else { 30 };
            decision = Some(p.place(&request(now)));
        }
        let (linger, gain) = p.pace.best_linger();
        assert!((0.0..GAIN_TO_OPEN_US).contains(&gain), "{gain} with {linger}");
        assert_eq!(decision.map(|d| d.placement), Some(Placement::Resident { open: false }));
    }

    #[test]
    fn large_captured_and_serialised_operations_are_inline() {
        let close = |p: &mut Policy| (0..50).map(|i| p.place(&request(i * 10))).last();
        let mut p = policy(Mode::Auto);
        assert!(close(&mut p).is_some_and(|d| d.placement != Placement::Inline));
        assert_eq!(p.clone().place(&Request { captured: true, ..request(500) }).placement, Placement::Inline);
        let large = p.clone().place(&Request { bytes: LARGE_BYTES, ..request(500) });
        assert_eq!((large.placement, large.leave), (Placement::Inline, true));
        let mut p = Policy::new(Settings { mode: Mode::Always, serialised: true, ..Settings::default() });
        assert!(close(&mut p).is_some_and(|d| d.placement == Placement::Inline));
        assert!(close(&mut policy(Mode::Never)).is_some_and(|d| d.placement == Placement::Inline));
    }

    #[test]
    fn reports_are_in_microseconds() {
        let times = Times { serving_ns: 1_999, waiting_ns: 2_000, idle_ns: 3_500, served: 4 };
        let wanted = Report { operations: 4, serving_us: 1, waiting_for_peers_us: 2, idle_us: 3, ended: true };
        assert_eq!(Report::new(&times, true), wanted);
    }

    #[test]
    fn mode_names() {
        assert_eq!("always".parse(), Ok(Mode::Always));
        assert!("sometimes".parse::<Mode>().is_err_and(|e| e.contains("sometimes")));
    }

    #[derive(Debug, Clone)]
    enum Event {
        Place { gap: u64, bytes: u64, captured: bool },
        Report(u64, u64),
    }

    fn event() -> impl Strategy<Value = Event> {
        let gap = prop_oneof![0u64..120, 0u64..5000];
        let bytes = prop_oneof![0u64..8192, Just(1u64 << 30)];
        prop_oneof![
            4 => (gap, bytes, prop::bool::weighted(0.1)).prop_map(|(gap, bytes, captured)| Event::Place { gap, bytes, captured }),
            1 => (0u64..50, 0u64..100_000).prop_map(|(operations, idle)| Event::Report(operations, idle)),
        ]
    }

    proptest! {
        #[test]
        fn invariants(mode in prop_oneof![Just(Mode::Auto), Just(Mode::Always)], fixed in prop::option::of(any::<u64>()),
                      events in prop::collection::vec(event(), 0..300)) {
            let mut p = Policy::new(Settings { mode, linger_us: fixed, serialised: false });
            let (mut now, mut close, mut ended) = (0, 0, true);
            for e in events {
                match e {
                    Event::Place { gap, bytes, captured } => {
                        now += gap;
                        let d = p.place(&Request { now_us: now, bytes, captured, last_finished_us: None });
                        if !captured {
                            close = if gap > MAX_LINGER_US || bytes >= LARGE_BYTES { 0 } else { close + 1 };
                        }
                        let resident = d.placement != Placement::Inline;
                        prop_assert!(!(captured && resident));
                        prop_assert!(d.linger_us <= fixed.map_or(MAX_LINGER_US, |us| us.min(MAX_FIXED_LINGER_US)));
                        if mode == Mode::Auto && resident {
                            prop_assert!(bytes < LARGE_BYTES && close > 0);
                            prop_assert!(p.registered - p.accounted.operations < MAX_WINDOW);
                        }
                        if resident && (!ended || d.placement == (Placement::Resident { open: true })) {
                            p.registered(ended);
                            ended = false;
                        }
                    }
                    Event::Report(operations, idle) if !ended => {
                        ended = operations % 2 == 0;
                        let operations = if ended { p.registered } else { (p.accounted.operations + operations).min(p.registered) };
                        let idle_us = p.accounted.idle_us + idle;
                        p.report(now, &Report { operations, idle_us, ended, ..Report::default() });
                    }
                    Event::Report(..) => {}
                }
            }
        }
    }
}
