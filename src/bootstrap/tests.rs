//! The bootstrap as a whole, over real sockets on loopback.

use super::*;
use crate::error::Result;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn id() -> UniqueId {
    create_id(&SocketSettings::default()).unwrap()
}

fn join_as(id: &UniqueId, rank: usize, nranks: usize, abort: &AtomicBool, timeout: Duration) -> Result<Bootstrap> {
    join(Join { id, rank, nranks, abort, warn_after: Duration::ZERO, timeout, settings: SocketSettings::default() })
}

/// Runs `body` as each rank of a communicator.
fn ranks<T: Send + 'static>(n: usize, id: UniqueId, body: impl Fn(Bootstrap) -> T + Send + Sync + 'static) -> Vec<T> {
    let body = Arc::new(body);
    let threads: Vec<_> = (0..n)
        .map(|rank| {
            let body = body.clone();
            let main = move || body(join_as(&id, rank, n, &AtomicBool::new(false), Duration::from_secs(60)).unwrap());
            std::thread::Builder::new().stack_size(256 << 10).spawn(main).unwrap()
        })
        .collect();
    threads.into_iter().map(|t| t.join().unwrap()).collect()
}

fn piece(rank: usize, round: usize) -> Vec<u8> {
    vec![(rank * 31 + round) as u8; (rank * 97 + round * 1013) % 5000]
}

#[test]
fn gathers_pieces_of_all_sizes() {
    for n in [1, 2, 7, 16] {
        ranks(n, id(), move |b| {
            for round in 0..5 {
                let all = b.all_gather(&piece(b.rank(), round), &AtomicBool::new(false)).unwrap();
                assert_eq!(all, (0..n).map(|r| piece(r, round)).collect::<Vec<_>>());
            }
        });
    }
}

/// Lets this process hold `wanted` descriptors, as far as the hard limit goes.
fn allow_descriptors(wanted: u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: fills one structure of ours.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) }, 0);
    assert!(limit.rlim_max >= wanted, "the hard limit of open files is {}, the test needs {wanted}: ulimit -Hn", limit.rlim_max);
    if limit.rlim_cur < wanted {
        limit.rlim_cur = wanted;
        // SAFETY: reads one structure of ours.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
    }
}

/// The whole life of a communicator of many ranks: meet, three all-gathers of 200 bytes each, goodbye.
fn a_life_of(n: usize) {
    allow_descriptors(2 * n as u64 + 256);
    let card = |rank: usize, round: usize| {
        let mut bytes = vec![round as u8; 200];
        bytes[..8].copy_from_slice(&(rank as u64).to_le_bytes());
        bytes
    };
    ranks(n, id(), move |b| {
        let never = AtomicBool::new(false);
        for round in 0..3 {
            let all = b.all_gather(&card(b.rank(), round), &never).unwrap();
            assert_eq!(all.len(), n);
            assert!(all.iter().enumerate().all(|(rank, bytes)| *bytes == card(rank, round)));
        }
        b.say_goodbye().unwrap();
        let all = std::iter::repeat_with(|| b.all_goodbye().or_else(pause)).flatten().next();
        assert_eq!(all, Some(true));
    });
}

fn pause<T>() -> Option<T> {
    std::thread::sleep(Duration::from_millis(5));
    None
}

#[test]
fn a_thousand_ranks_meet() {
    a_life_of(1024);
}

#[test]
#[ignore = "measures: cargo test -p mkernel --lib how_long -- --ignored --nocapture"]
fn how_long_ranks_take_to_meet() {
    for n in [64, 256, 1024, 2048] {
        let started = std::time::Instant::now();
        a_life_of(n);
        println!("{n} ranks meet, all-gather 3 x 200 bytes and say goodbye: {:.2} s", started.elapsed().as_secs_f64());
    }
}

#[test]
fn strangers_do_not_disturb() {
    let id = id();
    let address = id.contents().loopback.unwrap();
    let mut silent = Vec::new();
    for words in [&b""[..], b"GET / HTTP/1.0\r\n\r\n", &[0xff; 4096], b"mkboot"] {
        let mut s = TcpStream::connect(address).unwrap();
        let _ = s.write_all(words);
        silent.push(s);
    }
    ranks(3, id, |b| b.barrier(&AtomicBool::new(false)).unwrap());
    // A stranger with the wrong key is sent away.
    let mut last = silent.remove(2);
    let mut seen = Vec::new();
    let _ = last.read_to_end(&mut seen);
    assert!(seen.len() <= 24, "nothing but the greeting was sent to a stranger");
}

#[test]
fn disagreement_is_told_to_all() {
    let id = id();
    let first = std::thread::spawn(move || join_as(&id, 0, 4, &AtomicBool::new(false), Duration::from_secs(60)).err());
    // Rank 0 must be there first for the words of the message.
    while join_as(&id, 0, 4, &AtomicBool::new(false), Duration::from_secs(60)).err().is_none_or(|e| !e.message.contains("joined as rank 0"))
    {
    }
    assert!(first.join().unwrap().unwrap().message.contains("joined as rank 0"));
    let late = join_as(&id, 2, 8, &AtomicBool::new(false), Duration::from_secs(60)).err().unwrap();
    assert!(late.message.contains("nranks 8") || late.message.contains("rank 0"), "{}", late.message);
}

#[test]
fn a_missing_rank_is_a_timeout_and_an_abort_ends_the_wait() {
    let e = join_as(&id(), 0, 2, &AtomicBool::new(false), Duration::from_millis(200)).err().unwrap();
    assert!(e.message.contains("not all ranks came"), "{}", e.message);
    let (id, abort) = (id(), Arc::new(AtomicBool::new(false)));
    let waits = std::thread::spawn({
        let abort = abort.clone();
        move || join_as(&id, 0, 2, &abort, Duration::ZERO).err()
    });
    abort.store(true, Ordering::Release);
    assert!(waits.join().unwrap().unwrap().message.contains("aborted"));
}

#[test]
fn a_vanished_rank_is_named() {
    let errors = ranks(3, id(), |b| {
        if b.rank() == 1 {
            return None; // drops its connection
        }
        Some(b.all_gather(b"x", &AtomicBool::new(false)).unwrap_err().message)
    });
    for text in errors.into_iter().flatten() {
        assert!(text.contains("rank 1 has left"), "{text}");
    }
}

#[test]
fn goodbyes_and_notices() {
    ranks(4, id(), |b| {
        let never = AtomicBool::new(false);
        if b.rank() == 2 {
            b.post_notice(b"it rains");
            b.post_revocation();
        } else {
            let notice = std::iter::repeat_with(|| b.poll_notice()).flatten().next();
            assert_eq!(notice, Some((2, b"it rains".to_vec())));
            assert_eq!(std::iter::repeat_with(|| b.revoked_by()).flatten().next(), Some(2));
        }
        b.barrier(&never).unwrap();
        assert_eq!(b.all_goodbye(), None);
        b.barrier(&never).unwrap();
        b.say_goodbye().unwrap();
        let all = std::iter::repeat_with(|| b.all_goodbye()).flatten().next();
        assert_eq!(all, Some(true));
    });
}

#[test]
fn a_foreign_or_dead_root_is_an_error() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut c = id().contents();
    c.loopback = listener.local_addr().ok();
    c.routable = None;
    drop(listener);
    let settings = SocketSettings { retry_count: 1, retry_sleep: Duration::from_millis(1), ..SocketSettings::default() };
    let id = UniqueId::new(&c);
    let abort = AtomicBool::new(false);
    let j = Join { id: &id, rank: 1, nranks: 2, abort: &abort, warn_after: Duration::ZERO, timeout: Duration::ZERO, settings };
    assert!(join(j).err().unwrap().message.contains("cannot reach"));
}
