//! Starts a memory server: one thread per shard, one for the link, one that reclaims memory.

use crate::below;
use crate::conn::{Helpers, ShardService};
use crate::flush::Flusher;
use crate::lend::Lender;
use crate::link::{Hindrance, Identity};
use crate::links::{Departure, LinkService, ProcessChannels, ValuesLeave};
use crate::notes::{LinkNote, Note};
use crate::shard::{Shard, ShardConfig};
use crate::spill::Spiller;
use honeycomb_block::{HUGE_FROM, PageReserve, ReclaimWorker, Reclaimer};
use honeycomb_env::{AbortOnPanic, Clock, DiskShape, Entropy};
use honeycomb_structures::{LaneRoom, Registry};
use honeycomb_tiers::{Access, FlushRoot, FlushStore, Objects, Place};
use honeycomb_transport::unix::UnixDoor;
use honeycomb_transport::{Mailbox, Net, NetOptions, NotPosted, run};
use honeycomb_types::limits::{
    BELOW_BYTES, BELOW_FRACTION, BLOCK_SIZE_MAX, BLOCK_SIZE_MIN, DELTA_FRACTION,
    FLUSH_BUFFERS_FRACTION, FLUSH_BUFFERS_MAX, FLUSH_BUFFERS_MIN, FREED_BEYOND_FRACTION,
    FREED_KEPT_FRACTION, FREED_KEPT_MAX, MOVING_MAX, PAGE_RESERVE_FRACTION, PAGE_RESERVE_MAX,
    RETRY_RECORDS_FRACTION, RETRY_RECORDS_LEAST, SERVER_BUFFER_BYTES, SERVER_BUFFER_FRACTION,
    SERVER_BUFFER_LEAST, TIERS_MAX, WARM_BLOCKS_MIN, WARM_FRACTION,
};
use honeycomb_types::{BlockId, ServerId, ShardIx, TierClass, TierSpec};
use honeycomb_wire::custom::kind_info;
use honeycomb_wire::messages::TierInfo;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// Most pending reports of blocks to be emptied, in this process.
const VALUES_TOLD: usize = 4096;

/// The options of a memory server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The address to listen on; port 0 takes a free one.
    pub listen: SocketAddr,
    /// The host, or host:port, that clients use; `None` advertises the address listened on, which clients
    /// must then be able to reach.
    pub advertise: Option<String>,
    /// The controller.
    pub controller: SocketAddr,
    /// The cluster's token.
    pub token: Vec<u8>,
    /// Memory for blocks, in bytes.
    pub memory: u64,
    /// Bytes of each block: a power of two from 64 KiB to 1 GiB.
    pub block_size: u64,
    /// Disks and object stores as lower tiers, in the order in which they are used.
    pub disks: Vec<DiskOptions>,
    /// Cores to use: one shard each.
    pub shards: u8,
    /// How long a core polls before it sleeps if requests arrive in quick succession.
    pub spin: Duration,
    /// The memory that is touched before blocks need it.
    pub page_reserve: ReserveOptions,
    /// The place below which data of expired prefixes is written; none is written without it.
    pub flush_root: Option<FlushRoot>,
    /// The directory of the Unix socket for clients of this machine; `None` for no socket.
    pub unix_dir: Option<PathBuf>,
    /// The kinds of structure that it serves.
    pub kinds: Arc<Registry>,
}

/// Memory that a server touches on a thread of its own before a growing block needs it.
#[derive(Clone, Copy, Debug)]
pub struct ReserveOptions {
    /// Most bytes, which are touched as soon as a block grows; 0 for no reserve, or at least one chunk of
    /// 2 MiB (1/16,384 of a memory above 32 GiB). `None` for 1/64 of the server's memory and at most
    /// 128 MiB, and at most 1/32 of the memory that blocks took since they began to grow. Together with
    /// blocks and freed memory it never exceeds the server's memory and 1/64 more (INV-32).
    pub bytes: Option<u64>,
    /// The time without growth after which it is returned to the system.
    pub idle: Duration,
}

impl Default for ReserveOptions {
    fn default() -> ReserveOptions {
        ReserveOptions { bytes: None, idle: Duration::from_secs(1) }
    }
}

/// A disk, or an object store, for blocks that do not fit into memory.
#[derive(Clone, Debug)]
pub struct DiskOptions {
    /// The place. On a disk this is a directory, in which no file remains when the server ends for any
    /// reason. For an object store it is a bucket or a directory, in which no object remains when the server
    /// is stopped.
    pub place: Place,
    /// The credentials and endpoint, if it is a bucket.
    pub access: Access,
    /// Bytes of the place to use.
    pub bytes: u64,
    /// Its class. Object stores come after disks.
    pub class: TierClass,
    /// Simulated speed, for benchmarks; `None` leaves it as fast as it is.
    pub shape: Option<DiskShape>,
}

/// Blocks of each core.
struct Sizes {
    /// Blocks that may be in memory.
    frames: u32,
    /// In addition, the blocks of the write cache, for the ends of blocks in lower tiers.
    warm: u32,
    /// Bytes for changes of blocks in lower tiers that are not written there.
    deltas: usize,
    /// Most bytes that were read from lower tiers and are not sent yet.
    buffers: usize,
    /// Blocks in each lower tier.
    disks: Vec<TierSpec>,
}

impl Sizes {
    /// Bytes of memory for blocks of this size, and for bytes of lower tiers.
    fn bytes(&self, block_size: u64) -> u64 {
        (self.frames + self.warm) as u64 * block_size + (self.buffers + self.deltas) as u64
    }
}

/// A running memory server. Dropping it stops its threads and frees its blocks.
pub struct MemoryServer {
    address: SocketAddr,
    server: ServerId,
    near: Option<String>,
    shards: Vec<Mailbox<Note>>,
    link: Mailbox<LinkNote>,
    departure: Mutex<Option<Receiver<Departure>>>,
    values: Mutex<Option<Receiver<ValuesLeave>>>,
    threads: Vec<JoinHandle<()>>,
}

impl MemoryServer {
    /// Listens, starts the threads and joins the cluster. Waits up to `patience` for the controller; the
    /// error contains the last obstacle.
    pub fn start(options: &ServerOptions, patience: Duration) -> io::Result<MemoryServer> {
        let sizes = check(options)?;
        let used = sizes.bytes(options.block_size) * options.shards as u64;
        let memory = options.memory;
        assert!(used <= memory, "INV-32: blocks and buffers use {used} bytes of {memory}");
        let (disks, tiers) = (options.disks.len(), sizes.disks.len());
        assert_eq!(disks, tiers, "INV-42: {disks} disks have the blocks of {tiers} tiers");
        let clock = Clock::start();
        let listener = TcpListener::bind(options.listen)?;
        let address = listener.local_addr()?;
        let door = options.unix_dir.as_deref().map(UnixDoor::open).transpose()?;
        let near = door.as_ref().map(|d| d.path().to_owned());
        let (reclaimer, worker) = reclaimer(options.memory, options.page_reserve)?;
        let mut threads = vec![spawn("reclaim", move || worker.run())?];

        let buffers = SERVER_BUFFER_LEAST + options.memory / SERVER_BUFFER_FRACTION;
        let budget = SERVER_BUFFER_BYTES.min(buffers as usize) / options.shards as usize;
        let connections = Arc::default();
        let net_options = NetOptions { spin: options.spin, budget, connections };
        let mut nets = Vec::new();
        for _ in 0..options.shards {
            let net = Net::new(clock, net_options.clone())?;
            let (mailbox, notes) = net.mailbox::<Note>();
            nets.push((net, mailbox, notes));
        }
        nets[0].0.listen(listener)?;
        if let Some(door) = door {
            nets[0].0.listen_near(door)?;
        }
        let shards: Vec<_> = nets.iter().map(|(_, mailbox, _)| mailbox.clone()).collect();
        let link_net = Net::new(clock, NetOptions { spin: Duration::ZERO, ..net_options })?;
        let (link, link_notes) = link_net.mailbox::<LinkNote>();
        let flusher = match &options.flush_root {
            None => Flusher::none(),
            Some(root) => {
                let buffers = options.memory / FLUSH_BUFFERS_FRACTION;
                let buffers = buffers.clamp(FLUSH_BUFFERS_MIN, FLUSH_BUFFERS_MAX);
                let (objects, worker) = Objects::with_worker(buffers as usize)?;
                threads.push(spawn("objects", move || worker.run())?);
                let store = FlushStore::open(root, objects.clone());
                let store = store.map_err(io::Error::other)?;
                let (kinds, to) = (options.kinds.clone(), link.clone());
                let (flusher, worker) = Flusher::with_worker(store, objects, kinds, to, clock);
                threads.push(spawn("flush", move || worker.run())?);
                flusher
            }
        };

        let (lender, worker) = Lender::with_worker(clock);
        threads.push(spawn("lend", move || worker.run())?);
        let (mut spillers, mut traffic) = (Vec::new(), Vec::new());
        let incarnation = Entropy::system().next_u64();
        let advertised = advertised(options, address);
        for (disk, tier) in options.disks.iter().zip(&sizes.disks) {
            // An equal part for each core.
            let part = tier.blocks as u64 * options.block_size;
            let size = (part * options.shards as u64, options.block_size);
            let (volume, worker) = below::open(disk, (&advertised, incarnation), size, clock)?;
            if let Some(worker) = worker {
                threads.push(spawn(&format!("store-{}", threads.len()), move || worker.run())?);
            }
            let (spiller, workers) = Spiller::with_workers(volume, below::named(disk), clock);
            for worker in workers {
                let name = format!("spill-{}", threads.len());
                threads.push(spawn(&name, move || worker.run())?);
            }
            traffic.push(spiller.traffic());
            spillers.push((spiller, part));
        }

        let lane_room = RETRY_RECORDS_LEAST.max(options.memory / RETRY_RECORDS_FRACTION);
        let lane_room = lane_room as usize / options.shards as usize;
        for (ix, (net, _, notes)) in nets.into_iter().enumerate() {
            let config = ShardConfig {
                shard: ShardIx(ix as u8),
                block_size: options.block_size as usize,
                frames: sizes.frames,
                lane_room: LaneRoom::of(lane_room),
                moving: MOVING_MAX,
                warm: sizes.warm,
                deltas: sizes.deltas,
                disks: sizes.disks.clone(),
                buffers: sizes.buffers,
                reclaimer: reclaimer.clone(),
                kinds: options.kinds.clone(),
            };
            let (shards, link) = (shards.clone(), link.clone());
            let own = |(spiller, part): &(Spiller, u64)| (spiller.clone(), *part * ix as u64);
            let spillers = spillers.iter().map(own).collect();
            let helpers = Helpers { flusher: flusher.clone(), lender: lender.clone(), spillers };
            let token = options.token.clone();
            threads.push(spawn(&format!("shard-{ix}"), move || {
                let shard = Shard::new(config);
                let ix = ShardIx(ix as u8);
                let service = ShardService::new(ix, shard, shards, link, helpers, token);
                run(net, service, notes).expect("the event loop of a shard does not fail");
            })?);
        }
        drop((reclaimer, lender, spillers));
        let identity = Identity {
            controller: options.controller,
            token: options.token.clone(),
            address: advertised,
            shards: options.shards,
            blocks_per_shard: sizes.frames,
            tiers: sizes.disks.iter().map(tier_info).collect(),
            traffic,
            block_size: options.block_size,
            incarnation,
            flush_root: flush_root_of(options),
            kinds: options.kinds.announced().map(|kind| kind_info(&kind, 0)).collect(),
        };
        let (joined, joins) = channel();
        let (departed, departure) = channel();
        let (leaving, values) = sync_channel(VALUES_TOLD);
        let channels = ProcessChannels { departure: departed, values: leaving };
        let service = LinkService::new(identity, clock, shards.clone(), flusher, joined, channels);
        threads.push(spawn("link", move || {
            run(link_net, service, link_notes).expect("the event loop of the link does not fail");
        })?);
        let (departure, values) = (Mutex::new(Some(departure)), Mutex::new(Some(values)));
        let server = ServerId(0);
        let mut server =
            MemoryServer { address, server, near, shards, link, departure, values, threads };
        server.server = await_join(clock, &joins, patience)?;
        Ok(server)
    }

    /// The address for clients.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The path of its Unix socket, if it has one.
    pub fn near(&self) -> Option<&str> {
        self.near.as_deref()
    }

    /// The number that the server first got when it joined.
    pub fn server(&self) -> ServerId {
        self.server
    }

    /// Requests that the controller drain this server: it gets no more blocks, and ends when it has none.
    /// `departures` reports the outcome.
    pub fn leave(&self) {
        let clock = Clock::start();
        while let Err(NotPosted::Full(_)) = self.link.post(LinkNote::Leave) {
            clock.sleep_until(clock.now() + Duration::from_millis(1));
        }
    }

    /// Reports that the server has been drained, by any request, or why it is not. Available to the
    /// first caller.
    pub fn departures(&self) -> Option<Receiver<Departure>> {
        self.departure.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take()
    }

    /// Reports large values that must leave while the server drains: it does not end before they have.
    /// Available to the first caller.
    pub fn leaving_values(&self) -> Option<Receiver<ValuesLeave>> {
        self.values.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take()
    }

    /// Waits until its threads end: when it has been drained, or because of a defect.
    pub fn wait(mut self) {
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Drop for MemoryServer {
    fn drop(&mut self) {
        for shard in &self.shards {
            let _ = shard.post(Note::Stop);
        }
        let _ = self.link.post(LinkNote::Stop);
        self.shards.clear();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn await_join(
    clock: Clock,
    joins: &Receiver<Result<ServerId, Hindrance>>,
    patience: Duration,
) -> io::Result<ServerId> {
    let until = clock.now() + patience;
    let mut last = "the controller did not answer".to_owned();
    loop {
        match joins.recv_timeout(until.since(clock.now())) {
            Ok(Ok(server)) => return Ok(server),
            Ok(Err(hindrance)) if hindrance.is_final => {
                return refuse(format!("the server could not join: {}", hindrance.text));
            }
            Ok(Err(hindrance)) => last = hindrance.text,
            Err(_) => return Err(io::Error::other(format!("the server could not join: {last}"))),
        }
    }
}

fn advertised(options: &ServerOptions, listening: SocketAddr) -> String {
    match &options.advertise {
        Some(host)
            if host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()) =>
        {
            host.clone()
        }
        Some(host) => format!("{host}:{}", listening.port()),
        None => listening.to_string(),
    }
}

/// Whether clients on other machines may use the controller's address.
fn is_elsewhere(controller: SocketAddr) -> bool {
    !controller.ip().is_loopback() && !controller.ip().is_unspecified()
}

/// The flags by which clients of a controller reach a server on this machine, with the address of this
/// machine in the controller's network where the routes know one.
fn listen_instead(controller: SocketAddr) -> String {
    // Connecting a datagram socket looks up the route and sends nothing.
    let any: SocketAddr = match controller {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let local = UdpSocket::bind(any).and_then(|socket| {
        socket.connect(controller)?;
        socket.local_addr()
    });
    match local {
        Ok(local) => format!("--listen {} --insecure", SocketAddr::new(local.ip(), 0)),
        Err(_) => "--listen ADDRESS:0 --insecure".to_owned(),
    }
}

fn tier_info(tier: &TierSpec) -> TierInfo {
    TierInfo { class: tier.class.code(), blocks: tier.blocks }
}

/// The memory that comes and goes beside the blocks, in a server with this much memory.
fn reclaimer(memory: u64, reserve: ReserveOptions) -> io::Result<(Reclaimer, ReclaimWorker)> {
    let kept = FREED_KEPT_MAX.min(memory / FREED_KEPT_FRACTION) as usize;
    let whole = (memory + memory / FREED_BEYOND_FRACTION) as usize;
    let usual = PAGE_RESERVE_MAX.min(memory / PAGE_RESERVE_FRACTION);
    let bytes = reserve.bytes.unwrap_or(usual) as usize;
    let pages = PageReserve::new(bytes, whole, reserve.idle);
    let pages = match (pages, reserve.bytes) {
        (Ok(None), Some(1..)) => {
            return refuse(format!(
                "a page reserve of {bytes} bytes is less than one chunk, 2 MiB or 1/16384 of the \
                 memory; make it larger, or 0"
            ));
        }
        (Ok(pages), Some(_)) => pages,
        (Ok(pages), None) => pages.map(PageReserve::gradual),
        (Err(e), Some(_)) => {
            let why = format!("this system cannot move touched pages: {e}; set page_reserve to 0");
            return Err(io::Error::new(e.kind(), why));
        }
        (Err(e), None) => {
            eprintln!(
                "honeycomb: no page reserve, so growing data waits for new memory: this system \
                 cannot move touched pages: {e}"
            );
            None
        }
    };
    Ok(Reclaimer::with_worker(kept, whole, pages))
}

/// Refuses, without any traffic, addresses at which clients could not reach a server.
pub fn check_addresses(
    listen: SocketAddr,
    advertise: Option<&str>,
    controller: SocketAddr,
) -> io::Result<()> {
    if listen.ip().is_unspecified() && advertise.is_none() {
        return refuse(format!(
            "{listen} means all addresses of this machine; set --advertise to the one that clients \
             shall use"
        ));
    }
    if advertise.is_none() && listen.ip().is_loopback() && is_elsewhere(controller) {
        return refuse(format!(
            "the server listens on {listen}, which clients of the controller at {controller} \
             cannot reach from other machines; use {}, or set --advertise to the address for \
             clients",
            listen_instead(controller),
        ));
    }
    Ok(())
}

fn refuse<T>(text: String) -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::InvalidInput, text))
}

fn check(options: &ServerOptions) -> io::Result<Sizes> {
    let size = options.block_size;
    if !size.is_power_of_two() || !(BLOCK_SIZE_MIN..=BLOCK_SIZE_MAX).contains(&size) {
        return refuse(format!(
            "the block size must be a power of two from {BLOCK_SIZE_MIN} to {BLOCK_SIZE_MAX}, not \
             {size}"
        ));
    }
    check_addresses(options.listen, options.advertise.as_deref(), options.controller)?;
    if options.shards == 0 || options.shards == u8::MAX {
        return refuse(format!("a server has 1 to 254 shards, not {}", options.shards));
    }
    let per_shard = options.memory / size / options.shards as u64;
    if per_shard == 0 {
        return refuse(format!(
            "{} bytes of memory are too few for one block of {size} bytes in each of {} shards",
            options.memory, options.shards
        ));
    }
    if options.page_reserve.bytes.is_some_and(|bytes| bytes > options.memory) {
        let (given, memory) = (options.page_reserve.bytes.unwrap_or(0), options.memory);
        return refuse(format!("a page reserve of {given} bytes is more than {memory} of memory"));
    }
    if size < HUGE_FROM as u64 && options.page_reserve.bytes.is_some_and(|bytes| bytes > 0) {
        return refuse(format!(
            "a page reserve is for blocks of at least {} MiB, and these have {size} bytes; use \
             larger blocks, or set page_reserve to 0",
            HUGE_FROM >> 20
        ));
    }
    if options.disks.len() > TIERS_MAX {
        let given = options.disks.len();
        return refuse(format!("a server has at most {TIERS_MAX} disks, not {given}"));
    }
    below::check(&options.disks).map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
    let mut disks = Vec::new();
    for disk in &options.disks {
        let blocks = disk.bytes / size / options.shards as u64;
        if blocks == 0 {
            return refuse(format!(
                "{} bytes of the disk at {} are too few for one block of {size} bytes in each of \
                 {} shards",
                disk.bytes, disk.place, options.shards
            ));
        }
        disks.push((disk.class, blocks));
    }
    let all = per_shard + disks.iter().map(|(_, blocks)| blocks).sum::<u64>();
    if all > BlockId::MAX_INDEX as u64 {
        return refuse(format!(
            "{all} blocks per shard are over the limit of {}; use larger blocks",
            BlockId::MAX_INDEX
        ));
    }
    // The bookkeeping of blocks in lower tiers must not take most of the memory.
    let kept = (all - per_shard) * BELOW_BYTES;
    if kept > per_shard * size / BELOW_FRACTION {
        return refuse(format!(
            "for each core, {} blocks of {size} bytes in lower tiers would take {kept} of {} bytes \
             of memory; use larger blocks or smaller lower tiers",
            all - per_shard,
            per_shard * size
        ));
    }
    let tier = |(class, blocks)| TierSpec { class, blocks: blocks as u32 };
    let disks: Vec<TierSpec> = disks.into_iter().map(tier).collect();
    // The memory for this bookkeeping is subtracted from the memory of blocks.
    let per_shard = (per_shard - kept / size) as u32;
    if disks.is_empty() {
        return Ok(Sizes { frames: per_shard, warm: 0, deltas: 0, buffers: 0, disks });
    }
    let pool = WARM_BLOCKS_MIN.max(per_shard / WARM_FRACTION);
    if per_shard <= pool {
        return refuse(format!(
            "too little memory: {per_shard} blocks for each core, of which a server with disks \
             reserves {pool} to read and write them; add memory or use smaller blocks"
        ));
    }
    // A quarter is for reads.
    let read = (pool / 4).max(1);
    let buffers = read as usize * size as usize;
    let deltas = per_shard / DELTA_FRACTION;
    Ok(Sizes {
        frames: per_shard - pool - deltas,
        warm: pool - read,
        deltas: deltas as usize * size as usize,
        buffers,
        disks,
    })
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        let _guard = AbortOnPanic("memory server's");
        body();
    })
}

/// The flush root as sent to controllers: absolute, so that it means the same on every machine.
fn flush_root_of(options: &ServerOptions) -> String {
    let Some(root) = &options.flush_root else { return String::new() };
    match root.place.directory() {
        Some(directory) => {
            let absolute = std::path::absolute(directory);
            absolute.unwrap_or_else(|_| directory.to_owned()).display().to_string()
        }
        None => root.place.to_string(),
    }
}
