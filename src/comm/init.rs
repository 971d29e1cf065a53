//! Builds a rank's communicator: ranks meet, say who they are, agree on a shape, exchange regions, and go on only when all have succeeded.

use super::communicator::{Communicator, Ready};
use super::identity::{Identity, PROTOCOL_VERSION, RegionCard};
use super::reclaim;
use crate::bootstrap::{Bootstrap, Join, UniqueId, host_token, process_token};
use crate::cuda::IpcHandle;
use crate::env::settings;
use crate::error::{Error, Result};
use crate::executor::gpu::{Gpu, gpu};
use crate::executor::lane::{LaneMemory, Reach};
use crate::executor::launch::Launcher;
use crate::executor::layout::{Geometry, MAX_CHANNELS, MAX_RINGS, Peer};
use crate::planner;
use crate::transport::{Listener, Network};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Staging memory per communicator and rank, whatever the number of peers.
const REGION_BUDGET: usize = 16 << 20;

/// Runs the whole of init on the calling thread.
pub fn connect(comm: &Communicator, id: &UniqueId, rank: usize, nranks: usize) -> Result<Ready> {
    reclaim::sweep();
    let started = Instant::now();
    let set = settings();
    if let Some(error) = crate::env::settings_error() {
        return Err(error);
    }
    let gpu = gpu(comm.device)?;
    crate::observe::log::set_device_probe(|| crate::cuda::current_device().ok());
    let loaded = started.elapsed();
    tracing::info!(target: "INIT", "rank {rank} nranks {nranks} cudaDev {} busId {} commId {:#x} - Init START",
        comm.device, gpu.context.device.pci_bus_id, id.hash());
    let bootstrap = crate::bootstrap::join(Join {
        id,
        rank,
        nranks,
        abort: &comm.stop,
        warn_after: Duration::from_secs(set.warn_s),
        timeout: Duration::from_secs(set.timeout_s),
        settings: crate::env::socket_settings(),
    })?;
    let met = started.elapsed();
    let ready = agree(comm, &gpu, bootstrap, id, rank, nranks)?;
    let total = started.elapsed();
    tracing::info!(target: "INIT", "Init timings: rank {rank} total {:.2} ms (kernels {:.2}, bootstrap {:.2}, memory {:.2})",
        ms(total), ms(loaded), ms(met - loaded), ms(total - met));
    tracing::info!(target: "INIT", "comm {:#x} rank {rank} nranks {nranks} cudaDev {} busId {} commId {:#x} - Init COMPLETE",
        ready.lane.address(), comm.device, gpu.context.device.pci_bus_id, id.hash());
    Ok(ready)
}

fn ms(d: Duration) -> f64 {
    d.as_secs_f64() * 1e3
}

fn agree(comm: &Communicator, gpu: &Arc<Gpu>, bootstrap: Bootstrap, id: &UniqueId, rank: usize, nranks: usize) -> Result<Ready> {
    let set = settings();
    let min_channels = comm.config.min_ctas.or(set.min_ctas).unwrap_or(1);
    let max_channels = comm.config.max_ctas.or(set.max_ctas).or(set.max_blocks).unwrap_or(MAX_CHANNELS as u32);
    let mine = Identity {
        version: PROTOCOL_VERSION,
        process: process_token(),
        host: host_token(set.host_id.as_deref()),
        gpu: gpu.context.device.uuid,
        multiprocessors: gpu.multiprocessors(),
        min_channels,
        max_channels,
        region_budget: REGION_BUDGET as u64,
        stripes: stripes(),
        zero_copy: set.zero_copy,
    };
    let all = bootstrap.all_gather(&mine.encode(), &comm.stop)?.iter().map(|bytes| Identity::decode(bytes)).collect::<Result<Vec<_>>>()?;
    check_compatible(&all, rank)?;

    let on_gpu = |gpu: &[u8; 16]| all.iter().filter(|i| i.gpu == *gpu).count();
    let one_node = all.iter().all(|i| i.host == mine.host);
    let direct = |i: &Identity| i.host == mine.host && i.process == mine.process && i.gpu == mine.gpu;
    let ranks = planner::Ranks {
        nranks,
        on_gpu: all.iter().map(|i| on_gpu(&i.gpu)).max().unwrap_or(1),
        multiprocessors: all.iter().map(|i| i.multiprocessors).min().unwrap_or(1),
        channels: (all.iter().map(|i| i.min_channels).max().unwrap_or(1), all.iter().map(|i| i.max_channels).min().unwrap_or(1)),
        budget: all.iter().map(|i| i.region_budget as usize).min().unwrap_or(REGION_BUDGET),
        one_node,
        per_node: planner::per_node(&all.iter().map(|i| i.host).collect::<Vec<_>>()),
        all_direct: all.iter().all(|i| direct(i) && i.zero_copy),
    };
    let shape = planner::shape(&ranks);

    let remote: Vec<usize> = (0..nranks).filter(|r| all[*r].host != mine.host).collect();
    let stripes = all.iter().map(|i| i.stripes).min().unwrap_or(1) as usize;
    let key = id.derived_key("mkernel transport v1");
    let others = nranks - remote.len() - 1;

    // From here on a rank that fails says so to the others, so that nobody waits for it.
    let made = share_region(gpu, &shape, &all, rank, others).and_then(|(mut lane, mut card)| {
        if one_node {
            return Ok((lane, card, None));
        }
        let listener = Listener::open(&crate::env::socket_settings(), &key)?;
        card.listener = Some(listener.address());
        lane.network = Some(Network::new(gpu, &shape.geometry, rank, &remote, stripes, lane.slot)?);
        Ok((lane, card, Some(listener)))
    });
    let card = match &made {
        Ok((_, card, _)) => [vec![1], card.encode()].concat(),
        Err(e) => [vec![0], e.message.as_bytes().to_vec()].concat(),
    };
    let cards = bootstrap.all_gather(&card, &comm.stop)?;
    let (lane, _, listener) = made?;
    let opened = first_failure(&cards).and_then(|()| {
        let cards = cards.iter().map(|c| RegionCard::decode(c.get(1..).unwrap_or_default())).collect::<Result<Vec<_>>>()?;
        let mut reach = map_peers(gpu, &shape.geometry, &all, &cards, rank)?;
        if let (Some(network), Some(listener)) = (&lane.network, listener) {
            network.describe(&mut reach);
            let addresses = remote
                .iter()
                .map(|r| cards[*r].listener.map(|address| (*r, address)))
                .collect::<Option<Vec<_>>>()
                .ok_or_else(|| Error::internal("a rank of another node sent no address to connect to"))?;
            network.connect(listener, &addresses, &key, Duration::from_secs(set.net_timeout_s), &comm.stop)?;
        }
        lane.open(&shape.geometry, rank, &reach, set.timeout_s.saturating_mul(1_000_000_000))
    });
    let report = match &opened {
        Ok(()) => vec![1],
        Err(e) => [vec![0], e.message.as_bytes().to_vec()].concat(),
    };
    let reports = bootstrap.all_gather(&report, &comm.stop)?;
    opened?;
    first_failure(&reports)?;
    tracing::info!(target: "INIT", "{} coll channels, {} ranks on a GPU at most, {} bytes of staging, {}",
        shape.geometry.channels, ranks.on_gpu, shape.geometry.region_bytes(others).1, if ranks.all_direct { "zero-copy" } else { "staged" });
    if !one_node {
        tracing::info!(target: "NET", "Using network Socket: {} ranks on this node, {} on others, {stripes} connections to each", others + 1, remote.len());
    }
    Ok(Ready { rank, nranks, id: id.hash(), shape, lane, launcher: Launcher::default(), bootstrap, peer_revoked: AtomicBool::new(false) })
}

fn check_compatible(all: &[Identity], rank: usize) -> Result<()> {
    for (peer, other) in all.iter().enumerate() {
        if other.version != PROTOCOL_VERSION {
            return Err(Error::usage(format!(
                "rank {peer} runs another version of libmkernel.so (device protocol {}, rank {rank} has {PROTOCOL_VERSION}): use the same library everywhere",
                other.version
            )));
        }
    }
    Ok(())
}

/// Network threads that this process would use.
fn stripes() -> u32 {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    settings().socket_threads.unwrap_or((cores / 4).min(4)).clamp(1, MAX_RINGS as u32)
}

fn share_region(gpu: &Arc<Gpu>, shape: &planner::Shape, all: &[Identity], rank: usize, others: usize) -> Result<(LaneMemory, RegionCard)> {
    let lane = LaneMemory::new(gpu.clone(), &shape.geometry, others)?;
    let _guard = gpu.context.enter()?;
    let shared = all.iter().any(|i| i.host == all[rank].host && i.process != all[rank].process);
    let handle = if shared { Some(lane.region().ipc_handle()?.0) } else { None };
    let card = RegionCard { address: lane.region().address, handle, listener: None };
    Ok((lane, card))
}

/// The first rank that reported a failure, as an error.
fn first_failure(reports: &[Vec<u8>]) -> Result<()> {
    match reports.iter().enumerate().find(|(_, r)| r.first() != Some(&1)) {
        None => Ok(()),
        Some((rank, r)) => Err(Error::remote(format!(
            "rank {rank} could not set up the communicator: {}",
            String::from_utf8_lossy(r.get(1..).unwrap_or_default())
        ))),
    }
}

/// How the ranks of this node are reached; entries of other ranks stay empty.
fn map_peers(gpu: &Arc<Gpu>, geometry: &Geometry, all: &[Identity], cards: &[RegionCard], rank: usize) -> Result<Reach> {
    let local: Vec<usize> = (0..all.len()).filter(|r| all[*r].host == all[rank].host).collect();
    let others = local.len() - 1;
    // Where the inbox that `writer` fills lies in the region of `reader`.
    let place = |reader: usize, writer: usize| {
        let k = local.iter().filter(|r| **r != reader).position(|r| *r == writer).unwrap_or(0);
        geometry.inbox_in_region(others, k)
    };
    let mut peers = vec![Peer::default(); all.len()];
    for &peer in &local {
        let region = region_of(gpu, all, cards, peer, rank)?;
        let (inbox, inbox_slots) = place(rank, peer);
        let (outbox, outbox_slots) = place(peer, rank);
        let own = cards[rank].address;
        peers[peer] = Peer { packets: region, ..Peer::default() };
        if peer != rank {
            peers[peer].inbox = own + inbox;
            peers[peer].inbox_slots = own + inbox_slots;
            peers[peer].outbox = region + outbox;
            peers[peer].outbox_slots = region + outbox_slots;
        }
    }
    let one_gpu = all.iter().all(|i| i.gpu == all[rank].gpu && i.host == all[rank].host);
    Ok(Reach { peers, one_gpu, ..Reach::default() })
}

/// The region of a rank of this node, as addressed from here.
fn region_of(gpu: &Arc<Gpu>, all: &[Identity], cards: &[RegionCard], peer: usize, rank: usize) -> Result<u64> {
    let (identity, card) = (&all[peer], &cards[peer]);
    if identity.process == all[rank].process {
        if identity.gpu != all[rank].gpu {
            reach_other_gpu(gpu, identity, peer, rank)?;
        }
        return Ok(card.address);
    }
    let handle = card.handle.ok_or_else(|| Error::internal(format!("rank {peer} sent no handle of its region")))?;
    let opened = gpu.import(identity.process, &IpcHandle(handle));
    let opened =
        opened.map_err(|e| Error { message: format!("rank {rank} cannot reach the memory of rank {peer}: {}", e.message), ..e })?;
    Ok(opened.address)
}

/// Ranks of this process on different GPUs: kernels on ours must be able to address the other's memory.
fn reach_other_gpu(mine: &Arc<Gpu>, other: &Identity, peer: usize, rank: usize) -> Result<()> {
    for ordinal in 0..crate::cuda::device_count()? {
        let theirs = gpu(ordinal)?;
        if theirs.context.device.uuid == other.gpu {
            if mine.context.enable_peer(&theirs.context)? {
                return Ok(());
            }
            return Err(Error::usage(format!(
                "rank {rank} on GPU {} cannot address the memory of rank {peer} on GPU {ordinal}: the GPUs have no peer access (nvidia-smi topo -p2p r tells)",
                mine.context.device.ordinal
            )));
        }
    }
    Err(Error::internal(format!("the GPU of rank {peer} is in this process but not among its devices")))
}
